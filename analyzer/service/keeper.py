"""The process between a worker and a job's command: it starts the command, and leaves none behind.

``python -m analyzer.service.keeper`` reads a :class:`Task` as one line of JSON from standard input
and starts its command. After that each line is a word of the worker's:

``u TIME``  the lease is good until then, by ``time.monotonic()`` of this machine
``i``       interrupt the command (it stores what it measured, and ends)
``t``       end the command and everything it started
``k``       kill them

When the worker is gone (end of input), or the lease has ended (the worker may be stopped or cut off
while another one goes on with the job), everything is killed. Orphans come back
to this process, which adopts them (``PR_SET_CHILD_SUBREAPER``), so none gets away. It ends with the
command's exit code, or 128 plus the number of the signal that ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from analyzer.hardware.lifetime import die_with_parent
from analyzer.hardware.priority import lower_session
from analyzer.service import relay, sandbox
from analyzer.service.sandbox import Isolation

UNTIL, INTERRUPT, TERMINATE, KILL = b"u", b"i", b"t", b"k"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_TICK_S = 0.2  # between looks at a child: soon enough for a cancel within a second
NOT_STARTED = 126
"""Exit code where the command could not be started; a shell says the same."""
_OOM_SCORE = "500"  # of at most 1000; the service's own processes have 0: a choice
# Between SIGTERM and SIGKILL: as long as a command needs to close its servers and its database.
TERMINATE_GRACE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A command and what it may use.

    Args:
        command: The program and its arguments.
        folder: Where it works.
        environment: All of its environment.
        output: File that takes its standard output.
        until: When it is killed unless the worker lengthens it, by ``time.monotonic()``: a lease
            is told by its end, since nobody knows how late the telling is heard.
        limits: Resource limits by their names in :mod:`resource` (``RLIMIT_AS``).
        isolation: What it is kept from.
        reading: Where it may read, with ``isolation.files``; it may write to ``folder`` too.
        making: Where it may make folders, with nothing in them.
        endpoint: Host and port that it reaches, and the port of its loopback where it does; None
            for nothing.
        nice: By how much its priority is below the worker's (nice(2)).
    """

    command: list[str]
    folder: str
    environment: dict[str, str]
    output: str
    until: float
    limits: dict[str, int] = field(default_factory=dict)
    isolation: Isolation = field(default_factory=Isolation)
    reading: list[str] = field(default_factory=list)
    making: list[str] = field(default_factory=list)
    endpoint: tuple[str, int, int] | None = None
    nice: int = 0

    def line(self) -> bytes:
        """As the keeper reads it."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Task:
        """The task that :meth:`line` has written."""
        values = json.loads(line)
        return cls(**values | {"isolation": Isolation(**values["isolation"])})


def main() -> int:
    """Runs the task of standard input; returns the exit code."""
    task = Task.read(_read_line())
    os.nice(task.nice)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Only the worker's words end it: a Ctrl-C on the terminal is for the worker to pass on.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    command = _start(task)
    try:
        return _watch(task, command)
    finally:
        kill_descendants()


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)  # unbuffered: what follows the line is for select
        if not byte:
            raise SystemExit(1)
        line += byte
    return line


def _start(task: Task) -> int:
    """Starts the command, behind an init of its own where it has namespaces; what to wait for."""
    outside = relay.start_relay(*task.endpoint[:2]) if task.endpoint is not None else None
    sandbox.leave_namespaces(task.isolation)
    if outside is not None and task.endpoint is not None:
        relay.listen(outside, task.endpoint[2])
    started = os.fork()
    if started:
        return started
    try:
        _become_leader()
        if task.isolation.processes:
            sandbox.see_own_processes()
            command = os.fork()
            if command:
                os._exit(sandbox.be_init(command))
            _become_leader()
        _run(task)
    except BaseException as error:
        os.write(2, f"The command could not be started: {error}\n".encode())
    os._exit(NOT_STARTED)


def _become_leader() -> None:
    """Leads a session and a group, and ends with what started it."""
    os.setsid()
    die_with_parent()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def _run(task: Task) -> None:
    """Becomes the command."""
    lower_session(os.nice(0))  # a new session begins with a full share of the cores
    _offer_to_oom_killer()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(task.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.chdir(task.folder)
    for name, value in task.limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    sandbox.drop_rights()
    if task.isolation.files:
        sandbox.restrict_files(task.reading, [task.folder], task.making)
    os.execve(task.command[0], task.command, task.environment)


def _offer_to_oom_killer() -> None:
    """Makes the kernel choose the command, not the worker, when the machine is out of memory."""
    with contextlib.suppress(OSError):  # it is offered already, or nobody may: no harm
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def _watch(task: Task, command: int) -> int:
    """Does as the worker says until the command ends; its exit code."""
    until = task.until
    kill_at = float("inf")
    heard = b""
    while True:
        with contextlib.suppress(ChildProcessError):
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                if done[0] == command:
                    code = os.waitstatus_to_exitcode(done[1])
                    return code if code >= 0 else 128 - code
        now = time.monotonic()
        # Before it ends, not after: nobody else begins while this still runs.
        if now > until - _TICK_S or now > kill_at:
            _signal(command, signal.SIGKILL)
            kill_descendants(command)
        ready, _, _ = select.select([0], [], [], _TICK_S)
        if not ready:
            continue
        *lines, heard = (heard + _hear()).split(b"\n")
        for line in lines:
            word, _, value = line.partition(b" ")
            if word == UNTIL:
                until = float(value)
            elif word == INTERRUPT:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(command, signal.SIGINT)
            elif word == TERMINATE:
                _signal(command, signal.SIGTERM)
                kill_at = min(kill_at, time.monotonic() + TERMINATE_GRACE_S)
            else:
                kill_at = 0.0


def _hear() -> bytes:
    # End of input: the worker is gone.
    return os.read(0, 4096) or b"\n" + KILL + b"\n"


def _signal(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def kill_descendants(keep: int = 0) -> None:
    """Kills every process that descends from this one, until there is none but ``keep``."""
    own = os.getpid()
    while found := [pid for pid in _descendants(own) if pid != keep]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _descendants(own: int) -> list[int]:
    """Processes below ``own``, zombies of others left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # Behind the name, which stands in brackets and may hold anything.
            after = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if after[0] != "Z" or int(after[1]) == own:
            children.setdefault(int(after[1]), []).append(int(entry.name))
    found, open_ = [], [own]
    while open_:
        below = children.get(open_.pop(), [])
        found += below
        open_ += below
    return found


if __name__ == "__main__":
    sys.exit(main())
