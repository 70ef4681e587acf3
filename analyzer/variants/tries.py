"""What a try of a model may take: arrays that any machine has room for, and so much time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from analyzer.errors import ModelError

# 16 MiB of floats, which a model answers with as much again.
_ELEMENTS_MAX = 1 << 22
# A run that is stopped ends at its next operator, or is left behind after so many seconds.
_STOPPING_S = 5.0

_Result = TypeVar("_Result")


def rows_max(elements: int) -> int:
    """How many rows of so many elements a try may have: two at least, to show what a batch is."""
    return max(2, _ELEMENTS_MAX // max(1, elements))


def apart(work: Callable[[], _Result], stop: Callable[[], None], seconds_max: float) -> _Result:
    """What ``work`` gives, on a thread: a run of ONNX Runtime would keep signals from this one.

    Args:
        stop: Ends ``work``; called where it has not ended in time, or was interrupted.
        seconds_max: The time of ``work``; infinite for all that it takes.

    Raises:
        ModelError: It did not end in time.
    """
    found: Future[_Result] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # told to whoever waits
            found.set_exception(error)

    threading.Thread(target=run, daemon=True, name="try the model").start()
    try:
        wait([found], timeout=None if math.isinf(seconds_max) else seconds_max)
    finally:
        if late := not found.done():
            stop()
            wait([found], timeout=_STOPPING_S)
    if late:
        raise ModelError(
            f"The model does not come to an end: it was tried for {seconds_max:.0f} s.",
            hint="A loop of its graph may never end with inputs that are made up: give real ones"
            " with --calibration-data. A slow model needs a longer --budget.",
        )
    return found.result()
