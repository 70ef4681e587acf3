"""What a worker's machine is and can run: asked there, for a search that is driven elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from analyzer.domain.configuration import Backend
from analyzer.engine.gpu_backends import gpu_backends, loadable_accelerators
from analyzer.hardware.machine import inspect_machine
from analyzer.measure.jobs import WorkerContext
from analyzer.twin.probe_cache import runtimes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """A worker's machine, as far as a search must know it.

    Args:
        hardware: For people, with the cores of the lease.
        hardware_key: Equal where measurements, probes and engines can be shared.
        runtimes: What runs models there, with versions, as a part of the probes' key.
        cores: CPU cores of the lease.
        backends: Those that run on the leased GPU; empty on a CPU.
        accelerators: ONNX Runtime's execution accelerators there.
        accelerator_absent: Why one that is listed there cannot be loaded; else empty.
        tensorrt: Whether engines can be built there.
        compute_capability: Of the leased GPU; None on a CPU, or where the driver does not tell.
        has_model: Whether the model's file is there, under the same path.
    """

    hardware: str
    hardware_key: str
    runtimes: str
    cores: int
    backends: tuple[Backend, ...]
    accelerators: tuple[str, ...]
    tensorrt: bool
    compute_capability: tuple[int, int] | None
    accelerator_absent: str = ""
    has_model: bool = True


def worker_facts(model_path: str, context: WorkerContext) -> WorkerFacts:
    """The facts of the machine that runs this: a job of each instance type.

    Args:
        model_path: Of the model, absolute.
    """
    machine = replace(inspect_machine(), cores=context.cores)
    on_gpu = context.device == "gpu"
    if not on_gpu:
        machine = replace(machine, gpus=())
    accelerators, absent = loadable_accelerators(context.device)
    capabilities = [gpu.compute_capability for gpu in machine.gpus]
    return WorkerFacts(
        hardware=machine.hardware,
        hardware_key=machine.hardware_key,
        runtimes=runtimes(),
        cores=context.cores,
        backends=gpu_backends() if on_gpu else (),
        accelerators=accelerators,
        accelerator_absent=absent,
        tensorrt=on_gpu and find_spec("tensorrt") is not None,
        compute_capability=min((one for one in capabilities if one is not None), default=None),
        has_model=Path(model_path).is_file(),
    )
