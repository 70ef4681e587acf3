"""What a report says, in sentences and rows: the same in every format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analyzer.domain.answer import Miss
from analyzer.domain.measurement import Accuracy, Certificate, Edge
from analyzer.domain.sla import Sla
from analyzer.domain.study import SearchSummary, StudyResult
from analyzer.report.entries import Entry, StudyReport
from analyzer.report.wording import (
    NOT_MEASURED,
    configuration_sentence,
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
class Summary:
    """What a report says first.

    Args:
        title: One sentence: what holds.
        subtitle: The configuration, or what came closest, in words.
        figures: Three or four numbers, the most important first.
        measured: Rows on what was measured of the entry that the report speaks of.
        certificate: Rows of its certificate.
        cost: Rows on the fleet.
        misses: What was missed, a sentence each; empty for a found study.
        advice: What to do next, a sentence each.
    """

    title: str
    subtitle: str
    figures: tuple[KeyFigure, ...]
    measured: tuple[Row, ...]
    certificate: tuple[Row, ...]
    cost: tuple[Row, ...]
    misses: tuple[str, ...]
    advice: tuple[str, ...]


def requirement(sla: Sla) -> str:
    """The latency limit in words: ``99 % of requests within 50 ms``."""
    return f"{sla.percentile:g} % of requests within {milliseconds(sla.latency_budget_ms)}"


def summarize(report: StudyReport) -> Summary:
    """The summary of a study, whatever its verdict."""
    sla, shown = report.result.sla, report.shown
    title, subtitle = _title(report)
    return Summary(
        title=title,
        subtitle=subtitle,
        figures=_figures(report, report.recommendation) if report.recommendation else (),
        measured=_measured_rows(shown, sla) if shown else (),
        certificate=_certificate_rows(shown, sla) if shown else (),
        cost=_cost_rows(shown, sla) if shown else (),
        misses=tuple(_miss_sentence(miss, sla) for miss in report.closest.misses)
        if report.closest
        else (),
        advice=_advice(report),
    )


def _title(report: StudyReport) -> tuple[str, str]:
    name, required = report.result.model.name, requirement(report.result.sla)
    entry, closest = report.recommendation, report.closest
    if entry is not None:
        required = required.replace("of requests", "of them")
        carried = f"carries {number(entry.measurement.capacity_rps)} requests/s, {required}"
        return (
            f"As {precision_label(entry.configuration)}, {name} {carried}",
            f"Serve {name} as {configuration_sentence(entry.configuration)}.",
        )
    came = f"Closest: {configuration_sentence(closest.entry.configuration)}." if closest else ""
    if report.result.verdict == "infeasible":
        return f"No configuration of {name} keeps {required}", came
    return f"Undecided: no configuration was proven to keep {required}", came or (
        "Nothing could be measured."
    )


# From this difference between the two ratios on (certified rates, edges) both are told: ours.
_UNEQUAL = 0.1

_GAINS = {
    "capacity": "the capacity of the baseline",
    "cost": "cheaper than the baseline",
    "latency": "lower latency than the baseline",
    "memory": "less memory than the baseline",
}


def gain_sentence(report: StudyReport) -> str:
    """The speed-up in words; beside it that of the edges, where the two were proven unequally."""
    speedup, best, baseline = report.speedup, report.recommendation, report.baseline
    if speedup is None or best is None or baseline is None:
        if baseline is None or best is None or baseline.measurement.capacity_rps is not None:
            return "not comparable with the baseline"
        edge_rps = baseline.measurement.edge.rate_rps
        if edge_rps:
            return (
                f"the baseline was not certified in the time (its edge: about {edge_rps:,.0f} /s)"
            )
        return "the baseline never keeps the SLA"
    objective = report.result.sla.objective
    text = f"{times(speedup)} {_GAINS[objective]}"
    ours, theirs = best.measurement.edge.rate_rps, baseline.measurement.edge.rate_rps
    if objective == "capacity" and ours and theirs:
        ratio = ours / theirs
        if abs(ratio / speedup - 1.0) > _UNEQUAL:
            return f"{text} ({times(ratio)} by their edges)"
    return text


def _figures(report: StudyReport, entry: Entry) -> tuple[KeyFigure, ...]:
    sla, baseline, fleet = report.result.sla, report.baseline, entry.fleet
    edge = entry.measurement.edge
    bounds = interval(edge.interval_rps)
    gain, speedup = gain_sentence(report), times(report.speedup)
    figures = [
        KeyFigure(
            label="Certified capacity",
            value=rate(entry.measurement.capacity_rps),
            note=f"edge {rate(edge.rate_rps)}" + (f", {bounds}" if bounds else ""),
        ),
        KeyFigure(
            label=f"Latency, {percentile_name(sla.percentile)}",
            value=milliseconds(entry.latency_ms.sla),
            note=f"at {rate(entry.measured_at_rps)}; the budget is "
            f"{milliseconds(sla.latency_budget_ms)}",
        ),
        KeyFigure(
            label="Against Triton's default",
            value=speedup,
            note=gain.removeprefix(speedup).strip()
            + (f", {rate(baseline.measurement.capacity_rps)} certified" if baseline else ""),
        ),
    ]
    if fleet and fleet.cost_per_hour is not None:
        figures.append(
            KeyFigure(
                label="Cost",
                value=f"{dollars(fleet.cost_per_hour)}/h",
                note=f"{_machines(fleet.machines)} for {rate(sla.target_rate_rps)}, "
                f"{dollars(fleet.cost_per_million_inferences)} a million inferences",
            )
        )
    elif fleet and fleet.cost_per_million_inferences is not None:
        figures.append(
            KeyFigure(
                label="Cost of a million",
                value=dollars(fleet.cost_per_million_inferences),
                note="inferences, every device at its capacity",
            )
        )
    elif fleet:
        figures.append(
            KeyFigure(
                label="Fleet",
                value=_machines(fleet.machines),
                note=f"for {rate(sla.target_rate_rps)}; no price is known (--price)",
            )
        )
    return tuple(figures)


def _machines(count: int | None) -> str:
    if count is None:
        return NOT_MEASURED
    return "1 machine" if count == 1 else f"{count:,} machines"


def _measured_rows(entry: Entry, sla: Sla) -> tuple[Row, ...]:
    latency, test, use = entry.latency_ms, entry.test, entry.resources
    tail = percentile_name(sla.percentile)
    percentiles = [f"p50 {milliseconds(latency.p50)}", f"{tail} {milliseconds(latency.sla)}"]
    rows: list[Row] = [
        ("measured at", rate(entry.measured_at_rps)),
        ("throughput", f"{number(test.throughput_ips if test else None)} inferences/s"),
        ("latency", ", ".join(percentiles)),
        ("errors", number(test.errors if test else None, 9)),
        ("memory, peak", size(use.memory_bytes_peak)),
    ]
    if use.gpu_memory_bytes_peak is not None:
        source = use.gpu_memory_source or "unknown"
        rows.append(("GPU memory, peak", f"{size(use.gpu_memory_bytes_peak)} ({source})"))
    if use.gpu_utilization is not None:
        rows.append(("GPU utilization", percent(use.gpu_utilization)))
    if use.power_watts is not None:
        rows.append(("power", f"{number(use.power_watts)} W"))
    rows.append(("accuracy", accuracy_text(entry.accuracy)))
    return tuple(rows)


def accuracy_text(accuracy: Accuracy | None) -> str:
    """``96.7 % label accuracy, drop 0.4 % (0.1 to 0.8 %)``."""
    if accuracy is None:
        return "not measured (no real data: --calibration-data)"
    text = f"{percent(accuracy.value)} {accuracy.metric.replace('_', ' ')}"
    if accuracy.drop:
        text += f", drop {percent(accuracy.drop)}"
        if accuracy.interval:
            low, high = accuracy.interval
            text += f" ({interval((low * 100, high * 100))} %)"
    return text


def _certificate_rows(entry: Entry, sla: Sla) -> tuple[Row, ...]:
    certificate = entry.measurement.certificate
    if certificate is None:
        return (("certificate", "none: no rate was tried for a certificate"),)
    share = percent(certificate.over_budget / max(certificate.requests, 1))
    allowed = percent(round(1 - sla.percentile / 100, 9))
    rows: list[Row] = [
        ("certificate", f"{certificate.verdict} at {certificate.confidence:g} confidence"),
        ("certified rate", rate(entry.measurement.capacity_rps)),
        ("estimated edge", _edge_text(entry.measurement.edge)),
        ("requests", f"{certificate.requests:,}"),
        ("over budget", f"{certificate.over_budget:,} ({share}; allowed {allowed})"),
        ("effective requests", _effective_text(certificate)),
        ("MLPerf's early stopping", certificate.mlperf),
    ]
    if certificate.requests_missing is not None:
        rows.append(("requests missing", f"{certificate.requests_missing:,}"))
    return tuple(rows)


def _edge_text(edge: Edge) -> str:
    bounds = interval(edge.interval_rps)
    return f"{rate(edge.rate_rps)} ({bounds})" if bounds else rate(edge.rate_rps)


def _effective_text(certificate: Certificate) -> str:
    text = f"{certificate.effective_requests:,.0f}"
    if certificate.inflation is not None:
        source = certificate.inflation_source.replace("_", " ")
        text += f" (queueing correlates them: inflation {number(certificate.inflation)}, {source})"
    return text


def _cost_rows(entry: Entry, sla: Sla) -> tuple[Row, ...]:
    fleet = entry.fleet
    if fleet is None:
        return ()
    rows: list[Row] = []
    if fleet.machines is not None:
        rows.append(("target rate", rate(sla.target_rate_rps)))
        rows.append(("replicas", f"{fleet.replicas:,}"))
        rows.append(("machines", f"{fleet.machines:,}"))
    if fleet.cost_per_hour is not None:
        rows.append(("cost per hour", dollars(fleet.cost_per_hour)))
    if fleet.cost_per_million_inferences is not None:
        rows.append(("a million inferences", dollars(fleet.cost_per_million_inferences)))
        price = f"{dollars(entry.pricing.price_per_hour)}/h"
        rows.append(("price of a machine", f"{price}, {entry.pricing.source or 'given'}"))
    return tuple(rows)


_LIMITS = {
    "latency_budget_ms": ("the latency budget", milliseconds),
    "target_rate_rps": ("the target rate", rate),
    "max_memory_bytes": ("the memory limit", size),
    "max_accuracy_drop": ("the accuracy limit", percent),
    "certified_requests": ("the evidence", lambda value: f"{number(value, 9)} requests"),
}


def _miss_sentence(miss: Miss, sla: Sla) -> str:
    name, show = _LIMITS[miss.limit]
    observed, required = miss.observed, miss.required
    if miss.limit == "certified_requests":
        if required is None:
            return f"It was measured on {show(observed)}, and that did not decide."
        return f"It was measured on {show(observed)}; a certificate needs about {show(required)}."
    if observed is None:
        lost = f"more than {percent(round(1 - sla.percentile / 100, 9))} of the requests failed"
        return f"It misses {name} of {show(required)}: {lost} or nothing valid was measured."
    return f"It misses {name}: {show(observed)} where {show(required)} is required."


def _advice(report: StudyReport) -> tuple[str, ...]:
    verdict, study, closest = report.result.verdict, report.result.name, report.closest
    if verdict == "found":
        return ()
    advice: list[str] = []
    if verdict == "undecided":
        advice.append(
            f"Give it more time; nothing is measured twice: "
            f"analyze search … --study {study} --resume --budget 15m."
        )
    for miss in closest.misses if closest else ():
        observed = miss.observed
        if miss.limit == "latency_budget_ms" and observed is not None:
            advice.append(
                f"A budget of about {number(observed * 1.1, 2)} ms is within reach "
                f"(--latency-budget), or a lower --percentile."
            )
        elif miss.limit == "max_memory_bytes" and observed is not None:
            advice.append(f"It needs {size(observed)}: raise --max-memory to that.")
        elif miss.limit == "max_accuracy_drop":
            advice.append("Raise --max-accuracy-drop, or score more rows (--calibration-data).")
        elif miss.limit == "target_rate_rps":
            advice.append("Lower --target-rate: one device does not carry it.")
    if not closest:
        advice.append("Every configuration failed: the failures below say why.")
    if verdict == "infeasible":
        advice.append("A faster machine or a smaller model shortens every latency.")
    return tuple(advice)


def sla_rows(result: StudyResult) -> list[Row]:
    """The model and what is required of it."""
    sla, model = result.sla, result.model
    rows = [
        ("model", model.name),
        ("SHA-256", model.sha256[:16]),
        ("latency", requirement(sla)),
        ("confidence", f"{sla.confidence:g}"),
        ("objective", sla.objective),
        ("arrivals", result.arrivals),
        ("inferences per request", number(result.request_batch_size)),
        ("accuracy may drop by", percent(sla.max_accuracy_drop)),
    ]
    if sla.target_rate_rps is not None:
        rows.append(("target rate", rate(sla.target_rate_rps)))
    if sla.max_memory_bytes is not None:
        rows.append(("memory limit", size(sla.max_memory_bytes)))
    return rows


def search_rows(search: SearchSummary) -> list[Row]:
    """How the search went."""
    rows = [
        ("sampler", search.sampler),
        ("search space", search.space or "–"),
        ("configurations in it", number(search.space_size, 9)),
        ("measured", number(search.evaluated_live, 9)),
        ("simulated", number(search.evaluated_twin, 9)),
        ("failed", number(search.failed, 9)),
        ("time under load", f"{number(search.load_test_seconds)} s"),
        ("time in all", f"{number(search.wall_seconds)} s"),
    ]
    if search.bound:
        rows.append(("bound", search.bound))
    return rows


def provenance_rows(result: StudyResult) -> list[Row]:
    """Versions, seeds and hardware, what every study has first."""
    first = ("analyzer", "hardware", "libraries", "seeds", "started_at")
    own = result.provenance
    order = (*first, *(key for key in own if key not in first))
    return [row for key in order for row in _flatten(own.get(key), key)]


def _flatten(value: Any, prefix: str) -> list[Row]:
    """Nested values as rows with dotted names; empty ones are left out."""
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in _flatten(item, f"{prefix}.{key}")]
    if value is None or value == []:
        return []
    if isinstance(value, list):
        return [(prefix, ", ".join(map(str, value)))]
    return [(prefix, str(value))]
