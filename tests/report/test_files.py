"""The file that a report is written to, where it is no new one."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from analyzer.errors import UsageError
from analyzer.report.files import format_of, write_report


def test_a_file_is_replaced_whole_and_keeps_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "new" / "told.out"
    write_report(file, "first")
    file.chmod(0o640)
    write_report(file, "second")
    assert file.read_text() == "second" and file.stat().st_mode & 0o777 == 0o640
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "kept" / "told.out", tmp_path / "latest.out"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to(target)
    write_report(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, heard = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    write_report(pipe, "text")
    reader.join(10)
    assert heard == ["text"] and pipe.is_fifo()


def test_a_read_only_file_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "told.out"
    file.write_text("kept")
    file.chmod(0o400)
    with pytest.raises(UsageError, match="read-only"):
        write_report(file, "new")
    assert file.read_text() == "kept"


def test_a_dash_is_no_file() -> None:
    with pytest.raises(UsageError) as caught:
        format_of(Path("-"), "md")
    assert "without -o" in caught.value.hint


def test_a_name_with_bytes_that_are_no_text_is_written_escaped(tmp_path: Path) -> None:
    """A study with such a path of its data was stored, and its report ended with a fault."""
    file = tmp_path / "told.out"
    write_report(file, "rows: " + os.fsdecode(b"caf\xe9.npz"))
    assert file.read_text() == "rows: caf\\udce9.npz"
