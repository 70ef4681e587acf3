"""Model repositories: versions, control modes, overrides, failures, ensembles, cache, warm-up."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from analyzer.cli.preflight import check_endpoint
from analyzer.engine.fault import Fault
from analyzer.engine.loader import LoadSettings, load_versions
from analyzer.engine.requests import InferCall, InputTensor
from analyzer.engine.response_cache import ResponseCache
from analyzer.engine.served_model import ServedModel
from analyzer.errors import AnalyzerError, MissingPartError, RepositoryError, UsageError
from analyzer.modelconfig.text import config_to_json
from analyzer.server.repository import Repository

EXAMPLES = Path(__file__).parents[2] / "examples"

IDENTITY = """
backend: "identity"
max_batch_size: 8
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
instance_group [{ count: 1 kind: KIND_CPU }]
"""


def put(root: Path, name: str, config: str, versions: tuple[str, ...] = ("1",)) -> None:
    for version in versions:
        (root / name / version).mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(config)


def ask(repository: Repository, name: str, values: Any, version: str = "", **call: Any) -> Any:
    """The result of one request, waited for."""
    done = threading.Event()
    found: list[Any] = []

    def on_done(result: Any) -> None:
        found.append(result)
        done.set()

    array = np.asarray(values, np.float32)
    request = InferCall([InputTensor("X", "FP32", array.shape, array)], **call)
    repository.get(name, version).infer(request, on_done)
    assert done.wait(60)
    if found[0].fault is not None:
        raise found[0].fault
    return found[0].outputs


@pytest.fixture
def opened(repository: Path) -> Any:
    made: list[Repository] = []

    def make(load: tuple[str, ...] = (), **options: Any) -> Repository:
        made.append(Repository(repository, log=lambda line: None, **options))
        failures = made[-1].start(load)
        made[-1].failures = failures  # type: ignore[attr-defined]
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_python_backend_is_refused_whatever_the_platform(repository: Path, opened: Any) -> None:
    config = IDENTITY.replace("identity", "python")
    put(repository, "plain", config)
    put(repository, "plan", 'platform: "tensorrt_plan"' + config)
    failures = sorted(opened().failures)
    assert len(failures) == 2
    for name, failure in zip(("plain", "plan"), failures, strict=True):
        assert failure.startswith(f"{name}: model '{name}' is for Triton's Python backend")


def test_requests_with_other_optional_inputs_are_not_joined(repository: Path, opened: Any) -> None:
    put(
        repository,
        "m",
        """
        backend: "scripted"
        max_batch_size: 8
        input [{ name: "X" data_type: TYPE_FP32 dims: [2] },
               { name: "B" data_type: TYPE_FP32 dims: [2] optional: true }]
        output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
        instance_group [{ count: 1 kind: KIND_CPU }]
        parameters { key: "service_time_ms" value { string_value: "1=100" } }
        dynamic_batching { max_queue_delay_microseconds: 50000 preferred_batch_size: [4] }
        """,
    )
    model = opened().get("m", "")
    results: list[Any] = []
    done = threading.Event()

    def on_done(result: Any) -> None:
        results.append(result)
        if len(results) == 4:
            done.set()

    for value, names in enumerate((("X",), ("X",), ("X", "B"), ("X", "B"))):
        array = np.full((1, 2), value, np.float32)
        model.infer(
            InferCall([InputTensor(name, "FP32", (1, 2), array) for name in names]), on_done
        )
    assert done.wait(60)
    assert [result.fault for result in results] == [None] * 4
    answers = sorted(float(result.outputs["Y"][0, 0]) for result in results)
    assert answers == [0.0, 1.0, 2.0, 3.0]
    assert max(batch.batch_size for batch in model.details().batches) <= 2


@pytest.mark.parametrize(
    ("policy", "ready"),
    [
        ("", ["3"]),
        ("version_policy { latest { num_versions: 2 } }", ["2", "3"]),
        ("version_policy { all {} }", ["1", "2", "3"]),
        ("version_policy { }", ["1", "2", "3"]),
        ("version_policy { specific { versions: [1, 3] } }", ["1", "3"]),
    ],
)
def test_version_policy(repository: Path, opened: Any, policy: str, ready: list[str]) -> None:
    put(repository, "m", IDENTITY + policy, ("1", "2", "3", "04", "x"))
    models = opened()
    assert models.versions("m") == ready
    assert models.get("m").version_text == ready[-1]
    with pytest.raises(Fault, match="version 4 is not found"):
        models.get("m", "4")


def test_broken_models_are_listed_with_their_reason(repository: Path, opened: Any) -> None:
    put(repository, "good", IDENTITY)
    put(repository, "typo", IDENTITY + "max_batch: 3")
    put(repository, "python", IDENTITY.replace("identity", "python"))
    put(repository, "name", IDENTITY + 'name: "other"')
    put(repository, "novers", IDENTITY)
    (repository / "novers" / "1").rmdir()
    put(repository, "corrupt", "")
    (repository / "corrupt" / "1" / "model.onnx").write_bytes(b"junk")
    models = opened()
    states = {entry.name: entry for entry in models.index()}
    assert states.pop("good").state == "READY"
    assert {entry.state for entry in states.values()} == {"UNAVAILABLE"}
    assert "max_batch" in states["typo"].reason
    assert "does not run code" in states["python"].reason
    assert "directory name must equal model name" in states["name"].reason
    assert len(models.failures) == 5
    assert not models.server_ready()
    with pytest.raises(Fault):
        models.get("typo")


def test_explicit_mode(repository: Path, opened: Any) -> None:
    put(repository, "a", IDENTITY)
    put(repository, "b", IDENTITY)
    models = opened(mode="explicit", load=("a",))
    assert [(e.name, e.state) for e in models.index()] == [("a", "READY"), ("b", "")]
    models.load("b")
    assert models.ready("b")
    models.unload("a")
    assert not models.ready("a")
    _wait(models.server_ready)  # a model that was unloaded does not count
    index = {entry.name: entry for entry in models.index()}
    assert (index["a"].state, index["a"].reason) == ("UNAVAILABLE", "unloaded")
    models.unload("never-heard-of")
    with pytest.raises(Fault, match="failed to poll from model repository") as caught:
        models.load("absent")
    assert caught.value.kind == "internal"
    for name in ("../a", "..", "a/b", "", "/etc"):
        with pytest.raises(Fault) as caught:
            models.load(name)
        assert caught.value.kind == "invalid"


def test_options_that_contradict(repository: Path, opened: Any) -> None:
    put(repository, "a", IDENTITY)
    with pytest.raises(UsageError, match="explicit"):
        opened(load=("a",))
    with pytest.raises(UsageError, match="alone"):
        opened(mode="explicit", load=("*", "a"))
    with pytest.raises(RepositoryError):
        Repository(repository / "nowhere").start()


def test_a_failed_load_leaves_the_old_copy_serving(repository: Path, opened: Any) -> None:
    put(repository, "m", IDENTITY)
    models = opened(mode="explicit", load=("m",))
    before = models.get("m")
    with pytest.raises(Fault):
        models.load("m", config_json='{"max_batch_size": -1}')
    with pytest.raises(Fault):
        models.load("m", config_json="not json")
    with pytest.raises(Fault, match="not a place"):
        models.load("m", config_json="{}", files={"../../x": b""})
    assert models.get("m") is before
    assert ask(models, "m", [[1, 2]])["Y"].tolist() == [[1, 2]]


def test_config_override_and_the_same_load_twice(repository: Path, opened: Any) -> None:
    put(repository, "m", IDENTITY)
    models = opened(mode="explicit", load=("m",))
    first = models.get("m")
    models.load("m")
    assert models.get("m") is first  # nothing changed
    override = {
        "backend": "identity",
        "max_batch_size": 4,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
    }
    models.load("m", config_json=json.dumps(override))
    assert models.get("m").config.max_batch_size == 4
    models.load("m")
    assert models.get("m").config.max_batch_size == 4  # as in Triton: the folder did not change
    config = repository / "m" / "config.pbtxt"
    config.write_text(IDENTITY.replace("8", "16", 1))
    models.load("m")
    assert models.get("m").config.max_batch_size == 16
    models.load("m", config_json=json.dumps(override))
    models.unload("m")
    models.load("m")
    assert models.get("m").config.max_batch_size == 16


def test_a_model_that_was_sent_and_cannot_be_loaded_leaves_nothing(
    repository: Path, opened: Any
) -> None:
    """It was loading for ever, and the server unready with it."""
    put(repository, "m", IDENTITY)
    models = opened(mode="explicit", load=("m",))
    config = '{"backend": "onnxruntime", "max_batch_size": 4}'
    with pytest.raises(AnalyzerError):
        models.load("sent", config_json=config, files={"1/model.onnx": b"junk"})
    assert models.server_ready()
    assert [entry.name for entry in models.index()] == ["m"]


def test_file_override_over_grpc_and_http(repository: Path, start: Any) -> None:
    addresses, _ = start(mode="explicit")
    graph = (EXAMPLES / "digits.onnx").read_bytes()
    image = np.zeros((1, 1, 64, 64), np.float32)
    with triton.InferenceServerClient(addresses.grpc) as client:
        client.load_model(
            "fresh", config='{"backend": "onnxruntime"}', files={"file:7/model.onnx": graph}
        )
        given = triton.InferInput("image", [1, 1, 64, 64], "FP32")
        given.set_data_from_numpy(image)
        result = client.infer("fresh", [given])
        assert result.get_response().model_version == "7"
        client.unload_model("fresh")
        with pytest.raises(InferenceServerException, match="has no available versions"):
            client.infer("fresh", [given])
        with pytest.raises(InferenceServerException, match="'config' parameter"):
            client.load_model("fresh", files={"file:7/model.onnx": graph})
    with triton_http.InferenceServerClient(addresses.http) as http:
        http.load_model(
            "fresh", config='{"backend": "onnxruntime"}', files={"file:1/model.onnx": graph}
        )
        assert http.is_model_ready("fresh", "1")


def test_unload_answers_what_was_taken(repository: Path, opened: Any) -> None:
    slow = IDENTITY.replace("identity", "scripted") + (
        'parameters { key: "service_time_ms" value { string_value: "1=200" } }'
    )
    put(repository, "m", slow)
    models = opened(mode="explicit", load=("m",))
    answers: list[Any] = []
    array = np.zeros((1, 2), np.float32)
    for _ in range(3):
        models.get("m").infer(InferCall([InputTensor("X", "FP32", (1, 2), array)]), answers.append)
    models.unload("m")
    with pytest.raises(Fault, match="no available versions"):
        models.get("m")
    models.close()
    assert [answer.fault for answer in answers] == [None, None, None]


def test_an_unload_has_no_deadline(
    repository: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What still waited after ten seconds was answered as unavailable."""
    put(repository, "m", IDENTITY.replace('backend: "identity"', SLOW))
    models = opened(mode="explicit", load=("m",))
    replies = [send(models.get("m"), X=number) for number in range(3)]
    close = ServedModel.close

    def hurried(model: ServedModel, *, timeout_s: float | None = 10.0) -> None:
        close(model, timeout_s=timeout_s and timeout_s / 100)  # ten seconds: half an execution

    monkeypatch.setattr(ServedModel, "close", hurried)
    models.unload("m")
    assert [values_of(reply) for reply in replies] == [{"Y": number} for number in range(3)]


