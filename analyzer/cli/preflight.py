"""What can be known to go wrong before a search begins: checked in a moment, before Ray starts.

A search takes minutes; a folder that cannot be written must not be found out at its end.
"""

from __future__ import annotations

import shlex
import tempfile
from contextlib import closing
from pathlib import Path

from analyzer.buckets.location import Location
from analyzer.cli.options import cache_dir
from analyzer.cli.search_options import SearchOptions
from analyzer.errors import AnalyzerError, MissingPartError, StoreError, TargetError, UsageError
from analyzer.paths import exists, is_dir

_STUDY_NAME_MAX = 100  # characters; as the service has it


def check_search(options: SearchOptions) -> None:
    """Everything about ``analyze search`` that is seen at once; nothing is started or made.

    Raises:
        AnalyzerError: An option, a file, a folder, the database or the server cannot be used.
    """
    from analyzer.search.samplers import require_sampler
    from analyzer.targets.open import check_server

    check_server(options.server)
    require_sampler(options.sampler)
    check_file_there(options.calibration_data, "--calibration-data")
    if options.report_file is not None:
        check_report(options.report_file)
    if options.export_dir is not None:
        check_export(options.export_dir)
    check_force(options.export_dir, force=options.force)
    check_store(options.store_url, study=options.study, resume=options.resume)
    _check_writable(cache_dir(), f"The cache folder {cache_dir()} (TRITUNE_CACHE names another)")
    if "://" in options.server:
        check_endpoint(options.server)


def check_force(export_dir: object, *, force: bool) -> None:
    """Raises UsageError where ``--force`` has no ``--export`` that it belongs to."""
    if force and export_dir is None:
        raise UsageError(
            "--force has nothing to replace: it belongs to --export.",
            hint="Add --export DIR, or leave --force out.",
        )


def check_report(path: Path) -> None:
    """Raises UsageError where the report could not be written to ``path``."""
    from analyzer.report.files import check_replaceable, format_of

    if path.is_dir():
        raise UsageError(
            f"--report: {path} is a folder.", hint=f"Name a file: --report {path / 'report.html'}."
        )
    format_of(path, None, hint="End the file in .html, .md, .csv or .json.")
    check_replaceable(path)
    _check_writable(path.parent, f"--report {path}")


def check_export(path: Path | Location) -> None:
    """Raises UsageError or RepositoryError where no repository could be written to ``path``."""
    from analyzer.export.remote import check_remote
    from analyzer.export.repository import check_destination

    if isinstance(path, Location):
        check_remote(path)
        return
    if exists(path) and not is_dir(path):
        raise UsageError(
            f"--export: {path} is a file, where a model repository is a folder.",
            hint="Choose another folder.",
        )
    check_destination(path)
    _check_writable(path, f"--export {path}")


def check_export_of(name: str, repository: Path | Location, *, force: bool) -> None:
    """Raises UsageError where the repository's folder of the model ``name`` is in the way.

    Which configuration wins is not known before the search. So one that is there already is taken
    to differ: a search that is refused at its end would be worse.
    """
    there = f"{repository}/{name}"
    if isinstance(repository, Location):
        from analyzer.export.remote import remote_model_exists

        present = remote_model_exists(repository, name)
    else:
        present = exists(there)
    if isinstance(repository, Path) and present and not Path(there).is_dir():
        raise UsageError(
            f"--export: {there} is a file, where the model's folder should be.",
            hint="Remove it, or choose another folder for --export.",
        )
    if present and not force:
        raise UsageError(
            f"--export: {there} is there already, and the recommended configuration may differ.",
            hint="Add --force to replace it (the older versions stay beside the new one), or "
            "choose another folder for --export.",
        )


def _check_writable(folder: Path, what: str, kind: type[AnalyzerError] = UsageError) -> None:
    """Tries to write a file into ``folder``, or into the nearest folder above it that is there."""
    present = folder.absolute()
    while not exists(present) and present != present.parent:
        present = present.parent
    try:
        with tempfile.TemporaryFile(dir=present):
            pass
    except OSError as error:
        raise kind(
            f"{what}: nothing can be written to {present}: {error.strerror or error}.",
            hint="Choose a folder that is yours to write, on a disk with free space.",
        ) from error


def check_store(url: str, *, study: str | None, resume: bool) -> None:
    """Opens the database and looks for the study, without making anything that is not there yet.

    Raises:
        UsageError: ``--resume`` without a name, or no name for a new study.
        StoreError: The database cannot be used, the study is there although it is to be new, or it
            is not there although it is to be resumed, or another command searches it now.
    """
    from analyzer.store.engine import check_file, check_writable, parse_url
    from analyzer.store.results import open_store

    if resume and study is None:
        raise UsageError(
            "--resume needs the study's name.",
            hint="Add --study NAME; analyze studies lists them.",
        )
    if study is not None and not resume:
        _check_study_name(study)
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        file = Path(str(parsed.database))
        check_file(parsed, create=not resume)
        if not file.exists():
            _check_writable(file.parent, f"--store {url}", StoreError)
            return
        check_writable(parsed)
    with open_store(url) as store:
        if resume and study is not None:
            store.study(study)
            store.hold_study(study)  # until the end of this block: whether it may be had
        elif study is not None and store.has_study(study):
            raise StoreError(
                f"A study named {study!r} exists already in {store.place}.",
                hint=f"Go on with it (--study {shlex.quote(study)} --resume), or choose another "
                "name.",
            )


def _check_study_name(name: str) -> None:
    """Raises UsageError where a list, a command or a file's name could not hold ``name``."""
    if not (name.strip() == name and name.isprintable() and 0 < len(name) <= _STUDY_NAME_MAX):
        raise UsageError(
            f"--study: {name[:_STUDY_NAME_MAX]!r} is no name of a study.",
            hint=f"Choose one to {_STUDY_NAME_MAX} printable characters, none of the outer ones a "
            "space.",
        )


def check_endpoint(address: str, *, loads: bool = True) -> None:
    """Looks whether a server answers at ``address``.

    Args:
        loads: Whether models are to be loaded there.

    Raises:
        UsageError: It is no address.
        MissingPartError: Nothing answers there, or it does not let models be loaded.
    """
    from analyzer.targets.address import open_endpoint
    from analyzer.targets.endpoint import require_model_control

    try:
        with closing(open_endpoint(address)) as endpoint:
            if loads:
                require_model_control(endpoint)
    except TargetError as error:
        raise MissingPartError(error.message, hint=error.hint) from error


def check_file_there(path: Path | None, option: str) -> None:
    """Raises UsageError where ``option`` names a file that is not there, or is none."""
    if path is not None and not path.is_file():
        found = "is no regular file" if path.exists() else "does not exist"
        raise UsageError(
            f"{option}: {path} {'is a folder' if path.is_dir() else found}.",
            hint="Check the path; it is relative to the folder you are in.",
        )
