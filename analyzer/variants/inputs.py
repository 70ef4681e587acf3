"""Inputs for a model: made-up ones that are valid, and real ones from ``--calibration-data``."""

from __future__ import annotations

import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.model import NUMPY_DTYPES, ModelInfo, TensorSpec
from analyzer.errors import DataError
from analyzer.variants.accuracy import class_output
from analyzer.variants.row_check import failing_row, takes_nan

# More rows narrow no interval that is used, and calibrate no scale better.
ROWS_MAX = 4096
CALIBRATING_ROWS_MAX = 128
_NPY_START = b"\x93NUMPY"
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")  # the second: an empty archive

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CalibrationData:
    """Real inputs of a model.

    Args:
        inputs: One array per input, ``[rows, *shape]`` in the input's data type; of a model that
            cannot be batched each row is a whole request.
        labels: Class numbers, ``[rows]`` (or ``[rows, batch]`` where a request holds several); None
            if unknown.
        rows: Rows of every array.
        sha256: Hash of everything above.
        source: Where it comes from, for messages.
        notes: What was supposed of the file, for people.
    """

    inputs: Arrays
    labels: NDArray[np.int64] | None
    rows: int
    sha256: str
    source: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Fitted:
    """An array in the form of an input: ``[rows, *shape]``, each of ``per_row`` rows of the file.

    Args:
        where: The array's place and name, for messages.
    """

    where: str
    array: NDArray[np.generic]
    per_row: int


def synthetic_inputs(model: ModelInfo, rows: int, seed: int) -> dict[str, NDArray[np.generic]]:
    """Made-up valid inputs ``[rows, *shape]``, the same for the same seed.

    Floats are standard normal. Integers are uniform over the input's valid range, or over all of
    an 8-bit type without one; masks are all ones, so that every position takes part, and those that
    mark padding all zeros.

    Args:
        model: Whose inputs; all of its dimensions are known.
        rows: How many; of a model that cannot be batched each row is a whole request.
        seed: Of the random generator; every input draws from a stream of its own.
    """
    return {
        spec.name: _synthetic(spec, rows, np.random.default_rng([seed, index]))
        for index, spec in enumerate(model.inputs)
    }


def is_mask(spec: TensorSpec) -> bool:
    """Whether an input says which positions take part, by its type or its name.

    Floats that are masked, like the latents beside a mask, are none.
    """
    kind = np.dtype(NUMPY_DTYPES[spec.datatype]).kind
    name = spec.name.lower()
    return kind == "b" or ("mask" in name and (kind in "iu" or "masked" not in name))


def _synthetic(spec: TensorSpec, rows: int, rng: np.random.Generator) -> NDArray[np.generic]:
    dtype = np.dtype(NUMPY_DTYPES[spec.datatype])
    shape = (rows, *spec.shape)
    if is_mask(spec):
        return np.full(shape, 0 if "pad" in spec.name.lower() else 1, dtype)
    if spec.value_range is not None:
        low, high = spec.value_range
        return rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape, np.float32).astype(dtype)


