"""Looks at paths that always end in an answer.

``Path.exists`` and the like raise where the user may not look into a folder above, or a name is too
long, before Python 3.14. Here nothing is seen then, and :func:`barred` says why.
"""

from __future__ import annotations

import os
from pathlib import Path


def exists(path: str | Path) -> bool:
    """Whether the user sees something at ``path``; links are followed."""
    return os.path.exists(path)  # noqa: PTH110 - Path's raises


def is_file(path: str | Path) -> bool:
    """Whether the user sees a regular file at ``path``; links are followed."""
    return os.path.isfile(path)  # noqa: PTH113 - Path's raises


def is_dir(path: str | Path) -> bool:
    """Whether the user sees a folder at ``path``; links are followed."""
    return os.path.isdir(path)  # noqa: PTH112 - Path's raises


def barred(path: str | Path) -> str:
    """What keeps the user from looking at ``path`` (``Permission denied``); empty if nothing does.

    That nothing is there is no such thing.
    """
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""
