"""What the options of ``analyze search`` ask for: SLA, price, search space and request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from analyzer.cli.search_options import SearchOptions
from analyzer.domain.configuration import PRECISIONS, Backend, DeviceKind
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Objective, Sla
from analyzer.domain.space import SearchSpace
from analyzer.domain.study import Pricing
from analyzer.domain.workload import (
    ArrivalProcess,
    check_request_batch_size,
    request_batch_sizes,
)
from analyzer.errors import MissingPartError, UsageError

if TYPE_CHECKING:
    from analyzer.hardware.machine import Machine
    from analyzer.measure.facts import WorkerFacts
    from analyzer.search.request import SearchRequest
    from analyzer.store.records import StudyRecord


def request_of(
    options: SearchOptions,
    record: StudyRecord,
    model: ModelInfo,
    space: SearchSpace,
    device: DeviceKind,
    pricing: Pricing,
    arrivals: ArrivalProcess,
    inference_s: float,
) -> SearchRequest:
    """What the search of ``record`` is asked to do on one kind of machine."""
    from analyzer.search.request import SearchRequest
    from analyzer.spaces.prices import priced_as_measured

    return SearchRequest(
        study=record.name,
        model=model,
        sla=record.sla,
        space=space,
        precisions=options.precisions or PRECISIONS,
        precisions_named=options.precisions is not None,
        calibration_path=options.calibration_data,
        arrivals=arrivals,
        request_batch_size=options.request_batch_size,
        budget_s=options.budget,
        accept=options.accept,
        trials_max=options.max_trials,
        sampler=options.sampler,
        server=options.server,
        device=device,
        pricing=priced_as_measured(pricing, device),
        seed=record.seed or 0,
        inference_s=inference_s,
        provenance=record.provenance,
    )


def sla_of(options: SearchOptions) -> Sla:
    """The SLA that the options spell."""
    objective: Objective = options.objective or ("cost" if options.target_rate else "capacity")
    if objective != "capacity" and options.target_rate is None:
        raise UsageError(
            f"--objective {objective} needs a rate at which it is judged.",
            hint="Add --target-rate, like --target-rate 500/s.",
        )
    return Sla(
        latency_budget_ms=options.latency_budget,
        percentile=options.percentile,
        confidence=options.confidence,
        target_rate_rps=options.target_rate,
        objective=objective,
        max_memory_bytes=options.max_memory,
        max_accuracy_drop=options.max_accuracy_drop,
    )


def pricing_of(options: SearchOptions) -> Pricing:
    """What the machine costs, as far as the options tell."""
    if options.instance_type is not None:
        from analyzer.spaces.prices import lookup_price

        return lookup_price(
            options.instance_type, price_per_hour=options.price, catalogue=options.prices_file
        )
    if options.prices_file is not None:
        raise UsageError(
            "--prices: a catalogue needs the machine's type.",
            hint="Add --instance-type NAME, or give the price itself with --price 0.7364/h.",
        )
    if options.price is not None:
        return Pricing(price_per_hour=options.price, source="--price")
    return Pricing()


def price_notes(
    options: SearchOptions, pricing: Pricing, device: DeviceKind, hardware: str
) -> list[str]:
    """What people should know of the price; ``hardware`` is the name of what is measured."""
    from analyzer.spaces.prices import price_doubts

    if pricing.instance_type is None:
        return []
    return price_doubts(pricing, device, hardware, catalogue=options.prices_file)


def largest_request(options: SearchOptions, arrivals: ArrivalProcess, model: ModelInfo) -> int:
    """Inferences of the largest request, which every batch must hold."""
    check_request_batch_size(arrivals, options.request_batch_size)
    largest = int(request_batch_sizes(arrivals, options.request_batch_size).max())
    if largest > 1 and not model.batchable:
        raise UsageError(
            f"Requests of {largest} inferences: the model {model.name} cannot be batched.",
            hint="Use --request-batch-size 1, or export the model with a dynamic first dimension.",
        )
    return largest


def space_here(
    options: SearchOptions,
    model: ModelInfo,
    device: DeviceKind,
    machine: Machine,
    largest: int,
    onnx_backend: Backend,
    warn: Callable[[str], None],
) -> SearchSpace:
    """The search space of the options, resolved for this machine.

    Args:
        largest: Inferences of the largest request.
        onnx_backend: What runs ONNX graphs here.
        warn: Told what is left out since a part is missing.
    """
    from analyzer.engine.gpu_backends import loadable_accelerators

    accelerators, absent = loadable_accelerators(device)
    for note in absent_notes(options, absent):
        warn(note)
    return space_of(
        options,
        model,
        device,
        cores=machine.cores,
        request_batch_size=largest,
        tensorrt=device == "gpu" and _tensorrt(options.server, warn),
        # A server elsewhere is taken to have the same.
        accelerators=accelerators,
        accelerator_absent=absent,
        compute_capability=_compute_capability(device),
        onnx_backend=_onnx_backend(options.server, onnx_backend),
    )


def absent_notes(options: SearchOptions, absent: str) -> list[str]:
    """The note on an accelerator that cannot be loaded; a space of the user's tells it itself."""
    return [f"{absent[:1].upper()}{absent[1:]}"] if absent and not options.space else []


