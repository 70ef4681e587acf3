"""What libraries say when memory runs out, whichever they are."""

from __future__ import annotations

import pytest

from analyzer.errors import is_out_of_memory


@pytest.mark.parametrize(
    "said",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        "Failed to allocate memory for requested buffer of size 9",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB",
        "OSError: [Errno 12] Cannot allocate memory",
        "CUDA failure 2: out of memory",
    ],
)
def test_out_of_memory_is_told_by_its_signs(said: BaseException | str) -> None:
    assert is_out_of_memory(said)


def test_other_failures_are_not_out_of_memory() -> None:
    assert not is_out_of_memory(RuntimeError("invalid shape"))
    assert not is_out_of_memory("Segmentation fault")
