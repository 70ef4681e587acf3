"""``analyze search --service URL``: the search runs there, the answer is printed here."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from analyzer.buckets.location import Location
from analyzer.cli import options as shared
from analyzer.cli.models import find_model, local_model
from analyzer.cli.preflight import check_export, check_export_of, check_force, check_report
from analyzer.cli.streams import answer, say
from analyzer.errors import (
    AnalyzerError,
    InputError,
    RepositoryError,
    RunInterruptedError,
    UsageError,
)
from analyzer.service.names import check_study_name, upload_name
from analyzer.variants.naming import model_stem

if TYPE_CHECKING:
    from analyzer.domain.study import StudyResult
    from analyzer.export.repository import ExportResult
    from analyzer.service.client import ServiceClient

TOKEN_VARIABLE = "TRITUNE_TOKEN"
# Done here, not there.
_HERE = frozenset(
    {"model", "service", "export_dir", "report_file", "force", "as_json", "quiet", "verbose",
     "study", "resume", "calibration_data"}
)  # fmt: skip
_NAMES = {"input_shapes": "input_shape", "store_url": "store", "prices_file": "prices"}
# Of a job that failed for a reason that no error of the command has, by its exit code.
_ERRORS = {2: InputError, 130: RunInterruptedError}
# Verdicts after which a repository is exported there; the job's message then says so.
_EXPORTED = ("found", "estimated")
# How the command line says its last word.
_LAST_WORD = "Error: "


def search_remotely(context: click.Context, exit_codes: Mapping[str, int]) -> int:
    """Hands the search over, follows it, prints what a local one prints; the exit code.

    Args:
        exit_codes: By verdict.

    Raises:
        AnalyzerError: It cannot be handed over, or failed there.
    """
    from analyzer.service.client import ServiceClient

    values = context.params
    path = local_model(values["model"] or find_model(Path.cwd()))
    if not path.exists():
        raise UsageError(f"There is no model {path}.", hint="Give an ONNX file or a directory.")
    name = upload_name(model_stem(path))
    _check_here(values)
    with ServiceClient(values["service"], os.environ.get(TOKEN_VARIABLE)) as client:
        before = _job_before(client, values)
        if isinstance(values["export_dir"], Path):
            there = name if before is None else before["model_name"]
            check_export_of(there, values["export_dir"], force=values["force"])
        body: dict[str, Any] = {"kind": "search", "options": _options(context)}
        if before is not None:
            body["job"] = before["id"]
        elif values["study"] is not None:
            body["options"]["study"] = values["study"]
        if isinstance(values["export_dir"], Location):
            # The service writes there: it has the credentials.
            body["options"]["export"] = str(values["export_dir"])
            body["options"] |= {"force": True} if values["force"] else {}
        body["model"] = _upload_model(client, path, name)
        arrivals, _, trace = str(values["arrivals"]).partition(":")
        if arrivals == "trace":
            sent = client.upload("scenarios", _file("--arrivals", trace), _called(trace))
            body["options"]["arrivals"] = f"trace:{sent}"
        if (data := values["calibration_data"]) is not None:
            sent = client.upload("calibration", _file("--calibration-data", data), _called(data))
            body["options"]["calibration_data"] = sent
        job = client.submit(body)
        held = _follow(client, job, quiet=values["quiet"])
        done = client.job(job["id"])
        if done["state"] != "SUCCEEDED":
            raise _error_of(done)
        if held and not values["quiet"]:
            say(held, newline=False)
        _deliver(client, done, values, shared.command_line(context.obj or ()))
    return exit_codes[done["verdict"]]


def _check_here(values: Mapping[str, Any]) -> None:
    """What a local search refuses before it begins, of what is done or said here.

    Raises:
        UsageError: The report or the repository could not be written, or an option lacks another.
    """
    if values["report_file"] is not None:
        check_report(values["report_file"])
    if isinstance(values["export_dir"], Path):
        check_export(values["export_dir"])
    check_force(values["export_dir"], force=values["force"])
    if values["study"] is None:
        if values["resume"]:
            raise UsageError("--resume needs the study's name.", hint="Add --study NAME.")
        return
    try:
        check_study_name(values["study"])
    except UsageError as error:
        raise UsageError(f"--study: {error.message}", hint=error.hint) from error


def _job_before(client: ServiceClient, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The job whose study ``--resume`` goes on with; None for a new study.

    Raises:
        UsageError: There is none to go on with, or one although the study is to be new.
    """
    study = values["study"]
    before = client.job_of_study(study) if study is not None else None
    if values["resume"] and before is None:
        raise UsageError(f"--resume: the service has no study {study!r}.")
    if before is not None and not values["resume"]:
        raise UsageError(
            f"--study: the service has a study {study!r} already.",
            hint="Add --resume to go on with it, or choose another name.",
        )
    return before


