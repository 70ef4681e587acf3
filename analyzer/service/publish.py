"""What a job has found goes to an object store, by its worker: the command has no credentials.

The model's folder in the store is mirrored into the job's own (``export/remote.py``), the command
adds its version there, isolated as ever, and the worker sends what is new.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from analyzer.buckets.location import Location, parse_location
from analyzer.errors import RepositoryError
from analyzer.export.remote import export_remote
from analyzer.export.repository import ExportResult
from analyzer.service.archive import pack, unpack
from analyzer.service.child import start_child
from analyzer.service.folder import JobFolder
from analyzer.service.queue import Claim

_TIME_S = 600.0  # an export may build a variant anew
_TICK_S = 0.2  # between looks at the command: short beside an export
_FOLDER = "bucket"


def publish(
    folder: JobFolder,
    claim: Claim,
    place: str,
    *,
    force: bool,
    lease_s: float,
    stopping: Callable[[], bool],
) -> str:
    """Adds what the job recommends to the repository at ``place``; a sentence about it.

    Args:
        force: Whether a configuration that differs is replaced.
        lease_s: Seconds after which the command is killed if this process does not go on.
        stopping: Whether to give up; what is being sent is sent to its end.

    Raises:
        AnalyzerError: It could not be written; nothing of it is in the store.
    """
    location: Location = parse_location(place, "export")
    made = folder.work / _FOLDER

    def write(repository: Path) -> ExportResult:
        if repository.is_dir():
            shutil.copytree(repository, made)
        task = folder.task(
            folder.export_command(claim, _FOLDER, force=force),
            output=folder.export_file,
            until=time.monotonic() + lease_s,
        )
        ends_at, code, log = time.monotonic() + _TIME_S, None, ""
        with start_child(task) as child:
            while code is None and time.monotonic() < ends_at and not stopping():
                code = child.wait(_TICK_S)
                log += child.read_log()
                child.live_until(time.monotonic() + lease_s)
        answer = folder.answer(folder.export_file) or {}
        if code != 0:
            error = answer.get("error") or {}
            said = str(error.get("message") or log.strip()[-500:] or f"It ended with code {code}.")
            raise RepositoryError(said, hint=str(error.get("hint") or ""))
        # What the command wrote is read without following its links.
        packed = folder.snapshot.with_name("bucket.tar")
        pack(made, _FOLDER, packed)
        shutil.rmtree(repository, ignore_errors=True)
        unpack(packed, repository)
        try:
            return ExportResult(
                path=str(repository),
                model=claim.model_name,
                version=int(answer["version"]),
                config_id=str(answer["config_id"]),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise RepositoryError("The export told no version.") from error

    done = export_remote(location, claim.model_name, write)
    return f"Exported to {done.path}/{done.model}, version {done.version}."