@pytest.mark.timing
def test_the_end_of_the_server_has_a_deadline(repository: Path, opened: Any) -> None:
    slow = SLOW.replace("1=200", "1=1000")
    put(repository, "m", IDENTITY.replace('backend: "identity"', slow))
    models = opened(mode="explicit", load=("m",))
    runs, waits = (send(models.get("m"), X=1) for _ in range(2))
    models.unload("m")
    models.close(timeout_s=0.05)
    with pytest.raises(Fault, match="the server is stopping") as refused:
        values_of(waits)
    assert refused.value.kind == "unavailable"
    assert not runs
    assert values_of(runs) == {"Y": 1}
    _wait(lambda: not models._closers)


def states_of(models: Repository, name: str) -> list[tuple[str, str, str]]:
    """A model's lines of the index."""
    return [(e.version, e.state, e.reason) for e in models.index() if e.name == name]


def test_an_unload_that_waits_is_told(repository: Path, opened: Any) -> None:
    """It was UNAVAILABLE at once, though its requests were still under way."""
    slow = IDENTITY.replace("identity", "scripted") + (
        'parameters { key: "service_time_ms" value { string_value: "1=300" } }'
    )
    put(repository, "m", slow)
    models = opened(mode="explicit", load=("m",))
    array = np.zeros((1, 2), np.float32)
    call = InferCall([InputTensor("X", "FP32", (1, 2), array)])
    models.get("m").infer(call, lambda reply: None)
    models.unload("m")
    assert states_of(models, "m") == [("1", "UNLOADING", "")]
    assert not models.ready("m") and not models.server_ready()
    _wait(lambda: states_of(models, "m") == [("1", "UNAVAILABLE", "unloaded")])
    assert models.server_ready()
    models.load("m")
    models.unload("m")
    models.load("m")  # while the old copy ends
    _wait(lambda: not models._closers)
    assert states_of(models, "m") == [("1", "READY", "")]


