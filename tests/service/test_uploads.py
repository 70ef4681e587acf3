"""Uploads: streamed, hashed, inspected in a child that can do no harm."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import socket
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper

from analyzer.service import sandbox
from analyzer.service.child import start_child
from analyzer.service.content import Incoming
from analyzer.service.folder import JobFolder
from analyzer.service.inspection import Inspector
from analyzer.service.keeper import Task
from analyzer.service.limits import ServiceLimits
from analyzer.service.options import check_options
from analyzer.targets import triton_install

pytestmark = pytest.mark.sqlite_alone

EXAMPLES = Path(__file__).parents[2] / "examples"
ISOLATION = sandbox.probe()
TRITON = {"latency_budget": "50ms", "server": "triton"}


@pytest.fixture
def strict(service: Any) -> httpx.Client:
    """A client of a service that inspects what is uploaded."""
    found: httpx.Client = service.client(inspector=Inspector(ISOLATION))
    return found


def test_uploads_leave_the_threads_of_other_requests_alone(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Semaphore(0), threading.Event()
    write = Incoming.write

    def slow_disk(self: Incoming, data: bytes) -> None:
        writing.release()
        assert go_on.wait(30)
        write(self, data)

    monkeypatch.setattr(Incoming, "write", slow_disk)
    with ThreadPoolExecutor(60) as pool:  # more than there are threads for requests
        sent = [
            pool.submit(client.post, "/api/v1/models", params={"name": "m"}, content=b"%d" % number)
            for number in range(60)
        ]
        for _ in range(2):
            assert writing.acquire(timeout=30)
        try:
            assert client.get("/api/v1/jobs", timeout=10).status_code == 200
            assert not writing.acquire(timeout=0.5), "more write at a time"
        finally:
            go_on.set()
        assert [one.result().status_code for one in sent] == [201] * 60


def test_an_inspection_gives_way(tmp_path: Path) -> None:
    with JobFolder(ISOLATION) as folder:
        task = Task(
            command=[
                sys.executable, "-c",
                "import os; print(os.nice(0)); print(open('/proc/self/autogroup').read())",
            ],
            folder=str(folder.work), environment=folder.environment(),
            output=str(folder.answer_file), until=time.monotonic() + 60, nice=5,
        )  # fmt: skip
        with start_child(task) as child:
            assert child.wait(60) == 0
        nice, *session = folder.answer_file.read_text().split()
        low = min(os.nice(0) + 5, 19)
        assert int(nice) == low
        # nice(2) counts within a session alone, where the kernel shares the cores between sessions.
        assert not session or session[1:] == ["nice", str(low)]


def with_weights_in(location: str) -> bytes:
    """A model whose weights lie in another file."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4], np.zeros(4))
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("length", "16")):
        weights.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weights]
    )
    return bytes(helper.make_model(graph).SerializeToString())


def npz(**arrays: np.ndarray[Any, Any]) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def test_a_model_is_known_by_its_content(strict: httpx.Client) -> None:
    body = (EXAMPLES / "digits.onnx").read_bytes()
    done = strict.post("/api/v1/models?name=digits", content=iter([body[:500_000], body[500_000:]]))
    assert done.status_code == 201, done.text
    found = done.json()
    assert found["id"] == hashlib.sha256(body).hexdigest() and found["size_bytes"] == len(body)
    assert [value["name"] for value in found["details"]["inputs"]] == ["image"]
    assert done.headers["location"] == f"/api/v1/models/{found['id']}"
    again = strict.post("/api/v1/models?name=other", content=body)
    assert again.json()["id"] == found["id"] and again.json()["name"] == "other"
    assert len(strict.get("/api/v1/models").json()["items"]) == 1
    data = strict.post("/api/v1/calibration?name=d", content=(EXAMPLES / "digits.npz").read_bytes())
    assert "image" in [array["name"] for array in data.json()["details"]["arrays"]]


def test_weights_that_lie_elsewhere_are_refused(strict: httpx.Client) -> None:
    for location in ("/etc/passwd", "../../../etc/passwd", "w.bin", ""):
        done = strict.post("/api/v1/models?name=m", content=with_weights_in(location))
        assert done.status_code == 422 and "another file" in done.json()["detail"], done.text
        assert strict.get("/api/v1/models").json()["items"] == [], location


