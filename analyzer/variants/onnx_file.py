"""The files of a model: where they lie, what they are called, their hash, and what is in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyzer.engine.runtimes.onnxruntime_ import first_line
from analyzer.errors import MissingPartError, ModelError
from analyzer.variants.cache import file_sha256
from analyzer.variants.graph import external_pieces


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
    names = sorted(entry.name for entry in folder.iterdir())
    found = ", ".join([*names[:8], *(["…"] if len(names) > 8 else [])]) or "nothing"
    what = "several .onnx files and no model.onnx" if files else "no ONNX file"
    raise ModelError(
        f"{folder} holds {what} (found: {found}).",
        hint="A Triton model folder holds VERSION/model.onnx; otherwise give the .onnx file.",
    )


def default_name(path: Path) -> str:
    """A name that Triton accepts (letters, digits, ``_ . -``), from a file or model directory."""
    path = Path(path).absolute()
    stem = path.name if path.is_dir() else path.stem
    if path.is_file() and stem == "model" and re.fullmatch(r"[0-9]+", path.parent.name):
        stem = path.parent.parent.name  # VERSION/model.onnx of a model directory
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", stem).strip("._-") or "model"


def hash_model(file: Path, external: Sequence[str] = ()) -> str:
    """SHA-256 of ``file``; with external weights that of all files' digests and names, in order.

    Raises:
        ModelError: A file cannot be read.
    """
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


def load_onnx(file: Path) -> Any:
    """The ``onnx.ModelProto`` of ``file``, without weights that lie in other files.

    Raises:
        ModelError: It cannot be read, or is no model.
        MissingPartError: The memory does not suffice.
    """
    import onnx
    from google.protobuf.message import DecodeError

    hint = (
        "Give an ONNX file; one that was cut short while copying has to be copied again. A file "
        "cannot hold more than 2 GiB: save larger weights beside it (external data)."
    )
    try:
        size = file.stat().st_size
        if not size:
            raise ModelError(f"{file} is empty.", hint=hint)
        proto = onnx.load(str(file), format="protobuf", load_external_data=False)
    except OSError as error:
        raise ModelError(
            f"{file} cannot be read: {error.strerror or error}.", hint="Check its permissions."
        ) from error
    except MemoryError as error:
        raise MissingPartError(
            f"{file} ({size:,} bytes) does not fit into this machine's memory.",
            hint="Use a machine with more memory.",
        ) from error
    except (DecodeError, ValueError) as error:
        raise ModelError(
            f"{file} ({size:,} bytes) is no ONNX file, or it is truncated: {first_line(error)}.",
            hint=hint,
        ) from error
    if not proto.HasField("graph") or not proto.graph.output:
        raise ModelError(f"{file} is no ONNX file: it holds no graph with outputs.", hint=hint)
    return proto


def external_files(file: Path, proto: Any) -> tuple[str, ...]:
    """Names of the files with external weights, each there and long enough.

    Raises:
        ModelError: One is missing, or cut short.
    """
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
