"""The fp32 model's answers, computed once for all variants that are built side by side."""

from __future__ import annotations

import contextlib
import fcntl
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.base import Runtime, Tensors
from analyzer.engine.tensor_file import read_tensors, write_tensors
from analyzer.errors import TargetError, TargetMemoryError
from analyzer.variants.cache import building, load_entry, publish

# Rows of one run: enough to fill the cores, little memory.
ROWS_PER_RUN = 8
# What one variant waits for at most while a neighbour computes it; the first block is one run,
# which suffices for a variant that is far off.
_ROWS_PER_BLOCK = 32
_STORED_BYTES_MAX = 256 << 20  # answers of one model; beyond it they are computed again
_FILE = "answers.npz"


def chunks(model: ModelInfo, inputs: Tensors) -> Iterator[dict[str, NDArray[np.generic]]]:
    """``inputs`` (``[rows, *shape]``) as feeds of a few rows; one request each if unbatched."""
    rows = len(next(iter(inputs.values())))
    step = ROWS_PER_RUN if model.batchable else 1
    for start in range(0, rows, step):
        yield {
            name: array[start : start + step] if model.batchable else array[start, ...]
            for name, array in inputs.items()
        }


def in_parts(model: ModelInfo, runtime: Runtime) -> Runtime:
    """``runtime`` of ``model``, with batches in parts where it does not bear all of their rows."""
    return _PartedRuntime(runtime) if model.batchable else runtime


class _PartedRuntime:
    """Runs fewer rows at a time from the first batch on that fails.

    A graph may bear fewer rows together than :func:`chunks` has: a table of positions ends before.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rows_max = ROWS_PER_RUN

    def run(self, inputs: Tensors) -> Tensors:
        """The answers to all rows; raises as :meth:`Runtime.run` where a single one fails."""
        rows = len(next(iter(inputs.values())))
        step = min(rows, self._rows_max)
        try:
            answers = [
                self._runtime.run(
                    {name: array[start : start + step] for name, array in inputs.items()}
                )
                for start in range(0, rows, step)
            ]
        except TargetError as error:
            if step == 1 or isinstance(error, TargetMemoryError):
                raise
            self._rows_max = step // 2
            return self.run(inputs)
        if len(answers) == 1:
            return answers[0]
        return {name: np.concatenate([part[name] for part in answers]) for name in answers[0]}

    def close(self) -> None:
        """Frees the instance."""
        self._runtime.close()


class StoredReference:
    """Gives the model's answers in the order of :func:`chunks`, as far as they are asked for.

    They are computed and stored in the cache block by block: the first process that needs a block
    computes it, and others that need it at the same time wait for that block alone. Where they
    would take much of the disk they are computed by everyone.

    Args:
        key: Of the cache entries; it determines model, rows and device.
        inputs: Of all rows, ``[rows, *shape]``.
        open_runtime: Opens the model; called when a block has to be computed.
    """

    def __init__(
        self,
        cache_dir: Path,
        key: str,
        model: ModelInfo,
        inputs: Tensors,
        open_runtime: Callable[[], Runtime],
    ) -> None:
        self._cache_dir, self._key = cache_dir, key
        per_run = ROWS_PER_RUN if model.batchable else 1
        self._per_first, self._per_block = ROWS_PER_RUN // per_run, _ROWS_PER_BLOCK // per_run
        self._feeds = chunks(model, inputs)
        self._open_runtime = open_runtime
        self._runtime: Runtime | None = None
        self._runs = self._bytes = 0
        self._ready: deque[Tensors] = deque()

    def run(self, inputs: Tensors) -> Tensors:
        """The next answer, whatever the inputs."""
        if not self._ready:
            self._ready.extend(self._next_block())
        return self._ready.popleft()

    def close(self) -> None:
        """Frees the model, if it was opened."""
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def _next_block(self) -> list[Tensors]:
        feeds = list(islice(self._feeds, self._per_block if self._runs else self._per_first))
        name = f"{self._key}-{self._runs}-{len(feeds)}"
        self._runs += len(feeds)
        if self._bytes > _STORED_BYTES_MAX:
            return self._compute(feeds)
        with _lock(self._cache_dir / f".lock-{self._key}"):
            entry = load_entry(self._cache_dir, name)
            if entry is not None:
                answers = _read(entry[0] / _FILE)
            else:
                answers = self._compute(feeds)
                with building(self._cache_dir) as folder:
                    (folder / "out").mkdir()
                    _write(folder / "out" / _FILE, answers)
                    publish(self._cache_dir, name, folder / "out", {})
        self._bytes += sum(array.nbytes for answer in answers for array in answer.values())
        return answers

    def _compute(self, feeds: list[dict[str, NDArray[np.generic]]]) -> list[Tensors]:
        if self._runtime is None:
            self._runtime = self._open_runtime()
        runtime = self._runtime
        return [
            {name: np.asarray(value) for name, value in runtime.run(part).items()} for part in feeds
        ]


def _write(path: Path, answers: list[Tensors]) -> None:
    write_tensors(
        path,
        {
            f"{chunk}-{name}": array
            for chunk, answer in enumerate(answers)
            for name, array in answer.items()
        },
    )


def _read(path: Path) -> list[Tensors]:
    answers: dict[str, dict[str, NDArray[np.generic]]] = {}
    for key, array in read_tensors(path).items():
        chunk, _, name = key.partition("-")
        answers.setdefault(chunk, {})[name] = array
    return list(answers.values())


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock; the kernel frees it when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
