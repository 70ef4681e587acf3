"""``analyze measure``: one load test of an endpoint or of a local model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from analyzer.cli import options
from analyzer.cli.devices import check_instances, default_device, why_on_cpu
from analyzer.cli.measure_table import print_rows
from analyzer.cli.streams import say
from analyzer.domain.units import format_duration
from analyzer.errors import ModelError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from analyzer.domain.load_test import LoadTest
    from analyzer.domain.model import ModelInfo
    from analyzer.hardware.gpus import GpuIdentity
    from analyzer.targets.endpoint import EndpointModel
    from analyzer.targets.target import Target
    from analyzer.variants.inputs import CalibrationData

# No load test is meant to last longer; a rate of 1e-5/s would take weeks for its 20 requests.
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is loaded: a target that is ready, where perf_analyzer finds it, and on which GPU.

    Args:
        batch_max: Inferences of the largest request; None where nothing tells, 0 where the model
            cannot be batched.
    """

    target: Target
    address: str | None
    name: str
    inputs: Mapping[str, NDArray[Any]]
    batchable: bool
    batch_max: int | None
    hardware: str
    gpu: GpuIdentity | None = None
    gpu_base_bytes: int | None = None


@click.command()
@click.argument("target")
@click.option("--model", "model_name", metavar="NAME", help="The model on the endpoint.")
@click.option("--rate", type=options.RATE_RPS, help="Open loop at this rate (100/s).")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 65536),
    metavar="N",
    help="Closed loop with so many requests in flight (8).",
)
@click.option(
    "--duration",
    type=options.BUDGET_S,
    default="10s",
    show_default=True,
    help="Time under load; with --rate, 20 requests at least.",
)
@options.load
@click.option("--latency-budget", type=options.LATENCY_BUDGET_MS, help="Counts requests over it.")
@options.sla
@options.input_shape
@click.option(
    "--calibration-data", type=click.Path(path_type=Path), metavar="FILE.npz", help="Real inputs."
)
@click.option(
    "--generator",
    type=click.Choice(["tritune", "perf_analyzer", "both"]),
    default="tritune",
    show_default=True,
    help="Whose load: ours, NVIDIA's, or both side by side.",
)
@click.option(
    "--seed",
    type=options.SEED,
    metavar="N",
    help="Seed of the arrivals.  [default: drawn]",
)
@options.common
def measure(target: str, **values: Any) -> None:
    """Run one load test against TARGET: grpc://HOST:PORT, http://HOST:PORT or a local model.

    \b
    analyze measure grpc://localhost:8001 --model digits --rate 100/s
    analyze measure model.onnx --concurrency 8 --duration 5s
    """
    if (values["rate"] is None) == (values["concurrency"] is None):
        raise UsageError(
            "Exactly one of --rate and --concurrency is needed.",
            hint="Write --rate 100/s for an open loop, --concurrency 8 for a closed one.",
        )
    _require_a_day(values)
    _require_sent(values)
    with _open(target, values) as subject:
        largest = _largest_request(values)
        if largest > 1 and not subject.batchable:
            raise UsageError(
                f"Requests of {largest} inferences: the model {subject.name} cannot be batched.",
                hint="Leave the option out, or export the model with a dynamic first dimension.",
            )
        if subject.batch_max and largest > subject.batch_max:
            raise UsageError(
                f"Requests of {largest} inferences: {subject.name} takes "
                f"{subject.batch_max} inferences at most.",
                hint="Send fewer, or serve it with a larger max_batch_size (config.pbtxt).",
            )
        rows: list[tuple[str, dict[str, Any]]] = []
        if values["generator"] in ("tritune", "both"):
            rows.append(("tritune", _ours(subject, values)))
        if values["generator"] in ("perf_analyzer", "both"):
            rows.append(("perf_analyzer", _theirs(subject, values)))
    if values["as_json"]:
        document = {"schema": 1, **rows[0][1]}
        if len(rows) > 1:
            document["perf_analyzer"] = rows[1][1]
        click.echo(json.dumps(document))
        return
    print_rows(rows, quiet=values["quiet"])


