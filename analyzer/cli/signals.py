"""SIGTERM and SIGHUP are Ctrl-C: the exit code is 130.

What was measured is stored, and the servers are ended.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

EXIT_INTERRUPTED = 130
"""The exit code of a command that was interrupted."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# An interrupt that a callback has swallowed comes once more after so many seconds, outside of it.
_AGAIN_S = 0.05


def take_signals() -> None:
    """Makes the signals raise KeyboardInterrupt; on the main thread only.

    Under ``nohup`` a closed terminal stays ignored.
    """
    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _raise_interrupt)


def hear_signals() -> None:
    """Sends a signal again that was lost.

    Where Python runs a callback (of a weak reference, at the end of an object) it drops what is
    raised there.
    """
    sys.unraisablehook = _send_again


def end_program(status: int) -> NoReturn:
    """Ends the process with ``status``, whatever still runs in it.

    After an interrupt, Python's own end could turn the status into another (a library's code that
    was interrupted marks it), and Ray's start would be waited for where nobody needs it any more.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where it was closed
        try:
            stream.flush()
        except OSError:
            # A flush at Python's end would fail again, and change the status.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if status == EXIT_INTERRUPTED or _starting():
        os._exit(status)
    # Else Python's end would look at every object of the libraries: half a second, several on a
    # busy machine.
    gc.freeze()
    sys.exit(status)


def _starting() -> bool:
    """Whether Ray is left behind in the middle of its start; its guardian ends what it started."""
    executor = sys.modules.get("analyzer.cluster.ray_executor")
    name = getattr(executor, "SESSION_THREAD", None)
    return any(thread.name == name for thread in threading.enumerate())


def _raise_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _send_again(unraisable: sys.UnraisableHookArgs) -> None:
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    timer = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
