"""The files of a model: where they lie, what they are called, their hash, and what is in them.

What reads Triton's configurations is loaded for model directories alone: for a small file it would
take a quarter of the time of a look.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyzer.engine.runtimes.onnxruntime_ import first_line
from analyzer.errors import MissingPartError, ModelError
from analyzer.modelconfig.weights import external_pieces
from analyzer.paths import barred, exists
from analyzer.variants.cache import file_sha256
from analyzer.variants.naming import model_stem, plain_name


def locate_onnx(path: Path) -> Path:
    """The ONNX file that ``path`` means: itself, or that of a Triton model directory.

    In a directory it is the file that ``config.pbtxt`` names, else ``model.onnx``, of the highest
    version that its version policy serves; Triton takes no other. A directory without versions may
    hold the file itself, of any name where it is the only ``.onnx``. Triton also allows a folder of
    the file's name with the file and its weights in it.

    Raises:
        ModelError: There is none, or none that ONNX Runtime could open by its path.
        RepositoryError: ``config.pbtxt`` cannot be read, or its policy serves none of the versions.
    """
    if not exists(path):
        reason = barred(path)
        raise ModelError(
            f"{path} cannot be looked at: {reason}." if reason else f"{path} does not exist.",
            hint="Give the path of an ONNX file or a Triton model folder.",
        )
    _refuse_bytes(path.absolute())
    return path if path.is_file() else _in_directory(path)


def _refuse_bytes(path: Path) -> None:
    """Raises ModelError where ``path`` has bytes that are no text: ONNX Runtime takes text."""
    if str(path).isascii():
        return
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        encoding = sys.getfilesystemencoding()
        shown = os.fsencode(path).decode(encoding, "backslashreplace")
        raise ModelError(
            f"The path {shown} has bytes that are no text in the encoding of file names here"
            f" ({encoding}), and ONNX Runtime opens no such file.",
            hint="Rename it, or run the command in a UTF-8 locale (LC_ALL=C.UTF-8).",
        ) from error


def _in_directory(path: Path) -> Path:
    from analyzer.modelconfig.render import MODEL_FILENAMES
    from analyzer.modelconfig.repository import list_versions, load_config
    from analyzer.modelconfig.rules import served_versions
    from analyzer.modelconfig.text import CONFIG_NAME

    config = load_config(path)
    config.name = config.name or path.name
    versions = list_versions(path)
    folder = path / str(served_versions(config, versions)[-1]) if versions else path
    name = config.default_model_filename
    named = bool(name) and name not in MODEL_FILENAMES.values()
    if named and Path(name).name != name:
        raise ModelError(
            f"{path / CONFIG_NAME}: default_model_filename {name!r} is not the name of a file.",
            hint="It names a file in the version's folder, like net.onnx.",
        )
    wanted = folder / (name if named else MODEL_FILENAMES["onnxruntime"])
    if wanted.is_dir():
        folder = wanted
        wanted = folder / wanted.name
    if wanted.is_file():
        return wanted
    files = sorted(folder.glob("*.onnx"))
    if not (named or versions) and len(files) == 1 and files[0].is_file():
        return files[0]
    if models := [] if versions else _models_in(path):
        others = f" (there are {len(models)})" if len(models) > 1 else ""
        raise ModelError(
            f"{path} is a repository, and one model of it is needed.",
            hint=f"Give the folder of a model, like {path / models[0]}{others}.",
        )
    names = sorted(entry.name for entry in folder.iterdir())
    found = ", ".join([*names[:8], *(["…"] if len(names) > 8 else [])]) or "nothing"
    what = "several .onnx files and no model.onnx" if files else "no ONNX file"
    if named:
        what = f"no {name}, which {CONFIG_NAME} names"
    elif versions and len(files) == 1:
        what = f"no {wanted.name}, for which Triton looks there"
    raise ModelError(
        f"{folder} holds {what} (found: {found}).",
        hint=_rename_hint(files[0].name, wanted.name)
        if versions and len(files) == 1
        else "A Triton model folder holds VERSION/model.onnx; otherwise give the .onnx file.",
    )


def _rename_hint(found: str, wanted: str) -> str:
    setting = f'backend: "onnxruntime" default_model_filename: "{found}"'
    return f"Call it {wanted}, or write {setting} into config.pbtxt."


def _models_in(repository: Path) -> list[str]:
    """Names of the folders in ``repository`` that hold versions of a model."""
    from analyzer.modelconfig.repository import list_versions
    from analyzer.modelconfig.text import CONFIG_NAME

    return sorted(
        entry.name
        for entry in repository.iterdir()
        if entry.is_dir() and (list_versions(entry) or (entry / CONFIG_NAME).is_file())
    )


def default_name(path: Path) -> str:
    """A name that Triton accepts (letters, digits, ``_ . -``), from a file or model directory."""
    return plain_name(model_stem(path))


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
