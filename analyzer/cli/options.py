"""Option types and options that several commands share; names and meanings are the contract's."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from analyzer.buckets.location import Location, is_location, parse_location
from analyzer.domain import units
from analyzer.domain.sla import PERCENTILE_MAX
from analyzer.errors import UsageError
from analyzer.report.commands import DEFAULT_STORE
from analyzer.service.command import TOLD

_F = TypeVar("_F", bound=Callable[..., Any])
_TRACEBACKS = "Tracebacks of errors."


class Quantity(click.ParamType[float]):
    """A number with a unit; a bare number is refused with the right spelling.

    Args:
        unit: What the parsed number counts.
        usual: The unit that people mean where they write none.
        example: Where 0 is no value: one that is.
    """

    def __init__(
        self,
        name: str,
        parse: Callable[[str], float],
        *,
        unit: str,
        usual: str = "",
        example: str = "",
    ) -> None:
        self.name = name
        self.unit = unit
        self._parse = parse
        self._usual = usual
        self._example = example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | int:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        option = param.opts[0] if param is not None else self.name
        try:
            number = self._parse(value)
        except UsageError as error:
            hint = error.hint
            bare = value.strip().removeprefix("-")
            if self._usual and re.fullmatch(units.NUMBER, bare):
                # The unit that people mean here: a search of 60 ms makes no sense.
                small = 0.0 < float(bare) <= units.KEPT_S_MAX
                meant = f"{bare}{self._usual}" if small else self._example or f"1{self._usual}"
                hint = f"Write it like {option} {meant}."
            elif self._example and not re.match("[0-9]", bare):
                hint = f"Write it like {option} {self._example}."
            raise UsageError(f"{option}: {error.message}", hint=hint) from error
        if self._example and number <= 0:
            raise UsageError(
                f"{option} must be above 0.", hint=f"Write it like {option} {self._example}."
            )
        return number


DURATION_MS = Quantity("DUR", units.parse_duration_ms, unit="ms")
LATENCY_BUDGET_MS = Quantity("DUR", units.parse_duration_ms, unit="ms", example="50ms")
DURATION_S = Quantity("DUR", units.parse_duration_s, unit="s", usual="s")
BUDGET_S = Quantity("DUR", units.parse_duration_s, unit="s", usual="s", example="60s")
KEPT_S = Quantity("DUR", units.parse_kept_s, unit="s", usual="s")
RATE_RPS = Quantity("RATE", units.parse_rate_rps, unit="/s")
SIZE_BYTES = Quantity("SIZE", units.parse_size_bytes, unit="B")
MEMORY_BYTES = Quantity("SIZE", units.parse_size_bytes, unit="B", example="8GiB")
PRICE_PER_HOUR = Quantity("PRICE", units.parse_price_per_hour, unit="/h")
SEED = click.IntRange(0, 2**62)


def seed_or_drawn(seed: int | None) -> int:
    """``--seed``, or one drawn, which the answer tells as JSON."""
    return secrets.randbits(48) if seed is None else seed


class Percentile(click.ParamType[float]):
    """A percentile from 1 to 99.9999; one below 1 is taken for a fraction, and refused."""

    name = "P"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = _number(str(value).removeprefix("p"))
        if not 0 < number < 100:
            raise UsageError(
                f"--percentile: {value!r} is no number from 1 to below 100.",
                hint="Write 99 or 99.9.",
            )
        if number < 1:
            raise UsageError(
                f"--percentile: {value!r} means {number:g} % of the requests, not a fraction.",
                hint=f"For {100 * number:g} % write {100 * number:g}.",
            )
        if number > PERCENTILE_MAX:
            raise UsageError(
                f"--percentile: {value!r} is above {PERCENTILE_MAX:g}, which takes millions of "
                "requests to prove already.",
                hint="Write 99 or 99.9.",
            )
        return number


class Fraction(click.ParamType[float]):
    """A number from 0 to 1."""

    name = "FRACTION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = _number(value)
        if not 0 <= number <= 1:
            option = param.opts[0] if param is not None else "value"
            raise UsageError(
                f"{option}: {value!r} is no fraction from 0 to 1.", hint="Write 0.01 for 1 %."
            )
        return number


class Confidence(click.ParamType[float]):
    """A number from 0.5, below which a claim is likelier wrong than right, to below 1."""

    name = "FRACTION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = _number(value)
        if not 0.5 <= number < 1:
            raise UsageError(
                f"--confidence: {value!r} is no fraction from 0.5 to below 1.",
                hint="Write 0.95 for 95 %.",
            )
        return number


def _number(text: Any) -> float:
    """``text`` as a number; -1 where it is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0