def split_rows(
    rows: int, *, seed: int = 0, calibrating_max: int = CALIBRATING_ROWS_MAX
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers that calibrate and row numbers that score; no row does both.

    An eighth of the rows (at least one, at most ``calibrating_max``) calibrates; a single row only
    scores. The split depends on ``rows`` and ``seed`` alone.
    """
    order = np.random.default_rng([seed, rows]).permutation(rows)
    count = 0 if rows < 2 else min(calibrating_max, max(1, rows // 8))
    return np.sort(order[:count]), np.sort(order[count:])


def take_rows(inputs: Arrays, rows: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
    """The given rows of every array."""
    return {name: array[rows] for name, array in inputs.items()}


def load_calibration(path: Path, model: ModelInfo, *, rows_max: int = ROWS_MAX) -> CalibrationData:
    """The inputs, and the labels if there are any, in the ``.npz`` file ``path``.

    An array belongs to the input of its name; where model and file have one input each, the name
    does not matter (a note tells it). ``labels`` holds class numbers, unless an input is called so.
    Of a longer file the first ``rows_max`` rows are used.

    Raises:
        DataError: The file cannot be read, or an array's name, shape, type, number of rows or
            values do not fit the model.
    """
    path = Path(path)
    names = [spec.name for spec in model.inputs]
    arrays = _read_npz(path, names)
    labels = arrays.pop("labels", None) if "labels" not in names else None
    own_names = {name: name for name in names}
    if len(names) == 1 and len(arrays) == 1 and names[0] not in arrays:
        ((own_names[names[0]], array),) = arrays.items()
        arrays = {names[0]: array}
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(
            f"{path} has no array for the input {missing[0]!r} (it has:"
            f" {', '.join(arrays) or 'none'}).",
            hint=f"Save one array per input, under the input's name: {_savez(names)}.",
        )
    unknown = sorted(set(arrays) - set(names))
    if unknown:
        raise DataError(
            f"{path} has an array {unknown[0]!r}, which is no input of the model.",
            hint=f"The inputs are: {', '.join(names)}; class numbers are called 'labels'.",
        )
    fitted = {
        spec.name: _fit(
            _where(path, spec.name, own_names[spec.name]), spec, arrays[spec.name], model, rows_max
        )
        for spec in model.inputs
    }
    inputs = {name: own.array for name, own in fitted.items()}
    counts = {name: len(array) for name, array in inputs.items()}
    if len(set(counts.values())) > 1:
        raise DataError(
            f"{path}: the arrays have different numbers of rows ("
            + ", ".join(f"{name} {count}" for name, count in counts.items())
            + ").",
            hint="Each row is one example and needs a value for every input.",
        )
    rows = counts[names[0]]
    if rows == 0:
        raise DataError(f"{path} has no rows.", hint="Save at least a few dozen examples.")
    _refuse_nan(model, fitted)
    _refuse_failing(model, fitted)
    checked = None if labels is None else _fit_labels(path, labels, model, rows, rows_max)
    return CalibrationData(
        inputs=inputs,
        labels=checked,
        rows=rows,
        sha256=_hash(inputs, checked),
        source=str(path),
        notes=(
            *(
                f"{path}: its only array, {own!r}, is taken for the input {name!r}."
                for name, own in own_names.items()
                if own != name
            ),
            *_packing_note(path, fitted),
        ),
    )


def _where(path: Path, name: str, own_name: str) -> str:
    where = f"{path}: the array {own_name!r}"
    if own_name != name:
        where += f" (the only one, so taken for the input {name!r})"
    return where


def _packing_note(path: Path, fitted: Mapping[str, _Fitted]) -> tuple[str, ...]:
    per_row = max(own.per_row for own in fitted.values())
    if per_row == 1:
        return ()
    return (f"{path}: {per_row} of its rows make one request, the model's fixed batch.",)


def _read_npz(path: Path, inputs: list[str]) -> dict[str, NDArray[Any]]:
    hint = f"Save the arrays with {_savez([*inputs, 'labels'])}; labels may be left out."
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_NPY_START))
            if start == _NPY_START:
                raise DataError(f"{path} holds one array without a name.", hint=hint)
            if not start.startswith(_ZIP_STARTS):
                # numpy would take it for a pickle and advise to allow them.
                raise DataError(f"{path} is no .npz file.", hint=hint)
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as archive:
                return {name: _read_array(path, archive, name, hint) for name in archive.files}
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.", hint="Check --calibration-data.") from error
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        MemoryError,
    ) as error:  # RuntimeError: an encrypted archive
        raise DataError(f"{path} cannot be read as .npz: {error}.", hint=hint) from error


def _read_array(path: Path, archive: Any, name: str, hint: str) -> NDArray[Any]:
    with archive.zip.open(name if name in archive.zip.namelist() else f"{name}.npy") as member:
        if member.read(len(_NPY_START)) != _NPY_START:
            raise DataError(f"{path}: {name!r} is no array.", hint=hint)
    try:
        array: NDArray[Any] = archive[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise DataError(
            f"{path}: the array {name!r} holds Python objects, not numbers.",
            hint="Give its rows one length (padded, say), and a type before it is saved, like"
            f" .astype(numpy.float32). {hint}",
        ) from error
    return array


def _savez(names: list[str]) -> str:
    """The call that writes a file with these arrays."""
    words = [f"{n}=…" if n.isidentifier() else f"**{{{n!r}: …}}" for n in dict.fromkeys(names)]
    return f"numpy.savez(FILE, {', '.join(words)})"


def _fit(
    where: str, spec: TensorSpec, array: NDArray[Any], model: ModelInfo, rows_max: int
) -> _Fitted:
    """``array``, called ``where`` in messages, as ``[rows, *shape]`` in the input's type."""
    array, per_row = _as_requests(where, spec, array, model)
    array = array[:rows_max]
    dtype = np.dtype(NUMPY_DTYPES[spec.datatype])
    castable = array.dtype.kind in "biuf" and (
        np.can_cast(array.dtype, dtype, "same_kind")
        or (array.dtype.kind in "iu" and dtype.kind in "iu")
    )
    if not castable:
        raise DataError(
            f"{where} has the type {array.dtype}, which does not fit the input's {spec.datatype}.",
            hint=f"Save it with .astype(numpy.{dtype.name})."
            if dtype.kind not in "iu" or array.dtype.kind != "f" or (array == np.floor(array)).all()
            else "Its values are no whole numbers: save what the model takes, like pixels before"
            " they are scaled.",
        )
    if array.dtype.kind == "f" and np.isinf(array).any():
        raise _not_finite(where, np.isinf(array), per_row)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    lost = cast != array if dtype.kind in "iu" else np.isinf(cast) if dtype.kind == "f" else None
    if lost is not None and lost.any():
        row = _file_row(np.argwhere(lost)[0], per_row)
        raise DataError(
            f"{where} has a value in row {row} that {spec.datatype} cannot hold.",
            hint="Check that row, or the input's data type.",
        )
    return _Fitted(where=where, array=np.ascontiguousarray(cast), per_row=per_row)


def _as_requests(
    where: str, spec: TensorSpec, array: NDArray[Any], model: ModelInfo
) -> tuple[NDArray[Any], int]:
    """``array`` as ``[rows, *shape]``, and how many of the file's rows each of those holds.

    Of a model with a fixed batch single examples are packed, as many as fill whole requests.
    """
    shape = tuple(spec.shape)
    if array.ndim and {array.shape[1:], shape} == {(), (1,)}:
        # One number for each example: a server tells an axis of its own for it, a graph does not.
        array = array.reshape(-1, *shape)
    if array.ndim and array.shape[1:] == shape:
        return array, 1
    batch = None if model.batchable else model.fixed_batch
    if not batch or array.ndim != len(shape) or array.shape[1:] != shape[1:]:
        hint = "The first axis counts the examples; the others are the input's shape."
        if model.batchable and array.ndim == len(shape) + 2 and array.shape[2:] == shape:
            given = ",".join(map(str, array.shape[1:]))
            hint += (
                f" If the second is a length and no batch, add --input-shape {spec.name}:{given}."
            )
        raise DataError(
            f"{where} has the shape {_show(array.shape)}, and {_show(('rows', *shape))} is needed.",
            hint=hint,
        )
    if 0 < len(array) < batch:
        raise DataError(
            f"{where} has {len(array)} rows, and one request of this model holds {batch}.",
            hint="Save more examples.",
        )
    return array[: len(array) // batch * batch].reshape(-1, *shape), batch


def _file_row(place: NDArray[Any] | tuple[int, ...], per_row: int) -> int:
    """The row of the file that holds the value at ``place`` of the requests."""
    return int(place[0] * per_row + (place[1] if per_row > 1 else 0))


def _not_finite(where: str, places: NDArray[np.bool_], per_row: int) -> DataError:
    row = _file_row(np.argwhere(places)[0], per_row)
    return DataError(f"{where} has NaN or infinity in row {row}.", hint="Leave that row out.")


def _refuse_nan(model: ModelInfo, fitted: Mapping[str, _Fitted]) -> None:
    """Raises DataError where there is NaN, unless it is a missing value to the model."""
    missing = {
        name: np.isnan(own.array)
        for name, own in fitted.items()
        if own.array.dtype.kind == "f" and np.isnan(own.array).any()
    }
    if not missing or takes_nan(model, {name: own.array for name, own in fitted.items()}):
        return
    name, places = next(iter(missing.items()))
    raise _not_finite(fitted[name].where, places, fitted[name].per_row)


def _refuse_failing(model: ModelInfo, fitted: Mapping[str, _Fitted]) -> None:
    """Raises DataError where ONNX Runtime does not run a row with a doubtful value."""
    found = failing_row(model, {name: own.array for name, own in fitted.items()})
    if found is None:
        return
    own = fitted[found.name]
    raise DataError(
        f"{own.where} has the value {found.value} in row {_file_row(found.place, own.per_row)}, and"
        f" the model does not run that row: {found.reason}.",
        hint="Check that the examples were made for this model.",
    )


def _fit_labels(
    path: Path, labels: NDArray[Any], model: ModelInfo, rows: int, rows_max: int
) -> NDArray[np.int64]:
    where = f"{path}: the array 'labels'"
    batch = 1 if model.batchable else model.fixed_batch or 1
    misshapen = DataError(
        f"{where} has the shape {_show(labels.shape)}, and ({rows * batch},) is needed.",
        hint="One class number per example; take the argmax of one-hot labels.",
    )
    if labels.ndim == 0:
        raise misshapen
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        row = int(np.argwhere(~np.isfinite(labels))[0][0])
        raise DataError(f"{where} has NaN or infinity in row {row}.", hint="Leave that row out.")
    if labels.dtype.kind not in "iu" and not (
        labels.dtype.kind == "f" and (labels == np.floor(labels)).all()
    ):
        raise DataError(
            f"{where} has the type {labels.dtype}; class numbers are needed.",
            hint="Save integers from 0, in the order of the model's classes.",
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and batch > 1:
        labels = labels[: len(labels) // batch * batch].reshape(-1, batch)
    labels = labels[:rows_max]
    if labels.shape != ((rows, batch) if batch > 1 else (rows,)):
        raise misshapen
    if (labels < 0).any():
        raise DataError(f"{where} has negative class numbers.", hint="Count classes from 0.")
    if int(labels.max()) > np.iinfo(np.int64).max:
        raise DataError(
            f"{where} goes up to {labels.max()}, which is no class number.",
            hint="Count classes from 0, in the order of the model's output.",
        )
    output = class_output(model, labelled=True)
    classes = next((o.shape[-1] for o in model.outputs if o.name == output and o.shape), -1)
    fitting = class_output(model, labelled=True, classes_min=1 + int(labels.max()))
    if output is not None and fitting is None:
        raise DataError(
            f"{where} goes up to {labels.max()}, and the model's output {output!r} has"
            f" {classes} classes.",
            hint="Count classes from 0, in the order of the model's output.",
        )
    # Of an unbatched model the first dimension is that of the whole request.
    told = next((o.shape[0] for o in model.outputs if o.name == fitting and o.shape), -1)
    if not model.batchable and told not in (-1, batch):
        raise DataError(
            f"{where} gives each request {batch} class number{'s' * (batch > 1)}, and the model's"
            f" output {fitting!r} tells {told}.",
            hint="Leave the labels out: variants are then compared with what the model answers.",
        )
    return labels.astype(np.int64)


def _show(shape: tuple[object, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def _hash(inputs: Arrays, labels: NDArray[np.int64] | None) -> str:
    total = hashlib.sha256()
    arrays: dict[str, NDArray[Any]] = dict(inputs)
    if labels is not None:
        arrays["labels"] = labels
    for name, array in sorted(arrays.items()):
        total.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        total.update(np.ascontiguousarray(array).data if array.size else b"")
    return total.hexdigest()
