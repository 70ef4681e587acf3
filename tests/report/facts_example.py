"""A made-up study of the digits model, complete enough for every part of a report."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from analyzer.domain.configuration import Configuration, baseline_configuration
from analyzer.domain.load_test import (
    Breakdown,
    LatencySummary,
    LoadTest,
    ResourceUse,
    Validity,
)
from analyzer.domain.measurement import (
    Accuracy,
    Certificate,
    Edge,
    Failure,
    Measurement,
    Prediction,
)
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.domain.sla import Sla
from analyzer.domain.study import (
    Claim,
    Explanation,
    Pricing,
    SearchSummary,
    Step,
    StudyResult,
    Verification,
    WhatIf,
)

HARDWARE = "2 cores of Intel Xeon Platinum 8370C at 2.80 GHz, 24 GiB"
MODEL = ModelInfo(
    name="digits",
    path="/models/digits.onnx",
    sha256="5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
    batchable=True,
    inputs=(TensorSpec(name="image", datatype="FP32", shape=(1, 32, 32)),),
    outputs=(TensorSpec(name="logits", datatype="FP32", shape=(10,)),),
    opset=17,
    size_bytes=1_250_000,
)
SLA = Sla(latency_budget_ms=50.0, target_rate_rps=2000.0, objective="cost")


def configuration(**fields: Any) -> Configuration:
    """A CPU configuration with the fields given."""
    return Configuration(**fields).canonical()


def load_test(
    *,
    rate_rps: float,
    edge_rps: float,
    service_ms: float,
    kind: str = "edge",
    budget_ms: float = 50.0,
    memory_bytes: int = 180 << 20,
    requests: int | None = None,
    valid: bool = True,
) -> LoadTest:
    """A load test of a queue whose p99 reaches the budget at ``edge_rps``."""
    load = rate_rps / edge_rps
    p99 = service_ms + (budget_ms - service_ms) * load**6
    if load > 1:
        p99 = budget_ms * load**9
    p50 = service_ms * 0.62 + (p99 - service_ms) * 0.22
    count = requests or max(300, int(rate_rps * 6))
    miss = 0.01 * load**24 if load <= 1 else min(0.9, 0.01 + (load - 1) * 1.4)
    queue = max(0.05, p50 - 0.55 * service_ms)
    return LoadTest(
        kind=kind,
        offered_rps=rate_rps,
        achieved_rps=rate_rps * min(1.0, 1.02 / load),
        throughput_ips=rate_rps * min(1.0, 1.02 / load),
        requests=count,
        over_budget=round(miss * count),
        errors=0,
        duration_s=count / rate_rps,
        latency_ms=LatencySummary(
            mean=p50 * 1.08,
            p50=p50,
            p90=p50 + 0.55 * (p99 - p50),
            p95=p50 + 0.74 * (p99 - p50),
            p99=p99,
            sla=p99,
        ),
        breakdown_ms=Breakdown(
            queue=queue,
            compute_input=0.04,
            compute_infer=0.55 * service_ms,
            compute_output=0.03,
            overhead=max(0.1, p50 * 1.08 - queue - 0.55 * service_ms - 0.07),
        ),
        send_lag_ms_p99=0.4 if valid else 6.2,
        batch_size_mean=3.4,
        resources=ResourceUse(memory_bytes_peak=memory_bytes, cpu_utilization=min(0.98, load)),
        validity=Validity(
            valid=valid, reasons=() if valid else ("the generator's lag at p99 was 6.2 ms",)
        ),
        aborted=load > 1.3,
        seed=17,
    )


def measurement(
    config: Configuration,
    edge_rps: float,
    service_ms: float,
    *,
    memory_mib: int,
    certified: bool = False,
    drop: float = 0.0,
    predicted_rps: float | None = None,
) -> Measurement:
    """A configuration measured at six rates around its edge."""
    memory_bytes = memory_mib << 20

    def test(share: float, kind: str = "edge", requests: int | None = None) -> LoadTest:
        return load_test(
            rate_rps=round(edge_rps * share, 1),
            edge_rps=edge_rps,
            service_ms=service_ms,
            kind=kind,
            memory_bytes=memory_bytes,
            requests=requests,
        )

    tests = tuple(test(share) for share in (0.3, 0.55, 0.8, 0.93, 1.05, 1.4))
    headline = test(0.9, "certify", 12_000) if certified else None
    certificate = None
    if headline is not None:
        certificate = Certificate(
            verdict="PASS",
            requests=headline.requests,
            over_budget=headline.over_budget or 0,
            effective_requests=headline.requests / 8.5,
            confidence=0.95,
            mlperf="PASS",
            inflation=8.5,
            inflation_source="twin",
        )
        tests += (headline,)
    return Measurement(
        configuration=config,
        edge=Edge(rate_rps=edge_rps, interval_rps=(edge_rps * 0.96, edge_rps * 1.03)),
        capacity_rps=headline.offered_rps if headline else None,
        certificate=certificate,
        headline=headline,
        load_tests=tests,
        load_test_seconds=sum(t.duration_s for t in tests),
        resources=ResourceUse(memory_bytes_peak=memory_bytes),
        accuracy=Accuracy(
            metric="label_accuracy",
            value=0.971 - drop,
            drop=drop,
            interval=(drop - 0.003, drop + 0.004) if drop else (0.0, 0.0),
            samples=898,
        ),
        predicted=Prediction(
            edge_rps=predicted_rps,
            latency_ms_p99=48.2 if predicted_rps else None,
            error=predicted_rps / edge_rps - 1 if predicted_rps else None,
        ),
        hardware=HARDWARE,
    )


BASELINE = baseline_configuration(batchable=True)
WINNER = configuration(
    precision="int8",
    quantization="static",
    max_batch_size=16,
    dynamic_batching=True,
    preferred_batch_size=(8, 16),
    max_queue_delay_us=2000,
    instance_count=1,
    intra_op_threads=2,
)


def _outcomes() -> tuple[Measurement | Failure, ...]:
    """Twelve configurations, two of which failed."""
    batched = {"dynamic_batching": True, "max_queue_delay_us": 0}
    int8: dict[str, Any] = {"precision": "int8", "quantization": "static"}
    plain = configuration(max_batch_size=1, intra_op_threads=1)
    one = configuration(max_batch_size=8, **batched, intra_op_threads=2)
    two = configuration(max_batch_size=8, **batched, instance_count=2, intra_op_threads=1)
    half = configuration(precision="fp16", max_batch_size=8, **batched, intra_op_threads=2)
    dynamic = configuration(
        precision="int8", quantization="dynamic", max_batch_size=8, **batched, intra_op_threads=2
    )
    small = configuration(**int8, max_batch_size=4, **batched, intra_op_threads=2)
    eight = configuration(**int8, max_batch_size=8, **batched, intra_op_threads=2)
    pair = configuration(**int8, max_batch_size=16, **batched, instance_count=2, intra_op_threads=1)
    wide = configuration(**int8, max_batch_size=32, **batched, intra_op_threads=2)
    huge = configuration(max_batch_size=256, **batched, instance_count=8, intra_op_threads=2)
    return (
        measurement(BASELINE, 212.4, 14.1, memory_mib=196, certified=True, predicted_rps=205.0),
        measurement(plain, 121.0, 9.2, memory_mib=141, predicted_rps=124.0),
        measurement(one, 262.0, 11.0, memory_mib=158, predicted_rps=270.5),
        measurement(two, 247.5, 13.2, memory_mib=189, predicted_rps=255.0),
        Failure(
            configuration=half,
            stage="build",
            reason="build",
            message="The fp16 graph has no CPU kernel for 2 of its 31 nodes (Conv).",
            hint="Run fp16 on a GPU, or leave it out with --precisions fp32,int8.",
        ),
        measurement(dynamic, 301.0, 9.8, memory_mib=150, drop=0.002, predicted_rps=296.0),
        measurement(small, 458.0, 5.2, memory_mib=122, drop=0.004, predicted_rps=449.0),
        measurement(eight, 571.0, 5.9, memory_mib=128, drop=0.004, predicted_rps=583.0),
        measurement(pair, 548.0, 8.1, memory_mib=163, drop=0.004, predicted_rps=560.0),
        measurement(
            WINNER, 618.0, 7.4, memory_mib=131, drop=0.004, certified=True, predicted_rps=631.0
        ),
        measurement(wide, 609.0, 8.8, memory_mib=152, drop=0.004, predicted_rps=640.0),
        Failure(
            configuration=huge,
            stage="load",
            reason="out_of_memory",
            message="The server under test was killed at 21.4 GiB while 8 instances warmed up.",
            hint="Fewer instances or a smaller batch; --max-memory makes this a limit.",
        ),
    )


OUTCOMES = _outcomes()


def _explanation() -> Explanation:
    ids = [outcome.configuration.config_id for outcome in OUTCOMES]
    return Explanation(
        limited_by="compute: at its edge the instance is busy 97 % of the time",
        trusted=True,
        trust_reason="the median error on 9 live measurements is 2.4 %",
        error_median=0.024,
        contributions=(
            Step(setting="fp32, no batching", config_id=ids[1], edge_rps=121.0, measured=True),
            Step(
                setting="intra_op_threads: 2",
                config_id="0a1b2c3d4e5f",
                edge_rps=197.0,
                measured=False,
            ),
            Step(setting="dynamic_batching: on", config_id=ids[2], edge_rps=262.0, measured=True),
            Step(setting="precision: int8 static", config_id=ids[7], edge_rps=571.0, measured=True),
            Step(
                setting="max_batch_size: 16",
                config_id="1a1b2c3d4e5f",
                edge_rps=561.0,
                measured=False,
            ),
            Step(
                setting="max_queue_delay_us: 2000", config_id=ids[9], edge_rps=618.0, measured=True
            ),
        ),
        what_if=(
            WhatIf(
                setting="max_queue_delay_us",
                from_value="2000",
                to_value="5000",
                predicted_edge_rps=604.0,
                change_fraction=-0.023,
            ),
            WhatIf(
                setting="max_batch_size",
                from_value="16",
                to_value="32",
                predicted_edge_rps=626.0,
                change_fraction=0.013,
            ),
            WhatIf(
                setting="instance_count",
                from_value="1",
                to_value="2",
                predicted_edge_rps=560.0,
                change_fraction=-0.094,
            ),
            WhatIf(
                setting="intra_op_threads",
                from_value="2",
                to_value="1",
                predicted_edge_rps=371.0,
                change_fraction=-0.4,
            ),
        ),
        importance=(
            ("precision", 0.61),
            ("intra_op_threads", 0.18),
            ("dynamic_batching", 0.12),
            ("max_batch_size", 0.05),
            ("instance_count", 0.03),
            ("max_queue_delay_us", 0.01),
        ),
    )


def example_facts(**changes: Any) -> StudyResult:
    """The study, with the fields in ``changes`` replaced."""
    winner = next(o for o in OUTCOMES if o.configuration == WINNER)
    assert isinstance(winner, Measurement)
    facts = StudyResult(
        name="digits-1",
        verdict="found",
        model=MODEL,
        sla=SLA,
        arrivals="poisson",
        request_batch_size=1,
        server="embedded",
        outcomes=OUTCOMES,
        recommended_id=WINNER.config_id,
        baseline_id=BASELINE.config_id,
        pricing=Pricing(
            instance_type="ml.g4dn.xlarge",
            price_per_hour=0.7364,
            devices_per_machine=1,
            source="catalogue, 2024-03-28: AWS Machine Learning Blog",
        ),
        search=SearchSummary(
            sampler="twin",
            space="cpu",
            space_size=720,
            evaluated_live=10,
            evaluated_twin=720,
            failed=2,
            load_test_seconds=148.2,
            wall_seconds=203.9,
            bound="no configuration of the 720 in the space is better by more than 4 % "
            "(confidence 0.95)",
        ),
        explanation=_explanation(),
        provenance={
            "analyzer": "0.1.0",
            "hardware": {"cpu": HARDWARE, "cores": 2, "gpus": []},
            "libraries": {"onnxruntime": "1.23.0", "numpy": "2.3.1", "optuna": "5.0.0"},
            "seeds": {"study": 20261101},
            "started_at": "2026-11-01T09:12:44Z",
        },
        verifications=(
            Verification(
                claim=Claim(
                    source="study digits-1",
                    model=MODEL.name,
                    configuration=WINNER,
                    sla=SLA,
                    rate_rps=winner.capacity_rps or 0.0,
                    arrivals="poisson",
                    request_batch_size=1,
                ),
                verdict="holds",
                measured=replace(winner, edge=Edge(rate_rps=611.0, interval_rps=(590.0, 633.0))),
                server="triton 2.51",
                at="2026-11-01T10:02:10Z",
            ),
        ),
        warnings=("int8 was calibrated with 899 rows; the other 898 scored.",),
    )
    return replace(facts, **changes)


def infeasible_facts() -> StudyResult:
    """The same model under a budget that nothing keeps."""
    sla = Sla(latency_budget_ms=4.0)
    outcomes = tuple(
        outcome
        if isinstance(outcome, Failure)
        else replace(
            outcome,
            edge=Edge(rate_rps=None, interval_rps=(None, None)),
            capacity_rps=None,
            headline=None,
            certificate=Certificate(
                verdict="FAIL",
                requests=900,
                over_budget=840,
                effective_requests=300.0,
                confidence=0.95,
                mlperf="FAIL",
            ),
            load_tests=tuple(
                replace(test, over_budget=math.ceil(test.requests * 0.93))
                for test in outcome.load_tests[:2]
            ),
        )
        for outcome in OUTCOMES
    )
    return example_facts(
        name="digits-2",
        verdict="infeasible",
        sla=sla,
        outcomes=outcomes,
        recommended_id=None,
        pricing=Pricing(),
        explanation=Explanation(),
        verifications=(),
    )


def undecided_facts() -> StudyResult:
    """The budget ended before the best candidate had enough requests."""
    outcomes = tuple(
        outcome
        if isinstance(outcome, Failure)
        else replace(
            outcome,
            capacity_rps=None,
            headline=None,
            certificate=Certificate(
                verdict="UNDECIDED",
                requests=2400,
                over_budget=11,
                effective_requests=96.0,
                confidence=0.95,
                mlperf="PASS",
                inflation=25.0,
                inflation_source="twin",
                requests_missing=5100,
            ),
        )
        for outcome in OUTCOMES[:3]
    )
    return example_facts(
        name="digits-3",
        verdict="undecided",
        outcomes=outcomes,
        recommended_id=None,
        explanation=Explanation(trusted=False, trust_reason="the median error is 41 %"),
        search=replace(example_facts().search, budget_s=60.0, budget_needed_s=172.0),
        provenance={
            **example_facts().provenance,
            "command": "analyze digits.onnx --latency-budget 50ms --budget=60s",
        },
        verifications=(),
        warnings=(),
        recommendable=tuple(outcome.configuration.config_id for outcome in outcomes[1:]),
    )


def estimated_facts() -> StudyResult:
    """The best candidate is recommended, though no rate of it was certified."""
    outcomes = tuple(
        replace(outcome, capacity_rps=None, certificate=None, headline=None)
        if isinstance(outcome, Measurement) and outcome.configuration == WINNER
        else outcome
        for outcome in OUTCOMES
    )
    return example_facts(
        name="digits-4",
        verdict="estimated",
        accepted="estimated",
        outcomes=outcomes,
        search=replace(example_facts().search, budget_s=60.0),
        verifications=(),
    )
