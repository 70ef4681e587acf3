"""Stands for the command ``analyze``: does what the "model" says, which is JSON.

``outcomes`` (how many it measures, one every ``pause_s``), ``exit``, ``verdict``, ``error``,
``stubborn`` (ignores SIGTERM and SIGINT), ``daemon`` (leaves a process behind in a session of its
own, which sleeps for so many seconds), ``say`` (on standard error), ``study_link``
(where its database leads).
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from analyzer.store.results import open_store


def option(name: str) -> str | None:
    """The value of ``--name=value``."""
    found = [arg.partition("=")[2] for arg in sys.argv if arg.startswith(f"--{name}=")]
    return found[-1] if found else None


def objects() -> ModuleType:
    """The stored objects that the tests of the store make."""
    spec = importlib.util.spec_from_file_location(
        "store_objects", Path(__file__).parents[1] / "store" / "conftest.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """The exit code."""
    kind = sys.argv[1]
    script = {} if kind == "verify" else json.loads(Path(sys.argv[2]).read_text())
    if script.get("stubborn"):
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
    print("[  0.0s] inspecting the model (about 2 s)", file=sys.stderr)
    if script.get("say"):
        print(script["say"], file=sys.stderr, flush=True)
    if script.get("daemon"):
        subprocess.Popen(["sleep", script["daemon"]], start_new_session=True)
    if kind == "search" and script.get("outcomes"):
        measure(script)
    if script.get("study_link"):
        Path("study.db").symlink_to(script["study_link"])
    time.sleep(script.get("seconds", 0))
    if "error" in script:
        print(json.dumps({"schema": 1, "error": script["error"]}))
    else:
        print(json.dumps({"schema": 1, "verdict": script.get("verdict", "found")}))
    if kind == "search" and script.get("export", True):
        model = Path("repository") / Path(sys.argv[2]).stem
        model.mkdir(parents=True)
        (model / "tritune.json").write_text('{"schema": 1}')
        (model / "config.pbtxt").write_text("name: 'x'")
        if script.get("link"):
            (model / "stolen").symlink_to("/etc/passwd")
        Path(str(option("report"))).write_text("<p>report")
    return int(script.get("exit", 0))


def measure(script: dict[str, float]) -> None:
    """Measures what is not measured yet, and stores it, one outcome after the other."""
    made = objects()
    with open_store(str(option("store"))) as store:
        name = str(option("study"))
        if "--resume" not in sys.argv:
            store.create_study(made.make_record(name))
        there = len(store.outcomes(name))
        print(f"Note: {there} were there", file=sys.stderr, flush=True)
        for number in range(there, int(script["outcomes"])):
            time.sleep(script.get("pause_s", 0.05))
            store.add_outcome(name, number, {}, made.make_measurement())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
