"""The options of a job: those of the command line, each checked before a job is made of them.

An option is allowed because it is in a table here; what is not in it is refused. No value is a
path, an address or the name of a file: files are given by the id of an upload, and where a job
reads and writes is the worker's to choose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzer.buckets.location import parse_location
from analyzer.domain import units
from analyzer.domain.configuration import PRECISIONS
from analyzer.domain.sla import PERCENTILE_MAX
from analyzer.domain.workload import GAMMA_CV_MAX, GAMMA_CV_MIN
from analyzer.errors import DataError, UsageError
from analyzer.search.samplers import SAMPLERS
from analyzer.service.limits import ServiceLimits
from analyzer.service.names import PLAIN_NAME, check_study_name
from analyzer.service.problems import Problem, invalid
from analyzer.service.relay import Endpoint, parse_endpoint
from analyzer.spaces.prices import lookup_price

Value = str | int | float | bool
SHA256 = re.compile(r"[0-9a-f]{64}")
_SHAPE = re.compile(r"[^\x00-\x1f:]{1,200}:[1-9][0-9]{0,8}(,[1-9][0-9]{0,8}){0,31}")
_SERVERS = ("embedded", "triton")  # those that the command starts itself
_TEXT_MAX = 1000  # characters of one value; none that is meant comes near it

_Check = Callable[[str, ServiceLimits], object]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Checked options.

    Args:
        arguments: For the command, each ``--name=value``.
        budget_s: Seconds that the command may spend.
        device: ``auto``, ``cpu`` or ``gpu``; the last also where another option needs one.
        gpu_for: The option that needs a GPU, where ``device`` itself does not ask for one.
        precisions: That a search may choose from.
        calibration: The upload with real data, by its SHA-256.
        trace: The upload with the arrivals, by its SHA-256.
        endpoint: The Triton elsewhere that is measured.
        triton: Whether a Triton is started and measured.
        export: Where to put the repository in an object store.
        force: Whether a configuration there that differs is replaced.
        study: The name that was asked for.
    """

    arguments: tuple[str, ...]
    budget_s: float
    device: str = "auto"
    gpu_for: str | None = None
    precisions: frozenset[str] = frozenset(PRECISIONS)
    calibration: str | None = None
    trace: str | None = None
    endpoint: Endpoint | None = None
    triton: bool = False
    export: str | None = None
    force: bool = False
    study: str | None = None

    def devices(self, own: str) -> frozenset[str]:
        """What the command may measure on, with a worker that has the device ``own``."""
        # Left to itself it may find that it cannot use the GPU.
        return frozenset({own, "cpu"} if self.device == "auto" else {own})


def _unit(parse: Callable[[str], float]) -> _Check:
    return lambda text, _: parse(text)


def _above_zero(parse: Callable[[str], float]) -> _Check:
    def check(text: str, _: ServiceLimits) -> None:
        if parse(text) <= 0:
            raise UsageError("It must be above 0.")

    return check


def _one_of(*names: str) -> _Check:
    def check(text: str, _: ServiceLimits) -> None:
        if text not in names:
            raise UsageError(f"{text!r} is none of {', '.join(names)}.")

    return check


def _matches(pattern: re.Pattern[str], what: str) -> _Check:
    def check(text: str, _: ServiceLimits) -> None:
        if not pattern.fullmatch(text):
            raise UsageError(f"{text!r} is no {what}.")

    return check


def _number(
    low: float,
    high: float,
    *,
    whole: bool = False,
    open_high: bool = False,
) -> Callable[[str], float]:
    def check(text: str) -> float:
        try:
            value = float(int(text) if whole else float(text))
        except (ValueError, OverflowError):
            raise UsageError(f"{text!r} is no {'whole ' if whole else ''}number.") from None
        if not (low <= value < high if open_high else low <= value <= high):
            raise UsageError(f"{text} is not between {low:g} and {high:g}.")
        return value

    return check


def _at_most(limit: Callable[[ServiceLimits], int], what: str) -> _Check:
    def check(text: str, limits: ServiceLimits) -> None:
        value = _number(1, float("inf"), whole=True)(text)
        if value > limit(limits):
            raise UsageError(f"{text} is more {what} than this service allows ({limit(limits)}).")

    return check


