"""Stored objects to JSON and back: msgspec's reader against the one written by hand before it.

    python bench/codec.py [--measurements 20000] [--json]

The old codec comes from the repository's history (``git show``), so both read and write the same
objects in one run. It is a timing: nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from analyzer.domain.measurement import Failure, LoadTest, Measurement
from analyzer.store import codec
from analyzer.store.database import no_collection

sys.path.insert(0, str(Path(__file__).parent))
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    made = [outcome for _, _, outcome in made_up(options.measurements, 6)]
    tests = [o.load_tests for o in made if isinstance(o, Measurement)]
    # As the store writes them: the load tests apart.
    outcomes = [
        dataclasses.replace(o, load_tests=()) if isinstance(o, Measurement) else o for o in made
    ]
    figures = {
        name: measure(module, outcomes, tests)
        for name, module in (("old", old_codec()), ("new", codec))
    }
    figures["old_over_new"] = {
        name: round(figures["old"][name] / figures["new"][name], 2) for name in figures["old"]
    }
    document = {"measurements": options.measurements, "seconds": figures}
    if options.json:
        print(json.dumps(document))
    else:
        for name, values in figures.items():
            print(f"{name:>14}", *(f"{key} {value:8.3f}" for key, value in values.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
