"""What every bench does the same way: arguments, the check of the machine, results, tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from analyzer.hardware.machine import inspect_machine

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
WORK = ROOT / "bench" / ".work"
# An idle machine with two cores shows 1 to 5 %; one busy process on it shows 50 %.
BUSY_SHARE_MAX = 0.15
_BUSY_SECONDS = 1.0

Side = TypeVar("Side", bound=Hashable)
Result = TypeVar("Result")


class Command:
    """One bench: its arguments, the machine it ran on, and the file of its results.

    Args:
        name: Of the bench; ``bench/results/NAME.json`` is the file.
        description: The bench's docstring, for ``--help``.
        timing: It measures times, so it refuses to run while other programs use the machine.
        offline: Its steps (argument ``step``) that measure nothing and run on a busy machine too.
    """

    def __init__(
        self, name: str, description: str | None, *, timing: bool, offline: tuple[str, ...] = ()
    ) -> None:
        self.name, self._timing, self._offline = name, timing, offline
        self._busy_share: float | None = None
        self._load_average = os.getloadavg()[0]
        self._parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.argument = self._parser.add_argument
        self.argument("--json", action="store_true", help="print the results as JSON")
        self.argument(
            "--out", type=Path, metavar="FILE", default=RESULTS / f"{name}.json",
            help="where the results go (default: bench/results)",
        )  # fmt: skip
        if timing:
            self.argument("--anyway", action="store_true", help="run on a busy machine as well")

    def start(self) -> argparse.Namespace:
        """The parsed arguments.

        Raises:
            SystemExit: The arguments are wrong, or the machine is busy (exit code 2).
        """
        options = self._parser.parse_args()
        offline = getattr(options, "step", None) in self._offline
        if self._timing and not options.anyway and not offline:
            self.require_quiet()
        return options

    def require_quiet(self) -> None:
        """Ends the bench (exit code 2) if other programs use the machine."""
        self._busy_share = psutil.cpu_percent(interval=_BUSY_SECONDS) / 100.0
        if self._busy_share > BUSY_SHARE_MAX:
            self._parser.error(
                f"other programs use {self._busy_share:.0%} of this machine's cores; "
                "end them, or run with --anyway"
            )

    def machine(self) -> dict[str, Any]:
        """Where and beside what the bench ran."""
        found = inspect_machine()
        return {
            "hardware": found.hardware,
            "cores": found.cores,
            "system": platform.platform(),
            "python": platform.python_version(),
            "load_average_before": self._load_average,
            "busy_share_before": self._busy_share,
        }

    def finish(
        self,
        options: argparse.Namespace,
        document: dict[str, Any],
        shown: Callable[[dict[str, Any]], str],
    ) -> int:
        """Writes the results, prints them (``shown``, or JSON), and returns the exit code 0."""
        header = {"bench": self.name, "machine": self.machine()}
        whole = header | document | header  # a document that was read again has an older one
        write_json(options.out, whole)
        print(json.dumps(whole) if options.json else shown(whole))
        return 0


def single_threaded_pool(processes: int) -> ProcessPoolExecutor:
    """Processes whose matrix products take one thread each: small ones, on shared cores."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def write_json(path: Path, document: Any) -> None:
    """Writes a document, without this checkout's path in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1).replace(str(ROOT) + os.sep, "")
    path.write_text(text + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Progress, to stderr."""
    print(text, file=sys.stderr, flush=True)


def alternate(
    sides: Mapping[Side, Callable[[int], Result]], rounds: int
) -> dict[Side, list[Result]]:
    """Measures A B A B …, since a machine's speed drifts; each call gets the round's number."""
    found: dict[Side, list[Result]] = {side: [] for side in sides}
    for number in range(rounds):
        for side, measure in sides.items():
            found[side].append(measure(number))
    return found


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are there."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def table_of(
    first: str, columns: Mapping[str, tuple[str, str]], rows: Mapping[str, Mapping[str, Any]]
) -> str:
    """A Markdown table of numbers, a line for each named row.

    Args:
        first: Title of the names.
        columns: Of each title, the key in a row and the format.
    """
    keys = columns.values()
    cells = ([name, *(cell(row[key], spec) for key, spec in keys)] for name, row in rows.items())
    return table((first, *columns), cells)


def cell(value: float | None, spec: str) -> str:
    """A number of a table, or a dash."""
    return "–" if value is None else format(value, spec)


def put_into_page(page: Path, bench: str, text: str) -> None:
    """Replaces what stands between the bench's marks in a page of ``docs/``."""
    begin, end = f"<!-- table: bench/{bench}.py -->", "<!-- end -->"
    head, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, tail = rest.partition(end)
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")
