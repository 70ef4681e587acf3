"""The process that builds variants: ``python -m analyzer.variants.worker BEGIN_BY FOLDER…``.

Building has a process of its own because the libraries it needs keep temporary files, use much
memory, and end the process where they fail natively. Each ``FOLDER`` holds a request; the variant's
files go into its ``out``, everything else that is written into its ``work`` and ``tmp``. After
``BEGIN_BY`` (CLOCK_MONOTONIC, seconds) no further variant is begun but the model itself.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import VariantKey
from analyzer.domain.measurement import Accuracy
from analyzer.domain.model import ModelInfo
from analyzer.engine.gpu_backends import gpu_backends
from analyzer.engine.runtimes.base import Runtime
from analyzer.engine.runtimes.onnxruntime_ import first_line
from analyzer.engine.runtimes.open import open_runtime
from analyzer.engine.runtimes.tensorrt_ import import_tensorrt_rtx
from analyzer.errors import (
    AnalyzerError,
    BuildError,
    MissingPartError,
    TargetError,
    TargetMemoryError,
)
from analyzer.hardware.gpu_lock import building_on
from analyzer.hardware.gpus import GpuIdentity
from analyzer.hardware.lifetime import die_with_parent
from analyzer.modelconfig.execution import accelerator_settings
from analyzer.variants.accuracy import (
    ROWS_MIN,
    RowScores,
    compare_rows,
    judge,
    labels_note,
    unjudged,
)
from analyzer.variants.cache import write_error
from analyzer.variants.compiled_graphs import compiled_graph
from analyzer.variants.linked_weights import without_links
from analyzer.variants.native_half import computes_half
from analyzer.variants.precision import convert_fp16
from analyzer.variants.quantize import (
    CALIBRATING_SECONDS_MAX,
    RowReader,
    quantize_dynamic,
    quantize_static,
)
from analyzer.variants.reference import ROWS_PER_RUN, StoredReference, in_parts
from analyzer.variants.slowdown import slowdown
from analyzer.variants.tensorrt_build import EngineOptions, build_engine

REQUEST_FILE = "request.pickle"
RESULT_FILE = "result.pickle"
# Is there from the moment on at which the request is worked at.
BEGUN_FILE = "begun"
# Of the limit on the accuracy's drop.
_MARGIN = 0.2
# Of the time in which further variants may be begun: what calibrating one may take.
_CALIBRATING_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BuildRequest:
    """What to build, and the rows to calibrate and to score it with.

    Args:
        model: The fp32 model.
        key: The variant.
        device: Where the variant is scored.
        calibrating: Rows for static int8, ``[rows, *shape]`` by input; None for other variants.
        scoring: Rows that score.
        labels: Their classes, if known.
        synthetic: Whether the rows are made up.
        engine, gpu: How to build a TensorRT engine, and on which GPU; None for other backends. One
            for named compute capabilities needs no GPU, and cannot be scored.
        drop_max: The limit on the accuracy's drop: rows are scored until its side is clear.
        reference_key: Of the cache entry with the fp32 model's answers to the rows that score.
        faster_only: Whether a variant is refused, unscored, if it is slower than the model itself,
            and an int8 one if no row tells its accuracy.
        threads: Of a session on the CPU.
        timing_cache: Where TensorRT's timings are kept between builds.
    """

    model: ModelInfo
    key: VariantKey
    device: Literal["cpu", "gpu"]
    calibrating: dict[str, NDArray[np.generic]] | None
    scoring: dict[str, NDArray[np.generic]]
    labels: NDArray[np.int64] | None
    synthetic: bool
    confidence: float
    seed: int
    drop_max: float
    reference_key: str
    threads: int
    faster_only: bool
    engine: EngineOptions | None = None
    gpu: GpuIdentity | None = None
    timing_cache: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The file in ``out`` (None: the model's own file serves), and what is known of it.

    Args:
        accuracy: None of a variant that was refused, or that cannot run here.
        seconds: That building and scoring took.
        refused: Why the variant is of no use; empty if it may be.
        hurried: Whether less time than calibrating may ever take left out some of the rows.
    """

    file: str | None
    accuracy: Accuracy | None
    seconds: float
    refused: str = ""
    notes: tuple[str, ...] = field(default=())
    hurried: bool = False


