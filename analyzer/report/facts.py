"""What a report says, in sentences and rows, made once from the document for every format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analyzer.report.wording import (
    NOT_MEASURED,
    config_sentence,
    dollars,
    interval,
    milliseconds,
    number,
    percent,
    percentile_name,
    precision_label,
    rate,
    size,
    times,
)

Row = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One number that matters, what it is, and what it rests on."""

    label: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a study.

    Args:
        title: One sentence: what holds.
        subtitle: The configuration, or what came closest, in words.
        figures: Three or four numbers, the most important first.
        entry: The entry that the answer speaks of (recommended or closest); None if nothing ran.
        measured: Rows on what was measured of it.
        proof: Rows of its certificate.
        cost: Rows on the fleet.
        misses: What was missed, a sentence each; empty for a found study.
        advice: What to do next, a sentence each.
    """

    title: str
    subtitle: str
    figures: tuple[KeyFigure, ...]
    entry: dict[str, Any] | None
    measured: tuple[Row, ...]
    proof: tuple[Row, ...]
    cost: tuple[Row, ...]
    misses: tuple[str, ...]
    advice: tuple[str, ...]


def promise(sla: dict[str, Any]) -> str:
    """The promise in words: ``99 % of requests within 50 ms``."""
    return f"{sla['percentile']:g} % of requests within {milliseconds(sla['latency_budget_ms'])}"


def answer_facts(document: dict[str, Any]) -> Answer:
    """The answer of a result document, whatever its verdict."""
    entry = document["recommendation"]
    closest = document["closest"]
    shown = entry or (closest["entry"] if closest else None)
    title, subtitle = _title(document, entry)
    return Answer(
        title=title,
        subtitle=subtitle,
        figures=_figures(document, entry) if entry else (),
        entry=shown,
        measured=_measured_rows(shown, document["sla"]) if shown else (),
        proof=_proof_rows(shown, document) if shown else (),
        cost=_cost_rows(shown, document["sla"]) if shown else (),
        misses=tuple(_miss_sentence(miss, document["sla"]) for miss in closest["misses"])
        if closest
        else (),
        advice=_advice(document),
    )


def _title(document: dict[str, Any], entry: dict[str, Any] | None) -> tuple[str, str]:
    sla = document["sla"]
    name = document["model"]["name"]
    promised = promise(sla)
    if entry is not None:
        promised = promised.replace("of requests", "of them")
        carried = f"carries {number(entry['capacity_rps'])} requests/s, {promised}"
        return (
            f"As {precision_label(entry['config'])}, {name} {carried}",
            f"Serve {name} as {config_sentence(entry['config'])}.",
        )
    closest = document["closest"]
    came = f"Closest: {config_sentence(closest['entry']['config'])}." if closest else ""
    if document["verdict"] == "infeasible":
        return f"No configuration of {name} keeps {promised}", came
    return f"Undecided: no configuration was proven to keep {promised}", came or (
        "Nothing could be measured."
    )


# How far the ratio of the certified rates may lie from that of the edges without a word about it.
_UNEQUAL = 0.1

_GAINS = {
    "capacity": "the capacity of the baseline",
    "cost": "cheaper than the baseline",
    "latency": "lower latency than the baseline",
    "memory": "less memory than the baseline",
}


def gain_sentence(document: dict[str, Any]) -> str:
    """The speed-up in words; beside it that of the edges, where the two were proven unequally."""
    speedup = document["speedup"]
    baseline = document["baseline"]
    if speedup is None:
        if baseline is None or document["recommendation"] is None:
            return "not comparable with the baseline"
        if baseline["capacity_rps"] is not None:
            return "not comparable with the baseline"
        edge = baseline["edge_rps"]
        if edge:
            return f"the baseline was not certified in the time (its edge: about {edge:,.0f} /s)"
        return "the baseline never keeps the SLA"
    text = f"{times(speedup)} {_GAINS[document['sla']['objective']]}"
    edges = [entry["edge_rps"] for entry in (document["recommendation"], baseline)]
    if document["sla"]["objective"] == "capacity" and all(edges):
        ratio = edges[0] / edges[1]
        if abs(ratio / speedup - 1.0) > _UNEQUAL:
            return f"{text} ({times(ratio)} by their edges)"
    return text


def _figures(document: dict[str, Any], entry: dict[str, Any]) -> tuple[KeyFigure, ...]:
    sla = document["sla"]
    baseline = document["baseline"]
    fleet = entry["fleet"]
    tail = percentile_name(sla["percentile"])
    edge = f"edge {rate(entry['edge_rps'])}"
    bounds = interval(entry["edge_interval_rps"])
    figures = [
        KeyFigure(
            label="Certified capacity",
            value=rate(entry["capacity_rps"]),
            note=f"{edge}, {bounds}" if bounds else edge,
        ),
        KeyFigure(
            label=f"Latency, {tail}",
            value=milliseconds(entry["latency_ms"]["sla"]),
            note=f"at {rate(entry['measured_at_rps'])}; the budget is "
            f"{milliseconds(sla['latency_budget_ms'])}",
        ),
        KeyFigure(
            label="Against Triton's default",
            value=times(document["speedup"]),
            note=f"{gain_sentence(document).removeprefix(times(document['speedup'])).strip()}"
            + (f", {rate(baseline['capacity_rps'])} certified" if baseline else ""),
        ),
    ]
    if fleet and fleet["cost_per_hour"] is not None:
        figures.append(
            KeyFigure(
                label="Cost",
                value=f"{dollars(fleet['cost_per_hour'])}/h",
                note=f"{_machines(fleet['machines'])} for {rate(sla['target_rate_rps'])}, "
                f"{dollars(fleet['cost_per_million_inferences'])} a million inferences",
            )
        )
    elif fleet and fleet["cost_per_million_inferences"] is not None:
        figures.append(
            KeyFigure(
                label="Cost of a million",
                value=dollars(fleet["cost_per_million_inferences"]),
                note="inferences, every device at its capacity",
            )
        )
    elif fleet:
        figures.append(
            KeyFigure(
                label="Fleet",
                value=_machines(fleet["machines"]),
                note=f"for {rate(sla['target_rate_rps'])}; no price is known (--price)",
            )
        )
    return tuple(figures)


def _machines(count: int | None) -> str:
    if count is None:
        return NOT_MEASURED
    return "1 machine" if count == 1 else f"{count:,} machines"


def _measured_rows(entry: dict[str, Any], sla: dict[str, Any]) -> tuple[Row, ...]:
    latency = entry["latency_ms"]
    tail = percentile_name(sla["percentile"])
    percentiles = [f"p50 {milliseconds(latency['p50'])}", f"{tail} {milliseconds(latency['sla'])}"]
    rows: list[Row] = [
        ("measured at", rate(entry["measured_at_rps"])),
        ("throughput", f"{number(entry['throughput_ips'])} inferences/s"),
        ("latency", ", ".join(percentiles)),
        ("errors", number(entry["errors"], 9)),
        ("memory, peak", size(entry["memory_bytes_peak"])),
    ]
    if entry["gpu_memory_bytes_peak"] is not None:
        source = entry["gpu_memory_source"] or "unknown"
        rows.append(("GPU memory, peak", f"{size(entry['gpu_memory_bytes_peak'])} ({source})"))
    if entry["gpu_utilization"] is not None:
        rows.append(("GPU utilization", percent(entry["gpu_utilization"])))
    if entry["power_watts"] is not None:
        rows.append(("power", f"{number(entry['power_watts'])} W"))
    rows.append(("accuracy", accuracy_text(entry["accuracy"])))
    return tuple(rows)


def accuracy_text(accuracy: dict[str, Any] | None) -> str:
    """``96.7 % label accuracy, drop 0.4 % (0.1 to 0.8 %)``."""
    if accuracy is None:
        return "not measured (no real data: --calibration-data)"
    text = f"{percent(accuracy['value'])} {accuracy['metric'].replace('_', ' ')}"
    if accuracy["drop"]:
        text += f", drop {percent(accuracy['drop'])}"
        if accuracy["interval"]:
            low, high = (None if bound is None else bound * 100 for bound in accuracy["interval"])
            text += f" ({interval([low, high])} %)"
    return text


def _proof_rows(entry: dict[str, Any], document: dict[str, Any]) -> tuple[Row, ...]:
    certificate = entry["certificate"]
    if certificate is None:
        return (("certificate", "none: no rate was tried for a certificate"),)
    share = percent(certificate["over_budget"] / max(certificate["requests"], 1))
    allowed = percent(round(1 - document["sla"]["percentile"] / 100, 9))
    rows: list[Row] = [
        ("certificate", f"{certificate['verdict']} at {certificate['confidence']:g} confidence"),
        ("certified rate", rate(entry["capacity_rps"])),
        ("estimated edge", _edge_text(entry)),
        ("requests", f"{certificate['requests']:,}"),
        ("over budget", f"{certificate['over_budget']:,} ({share}; allowed {allowed})"),
        ("effective requests", _effective_text(certificate)),
        ("MLPerf's early stopping", certificate["mlperf"]),
    ]
    if certificate["requests_missing"] is not None:
        rows.append(("requests missing", f"{certificate['requests_missing']:,}"))
    return tuple(rows)


def _edge_text(entry: dict[str, Any]) -> str:
    bounds = interval(entry["edge_interval_rps"])
    return f"{rate(entry['edge_rps'])} ({bounds})" if bounds else rate(entry["edge_rps"])


def _effective_text(certificate: dict[str, Any]) -> str:
    text = f"{certificate['effective_requests']:,.0f}"
    if certificate["inflation"] is not None:
        source = certificate["inflation_source"].replace("_", " ")
        text += (
            f" (queueing correlates them: inflation {number(certificate['inflation'])}, {source})"
        )
    return text


def _cost_rows(entry: dict[str, Any], sla: dict[str, Any]) -> tuple[Row, ...]:
    fleet = entry["fleet"]
    if fleet is None:
        return ()
    rows: list[Row] = []
    if fleet["machines"] is not None:
        rows.append(("target rate", rate(sla["target_rate_rps"])))
        rows.append(("replicas", f"{fleet['replicas']:,}"))
        rows.append(("machines", f"{fleet['machines']:,}"))
    if fleet["cost_per_hour"] is not None:
        rows.append(("cost per hour", dollars(fleet["cost_per_hour"])))
    if fleet["cost_per_million_inferences"] is not None:
        rows.append(("a million inferences", dollars(fleet["cost_per_million_inferences"])))
        price = f"{dollars(sla['price_per_hour'])}/h"
        rows.append(("price of a machine", f"{price}, {fleet['price_source'] or 'given'}"))
    return tuple(rows)


_LIMITS = {
    "latency_budget_ms": ("the latency budget", milliseconds),
    "target_rate_rps": ("the target rate", rate),
    "max_memory_bytes": ("the memory limit", size),
    "max_accuracy_drop": ("the accuracy limit", percent),
    "certified_requests": ("the evidence", lambda value: f"{number(value, 9)} requests"),
}


def _miss_sentence(miss: dict[str, Any], sla: dict[str, Any]) -> str:
    name, show = _LIMITS[miss["limit"]]
    observed, required = miss["observed"], miss["required"]
    if miss["limit"] == "certified_requests":
        if required is None:
            return f"It was measured on {show(observed)}, and that did not decide."
        return f"It was measured on {show(observed)}; a certificate needs about {show(required)}."
    if observed is None:
        lost = f"more than {percent(round(1 - sla['percentile'] / 100, 9))} of the requests failed"
        return f"It misses {name} of {show(required)}: {lost} or nothing valid was measured."
    return f"It misses {name}: {show(observed)} where {show(required)} is asked."


def _advice(document: dict[str, Any]) -> tuple[str, ...]:
    verdict = document["verdict"]
    if verdict == "found":
        return ()
    closest = document["closest"]
    advice: list[str] = []
    study = document["study"]
    if verdict == "undecided":
        advice.append(
            f"Give it more time; nothing is measured twice: "
            f"analyze search … --study {study} --resume --budget 15m."
        )
    for miss in closest["misses"] if closest else ():
        observed = miss["observed"]
        if miss["limit"] == "latency_budget_ms" and observed is not None:
            advice.append(
                f"A budget of about {number(observed * 1.1, 2)} ms is within reach "
                f"(--latency-budget), or a lower --percentile."
            )
        elif miss["limit"] == "max_memory_bytes" and observed is not None:
            advice.append(f"It needs {size(observed)}: raise --max-memory to that.")
        elif miss["limit"] == "max_accuracy_drop":
            advice.append("Raise --max-accuracy-drop, or score more rows (--calibration-data).")
        elif miss["limit"] == "target_rate_rps":
            advice.append("Lower --target-rate: one device does not carry it.")
    if not closest:
        advice.append("Every configuration failed: the failures below say why.")
    if verdict == "infeasible":
        advice.append("A faster machine or a smaller model shortens every latency.")
    return tuple(advice)


def promise_rows(document: dict[str, Any]) -> list[Row]:
    """The SLA and the model."""
    sla, model = document["sla"], document["model"]
    rows = [
        ("model", model["name"]),
        ("SHA-256", model["sha256"][:16]),
        ("promise", promise(sla)),
        ("confidence", f"{sla['confidence']:g}"),
        ("objective", sla["objective"]),
        ("arrivals", sla["arrivals"]),
        ("inferences per request", number(sla["request_batch_size"])),
        ("accuracy may drop by", percent(sla["max_accuracy_drop"])),
    ]
    if sla["target_rate_rps"] is not None:
        rows.append(("target rate", rate(sla["target_rate_rps"])))
    if sla["max_memory_bytes"] is not None:
        rows.append(("memory limit", size(sla["max_memory_bytes"])))
    return rows


def search_rows(document: dict[str, Any]) -> list[Row]:
    """How the search went."""
    search = document["search"]
    rows = [
        ("sampler", search["sampler"]),
        ("search space", search["space"] or "–"),
        ("configurations in it", number(search["space_size"], 9)),
        ("measured", number(search["evaluated_live"], 9)),
        ("simulated", number(search["evaluated_twin"], 9)),
        ("failed", number(search["failed"], 9)),
        ("time under load", f"{number(search['load_test_seconds'])} s"),
        ("time in all", f"{number(search['wall_seconds'])} s"),
    ]
    if search["bound"]:
        rows.append(("bound", search["bound"]))
    return rows


def flatten(value: Any, prefix: str = "") -> list[Row]:
    """Nested values as rows with dotted names; empty ones are left out."""
    if isinstance(value, dict):
        return [
            row
            for key, item in value.items()
            for row in flatten(item, f"{prefix}.{key}" if prefix else str(key))
        ]
    if value is None or value == []:
        return []
    if isinstance(value, list):
        return [(prefix, ", ".join(map(str, value)))]
    return [(prefix, str(value))]
