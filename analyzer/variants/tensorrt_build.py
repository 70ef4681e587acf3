"""Compiles an ONNX graph to a TensorRT engine; the graph alone decides the precision.

TensorRT 11 knows strongly typed networks only; in TensorRT 10 they are asked for by a flag, so that
both compile the same graph to the same precision.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.tensorrt_ import (
    import_tensorrt,
    library_version,
    load_plugins,
    product,
    recording_logger,
    started,
)
from analyzer.errors import BuildError, MissingPartError, TargetMemoryError, is_out_of_memory
from analyzer.hardware.gpus import GpuIdentity
from analyzer.variants.reference import ROWS_PER_RUN


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine is built.

    Args:
        batch_size_usual: What kernels are chosen for.
        batch_size_max: The optimization profile goes from 1 to it.
        workspace_bytes: Limit of the memory that a layer may use for its computation.
        compute_capabilities: What an engine of TensorRT for RTX is for, as ``8.9``; empty for the
            GPU that is here.
    """

    batch_size_usual: int = ROWS_PER_RUN
    batch_size_max: int = ROWS_PER_RUN
    workspace_bytes: int = 4 << 30
    compute_capabilities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert 1 <= self.batch_size_usual <= self.batch_size_max, self
        assert self.workspace_bytes > 0, self.workspace_bytes

    @classmethod
    def for_batches(cls, sizes: Sequence[int]) -> EngineOptions:
        """An engine that runs batches of 1 (warm-up) to the largest of ``sizes``, and scores.

        Kernels are chosen for the middle one of ``sizes`` (at least one, each above 0).
        """
        usual = sorted(sizes)[len(sizes) // 2]
        return cls(batch_size_usual=usual, batch_size_max=max(*sizes, ROWS_PER_RUN))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine belongs to, beside its graph.

    Args:
        tensorrt: Version of the library that builds it.
        gpu: Model of the GPU.
        compute_capability: Of the GPU, like ``9.0``; empty where the driver does not tell.
    """

    tensorrt: str
    gpu: str
    compute_capability: str


def engine_facts(gpu: GpuIdentity, *, trt: Any = None) -> EngineFacts:
    """What engines belong to that are built here, for ``gpu``.

    Args:
        trt: The module to use; default the installed one.

    Raises:
        MissingPartError: TensorRT is not here.
    """
    return EngineFacts(
        tensorrt=library_version(trt if trt is not None else import_tensorrt()),
        gpu=gpu.name,
        compute_capability=".".join(map(str, gpu.compute_capability or ())),
    )


def build_engine(
    graph: Path,
    model: ModelInfo,
    target: Path,
    options: EngineOptions,
    *,
    timing_cache: Path | None = None,
    trt: Any = None,
) -> tuple[str, ...]:
    """Compiles ``graph`` to the plan ``target``; returns notes for people.

    Args:
        graph: The ONNX file; its external weights lie beside it.
        model: Its inputs, with every dimension known.
        timing_cache: Where kernel timings are kept between builds; made if it is missing, and
            started afresh (with a note) where it does not fit.
        trt: The module to use; default the installed one.

    Raises:
        MissingPartError: TensorRT is not here, has no builder, or finds no GPU.
        BuildError: TensorRT cannot parse or compile the graph.
        TargetMemoryError: The GPU has too little memory to build it.
        OSError: ``target`` cannot be written.
    """
    trt = trt if trt is not None else import_tensorrt()
    for part in ("Builder", "OnnxParser"):
        if not hasattr(trt, part):
            raise MissingPartError(
                f"This {product(trt)} has no {part} (it is the lean runtime).",
                hint="Install the full package tensorrt; its builder compiles engines.",
            )
    logger = recording_logger(trt)
    builder = started(trt.Builder, logger, f"{product(trt)}'s builder")
    load_plugins(trt, logger)
    network = builder.create_network(_network_flags(trt))
    _parse(trt, network, logger, graph)
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    _add_profile(builder, network, config, model, options)
    if options.compute_capabilities:
        _choose_capabilities(trt, config, options.compute_capabilities)
    notes = _load_timings(config, timing_cache)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        if any(map(is_out_of_memory, logger.errors)):
            raise TargetMemoryError(
                f"The GPU has too little memory to compile {graph.name}: {_reason(logger)}",
                hint="End what else runs on it, or leave TensorRT out.",
            )
        raise BuildError(
            f"{product(trt)} cannot compile {graph.name}: {_reason(logger)}",
            hint="Leave TensorRT or this precision out; ONNX Runtime can serve the same graph.",
        )
    target.write_bytes(bytes(plan))
    _save_timings(config, timing_cache)
    return (*notes, f"compiled by {product(trt)}")


def _network_flags(trt: Any) -> int:
    """Strongly typed, where that is still a choice (TensorRT 10)."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _parse(trt: Any, network: Any, logger: Any, graph: Path) -> None:
    parser = trt.OnnxParser(network, logger)
    # The path, since external weights are found relative to it.
    if parser.parse_from_file(str(graph)):
        return
    errors = [_parser_error(parser.get_error(index)) for index in range(parser.num_errors)]
    raise BuildError(
        f"{product(trt)} cannot read {graph.name}: {'; '.join(errors[:3]) or _reason(logger)}",
        hint="The model has an operator that TensorRT lacks; serve it with ONNX Runtime.",
    )


def _parser_error(error: Any) -> str:
    """The operator and what is wrong with it: the description alone may be a bare condition."""
    lines = [line.strip() for line in error.desc().splitlines() if line.strip()]
    description = ", ".join(lines[:2])
    operator = error.node_operator()
    return f"{operator} ({error.node_name()}): {description}" if operator else description


def _add_profile(
    builder: Any, network: Any, config: Any, model: ModelInfo, options: EngineOptions
) -> None:
    """One optimization profile over the batch sizes, if any dimension is dynamic."""
    shapes = {spec.name: spec.shape for spec in model.inputs}
    profile = builder.create_optimization_profile()
    dynamic = False
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if not any(dim < 0 for dim in tensor.shape):
            continue
        dynamic = True
        shape = shapes[tensor.name]
        if model.batchable:
            sizes = (1, options.batch_size_usual, options.batch_size_max)
            ranges = [(size, *shape) for size in sizes]
        else:
            ranges = [tuple(shape)] * 3
        profile.set_shape(tensor.name, *ranges)
    if dynamic:
        config.add_optimization_profile(profile)


def known_capabilities(trt: Any) -> dict[str, Any]:
    """What engines can be compiled for, as ``8.9``, with the library's own value of each."""
    members = trt.ComputeCapability.__members__.items()
    numbers = {name.removeprefix("SM"): value for name, value in members}
    return {f"{n[:-1]}.{n[-1]}": value for n, value in numbers.items() if n.isdecimal()}


def _choose_capabilities(trt: Any, config: Any, wanted: tuple[str, ...]) -> None:
    known = known_capabilities(trt)
    config.num_compute_capabilities = len(wanted)
    for index, name in enumerate(wanted):
        if name not in known or not config.set_compute_capability(known[name], index):
            raise BuildError(
                f"{product(trt)} compiles nothing for compute capability {name}.",
                hint=f"It knows {', '.join(known)}.",
            )


def _load_timings(config: Any, path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        stored = path.read_bytes()
    except OSError:
        stored = b""
    cache = config.create_timing_cache(stored)
    if cache is not None and config.set_timing_cache(cache, False):
        return ()
    config.set_timing_cache(config.create_timing_cache(b""), False)
    return ("the timing cache did not fit this TensorRT or GPU and was started afresh",)


def _save_timings(config: Any, path: Path | None) -> None:
    """Stores the timings in one step; builds beside each other keep the last one's."""
    cache = config.get_timing_cache() if path is not None else None
    if cache is None or path is None:
        return
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_bytes(bytes(cache.serialize()))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _reason(logger: Any) -> str:
    return logger.errors[-1] if logger.errors else "it gave no reason."
