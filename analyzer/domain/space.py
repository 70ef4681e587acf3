"""Search spaces: parameters with conditions, and the configurations that they span."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from analyzer.domain.configuration import Backend, Configuration, DeviceKind, Execution

# A choice as Optuna stores it: a scalar, never a list (preferred sizes are "4,8").
Choice = str | int | bool
Params = dict[str, Choice]

PARAMETER_NAMES = (
    "precision",
    "quantization",
    "backend",
    "accelerator",
    "instance_count",
    "intra_op_threads",
    "graph_level",
    "execution_mode",
    "inter_op_threads",
    "cuda_graphs",
    "pinned_memory",
    "cudnn_search",
    "dynamic_batching",
    "max_batch_size",
    "preferred_batch_size",
    "max_queue_delay_us",
)

_EXECUTION = tuple(field.name for field in fields(Execution))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One setting that varies.

    Args:
        name: A name of ``PARAMETER_NAMES``.
        choices: Its values, in the order of the file.
        when: Other parameters and the values under which this one exists; empty for always.
    """

    name: str
    choices: tuple[Choice, ...]
    when: tuple[tuple[str, tuple[Choice, ...]], ...] = ()

    def __post_init__(self) -> None:
        assert self.name in PARAMETER_NAMES, self.name
        assert self.choices, self.name

    def active(self, params: Mapping[str, Choice]) -> bool:
        """Whether the parameter exists beside ``params`` (those before it)."""
        return all(params.get(name) in values for name, values in self.when)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedConfiguration:
    """One configuration of a listed space, with the label that people know it by."""

    label: str
    params: tuple[tuple[str, Choice], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What the search may vary, already resolved for a machine and a model.

    Args:
        name: The name it is called by.
        device: Where the instances run.
        parameters: In an order in which each comes after those its conditions name.
        listed: Configurations given one by one instead; then ``parameters`` is empty.
        threads_max: Upper limit of instances × threads on a CPU; None if there is none.
        request_batch_size: Inferences in each request: no smaller batch can be configured.
        batchable: Whether the model can be batched at all.
        onnx_backend: What runs ONNX graphs: ``python`` on a Triton that has only that,
            ``tensorrt`` on a GPU where ONNX Runtime cannot.
        left_out: A sentence for each choice of the file that cannot be measured here.
        instance_type: As in :class:`Configuration`.
    """

    name: str
    device: DeviceKind
    parameters: tuple[Parameter, ...] = ()
    listed: tuple[ListedConfiguration, ...] = ()
    threads_max: int | None = None
    request_batch_size: int = 1
    batchable: bool = True
    onnx_backend: Backend = "onnxruntime"
    left_out: tuple[str, ...] = ()
    instance_type: str | None = None

    def configuration(self, params: Mapping[str, Choice]) -> Configuration | None:
        """The canonical configuration of ``params``; None where they contradict each other."""
        batching = bool(params.get("dynamic_batching", False)) and self.batchable
        smallest = self.request_batch_size if self.batchable else 0
        size = int(params.get("max_batch_size", smallest)) if batching else smallest
        preferred = tuple(
            int(part) for part in str(params.get("preferred_batch_size", "")).split(",") if part
        )
        if size < smallest or (batching and any(p > size for p in preferred)):
            return None
        precision: Any = params.get("precision", "fp32")
        threads = params.get("intra_op_threads")
        count = int(params.get("instance_count", 1))
        quantization: Any = params.get("quantization") if precision == "int8" else None
        backend: Any = params.get("backend", "onnxruntime")
        if backend == "onnxruntime":
            backend = self.onnx_backend
        if precision == "int8" and quantization is None:
            quantization = "static"
        execution: dict[str, Any] = {name: params.get(name) for name in _EXECUTION}
        if execution["accelerator"] == "none":
            execution["accelerator"] = None
        if self.device == "cpu":
            threads = int(threads) if threads is not None else 1
            if execution["accelerator"] == "openvino":
                threads = 0  # it is told no number
            if self.threads_max is not None and count * max(threads, 1) > self.threads_max:
                return None
        found = Configuration(
            precision=precision,
            quantization=quantization,
            backend=backend,
            device=self.device,
            max_batch_size=size,
            dynamic_batching=batching,
            preferred_batch_size=preferred or None,
            max_queue_delay_us=int(params.get("max_queue_delay_us", 0)),
            instance_count=count,
            intra_op_threads=int(threads) if threads is not None else None,
            instance_type=self.instance_type,
            **execution,
        ).canonical()
        if precision == "int8" and self.device == "gpu" and not found.variant.compiled:
            # ONNX Runtime's CUDA provider executes no QDQ graph in int8; its documentation points
            # to TensorRT ("Quantize ONNX Models", section "Quantization on GPU").
            return None
        if precision == "bf16" and not found.variant.compiled:
            return None  # ONNX Runtime has hardly a kernel for it
        if precision == "fp8" and backend != "tensorrt":
            return None  # Triton knows no fp8 mode of ONNX Runtime's TensorRT provider
        return found

    def assignments(self) -> Iterator[Params]:
        """Every assignment of the parameters, contradictory ones included."""
        if self.listed:
            for fixed in self.listed:
                yield dict(fixed.params)
            return
        for values in itertools.product(*(p.choices for p in self.parameters)):
            params: Params = {}
            for parameter, value in zip(self.parameters, values, strict=True):
                if parameter.active(params):
                    params[parameter.name] = value
                elif value != parameter.choices[0]:
                    break  # An inactive parameter is passed over once, not once per value.
            else:
                yield params

    def candidates(self) -> dict[str, tuple[Configuration, Params]]:
        """The distinct configurations by their id, each with the first assignment that gives it."""
        found: dict[str, tuple[Configuration, Params]] = {}
        for params in self.assignments():
            configuration = self.configuration(params)
            if configuration is not None:
                found.setdefault(configuration.config_id, (configuration, params))
        return found

    def labels(self) -> dict[str, str]:
        """Labels of a listed space by configuration id."""
        found: dict[str, str] = {}
        for fixed in self.listed:
            configuration = self.configuration(dict(fixed.params))
            if configuration is not None:
                found.setdefault(configuration.config_id, fixed.label)
        return found
