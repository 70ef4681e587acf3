"""The reference's answers are computed once, block by block, as far as they are asked for."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.engine.runtimes.base import Tensors
from analyzer.errors import TargetError, TargetMemoryError
from analyzer.variants import reference as reference_module
from analyzer.variants.reference import StoredReference, chunks, in_parts

INPUTS = {"x": np.arange(200, dtype=np.float32).reshape(100, 2)}


class Doubling:
    """Doubles its input and counts its runs."""

    def __init__(self) -> None:
        self.opened = self.runs = 0
        self._lock = threading.Lock()

    def open(self) -> Doubling:
        self.opened += 1
        return self

    def run(self, inputs: Tensors) -> Tensors:
        with self._lock:
            self.runs += 1
        return {"odd name/0": 2 * inputs["x"]}

    def close(self) -> None: ...


def model(*, batchable: bool = True) -> ModelInfo:
    spec = TensorSpec(name="x", datatype="FP32", shape=(2,))
    return ModelInfo(
        name="m", path="m", sha256="0" * 64, batchable=batchable, inputs=(spec,), outputs=(spec,)
    )


def answers(cache: Path, runtime: Doubling, count: int, info: ModelInfo) -> list[np.ndarray]:
    """The first ``count`` answers."""
    reference = StoredReference(cache, "key", info, INPUTS, runtime.open)
    parts = [feeds for feeds, _ in zip(chunks(info, INPUTS), range(count), strict=False)]
    found = [np.asarray(reference.run(part)["odd name/0"]) for part in parts]
    for part, answer in zip(parts, found, strict=True):
        assert (answer == 2 * part["x"]).all()
    reference.close()
    return found


@pytest.mark.parametrize(
    ("batchable", "chunk_count", "of_first", "per_block"), [(True, 13, 1, 4), (False, 100, 8, 32)]
)
def test_only_what_is_asked_for_is_computed_and_only_once(
    tmp_path: Path, batchable: bool, chunk_count: int, of_first: int, per_block: int
) -> None:
    info, first, second = model(batchable=batchable), Doubling(), Doubling()
    answers(tmp_path, first, of_first, info)
    assert (first.opened, first.runs) == (1, of_first)
    answers(tmp_path, first, of_first + 1, info)
    assert first.runs == of_first + per_block
    answers(tmp_path, second, chunk_count, info)
    assert second.runs == chunk_count - first.runs
    answers(tmp_path, Doubling(), chunk_count, info)


def test_neighbours_share_the_work(tmp_path: Path) -> None:
    runtime = Doubling()
    threads = [
        threading.Thread(target=answers, args=(tmp_path, runtime, 13, model())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runtime.runs == 13


def test_large_answers_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_module, "_STORED_BYTES_MAX", 100)
    first, second = Doubling(), Doubling()
    answers(tmp_path, first, 13, model())
    answers(tmp_path, second, 13, model())
    assert (first.runs, second.runs) == (13, 8)  # the first two blocks were stored


class Bearing(Doubling):
    """Fails on more than ``rows_max`` rows, and notes how many each run has."""

    def __init__(self, rows_max: int, kind: type[TargetError] = TargetError) -> None:
        super().__init__()
        self._rows_max, self._kind = rows_max, kind
        self.sizes: list[int] = []

    def run(self, inputs: Tensors) -> Tensors:
        self.sizes.append(len(inputs["x"]))
        if len(inputs["x"]) > self._rows_max:
            raise self._kind("too many")
        return super().run(inputs)


def test_rows_run_in_parts_where_the_model_bears_no_more_together() -> None:
    """A table of three positions: the search ended, since the model could not be scored."""
    runtime = Bearing(3)
    parted = in_parts(model(), runtime)
    rows = {"x": INPUTS["x"][:8]}
    for sizes in ([8, 4, 2, 2, 2, 2], [2, 2, 2, 2]):
        runtime.sizes.clear()
        np.testing.assert_array_equal(parted.run(rows)["odd name/0"], 2 * rows["x"])
        assert runtime.sizes == sizes
    assert in_parts(model(batchable=False), runtime) is runtime


@pytest.mark.parametrize(("kind", "sizes"), [(TargetError, [8, 4, 2, 1]), (TargetMemoryError, [8])])
def test_what_fails_alone_or_for_want_of_memory_fails(
    kind: type[TargetError], sizes: list[int]
) -> None:
    runtime = Bearing(0, kind)
    with pytest.raises(kind, match="too many"):
        in_parts(model(), runtime).run({"x": INPUTS["x"][:8]})
    assert runtime.sizes == sizes
