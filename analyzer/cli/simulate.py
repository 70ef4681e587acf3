"""``analyze simulate``: Triton's scheduler alone, in virtual time."""

from __future__ import annotations

import csv
import io
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from analyzer.cli import options
from analyzer.cli.simulate_inputs import (
    REQUESTS_DEFAULT,
    check_range,
    check_time,
    checked_request_batch_size,
    make_workload,
    parse_arrivals_option,
    parse_policy,
    parse_service,
    random_stream,
)
from analyzer.errors import InputError, UsageError

if TYPE_CHECKING:
    from analyzer.domain.workload import ArrivalProcess
    from analyzer.engine.policy import BatchingPolicy
    from analyzer.twin.service import ServiceTime
    from analyzer.twin.simulator import SimulationResult
    from analyzer.twin.speed import SpeedPath

# Bounds of memory, and of a run that is too short to see a queue.
_REQUESTS_MAX = 20_000_000
_CAPACITY_REQUESTS_MIN = 200_000
# Without --requests: a high percentile of bursty arrivals needs millions for 2 %. Where fewer are
# enough fewer are simulated.
_CAPACITY_REQUESTS = 8_000_000


@click.command()
@click.option(
    "--service-time", "service_text", metavar="B=DUR[,…]", required=True,
    help="Execution time by batch size, like 1=10ms,8=16ms; linear in between.",
)  # fmt: skip
@click.option(
    "--service-distribution", type=click.Choice(["deterministic", "exponential"]),
    default="deterministic", show_default=True, help="Law of the execution time.",
)  # fmt: skip
@click.option("--instances", type=int, default=1, show_default=True, help="Model instances.")
@click.option(
    "--max-batch-size", type=int, default=8, show_default=True, help="Triton's max_batch_size."
)
@click.option(
    "--preferred-batch-size", "preferred_text", metavar="B[,…]",
    help="Triton's preferred_batch_size, like 4,8 (default: the maximum).",
)  # fmt: skip
@click.option(
    "--max-queue-delay", "delay_ms", type=options.DURATION_MS, default="0us", show_default=True,
    help="Triton's max_queue_delay_microseconds.",
)  # fmt: skip
@click.option("--no-dynamic-batching", is_flag=True, help="Each request is executed alone.")
@click.option(
    "--max-queue-size", type=int, default=0, show_default=True,
    help="Requests that may wait; 0: any number. It turns prefetching off, as in Triton.",
)  # fmt: skip
@click.option(
    "--arrivals", "arrivals_text", metavar="ARRIVALS", required=True,
    help="poisson:80/s, constant:80/s, gamma:CV:80/s, closed:16 or trace:FILE.csv; "
    "with --find-capacity without the rate.",
)  # fmt: skip
@click.option(
    "--overhead", "overhead_ms", type=options.DURATION_MS, default="0ms", show_default=True,
    help="Time outside the server; part of the latency.",
)  # fmt: skip
@click.option(
    "--requests", type=int,
    help=f"How many (default: {REQUESTS_DEFAULT}, or the whole trace); "
    "with --find-capacity: in the longest runs.",
)  # fmt: skip
@click.option("--request-batch-size", type=int, default=1, show_default=True,
              help="Inferences of each request.")  # fmt: skip
@click.option(
    "--seed",
    type=options.SEED,
    metavar="N",
    help="Seed of all that is random.  [default: drawn]",
)
@click.option("--requests-out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.csv",
              help="Write a row per request.")  # fmt: skip
@click.option("--find-capacity", is_flag=True, help="Find the rates that keep the budget.")
@click.option(
    "--calibrated",
    is_flag=True,
    help="With --find-capacity: at the speed of this machine as analyze doctor --calibrate saw it "
    "vary, about the given times.",
)
@click.option("--latency-budget", "budget_ms", type=options.LATENCY_BUDGET_MS,
              help="The budget, with --find-capacity.")  # fmt: skip
@click.option("--percentile", type=options.Percentile(), default=99.0, show_default=True,
              help="Share of requests within the budget, in percent.")  # fmt: skip
