"""Builds the variants of a model, each in a process of its own, and keeps them in a cache."""

from __future__ import annotations

import importlib.util
import pickle
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from analyzer.domain.configuration import VariantKey
from analyzer.domain.measurement import Accuracy
from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.tensorrt_ import import_tensorrt
from analyzer.errors import AnalyzerError, BuildError, TargetMemoryError
from analyzer.hardware.machine import usable_cores
from analyzer.resources import child_environment
from analyzer.variants.cache import building, cache_key, load_entry, publish, write_error
from analyzer.variants.inputs import CalibrationData, split_rows, synthetic_inputs, take_rows
from analyzer.variants.quantize import needs_reduced_range
from analyzer.variants.tensorrt_build import EngineOptions, engine_facts
from analyzer.variants.worker import REQUEST_FILE, RESULT_FILE, BuildRequest, BuildResult

# Raised when a change of our code changes what is built from the same facts.
_BUILDER = 2
# Scoring stops once the accuracy's interval is narrower than this share of the limit on its drop.
_INTERVAL_SHARE = 0.2
_SYNTHETIC_ROWS = 32
_LIBRARIES = ("onnx", "onnxruntime", "onnxruntime-gpu", "numpy")


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


def build_variant(
    model: ModelInfo,
    key: VariantKey,
    *,
    calibration: CalibrationData | None = None,
    cache_dir: Path,
    device: Literal["cpu", "gpu"] = "cpu",
    confidence: float = 0.95,
    accuracy_drop_max: float = 0.01,
    seed: int = 0,
    engine: EngineOptions | None = None,
    timeout_s: float = 1800.0,
    cores: int | None = None,
    cancelled: threading.Event | None = None,
) -> Variant:
    """The variant ``key`` of ``model``, from the cache or built now.

    Without ``calibration`` the rows are made up, and the accuracy is a numerical error only
    (``Accuracy.synthetic``). A variant is built in a child process; several threads and processes
    may build into one cache at once.

    Args:
        model: As :func:`~analyzer.variants.inspect.inspect_model` gave it.
        key: ``int8`` needs its ``quantization``; the backend ``python`` serves the same files as
            ``onnxruntime``.
        cache_dir: Made if it is missing.
        device: Where the variant is scored and, for TensorRT, built.
        confidence: Of the accuracy's interval.
        accuracy_drop_max: The limit that the accuracy's drop is held against; rows are scored until
            the interval is narrower than a fifth of it.
        seed: Of made-up rows and of the split into calibrating and scoring rows.
        engine: Batch sizes and limits of a TensorRT engine; the default serves batches up to 8.
        timeout_s: The build is killed after this.
        cores: Of which it takes a quarter; None for all that this process may use.
        cancelled: Ends the build (with a BuildError) when it is set.

    Raises:
        BuildError: It cannot be built, or there is nothing to build (no weights to quantize).
        TargetMemoryError: The memory does not suffice.
        DataError: The labels do not fit the model.
        MissingPartError: A library is missing.
    """
    cache_dir = Path(cache_dir).absolute()
    tensorrt = key.backend == "tensorrt"
    engine = (engine or EngineOptions()) if tensorrt else None
    if tensorrt and importlib.util.find_spec("tensorrt") is None:
        import_tensorrt()  # says what is missing, without starting a process for it
    interval_max = _INTERVAL_SHARE * accuracy_drop_max
    rows = _row_facts(model, calibration, device, seed)
    name = cache_key(rows | _variant_facts(key, confidence, interval_max, engine))
    found = load_entry(cache_dir, name)
    if found is not None:
        return replace(_from_record(model, key, *found), cached=True)
    started = time.monotonic()
    with building(cache_dir) as folder:
        try:
            for part in ("out", "work", "tmp"):
                (folder / part).mkdir()
            request = BuildRequest(
                model=model,
                key=key,
                device=device,
                confidence=confidence,
                interval_max=interval_max,
                seed=seed,
                reference_key=cache_key(rows),
                # Several variants are built side by side.
                threads=max(1, (cores or usable_cores()) // 4),
                engine=engine,
                timing_cache=cache_dir / "tensorrt-timing.cache" if tensorrt else None,
                **_choose_rows(model, key, calibration, seed),
            )
            (folder / REQUEST_FILE).write_bytes(pickle.dumps(request))
        except OSError as error:
            raise write_error(cache_dir, error) from error
        result = _run_worker(folder, key, timeout_s, cancelled)
        record = {
            "file": result.file,
            "accuracy": asdict(result.accuracy),
            "notes": list(result.notes),
            "build_seconds": time.monotonic() - started,
        }
        final = publish(cache_dir, name, folder / "out", record)
        found = load_entry(cache_dir, name)
        if found is None:
            raise BuildError(
                f"The cache entry {final} vanished while it was written.",
                hint="Something else removes files from the cache folder; start again.",
            )
    return _from_record(model, key, *found)


def build_variants(
    model: ModelInfo,
    keys: Iterable[VariantKey],
    *,
    calibration: CalibrationData | None = None,
    cache_dir: Path,
    cores: int | None = None,
    **options: Any,
) -> dict[VariantKey, Variant | AnalyzerError]:
    """The variants ``keys``, built side by side; an error takes the place of one that failed.

    Args:
        cores: How many are built at once; None for all that this process may use.
        options: As :func:`build_variant`.
    """
    wanted = list(dict.fromkeys(keys))
    cores = cores or usable_cores()
    cancelled = threading.Event()

    def one(key: VariantKey) -> Variant | AnalyzerError:
        try:
            return build_variant(
                model,
                key,
                calibration=calibration,
                cache_dir=cache_dir,
                cancelled=cancelled,
                cores=cores,
                **options,
            )
        except AnalyzerError as error:
            return error

    with ThreadPoolExecutor(max_workers=cores) as pool:
        try:
            return dict(zip(wanted, pool.map(one, wanted), strict=True))
        except BaseException:
            cancelled.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _row_facts(
    model: ModelInfo, calibration: CalibrationData | None, device: str, seed: int
) -> dict[str, Any]:
    """Everything that decides which rows are used, and how the fp32 model answers them."""
    return {
        "builder": _BUILDER,
        "model": model.sha256,
        "inputs": [asdict(spec) for spec in model.inputs],
        "batchable": model.batchable,
        "calibration": calibration.sha256 if calibration else None,
        "device": device,
        "seed": seed,
        "machine": platform.machine(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }


def _variant_facts(
    key: VariantKey, confidence: float, interval_max: float, engine: EngineOptions | None
) -> dict[str, Any]:
    """Everything else that decides what is built and how it is judged."""
    backend = "onnxruntime" if key.backend == "python" else key.backend
    return {
        "key": asdict(replace(key, backend=backend)),
        "confidence": confidence,
        "interval_max": interval_max,
        "reduced_range": needs_reduced_range(),
        "engine": None if engine is None else {**asdict(engine), **engine_facts()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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
    static = key.precision == "int8" and key.quantization == "static"
    return {
        "calibrating": take_rows(inputs, calibrating) if static else None,
        "scoring": take_rows(inputs, scoring),
        "labels": None if labels is None else labels[scoring],
        "synthetic": calibration is None,
    }


def _run_worker(
    folder: Path, key: VariantKey, timeout_s: float, cancelled: threading.Event | None
) -> BuildResult:
    deadline = time.monotonic() + timeout_s
    log = folder / "build.log"
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            [sys.executable, "-m", "analyzer.variants.worker", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=child_environment() | {"TMPDIR": str(folder / "tmp")},
            start_new_session=True,
        ) as process,
    ):
        try:
            while process.poll() is None:
                if cancelled is not None and cancelled.wait(0.05):
                    raise BuildError(f"Building {key.label} was cancelled.")
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"Building {key.label} took longer than {timeout_s:g} s and was ended.",
                        hint="Leave this precision out with --precisions.",
                    )
                if cancelled is None:
                    time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.kill()
    result_file = folder / RESULT_FILE
    if process.returncode == 0 and result_file.is_file():
        result: BuildResult | AnalyzerError = pickle.loads(result_file.read_bytes())
        if isinstance(result, AnalyzerError):
            raise result
        return result
    if process.returncode == -signal.SIGKILL:
        raise TargetMemoryError(
            f"The process that built {key.label} was killed, most likely for want of memory.",
            hint="Use a machine with more memory, or leave this precision out with --precisions.",
        )
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise BuildError(
        f"The process that built {key.label} ended with code {process.returncode}"
        + (f": {lines[-1][:300]}" if lines else "."),
        hint="Leave this precision out with --precisions.",
    )


def _from_record(
    model: ModelInfo, key: VariantKey, folder: Path, record: dict[str, Any]
) -> Variant:
    accuracy = dict(record["accuracy"])
    if accuracy["interval"] is not None:
        accuracy["interval"] = tuple(accuracy["interval"])
    common: dict[str, Any] = {
        "key": key,
        "accuracy": Accuracy(**accuracy),
        "build_seconds": record["build_seconds"],
        "notes": tuple(record["notes"]),
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
    from analyzer.variants.inspect import hash_model

    return Variant(
        path=str(file),
        sha256=hash_model(file, external),
        size_bytes=sum((folder / name).stat().st_size for name in record["files"]),
        external_files=external,
        **common,
    )
