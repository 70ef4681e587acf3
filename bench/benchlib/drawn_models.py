"""Models and latency budgets that are drawn at random, for whole searches.

Perceptrons, convolutional networks and tables of embeddings in turn, from some hundredths of a
millisecond for an inference to tenths of a second; the latency budget is 5 to 300 times one
inference on one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchlib.command import WORK, Command
from benchlib.models import write_convnet, write_perceptron, write_table
from benchlib.real_triton import Steps

_FOLDER = WORK / "random_models"
_BUDGETS = (5.0, 300.0)  # in inferences on one thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A model with its promise."""

    path: Path
    inference_ms: float
    budget_ms: float
    int8: bool

    @property
    def options(self) -> list[str]:
        """Of the command, besides the promise: without data int8 must be named."""
        return ["--precisions", "fp32,int8"] if self.int8 else []

    @property
    def words(self) -> list[str]:
        """Of the command."""
        return [str(self.path), "--latency-budget", f"{self.budget_ms:g}ms", *self.options]


def draw(seed: int) -> Drawn:
    """The model of this number."""
    rng = np.random.default_rng([7, seed])
    kind = ("perceptron", "convnet", "table")[seed % 3]
    path = _FOLDER / f"{kind}-{seed}.onnx"
    if kind == "perceptron":
        width = int(np.exp(rng.uniform(np.log(256), np.log(3072))))
        write_perceptron(path, [width] * int(rng.integers(2, 6)))
    elif kind == "convnet":
        pixels = int(np.exp(rng.uniform(np.log(32), np.log(256))))
        layers, stride = int(rng.integers(3, 8)), int(rng.integers(1, 3))
        width = int(rng.choice([16, 32, 64]))
        write_convnet(path, pixels=pixels, width=width, layers=layers, stride=stride)
    else:
        width = int(rng.choice([16, 64, 256]))
        write_table(path, rows=20_000, width=width, tokens=int(rng.integers(5, 200)))
    took_ms = inference_ms(path)
    budget_ms = took_ms * float(np.exp(rng.uniform(*np.log(_BUDGETS))))
    return Drawn(
        path=path,
        inference_ms=took_ms,
        budget_ms=max(float(f"{budget_ms:.1g}"), 2.0),
        int8=bool(seed % 2),
    )


def inference_ms(path: Path) -> float:
    """The median time of one inference on one thread, milliseconds."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = {
        taken.name: np.zeros([1, *taken.shape[1:]], np.int64 if "int64" in taken.type else "f4")
        for taken in session.get_inputs()
    }
    times_ms = []
    for _ in range(20):
        began = time.perf_counter()
        session.run(None, feeds)
        times_ms.append(1e3 * (time.perf_counter() - began))
    return float(np.median(times_ms))


def add_options(command: Command, *, models: int) -> None:
    """Those of a bench that searches drawn models: which ones, and for how long."""
    command.argument("--models", type=int, default=models, metavar="N")
    command.argument("--seed", type=int, default=1, metavar="N", help="of the first model")
    command.argument("--budget", type=float, default=60.0, metavar="SECONDS")
    command.argument("--again", action="store_true", help="forget the runs of earlier calls")


def each_model(
    options: argparse.Namespace, steps: Steps, run: Callable[[Drawn, int], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """What ``run`` tells of each model that the options name; of earlier calls what is kept."""
    for seed in range(options.seed, options.seed + options.models):
        step = f"{seed}-{options.budget:g}s"
        if options.again:
            steps.forget(step)
        found = steps.load(step, default={})
        if not found:
            drawn = draw(seed)
            found = run(drawn, seed) | {
                "model": drawn.path.stem + (" int8" if drawn.int8 else ""),
                "inference_ms": drawn.inference_ms,
                "budget_ms": drawn.budget_ms,
            }
            steps.save(step, found)
        yield found
