"""A whole search in virtual time, its outcomes in memory.

Ships with the package as the fake of the store's seam, beside that of the executor's
(`analyzer/measure/virtual.py`): tests and benches run the real search on both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import RequestLog
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.domain.study import StudyResult
from analyzer.measure.virtual import VirtualExecutor
from analyzer.search.context import make_context
from analyzer.search.optuna_trials import open_trials
from analyzer.search.request import SearchRequest, SilentProgress
from analyzer.search.study import run_search
from analyzer.search.time_plan import TimePlan
from analyzer.store.records import StoredOutcome

#: A model that no file holds; only its shapes matter in a virtual world.
VIRTUAL_MODEL = ModelInfo(
    name="virtual",
    path="/virtual/model.onnx",
    sha256="0" * 64,
    batchable=True,
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(4,)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(2,)),),
)


class MemoryStore:
    """What a search needs of the results database, in memory."""

    def __init__(self) -> None:
        self.outcomes: list[StoredOutcome] = []
        self.cache: dict[tuple[str, str], dict[str, Any]] = {}

    def add_outcome(
        self,
        study: str,
        trial_number: int,
        params: Mapping[str, Any],
        outcome: Measurement | Failure,
        *,
        role: str = "trial",
        logs: Sequence[RequestLog] = (),
    ) -> None:
        """Keeps one outcome, of whichever study."""
        self.outcomes.append(
            StoredOutcome(
                number=len(self.outcomes),
                trial_number=trial_number,
                role=role,
                params=dict(params),
                outcome=outcome,
                created_at="",
            )
        )

    def put_cache(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keeps a value."""
        self.cache[kind, key] = dict(value)

    def get_cache(self, kind: str, key: str) -> dict[str, Any] | None:
        """A kept value."""
        return self.cache.get((kind, key))


def search_virtually(
    request: SearchRequest,
    executor: VirtualExecutor,
    store: MemoryStore,
    *,
    cores: int,
    resume: bool = False,
    baseline: Configuration | None = None,
    start_s: float = 0.0,
) -> StudyResult:
    """What the search ends with on the executor's machine, timed by its clock.

    Its variants answer as the model does, without data: precisions count as named.

    Args:
        cores: Of that machine.
        resume: Whether the outcomes in ``store`` are this study's own.
        baseline: What the winner is compared with; None for Triton's automatic configuration.
        start_s: What the start of the command has taken before.
    """
    request = replace(request, precisions_named=True)
    context = make_context(
        request,
        executor=executor,
        store=store,
        progress=SilentProgress(),
        stored=tuple(store.outcomes) if resume else (),
        baseline=baseline,
        cores=cores,
        plan=TimePlan.begun(
            budget_s=request.budget_s, started=executor.now() - start_s, clock=executor.now
        ),
    )
    return run_search(context, partial(open_trials, request))
