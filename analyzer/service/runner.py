"""One run of a job: its command is started, watched, and what it leaves is stored."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from analyzer.errors import AnalyzerError, DataError, StoreError
from analyzer.service import folder as files
from analyzer.service import kept
from analyzer.service.child import Child, start_child
from analyzer.service.command import command_text
from analyzer.service.content import ContentStore
from analyzer.service.folder import JobFolder
from analyzer.service.heartbeat import Heart
from analyzer.service.jobs import failing_trial
from analyzer.service.keeper import NOT_STARTED
from analyzer.service.limits import ServiceLimits
from analyzer.service.options import JobOptions, stored_options
from analyzer.service.progress import LogReader, last_line, storable
from analyzer.service.queue import Claim, LeaseLostError, Queue
from analyzer.service.rows import upsert
from analyzer.service.sandbox import Isolation
from analyzer.service.schema import TRIALS
from analyzer.service.states import Change, State
from analyzer.service.studies import keep_study, optuna_name
from analyzer.service.variants import KeptVariants
from analyzer.service.verdicts import why_not_held, why_unproven
from analyzer.targets.ports import free_ports

_LOG = logging.getLogger(__name__)
_TICK_S = 0.1  # between looks at a job: a choice, a hundredth of a heartbeat
_SAY_S = 0.5  # events are written this often: live enough for people
_LOOK_S = 1.0  # users' wishes and the study are looked at this often
# A command that was asked to pause ends its load test and writes its study; one that does not in
# this time is killed (what it measured is in its study all the same).
_PAUSE_S = 60.0
# Beyond a quarter more than its budget (the contract's), a command that was not measuring may still
# build variants, start Ray, write the report.
_TIME_GRACE_S = 600.0
# The contract's exit codes that are answers.
_VERDICTS = {0, 3, 4}
# Verdicts that need no reason.
_ANSWERED = {"found", "holds"}
_DISK_HINT = "Free space in the service's folder and in the folder for temporary files."
_KILLED = 137
_REASONS = {2: "input", NOT_STARTED: "start", _KILLED: "killed"}
_LATE_S = 1.0  # before the end of a lease: its keeper kills a command a moment before


class _CancelledError(Exception):
    """A user has cancelled the job, whose command has not begun."""


class Run:
    """One run of one claim.

    Args:
        stopping: Whether the worker shall end: the job is then given back.
        lease_s: As the queue's.
        isolation: What the command is kept from.
        analyze: As the folder's.
    """

    def __init__(
        self,
        queue: Queue,
        content: ContentStore,
        claim: Claim,
        limits: ServiceLimits,
        *,
        lease_s: float,
        stopping: Callable[[], bool],
        isolation: Isolation,
        analyze: files.Program = files.ANALYZE,
    ) -> None:
        self._isolation = isolation
        self._analyze = analyze
        self._queue = queue
        self._content = content
        own = content.variants / claim.project / claim.model
        self._variants = KeptVariants(own, limits.variants_bytes_max)
        self._claim = claim
        self._limits = limits
        self._lease_s = lease_s
        self._heart = Heart(queue, claim, lease_s)
        self._stopping = stopping
        self._asked: Change | None = None
        self._asked_at = 0.0
        self._looked_at = 0.0
        self._late = False
        self._stamp: tuple[int, ...] = ()
        self._trials = 0
        self._exported: dict[str, str] | None = None

    def run(self) -> None:
        """Runs the job to its end, or until it is no longer this worker's.

        Raises:
            StoreError: The database could not be reached for longer than the lease.
        """
        with self._heart:
            try:
                self._run()
            except LeaseLostError as error:
                _LOG.warning("%s It goes on elsewhere.", error)

    def _run(self) -> None:
        try:
            with JobFolder(self._isolation, self._analyze) as folder:
                self._run_in(folder)
        except (DataError, OSError) as error:
            message = error.message if isinstance(error, DataError) else str(error)
            hint = error.hint if isinstance(error, DataError) else _DISK_HINT
            self._fail("prepare", message, hint, LogReader(0), None)
        except _CancelledError:
            self._finish(Change.STOP, LogReader(0), None)

    def _run_in(self, folder: JobFolder) -> None:
        """Runs the job.

        Raises:
            DataError, OSError: It could not be prepared, or its command not be started.
        """
        options = stored_options(self._claim.kind, self._claim.options, self._limits)
        command = self._command(folder, options)
        endpoint = self._endpoint(options, command)
        task = folder.task(
            command, output=folder.answer_file, until=self._heart.until,
            limits=self._limits.of_processes(), endpoint=endpoint, told=self._told(),
            triton=options.triton,
        )  # fmt: skip
        log = LogReader(kept.log_left(self._queue, self._claim, self._limits))
        self._trials = kept.stored_trials(self._queue, self._claim)
        with start_child(task) as child, self._heart.keeping(child):
            code = self._watch(child, folder, log, options)
        self._end_patiently(code, folder, log, options)
        if self._trials:
            name = optuna_name(self._claim.project, self._claim.study, self._claim.id)
            keep_study(self._queue.database, folder.snapshot, self._claim.study, name)

    def _command(self, folder: JobFolder, options: JobOptions) -> list[str]:
        claim = self._claim
        if claim.kind == "verify":
            repository = kept.artifact(self._queue, claim, files.REPOSITORY, of=claim.source_job)
            if repository is None:
                raise DataError(f"The job {claim.source_job} is gone, or exported nothing.")
            return folder.verify_command(
                claim, options, self._content, repository, between=self._prepare
            )
        # Its own of an attempt before; else that of the job whose study it goes on with.
        snapshot = kept.artifact(self._queue, claim, files.STUDY) or (
            kept.artifact(self._queue, claim, files.STUDY, of=claim.source_job)
            if claim.source_job
            else None
        )
        devices = options.devices(self._queue.device.kind)
        self._variants.give(
            folder.work / files.VARIANTS, self._prepare, devices, options.precisions
        )
        return folder.search_command(claim, options, self._content, snapshot, between=self._prepare)

    def _told(self) -> str:
        """What a user would type instead, with the study that the job leaves (``study.db``)."""
        claim = self._claim
        return command_text(
            claim.kind, claim.model_name, claim.options,
            directory=self._content.is_archive(claim.model), store=f"sqlite:///{files.STUDY}",
        )  # fmt: skip

    def _endpoint(self, options: JobOptions, command: list[str]) -> tuple[str, int, int] | None:
        """What the command may reach, and the port where it does; ``command`` has its own name."""
        found = options.endpoint
        if found is None:
            return None
        port = found.inner_port if self._isolation.network else free_ports(1)[0]
        command.append(f"--server={found}")
        return found.host, found.port, port

    def _prepare(self) -> None:
        """Called between pieces: the run goes on, unless the job is no longer wanted."""
        self._heart.stay()
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        try:
            if self._queue.state(self._claim) is State.CANCELLING:
                raise _CancelledError
        except StoreError as error:
            if now > self._heart.until:
                raise
            _LOG.warning("%s Trying again.", error.message)

    # --- while it runs ---------------------------------------------------------------------------

    def _watch(self, child: Child, folder: JobFolder, log: LogReader, options: JobOptions) -> int:
        """The command's exit code, once it has ended; all that it said until then is stored."""
        started = time.monotonic()
        ends_at = started + 1.25 * options.budget_s + _TIME_GRACE_S
        said = looked = started
        waiting: list[tuple[str, dict[str, Any]]] = []
        while True:
            code = child.wait(_TICK_S)
            self._heart.stay()
            waiting += log.feed(child.read_log())
            now = time.monotonic()
            try:
                if waiting and (code is not None or now - said > _SAY_S):
                    self._queue.say(self._claim, waiting)
                    waiting, said = [], now
                if now - looked > _LOOK_S and code is None:
                    looked = now
                    self._obey(child, now)
                    self._look_at_study_if_room(folder)
            except StoreError as error:
                # The database restarts: the lease holds for a while.
                if now > self._heart.until:
                    raise
                _LOG.warning("%s Trying again.", error.message)
                said = looked = now
            if code is not None and not waiting:
                return code
            if now > ends_at and not self._late:
                self._late = True
                child.terminate()

    def _obey(self, child: Child, now: float) -> None:
        """Does what users, or the end of this worker, ask for."""
        state = self._queue.state(self._claim)
        if state is State.CANCELLING:
            if self._asked is not Change.CANCEL:
                self._asked = Change.CANCEL
                child.terminate()
        elif self._asked is None and (state is State.PAUSING or self._stopping()):
            self._asked = Change.PAUSE
            self._asked_at = now
            child.interrupt()
        elif self._asked is Change.PAUSE and now - self._asked_at > _PAUSE_S:
            child.kill()

    def _look_at_study_if_room(self, folder: JobFolder) -> None:
        try:
            self._look_at_study(folder)
        except OSError as error:
            # A full disk, for now: the run goes on, and its end is tried in any case.
            _LOG.warning("Job %s: the study was not kept: %s", self._claim.id, error)

    def _look_at_study(self, folder: JobFolder, *, last: bool = False) -> None:
        """Stores trials that are new, and then the study as it is: another worker goes on there."""
        if self._claim.kind != "search":
            return
        if (stamp := folder.study_stamp()) == self._stamp and not last:
            return
        self._stamp = stamp
        if not folder.take_snapshot():
            return
        trials = folder.trials(self._claim.study)
        if len(trials) == self._trials and not last:
            return
        new = folder.with_edges(self._claim.study, trials[self._trials :])
        # First: who goes on with the study needs the engines that were measured in it.
        self._variants.take(folder.work, files.VARIANTS, self._heart.stay)
        with folder.snapshot.open("rb") as stream, self._content.incoming() as incoming:
            staged = self._content.stage_file(incoming, stream, between=self._heart.stay)
            with self._queue.writing(self._claim) as connection:
                for trial in new:
                    upsert(
                        connection,
                        TRIALS,
                        {
                            "job": self._claim.number,
                            "number": trial["position"],
                            "body": json.dumps(trial),
                        },
                        update=("body",),
                    )
                self._content.keep(connection, staged)
                kept.note_artifact(connection, self._claim, files.STUDY, staged)
                if trials:
                    kept.stay_with(connection, self._claim, self._queue.device.kind)
            self._queue.say(self._claim, [("trial", trial) for trial in new])
        self._trials = len(trials)

    # --- at its end ------------------------------------------------------------------------------

    def _end_patiently(
        self, code: int, folder: JobFolder, log: LogReader, options: JobOptions
    ) -> None:
        """Ends the run; waits for a database that restarts, as long as the lease lasts."""
        if code == _KILLED and time.monotonic() > self._heart.until - _LATE_S:
            raise LeaseLostError(f"The command of job {self._claim.id} ended with its lease.")
        while True:
            try:
                self._end(code, folder, log, options)
                return
            except StoreError as error:
                if time.monotonic() > self._heart.until:
                    raise
                _LOG.warning("%s Trying again.", error.message)
                time.sleep(_LOOK_S)
            except OSError as error:
                _LOG.error("Job %s: %s", self._claim.id, error)
                message = f"What it measured could not be kept: {error.strerror}."
                self._fail("storage", message, _DISK_HINT, log, code)
                return

    def _end(self, code: int, folder: JobFolder, log: LogReader, options: JobOptions) -> None:
        self._variants.take(folder.work, files.VARIANTS, self._heart.stay)
        self._look_at_study(folder, last=True)
        answer = folder.answer()
        state = self._queue.state(self._claim)
        if state is State.CANCELLING:
            self._finish(Change.STOP, log, code)
            return
        if answer is not None and code in _VERDICTS and "verdict" in answer:
            self._succeed(code, answer, folder, log, options)
            return
        if self._late:
            self._fail(
                "time_limit",
                "The command did not end in its time.",
                "Look at the log for what it was doing; a smaller budget may end in time.",
                log,
                code,
            )
        elif state is State.PAUSING and self._asked is not None:
            self._finish(Change.STOP, log, code)
        elif self._asked is not None:
            self._finish(Change.RELEASE, log, code)
        else:
            error = (answer or {}).get("error") or {}
            said = error.get("message") or last_line(log.tail) or f"It ended with code {code}."
            # Where the command worked is nobody's business.
            message, hint = (
                str(text).replace(f"{folder.work}/", "") for text in (said, error.get("hint") or "")
            )
            reason = str(error.get("code") or _REASONS.get(code, "internal"))
            self._fail(reason, message, hint, log, code)

    def _succeed(
        self, code: int, answer: dict[str, Any], folder: JobFolder, log: LogReader,
        options: JobOptions,
    ) -> None:  # fmt: skip
        claim = self._claim
        left: list[tuple[str, AbstractContextManager[BinaryIO | None]]] = [
            (files.RESULT, folder.result(answer)),
            (files.REPORT, folder.left_file(files.REPORT)),
        ]
        if claim.kind == "search":
            left += [
                (files.REPOSITORY, folder.repository(between=self._heart.stay)),
                (files.MANIFEST, folder.manifest(claim.model_name)),
            ]
        for name, opened in left:
            with opened as stream, self._content.incoming() as incoming:
                if stream is None:
                    continue
                staged = self._content.stage_file(incoming, stream, between=self._heart.stay)
                with self._queue.writing(claim) as connection:
                    self._content.keep(connection, staged)
                    kept.note_artifact(connection, claim, name, staged)
        if options.export is not None and code == 0 and self._exported is None:
            self._exported = self._export(folder, options, options.export)
        verdict = storable(str(answer["verdict"]))[:16]
        told = self._exported or {}
        if not told and verdict not in _ANSWERED:
            search = claim.kind == "search"
            message, hint = (
                why_unproven(folder.snapshot, claim.study) if search else why_not_held(answer)
            )
            told = {"message": storable(message), "hint": storable(hint)}
        self._finish(Change.SUCCEED, log, code, verdict=verdict, **told)

    def _export(self, folder: JobFolder, options: JobOptions, place: str) -> dict[str, str]:
        """Exports to an object store, keeping the lease; what to say of it."""
        from analyzer.service.publish import publish  # loads much, for the few jobs that need it

        self._queue.say(self._claim, [("phase", {"phase": "exporting"})])
        stop = threading.Event()
        with ThreadPoolExecutor(1) as beside:
            done = beside.submit(
                publish, folder, self._claim, place, force=options.force, lease_s=self._lease_s,
                stopping=stop.is_set,
            )  # fmt: skip
            while not wait([done], _LOOK_S).done:
                try:
                    self._heart.stay()
                    if self._queue.state(self._claim) is State.CANCELLING:
                        stop.set()
                except StoreError as error:
                    _LOG.warning("%s Trying again.", error.message)
                except LeaseLostError:
                    stop.set()
                    raise
        try:
            return {"message": storable(done.result())}
        except AnalyzerError as error:
            message, hint = storable(error.message), storable(error.hint)
            return {"reason": "export", "message": message, "hint": hint}

    def _fail(self, reason: str, message: str, hint: str, log: LogReader, code: int | None) -> None:
        with self._queue.writing(self._claim) as connection:
            failing = failing_trial(connection, self._claim.number)
        self._finish(
            Change.FAIL, log, code, reason=storable(reason)[:64], message=storable(message),
            hint=storable(hint),
            failing_trial=failing,
        )  # fmt: skip

    def _finish(
        self, change: Change, log: LogReader, code: int | None, **fields: str | None
    ) -> None:
        with self._queue.writing(self._claim) as connection:
            if change in (Change.STOP, Change.FAIL):
                kept.forget_artifacts(connection, self._claim)
            told = {"exit_code": code, "log_tail": log.tail, **fields}
            after = self._queue.finish(connection, self._claim, change, told)
            if after.state is State.CANCELLED:
                # It was cancelled while its answer was stored: that is no result.
                kept.forget_artifacts(connection, self._claim)
