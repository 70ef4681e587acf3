"""Streams that the caller has closed, or has stopped reading."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analyzer.cli.main import main
from analyzer.cli.progress import ConsoleProgress


@pytest.mark.parametrize("arguments", [["--help"], ["search", "--help"], ["doctor"]])
def test_whoever_stops_reading_the_answer_ends_the_program_quietly(
    program: Any, tmp_path: Path, arguments: list[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*program.PROGRAM, *arguments],
        cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, timeout=100, check=False,
        env=os.environ | {"TRITUNE_CACHE": str(tmp_path)},
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_connection_that_breaks_is_no_answer_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def breaks(*args: object, **options: object) -> None:
        raise BrokenPipeError("the server hung up")

    monkeypatch.setattr("analyzer.store.results.open_store", breaks)
    with pytest.raises(SystemExit) as left:
        main(["studies"])
    assert left.value.code == 1
    assert "the server hung up" in capfd.readouterr().err


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from analyzer.cli.streams import open_streams, say\n"
        "open_streams()\n"
        "with open(sys.argv[1], 'w') as file:\n"
        "    say('a note')\n"
        "    print('a warning', file=sys.stderr)\n"
        "    print(file.fileno() > 2)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "database")]
    done = subprocess.run(
        ["sh", "-c", '"$@" 2>&-', "sh", *words],
        stdout=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert (tmp_path / "database").read_text() == ""


def test_progress_that_nobody_reads_does_not_end_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    with ConsoleProgress() as progress:
        progress.phase("measuring", 1.0)
        progress.warn("slow")
