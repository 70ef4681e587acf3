"""Models behind links, as the Hugging Face cache keeps them, or whose weights are.

ONNX Runtime follows links to weights. ONNX itself refuses to read weights behind a symbolic link,
or of a file that has several names: they might be a trap in somebody else's archive.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from analyzer.modelconfig.weights import external_pieces
from analyzer.variants.cache import write_error


def beside_weights(file: Path, proto: Any) -> Path:
    """``file``, or where it is a link and its weights do not lie beside it, the file it leads to.

    ONNX Runtime looks for weights beside the path that it is given.
    """
    locations = {location for location, *_ in external_pieces(proto.graph)}
    found = file
    while not all((found.parent / location).is_file() for location in locations):
        if not found.is_symlink():
            return file
        target = found.parent.resolve() / found.readlink()
        found = target.parent.resolve() / target.name
    return found


def without_links(file: Path, external: Iterable[str], folder: Path) -> Path:
    """The model at ``file``, or a copy in ``folder`` where ONNX would not read its weights.

    Args:
        external: The files of its weights, relative to its own folder.

    Raises:
        OSError: It cannot be copied.
    """
    parts = [file.parent / name for name in external]
    if not any(part.is_symlink() or part.stat().st_nlink > 1 for part in parts):
        return file
    for name in (file.name, *external):
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.parent / name, copy)
    return folder / file.name


def load_whole(file: Path, external: Iterable[str]) -> Any:
    """The ``onnx.ModelProto`` of ``file`` with its weights, of the files ``external``.

    Raises:
        BuildError: Weights behind links cannot be copied for it.
    """
    import onnx

    try:
        with tempfile.TemporaryDirectory() as folder:
            return onnx.load(str(without_links(file, external, Path(folder))))
    except OSError as error:
        raise write_error(Path(tempfile.gettempdir()), error) from error
