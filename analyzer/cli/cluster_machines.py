"""What a Ray cluster's machines are and can run, asked of one of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.cli.options import cache_dir
from analyzer.domain.configuration import DeviceKind
from analyzer.errors import AnalyzerError, ModelError, UsageError

if TYPE_CHECKING:
    from analyzer.measure.facts import WorkerFacts
    from analyzer.measure.jobs import Executor

# Looking at a machine takes a second or so, and importing the package there some more.
_FACTS_TIMEOUT_S = 120.0


def facts_of(executor: Executor, device: DeviceKind, machines: str, model_path: str) -> WorkerFacts:
    """The facts of the machine whose worker is free first.

    Args:
        device: What its workers lease.
        machines: Whose they are, to begin a sentence: ``The machines of type g5.xlarge``.
        model_path: Where the model lies here, and so must lie there.

    Raises:
        AnalyzerError: It does not tell.
        UsageError: It has a GPU, and nothing that runs models there.
        ModelError: It does not see the model.
    """
    from analyzer.measure.facts import WorkerFacts, worker_facts
    from analyzer.measure.jobs import Job

    look = partial(worker_facts, model_path)
    executor.submit(Job("facts", look, _FACTS_TIMEOUT_S, "look at a machine"))
    result = executor.next_result(_FACTS_TIMEOUT_S)
    if result is None or result.error is not None:
        raise AnalyzerError(
            f"{machines} do not tell what they are: "
            f"{result.error.message if result and result.error else 'no answer in time'}",
            hint=result.error.hint if result and result.error else "Look at: ray status.",
        )
    facts = result.value
    assert isinstance(facts, WorkerFacts)
    if device == "gpu" and not facts.backends:
        raise UsageError(
            f"{machines} have GPUs, but neither ONNX Runtime's CUDA provider nor TensorRT is "
            "installed there.",
            hint="Install tritune[gpu] on them, or use --device cpu.",
        )
    if not facts.has_model:
        kept = Path(model_path).is_relative_to(cache_dir().absolute())
        raise ModelError(
            f"{machines} do not see the model at {model_path}.",
            hint="That copy, fetched or in the form that Triton serves, lies in the cache folder:"
            " set TRITUNE_CACHE to one that all machines share, under the same path."
            if kept
            else "Put it into a folder that all machines share, under the same path.",
        )
    return facts
