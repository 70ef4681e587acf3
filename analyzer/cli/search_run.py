"""What ``analyze search`` does with its options: inspect, search, store, print, report, export."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.cli.answer import deliver
from analyzer.cli.cluster_machines import facts_of
from analyzer.cli.devices import check_instances, require_gpu_backends, why_on_cpu
from analyzer.cli.machine import constants_of
from analyzer.cli.models import (
    as_it_is,
    as_it_runs,
    baseline_on,
    find_model,
    inspect_path,
    local_model,
)
from analyzer.cli.neighbours import noting_neighbours
from analyzer.cli.options import cache_dir
from analyzer.cli.preflight import check_export_of, check_search
from analyzer.cli.progress import ConsoleProgress, make_progress
from analyzer.cli.search_options import SearchOptions
from analyzer.cli.search_request import (
    absent_notes,
    largest_request,
    price_notes,
    pricing_of,
    request_of,
    sla_of,
    space_here,
    space_there,
)
from analyzer.cli.study_record import begin_study, moved_notes, outcomes_to_keep, price_kept
from analyzer.domain.configuration import Backend, Configuration, DeviceKind
from analyzer.domain.model import ModelInfo
from analyzer.domain.space import SearchSpace
from analyzer.domain.study import StudyResult
from analyzer.domain.workload import ArrivalProcess, parse_arrivals
from analyzer.engine.gpu_backends import gpu_backends
from analyzer.errors import MissingPartError, RunInterruptedError, UsageError
from analyzer.report.commands import export_command, study_command
from analyzer.search.time_plan import TimePlan

if TYPE_CHECKING:
    from analyzer.hardware.machine import Machine
    from analyzer.measure.jobs import Executor
    from analyzer.search.designer import Designer
    from analyzer.search.optuna_trials import OptunaTrials
    from analyzer.search.request import SearchRequest
    from analyzer.store.results import ResultStore
    from analyzer.variants.inputs import CalibrationData

# What a model that does not come to an end may be tried for, seconds, where the budget is less: a
# slow one is told the budget that suffices instead.
_TRYING_S_MIN = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where is measured: the workers, and their machine as far as the search must know it.

    Args:
        hardware_key, runtimes: Under which its probes are kept; None for what runs models here.
        cores: CPU cores of a lease.
    """

    executor: Executor
    device: DeviceKind
    space: SearchSpace
    hardware: str
    hardware_key: str
    runtimes: str | None
    cores: int


def run_search_command(options: SearchOptions) -> str:
    """Runs the search; returns its verdict.

    Raises:
        AnalyzerError: Wrong usage, unusable input, or a fault; whatever was measured is stored.
    """
    with ExitStack() as ending:
        return deliver(options, _searched(options, ending))


def _searched(options: SearchOptions, ending: ExitStack) -> StudyResult:
    """The study's result, which is stored.

    Args:
        ending: As of :func:`save_at_end`.
    """
    from analyzer.hardware.machine import inspect_machine
    from analyzer.store.results import open_store
    from analyzer.twin.precompile import start_compiling

    sla = sla_of(options)
    pricing = pricing_of(options)
    arrivals = parse_arrivals(options.arrivals)
    machine = inspect_machine()
    here = _device(options) if options.ray_address is None else None
    file = options.model or find_model(Path.cwd())
    check_search(options)
    twin_ready = start_compiling()
    loaded_s = time.monotonic() - options.started
    with make_progress(quiet=options.quiet) as progress:
        progress.phase("inspecting the model", 2.0)
        path = local_model(file)
        elsewhere = "://" in options.server  # its machine may have a GPU
        if here is not None and not elsewhere:
            check_instances(path, here[0], partial(why_on_cpu, options.device))
        device = here[0] if here is not None else "cpu"
        model, baseline = inspect_path(path, options.input_shapes, device)
        if options.export_dir is not None:
            check_export_of(model.name, options.export_dir, force=options.force)
        largest = largest_request(options, arrivals, model)
        space = None
        if here is not None:
            space = space_here(options, model, here[0], machine, largest, here[1], progress.warn)
        plan = TimePlan.begun(
            budget_s=options.budget,
            started=options.started,
            clock=time.monotonic,
            start_cpu_s=time.thread_time(),
            loaded_s=loaded_s,
            starts_workers=options.executor != "in-process",
        )
        with ExitStack() as workers:
            if space is not None:
                place = _here(options, space, machine, plan, workers)
            else:
                place = _on_cluster(options, model, machine, largest, plan, workers, progress)
                if not elsewhere:
                    check_instances(path, place.device, lambda: "the search leases none")
                baseline = baseline_on(path, model, baseline, place.device)
            inference_s = 0.0
            data = real_data(options, model)
            if plan.suffices("workers"):
                model, baseline, inference_s = tried(options, arrivals, model, baseline, data)
                place = replace(place, space=replace(place.space, batchable=model.batchable))
            left_out = place.space.left_out if options.space else ()
            read_notes = data.notes if data is not None else ()
            price_doubts = price_notes(options, pricing, place.device, place.hardware)
            for note in (*price_doubts, *model.notes, *left_out, *read_notes):
                progress.warn(note)
            data_sha256 = data.sha256 if data is not None else None
            del data  # it may be large, and the builders read their own
            with open_store(options.store_url) as store:
                pricing = price_kept(options, pricing, store)
                record = begin_study(
                    options, store, model, sla, machine, place.device, data_sha256,
                    pricing=pricing, hardware=place.hardware,
                )  # fmt: skip
                moved = moved_notes(options, record, place.hardware)
                for note in moved:
                    progress.warn(note)
                request = request_of(
                    options, record, model, place.space, place.device, pricing, arrivals,
                    inference_s,
                )  # fmt: skip
                with study_status(store, record.name, place.executor.cancel_all):
                    with noting_neighbours(options, progress.warn) as notes:
                        result = _search(
                            options, request, store, place, progress, machine, baseline,
                            twin_ready, plan,
                        )  # fmt: skip
                    result = replace(result, warnings=(*result.warnings, *moved, *notes))
                    store.save_result(result)
                return save_at_end(store, result, workers, plan, ending)


