"""A Triton model repository in an object store, written so that Triton never reads half of it.

An object store has no folders to exchange, so what ``export/atomic.py`` does locally is done by the
order of writing. The version is written in a folder of this machine first. Large files are then
sent as uploads whose parts nobody sees; only when all of them lie in the store does anything
appear, in a few short requests: the manifest, on the condition that nobody else wrote it
meanwhile; the version's files, the one that the backend opens last; ``config.pbtxt`` after all
others. What fails on the way is taken back. Where the newest version has the same files and
evidence already, as its manifest and the listing have it, nothing is sent.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from analyzer.buckets.bucket import PART_BYTES, Bucket, ChangedError, Upload
from analyzer.buckets.location import Location
from analyzer.errors import AnalyzerError, RepositoryError
from analyzer.export.manifest import MANIFEST_NAME, read_versions
from analyzer.export.repository import ELSEWHERE_NAME, ExportResult
from analyzer.modelconfig.render import MODEL_FILENAMES
from analyzer.modelconfig.repository import version_number
from analyzer.modelconfig.text import CONFIG_NAME

_READS_AT_ONCE = 8  # of small files: a store takes tens of milliseconds for each


@dataclass(frozen=True, slots=True)
class _Kept:
    """A file of the model as it is in the store: content and tag, both None where it is not."""

    content: bytes | None = None
    tag: str | None = None


def check_remote(location: Location) -> None:
    """Looks whether a repository can be listed at ``location`` and written there.

    Raises:
        RepositoryError: It cannot.
        MissingPartError: The library for object stores is not installed.
    """
    bucket = Bucket(location)
    bucket.list(MANIFEST_NAME)
    bucket.check_writable()


def remote_model_exists(location: Location, name: str) -> bool:
    """Whether the repository at ``location`` has a model of that name.

    Raises:
        RepositoryError: It cannot be listed.
    """
    return bool(Bucket(location).list(f"{name}/"))


def export_remote(
    location: Location, model: str, write: Callable[[Path], ExportResult]
) -> ExportResult:
    """Adds a version of ``model`` to the repository at ``location``, beside those that are there.

    Args:
        model: The model's name in the repository.
        write: Writes the version into a local repository and says what it wrote.

    Raises:
        RepositoryError: ``write`` refused, the store cannot be read or written, or somebody else
            exported the model meanwhile. What was begun is taken back; where that fails too, the
            message names what is left.
        AnalyzerError: Whatever else ``write`` raises.
    """
    bucket = Bucket(location)
    try:
        with tempfile.TemporaryDirectory(prefix="tritune-export-") as folder:
            repository = Path(folder).resolve() / "repository"
            try:
                before, notes = _mirror(bucket, repository / model, model)
                if CONFIG_NAME in before:
                    notes += _mirror_others(bucket, repository, model)
                done = write(repository)
            except AnalyzerError as error:
                told = [
                    text.replace(str(repository), str(location))
                    for text in (error.message, error.hint)
                ]
                raise type(error)(told[0], hint=told[1]) from None
            if any((repository / model / str(done.version)).rglob("*")):  # else it is there already
                _send(bucket, repository / model, model, done.version, before)
    except OSError as error:
        raise RepositoryError(
            f"The files for {location} cannot be written on this machine: "
            f"{error.strerror or error}.",
            hint="They are made in the folder for temporary files first (TMPDIR moves it); nothing "
            "was exported.",
        ) from error
    said = tuple(note.replace(str(repository), str(location)) for note in done.notes)
    return replace(done, path=str(location), notes=(*said, *notes))


def _mirror(bucket: Bucket, folder: Path, model: str) -> tuple[dict[str, _Kept], list[str]]:
    """Makes the local folder of a model look like the one in the store, without its large files.

    Returns:
        ``config.pbtxt`` and the manifest as they are, and notes on versions that are not whole.
    """
    listed = [name.removeprefix(f"{model}/") for name in bucket.list(f"{model}/")]
    before = {}
    for name in (CONFIG_NAME, MANIFEST_NAME):
        if name in listed:
            before[name] = _Kept(*bucket.read(f"{model}/{name}"))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(before[name].content or b"")
    present = {name.partition("/")[0] for name in listed if "/" in name}
    for version in filter(version_number, present):
        (folder / version).mkdir(parents=True, exist_ok=True)
    if folder.is_dir():
        (folder / ELSEWHERE_NAME).write_text(json.dumps(listed), encoding="utf-8")
    notes = []
    for version, entry in read_versions(folder).items():
        files = entry.get("files", ()) if isinstance(entry, dict) else ()
        missing = {name for name in files if "/" in name} - set(listed)
        if missing and version in present:
            notes.append(
                f"{bucket.location}/{model}/{version} is not whole (an export ended while it was "
                f"written): {', '.join(sorted(missing))} is missing. Remove that version."
            )
    return before, notes


def _mirror_others(bucket: Bucket, repository: Path, model: str) -> list[str]:
    """Puts every other model's ``config.pbtxt`` beside the model: ensembles may have it in them.

    Returns:
        A note where they cannot be read, which is no reason to export nothing.
    """
    try:
        others = [name for name in bucket.folders() if name != model and not name.startswith(".")]
        with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
            configs = pool.map(lambda name: bucket.find(f"{name}/{CONFIG_NAME}"), others)
            for name, config in zip(others, configs, strict=True):
                if config is not None:
                    (repository / name).mkdir(parents=True)
                    (repository / name / CONFIG_NAME).write_bytes(config)
    except RepositoryError as error:
        return [f"Ensembles of {model} in {bucket.location} were not looked for: {error.message}"]
    return []


def _send(bucket: Bucket, folder: Path, model: str, version: int, before: dict[str, _Kept]) -> None:
    files = sorted(
        (
            file.relative_to(folder).as_posix()
            for file in (folder / str(version)).rglob("*")
            if file.is_file()
        ),
        key=_opened,
    )
    with ExitStack() as uploads:
        large: dict[str, Upload] = {}
        for name in files:
            if (folder / name).stat().st_size > PART_BYTES:
                large[name] = bucket.upload(f"{model}/{name}", folder / name)
                uploads.callback(large[name].abort)
        manifest = (folder / MANIFEST_NAME).read_bytes()
        config = (folder / CONFIG_NAME).read_bytes()
        kept = before.get(MANIFEST_NAME, _Kept())
        begun: list[str] = [MANIFEST_NAME]
        try:
            bucket.put_if(f"{model}/{MANIFEST_NAME}", manifest, kept.tag)
            for name in files:
                begun.append(name)
                if name in large:
                    large[name].finish()
                else:
                    bucket.put(f"{model}/{name}", (folder / name).read_bytes())
            begun.append(CONFIG_NAME)
            bucket.put(f"{model}/{CONFIG_NAME}", config)
        except ChangedError:
            raise
        except BaseException as error:
            _take_back(bucket, model, begun, before, error)
            raise
        uploads.pop_all()


def _opened(name: str) -> tuple[bool, bool, str]:
    """Sorts a version's files: what a backend opens first is written last."""
    file = name.partition("/")[2]
    return file == MODEL_FILENAMES["python"], file in MODEL_FILENAMES.values(), name


def _take_back(
    bucket: Bucket, model: str, begun: list[str], before: dict[str, _Kept], error: BaseException
) -> None:
    """Undoes ``begun``, the last first.

    Raises:
        RepositoryError: Something could not be undone; it is named.
    """
    left = []
    for name in reversed(begun):
        path, content = f"{model}/{name}", before.get(name, _Kept()).content
        try:
            if content is None:
                bucket.delete([path])
            else:
                bucket.put(path, content)
        except RepositoryError:
            left.append(path)
    if left and isinstance(error, AnalyzerError):
        raise type(error)(
            f"{error.message} What was begun could not be taken back: {', '.join(left)}.",
            hint=f"{error.hint} Remove or restore it in {bucket.location}.".strip(),
        ) from None