def many_times(archive: bytes, count: int) -> bytes:
    """An archive whose directory names its only member so many times."""
    end = archive.rindex(b"PK\x05\x06")
    start = int.from_bytes(archive[end + 16 : end + 20], "little")
    directory = archive[start:end] * count
    return (
        archive[:start] + directory + archive[end : end + 8] + count.to_bytes(2, "little") * 2
        + len(directory).to_bytes(4, "little") + archive[end + 16 :]
    )  # fmt: skip


def hostile_files() -> dict[str, tuple[str, bytes]]:
    """What people would try, by name: the kind of upload, and the file."""
    bomb = io.BytesIO()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 24,)}
    )
    # 64 MiB of zeros in each; together more than the limit, in a few hundred kilobytes.
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x0.npy", header.getvalue() + bytes(4 << 24))
    told = many_times(bomb.getvalue(), 130)
    objects = npz(x=np.array([pickle.loads], dtype=object))
    # A field that says it is two gigabytes long, and groups within groups.
    long_field = b"\x3a" + b"\xff\xff\xff\xff\x07" + b"x" * 100
    nested = b"\x0b" * 1_000_000
    return {
        "text": ("models", b"<html>"),
        "half a model": ("models", (EXAMPLES / "digits.onnx").read_bytes()[:1000]),
        "a field without an end": ("models", long_field),
        "nested groups": ("models", nested),
        "no zip": ("calibration", b"PK\x03\x04"),
        "pickled objects": ("calibration", objects),
        "a zip bomb": ("calibration", told),
        "an empty zip": ("calibration", b"PK\x05\x06" + bytes(18)),
    }


def test_hostile_files_are_refused(strict: httpx.Client) -> None:
    for name, (kind, body) in hostile_files().items():
        done = strict.post(f"/api/v1/{kind}?name=x", content=body)
        assert done.status_code == 422, (name, done.text)
        assert strict.get(f"/api/v1/{kind}").json()["items"] == [], name


def test_an_upload_that_is_cut_off_leaves_nothing(service: Any, client: httpx.Client) -> None:
    url = httpx.URL(str(client.base_url))
    with socket.create_connection((str(url.host), int(url.port or 0))) as gone:
        gone.sendall(
            b"POST /api/v1/models?name=m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n"
            b"\r\n" + b"x" * 2_000_000
        )
    folder = service.context.content._incoming
    ends_at = time.monotonic() + 30
    while list(folder.iterdir()):
        assert time.monotonic() < ends_at
        time.sleep(0.05)
    assert client.get("/api/v1/models").json()["items"] == []