def space_there(
    options: SearchOptions, model: ModelInfo, device: DeviceKind, facts: WorkerFacts, largest: int
) -> SearchSpace:
    """As :func:`space_here` for a worker's machine elsewhere: its cores, its libraries."""
    return space_of(
        options,
        model,
        device,
        cores=facts.cores,
        request_batch_size=largest,
        tensorrt=facts.tensorrt,
        accelerators=facts.accelerators,
        accelerator_absent=facts.accelerator_absent,
        compute_capability=facts.compute_capability,
        onnx_backend=facts.backends[0] if facts.backends else "onnxruntime",
    )


def space_of(
    options: SearchOptions, model: ModelInfo, device: DeviceKind, **machine: Any
) -> SearchSpace:
    """The search space of the options, resolved for a machine.

    Args:
        machine: What else of ``SpaceContext`` that machine tells.
    """
    from analyzer.spaces.loader import SpaceContext, load_space

    context = SpaceContext(
        device=device,
        batchable=model.batchable,
        precisions=options.precisions or PRECISIONS,
        cuda_graphs=device == "gpu" and options.server != "embedded",
        **machine,
    )
    return load_space(options.space or device, context)


def _onnx_backend(server: str, here: Backend) -> Backend:
    """What will run ONNX graphs on ``server``, as far as that is known before it is started."""
    if server != "triton" or here != "onnxruntime":
        return here
    from analyzer.targets.triton_install import require_triton

    return require_triton().backend_for(here)


def _compute_capability(device: DeviceKind) -> tuple[int, int] | None:
    """The lowest of the GPUs that may be used here; None without one that tells it."""
    from analyzer.hardware.gpus import visible_gpus

    found = [gpu.compute_capability for gpu in visible_gpus()] if device == "gpu" else []
    return min((one for one in found if one is not None), default=None)


def _tensorrt(server: str, warn: Callable[[str], None]) -> bool:
    """Whether engines can be built here, and served by ``server`` as far as that is known."""
    from importlib.util import find_spec

    if find_spec("tensorrt") is None:
        return False
    if server == "embedded":
        return True
    from analyzer.engine.runtimes.tensorrt_ import import_tensorrt, library_version
    from analyzer.targets.triton_install import require_triton
    from analyzer.targets.triton_tensorrt import elsewhere, require_same_tensorrt

    try:
        version = library_version(import_tensorrt())
        if server == "triton":
            require_same_tensorrt(require_triton(), version)
        else:
            warn(elsewhere(server, version))
    except MissingPartError as error:
        warn(f"No TensorRT engines are measured: {error.message} {error.hint}")
        return False
    return True
