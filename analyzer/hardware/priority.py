"""Work that gives way to other work on the same cores, where nice(2) does not suffice."""

from __future__ import annotations

import errno
import time
from pathlib import Path

# Linux lets an ordinary process change a session's priority ten times a second, all together.
_TURN_S, _TURNS = 0.05, 40
_AUTOGROUP = Path("/proc/self/autogroup")
_LOWEST = 19


def lower_session(nice: int) -> None:
    """Lowers the caller's session to ``nice``, where Linux shares cores between sessions.

    With ``CONFIG_SCHED_AUTOGROUP``, which most distributions have on, each session gets the same
    share of a core and nice(2) counts within it alone (sched(7)). Nothing happens where the kernel
    does not do that.
    """
    for _ in range(_TURNS if nice > 0 else 0):
        try:
            _AUTOGROUP.write_text(str(min(nice, _LOWEST)))
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return
        time.sleep(_TURN_S)
