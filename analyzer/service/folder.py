"""The folder in which a job's command works: what it is given, and what it leaves."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from analyzer.domain.measurement import Measurement
from analyzer.errors import StoreError
from analyzer.export.manifest import MANIFEST_NAME
from analyzer.resources import PACKAGE_ROOT, search_path
from analyzer.service import sandbox
from analyzer.service.archive import pack
from analyzer.service.child import start_child
from analyzer.service.command import TOLD
from analyzer.service.content import ContentStore
from analyzer.service.keeper import Task
from analyzer.service.options import JobOptions
from analyzer.service.queue import Claim
from analyzer.service.sandbox import Isolation
from analyzer.service.temporary import make_folder
from analyzer.store.engine import file_url
from analyzer.store.results import open_store
from analyzer.targets.address import REACHED_AT
from analyzer.targets.triton_install import HOME_VARIABLE, find_triton

# Names of what a job leaves, as artifacts; all but the first and the last are the contract's.
RESULT, REPORT, REPOSITORY, MANIFEST = (
    "result.json",
    "report.html",
    "repository.tar",
    "manifest.json",
)
STUDY = "study.db"
# What ``--calibrate`` measures lies here below ``TRITUNE_CACHE`` (:mod:`analyzer.cli.machine`).
CONSTANTS = "tritune/machine"
_CACHE = "cache"
#: Where a command keeps variants, below the folder in which it works.
VARIANTS = f"{_CACHE}/tritune"
_COMPILED, _COPY, _PACKED = "compiled", "snapshot", "packed.tar"
_SNAPSHOT_S = 60.0  # a study of thousands of trials is copied in less than one
_ANSWER_MAX = 64 << 20  # bytes of a result; a study of thousands of trials has a few
# Of a worker's environment, what a command needs to find its libraries; credentials are elsewhere.
_PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Program:
    """The command line.

    Args:
        command: Program and first arguments.
        reading: What it reads beside the system, Python and this package.
        compiled: Folder with the twin's compiled code, of which each job gets a copy; None to let
            each job compile it.
        constants: Folder with what ``analyze doctor --calibrate`` measured of this machine, of
            which each job gets a copy; it need not be there.
    """

    command: tuple[str, ...]
    reading: tuple[str, ...] = ()
    compiled: Path | None = None
    constants: Path | None = None


ANALYZE = Program((sys.executable, "-m", "analyzer.cli.main"))


class JobFolder:
    """One folder for one run; used as a context manager, at whose end it is removed.

    It lies in the system's folder for temporary files under short names, since the path of a
    socket of Ray's is short, and is closed to other users.

    Args:
        isolation: What its commands are kept from.
        analyze: The command line, which tests replace.
    """

    def __init__(self, isolation: Isolation, analyze: Program = ANALYZE) -> None:
        self._isolation = isolation
        self._analyze = analyze
        self._own, self._lock = make_folder()
        #: Where the command works; it may write there and nowhere else.
        self.work = self._own / "w"
        self.work.mkdir(mode=0o700)
        (self.work / "t").mkdir(mode=0o700)
        if analyze.compiled is not None:
            shutil.copytree(analyze.compiled, self.work / _COMPILED)
        if analyze.constants is not None and analyze.constants.is_dir():
            shutil.copytree(analyze.constants, self.work / _CACHE / CONSTANTS)
        #: The study as it was when :meth:`take_snapshot` was called.
        self.snapshot = self._own / STUDY
        #: Standard output of the command.
        self.answer_file = self._own / "answer"
        #: Standard output of an export.
        self.export_file = self._own / "exported"

    def __enter__(self) -> JobFolder:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._own, ignore_errors=True)
        self._lock.close()

    def environment(self, told: str = "") -> dict[str, str]:
        """The command's environment: no credentials, and its home is its folder.

        Args:
            told: The command line that its study notes; empty for its own.
        """
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return kept | {
            "HOME": str(self.work),
            "TMPDIR": str(self.work / "t"),
            "NUMBA_CACHE_DIR": str(self.work / _COMPILED),
            "TRITUNE_CACHE": str(self.work / _CACHE),
            "PYTHONPATH": search_path("PYTHONPATH", PACKAGE_ROOT),
            "PYTHONSAFEPATH": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            # Without a network, Ray warns that it did not find its own address by asking 8.8.8.8:
            # so it takes the loopback's, as it does where it is not for clusters by default.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            **({TOLD: told} if told else {}),
        }

    def reading(self) -> list[str]:
        """Where its commands may read, beside the folder."""
        return [*sandbox.readable(), *self._analyze.reading]

    def task(
        self,
        command: list[str],
        *,
        output: Path,
        until: float,
        limits: Mapping[str, int] = MappingProxyType({}),
        endpoint: tuple[str, int, int] | None = None,
        nice: int = 0,
        told: str = "",
        triton: bool = False,
    ) -> Task:
        """A command that works in the folder and is kept from all else, for a keeper.

        Args:
            output, until, limits, endpoint, nice: As
                :class:`~analyzer.service.keeper.Task` has them.
            told: As for :meth:`environment`.
            triton: Whether it starts a Triton: that which the worker finds.
        """
        install = find_triton() if triton else None
        named = {HOME_VARIABLE: str(install.home)} if install and install.home else {}
        reached = {REACHED_AT: f"127.0.0.1:{endpoint[2]}"} if endpoint is not None else {}
        server = [str(install.home or install.executable.parent.parent)] if install else []
        return Task(
            command=command,
            folder=str(self.work),
            environment=self.environment(told) | named | reached,
            output=str(output),
            until=until,
            limits=dict(limits),
            isolation=self._isolation,
            reading=[*self.reading(), *server],
            making=[sandbox.OF_TRITON] if triton else [],
            endpoint=endpoint,
            nice=nice,
        )

    def search_command(
        self,
        claim: Claim,
        options: JobOptions,
        content: ContentStore,
        snapshot: str | None,
        *,
        between: Callable[[], object],
    ) -> list[str]:
        """Puts the model, the data and the study so far in place; the command that goes on.

        Args:
            snapshot: The study so far, by its SHA-256; None for a new one.
            between: Called between pieces of files.
        """
        unpack: list[str] = []
        if content.is_archive(claim.model):
            # Below a folder of its own: its name is the user's.
            model = f"model/{claim.model_name}"
            unpack = self._unpacking(content, claim.model, model, between)
        else:
            model = f"{claim.model_name}.onnx"
            content.copy_to(claim.model, self.work / model, between=between)
        arguments = ["search", model, *options.arguments]
        if options.calibration is not None:
            content.copy_to(options.calibration, self.work / "calibration.npz", between=between)
            arguments.append("--calibration-data=calibration.npz")
        if options.trace is not None:
            content.copy_to(options.trace, self.work / "trace.csv", between=between)
            arguments.append("--arrivals=trace:trace.csv")
        if snapshot is not None:
            content.copy_to(snapshot, self.work / STUDY, between=between)
        study = [f"--store=sqlite:///{STUDY}", f"--study={claim.study}"]
        resume = ["--resume"] if snapshot is not None and self.has_study(claim.study) else []
        written = ["--export=repository", f"--report={REPORT}", "--json"]
        return [*unpack, *self._analyze.command, *arguments, *study, *resume, *written]

    def verify_command(
        self,
        claim: Claim,
        options: JobOptions,
        content: ContentStore,
        repository: str,
        *,
        between: Callable[[], object],
    ) -> list[str]:
        """The command that verifies the claim of a repository, given by its SHA-256.

        Args:
            between: Called between pieces of files.
        """
        unpack = self._unpacking(content, repository, "repository", between)
        where = ["--repository=repository", f"--model={claim.model_name}"]
        store = f"--store=sqlite:///{STUDY}"
        arguments = ["verify", *where, *options.arguments, store, "--json"]
        return [*unpack, *self._analyze.command, *arguments]

    def _unpacking(
        self, content: ContentStore, sha256: str, folder: str, between: Callable[[], object]
    ) -> list[str]:
        """Puts an archive in place; the beginning of a command that unpacks it into ``folder``."""
        content.copy_to(sha256, self.work / _PACKED, between=between)
        return [sys.executable, "-m", "analyzer.service.archive", _PACKED, folder]

    def export_command(self, claim: Claim, repository: str, *, force: bool) -> list[str]:
        """The command that adds what the study recommends to a repository in the folder."""
        options = [f"--store=sqlite:///{STUDY}", f"--repository={repository}", "--json"]
        options += ["--force"] if force else []
        return [*self._analyze.command, "export", claim.study, *options]

    def answer(self, file: Path | None = None) -> dict[str, Any] | None:
        """The JSON document that the command printed; None if it printed none.

        Args:
            file: Where its output is; None for that of the job itself.
        """
        place = file or self.answer_file
        try:
            if place.stat().st_size > _ANSWER_MAX:
                return None
            found = json.loads(place.read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    # --- the study -------------------------------------------------------------------------------

    def study_stamp(self) -> tuple[int, ...]:
        """Changes whenever the study's database was written."""
        stamp: list[int] = []
        for name in (STUDY, f"{STUDY}-wal"):
            with contextlib.suppress(OSError):
                found = (self.work / name).lstat()
                stamp += [found.st_mtime_ns, found.st_size]
        return tuple(stamp)

    def has_study(self, name: str) -> bool:
        """Whether the database that was put in place holds the study of that name."""
        try:
            with open_store(file_url(self.work / STUDY), create=False) as store:
                return store.has_study(name)
        except StoreError:
            return False

    def take_snapshot(self) -> bool:
        """Copies the study's database as it is now to :attr:`snapshot`; False if there is none.

        The command may have put anything in its place, so it is read with the command's rights.
        """
        if not self.study_stamp():
            return False
        task = self.task(
            [sys.executable, "-m", "analyzer.service.snapshot_main", STUDY, _COPY],
            output=Path(os.devnull),
            until=time.monotonic() + _SNAPSHOT_S,
        )
        with start_child(task) as child:
            code = child.wait(_SNAPSHOT_S)
        if code != 0:
            return False
        with self.left_file(_COPY) as stream:
            if stream is None:
                return False
            with self.snapshot.open("wb") as own:
                shutil.copyfileobj(stream, own)
        return True

    def trials(self, study: str) -> list[dict[str, Any]]:
        """The trials in the snapshot, named and numbered as ``analyze studies show --json`` does.

        ``trial_number``, by which earlier versions told the number, says the same. Which of several
        trials of a configuration stands is not told: the next one may replace it.
        """
        try:
            with open_store(file_url(self.snapshot), create=False) as store:
                return [
                    row.document() | {"trial_number": row.trial_number}
                    for row in store.trial_rows(study)
                ]
        except StoreError:
            # The command is making its tables.
            return []

    def with_edges(self, study: str, trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """``trials`` of the snapshot, with the intervals of their edges as they were measured.

        An edge that was not bracketed is known by its interval alone. Outcomes that cannot be read
        leave ``trials`` as they are.
        """
        if not trials:
            return []
        from analyzer.report.document import edge_interval

        try:
            with open_store(file_url(self.snapshot), create=False) as store:
                outcomes = store.outcomes(study, load_tests_of=())
        except StoreError:
            return trials
        intervals = {
            item.number: edge_interval(item.outcome.edge)
            for item in outcomes
            if isinstance(item.outcome, Measurement)
        }
        return [trial | {"edge_interval_rps": intervals.get(trial["position"])} for trial in trials]

    # --- what it leaves --------------------------------------------------------------------------

    @contextlib.contextmanager
    def left_file(self, name: str) -> Iterator[BinaryIO | None]:
        """A file that the command wrote into its folder; None if it did not (or made a link)."""
        try:
            # A pipe would be waited for.
            handle = os.open(self.work / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            yield None
            return
        with os.fdopen(handle, "rb") as stream:
            yield stream if stat.S_ISREG(os.fstat(handle).st_mode) else None

    @contextlib.contextmanager
    def repository(self, *, between: Callable[[], object]) -> Iterator[BinaryIO | None]:
        """The exported repository as a tar; None if nothing was exported.

        Args:
            between: Called between pieces of the tar.
        """
        root = self.work / "repository"
        if root.is_symlink() or not root.is_dir():
            yield None
            return
        packed = self._own / REPOSITORY
        pack(root, "repository", packed, between=between)
        with packed.open("rb") as stream:
            yield stream

    @contextlib.contextmanager
    def manifest(self, model: str) -> Iterator[BinaryIO | None]:
        """The evidence in the exported repository; None if nothing was exported."""
        with self.left_file(f"repository/{model}/{MANIFEST_NAME}") as stream:
            yield stream

    def result(self, answer: Mapping[str, Any]) -> BinaryIO:
        """The result document, as it is stored."""
        return io.BytesIO(json.dumps(answer).encode())
