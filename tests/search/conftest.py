"""Whole searches in virtual time, which simulate thousands of seconds under load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from analyzer.twin import simulator


@pytest.fixture(scope="session", autouse=True)
def compiled_simulator() -> Iterator[None]:
    """Short runs too take the compiled kernel, which does the same in a fraction of the time.

    That it does is shown in ``tests/twin/test_kernel.py``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "_KERNEL_REQUESTS_MIN", 0)
        yield
