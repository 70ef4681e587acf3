"""``python -m analyzer.service.inspect_main KIND FILE NAME``: what an uploaded file is, as JSON.

``… inspect_main job MODEL SHAPES [DATA]`` says whether a search can use a model with these shapes
of its inputs (JSON) and these real data, as the search would find out.

Run by ``inspection`` in a child that can do no harm: parsing a file of a stranger's is where that
begins. Refused is what no job could use: a file of another kind, a model whose weights lie
elsewhere or that ONNX Runtime cannot load, an archive that holds more than a model directory,
arrays that hold pickled objects or unpack to more than the limit.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.errors import AnalyzerError, BuildError, DataError, MissingPartError, ModelError
from analyzer.service.archive import HEAD_BYTES, is_archive, unpack
from analyzer.service.names import UPLOAD_NAME

if TYPE_CHECKING:
    from analyzer.domain.model import ModelInfo

# Of all arrays together, unpacked: what a search loads into memory.
_UNPACKED_MAX = 8 << 30
_COMPRESSED = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ")  # gzip, zip, zstd, xz
#: Exit code: the machine has no room, which says nothing about the file.
NO_ROOM = 74  # sysexits.h: EX_IOERR
#: Bytes of arrays, unpacked, that are held against a model; larger ones are left to the job.
FITTED_MAX = 1 << 30
_NAMES_MAX = 200  # inputs or outputs that are listed
_SHAPE_OPTION = "--input-shape"


def inspect_model(path: Path, name: str) -> dict[str, Any]:
    """Inputs, outputs and operator set of an ONNX file, or of the model in an archive.

    Args:
        name: What a job's folder will call it.

    Raises:
        ModelError: It is none, keeps weights elsewhere, or no search can use it.
        RepositoryError: Triton refuses its configuration.
    """
    place = _in_place(path, name)
    if place == path:
        found = {"format": "onnx", **_inspect_onnx(path, weights=False)}
    else:
        found = _inspect_directory(place)
    return found | _as_searched(place)


def _in_place(path: Path, name: str = "model") -> Path:
    """Where the model in the file ``path`` lies: the file itself, or the folder of an archive.

    Args:
        name: Of that folder.

    Raises:
        ModelError: It is compressed, or its archive cannot be used.
    """
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if head.startswith(_COMPRESSED):
        raise ModelError(
            "It is compressed.", hint="Send the ONNX file itself, or a plain tar (tar -cf)."
        )
    if not is_archive(head):
        return path
    folder = Path("unpacked") / name
    unpack(path, folder)
    return folder


def _as_searched(place: Path) -> dict[str, Any]:
    """What a search finds out about the model: whether it can be batched, which shapes it lacks.

    Empty where that shows on a worker alone: ONNX Runtime is not here, or not its kernels for GPUs.

    Raises:
        ModelError: No search can use it.
    """
    try:
        return {"batchable": _searched_model(place, {}).batchable, "shapes_missing": None}
    except ModelError as error:
        if _SHAPE_OPTION in error.hint:
            return {"shapes_missing": {"detail": error.message, "hint": error.hint}}
        if _on_workers_alone(error):
            return {}
        raise
    except (BuildError, MissingPartError):
        return {}


def _on_workers_alone(error: ModelError) -> bool:
    """Whether ONNX Runtime knows the operator and has no kernel for it here, without a GPU."""
    return type(error.__cause__).__name__ == "NotImplemented"


def _searched_model(place: Path, shapes: Mapping[str, tuple[int, ...]]) -> ModelInfo:
    """The model as a search with these shapes of inputs inspects it.

    Raises:
        BuildError: Its form for Triton cannot be written.
        ModelError: The search would refuse it, or the shapes.
        MissingPartError: ONNX Runtime is not here, or the memory does not suffice.
    """
    from analyzer.variants.inspect import inspect_model as inspect

    scratch = Path("scratch")
    if place.is_file():
        return inspect(place, input_shapes=shapes, scratch=scratch)

    from analyzer.modelconfig.render import input_shapes
    from analyzer.modelconfig.text import CONFIG_NAME, read_config
    from analyzer.variants.deployed import inspect_deployed

    config = place / CONFIG_NAME
    if not config.is_file():
        return inspect(place, input_shapes=shapes, scratch=scratch)
    written = input_shapes(read_config(config))
    return inspect_deployed(place, written, given=shapes, scratch=scratch)


def inspect_job(model: Path, shapes: Mapping[str, tuple[int, ...]], data: Path | None) -> None:
    """Returns where a search can use the model with these shapes and data, as far as shows here.

    Raises:
        ModelError: The shapes do not fit the model.
        DataError: The data do not.
    """
    from analyzer.variants.inputs import load_calibration

    try:
        found = _searched_model(_in_place(model), shapes)
    except (BuildError, MissingPartError):
        return
    except ModelError as error:
        if _on_workers_alone(error):
            return
        raise
    if data is not None and _unpacked_bytes(data) <= FITTED_MAX:
        load_calibration(data, found)


def _unpacked_bytes(data: Path) -> int:
    with zipfile.ZipFile(data) as archive:
        return sum(member.file_size for member in archive.infolist())


def _inspect_directory(folder: Path) -> dict[str, Any]:
    from analyzer.modelconfig.text import CONFIG_NAME
    from analyzer.variants.onnx_file import locate_onnx

    config = folder / CONFIG_NAME
    if config.is_file():
        _check_name(config)
    versions = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    found = _inspect_onnx(locate_onnx(folder), weights=True)
    if config.is_file():
        _check_config(folder)
    return {
        "format": "directory",
        "config": config.is_file(),
        "versions": sorted(name for name in versions if name.isdecimal()),
        **found,
    }


def _check_name(config: Path) -> None:
    """Raises AnalyzerError where ``config`` cannot be read, or calls its folder something else."""
    from analyzer.modelconfig.text import read_config

    name, folder = read_config(config).name, config.parent.name
    if name and name != folder:
        rename = f"Upload it under the name {name} (in the page: a file {name}.tar), or leave"
        possible = re.fullmatch(UPLOAD_NAME, name)
        raise ModelError(
            f"Its {config.name} calls the model {name[:100]!r}, and it is uploaded as {folder!r}.",
            hint=f"{rename if possible else 'Leave'} the name out of {config.name}.",
        )


def _check_config(folder: Path) -> None:
    """Raises AnalyzerError where a search refuses the folder's configuration."""
    from analyzer.variants.deployed import deployed_config

    try:
        deployed_config(folder)
    except MissingPartError:
        return  # whether it fits the graph shows where ONNX Runtime is
    except ModelError as error:
        if not _on_workers_alone(error):
            raise