@contextmanager
def _open(target: str, values: dict[str, Any]) -> Iterator[Subject]:
    from analyzer.hardware.machine import inspect_machine

    hardware = inspect_machine().hardware
    if "://" in target:
        if values["generator"] != "tritune":
            from analyzer.load.perf_analyzer import require_perf_analyzer

            require_perf_analyzer()  # before a load test of ours, which may take long
        yield from _endpoint(target, values)
        return
    if values["generator"] != "tritune":
        raise UsageError(
            f"--generator {values['generator']} needs an endpoint, not a local model.",
            hint="Start one with analyze serve, and give grpc://HOST:PORT.",
        )
    yield from _local(Path(target), values, hardware)


def _endpoint(address: str, values: dict[str, Any]) -> Iterator[Subject]:
    from analyzer.cli.preflight import check_endpoint
    from analyzer.targets.address import open_endpoint
    from analyzer.targets.endpoint_target import existing_model_target

    name = values["model_name"]
    if not name:
        raise UsageError(
            "An endpoint needs --model.", hint="Write --model NAME, the model's name there."
        )
    check_endpoint(address, loads=False)
    endpoint = open_endpoint(address)
    try:
        found = endpoint.model(name) if endpoint.ready(name) else None
    finally:
        endpoint.close()
    inputs: Mapping[str, NDArray[Any]] | None = None
    batchable = True
    if found is not None:
        batchable = found.batchable
        inputs = _inputs(_model_info(found, values), values)
    with existing_model_target(address, name, inputs, batchable=batchable) as ready:
        yield Subject(
            target=ready,
            address=address,
            name=name,
            inputs=inputs or {},
            batchable=batchable,
            batch_max=found.max_batch_size if found is not None else None,
            hardware=address,
        )


def _model_info(found: EndpointModel, values: dict[str, Any]) -> ModelInfo:
    """An endpoint's model with the shapes that are sent to it.

    Raises:
        ModelError: It takes no single requests or answers none with one reply; an input holds no
            numbers; or a shape is unknown or is not the input's.
    """
    from dataclasses import replace

    from analyzer.domain.model import NUMPY_DTYPES, ModelInfo

    if found.sequences or found.decoupled:
        how = "takes sequences of requests" if found.sequences else "streams replies (decoupled)"
        raise ModelError(
            f"The model {found.name} {how}, which is not measured here.",
            hint="Measured are models that answer each request by itself, with one reply.",
        )
    shapes: dict[str, tuple[int, ...]] = values["input_shapes"]
    names = [tensor.name for tensor in found.inputs]
    if unknown := sorted(shapes.keys() - set(names)):
        raise ModelError(
            f"--input-shape {unknown[0]}: {found.name} has no input of that name.",
            hint=f"Its inputs are: {', '.join(names)}.",
        )
    tensors = []
    for tensor in found.inputs:
        if tensor.datatype not in NUMPY_DTYPES:
            what = "strings" if tensor.datatype == "BYTES" else f"{tensor.datatype} numbers"
            raise ModelError(
                f"The input {tensor.name!r} of {found.name} holds {what}, which cannot be made up.",
                hint="Measure a model that takes numbers, without its text processing.",
            )
        shape = shapes.get(tensor.name, tensor.shape)
        if tensor.name in shapes and not _fits(shape, tensor.shape):
            raise ModelError(
                f"--input-shape {tensor.name}:{','.join(map(str, shape))} does not fit the input's "
                f"shape {list(tensor.shape)} on {found.name}.",
                hint="Give every dimension except the batch axis; only those that are -1 are open.",
            )
        if -1 in shape:
            raise ModelError(
                f"The input {tensor.name!r} of {found.name} has dynamic dimensions {shape}.",
                hint=f"Give them: --input-shape {tensor.name}:"
                + ",".join(str(dim) if dim > 0 else "128" for dim in shape),
            )
        tensors.append(replace(tensor, shape=tuple(shape)))
    return ModelInfo(
        name=found.name,
        path="",
        sha256="",
        batchable=found.batchable,
        inputs=tuple(tensors),
        outputs=found.outputs,
    )


