"""The table of ``docs/gpu.md`` from what the steps of ``bench/gpu.py`` left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from analyzer.domain.configuration import CudnnSearch
from benchlib.command import cell, table


def page_table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each step that has run; a sentence where none has."""
    if not records:
        return "No step has run yet: no GPU could be had."
    rows = [
        (name, str(record["state"]), f"{record.get('seconds', 0):.0f}", sentence(record))
        for name, record in records.items()
    ]
    return table(("step", "state", "seconds", "what came of it"), rows)


def sentence(record: Mapping[str, Any]) -> str:
    """What came of a step, for people, on one line."""
    if record["state"] != "done":
        said = " ".join(str(record.get("said", "")).split()).replace("|", "\\|")
        return said[:300] or "it gave no reason"
    return _SENTENCES[record["step"]](record["results"])


def _machine(found: Mapping[str, Any]) -> str:
    cuda = ".".join(map(str, found["driver_cuda"] or ())) or "unknown"
    return f"{found['gpu']}, driver {found['driver']}, CUDA up to {cuda}"


def _copies(found: Mapping[str, Any]) -> str:
    parts = []
    for name in ("cuda-bindings", "cupy"):
        one = found.get(name, {})
        if "page-locked" not in one:
            parts.append(f"{name}: {one.get('said', 'not run')}")
            continue
        timed = [*one["page-locked"].values(), *one["pageable"].values()]
        right = all(each["correct"] for each in timed) and one["two_instances_correct"]
        ms = " / ".join(f"{one[kind]['64']['ms']:.2f}" for kind in ("page-locked", "pageable"))
        parts.append(
            f"{name}: answers {'right' if right else 'WRONG'}, {ms} ms for 64 rows page-locked /"
            f" pageable, {one['bytes_not_given_back']} bytes not given back,"
            f" {'ran on' if one['out_of_memory']['runs_on'] else 'was lost'} after out of memory"
        )
    return "; ".join(parts)


def _lost(found: Mapping[str, Any]) -> str:
    return str(found["said"][0])


def _provider(found: Mapping[str, Any]) -> str:
    parts = []
    for name, one in found["models"].items():
        words = [f"difference to the CPU {one['difference']:.1e}"]
        for search in (name for name in get_args(CudnnSearch) if name in one):
            firsts = [each["first_ms"] for each in one[search].values() if "first_ms" in each]
            turns = one[search].get("alternating", {}).get("ms")
            words.append(
                f"{search} {one[search]['1']['ms']:.2f} ms at 1 and {one[search]['64']['ms']:.2f}"
                f" at 64, first runs up to {max(firsts):.0f} ms,"
                f" {cell(turns, '.2f')} where batches of 8 and 16 take turns"
            )
        for part, title in (("bound", "without copies"), ("graph", "as a CUDA graph")):
            ms = one[part].get("64", {}).get("ms")
            words.append(f"{title} {cell(ms, '.2f')} ms at 64")
        parts.append(f"{name}: {', '.join(words)}")
    return "; ".join(parts)


def _nvml(found: Mapping[str, Any]) -> str:
    busy, meter = found["busy"], found["meter"]
    windows = busy["windows"]
    gap = windows["gap_ms_median"] if isinstance(windows, dict) else None
    return (
        f"windows every {cell(gap, '.0f')} ms, energy counter every"
        f" {cell(busy['energy_step_ms_median'], '.0f')} ms, busy by {found['busy_by']}:"
        f" {cell(busy['energy_watts'], '.0f')} W by energy, {cell(busy['power_watts'], '.0f')} W"
        f" by power, meter {cell(meter['power_watts'], '.0f')} W and utilization"
        f" {cell(meter['gpu_utilization'], '.0%')}"
    )


def _search(found: Mapping[str, Any]) -> str:
    parts = []
    for device, document in found.items():
        best = document["recommendation"]
        rate = cell(best and best["capacity_rps"], ".0f")
        parts.append(f"{device}: {document['verdict']}, {rate}/s certified")
    return "; ".join(parts)


def _landscape(found: Mapping[str, Any]) -> str:
    words = f"{found['rows']} of {found['of']} rows in {found['table']}"
    if "said" in found:
        return f"{words}; {found['said']}"
    return (
        f"{words}, {found['left_out']} against Little's law, at most"
        f" {found['throughput_ips_max']:.0f} inferences/s, the closed-loop twin fits them within"
        f" {found['twin_error_median']:.1%} (median)"
    )


def _tests(found: Mapping[str, Any]) -> str:
    return str(found["said"][-1]) if found["said"] else "pytest said nothing"


_SENTENCES = {
    "machine": _machine,
    "copies": _copies,
    "lost": _lost,
    "provider": _provider,
    "nvml": _nvml,
    "search": _search,
    "landscape": _landscape,
    "tests": _tests,
}
