"""Repositories in a real S3: whole or not there, versions beside each other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from analyzer.buckets.bucket import PART_BYTES, Bucket, Upload
from analyzer.buckets.location import Location
from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo
from analyzer.errors import ModelError, RepositoryError
from analyzer.export.manifest import read_manifest
from analyzer.export.remote import export_remote
from analyzer.export.repository import ExportResult, export_repository
from analyzer.resources import child_environment
from analyzer.targets.triton_install import TritonInstall
from analyzer.targets.triton_server import TritonServer
from analyzer.variants.fetch import fetch_model
from analyzer.variants.inspect import inspect_model

SMALL = Configuration(max_batch_size=4, dynamic_batching=True, instance_count=2, intra_op_threads=1)
OTHER = Configuration(max_batch_size=8, dynamic_batching=True, instance_count=1, intra_op_threads=1)
ANEW = {"study": "digits-2"}


@dataclass(slots=True)
class Writes:
    """Names as they appear in the store; the first that ends with ``failing`` fails instead."""

    names: list[str] = field(default_factory=list)
    failing: str = ""

    def note(self, name: str) -> None:
        if self.failing and name.endswith(self.failing):
            self.failing = ""
            raise RepositoryError("The store went away.", hint="Try again.")
        self.names.append(name)


def write_adder(path: Path, *, weights: int = 0, external: bool = False) -> Path:
    """y = x + 1 over [batch, 4], with so many bytes of weights that nothing needs."""
    ballast = np.random.default_rng(0).integers(0, 256, weights, np.uint8)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 4])],
        [
            numpy_helper.from_array(np.ones(4, np.float32), "one"),
            numpy_helper.from_array(ballast, "ballast"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(
        model,
        str(path),
        save_as_external_data=external,
        location="weights.bin" if external else None,
        size_threshold=0,
    )
    return path


@pytest.fixture
def adder(tmp_path: Path) -> Path:
    return write_adder(tmp_path / "adder.onnx")


@pytest.fixture
def place(bucket: Bucket) -> Location:
    return bucket.location


def export(
    place: Location, file: Path, configuration: Configuration = SMALL, **options: Any
) -> ExportResult:
    model: ModelInfo = inspect_model(file)
    write = partial(export_repository, model, file, configuration, **options)
    return export_remote(place, model.name, write)


def test_an_export_holds_the_bytes_of_a_local_one(
    place: Location, adder: Path, s3_server: Any, tmp_path: Path
) -> None:
    done = export(place, adder)
    assert (done.path, done.model, done.version) == (str(place), "adder", 1)
    s3_server.rclone("copy", f"real:{place.bucket}/repository", str(tmp_path / "copied"))
    export_repository(inspect_model(adder), adder, SMALL, tmp_path / "local")
    for name in ("config.pbtxt", "1/model.onnx"):
        own, other = (tmp_path / where / "adder" / name for where in ("copied", "local"))
        assert own.read_bytes() == other.read_bytes()
    assert read_manifest(tmp_path / "copied", "adder").changed_files() == ()


def test_versions_lie_beside_each_other_and_another_configuration_needs_force(
    place: Location, adder: Path, s3_server: Any
) -> None:
    export(place, adder)
    before = s3_server.files(place.bucket)
    with pytest.raises(RepositoryError, match="another configuration") as caught:
        export(place, adder, OTHER)
    assert str(place) in caught.value.message and "/tmp" not in caught.value.message
    assert s3_server.files(place.bucket) == before
    done = export(place, adder, OTHER, force=True)
    assert done.version == 2 and str(place) in done.notes[0]
    again = export(place, adder, OTHER)
    assert again.version == 2 and f"{place}/adder/2 is already there" in again.notes[0]
    assert export(place, adder, OTHER, evidence=ANEW).version == 3
    names = ["1/model.onnx", "2/model.onnx", "3/model.onnx", "config.pbtxt", "tritune.json"]
    assert s3_server.files(place.bucket) == [f"repository/adder/{name}" for name in names]
    manifest = json.loads(Bucket(place).read("adder/tritune.json")[0])
    assert sorted(manifest["versions"]) == ["1", "2", "3"]
    config = Bucket(place).read("adder/config.pbtxt")[0].decode()
    assert config == manifest["versions"]["3"]["config_pbtxt"]


ENSEMBLE = """
platform: "ensemble" max_batch_size: %d
ensemble_scheduling { step { model_name: "adder" model_version: %d } }
"""


def test_ensembles_in_the_store_that_an_export_leaves_behind_are_named(
    place: Location, adder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(place)
    for name, text in (
        ("both", ENSEMBLE % (8, -1)), ("fits", ENSEMBLE % (4, -1)),
        ("pinned", ENSEMBLE % (1, 1)), ("broken", "what"),
    ):  # fmt: skip
        bucket.put(f"{name}/config.pbtxt", text.encode())
    bucket.put("weights only/1/model.onnx", b"x")
    assert export(place, adder, OTHER).notes == ()
    before = set(contents(place))
    replaced, clients, both, pinned = export(place, adder, SMALL, force=True).notes
    assert f"{place}/adder/config.pbtxt was replaced" in replaced
    assert clients.startswith("adder takes requests of at most 4 inferences now, where it took 8")
    assert both.startswith("The ensemble both has adder in it and max_batch_size 8")
    assert pinned.startswith("The ensemble pinned has adder in it, version 1, which is not served")
    assert set(contents(place)) - before == {"adder/2/model.onnx"}  # of the others nothing is sent

    def refused(self: Bucket) -> list[str]:
        raise RepositoryError("It cannot be listed.")

    monkeypatch.setattr(Bucket, "folders", refused)
    done = export(place, adder, SMALL, evidence=ANEW)
    assert done.version == 3
    (note,) = done.notes
    assert note == f"Ensembles of adder in {place} were not looked for: It cannot be listed."


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    """The names that appear in the store, in their order; one of them may be made to fail."""
    told = Writes()

    def watch(kind: type, method: str, name_of: Callable[..., str]) -> None:
        original = getattr(kind, method)

        def watched(*args: Any) -> Any:
            told.note(name_of(*args))
            return original(*args)

        monkeypatch.setattr(kind, method, watched)

    watch(Bucket, "put", lambda bucket, name, *rest: name)
    watch(Bucket, "put_if", lambda bucket, name, *rest: name)
    watch(Upload, "finish", lambda upload: upload._name)
    return told


def contents(place: Location) -> dict[str, bytes]:
    bucket = Bucket(place)
    return {name: bucket.read(name)[0] for name in bucket.list()}


def test_the_configuration_appears_last_and_what_a_backend_opens_just_before(
    place: Location, tmp_path: Path, writes: Writes
) -> None:
    file = write_adder(tmp_path / "adder.onnx", weights=PART_BYTES + 1, external=True)
    export(place, file, backend="python")
    files = ("tritune.json", "1/weights.bin", "1/model.onnx", "1/model.py", "config.pbtxt")
    assert writes.names == [f"adder/{name}" for name in files]


def test_of_an_unchanged_export_nothing_is_sent(
    place: Location, tmp_path: Path, writes: Writes
) -> None:
    """Each one was sent anew, since its files are not on this machine."""
    file = write_adder(tmp_path / "adder.onnx", weights=100, external=True)
    for served in ("onnxruntime", "python"):
        done = export(place, file, backend=served, evidence=ANEW, force=True)
        before = contents(place)
        writes.names.clear()
        again = export(place, file, backend=served, evidence=ANEW)
        assert (again.version, again.config_id) == (done.version, done.config_id)
        assert "is already there, the same" in again.notes[0] and str(place) in again.notes[0]
        assert writes.names == [] and contents(place) == before
    # Other weights in a file of the same name are something else.
    changed = bytearray((tmp_path / "weights.bin").read_bytes())
    changed[-1] ^= 1
    (tmp_path / "weights.bin").write_bytes(changed)
    assert export(place, file, backend="python", evidence=ANEW).version == 3


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("failing", ["weights.bin", "model.onnx", "config.pbtxt"])
def test_what_fails_on_the_way_is_taken_back(
    place: Location, s3_server: Any, tmp_path: Path, writes: Writes, failing: str, first: bool
) -> None:
    file = write_adder(tmp_path / "adder.onnx", weights=PART_BYTES + 1, external=True)
    if not first:
        export(place, file)
    before = contents(place)
    writes.failing = failing
    with pytest.raises(RepositoryError, match="went away"):
        export(place, file, OTHER, force=True)
    assert writes.failing == ""
    assert contents(place) == before
    assert s3_server.uploads(place.bucket) == []


def test_of_two_exports_at_once_one_is_refused_and_changes_nothing(
    place: Location, adder: Path
) -> None:
    model = inspect_model(adder)

    def slow(repository: Path) -> ExportResult:
        export(place, adder)  # another one, from beginning to end, meanwhile
        return export_repository(model, adder, OTHER, repository, force=True)

    with pytest.raises(RepositoryError, match="changed by somebody else"):
        export_remote(place, "adder", slow)
    assert set(contents(place)) == {
        f"adder/{name}" for name in ("tritune.json", "1/model.onnx", "config.pbtxt")
    }
    assert b"max_batch_size: 4" in contents(place)["adder/config.pbtxt"]


_KILLED = """
import os, signal, sys
from functools import partial
from pathlib import Path
from analyzer.buckets import bucket
from analyzer.buckets.location import parse_location
from analyzer.domain.configuration import Configuration
from analyzer.export.remote import export_remote
from analyzer.export.repository import export_repository
from analyzer.variants.inspect import inspect_model