def build(
    request: BuildRequest, folder: Path, calibrating_s: float = CALIBRATING_SECONDS_MAX
) -> BuildResult:
    """Builds and scores the variant in ``folder``.

    Args:
        calibrating_s: Seconds in which rows are fed to calibrate it.

    Raises:
        BuildError: It cannot be built.
        TargetError: It was built and does not run; the stage is ``start``.
        DataError: The labels do not fit the model.
        MissingPartError: TensorRT is not here.
    """
    started = time.monotonic()
    model, key = request.model, request.key
    source = Path(model.path)
    reader = RowReader(
        request.calibrating or {}, batchable=model.batchable, seconds_max=calibrating_s
    )
    out, work = folder / "out", folder / "work"
    graph = source
    notes: tuple[str, ...] = ()
    if request.faster_only and _half_is_cast(key, request.device) and not computes_half():
        return BuildResult(
            file=None,
            accuracy=None,
            seconds=time.monotonic() - started,
            refused=f"{key.label} is not considered, since it gains nothing here: ONNX Runtime has "
            "no kernels for it on this processor, and computes in fp32 between casts.",
        )
    if key.precision != "fp32":
        graph = (work / "graph.onnx") if key.backend == "tensorrt" else (out / "model.onnx")
        notes = _build_graph(request, source, graph, work, reader)
    file = graph
    if key.backend == "tensorrt":
        file = out / "model.plan"
        assert request.engine is not None
        if request.engine.compute_capabilities:
            rtx = import_tensorrt_rtx()
            notes += build_engine(graph, model, file, request.engine, trt=rtx)
            seconds = time.monotonic() - started
            return BuildResult(file=file.name, accuracy=None, seconds=seconds, notes=notes)
        assert request.gpu is not None
        with building_on(request.gpu):
            notes += build_engine(
                graph, model, file, request.engine, timing_cache=request.timing_cache
            )
    hurried = 0 < reader.used < len(reader) and calibrating_s < CALIBRATING_SECONDS_MAX
    judged = partial(
        judge,
        labels=request.labels,
        synthetic=request.synthetic,
        confidence=request.confidence,
        seed=request.seed,
    )
    try:
        scoring = request.scoring
        itself = file == source and key.execution.accelerator is None
        reference: Runtime
        if itself and request.labels is None:
            # Its answers are its own: one row shows that it runs here.
            scoring = {name: array[:1] for name, array in scoring.items()}
            reference = _open_model(request)
        else:
            reference = _stored_reference(request, folder)
        variant = reference if itself else _open(file, request)
        if request.faster_only and request.device == "cpu" and not itself:
            times = slowdown(model, scoring, _open_model(request), variant)
            if times is not None:
                return BuildResult(
                    file=None,
                    accuracy=None,
                    seconds=time.monotonic() - started,
                    refused=f"{key.label} is not considered, since it gains nothing here: it takes "
                    f"{times:.2f} times as long as fp32.",
                )
        scores = compare_rows(
            model,
            reference,
            variant,
            scoring,
            classifier=True if request.labels is not None else None,
            classes_min=1 + int(request.labels.max()) if request.labels is not None else 0,
            enough=lambda scores: _clear(judged(scores), request.drop_max),
        )
        if itself and request.labels is None and not judged(scores).samples:
            scores = _first_judged(request, folder, judged)
    except (MissingPartError, TargetError) as error:
        # As a server that opens the file would fail.
        error.stage = "start"
        if isinstance(error, MissingPartError | TargetMemoryError):
            raise
        raise error.reworded(
            f"The variant {key.label} was built and does not run: {error.message}",
            error.hint or "Leave this precision out with --precisions.",
        ) from error
    accuracy = judged(scores)
    left_out = unjudged(scores, accuracy)
    if request.faster_only and key.quantized and not request.synthetic and not accuracy.samples:
        return BuildResult(
            file=None,
            accuracy=None,
            seconds=time.monotonic() - started,
            refused=f"{key.label} is not considered: {left_out}.",
            hurried=hurried,
        )
    notes += (left_out,) if left_out else ()
    if itself and request.labels is not None:
        said = labels_note(model, scores, request.labels)
        notes += (said,) if said else ()
    if itself and accuracy.samples:
        accuracy = replace(accuracy, drop=0.0, interval=(0.0, 0.0))
    return BuildResult(
        file=None if file == source else file.name,
        accuracy=accuracy,
        notes=notes,
        seconds=time.monotonic() - started,
        hurried=hurried,
    )


def _first_judged(
    request: BuildRequest, folder: Path, judged: Callable[[RowScores], Accuracy]
) -> RowScores:
    """The model held against itself where its first row says nothing, until a row does."""
    reference = _stored_reference(request, folder)
    return compare_rows(
        request.model,
        reference,
        reference,
        request.scoring,
        enough=lambda scores: judged(scores).samples > 0,
    )


def _stored_reference(request: BuildRequest, folder: Path) -> StoredReference:
    """The model's answers to the rows that score, shared with the other variants' builders."""
    return StoredReference(
        folder.parent,
        request.reference_key,
        request.model,
        request.scoring,
        lambda: _open_model(request),
    )


