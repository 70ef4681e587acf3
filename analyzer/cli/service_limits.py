"""Options for what the service allows: one for each limit that an operator may want to set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from analyzer.cli import options as shared
from analyzer.errors import UsageError

if TYPE_CHECKING:
    from analyzer.service.limits import ServiceLimits

_ALLOW, _ALLOW_BUCKET = "--allow-endpoint", "--allow-bucket"
# Option, field of the limits, type, spelling of a value, help, what it is by default.
_Limit = tuple[str, str, click.ParamType[Any], str, str, str]
_F = TypeVar("_F", bound=Callable[..., Any])
# Of the process that answers requests alone: a worker reads none of them.
_OF_REQUESTS = frozenset({"upload_bytes_max", "stored_bytes_max", "open_jobs_max"})
_LIMITS: tuple[_Limit, ...] = (
    ("--budget-max", "budget_s_max", shared.DURATION_S, "{}s", "Longest budget of a job.", "1h"),
    ("--trials-max", "trials_max", click.IntRange(1), "{}", "Most trials of a job.", "10000"),
    ("--parallel-max", "workers_max", click.IntRange(1), "{}", "Most load tests at once.", "16"),
    ("--upload-max", "upload_bytes_max", shared.SIZE_BYTES, "{}B", "Largest upload.", "2GiB"),
    ("--stored-max", "stored_bytes_max", shared.SIZE_BYTES, "{}B", "Files of a project.", "64GiB"),
    (
        "--variants-max",
        "variants_bytes_max",
        shared.SIZE_BYTES,
        "{}B",
        "Variants of a model that are kept from job to job.",
        "8GiB",
    ),
    (
        "--open-jobs-max",
        "open_jobs_max",
        click.IntRange(1),
        "{}",
        "Open jobs of a project.",
        "1000",
    ),
    (
        "--memory-max",
        "memory_bytes_max",
        shared.SIZE_BYTES,
        "{}B",
        "Address space of each process of a job.",
        "no limit",
    ),
)


def limit_options(command: _F) -> _F:
    """Adds the options; the command gets ``limits``, as given or as they are by default."""
    return _with_options(command, _LIMITS)


def worker_limit_options(command: _F) -> _F:
    """As :func:`limit_options`, those that a worker reads."""
    return _with_options(command, _of_workers())


def _of_workers() -> tuple[_Limit, ...]:
    return tuple(limit for limit in _LIMITS if limit[1] not in _OF_REQUESTS)


def _with_options(command: _F, table: Sequence[_Limit]) -> _F:
    @wraps(command)
    def with_limits(**values: Any) -> Any:
        from analyzer.service.limits import ServiceLimits

        given = {name: values.pop(name) for _, name, *_ in table}
        for option, name, *_ in table:
            if given[name] is not None and given[name] <= 0 and name != "variants_bytes_max":
                raise UsageError(
                    f"{option}: nothing could be done with a limit of 0.",
                    hint="Give one above 0, or leave it out.",
                )
        limits = ServiceLimits(
            endpoints=tuple(map(_endpoint, values.pop("endpoints"))),
            buckets=tuple(map(_bucket, values.pop("buckets"))),
            **{name: value for name, value in given.items() if value is not None},
        )
        return command(limits=limits, **values)

    found: Any = click.option(
        _ALLOW_BUCKET, "buckets", multiple=True, metavar="URL",
        help="A place in an object store that jobs may export to, or below: s3://BUCKET/PATH "
        "(repeatable).",
    )(with_limits)  # fmt: skip
    found = click.option(
        _ALLOW, "endpoints", multiple=True, metavar="URL",
        help="A Triton that jobs may measure: grpc://HOST:PORT or http://HOST:PORT (repeatable).",
    )(found)  # fmt: skip
    for option, name, kind, _, meaning, default in reversed(table):
        help_text = f"{meaning}  [default: {default}]"
        found = click.option(option, name, type=kind, help=help_text)(found)
    return found  # type: ignore[no-any-return]


def limit_arguments(limits: ServiceLimits) -> list[str]:
    """The options that give a worker the same limits."""
    given = [
        (option, spelling.format(value))
        for option, name, _, spelling, *_ in _of_workers()
        if (value := getattr(limits, name)) is not None
    ]
    allowed = [(_ALLOW, endpoint) for endpoint in limits.endpoints]
    allowed += [(_ALLOW_BUCKET, bucket) for bucket in limits.buckets]
    return [word for pair in (*given, *allowed) for word in pair]


def _endpoint(text: str) -> str:
    """Raises UsageError where it is none."""
    from analyzer.service.relay import parse_endpoint

    try:
        return str(parse_endpoint(text))
    except UsageError as error:
        raise UsageError(f"{_ALLOW}: {error.message}", hint=error.hint) from error


def _bucket(text: str) -> str:
    """Raises UsageError where it is no place in an object store."""
    from analyzer.buckets.location import parse_location

    return str(parse_location(text, _ALLOW_BUCKET))
