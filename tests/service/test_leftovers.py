"""What is left by processes that are killed, cut off, or out of room: nothing that stays."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from analyzer.resources import search_path
from analyzer.service.child import start_child
from analyzer.service.content import ContentStore
from analyzer.service.folder import JobFolder
from analyzer.service.inspect_main import NO_ROOM
from analyzer.service.keeper import Task
from analyzer.service.sandbox import Isolation
from analyzer.service.temporary import remove_abandoned

pytestmark = pytest.mark.sqlite_alone

ROOT = Path(__file__).parents[2]
_HOLDS = """
import time
from analyzer.service.folder import JobFolder
from analyzer.service.sandbox import Isolation
folder = JobFolder(Isolation())
(folder.work / "study.db").write_text("measured")
print("made", flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of jobs lie."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays(
    temporary: Path,
) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-c", _HOLDS],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": search_path("PYTHONPATH", ROOT)},
    )
    assert killed.stdout is not None and killed.stdout.readline() == b"made\n"
    with JobFolder(Isolation()) as living:
        assert len(list(temporary.iterdir())) == 2
        assert remove_abandoned() == 0, "both live"
        killed.kill()
        killed.wait()
        killed.stdout.close()
        assert remove_abandoned() == 1
        assert list(temporary.iterdir()) == [living.work.parent]
    assert list(temporary.iterdir()) == []


@contextmanager
def no_room_beyond(size_bytes: int) -> Iterator[None]:
    """Files of this process may not grow beyond a size, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_found_no_room_is_removed(tmp_path: Path) -> None:
    content = ContentStore(tmp_path)
    # The rest of what was written is still in memory: closing the file fails, too.
    with pytest.raises(OSError), no_room_beyond(100), content.incoming() as incoming:
        incoming.write(b"x" * 1000)
        incoming.finish()
    assert list((tmp_path / "incoming").iterdir()) == []


def test_a_job_without_room_for_its_folder_fails_and_its_worker_goes_on(
    submit: Callable[..., str],
    working: Any,
    wait_for: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with working():
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
        failed = wait_for(submit(), "FAILED", "SUCCEEDED")
        assert (failed["state"], failed["reason"]) == ("FAILED", "prepare")
        assert "Free space" in failed["hint"]
        monkeypatch.undo()
        assert wait_for(submit(), "FAILED", "SUCCEEDED")["state"] == "SUCCEEDED"


def a_task(folder: Path, *, until: float, seconds: float) -> Task:
    return Task(
        command=[sys.executable, "-c", f"import time; time.sleep({seconds})"],
        folder=str(folder), environment={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        output=os.devnull, until=until,
    )  # fmt: skip


@pytest.mark.timing
def test_a_command_ends_with_its_lease_by_the_clock_that_the_lease_was_told_by(
    tmp_path: Path,
) -> None:
    # Told late: what counts is the end of the lease, not when the keeper heard of it.
    started = time.monotonic()
    with start_child(a_task(tmp_path, until=started - 1.0, seconds=60)) as child:
        assert child.wait(20) == 137
    with start_child(a_task(tmp_path, until=started + 3.0, seconds=4)) as child:
        child.live_until(started + 600.0)
        assert child.wait(30) == 0


def test_a_full_disk_is_not_the_uploads_fault(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            "bash", "-c", 'exec "$0" -m analyzer.service.inspect_main model "$1" m > /dev/full',
            sys.executable, str(ROOT / "examples" / "digits.onnx"),
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (NO_ROOM, "")


def test_too_little_memory_is_not_told_as_a_broken_model(tmp_path: Path) -> None:
    upload = tmp_path / "file"
    with upload.open("wb") as file:
        file.write(b"\x08\x08")
        file.truncate(8 << 30)  # its zeros take no room on the disk
    done = subprocess.run(
        [
            "bash", "-c",
            'ulimit -v 4194304; exec "$0" -m analyzer.service.inspect_main model "$1" m',
            sys.executable, str(upload),
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode not in (0, 2) and done.stdout == "", done.stdout
    assert "MemoryError" in done.stderr
