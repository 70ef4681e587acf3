"""A model from an object store, kept on this machine by its content."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path, PurePosixPath

from analyzer.buckets.bucket import Bucket
from analyzer.buckets.location import Location
from analyzer.errors import AnalyzerError, ModelError
from analyzer.modelconfig.files import ONNX_FILENAME, external_names
from analyzer.modelconfig.repository import version_number
from analyzer.modelconfig.rules import served_versions
from analyzer.modelconfig.text import CONFIG_NAME, read_config
from analyzer.variants.cache import file_sha256


def fetch_model(location: Location, cache_dir: Path) -> Path:
    """The file (an ONNX graph with its external weights) or model directory at ``location``.

    It is downloaded each time and stored by its content, so a study finds again what it measured
    after the object has changed.

    Args:
        location: An object ending in ``.onnx``, or a folder as in a Triton repository, of which
            ``config.pbtxt``, the newest version that it serves and ``warmup/`` are taken.
        cache_dir: Where it is kept.

    Returns:
        The local path, which ends with the name at ``location``.

    Raises:
        ModelError: It is not there, is no model, or cannot be read or stored.
        MissingPartError: The library for object stores is not installed.
    """
    home = cache_dir / "fetched"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="incoming-", dir=home) as folder:
            incoming = Path(folder) / "model"
            incoming.mkdir()
            if location.path.lower().endswith(".onnx"):
                _file(location, incoming)
            else:
                _directory(location, incoming / location.name)
            kept = home / _digest(incoming)
            try:
                incoming.rename(kept)
            except OSError:
                if not kept.is_dir():  # else the same content is there already
                    raise
    except OSError as error:
        raise ModelError(
            f"{location} cannot be stored in {home}: {error.strerror or error}.",
            hint="TRITUNE_CACHE moves the folder of such files.",
        ) from error
    return kept / location.name


def _file(location: Location, folder: Path) -> None:
    bucket = Bucket(location.parent, error=ModelError)
    bucket.download(location.name, folder / location.name)
    try:
        names = external_names(folder / location.name)
    except AnalyzerError as error:
        message = error.message.replace(str(folder), str(location.parent))
        raise ModelError(message, hint=error.hint) from None
    for name in names:
        bucket.download(name, folder / name)


def _directory(location: Location, folder: Path) -> None:
    bucket = Bucket(location, error=ModelError)
    listed = bucket.list()
    folders = {name.partition("/")[0] for name in listed if "/" in name}
    versions = [version for name in folders if (version := version_number(name))]
    if CONFIG_NAME in listed:
        bucket.download(CONFIG_NAME, folder / CONFIG_NAME)
        versions = _served(location, folder / CONFIG_NAME, versions)
    newest = max(versions, default=None)
    inside = [name for name in listed if ".." not in PurePosixPath(name).parts]
    wanted = [name for name in inside if name.startswith(f"{newest}/")]
    if not wanted:
        found = ", ".join(sorted({name.partition("/")[0] for name in listed})[:10]) or "nothing"
        raise ModelError(
            f"There is no model at {location} (found: {found}).",
            hint=f"Name an .onnx file, or a folder that holds VERSION/{ONNX_FILENAME}.",
        )
    # Triton's folder for the files that warm-ups read.
    wanted += [name for name in inside if name.startswith("warmup/")]
    for name in wanted:
        bucket.download(name, folder / name)


def _served(location: Location, config: Path, versions: list[int]) -> list[int]:
    """Those of ``versions`` that ``config`` serves."""
    try:
        return list(served_versions(read_config(config), versions)) if versions else []
    except AnalyzerError as error:
        message = error.message.replace(str(config.parent), str(location))
        raise ModelError(message, hint=error.hint) from None


def _digest(folder: Path) -> str:
    """SHA-256 over names and contents of all files in ``folder``, 64 hex digits."""
    whole = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        whole.update(f"{name}\0{file_sha256(file)}\n".encode())
    return whole.hexdigest()
