"""Ray, started quietly and ended without a trace."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from analyzer.cluster import guardian
from analyzer.cluster.ray_agents import without_agents, without_helpers
from analyzer.errors import AnalyzerError, MissingPartError, UsageError
from analyzer.hardware.gpus import GpuIdentity, cuda_environment

_SESSION = "TRITUNE_SESSION"
_OBJECT_STORE_BYTES = 80 * 2**20  # Ray's minimum is 75 MiB
# Ray's sockets lie some 65 characters below its folder, and a socket's path ends at 107; so a long
# TMPDIR cannot be used.
_PARENT_LENGTH_MAX = 24
_SHORT_PARENT = "/tmp"
_REACH_TIMEOUT_S = 5.0  # a connection takes milliseconds; a wrong address need not answer
_WITHOUT_RAY = "--executor in-process runs the one worker without Ray."

# What a local Ray does besides running actors is switched off: it would only disturb what is
# measured. Users' own settings win.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    # One worker is asked for; processes in reserve would only import Ray.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    # Ray's workers would have a niceness of 15, and the servers that they start: other programs of
    # the same session would come first on their cores, as they do not where a server is deployed.
    "RAY_worker_niceness": "0",
    # Leaves CUDA_VISIBLE_DEVICES alone in workers without a GPU (and is silent about it).
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Its core would put a handler of SIGTERM in the place of ours, which prints a stack trace and
    # ends the process; Ray reads this when it is imported.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
}


@contextmanager
def ray_session(
    *, address: str | None, cores: int, gpus: Sequence[GpuIdentity] = ()
) -> Iterator[ModuleType]:
    """Ray's module, connected; disconnected or ended at the end.

    Must be entered and left by one thread that lives as long: the kernel ends Ray's daemons with
    the *thread* that started them.

    Args:
        address: A running cluster (``auto``, ``HOST:PORT``); None to start Ray on this machine.
        cores: CPU cores that a local Ray may give out.
        gpus: GPUs that it may give out, by their UUIDs; it would count a GPU in MIG mode as one,
            and name GPUs by numbers.

    Raises:
        MissingPartError: Ray is not installed, or cannot be started.
        UsageError: No cluster answers at the address.
    """
    with _environment(_QUIET | (_token() if address is None else {})):
        ray = _import_ray()
        with _silenced(ray):
            if ray.is_initialized():  # somebody else's: used as it is, and left to them
                yield ray
            elif address is not None:
                yield from _connected(ray, address)
            else:
                yield from _local(ray, cores, gpus)


@contextmanager
def _silenced(ray: ModuleType) -> Iterator[None]:
    """Keeps Ray's messages off both streams: standard output holds the search's answer alone.

    Ray prints the death of a worker to standard output, whatever ``log_to_driver`` says, unless
    this flag of its own module is off. What matters of it is in our errors.
    """
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    printing = ray._private.worker
    prints = getattr(printing, "_worker_logs_enabled", True)
    printing._worker_logs_enabled = False
    try:
        yield
    finally:
        printing._worker_logs_enabled = prints
        logger.setLevel(level)


def _import_ray() -> ModuleType:
    try:
        import ray
    except ImportError as error:
        raise MissingPartError(
            f"Ray cannot be imported: {error}.",
            hint=f"pip install ray; {_WITHOUT_RAY}",
        ) from error
    module: ModuleType = ray
    return module


def _connected(ray: ModuleType, address: str) -> Iterator[ModuleType]:
    try:
        _check_reachable(address)
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray raises whatever its layers raise
        raise UsageError(
            f"No Ray cluster could be used at {address!r}: {_first_line(error)}",
            hint="Start one (ray start --head), with the same versions of Ray and Python and the "
            "same token (RAY_AUTH_MODE, RAY_AUTH_TOKEN), or leave out --ray-address.",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raises OSError if nothing listens at ``HOST:PORT``, for which Ray would take a minute."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_TIMEOUT_S).close()


def _local(ray: ModuleType, cores: int, gpus: Sequence[GpuIdentity]) -> Iterator[ModuleType]:
    folder = _make_folder()
    mark = uuid.uuid4().hex
    with _guardian(f"{_SESSION}={mark}", folder) as tell:
        try:
            marked = _environment({_SESSION: mark})
            with marked, _given_out(gpus), without_helpers(ray), _apart(ray, tell):
                ray.init(
                    address="local",
                    num_cpus=cores,
                    num_gpus=len(gpus),
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                    logging_level=logging.CRITICAL,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=str(folder),
                )
        except Exception as error:  # Ray raises whatever its layers raise
            with suppress(Exception):
                ray.shutdown()
            raise MissingPartError(
                f"Ray does not start on this machine: {_first_line(error)}",
                hint=f"Free memory or /dev/shm may be short; {_WITHOUT_RAY}",
            ) from error
        try:
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def _apart(ray: ModuleType, tell: Callable[[int], None]) -> Iterator[None]:
    """Starts a local Ray's daemons in process groups of their own, and tells their numbers.

    They start no agents. A signal to our whole group (``timeout``, a terminal, an orchestrator)
    would end them before we have ended; without its store of state Ray then ends us, or waits for
    it.
    """
    services: Any = ray._private.services
    popen = getattr(services, "ConsolePopen", None)
    if popen is None:
        yield
        return

    def start(command: Sequence[str], *args: Any, **options: Any) -> Any:
        command = without_agents(ray, command)
        process = popen(command, *args, process_group=0, **options)
        tell(process.pid)
        return process

    services.ConsolePopen = start
    try:
        yield
    finally:
        services.ConsolePopen = popen


def _make_folder() -> Path:
    parent = tempfile.gettempdir()
    if len(parent) > _PARENT_LENGTH_MAX:
        parent = _SHORT_PARENT
    try:
        return Path(tempfile.mkdtemp(prefix="tritune-", dir=parent))
    except OSError as error:
        raise MissingPartError(
            f"Ray needs a folder for its sockets, but none can be made in {parent}: "
            f"{error.strerror}.",
            hint=f"Set TMPDIR to a writable folder with a short name; {_WITHOUT_RAY}",
        ) from error


@contextmanager
def _guardian(mark: str, folder: Path) -> Iterator[Callable[[int], None]]:
    """A process that cleans up after us at the end of the block, or when we are killed in it.

    Yields what tells it of a process group that is to end then.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, mark, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    told = process.stdin
    assert told is not None

    def tell(group: int) -> None:
        with suppress(OSError):  # somebody has ended it
            told.write(b"%d\n" % group)
            told.flush()

    try:
        yield tell
    finally:
        process.communicate()  # closes its input, whereupon it kills what is left and ends
        shutil.rmtree(folder, ignore_errors=True)


def _token() -> dict[str, str]:
    """A secret for the local Ray, so that it need not write one into the user's home.

    One for the life of this process, since Ray keeps the first that it sees.
    """
    if "RAY_AUTH_MODE" in os.environ or "ray" in sys.modules:
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets variables that are not set yet, and removes them at the end."""
    mine = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            # Ray reads the token once more in each session, and keeps its own copy of the first.
            if not name.startswith("RAY_AUTH"):
                os.environ.pop(name, None)


@contextmanager
def _given_out(gpus: Sequence[GpuIdentity]) -> Iterator[None]:
    """Shows Ray's daemons these GPUs, which they hand out by the names that they find there."""
    before = dict(os.environ)
    os.environ.update(cuda_environment(*gpus) if gpus else {})
    try:
        yield
    finally:
        for name in cuda_environment():
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def as_startup_error(error: BaseException) -> AnalyzerError:
    """What the consumer is told when the workers do not come up."""
    if isinstance(error, AnalyzerError):
        return error
    ours = AnalyzerError(
        f"Ray's workers could not be started: {type(error).__name__}: {_first_line(error)}",
        hint=f"-v shows where it happened; {_WITHOUT_RAY}",
    )
    ours.__cause__ = error
    return ours
