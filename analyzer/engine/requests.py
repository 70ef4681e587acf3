"""What goes into a model and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from analyzer.engine.fault import Fault
from analyzer.engine.runtimes.base import Tensors


@dataclass(slots=True)
class InputTensor:
    """A client's input: an array, or the bytes of Triton's binary form (C order, little endian)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: NDArray[Any] | memoryview | bytes


@dataclass(slots=True)
class InferCall:
    """A client's inference request before it is checked against the model.

    Args:
        inputs: In the order in which they came.
        outputs: Names of those asked for; empty for all.
        request_id: The client's, returned to it; empty if it sent none.
        priority: Triton's; 0 for the default level.
        timeout_us: Triton's request time-out in microseconds; 0 for none.
        raw: Whether ``inputs`` holds the bytes of the model's only input, without its name, type
            and shape.
    """

    inputs: list[InputTensor]
    outputs: tuple[str, ...] = ()
    request_id: str = ""
    priority: int = 0
    timeout_us: int = 0
    raw: bool = False


@dataclass(slots=True)
class InferenceReply:
    """The answer to one request; ``outputs`` is None exactly when ``fault`` is set.

    Times are nanoseconds; compute times are those of the whole batch the request was in. Output
    arrays may be views of the batch's arrays: copy what is kept.
    """

    outputs: Tensors | None
    fault: Fault | None = None
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0


@dataclass(slots=True)
class InferenceRequest:
    """A request that fits the model.

    Args:
        batch_size: Inferences in it; 1 where the model cannot be batched.
        inputs: Arrays with the batch axis first where the model is batchable. Not modified; they
            must stay unchanged until the reply.
        on_done: Called once with the reply, on the thread that ends the request (an instance's,
            the timer's, the submitting one). It must be quick and must not raise.
        priority: Triton's; 0 for the default level.
        timeout_us: Triton's request time-out in microseconds; 0 for none.
        outputs: Names of those that are wanted; empty for all. More may come: they say what can be
            left undone.
    """

    batch_size: int
    inputs: Tensors
    on_done: Callable[[InferenceReply], None]
    priority: int = 0
    timeout_us: int = 0
    outputs: tuple[str, ...] = ()
