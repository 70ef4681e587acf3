"""Builds wait for measurements on their GPU and the other way round, across processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from analyzer.hardware import gpu_lock
from analyzer.hardware.gpus import GpuIdentity
from analyzer.resources import child_environment

Lock = Callable[[GpuIdentity], AbstractContextManager[None]]
_HOLD = """
import sys
from pathlib import Path
from analyzer.hardware import gpu_lock
from analyzer.hardware.gpus import GpuIdentity
gpu_lock._FOLDER = Path(sys.argv[1])
with getattr(gpu_lock, sys.argv[2])(GpuIdentity(uuid=sys.argv[3])):
    print("held", flush=True)
    sys.stdin.read()
"""
GPU = GpuIdentity(uuid="GPU-1")


class Other:
    """Another process that takes a lock, and keeps it until it is told to let go."""

    def __init__(self, folder: Path, lock: str, gpu: GpuIdentity = GPU) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(folder), lock, gpu.uuid],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment(),
        )  # fmt: skip

    def wait_until_held(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        self._process.communicate("")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(gpu_lock, "_FOLDER", tmp_path)
    return tmp_path


def _blocked(folder: Path, kind: int) -> bool:
    """Whether a lock of this kind would have to wait."""
    import fcntl

    with (folder / "tritune-gpu-GPU-1.lock").open() as stream:
        try:
            fcntl.flock(stream, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.parametrize(
    ("held", "build_waits", "measurement_waits"),
    [("building_on", True, True), ("measuring_on", True, False)],
)
def test_who_waits_for_whom(
    folder: Path, held: str, build_waits: bool, measurement_waits: bool
) -> None:
    import fcntl

    other = Other(folder, held)
    other.wait_until_held()
    assert _blocked(folder, fcntl.LOCK_EX) == build_waits
    assert _blocked(folder, fcntl.LOCK_SH) == measurement_waits
    with gpu_lock.building_on(GpuIdentity(uuid="GPU-2")):
        pass  # another GPU is free
    other.let_go()
    with gpu_lock.building_on(GPU):
        assert _blocked(folder, fcntl.LOCK_SH)


def test_a_killed_holder_holds_nothing(folder: Path) -> None:
    other = Other(folder, "building_on")
    other.wait_until_held()
    other._process.kill()
    other._process.wait()
    with gpu_lock.measuring_on(GPU):
        pass
    other.let_go()


def test_an_old_name_of_a_mig_instance_and_a_cpu() -> None:
    with gpu_lock.building_on(GpuIdentity(uuid="MIG-GPU-1/1/0")), gpu_lock.measuring_on(None):
        pass


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_another_user_can_lock_the_file(folder: Path, umask: int) -> None:
    """It had the mode that the umask of the first user left, and the second one's command ended."""
    before = os.umask(umask)
    try:
        with gpu_lock.measuring_on(GPU):
            pass
    finally:
        os.umask(before)
    assert (folder / "tritune-gpu-GPU-1.lock").stat().st_mode & 0o777 == 0o666


def test_without_a_file_to_lock_the_work_goes_on_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_lock, "_FOLDER", folder / "absent")
    with gpu_lock.building_on(GPU), gpu_lock.measuring_on(GPU):
        pass
    (said,) = capsys.readouterr().err.splitlines()  # once
    assert said.startswith("What others build or measure on GPU GPU-1 meanwhile is not waited")
    assert said.endswith("cannot be locked (No such file or directory).")
    with pytest.raises(ValueError, match="no kernel") as failed, gpu_lock.building_on(GPU):
        raise ValueError("no kernel")
    assert failed.value.__context__ is None  # the lock is not why