class Place(click.ParamType[Path | Location]):
    """A path of this machine, or a location in an object store."""

    name = "PLACE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | Location:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if not is_location(value):
            return Path(value)
        named = param is not None and param.opts[0].startswith("-")
        option = param.opts[0] if param is not None and named else "MODEL"
        return parse_location(value, option)


def common(function: _F) -> _F:
    """Adds ``--json``, ``-v`` and ``-q``."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings."),
        click.option("-v", "--verbose", is_flag=True, help=_TRACEBACKS),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    ):
        function = option(function)
    return function


def tracebacks(function: _F) -> _F:
    """Adds ``-v``, which :mod:`analyzer.cli.main` reads, to a command without the others."""
    return click.option("-v", "--verbose", is_flag=True, expose_value=False, help=_TRACEBACKS)(
        function
    )


def store(function: _F) -> _F:
    """Adds ``--store URL``."""
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        default=DEFAULT_STORE,
        show_default=True,
        help="Database of the results: sqlite:///FILE or postgresql://USER@HOST/NAME; write a % in "
        "it as %25.",
    )(function)


def sla(function: _F) -> _F:
    """Adds the options of the SLA: budget, percentile, confidence."""
    for option in (
        click.option(
            "--confidence",
            type=Confidence(),
            default=0.95,
            show_default=True,
            help="Confidence of every claim.",
        ),
        click.option(
            "--percentile",
            type=Percentile(),
            default=99.0,
            show_default=True,
            help="Share of the requests that the latency budget is for, in percent.",
        ),
    ):
        function = option(function)
    return function


def _input_shapes(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Click's callback for ``--input-shape NAME:3,224,224``."""
    shapes = {}
    for text in value:
        name, separator, dims = text.rpartition(":")
        try:
            shape = tuple(int(dim) for dim in dims.split(",")) if dims else ()
        except ValueError:
            shape = (0,)
        if not separator or not name or any(dim < 1 for dim in shape):
            raise UsageError(
                f"--input-shape: {text!r} is no NAME:DIM,DIM,….",
                hint="Write --input-shape image:3,224,224 (without the batch axis).",
            )
        shapes[name] = shape
    return shapes


def input_shape(function: _F) -> _F:
    """Adds ``--input-shape NAME:DIMS``, which may be repeated."""
    return click.option(
        "--input-shape",
        "input_shapes",
        multiple=True,
        callback=_input_shapes,
        metavar="NAME:DIMS",
        help="Shape of an input with dynamic dimensions, without the batch axis "
        "(image:3,224,224); again for more inputs.",
    )(function)


def load(function: _F) -> _F:
    """Adds how requests come: ``--arrivals``, ``--request-batch-size``."""
    for option in (
        click.option(
            "--request-batch-size",
            type=click.IntRange(1, 65536),
            default=1,
            show_default=True,
            metavar="N",
            help="Inferences in each request.",
        ),
        click.option(
            "--arrivals",
            default="poisson",
            show_default=True,
            metavar="PROCESS",
            help="How requests arrive: poisson, constant, gamma:CV or trace:FILE.",
        ),
    ):
        function = option(function)
    return function


def command_line(args: Sequence[str]) -> str:
    """The command with its arguments, to be repeated; passwords in URLs are hidden.

    A job of the service is told what its user would type instead. Bytes that are no text are told
    as escapes: a database and a page hold text alone.
    """
    told = os.environ.get(TOLD) or shlex.join(["analyze", *map(hide_password, args)])
    return told.encode(errors="backslashreplace").decode()


def hide_password(text: str) -> str:
    """``text`` with the password of a URL in it hidden, also one among its parameters."""
    text = re.sub(r"(://[^:/@\s]*:)[^@\s]*@", r"\1***@", text)
    return re.sub(r"(://[^\s]*[?&]password=)[^&\s]*", r"\1***", text)


def cache_dir() -> Path:
    """Where variants and probes are kept between studies; ``TRITUNE_CACHE`` moves it."""
    base = os.environ.get("TRITUNE_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "tritune"
