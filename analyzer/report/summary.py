"""What a report says, in sentences and rows: the same in every format."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.domain.answer import evidence_requests, machines_at
from analyzer.domain.conditions import summary_of
from analyzer.domain.measurement import (
    Accuracy,
    Certificate,
    Measurement,
)
from analyzer.domain.sla import Sla
from analyzer.domain.study import StudyResult
from analyzer.domain.units import format_duration
from analyzer.report.advice import (
    NOT_UPHELD,
    advice,
    miss_sentence,
    next_command,
    nothing_allowed,
)
from analyzer.report.conditions_text import conditions_sentence, watched
from analyzer.report.entries import Entry, StudyReport, TypeEntry
from analyzer.report.gain_text import (
    edge_text,
    gain_note,
    gain_sentence,
    rate_text,
    ratio_text,
)
from analyzer.report.unfinished import unfinished_heading, unfinished_title
from analyzer.report.wording import (
    GIVEN,
    NOT_MEASURED,
    configuration_label,
    configuration_sentence,
    dollars,
    floored,
    interval,
    milliseconds,
    number,
    percent,
    percentile_name,
    precision_label,
    price_per_hour,
    proven_rate,
    rate,
    size,
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
        heading: What that configuration is called.
        figures: Three or four numbers, the most important first.
        measured: Rows on what was measured of the entry that the report speaks of.
        certificate: Rows of its certificate.
        cost: Rows on the fleet.
        gain: What it gains over the baseline; empty where nothing was measured.
        misses: What was missed or is not proven, a sentence each; empty for a found study.
        advice: What to do next, a sentence each.
        command: The command line that the first advice means; None without one.
        conditions: What the machine was like meanwhile; empty where nobody watched.
        types: Rows on the instance types that were compared; empty where there was one.
        notes: What qualifies the result: what the model cannot do, fallbacks taken.
    """

    title: str
    subtitle: str
    heading: str
    figures: tuple[KeyFigure, ...]
    measured: tuple[Row, ...]
    certificate: tuple[Row, ...]
    cost: tuple[Row, ...]
    gain: str
    misses: tuple[str, ...]
    advice: tuple[str, ...]
    command: str | None
    conditions: str
    types: tuple[Row, ...]
    notes: tuple[str, ...]


def requirement(sla: Sla) -> str:
    """The latency limit in words: ``99 % of requests within 50 ms``."""
    share, budget = number(sla.percentile, 9), milliseconds(sla.latency_budget_ms, GIVEN)
    return f"{share} % of requests within {budget}"


def summarize(report: StudyReport) -> Summary:
    """The summary of a study, whatever its verdict."""
    sla, shown = report.result.sla, report.shown
    title, subtitle = _title(report)
    return Summary(
        title=title,
        subtitle=subtitle,
        heading=_heading(report),
        figures=_figures(report, report.recommendation) if report.recommendation else (),
        measured=_measured_rows(shown, sla) if shown else (),
        certificate=_certificate_rows(shown, sla) if shown else (),
        cost=_cost_rows(shown, sla) if shown else (),
        gain=gain_sentence(report) if shown else "",
        misses=_misses(report),
        advice=advice(report),
        command=next_command(report),
        conditions=conditions_sentence(watched(report.result)),
        types=tuple(_type_row(one) for one in report.types),
        notes=notes_of(report.result),
    )


def notes_of(result: StudyResult) -> tuple[str, ...]:
    """What qualifies a result: notes of the model's inspection, then warnings; each once."""
    return tuple(dict.fromkeys((*result.model.notes, *result.warnings)))


def _title(report: StudyReport) -> tuple[str, str]:
    name, required = report.result.model.name, requirement(report.result.sla)
    entry, closest = report.recommendation, report.closest
    if entry is not None:
        required = required.replace("of requests", "of them")
        measurement = entry.measurement
        if measurement.capacity_rps is not None:
            carried = f"carries {number(floored(measurement.capacity_rps))} requests/s, {required}"
        else:
            about = "at least" if measurement.edge.rate_rps is None else "about"
            at_least = number(measurement.edge.at_least_rps)
            carried = f"is estimated to carry {about} {at_least} requests/s, {required}"
        return (
            f"As {precision_label(entry.configuration)}, {name} {carried}",
            f"Serve {name} as {configuration_sentence(entry.configuration)}.",
        )
    if report.result.unfinished:
        return unfinished_title(report, required)
    came = f"Closest: {configuration_sentence(closest.entry.configuration)}." if closest else ""
    if nothing_allowed(report):
        why = "each breaks the accuracy limit, cannot be built, or does not run"
        return f"No variant of {name} that is allowed may be recommended: {why}", came
    if report.result.verdict == "infeasible":
        return f"No configuration of {name} keeps {_within_limits(report, required)}", came
    if not came:
        faults = any(failure.is_fault for failure in report.failures)
        came = "Nothing could be measured." if faults else _too_little_time(report.result)
    return f"Undecided: no configuration was proven to keep {required}", came