def _called(file: str | Path) -> str:
    return upload_name(Path(file).stem)


def _error_of(done: Mapping[str, Any]) -> AnalyzerError:
    """The error of a job that has no result, as the same command has it here."""
    job = done["id"]
    if done["state"] == "CANCELLED":
        return RunInterruptedError(f"The job {job} was cancelled there.", hint=_go_on(done))
    kind = next(
        (kind for kind in _kinds(AnalyzerError) if kind.code == done["reason"]),
        _ERRORS.get(done["exit_code"] or 1, AnalyzerError),
    )
    return kind(done["message"] or f"The job {job} is {done['state']}.", hint=done["hint"] or "")


def _kinds(root: type[AnalyzerError]) -> Iterator[type[AnalyzerError]]:
    """``root`` and what is derived from it."""
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def _go_on(job: Mapping[str, Any]) -> str:
    return f"Go on with: --study {shlex.quote(job['study'])} --resume (the same command otherwise)."


def _upload_model(client: ServiceClient, path: Path, name: str) -> str:
    """The id of the model, which is an ONNX file or a model directory; that goes as a tar."""
    if not path.is_dir():
        return client.upload("models", path, name)
    from analyzer.service.archive import pack

    with tempfile.TemporaryDirectory(prefix="tritune-") as scratch:
        packed = Path(scratch) / "model.tar"
        pack(path, name, packed, follow=True)
        return client.upload("models", packed, name)


def _file(option: str, name: str | Path) -> Path:
    """Raises UsageError where there is no such file."""
    if not (path := Path(name)).is_file():
        raise UsageError(f"{option}: there is no file '{name}'.", hint="Check the path.")
    return path


def _options(context: click.Context) -> dict[str, Any]:
    """The options that were given, as the service takes them; it refuses what it cannot do."""
    found: dict[str, Any] = {}
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in _HERE or not given or value is None:
            continue
        unit = parameter.type.unit if isinstance(parameter.type, shared.Quantity) else ""
        if name == "precisions":
            text: Any = ",".join(value)
        elif name == "input_shapes":
            text = [f"{key}:{','.join(map(str, dims))}" for key, dims in value.items()]
        else:
            text = f"{value}{unit}"
        found[_NAMES.get(name, name)] = text
    return found


def _follow(client: ServiceClient, job: Mapping[str, Any], *, quiet: bool) -> str:
    """Shows what the command says there, until it ends; Ctrl-C ends it there, too.

    Returns:
        From its last word on, which is this command's to say where the job failed.
    """
    if not quiet:
        say(f"Job {job['id']}")
    held = ""  # from the beginning of a line on
    try:
        for event in client.events(job["id"]):
            if event.kind != "log":
                continue
            held += event.body["text"]
            shown, held = _shown(held)
            if shown and not quiet:
                say(shown, newline=False)
    except KeyboardInterrupt as error:
        client.cancel(job["id"])
        raise RunInterruptedError(
            f"Interrupted. The job {job['id']} is cancelled; what it measured is stored there.",
            hint=_go_on(job),
        ) from error
    return held


