"""The program as people run it: one call in this process, or the real thing as a subprocess."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from analyzer.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = [sys.executable, "-m", "analyzer.cli.main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one call came to."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        found = json.loads(self.stdout)
        assert isinstance(found, dict)
        return found


Call = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with a cache of its own."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path / "cache"))
    return work


@pytest.fixture
def call(folder: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Runs the command line in this process."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*args: str) -> Answer:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        assert isinstance(left.value.code, int)
        return Answer(code=left.value.code, stdout=out, stderr=err)

    yield run
    signal.signal(signal.SIGTERM, before)


def start(*args: str, cwd: Path, cache: Path) -> subprocess.Popen[str]:
    """The real program, its streams piped, in a process group of its own."""
    root = str(EXAMPLES.parent)
    return subprocess.Popen(
        [*PROGRAM, *args],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env=os.environ | {"TRITUNE_CACHE": str(cache), "PYTHONPATH": root},
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 100.0) -> Answer:
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Answer(code=process.returncode, stdout=out, stderr=err)


def measured(work: Path) -> list[str]:
    """Configurations of the stored trials, in their order."""
    file = work / "results.db"
    if not file.is_file():
        return []
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        rows = connection.execute(
            "SELECT config_id FROM tritune_outcomes WHERE role = 'trial' ORDER BY id"
        ).fetchall()
    except sqlite3.OperationalError:
        return []  # the tables are just being made
    finally:
        connection.close()
    return [row[0] for row in rows]


def wait_for(process: subprocess.Popen[str], reached: Callable[[], object]) -> None:
    """Until a search has reached a point, or has ended."""
    deadline = time.monotonic() + 100.0
    while not reached() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)


@pytest.fixture(scope="session")
def program() -> Any:
    """``start`` and ``finish``, ``measured`` and ``wait_for``."""
    return sys.modules[__name__]


@pytest.fixture
def reader_gone() -> Callable[[], AbstractContextManager[None]]:
    """Makes standard output and error pipes whose reader has left, as of ``2>&1 | head -1``."""

    @contextmanager
    def gone() -> Iterator[None]:
        read, write = os.pipe()
        os.close(read)
        names = {1: "stdout", 2: "stderr"}
        before = {number: (os.dup(number), getattr(sys, name)) for number, name in names.items()}
        for number, name in names.items():
            os.dup2(write, number)
            raw: Any = io.FileIO(number, "w", closefd=False)  # keeps nothing that it cannot write
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
        os.close(write)
        try:
            yield
        finally:
            for number, (kept, stream) in before.items():
                setattr(sys, names[number], stream)
                os.dup2(kept, number)
                os.close(kept)

    return gone


@pytest.fixture
def save_open_model() -> Callable[[Path], None]:
    """Writes tokens [batch, sequence] → their sum: the graph leaves the sequence's length open."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def save(path: Path) -> None:
        graph = helper.make_graph(
            [helper.make_node("ReduceSum", ["tokens", "axes"], ["y"], keepdims=0)],
            "g",
            [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "sequence"])],
            [helper.make_tensor_value_info("y", TensorProto.INT64, ["batch"])],
            [numpy_helper.from_array(np.array([1], np.int64), "axes")],
        )
        imports = [helper.make_opsetid("", 17)]
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), str(path))

    return save