def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    """Whether tensors of ``shape`` go where ``dims`` (−1 is open) are declared."""
    return len(shape) == len(dims) and all(
        value >= 1 and dim in (-1, value) for value, dim in zip(shape, dims, strict=True)
    )


def _inputs(model: ModelInfo, values: dict[str, Any]) -> Mapping[str, NDArray[Any]]:
    from analyzer.variants.inputs import synthetic_inputs

    data = _real_data(model, values)
    return data.inputs if data is not None else synthetic_inputs(model, 16, 0)


def _real_data(model: ModelInfo, values: dict[str, Any]) -> CalibrationData | None:
    from analyzer.variants.inputs import load_calibration

    if values["calibration_data"] is None:
        return None
    data = load_calibration(values["calibration_data"], model)
    _tell(data.notes, values)
    return data


def _tell(notes: Iterable[str], values: dict[str, Any]) -> None:
    for note in () if values["quiet"] else notes:
        say(f"Note: {note}")


def _local(path: Path, values: dict[str, Any], hardware: str) -> Iterator[Subject]:
    from analyzer.cli.models import as_it_runs, inspect_path
    from analyzer.cli.options import cache_dir
    from analyzer.domain.configuration import baseline_configuration
    from analyzer.hardware.gpu_lock import measuring_on
    from analyzer.hardware.gpu_memory import telling_gpu_memory
    from analyzer.hardware.gpus import first_gpu
    from analyzer.hardware.sampler import gpu_used_bytes
    from analyzer.measure.tasks import Assets
    from analyzer.targets.open import open_target

    device = default_device()
    check_instances(path, device, why_on_cpu)
    model, configuration = inspect_path(path, values["input_shapes"], device)
    model, configuration, _ = as_it_runs(model, configuration, _real_data(model, values))
    notes = [*model.notes]
    if values["model_name"] not in (None, model.name):
        notes.append(
            f"--model {values['model_name']} is ignored: it names a model of an endpoint, and "
            f"{path} is a local model ({model.name})."
        )
    _tell(notes, values)
    if configuration is None:
        configuration = baseline_configuration(batchable=model.batchable, device=device)
    gpu = first_gpu() if configuration.device == "gpu" else None
    data = values["calibration_data"]
    assets = Assets(model=model, calibration_path=str(data) if data else None)
    with ExitStack() as until_measured:
        until_measured.enter_context(measuring_on(gpu))
        gpu_base = gpu_used_bytes(gpu) if gpu is not None else None
        until_measured.enter_context(telling_gpu_memory(gpu, gpu_base))
        ready = until_measured.enter_context(
            open_target(
                "embedded",
                model=model,
                model_path=Path(model.path),
                inputs_path=assets.request_inputs(cache_dir()),
                configuration=configuration,
            )
        )
        yield Subject(
            target=ready,
            address=None,
            name=model.name,
            inputs={},
            batchable=model.batchable,
            batch_max=configuration.max_batch_size,
            hardware=hardware,
            gpu=gpu,
            gpu_base_bytes=gpu_base,
        )


def _largest_request(values: dict[str, Any]) -> int:
    """Inferences of the largest request that will be sent."""
    from analyzer.domain.workload import (
        check_request_batch_size,
        parse_arrivals,
        request_batch_sizes,
    )

    process = parse_arrivals(values["arrivals"])
    check_request_batch_size(process, values["request_batch_size"])
    return int(request_batch_sizes(process, values["request_batch_size"]).max())


