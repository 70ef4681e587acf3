"""One point of the search space, its canonical form and its fingerprint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, get_args

# bf16 and fp8 are TensorRT's: no other backend here executes them.
Precision = Literal["fp32", "fp16", "bf16", "fp8", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Quantization = Literal["static", "dynamic"]
Backend = Literal["onnxruntime", "tensorrt", "python"]
DeviceKind = Literal["cpu", "gpu"]
Accelerator = Literal["openvino", "tensorrt"]
GraphLevel = Literal[-1, 0, 1, 2]
ExecutionMode = Literal["sequential", "parallel"]
CudnnSearch = Literal["heuristic", "exhaustive", "default"]
# The largest batch of the space ``gpu``: nothing that it holds meets a new shape under load.
_WARMED_EACH_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How the backend executes a file, in Triton's settings; None is the default.

    Which is Triton's own but for ``cudnn_search``: Triton's is exhaustive and takes hundreds of
    milliseconds at each new shape, so that the baseline alone has it.

    Args:
        accelerator: An execution accelerator of ONNX Runtime's backend: ``openvino`` (on a CPU) or
            ``tensorrt`` (on a GPU). Without one: its CPU or CUDA provider.
        graph_level: ``optimization.graph.level``: −1 basic, 1 extended, 2 none; 0 and None all.
        execution_mode: ``parallel`` runs branches of the graph beside each other.
        inter_op_threads: Threads of the parallel mode; 0 and None ONNX Runtime's default.
        cuda_graphs: ``optimization.cuda.graphs`` of the backend tensorrt.
        pinned_memory: ``optimization.input_pinned_memory`` and ``output_pinned_memory`` of
            instances on a GPU; Triton's default is true.
        cudnn_search: How cuDNN chooses the algorithm of a convolution in ONNX Runtime's CUDA
            provider (``cudnn_conv_algo_search``); None for ``heuristic``.
    """

    accelerator: Accelerator | None = None
    graph_level: GraphLevel | None = None
    execution_mode: ExecutionMode | None = None
    inter_op_threads: int | None = None
    cuda_graphs: bool | None = None
    pinned_memory: bool | None = None
    cudnn_search: CudnnSearch | None = None

    def __post_init__(self) -> None:
        assert self.inter_op_threads is None or self.inter_op_threads >= 0

    def canonical(self, backend: Backend, device: DeviceKind) -> Execution:
        """The same with None for whatever is the default or has no effect there."""
        onnx = backend != "tensorrt"
        place: Accelerator = "openvino" if device == "cpu" else "tensorrt"
        parallel = onnx and self.execution_mode == "parallel"
        search = self.cudnn_search if self.cudnn_search != "heuristic" else None
        return Execution(
            accelerator=place if onnx and self.accelerator == place else None,
            graph_level=(self.graph_level or None) if onnx else None,
            execution_mode="parallel" if parallel else None,
            inter_op_threads=(self.inter_op_threads or None) if parallel else None,
            cuda_graphs=True if self.cuda_graphs and not onnx and device == "gpu" else None,
            pinned_memory=False if self.pinned_memory is False and device == "gpu" else None,
            cudnn_search=search if onnx and device == "gpu" else None,
        )

    @property
    def words(self) -> tuple[str, ...]:
        """What differs from the default, for people: ``openvino``, ``graph level 1``."""
        found: list[str] = [self.accelerator] if self.accelerator else []
        if self.graph_level:
            found.append(f"graph level {self.graph_level}")
        if self.execution_mode == "parallel":
            count = self.inter_op_threads
            found.append("parallel" + (f" with {count} inter-op threads" if count else ""))
        if self.cuda_graphs:
            found.append("CUDA graphs")
        if self.pinned_memory is False:
            found.append("no pinned memory")
        if self.cudnn_search:
            found.append(f"{self.cudnn_search} cuDNN search")
        return tuple(found)


