"""Runtimes without a model: scripted service times, none at all, and failures on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.model import NUMPY_DTYPES, TensorSpec
from analyzer.engine.runtimes.base import Runtime, Tensors
from analyzer.errors import TargetCrashError, TargetMemoryError

# A sleep ends up to this much late (timer slack and wake-up), so the rest is spent yielding.
_SLEEP_SLACK_S = 150e-6


def linear_service_time_s(points: Sequence[tuple[int, float]]) -> Callable[[int], float]:
    """Service time in seconds by batch size, linear between ``points`` (batch size, seconds).

    One point is a constant; below the first and beyond the last the nearest slope goes on, never
    below 0 (the contract's ``simulate``).
    """
    assert points
    ordered = sorted(points)

    def service_time_s(batch_size: int) -> float:
        if len(ordered) == 1:
            return ordered[0][1]
        index = next(
            (i for i in range(1, len(ordered) - 1) if batch_size <= ordered[i][0]),
            len(ordered) - 1,
        )
        (x0, y0), (x1, y1) = ordered[index - 1], ordered[index]
        return max(0.0, y0 + (y1 - y0) * (batch_size - x0) / (x1 - x0))

    return service_time_s


class NullRuntime:
    """Answers at once: what is measured is the server's own cost.

    Args:
        outputs: Tensors to answer with, as zeros; without any, the inputs are echoed.
        batchable: Whether the batch axis comes before the outputs' shapes.
    """

    def __init__(self, outputs: Sequence[TensorSpec] = (), *, batchable: bool = True) -> None:
        self._specs = tuple(outputs)
        self._batchable = batchable
        self._cache: dict[int, dict[str, NDArray[np.generic]]] = {}

    def run(self, inputs: Tensors) -> Tensors:
        """Zeros of the right shape (shared between calls), or the inputs themselves."""
        if not self._specs:
            return inputs
        rows = batch_rows(inputs) if self._batchable else 0
        if rows not in self._cache:
            lead = (rows,) if self._batchable else ()
            self._cache[rows] = {
                spec.name: np.zeros(
                    lead + tuple(max(dim, 1) for dim in spec.shape), NUMPY_DTYPES[spec.datatype]
                )
                for spec in self._specs
            }
        return self._cache[rows]

    def close(self) -> None:
        """Nothing to free."""


class ScriptedRuntime(NullRuntime):
    """Takes a scripted time per batch and uses no CPU for most of it, as a GPU would.

    It sleeps (which releases the interpreter) until shortly before the end and then yields in a
    loop, so that the end is met within some 10 µs where the machine is not overloaded.

    Args:
        service_time_s: Seconds by batch size.
        outputs, batchable: As in :class:`NullRuntime`.
    """

    def __init__(
        self,
        service_time_s: Callable[[int], float],
        outputs: Sequence[TensorSpec] = (),
        *,
        batchable: bool = True,
    ) -> None:
        super().__init__(outputs, batchable=batchable)
        self._service_time_s = service_time_s

    def run(self, inputs: Tensors) -> Tensors:
        """As :class:`NullRuntime`, after the scripted time."""
        end = time.perf_counter() + self._service_time_s(batch_rows(inputs))
        rest = end - time.perf_counter()
        if rest > _SLEEP_SLACK_S:
            time.sleep(rest - _SLEEP_SLACK_S)
        while time.perf_counter() < end:
            time.sleep(0)
        return super().run(inputs)


class FailingRuntime:
    """Runs ``inner`` and fails at one execution: for tests of what becomes of failures.

    Args:
        inner: Runs the other executions.
        failure: ``crash`` raises TargetCrashError, ``out_of_memory`` TargetMemoryError, ``hang``
            blocks until the runtime is closed.
        after: Executions that succeed before the failure; every later one fails as well.
    """

    def __init__(
        self,
        inner: Runtime,
        failure: Literal["crash", "out_of_memory", "hang"],
        *,
        after: int = 0,
    ) -> None:
        self._inner = inner
        self._failure = failure
        self._left = after
        self._closed = threading.Event()

    def run(self, inputs: Tensors) -> Tensors:
        """The inner runtime's outputs until the failure."""
        if self._left > 0:
            self._left -= 1
            return self._inner.run(inputs)
        if self._failure == "out_of_memory":
            raise TargetMemoryError("The scripted runtime ran out of memory, as it was told to.")
        if self._failure == "hang":
            self._closed.wait()
        raise TargetCrashError("The scripted runtime crashed, as it was told to.")

    def close(self) -> None:
        """Ends a hang and frees the inner runtime."""
        self._closed.set()
        self._inner.close()


def batch_rows(inputs: Tensors) -> int:
    """The batch size of ``inputs``: the first dimension of the first one; 1 for a scalar."""
    first = next(iter(inputs.values()))
    return int(first.shape[0]) if first.ndim else 1
