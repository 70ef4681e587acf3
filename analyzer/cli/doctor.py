"""``analyze doctor``: what this machine has, and what each missing part would add."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata

import click

from analyzer.cli import options
from analyzer.cli.studies import format_table
from analyzer.errors import AnalyzerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One line: a part, its version if it is here, whether it works, and what it is for."""

    name: str
    version: str | None
    usable: bool
    adds: str


def inspect_parts(store_url: str) -> list[Part]:
    """Every part that the program can use, in the order in which people meet them."""
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
    if machine.gpus:
        parts += [
            Part(
                name=f"GPU {gpu.index}",
                version=f"{gpu.name}, driver {gpu.driver}",
                usable=True,
                adds="one worker, with memory, utilization and power",
            )
            for gpu in machine.gpus
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
        ("PyTorch", "torch", "--sampler gp"),
        ("psycopg", "psycopg", "results in PostgreSQL"),
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
        adds="ONNX Runtime's accelerator for CPUs (extra openvino)",
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
    return f"{found.version or found.executable} ({', '.join(found.backends)}), {found.source}"


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
        return Part(
            name="Database", version=f"{store_url}, {count} studies", usable=True, adds=adds
        )
    except AnalyzerError as error:
        return Part(name="Database", version=None, usable=False, adds=f"{adds}: {error.message}")


@click.command()
@options.store
@options.common
def doctor(store_url: str, as_json: bool, verbose: bool, quiet: bool) -> None:
    """Show what this machine has, and what each missing part would add."""
    parts = inspect_parts(store_url)
    if as_json:
        click.echo(json.dumps({"schema": 1, "parts": [asdict(part) for part in parts]}))
        return
    table = [("", "part", "version", "adds")]
    table += [("✓" if p.usable else "–", p.name, p.version or "missing", p.adds) for p in parts]
    click.echo(format_table(table))
