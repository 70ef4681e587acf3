"""``analyze search --service URL``: the search runs there, the answer is printed here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from analyzer.buckets.location import Location
from analyzer.cli import options as shared
from analyzer.cli.models import find_model, local_model
from analyzer.cli.preflight import check_export, check_report
from analyzer.errors import (
    AnalyzerError,
    InputError,
    RepositoryError,
    RunInterruptedError,
    UsageError,
)

if TYPE_CHECKING:
    from analyzer.domain.study import StudyResult
    from analyzer.service.client import ServiceClient

TOKEN_VARIABLE = "TRITUNE_TOKEN"
# How an option's parsed value is written again.
_UNITS: tuple[tuple[object, str], ...] = (
    (shared.DURATION_MS, "ms"),
    (shared.DURATION_S, "s"),
    (shared.RATE_RPS, "/s"),
    (shared.SIZE_BYTES, "B"),
    (shared.PRICE_PER_HOUR, "/h"),
)
# Done here, not there.
_HERE = frozenset(
    {"model", "service", "export_dir", "report_file", "force", "as_json", "quiet", "verbose",
     "study", "resume", "calibration_data"}
)  # fmt: skip
_NAMES = {"input_shapes": "input_shape", "store_url": "store", "prices_file": "prices"}
# The contract's, of a command that failed there.
_ERRORS = {2: InputError, 130: RunInterruptedError}
_GO_ON_HINT = "Go on with the same command, --study and --resume."


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
    if values["report_file"] is not None:
        check_report(values["report_file"])
    if isinstance(values["export_dir"], Path):
        check_export(values["export_dir"])
    with ServiceClient(values["service"], os.environ.get(TOKEN_VARIABLE)) as client:
        body: dict[str, Any] = {"kind": "search", "options": _options(context)}
        if isinstance(values["export_dir"], Location):
            # The service writes there: it has the credentials.
            body["options"]["export"] = str(values["export_dir"])
            body["options"] |= {"force": True} if values["force"] else {}
        body["model"] = _upload_model(client, path)
        arrivals, _, trace = str(values["arrivals"]).partition(":")
        if arrivals == "trace":
            sent = client.upload("scenarios", _file("--arrivals", trace), Path(trace).stem)
            body["options"]["arrivals"] = f"trace:{sent}"
        if (data := values["calibration_data"]) is not None:
            body["options"]["calibration_data"] = client.upload("calibration", data, data.stem)
        if values["study"] is not None:
            before = client.job_of_study(values["study"])
            if values["resume"] and before is None:
                raise UsageError(f"--resume: the service has no study {values['study']!r}.")
            if values["resume"]:
                body["job"] = before
            elif before is not None:
                raise UsageError(
                    f"--study: the service has a study {values['study']!r} already.",
                    hint="Add --resume to go on with it, or choose another name.",
                )
            else:
                body["options"]["study"] = values["study"]
        job = client.submit(body)["id"]
        _follow(client, job, quiet=values["quiet"])
        done = client.job(job)
        if done["state"] != "SUCCEEDED":
            if done["state"] == "CANCELLED":
                raise RunInterruptedError(f"The job {job} was cancelled there.", hint=_GO_ON_HINT)
            kind = _ERRORS.get(done["exit_code"] or 1, AnalyzerError)
            raise kind(
                done["message"] or f"The job {job} is {done['state']}.", hint=done["hint"] or ""
            )
        _deliver(client, job, done, values)
        if done["reason"] == "export":
            raise RepositoryError(done["message"], hint=done["hint"] or "")
        if done["message"] and not values["as_json"]:
            click.echo(done["message"])
    return exit_codes[done["verdict"]]


def _upload_model(client: ServiceClient, path: Path) -> str:
    """The id of the model, which is an ONNX file or a model directory; that goes as a tar."""
    if not path.is_dir():
        return client.upload("models", path, path.stem)
    from analyzer.service.archive import pack

    name = path.absolute().name
    with tempfile.TemporaryDirectory(prefix="tritune-") as scratch:
        packed = Path(scratch) / "model.tar"
        pack(path, name, packed, follow=True)
        return client.upload("models", packed, name)


def _file(option: str, name: str) -> Path:
    """Raises UsageError where there is no such file."""
    if not (path := Path(name)).is_file():
        raise UsageError(f"{option}: there is no file {name!r}.", hint="Check the path.")
    return path


def _options(context: click.Context) -> dict[str, Any]:
    """The options that were given, as the service takes them; it refuses what it cannot do."""
    found: dict[str, Any] = {}
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in _HERE or not given or value is None:
            continue
        unit = next((unit for kind, unit in _UNITS if parameter.type is kind), "")
        if name == "precisions":
            text: Any = ",".join(value)
        elif name == "input_shapes":
            text = [f"{key}:{','.join(map(str, dims))}" for key, dims in value.items()]
        else:
            text = f"{value}{unit}"
        found[_NAMES.get(name, name)] = text
    return found


def _follow(client: ServiceClient, job: str, *, quiet: bool) -> None:
    """Shows what the command says there, until it ends; Ctrl-C ends it there, too."""
    if not quiet:
        click.echo(f"Job {job}", err=True)
    try:
        for event in client.events(job):
            if event.kind == "log" and not quiet:
                click.echo(event.body["text"], nl=False, err=True)
    except KeyboardInterrupt as error:
        client.cancel(job)
        raise RunInterruptedError(
            f"Interrupted. The job {job} is cancelled; what it measured is stored there.",
            hint=_GO_ON_HINT,
        ) from error


def _deliver(client: ServiceClient, job: str, done: dict[str, Any], values: dict[str, Any]) -> None:
    """Prints the answer, and writes the report and the repository that were asked for."""
    from analyzer.report.document import render_json
    from analyzer.report.entries import make_report
    from analyzer.report.files import format_of, render_report, write_report
    from analyzer.report.terminal import render_terminal

    report_file = values["report_file"]
    written: list[str] = []
    if values["as_json"]:
        click.echo(render_json(client.result(job)), nl=False)
    with tempfile.TemporaryDirectory(prefix="tritune-") as scratch:
        if report_file is not None or not values["as_json"]:
            result = _study(client, job, done["study"], Path(scratch) / "study.db")
            if result is not None and not values["as_json"]:
                click.echo(render_terminal(make_report(result)))
            if result is not None and report_file is not None:
                write_report(report_file, render_report(result, format_of(report_file, None)))
                written.append(f"report      {report_file}")
        if isinstance(values["export_dir"], Path):
            packed = Path(scratch) / "repository.tar"
            if client.fetch(job, "repository.tar", packed):
                models = _unpack(packed, values["export_dir"], force=values["force"])
                written += [f"repository  {path}" for path in models]
    for line in () if values["as_json"] else written:
        click.echo(line)


def _study(client: ServiceClient, job: str, name: str, place: Path) -> StudyResult | None:
    """The study that the job has left; None if it measured nothing."""
    from analyzer.store.results import open_store

    if not client.fetch(job, "study.db", place):
        return None
    with open_store(f"sqlite:///{place}", create=False) as store:
        return store.load_result(name)


def _unpack(packed: Path, place: Path, *, force: bool) -> list[Path]:
    """Puts the models of a repository's tar into the folder ``place``; returns their folders."""
    from analyzer.export.atomic import locked, put_in_place, staging_folder
    from analyzer.service.archive import unpack

    with tempfile.TemporaryDirectory(dir=packed.parent) as scratch:
        fresh = Path(scratch) / "repository"
        unpack(packed, fresh)
        models = [place / found.name for found in sorted(fresh.iterdir())]
        for model in models:
            if model.exists() and not force:
                raise UsageError(
                    f"--export: {model} is there already.", hint="Add --force to replace it."
                )
        place.mkdir(parents=True, exist_ok=True)
        with locked(place), staging_folder(place) as staging:
            for model in models:
                staged = staging / model.name
                shutil.copytree(fresh / model.name, staged)
                put_in_place(staged, model)
    return models
