"""Options for what the service allows: one for each limit that an operator may want to set."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from analyzer.cli import options as shared

if TYPE_CHECKING:
    from analyzer.service.limits import ServiceLimits

_F = TypeVar("_F", bound=Callable[..., Any])
# Option, field of the limits, type, spelling of a value, help.
_LIMITS: tuple[tuple[str, str, click.ParamType[Any], str, str], ...] = (
    ("--budget-max", "budget_s_max", shared.DURATION_S, "{}s", "Longest budget of a job [1h]."),
    ("--trials-max", "trials_max", click.IntRange(1), "{}", "Most trials of a job [10000]."),
    ("--parallel-max", "workers_max", click.IntRange(1), "{}", "Most load tests at once [16]."),
    ("--upload-max", "upload_bytes_max", shared.SIZE_BYTES, "{}B", "Largest upload [2GiB]."),
    ("--stored-max", "stored_bytes_max", shared.SIZE_BYTES, "{}B", "Uploads of a project [64GiB]."),
    ("--open-jobs-max", "open_jobs_max", click.IntRange(1), "{}", "Open jobs of a project [1000]."),
)


def limit_options(command: _F) -> _F:
    """Adds the options; the command gets ``limits``, as given or as they are by default."""

    @wraps(command)
    def with_limits(**values: Any) -> Any:
        from analyzer.service.limits import ServiceLimits

        given = {name: values.pop(name) for _, name, *_ in _LIMITS}
        limits = ServiceLimits(
            **{name: value for name, value in given.items() if value is not None}
        )
        return command(limits=limits, **values)

    found: Any = with_limits
    for option, name, kind, _, help_text in reversed(_LIMITS):
        found = click.option(option, name, type=kind, help=help_text)(found)
    return found  # type: ignore[no-any-return]


def limit_arguments(limits: ServiceLimits) -> list[str]:
    """The options that give another command the same limits."""
    return [
        word
        for option, name, _, spelling, _ in _LIMITS
        for word in (option, spelling.format(getattr(limits, name)))
    ]