def test_versions_that_a_reload_drops_stay_listed(repository: Path, opened: Any) -> None:
    put(repository, "m", IDENTITY, ("1", "2"))
    models = opened(mode="explicit", load=("m",))
    assert states_of(models, "m") == [("2", "READY", "")]
    put(repository, "m", IDENTITY, ("3",))
    models.load("m")
    dropped = ("2", "UNAVAILABLE", "unloaded")
    _wait(lambda: states_of(models, "m") == [dropped, ("3", "READY", "")])
    with pytest.raises(Fault, match="version 2 is not at ready state"):
        models.get("m", "2")
    (repository / "m" / "3").rmdir()
    models.load("m")
    _wait(lambda: states_of(models, "m") == [("2", "READY", ""), ("3", "UNAVAILABLE", "unloaded")])
    assert models.server_ready()


def test_what_the_index_leaves_out(repository: Path, opened: Any) -> None:
    """Models without a folder, and all but the name of those that could not be polled."""
    put(repository, "m", IDENTITY)
    models = opened(mode="explicit", load=("m",))
    port = {"data_type": "TYPE_FP32", "dims": [1]}
    config = {
        "backend": "identity",
        "input": [port | {"name": "X"}],
        "output": [port | {"name": "Y"}],
    }
    models.load("guest", config_json=json.dumps(config), files={"1/x": b""})
    assert models.ready("guest")
    put(repository, "typo", IDENTITY + "max_batch: 3")
    with pytest.raises(Fault, match="max_batch"):
        models.load("typo")
    assert {entry.name for entry in models.index()} == {"m", "typo"}
    assert states_of(models, "typo") == [("", "", "")]
    assert models.server_ready()
    with pytest.raises(Fault, match="'typo' is not found"):
        models.get("typo")
    assert [entry.name for entry in models.index(ready_only=True)] == ["m"]


