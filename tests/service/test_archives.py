"""Model directories and scenarios: uploaded as they are, unpacked in a child, named by jobs."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from analyzer.cli.main import main
from analyzer.errors import ModelError
from analyzer.service import archive
from analyzer.service.archive import is_archive, pack, unpack
from analyzer.service.inspection import Inspector
from analyzer.service.sandbox import Isolation

pytestmark = pytest.mark.sqlite_alone

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = (EXAMPLES / "digits.onnx").read_bytes()
OTHER_INPUT = b"""platform: "onnxruntime_onnx" max_batch_size: 4
input { name: "image" data_type: TYPE_FP32 dims: [1, 8, 8] }"""


def tar(*members: tuple[str, bytes | dict[str, Any]], mode: str = "w") -> bytes:
    """An archive of files (bytes) and of other members (fields of their headers)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as made:
        for name, what in members:
            member = tarfile.TarInfo(name)
            if isinstance(what, bytes):
                member.size = len(what)
                made.addfile(member, io.BytesIO(what))
            else:
                for field, value in what.items():
                    setattr(member, field, value)
                made.addfile(member)
    return packed.getvalue()


def directory(folder: Path, name: str = "digits", *, config: str = "") -> Path:
    """A model directory of the example."""
    own = folder / name
    (own / "1").mkdir(parents=True)
    (own / "1" / "model.onnx").write_bytes((EXAMPLES / "digits.onnx").read_bytes())
    (own / "config.pbtxt").write_text(config or f'name: "{name}"\nbackend: "onnxruntime"\n')
    return own


def packed(folder: Path, **more: Any) -> bytes:
    own = directory(folder, **more)
    pack(own, own.name, folder / "packed.tar")
    return (folder / "packed.tar").read_bytes()


def unpacked(content: bytes, folder: Path) -> Path:
    (folder / "file").write_bytes(content)
    unpack(folder / "file", folder / "out")
    return folder / "out"


def test_what_was_packed_comes_out_the_same(tmp_path: Path) -> None:
    first = packed(tmp_path / "a")
    assert is_archive(first[:512]) and first == packed(tmp_path / "b")
    assert not is_archive((EXAMPLES / "digits.onnx").read_bytes()[:512])
    out = unpacked(first, tmp_path)
    assert {p.relative_to(out).as_posix() for p in out.rglob("*")} == {
        "1", "1/model.onnx", "config.pbtxt"
    }  # fmt: skip
    # As tar itself writes it: with "./" before each name.
    dotted = tar(("./m", {"type": tarfile.DIRTYPE}), ("./m/config.pbtxt", b"x"))
    (tmp_path / "dotted").mkdir()
    assert (unpacked(dotted, tmp_path / "dotted") / "config.pbtxt").read_bytes() == b"x"


def test_what_macos_adds_to_an_archive_is_told_with_how_to_leave_it_out(tmp_path: Path) -> None:
    folder = ("m", {"type": tarfile.DIRTYPE})
    for number, members in enumerate(((("._m", b"x"), folder), (folder, ("./._m", b"x")))):
        (where := tmp_path / str(number)).mkdir()
        with pytest.raises(ModelError, match="that macOS adds") as caught:
            unpacked(tar(*members), where)
        assert "COPYFILE_DISABLE=1 tar" in caught.value.hint


def test_linked_folders_are_packed_where_links_are_followed(tmp_path: Path) -> None:
    own = directory(tmp_path / "own")
    version = tmp_path / "elsewhere"
    (own / "1").rename(version)
    (own / "1").symlink_to(version)
    # Two that lead back, one of them by way of another folder.
    (own / "itself").symlink_to(own)
    (version / "above").symlink_to(own)

    def names(*, follow: bool) -> list[str]:
        pack(own, "m", tmp_path / "packed.tar", follow=follow)
        with tarfile.open(tmp_path / "packed.tar") as made:
            return made.getnames()

    assert names(follow=True) == ["m", "m/1", "m/1/model.onnx", "m/config.pbtxt"]
    assert names(follow=False) == ["m", "m/config.pbtxt"]


def test_packing_says_how_it_goes_within_one_file(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "large").write_bytes(bytes(1 << 20))
    told: list[int] = []
    target = tmp_path / "packed.tar"
    pack(tmp_path / "own", "own", target, between=lambda: told.append(target.stat().st_size))
    assert sum(0 < size < 1 << 20 for size in told) > 10


