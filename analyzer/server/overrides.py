"""Configuration and file overrides of a load request."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from analyzer.errors import RepositoryError
from analyzer.modelconfig.text import config_from_json

_PART = re.compile(r"[^/\\\x00-\x1f]{1,255}")


def unpack_override(
    name: str, folder: Path, config_json: str | None, files: Mapping[str, bytes]
) -> tuple[Any | None, tempfile.TemporaryDirectory[str] | None]:
    """The overriding configuration, and a folder with the overriding files; None for neither.

    Args:
        files: Contents by path, ``<version>/<file>``; they stand for the model's whole folder.

    Raises:
        RepositoryError: The configuration is wrong, or a path would leave the folder.
    """
    config = None
    if config_json is not None:
        config = config_from_json(config_json, where=f"'config' of the load request for '{name}'")
    if not files:
        return config, None
    directory = tempfile.TemporaryDirectory(prefix="analyze-serve-")
    try:
        for key, content in files.items():
            target = Path(directory.name) / name / _relative(key)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except BaseException:
        directory.cleanup()
        raise
    return config, directory


def _relative(key: str) -> PurePosixPath:
    path = PurePosixPath(key)
    safe = not path.is_absolute() and all(
        part not in ("..", ".") and _PART.fullmatch(part) for part in path.parts
    )
    if not safe or not path.parts:
        raise RepositoryError(
            f"{key!r} is not a place in a model's folder.",
            hint='Name files like "file:1/model.onnx".',
        )
    return path