def _within_limits(report: StudyReport, required: str) -> str:
    """``required``, and the limits besides it that what came closest misses."""
    limits = [
        f"{size(miss.required, GIVEN)} of memory"
        if miss.limit == "max_memory_bytes"
        else f"an accuracy drop of {percent(miss.required, GIVEN)}"
        for miss in (report.closest.misses if report.closest is not None else ())
        if miss.lasts and miss.required is not None
    ]
    return " and ".join([required, *limits])


def _too_little_time(result: StudyResult) -> str:
    """That nothing was measured; no step is begun that does not fit into what is left."""
    budget_s = result.search.budget_s
    budget = format_duration(budget_s) if budget_s is not None else "the budget"
    return f"Nothing was measured: {budget} did not suffice for a first load test."


def _heading(report: StudyReport) -> str:
    if report.recommendation is not None:
        return "Configuration"
    return unfinished_heading(report) if report.result.unfinished else "The closest configuration"


def _misses(report: StudyReport) -> tuple[str, ...]:
    sla, best, closest = report.result.sla, report.recommendation, report.closest
    if closest is not None:
        if not closest.entry.measurement.load_tests:
            return ("None of its load tests fitted into the time that was left.",)
        certificate = closest.entry.measurement.certificate
        passed = certificate is not None and certificate.verdict == "PASS"
        return tuple(miss_sentence(miss, sla, passed=passed) for miss in closest.misses)
    if best is not None and best.measurement.capacity_rps is None:
        return (estimate_sentence(best.measurement, sla),)
    return ()


def _figures(report: StudyReport, entry: Entry) -> tuple[KeyFigure, ...]:
    sla, baseline, fleet, gain = report.result.sla, report.baseline, entry.fleet, report.gain
    measurement = entry.measurement
    certified = measurement.capacity_rps is not None
    edge = edge_text(measurement.edge)
    against = gain_sentence(report)
    if gain is not None and not report.is_baseline:  # its figure is beside it
        against = gain_note(gain, sla, baseline)
    figures = [
        KeyFigure(
            label="Certified capacity" if certified else "Estimated edge, not proven",
            value=rate(floored(measurement.capacity_rps) or measurement.edge.at_least_rps),
            note=f"edge {edge}"
            if certified
            else f"edge {edge}, from {evidence_requests(measurement, sla):,} requests",
        ),
        KeyFigure(
            label=f"Latency, {percentile_name(sla.percentile)}",
            value=milliseconds(entry.latency_ms.sla),
            note=f"at {proven_rate(entry.measured_at_rps)}; the budget is "
            f"{milliseconds(sla.latency_budget_ms, GIVEN)}",
        ),
        KeyFigure(
            label=f"Against {report.baseline_name}",
            value=ratio_text(gain) if gain is not None else NOT_MEASURED,
            note=f"{against}; baseline: {rate_text(baseline.measurement)}" if baseline else against,
        ),
    ]
    if fleet and fleet.cost_per_hour is not None:
        figures.append(
            KeyFigure(
                label="Cost",
                value=f"{dollars(fleet.cost_per_hour)}/h",
                note=f"{_machines(fleet.machines)} for {rate(sla.target_rate_rps, GIVEN)}, "
                f"{dollars(fleet.cost_per_million_inferences)} a million inferences"
                f"{_on_basis(entry)}",
            )
        )
    elif fleet and fleet.cost_per_million_inferences is not None:
        figures.append(
            KeyFigure(
                label="Cost of a million",
                value=dollars(fleet.cost_per_million_inferences),
                note="inferences, every device at its "
                + ("estimated edge" if entry.fleet_basis == "edges" else "certified capacity"),
            )
        )
    elif fleet:
        figures.append(
            KeyFigure(
                label="Fleet",
                value=_machines(fleet.machines),
                note=f"for {rate(sla.target_rate_rps, GIVEN)}{_on_basis(entry)}; no price is known "
                "(--price)",
            )
        )
    return tuple(figures)


