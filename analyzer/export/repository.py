"""Writes a Triton model repository: atomically, with its evidence, beside older versions.

A model's folder has one ``config.pbtxt`` for all its versions, and the one that is written serves
the newest version only (``latest { num_versions: 1 }``). So a new version with the same
configuration is simply added (nothing is written where the newest has the same files and the same
evidence already); one with another configuration changes how the model is served and
needs ``force``. The older versions stay, and their ``config.pbtxt`` stays in the manifest; so does
one that somebody else wrote (under :data:`REPLACED`). Going back is a copy.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from analyzer.domain.configuration import Backend, Configuration
from analyzer.domain.model import ModelInfo
from analyzer.errors import RepositoryError, UsageError
from analyzer.export.atomic import (
    copy_durably,
    link_or_copy,
    locked,
    make_readable,
    put_in_place,
    staging_folder,
)
from analyzer.export.dependents import replacement_notes
from analyzer.export.manifest import (
    MANIFEST_NAME,
    MANIFEST_SCHEMA,
    Manifest,
    read_versions,
)
from analyzer.modelconfig.files import ModelFiles, exported_files, model_files
from analyzer.modelconfig.render import configuration_from_config
from analyzer.modelconfig.repository import list_versions
from analyzer.modelconfig.text import CONFIG_NAME, parse_config, read_config
from analyzer.paths import exists, is_dir
from analyzer.variants.cache import file_sha256

# Key in the manifest's entry of a version: the config.pbtxt that it replaced, if no entry has it.
REPLACED = "replaced_config_pbtxt"
# In a copy of a model's folder whose files lie in an object store: their names, a list in JSON.
# They are taken for what the manifest says of them.
ELSEWHERE_NAME = ".tritune-elsewhere.json"
_MADE_ANEW = (CONFIG_NAME, MANIFEST_NAME, ELSEWHERE_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Where a configuration was exported; the contract's keys of ``export --json``.

    Args:
        path: The repository's folder, absolute.
        model: The model's name.
        version: The new version; the newest, where that was the same already.
        config_id: The exported entry's.
        notes: Sentences that qualify the export (a configuration replaced, files relinked).
    """

    path: str
    model: str
    version: int
    config_id: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The contract's keys."""
        return {
            "path": self.path,
            "model": self.model,
            "version": self.version,
            "config_id": self.config_id,
        }


def check_destination(destination: Path) -> None:
    """Raises UsageError where ``destination`` is the folder of one model."""
    if exists(destination / CONFIG_NAME):
        raise UsageError(
            f"{destination} is a model's folder ({CONFIG_NAME} lies in it); a repository is the "
            "folder around it.",
            hint="Name the folder around it, or another one.",
        )


def export_repository(
    model: ModelInfo,
    variant_file: Path,
    configuration: Configuration,
    destination: Path,
    *,
    backend: Literal["auto"] | Backend = "auto",
    evidence: dict[str, Any] | None = None,
    force: bool = False,
    name: str | None = None,
) -> ExportResult:
    """Adds a version of ``model`` to the repository ``destination`` (made if it is not there).

    The model's folder is written beside the repository, its ``config.pbtxt`` read back and compared
    with the configuration, and put in place in one step: it is there whole or not at all.

    Args:
        model: The model's tensors and name.
        variant_file: The graph or engine that ``configuration`` serves.
        configuration: The study's entry.
        destination: The repository's folder.
        backend: Triton's backend; ``auto`` is the configuration's own.
        evidence: JSON-ready proof for the manifest (``entry``, ``sla``, ``study``, ``provenance``).
        force: Whether a different ``config.pbtxt`` of an existing model may be replaced.
        name: The name of the model in the repository; the model's own by default.

    Raises:
        RepositoryError: The folder cannot be written, the disk is full, a different configuration
            is there and ``force`` is not set, or Triton cannot serve the model like this. Nothing
            is changed then.
    """
    files = model_files(
        model,
        variant_file,
        configuration,
        backend=None if backend == "auto" else backend,
        name=name,
    )
    return _add(files, configuration, destination, evidence or {}, force)


def add_exported(exported: Manifest, destination: Path, *, force: bool = False) -> ExportResult:
    """Adds a version that lies in another repository, with its evidence.

    It becomes the newest, as one of :func:`export_repository` does, whatever its number was there.

    Args:
        exported: The version; its files lie beside its manifest.
        destination: The repository's folder, made if it is not there.
        force: Whether a different ``config.pbtxt`` of an existing model may be replaced.

    Raises:
        RepositoryError: As :func:`export_repository`; or what was exported cannot be read.
    """
    files = replace(exported_files(exported.version_dir), name=exported.model)
    return _add(files, exported.configuration, destination, exported.evidence, force)


def _add(
    files: ModelFiles,
    configuration: Configuration,
    destination: Path,
    evidence: dict[str, Any],
    force: bool,
) -> ExportResult:
    made = not exists(destination)
    try:
        make_readable(destination)
        with locked(destination), staging_folder(destination.resolve()) as staging:
            return _export(files, configuration, destination.resolve(), staging, evidence, force)
    except OSError as error:
        raise RepositoryError(
            f"The repository {destination} cannot be written: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}.",
            hint=f"About {files.size_bytes / 2**20:.0f} MiB are needed in a folder that is yours "
            "to write; nothing was changed.",
        ) from error
    finally:
        if made and is_dir(destination) and not any(destination.iterdir()):
            destination.rmdir()


