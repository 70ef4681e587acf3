"""One job as a page shows it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, Row

from analyzer.domain import units
from analyzer.errors import UsageError
from analyzer.report.wording import NOT_MEASURED
from analyzer.service import folder, jobs, states
from analyzer.service.command import command_text
from analyzer.service.content import ContentStore
from analyzer.service.pages.figures import counted
from analyzer.service.pages.front import Front, make_front
from analyzer.service.result import RESULT_MAX, Entry, Result, Sla, Trial, read_result
from analyzer.service.states import Change, State
from analyzer.service.waiting import phases

# Rows and characters that a page can be read with; the API has all.
_TRIALS_SHOWN = 200
_LOG_SHOWN = 12_000
_RESULTS_KEPT = 32  # in memory, of those read last
_ASKABLE = (Change.PAUSE, Change.RESUME, Change.CANCEL)
#: Names for people of what a job leaves.
DOWNLOADS = {
    folder.REPOSITORY: "Triton repository (tar)",
    folder.REPORT: "report (HTML)",
    folder.MANIFEST: "manifest with the evidence (JSON)",
    folder.STUDY: "study (SQLite)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job.

    Args:
        row: Its columns.
        result: None while there is none that can be read.
        trials: The newest first, as many as a page shows.
        trials_total: How many there are.
        front: None as long as nothing was measured.
        log: The end of what the command said.
        downloads: Address and name of each file that it left.
        asks: What its users may ask for now.
        names: Of the files that it left.
        directory: Whether its model is a model directory.
        phase: What it does, or why it waits.
        source: The job whose claim it verifies, or whose study it goes on with; None without one,
            or where that is gone.
    """

    row: Row[Any]
    options: Mapping[str, Any]
    result: Result | None
    trials: list[Trial]
    trials_total: int
    front: Front | None
    log: str
    downloads: list[tuple[str, str]]
    asks: list[Change]
    names: Sequence[str]
    directory: bool
    phase: str
    source: Row[Any] | None

    @property
    def baseline(self) -> str:
        """What the baseline is called: a model directory brings its own."""
        return "its own config.pbtxt" if self.directory else "Triton's default"

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return self.row.state in states.TERMINAL

    @property
    def told(self) -> list[str]:
        """What its worker says of its end, a sentence each."""
        return (self.row.message or "").splitlines()

    @property
    def follows(self) -> list[tuple[str, str]]:
        """What can be made of it once it has ended: name in an address, and for people."""
        if not self.ended:
            return []
        found = [("clone", "Run again")]
        if self.row.kind == "search" and folder.STUDY in self.names:
            found.append(("continue", "Go on with its study"))
        if self.row.kind == "search" and folder.REPOSITORY in self.names:
            found.append(("verify", "Verify"))
        return found

    @property
    def goes_on(self) -> bool:
        """Whether its hint is a command that needs the study that it left."""
        return folder.STUDY in self.names and "--resume" in (self.row.hint or "")

    @property
    def trials_text(self) -> str:
        """How many trials there are, or are so far."""
        return counted(self.trials_total, "trial") + ("" if self.ended else " so far")

    @property
    def failing(self) -> Trial | None:
        """The trial that it failed with."""
        return _trial(json.loads(self.row.failing_trial)) if self.row.failing_trial else None

    @property
    def command(self) -> str:
        """The command line that does the same on one's own machine, with the same seed."""
        options = dict(self.options)
        seeds = self.result.provenance.get("seeds") if self.result is not None else None
        if "seed" not in options and isinstance(seeds, dict):
            options |= {"seed": seed} if isinstance(seed := seeds.get("study"), int) else {}
        return command_text(self.row.kind, self.row.model_name, options, directory=self.directory)


def job_view(connection: Connection, content: ContentStore, row: Row[Any]) -> JobView:
    """Everything that the page of a job shows, read in the caller's transaction."""
    options = json.loads(row.options)
    found = result_of(connection, content, row)
    told = list(filter(None, map(_trial, jobs.trials_of(connection, row.number))))
    trials = _with_answer(told, found.entries) if found is not None else told
    names = jobs.artifact_names(connection, row.number)
    base = f"/api/v1/jobs/{row.id}"
    downloads = [
        (f"{base}/artifacts/{name}", text) for name, text in DOWNLOADS.items() if name in names
    ]
    if folder.RESULT in names:
        downloads.append((f"{base}/result", "result (JSON)"))
    possible = states.changes(State(row.state))
    return JobView(
        row=row,
        options=options,
        result=found,
        trials=trials[::-1][:_TRIALS_SHOWN],
        trials_total=len(trials),
        front=make_front(
            trials, found, promise(options, found), ended=row.state in states.TERMINAL
        ),
        log=jobs.log_end(connection, row.number, _LOG_SHOWN),
        downloads=downloads,
        asks=[change for change in _ASKABLE if change in possible],
        names=names,
        directory=content.is_archive(row.model),
        phase=phases(connection, row)[0],
        source=jobs.find_job(connection, row.project, row.source_job) if row.source_job else None,
    )


def _with_answer(trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
    """``trials``, the newest one of each configuration with what the answer alone tells of it."""
    newest = {trial.config_id: index for index, trial in enumerate(trials)}
    found = list(trials)
    for entry in entries:
        index = newest.get(entry.config_id)
        if index is None or trials[index].state != "measured":
            continue
        known = trials[index]
        more: dict[str, Any] = {}
        if known.edge_text == NOT_MEASURED:
            more |= {"edge_rps": entry.edge_rps, "edge_interval_rps": entry.edge_interval_rps}
        if known.latency_ms_sla is None:
            more["latency_ms_sla"] = entry.latency_ms.sla
        found[index] = known.model_copy(update=more)
    return found


def result_of(connection: Connection, content: ContentStore, row: Row[Any]) -> Result | None:
    """The result that the job has left; None if there is none that a page can read."""
    found = jobs.artifact_of(connection, row.number, folder.RESULT)
    if found is None or found.size_bytes > RESULT_MAX:
        return None
    return _read(content, found.sha256)


@functools.lru_cache(maxsize=_RESULTS_KEPT)
def _read(content: ContentStore, sha256: str) -> Result | None:
    with content.open(sha256) as stream:
        return read_result(stream.read())


def promise(options: Mapping[str, Any], result: Result | None) -> Sla:
    """The SLA: as the result has it, else as the options say."""
    if result is not None and result.promise.latency_budget_ms is not None:
        return result.promise

    def parsed(name: str, parse: Any) -> float | None:
        try:
            return float(parse(str(options[name])))
        except (KeyError, ValueError, UsageError):
            return None

    return Sla(
        latency_budget_ms=parsed("latency_budget", units.parse_duration_ms),
        percentile=parsed("percentile", float) or Sla().percentile,
        target_rate_rps=parsed("target_rate", units.parse_rate_rps),
    )


def _trial(body: Mapping[str, Any]) -> Trial | None:
    try:
        return Trial.model_validate(body)
    except ValidationError:
        return None
