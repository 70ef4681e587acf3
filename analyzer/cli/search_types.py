"""``analyze search --instance-types a,b``: one study over the machines of a mixed Ray cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.cli.answer import deliver
from analyzer.cli.cluster_machines import facts_of
from analyzer.cli.devices import check_instances
from analyzer.cli.models import as_it_is, baseline_on, find_model, inspect_path, local_model
from analyzer.cli.options import cache_dir
from analyzer.cli.preflight import check_export_of, check_search
from analyzer.cli.progress import ConsoleProgress, make_progress
from analyzer.cli.search_options import SearchOptions
from analyzer.cli.search_request import (
    absent_notes,
    largest_request,
    price_notes,
    request_of,
    sla_of,
    space_there,
)
from analyzer.cli.search_run import real_data, save_at_end, study_status, trials_maker, tried
from analyzer.cli.study_record import begin_study, outcomes_to_keep
from analyzer.domain.configuration import Configuration, DeviceKind
from analyzer.domain.model import ModelInfo
from analyzer.domain.space import SearchSpace
from analyzer.domain.study import Pricing, StudyResult
from analyzer.domain.workload import ArrivalProcess, parse_arrivals
from analyzer.errors import UsageError
from analyzer.search.time_plan import TimePlan

if TYPE_CHECKING:
    from analyzer.hardware.machine import Machine
    from analyzer.measure.facts import WorkerFacts
    from analyzer.measure.jobs import Executor
    from analyzer.search.instance_types import TypePart
    from analyzer.store.records import StudyRecord
    from analyzer.store.results import ResultStore


@dataclass(frozen=True, slots=True, kw_only=True)
class _TypeMachines:
    """The machines of one instance type: their workers, and what they are."""

    pricing: Pricing
    device: DeviceKind
    executor: Executor
    facts: WorkerFacts


def run_types_command(options: SearchOptions) -> str:
    """Runs the search on every instance type at the same time; returns the study's verdict.

    Raises:
        AnalyzerError: As :func:`~analyzer.cli.search_run.run_search_command`.
    """
    with ExitStack() as ending:
        return deliver(options, _searched(options, ending))


def _searched(options: SearchOptions, ending: ExitStack) -> StudyResult:
    """The study's result, which is stored.

    Args:
        ending: As of :func:`~analyzer.cli.search_run.save_at_end`.
    """
    from analyzer.cluster.instance_types import nodes_by_type
    from analyzer.cluster.ray_session import ray_session
    from analyzer.hardware.machine import inspect_machine
    from analyzer.search.instance_types import search_types
    from analyzer.stats.certificate import confidence_of_each
    from analyzer.store.results import open_store
    from analyzer.twin.precompile import start_compiling

    _check(options)
    sla, arrivals = sla_of(options), parse_arrivals(options.arrivals)
    prices = _prices(options)
    place = options.model or find_model(Path.cwd())
    check_search(options)
    machine = inspect_machine()
    twin_ready = start_compiling()
    loaded_s = time.monotonic() - options.started
    with make_progress(quiet=options.quiet) as progress:
        progress.phase("inspecting the model", 2.0)
        path = local_model(place)
        model, baseline = inspect_path(path, options.input_shapes)
        if options.export_dir is not None:
            check_export_of(model.name, options.export_dir, force=options.force)
        largest = largest_request(options, arrivals, model)
        data = real_data(options, model)
        model, baseline, inference_s = tried(options, arrivals, model, baseline, data)
        data_sha256 = data.sha256 if data is not None else None
        read_notes = data.notes if data is not None else ()
        del data  # it may be large, and the workers read their own
        plan = TimePlan.begun(
            budget_s=options.budget,
            started=options.started,
            clock=time.monotonic,
            start_cpu_s=time.thread_time(),
            loaded_s=loaded_s,
        )
        progress.phase("looking at the machines", 10.0)
        with ExitStack() as workers:
            ray = workers.enter_context(
                ray_session(address=options.ray_address, cores=machine.cores, gpus=())
            )
            nodes = ray.nodes()
            devices = {name: known.device for name, known in prices.items()}
            own_nodes = nodes_by_type(nodes, devices)
            machines = [
                workers.enter_context(_machines(options, model, nodes, own_nodes[name], pricing))
                for name, pricing in prices.items()
            ]
            for own in machines:
                check_instances(path, own.device, partial(_leases_none, own))
            spaces = [_space(options, model, own, largest) for own in machines]
            left_out = [note for space in spaces for note in space.left_out]
            for text in (*_notes(options, machines), *model.notes, *left_out, *read_notes):
                progress.warn(text)
            told = "; ".join(
                f"{own.pricing.instance_type}: {own.facts.hardware}" for own in machines
            )
            with open_store(options.store_url) as store:
                record = begin_study(
                    options, store, model, sla, machine, machines[0].device, data_sha256,
                    hardware=told,
                )  # fmt: skip
                stop = threading.Event()
                # The study is one claim, and each type has an equal part of its error.
                confidence = confidence_of_each(sla.confidence, len(spaces))
                if len(spaces) > 1:
                    progress.warn(
                        f"Each of the {len(spaces)} instance types is certified with a confidence "
                        f"of {confidence:.6g}, so that all of them together have one of "
                        f"{sla.confidence:g}."
                    )
                parts = [
                    _part(options, record, model, space, arrivals, own, store, stop, progress,
                          baseline_on(path, model, baseline, own.device), twin_ready, machine,
                          plan, inference_s, confidence)
                    for own, space in zip(machines, spaces, strict=True)
                ]  # fmt: skip

                def cancel() -> None:
                    for own in machines:
                        own.executor.cancel_all()

                with study_status(store, record.name, cancel):
                    result = replace(search_types(parts, stop), sla=sla)
                    store.save_result(result)
                return save_at_end(store, result, workers, plan, ending)


def _leases_none(machines: _TypeMachines) -> str:
    return f"on machines of type {machines.pricing.instance_type} the search leases none"


def _check(options: SearchOptions) -> None:
    """Raises UsageError where options contradict each other."""
    if options.ray_address is None:
        raise UsageError(
            "--instance-types compares machines of a Ray cluster, and --ray-address names none.",
            hint="Add --ray-address HOST:6379; docs/cluster.md shows how to start one.",
        )
    for name, value in (("--instance-type", options.instance_type), ("--price", options.price)):
        if value is not None:
            raise UsageError(
                f"--instance-types and {name} exclude each other: each type has its own price.",
                hint="Put prices of your own into a catalogue: --prices FILE.",
            )
    if options.executor != "ray":
        raise UsageError(
            "--instance-types needs Ray, and --executor in-process has one worker.",
            hint="Leave --executor out.",
        )
    if "://" in options.server:
        raise UsageError(
            f"--instance-types compares machines, and --server {options.server} is one, which "
            "those of all types would load at the same time.",
            hint="Leave --server out, or use --server triton: each worker then starts its own.",
        )


def _prices(options: SearchOptions) -> dict[str, Pricing]:
    from analyzer.spaces.prices import lookup_price

    return {
        name: lookup_price(name, catalogue=options.prices_file) for name in options.instance_types
    }


@contextmanager
def _machines(
    options: SearchOptions,
    model: ModelInfo,
    nodes: list[dict[str, Any]],
    own: frozenset[str],
    pricing: Pricing,
) -> Iterator[_TypeMachines]:
    """The workers on the machines ``own`` of one type, and the facts that the first one tells."""
    from analyzer.cluster.ray_executor import RayExecutor
    from analyzer.cluster.ray_lease import find_devices

    name = pricing.instance_type or ""
    device: DeviceKind = "cpu"
    if options.device == "gpu" or (options.device == "auto" and find_devices(nodes, "gpu", own)):
        device = "gpu"
    with RayExecutor(
        device=device,
        cache_dir=cache_dir(),
        workers=options.workers,
        ray_address=options.ray_address,
        nodes=own,
    ) as executor:
        facts = facts_of(executor, device, f"The machines of type {name}", model.path)
        yield _TypeMachines(pricing=pricing, device=device, executor=executor, facts=facts)


def _notes(options: SearchOptions, machines: Sequence[_TypeMachines]) -> list[str]:
    """What people should know of the prices, and of accelerators that cannot be loaded."""
    notes = [
        note
        for own in machines
        for note in price_notes(options, own.pricing, own.device, own.facts.hardware)
    ]
    for own in machines:
        absent = absent_notes(options, own.facts.accelerator_absent)
        notes += [f"{own.pricing.instance_type}: {note}" for note in absent]
    return notes


def _space(
    options: SearchOptions, model: ModelInfo, own: _TypeMachines, largest: int
) -> SearchSpace:
    """The search space as these machines resolve it."""
    space = space_there(options, model, own.device, own.facts, largest)
    left_out = tuple(f"{own.pricing.instance_type}: {text}" for text in space.left_out)
    return replace(
        space,
        instance_type=own.pricing.instance_type,
        left_out=left_out if options.space else (),
    )


def _part(
    options: SearchOptions,
    record: StudyRecord,
    model: ModelInfo,
    space: SearchSpace,
    arrivals: ArrivalProcess,
    own: _TypeMachines,
    store: ResultStore,
    stop: threading.Event,
    progress: ConsoleProgress,
    baseline: Configuration | None,
    twin_ready: Callable[[float], bool],
    machine: Machine,
    plan: TimePlan,
    inference_s: float,
    confidence: float,
) -> TypePart:
    from analyzer.cli.machine import constants_of
    from analyzer.search.context import make_context
    from analyzer.search.instance_types import PartExecutor, PartProgress, TypePart

    name = own.pricing.instance_type or ""
    executor = PartExecutor(own.executor, stop)
    request = request_of(
        options, record, model, space, own.device, own.pricing, arrivals, inference_s
    )
    request = replace(request, sla=replace(request.sla, confidence=confidence))
    facts = own.facts
    context = make_context(
        request,
        executor=executor,
        store=store,
        progress=PartProgress(progress, name),
        stored=outcomes_to_keep(options, store, request.study, facts.hardware),
        baseline=as_it_is(replace(baseline, device=own.device)) if baseline is not None else None,
        hardware=facts.hardware,
        hardware_key=facts.hardware_key,
        runtimes=facts.runtimes,
        cores=facts.cores,
        constants=constants_of(machine, local=False, server=options.server),
        plan=replace(plan),  # each part plans for a proof of its own
        settle=twin_ready,
    )
    return TypePart(
        pricing=request.pricing,
        context=context,
        make_trials=trials_maker(request, store, executor),
        hardware=facts.hardware,
        workers=own.executor.workers,
    )