def test_poll_mode_follows_the_folder(repository: Path, opened: Any) -> None:
    put(repository, "m", IDENTITY)
    models = opened(mode="poll", poll_interval_s=0.05)
    put(repository, "n", IDENTITY)
    _wait(lambda: models.ready("n"))
    put(repository, "m", IDENTITY.replace("max_batch_size: 8", "max_batch_size: 16"))
    _wait(lambda: models.get("m").config.max_batch_size == 16)
    with pytest.raises(Fault, match="not allowed"):
        models.load("m")


def _wait(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never happened")


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [2] }]
ensemble_scheduling { step [
  { model_name: "second" model_version: -1
    input_map { key: "X" value: "between" } output_map { key: "Y" value: "OUT" } },
  { model_name: "first" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } }
] }
"""


def test_ensemble(repository: Path, opened: Any) -> None:
    put(repository, "both", ENSEMBLE)
    put(repository, "first", IDENTITY)
    put(repository, "second", IDENTITY)
    models = opened(mode="explicit", load=("both",))  # members come along
    assert ask(models, "both", [[1, 2], [3, 4]])["OUT"].tolist() == [[1, 2], [3, 4]]
    details = models.get("both").details().server
    assert (details.success_count, details.inference_count) == (1, 2)
    assert models.get("first").details().server.inference_count == 2
    with pytest.raises(Fault, match="batch-size must be <= 4"):
        ask(models, "both", [[0, 0]] * 5)


def test_a_load_of_an_ensemble_loads_members_that_changed(repository: Path, opened: Any) -> None:
    put(repository, "both", ENSEMBLE)
    put(repository, "first", IDENTITY)
    put(repository, "second", IDENTITY)
    models = opened(mode="explicit", load=("both",))
    before = {name: models.get(name) for name in ("both", "first", "second")}
    models.load("both")
    assert all(models.get(name) is model for name, model in before.items()), "nothing changed"
    put(repository, "first", IDENTITY.replace("max_batch_size: 8", "max_batch_size: 5"))
    models.load("both")
    assert models.get("first") is not before["first"]
    assert models.get("second") is before["second"]
    assert ask(models, "both", [[1, 2]])["OUT"].tolist() == [[1, 2]]


def test_an_ensemble_goes_and_comes_with_its_members(repository: Path, opened: Any) -> None:
    """It stayed READY and answered 500; loading it again did nothing."""
    put(repository, "both", ENSEMBLE)
    put(repository, "first", IDENTITY)
    put(repository, "second", IDENTITY)
    models = opened(mode="explicit", load=("both",))

    def states() -> dict[str, tuple[str, str]]:
        _wait(lambda: all(entry.state != "UNLOADING" for entry in models.index()))
        return {entry.name: (entry.state, entry.reason) for entry in models.index()}

    gone = ("UNAVAILABLE", "unloaded")
    models.unload("second")
    assert states() == {"both": gone, "first": ("READY", ""), "second": gone}
    with pytest.raises(Fault, match="'both' has no available versions") as refused:
        ask(models, "both", [[1, 2]])
    assert refused.value.kind == "not_found"
    models.load("both")  # with its member
    assert ask(models, "both", [[1, 2]])["OUT"].tolist() == [[1, 2]]
    models.unload("first")
    models.unload("second")
    models.load("second")
    assert states()["both"] == gone  # the other one is missing still
    models.load("first")
    assert ask(models, "both", [[1, 2]])["OUT"].tolist() == [[1, 2]]
    models.unload("first")
    models.unload("both")  # by its own name: it does not come back by itself
    models.load("first")
    assert states()["both"] == gone
    models.unload("both", unload_dependents=True)


def test_an_ensemble_of_ensembles_goes_with_the_innermost_member(
    repository: Path, opened: Any
) -> None:
    put(repository, "both", ENSEMBLE)
    put(repository, "first", IDENTITY)
    put(repository, "second", IDENTITY)
    outer = ENSEMBLE.replace('"first"', '"both"')
    outer = outer.replace('key: "Y" value: "between"', 'key: "OUT" value: "between"')
    put(repository, "outer", outer)
    models = opened(mode="explicit", load=("outer",))
    assert ask(models, "outer", [[1, 2]])["OUT"].tolist() == [[1, 2]]
    models.unload("first")
    assert not models.ready("outer") and not models.ready("both") and models.ready("second")
    models.load("first")
    assert ask(models, "outer", [[1, 2]])["OUT"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("max_batch_size: 4", "max_batch_size: 64"), "only allows maximum batch size to be 8"),
        (('model_name: "first"', 'model_name: "both"'), "contains itself"),
        (('model_name: "first"', 'model_name: "absent"'), "not available or ambiguous: absent"),
        (
            ('key: "Y" value: "OUT"', 'key: "Z" value: "OUT"'),
            "tensor OUT is mapped from non-existing output Z in model second",
        ),
        (
            ('key: "X" value: "X"', 'key: "Z" value: "X"'),
            "tensor X is mapping to non-existing input Z in model first",
        ),
        (
            ('"OUT" data_type: TYPE_FP32 dims: [2]', '"OUT" data_type: TYPE_FP32 dims: [5]'),
            (
                r"in ensemble both, ensemble tensor OUT: inconsistent shape: \[-1,5\] is inferred "
                r"from model both while \[-1,2\] is inferred from model second"
            ),
        ),
        (
            ('"X" data_type: TYPE_FP32 dims: [2]', '"X" data_type: TYPE_FP32 dims: [2, 1]'),
            r"ensemble tensor X: inconsistent shape: \[-1,2,1\] .* \[-1,2\]",
        ),
        (
            ('"X" data_type: TYPE_FP32', '"X" data_type: TYPE_INT32'),
            (
                "ensemble tensor X: inconsistent data type: TYPE_INT32 is inferred from model both "
                "while TYPE_FP32 is inferred from model first"
            ),
        ),
        (
            ('"second" model_version: -1', '"second" model_version: 0'),
            "ensemble 'both' depends on 'second' whose required version 0 is not loaded",
        ),
        (('"second" model_version: -1', '"second"'), "required version 0 is not loaded"),
        (
            ('"first" model_version: -1', '"first" model_version: -3'),
            "ensemble 'both' depends on 'first' whose required version -3 is not loaded",
        ),
    ],
)
def test_members_that_do_not_fit(
    repository: Path, opened: Any, change: tuple[str, str], message: str
) -> None:
    put(repository, "first", IDENTITY)
    put(repository, "second", IDENTITY)
    put(repository, "both", ENSEMBLE.replace(*change))
    models = opened(mode="explicit")
    with pytest.raises(Fault, match=message) as refused:
        models.load("both")
    assert refused.value.kind == "invalid"


def test_members_whose_tensors_differ(repository: Path, opened: Any) -> None:
    put(repository, "first", IDENTITY)
    put(repository, "second", IDENTITY.replace("dims: [2]", "dims: [3]"))
    out = '"OUT" data_type: TYPE_FP32 dims: [%d]'
    put(repository, "both", ENSEMBLE.replace(out % 2, out % 3))
    models = opened(mode="explicit")
    with pytest.raises(Fault) as refused:
        models.load("both")
    assert refused.value.message == (
        "in ensemble both, ensemble tensor between: inconsistent shape: [-1,3] is inferred from "
        "model second while [-1,2] is inferred from model first"
    )


@pytest.mark.parametrize(
    "change",
    [
        ("[2]", "[-1]"),  # left to the requests
        ("max_batch_size: 4", "max_batch_size: 0"),  # the members' batch axis is free
    ],
)
def test_dimensions_of_an_ensemble_that_are_left_to_the_requests(
    repository: Path, opened: Any, change: tuple[str, str]
) -> None:
    put(repository, "first", IDENTITY)
    put(repository, "second", IDENTITY)
    config = ENSEMBLE.replace(*change)
    if "size: 0" in change[1]:
        config = config.replace("dims: [2]", "dims: [1, 2]")
    put(repository, "both", config)
    models = opened(mode="explicit", load=("both",))
    assert ask(models, "both", [[1, 2]])["OUT"].tolist() == [[1, 2]]


def send(model: Any, *, outputs: tuple[str, ...] = (), **inputs: float) -> list[Any]:
    """Sends a request of one row of twice that number for each input; its reply gets there."""
    replies: list[Any] = []
    tensors = [
        InputTensor(name, "FP32", (1, 2), np.full((1, 2), value, np.float32))
        for name, value in inputs.items()
    ]
    model.infer(InferCall(tensors, outputs=outputs), replies.append)
    return replies


def values_of(replies: list[Any]) -> dict[str, float]:
    """The reply's outputs by their first number, waited for."""
    _wait(lambda: replies)
    (reply,) = replies
    if reply.fault is not None:
        raise reply.fault
    return {name: float(array.reshape(-1)[0]) for name, array in reply.outputs.items()}


