"""What a model is called: here, in a repository, and as an upload of the service."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import Path

_HASH = 6  # hexadecimal digits; a repository holds tens of models


def model_stem(path: Path) -> str:
    """What people call the model at ``path``: its file without the ending, or its directory."""
    path = Path(path).absolute()
    if path.is_dir():
        return path.name
    if path.is_file() and path.stem == "model" and re.fullmatch(r"[0-9]+", path.parent.name):
        return path.parent.parent.name  # VERSION/model.onnx of a model directory
    return path.stem


def plain_name(stem: str, *, longest: int | None = None) -> str:
    """``stem`` in characters that Triton accepts: letters, digits, ``_ . -``.

    Accents are left out. Letters that have no Latin form make two names alike, so a hash of the
    whole name follows then.

    Args:
        longest: Characters that the name has at most; None for any number.
    """
    latin = "".join(c for c in unicodedata.normalize("NFKD", stem) if not unicodedata.combining(c))
    end = ""
    if any(char.isalnum() and not char.isascii() for char in latin):
        whole = unicodedata.normalize("NFC", stem)  # a file system may spell it otherwise
        digest = hashlib.sha256(whole.encode(errors="surrogateescape"))
        end = f"_{digest.hexdigest()[:_HASH]}"
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", latin).strip("._-")
    if longest is not None:
        name = name[: longest - len(end)].rstrip("._-")
    return f"{name or 'model'}{end}"
