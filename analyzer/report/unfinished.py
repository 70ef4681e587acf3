"""What a report says first of a study whose search did not end."""

from __future__ import annotations

from analyzer.domain.study import StudyStatus
from analyzer.report.commands import export_command
from analyzer.report.entries import StudyReport
from analyzer.report.wording import configuration_sentence, floored, number, precision_label

_HEADS: dict[StudyStatus, str] = {
    "interrupted": "Interrupted",
    "failed": "Ended by a fault",
    "running": "Not ended",
    "finished": "Not ended",
}


def unfinished_title(report: StudyReport, required: str) -> tuple[str, str]:
    """Title and subtitle: what is certified so far, or came closest.

    Args:
        required: The latency limit in words.
    """
    result, closest = report.result, report.closest
    head, name = _HEADS[result.status], result.model.name
    if closest is None:
        return f"{head}: nothing of {name} was measured yet", ""
    configuration = closest.entry.configuration
    capacity_rps = closest.entry.measurement.capacity_rps
    sentence = configuration_sentence(configuration)
    if closest.misses or capacity_rps is None:
        title = f"{head}: no configuration was proven yet to keep {required}"
        return title, f"Closest so far: {sentence}."
    of_them = required.replace("of requests", "of them")
    proven = f"{number(floored(capacity_rps))} requests/s, {of_them}"
    title = f"{head}: as {precision_label(configuration)}, {name} is certified so far for {proven}"
    return title, f"Certified so far: {sentence}."


def unfinished_heading(report: StudyReport) -> str:
    """What the configuration that the report speaks of is called."""
    closest = report.closest
    certified = closest is not None and not closest.misses
    return "The configuration certified so far" if certified else "The closest configuration so far"


def unfinished_advice(report: StudyReport) -> tuple[str, ...]:
    """How to go on, and how to use what is certified."""
    sentences = ["Go on with it; nothing is measured twice:"]
    closest = report.closest
    if closest is not None and not closest.misses:
        config_id = closest.entry.configuration.config_id
        command = export_command(report.result, report.store_url, config_id)
        sentences.append(f"To use what is certified so far: {command}.")
    return tuple(sentences)
