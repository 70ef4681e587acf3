"""Opens the runtimes of an embedded server: one for each instance."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import numpy as np

from analyzer.engine.runtimes.base import Runtime, Tensors
from analyzer.engine.runtimes.open import Place
from analyzer.engine.runtimes.open import open_runtimes as open_at_places
from analyzer.engine.runtimes.scripted import NullRuntime, batch_rows, linear_service_time_s
from analyzer.errors import TargetError, TargetMemoryError
from analyzer.targets.embedded_spec import (
    EmbeddedSpec,
    EngineModel,
    NullModel,
    OnnxModel,
    ScriptedModel,
)


def open_runtimes(spec: EmbeddedSpec) -> list[Runtime]:
    """A runtime for each instance, in order; none of them warmed up.

    Raises:
        ModelError: The model cannot be loaded.
        MissingPartError: A library or device is not here.
        TargetMemoryError: There is not enough memory for all of them.
    """
    count = spec.configuration.instance_count
    model = spec.model
    if isinstance(model, NullModel):
        return [NullRuntime() for _ in range(count)]
    if isinstance(model, ScriptedModel):
        stage = _Stage(model)
        return [_Scripted(stage, index) for index in range(count)]
    assert isinstance(model, OnnxModel | EngineModel)
    return open_at_places(
        Path(model.path),
        # The process sees only its own GPU, whatever its number is outside.
        [Place(spec.configuration.device)] * count,
        backend="tensorrt" if isinstance(model, EngineModel) else "onnxruntime",
        intra_op_threads=spec.configuration.intra_op_threads or 0,
    )


class _Stage:
    """What the instances of a scripted model share: how many are busy, and when the fault comes."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self.service_time_s = linear_service_time_s([(b, ms / 1e3) for b, ms in model.points])
        self._lock = threading.Lock()
        self._busy = 0
        self._executions = itertools.count()

    def enter(self) -> tuple[int, bool]:
        """How many other instances are busy, and whether this execution goes wrong."""
        with self._lock:
            self._busy += 1
            faulty = next(self._executions) >= self.model.fault_after
            return self._busy - 1, faulty and self.model.fault is not None

    def leave(self) -> None:
        with self._lock:
            self._busy -= 1


class _Scripted:
    """Sleeps for the time of a batch, which uses no CPU, as if a GPU were at work."""

    def __init__(self, stage: _Stage, index: int) -> None:
        self._stage = stage
        self._rng = np.random.default_rng([stage.model.seed, index])

    def run(self, inputs: Tensors) -> Tensors:
        stage = self._stage
        others, faulty = stage.enter()
        try:
            if faulty:
                _fail(stage.model)
            seconds = stage.service_time_s(batch_rows(inputs))
            seconds *= 1.0 + (stage.model.interference or 0.0) * others
            if stage.model.distribution == "exponential":
                seconds = self._rng.exponential(seconds)
            time.sleep(seconds)
        finally:
            stage.leave()
        return inputs

    def close(self) -> None:
        pass


def _fail(model: ScriptedModel) -> None:
    if model.fault == "crash":
        os.abort()
    if model.fault == "memory":
        raise TargetMemoryError("the scripted model is out of memory, as it was told")
    if model.fault == "hang":
        threading.Event().wait()
    raise TargetError("the scripted model fails, as it was told")