PAIR = """
max_batch_size: 8
input [{ name: "%s" data_type: TYPE_FP32 dims: [2] }, { name: "%s" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
instance_group [{ count: 1 kind: KIND_CPU }]
"""
SLOW = 'backend: "scripted" parameters { key: "service_time_ms" value { string_value: "1=200" } }'
FAST = 'backend: "identity"'
OF_A_PAIR = """
platform: "ensemble"
max_batch_size: 4
input [{ name: "A" data_type: TYPE_FP32 dims: [2] },
       { name: "B" data_type: TYPE_FP32 dims: [2] optional: true }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [2] }]
ensemble_scheduling { step [{ model_name: "pair" model_version: -1
  input_map [{ key: "A" value: "A" }, { key: "B" value: "B" }]
  output_map { key: "Y" value: "OUT" } }] }
"""


def test_an_optional_input_of_an_ensemble_may_be_left_out(repository: Path, opened: Any) -> None:
    """The request never ended."""
    optional = PAIR.replace("dims: [2] }]", "dims: [2] optional: true }]", 1)
    put(repository, "pair", FAST + optional % ("A", "B"))
    put(repository, "both", OF_A_PAIR)
    models = opened(mode="explicit", load=("both",))
    assert values_of(send(models.get("both"), A=1)) == {"OUT": 1}
    assert values_of(send(models.get("both"), A=1, B=2)) == {"OUT": 1}
    put(repository, "pair", FAST + PAIR % ("A", "B"))
    models.load("pair")
    with pytest.raises(Fault, match=r"missing required input\(s\) \['B'\]") as refused:
        values_of(send(models.get("both"), A=1))
    assert refused.value.kind == "invalid"
    server = models.get("both").details().server
    assert (server.success_count, server.fail_count) == (2, 1)


