"""Why a search has no certified answer, and what would help, in the words of its report."""

from __future__ import annotations

import logging
from pathlib import Path

from analyzer.store.results import open_store

_LOG = logging.getLogger(__name__)


def why_unproven(snapshot: Path, study: str) -> tuple[str, str]:
    """What holds and what is missing, and what to do next; both empty where that is not known.

    Args:
        snapshot: The file of the study.
    """
    from analyzer.report.entries import make_report
    from analyzer.report.summary import summarize

    try:
        with open_store(f"sqlite:///{snapshot}", create=False) as store:
            summary = summarize(make_report(store.load_result(study)))
    except Exception as error:
        # What is read was written by a job's command: nothing in it may end a worker.
        _LOG.warning("What the study %s came to is not told: %s", study, error)
        return "", ""
    why = [f"{summary.title}.", summary.subtitle, *summary.misses]
    # The command belongs to the first advice, which ends with a colon.
    first, *others = summary.advice or ("",)
    command = [summary.command] if summary.command else []
    return " ".join(filter(None, why)), " ".join([*filter(None, [first]), *command, *others])
