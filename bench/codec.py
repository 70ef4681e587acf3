"""Stored objects to JSON and back: msgspec's reader against the one written by hand before it.

    python bench/codec.py [--measurements 20000] [--json] [--anyway]

The old codec comes from the repository's history (``git show``), so both read and write the same
objects in one run. It is a timing: nothing else may run on the machine.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from analyzer.domain.load_test import LoadTest
from analyzer.domain.measurement import Failure, Measurement
from analyzer.store import codec
from analyzer.store.database import no_collection
from benchlib.command import Command
from store import made_up

OLD = "e130f86:analyzer/store/codec.py"
ROUNDS = 3


def old_codec() -> ModuleType:
    """The hand-written codec as a module of its own."""
    source = subprocess.check_output(["git", "show", OLD], cwd=Path(__file__).parent, text=True)
    module = ModuleType("old_codec")
    sys.modules[module.__name__] = module
    exec(compile(source, OLD, "exec"), module.__dict__)
    return module


def seconds(action: Callable[[], Any]) -> float:
    """Processor time of the fastest of ROUNDS runs, without garbage collection, as in the store."""
    found = []
    for _ in range(ROUNDS):
        with no_collection():
            start = time.process_time()
            action()
            found.append(time.process_time() - start)
    return round(min(found), 4)


def measure(
    module: ModuleType,
    outcomes: Sequence[Measurement | Failure],
    tests: Sequence[tuple[LoadTest, ...]],
) -> dict[str, float]:
    """Seconds that one codec takes for each task."""
    bodies = [module.dumps(outcome) for outcome in outcomes]
    lists = [module.dumps(group) for group in tests]
    assert module.loads(bodies[0], Measurement, Failure) == outcomes[0]
    return {
        "write": seconds(lambda: [module.dumps(outcome) for outcome in outcomes]),
        "read": seconds(lambda: [module.loads(text, Measurement, Failure) for text in bodies]),
        "read_load_tests": seconds(lambda: [module.loads_many(text, LoadTest) for text in lists]),
    }


def main() -> int:
    command = Command("codec", __doc__, timing=True)
    command.argument("--measurements", type=int, default=20_000)
    options = command.start()
    made = [outcome for _, _, outcome in made_up(options.measurements, 6)]
    tests = [o.load_tests for o in made if isinstance(o, Measurement)]
    # As the store writes them: the load tests apart.
    outcomes = [
        dataclasses.replace(o, load_tests=()) if isinstance(o, Measurement) else o for o in made
    ]
    old, new = (measure(module, outcomes, tests) for module in (old_codec(), codec))
    ratio = {name: round(old[name] / new[name], 2) for name in old}
    document = {
        "measurements": options.measurements,
        "seconds": {"old": old, "new": new},
        "old_over_new": ratio,
    }
    return command.finish(options, document, summary)


def summary(document: dict[str, Any]) -> str:
    """The figures for people."""
    rows = {**document["seconds"], "old / new": document["old_over_new"]}
    return "\n".join(
        f"{name:>10}" + "".join(f"   {task} {value:7.3f}" for task, value in values.items())
        for name, values in rows.items()
    )


if __name__ == "__main__":
    raise SystemExit(main())
