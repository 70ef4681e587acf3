"""Which execution providers of ONNX Runtime a session gets, and whether they are here.

The order is Triton's: the accelerator, CUDA on a GPU, the CPU (onnxruntime_backend's
``src/onnxruntime.cc``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from analyzer.domain.configuration import Accelerator, DeviceKind, Execution
from analyzer.errors import MissingPartError

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_PROVIDERS: dict[Accelerator, str] = {
    "openvino": "OpenVINOExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_HINTS: dict[Accelerator, str] = {
    "openvino": "Install tritune[openvino] in an environment without the package onnxruntime (the"
    " two are builds of one module), or leave the accelerator openvino out.",
    "tensorrt": "Install tritune[gpu] with TensorRT's libraries beside it, or leave the accelerator"
    " tensorrt out.",
}
# OpenVINO as a library that an ordinary ONNX Runtime loads.
_OPENVINO_PLUGIN = "onnxruntime_ep_openvino"
# Builds of the one module onnxruntime.
_BUILDS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")
# ONNX Runtime's options under Triton's name of them, where the two differ.
_TENSORRT_OPTIONS = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_MODES = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}


def configure_session(
    ort: Any,
    options: Any,
    execution: Execution,
    *,
    device: DeviceKind = "cpu",
    device_id: int = 0,
    accelerator_options: Mapping[str, str] | None = None,
) -> list[Any]:
    """Sets ``options`` as ``execution`` says; returns the providers for the session, in order.

    Args:
        ort: The module ``onnxruntime``.
        options: Its ``SessionOptions``, changed in place.
        accelerator_options: The accelerator's parameters under Triton's names.

    Raises:
        MissingPartError: This ONNX Runtime has no such provider.
    """
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = {
        -1: levels.ORT_ENABLE_BASIC,
        1: levels.ORT_ENABLE_EXTENDED,
        2: levels.ORT_DISABLE_ALL,
    }.get(execution.graph_level or 0, levels.ORT_ENABLE_ALL)
    options.inter_op_num_threads = 1
    if execution.execution_mode == "parallel":
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = execution.inter_op_threads or 0
    providers: list[Any] = [_CPU]
    if device == "gpu":
        _require_cuda(ort)
        _preload(ort)
        search = (execution.cudnn_search or "heuristic").upper()
        own = {"device_id": str(device_id), "cudnn_conv_algo_search": search}
        providers.insert(0, (_CUDA, own))
    if execution.accelerator == "tensorrt":
        _require(ort, "tensorrt")
        own = _tensorrt_options(accelerator_options or {}) | {"device_id": str(device_id)}
        providers.insert(0, (_PROVIDERS["tensorrt"], own))
    elif execution.accelerator == "openvino":
        plugged = _openvino_device(ort)
        if plugged is not None:
            options.add_provider_for_devices([plugged], {})
            return []  # a session takes providers from one of the two places
        providers.insert(0, (_PROVIDERS["openvino"], {"device_type": "CPU"}))
    return providers


def check_started(session: Any, execution: Execution, *, device: DeviceKind, path: str) -> None:
    """Checks that a session has what it asked for: ONNX Runtime falls back without an error.

    Raises:
        MissingPartError: It has not.
    """
    started = session.get_providers()
    accelerator = execution.accelerator
    if accelerator is not None and _PROVIDERS[accelerator] not in started:
        raise MissingPartError(
            f"ONNX Runtime could not start {_PROVIDERS[accelerator]} for {path} and fell back to "
            f"{', '.join(started)}.",
            hint="Its libraries are missing or of another version (`analyze doctor` lists them).",
        )
    if device == "gpu" and _CUDA not in started:
        raise MissingPartError(
            f"ONNX Runtime could not start CUDA for {path} and fell back to the CPU.",
            hint="Check that the CUDA and cuDNN libraries match this onnxruntime-gpu"
            " (`analyze doctor` lists them).",
        )


def accelerators_here(device: DeviceKind) -> tuple[Accelerator, ...]:
    """The accelerators that sessions on ``device`` can have here; empty without ONNX Runtime."""
    try:
        import onnxruntime as ort
    except ImportError:
        return ()
    wanted: Accelerator = "openvino" if device == "cpu" else "tensorrt"
    try:
        if wanted == "openvino":
            _openvino_device(ort)
        else:
            _require(ort, wanted)
    except MissingPartError:
        return ()
    return (wanted,)


def cuda_of(ort: Any) -> tuple[int, int] | None:
    """The CUDA that the module ``ort`` was built for; None where it does not say."""
    major, _, minor = str(getattr(ort, "cuda_version", "")).partition(".")
    if not major.isdecimal():
        return None
    return int(major), int(minor.split(".")[0]) if minor.split(".")[0].isdecimal() else 0


def onnxruntime_versions() -> dict[str, str]:
    """The package whose ONNX Runtime is imported here, and its plugins, with their versions."""
    found: dict[str, str] = {}
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return found
    for name in _BUILDS:
        with suppress(PackageNotFoundError):
            package = distribution(name)
            # Another build may lie behind it on the path.
            if Path(str(package.locate_file("onnxruntime"))) == Path(spec.origin).parent:
                found[name] = package.version
    if find_spec(_OPENVINO_PLUGIN) is not None:
        with suppress(PackageNotFoundError):
            found["onnxruntime-ep-openvino"] = distribution("onnxruntime-ep-openvino").version
    return found


def _require(ort: Any, accelerator: Accelerator) -> None:
    available = ort.get_available_providers()
    if _PROVIDERS[accelerator] not in available:
        raise MissingPartError(
            f"This ONNX Runtime has no {_PROVIDERS[accelerator]} (it has {', '.join(available)}).",
            hint=_HINTS[accelerator],
        )


def _require_cuda(ort: Any) -> None:
    available = ort.get_available_providers()
    if _CUDA not in available:
        raise MissingPartError(
            f"This ONNX Runtime has no CUDA provider (it has {', '.join(available)}).",
            hint="Install tritune[gpu] in an environment without the package onnxruntime: the two"
            " are builds of one module.",
        )


def _preload(ort: Any) -> None:
    """Loads the libraries of CUDA and cuDNN that lie in NVIDIA's packages, off the linker's path.

    ONNX Runtime prints what it does not find, which may still be on that path.
    """
    if hasattr(ort, "preload_dlls"):  # since 1.21
        with redirect_stdout(sys.stderr):
            ort.preload_dlls()


def _openvino_device(ort: Any) -> Any | None:
    """The CPU as the OpenVINO plugin has it; None where OpenVINO is built into ONNX Runtime.

    Raises:
        MissingPartError: Neither is here, or the plugin does not take this machine's CPU.
    """
    name = _PROVIDERS["openvino"]
    if name in ort.get_available_providers():
        return None
    if find_spec(_OPENVINO_PLUGIN) is None or not hasattr(ort, "get_ep_devices"):
        _require(ort, "openvino")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    if not devices:
        plugin = import_module(_OPENVINO_PLUGIN)
        try:
            ort.register_execution_provider_library(name, plugin.get_library_path())
        except Exception as error:
            raise MissingPartError(
                f"ONNX Runtime {ort.__version__} cannot load the OpenVINO plugin: {error}",
                hint="Install releases of onnxruntime and onnxruntime-ep-openvino that fit each"
                " other.",
            ) from error
        devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    for device in devices:
        if device.ep_metadata.get("ov_device") == "CPU":
            return device
    raise MissingPartError(
        "The OpenVINO plugin of ONNX Runtime offers no CPU on this machine: it takes Intel's alone"
        " (github.com/microsoft/onnxruntime/pull/31981).",
        hint=_HINTS["openvino"],
    )


def _tensorrt_options(settings: Mapping[str, str]) -> dict[str, str]:
    """ONNX Runtime's options for Triton's parameters of the accelerator."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if key == "precision_mode":
            found |= _TENSORRT_MODES[value]
        else:
            found[_TENSORRT_OPTIONS.get(key, key)] = value
    return found
