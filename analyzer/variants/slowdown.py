"""Whether a variant gains anything: it and the model execute the same rows in turns."""

from __future__ import annotations

import time
from statistics import median

from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.base import Runtime, Tensors
from analyzer.variants.reference import chunks

# Looks at how a variant compares with the model, and rounds of each in which they take turns, of
# which the shortest counts. The first round before warms them up; a slow model, whose first round
# takes longer than so many seconds, has one a look, and none at a whole batch of rows.
_LOOKS = 3
_ROUNDS = 3
_SLOW_ROUND_S = 0.1
# A smaller gain is lost in what else a machine does.
_SLOWDOWN_MAX = 0.97


def slowdown(info: ModelInfo, inputs: Tensors, model: Runtime, variant: Runtime) -> float | None:
    """How much longer the variant takes than the model, where it fares best.

    None where it gains, and where what else the machine does leaves that open: every look at every
    batch must find it slower.

    Args:
        info: The model's.
        inputs: ``[rows, *shape]``, of which the first few are executed.
        model: Closed in the end.
    """
    rows = len(next(iter(inputs.values())))
    whole: Tensors = next(chunks(info, inputs))
    batches = [whole]
    if info.batchable and rows > 1:
        batches.insert(0, {name: array[:1] for name, array in whole.items()})
    found: list[float] = []
    rounds = _ROUNDS
    try:
        for batch in batches:
            if rounds == 1:
                break
            warm_s = sum(_round_s(batch, model, variant))
            rounds = 1 if warm_s > _SLOW_ROUND_S else _ROUNDS
            looks: list[float] = []
            for _ in range(_LOOKS):
                taken = [_round_s(batch, model, variant) for _ in range(rounds)]
                shortest_s, variants_s = (min(each) for each in zip(*taken, strict=True))
                looks.append(variants_s / shortest_s)
                if looks[-1] <= _SLOWDOWN_MAX:
                    return None
            found.append(float(median(looks)))
    finally:
        model.close()
    return min(found)


def _round_s(batch: Tensors, model: Runtime, variant: Runtime) -> tuple[float, float]:
    """Seconds of one execution of each."""
    began = time.perf_counter()
    model.run(batch)
    between = time.perf_counter()
    variant.run(batch)
    return between - began, time.perf_counter() - between
