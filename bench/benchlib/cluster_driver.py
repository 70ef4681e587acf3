"""The driver of ``bench/cluster.py``, a process that can be killed: scripted trials on a cluster.

Everything but the trials is the program's own: Optuna's trials and our outcomes in one SQLite file,
the executor with its leases, workers that unpickle a job and pickle its result. A trial sleeps for
a drawn time and returns a made-up measurement. Each execution leaves a line in a file, so that the
parent can count who ran twice.

Started with :data:`COMMAND`, then the cluster's address, a folder and a plan as JSON: ``trials`` in
all, ``seconds`` (from, to), ``seed``, ``workers`` expected, ``shared`` (one process a machine).
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from analyzer.cluster import ray_executor
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.space import Parameter, SearchSpace
from analyzer.domain.workload import Poisson
from analyzer.measure.jobs import Job, WorkerContext
from analyzer.measure.tasks import MeasureResult
from analyzer.search.designer import Designer
from analyzer.search.optuna_trials import OptunaTrials, Proposal, open_trials
from analyzer.search.outcome_log import OutcomeLog, outcome_of
from analyzer.search.request import SearchRequest, SilentProgress
from analyzer.search.score import score_of
from analyzer.search.virtual import VIRTUAL_MODEL
from analyzer.store.optuna_storage import open_optuna_storage
from analyzer.store.records import StudyRecord
from analyzer.store.results import ResultStore, open_store
from benchlib.shared_workers import shared_session

# Not as a script: workers import what they unpickle by the name of this module.
COMMAND = (
    sys.executable, "-c",
    "from benchlib.cluster_driver import run_from_command_line as run; run()",
)  # fmt: skip
STUDY = "cluster"
SLA = Sla(latency_budget_ms=50.0)
# 16 × 64 × 16 configurations: many more than trials.
SPACE = SearchSpace(
    name="many",
    device="gpu",
    parameters=(
        Parameter(name="instance_count", choices=tuple(range(1, 17))),
        Parameter(name="dynamic_batching", choices=(True,)),
        Parameter(name="max_batch_size", choices=tuple(range(2, 66))),
        Parameter(name="max_queue_delay_us", choices=tuple(range(0, 1600, 100))),
    ),
)
_START_TIMEOUT_S = 300.0
_JOB_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTrial:
    """A trial that takes its time and measures nothing."""

    configuration: Configuration
    seconds: float
    journal: Path

    def __call__(self, context: WorkerContext) -> MeasureResult:
        began = time.time()
        time.sleep(self.seconds)
        line = {"id": self.configuration.config_id, "worker": context.worker_id,
                "began": began, "ended": time.time()}  # fmt: skip
        with self.journal.open("a") as file:
            file.write(json.dumps(line) + "\n")
        edge = Edge(rate_rps=100.0 * self.configuration.instance_count, interval_rps=(90.0, 110.0))
        return MeasureResult(outcome=Measurement(configuration=self.configuration, edge=edge))


class Driver:
    """Keeps every worker busy until so many trials are stored."""

    def __init__(self, executor: RayExecutor, store: ResultStore, folder: Path, plan: Any) -> None:
        self._executor = executor
        self._journal = folder / "journal"
        self._plan = plan
        request = SearchRequest(
            study=STUDY, model=VIRTUAL_MODEL, sla=SLA, space=SPACE, arrivals=Poisson(),
            device="gpu", sampler="random", seed=plan["seed"], provenance={},
        )  # fmt: skip
        stored = store.outcomes(STUDY)
        self._log = OutcomeLog(request, store, SilentProgress(), stored=stored)
        self._trials: OptunaTrials = open_trials(
            request, frozenset(SPACE.candidates()), Designer([], seed=0),
            storage=open_optuna_storage(store), parallel=True,
        )  # fmt: skip
        self._trials.reconcile({s.trial_number: score_of(s.outcome, SLA) for s in stored})
        self._begun = len(stored)
        self._scores = {s.outcome.configuration.config_id: score_of(s.outcome, SLA) for s in stored}
        self._pending: dict[str, Proposal] = {}
        self._rng = random.Random(plan["seed"])
        self.resumed = len(stored)
        self.steps = 0
        self.last_submit = 0.0
        self.lost = 0

    def run(self) -> None:
        """To the end."""
        self._fill()
        told = time.monotonic()
        while self._pending:
            result = self._executor.next_result(1.0)
            if result is not None:
                proposal = self._pending.pop(result.job_id)
                outcome, logs = outcome_of(result, proposal.configuration)
                self.lost += result.lost
                self._log.record(
                    outcome, role="trial", trial_number=proposal.trial_number,
                    params=proposal.params, logs=logs,
                )  # fmt: skip
                score = score_of(outcome, SLA)
                self._scores[proposal.configuration.config_id] = score
                self._trials.tell(proposal.trial_number, score)
                self.steps += 1
                self._fill()
            if time.monotonic() - told > 1.0:
                told = time.monotonic()
                say(stored=self.resumed + self.steps, workers=self._executor.workers)

    def _fill(self) -> None:
        while self._begun < self._plan["trials"] and len(self._pending) < self._executor.workers:
            pending = frozenset(p.configuration.config_id for p in self._pending.values())
            proposal = self._trials.ask(self._scores, pending)
            assert proposal is not None
            self._begun += 1
            job_id = f"trial-{proposal.trial_number}"
            self._pending[job_id] = proposal
            trial = ScriptedTrial(
                configuration=proposal.configuration,
                seconds=self._rng.uniform(*self._plan["seconds"]),
                journal=self._journal,
            )
            self._executor.submit(Job(job_id, trial, _JOB_TIMEOUT_S))
            self.last_submit = time.time()


def say(**values: Any) -> None:
    """One line for the parent."""
    print(json.dumps(values), flush=True)


def main(address: str, folder: Path, plan: dict[str, Any]) -> None:
    """One run, or what is left of one that was killed."""
    if plan["shared"]:
        vars(ray_executor)["ray_session"] = shared_session
    own = psutil.Process()
    with ExitStack() as stack:
        store = stack.enter_context(open_store(f"sqlite:///{folder / 'results.db'}"))
        if not store.has_study(STUDY):
            store.create_study(StudyRecord(name=STUDY, model=VIRTUAL_MODEL, sla=SLA))
        began = time.time()
        executor = stack.enter_context(
            RayExecutor(
                device="gpu", cache_dir=folder / "cache", ray_address=address,
                start_timeout_s=_START_TIMEOUT_S,
            )
        )  # fmt: skip
        wanted = plan["workers"]
        # A job for each worker: so that all are up before the clock starts.
        for number in range(wanted):
            executor.submit(Job(f"up-{number}", _until_all_are_up, _START_TIMEOUT_S))
        for _ in range(wanted):
            result = executor.next_result(_START_TIMEOUT_S)
            assert result is not None and result.error is None, result
        up_s = time.time() - began
        say(up=wanted, start_seconds=up_s)
        driver = Driver(executor, store, folder, plan)
        cpu_before, started = sum(own.cpu_times()[:2]), time.time()
        driver.run()
        say(
            done=True,
            started=started,
            last_submit=driver.last_submit,
            ended=time.time(),
            start_seconds=up_s,
            cpu_seconds=sum(own.cpu_times()[:2]) - cpu_before,
            memory_bytes_peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            threads=own.num_threads(),
            steps=driver.steps,
            resumed=driver.resumed,
            lost=driver.lost,
            workers=executor.workers,
        )


def _until_all_are_up(context: WorkerContext) -> str:
    time.sleep(0.5)
    return context.worker_id


def run_from_command_line() -> None:
    """The entry of :data:`COMMAND`."""
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # threads of the executor may still wait for machines that are gone