@options.common
def simulate(
    service_text: str,
    service_distribution: str,
    instances: int,
    max_batch_size: int,
    preferred_text: str | None,
    delay_ms: float,
    no_dynamic_batching: bool,
    max_queue_size: int,
    arrivals_text: str,
    overhead_ms: float,
    requests: int | None,
    request_batch_size: int,
    seed: int | None,
    requests_out: Path | None,
    find_capacity: bool,
    calibrated: bool,
    budget_ms: float | None,
    percentile: float,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Run Triton's scheduler in virtual time.

    Completions come first at one instant, then arrivals, then timers. Latency counts from the
    arrival to the end of the execution plus --overhead; the times in --requests-out and the
    makespan are the executions' own. A request that finds the queue full never ends: it counts as
    infinitely late, and its start and end stay empty.
    """
    check_range("--instances", instances, 1, 4096)
    check_range("--max-batch-size", max_batch_size, 0, 1_000_000)
    check_range("--max-queue-size", max_queue_size, 0, None)
    check_range("--request-batch-size", request_batch_size, 1, None)
    if requests is not None:
        check_range("--requests", requests, 1, _REQUESTS_MAX)
    if find_capacity and budget_ms is None:
        raise UsageError("--find-capacity needs a --latency-budget.", hint="Add one, like 35ms.")
    if not find_capacity and budget_ms is not None:
        raise UsageError(
            "--latency-budget has no effect without --find-capacity.", hint="Add --find-capacity."
        )
    if find_capacity and requests_out is not None:
        raise UsageError(
            "--requests-out has no meaning with --find-capacity.", hint="Simulate one rate for it."
        )
    given = click.get_current_context().get_parameter_source("percentile")
    if not find_capacity and given is not ParameterSource.DEFAULT:
        raise UsageError(
            "--percentile has no effect without --find-capacity.", hint="Add --find-capacity."
        )
    if calibrated and not find_capacity:
        raise UsageError(
            "--calibrated has no effect without --find-capacity.", hint="Add --find-capacity."
        )
    path = _speeds() if calibrated else None
    policy = parse_policy(
        max_batch_size=max_batch_size,
        dynamic_batching=not no_dynamic_batching,
        preferred_text=preferred_text,
        delay_ms=delay_ms,
        instances=instances,
        max_queue_size=max_queue_size,
    )
    service = parse_service(service_text, service_distribution, policy.batch_limit)
    seed = secrets.randbits(32) if seed is None else seed
    arrivals = parse_arrivals_option(arrivals_text, rate_wanted=not find_capacity)
    batch_size = checked_request_batch_size(
        arrivals.process, request_batch_size, policy.batch_limit
    )
    answer: dict[str, Any]
    if find_capacity:
        assert budget_ms is not None and arrivals.process is not None
        count = max(requests, _CAPACITY_REQUESTS_MIN) if requests else _CAPACITY_REQUESTS
        answer = _capacity(
            policy, service, arrivals.process, budget_ms=budget_ms, percentile=percentile,
            overhead_ms=overhead_ms, request_batch_size=batch_size, seed=seed, count=count,
            path=path,
        )  # fmt: skip
    else:
        from analyzer.twin.simulator import simulate as run

        workload = make_workload(arrivals, requests, batch_size, seed)
        check_time(workload, service, policy, overhead_ms)
        result = run(
            policy, service, workload, overhead_ms=overhead_ms, seed=random_stream(seed, 1)
        )
        if requests_out is not None:
            _write_requests(requests_out, result)
        answer = result.summary()
    answer["seed"] = seed
    click.echo(json.dumps(answer, allow_nan=False) if as_json else _table(answer))


def _speeds() -> SpeedPath | None:
    """How the speed of this machine varies; None where it was seen to be steady.

    Raises:
        UsageError: Nobody has measured it.
    """
    from analyzer.cli.machine import constants_of
    from analyzer.hardware.machine import inspect_machine

    constants = constants_of(inspect_machine())
    if constants.measured_at is None:
        raise UsageError(
            "--calibrated: this machine was not measured in the last week.",
            hint="Run analyze doctor --calibrate first.",
        )
    variation = constants.variation
    return variation.path() if variation is not None else None


def _capacity(
    policy: BatchingPolicy,
    service: ServiceTime,
    process: ArrivalProcess,
    *,
    budget_ms: float,
    percentile: float,
    overhead_ms: float,
    request_batch_size: int,
    seed: int,
    count: int,
    path: SpeedPath | None,
) -> dict[str, Any]:
    from analyzer.twin.arrivals import UnitArrivals
    from analyzer.twin.server_model import ServerModel

    drawn = UnitArrivals.draw(
        process, request_batch_size=request_batch_size, seed=seed, count=count
    )
    model = ServerModel(policy=policy, service=service, overhead_ms=overhead_ms, path=path)
    bands = model.feasible_bands(drawn, budget_ms=budget_ms, percentile=percentile)
    return {
        "feasible_rates": [{"from_rps": low, "to_rps": high} for low, high in bands],
        "capacity_rps": bands[-1][1] if bands else None,
        "latency_budget_ms": budget_ms,
        "percentile": percentile,
    }


def _write_requests(path: Path, result: SimulationResult) -> None:
    """One row per request, times in milliseconds to the nanosecond."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["arrival_ms", "start_ms", "end_ms", "batch", "batch_size", "instance"])
    executions = list(
        zip(
            _ms(result.execution_start_ns),
            _ms(result.execution_end_ns),
            result.execution_batch_size.tolist(),
            result.execution_instance.tolist(),
            strict=True,
        )
    )
    for arrival, batch in zip(_ms(result.arrival_ns), result.batch.tolist(), strict=True):
        if batch < 0:
            writer.writerow([arrival, "", "", "", "", ""])
        else:
            start, end, size, instance = executions[batch]
            writer.writerow([arrival, start, end, batch, size, instance])
    try:
        path.write_text(out.getvalue())
    except OSError as error:
        raise InputError(
            f"--requests-out: {path} cannot be written: {error.strerror}.",
            hint="Name a file in a folder that exists and can be written.",
        ) from error


def _ms(times_ns: Any) -> list[str]:
    return [f"{time_ns / 1e6:.6f}" for time_ns in times_ns.tolist()]


def _table(answer: dict[str, Any]) -> str:
    """The answer for people: a line per figure."""
    lines: list[tuple[str, str]] = []
    for key, value in answer.items():
        if key == "feasible_rates":
            text = ", ".join(f"{b['from_rps']:.6g} to {b['to_rps']:.6g}" for b in value)
            lines.append((key, text or "none"))
        elif isinstance(value, dict):
            lines += [(f"{key} {name}", _number(inner)) for name, inner in value.items()]
        else:
            lines.append((key, _number(value)))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return str(value) if isinstance(value, int) else f"{value:.6g}"
