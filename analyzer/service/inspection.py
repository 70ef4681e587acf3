"""Looks at uploaded files in a child that has no rights, no network and little time."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.service.child import start_child
from analyzer.service.folder import JobFolder
from analyzer.service.inspect_main import FITTED_MAX, NO_ROOM
from analyzer.service.keeper import NOT_STARTED
from analyzer.service.limits import INSPECTION_S
from analyzer.service.problems import Problem, invalid
from analyzer.service.sandbox import Isolation

# The libraries' own address space, and what a parser needs per byte of a file.
_BASE_BYTES, _PER_BYTE = 8 << 30, 4
_ANSWER_MAX = 1 << 20
# Each is a process that imports the ONNX libraries: on a machine that measures, few at a time.
_AT_A_TIME = 2
# A third of the weight of the service's threads, and of a measurement: with more, lists wait; with
# less, a large file would not be read in time on a machine that is busy.
_NICE = 5
# What a file is called in messages: never by its name in the store.
_CALLED = {"model": "model.onnx", "calibration": "calibration.npz", "scenario": "trace.csv"}


class Inspector:
    """Inspects uploads, a few at a time.

    Args:
        isolation: What the children are kept from.
    """

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._free = asyncio.Semaphore(_AT_A_TIME)

    async def inspect(self, kind: str, path: Path, size_bytes: int, name: str) -> dict[str, Any]:
        """What the file at ``path`` holds; waits for its turn without holding a thread.

        Args:
            kind: ``model``, ``calibration`` or ``scenario``.
            name: What the upload is called.

        Raises:
            Problem: 422: no job can use it, and why; 503: nobody could look at it.
        """
        own = _CALLED[kind]
        async with self._free:
            answer = await asyncio.to_thread(self._look, [kind, own, name], {own: path}, size_bytes)
        if "refused" in answer:
            raise invalid(answer["refused"], hint=answer["hint"])
        return answer

    async def check_job(
        self, model: Path, shapes: Mapping[str, tuple[int, ...]], data: Path | None
    ) -> None:
        """Looks whether a search can use a model with these shapes of its inputs and real data.

        Args:
            model, data: The uploads' files.

        Raises:
            Problem: 422: it cannot, and which option is wrong; 503: nobody could look.
        """
        files = {_CALLED["model"]: model, **({_CALLED["calibration"]: data} if data else {})}
        first, *others = files
        arguments = ["job", first, json.dumps(shapes), *others]
        size_bytes = sum(path.stat().st_size for path in files.values()) + FITTED_MAX
        async with self._free:
            answer = await asyncio.to_thread(self._look, arguments, files, size_bytes)
        if "refused" in answer:
            option = "calibration_data" if answer["code"] == "data" else "input_shape"
            raise invalid(answer["refused"], pointer=f"/options/{option}", hint=answer["hint"])

    def _look(
        self, arguments: list[str], files: Mapping[str, Path], size_bytes: int
    ) -> dict[str, Any]:
        """What the child says of ``files``, copies of which it finds under their names.

        Raises:
            Problem: It said nothing.
        """
        with JobFolder(self._isolation) as folder:
            for own, path in files.items():
                # Not its name in the store: the child may read its folder alone.
                shutil.copyfile(path, folder.work / own)
            task = folder.task(
                [sys.executable, "-m", "analyzer.service.inspect_main", *arguments],
                output=folder.answer_file,
                until=time.monotonic() + INSPECTION_S,
                limits={
                    "RLIMIT_AS": _BASE_BYTES + _PER_BYTE * size_bytes,
                    "RLIMIT_CPU": int(INSPECTION_S),
                    # No file in an archive is larger than the archive; a model that is written
                    # anew for Triton, with dimensions for its scalars, hardly so.
                    "RLIMIT_FSIZE": _ANSWER_MAX + size_bytes,
                    "RLIMIT_CORE": 0,
                },
                nice=_NICE,
            )
            with start_child(task) as child:
                code = child.wait(INSPECTION_S)
            answer = folder.answer()
        if answer is not None and (code == 0 or "refused" in answer):
            return answer
        if code in (NOT_STARTED, NO_ROOM):
            raise Problem(503, "inspection", "Uploads cannot be inspected on this machine now.")
        raise invalid("It could not be read within the limits of time and memory.")
