"""Opens the runtimes of a backend; the libraries of the others are not loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from analyzer.domain.configuration import DEFAULT_EXECUTION, Execution
from analyzer.engine.runtimes.base import Runtime
from analyzer.errors import MissingPartError


@dataclass(frozen=True, slots=True)
class Place:
    """Where an instance runs: the CPU, or the GPU of a number."""

    device: Literal["cpu", "gpu"] = "cpu"
    device_id: int = 0


def open_runtime(
    path: Path,
    *,
    backend: str = "onnxruntime",
    device: Literal["cpu", "gpu"] = "cpu",
    intra_op_threads: int = 0,
    execution: Execution = DEFAULT_EXECUTION,
    accelerator_options: Mapping[str, str] | None = None,
) -> Runtime:
    """One instance of the model (or engine) at ``path``; raises as :func:`open_runtimes`."""
    (runtime,) = open_runtimes(
        path,
        [Place(device)],
        backend=backend,
        intra_op_threads=intra_op_threads,
        execution=execution,
        accelerator_options=accelerator_options,
    )
    return runtime


def open_runtimes(
    path: Path,
    places: Sequence[Place],
    *,
    backend: str = "onnxruntime",
    intra_op_threads: int = 0,
    execution: Execution = DEFAULT_EXECUTION,
    accelerator_options: Mapping[str, str] | None = None,
) -> list[Runtime]:
    """An instance of the model (or engine) at ``path`` for each place, in order; all or none.

    As in Triton, the instances of a TensorRT engine on one GPU share the engine, and with it the
    weights, only where all its shapes are fixed; with a dynamic dimension each loads an engine of
    its own (tensorrt_backend, ``ModelState::CreateEngine``). Contexts, streams and buffers are
    never shared.

    Args:
        backend: Triton's name of it; ``python`` stands for a ``model.py`` that runs ONNX Runtime,
            which runs here without it.
        execution: How it executes the file; ONNX Runtime's sessions take no heed of its pinned
            memory here, TensorRT's instances do.
        accelerator_options: The accelerator's parameters under Triton's names.

    Raises:
        MissingPartError: The backend, its library, the accelerator or the device is not here.
        TargetMemoryError: There is not enough memory for all of them.
        TargetStartError: The file cannot be loaded.
    """
    if backend == "tensorrt":
        if execution.cuda_graphs:
            raise MissingPartError(
                "This program's own server runs TensorRT engines without CUDA graphs.",
                hint="Leave optimization.cuda.graphs out, or measure it with --server triton.",
            )
        opening = _engine_instances(path, places, pinned=execution.pinned_memory is not False)
    elif backend in ("onnxruntime", "python"):
        opening = _sessions(path, places, intra_op_threads, execution, accelerator_options)
    else:
        raise MissingPartError(
            f"Nothing here runs models of the backend {backend!r}.",
            hint="This program runs onnxruntime, tensorrt and python (as onnxruntime).",
        )
    opened: list[Runtime] = []
    try:
        for runtime in opening:
            opened.append(runtime)  # noqa: PERF402 (undone below)
    except BaseException:
        for runtime in opened:
            runtime.close()
        raise
    return opened


def _sessions(
    path: Path,
    places: Sequence[Place],
    threads: int,
    execution: Execution,
    accelerator_options: Mapping[str, str] | None,
) -> Iterator[Runtime]:
    from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime

    for place in places:
        yield OrtRuntime(
            path,
            device=place.device,
            device_id=place.device_id,
            intra_op_threads=threads,
            execution=execution,
            accelerator_options=accelerator_options,
        )


def _engine_instances(path: Path, places: Sequence[Place], *, pinned: bool) -> Iterator[Runtime]:
    from analyzer.engine.runtimes.tensorrt_ import TensorRtEngine, TensorRtRuntime

    engines: dict[int, TensorRtEngine] = {}
    for place in places:
        engine = engines.get(place.device_id)
        if engine is None or engine.dynamic:
            engine = engines[place.device_id] = TensorRtEngine(path, device_id=place.device_id)
        yield TensorRtRuntime(engine, pinned=pinned)
