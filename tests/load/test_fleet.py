"""A schedule over several processes: every request once, one log, and no process left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from analyzer.domain.measurement import STATUS_ERROR, STATUS_OK, RequestLog
from analyzer.errors import TargetCrashError
from analyzer.load.fleet import _merged, run_open_loop_fleet
from analyzer.load.summarize import summarize
from analyzer.server.app import Addresses, ServeOptions, serving
from analyzer.targets.endpoint import open_endpoint
from analyzer.targets.endpoint_target import EndpointTarget
from analyzer.targets.payload import RequestPool

CONFIG = """
backend: "identity"
max_batch_size: 8
input [{ name: "X" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
dynamic_batching {}
"""
ROWS = {"X": np.ones((4, 1), np.float32)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    root = tmp_path_factory.mktemp("fleet")
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "config.pbtxt").write_text(CONFIG)
    options = ServeOptions(repository=root, http_port=0, grpc_port=0, metrics_port=0)
    with serving(options, log=lambda line: None) as (addresses, _):
        yield addresses


def target(address: str, model: str = "m") -> EndpointTarget:
    return EndpointTarget(open_endpoint(address), model, RequestPool(ROWS, batchable=True))


def children() -> set[int]:
    return {child.pid for child in psutil.Process(os.getpid()).children()}


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.timing
def test_every_request_is_sent_once_and_logged_in_order(served: Addresses, scheme: str) -> None:
    rng = np.random.default_rng(0)
    arrivals_s = np.cumsum(rng.exponential(1 / 200, 201))
    sizes = rng.integers(1, 5, len(arrivals_s))
    address = f"{scheme}://{getattr(served, scheme)}"
    before = children()
    one = target(address)
    counted = one.statistics()
    run = run_open_loop_fleet(one, arrivals_s, sizes, processes=3, timeout_s=10, drain_s=10)
    after = one.statistics()
    assert counted is not None and after is not None
    one.endpoint.close()
    assert children() == before
    assert (run.log.status == STATUS_OK).all()
    assert after.success_count - counted.success_count == len(arrivals_s)
    assert after.inference_count - counted.inference_count == sizes.sum()
    assert sorted(run.log.batch_size) == sorted(sizes)
    assert (np.diff(run.log.intended_s) >= 0).all()
    # Only the starts of the processes differ.
    assert np.abs(run.log.intended_s - arrivals_s).max() < 0.5
    assert run.in_flight_mean is not None and run.in_flight_s_mean is not None
    assert run.strays == 0
    test = summarize(run, kind="test", warmup=0)
    assert test.requests == len(arrivals_s)
    # Little's law holds for the sum of what the processes counted.
    assert not any("Little" in reason for reason in test.validity.reasons)


def test_more_processes_than_arrivals_are_not_started(served: Addresses) -> None:
    one = target(f"http://{served.http}")
    run = run_open_loop_fleet(one, np.array([0.0]), processes=4, timeout_s=5, drain_s=5)
    one.endpoint.close()
    assert run.log.status.tolist() == [STATUS_OK]


def test_refused_requests_are_errors(served: Addresses) -> None:
    one = target(f"http://{served.http}", model="absent")
    arrivals_s = np.array([0.0, 0.01, 0.02])
    run = run_open_loop_fleet(one, arrivals_s, processes=2, timeout_s=5, drain_s=5)
    one.endpoint.close()
    assert run.log.status.tolist() == [STATUS_ERROR] * 3
    assert np.isinf(run.log.latency_s).all()


def test_a_server_that_is_gone_is_a_crash(tmp_path: Path) -> None:
    class Gone:
        address = "http://127.0.0.1:9"

    gone = EndpointTarget(Gone(), "m", RequestPool(ROWS, batchable=True))  # type: ignore[arg-type]
    before = children()
    with pytest.raises(TargetCrashError, match="Nothing answers"):
        run_open_loop_fleet(gone, np.array([0.0, 0.1]), processes=2, timeout_s=5, drain_s=5)
    assert children() == before


def test_late_starts_move_the_intended_times() -> None:
    def log(times: list[float], size: int) -> RequestLog:
        count = len(times)
        nothing = np.full(count, np.nan, np.float32)
        return RequestLog(
            intended_s=np.array(times),
            send_lag_s=np.zeros(count),
            latency_s=np.full(count, 0.1),
            batch_size=np.full(count, size, np.int32),
            status=np.zeros(count, np.uint8),
            queue_s=nothing,
            compute_input_s=nothing,
            compute_infer_s=nothing,
            compute_output_s=nothing,
        )

    told = {
        "started_at": 100.0, "wall_s": 1.0, "in_flight_mean": 2.0, "in_flight_s_mean": 0.1,
        "strays": 1, "priority": "normal",
    }  # fmt: skip
    run = _merged([log([0.0, 0.4], 1), log([0.1, 0.2], 2)], [told, told | {"started_at": 100.25}])
    assert run.log.intended_s.tolist() == pytest.approx([0.0, 0.35, 0.4, 0.45])
    assert run.log.batch_size.tolist() == [1, 2, 1, 2]
    assert run.wall_s == pytest.approx(1.25)
    assert run.in_flight_mean == pytest.approx((2.0 * 1.0 + 2.0 * 0.9) / 1.25)
    assert run.strays == 2
