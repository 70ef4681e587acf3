"""``analyze doctor``: what this machine has, and what each missing part would add."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

from analyzer.cli import options
from analyzer.cli.streams import say
from analyzer.cli.studies import format_table
from analyzer.errors import AnalyzerError, InputError

if TYPE_CHECKING:
    from analyzer.twin.machine_constants import MachineConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One line: a part, its version if it is here, whether it works, and what it is for."""

    name: str
    version: str | None
    usable: bool
    adds: str


def inspect_parts(store_url: str) -> list[Part]:
    """Every part that the program can use, in the order in which people meet them."""
    from analyzer.hardware.gpus import VISIBLE, list_gpus
    from analyzer.hardware.machine import inspect_machine

    machine = inspect_machine()
    parts = [
        Part(
            name="CPU",
            version=f"{machine.cpu}, {machine.cores} of {machine.cores_total} cores",
            usable=True,
            adds="searches with ONNX Runtime on the CPU",
        )
    ]
    gpus = list_gpus()
    if gpus:
        parts += [
            Part(
                name=f"GPU {gpu.index}",
                version=f"{gpu.name}, driver {gpu.driver}, {gpu.uuid}"
                + ("" if gpu in machine.gpus else f", hidden by {VISIBLE}"),
                usable=gpu in machine.gpus,
                adds="one worker, with memory, utilization and power",
            )
            for gpu in gpus
        ]
    else:
        parts.append(
            Part(name="GPU", version=None, usable=False, adds="searches on a GPU (--device gpu)")
        )
    parts.append(_onnxruntime())
    parts.append(_openvino())
    parts.append(_tensorrt())
    for name, module, adds in (
        ("Ray", "ray", "workers on several GPUs and machines"),
        ("Optuna", "optuna", "the search's study and samplers"),
        ("Numba", "numba", "the twin at speed"),
        (
            "TensorRT for RTX",
            "tensorrt_rtx",
            "export --backend tensorrt-rtx: engines for RTX GPUs, compiled without one (extra rtx)",
        ),
        ("NVML", "pynvml", "GPU memory, utilization and power (package nvidia-ml-py)"),
        ("PyTorch", "torch", "--sampler gp (extra gp)"),
        ("psycopg", "psycopg", "results in PostgreSQL (extra postgres)"),
        ("obstore", "obstore", "models and repositories in object stores (extra buckets)"),
        ("FastAPI", "fastapi", "analyze service and analyze worker (extra service)"),
        ("Authlib", "authlib", "analyze service: logins with OpenID Connect (extra oidc)"),
    ):
        parts.append(_module(name, module, adds))
    parts.append(
        _program("Triton", _triton, "--server triton: the search and verify on a real server")
    )
    parts.append(
        _program("perf_analyzer", _perf_analyzer, "analyze measure beside NVIDIA's own generator")
    )
    parts.append(_database(store_url))
    return parts


def _onnxruntime() -> Part:
    adds = "models on the CPU, and through CUDA on a GPU (extras cpu, gpu)"
    try:
        import onnxruntime
    except ImportError:
        return Part(name="ONNX Runtime", version=None, usable=False, adds=adds)
    providers = ", ".join(
        name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers()
    )
    return Part(
        name="ONNX Runtime",
        version=f"{onnxruntime.__version__} ({providers})",
        usable=True,
        adds=adds,
    )


def _openvino() -> Part:
    from analyzer.engine.runtimes.providers import accelerators_here, onnxruntime_versions

    packages = {n: v for n, v in onnxruntime_versions().items() if "openvino" in n}
    return Part(
        name="OpenVINO",
        version=", ".join(f"{name} {number}" for name, number in packages.items()) or None,
        usable="openvino" in accelerators_here("cpu"),
        adds="ONNX Runtime's accelerator for CPUs (extra openvino, in place of cpu)",
    )


def _tensorrt() -> Part:
    adds = "engines at fp32, fp16 and int8 on an NVIDIA GPU (extra gpu)"
    try:
        tensorrt = importlib.import_module("tensorrt")
    except ImportError:
        return Part(name="TensorRT", version=None, usable=False, adds=adds)
    usable = hasattr(tensorrt, "Builder")
    return Part(name="TensorRT", version=str(tensorrt.__version__), usable=usable, adds=adds)


_DISTRIBUTIONS = {"pynvml": "nvidia-ml-py"}


def _module(name: str, module: str, adds: str) -> Part:
    try:
        version = metadata.version(_DISTRIBUTIONS.get(module, module))
    except metadata.PackageNotFoundError:
        return Part(name=name, version=None, usable=False, adds=adds)
    return Part(name=name, version=version, usable=True, adds=adds)