HOSTILE: dict[str, tuple[bytes, str]] = {
    "traversal": (tar(("m/../../x", b"x")), "name"),
    "absolute": (tar(("/etc/x", b"x")), "name"),
    "backslash": (tar(("m/..\\x", b"x")), "name"),
    "control": (tar(("m/\x1b[2J", b"x")), "name"),
    "empty part": (tar(("m//x", b"x")), "name"),
    "deep": (tar(("m" + "/d" * 20, b"x")), "name"),
    "long": (tar(("m/" + "x" * 300, b"x")), "name"),
    "symlink": (tar(("m/x", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})), "neither"),
    "hard link": (tar(("m/x", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})), "neither"),
    "device": (tar(("m/x", {"type": tarfile.CHRTYPE, "devmajor": 1})), "neither"),
    "pipe": (tar(("m/x", {"type": tarfile.FIFOTYPE})), "neither"),
    "through a link": (
        tar(("m/a", {"type": tarfile.SYMTYPE, "linkname": ".."}), ("m/a/b", b"x")), "neither",
    ),
    "twice": (tar(("m/x", b"a"), ("m/x", b"b")), "twice"),
    "file as folder": (tar(("m/x", b"a"), ("m/x/y", b"b")), "unpacked"),
    "two folders": (tar(("m/x", b"a"), ("n/x", b"b")), "one folder"),
    "no folder": (tar(("model.onnx", b"a")), "one folder"),
    "truncated": (tar(("m/x", b"a" * 5000))[:2000], "truncated|larger"),
    "compressed": (gzip.compress(tar(("m/x", b"a" * 5000))), "plain tar"),
    "nothing": (b"", "plain tar"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing_outside(what: str, tmp_path: Path) -> None:
    content, says = HOSTILE[what]
    own = tmp_path / "own"
    own.mkdir()
    with pytest.raises(ModelError, match=says):
        unpacked(content, own)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    assert not [path for path in own.rglob("*") if path.is_symlink()]


def test_bombs_of_size_and_number_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A sparse member of one terabyte, as GNU tar writes it (PAX 1.0).
    sparse = tarfile.TarInfo("m/x")
    sparse.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "m/x",
        "GNU.sparse.realsize": str(1 << 40),
    }  # fmt: skip
    table = b"1\n1099511627775\n1\n".ljust(512, b"\0") + b"x".ljust(512, b"\0")
    sparse.size = len(table)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as bomb:
        bomb.addfile(sparse, io.BytesIO(table))
    with pytest.raises(ModelError, match=r"neither|larger"):
        unpacked(made.getvalue(), tmp_path)
    # A header that promises more than there is.
    lying = tarfile.TarInfo("m/x")
    lying.size = 1 << 40
    (tmp_path / "b").mkdir()
    with pytest.raises(ModelError, match="larger"):
        unpacked(lying.tobuf() + b"\0" * 1024, tmp_path / "b")
    monkeypatch.setattr(archive, "_MEMBERS_MAX", 10)
    (tmp_path / "c").mkdir()
    with pytest.raises(ModelError, match="more than 10"):
        unpacked(tar(*((f"m/{number}", b"") for number in range(11))), tmp_path / "c")


# --- over the API --------------------------------------------------------------------------------


@pytest.fixture
def strict(service: Any, isolation_here: Isolation) -> httpx.Client:
    """A client of a service that inspects what is uploaded."""
    found: httpx.Client = service.client(inspector=Inspector(isolation_here))
    return found


def external(location: str) -> bytes:
    """A model whose weights lie in another file."""
    weights = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weights]
    )
    return bytes(helper.make_model(graph).SerializeToString())


def test_a_model_directory_is_a_model(strict: httpx.Client, tmp_path: Path) -> None:
    done = strict.post("/api/v1/models?name=digits", content=packed(tmp_path))
    assert done.status_code == 201, done.text
    details = done.json()["details"]
    assert details["format"] == "directory" and details["config"] is True
    assert details["versions"] == ["1"] and details["inputs"][0]["datatype"] == "FLOAT"
    beside = tar(("m/1/model.onnx", external("w.bin")), ("m/1/w.bin", b"\0" * 16))
    assert strict.post("/api/v1/models?name=m", content=beside).status_code == 201


