"""The image's health check: whether ``analyze serve`` is ready; any other command is healthy.

The container's first process tells which command runs. Standard library only.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

_PROGRAMS = ("analyze", "analyzer")
_ANSWER_S = 3.0  # below the health check's own limit


def address(words: Sequence[str]) -> str | None:
    """Where the server of a command line listens for HTTP.

    Returns:
        None where it is no server, or one on a free port, which the command line does not tell.
    """
    # The interpreter and the program come before the command.
    program = [number for number, word in enumerate(words) if Path(word).name in _PROGRAMS]
    command = words[program[0] + 1 :] if program else words
    if not command or command[0] != "serve":
        return None
    port = "8000"
    for word, following in pairwise([*command, ""]):
        name, given, value = word.partition("=")
        if name == "--http-port":
            port = value if given else following
    return f"http://127.0.0.1:{port}/v2/health/ready" if port.strip("0") else None


def healthy(words: Sequence[str]) -> bool:
    """Whether the command does what it should, as far as can be seen from outside."""
    url = address(words)
    if url is None:
        return True
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(not healthy(Path("/proc/1/cmdline").read_text(encoding="utf-8").split("\0")))