@pytest.mark.parametrize("without", ["first", "second", "first second", "both"])
def test_models_with_a_batch_axis_and_without_one_make_an_ensemble(
    repository: Path, opened: Any, without: str
) -> None:
    """They were loaded, and no request was answered."""

    def config(name: str, text: str) -> str:
        if name not in without.split():
            return text
        return text.replace("size: 8", "size: 0").replace("size: 4", "size: 0")

    for name, text in (("first", IDENTITY), ("second", IDENTITY), ("both", ENSEMBLE)):
        put(repository, name, config(name, text))
    models = opened(mode="explicit", load=("both",))
    row = [1, 2] if without == "both" else [[1, 2]]
    assert ask(models, "both", row)["OUT"].tolist() == row
    if without != "both":
        with pytest.raises(Fault, match=r"unexpected shape .* Expected \[2\], got \[2,2\]") as no:
            ask(models, "both", [[1, 2], [3, 4]])
        assert no.value.kind == "invalid"


@pytest.mark.parametrize("change", ["unload first", "unload second", "unload both", "load second"])
@pytest.mark.parametrize("asked", ["both", "outer"])
def test_what_an_ensemble_has_taken_is_answered_whatever_goes(
    repository: Path, opened: Any, change: str, asked: str
) -> None:
    """A step whose member had been unloaded failed, lately one of an ensemble in an ensemble."""
    slow = IDENTITY.replace('backend: "identity"', SLOW)
    put(repository, "both", ENSEMBLE)
    put(repository, "first", slow)
    put(repository, "second", slow)
    outer = ENSEMBLE.replace('"second"', '"both"')  # it starts once "first" has answered
    put(repository, "outer", outer.replace('key: "Y" value: "OUT"', 'key: "OUT" value: "OUT"'))
    models = opened(mode="explicit", load=(asked,))
    old = models.get("second")
    replies = [send(models.get(asked), X=number) for number in range(3)]
    action, name = change.split()
    put(repository, "second", IDENTITY)
    getattr(models, action)(name)
    assert [values_of(reply) for reply in replies] == [{"OUT": number} for number in range(3)]
    assert old.details().server.success_count == 3
    _wait(lambda: not models._closers)


STEPS = """
platform: "ensemble"
max_batch_size: 4
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "A" data_type: TYPE_FP32 dims: [2] }, { name: "B" data_type: TYPE_FP32 dims: [2] }]
ensemble_scheduling { step [
  { model_name: "first" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } },
  { model_name: "second" model_version: -1
    input_map { key: "X" value: "between" } output_map { key: "Y" value: "A" } },
  { model_name: "third" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "B" } }
] }
response_cache { enable: true }
"""


@pytest.mark.parametrize("cache", [None, ResponseCache(1 << 20)])
def test_steps_that_nobody_asked_for_do_not_run(
    repository: Path, opened: Any, cache: ResponseCache | None
) -> None:
    for name in ("first", "second", "third"):
        put(repository, name, IDENTITY)
    put(repository, "both", STEPS)
    models = opened(settings=LoadSettings(cache=cache))

    def runs() -> list[int]:
        names = ("first", "second", "third")
        return [models.get(name).details().server.inference_count for name in names]

    model = models.get("both")
    assert values_of(send(model, outputs=("A",), X=1)) == {"A": 1}
    assert runs() == [1, 1, 0]
    assert values_of(send(model, outputs=("B",), X=1)) == {"B": 1}
    assert runs() == [1, 1, 1]
    assert values_of(send(model, X=1)) == {"A": 1, "B": 1}  # no answer to less is kept
    assert runs() == [2, 2, 2]
    assert values_of(send(model, outputs=("A",), X=1)) == {"A": 1}
    assert runs() == ([2, 2, 2] if cache is not None else [3, 3, 2])