def test_an_unusable_directory_is_refused(strict: httpx.Client) -> None:
    for body, says in (
        (HOSTILE["traversal"][0], "name"),
        (HOSTILE["symlink"][0], "neither"),
        (HOSTILE["compressed"][0], "compressed"),
        (tar(("m/config.pbtxt", b"name: 'm'"), ("m/1/x", b"y")), "no ONNX file"),
        (tar(("m/config.pbtxt", b"{{{"), ("m/1/model.onnx", external("w"))), "config.pbtxt"),
        (tar(("m/1/model.onnx", b"nothing")), "no ONNX file"),
        (tar(("m/1/model.onnx", external("/etc/passwd"))), "not beside"),
        (tar(("m/1/model.onnx", external("../w")), ("m/w", b"\0" * 16)), "not beside"),
        (tar(("n/config.pbtxt", b"name: 'n'"), ("n/1/model.onnx", DIGITS)), "uploaded as 'm'"),
        (tar(("m/config.pbtxt", OTHER_INPUT), ("m/1/model.onnx", DIGITS)), "m/config.pbtxt"),
        (
            tar(
                ("m/config.pbtxt", b"backend: 'python'"),
                ("m/1/model.onnx", DIGITS),
                ("m/1/model.py", b"own"),
            ),
            "code of its own",
        ),
    ):
        refused = strict.post("/api/v1/models?name=m", content=body)
        assert refused.status_code == 422 and says in refused.json()["detail"], refused.text
        assert strict.get("/api/v1/models").json()["items"] == [], says


def test_a_scenario_is_a_trace_of_arrivals(strict: httpx.Client) -> None:
    trace = b"arrival_ms,batch_size\n0,1\n500,8\n1500,1\n"
    done = strict.post("/api/v1/scenarios?name=evening", content=trace)
    assert done.status_code == 201, done.text
    assert done.json()["details"] == {
        "format": "trace", "requests": 3, "duration_s": 1.5, "batch_size_max": 8
    }  # fmt: skip
    for bad in (b"x,y\n1,2\n", b"arrival_ms\n", b"arrival_ms\nnan\n", b"\xff\xfe\x00"):
        refused = strict.post("/api/v1/scenarios?name=bad", content=bad)
        assert refused.status_code == 422, bad


def test_jobs_name_scenarios_by_their_id_alone(client: httpx.Client) -> None:
    model = client.post("/api/v1/models?name=m", content=b"{}").json()["id"]
    trace = client.post("/api/v1/scenarios?name=t", content=b"arrival_ms\n0\n1\n").json()["id"]

    def asked(arrivals: str) -> httpx.Response:
        options = {"latency_budget": "50ms", "arrivals": arrivals}
        body = {"kind": "search", "model": model, "options": options}
        return client.post("/api/v1/jobs", json=body)

    for other in ("trace:/etc/passwd", "trace:trace.csv", f"trace:{trace}/..", "trace:"):
        assert asked(other).status_code == 422, other
    assert asked(f"trace:{model}").status_code == 404, "a model is no scenario"
    assert asked(f"trace:{trace}").status_code == 201
    assert client.delete(f"/api/v1/scenarios/{trace}").status_code == 409, "a job needs it"


def test_the_command_line_sends_a_directory_and_a_trace(
    client: httpx.Client, working: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "resnet"
    (own / "1").mkdir(parents=True)
    (tmp_path / "trace.csv").write_text("arrival_ms\n0\n10\n")
    files = {"model/resnet/config.pbtxt": "name: 'resnet'", "trace.csv": "arrival_ms\n0\n10\n"}
    (tmp_path / "elsewhere").write_text(json.dumps({"files": files}))
    # A link of one's own is followed: a repository often keeps its weights behind one.
    (own / "1" / "model.onnx").symlink_to(tmp_path / "elsewhere")
    (own / "config.pbtxt").write_text("name: 'resnet'")
    with working(), pytest.raises(SystemExit) as end:
        main(
            ["search", str(own), "--latency-budget", "50ms", "--json", "--service",
             str(client.base_url), "--arrivals", f"trace:{tmp_path / 'trace.csv'}",
             "--export", str(tmp_path / "out")]
        )  # fmt: skip
    told = capsys.readouterr()
    assert end.value.code == 0, told.err
    assert "model/resnet/config.pbtxt: True" in told.err and "trace.csv: True" in told.err
    assert (tmp_path / "out" / "resnet" / "config.pbtxt").is_file()
    job = client.get("/api/v1/jobs").json()["items"][0]
    assert job["model_name"] == "resnet"
    page = client.get(f"/jobs/{job['id']}").text
    assert "analyze search resnet --" in page and "--arrivals=trace:trace.csv" in page