def _program(name: str, find: Callable[[], str | None], adds: str) -> Part:
    try:
        version = find()
    except AnalyzerError:
        version = None
    return Part(name=name, version=version, usable=version is not None, adds=adds)


def _triton() -> str | None:
    from analyzer.targets.triton_install import find_triton

    found = find_triton()
    if found is None:
        return None
    return f"{found.described}, {found.source}"


def _perf_analyzer() -> str | None:
    from analyzer.load.perf_analyzer import find_perf_analyzer

    found = find_perf_analyzer()
    return f"{found.executable.name}, {found.source}" if found is not None else None


def _database(store_url: str) -> Part:
    from analyzer.store.results import open_store

    adds = "where results are kept (--store)"
    try:
        with open_store(store_url, create=False) as store:
            count = len(store.list_studies())
        studies = "1 study" if count == 1 else f"{count:,} studies"
        return Part(
            name="Database",
            version=f"{options.hide_password(store_url)}, {studies}",
            usable=True,
            adds=adds,
        )
    except AnalyzerError as error:
        return Part(name="Database", version=None, usable=False, adds=f"{adds}: {error.message}")


def _calibrated(calibrate: bool, quiet: bool) -> MachineConstants:
    """What is known of this machine; measured now if that is asked for."""
    from analyzer.cli.machine import constants_of, machine_cache
    from analyzer.hardware.machine import inspect_machine

    machine = inspect_machine()
    if not calibrate:
        return constants_of(machine)
    from analyzer.measure.machine import measure_machine

    def told(what: str, seconds: float) -> None:
        if not quiet:
            say(f"{what} (about {seconds:.0f} s)")

    found = measure_machine(cores=machine.cores, on_phase=told)
    try:
        machine_cache(machine).save(found)
    except OSError as error:
        raise InputError(
            f"The calibration cannot be kept: {error.strerror}.",
            hint="Set TRITUNE_CACHE to a folder that can be written.",
        ) from error
    return found


def _calibration(constants: MachineConstants) -> dict[str, Any]:
    """``calibration`` of ``--json``; null what was not measured and is not supposed either."""
    variation = constants.variation
    return {
        "source": "fallback" if constants.measured_at is None else "measured",
        "measured_at": constants.measured_at,
        "overhead_ms": constants.overhead_ms,
        "host_ms_per_request": constants.host_ms,
        "interference": {str(k): factor for k, factor in constants.interference} or None,
        "speed_variation": asdict(variation) if variation else None,
        "wake_ms_p99": constants.wake_ms_p99,
        "witness_core_share": constants.witness_share,
    }


def _calibration_rows(constants: MachineConstants) -> list[tuple[str, str]]:
    rows = [
        ("calibration", constants.sentence()),
        ("a request outside queue and model", f"{constants.overhead_ms:.3g} ms"),
        ("server and generator, CPU per request", f"{constants.host_ms:.3g} ms"),
    ]
    if constants.measured_at is None:
        return rows
    beside = ", ".join(f"{k}: {factor:.3g}" for k, factor in constants.interference)
    return [
        *rows,
        ("slower with so many cores busy", beside or "one core"),
        ("speed", str(constants.variation or "steady while it was watched")),
        ("a sleeping thread wakes up late by, p99", f"{constants.wake_ms_p99 or 0.0:.3g} ms"),
        ("watching the machine takes of one core", f"{constants.witness_share or 0.0:.2%}"),
    ]


@click.command()
@click.option(
    "--calibrate",
    is_flag=True,
    help="Measure this machine for the twin (20 s, nothing else should run); kept for a week.",
)
@options.store
@options.common
def doctor(calibrate: bool, store_url: str, as_json: bool, verbose: bool, quiet: bool) -> None:
    """Show what this machine has, and what each missing part would add."""
    constants = _calibrated(calibrate, quiet or as_json)
    parts = inspect_parts(store_url)
    if as_json:
        document = {"schema": 1, "parts": [asdict(part) for part in parts]}
        click.echo(json.dumps(document | {"calibration": _calibration(constants)}))
        return
    table = [("", "part", "version", "adds")]
    table += [("✓" if p.usable else "–", p.name, p.version or "missing", p.adds) for p in parts]
    click.echo(format_table(table))
    click.echo("\nWhat the simulation assumes about this machine\n")
    for name, value in _calibration_rows(constants):
        click.echo(f"  {name:<40} {value}")
