"""A job's command as its worker sees it: running, talking, ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from analyzer.service import keeper

_READ_BYTES = 1 << 16  # what a pipe of Linux holds


class Child:
    """A keeper and its command; see :mod:`analyzer.service.keeper`."""

    def __init__(self, task: keeper.Task) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "analyzer.service.keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=task.environment,
        )
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        self._say(task.line())

    @property
    def pid(self) -> int:
        """Of the keeper."""
        return self._process.pid

    def poll(self) -> int | None:
        """The command's exit code; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Waits for the end for at most so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def read_log(self) -> str:
        """What the command has said on standard error since the last call."""
        assert self._process.stderr is not None
        parts = []
        while True:
            try:
                data = os.read(self._process.stderr.fileno(), _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            parts.append(data)
        return b"".join(parts).decode("utf-8", "replace")

    def live_until(self, until: float) -> None:
        """Lets it run until then, by ``time.monotonic()``."""
        self._say(b"%s %.3f\n" % (keeper.UNTIL, until))

    def interrupt(self) -> None:
        """Asks it to store what it measured, and to end."""
        self._say(keeper.INTERRUPT + b"\n")

    def terminate(self) -> None:
        """Ends it, within :data:`keeper.TERMINATE_GRACE_S` whatever it does."""
        self._say(keeper.TERMINATE + b"\n")

    def kill(self) -> None:
        """Kills it at once."""
        self._say(keeper.KILL + b"\n")

    def _say(self, word: bytes) -> None:
        assert self._process.stdin is not None
        # It has ended already, or was closed while another thread speaks.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(word)
            self._process.stdin.flush()

    def close(self) -> None:
        """Kills it if it still runs, and waits until it is gone."""
        self.kill()
        for stream in (self._process.stdin, self._process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._process.wait()


@contextmanager
def start_child(task: keeper.Task) -> Iterator[Child]:
    """A child that is gone at the end, with all that it started."""
    child = Child(task)
    try:
        yield child
    finally:
        child.close()