def _on_basis(entry: Entry) -> str:
    return ", by its estimated edge" if entry.fleet_basis == "edges" else ""


def _machines(count: int | None) -> str:
    if count is None:
        return NOT_MEASURED
    return "1 machine" if count == 1 else f"{count:,} machines"


def _measured_rows(entry: Entry, sla: Sla) -> tuple[Row, ...]:
    latency, test, use = entry.latency_ms, entry.test, entry.resources
    tail = percentile_name(sla.percentile)
    percentiles = {"p50": milliseconds(latency.p50), tail: milliseconds(latency.sla)}
    rows: list[Row] = [
        ("measured at", proven_rate(entry.measured_at_rps)),
        ("throughput", f"{number(test.throughput_ips if test else None)} inferences/s"),
        ("latency", ", ".join(f"{name} {value}" for name, value in percentiles.items())),
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
    if use.energy_joules_per_inference is not None:
        rows.append(("energy", f"{number(use.energy_joules_per_inference)} J per inference"))
    if use.gpu_clock_mhz is not None:
        held = f", held down by {', '.join(use.gpu_clock_limits)}" if use.gpu_clock_limits else ""
        rows.append(("GPU clock", f"{number(use.gpu_clock_mhz, 4)} MHz{held}"))
    rows.append(("accuracy", accuracy_text(entry.accuracy)))
    return tuple(rows)


def accuracy_text(accuracy: Accuracy | None) -> str:
    """``96.7 % label accuracy, drop 0.4 % (0.1 to 0.8 %)``."""
    if accuracy is None:
        return "not measured (no real data: --calibration-data)"
    if accuracy.value is None:
        return "unknown (the model answers no row with finite numbers)"
    text = f"{percent(accuracy.value)} {accuracy.metric.replace('_', ' ')}"
    if accuracy.drop:
        text += f", drop {percent(accuracy.drop)}"
        if accuracy.interval:
            low, high = accuracy.interval
            text += f" ({interval((low * 100, high * 100))} %)"
    return text


def _certificate_rows(entry: Entry, sla: Sla) -> tuple[Row, ...]:
    certificate, edge = entry.measurement.certificate, edge_text(entry.measurement.edge)
    if certificate is None:
        return (
            ("certificate", "none: no rate was tried for a certificate"),
            ("estimated edge", edge),
            ("requests at kept rates", f"{evidence_requests(entry.measurement, sla):,}"),
        )
    share = percent(certificate.over_budget / max(certificate.requests, 1))
    allowed = percent(round(1 - sla.percentile / 100, 9))
    rows: list[Row] = [
        ("certificate", f"{certificate.verdict} at {certificate.confidence:g} confidence"),
        ("certified rate", _certified_text(entry.measurement)),
        ("estimated edge", edge),
        ("requests", _requests_text(certificate)),
        ("over budget", f"{certificate.over_budget:,} ({share}; allowed {allowed})"),
        ("effective requests", _effective_text(certificate)),
        ("MLPerf's early stopping", certificate.mlperf),
    ]
    rows += [("void", reason) for reason in certificate.void_reasons]
    if certificate.requests_missing is not None:
        rows.append(("requests missing", f"{certificate.requests_missing:,}"))
    if certificate.conditions is not None:
        rows.append(("conditions", conditions_sentence(summary_of([certificate.conditions]))))
    return tuple(rows)


def _certified_text(measurement: Measurement) -> str:
    certificate = measurement.certificate
    if measurement.capacity_rps is None and certificate and certificate.verdict == "PASS":
        return f"none. {NOT_UPHELD}"
    return proven_rate(measurement.capacity_rps)


def estimate_sentence(measurement: Measurement, sla: Sla) -> str:
    """That a recommended rate is an estimate, and what it rests on."""
    evidence = evidence_requests(measurement, sla)
    text = f"Nothing was proven: the rate is an estimate from {evidence:,} requests at kept rates"
    certificate = measurement.certificate
    if certificate is None or certificate.is_late(sla.miss_rate_max):
        return f"{text}."
    if certificate.verdict == "PASS":
        return f"{text}. {NOT_UPHELD}"
    missing = certificate.requests_missing
    return f"{text}; a certificate needs about {missing:,} more." if missing else f"{text}."


def statement(measurement: Measurement, result: StudyResult) -> str:
    """What may be said of a configuration of a study, in one sentence."""
    sla = result.sla
    if measurement.capacity_rps is None:
        return estimate_sentence(measurement, sla)
    return (
        f"Certified with a confidence of {sla.confidence:g}: at "
        f"{proven_rate(measurement.capacity_rps)} {requirement(sla)}."
    )


def _requests_text(certificate: Certificate) -> str:
    """How many it counts, those of higher rates told apart."""
    parts = [f"{of.requests:,} at {rate(of.rate_rps)}" for of in certificate.higher]
    text = f"{certificate.requests:,}"
    return f"{text}, of them {', '.join(parts)}" if parts else text


def _effective_text(certificate: Certificate) -> str:
    text = f"{certificate.effective_requests:,.0f}"
    if certificate.inflation is not None:
        source = certificate.inflation_source.replace("_", " ").replace("earlier", "earlier runs")
        at = " at the rate itself" if certificate.higher else ""
        value = number(certificate.inflation)
        text += f" (queueing correlates them: inflation {value}{at}, {source})"
    return text


def _cost_rows(entry: Entry, sla: Sla) -> tuple[Row, ...]:
    fleet = entry.fleet
    if fleet is None:
        return ()
    rows: list[Row] = []
    if fleet.machines is not None:
        rows.append(("target rate", rate(sla.target_rate_rps, GIVEN)))
        rows.append(("replicas", f"{fleet.replicas:,}"))
        rows.append(("machines", _machines_text(entry, sla, fleet.machines)))
    if fleet.cost_per_hour is not None:
        rows.append(("cost per hour", dollars(fleet.cost_per_hour)))
    if fleet.cost_per_million_inferences is not None:
        rows.append(("a million inferences", dollars(fleet.cost_per_million_inferences)))
        price = price_per_hour(entry.pricing.price_per_hour)
        rows.append(("price of a machine", f"{price}, {entry.pricing.source or 'given'}"))
    if entry.fleet_basis == "edges":
        kept_only = entry.measurement.edge.rate_rps is None
        basis = "a rate that was kept (the edge is open)" if kept_only else "the estimated edge"
        rows.append(("rests on", f"{basis}, not on a certified rate"))
    return tuple(rows)


def _type_row(one: TypeEntry) -> Row:
    """What an instance type came to: rate, fleet and cost of what is best there."""
    name = one.result.name + (" (recommended)" if one.recommended else "")
    entry = one.entry
    if entry is None:
        return name, one.result.reason or "nothing was measured"
    measurement, fleet = entry.measurement, entry.fleet
    proven = measurement.capacity_rps is not None
    verdict = one.result.verdict or "failed"
    carried = "nothing certified"
    if proven:
        carried = f"{proven_rate(measurement.capacity_rps)} certified"
    parts = [f"{verdict}: {carried}, edge {edge_text(measurement.edge)}"]
    if fleet is not None and fleet.machines is not None:
        parts.append(_machines(fleet.machines))
    if fleet is not None and fleet.cost_per_hour is not None:
        parts.append(f"{dollars(fleet.cost_per_hour)}/h")
    if fleet is not None and fleet.cost_per_million_inferences is not None:
        parts.append(f"{dollars(fleet.cost_per_million_inferences)} a million inferences")
    parts.append(configuration_label(entry.configuration))
    told = ", ".join(parts) + _on_basis(entry)
    reason = "" if proven else one.result.reason
    return name, "; ".join(filter(None, (told, one.result.hardware, reason)))


def _machines_text(entry: Entry, sla: Sla, machines: int) -> str:
    """The machines; where a certified rate asks for more than the edge, those too."""
    capacity_rps = entry.measurement.capacity_rps
    if entry.fleet_basis == "certified" or capacity_rps is None:
        return f"{machines:,}"
    proven = machines_at(sla, capacity_rps, entry.pricing.devices_per_machine)
    return f"{machines:,} by the estimated edge, {proven:,} at the certified rate"
