"""The embedded server as a target: one process per configuration, reached by socket pairs."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from analyzer.engine.counters import ServerStatistics
from analyzer.errors import (
    TargetCrashError,
    TargetError,
    TargetMemoryError,
    TargetStartError,
    TargetTimeoutError,
    is_out_of_memory,
)
from analyzer.hardware.gpus import cuda_environment, first_gpu
from analyzer.hardware.memory_kills import PERHAPS_STARVED, Likelihood, MemoryKills
from analyzer.resources import child_environment
from analyzer.targets.embedded_connection import EmbeddedConnection
from analyzer.targets.embedded_spec import EmbeddedSpec
from analyzer.targets.embedded_wire import (
    CONTROL_BYTES,
    REQUEST_FAILED,
    decode_message,
    encode_message,
    send_message,
)
from analyzer.targets.server_log import ServerLog

_ANSWER_S = 10.0  # for counters and connections, while a model may keep every core busy
_END_S = 2.0  # it only closes its sessions; what hangs longer is killed
_KILLED_S = 30.0  # the kernel frees a large process's memory first
_LESS_MEMORY = "Fewer instances or a smaller maximum batch size need less memory."


class EmbeddedTarget:
    """Serves one configuration in a process of its own, from ``with`` until its end.

    The process ends with the thread that entered the ``with`` block (and with this process, even
    by SIGKILL), so enter and leave it on the same thread. Used by one thread at a time.

    Args:
        spec: What to serve.
        start_timeout_s: For loading and warming up.

    Raises:
        TargetStartError: On entering, the server did not come up; its last log lines are told.
        TargetMemoryError: It ran out of memory.
        TargetTimeoutError: It was not ready in time.
        MissingPartError: It is for a GPU, and there is none that this process may use.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, spec: EmbeddedSpec, *, start_timeout_s: float = 120.0) -> None:
        self.spec = spec
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._log = ServerLog()
        self._kills_before: MemoryKills | None = None

    def __enter__(self) -> EmbeddedTarget:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The server's process."""
        return (self._process.pid,) if self._process is not None else ()

    def alive(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def why_gone(self) -> str:
        """Empty: what ended it is told by whatever meets it next."""
        return ""

    def statistics(self) -> ServerStatistics:
        """Counters since the start (warm-up not counted).

        Raises:
            TargetCrashError, TargetMemoryError: The process is gone.
            TargetTimeoutError: It does not answer.
        """
        self._ask(operation="statistics")
        values = self._answer(_ANSWER_S, what="its counters")["statistics"]
        for name in ("batches", "batches_ns"):
            values[name] = tuple((int(size), int(number)) for size, number in values[name])
        return ServerStatistics(**values)

    @contextmanager
    def connect(self) -> Iterator[EmbeddedConnection]:
        """A new connection; what is still queued for it when it ends is taken back.

        Use one for each run, so that late replies of one run cannot be taken for the next one's.

        Raises:
            TargetCrashError, TargetMemoryError: The process is gone.
            TargetTimeoutError: It does not answer.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._ask(theirs, operation="connect")
            self._answer(_ANSWER_S, what="a connection")
            yield EmbeddedConnection(ours, self._failure, self._noted_failure)

    def close(self) -> None:
        """Ends the process: asks it, then terminates, then kills; returns when it is gone.

        Raises:
            TargetTimeoutError: The kernel does not let the process go.
        """
        process, control = self._process, self._control
        if control is not None:
            with suppress(OSError):
                send_message(control, operation="close")
        if process is not None and process.poll() is None:
            for signum in (None, signal.SIGTERM, signal.SIGKILL):
                if signum is not None:
                    process.send_signal(signum)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED_S if signum == signal.SIGKILL else _END_S)
                    break
            else:
                raise TargetTimeoutError(
                    f"the server of {self.spec.name} (process {process.pid}) cannot be killed",
                    hint="It hangs inside a device driver; the device needs a reset.",
                )
        if control is not None:
            control.close()
            self._control = None
        self._log.finish()

    def _noted_failure(self) -> str:
        """What the server noted of the first request that failed; empty without one."""
        noted = (line for line in self._log.lines() if line.startswith(REQUEST_FAILED))
        return next(noted, "").removeprefix(REQUEST_FAILED)

    def _failure(self) -> TargetError:
        """What to raise now that the server has closed a connection; waits a moment for its end."""
        process = self._process
        assert process is not None
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        told = self._told_failure()
        if told is not None:
            return self._failure_from(told)
        self._log.finish()
        name, lines = self.spec.name, self._log_tail()
        code = process.returncode
        if code is None:
            return TargetCrashError(f"the server of {name} closed its connection{lines}")
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        if is_out_of_memory(lines):
            return TargetMemoryError(
                f"the server of {name} ran out of memory ({how}){lines}", hint=_LESS_MEMORY
            )
        starved = self._starved() if code == -signal.SIGKILL else "no"
        if starved == "probably":
            return TargetMemoryError(
                f"the server of {name} {how}, probably for want of memory{lines}", hint=_LESS_MEMORY
            )
        if starved == "perhaps":
            how += f"; {PERHAPS_STARVED}"
        return TargetCrashError(f"the server of {name} {how}{lines}")

    def _starved(self) -> Likelihood:
        assert self._kills_before is not None, "the target was not started"
        return MemoryKills.until_now().likely_since(self._kills_before)

    def _start(self) -> None:
        assert self._process is None, "an embedded target is started once"
        self._kills_before = MemoryKills.until_now()
        command = [sys.executable, "-P", "-m", "analyzer.targets.embedded_main"]
        environment = child_environment()
        if self.spec.configuration.device == "gpu":
            environment |= cuda_environment(first_gpu())
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=environment,
                # Ctrl-C is for us; in a session of its own the server would not stand back
                # behind the load generator (hardware.timing.give_way).
                process_group=0,
            )
        assert self._process.stdout is not None
        self._log.follow(self._process.stdout)
        deadline = time.monotonic() + self._start_timeout_s
        try:
            self._control.send(self.spec.to_json().encode())
            ready = self._receive(deadline - time.monotonic())
        except OSError:
            ready = {}
        if ready is None:
            raise TargetTimeoutError(
                f"the server of {self.spec.name} was not ready"
                f" within {self._start_timeout_s:g} s{self._log_tail()}"
            )
        if "ready" not in ready:
            error = self._failure_from(ready) if ready else self._failure()
            if isinstance(error, TargetMemoryError):
                raise error
            raise TargetStartError(f"{error.message}; it was starting", hint=error.hint)

    def _failure_from(self, told: dict[str, Any]) -> TargetError:
        kind = TargetMemoryError if told["fatal"] == "memory" else TargetCrashError
        return kind(f"the server of {self.spec.name} failed: {told['message']}", hint=told["hint"])

    def _told_failure(self) -> dict[str, Any] | None:
        """Why the server gave up, where it could still say so."""
        with suppress(OSError, ValueError):
            while message := self._receive(0.0):
                if "fatal" in message:
                    return message
        return None

    def _log_tail(self) -> str:
        """The last log lines, as the end of a sentence; empty if there are none."""
        lines = self._log.lines()[-12:]
        return ": " + "\n".join(lines) if lines else ""

    def _ask(self, passed: socket.socket | None = None, **fields: Any) -> None:
        assert self._control is not None, "the target is not running"
        try:
            if passed is None:
                send_message(self._control, **fields)
            else:
                data = encode_message(fields)
                socket.send_fds(self._control, [data], [passed.fileno()])
        except OSError:
            raise self._failure() from None

    def _answer(self, timeout_s: float, *, what: str) -> dict[str, Any]:
        try:
            message = self._receive(timeout_s)
        except OSError:
            message = {}
        if message is None:
            raise TargetTimeoutError(
                f"the server of {self.spec.name} did not send {what} within {timeout_s:g} s"
            )
        if "fatal" in message:
            raise self._failure_from(message)
        if not message:
            raise self._failure()
        return message

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next control message; empty at the end of the stream, None if none came in time."""
        assert self._control is not None
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if not poller.poll(max(timeout_s, 0.0) * 1e3):
            return None
        return decode_message(self._control.recv(CONTROL_BYTES))