def test_a_file_that_is_there_already_needs_no_room(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = service.client(stored_bytes_max=1500)
    assert tight.post("/api/v1/models?name=a", content=b"a" * 1000).status_code == 201
    for content in (b"a" * 1000, iter([b"a" * 500] * 2)):
        again = tight.post("/api/v1/models?name=again", content=content)
        assert again.status_code == 201 and again.json()["name"] == "again", again.text
    written: list[int] = []
    write = Incoming.write

    def counted(self: Incoming, data: bytes) -> None:
        written.append(len(data))
        write(self, data)

    monkeypatch.setattr(Incoming, "write", counted)
    # Another of that size is known by its hash alone.
    for other in (b"b" * 1000, b"b" * 1001, iter([b"b" * 400] * 3), iter([b"b" * 100_000] * 50)):
        full = tight.post("/api/v1/models?name=b", content=other)
        assert full.status_code == 413 and full.json()["type"].endswith("project_full")
    assert written == [1000], "what cannot be there was stored for a while"
    assert [one["size_bytes"] for one in tight.get("/api/v1/models").json()["items"]] == [1000]
    assert not list(service.context.content._incoming.iterdir())


SPY = """
import json, os, socket, sys
from pathlib import Path
told = {}
def attempt(name, do):
    try:
        told[name] = str(do())
    except OSError as error:
        told[name] = type(error).__name__
attempt("own", lambda: Path("x").write_text("y"))
attempt("read", lambda: Path(sys.argv[1]).read_text())
attempt("write", lambda: Path(sys.argv[1]).write_text("gone"))
attempt("shadow", lambda: Path("/etc/shadow").read_text()[:1])
attempt("signal", lambda: os.kill(int(sys.argv[2]), 0))
attempt("environ", lambda: Path(f"/proc/{sys.argv[2]}/environ").read_bytes()[:1])
attempt("connect", lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])), 2).close())
listener = socket.create_server(("127.0.0.1", 0))
attempt("loopback", lambda: socket.create_connection(listener.getsockname(), 2).close())
told["environment"] = sorted(os.environ)
json.dump(told, sys.stdout)
"""


def test_a_command_is_kept_from_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing := ISOLATION.missing():
        pytest.skip(f"this machine does not keep a command from {missing}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("TRITUNE_SERVICE_STORE", "postgresql://u:secret@h/d")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as outside, JobFolder(ISOLATION) as folder:
        (folder.work / "spy.py").write_text(SPY)
        task = Task(
            command=[
                sys.executable, "spy.py", str(secret), str(os.getpid()),
                str(outside.getsockname()[1]),
            ],
            folder=str(folder.work), environment=folder.environment(),
            output=str(folder.answer_file), until=time.monotonic() + 60, isolation=ISOLATION,
            reading=sandbox.readable(),
        )  # fmt: skip
        with start_child(task) as child:
            code = child.wait(60)
            log = child.read_log()
        told = folder.answer()
    assert code == 0 and told is not None, log
    assert told["own"] == "1" and told["loopback"] == "None"
    assert told["read"] == told["write"] == told["shadow"] == "PermissionError"
    assert told["signal"] == "ProcessLookupError" and told["environ"] == "FileNotFoundError"
    assert told["connect"] == "ConnectionRefusedError", "it reached the network outside"
    assert not {"AWS_SECRET_ACCESS_KEY", "TRITUNE_SERVICE_STORE"} & set(told["environment"])
    assert secret.read_text() == "secret"


MAKER = """
import json, os, sys
from pathlib import Path
told = {}
for where in sys.argv[1:]:
    try:
        Path(where, "made").mkdir()
        Path(where, "made", "file").write_text("")
        told[where] = "written"
    except PermissionError:
        told[where] = "made" if Path(where, "made").exists() else "kept"
json.dump(told, sys.stdout)
"""


def test_a_command_that_starts_a_triton_makes_folders_where_its_backend_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ISOLATION.files:
        pytest.skip("this machine has no Landlock")
    place, other = tmp_path / "tmp", tmp_path / "other"
    place.mkdir(), other.mkdir()
    monkeypatch.setattr(sandbox, "OF_TRITON", str(place))
    with JobFolder(ISOLATION) as folder:
        (folder.work / "maker.py").write_text(MAKER)
        own = str(folder.work / "t")
        task = folder.task(
            [sys.executable, "maker.py", str(place), str(other), own],
            output=folder.answer_file, until=time.monotonic() + 60,
            triton=check_options("search", TRITON, ServiceLimits()).triton,
        )  # fmt: skip
        with start_child(task) as child:
            code = child.wait(60)
            log = child.read_log()
        told = folder.answer()
    assert code == 0 and told == {str(place): "made", str(other): "kept", own: "written"}, log


@pytest.mark.parametrize("where", ["named", "cache"])
def test_a_job_starts_the_triton_that_its_worker_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    home = tmp_path / "tritune" / "triton"
    for name in ("bin/tritonserver", "backends/python/libtriton_python.so"):
        (home / name).parent.mkdir(parents=True)
        (home / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", "/usr/bin")
    if where == "named":
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TRITUNE_TRITON_HOME", "tritune/triton")
    else:
        monkeypatch.delenv("TRITUNE_TRITON_HOME", raising=False)
        cached = ((home, "the user's cache"),)
        monkeypatch.setattr(triton_install, "tool_homes", lambda _: cached)
    with JobFolder(sandbox.Isolation()) as folder:
        plain, other = (
            folder.task([], output=folder.answer_file, until=0.0, triton=triton)
            for triton in (True, False)
        )
    assert plain.environment["TRITUNE_TRITON_HOME"] == str(home) in plain.reading
    assert "TRITUNE_TRITON_HOME" not in other.environment and str(home) not in other.reading
