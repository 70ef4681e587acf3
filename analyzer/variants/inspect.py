"""Reads a model: its tensors, whether it can be batched, and what its inputs may hold.

Whether ONNX Runtime can run a model is asked of ONNX Runtime itself, by opening a session. ONNX's
own checker is not used: it refuses models that run (operators beside the standard, weights behind
symbolic links) and accepts models that do not.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analyzer.domain.model import NUMPY_DTYPES, ModelInfo, TensorSpec
from analyzer.engine.runtimes.onnxruntime_ import (
    ORT_DATATYPES,
    OrtRuntime,
    first_line,
    import_onnxruntime,
)
from analyzer.errors import (
    MissingPartError,
    ModelError,
    TargetError,
    TargetMemoryError,
    is_out_of_memory,
)
from analyzer.variants.cache import file_sha256
from analyzer.variants.example_shapes import accepted_shapes
from analyzer.variants.graph import external_pieces, half_weights, table_ranges
from analyzer.variants.scalars import with_dimensions
from analyzer.variants.shapes import (
    Declared,
    Dims,
    as_sizes,
    declared_dims,
    known,
    resolve,
    state_loops,
    unbatched_reasons,
    unknown_shapes,
)

# More than three of a kind say nothing new.
_REASONS_SHOWN = 3
_ONE_ROW_NOTE = (
    "Served unbatched: the first dimension is declared dynamic, but the graph works for one row"
    " only."
)
_WIDE_INTEGERS = ("INT16", "INT32", "INT64", "UINT16", "UINT32", "UINT64")


def locate_onnx(path: Path) -> Path:
    """The ONNX file that ``path`` means: itself, or that of a Triton model directory.

    In a directory it is ``model.onnx`` (or the only ``.onnx``) of the highest numeric version, as
    Triton's default policy; a directory without versions may hold the file itself. Triton also
    allows ``model.onnx`` to be a folder with ``model.onnx`` and its weights in it.

    Raises:
        ModelError: There is none.
    """
    if not path.exists():
        raise ModelError(
            f"{path} does not exist.",
            hint="Give the path of an ONNX file or a Triton model folder.",
        )
    if path.is_file():
        return path
    versions = [
        entry
        for entry in path.iterdir()
        if entry.is_dir() and re.fullmatch(r"[1-9][0-9]*", entry.name)
    ]
    folder = max(versions, key=lambda entry: int(entry.name)) if versions else path
    if (folder / "model.onnx").is_dir():
        folder = folder / "model.onnx"
    if (folder / "model.onnx").is_file():
        return folder / "model.onnx"
    files = sorted(folder.glob("*.onnx"))
    if len(files) == 1 and files[0].is_file():
        return files[0]
    found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
    what = "several .onnx files and no model.onnx" if files else "no ONNX file"
    raise ModelError(
        f"{folder} holds {what} (found: {found}).",
        hint="A Triton model folder holds VERSION/model.onnx; otherwise give the .onnx file.",
    )


def inspect_model(
    path: Path,
    *,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    name: str | None = None,
    scratch: Path | None = None,
) -> ModelInfo:
    """What there is to know about the model at ``path``; opens a session to be sure that it runs.

    Ranges of integer inputs: those of the tables they index (:func:`~analyzer.variants.graph.
    table_ranges`); without a table, 8-bit ones may hold anything and wider ones hold 0 and 1, which
    is right for masks and segment ids and inside any table.

    Args:
        path: An ONNX file or a Triton model directory.
        input_shapes: Shapes by input, without the batch axis, for inputs with dynamic dimensions; a
            named dimension given once holds for every input that has it.
        name: The name to serve it under; default from the file or directory.
        scratch: Where a model with scalars is kept in the form that Triton can serve
            (:mod:`~analyzer.variants.scalars`), which is then the model; None leaves it as it is.

    Raises:
        BuildError: ``scratch`` cannot be written.
        ModelError: The file cannot be used, or ``input_shapes`` do not fit or are missing.
        MissingPartError: ONNX Runtime is not installed.
    """
    path = Path(path)
    file = locate_onnx(path).absolute()
    proto = _load(file)
    external = _check_external(file, proto)
    session = _open_session(file)
    inputs = [_declared(value, "input") for value in session.get_inputs()]
    outputs = [_declared(value, "output") for value in session.get_outputs()]
    if not inputs:
        raise ModelError(
            f"{file} has no inputs, so there is nothing to send to it.",
            hint="Export the model with its inputs.",
        )
    reasons = unbatched_reasons(inputs, outputs)
    loops = state_loops(inputs, outputs)
    scalars = [tensor.name for tensor in (*inputs, *outputs) if not tensor.dims]
    if scalars and scratch is not None:
        served = scratch / hash_model(file, external)[:24] / file.name
        if not served.is_file():
            with_dimensions(file, scalars, served)
        model = inspect_model(served, input_shapes=input_shapes, name=name or default_name(path))
        shown = ", ".join(map(repr, scalars))
        told = f"Triton serves no scalars, so one dimension of size 1 is added to {shown}."
        return replace(model, notes=(*_notes(reasons, loops), told))
    batchable = not reasons
    shapes, symbols = resolve(
        inputs, input_shapes or {}, batchable=batchable, states=[name for name, _ in loops]
    )
    drop = 1 if batchable else 0
    ranges = _value_ranges(proto, inputs)
    model = ModelInfo(
        name=name or default_name(path),
        path=str(file),
        sha256=hash_model(file, external),
        batchable=batchable,
        fixed_batch=_fixed_batch(inputs, shapes) if not batchable else None,
        inputs=tuple(
            TensorSpec(
                name=tensor.name,
                datatype=tensor.datatype,
                shape=as_sizes(shapes[tensor.name]),
                value_range=ranges.get(tensor.name),
            )
            for tensor in inputs
        ),
        outputs=tuple(
            TensorSpec(
                name=tensor.name,
                datatype=tensor.datatype,
                shape=as_sizes(known(tensor.dims[drop:], symbols)),
            )
            for tensor in outputs
        ),
        opset=next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0),
        size_bytes=sum((file.parent / part).stat().st_size for part in (file.name, *external)),
        external_files=external,
        notes=_notes(reasons, loops, half_weights(proto)),
    )
    if any(-1 in spec.shape for spec in model.inputs):
        raise unknown_shapes(
            shapes, batchable=batchable, example=accepted_shapes(session, model, shapes)
        )
    return model


def _fixed_batch(inputs: Sequence[Declared], shapes: Mapping[str, Dims]) -> int | None:
    """The one fixed first dimension that all inputs have and keep, None if they differ."""
    fixed = {tensor.dims[0] for tensor in inputs if tensor.dims if isinstance(tensor.dims[0], int)}
    kept = {shape[0] for shape in shapes.values() if shape}
    size = fixed.pop() if len(fixed) == 1 and kept == fixed else None
    return size if isinstance(size, int) else None


def _notes(
    reasons: Sequence[str], loops: Sequence[tuple[str, str]], half: str = ""
) -> tuple[str, ...]:
    """What to say of a model that cannot be batched, carries a state, or is no fp32 model."""
    notes = []
    if reasons:
        shown = [*reasons[:_REASONS_SHOWN], *(["…"] if len(reasons) > _REASONS_SHOWN else [])]
        notes.append(f"Served unbatched: {'; '.join(shown)}.")
    if loops:
        pairs = ", ".join(f"{old!r} comes back as {new!r}" for old, new in loops[:_REASONS_SHOWN])
        notes.append(
            f"The model carries a state ({pairs}): requests are measured with the same state"
            " each time."
        )
    if half:
        notes.append(f"The weights are {half}: the precision fp32 means the model as it is.")
    return tuple(notes)


def as_unbatched(
    model: ModelInfo, outputs: Mapping[str, tuple[int, ...]] | None = None
) -> ModelInfo:
    """``model`` as one that cannot be batched, every request holding one row.

    For models whose first dimension is declared dynamic although the graph works for one row only.

    Args:
        outputs: Shapes of the outputs for one row, where they are known.
    """
    known = outputs or {}
    if not model.batchable:
        return model
    return replace(
        model,
        batchable=False,
        fixed_batch=1,
        notes=(*model.notes, _ONE_ROW_NOTE),
        inputs=tuple(replace(spec, shape=(1, *spec.shape)) for spec in model.inputs),
        outputs=tuple(
            replace(spec, shape=known.get(spec.name, (1, *spec.shape))) for spec in model.outputs
        ),
    )


def try_model(model: ModelInfo, rows: Mapping[str, Any]) -> tuple[ModelInfo, float]:
    """``model`` as it really runs, tried on two rows of inputs (``[rows, *shape]``).

    Some graphs declare a dynamic first dimension and hold a reshape to one row; those come back as
    models that cannot be batched (:func:`as_unbatched`).

    Returns:
        The model, and the seconds that one inference took.

    Raises:
        ModelError: It does not even run one row; made-up inputs may be the reason.
        TargetMemoryError: It runs out of memory.
    """
    runtime = OrtRuntime(model.path)
    try:
        lead = slice(0, 1) if model.batchable else 0
        # The ellipsis keeps a scalar an array.
        begun = time.perf_counter()
        one = runtime.run({name: array[lead, ...] for name, array in rows.items()})
        inference_s = time.perf_counter() - begun
        shapes = {name: array.shape for name, array in one.items()}
        if not model.batchable or len(next(iter(rows.values()))) < 2:
            return model, inference_s
        try:
            begun = time.perf_counter()
            two = runtime.run({name: array[:2] for name, array in rows.items()})
        except TargetMemoryError:
            raise
        except TargetError:
            return as_unbatched(model, shapes), inference_s
        # The first run makes room for what the others use again.
        inference_s = min(inference_s, (time.perf_counter() - begun) / 2)
        grown = all(two[name].shape == (2, *shape[1:]) for name, shape in shapes.items())
        return model if grown else as_unbatched(model, shapes), inference_s
    except TargetMemoryError:
        raise
    except TargetError as error:
        raise ModelError(
            f"The model loads and does not run: {error.message}",
            hint="If its inputs need special values, give real ones with --calibration-data;"
            " check --input-shape otherwise.",
        ) from error
    finally:
        runtime.close()


def default_name(path: Path) -> str:
    """A name that Triton accepts (letters, digits, ``_ . -``), from a file or model directory."""
    path = Path(path).absolute()
    stem = path.name if path.is_dir() else path.stem
    if path.is_file() and re.fullmatch(r"[0-9]+", path.parent.name):
        stem = path.parent.parent.name  # VERSION/model.onnx of a model directory
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", stem).strip("._-") or "model"


def hash_model(file: Path, external: Sequence[str] = ()) -> str:
    """SHA-256 of ``file``; with external weights that of all files' digests and names, in order."""
    try:
        digest = file_sha256(file)
        if not external:
            return digest
        total = hashlib.sha256(digest.encode())
        for part in sorted(external):
            total.update(f"{part} {file_sha256(file.parent / part)}".encode())
        return total.hexdigest()
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}.") from error


