"""An exclusive lease of a GPU or of a machine's cores, and the Ray actor that holds it."""

from __future__ import annotations

import math
import os
import pickle
import re
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import analyzer
from analyzer.cluster import job_results
from analyzer.cluster.worker import PackedResult, TreeEnd, Worker, WorkerProcess, end_tree
from analyzer.domain.configuration import DeviceKind
from analyzer.errors import (
    AnalyzerError,
    MissingPartError,
    TargetCrashError,
    TargetMemoryError,
    UsageError,
)
from analyzer.measure.jobs import Job, JobResult, WorkerContext

# An actor answers in milliseconds once it runs; what takes longer than these hangs.
_PING_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 15.0
# "Memory on the node (IP: …) was 22.8GB used / 23.5GB limit (0.95) …", as Ray says it.
_MEMORY_USED = re.compile(r"was ([\d.]+ ?GB used / [\d.]+ ?GB limit)")
# Of a core: the finest that Ray counts.
_RAYS_STEPS = 10_000
# Ray chooses a number of threads for OpenMP; the server under test shall see the user's setting.
_RAYS_OWN = ("OMP_NUM_THREADS",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that can be leased: a GPU, or all cores of a machine.

    Args:
        node_id: Ray's name of the machine.
        cores: CPU cores that belong to it, at least 1.
        share: Of a core, what the lease takes where the machine has fewer cores than GPUs; None for
            all of ``cores``.
    """

    worker_id: str
    node_id: str
    kind: DeviceKind
    cores: int
    share: float | None = None


def find_devices(
    nodes: Sequence[dict[str, Any]], kind: DeviceKind, only: Collection[str] | None = None
) -> list[Device]:
    """The devices of a cluster (``ray.nodes()``): one for each GPU, or for each machine's cores.

    Machines that are gone, or that give out no core at all, have none.

    Args:
        only: Ray's names of the machines that count; None for all.
    """
    devices: list[Device] = []
    for node in sorted(nodes, key=lambda node: (node["NodeManagerAddress"], node["NodeID"])):
        resources = node["Resources"]
        cores = int(resources.get("CPU", 0))
        count = int(resources.get("GPU", 0)) if kind == "gpu" else 1
        if not node["Alive"] or count < 1 or cores < 1:
            continue
        if only is not None and node["NodeID"] not in only:
            continue
        devices += [
            Device(
                worker_id=f"{kind}-{len(devices) + index}",
                node_id=node["NodeID"],
                kind=kind,
                cores=max(cores // count, 1),
                # Rounded down: Ray would keep the last one waiting for what is not there.
                share=None if cores >= count else cores * _RAYS_STEPS // count / _RAYS_STEPS,
            )
            for index in range(count)
        ]
    return devices


def choose_devices(
    devices: Sequence[Device], kind: DeviceKind, workers: int | None
) -> list[Device]:
    """The first ``workers`` devices; all of them for None.

    Raises:
        MissingPartError: There is none.
        UsageError: There are fewer.
    """
    what = "GPU" if kind == "gpu" else "machine with free CPU cores"
    if not devices:
        raise MissingPartError(
            f"Ray knows no {what}.",
            hint="Use --device cpu." if kind == "gpu" else "Look at the cluster: ray status.",
        )
    if workers is not None and not 1 <= workers <= len(devices):
        raise UsageError(
            f"--workers {workers}: there must be at least 1 and, of {len(devices)} "
            f"device{'s' * (len(devices) > 1)} ({what}), at most one for each.",
            hint="One load test at a time per device: another worker would disturb what is "
            "measured. Leave out --workers to use every device.",
        )
    return list(devices[:workers])


@dataclass(slots=True)
class _Process:
    """A live actor with what it takes to end it for certain."""

    actor: Any
    mark: str
    identity: WorkerProcess | None = None


class Lease:
    """One device and the actor that has it. Used by one thread, apart from :meth:`interrupt`."""

    def __init__(
        self, ray: ModuleType, device: Device, *, cache_dir: Path, start_timeout_s: float
    ) -> None:
        self._ray = ray
        self.device = device
        self._start_timeout_s = start_timeout_s
        self._process: _Process | None = None
        self._context = WorkerContext(
            worker_id=device.worker_id,
            device=device.kind,
            gpu=None,
            cores=device.cores,
            cache_dir=cache_dir,
            node="",
        )

    def ready(self) -> None:
        """Makes sure that a live worker holds the device: the present one, or a fresh one.

        Raises:
            AnalyzerError: No worker could be started.
        """
        if self._process is not None:
            try:
                self._process.identity = self._identify(self._process.actor, _PING_TIMEOUT_S)
                return
            except self._ray.exceptions.RayError:
                self.release()
        self._start()

    def run(self, job: Job) -> JobResult:
        """Runs a job to its end, whatever that is. The worker is ready."""
        assert self._process is not None
        started = time.monotonic()
        worker_id = self.device.worker_id

        def seconds() -> float:
            return time.monotonic() - started

        try:
            packed = self._ray.cloudpickle.dumps(job.run)
            result_ref = self._process.actor.run.remote(packed, job_results.name_of(job))
            done, _ = self._ray.wait([result_ref], timeout=job.timeout_s)
            if not done:
                took = seconds()
                gone = self.release().gone
                return job_results.timed_out(job, seconds=took, worker_id=worker_id, gone=gone)
            ended: PackedResult = self._ray.get(result_ref)
            if ended.error is not None:
                ended.error.__cause__ = RemoteError(ended.trace)
                return job_results.failed(job, ended.error, seconds=seconds(), worker_id=worker_id)
            value = pickle.loads(ended.value)
        except self._ray.exceptions.RayTaskError as error:
            return job_results.failed(job, error, seconds=seconds(), worker_id=worker_id)
        except self._ray.exceptions.RayError as error:
            took = seconds()
            death = self._explain_death(job, error)
            return job_results.failed(job, death, seconds=took, worker_id=worker_id, lost=True)
        except Exception as error:  # the job or its value cannot be pickled
            return job_results.failed(job, error, seconds=seconds(), worker_id=worker_id)
        return job_results.succeeded(job, value, seconds=seconds(), worker_id=worker_id)

    def interrupt(self) -> None:
        """Kills the worker's process; its thread, which sees it die, does the rest."""
        process = self._process
        if process is not None:
            self._ray.kill(process.actor, no_restart=True)

    def release(self) -> TreeEnd:
        """Kills the worker and every process that it started; the device is free afterwards."""
        process, self._process = self._process, None
        if process is None:
            return TreeEnd(True, 0)
        self._ray.kill(process.actor, no_restart=True)
        if process.identity is None:
            return TreeEnd(True, 0)
        arguments = (
            process.mark,
            process.identity.pid,
            process.identity.created_at,
            _KILL_TIMEOUT_S,
        )
        if self._is_local():
            return end_tree(*arguments)
        # A machine that is gone has nothing left that could run.
        options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": self._on_node()}
        try:
            helper = self._ray.remote(end_tree).options(**options)
            end: TreeEnd = self._ray.get(helper.remote(*arguments), timeout=2 * _KILL_TIMEOUT_S)
            return end
        except self._ray.exceptions.RayError:
            return TreeEnd(not self.alive(), 0)

    def alive(self) -> bool:
        """Whether the device's machine is still there, as far as the cluster's head tells."""
        try:
            nodes = self._ray.nodes()
        except Exception:  # the head does not answer for a moment; Ray raises whatever it likes
            return True
        return any(node["NodeID"] == self.device.node_id and node["Alive"] for node in nodes)

    def _start(self) -> None:
        device = self.device
        mark = uuid.uuid4().hex
        environment = {name: os.environ.get(name) for name in _RAYS_OWN}
        options = {
            "num_cpus": device.cores if device.share is None else device.share,
            "num_gpus": 1 if device.kind == "gpu" else 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": self._on_node(),
        }
        actor = self._ray.remote(Worker).options(**options)
        process = _Process(actor.remote(mark, self._context, environment), mark)
        self._process = process
        try:
            process.identity = self._identify(process.actor, self._start_timeout_s)
        except self._ray.exceptions.RayError as error:
            self.release()
            raise self._explain_start(error) from error
        if process.identity.version != analyzer.__version__:
            version, node = process.identity.version, process.identity.node
            self.release()
            raise MissingPartError(
                f"The worker {device.worker_id} on {node} has tritune {version}, this machine has "
                f"{analyzer.__version__}.",
                hint="Install the same version on every machine of the cluster.",
            )
        # Not waited for: jobs come after it.
        process.actor.load_libraries.remote()

    def _identify(self, actor: Any, timeout_s: float) -> WorkerProcess:
        identity: WorkerProcess = self._ray.get(actor.identify.remote(), timeout=timeout_s)
        return identity

    def _explain_start(self, error: Exception) -> AnalyzerError:
        device = self.device
        if isinstance(error, self._ray.exceptions.GetTimeoutError):
            return TargetCrashError(
                f"The worker {device.worker_id} did not start within {self._start_timeout_s:g} s.",
                hint="Its device may be in use by another Ray job (ray status shows it).",
            )
        if "ModuleNotFoundError" in str(error) or "No module named" in str(error):
            return MissingPartError(
                f"The machine of worker {device.worker_id} cannot import tritune.",
                hint="Install the same version of tritune on every machine of the cluster.",
            )
        if not self.alive():
            return TargetCrashError(
                f"The machine of worker {device.worker_id} has left the cluster.",
                hint="Start it again (ray status shows what is there), then go on with --resume.",
            )
        return TargetCrashError(
            f"The worker {device.worker_id} did not start: {_last_line(error)}",
            hint="ray status shows what its machine gives out.",
        )

    def _explain_death(self, job: Job, error: Exception) -> AnalyzerError:
        assert self._process is not None
        before = self._process.identity.oom_kills if self._process.identity else math.inf
        end = self.release()
        name = job_results.name_of(job)
        if isinstance(error, self._ray.exceptions.OutOfMemoryError):
            used = _MEMORY_USED.search(str(error))
            death: AnalyzerError = TargetMemoryError(
                f"{name} was ended by Ray, since the memory of its machine was nearly full"
                f"{f' ({used[1]}, other programs included)' if used else ''}.",
                hint="Programs beside it may have taken that; fewer instances or a smaller batch "
                "need less.",
            )
        elif not self.alive():
            death = TargetCrashError(
                f"{name} was lost with its machine, which left the cluster.",
                hint="--resume measures it again.",
            )
        elif end.oom_kills > before:
            # The kernel counts for the whole machine, and does not say whose process it was.
            death = TargetCrashError(
                f"{name} lost its process on worker {self.device.worker_id}. Meanwhile the system "
                "killed a process for want of memory, perhaps this one.",
                hint="Fewer instances or a smaller batch need less; -v shows what Ray says.",
            )
        else:
            death = TargetCrashError(
                f"{name} crashed its process on worker {self.device.worker_id}.",
                hint="The runtime may not bear this configuration; -v shows what Ray says.",
            )
        death.__cause__ = error
        return death

    def _is_local(self) -> bool:
        own: str = self._ray.get_runtime_context().get_node_id()
        return own == self.device.node_id

    def _on_node(self) -> object:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=self.device.node_id, soft=False)


class RemoteError(Exception):
    """The traceback of an error on a worker, for ``-v``."""


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
