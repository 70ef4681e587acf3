"""What ``peers.py`` and ``servers.py`` share: searching, exporting, and perf_analyzer as arbiter.

Both compare configurations that different searches chose. Each is served by the same real Triton
and loaded by the same ``perf_analyzer``, so that neither side's own measurement decides.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.load.perf_analyzer import PerfAnalyzerResult, require_perf_analyzer, run_perf_analyzer
from analyzer.targets.triton_install import require_triton
from analyzer.targets.triton_server import TritonServer
from analyzer.variants.inputs import synthetic_inputs
from analyzer.variants.inspect import inspect_model
from benchlib.command import ROOT, WORK, say, write_json

_LOAD_TIMEOUT_S = 120.0
_CONCURRENCY_MAX = 512
_RATES_MAX = 8
_FACTOR_AGAIN = 1.25
# A server carries a rate whose replies fall short of it by less than this share; the longest run.
_SHORT = 0.08
_TELLING_S_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """One ``analyze search`` and what it exported.

    Args:
        wall_seconds: From the start of the process to its end, imports and reports included.
        exit_code: 0 found, 4 undecided.
        document: The command's JSON.
        repository: Where its choice was exported; None if it measured nothing.
    """

    command: list[str]
    wall_seconds: float
    exit_code: int
    document: dict[str, Any]
    repository: Path | None


def search(
    model: Path, *, name: str, budget_s: float, latency_budget_ms: float, options: list[str]
) -> Searched:
    """Runs ``analyze search`` from nothing (cold cache, new store) and exports its choice.

    Raises:
        SystemExit: The command failed; its words are shown.
    """
    home = WORK / name
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    command = ["search", str(model), "--latency-budget", f"{latency_budget_ms:g}ms"]
    command += ["--budget", f"{budget_s:g}s", "--study", name, "--json", *options]
    start = time.monotonic()
    done = _analyze(home, command)
    wall_s = time.monotonic() - start
    (home / "search.err").write_text(done.stderr)
    document = json.loads(done.stdout)
    write_json(home / "search.json", document)
    entry = chosen(document)
    repository: Path | None = None
    if entry is not None:
        repository = home / "repository"
        export = ["export", name, "--repository", str(repository), "--backend", "python"]
        _analyze(home, [*export, "--config", entry["config_id"]])
    return Searched(
        command=[part.replace(str(ROOT) + os.sep, "") for part in command],
        wall_seconds=wall_s,
        exit_code=done.returncode,
        document=document,
        repository=repository,
    )


def chosen(document: dict[str, Any]) -> dict[str, Any] | None:
    """The entry of a search's document that stands for its choice.

    The recommendation; where the budget ended undecided, what came closest to a certificate.
    """
    entry = document["recommendation"]
    if entry is None and document.get("closest"):
        entry = document["closest"]["entry"]
    return dict(entry) if entry else None


def verify(name: str, *, server: str, budget_s: float) -> dict[str, Any]:
    """``analyze verify`` of a study that :func:`search` made; its document."""
    command = ["verify", name, "--server", server, "--budget", f"{budget_s:g}s", "--json"]
    return dict(json.loads(_analyze(WORK / name, command).stdout))


def _analyze(home: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs ``analyze`` with the store and the cache of ``home``.

    Raises:
        SystemExit: It ended with a fault or wrong usage; its words are shown.
    """
    whole = [*command, "--store", f"sqlite:///{home / 'results.db'}"]
    done = subprocess.run(
        [sys.executable, "-m", "analyzer.cli.main", *whole],
        cwd=ROOT, env=os.environ | {"TRITUNE_CACHE": str(home / "cache")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # 3 and 4 are verdicts: infeasible or refuted, undecided.
    if done.returncode not in (0, 3, 4):
        raise SystemExit(f"analyze {' '.join(whole)} ended with {done.returncode}:\n{done.stderr}")
    return done


def request_rows(model: Path, rows: int = 16) -> dict[str, NDArray[Any]]:
    """Valid inputs of a model (token ids within its tables), the same at each call."""
    return synthetic_inputs(inspect_model(model), rows, 0)


@contextmanager
def served(model_dir: Path) -> Iterator[str]:
    """A real Triton that serves a model's folder alone; yields its gRPC address."""
    with TritonServer(require_triton()) as server:
        shutil.copytree(model_dir, server.repository / model_dir.name)
        url = f"http://{server.http_address}/v2/repository/models/{model_dir.name}/load"
        request = urllib.request.Request(url, data=b"{}", method="POST")
        urllib.request.urlopen(request, timeout=_LOAD_TIMEOUT_S)
        yield f"grpc://{server.grpc_address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One run of ``perf_analyzer``: a concurrency or a rate, and what came of it."""

    concurrency: int | None
    rate_rps: float | None
    throughput_ips: float
    latency_ms_p50: float
    latency_ms_p99: float
    kept: bool
    stable: bool


class Arbiter:
    """Finds the highest load at which a served model keeps p99 within a budget.

    Args:
        address: ``grpc://HOST:PORT`` of the server.
        model: The model's name there.
        inputs: Rows of input.
        budget_ms: What p99 must keep.
        seconds: Of each run.
    """

    def __init__(
        self,
        address: str,
        model: str,
        inputs: Mapping[str, NDArray[Any]],
        *,
        budget_ms: float,
        seconds: float,
    ) -> None:
        self._install = require_perf_analyzer()
        self._address, self._model, self._inputs = address, model, inputs
        self._budget_ms, self._seconds = budget_ms, seconds

    def closed(self, start: int = 4, factor: float = 2.0) -> list[Level]:
        """Concurrencies until the budget breaks, then halved between: Model Analyzer's way.

        The highest throughput of those that kept it is the throughput within the SLA.

        Args:
            start: The first one.
            factor: Of the next, up or down, until one kept the budget and one did not.
        """
        levels: list[Level] = []
        good, bad = 0, 0
        concurrency = start
        while not (good and bad) and 1 <= concurrency <= _CONCURRENCY_MAX:
            levels.append(self.at(concurrency=concurrency))
            if levels[-1].kept:
                good, concurrency = concurrency, max(concurrency + 1, round(concurrency * factor))
            else:
                bad, concurrency = concurrency, min(concurrency - 1, round(concurrency / factor))
        while bad - good > max(1, good // 12):
            middle = (good + bad) // 2
            levels.append(self.at(concurrency=middle))
            good, bad = (middle, bad) if levels[-1].kept else (good, middle)
        return levels

    def open(self, guess_rps: float) -> list[Level]:
        """Poisson rates around a guess until two neighbours enclose the edge within 3 %.

        A level whose throughput falls 8 % short of its rate does not count as kept: the server
        lags behind, and the windows were too short for it to show in the latency.
        """
        levels: list[Level] = []
        good, bad, rate = 0.0, float("inf"), guess_rps
        while len(levels) < _RATES_MAX and (bad == float("inf") or bad > 1.03 * good):
            levels.append(self.at(rate_rps=rate))
            good, bad = (rate, bad) if levels[-1].kept else (good, rate)
            if not good:
                rate = 0.85 * bad
            elif bad == float("inf"):
                rate = 1.12 * good
            else:
                rate = float(np.sqrt(good * bad))
        return levels

    def at(self, *, concurrency: int | None = None, rate_rps: float | None = None) -> Level:
        """One run at a concurrency, or at a rate of Poisson arrivals."""
        found: PerfAnalyzerResult = run_perf_analyzer(
            self._install,
            self._address,
            self._model,
            self._inputs,
            batchable=True,
            concurrency=concurrency,
            rate_rps=rate_rps,
            duration_s=max(self._seconds, telling_s(rate_rps) if rate_rps else 0.0),
        )
        carried = rate_rps is None or found.throughput_ips >= (1.0 - _SHORT) * rate_rps
        level = Level(
            concurrency=concurrency,
            rate_rps=rate_rps,
            throughput_ips=found.throughput_ips,
            latency_ms_p50=found.latency_ms_p50,
            latency_ms_p99=found.latency_ms_p99,
            kept=carried and found.latency_ms_p99 <= self._budget_ms,
            stable=found.stable,
        )
        told = f"concurrency {concurrency}" if concurrency else f"{rate_rps:.1f}/s"
        say(
            f"  {told}: {level.throughput_ips:.1f} infer/s, p99 {level.latency_ms_p99:.1f} ms"
            f"{'' if level.kept else ' (over)'}"
        )
        return level


def measured(
    model_dir: Path,
    inputs: Mapping[str, NDArray[Any]],
    *,
    budget_ms: float,
    seconds: float,
    start: int = 4,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Throughput within the SLA of a model's folder, closed and open loop, with every run.

    Args:
        start: The first concurrency.
        before: What this returned for the same folder: a new round starts from there.
    """
    with served(model_dir) as address:
        arbiter = Arbiter(address, model_dir.name, inputs, budget_ms=budget_ms, seconds=seconds)
        if before and before["concurrency"] and before["open_edge_rps"]:
            closed = arbiter.closed(before["concurrency"], _FACTOR_AGAIN)
            guess_rps = before["open_rate_rps"]
        else:
            closed = arbiter.closed(start)
            guess_rps = 0.85 * max(level.throughput_ips for level in closed)
        opened = arbiter.open(guess_rps)
    return {
        "closed_throughput_ips": best(closed, lambda level: level.throughput_ips),
        "concurrency": best(closed, lambda level: level.concurrency or 0),
        # Its Poisson arrivals fall short of the rate that was asked for: what came counts.
        "open_edge_rps": best(opened, lambda level: level.throughput_ips),
        "open_rate_rps": best(opened, lambda level: level.rate_rps or 0.0),
        "closed": [asdict(level) for level in closed],
        "open": [asdict(level) for level in opened],
    }


def telling_s(rate_rps: float) -> float:
    """How long a run must be for its throughput to tell whether a rate is carried, seconds.

    Until three standard deviations of the number of Poisson arrivals are what they may be short by;
    half a minute at most.
    """
    return min((3.0 / _SHORT) ** 2 / rate_rps, _TELLING_S_MAX)


def best(levels: list[Level], value: Callable[[Level], float]) -> float | None:
    """The largest ``value`` of the levels that kept the budget; None if none did."""
    return max((value(level) for level in levels if level.kept), default=None)


def versions() -> dict[str, str | None]:
    """Of what a choice is served with."""
    return {"onnxruntime": metadata.version("onnxruntime"), "triton": require_triton().version}


class Steps:
    """Results of a bench's steps, which may run on different days; in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, name: str, value: Any) -> None:
        """Keeps a step's result for the next."""
        write_json(self._folder / f"{name}.json", value)

    def load(self, name: str, default: Any = None) -> Any:
        """A step's result.

        Raises:
            SystemExit: The step has not run, and there is no default.
        """
        path = self._folder / f"{name}.json"
        if path.is_file():
            return json.loads(path.read_text())
        if default is None:
            raise SystemExit(f"Nothing is known of {name}: run the earlier steps first.")
        return default

    def forget(self, name: str) -> None:
        """Removes a step's result."""
        (self._folder / f"{name}.json").unlink(missing_ok=True)