def test_an_ensemble_says_that_it_is_not_decoupled(repository: Path, opened: Any) -> None:
    """Clients read it of every model; it was absent of ensembles alone."""
    put(repository, "first", IDENTITY)
    put(repository, "second", IDENTITY)
    put(repository, "both", ENSEMBLE)
    config = opened().get("both").config
    assert config_to_json(config)["model_transaction_policy"] == {"decoupled": False}


def test_response_cache(repository: Path, opened: Any) -> None:
    put(repository, "m", IDENTITY + "response_cache { enable: true }")
    models = opened(settings=LoadSettings(cache=ResponseCache(1 << 20)))
    for _ in range(3):
        assert ask(models, "m", [[1, 2]])["Y"].tolist() == [[1, 2]]
    ask(models, "m", [[3, 4]])
    model = models.get("m")
    assert (model.cache_hits.count, model.cache_misses.count) == (2, 2)
    assert model.details().server.execution_count == 2


@pytest.mark.parametrize("name", ["pair", "both"])
def test_what_an_old_copy_answers_is_not_kept_for_the_new_one(
    repository: Path, opened: Any, name: str
) -> None:
    """It ended after the cache was emptied, and its answer went to the new copy's clients."""
    cached = "response_cache { enable: true }"
    put(repository, "pair", SLOW + PAIR % ("A", "B") + (cached if name == "pair" else ""))
    put(repository, "both", OF_A_PAIR + cached)
    settings = LoadSettings(cache=ResponseCache(1 << 20))
    models = opened(mode="explicit", load=("both",), settings=settings)
    late = send(models.get(name), A=1, B=2)
    put(repository, "pair", FAST + PAIR % ("B", "A") + (cached if name == "pair" else ""))
    models.load("pair")
    assert list(values_of(late).values()) == [1]
    assert list(values_of(send(models.get(name), A=1, B=2)).values()) == [2]


def test_cache_stays_within_its_size() -> None:
    cache = ResponseCache(10_000)
    arrays = [np.full((1, 250), i, np.float32) for i in range(20)]
    keys = [cache.key(0, {"X": array}) for array in arrays]
    for key, array in zip(keys, arrays, strict=True):
        cache.put(key, {"Y": array})
    kept = [key for key in keys if cache.get(key) is not None]
    assert kept == keys[-len(kept) :]
    assert 1 <= len(kept) * 1000 <= 10_000
    cache.put(b"big", {"Y": np.zeros(10_000, np.float32)})
    assert cache.get(b"big") is None


WARMUP = """
model_warmup [{ name: "w" batch_size: 4 count: 2 inputs {
  key: "X" value { data_type: TYPE_FP32 dims: [2] %s } } }]
"""


def test_warm_up_is_counted(repository: Path, opened: Any) -> None:
    put(repository, "m", IDENTITY.replace("count: 1", "count: 3") + WARMUP % "random_data: true")
    details = opened().get("m").details()
    assert (details.server.execution_count, details.server.inference_count) == (6, 24)
    assert details.server.batches == ((4, 6),)


def test_a_wrong_warm_up_fails_the_load(repository: Path, opened: Any) -> None:
    put(repository, "m", IDENTITY + WARMUP % 'input_data_file: "../../../etc/passwd"')
    put(repository, "n", IDENTITY + WARMUP.replace("[2]", "[3]") % "zero_data: true")
    large = WARMUP.replace("batch_size: 4", "batch_size: 9")
    put(repository, "large", IDENTITY + large % "zero_data: true")
    models = opened()
    reasons = {entry.name: entry.reason for entry in models.index()}
    assert "no file" in reasons["m"]
    assert "Expected [-1,2], got [1,3]" in reasons["n"]
    assert "batch size 9 for 'large', max allowed is 8" in reasons["large"]


def test_labels_lie_where_the_configuration_says(repository: Path, opened: Any) -> None:
    """A file that was not there, or lay in a folder, was no label at all; Triton refuses, reads."""
    labelled = IDENTITY.replace('name: "Y"', 'name: "Y" label_filename: "%s"')
    for name, file in (("m", "of/y.txt"), ("absent", "none.txt"), ("outside", "../m/of/y.txt")):
        put(repository, name, labelled % file)
    (repository / "m" / "of").mkdir()
    (repository / "m" / "of" / "y.txt").write_text("cat\ndog\n")
    models = opened()
    assert models.get("m").labels == {"Y": ("cat", "dog")}
    reasons = {entry.name: entry.reason for entry in models.index()}
    assert "failed to open text file for read" in reasons["absent"]
    assert "outside the model's folder" in reasons["outside"]