class Killed(bucket.Bucket):
    def _writer(self, name, size):
        writer = super()._writer(name, size)
        class Dying:
            parts = 0
            def write(self, part):
                Dying.parts += 1
                if Dying.parts == 3:
                    writer.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
                writer.write(part)
        return Dying()

import analyzer.export.remote
analyzer.export.remote.Bucket = Killed
file = Path(sys.argv[2])
model = inspect_model(file)
write = partial(export_repository, model, file, Configuration(max_batch_size=2), force=True)
export_remote(parse_location(sys.argv[1], "--export"), model.name, write)
"""


@pytest.mark.parametrize("first", [True, False])
def test_an_upload_that_is_killed_in_the_middle_is_never_seen(
    place: Location, s3_server: Any, tmp_path: Path, adder: Path, first: bool
) -> None:
    if not first:
        export(place, adder)
    before = contents(place)
    adder.unlink()
    file = write_adder(adder, weights=4 * PART_BYTES)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(place), str(file)],
        env=child_environment() | {"TMPDIR": str(tmp_path)},  # it leaves what it was killed in
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert contents(place) == before
    assert s3_server.files(place.bucket) == sorted(f"repository/{name}" for name in before)
    # The next export is not hindered by the parts that lie there unseen.
    assert export(place, file).version == (1 if first else 2)


def test_a_version_that_is_not_whole_is_told_by_the_next_export(
    place: Location, tmp_path: Path
) -> None:
    file = write_adder(tmp_path / "adder.onnx", weights=100, external=True)
    export(place, file)
    Bucket(place).delete(["adder/1/model.onnx"])
    done = export(place, file)
    assert done.version == 2
    assert f"{place}/adder/1 is not whole" in done.notes[0] and "1/model.onnx" in done.notes[0]


def test_a_model_is_fetched_with_its_weights_and_kept_by_its_content(
    place: Location, s3_server: Any, tmp_path: Path
) -> None:
    file = write_adder(tmp_path / "adder.onnx", weights=PART_BYTES + 1, external=True)
    for name in ("adder.onnx", "weights.bin"):
        s3_server.rclone("copy", str(tmp_path / name), f"real:{place.bucket}/repository/in")
    model = replace(place, path="repository/in/adder.onnx")
    fetched = fetch_model(model, tmp_path / "cache")
    assert fetched.name == "adder.onnx"
    assert fetched.read_bytes() == file.read_bytes()
    assert (fetched.parent / "weights.bin").read_bytes() == (tmp_path / "weights.bin").read_bytes()
    assert fetch_model(model, tmp_path / "cache") == fetched
    changed = str(write_adder(tmp_path / "changed"))
    s3_server.rclone("copyto", changed, f"real:{place.bucket}/{model.path}")
    assert fetch_model(model, tmp_path / "cache") != fetched
    assert fetched.read_bytes() == file.read_bytes()
    assert sorted(path.name for path in (tmp_path / "cache" / "fetched").iterdir()) == sorted(
        {fetched.parent.name, fetch_model(model, tmp_path / "cache").parent.name}
    )


def test_the_newest_version_of_a_model_directory_is_fetched(
    place: Location, adder: Path, tmp_path: Path
) -> None:
    export(place, adder)
    export(place, adder, OTHER, force=True)
    fetched = fetch_model(replace(place, path="repository/adder"), tmp_path / "cache")
    files = {file.relative_to(fetched).as_posix() for file in fetched.rglob("*") if file.is_file()}
    assert (fetched.name, files) == ("adder", {"config.pbtxt", "2/model.onnx"})
    config = Bucket(replace(place, path="repository/adder"))
    config.put("config.pbtxt", b"version_policy { specific { versions: [ 1 ] } }")
    fetched = fetch_model(replace(place, path="repository/adder"), tmp_path / "cache")
    assert [entry.name for entry in fetched.iterdir() if entry.is_dir()] == ["1"]


@pytest.mark.parametrize("path", ["repository/gone.onnx", "repository/gone"])
def test_a_model_that_is_not_there_is_told(place: Location, tmp_path: Path, path: str) -> None:
    with pytest.raises(ModelError, match=r"not there|There is no model") as caught:
        fetch_model(replace(place, path=path), tmp_path / "cache")
    assert caught.value.exit_code == 2 and path in caught.value.message


@pytest.mark.triton
def test_a_real_triton_serves_the_repository_from_the_store(
    triton_install: TritonInstall, place: Location, adder: Path
) -> None:
    from tritonclient import http as client

    export(place, adder, backend="python")
    export(place, adder, OTHER, backend="python", force=True)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    tensor = client.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    # A second repository: the server was started on its own, empty one.
    arguments = ("--model-repository", str(place), "--load-model", "adder")
    with (
        TritonServer(triton_install, arguments=arguments) as server,
        client.InferenceServerClient(server.http_address) as triton,
    ):
        served = triton.get_model_metadata("adder")
        assert served["versions"] == ["2"]
        np.testing.assert_array_equal(triton.infer("adder", [tensor]).as_numpy("y"), x + 1)
        assert triton.get_model_config("adder")["max_batch_size"] == OTHER.max_batch_size
