"""A real Triton server as a child process: started, checked to be ours, and never left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from analyzer.errors import TargetCrashError, TargetStartError, TargetTimeoutError
from analyzer.hardware.gpus import GpuIdentity, cuda_environment
from analyzer.hardware.processes import is_running
from analyzer.modelconfig.files import ModelFiles, onnxruntime_backend
from analyzer.modelconfig.text import CONFIG_NAME
from analyzer.targets.http_endpoint import HttpEndpoint
from analyzer.targets.ports import LOOPBACK, free_ports, shared_with_others
from analyzer.targets.server_log import ServerLog
from analyzer.targets.triton_install import TritonInstall, python_environment

# Short against a start of more than a second.
_POLL_S = 0.05
_END_S = 5.0  # for the rest of the log once the server is gone
_KILLED_S = 30.0  # the kernel frees a large process's memory first
_START_ATTEMPTS = 3  # another process may take a port between our choice and the server's start
_STRICT = "--disable-auto-complete-config"
_FOLDER_PREFIX = "tritune-triton-"
_LOCK_NAME = "lock"
_SHARED_MEMORY = Path("/dev/shm")
# Runs in the child before it becomes the server. The server's end is tied to ours by the kernel;
# its python stubs notice that their parent is gone and end by themselves within seconds, also in
# the middle of an execution, but not in that of a warm-up: see _end_rest.
_LAUNCHER = (
    "import os, sys\n"
    "from analyzer.hardware.lifetime import die_with_parent\n"
    "from analyzer.hardware.timing import give_way\n"
    "die_with_parent(parent_pid=int(sys.argv[1]))\n"
    "give_way()\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class TritonServer:
    """A Triton with explicit model control on free loopback ports, from ``with`` until its end.

    It ends with the thread that entered the ``with`` block (and with this process, even by
    SIGKILL). Its repository is a folder of its own, removed at the end, or by the next server if
    this process had no time to.

    Args:
        install: Which server.
        start_timeout_s: Until it must be ready.
        arguments: Further arguments of ``tritonserver``.
        gpu: The one GPU that it sees; None for those that this process sees.
        auto_complete: Whether backends may complete configurations. What we render is complete, and
            the TensorRT backend would add dynamic batching to it.

    Raises:
        TargetStartError: On entering, it did not come up; its last log lines are told.
        TargetTimeoutError: It was not ready in time.
    """

    def __init__(
        self,
        install: TritonInstall,
        *,
        start_timeout_s: float = 60.0,
        arguments: tuple[str, ...] = (),
        gpu: GpuIdentity | None = None,
        auto_complete: bool = False,
    ) -> None:
        self.install = install
        self.http_port = self.grpc_port = self.metrics_port = 0
        self._start_timeout_s = start_timeout_s
        self._arguments = arguments if auto_complete else (_STRICT, *arguments)
        self._gpu = gpu
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: threading.Thread | None = None
        self._folder: Path | None = None
        self._folder_lock: int | None = None
        self._log = ServerLog()

    def __enter__(self) -> TritonServer:
        try:
            _sweep()
            self._folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-"))
            with suppress(OSError):  # where nothing can be locked, nobody sweeps either
                self._folder_lock = _lock(self._folder)
            self.repository.mkdir()
            for attempt in range(_START_ATTEMPTS):
                if self._start(last=attempt == _START_ATTEMPTS - 1):
                    return self
            raise AssertionError("the last attempt returns or raises")
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def repository(self) -> Path:
        """The server's model repository."""
        assert self._folder is not None, "the server is not running"
        return self._folder / "repository"

    @property
    def http_address(self) -> str:
        """``HOST:PORT`` of the HTTP protocol."""
        return f"{LOOPBACK}:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        """``HOST:PORT`` of the gRPC protocol."""
        return f"{LOOPBACK}:{self.grpc_port}"

    @property
    def pids(self) -> tuple[int, ...]:
        """The server and its children (a python backend runs each instance in one)."""
        if self._process is None:
            return ()
        with suppress(psutil.Error):
            parent = psutil.Process(self._process.pid)
            return (parent.pid, *(child.pid for child in parent.children(recursive=True)))
        return ()

    def alive(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def how_ended(self, wait_s: float = 1.0) -> str:
        """``with status 1`` or ``by SIGSEGV`` of a process that ended; empty where it lives.

        Args:
            wait_s: It closes its connections a little before its end can be seen.
        """
        if self._process is None:
            return ""
        try:
            status = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return ""
        self._log.finish()
        if status >= 0:
            return f"with status {status}"
        return f"by {signal.Signals(-status).name}"

    def log_lines(self) -> list[str]:
        """What is kept of the server's log: its last lines."""
        return self._log.lines()

    def log_tail(self, lines: int = 12) -> str:
        """The server's last log lines."""
        return "\n".join(self.log_lines()[-lines:])

    def put_model(self, files: ModelFiles, version: int = 1) -> Path:
        """Writes a model to the repository; it is not loaded yet. Returns its folder."""
        folder = self.repository / files.name
        contents: dict[str, Path | bytes] = {**files.other_files}
        contents |= {f"{version}/{name}": of for name, of in files.version_files.items()}
        for name, content in contents.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                target.write_bytes(content)
                continue
            try:
                # A second name costs nothing, and the server only reads.
                os.link(content.resolve(), target)
            except OSError:
                shutil.copyfile(content, target)
        (folder / CONFIG_NAME).write_text(files.config_text, encoding="utf-8")
        return folder

    def remove_model(self, name: str) -> None:
        """Removes a model's folder from the repository."""
        shutil.rmtree(self.repository / name, ignore_errors=True)

    def close(self) -> None:
        """Ends the server and its children; returns when they are gone.

        Raises:
            TargetTimeoutError: The kernel does not let one of them go.
        """
        process, self._process = self._process, None
        if process is not None:
            self._end(process)
        if self._folder is not None:
            _remove_traces(self._folder)
            self._folder = None
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        family = [process.pid]
        with suppress(psutil.Error):
            family += [c.pid for c in psutil.Process(process.pid).children(recursive=True)]
        # Asked to end, it would first unload its models, seconds with a python backend. Nothing of
        # it is kept: its folder and its shared memory are removed next. It leads a process group
        # of its own, so that no stub outlives it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(_KILLED_S)
        except subprocess.TimeoutExpired as error:
            raise TargetTimeoutError(
                f"The Triton server (process {process.pid}) does not end.",
                hint="It may hang in a driver; end it by hand.",
            ) from error
        if self._watch is not None:
            self._watch.join(_KILLED_S)
        deadline = time.monotonic() + _KILLED_S
        while any(is_running(pid) for pid in family) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._log.finish(_END_S)

    def _start(self, *, last: bool) -> bool:
        """Starts the server; False if its ports turned out to be taken and it was ended again."""
        self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
        command = [
            sys.executable,
            "-P",  # nothing of the user's folder takes the place of a module of ours
            "-c",
            _LAUNCHER,
            str(os.getpid()),
            str(self.install.executable),
            f"--model-repository={self.repository}",
            f"--backend-directory={self._backend_dir()}",
            # Named after our folder, so that what a killed server leaves can be found.
            f"--backend-config=python,shm-region-prefix-name={self.repository.parent.name}-",
            "--model-control-mode=explicit",
            "--exit-timeout-secs=2",
            "--allow-gpu-metrics=false",
            f"--http-address={LOOPBACK}",
            f"--http-port={self.http_port}",
            f"--grpc-address={LOOPBACK}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-address={LOOPBACK}",
            f"--metrics-port={self.metrics_port}",
            *self._arguments,
        ]
        try:
            self._process = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # All of its group can be ended at once; in a session of its own the server would
                # not stand back behind the load generator (hardware.timing.give_way).
                process_group=0,
            )
        except OSError as error:
            raise TargetStartError(
                f"The Triton server {self.install.executable} cannot be started: {error.strerror}."
            ) from error
        self._watch = threading.Thread(
            target=_end_rest, args=(self._process.pid,), name="server-end", daemon=True
        )
        self._watch.start()
        assert self._process.stdout is not None
        self._log.follow(self._process.stdout)
        taken = self._wait_until_ready(self._process)
        if taken is None:
            return True
        process, self._process = self._process, None
        self._end(process)
        if last:
            raise TargetStartError(
                f"The Triton server could not have its ports for itself: {taken}",
                hint="Another server shares them; end it.",
            )
        return False

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> str | None:
        """Waits for the server; returns why its ports are not its own, None if all is well."""
        deadline = time.monotonic() + self._start_timeout_s
        endpoint = HttpEndpoint(LOOPBACK, self.http_port)
        while True:
            if process.poll() is not None:
                self._log.finish()
                reason = self._reason()
                if "in use" in reason or "failed to start" in reason.lower():
                    return reason
                raise TargetStartError(
                    f"The Triton server {self.install.executable} ended with status "
                    f"{process.returncode} while it started. Its last log lines:\n{reason}",
                    hint="`analyze doctor` says what this machine has.",
                )
            with suppress(TargetCrashError):
                if endpoint.ready():
                    break
            if time.monotonic() > deadline:
                raise TargetTimeoutError(
                    f"The Triton server was not ready after {self._start_timeout_s:.0f} s. "
                    f"Its last log lines:\n{self.log_tail()}"
                )
            time.sleep(_POLL_S)
        endpoint.close()
        for port in (self.http_port, self.grpc_port, self.metrics_port):
            if shared_with_others(port, process.pid):
                return f"port {port} is also listened to by another process"
        return None

    def _environment(self) -> dict[str, str]:
        """With one GPU alone, since Triton starts the instances of a group on each that it sees."""
        own = cuda_environment(self._gpu) if self._gpu is not None else {}
        return python_environment(self.install) | own

    def _reason(self) -> str:
        """The last log lines; of a usage text (a wrong option) what came before it."""
        lines = self._log.lines()
        usage = next((i for i, line in enumerate(lines) if "Usage: tritonserver" in line), None)
        return "\n".join(lines[:usage][-12:])

    def _backend_dir(self) -> Path:
        """The backends' folder: the installation's, or one of ours that has what it lacks.

        That is the python backend's stub of a plain wheel, and ONNX Runtime as a Python-based
        backend, which serves native configurations unmodified.
        """
        install = self.install
        if install.stub is None and not install.stand_in:
            return install.backend_dir
        assert self._folder is not None
        own = self._folder / "backends"
        if own.exists():
            return own
        own.mkdir()
        for backend in install.backend_dir.iterdir():
            if install.stub is not None and backend.name == "python":
                shutil.copytree(backend, own / "python")
                shutil.copy2(install.stub, own / "python" / install.stub.name)
            elif not (install.stand_in and backend.name == "onnxruntime"):
                (own / backend.name).symlink_to(backend.resolve())
        if install.stand_in:
            (own / "onnxruntime").mkdir()
            (own / "onnxruntime" / "model.py").write_text(onnxruntime_backend(), encoding="utf-8")
        return own


