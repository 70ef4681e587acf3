"""A Triton model repository on disk: which models and versions it holds, and their configurations.

Names come from strangers (a request's URL, a command line), so every path is checked to stay inside
the repository's folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from analyzer.errors import RepositoryError
from analyzer.modelconfig.text import CONFIG_NAME, ModelConfig, read_config
from analyzer.paths import is_dir

# Triton takes any folder name; what could leave the folder or hide is refused by us.
_NAME = re.compile(r"[^/\\\x00-\x1f]{1,255}")
_VERSION = re.compile(r"[1-9][0-9]{0,18}")


def check_model_name(name: str) -> str:
    """``name``, if it is the name of a folder and nothing more.

    Raises:
        RepositoryError: It is empty, a path, ``.``, ``..`` or has control characters.
    """
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise RepositoryError(
            f"{name!r} is not a model's name.",
            hint="A model is named like its folder in the repository: no slashes, no leading dot.",
        )
    return name


def model_directory(repository: Path, name: str) -> Path:
    """The folder of model ``name``, which exists and lies in ``repository``.

    Raises:
        RepositoryError: The name is none, or there is no such folder.
    """
    folder = repository / check_model_name(name)
    if not is_dir(folder):
        raise RepositoryError(
            f"There is no model {name!r} in {repository}.",
            hint=f"It holds: {', '.join(list_models(repository)) or 'no model'}.",
        )
    return folder


def list_models(repository: Path) -> list[str]:
    """Names of the model folders in ``repository``, sorted; hidden ones are none.

    Raises:
        RepositoryError: The folder cannot be read.
    """
    try:
        return sorted(
            entry.name
            for entry in repository.iterdir()
            if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError as error:
        raise RepositoryError(
            f"The model repository {repository} cannot be read: {error.strerror}.",
            hint="A repository is a folder with one folder per model.",
        ) from error


def version_number(name: str) -> int | None:
    """The version that a folder called ``name`` holds; None where it holds none."""
    return int(name) if _VERSION.fullmatch(name) else None


def list_versions(model_dir: Path) -> list[int]:
    """Version numbers of a model's folder, ascending; names with a leading zero are none."""
    return sorted(
        version
        for entry in model_dir.iterdir()
        if (version := version_number(entry.name)) is not None and entry.is_dir()
    )


def version_files(model_dir: Path) -> list[str]:
    """Names in the newest version's folder, sorted; empty without a version."""
    versions = list_versions(model_dir)
    if not versions:
        return []
    return sorted(entry.name for entry in (model_dir / str(versions[-1])).iterdir())


def load_config(model_dir: Path, *, config_name: str | None = None) -> Any:
    """The ``ModelConfig`` of a model's folder as it is written; an empty one if there is none.

    Args:
        model_dir: The model's folder.
        config_name: ``--model-config-name``: ``configs/<name>.pbtxt`` is used where it exists.

    Raises:
        RepositoryError: It cannot be read or parsed.
    """
    if config_name:
        own = model_dir / "configs" / f"{check_model_name(config_name)}.pbtxt"
        if own.is_file():
            return read_config(own)
    path = model_dir / CONFIG_NAME
    return read_config(path) if path.exists() else ModelConfig()


def folder_state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of a folder's files; another value means that it has changed."""
    found = []
    for path in sorted(folder.rglob("*")):
        try:
            status = path.stat()
        except OSError:
            continue  # it vanished meanwhile; the next look settles it
        found.append((str(path.relative_to(folder)), status.st_mtime_ns, status.st_size))
    return tuple(found)
