"""Arrival schedules: drawn before a run, in seconds from its start."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from analyzer.errors import DataError, UsageError

# Below it gaps are equal to 0.1 %; above it nearly all requests come at one instant, and a run of a
# million tells nothing of the next.
GAMMA_CV_MIN = 0.001
GAMMA_CV_MAX = 100.0
# Inferences of a request are kept as int32 (``RequestLog.batch_size``).
_BATCH_SIZE_MAX = 2**31 - 1
# A run may take so many times its seconds where a trace pauses; moments are drawn until one does
# not, in a trace that pauses for most of its time some tens of times.
_PAUSE_FACTOR = 2.0
_MOMENTS = 50


class ArrivalProcess(Protocol):
    """A family of schedules, one for each rate."""

    @property
    def name(self) -> str:
        """How the command line spells it: ``poisson``, ``gamma:2``."""

    def interarrival_s(
        self, count: int, rate_rps: float, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """``count`` gaps, float64 [count]; the first is the gap before the first request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Exponential gaps: independent users."""

    @property
    def name(self) -> str:
        return "poisson"

    def interarrival_s(
        self, count: int, rate_rps: float, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        return rng.exponential(1.0 / rate_rps, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Equal gaps; the first request comes at 0."""

    @property
    def name(self) -> str:
        return "constant"

    def interarrival_s(
        self, count: int, rate_rps: float, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        gaps = np.full(count, 1.0 / rate_rps)
        gaps[:1] = 0.0
        return gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Gamma-distributed gaps with the coefficient of variation ``cv`` (1 is Poisson).

    Args:
        cv: From ``GAMMA_CV_MIN`` to ``GAMMA_CV_MAX``.
    """

    cv: float

    def __post_init__(self) -> None:
        assert GAMMA_CV_MIN <= self.cv <= GAMMA_CV_MAX, self.cv

    @property
    def name(self) -> str:
        return f"gamma:{self.cv:g}"

    def interarrival_s(
        self, count: int, rate_rps: float, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        shape = 1.0 / self.cv**2
        return rng.gamma(shape, 1.0 / (rate_rps * shape), count)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Recorded arrivals, repeated as often as needed and scaled to a rate.

    Args:
        path: Where it was read from.
        arrival_s: Arrival times, float64 [n], ascending, the first at 0 after :func:`read_trace`
            when used as a process; read-only.
        batch_size: Inferences of each request, int64 [n].
        row: Where each request stands in the file, 1 for the first row under the header,
            int64 [n]; None for a trace that is not from a file.
    """

    path: str
    arrival_s: NDArray[np.float64]
    batch_size: NDArray[np.int64]
    row: NDArray[np.int64] | None = None

    @property
    def name(self) -> str:
        return f"trace:{self.path}"

    @property
    def rate_rps(self) -> float:
        """Mean rate: gaps over the time they take."""
        span = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self.arrival_s) > 1 else 0.0
        return (len(self.arrival_s) - 1) / span if span > 0 else float("inf")

    def interarrival_s(
        self, count: int, rate_rps: float, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        gaps = np.empty(count)
        gaps[:1] = 0.0
        gaps[1:] = np.resize(self._cycle_s(rate_rps), max(count - 1, 0))
        return gaps

    def _cycle_s(self, rate_rps: float) -> NDArray[np.float64]:
        """The gap after each request; that of the last, which closes the circle, is the mean one.

        So the rate holds over repetitions.
        """
        own = np.diff(self.arrival_s)
        if len(own) == 0 or own.sum() <= 0:
            raise DataError(
                f"The trace {self.path} has no two arrivals at different times.",
                hint="A trace that is scaled to a rate needs at least two rows apart in time.",
            )
        mean = float(own.mean())
        return np.append(own, mean) / (mean * rate_rps)

    def batch_sizes(self, count: int) -> NDArray[np.int64]:
        """The batch sizes that go with ``count`` gaps, int64 [count]."""
        return np.resize(self.batch_size, count)

    def section(
        self,
        *,
        share: float,
        rate_rps: float,
        lead_in_s: float,
        seconds: float,
        count_min: int,
        count_max: int,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """What a run of ``lead_in_s`` and ``seconds`` meets that begins somewhere in the trace.

        Runs that begin at moments drawn evenly meet each of its requests equally often; how many
        there are in a run varies as the trace's own rate does.

        Args:
            share: Where it begins, as a share of the trace's time, in [0, 1).
            rate_rps: What the whole trace's mean rate is scaled to.
            count_min: The run goes on until so many requests came after the lead-in.
            count_max: And ends after so many in all.

        Returns:
            Seconds from its beginning, float64 [n], and where the requests stand in
            ``batch_size``, int64 [n].

        Raises:
            DataError: The trace has no two arrivals at different times.
        """
        gap_s = self._cycle_s(rate_rps)
        time_s, cycle_s = np.cumsum(gap_s) - gap_s, float(gap_s.sum())

        def before(moment_s: float) -> int:
            turns, rest_s = divmod(moment_s, cycle_s)
            return int(turns) * len(time_s) + int(np.searchsorted(time_s, rest_s))

        begin_s = share * cycle_s
        first, counted = before(begin_s), before(begin_s + lead_in_s)
        end = max(before(begin_s + lead_in_s + seconds), counted + count_min)
        rows = np.arange(first, min(end, first + count_max))
        turns, rows = np.divmod(rows, len(time_s))
        return time_s[rows] + turns * cycle_s - begin_s, rows


def read_trace(path: Path) -> Trace:
    """The trace in a CSV file with the header ``arrival_ms[,batch_size]``, sorted stably.

    The text is UTF-8; a byte order mark before it, as Excel writes it, is skipped.

    Raises:
        DataError: It cannot be read; the message names the row.
    """
    rows: list[tuple[float, int]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            if "arrival_ms" not in header or not {"arrival_ms", "batch_size"}.issuperset(header):
                raise DataError(
                    f"{path}: the header must be arrival_ms[,batch_size], "
                    f"not {','.join(header)!r}.",
                    hint="The first line of a trace names its columns: write arrival_ms there.",
                )
            for row in reader:
                where = f"{path}, row {len(rows) + 1} (line {reader.line_num})"
                if None in row:
                    raise DataError(
                        f"{where}: more fields than {','.join(header)}.",
                        hint="A number has a decimal point, no comma: 0.5.",
                    )
                try:
                    arrival_ms = float(row["arrival_ms"])
                    batch_size = int(row["batch_size"]) if "batch_size" in row else 1
                except (TypeError, ValueError) as error:
                    fields = [row[name] if row[name] is not None else "" for name in header]
                    raise DataError(
                        f"{where}: {','.join(fields)!r} is not {','.join(header)}.",
                        hint="An arrival is a number of milliseconds, a batch size an integer.",
                    ) from error
                if not np.isfinite(arrival_ms) or not 1 <= batch_size <= _BATCH_SIZE_MAX:
                    raise DataError(
                        f"{where}: arrival_ms {row['arrival_ms']}, batch_size {batch_size}.",
                        hint="Arrivals are finite and batch sizes at least 1, "
                        f"at most {_BATCH_SIZE_MAX}.",
                    )
                rows.append((arrival_ms, batch_size))
    except OSError as error:
        raise DataError(
            f"The trace {path} cannot be read: {error.strerror}.",
            hint="Check the path after trace:, which counts from the working folder.",
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"The trace {path} is no CSV in UTF-8: {error}.",
            hint="Save it as text: the header arrival_ms[,batch_size], then a row per request.",
        ) from error
    if not rows:
        raise DataError(
            f"The trace {path} has no rows.",
            hint="Under the header each line is a request: its arrival in ms[, its batch size].",
        )
    arrival_ms_all = np.array([row[0] for row in rows])
    order = np.argsort(arrival_ms_all, kind="stable")
    return Trace(
        path=str(path),
        arrival_s=arrival_ms_all[order] / 1e3,
        batch_size=np.array([row[1] for row in rows], dtype=np.int64)[order],
        row=order + 1,
    )


def _gamma(text: str) -> Gamma:
    try:
        cv = float(text)
    except ValueError:
        cv = 0.0
    if not GAMMA_CV_MIN <= cv <= GAMMA_CV_MAX:
        raise UsageError(
            f"'gamma:{text}': gamma needs a coefficient of variation from {GAMMA_CV_MIN:g} to "
            f"{GAMMA_CV_MAX:g}.",
            hint="Write gamma:2 (simulate takes the rate with it: gamma:2:80/s).",
        )
    return Gamma(cv=cv)


def _trace(file: str) -> Trace:
    if not file:
        raise _no_process("trace:")
    return read_trace(Path(file))


# By name: how many arguments follow it (None: all of the text), and what they make.
_PROCESSES: dict[str, tuple[int | None, Callable[[str], ArrivalProcess]]] = {
    "poisson": (0, lambda _: Poisson()),
    "constant": (0, lambda _: Constant()),
    "gamma": (1, _gamma),
    "trace": (None, _trace),
}


def parse_arrivals(text: str) -> ArrivalProcess:
    """The process that ``--arrivals`` names (``poisson``, ``gamma:2``, ``trace:FILE``).

    Raises:
        UsageError: It names none.
        DataError: The trace cannot be read.
    """
    process, behind = parse_arrivals_with_rate(text)
    if behind:
        raise _no_process(text)
    return process


def parse_arrivals_with_rate(text: str) -> tuple[ArrivalProcess, str]:
    """The process, and what stands behind it: ``80/s`` in ``gamma:2:80/s``, else nothing.

    A trace's file may have colons in its name: nothing stands behind that.

    Raises:
        UsageError, DataError: As :func:`parse_arrivals`.
    """
    name, *parts = text.split(":")
    if name not in _PROCESSES:
        raise _no_process(text)
    count, make = _PROCESSES[name]
    count = len(parts) if count is None else count
    return make(":".join(parts[:count])), ":".join(parts[count:])


def _no_process(text: str) -> UsageError:
    return UsageError(
        f"{text!r} names no arrival process.",
        hint="Use poisson, constant, gamma:CV or trace:FILE.",
    )


def draw_arrivals_s(
    process: ArrivalProcess, *, rate_rps: float, count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Intended send times of ``count`` requests, float64 [count], ascending."""
    return np.cumsum(process.interarrival_s(count, rate_rps, rng))


def draw_run(
    process: ArrivalProcess,
    *,
    rate_rps: float,
    lead_in_s: float,
    seconds: float,
    request_batch_size: int,
    counts: tuple[int, int],
    from_start: bool,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The requests of one load test.

    Args:
        lead_in_s: Seconds before those that count.
        seconds: As many requests are drawn as ``rate_rps`` has in both, or a trace's section has.
            One that begins in a pause of the trace, and would take several times as long for the
            least number, is not taken: nothing is late in a pause.
        counts: How many there are at least and at most.
        from_start: Whether a trace begins with its first row, not anywhere.

    Returns:
        Intended send times, seconds from the start, float64 [n], ascending; and batch sizes as
        :func:`request_batch_sizes`.

    Raises:
        DataError: A trace without two arrivals at different times.
    """
    if not isinstance(process, Trace):
        count = int(np.clip(rate_rps * (lead_in_s + seconds), *counts))
        arrival_s = draw_arrivals_s(process, rate_rps=rate_rps, count=count, rng=rng)
        return arrival_s, request_batch_sizes(process, request_batch_size)
    most_s = _PAUSE_FACTOR * (lead_in_s + max(seconds, counts[0] / rate_rps))
    for _ in range(_MOMENTS):
        arrival_s, rows = process.section(
            share=0.0 if from_start else rng.random(),
            rate_rps=rate_rps,
            lead_in_s=lead_in_s,
            seconds=seconds,
            count_min=counts[0],
            count_max=counts[1],
        )
        if from_start or arrival_s[-1] <= most_s:
            break
    sizes = request_batch_sizes(process, request_batch_size)
    return arrival_s, sizes[rows] if len(sizes) > 1 else sizes


def request_batch_sizes(
    process: ArrivalProcess, request_batch_size: int, count: int | None = None
) -> NDArray[np.int64]:
    """Inferences of each request, int64 [n]; [1] where all are equal.

    A trace that records sizes has them, repeated or cut to ``count`` (None: as recorded); what has
    none takes ``request_batch_size``.
    """
    if isinstance(process, Trace) and process.batch_size.max() > 1:
        return process.batch_size if count is None else process.batch_sizes(count)
    return np.array([request_batch_size], dtype=np.int64)


def check_request_batch_size(process: ArrivalProcess, option: int) -> None:
    """Raises UsageError where ``--request-batch-size`` is given beside a trace that has sizes."""
    if option != 1 and isinstance(process, Trace) and process.batch_size.max() > 1:
        raise UsageError(
            f"--request-batch-size: the trace {process.path} has batch sizes of its own.",
            hint="Leave the option out.",
        )


def inferences_per_request(process: ArrivalProcess, request_batch_size: int) -> float:
    """The mean of :func:`request_batch_sizes`; a whole number where all are equal."""
    sizes = request_batch_sizes(process, request_batch_size)
    return float(sizes.mean()) if len(sizes) > 1 else int(sizes[0])