def _export(
    files: ModelFiles,
    configuration: Configuration,
    destination: Path,
    staging: Path,
    evidence: dict[str, Any],
    force: bool,
) -> ExportResult:
    target = destination / files.name
    notes: list[str] = []
    staged = staging / files.name
    version = 1
    versions: dict[str, Any] = {}
    replaced = ""
    if target.exists():
        if not target.is_dir():
            raise RepositoryError(
                f"{target} is a file, where the model's folder should be.",
                hint="Remove it, or use another --repository.",
            )
        version = max(list_versions(target), default=0) + 1
        versions = dict(read_versions(target))
        if not _same_configuration(target / CONFIG_NAME, files.config_text):
            if not force:
                raise RepositoryError(
                    f"{target} already serves another configuration ({CONFIG_NAME} differs).",
                    hint="Use --force to replace it (the older versions stay beside the new one), "
                    "or another --repository.",
                )
            replaced = _unrecorded(target / CONFIG_NAME, versions)
            kept = f", and what it said is in {MANIFEST_NAME} (versions.{version}.{REPLACED})"
            notes.append(
                f"{target / CONFIG_NAME} was replaced; older versions are still there"
                f"{kept if replaced else ''}."
            )
        elif _is_there(files, target, version - 1, versions, evidence):
            return ExportResult(
                path=str(destination),
                model=files.name,
                version=version - 1,
                config_id=configuration.config_id,
                notes=(f"{target / str(version - 1)} is already there, the same: left as it is.",),
            )
        new = parse_config(files.config_text)
        notes += replacement_notes(destination, target / CONFIG_NAME, new, version)
        if other := _other_model(versions.get(str(version - 1)), evidence):
            notes.append(
                f"Version {version} of {files.name} serves another model than version"
                f" {version - 1} (its SHA-256 begins with {other[:12]}), which stays beside it."
            )
        shutil.copytree(
            target,
            staged,
            symlinks=True,
            copy_function=link_or_copy,
            ignore=lambda folder, _: _MADE_ANEW if Path(folder) == target else (),
        )
    copy_durably(files.config_text.encode(), staged / CONFIG_NAME)
    hashes = {CONFIG_NAME: file_sha256(staged / CONFIG_NAME)}
    for name, content in files.version_files.items():
        written = staged / str(version) / name
        copy_durably(content, written)
        hashes[f"{version}/{name}"] = file_sha256(written)
    read_back = configuration_from_config(read_config(staged / CONFIG_NAME))
    if read_back != files.configuration:
        raise RepositoryError(
            f"{CONFIG_NAME} reads back as {read_back.to_dict()}, "
            f"not as {files.configuration.to_dict()}.",
            hint="This is a fault of the program; nothing was exported.",
        )
    manifest = Manifest(
        repository=destination,
        model=files.name,
        version=version,
        config_id=configuration.config_id,
        configuration=configuration.canonical(),
        backend=files.configuration.backend,
        config_text=files.config_text,
        files=hashes,
        evidence=evidence,
        written_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    versions[str(version)] = manifest.to_dict() | ({REPLACED: replaced} if replaced else {})
    document = {"schema": MANIFEST_SCHEMA, "model": files.name, "versions": versions}
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    copy_durably(text.encode(), staged / MANIFEST_NAME)
    staged.chmod(0o755)
    put_in_place(staged, target)
    return ExportResult(
        path=str(destination),
        model=files.name,
        version=version,
        config_id=manifest.config_id,
        notes=tuple(notes),
    )


def _is_there(
    files: ModelFiles,
    target: Path,
    version: int,
    versions: dict[str, Any],
    evidence: dict[str, Any],
) -> bool:
    """Whether ``version`` of the model in ``target`` holds these files and this evidence."""
    entry = versions.get(str(version))
    if not isinstance(entry, dict) or entry.get("evidence") != json.loads(json.dumps(evidence)):
        return False
    wanted = {f"{version}/{name}": content for name, content in files.version_files.items()}
    known = {name: digest for name, digest in entry.get("files", {}).items() if name != CONFIG_NAME}
    if known != {name: _sha256(content) for name, content in wanted.items()}:
        return False
    elsewhere = _elsewhere(target)
    return all(
        name in elsewhere or ((target / name).is_file() and file_sha256(target / name) == digest)
        for name, digest in known.items()
    )


def _elsewhere(target: Path) -> frozenset[str]:
    path = target / ELSEWHERE_NAME
    return frozenset(json.loads(path.read_bytes())) if path.is_file() else frozenset()


def _other_model(entry: Any, evidence: dict[str, Any]) -> str:
    """The hash of the model in a version's ``entry`` if ``evidence`` is of another; or empty."""
    before = _model_sha256(entry.get("evidence") if isinstance(entry, dict) else None)
    now = _model_sha256(evidence)
    return before if before and now and before != now else ""


def _model_sha256(evidence: Any) -> str:
    model = evidence.get("model") if isinstance(evidence, dict) else None
    return str(model.get("sha256", "")) if isinstance(model, dict) else ""


def _sha256(content: Path | bytes) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    return file_sha256(content)


def _unrecorded(path: Path, versions: dict[str, Any]) -> str:
    """The text of the ``config.pbtxt`` at ``path``; empty where it is gone or in ``versions``."""
    if not path.is_file():
        return ""
    text = path.read_bytes().decode(errors="backslashreplace")
    known = [entry.get("config_pbtxt") for entry in versions.values() if isinstance(entry, dict)]
    return "" if text in known else text


def _same_configuration(path: Path, text: str) -> bool:
    """Whether the file at ``path`` says what ``text`` says; comments and layout aside."""
    if not path.is_file():
        return False
    try:
        return bool(read_config(path) == parse_config(text))
    except RepositoryError:
        return False  # what cannot be read is another configuration, and only force replaces it
