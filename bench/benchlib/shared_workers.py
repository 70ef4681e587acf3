"""One Ray actor for each made-up machine that stands for the workers of all its devices.

512 workers are 512 processes of some 50 MB, which this project's machine has no room for. What
asks for them is the real thing: the executor, its leases and their calls; only the processes are
shared. So a worker here cannot crash alone, and ending one ends no process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

from analyzer.cluster import ray_session
from analyzer.cluster.worker import PackedResult, TreeEnd, Worker, WorkerProcess
from analyzer.measure.jobs import WorkerContext


class MachineActor:
    """The workers of one machine, each served by a thread of the actor's."""

    def __init__(self) -> None:
        self._workers: dict[int, Worker] = {}

    def open(self, slot: int, mark: str, context: WorkerContext, environment: Any) -> None:
        """Makes a worker; it is told that it is on a CPU, since its GPU is made up."""
        self._workers[slot] = Worker(mark, replace(context, device="cpu"), environment)

    def identify(self, slot: int) -> WorkerProcess:
        """As :meth:`Worker.identify`."""
        return self._workers[slot].identify()

    def run(self, slot: int, packed: bytes, job_name: str) -> PackedResult:
        """As :meth:`Worker.run`."""
        return self._workers[slot].run(packed, job_name)


class _Method:
    """A method of a slot's worker, called as Ray's actors are."""

    def __init__(self, method: Any, slot: int) -> None:
        self._method = method
        self._slot = slot

    def remote(self, *arguments: Any) -> Any:
        return self._method.remote(self._slot, *arguments)


class _Slot:
    """What a lease holds in the place of an actor's handle."""

    def __init__(self, machine: _Machine, slot: int) -> None:
        self.machine = machine
        self.slot = slot
        self.run = _Method(machine.actor.run, slot)
        self.identify = _Method(machine.actor.identify, slot)


class _Machine:
    """A machine's actor and the slots that use it."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.open: set[int] = set()
        self.made = 0


class _Options:
    """``ray.remote(…).options(…)``: makes a slot of a worker, or ends one without a process."""

    def __init__(self, shared: SharedRay, thing: Any, options: dict[str, Any]) -> None:
        self._shared = shared
        self._thing = thing
        self._options = options

    def options(self, **options: Any) -> _Options:
        return _Options(self._shared, self._thing, options)

    def remote(self, *arguments: Any) -> Any:
        if self._thing is Worker:
            return self._shared.open_slot(self._options, arguments)
        return self._shared.ray.put(TreeEnd(True, 0))


class SharedRay:
    """Ray's module, with one actor for each machine."""

    def __init__(self, ray: ModuleType) -> None:
        self.ray: Any = ray
        self._lock = threading.Lock()
        self._machines: dict[str, _Machine] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ray, name)

    def remote(self, thing: Any) -> _Options:
        """As ``ray.remote``, for workers and what ends them."""
        return _Options(self, thing, {})

    def open_slot(self, options: dict[str, Any], arguments: tuple[Any, ...]) -> _Slot:
        """A worker on the machine that ``options`` name; its actor holds all of the machine."""
        strategy = options["scheduling_strategy"]
        with self._lock:
            machine = self._machines.get(strategy.node_id)
            if machine is None:
                machine = _Machine(self._start(strategy))
                self._machines[strategy.node_id] = machine
            machine.made += 1
            slot = machine.made
            machine.open.add(slot)
        # Calls to an actor with threads are in no order: the slot must be there before its calls.
        self.ray.get(machine.actor.open.remote(slot, *arguments))
        return _Slot(machine, slot)

    def _start(self, strategy: Any) -> Any:
        node = next(node for node in self.ray.nodes() if node["NodeID"] == strategy.node_id)
        devices = int(node["Resources"]["GPU"])
        return (
            self.ray.remote(MachineActor)
            .options(
                num_cpus=node["Resources"]["CPU"],
                num_gpus=devices,
                max_restarts=0,
                max_concurrency=2 * devices,
                scheduling_strategy=strategy,
            )
            .remote()
        )

    def kill(self, slot: _Slot, **options: Any) -> None:
        """Gives a slot up; the last one of a machine ends its actor."""
        with self._lock:
            slot.machine.open.discard(slot.slot)
            last = not slot.machine.open
            if last:
                self._machines = {
                    name: machine
                    for name, machine in self._machines.items()
                    if machine is not slot.machine
                }
        if last:
            self.ray.kill(slot.machine.actor, **options)


@contextmanager
def shared_session(**arguments: Any) -> Iterator[Any]:
    """As :func:`analyzer.cluster.ray_session.ray_session`, with one actor for each machine."""
    with ray_session.ray_session(**arguments) as ray:
        yield SharedRay(ray)