def _load(file: Path) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    hint = "Give an ONNX file; one that was cut short while copying has to be copied again."
    try:
        size = file.stat().st_size
        if not size:
            raise ModelError(f"{file} is empty.", hint=hint)
        proto = onnx.load(str(file), format="protobuf", load_external_data=False)
    except OSError as error:
        raise ModelError(
            f"{file} cannot be read: {error.strerror or error}.", hint="Check its permissions."
        ) from error
    except (DecodeError, ValueError, MemoryError) as error:
        raise ModelError(
            f"{file} ({size:,} bytes) is no ONNX file, or it is truncated: {first_line(error)}.",
            hint=hint,
        ) from error
    if not proto.HasField("graph") or not proto.graph.output:
        raise ModelError(f"{file} is no ONNX file: it holds no graph with outputs.", hint=hint)
    return proto


def _check_external(file: Path, proto: Any) -> tuple[str, ...]:
    """Names of the files with external weights, each there and long enough."""
    needed: dict[str, int] = {}
    for location, tensor, offset, length in external_pieces(proto.graph):
        part = file.parent / location
        if not location or not part.is_file():
            raise ModelError(
                f"{file} keeps the weights of {tensor!r} in {location!r}, which is not beside it.",
                hint="Copy the file with the external weights into the model's folder.",
            )
        needed[location] = max(needed.get(location, 0), offset + (length or 0))
    for location, end in needed.items():
        size = (file.parent / location).stat().st_size
        if size < end:
            raise ModelError(
                f"{file.parent / location} is truncated: it has {size:,} bytes and the model needs"
                f" {end:,}.",
                hint="Copy the file with the external weights again.",
            )
    return tuple(sorted(needed))


