"""``analyze simulate`` from the outside: figures, files, refusals."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from analyzer.cli.machine import machine_cache
from analyzer.cli.simulate import simulate
from analyzer.errors import AnalyzerError, DataError, UsageError
from analyzer.hardware.machine import inspect_machine
from analyzer.twin.machine_constants import MachineConstants
from analyzer.twin.variation import WINDOW_S, TwoSpeeds


def run(*args: str) -> dict[str, Any]:
    outcome = CliRunner().invoke(simulate, [*args, "--json"], standalone_mode=False)
    if outcome.exception is not None:
        raise outcome.exception
    document = json.loads(outcome.stdout)
    assert isinstance(document, dict)
    return document


@pytest.fixture
def seed_001(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_ms,batch_size\n0,4\n3,2\n0,2\n6,6\n6,2\n")
    return path


@pytest.mark.parametrize(("options", "duration"), [((), 27), (("--no-dynamic-batching",), 45)])
def test_worked_example(seed_001: Path, options: tuple[str, ...], duration: float) -> None:
    answer = run("--service-time", "1=9ms", "--arrivals", f"trace:{seed_001}", *options)
    assert answer["makespan_ms"] == duration
    assert answer["utilization"] == 1.0
    assert answer["requests"] == 5


def test_a_row_per_request_in_the_order_of_arrival(seed_001: Path, tmp_path: Path) -> None:
    out = tmp_path / "requests.csv"
    run("--service-time", "1=9ms", "--arrivals", f"trace:{seed_001}", "--requests-out", str(out))
    assert out.read_text() == (
        "arrival_ms,start_ms,end_ms,batch,batch_size,instance\n"
        "0.000000,0.000000,9.000000,0,4,0\n"
        "0.000000,9.000000,18.000000,1,4,0\n"
        "3.000000,9.000000,18.000000,1,4,0\n"
        "6.000000,18.000000,27.000000,2,8,0\n"
        "6.000000,18.000000,27.000000,2,8,0\n"
    )


@pytest.mark.parametrize(
    ("times", "size", "milliseconds"),
    [
        ("4=10ms,8=30ms", 3, 5.0),
        ("4=10ms,8=30ms", 1, 0.0),
        ("8=20ms,16=20ms", 2, 20.0),
        ("2=8ms,4=4ms", 1, 10.0),
        ("1=10ms,2=8ms", 4, 4.0),
        ("1=10ms,2=8ms", 7, 0.0),
        ("1=10ms,8=16ms", 15, 22.0),
        ("3=7ms", 15, 7.0),
    ],
)
def test_the_nearest_slope_goes_on_beyond_the_times_that_are_given(
    times: str, size: int, milliseconds: float
) -> None:
    answer = run(
        "--service-time", times, "--max-batch-size", "16", "--request-batch-size", str(size),
        "--arrivals", "constant:1/s", "--requests", "3",
    )  # fmt: skip
    assert answer["latency_ms"]["p99"] == pytest.approx(milliseconds)


def test_rejected_requests_leave_their_times_empty(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_ms\n0\n1\n2\n")
    out = tmp_path / "requests.csv"
    answer = run(
        "--service-time", "1=9ms", "--max-batch-size", "1", "--max-queue-size", "1",
        "--arrivals", f"trace:{trace}", "--requests-out", str(out),
    )  # fmt: skip
    assert answer["rejected"] == 1
    assert answer["latency_ms"]["p99"] is None
    assert out.read_text().splitlines()[-1] == "2.000000,,,,,"


def test_closed_loop_with_overhead() -> None:
    answer = run(
        "--service-time", "1=10ms", "--arrivals", "closed:1", "--overhead", "2ms",
        "--requests", "1000",
    )  # fmt: skip
    assert answer["latency_ms"]["mean"] == 12
    assert answer["throughput_ips"] == pytest.approx(1000 / 11.998)


def test_constant_arrivals_start_at_zero_and_tie_exactly() -> None:
    """A request every 10 ms, each of 10 ms: none ever waits, with rounding errors some would."""
    answer = run(
        "--service-time", "1=10ms", "--arrivals", "constant:100/s", "--requests", "30000",
        "--no-dynamic-batching",
    )  # fmt: skip
    assert answer["queue_ms_mean"] == 0
    assert answer["makespan_ms"] == 300_000


@pytest.mark.parametrize("arrivals", ["poisson:400/s", "gamma:2:24000/min", "constant:400/s"])
def test_open_loops_offer_their_rate(arrivals: str) -> None:
    options = ("--service-time", "1=4.4ms,11=8.4ms", "--max-batch-size", "32", "--seed", "3")
    answer = run(*options, "--arrivals", arrivals, "--request-batch-size", "2")
    assert answer["throughput_ips"] == pytest.approx(800, rel=0.05)
    assert answer["seed"] == 3
    assert run(*options, "--arrivals", arrivals, "--request-batch-size", "2") == answer


def test_exponential_service_is_noisier() -> None:
    options = ("--service-time", "1=10ms", "--arrivals", "poisson:50/s", "--seed", "1")
    fixed = run(*options, "--no-dynamic-batching")
    noisy = run(*options, "--no-dynamic-batching", "--service-distribution", "exponential")
    assert noisy["latency_ms"]["p99"] > 1.5 * fixed["latency_ms"]["p99"]


def test_find_capacity() -> None:
    options = (
        "--service-time", "1=4.4ms,11=8.4ms", "--max-batch-size", "32",
        "--preferred-batch-size", "16", "--max-queue-delay", "50ms", "--arrivals", "poisson",
        "--find-capacity", "--seed", "1",
    )  # fmt: skip
    answer = run(*options, "--latency-budget", "35ms")
    assert len(answer["feasible_rates"]) == 1
    assert answer["feasible_rates"][0]["from_rps"] == pytest.approx(862, rel=0.03)
    assert answer["capacity_rps"] == answer["feasible_rates"][0]["to_rps"]
    assert answer["capacity_rps"] == pytest.approx(1450, rel=0.03)
    nowhere = run(*options, "--latency-budget", "4ms")
    assert (nowhere["feasible_rates"], nowhere["capacity_rps"]) == ([], None)


def test_find_capacity_scales_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_ms\n" + "".join(f"{i * 7}\n" for i in range(100)))
    answer = run(
        "--service-time", "1=10ms", "--no-dynamic-batching", "--arrivals", f"trace:{trace}",
        "--find-capacity", "--latency-budget", "15ms",
    )  # fmt: skip
    assert answer["capacity_rps"] == pytest.approx(100, rel=0.01)


def test_table_for_people() -> None:
    outcome = CliRunner().invoke(
        simulate, ["--service-time", "1=10ms", "--arrivals", "closed:2", "--requests", "10"]
    )
    assert outcome.exit_code == 0
    assert "throughput_ips" in outcome.stdout
    assert "latency_ms p99" in outcome.stdout


GOOD = ("--service-time", "1=10ms", "--arrivals", "closed:4", "--requests", "10")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((*GOOD, "--service-time", "1=10"), "unit"),
        ((*GOOD, "--service-time", "10ms"), "batch size"),
        ((*GOOD, "--service-time", "8=16ms,1=10ms"), "does not come after 8"),
        ((*GOOD, "--service-time", "1=16ms,1=10ms"), "does not come after 1"),
        ((*GOOD, "--service-time", "0=16ms"), "below 1"),
        ((*GOOD, "--service-time", "1=-5ms"), "-5ms"),
        ((*GOOD, "--service-time", "1=9999999h"), "at most 24h"),
        ((*GOOD, "--instances", "0"), "--instances"),
        ((*GOOD, "--max-batch-size", "-1"), "--max-batch-size"),
        ((*GOOD, "--max-queue-size", "-1"), "--max-queue-size"),
        ((*GOOD, "--requests", "0"), "--requests"),
        ((*GOOD, "--requests", "99999999999"), "--requests"),
        ((*GOOD, "--preferred-batch-size", "4,16"), "16"),
        ((*GOOD, "--preferred-batch-size", "x"), "'x'"),
        ((*GOOD, "--preferred-batch-size", "4", "--no-dynamic-batching"), "no effect"),
        ((*GOOD, "--max-queue-delay", "0.5us"), "microseconds"),
        ((*GOOD, "--max-queue-delay", "100"), "--max-queue-delay"),
        ((*GOOD, "--request-batch-size", "9"), "--request-batch-size"),
        ((*GOOD, "--request-batch-size", "0"), "--request-batch-size"),
        ((*GOOD, "--arrivals", "poisson"), "needs a rate"),
        ((*GOOD, "--arrivals", "poisson:80"), "--arrivals"),
        ((*GOOD, "--arrivals", "poisson:1e-12/h"), "centuries"),
        ((*GOOD, "--arrivals", "closed:0"), "in flight"),
        ((*GOOD, "--arrivals", "closed:x"), "in flight"),
        ((*GOOD, "--arrivals", "gamma:0:80/s"), "coefficient"),
        ((*GOOD, "--arrivals", "uniform:80/s"), "uniform"),
        ((*GOOD, "--find-capacity"), "--latency-budget"),
        ((*GOOD, "--latency-budget", "5ms"), "--find-capacity"),
        ((*GOOD, "--find-capacity", "--latency-budget", "5ms"), "closed"),
        (
            (*GOOD, "--find-capacity", "--latency-budget", "5ms", "--arrivals", "poisson:8/s"),
            "rate",
        ),
        ((*GOOD, "--requests-out", "no/such/folder/x.csv"), "cannot be written"),
    ],
)
def test_refusals_say_what_and_where(args: tuple[str, ...], said: str) -> None:
    with pytest.raises(AnalyzerError) as caught:
        run(*args)
    assert caught.value.exit_code == 2
    assert said in caught.value.message
    assert caught.value.hint


def test_too_large_a_request_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_ms,batch_size\n9,1\n5,9\n0,9\n")
    with pytest.raises(DataError, match=r"row 2 \(line 3\): a batch_size of 9"):
        run("--service-time", "1=1ms", "--arrivals", f"trace:{trace}")
    with pytest.raises(UsageError, match="of its own"):
        run("--service-time", "1=1ms", "--arrivals", f"trace:{trace}", "--request-batch-size", "2")


def test_a_calibrated_machine_lowers_the_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a speed that varies about the same mean; refused where nobody has measured it."""
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path))
    options = (
        "--service-time", "1=2ms", "--no-dynamic-batching", "--arrivals", "poisson",
        "--requests", "200000", "--seed", "3",
    )  # fmt: skip
    find = (*options, "--find-capacity", "--latency-budget", "30ms")
    with pytest.raises(UsageError, match="was not measured"):
        run(*find, "--calibrated")
    with pytest.raises(UsageError, match="no effect without --find-capacity"):
        run(*options[:-4], "--arrivals", "poisson:80/s", "--calibrated")
    cache = machine_cache(inspect_machine())
    path = TwoSpeeds(slow_factor=1.6, share=0.3, dwell_s=0.3).path(seed=1)
    work_s = path.work_s(np.arange(601) * WINDOW_S)
    noise = np.random.default_rng(1).normal(1.0, 0.02, 600)
    steady, found = run(*find), []
    for slowness in (noise / (np.diff(work_s) / WINDOW_S), noise):
        cache.save(MachineConstants(slowness=tuple(slowness.tolist()), measured_at=time.time()))
        found.append(run(*find, "--calibrated")["capacity_rps"])
    assert found[0] < 0.9 * steady["capacity_rps"]
    assert found[1] == steady["capacity_rps"], "a machine that was seen to be steady"
