"""Builds the variants of a model in child processes, and keeps them in a cache."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from analyzer.domain.configuration import VariantKey
from analyzer.domain.measurement import Accuracy
from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.tensorrt_ import import_tensorrt
from analyzer.errors import AnalyzerError, BuildError
from analyzer.hardware.gpus import GpuIdentity, first_gpu
from analyzer.hardware.machine import inspect_machine, usable_cores
from analyzer.variants.build_facts import row_facts, variant_facts
from analyzer.variants.build_process import prepare, run_builds
from analyzer.variants.cache import (
    building,
    cache_key,
    load_entry,
    own_key,
    publish,
    write_error,
)
from analyzer.variants.inputs import CalibrationData, split_rows, synthetic_inputs, take_rows
from analyzer.variants.onnx_file import hash_model
from analyzer.variants.tensorrt_build import EngineFacts, EngineOptions, engine_facts
from analyzer.variants.worker import BuildRequest, BuildResult

_SYNTHETIC_ROWS = 32  # of made-up inputs: they only show the numerical error
# Part of the name of a cache entry that says why a variant is of no use on a machine. Machines
# change (neighbours, clock limits), so it is kept as long as probes are.
_REFUSED = "-refused-"
_REFUSED_SECONDS = 7 * 86400.0  # a week


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A file to serve, and how well it answers.

    Args:
        path: Absolute path of the ONNX file or engine; the model's own file for fp32.
        key: Which variant it is.
        sha256: Hash of the file and its external weights.
        accuracy: Against the fp32 model, on rows that did not calibrate.
        size_bytes: Size of the file and its external weights.
        build_seconds: What building and scoring took (when it was built, if it was cached).
        notes: What people should know: fallbacks taken, rows used.
        external_files: Names, beside the file, of files with external weights.
        cached: Whether it came from the cache.
        entry: Name of its cache entry.
        engine: What an engine belongs to; None for graphs.
    """

    path: str
    key: VariantKey
    sha256: str
    accuracy: Accuracy
    size_bytes: int
    build_seconds: float
    notes: tuple[str, ...] = ()
    external_files: tuple[str, ...] = ()
    cached: bool = False
    entry: str = ""
    engine: EngineFacts | None = None


def build_variant(model: ModelInfo, key: VariantKey, *, cache_dir: Path, **options: Any) -> Variant:
    """The variant ``key`` of ``model``; ``options`` as :func:`build_variants`.

    Raises:
        BuildError: It cannot be built, or there is nothing to build (no weights to quantize).
        TargetMemoryError: The memory does not suffice.
        DataError: The labels do not fit the model.
        MissingPartError: A library is missing.
    """
    built = build_variants(model, [key], cache_dir=cache_dir, **options)[key]
    if isinstance(built, AnalyzerError):
        raise built
    return built