def save_at_end(
    store: ResultStore, result: StudyResult, workers: ExitStack, plan: TimePlan, ending: ExitStack
) -> StudyResult:
    """Ends the workers, and stores ``result`` again, with the seconds that all of it took.

    On a busy machine their end takes seconds, and the answer says how long the command took.

    Args:
        result: It is stored.
        ending: What is left to the command's end; from here on it says so of an interrupt.
    """
    ending.enter_context(_stored(result))
    workers.close()
    result = replace(result, search=replace(result.search, wall_seconds=plan.spent_s))
    store.save_result(result)
    return result


@contextmanager
def _stored(result: StudyResult) -> Iterator[None]:
    """Says of an interrupt that the search is over, and what writes its answer.

    Raises:
        RunInterruptedError: In the place of KeyboardInterrupt.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        commands = [study_command("report", result, None)]
        if result.recommended_id is not None:
            commands.append(export_command(result, None, result.recommended_id))
        raise RunInterruptedError(
            "Interrupted. The search had ended, and its result is stored.",
            hint=f"Its answer is written by: {'; '.join(commands)}",
        ) from error


def _device(options: SearchOptions) -> tuple[DeviceKind, Backend]:
    """Where the instances run, and what runs ONNX graphs there: on a GPU, TensorRT if need be."""
    if options.device == "cpu":
        return "cpu", "onnxruntime"
    if options.device == "gpu":
        try:
            backends = require_gpu_backends()
        except MissingPartError as error:
            raise UsageError(f"--device gpu: {error.message}", hint=error.hint) from error
    else:
        backends = gpu_backends()
        if not backends:
            return "cpu", "onnxruntime"
    return "gpu", backends[0]


def _here(
    options: SearchOptions, space: SearchSpace, machine: Machine, plan: TimePlan, workers: ExitStack
) -> _Place:
    """This machine. What can be wrong in a moment was looked at; now Ray starts beside the rest."""
    return _Place(
        executor=workers.enter_context(_executor(options, space.device, machine, plan)),
        device=space.device,
        space=space,
        hardware=machine.hardware,
        hardware_key=machine.hardware_key,
        runtimes=None,
        cores=machine.cores,
    )


def _on_cluster(
    options: SearchOptions,
    model: ModelInfo,
    machine: Machine,
    largest: int,
    plan: TimePlan,
    workers: ExitStack,
    progress: ConsoleProgress,
) -> _Place:
    """The machines of a Ray cluster, taken for alike: one of them is asked what it is."""
    from analyzer.cluster.instance_types import kinds_of
    from analyzer.cluster.ray_lease import find_devices
    from analyzer.cluster.ray_session import ray_session

    if options.executor == "in-process":
        _require_one_worker(options)
    progress.phase("looking at the machines", 10.0)
    ray = workers.enter_context(
        ray_session(address=options.ray_address, cores=machine.cores, gpus=())
    )
    nodes = ray.nodes()
    device: DeviceKind = "cpu"
    if options.device == "gpu" or (options.device == "auto" and find_devices(nodes, "gpu")):
        device = "gpu"
    kinds = kinds_of(nodes, device)
    if len(kinds) > 1:
        progress.warn(
            f"The cluster's machines are of several kinds ({'; '.join(kinds)}), and are measured"
            " as if they were of one. Compare them with --instance-types."
        )
    executor = workers.enter_context(_executor(options, device, machine, plan))
    facts = facts_of(executor, device, "The machines of the cluster", model.path)
    for note in absent_notes(options, facts.accelerator_absent):
        progress.warn(note)
    return _Place(
        executor=executor,
        device=device,
        space=space_there(options, model, device, facts, largest),
        hardware=facts.hardware,
        hardware_key=facts.hardware_key,
        runtimes=facts.runtimes,
        cores=facts.cores,
    )


def _require_one_worker(options: SearchOptions) -> None:
    """Raises UsageError where more than one worker is asked for, or a cluster."""
    if options.workers not in (None, 1) or options.ray_address:
        if options.executor == "in-process":
            raise UsageError(
                "--executor in-process has one worker, and no cluster.",
                hint="Leave --workers and --ray-address out, or use --executor ray.",
            )
        raise UsageError(
            f"--workers {options.workers}: --budget {options.budget:g}s leaves no time to start "
            "Ray's workers, and without them there is one.",
            hint="Leave --workers out, or give a longer --budget.",
        )


def _executor(
    options: SearchOptions, device: DeviceKind, machine: Machine, plan: TimePlan
) -> Executor:
    """The workers, which start now; where the budget does not suffice for that, some that need not.

    A cluster's workers run already.
    """
    started = options.ray_address is not None
    if options.executor == "in-process" or not (started or plan.suffices("workers")):
        _require_one_worker(options)
        from analyzer.cluster.in_process import InProcessExecutor

        return InProcessExecutor(device=device, cache_dir=cache_dir(), cores=machine.cores)
    from analyzer.cluster.ray_executor import RayExecutor

    executor = RayExecutor(
        device=device,
        cache_dir=cache_dir(),
        workers=options.workers_at_once(),
        ray_address=options.ray_address,
        cores=machine.cores,
    )
    executor.start_async()
    return executor


def tried(
    options: SearchOptions,
    arrivals: ArrivalProcess,
    model: ModelInfo,
    baseline: Configuration | None,
    data: CalibrationData | None,
) -> tuple[ModelInfo, Configuration | None, float]:
    """The model as :func:`~analyzer.cli.models.as_it_runs` finds it, and what goes with it.

    Raises:
        UsageError: It turned out to run one request at a time, and larger ones were asked for.
    """
    seconds_max = max(options.budget, _TRYING_S_MIN)
    ran, baseline, inference_s = as_it_runs(model, baseline, data, seconds_max)
    if model.batchable and not ran.batchable:
        largest_request(options, arrivals, ran)
    return ran, baseline, inference_s


def real_data(options: SearchOptions, model: ModelInfo) -> CalibrationData | None:
    """What ``--calibration-data`` holds; None without it.

    Raises:
        DataError: The file cannot be read, or does not fit the model.
    """
    from analyzer.variants.inputs import load_calibration

    if options.calibration_data is None:
        return None
    return load_calibration(options.calibration_data, model)


def _search(
    options: SearchOptions,
    request: SearchRequest,
    store: ResultStore,
    place: _Place,
    progress: ConsoleProgress,
    machine: Machine,
    baseline: Configuration | None,
    twin_ready: Callable[[float], bool],
    plan: TimePlan,
) -> StudyResult:
    from analyzer.hardware.canary import STUDY_PERIOD_NS, Canary
    from analyzer.search.context import make_context
    from analyzer.search.study import run_search
    from analyzer.search.watch import StudyWatch

    context = make_context(
        request,
        executor=place.executor,
        store=store,
        progress=progress,
        stored=outcomes_to_keep(options, store, request.study, place.hardware),
        baseline=as_it_is(baseline) if baseline is not None else None,
        hardware=place.hardware,
        hardware_key=place.hardware_key,
        runtimes=place.runtimes,
        cores=place.cores,
        constants=constants_of(machine, local=options.ray_address is None, server=options.server),
        plan=plan,
        settle=twin_ready,
        # On a cluster other machines are measured, each beside its load tests.
        watch=StudyWatch(
            partial(Canary, period_ns=STUDY_PERIOD_NS) if options.ray_address is None else None
        ),
    )
    return run_search(context, trials_maker(request, store, place.executor))


@contextmanager
def study_status(store: ResultStore, study: str, cancel: Callable[[], None]) -> Iterator[None]:
    """Says in the store how a search ended that does not come to its result.

    Args:
        cancel: Ends what the workers do.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        cancel()
        store.set_status(study, "interrupted")
        raise RunInterruptedError(
            "Interrupted. What was measured to its end is stored.",
            hint=f"Go on with: --study {shlex.quote(study)} --resume (the same command otherwise).",
        ) from error
    except Exception:
        # A fault as well: "running" would be a lie.
        store.set_status(study, "failed")
        raise


def trials_maker(
    request: SearchRequest, store: ResultStore, executor: Executor
) -> Callable[[frozenset[str], Designer], OptunaTrials]:
    """Opens the trials of a search in the study's database."""

    def make(allowed: frozenset[str], designer: Designer) -> OptunaTrials:
        from analyzer.search.optuna_trials import open_trials
        from analyzer.store.optuna_storage import close_optuna_storage, open_optuna_storage

        storage = open_optuna_storage(store)
        store.at_close(partial(close_optuna_storage, storage))
        return open_trials(
            request,
            allowed,
            designer,
            storage=storage,
            parallel=executor.workers > 1,
        )

    return make
