"""What ``analyze verify`` answers: the JSON document and the text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from analyzer.cli.streams import answer
from analyzer.domain.conditions import ConditionsSummary, differences, summary_of
from analyzer.domain.study import Pricing, Verification
from analyzer.domain.units import format_duration

if TYPE_CHECKING:
    from analyzer.domain.measurement import Certificate, Measurement
    from analyzer.export.claims import ClaimedModel

# Added to the seconds that the requests take: two starts, and blocks that do not count.
_RESERVE_S = 60.0


def verification_document(verification: Verification, subject: ClaimedModel) -> dict[str, Any]:
    """The answer as JSON (the contract's)."""
    from analyzer.report.document import claim_document, entry_document
    from analyzer.report.entries import make_entry

    claim = verification.claim
    entry = make_entry(
        verification.measured,
        sla=claim.sla,
        pricing=Pricing(),
        request_batch_size=claim.request_batch_size,
    )
    return {
        "schema": 1,
        "claim": claim_document(claim)
        | {"conditions": asdict(subject.conditions) if subject.conditions is not None else None},
        "measured": entry_document(entry),
        "verdict": verification.verdict,
        "conditions_differ": _differing(subject, verification.measured),
        "warnings": list(verification.measured.notes),
    }


def print_verification(verification: Verification, subject: ClaimedModel) -> None:
    """The answer for people."""
    from analyzer.report.wording import GIVEN, floored, milliseconds, number

    claim, measured, verdict = verification.claim, verification.measured, verification.verdict
    certificate, test = measured.certificate, measured.headline
    assert certificate is not None and test is not None
    tail = test.latency_ms.sla
    subject_words = "The claim" if subject.claimed else "The rate that the command names"
    answer(f"{subject_words} {'holds' if verdict == 'holds' else 'is ' + verdict}.")
    answer(
        f"  rate         {number(floored(claim.rate_rps))} requests/s offered, "
        f"{number(test.achieved_rps)} done"
    )
    answer(
        f"  p{claim.sla.percentile:g}          "
        f"{milliseconds(tail) if tail is not None else 'none'}, budget "
        f"{milliseconds(claim.sla.latency_budget_ms, GIVEN)}"
    )
    answer(
        f"  requests     {number(certificate.requests)} "
        f"({number(round(certificate.effective_requests))} effective), "
        f"{number(certificate.over_budget)} over budget"
    )
    if missing := _missing(certificate, claim.rate_rps):
        answer(f"  missing      {missing}")
    _print_conditions(subject, measured)
    for reason in test.validity.reasons:
        answer(f"  {'void' if reason in certificate.void_reasons else 'invalid':<12} {reason}")
    if (energy := measured.resources.energy_joules_per_inference) is not None:
        answer(f"  energy       {energy:.3g} J per inference, the whole GPU's")
    if (clock := measured.resources.gpu_clock_mhz) is not None:
        limits = ", ".join(measured.resources.gpu_clock_limits)
        held = f", held down by {limits}" if limits else ""
        answer(f"  GPU clock    {clock:.0f} MHz{held}")
    for note in measured.notes:
        answer(f"  note         {note}")


def _print_conditions(subject: ClaimedModel, measured: Measurement) -> None:
    """What the machine was like, now and when the claim was certified, and how that differs."""
    from analyzer.report.conditions_text import conditions_sentence

    then = subject.conditions
    when = "the claim was certified" if subject.claimed else "it was measured before"
    for label, conditions in (("then", then), ("now", _conditions(measured))):
        if conditions is not None:
            answer(f"  machine      {label}: {conditions_sentence(conditions)}")
    for difference in _differing(subject, measured):
        answer(f"  differs      from when {when}: {difference}")


def _conditions(measured: Measurement) -> ConditionsSummary | None:
    certificate = measured.certificate
    return summary_of([certificate.conditions]) if certificate is not None else None


def _differing(subject: ClaimedModel, measured: Measurement) -> list[str]:
    """In what the machine differs from when the claim was certified, a phrase each."""
    from analyzer.hardware.machine import same_hardware

    then, now = subject.conditions, _conditions(measured)
    found = list(differences(then, now)) if then is not None and now is not None else []
    told = subject.hardware and measured.hardware
    if told and not same_hardware(measured.hardware, subject.hardware):
        found.insert(0, f"it is {measured.hardware}, not {subject.hardware}")
    return found


def _missing(certificate: Certificate, rate_rps: float) -> str:
    """What an open verdict lacks, and the budget that holds it; empty where it is neither."""
    counted, missing = certificate.requests, certificate.requests_missing
    if missing:
        return missing_text(missing, rate_rps, counted=counted)
    if certificate.verdict != "UNDECIDED" or certificate.void_reasons:
        return ""
    if certificate.inflation is not None:
        return "no number of requests decides: this rate is too near to the edge"
    # As many again are the least that may tell.
    more = _more_time(2 * counted, rate_rps)
    return f"too few requests to tell how far they depend on each other: {more}"


def missing_text(requests: int, rate_rps: float, *, counted: int = 0) -> str:
    """How many requests a verdict still needs, and the budget that holds them.

    Args:
        counted: Those that it has; the next run begins without them.
    """
    from analyzer.report.advice import REACH_S
    from analyzer.report.wording import number

    if _budget_s(counted + requests, rate_rps) > REACH_S:
        return "more requests than a day holds: this rate is too near to the edge to decide"
    return f"about {number(requests)} requests: {_more_time(counted + requests, rate_rps)}"


def _more_time(requests: int, rate_rps: float) -> str:
    from analyzer.report.advice import round_budget

    budget = format_duration(round_budget(_budget_s(requests, rate_rps)))
    return f"give it more time (--budget {budget})"


def _budget_s(requests: int, rate_rps: float) -> float:
    return requests / rate_rps + _RESERVE_S
