"""What a search cannot be made of, beside its options alone: files, studies, workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Row

from analyzer.domain import units
from analyzer.domain.sla import Sla
from analyzer.service import jobs
from analyzer.service.content import ContentStore
from analyzer.service.folder import STUDY
from analyzer.service.inspection import Inspector
from analyzer.service.options import JobOptions, shapes_of
from analyzer.service.problems import conflict, invalid
from analyzer.service.waiting import kinds_of_workers

# The option of a field of the SLA.
_OPTIONS = {
    "latency_budget_ms": "latency_budget",
    "target_rate_rps": "target_rate",
    "max_memory_bytes": "max_memory",
}
# What a study's measurements are made with, each with its default; a trace has its upload's id.
_LOAD = {"arrivals": "poisson", "request_batch_size": 1, "server": "embedded"}


async def check_fit(
    inspector: Inspector, content: ContentStore, model: str, options: Mapping[str, Any]
) -> None:
    """Raises Problem 422 where the given shapes or real data do not fit the model.

    Args:
        model: The upload's SHA-256.
        options: Checked ones.
    """
    shapes, data = shapes_of(options), options.get("calibration_data")
    files = [content.path(sha256) for sha256 in (model, data) if sha256 is not None]
    if (shapes or data is not None) and all(file.is_file() for file in files):
        await inspector.check_job(files[0], shapes, files[1] if data is not None else None)


def check_shapes_given(upload: Row[Any], options: Mapping[str, Any]) -> None:
    """Raises Problem 422 where the model has dynamic dimensions, and no shape is given."""
    missing = json.loads(upload.details).get("shapes_missing")
    if missing and "input_shape" not in options:
        raise invalid(missing["detail"], pointer="/options/input_shape", hint=missing["hint"])


def check_trace(scenario: Row[Any], options: Mapping[str, Any]) -> None:
    """Raises Problem 422 where requests get a size, and those of the trace have their own."""
    size = int(options.get("request_batch_size", 1))
    if size != 1 and json.loads(scenario.details).get("batch_size_max", 1) > 1:
        raise invalid(
            f"The option request_batch_size: the trace {scenario.name!r} has batch sizes of its "
            "own.",
            pointer="/options/request_batch_size",
            hint="Leave the option out.",
        )


def check_workers(connection: Connection, options: JobOptions) -> None:
    """Raises Problem 422 where an option needs a GPU, and none of the workers there are has one."""
    kinds = kinds_of_workers(connection)
    if options.gpu_for is not None and kinds and "gpu" not in kinds:
        raise invalid(
            f"The option {options.gpu_for} needs a GPU, and no worker of this service has one.",
            pointer=f"/options/{options.gpu_for}",
            hint="Leave it out, or start a worker on a machine with a GPU.",
        )


def check_study(
    connection: Connection, project: str, options: JobOptions, source: Row[Any] | None
) -> None:
    """Raises Problem where the name asked for is another study's.

    Args:
        source: The job whose study the new one goes on with.
    """
    name = options.study
    if name is None:
        return
    if source is not None and source.study != name:
        raise invalid(
            f"The option study: the job goes on with the study {source.study!r}, not {name!r}.",
            pointer="/options/study",
            hint="Leave study out, or job.",
        )
    if source is None and jobs.has_study(connection, project, name):
        raise conflict(
            "study",
            f"The project has a study {name!r} already.",
            hint="Name its job as 'job' to go on with it, or choose another name.",
        )


def check_goes_on(connection: Connection, source: Row[Any], options: Mapping[str, Any]) -> None:
    """Raises Problem 422 where the options of ``source`` began another study than these.

    One that measured nothing is begun anew.
    """
    if jobs.artifact_of(connection, source.number, STUDY) is None:
        return
    begun = json.loads(source.options)
    before, now = _sla(begun), _sla(options)
    differ = [
        _OPTIONS.get(field.name, field.name)
        for field in fields(Sla)
        if getattr(before, field.name) != getattr(now, field.name)
    ]
    if ("calibration_data" in begun) != ("calibration_data" in options):
        differ.append("calibration_data")
    if "seed" in begun and str(options.get("seed", begun["seed"])) != str(begun["seed"]):
        differ.append("seed")
    differ += [
        name
        for name, default in _LOAD.items()
        if str(begun.get(name, default)) != str(options.get(name, default))
    ]
    if differ:
        name = differ[0]
        raise invalid(
            f"The option {name}: the study of the job {source.id} was begun with "
            f"{begun.get(name, _LOAD.get(name, 'none'))}, and goes on with the same.",
            pointer=f"/options/{name}",
            hint="Repeat the job's options, or leave 'job' out for a new study.",
        )


def _sla(options: Mapping[str, Any]) -> Sla:
    """The SLA of checked options."""

    def given(name: str, parse: Callable[[str], Any], default: Any = None) -> Any:
        return parse(str(options[name])) if name in options else default

    target_rate_rps = given("target_rate", units.parse_rate_rps)
    return Sla(
        latency_budget_ms=given("latency_budget", units.parse_duration_ms),
        percentile=given("percentile", float, 99.0),
        confidence=given("confidence", float, 0.95),
        target_rate_rps=target_rate_rps,
        objective=options.get("objective", "cost" if target_rate_rps else "capacity"),
        max_memory_bytes=given("max_memory", units.parse_size_bytes),
        max_accuracy_drop=given("max_accuracy_drop", float, 0.01),
    )
