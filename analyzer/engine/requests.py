"""What goes into a served model and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from analyzer.engine.runtimes.base import Tensors
from analyzer.errors import AnalyzerError, InputError

ErrorKind = Literal["", "unavailable", "internal", "invalid"]


class ServerStopping(AnalyzerError):
    """The model is being unloaded and takes no more requests."""

    code = "stopping"


class InvalidRequestError(InputError):
    """A request that the model cannot take."""

    code = "request"


@dataclass(slots=True)
class InferenceReply:
    """The answer to one request; ``outputs`` is None exactly when ``error`` is set.

    Times are nanoseconds; compute times are those of the whole batch the request was in. Output
    arrays may be views of the batch's arrays: copy what is kept.
    """

    outputs: Tensors | None
    error: str | None = None
    error_kind: ErrorKind = ""
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0


@dataclass(slots=True)
class InferenceRequest:
    """One request.

    Args:
        batch_size: Inferences in it; 1 where the model cannot be batched.
        inputs: Arrays with the batch axis first where the model is batchable. Not modified; they
            must stay unchanged until the reply.
        on_done: Called once with the reply, on the thread that ends the request (an instance's,
            the timer's, the submitting one). It must be quick and must not raise.
        priority: Triton's; 0 for the default level.
        timeout_us: Triton's request time-out in microseconds; 0 for none.
    """

    batch_size: int
    inputs: Tensors
    on_done: Callable[[InferenceReply], None]
    priority: int = 0
    timeout_us: int = 0