def build_variants(
    model: ModelInfo,
    keys: Iterable[VariantKey],
    *,
    calibration: CalibrationData | None = None,
    cache_dir: Path,
    device: Literal["cpu", "gpu"] = "cpu",
    confidence: float = 0.95,
    accuracy_drop_max: float = 0.01,
    seed: int = 0,
    engine: EngineOptions | None = None,
    faster_only: bool = False,
    begin_s: float = math.inf,
    timeout_s: float = 1800.0,
    cores: int | None = None,
    cancelled: threading.Event | None = None,
    owner: str = "",
) -> dict[VariantKey, Variant | AnalyzerError]:
    """The variants ``keys`` of ``model``, from the cache or built now.

    An error takes the place of a variant that failed. Without ``calibration`` the rows are made
    up, and the accuracy is a numerical error only (``Accuracy.synthetic``). There is one child
    process for every core, each with its share of the variants; several threads and processes may
    build into one cache at once. Engines are built after everything else, one at a time, on
    the first GPU that this process may use.

    Args:
        model: As :func:`~analyzer.variants.inspect.inspect_model` gave it.
        keys: ``int8`` needs its ``quantization``; the backend ``python`` serves the same files as
            ``onnxruntime``.
        cache_dir: Made if it is missing.
        device: Where variants are scored and, for TensorRT, built.
        confidence: Of the accuracy's interval.
        accuracy_drop_max: The limit that the accuracy's drop is held against; rows are scored until
            the interval tells on which side of it the drop lies.
        seed: Of made-up rows and of the split into calibrating and scoring rows.
        engine: Batch sizes and limits of a TensorRT engine; the default serves batches up to 8.
            It is part of what an engine is: another one is another engine.
        faster_only: Refuses, without scoring it, what is slower on the CPU than the model itself.
        begin_s: What is not begun by then is left out; the model itself and engines are not. It
            bounds how long a variant is calibrated, too.
        timeout_s: What is not built by then is ended.
        cores: That the processes share; None for all that this process may use.
        cancelled: Ends what is not built yet (with a BuildError) when it is set.
        owner: The study that the variants are for. What is calibrated by a part of its rows alone,
            since little time was left, serves its owner and nobody else.
    """
    cache_dir = Path(cache_dir).absolute()
    cores = cores or usable_cores()
    cancelled = cancelled or threading.Event()
    rows = row_facts(model, calibration, device, seed)
    built: dict[VariantKey, Variant | AnalyzerError] = {}
    orders: list[_Order] = []
    # Keys that differ in nothing that a build or its score depends on.
    same: dict[str, list[VariantKey]] = {}
    refused = _REFUSED + inspect_machine().hardware_key if faster_only else ""
    for key in dict.fromkeys(keys):
        tensorrt = key.backend == "tensorrt"
        options = (engine or EngineOptions()) if tensorrt else None
        gpu: GpuIdentity | None = None
        place: EngineFacts | None = None
        try:
            if tensorrt:  # what is missing is told without starting a process for it
                import_tensorrt()
                gpu = first_gpu()
                place = engine_facts(gpu)
        except AnalyzerError as error:
            built[key] = error
            continue
        facts = variant_facts(key, confidence, accuracy_drop_max, options, place)
        name = cache_key(rows | facts)
        same.setdefault(name, []).append(key)
        if len(same[name]) > 1:
            continue
        kept = {name: math.inf, name + refused: _REFUSED_SECONDS} if refused else {name: math.inf}
        if (found := _find(cache_dir, kept, owner)) is not None:
            built[key] = _from_record(model, key, *found, cached=True)
            continue
        request = partial(
            make_request, model, key, calibration, seed,
            device=device,
            confidence=confidence,
            drop_max=accuracy_drop_max,
            seed=seed,
            reference_key=cache_key(rows),
            faster_only=faster_only,
            # Beside the other processes, and beside what the program does meanwhile.
            threads=max(1, cores // 4),
            engine=options,
            gpu=gpu,
            timing_cache=cache_dir / "tensorrt-timing.cache" if tensorrt else None,
        )  # fmt: skip
        orders.append(_Order(key, device, name, name + refused, request, place, owner))
    labelled = calibration is not None and calibration.labels is not None
    orders.sort(key=lambda order: _turn(order.key, device, labelled=labelled))
    graphs = [order for order in orders if order.place is None]
    engines = [order for order in orders if order.place is not None]
    shares = max(1, min(len(graphs), cores))
    started = time.monotonic()
    build = partial(_build, model, cache_dir=cache_dir, cancelled=cancelled)
    with ThreadPoolExecutor(max_workers=shares) as pool:
        try:
            parts = [graphs[first::shares] for first in range(shares)] if graphs else []
            for part in pool.map(partial(build, begin_s=begin_s, timeout_s=timeout_s), parts):
                built |= part
            # Kernels are chosen by timing them, so that nothing else of ours may run.
            if engines:
                left_s = max(timeout_s - (time.monotonic() - started), 0.0)
                built |= build(engines, timeout_s=left_s)
        except BaseException:
            cancelled.set()
            raise
    for first, *others in same.values():
        variant = built[first]
        for key in others:
            built[key] = replace(variant, key=key) if isinstance(variant, Variant) else variant
    return built


def _find(
    cache_dir: Path, kept: Mapping[str, float], owner: str
) -> tuple[str, Path, dict[str, Any]] | None:
    """Name, folder and record of the first entry that serves ``owner``, its own before others'.

    Args:
        kept: Names of entries, and for how many seconds they hold.
    """
    for name, seconds in kept.items():
        for entry in (own_key(name, owner), name):
            if (found := load_entry(cache_dir, entry, seconds_kept=seconds)) is not None:
                return entry, *found
    return None


def stored_variant(
    model: ModelInfo, key: VariantKey, *, cache_dir: Path, entry: str, sha256: str
) -> Variant:
    """The variant in the cache entry ``entry``, if it is still the file with the hash ``sha256``.

    Raises:
        BuildError: It is not there.
    """
    found = load_entry(Path(cache_dir).absolute(), entry)
    variant = _from_record(model, key, entry, *found, cached=True) if found is not None else None
    if not isinstance(variant, Variant) or variant.sha256 != sha256:
        raise BuildError(
            f"The {key.label} engine that was measured ({sha256[:12]}…) is no longer in "
            f"{cache_dir}, and one that is built anew would be another.",
            hint="Put the cache folder back, or search again under another --study name.",
        )
    return variant


def _turn(key: VariantKey, device: str, *, labelled: bool) -> tuple[bool, int]:
    """Places the most promising first.

    The model itself is held against labels last, when its answers are there; without them it takes
    one inference, and comes first. An engine takes longest: no other variant waits for one.
    """
    usual = ["fp16", "int8-static", "fp8", "bf16", "int8-dynamic"]
    if device == "cpu":
        usual = ["int8-static", "int8-dynamic", "fp16"]
    usual.insert(len(usual) if labelled else 0, "fp32")
    name = f"int8-{key.quantization}" if key.precision == "int8" else key.precision
    return key.backend == "tensorrt", usual.index(name)


class _Order(NamedTuple):
    """A variant to build, the names of its cache entry and of its refusal's, and what is asked."""

    key: VariantKey
    device: str
    name: str
    refused: str
    request: Callable[[], BuildRequest]
    place: EngineFacts | None
    owner: str


def _build(
    model: ModelInfo,
    orders: Sequence[_Order],
    *,
    cache_dir: Path,
    begin_s: float = math.inf,
    timeout_s: float,
    cancelled: threading.Event,
) -> dict[VariantKey, Variant | AnalyzerError]:
    """Builds ``orders`` in one process and publishes them in the cache."""
    built: dict[VariantKey, Variant | AnalyzerError] = {}
    with ExitStack() as stack:
        folders: list[tuple[VariantKey, Path]] = []
        by_key = {order.key: order for order in orders}
        for key, order in by_key.items():
            try:
                folder = stack.enter_context(building(cache_dir))
                prepare(folder, order.request())
                folders.append((key, folder))
            except OSError as error:
                built[key] = write_error(cache_dir, error)
            except AnalyzerError as error:
                built[key] = error
        results = run_builds(folders, begin_s=begin_s, timeout_s=timeout_s, cancelled=cancelled)
        for key, folder in folders:
            result = results[key]
            try:
                if isinstance(result, AnalyzerError):
                    raise result
                built[key] = _publish(model, by_key[key], result, cache_dir, folder)
            except AnalyzerError as error:
                built[key] = error
    return built


def _publish(
    model: ModelInfo, order: _Order, result: BuildResult, cache_dir: Path, folder: Path
) -> Variant | BuildError:
    name = order.refused if result.refused else order.name
    if result.hurried:
        name = own_key(name, order.owner)
    record = {
        "file": result.file,
        "accuracy": asdict(result.accuracy) if result.accuracy is not None else None,
        "refused": result.refused,
        "notes": list(result.notes),
        "build_seconds": result.seconds,
        "built_for": {"precision": order.key.precision, "device": order.device},
        "engine": asdict(order.place) if order.place is not None else None,
    }
    final = publish(cache_dir, name, folder / "out", record)
    found = load_entry(cache_dir, name)
    if found is None:
        raise BuildError(
            f"The cache entry {final} vanished while it was written.",
            hint="Something else removes files from the cache folder; start again.",
        )
    return _from_record(model, order.key, name, *found)


def make_request(
    model: ModelInfo,
    key: VariantKey,
    calibration: CalibrationData | None,
    rows_seed: int,
    **facts: Any,
) -> BuildRequest:
    """What the builder of one variant is told: its rows, chosen by the seed, and ``facts``."""
    rows = _choose_rows(model, key, calibration, rows_seed)
    return BuildRequest(model=model, key=key, **facts, **rows)


def _choose_rows(
    model: ModelInfo, key: VariantKey, calibration: CalibrationData | None, seed: int
) -> dict[str, Any]:
    """The request's rows; chosen here, so that every variant scores on the same ones."""
    inputs: Mapping[str, Any]
    if calibration is None:
        inputs, rows, labels = synthetic_inputs(model, _SYNTHETIC_ROWS, seed), _SYNTHETIC_ROWS, None
    else:
        inputs, rows, labels = calibration.inputs, calibration.rows, calibration.labels
    calibrating, scoring = split_rows(rows, seed=seed)
    static = key.quantized and key.quantization != "dynamic"
    return {
        "calibrating": take_rows(inputs, calibrating) if static else None,
        "scoring": take_rows(inputs, scoring),
        "labels": None if labels is None else labels[scoring],
        "synthetic": calibration is None,
    }


def _from_record(
    model: ModelInfo,
    key: VariantKey,
    entry: str,
    folder: Path,
    record: dict[str, Any],
    *,
    cached: bool = False,
) -> Variant | BuildError:
    if record["refused"]:
        return BuildError(record["refused"], hint="Name it with --precisions to have it measured.")
    accuracy = dict(record["accuracy"])
    if accuracy["interval"] is not None:
        accuracy["interval"] = tuple(accuracy["interval"])
    common: dict[str, Any] = {
        "key": key,
        "accuracy": Accuracy(**accuracy),
        "build_seconds": record["build_seconds"],
        "notes": tuple(record["notes"]),
        "cached": cached,
        "entry": entry,
        "engine": EngineFacts(**record["engine"]) if record["engine"] is not None else None,
    }
    if record["file"] is None:
        return Variant(
            path=model.path,
            sha256=model.sha256,
            size_bytes=model.size_bytes,
            external_files=model.external_files,
            **common,
        )
    file = folder / record["file"]
    external = tuple(sorted(name for name in record["files"] if name != record["file"]))
    return Variant(
        path=str(file),
        sha256=hash_model(file, external),
        size_bytes=sum((folder / name).stat().st_size for name in record["files"]),
        external_files=external,
        **common,
    )
