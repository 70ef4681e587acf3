"""Runtimes without a model: scripted service times, none at all, and faults on purpose."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from analyzer.engine.runtimes.base import Tensors
from analyzer.errors import TargetError, TargetMemoryError

# An execution fails, runs out of memory, ends the process, or does not return.
ScriptedFault = Literal["error", "memory", "crash", "hang"]
Answer = Callable[[Tensors], Tensors]


def linear_service_time_s(points: Sequence[tuple[int, float]]) -> Callable[[int], float]:
    """Service time in seconds by batch size, linear between ``points`` (batch size, seconds).

    One point is a constant; below the first and beyond the last the nearest slope goes on, never
    below 0 (as ``analyze simulate`` documents it).
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


def echo(inputs: Tensors) -> Tensors:
    """The inputs themselves."""
    return inputs


class NullRuntime:
    """Answers at once: what is measured is the server's own cost.

    Args:
        answer: The outputs of a batch from its inputs.
    """

    def __init__(self, answer: Answer = echo) -> None:
        self._answer = answer

    def run(self, inputs: Tensors) -> Tensors:
        """The answer."""
        return self._answer(inputs)

    def close(self) -> None:
        """Nothing to free."""


class Script:
    """What the instances of a scripted model share. Thread-safe.

    Args:
        points: Batch sizes and seconds, as :func:`linear_service_time_s`.
        exponential: Whether times are drawn from an exponential distribution with that mean.
        interference: How much longer an execution takes for each further instance that is busy, as
            a fraction.
        seed: Of the random times.
        fault: What happens from execution number ``fault_after`` (from 0, over all instances) on;
            None for nothing.
    """

    def __init__(
        self,
        points: Sequence[tuple[int, float]],
        *,
        exponential: bool = False,
        interference: float = 0.0,
        seed: int = 0,
        fault: ScriptedFault | None = None,
        fault_after: int = 0,
    ) -> None:
        self.service_time_s = linear_service_time_s(points)
        self.exponential = exponential
        self.interference = interference
        self.seed = seed
        self.closed = threading.Event()
        self._fault = fault
        self._fault_after = fault_after
        self._lock = threading.Lock()
        self._busy = 0
        self._executions = itertools.count()

    def enter(self) -> tuple[int, ScriptedFault | None]:
        """Begins an execution: how many other instances are busy, and what goes wrong with it."""
        with self._lock:
            self._busy += 1
            faulty = next(self._executions) >= self._fault_after
            return self._busy - 1, self._fault if faulty else None

    def leave(self) -> None:
        """Ends an execution."""
        with self._lock:
            self._busy -= 1


class ScriptedRuntime:
    """Sleeps for the time of a batch, which uses no CPU, as if a GPU were at work.

    Args:
        script: Shared by the instances of the model.
        index: Of the instance, for its random times.
        answer: The outputs of a batch from its inputs.
        batchable: Whether the first axis of the inputs is the batch; otherwise its size is 1.
    """

    def __init__(
        self, script: Script, index: int = 0, *, answer: Answer = echo, batchable: bool = True
    ) -> None:
        self._script = script
        self._answer = answer
        self._batchable = batchable
        self._rng = np.random.default_rng([script.seed, index])

    def run(self, inputs: Tensors) -> Tensors:
        """The answer, after the scripted time or instead of it the scripted fault."""
        script = self._script
        others, fault = script.enter()
        try:
            if fault is not None:
                self._fail(fault)
            first = next(iter(inputs.values()))
            rows = len(first) if self._batchable and first.ndim else 1
            seconds = script.service_time_s(rows) * (1.0 + script.interference * others)
            time.sleep(self._rng.exponential(seconds) if script.exponential else seconds)
        finally:
            script.leave()
        return self._answer(inputs)

    def _fail(self, fault: ScriptedFault) -> None:
        if fault == "crash":
            os.abort()
        if fault == "memory":
            raise TargetMemoryError("the scripted model is out of memory, as it was told")
        if fault == "hang":
            self._script.closed.wait()
        raise TargetError("the scripted model fails, as it was told")

    def close(self) -> None:
        """Ends a hang."""
        self._script.closed.set()
