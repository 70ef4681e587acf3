"""How long a search prepares before its first load test, with empty caches and with full ones.

    python bench/startup.py [--rounds 3] [--budget 60s] [--until-load] [--json]

Runs the demo's command (``make demo``) in turns: *cold* with an empty cache folder, an empty store
and an uncompiled twin, then *warm* with what the cold run left in all three. For each run: the
seconds to the first load test (the start of the first server process under load) and to the
beginning of each phase, the CPU seconds of all its processes at these times, and those of each
kind of process at the end. Goals: the first load test within 25 s (cold) and 12 s (warm), on two
cores. ``--until-load`` ends each run there. Writes ``bench/results/startup.json``. It is a timing:
nothing else may run on the machine.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analyzer.cluster.processes import kill_until_gone
from benchlib.command import ROOT, Command, median, say, table

GOALS_S = {"cold": 25.0, "warm": 12.0}
FIRST_LOAD = "first load test"
# What a server under load is known by, and names of the other processes.
_SERVER = "analyzer.targets.embedded_main"
_KINDS = {
    _SERVER: "servers",
    "analyzer.variants": "builds",
    "analyzer.measure.probe_main": "probes",
    "analyzer.cli": "command",
    "bin/analyze": "command",
    "ray": "Ray",
    "guardian.py": "Ray",
}
_POLL_S = 0.1
_PHASE = re.compile(r"^\[ *[\d.]+s\] (.*) \(about")
_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")
_TIMEOUT_S = 600.0


@dataclass(slots=True)
class Tree:
    """The processes below this one, and the CPU that each has used, dead ones included.

    Orphans come to this process (it is their subreaper), so that none is lost from sight.
    """

    cpu_s: dict[int, float] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    server_seen: bool = False

    def look(self) -> set[int]:
        """Reads the processes once; those that live, zombies left out."""
        parents: dict[int, int] = {}
        seconds: dict[int, float] = {}
        zombies: set[int] = set()
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                stat = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            fields = stat.rpartition(")")[2].split()
            pid = int(entry.name)
            parents[pid] = int(fields[1])
            seconds[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
            if fields[0] == "Z":
                zombies.add(pid)
        below = {os.getpid()}
        grew = True
        while grew:
            more = {pid for pid, parent in parents.items() if parent in below} - below
            below |= more
            grew = bool(more)
        below.discard(os.getpid())
        for pid in below:
            self.cpu_s[pid] = max(self.cpu_s.get(pid, 0.0), seconds[pid])
            # A process changes its command line when its program starts.
            kind = _kind(pid)
            self.server_seen |= kind == _KINDS[_SERVER]
            if kind:
                self.kinds[pid] = kind
        return below - zombies

    def total_s(self) -> float:
        """CPU seconds of all processes so far."""
        return sum(self.cpu_s.values())

    def by_kind_s(self) -> dict[str, float]:
        """The same by kind of process."""
        found: defaultdict[str, float] = defaultdict(float)
        for pid, seconds in self.cpu_s.items():
            found[self.kinds.get(pid, "others")] += seconds
        return {kind: round(found[kind], 2) for kind in sorted(found)}


def main() -> int:
    command = Command("startup", __doc__, timing=True)
    command.argument("--rounds", type=int, default=3)
    command.argument("--budget", default="60s", help="of each search (default: 60s)")
    command.argument("--until-load", action="store_true", help="end at the first load test")
    options = command.start()
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    runs: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="startup-") as name:
            for side, found in runs.items():
                found.append(run(Path(name), options.budget, until_load=options.until_load))
                say(f"round {number + 1}, {side}: {found[-1]['seconds']}")
    document = {
        "budget": options.budget,
        "goals_s": GOALS_S,
        "runs": runs,
        "median_s": {
            side: median(one["seconds"].get(FIRST_LOAD) for one in found)
            for side, found in runs.items()
        },
    }
    return command.finish(options, document, summary)


def run(folder: Path, budget: str, *, until_load: bool) -> dict[str, Any]:
    """One demo with its caches, store and output in ``folder``."""
    arguments = [
        sys.executable, "-m", "analyzer.cli.main", "examples/digits.onnx",
        "--latency-budget", "50ms", "--budget", budget,
        "--calibration-data", "examples/digits.npz", "--store", f"sqlite:///{folder}/results.db",
        "--report", f"{folder}/report.html", "--export", f"{folder}/repository", "--force",
    ]  # fmt: skip
    environment = os.environ | {
        "TRITUNE_CACHE": f"{folder}/cache",
        "NUMBA_CACHE_DIR": f"{folder}/numba",
        "PYTHONPATH": str(ROOT),
    }
    tree = Tree()
    begun = time.monotonic()
    seconds: dict[str, float] = {}
    cpu_s: dict[str, float] = {}

    def mark(name: str) -> None:
        """The first time that something begins."""
        if name not in seconds:
            seconds[name] = round(time.monotonic() - begun, 2)
            cpu_s[name] = round(tree.total_s(), 2)

    with subprocess.Popen(
        arguments,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lines: list[str] = []

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if found := _PHASE.match(line):
                    mark(found[1])

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while process.poll() is None and time.monotonic() - begun < _TIMEOUT_S:
            tree.look()
            if tree.server_seen:
                mark(FIRST_LOAD)
                if until_load:
                    process.send_signal(signal.SIGINT)
                    break
            time.sleep(_POLL_S)
        try:
            process.wait(_TIMEOUT_S if until_load else 1.0)
        except subprocess.TimeoutExpired:
            process.kill()
        tree.look()
        mark("end")
        kill_orphans(tree)
        reader.join()
    shutil.rmtree(folder / "repository", ignore_errors=True)
    return {
        "exit_code": process.returncode,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "cpu_s_by_kind": tree.by_kind_s(),
        "notes": [line.strip() for line in lines if line.startswith(("Note:", "Error:"))],
    }


def kill_orphans(tree: Tree) -> None:
    """Ends what a run left behind, and forgets it."""
    import psutil

    def left() -> set[psutil.Process]:
        return {psutil.Process(pid) for pid in tree.look() if psutil.pid_exists(pid)}

    kill_until_gone(left, timeout_s=10.0)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _kind(pid: int) -> str:
    """What a process is; empty where that cannot be told."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((kind for words, kind in _KINDS.items() if words in line), "others" if line else "")


def summary(document: dict[str, Any]) -> str:
    """The phases of the runs nearest to the median, and the goal."""
    parts = []
    for side, found in document["runs"].items():
        middle = sorted(found, key=lambda one: one["seconds"].get(FIRST_LOAD, 1e9))[len(found) // 2]
        rows = [
            (name, f"{at:.1f}", f"{middle['cpu_s'][name]:.1f}")
            for name, at in sorted(middle["seconds"].items(), key=lambda item: item[1])
        ]
        median_s = document["median_s"][side]
        shown = "never" if median_s is None else f"{median_s:.1f} s"
        parts.append(
            f"{side}: first load test after {shown} in the median of {len(found)} runs "
            f"(goal: {document['goals_s'][side]:g} s); CPU by kind of process: "
            f"{middle['cpu_s_by_kind']}\n\n"
            + table(("beginning of", "seconds", "CPU seconds of all processes"), rows)
        )
    return "\n\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
