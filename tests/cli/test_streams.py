"""Streams that the caller has closed, or has stopped reading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.buckets.location import parse_location
from analyzer.cli.main import main
from analyzer.cli.progress import ConsoleProgress
from analyzer.cli.remote import _deliver
from analyzer.cli.streams import answer


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


def test_the_answer_of_a_service_is_delivered_to_nobody(
    folder: Path, reader_gone: Callable[[], AbstractContextManager[None]]
) -> None:
    client: Any = SimpleNamespace(fetch=lambda *_: False, result=lambda _: {"schema": 1})
    done = {"id": "j", "study": "s", "verdict": "found", "reason": None, "message": "exported"}
    place = parse_location("s3://bucket/models", "--export")
    values = {"report_file": None, "export_dir": place, "quiet": False, "force": False}
    with reader_gone():
        for as_json in (False, True):
            _deliver(client, done, values | {"as_json": as_json}, "analyze")


def test_an_answer_that_breaks_elsewhere_is_not_taken_for_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("click.echo", breaks)
    monkeypatch.setattr("analyzer.cli.streams.reader_left", lambda: False)
    with pytest.raises(BrokenPipeError):
        answer("It is found.")


def printed(code: str, encoding: str) -> str:
    """Standard output of a program that opens its streams first, all of it plain characters."""
    done = subprocess.run(
        [sys.executable, "-c", f"from analyzer.cli.streams import *; open_streams(); {code}"],
        stdout=subprocess.PIPE, timeout=60, check=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )  # fmt: skip
    return done.stdout.decode("ascii")


def test_characters_that_an_output_lacks_are_escaped(program: Any, tmp_path: Path) -> None:
    """A search that had measured for minutes ended with a UnicodeEncodeError, exit code 1."""
    done = subprocess.run(
        [*program.PROGRAM, "doctor"],
        cwd=tmp_path, capture_output=True, timeout=100, check=False,
        env=os.environ | {"TRITUNE_CACHE": str(tmp_path), "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\\u2713" in done.stdout.decode("latin-1")  # ✓
    text = "größe – 😀"
    document = json.dumps(text, ensure_ascii=False)
    assert json.loads(printed(f"answer({document!r})", "koi8-r")) == text
    assert printed(f"answer({text!r})", "koi8-r:replace") == "gr??e ? ?\n", "as it was chosen"


@pytest.mark.parametrize(("columns", "longest"), [(40, 39), (150, 149), (0, 79), (5, 20)], ids=str)
def test_the_progress_line_is_as_long_as_its_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int, longest: int
) -> None:
    """It had 100 characters: each was a line of its own on a terminal of 80."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with ConsoleProgress() as progress:
            progress.phase("measuring", 9.0)
            progress.detail("x" * 300)
            shown = os.read(ours, 10_000)
        monkeypatch.undo()
    os.close(ours)
    (line,) = filter(None, shown.decode().split("\r\x1b[K"))
    assert len(line) == longest
