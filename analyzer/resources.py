"""Finds ``templates/`` and ``search_spaces/`` in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource_dir(name: str) -> Path:
    """The folder ``name`` of shipped files.

    In a wheel they lie beside the modules (``analyzer/_resources/<name>``), in a checkout at its
    root. A name that is in neither is an error of our own code.
    """
    for candidate in (_PACKAGE / "_resources" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise AssertionError(f"no shipped folder named {name!r} beside {_PACKAGE}")


def templates_dir() -> Path:
    """The folder of Jinja2 templates."""
    return resource_dir("templates")


def search_spaces_dir() -> Path:
    """The folder of the shipped search spaces."""
    return resource_dir("search_spaces")


def package_root() -> Path:
    """The folder that holds the package, for the module path of child processes."""
    return _PACKAGE.parent
