"""The fp32 model's answers, computed once for all variants that are built side by side."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.base import Runtime, Tensors
from analyzer.variants.cache import building, load_entry, publish

ROWS_PER_RUN = 8
_STORED_BYTES_MAX = 256 << 20
_ROWS_MIN = 32
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


class ReplayRuntime:
    """Gives stored answers, in the order in which :func:`chunks` asks for them."""

    def __init__(self, answers: list[dict[str, NDArray[np.generic]]]) -> None:
        self._answers = iter(answers)
        self.chunks = len(answers)

    def run(self, inputs: Tensors) -> Tensors:
        """The next answer, whatever the inputs."""
        return next(self._answers)

    def close(self) -> None:
        """Nothing to free."""


def reference_runtime(
    cache_dir: Path,
    key: str,
    model: ModelInfo,
    inputs: Tensors,
    open_runtime: Callable[[], Runtime],
    *,
    seconds_max: float = 60.0,
) -> Runtime:
    """The reference for ``inputs``: stored answers, or the model itself if they are too large.

    The first process that asks computes and stores the answers in the cache; others wait for it.
    Answers end after ``seconds_max`` (but not before 32 rows), so that all variants of a slow model
    are scored on the same rows.

    Args:
        key: Of the cache entry; it determines model, rows and device.
        open_runtime: Opens the model.
    """
    with _lock(cache_dir / f".lock-{key}"):
        entry = load_entry(cache_dir, key)
        if entry is not None:
            return ReplayRuntime(_read(entry[0] / _FILE))
        runtime = open_runtime()
        answers: list[dict[str, NDArray[np.generic]]] = []
        size = 0
        started = time.monotonic()
        for feeds in chunks(model, inputs):
            done = len(answers) * (ROWS_PER_RUN if model.batchable else 1)
            if done >= _ROWS_MIN and time.monotonic() - started > seconds_max:
                break
            answers.append({name: np.asarray(value) for name, value in runtime.run(feeds).items()})
            size += sum(array.nbytes for array in answers[-1].values())
            if size > _STORED_BYTES_MAX:
                return runtime
        runtime.close()
        with building(cache_dir) as folder:
            (folder / "out").mkdir()
            _write(folder / "out" / _FILE, answers)
            publish(cache_dir, key, folder / "out", {})
        return ReplayRuntime(answers)


def _write(path: Path, answers: list[dict[str, NDArray[np.generic]]]) -> None:
    # Positions instead of names: an output's name may hold characters that a zip entry cannot.
    names = list(answers[0])
    arrays = {
        f"{chunk}-{index}": answer[name]
        for chunk, answer in enumerate(answers)
        for index, name in enumerate(names)
    }
    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, names=np.array(names), **arrays)


def _read(path: Path) -> list[dict[str, NDArray[np.generic]]]:
    with np.load(path, allow_pickle=False) as archive:
        names = [str(name) for name in archive["names"]]
        count = (len(archive.files) - 1) // len(names)
        return [
            {name: archive[f"{chunk}-{index}"] for index, name in enumerate(names)}
            for chunk in range(count)
        ]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock; the kernel frees it when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