def _open_session(file: Path) -> Any:
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        try:
            return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception:
            # Some operators exist for CUDA only.
            providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
            if providers[0] not in ort.get_available_providers():
                raise
            return ort.InferenceSession(str(file), options, providers=providers)
    except Exception as error:
        if is_out_of_memory(error):
            raise MissingPartError(
                f"{file} does not fit into this machine's memory: {first_line(error)}.",
                hint="Use a machine with more memory.",
            ) from error
        reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", first_line(error))
        operator = re.search(
            r"No Op registered for (\S+)|Fatal error: (\S+?)(?:\(-?\d+\))? is not a registered"
            r"|Could not find an implementation for (\S+?)(?:\(-?\d+\))? ",
            str(error),
        )
        if operator:
            which = next(group for group in operator.groups() if group)
            raise ModelError(
                f"{file} uses the operator {which}, which ONNX Runtime {ort.__version__} does not"
                f" have: {reason}.",
                hint="Export the model with standard operators, or with an opset that this ONNX"
                " Runtime knows.",
            ) from error
        raise ModelError(
            f"ONNX Runtime {ort.__version__} cannot load {file}: {reason}",
            hint="Check the export; ONNX Runtime has to run the model before it can be tuned.",
        ) from error


def _declared(value: Any, role: str) -> Declared:
    """A session's NodeArg as our own record."""
    dims = declared_dims(value.shape)
    return Declared(name=value.name, datatype=_datatype(value, role), dims=dims)