def _end_rest(pid: int) -> None:
    """Waits for the end of the server ``pid``, and ends what is left of its process group.

    A stub in the middle of a warm-up outlives a server that crashes and holds its connections, on
    which we would wait for an answer.
    """
    # Not reaped yet, its number is nobody else's.
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _sweep() -> None:
    """Removes the folders of servers whose process was killed before it could.

    That no process has its number does not tell it: it may be one of another container with the
    same folder of temporary files. A lock does.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*-*"):
        owner = folder.name.removeprefix(_FOLDER_PREFIX).split("-")[0]
        with suppress(OSError):
            ours = owner.isdecimal() and folder.stat().st_uid == os.getuid()
            if ours and not psutil.pid_exists(int(owner)):
                descriptor = _lock(folder)
                try:
                    _remove_traces(folder)
                finally:
                    os.close(descriptor)


def _lock(folder: Path) -> int:
    """A descriptor that keeps a server's folder from others until it is closed.

    Raises:
        OSError: It is kept already, or nothing can be locked there.
    """
    descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_traces(folder: Path) -> None:
    """Removes a server's folder and the shared memory of its python backend."""
    for region in _SHARED_MEMORY.glob(f"{folder.name}-*"):
        with suppress(OSError):
            region.unlink()
    shutil.rmtree(folder, ignore_errors=True)
