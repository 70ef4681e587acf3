"""The executor whose workers are Ray actors, on this machine or on a cluster."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self

from analyzer.cluster import job_results
from analyzer.cluster.job_queue import JobQueue
from analyzer.cluster.left_behind import for_another_worker, unload_left
from analyzer.cluster.ray_lease import Device, Lease, choose_devices, find_devices
from analyzer.cluster.ray_session import as_startup_error, ray_session
from analyzer.domain.configuration import DeviceKind
from analyzer.errors import AnalyzerError, UsageError
from analyzer.hardware.gpus import GpuIdentity, visible_gpus
from analyzer.hardware.machine import usable_cores
from analyzer.measure.jobs import Job, JobResult, WorkerContext

SESSION_THREAD = "ray session"
"""Name of the thread in which Ray is started, held and ended."""

# Ray starts in seconds, on a busy machine in tens of them; what takes longer than these hangs.
_START_TIMEOUT_S = 60.0
_CANCEL_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 30.0
# How often machines that joined the cluster are looked for: short against a load test.
_JOINED_POLL_S = 2.0
# A job whose machine was lost runs again on another; one that loses so many may be the cause.
_MACHINES_PER_JOB = 3


class RayExecutor:
    """Workers that hang, crash or run out of memory are replaced; the program goes on.

    On a cluster, machines may come and go: a job whose machine was lost runs again on another one,
    and machines that join get workers of their own (at most ``workers`` in all). Where none is left
    for a while, there are 0 workers and jobs wait for a machine that joins.

    Ray starts in the background (:meth:`start_async`), while the caller does something else. A
    worker's device is free for the next job only after every process of the last one is gone.

    Args:
        device: What each worker leases: a GPU, or all cores of a machine.
        cache_dir: See :class:`WorkerContext`; on each machine of its own.
        workers: How many; None for one per device.
        ray_address: A running cluster (``auto``, ``HOST:PORT``), on whose machines this package is
            installed in the same version; None starts Ray on this machine, and ends it.
        cores: CPU cores that a local Ray gives out; None for all that this process may use.
        gpus: GPUs that a local Ray gives out; None for all that this process may use.
        nodes: Ray's names of the machines of the cluster that may be used; None for all.
        start_timeout_s: How long a worker may take to come up.

    Raises:
        UsageError: More workers than devices, where that is known before Ray starts.
    """

    def __init__(
        self,
        *,
        device: DeviceKind,
        cache_dir: Path,
        workers: int | None = None,
        ray_address: str | None = None,
        cores: int | None = None,
        gpus: Sequence[GpuIdentity] | None = None,
        nodes: Collection[str] | None = None,
        start_timeout_s: float = _START_TIMEOUT_S,
    ) -> None:
        if ray_address is None and device == "cpu" and workers not in (None, 1):
            raise UsageError(
                f"--workers {workers}: this machine's cores are one device.",
                hint="One load test at a time per device: another worker would disturb what is "
                "measured. More machines come with --ray-address.",
            )
        self._kind = device
        self._cache_dir = cache_dir.absolute()
        self._asked = workers
        self._address = ray_address
        self._cores = cores or usable_cores()
        self._gpus = tuple(gpus or ())
        if gpus is None and device == "gpu" and ray_address is None:
            self._gpus = visible_gpus()
        self._nodes = nodes
        self._start_timeout_s = start_timeout_s
        self._queue = JobQueue()
        self._leases: list[Lease] = []
        self._opened = 0
        self._gone: set[str] = set()
        self._lost: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []
        self._running: set[Lease] = set()
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._startup_error: AnalyzerError | None = None
        self._session: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start_async()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is None:
            return
        if not self._ready.is_set():
            # Nobody waits for a start: the session ends by itself once it is up, or with the
            # process, by its guardian.
            self._stop.set()
            self._session = None
            return
        self.cancel_all()
        self._stop.set()
        self._session.join(_END_TIMEOUT_S)
        self._session = None

    def start_async(self) -> threading.Event:
        """Starts Ray and the workers in the background.

        Returns:
            An event that is set when the workers are known, or their start has failed: then every
            other method raises the reason.
        """
        if self._session is None:
            # A daemon: a program that ends without leaving the context does not wait for it.
            self._session = threading.Thread(target=self._host, name=SESSION_THREAD, daemon=True)
            self._session.start()
        return self._ready

    @property
    def workers(self) -> int:
        self._ready.wait()
        self._check()
        return len(self._leases)

    def ready(self, timeout_s: float) -> bool:
        if not self._ready.wait(max(timeout_s, 0.0)):
            return False
        self._check()
        return True

    @property
    def local(self) -> WorkerContext | None:
        if self._address is not None:
            return None
        self._cache_dir.mkdir(parents=True, exist_ok=True)
        return WorkerContext(
            worker_id="local",
            device=self._kind,
            gpu=None,
            cores=self._cores,
            cache_dir=self._cache_dir,
            node=socket.gethostname(),
        )

    def submit(self, job: Job) -> None:
        assert self._session is not None, "submit() outside the context"
        self._check()
        self._queue.put(job)

    def next_result(self, timeout_s: float) -> JobResult | None:
        deadline = time.monotonic() + timeout_s
        if not self._ready.wait(max(timeout_s, 0.0)):
            return None
        self._check()
        return self._queue.next_result(deadline - time.monotonic())

    def cancel_all(self) -> None:
        if self._startup_error is None:
            self._queue.cancel(self._interrupt, timeout_s=_CANCEL_TIMEOUT_S)

    def _interrupt(self) -> None:
        with self._lock:
            for lease in self._running:
                lease.interrupt()

    def _check(self) -> None:
        if self._startup_error is not None:
            raise self._startup_error

    def _host(self) -> None:
        """The thread of Ray's session, in which the session is entered and left."""
        try:
            with ray_session(address=self._address, cores=self._cores, gpus=self._gpus) as ray:
                if not self._stop.is_set():
                    found = find_devices(ray.nodes(), self._kind, self._nodes)
                    self._open_leases(ray, choose_devices(found, self._kind, self._asked))
                self._ready.set()
                while not self._stop.wait(None if self._address is None else _JOINED_POLL_S):
                    self._open_leases(ray, self._joined(ray))
                self._close_leases()
        except BaseException as error:  # handed to whoever waits for the workers
            self._startup_error = as_startup_error(error)
        finally:
            self._ready.set()

    @property
    def _others_may_join(self) -> bool:
        """Whether machines that join are used: on a cluster, unless its machines were chosen."""
        return self._address is not None and self._nodes is None

    def _joined(self, ray: ModuleType) -> list[Device]:
        """Devices of machines that joined the cluster, as far as workers are wanted there."""
        if not self._others_may_join:
            return []
        try:
            nodes = ray.nodes()
        except Exception:  # the cluster's head does not answer for a moment
            return []
        found = find_devices(nodes, self._kind)
        with self._lock:
            known = {lease.device.node_id for lease in self._leases} | self._gone
            wanted = None if self._asked is None else self._asked - len(self._leases)
        fresh = [device for device in found if device.node_id not in known][:wanted]
        return [
            replace(device, worker_id=f"{self._kind}-{self._opened + index}")
            for index, device in enumerate(fresh)
        ]

    def _open_leases(self, ray: ModuleType, devices: Sequence[Device]) -> None:
        for device in devices:
            lease = Lease(
                ray, device, cache_dir=self._cache_dir, start_timeout_s=self._start_timeout_s
            )
            with self._lock:
                self._leases.append(lease)
            self._opened += 1
            thread = threading.Thread(
                target=self._serve, args=(lease,), name=device.worker_id, daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _close_leases(self) -> None:
        self._queue.close(len(self._threads))
        with self._lock:
            for lease in self._leases:  # one may still be starting, which takes long if it is busy
                lease.interrupt()
        deadline = time.monotonic() + _END_TIMEOUT_S / 2
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _serve(self, lease: Lease) -> None:
        """One thread for each lease: runs jobs until the queue ends it."""
        self._try(lease.ready)  # starts the worker before the first job is there
        while (job := self._queue.take()) is not None:
            started = time.monotonic()
            error = self._try(lease.ready)
            if error is not None and self._retire(lease):
                self._queue.put_back(job)
                return
            if error is not None:
                self._queue.finish(
                    job_results.failed(
                        job,
                        error,
                        seconds=time.monotonic() - started,
                        worker_id=lease.device.worker_id,
                        lost=True,
                    )
                )
                continue
            with self._lock:
                cancelled = self._queue.cancelled.is_set()
                self._running.add(lease)
            try:
                result = _CANCELLED if cancelled else lease.run(job)
                if result.lost and not cancelled:
                    unload_left(job)
            finally:
                with self._lock:
                    self._running.discard(lease)
            if result.lost and not cancelled and self._may_run_again(job) and self._retire(lease):
                self._queue.put_back(for_another_worker(job))
                return
            with self._lock:
                self._lost.pop(job.job_id, None)  # climbs of a configuration have one id
            self._queue.finish(result)
        lease.release()

    def _may_run_again(self, job: Job) -> bool:
        """Whether a job that was lost may be given to another worker, if its machine is gone."""
        with self._lock:
            self._lost[job.job_id] += 1
            return self._lost[job.job_id] < _MACHINES_PER_JOB

    def _retire(self, lease: Lease) -> bool:
        """Gives up a lease whose machine is gone, if another can take over; whether it did.

        That is one that there is, or one that may still join.
        """
        if lease.alive():
            return False
        with self._lock:
            if len(self._leases) < 2 and not self._others_may_join:
                return False
            self._leases.remove(lease)
            self._gone.add(lease.device.node_id)
            return True

    @staticmethod
    def _try(action: Callable[[], None]) -> AnalyzerError | None:
        try:
            action()
        except Exception as error:
            return as_startup_error(error)
        return None


# Stands for the result of a job that was cancelled: the queue throws it away.
_CANCELLED = JobResult(job_id="", value=None, error=None, lost=True, seconds=0.0, worker_id="")
