"""Tasks answered in a virtual world."""

from __future__ import annotations

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.measurement import Measurement
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.domain.workload import ArrivalProcess, Poisson, Trace
from analyzer.measure.jobs import Job
from analyzer.measure.plan import EdgePlan, LoadPlan
from analyzer.measure.tasks import Assets, MeasureResult, MeasureTask
from analyzer.measure.virtual import VirtualExecutor, VirtualWorld
from analyzer.twin.service import ServiceTime

MODEL = ModelInfo(name="m", path="m.onnx", sha256="0" * 64, inputs=(), outputs=(), batchable=True)


def service(key: VariantKey, threads: int, instances: int) -> ServiceTime:
    return ServiceTime(batch_sizes=(1, 8), service_ms=(2.0, 9.0))


def measured(arrivals: ArrivalProcess) -> tuple[Measurement, MeasureResult]:
    task = MeasureTask(
        assets=Assets(model=MODEL),
        configuration=Configuration(max_batch_size=8, dynamic_batching=True, intra_op_threads=1),
        load=LoadPlan(
            sla=Sla(latency_budget_ms=60.0), arrivals=arrivals, request_batch_size=8, seed=3
        ),
        edge_plan=EdgePlan(seconds=20.0, run_seconds=(2.0, 4.0)),
    )
    with VirtualExecutor(VirtualWorld(service=service)) as executor:
        executor.submit(Job("trial", task, 60.0))
        result = executor.next_result(1.0)
    assert result is not None and isinstance(result.value, MeasureResult)
    outcome = result.value.outcome
    assert isinstance(outcome, Measurement)
    return outcome, result.value


def test_a_mixed_trace_has_the_edge_of_its_own_sizes() -> None:
    """With the largest size for every request it was that of eights: a third of the rate."""
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(0.01, 500))
    mixed = Trace(path="t", arrival_s=times, batch_size=rng.choice([1, 1, 1, 8], 500))
    outcome, result = measured(mixed)
    eights, _ = measured(Poisson())
    assert outcome.edge.rate_rps is not None and eights.edge.rate_rps is not None
    assert outcome.edge.rate_rps > 1.8 * eights.edge.rate_rps
    assert {size for log in result.logs for size in log.batch_size.tolist()} == {1, 8}
