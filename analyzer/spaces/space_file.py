"""What a search-space file can say; what only the machine knows is resolved by the loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, PlainValidator, PrivateAttr, model_validator

from analyzer.domain.units import parse_duration_s
from analyzer.errors import UsageError
from analyzer.spaces.yaml_file import Table, broken, says

PER_CORE = ("cores", "cores/2")

# --- one value of each setting ------------------------------------------------------------------


def _word(*words: str) -> Any:
    hint = f"Write a list of them, like [{words[0]}]."
    return says(f"is none of {', '.join(words)}.", hint, words=words)


def _count(smallest: int, hint: str = "", *, largest: int) -> Any:
    whole = "Write whole numbers without quotation marks, like [1, 2, 4]."
    return says(f"is no integer from {smallest} to {largest:,}.", whole + hint)


def _delay_us(value: Any) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    try:
        return round(parse_duration_s(str(value)) * 1e6)
    except UsageError as error:
        broken(error.message, error.hint)


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


_CORES_HINT = " 'cores' and 'cores/2' stand for what the machine has."
# More than any machine has cores for; each instance holds the model once, each thread a stack.
_PARALLEL_MAX = 1024
_PER_CORE_MAX = _PARALLEL_MAX**2  # no choices of instances × threads have more
# Triton's max_batch_size is an int32 (model_config.proto).
_BATCH_MAX = 2**31 - 1
_Batch = Annotated[int, Field(ge=1, le=_BATCH_MAX)]
_Parallel = Annotated[int, Field(ge=1, le=_PARALLEL_MAX)]
_PerCore = Literal["cores", "cores/2"]

Precision = Annotated[
    Literal["fp32", "fp16", "bf16", "fp8", "int8"], _word("fp32", "fp16", "bf16", "fp8", "int8")
]
Quantization = Annotated[Literal["static", "dynamic", "best"], _word("static", "dynamic", "best")]
Backend = Annotated[Literal["onnxruntime", "tensorrt"], _word("onnxruntime", "tensorrt")]
Accelerator = Annotated[
    Literal["none", "openvino", "tensorrt"], _word("none", "openvino", "tensorrt")
]
GraphLevel = Annotated[
    Literal[-1, 0, 1, 2], says("is none of -1, 0, 1, 2.", "Write a list of them, like [0, 1].")
]
ExecutionMode = Annotated[Literal["sequential", "parallel"], _word("sequential", "parallel")]
CudnnSearch = Annotated[
    Literal["heuristic", "exhaustive", "default"], _word("heuristic", "exhaustive", "default")
]
_ThreadCount = Annotated[int, Field(ge=0, le=_PARALLEL_MAX)]
InterOpThreads = Annotated[_ThreadCount, _count(0, largest=_PARALLEL_MAX)]
Instances = Annotated[_Parallel | _PerCore, _count(1, _CORES_HINT, largest=_PARALLEL_MAX)]
Threads = Annotated[_ThreadCount | _PerCore, _count(0, _CORES_HINT, largest=_PARALLEL_MAX)]
Switch = Annotated[
    bool, says("is neither true nor false.", "Write [true, false], without quotation marks.")
]
BatchSize = Annotated[_Batch, _count(1, largest=_BATCH_MAX)]
BatchSizes = Annotated[
    list[_Batch],
    BeforeValidator(_as_list),
    says("is no list of batch sizes.", "Write [] or [4, 8]."),
]
DelayUs = Annotated[int, PlainValidator(_delay_us)]

# --- parameters ---------------------------------------------------------------------------------

Value = TypeVar("Value")


def _choices(value: Any) -> Any:
    if value == []:
        broken("no choices.", "Give a list, like [1, 2, 4].")
    return _as_list(value)


ListOf = Annotated[list[Value], BeforeValidator(_choices)]


class When(Table):
    """Values of other parameters under which a parameter exists."""

    precision: ListOf[Precision] | None = None
    quantization: ListOf[Quantization] | None = None
    backend: ListOf[Backend] | None = None
    accelerator: ListOf[Accelerator] | None = None
    instance_count: ListOf[Instances] | None = None
    intra_op_threads: ListOf[Threads] | None = None
    dynamic_batching: ListOf[Switch] | None = None
    max_batch_size: ListOf[BatchSize] | None = None
    preferred_batch_size: ListOf[BatchSizes] | None = None
    max_queue_delay: ListOf[DelayUs] | None = None
    graph_level: ListOf[GraphLevel] | None = None
    execution_mode: ListOf[ExecutionMode] | None = None
    inter_op_threads: ListOf[InterOpThreads] | None = None
    cuda_graphs: ListOf[Switch] | None = None
    pinned_memory: ListOf[Switch] | None = None
    cudnn_search: ListOf[CudnnSearch] | None = None


class Choices(Table, Generic[Value]):
    """The values of one parameter: a list, or a mapping with conditions."""

    choices: ListOf[Value]
    when: When = When()

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"choices": value}


class Parameters(Table):
    """What varies, in the order of the file."""

    precision: Choices[Precision] | None = None
    quantization: Choices[Quantization] | None = None
    backend: Choices[Backend] | None = None
    accelerator: Choices[Accelerator] | None = None
    instance_count: Choices[Instances] | None = None
    intra_op_threads: Choices[Threads] | None = None
    dynamic_batching: Choices[Switch] | None = None
    max_batch_size: Choices[BatchSize] | None = None
    preferred_batch_size: Choices[BatchSizes] | None = None
    max_queue_delay: Choices[DelayUs] | None = None
    graph_level: Choices[GraphLevel] | None = None
    execution_mode: Choices[ExecutionMode] | None = None
    inter_op_threads: Choices[InterOpThreads] | None = None
    cuda_graphs: Choices[Switch] | None = None
    pinned_memory: Choices[Switch] | None = None
    cudnn_search: Choices[CudnnSearch] | None = None

    # pydantic keeps the order of the class; in the file each comes after those its `when` names.
    _order: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _keep_order(cls, value: Any, accept: Callable[[Any], Self]) -> Self:
        made = accept(value)
        made._order = tuple(value)
        return made

    def items(self) -> Iterator[tuple[str, Choices[Any]]]:
        """Each parameter with its choices, in the order of the file."""
        return ((name, getattr(self, name)) for name in self._order)


# --- the document -------------------------------------------------------------------------------


class Item(Table):
    """One configuration that is listed; ``accelerated`` stands for a compiled engine."""

    label: str | int | float | None = None
    accelerated: bool = False
    precision: Precision | None = None
    quantization: Quantization | None = None
    backend: Backend | None = None
    accelerator: Accelerator | None = None
    instance_count: Instances | None = None
    intra_op_threads: Threads | None = None
    dynamic_batching: Switch | None = None
    max_batch_size: BatchSize | None = None
    preferred_batch_size: BatchSizes | None = None
    max_queue_delay: DelayUs | None = None
    graph_level: GraphLevel | None = None
    execution_mode: ExecutionMode | None = None
    inter_op_threads: InterOpThreads | None = None
    cuda_graphs: Switch | None = None
    pinned_memory: Switch | None = None
    cudnn_search: CudnnSearch | None = None


def _items(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        broken(
            "expected a list of configurations.",
            "Write each as a list item, like '- {precision: fp32, instance_count: 1}'.",
        )
    return value


class SpaceFile(Table):
    """The document: either ``parameters`` or ``configurations``."""

    name: str | int | float | None = None
    description: Any = None
    device: Annotated[
        Literal["cpu", "gpu", "auto"],
        says(
            "is none of cpu, gpu, auto.",
            "Write device: cpu, or leave the key out: the space then serves for both.",
        ),
    ] = "auto"
    threads_per_core: Annotated[
        Annotated[float, Field(gt=0, le=_PER_CORE_MAX, allow_inf_nan=False)] | None,
        says(
            f"is no number above 0, up to {_PER_CORE_MAX:,}.",
            "It bounds instances × threads by a multiple of the cores: threads_per_core: 1.",
        ),
    ] = None
    parameters: Parameters | None = None
    configurations: Annotated[list[Item], BeforeValidator(_items)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.parameters is None) == (self.configurations is None):
            broken(
                "exactly one of parameters and configurations is needed.",
                "parameters: combines the choices of each key; configurations: lists them one by "
                "one. See search_spaces/cpu.yaml and search_spaces/ablation.yaml.",
            )
        return self
