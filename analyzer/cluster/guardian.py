"""Run as a script: waits for its parent to end, then kills the parent's marked processes.

Ray's daemons notice the death of a driver that was killed only after a minute, and some not at all.
The guardian sees it at once, since its standard input then closes. Standard library alone, and no
import of ours: it must start in milliseconds and depend on nothing.

    python guardian.py VARIABLE=VALUE FOLDER

kills every process with that in its environment, every process below one and every process of the
groups whose numbers its input names, then removes the folder. Ray's agents overwrite their
environment with their title, and the daemon that is their parent dies with a driver that is killed,
so that only their group tells of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

# A process that forks while it is killed is found in the next round.
# All rounds take five seconds and more, far beyond what the kernel needs to end a process.
_ATTEMPTS = 250
_POLL_S = 0.02


def find(wanted: bytes, groups: set[int]) -> set[int]:
    """Live processes with ``wanted`` (``VARIABLE=VALUE``) in their environment, and all below.

    Those of the process groups ``groups`` too.
    """
    found: set[int] = set()
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # "PID (NAME) STATE PARENT GROUP ...", where the name may hold anything.
                state, parent, group = file.read().rpartition(b")")[2].split()[:3]
            with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                marked = wanted in file.read().split(b"\0") or int(group) in groups
        except OSError:
            continue
        if state != b"Z":
            parents[int(name)] = int(parent)
            found |= {int(name)} if marked else set()
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return found


def main(mark: str, folder: str) -> None:
    """Waits, kills, cleans."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    groups = {int(word) for word in sys.stdin.buffer.read().split()}
    for _ in range(_ATTEMPTS):
        alive = find(mark.encode(), groups)
        if not alive:
            break
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(_POLL_S)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
