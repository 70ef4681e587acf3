"""``tritune.json`` beside ``config.pbtxt``: what was exported, its hashes and its evidence.

Triton reads ``config.pbtxt`` and the version folders of a model's folder and nothing else there, so
the file does not disturb it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from analyzer.domain.configuration import Configuration
from analyzer.errors import RepositoryError
from analyzer.variants.cache import file_sha256

MANIFEST_NAME = "tritune.json"
# Raised when a program that does not know the change would misread a manifest.
MANIFEST_SCHEMA = 1
CHANGED_BY_HAND = "The manifest was changed by hand; export the study again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One exported version.

    Args:
        repository: The repository's folder.
        model: The model's name.
        version: Its version.
        config_id: ``config_id`` of the study's entry that was exported.
        configuration: That entry's configuration (the backend that serves it may differ).
        backend: The backend that serves it.
        config_text: ``config.pbtxt`` as it was written for this version.
        files: SHA-256 of each file, by its path under the model's folder.
        evidence: What the exporter was given: ``entry``, ``sla``, ``study``, ``provenance``.
        written_at: When, ISO 8601 in UTC.
    """

    repository: Path
    model: str
    version: int
    config_id: str
    configuration: Configuration
    backend: str
    config_text: str
    files: dict[str, str]
    evidence: dict[str, Any]
    written_at: str

    def number(self, key: str) -> float | None:
        """The number above 0 at the dotted ``key`` of the evidence; None where there is none.

        Raises:
            RepositoryError: What stands there is something else.
        """
        value: Any = self.evidence
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < inf:
            raise RepositoryError(
                f"{self.place}.{key}: {value!r} is not a number above 0.",
                hint=CHANGED_BY_HAND,
            )
        return float(value)

    @property
    def place(self) -> str:
        """Where its evidence stands, for messages: file and key."""
        path = self.repository / self.model / MANIFEST_NAME
        return f"{path}, versions.{self.version}.evidence"

    @property
    def version_dir(self) -> Path:
        """The folder of this version."""
        return self.repository / self.model / str(self.version)

    def changed_files(self) -> tuple[str, ...]:
        """Files whose content is no longer what was exported, or that are gone."""
        folder = self.repository / self.model
        return tuple(
            name
            for name, digest in sorted(self.files.items())
            if not (folder / name).is_file() or file_sha256(folder / name) != digest
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values of the entry in the manifest's ``versions``."""
        return {
            "config_id": self.config_id,
            "configuration": self.configuration.to_dict(),
            "backend": self.backend,
            "config_pbtxt": self.config_text,
            "files": dict(self.files),
            "evidence": self.evidence,
            "written_at": self.written_at,
        }


def read_manifest(repository: Path, model: str, version: int | None = None) -> Manifest:
    """The manifest of an exported model's version, the newest by default.

    Raises:
        RepositoryError: There is no such model, it was not exported by this program, or its
            manifest cannot be read.
    """
    from analyzer.modelconfig.repository import model_directory

    folder = model_directory(repository, model)
    versions = read_versions(folder)
    if not versions:
        raise RepositoryError(
            f"{folder} has no {MANIFEST_NAME}: it was not exported by this program.",
            hint="Export a study there with `analyze export`.",
        )
    wanted = str(version) if version is not None else max(versions, key=int)
    if wanted not in versions:
        raise RepositoryError(
            f"{folder / MANIFEST_NAME} knows no version {wanted}.",
            hint=f"It knows {', '.join(sorted(versions, key=int))}.",
        )
    entry = versions[wanted]
    try:
        return Manifest(
            repository=repository,
            model=model,
            version=int(wanted),
            config_id=entry["config_id"],
            configuration=Configuration.from_dict(entry["configuration"]),
            backend=entry["backend"],
            config_text=entry["config_pbtxt"],
            files=dict(entry["files"]),
            evidence=dict(entry["evidence"]),
            written_at=entry["written_at"],
        )
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise RepositoryError(
            f"{folder / MANIFEST_NAME}, versions.{wanted}: {error!r}.",
            hint=CHANGED_BY_HAND,
        ) from error


def read_versions(model_dir: Path) -> dict[str, Any]:
    """``versions`` of the manifest in ``model_dir``; empty where there is no manifest.

    Raises:
        RepositoryError: It cannot be read, or is of a newer schema.
    """
    path = model_dir / MANIFEST_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        schema, versions = document["schema"], document["versions"]
        if not isinstance(versions, dict) or not all(key.isdecimal() for key in versions):
            raise ValueError("versions is no table of numbers")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RepositoryError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RepositoryError(
            f"{path} is no manifest of this program: {error!r}.",
            hint="Remove it (Triton does not need it) or export the study elsewhere.",
        ) from error
    if schema != MANIFEST_SCHEMA:
        raise RepositoryError(
            f"{path} has schema {schema}; this program reads {MANIFEST_SCHEMA}.",
            hint="Use the version of the program that wrote it, or a newer one.",
        )
    return versions