def _inspect_onnx(path: Path, *, weights: bool) -> dict[str, Any]:
    """What an ONNX file holds.

    Args:
        weights: Whether weights may lie in files beside it.
    """
    import onnx

    from analyzer.modelconfig.weights import external_pieces

    try:
        proto = onnx.load(path, load_external_data=False)
    except MemoryError:
        raise  # of the limits, not of the file
    except Exception as error:  # protobuf raises what its parser raises
        raise ModelError(f"It is no ONNX file, or it is truncated: {error}.") from error
    if not proto.HasField("graph") or not proto.graph.output:
        raise ModelError("It is no ONNX file: it holds no graph with outputs.")
    for location, tensor, *_ in external_pieces(proto.graph):
        if not weights:
            raise ModelError(
                f"It keeps the weights of {tensor[:100]!r} in another file, {location[:100]!r}.",
                hint="Save it in one file (onnx.save(onnx.load(FILE), 'one.onnx')), or upload its "
                "Triton model directory as a tar.",
            )
        if "/" in location or location in ("", ".", "..") or not (path.parent / location).is_file():
            raise ModelError(
                f"It keeps the weights of {tensor[:100]!r} in {location[:100]!r}, which is not "
                "beside the model in the archive."
            )
    known = {tensor.name for tensor in proto.graph.initializer}
    inputs = [_value(value) for value in proto.graph.input if value.name not in known]
    opsets = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
    return {
        "inputs": inputs[:_NAMES_MAX],
        "outputs": [_value(value) for value in proto.graph.output][:_NAMES_MAX],
        "opset": max(opsets, default=None),
    }


