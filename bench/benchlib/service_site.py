"""A service whose parts can be killed, stopped and starved: a database, APIs, scripted workers.

Everything that a site starts works below its folder, so that what is left over can be found.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from analyzer.targets.ports import free_ports
from benchlib.command import ROOT, WORK
from benchlib.postgres import PostgresServer
from benchlib.scripted_worker import SCRIPT

LEASE_S = 5.0
_DISK_BYTES, _DATABASE_DISK_BYTES = 256 << 20, 384 << 20
_START_S = 120.0
_APIS = 2
# Two share a device: one of them must wait.
_DEVICES = ("bench/0", "bench/1", "bench/0")


@dataclass(slots=True)
class Part:
    """A process of the service, which is started again under the same command."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    busy: bool = field(default=False)

    @property
    def pid(self) -> int:
        """Of its process; 0 while there is none."""
        return self.process.pid if self.process is not None else 0


class Disk:
    """A folder that can be full: a small tmpfs where this user may mount one.

    Args:
        size_bytes: How much it holds.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=755", "none", str(folder)],
            capture_output=True,
        )  # fmt: skip
        #: Whether it is a file system of its own.
        self.own = done.returncode == 0

    def fill(self) -> None:
        """Leaves no byte free."""
        with (self.folder / "ballast").open("ab") as ballast:
            while free := shutil.disk_usage(self.folder).free:
                with contextlib.suppress(OSError):
                    os.posix_fallocate(ballast.fileno(), ballast.seek(0, os.SEEK_END), free)
                    continue
                break

    def free(self) -> None:
        """Gives the room back."""
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmounts it."""
        if self.own:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


class Site:
    """A running service.

    Args:
        kind: Of the database: ``sqlite`` or ``postgresql``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.root = Path(tempfile.mkdtemp(prefix="tb-"))
        self.root.chmod(0o755)
        self.log = self.root / "log"
        #: Of the service's files, the jobs' folders, and of a SQLite database.
        self.disk = Disk(self.root / "disk", _DISK_BYTES)
        self.data = self.disk.folder / "data"
        self.temporary = self.disk.folder / "t"
        self.temporary.mkdir()
        self.database_disk: Disk | None = None
        self.server: PostgresServer | None = None
        if kind == "postgresql":
            self.database_disk = Disk(self.root / "pg", _DATABASE_DISK_BYTES)
            self.server = PostgresServer(self.database_disk.folder, durable=True)
            self.server.start()
            self.url = self.server.create("service")
        else:
            self.data.mkdir()
            self.url = f"sqlite:///{self.data / 'service.db'}"
        self.ports = free_ports(_APIS)
        self.apis = [
            Part(f"api{number}", [
                sys.executable, "-m", "analyzer.cli.main", "service", f"--port={port}",
                "--workers=0", f"--data={self.data}",
            ])
            for number, port in enumerate(self.ports)
        ]  # fmt: skip
        self.workers = [
            Part(f"worker{number}", [
                sys.executable, "-m", "benchlib.scripted_worker", self.url, str(self.data),
                device, str(LEASE_S),
            ])
            for number, device in enumerate(_DEVICES)
        ]  # fmt: skip

    @property
    def parts(self) -> list[Part]:
        """APIs and workers."""
        return [*self.apis, *self.workers]

    def start(self, part: Part) -> None:
        """Starts a part that does not run."""
        with self.log.open("ab") as log:
            log.write(f"--- {time.time():.1f} start {part.name}\n".encode())
            log.flush()
            part.process = subprocess.Popen(
                part.command, cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | {
                    "TRITUNE_SERVICE_STORE": self.url, "TMPDIR": str(self.temporary),
                    "PYTHONPATH": f"{ROOT}:{ROOT / 'bench'}",
                },
            )  # fmt: skip

    def start_dead(self) -> list[str]:
        """Starts every part that was started and has ended; their names."""
        dead = [part for part in self.parts if part.process is not None and _ended(part.process)]
        for part in dead:
            self.start(part)
        return [part.name for part in dead]

    def wait_ready(self) -> None:
        """Waits until every API reaches the database.

        Raises:
            TimeoutError: One does not.
        """
        ends_at = time.monotonic() + _START_S
        for port in self.ports:
            while not self._ready(port):
                if time.monotonic() > ends_at:
                    raise TimeoutError(f"The API on port {port} is not ready: see {self.log}.")
                self.start_dead()
                time.sleep(0.2)

    def _ready(self, port: int) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=10).status_code == 200
        return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds SQLite's file as another program's writing transaction does."""
        connection = sqlite3.connect(self.data / "service.db", timeout=30, isolation_level=None)
        try:
            connection.execute("BEGIN EXCLUSIVE")
            yield
        finally:
            connection.close()

    def processes(self) -> list[psutil.Process]:
        """Every process whose working folder lies below the site's."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                # A folder that was removed meanwhile is told with its old path.
                if Path(f"/proc/{process.pid}/cwd").readlink().is_relative_to(self.root):
                    found.append(process)
        return found

    def strays(self) -> list[str]:
        """Processes that belong to no living part, as text."""
        known = {part.pid for part in self.parts}
        if self.server is not None:
            known |= {process.pid for process in self.server.processes()}
        return [_described(process) for process in self.processes() if process.pid not in known]

    def commands(self) -> dict[str, list[int]]:
        """The commands that run now: process numbers by the job's study.

        A child of a command looks like it until it executes something else, and is none.
        """
        found: dict[str, dict[int, int]] = {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                study = [word for word in words if word.startswith("--study=")]
                if str(SCRIPT) in words and study and process.status() != psutil.STATUS_ZOMBIE:
                    own = found.setdefault(study[0].partition("=")[2], {})
                    own[process.pid] = process.ppid()
        return {
            study: [pid for pid, parent in parents.items() if parent not in parents]
            for study, parents in found.items()
        }

    def left_folders(self) -> int:
        """Folders of jobs that are still there."""
        return sum(1 for path in self.temporary.iterdir() if path.name.startswith("tj-"))

    def close(self) -> None:
        """Ends everything, and removes the folder."""
        for part in self.parts:
            if part.process is not None:
                part.process.kill()
                part.process.wait()
        if self.server is not None:
            self.server.kill()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for disk in (self.disk, self.database_disk):
            if disk is not None:
                disk.close()
        shutil.rmtree(self.root, ignore_errors=True)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


def _described(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}"
    return f"{process.pid} gone"


@contextlib.contextmanager
def running_site(kind: str) -> Iterator[Site]:
    """A site that answers; it is gone at the end."""
    site = Site(kind)
    try:
        for api in site.apis:
            site.start(api)
        site.wait_ready()
        for worker in site.workers:
            site.start(worker)
        yield site
    except BaseException:
        kept = WORK / "service_faults" / f"log-{kind}-broken"
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(site.log, kept)
        raise
    finally:
        site.close()