def _datatype(value: Any, role: str) -> str:
    """Triton's name of the type of ``value``, a NodeArg of a session."""
    datatype = ORT_DATATYPES.get(value.type, "")
    if datatype in NUMPY_DTYPES:
        return datatype
    if datatype == "BYTES":
        raise ModelError(
            f"The {role} {value.name!r} holds strings, which cannot be tuned.",
            hint="Export the model without its text pre- or post-processing (numbers in, numbers"
            " out).",
        )
    hint = (
        "For scikit-learn models, convert with options={id(model): {'zipmap': False}}."
        if value.type.startswith(("seq", "map"))
        else "Supported: " + ", ".join(NUMPY_DTYPES) + "."
    )
    raise ModelError(
        f"The {role} {value.name!r} has the type {value.type}, which cannot be served.", hint=hint
    )


def _value_ranges(proto: Any, inputs: Sequence[Declared]) -> dict[str, tuple[int, int]]:
    import onnx

    if proto.functions:
        try:
            proto = onnx.inliner.inline_local_functions(proto)
        except Exception:
            return {t.name: (0, 1) for t in inputs if t.datatype in _WIDE_INTEGERS}
    ranges = table_ranges(proto)
    return {
        tensor.name: ranges.get(tensor.name, (0, 1))
        for tensor in inputs
        if tensor.name in ranges or tensor.datatype in _WIDE_INTEGERS
    }