def _budget(text: str, limits: ServiceLimits) -> None:
    seconds = units.parse_duration_s(text)
    if not 0 < seconds <= limits.budget_s_max:
        allowed = units.format_duration(limits.budget_s_max)
        raise UsageError(f"{text}: this service allows budgets above 0 and up to {allowed}.")


def _precisions(text: str, _: ServiceLimits) -> None:
    wrong = [name for name in text.split(",") if name.strip() not in PRECISIONS]
    if wrong:
        raise UsageError(f"{', '.join(map(repr, wrong))}: choose of {', '.join(PRECISIONS)}.")


def _arrivals(text: str, _: ServiceLimits) -> None:
    name, separator, value = text.partition(":")
    if name == "gamma" and separator:
        _number(GAMMA_CV_MIN, GAMMA_CV_MAX)(value)
    elif text not in ("poisson", "constant") and not _trace_id(text):
        raise UsageError(
            f"{text!r} is none of poisson, constant, gamma:CV, trace:ID.",
            hint="ID is that of an uploaded scenario.",
        )


def _trace_id(arrivals: str) -> str | None:
    """The upload that ``--arrivals`` replays."""
    name, _, value = arrivals.partition(":")
    return value if name == "trace" and SHA256.fullmatch(value) else None


def _server(text: str, limits: ServiceLimits) -> None:
    # A service that calls wherever a client wants reaches what the client cannot.
    if text not in _SERVERS and str(parse_endpoint(text)) not in limits.endpoints:
        allowed = ", ".join((*_SERVERS, *limits.endpoints))
        raise UsageError(
            f"{text!r} is none of those that this service measures: {allowed}.",
            hint="Its operator allows others with --allow-endpoint.",
        )


def may_export(place: str, allowed: Sequence[str]) -> bool:
    """Whether ``place`` is one of those allowed, or lies below one.

    Raises:
        UsageError: It is no place in an object store.
    """
    wanted = parse_location(place, "export")
    for text in allowed:
        known = parse_location(text, "--allow-bucket")
        same_store = (known.scheme, known.endpoint, known.account, known.bucket) == (
            wanted.scheme, wanted.endpoint, wanted.account, wanted.bucket,
        )  # fmt: skip
        if same_store and f"{wanted.path}/".startswith(f"{known.path}/".lstrip("/")):
            return True
    return False


def _export(text: str, limits: ServiceLimits) -> None:
    # The worker writes with credentials that the client does not have.
    if not may_export(text, limits.buckets):
        allowed = ", ".join(limits.buckets) or "none"
        raise UsageError(
            f"{text!r} is no place that this service exports to (allowed: {allowed}).",
            hint="Fetch the repository from the job's artifacts; its operator allows places in "
            "object stores with --allow-bucket.",
        )


