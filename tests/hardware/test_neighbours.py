"""Two searches on one machine know of each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from analyzer.hardware.neighbours import measuring_here

OTHER = """
import sys
from pathlib import Path
from analyzer.hardware.neighbours import measuring_here
with measuring_here(Path(sys.argv[1])) as accompanied:
    print(accompanied(), flush=True)
    sys.stdin.read()
"""


def test_each_sees_the_other_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with measuring_here(path) as accompanied:
        assert not accompanied()
        command = [sys.executable, "-c", OTHER, str(path)]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "True\n"
            assert accompanied() and accompanied(), "asking twice does not give the lock up"
            other.kill()
            other.wait(10)
        assert not accompanied()


def test_nothing_is_known_where_there_is_no_lock() -> None:
    with measuring_here(Path("/proc/nowhere/lock")) as accompanied:
        assert not accompanied()


def test_another_user_can_lock_the_file(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with measuring_here(tmp_path / "lock"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o666
