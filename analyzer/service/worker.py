"""A worker: takes jobs for one device, one after the other, until it is told to end."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from analyzer import __version__
from analyzer.errors import StoreError
from analyzer.hardware.machine import machine_id
from analyzer.resources import child_environment
from analyzer.service.content import ContentStore
from analyzer.service.folder import ANALYZE, Program
from analyzer.service.gc import remove_unused_files
from analyzer.service.limits import ServiceLimits
from analyzer.service.queue import Device, Queue
from analyzer.service.runner import Run
from analyzer.service.sandbox import Isolation, probe
from analyzer.service.schema import WORKER_ID_MAX
from analyzer.service.sweeper import SWEEP_S, sweeping
from analyzer.service.temporary import remove_abandoned
from analyzer.store.database import Database

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.5  # how often an idle worker looks for a job
_COMPILE_S = 120.0  # compiling takes seconds
# Between looks for files that nothing needs: as long as those stay (:mod:`analyzer.service.gc`).
_COLLECT_S = 3600.0
LEASE_S = 30.0
"""Seconds that a job stays with a worker that does not answer: several restarts of a database, and
short beside a search. A choice."""


def this_device() -> Device:
    """The device that a worker of this machine measures on: its first visible GPU, or its CPU."""
    from analyzer.hardware.gpus import visible_gpus

    host = socket.gethostname()
    gpus = visible_gpus()
    if gpus:
        return Device(id=gpus[0].uuid, kind="gpu", host=host, name=gpus[0].name)
    return Device(id=f"{machine_id()}/cpu", kind="cpu", host=host, name=f"{os.cpu_count()} cores")


def compiled_twin() -> Path | None:
    """The folder with the twin's compiled code, made if need be; None where it cannot be made.

    A job's command may not write beside the program, and would compile for seconds each time.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "tritune" / f"compiled-{__version__}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "analyzer.twin.precompile"],
            env=child_environment() | {"NUMBA_CACHE_DIR": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMPILE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("The twin is compiled in each job: %s", error)
        return None
    return folder


def _worker_id(host: str) -> str:
    """An id that begins with the host's name, or as much of it as there is room for."""
    own = f"-{uuid.uuid4().hex[:12]}"
    return f"{host[: WORKER_ID_MAX - len(own)]}{own}"


class Worker:
    """One worker.

    Args:
        lease_s: Seconds that a job stays with it while it does not answer.
        stopping: Whether it shall end.
        isolation: What its commands are kept from; None for all that this machine can.
        analyze: The command line, which tests replace.
    """

    def __init__(
        self,
        database: Database,
        content: ContentStore,
        device: Device,
        limits: ServiceLimits,
        *,
        stopping: Callable[[], bool],
        lease_s: float = LEASE_S,
        isolation: Isolation | None = None,
        analyze: Program = ANALYZE,
    ) -> None:
        #: What its commands are kept from.
        self.isolation = probe() if isolation is None else isolation
        self._analyze = analyze
        self.id = _worker_id(device.host)
        self._database = database
        self._content = content
        self._limits = limits
        self._lease_s = lease_s
        self._stopping = stopping
        self._queue = Queue(database, self.id, device, lease_s=lease_s)

    def run(self) -> None:
        """Works until it is told to end; a job that runs then is given back."""
        self._queue.enrol(pid=os.getpid(), version=__version__, isolation=asdict(self.isolation))
        if missing := self.isolation.missing():
            _LOG.warning("Jobs on this machine are not kept from %s.", missing)
        with sweeping(self._database, every_s=min(SWEEP_S, self._lease_s / 6)):
            self._work()
        try:
            self._queue.leave()
        except StoreError as error:
            _LOG.warning("%s", error.message)

    def _work(self) -> None:
        """Takes one job after the other until the worker is told to end."""
        beaten = tidied = time.monotonic()
        collected = -float("inf")
        while not self._stopping():
            try:
                claim = self._queue.claim()
                if claim is not None:
                    _LOG.info("Job %s, attempt %d.", claim.id, claim.attempt)
                    Run(
                        self._queue, self._content, claim, self._limits,
                        lease_s=self._lease_s, stopping=self._stopping, isolation=self.isolation,
                        analyze=self._analyze,
                    ).run()  # fmt: skip
                now = time.monotonic()
                if claim is not None or now - beaten > self._lease_s / 3:
                    self._queue.beat()
                    beaten = now
                if now - tidied > SWEEP_S:
                    remove_abandoned()  # not beside a measurement: it may have much to remove
                    tidied = now
                if now - collected > _COLLECT_S:
                    collected = now
                    self._collect()
            except StoreError as error:
                _LOG.warning("%s Trying again.", error.message)
                claim = None
            if claim is None:
                time.sleep(_LOOK_S)

    def _still_there(self) -> bool:
        """Says that the worker lives, which takes no job meanwhile; whether it is to go on."""
        self._queue.beat()
        return not self._stopping()

    def _collect(self) -> None:
        """Removes superseded studies of jobs, and what else nothing refers to for an hour."""
        try:
            remove_unused_files(self._database, self._content, goes_on=self._still_there)
        except OSError as error:
            _LOG.warning("Files that nothing needs were left: %s", error)