def _value(value: Any) -> dict[str, Any]:
    import onnx

    tensor = value.type.tensor_type
    dims = [
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
        for dim in tensor.shape.dim
    ]
    return {
        "name": value.name,
        "datatype": onnx.TensorProto.DataType.Name(tensor.elem_type),
        "shape": dims,
    }


def inspect_calibration(path: Path) -> dict[str, Any]:
    """Names, types and shapes of the arrays of an ``.npz`` file; none is unpacked.

    Raises:
        DataError: It is none, holds objects, or is larger than it may be unpacked.
    """
    from numpy.lib import format as npy

    arrays = []
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > _UNPACKED_MAX:
                raise DataError(f"Its arrays unpack to more than {_UNPACKED_MAX:,} bytes.")
            for member in members[:_NAMES_MAX]:
                with archive.open(member) as stream:
                    version = npy.read_magic(stream)
                    read = (
                        npy.read_array_header_1_0
                        if version == (1, 0)
                        else npy.read_array_header_2_0
                    )
                    shape, _, dtype = read(stream)
                if dtype.hasobject:
                    raise DataError(f"Its array {member.filename[:100]!r} holds pickled objects.")
                arrays.append(
                    {
                        "name": member.filename.removesuffix(".npy"),
                        "datatype": str(dtype),
                        "shape": list(shape),
                    }
                )
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise DataError(
            f"It is no .npz file: {error}.", hint="Write it with numpy.savez(FILE, NAME=array)."
        ) from error
    if not arrays:
        raise DataError("It holds no array.")
    return {"arrays": arrays}


def inspect_scenario(path: Path) -> dict[str, Any]:
    """What load a scenario holds: a trace of arrivals, ``arrival_ms[,batch_size]``.

    Raises:
        DataError: It is none.
    """
    from analyzer.domain.workload import read_trace

    trace = read_trace(path)
    seconds = float(trace.arrival_s[-1] - trace.arrival_s[0])
    return {
        "format": "trace",
        "requests": len(trace.arrival_s),
        "duration_s": seconds,
        "batch_size_max": int(trace.batch_size.max()) if trace.batch_size is not None else 1,
    }


_INSPECT = {
    "calibration": inspect_calibration,
    "scenario": inspect_scenario,
}


def _asked(kind: str, path: Path) -> dict[str, Any]:
    if kind == "model":
        return inspect_model(path, sys.argv[3])
    if kind != "job":
        return _INSPECT[kind](path)
    shapes, *data = sys.argv[3:]
    given = {name: tuple(dims) for name, dims in json.loads(shapes).items()}
    inspect_job(path, given, Path(data[0]) if data else None)
    return {}


def main() -> int:
    """Prints what the file is, or why it is refused (2 then); :data:`NO_ROOM` on a full disk."""
    kind, path = sys.argv[1], Path(sys.argv[2])
    try:
        try:
            found, code = _asked(kind, path), 0
        except AnalyzerError as error:
            # Where this child works is nobody's business.
            message, hint = (
                text.replace(f"{Path.cwd()}/", "").replace("unpacked/", "")
                for text in (error.message, error.hint)
            )
            found, code = {"refused": message, "hint": hint, "code": error.code}, 2
        print(json.dumps(found), flush=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Without what could not be written, at its exit as well.
        os._exit(NO_ROOM)
    return code


if __name__ == "__main__":
    sys.exit(main())
