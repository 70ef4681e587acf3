"""The numbers of a job's answer, and what jobs are compared by."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.domain import units
from analyzer.report.gain_text import bounded_ratio, edge_text
from analyzer.report.wording import (
    NOT_MEASURED,
    dollars,
    milliseconds,
    number,
    percent,
    percentile_name,
    proven_rate,
    size,
    times,
)
from analyzer.service.result import Accuracy, Certificate, Claim, Entry, Fleet, Result, Sla


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the answer, what it is, and what it rests on."""

    label: str
    value: str
    note: str


def counted(count: int | None, noun: str) -> str:
    """As :func:`analyzer.domain.units.counted`; a dash for None."""
    return NOT_MEASURED if count is None else units.counted(count, noun)


def figures(result: Result, baseline: str) -> list[Figure]:
    """The numbers of the answer: a search's rate, latency, gain and cost; what a claim came to.

    Args:
        baseline: What the baseline is called.
    """
    entry, sla = result.shown, result.promise
    if entry is None:
        return []
    if result.claim is not None:
        return [
            _claimed(result.claim, sla),
            _latency(entry, sla),
            *_evidence(result.certificate, sla),
        ]
    gain = _gain(result, entry, baseline)
    return [_rate(entry), _latency(entry, sla), gain, _cost(entry, sla)]


def _claimed(claim: Claim, sla: Sla) -> Figure:
    return Figure("Claimed rate", proven_rate(claim.rate_rps), sla.requirement)


def _evidence(found: Certificate | None, sla: Sla) -> list[Figure]:
    """What the certificate of a claim counts."""
    if found is None or not found.requests or found.over_budget is None:
        return []
    allowed = percent(round(1 - sla.percentile / 100, 9))
    share = percent(found.over_budget / found.requests)
    over = f"{found.over_budget:,} of {found.requests:,} requests; {allowed} may be"
    effective = f"of {found.requests:,}, since queueing correlates them"
    return [
        Figure("Over budget", share, over),
        Figure("Effective requests", number(found.effective_requests), effective),
    ]


def _rate(entry: Entry) -> Figure:
    if entry.capacity_rps is None:
        return Figure("Estimated edge, not proven", entry.edge_text, "no rate was certified")
    certificate = entry.certificate or Certificate()
    rests = ""
    if certificate.requests is not None:
        rests = f"; {certificate.over_budget or 0:,} of {certificate.requests:,} over budget"
    certified = proven_rate(entry.capacity_rps)
    return Figure("Certified rate", certified, f"edge {entry.edge_text}{rests}")


def _latency(entry: Entry, sla: Sla) -> Figure:
    return Figure(
        f"Latency, {percentile_name(sla.percentile)}",
        milliseconds(entry.latency_ms.sla),
        f"at {proven_rate(entry.measured_at_rps)}; the budget is {sla.budget}",
    )


def _gain(result: Result, entry: Entry, baseline: str) -> Figure:
    label, gained = f"Against {baseline}", result.gained
    if result.baseline is not None and result.baseline.config_id == entry.config_id:
        return Figure(label, NOT_MEASURED, "it is the baseline itself")
    low, high = gained.speedup_interval or (None, None)
    parts = [f"by {gained.speedup_basis} rates"] if gained.speedup_basis == "certified" else []
    parts += ["by estimated edges"] if gained.speedup_basis == "edges" else []
    closed = low is not None and high is not None
    parts += [f"between {times(low)} and {times(high)}"] if closed else []
    parts.append(_baseline_edge(result))
    return Figure(label, _ratio(result), ", ".join(parts))


def _ratio(result: Result) -> str:
    return bounded_ratio(result.gained.speedup, result.gained.speedup_interval)


def _baseline_edge(result: Result) -> str:
    """The edge of the baseline, or why there is none."""
    baseline = result.baseline or Entry()
    if baseline.edge_text != NOT_MEASURED:
        return f"its edge {baseline.edge_text}"
    failed = [item.message for item in result.failures if item.config_id == baseline.config_id]
    return "; ".join(["its edge is not known", *failed[:1]]).rstrip(".")


def _cost(entry: Entry, sla: Sla) -> Figure:
    fleet = entry.fleet or Fleet()
    machines, rests = counted(fleet.machines, "machine"), _rests_on(entry, fleet)
    if fleet.cost_per_hour is not None:
        million = dollars(fleet.cost_per_million_inferences)
        note = f"{machines} for {sla.target}, {million} a million inferences{rests}"
        return Figure("Cost", f"{dollars(fleet.cost_per_hour)}/h", note)
    if fleet.cost_per_million_inferences is not None:
        carried = "edge" if fleet.basis == "edges" else "capacity"
        note = f"inferences, every device at its {carried}{rests}"
        return Figure("Cost of a million", dollars(fleet.cost_per_million_inferences), note)
    if fleet.machines is not None:
        note = f"for {sla.target}{rests}; no price given"
        return Figure("Machines", number(fleet.machines), note)
    if sla.price_per_hour is None and sla.target_rate_rps is None:
        return Figure("Cost", NOT_MEASURED, "give a price (and a target rate) to learn it")
    return Figure("Cost", NOT_MEASURED, "no rate is known to reckon it from")


def _rests_on(entry: Entry, fleet: Fleet) -> str:
    """That a fleet rests on an edge that is not certified, and what the certified rate costs."""
    if fleet.basis != "edges":
        return ""
    text = f"; this rests on its edge ({edge_text(entry.edge, bounded=False)}), not on a proof"
    million, carried, proven = (
        fleet.cost_per_million_inferences, fleet.rate_rps, entry.capacity_rps,
    )  # fmt: skip
    if million is None or not carried or not proven or proven >= carried:
        return text
    return f"{text}: at the certified rate a million is {dollars(million * carried / proven)}"


def comparison_rows(result: Result) -> list[tuple[str, str]]:
    """What jobs are compared by, under its name."""
    entry, seconds = result.shown or Entry(), result.search.wall_seconds
    accuracy, fleet = entry.accuracy or Accuracy(), entry.fleet or Fleet()
    return [
        ("certified rate", proven_rate(entry.capacity_rps)),
        ("edge", entry.edge_text),
        ("latency", milliseconds(entry.latency_ms.sla)),
        ("at", proven_rate(entry.measured_at_rps)),
        ("against the baseline", _ratio(result)),
        ("memory", size(entry.memory_bytes)),
        ("accuracy", percent(accuracy.value)),
        ("accuracy lost", percent(accuracy.drop)),
        ("cost per hour", dollars(fleet.cost_per_hour)),
        ("cost of a million inferences", dollars(fleet.cost_per_million_inferences)),
        ("configuration", entry.sentence or NOT_MEASURED),
        ("measured configurations", number(result.search.evaluated_live)),
        ("time", NOT_MEASURED if seconds is None else f"{number(seconds)} s"),
    ]