DEFAULT_EXECUTION = Execution()


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantKey:
    """Which file of the model a configuration serves, and what executes it how."""

    precision: Precision
    quantization: Quantization | None = None
    backend: Backend = "onnxruntime"
    execution: Execution = DEFAULT_EXECUTION

    @property
    def label(self) -> str:
        """A short name for people: ``fp32``, ``int8-dynamic``, ``fp16 tensorrt``.

        ONNX Runtime is not named; what it does otherwise than by default is added, as in
        ``fp32+openvino``. No two variants have the same label.
        """
        name = self.precision + (f"-{self.quantization}" if self.quantization else "")
        backend = "" if self.backend == "onnxruntime" else f" {self.backend}"
        return "+".join((f"{name}{backend}", *self.execution.words))

    @property
    def quantized(self) -> bool:
        """Whether the graph holds quantized values, whose ranges come from rows or its weights."""
        return self.precision in ("int8", "fp8")

    @property
    def compiled(self) -> bool:
        """Whether TensorRT compiles the graph, as an engine or inside ONNX Runtime."""
        return "tensorrt" in (self.backend, self.execution.accelerator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A deployment: which variant, how it batches, how many instances with how many threads.

    Args:
        precision: Precision of the graph.
        quantization: How int8 was made; None for other precisions.
        backend: Triton's backend.
        device: Where the instances run.
        max_batch_size: Triton's field; 0 for a model that cannot be batched.
        dynamic_batching: Whether requests are joined into batches.
        preferred_batch_size: Triton's field, ascending; None without dynamic batching.
        max_queue_delay_us: Triton's field, microseconds; None without dynamic batching.
        instance_count: Instances per device.
        intra_op_threads: ONNX Runtime's threads per instance; None where it has no effect (GPU).
            OpenVINO takes one per core (0), since Triton's configuration cannot tell it a number.
        accelerator, graph_level, execution_mode, inter_op_threads, cuda_graphs, pinned_memory,
            cudnn_search: As in :class:`Execution`.
        instance_type: The machine that it is for, by its cloud's name, where a study compares
            several; else None. Machines differ, so that a deployment is measured on each.
    """

    precision: Precision = "fp32"
    quantization: Quantization | None = None
    backend: Backend = "onnxruntime"
    device: DeviceKind = "cpu"
    max_batch_size: int = 0
    dynamic_batching: bool = False
    preferred_batch_size: tuple[int, ...] | None = None
    max_queue_delay_us: int | None = None
    instance_count: int = 1
    intra_op_threads: int | None = None
    accelerator: Accelerator | None = None
    graph_level: GraphLevel | None = None
    execution_mode: ExecutionMode | None = None
    inter_op_threads: int | None = None
    cuda_graphs: bool | None = None
    pinned_memory: bool | None = None
    cudnn_search: CudnnSearch | None = None
    instance_type: str | None = None

    def __post_init__(self) -> None:
        assert self.max_batch_size >= 0, self.max_batch_size
        assert self.instance_count >= 1, self.instance_count
        assert self.max_queue_delay_us is None or self.max_queue_delay_us >= 0
        assert self.intra_op_threads is None or self.intra_op_threads >= 0
        assert (self.precision == "int8") or self.quantization is None, self.quantization
        preferred = self.preferred_batch_size or ()
        assert all(1 <= size <= max(self.max_batch_size, 1) for size in preferred), preferred

    @property
    def variant(self) -> VariantKey:
        """The variant that is served."""
        return VariantKey(
            precision=self.precision,
            quantization=self.quantization,
            backend=self.backend,
            execution=self.execution,
        )

    @property
    def execution(self) -> Execution:
        """How the backend executes the file, canonical."""
        if not any(getattr(self, name) is not None for name in _EXECUTION):
            return DEFAULT_EXECUTION
        own = Execution(**{name: getattr(self, name) for name in _EXECUTION})
        return own.canonical(self.backend, self.device)

    def canonical(self) -> Configuration:
        """The same deployment in its one canonical spelling.

        An empty preferred list equals ``[max_batch_size]``; settings without effect are None:
        batching fields without dynamic batching, dynamic batching itself with a maximum below 2,
        quantization of a model that is not int8, CPU threads of a model on a GPU.
        """
        batching = self.dynamic_batching and self.max_batch_size > 1
        preferred = tuple(sorted(set(self.preferred_batch_size or (self.max_batch_size,))))
        execution = self.execution
        threads = 0 if execution.accelerator == "openvino" else self.intra_op_threads
        return replace(
            self,
            quantization=self.quantization if self.precision == "int8" else None,
            dynamic_batching=batching,
            preferred_batch_size=preferred if batching else None,
            max_queue_delay_us=(self.max_queue_delay_us or 0) if batching else None,
            intra_op_threads=threads if self.device == "cpu" else None,
            **{name: getattr(execution, name) for name in _EXECUTION},
        )

    @property
    def warmup_batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes that an instance runs before it is ready, ascending.

        On a CPU 1, the preferred sizes and the largest; on a GPU every size up to 64, since
        libraries choose kernels and claim memory for each new shape, and above it the powers of
        two, the preferred sizes and the largest: in Triton a warm-up of size N is N requests, so
        that all sizes up to 1,024 would be half a million.
        """
        largest = max(self.max_batch_size, 1)
        sizes = {1, *(self.preferred_batch_size or ()), largest}
        if self.device == "gpu":
            sizes.update(range(1, min(largest, _WARMED_EACH_MAX) + 1))
            sizes.update(2**power for power in range(largest.bit_length()))
        return tuple(sorted(sizes))

    def to_dict(self) -> dict[str, Any]:
        """The canonical configuration as JSON-ready values, keys as in the contract.

        How the backend executes stands there only where it differs from the default, and the
        instance type where several are compared, so that a configuration has the id that it had
        before these could be told.
        """
        own = self.canonical()
        # Not dataclasses.asdict, which copies deeply: a report asks this of every measurement.
        values = {name: getattr(own, name) for name in _FIELDS}
        for name in (*_EXECUTION, "instance_type"):
            if values[name] is None:
                del values[name]
        preferred = own.preferred_batch_size
        values["preferred_batch_size"] = list(preferred) if preferred is not None else None
        return values

    @property
    def config_id(self) -> str:
        """The first 12 hex digits of the SHA-256 of the canonical configuration's JSON."""
        return _config_id(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Configuration:
        """The configuration that :meth:`to_dict` wrote."""
        own = dict(values)
        if own.get("preferred_batch_size") is not None:
            own["preferred_batch_size"] = tuple(own["preferred_batch_size"])
        return cls(**own).canonical()


_FIELDS = tuple(field.name for field in fields(Configuration))
_EXECUTION = tuple(field.name for field in fields(Execution))
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
# More than a space has and a search runs; some megabytes of short names.
_IDS_KEPT = 2**15


@lru_cache(maxsize=_IDS_KEPT)
def _config_id(configuration: Configuration) -> str:
    """A search asks for the same ids at every proposal: of all that run and all that is known."""
    return hashlib.sha256(_JSON.encode(configuration.to_dict()).encode()).hexdigest()[:12]


def baseline_configuration(
    *, batchable: bool, device: DeviceKind = "cpu", request_batch_size: int = 1
) -> Configuration:
    """What Triton would do with an ONNX model alone (its automatic configuration).

    On a CPU with ONNX Runtime: two instances, ``max_batch_size`` 4 and ``dynamic_batching {}``
    where the model can be batched; one instance on a GPU, with the exhaustive search of cuDNN.
    Threads are ONNX Runtime's default (0: one per core).

    Args:
        request_batch_size: Inferences of the largest request; a batch holds it, since a server
            refuses requests that are larger than its ``max_batch_size``.
    """
    return Configuration(
        device=device,
        max_batch_size=max(4, request_batch_size) if batchable else 0,
        dynamic_batching=batchable,
        instance_count=2 if device == "cpu" else 1,
        intra_op_threads=0 if device == "cpu" else None,
        cudnn_search="exhaustive",
    ).canonical()
