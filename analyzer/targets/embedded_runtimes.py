"""Opens the runtimes of an embedded server: one for each instance."""

from __future__ import annotations

from pathlib import Path

from analyzer.engine.runtimes.base import Runtime
from analyzer.engine.runtimes.open import Place, open_runtimes
from analyzer.engine.runtimes.scripted import NullRuntime, Script, ScriptedRuntime
from analyzer.targets.embedded_spec import EmbeddedSpec, NullModel, ScriptedModel


def open_embedded_runtimes(spec: EmbeddedSpec) -> list[Runtime]:
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
        script = Script(
            [(size, ms / 1e3) for size, ms in model.points],
            exponential=model.distribution == "exponential",
            interference=model.interference or 0.0,
            seed=model.seed,
            fault=model.fault,
            fault_after=model.fault_after,
        )
        return [ScriptedRuntime(script, index) for index in range(count)]
    return open_runtimes(
        Path(model.path),
        # The process sees only its own GPU, whatever its number is outside.
        [Place(spec.configuration.device)] * count,
        backend=spec.configuration.backend,
        intra_op_threads=spec.configuration.intra_op_threads or 0,
        execution=spec.configuration.execution,
        accelerator_options=model.accelerator_options,
    )