_SLA: dict[str, _Check] = {
    "latency_budget": _above_zero(units.parse_duration_ms),
    "percentile": _unit(_number(1, PERCENTILE_MAX)),
    "confidence": _unit(_number(0.5, 1, open_high=True)),
    "target_rate": _unit(units.parse_rate_rps),
    "budget": _budget,
    "server": _server,
    "seed": _unit(_number(0, 2**62, whole=True)),
}
SEARCH: Mapping[str, _Check] = {
    **_SLA,
    "objective": _one_of("capacity", "cost", "latency", "memory"),
    "max_memory": _above_zero(units.parse_size_bytes),
    "max_accuracy_drop": _unit(_number(0, 1)),
    "precisions": _precisions,
    "calibration_data": _matches(SHA256, "id of uploaded calibration data"),
    "input_shape": _matches(_SHAPE, "NAME:DIM,DIM,…"),
    "space": _one_of("cpu", "gpu", "ablation"),
    "arrivals": _arrivals,
    "request_batch_size": _unit(_number(1, 65536, whole=True)),
    "accept": _one_of("certified", "estimated"),
    "max_trials": _at_most(lambda limits: limits.trials_max, "trials"),
    "sampler": _one_of(*SAMPLERS),
    "device": _one_of("auto", "cpu", "gpu"),
    "workers": _at_most(lambda limits: limits.workers_max, "load tests at a time"),
    "instance_type": _matches(PLAIN_NAME, "name of a machine type"),
    "price": _unit(units.parse_price_per_hour),
    "study": lambda text, _: check_study_name(text),
    "export": _export,
    "force": _one_of("true", "false"),
    "executor": _one_of("ray", "in-process"),
}
VERIFY: Mapping[str, _Check] = _SLA
TABLES = {"search": SEARCH, "verify": VERIFY}
# What a command spends without the option.
_BUDGET = "5m"
# Only TensorRT has them.
_GPU_PRECISIONS = frozenset({"bf16", "fp8"})
# Given by the worker in a form of its own, or used here alone.
_OWN = frozenset({"study", "calibration_data", "export", "force"})
#: Why an option of the command line is refused, for those that people would try.
WHY_NOT = {
    "store": "the service has its own database",
    "resume": "name the job to go on with as 'job'",
    "report": "fetch the report from the job's artifacts",
    "ray_address": "where jobs run is the operator's to choose",
    "instance_types": "a job is measured on the machine of one worker",
    "prices": "give the price itself as 'price'",
    "repository": "name the job to verify as 'job'",
    "config": "a job is verified by the repository that it exported",
    "model": "name the upload as the job's 'model'",
    "scenario": "give the id of an uploaded trace as 'arrivals', like trace:ID",
}


def check_options(kind: str, options: Mapping[str, Any], limits: ServiceLimits) -> JobOptions:
    """The options of a job of this kind, checked.

    Raises:
        Problem: One is unknown, refused, or has a wrong value; it names which.
    """
    table = TABLES[kind]
    arguments: list[str] = []
    for name, value in options.items():
        pointer = f"/options/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in table:
            why = WHY_NOT.get(name)
            raise invalid(
                f"The option {name[:100]!r} "
                + (f"is not taken: {why}." if why else f"is none of {kind}'s."),
                pointer=pointer,
                hint=f"Options: {', '.join(sorted(table))}.",
            )
        for text in _texts(name, value, pointer):
            try:
                table[name](text, limits)
            except UsageError as error:
                told = error.message.removeprefix(f"{name}: ")
                raise invalid(
                    f"The option {name}: {told}", pointer=pointer, hint=error.hint
                ) from error
            if name not in _OWN and not _is_own(name, text):
                arguments.append(f"--{name.replace('_', '-')}={text}")
    if kind == "search" and "latency_budget" not in options:
        raise invalid(
            "The option latency_budget is missing.",
            pointer="/options",
            hint='Write it like "latency_budget": "50ms".',
        )
    if "force" in options and "export" not in options:
        raise invalid("The option force belongs to export.", pointer="/options/force")
    gpu_for = None
    if kind == "search":
        _check_together(options)
        gpu_for = _gpu_for(options)
    if kind == "search" and "max_trials" not in options:
        arguments.append(f"--max-trials={limits.trials_max}")
    budget = str(options.get("budget", _BUDGET))
    if "budget" not in options and units.parse_duration_s(budget) > limits.budget_s_max:
        budget = f"{limits.budget_s_max:g}s"
        arguments.append(f"--budget={budget}")
    server = str(options.get("server", "embedded"))
    return JobOptions(
        arguments=tuple(arguments),
        budget_s=units.parse_duration_s(budget),
        device="gpu" if gpu_for else str(options.get("device", "auto")),
        gpu_for=gpu_for,
        precisions=_precisions_of(options),
        calibration=_text(options, "calibration_data"),
        trace=trace_of(options),
        export=_text(options, "export"),
        force=str(options.get("force", "false")).lower() == "true",
        endpoint=parse_endpoint(server) if server not in _SERVERS else None,
        triton=server == "triton",
        study=_text(options, "study"),
    )


def _text(options: Mapping[str, Any], name: str) -> str | None:
    """The option as text, which it is in the database where it was given as a number."""
    return str(options[name]) if name in options else None