def _ours(subject: Subject, values: dict[str, Any]) -> dict[str, Any]:
    from analyzer.domain.sla import Sla
    from analyzer.domain.workload import parse_arrivals
    from analyzer.measure.judge import judge_runs
    from analyzer.measure.live_session import LiveSession
    from analyzer.measure.plan import STREAM_MEASURE, LoadPlan
    from analyzer.report.document import build_load_test_entry

    budget_ms = values["latency_budget"]
    sla = Sla(
        latency_budget_ms=budget_ms or 1e6,
        percentile=values["percentile"],
        confidence=values["confidence"],
    )
    seed = options.seed_or_drawn(values["seed"])
    load = LoadPlan(
        sla=sla,
        arrivals=parse_arrivals(values["arrivals"]),
        request_batch_size=values["request_batch_size"],
        seed=seed,
    )
    session = LiveSession(
        subject.target,
        load,
        gpu=subject.gpu,
        gpu_base_bytes=subject.gpu_base_bytes,
        budgeted=budget_ms is not None,
    )
    if values["rate"] is not None and not values["quiet"]:
        _tell_least_time(values["rate"], values["duration"])
    session.warm_up(concurrency=values["concurrency"] or 4)
    certificate = None
    if values["concurrency"] is not None:
        test: LoadTest = session.run_closed(values["concurrency"], values["duration"])
    else:
        test = session.run(
            values["rate"], values["duration"], kind="measure", stream=STREAM_MEASURE, abort=False
        )
        if budget_ms is not None:
            certificate = judge_runs([test], session.logs, load, None)
    _tell(session.notes, values)
    entry = build_load_test_entry(test, certificate=certificate, hardware=subject.hardware)
    return entry | {"seed": seed}


def _require_sent(values: dict[str, Any]) -> None:
    """Refuses ``--arrivals`` that the load would not have."""
    arrivals, context = values["arrivals"], click.get_current_context()
    given = context.get_parameter_source("arrivals") is ParameterSource.COMMANDLINE
    # The sizes of a trace's requests count in a closed loop, too.
    if given and values["concurrency"] is not None and not arrivals.startswith("trace:"):
        raise UsageError(
            f"--arrivals {arrivals}: with --concurrency each request follows an answer.",
            hint="Leave --arrivals out, or give --rate in place of --concurrency.",
        )
    if values["generator"] != "tritune" and arrivals != "poisson":
        raise UsageError(
            f"--arrivals {arrivals}: perf_analyzer sends its requests as a Poisson process alone.",
            hint="Leave --arrivals out, or measure with --generator tritune.",
        )


def _require_a_day(values: dict[str, Any]) -> None:
    """Refuses a load test that lasts longer: --duration, or the least number of requests."""
    from analyzer.measure.plan import REQUESTS_MIN

    least_s = REQUESTS_MIN / values["rate"] if values["rate"] else 0.0
    if max(values["duration"], least_s) > _DAY_S:
        raise UsageError(
            f"The load test would take {format_duration(max(values['duration'], least_s))}.",
            hint=f"A day is the most; {REQUESTS_MIN} requests at least are sent at --rate.",
        )


def _tell_least_time(rate_rps: float, duration_s: float) -> None:
    """Notes how long the least number of requests takes, where that is more than asked for."""
    from analyzer.measure.plan import REQUESTS_MIN

    least_s = REQUESTS_MIN / rate_rps
    if least_s > duration_s:
        say(
            f"Note: {REQUESTS_MIN} requests at least are sent, which takes about "
            f"{format_duration(least_s)} at this rate: longer than --duration "
            f"{format_duration(duration_s)}."
        )


def _theirs(subject: Subject, values: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import asdict

    from analyzer.load.perf_analyzer import require_perf_analyzer, run_perf_analyzer

    assert subject.address is not None
    result = run_perf_analyzer(
        require_perf_analyzer(),
        subject.address,
        subject.name,
        subject.inputs,
        batchable=subject.batchable,
        concurrency=values["concurrency"],
        rate_rps=values["rate"],
        request_batch_size=values["request_batch_size"],
        duration_s=values["duration"],
    )
    return asdict(result)
