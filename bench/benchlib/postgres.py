"""A PostgreSQL server of our own, as an ordinary user, that benches start, stop and kill."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from analyzer.targets.ports import free_ports

_END_S = 20.0  # for the processes of a server that was killed to be gone


class PostgresUnavailableError(Exception):
    """There is no PostgreSQL here that can be started, and why."""


class PostgresServer:
    """A server that is not started yet, with its files in ``folder``.

    Args:
        folder: Empty, or that of an earlier server; an ordinary user must reach it.
        durable: Whether it survives the machine's end, not only its own.

    Raises:
        PostgresUnavailableError: It is not installed, or cannot run here.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if not found:
            raise PostgresUnavailableError(
                "PostgreSQL's server programs are not installed (Debian: postgresql)"
            )
        as_root = os.geteuid() == 0
        if as_root and not shutil.which("runuser"):
            raise PostgresUnavailableError(
                "PostgreSQL refuses to run as root, and there is no runuser"
            )
        user = "postgres" if as_root else getpass.getuser()
        self._programs = found[-1].parent
        self._prefix = ["runuser", "-u", user, "--"] if as_root else []
        self._folder = folder
        self._data = folder / "data"
        if as_root:
            shutil.chown(folder, user)
        [self._port] = free_ports(1)
        self._options = f"-p {self._port} -c listen_addresses=127.0.0.1 -k {folder}"
        if not durable:
            self._options += " -c fsync=off"
        if not self._data.exists():
            self._run("initdb", "-U", "tritune", "-A", "trust", "-E", "UTF8")

    @property
    def url(self) -> str:
        """Without a database's name."""
        return f"postgresql://tritune:secret@127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        log = str(self._folder / "log")
        self._run("pg_ctl", "-o", self._options, "-l", log, "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Ends it: ``fast`` as an operator does, ``immediate`` as a crash."""
        self._run("pg_ctl", "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """SIGKILL to the server and each of its processes; waits until they are gone."""
        processes = self.processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes, timeout=_END_S)

    def processes(self) -> list[psutil.Process]:
        """The server and those below it; none while it is down."""
        try:
            number = int((self._data / "postmaster.pid").read_text().split()[0])
            server = psutil.Process(number)
            return [server, *server.children(recursive=True)]
        except (OSError, IndexError, ValueError, psutil.NoSuchProcess):
            return []

    def create(self, name: str) -> str:
        """Makes an empty database; its URL."""
        import psycopg

        with psycopg.connect(f"{self.url}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return f"{self.url}/{name}"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._prefix, str(self._programs / program), "-D", str(self._data), *arguments],
            cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise PostgresUnavailableError(
                f"{program} does not run here: {done.stderr.strip()[:200]}"
            )


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server in a folder of its own, which is gone at the end."""
    # Not below a test's or a bench's folder: their parents may be closed to other users.
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            if server.processes():
                server.stop()
    finally:
        for _ in range(10):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)