def _check_together(options: Mapping[str, Any]) -> None:
    """Raises Problem where options of a search, each right alone, cannot go together."""
    objective = options.get("objective", "capacity")
    if objective != "capacity" and "target_rate" not in options:
        raise invalid(
            f"The option objective: {objective} needs a rate at which it is judged.",
            pointer="/options/objective",
            hint='Add it, like "target_rate": "500/s".',
        )
    if "instance_type" in options and "price" not in options:
        try:
            lookup_price(str(options["instance_type"]))
        except UsageError as error:
            raise invalid(
                f"The option instance_type: {error.message}",
                pointer="/options/instance_type",
                hint=error.hint,
            ) from error
    if options.get("executor") == "in-process" and str(options.get("workers", 1)) != "1":
        raise invalid(
            "The option workers: the executor in-process has one.", pointer="/options/workers"
        )
    elsewhere = "://" in str(options.get("server", ""))
    if elsewhere and str(options.get("workers", 1)) != "1":
        raise invalid(
            "The option workers: a server that runs already takes one load test at a time.",
            pointer="/options/workers",
        )
    named = [text.rpartition(":")[0] for text in _shape_texts(options)]
    if twice := next((name for name in named if named.count(name) > 1), None):
        raise invalid(
            f"The option input_shape names {twice[:100]!r} twice.", pointer="/options/input_shape"
        )


def _gpu_for(options: Mapping[str, Any]) -> str | None:
    """The option that no CPU can do, where ``device`` does not ask for a GPU; None without one.

    Raises:
        Problem: A CPU is asked for all the same.
    """
    device = options.get("device", "auto")
    reasons = {
        "space": options.get("space") == "gpu",
        "precisions": "precisions" in options and _precisions_of(options) <= _GPU_PRECISIONS,
        # A machine's cores are one device.
        "workers": int(options.get("workers", 1)) > 1,
    }
    needs = next((name for name, wanted in reasons.items() if wanted), None)
    if needs is not None and device == "cpu":
        raise invalid(
            f"The option {needs}: {options[needs]} needs a GPU, and the device is cpu.",
            pointer=f"/options/{needs}",
            hint="Leave one of the two out.",
        )
    return needs if device == "auto" else None


def _precisions_of(options: Mapping[str, Any]) -> frozenset[str]:
    """Those that a search may choose from."""
    text = _texts("precisions", options.get("precisions", ",".join(PRECISIONS)), "")[0]
    return frozenset(name.strip() for name in text.split(","))


def trace_of(options: Mapping[str, Any]) -> str | None:
    """The upload with the arrivals, by its SHA-256; None where they are no trace."""
    return _trace_id(str(options.get("arrivals", "")))


def shapes_of(options: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The checked option ``input_shape``: dimensions without the batch axis, by input."""
    found = (text.rpartition(":") for text in _shape_texts(options))
    return {name: tuple(map(int, dims.split(","))) for name, _, dims in found}


def _shape_texts(options: Mapping[str, Any]) -> list[str]:
    return _texts("input_shape", options.get("input_shape", []), "")


def stored_options(kind: str, options: Mapping[str, Any], limits: ServiceLimits) -> JobOptions:
    """The options of a job that was made before.

    Raises:
        DataError: The operator has narrowed the limits since.
    """
    try:
        return check_options(kind, options, limits)
    except Problem as problem:
        raise DataError(problem.detail, hint=problem.hint) from problem


def _is_own(name: str, text: str) -> bool:
    """Whether the worker gives the option in a form of its own."""
    return (name == "arrivals" and _trace_id(text) is not None) or (
        name == "server" and text not in _SERVERS
    )


def _texts(name: str, value: Any, pointer: str) -> list[str]:
    """The value as the command line would have it; several where the option may be repeated."""
    if isinstance(value, bool) and name == "force":
        value = str(value).lower()
    if isinstance(value, list) and name == "precisions":
        value = ",".join(map(str, value))
    values = value if isinstance(value, list) and name == "input_shape" else [value]
    texts = []
    for one in values:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            told = (
                "null; leave it out for its default" if one is None else "neither text nor a number"
            )
            raise invalid(f"The option {name} is {told}.", pointer=pointer)
        text = str(one)
        if len(text) > _TEXT_MAX or not text.isprintable():
            raise invalid(f"The value of the option {name} is no short line.", pointer=pointer)
        texts.append(text)
    return texts