def test_priorities_timeouts_and_full_queues(repository: Path, opened: Any) -> None:
    config = IDENTITY.replace("identity", "scripted") + (
        'parameters { key: "service_time_ms" value { string_value: "1=150" } }'
        "dynamic_batching { default_queue_policy { max_queue_size: 2"
        " default_timeout_microseconds: 50000 } preferred_batch_size: [1] }"
    )
    put(repository, "m", config.replace("max_batch_size: 8", "max_batch_size: 1"))
    models = opened()
    answers: list[Any] = []
    array = np.zeros((1, 2), np.float32)

    def submit() -> None:
        models.get("m").infer(InferCall([InputTensor("X", "FP32", (1, 2), array)]), answers.append)

    submit()
    _wait(lambda: models.get("m").details().waiting_count == 0)
    submit()
    submit()
    with pytest.raises(Fault, match="Exceeds maximum queue size"):
        submit()
    _wait(lambda: len(answers) == 3)
    faults = sorted(answer.fault.message for answer in answers if answer.fault is not None)
    assert faults == ["Request timeout expired"] * 2
    assert models.get("m").rejected_count == 1


def test_executions_that_fail(repository: Path, opened: Any) -> None:
    config = IDENTITY.replace("identity", "scripted") + (
        'parameters { key: "fault" value { string_value: "error" } }'
        'parameters { key: "fault_after" value { string_value: "1" } }'
    )
    put(repository, "m", config)
    models = opened()
    ask(models, "m", [[1, 2]])
    for _ in range(3):
        with pytest.raises(Fault) as caught:
            ask(models, "m", [[1, 2]])
        assert caught.value.kind == "internal"
    details = models.get("m").details().server
    assert (details.success_count, details.fail_count) == (1, 3)


def test_preserved_order(repository: Path, opened: Any) -> None:
    config = IDENTITY.replace("count: 1", "count: 2").replace("identity", "scripted") + (
        'parameters { key: "service_time_ms" value { string_value: "1=1,2=120" } }'
        "dynamic_batching { preserve_ordering: true preferred_batch_size: [2] }"
        "response_cache { enable: true }"
    )
    put(repository, "m", config)
    models = opened(settings=LoadSettings(cache=ResponseCache(1 << 20)))
    order: list[str] = []
    ask(models, "m", [[1, 1]])
    for name, size in (("slow", 2), ("fast", 1), ("cached", 1)):
        array = np.full((size, 2), name == "cached", np.float32)
        models.get("m").infer(
            InferCall([InputTensor("X", "FP32", (size, 2), array)]),
            lambda _, name=name: order.append(name),
        )
    _wait(lambda: len(order) == 3)
    assert order == ["slow", "fast", "cached"]


def test_readiness_is_told_while_a_model_loads(
    repository: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the load on the event loop, and every request with it.

    A model that loads for the first time makes a server unready, as in Triton, and a reload does
    not.
    """
    for name in ("m", "slow"):
        put(repository, name, IDENTITY)
    addresses, app = start(mode="explicit", load_models=("m",))
    loading, end = threading.Event(), threading.Event()

    def wait_and_load(*args: Any) -> Any:
        loading.set()
        end.wait(30)
        return load_versions(*args)

    monkeypatch.setattr("analyzer.server.repository.load_versions", wait_and_load)
    thread = threading.Thread(target=app.repository.load, args=("slow",))
    thread.start()
    try:
        assert loading.wait(30)
        client = triton_http.InferenceServerClient(addresses.http, network_timeout=5)
        assert not client.is_server_ready() and client.is_model_ready("m")
        assert states_of(app.repository, "slow") == [("1", "LOADING", "")]
    finally:
        end.set()
        thread.join()
    assert app.repository.ready("slow") and client.is_server_ready()
    loading.clear()
    end.clear()
    put(repository, "slow", IDENTITY.replace("max_batch_size: 8", "max_batch_size: 4"))
    thread = threading.Thread(target=app.repository.load, args=("slow",))
    thread.start()
    try:
        assert loading.wait(30)
        assert client.is_server_ready() and client.is_model_ready("slow")
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_without_model_control_is_told_before_a_search(
    repository: Path, start: Any, scheme: str
) -> None:
    """Every trial failed, and the option that was missing was never named."""
    put(repository, "m", IDENTITY)
    addresses, _ = start()
    address = f"{scheme}://{getattr(addresses, scheme)}"
    with pytest.raises(MissingPartError, match="not allowed") as refused:
        check_endpoint(address)
    assert refused.value.exit_code == 2
    assert "--model-control-mode=explicit" in refused.value.hint
    check_endpoint(address, loads=False)
    addresses, _ = start(mode="explicit")
    check_endpoint(f"{scheme}://{getattr(addresses, scheme)}")
