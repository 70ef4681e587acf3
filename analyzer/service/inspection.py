"""Looks at an uploaded file in a child that has no rights, no network and little time."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from analyzer.service.child import start_child
from analyzer.service.folder import JobFolder
from analyzer.service.inspect_main import NO_ROOM
from analyzer.service.keeper import NOT_STARTED
from analyzer.service.problems import Problem, invalid
from analyzer.service.sandbox import Isolation

# Reading the largest model that is allowed takes seconds.
_TIME_S = 60.0
# The libraries' own address space, and what a parser needs per byte of a file.
_BASE_BYTES, _PER_BYTE = 8 << 30, 4
_ANSWER_MAX = 1 << 20
# Each is a process that imports the ONNX libraries: on a machine that measures, few at a time.
_AT_A_TIME = 2
# A third of the weight of the service's threads, and of a measurement: with more, lists wait; with
# less, a large file would not be read in time on a machine that is busy.
_NICE = 5


class Inspector:
    """Inspects uploads, a few at a time.

    Args:
        isolation: What the children are kept from.
    """

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._free = asyncio.Semaphore(_AT_A_TIME)

    async def inspect(self, kind: str, path: Path, size_bytes: int) -> dict[str, Any]:
        """What the file at ``path`` holds; waits for its turn without holding a thread.

        Args:
            kind: ``model``, ``calibration`` or ``scenario``.

        Raises:
            Problem: 422: no job can use it, and why; 503: nobody could look at it.
        """
        async with self._free:
            return await asyncio.to_thread(self._look, kind, path, size_bytes)

    def _look(self, kind: str, path: Path, size_bytes: int) -> dict[str, Any]:
        with JobFolder(self._isolation) as folder:
            own = folder.work / "file"
            # Not its name in the store: the child may read its folder alone.
            shutil.copyfile(path, own)
            task = folder.task(
                [sys.executable, "-m", "analyzer.service.inspect_main", kind, own.name],
                output=folder.answer_file,
                until=time.monotonic() + _TIME_S,
                limits={
                    "RLIMIT_AS": _BASE_BYTES + _PER_BYTE * size_bytes,
                    "RLIMIT_CPU": int(_TIME_S),
                    # No file in an archive is larger than the archive.
                    "RLIMIT_FSIZE": max(_ANSWER_MAX, size_bytes),
                    "RLIMIT_CORE": 0,
                },
                nice=_NICE,
            )
            with start_child(task) as child:
                code = child.wait(_TIME_S)
            answer = folder.answer()
        if code == 0 and answer is not None:
            return answer
        if answer is not None and "refused" in answer:
            raise invalid(str(answer["refused"]), hint=str(answer.get("hint") or ""))
        if code in (NOT_STARTED, NO_ROOM):
            raise Problem(503, "inspection", "Uploads cannot be inspected on this machine now.")
        raise invalid("It could not be read within the limits of time and memory.")