def _shown(text: str) -> tuple[str, str]:
    """``text`` up to the command's last word, and from there on.

    Args:
        text: Begins with a line.
    """
    if text.startswith(_LAST_WORD):
        return "", text
    before, found, _ = text.partition(f"\n{_LAST_WORD}")
    if found:
        return f"{before}\n", text[len(before) + 1 :]
    lines, newline, rest = text.rpartition("\n")
    return lines + newline, rest


def _deliver(
    client: ServiceClient, done: Mapping[str, Any], values: Mapping[str, Any], command: str
) -> None:
    """Prints the answer, and writes the report and the repository that were asked for.

    Args:
        command: This command, which the next one is made of.

    Raises:
        AnalyzerError: One of the two could not be written; with ``--json`` nothing is printed then.
    """
    from analyzer.report.document import render_json
    from analyzer.report.entries import make_report
    from analyzer.report.terminal import render_terminal

    with tempfile.TemporaryDirectory(prefix="tritune-") as scratch:
        result = _study(client, done, Path(scratch) / "study.db", command)
        if result is not None and not values["as_json"]:
            answer(render_terminal(make_report(result)))
        try:
            written = _write(client, done, values, result, Path(scratch))
        except AnalyzerError as error:
            hint = f"{error.hint} The job {done['id']} keeps its report and its repository there."
            raise error.reworded(error.message, hint.strip()) from error
    if values["as_json"]:
        answer(render_json(_document(client, done, result)), newline=False)
        return
    for line in written:
        answer(line)


def _write(
    client: ServiceClient,
    done: Mapping[str, Any],
    values: Mapping[str, Any],
    result: StudyResult | None,
    scratch: Path,
) -> list[str]:
    """Writes the report and the repository that were asked for; a line about each."""
    from analyzer.report.files import format_of, render_report, write_report

    report_file, place = values["report_file"], values["export_dir"]
    written = []
    if result is not None and report_file is not None:
        write_report(report_file, render_report(result, format_of(report_file, None)))
        written.append(f"report      {report_file}")
    packed = scratch / "repository.tar"
    if isinstance(place, Path) and client.fetch(done["id"], packed.name, packed):
        for exported in _unpack(packed, place, force=values["force"]):
            for note in () if values["quiet"] else exported.notes:
                say(f"Note: {note}")
            written.append(f"repository  {place / exported.model}")
    if done["reason"] == "export":
        raise RepositoryError(done["message"], hint=done["hint"] or "")
    if isinstance(place, Location) and done["verdict"] in _EXPORTED:
        written.append(done["message"])
    return written


def _study(
    client: ServiceClient, done: Mapping[str, Any], place: Path, command: str
) -> StudyResult | None:
    """The study that the job has left, as if ``command`` had made it; None without one."""
    from analyzer.store.engine import file_url
    from analyzer.store.results import open_store

    if not client.fetch(done["id"], "study.db", place):
        return None
    with open_store(file_url(place), create=False) as store:
        found = store.load_result(done["study"])
    return replace(found, provenance={**found.provenance, "command": command})


def _document(
    client: ServiceClient, done: Mapping[str, Any], result: StudyResult | None
) -> dict[str, Any]:
    """The job's result, whose commands are this one's."""
    from analyzer.report.advice import next_command
    from analyzer.report.entries import make_report

    document = client.result(done["id"])
    if result is not None:
        if isinstance(told := document.get("provenance"), dict):
            told["command"] = result.provenance["command"]
        if isinstance(closest := document.get("closest"), dict):
            closest["command"] = next_command(make_report(result))
    return document


def _unpack(packed: Path, place: Path, *, force: bool) -> list[ExportResult]:
    """Adds the models of a repository's tar to the repository ``place``, as an export here does."""
    from analyzer.export.manifest import read_manifest
    from analyzer.export.repository import add_exported
    from analyzer.modelconfig.repository import list_models
    from analyzer.service.archive import unpack

    with tempfile.TemporaryDirectory(dir=packed.parent) as scratch:
        fresh = Path(scratch) / "repository"
        unpack(packed, fresh)
        return [
            add_exported(read_manifest(fresh, name), place, force=force)
            for name in list_models(fresh)
        ]
