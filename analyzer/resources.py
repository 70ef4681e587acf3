"""Where shipped files and the package itself lie, for us and for the processes that we start."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
#: The folder that holds the package: the root of a checkout, ``site-packages`` elsewhere.
PACKAGE_ROOT = _PACKAGE.parent


def resource_dir(name: str) -> Path:
    """The folder ``name`` of shipped files.

    In a wheel they lie beside the modules (``analyzer/_resources/<name>``), in a checkout at its
    root. A name that is in neither is an error of our own code.
    """
    for candidate in (_PACKAGE / "_resources" / name, PACKAGE_ROOT / name):
        if candidate.is_dir():
            return candidate
    raise AssertionError(f"no shipped folder named {name!r} beside {_PACKAGE}")


def templates_dir() -> Path:
    """The folder of Jinja2 templates."""
    return resource_dir("templates")


def search_spaces_dir() -> Path:
    """The folder of the shipped search spaces."""
    return resource_dir("search_spaces")


def tool_homes(tool: str) -> tuple[tuple[Path, str], ...]:
    """Folders in which a fetched program may lie, the first that is there wins; and who put it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (
        (PACKAGE_ROOT / ".tools" / tool, "make tools"),
        (cache / "tritune" / tool, "the user's cache"),
    )


def search_path(variable: str, *first: str | Path | None) -> str:
    """The folders in an environment variable such as ``PATH``, with ``first`` before them."""
    parts = (*map(str, filter(None, first)), os.environ.get(variable))
    return os.pathsep.join(filter(None, parts))


def child_environment() -> dict[str, str]:
    """This process's environment for a child that imports this package, wherever it lies.

    The child, and every Python that it starts, imports nothing from the folder that it is in: a
    ``types.py`` of the user's there would take the place of Python's own.
    """
    paths = search_path("PYTHONPATH", PACKAGE_ROOT)
    return os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