def _half_is_cast(key: VariantKey, device: Literal["cpu", "gpu"]) -> bool:
    """Whether ONNX Runtime's own kernels decide what fp16 gains."""
    own = key.backend != "tensorrt" and key.execution.accelerator is None
    return key.precision == "fp16" and device == "cpu" and own


def _clear(accuracy: Accuracy, drop_max: float) -> bool:
    """Whether the interval of the drop lies on one side of the limit, so that more rows are idle.

    With a margin, since it is looked at several times. A few rows may refuse a variant, which each
    of them shows to be far off; none is accepted on them.
    """
    if accuracy.interval is None:
        return False
    low, high = accuracy.interval
    accepted = accuracy.samples >= ROWS_MIN and high <= (1.0 - _MARGIN) * drop_max
    return accepted or low > (1.0 + _MARGIN) * drop_max


def _build_graph(
    request: BuildRequest, source: Path, target: Path, work: Path, reader: RowReader
) -> tuple[str, ...]:
    key = request.key
    source = without_links(source, request.model.external_files, work / "without_links")
    model = replace(request.model, path=str(source))
    if key.quantization == "dynamic":
        return quantize_dynamic(source, target, external=model.external_files, work=work)
    rows = request.calibrating
    if key.quantized and (not rows or not len(next(iter(rows.values())))):
        raise BuildError(
            f"{key.label} needs rows to calibrate with, and the data has only one row.",
            hint="Give --calibration-data more rows; a hundred or more are usual.",
        )
    if key.compiled:
        notes = compiled_graph(model, key, target, rows, work)
    elif key.precision == "fp16":
        notes = convert_fp16(source, target)
    else:
        assert key.precision == "int8", key
        notes = quantize_static(
            source,
            target,
            reader,
            external=model.external_files,
            backend=key.backend,
            work=work,
        )
    made_up = key.quantized and request.synthetic
    return (*notes, "calibrated on made-up inputs") if made_up else notes


def _open(file: Path, request: BuildRequest) -> Runtime:
    """The variant in ``file`` as its key says."""
    key = request.key
    runtime = open_runtime(
        file,
        backend=key.backend,
        device=request.device,
        intra_op_threads=request.threads,
        execution=key.execution,
        accelerator_options=accelerator_settings(request.model, key, ROWS_PER_RUN),
    )
    return in_parts(request.model, runtime)


def _open_model(request: BuildRequest) -> Runtime:
    """The fp32 model on ONNX Runtime's default provider, which every variant is held against.

    For an engine on the CPU where ONNX Runtime does not run on the GPU.
    """
    device = request.device
    if request.key.backend == "tensorrt" and "onnxruntime" not in gpu_backends():
        device = "cpu"
    runtime = open_runtime(
        Path(request.model.path), device=device, intra_op_threads=request.threads
    )
    return in_parts(request.model, runtime)


def main(folder: Path, begin_by: float) -> None:
    """Builds what the request in ``folder`` asks for and leaves the result or the error there."""
    request: BuildRequest = pickle.loads((folder / REQUEST_FILE).read_bytes())
    key = request.key
    model = key.precision == "fp32" and not key.compiled and key.execution.accelerator is None
    left_s = begin_by - time.monotonic()
    if left_s < 0.0 and not model:
        return
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    warnings.simplefilter("ignore")
    result: BuildResult | AnalyzerError
    try:
        (folder / BEGUN_FILE).touch()
        result = build(
            request, folder, min(_CALIBRATING_SHARE * max(left_s, 0.0), CALIBRATING_SECONDS_MAX)
        )
    except AnalyzerError as error:
        result = error
    except OSError as error:
        traceback.print_exc()
        result = write_error(folder.parent, error)
    except MemoryError:
        result = TargetMemoryError(
            f"Building {request.key.label} ran out of memory.",
            hint="Use a machine with more memory, or leave this precision out with --precisions.",
        )
    except Exception as error:
        traceback.print_exc()
        result = BuildError(
            f"Building {request.key.label} failed: {type(error).__name__}: {first_line(error)}.",
            hint="Leave this precision out with --precisions.",
        )
    # In one step: a result that can be seen is whole.
    part = folder / f"{RESULT_FILE}.part"
    part.write_bytes(pickle.dumps(result))
    part.replace(folder / RESULT_FILE)


if __name__ == "__main__":
    # Imported by its name, so that results are pickled as the parent knows their classes.
    from analyzer.variants import worker

    die_with_parent()
    for argument in sys.argv[2:]:
        worker.main(Path(argument), float(sys.argv[1]))
