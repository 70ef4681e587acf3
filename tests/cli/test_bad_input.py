"""Whatever is wrong is said in a sentence, early, with the contract's code, and leaves nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from analyzer.hardware.machine import inspect_machine
from analyzer.store.results import open_store

Answer = Any  # conftest.Answer
Call = Callable[..., Answer]

EXAMPLES = Path(__file__).parents[2] / "examples"
BUDGET = ("--latency-budget", "50ms")
TYPES = (*BUDGET, "--instance-types", "a,b")
OF_CLUSTER = (*TYPES, "--ray-address", "x:1")
SENT = ("measure", "grpc://localhost:1", "--model", "m")
NO_SUCH = Path("/proc/nowhere")  # nothing can be made there, not even by root


def refused(answer: Answer, *words: str, code: int = 2) -> None:
    """The contract's error: one document on standard output, sentences on standard error."""
    assert answer.code == code, answer
    assert "Traceback" not in answer.stderr
    document = answer.document
    assert document.keys() == {"schema", "error"} and document["schema"] == 1
    error = document["error"]
    assert error.keys() == {"code", "message", "hint"}
    assert error["message"] and error["hint"], "what is wrong, and what to do next"
    assert f"Error: {error['message']}" in answer.stderr
    for word in words:
        assert word in error["message"] + " " + error["hint"], (word, error)


@pytest.fixture
def good(folder: Path) -> str:
    shutil.copy(EXAMPLES / "digits.onnx", folder / "good.onnx")
    return "good.onnx"


def digits_rows() -> dict[str, Any]:
    with np.load(EXAMPLES / "digits.npz") as rows:
        return dict(rows)


def save_model(
    path: str,
    op: str,
    elem: int = TensorProto.FLOAT,
    shape: tuple[object, ...] = ("N", 4),
    **k: str,
) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **k)],
        "g",
        [value("x", elem, list(shape))],
        [value("y", elem, list(shape))],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = 8
    onnx.save(model, path)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--latency-budget", "500"], ["--latency-budget", "500ms"]),
        (["--latency-budget", "0ms"], ["--latency-budget"]),
        (["--latency-budget", "nanms"], ["--latency-budget"]),
        ([], ["--latency-budget"]),
        ([*BUDGET, "--target-rate", "500"], ["--target-rate", "500/s"]),
        ([*BUDGET, "--target-rate", "0/s"], ["--target-rate"]),
        ([*BUDGET, "--price", "1"], ["--price", "1/h"]),
        ([*BUDGET, "--price", "$1/h"], ["--price", "currency", "1/h"]),
        ([*BUDGET, "--max-memory", "5"], ["--max-memory", "5MiB"]),
        ([*BUDGET, "--max-memory", "0GiB"], ["--max-memory", "above 0"]),
        ([*BUDGET, "--export", ""], ["--export: ''"]),
        ([*BUDGET, "--report="], ["--report: ''"]),
        ([*BUDGET, "--instance-types", ","], ["--instance-types", "','"]),
        ([*BUDGET, "--budget", "60"], ["--budget 60s"]),
        ([*BUDGET, "--budget", "0s"], ["--budget 60s"]),
        # "Write it like 3ms", "--budget 0s" and "20ms" were told.
        ([*BUDGET, "--budget=-3s"], ["Write it like 3s"]),
        ([*BUDGET, "--budget=-3"], ["--budget 3s"]),
        ([*BUDGET, "--budget", "0"], ["--budget 60s"]),
        ([*BUDGET, "--budget", "nan"], ["--budget 60s"]),
        ([*BUDGET, "--budget", "1e99s"], ["--budget", "too long", "336h"]),
        ([*BUDGET, "--budget", "99999999999999999999h"], ["--budget", "336h"]),
        (["--latency-budget", "25h"], ["--latency-budget", "at most 24h"]),
        ([*BUDGET, "--accept", "foo"], ["--accept", "certified", "estimated"]),
        ([*BUDGET, "--prices", "nope.yaml"], ["--prices", "--instance-type"]),
        ([*BUDGET, "--instance-type", "a", "--prices", "nope.yaml"], ["nope.yaml"]),
        ([*BUDGET, "--instance-type", "a", "--prices", "good.onnx"], ["good.onnx"]),
        ([*BUDGET, "--percentile", "100"], ["--percentile", "99.9"]),
        ([*BUDGET, "--percentile", "0.99"], ["--percentile", "0.99 %", "write 99."]),
        ([*BUDGET, "--confidence", "95"], ["--confidence", "0.95"]),
        ([*BUDGET, "--confidence", "1e-300"], ["--confidence", "0.5", "0.95"]),
        ([*BUDGET, "--max-accuracy-drop", "2"], ["--max-accuracy-drop", "0.01"]),
        ([*BUDGET, "--precisions", "fp31"], ["fp31", "fp32, fp16, bf16, fp8, int8"]),
        ([*BUDGET, "--objective", "cost"], ["--target-rate"]),
        ([*BUDGET, "--objective", "latency"], ["--target-rate"]),
        ([*BUDGET, "--objective", "memory"], ["--target-rate"]),
        ([*BUDGET, "--objective", "speed"], ["--objective", "capacity"]),
        ([*BUDGET, "--sampler", "bayes"], ["--sampler", "twin"]),
        ([*BUDGET, "--server", "tritn"], ["--server", "triton"]),
        ([*BUDGET, "--server", "grpc://"], ["grpc://HOST:PORT"]),
        ([*BUDGET, "--server", "grpc://localhost:1"], ["localhost:1 does not answer"]),
        ([*BUDGET, "--server", "http://localhost:1"], ["localhost:1 does not answer"]),
        ([*BUDGET, "--max-trials", "0"], ["--max-trials"]),
        ([*BUDGET, "--instance-type", "g9.huge"], ["g9.huge", "--price"]),
        ([*BUDGET, "--input-shape", "image:a,b"], ["--input-shape", "3,224,224"]),
        ([*BUDGET, "--input-shape", "foo:3,3"], ["foo", "image"]),
        ([*BUDGET, "--input-shape", "image:3,3,3"], ["image", "1,64,64"]),
        ([*BUDGET, "--arrivals", "poison"], ["poison", "poisson"]),
        ([*BUDGET, "--arrivals", "gamma:x"], ["gamma:x", "gamma:2"]),
        ([*BUDGET, "--request-batch-size", "0"], ["--request-batch-size"]),
        ([*BUDGET, "--seed", "-1"], ["--seed"]),
        ([*BUDGET, "--bugdet", "5m"], ["--bugdet", "--budget"]),
        ([*BUDGET, "--workers", "5"], ["--workers 5"]),
        ([*BUDGET, "--executor", "in-process", "--workers", "3"], ["in-process"]),
        (
            [*BUDGET, "--workers", "3", "--budget", "1ms"],
            ["--workers 3: --budget 0.001s leaves no time to start Ray"],
        ),
        ([*TYPES], ["--ray-address"]),
        ([*OF_CLUSTER, "--price", "1/h"], ["--price"]),
        ([*OF_CLUSTER, "--instance-type", "a"], ["--instance-type "]),
        ([*OF_CLUSTER, "--executor", "in-process"], ["--executor"]),
        ([*OF_CLUSTER, "--server", "grpc://h:8001"], ["--server grpc://h:8001 is one"]),
        ([*BUDGET, "--calibration-data", "nope.npz"], ["--calibration-data", "nope.npz"]),
        ([*BUDGET, "--calibration-data", "/dev/null"], ["/dev/null is no regular file"]),
        ([*BUDGET, "--space", "cpuu"], ["cpuu", "cpu"]),
        ([*BUDGET, "--space", "nope.yaml"], ["nope.yaml"]),
        ([*BUDGET, "--report", "x.pdf"], [".pdf", ".html"]),
        ([*BUDGET, "--report", "x"], ["x has no ending", ".html"]),
        ([*BUDGET, "--report", "."], ["--report", "is a folder", "report.html"]),
        ([*BUDGET, "--report", f"{NO_SUCH}/x.html"], ["--report", "/proc"]),
        ([*BUDGET, "--export", f"{NO_SUCH}/models"], ["--export", "/proc"]),
        ([*BUDGET, "--export", "good.onnx"], ["--export", "good.onnx"]),
        ([*BUDGET, "--force"], ["--force", "--export"]),
        ([*BUDGET, "--store", f"sqlite:///{NO_SUCH}/r.db"], ["/proc"]),
        ([*BUDGET, "--store", "sqlite:////proc/r.db"], ["/proc"]),
        ([*BUDGET, "--store", "sqlite:///good.onnx"], ["good.onnx", "SQLite"]),
        ([*BUDGET, "--store", "results.db"], ["sqlite:///results.db"]),
        ([*BUDGET, "--store", "mysql://x"], ["mysql", "PostgreSQL"]),
        ([*BUDGET, "--resume"], ["--study"]),
        ([*BUDGET, "--percentile", "99.99999999"], ["--percentile", "99.9999"]),
        ([*BUDGET, "--study", "a\nb"], ["--study", "printable"]),
        ([*BUDGET, "--study", "x" * 101], ["--study", "100"]),
        ([*BUDGET, "--study", ""], ["--study", "''"]),
        ([*BUDGET, "--resume", "--study", "nope"], ["no results yet"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_a_wrong_option_is_refused_and_leaves_nothing(
    good: str, call: Call, folder: Path, options: list[str], words: list[str]
) -> None:
    refused(call(good, "--json", *options), *words)
    assert sorted(path.name for path in folder.iterdir()) == ["good.onnx"]


@pytest.mark.parametrize("server", ["grpc://localhost:1", "http://localhost:1"])
def test_a_server_that_does_not_answer_is_told_once(good: str, call: Call, server: str) -> None:
    answer = call(good, "--json", *BUDGET, "--server", server)
    assert answer.document["error"]["message"].count("localhost:1") == 1


def test_an_export_that_would_be_refused_is_noticed_before_the_search(
    good: str, call: Call, folder: Path
) -> None:
    there = folder / "models" / "good"
    (there / "1").mkdir(parents=True)
    (there / "config.pbtxt").write_text('name: "good"')
    export = (good, "--json", *BUDGET, "--export", "models")
    refused(call(*export), "--export", "models/good", "--force")
    # With --force the search goes on, here to the next thing that is wrong.
    refused(call(*export, "--force", "--space", "cpuu"), "cpuu")
    refused(call(good, "--json", *BUDGET, "--export", "elsewhere", "--space", "cpuu"), "cpuu")
    (folder / "models2").mkdir()
    (folder / "models2" / "good").touch()
    refused(call(good, "--json", *BUDGET, "--export", "models2", "--force"), "is a file")
    assert not (folder / "results.db").exists() and not (folder / "elsewhere").exists()
    assert (there / "config.pbtxt").read_text() == 'name: "good"'


def test_a_models_folder_is_no_repository(
    good: str, call: Call, stored: Path, folder: Path
) -> None:
    """A repository was made inside the folder of a model, with exit code 0."""
    (folder / "models" / "one").mkdir(parents=True)
    (folder / "models" / "one" / "config.pbtxt").write_text('name: "one"')
    words = ("models/one is a model's folder", "a repository is the folder around it")
    refused(call(good, "--json", *BUDGET, "--export", "models/one", "--study", "new"), *words)
    refused(call("export", "--json", "--repository", "models/one"), *words)
    refused(call("export", "--json", "--repository", "models"), "recommends nothing")
    remote = ("--service", "http://localhost:1", "--export", "models/one")
    refused(call(good, "--json", *BUDGET, *remote), *words)
    assert [path.name for path in (folder / "models" / "one").iterdir()] == ["config.pbtxt"]
    studies = call("studies", "--json").document["studies"]
    assert [study["name"] for study in studies] == ["mine"], "nothing was searched"


@pytest.mark.skipif(bool(inspect_machine().gpus), reason="this machine has a GPU")
def test_a_gpu_that_is_not_here(good: str, call: Call) -> None:
    refused(call(good, "--json", *BUDGET, "--device", "gpu"), "--device gpu", "NVIDIA GPU")


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_gp_without_pytorch_is_noticed_before_the_search(
    good: str, call: Call, folder: Path
) -> None:
    refused(call(good, "--json", *BUDGET, "--sampler", "gp"), "--sampler gp", "PyTorch")
    assert not (folder / "results.db").exists()


# --- models ---------------------------------------------------------------------------------------


def test_models_that_are_none(good: str, call: Call, folder: Path) -> None:
    whole = (folder / good).read_bytes()
    (folder / "truncated.onnx").write_bytes(whole[:2000])
    (folder / "text.onnx").write_text("hello world")
    (folder / "empty.onnx").touch()
    for name, word in (("truncated", "truncated"), ("text", "no ONNX file"), ("empty", "empty")):
        refused(call(f"{name}.onnx", "--json", *BUDGET), f"{name}.onnx", word)
    refused(call("search", "missing.onnx", "--json", *BUDGET), "missing.onnx does not exist")
    assert not (folder / "results.db").exists()


def test_models_that_cannot_be_served(call: Call, folder: Path) -> None:
    save_model("dynamic.onnx", "Relu", shape=("N", "h", "w"))
    refused(call("dynamic.onnx", "--json", *BUDGET), "'x'", "dynamic", "--input-shape x:")
    save_model("strings.onnx", "Identity", TensorProto.STRING)
    refused(call("strings.onnx", "--json", *BUDGET), "'x'", "strings")
    save_model("operator.onnx", "FancyOp", domain="acme")
    found = call("operator.onnx", "--json", *BUDGET, "--executor", "in-process")
    refused(found, "operator.onnx", "acme:FancyOp")
    assert not (folder / "results.db").exists()


def test_no_model_and_several_models(call: Call, folder: Path) -> None:
    refused(call("--json", *BUDGET), "No MODEL", "nothing")
    (folder / "notes.txt").touch()
    refused(call("--json", *BUDGET), "notes.txt")
    for name in ("a b.onnx", "b.onnx"):
        (folder / name).touch()
    again = f"analyze '{folder / 'a b.onnx'}' --latency-budget 50ms"
    refused(call("--json", *BUDGET), "2 models: a b.onnx, b.onnx", again)
    for name in ("one", "two"):
        version = folder / "model_repository" / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").touch()
    refused(call("--json", *BUDGET), "model_repository holds 2 models", "one", "two")


def test_a_list_of_files_that_is_cut_says_so(call: Call, folder: Path) -> None:
    (folder / "many").mkdir()
    found = {}
    for number in range(11):
        (folder / "many" / f"m{number:02}.onnx").touch()
        (folder / f"n{number:02}.txt").touch()
        if number >= 7:
            named, unnamed = call("many", "--json", *BUDGET), call("--json", *BUDGET)
            refused(named, "several .onnx files", "m07.onnx")
            refused(unnamed, "No MODEL", "n07.txt")
            found[number + 1] = tuple("…" in one.stderr for one in (named, unnamed))
    # The folder "many" is one of the names that the second list has.
    assert found == {8: (False, False), 9: (True, False), 10: (True, True), 11: (True, True)}
    for number in range(11):
        shutil.copy(folder / "many" / f"m{number:02}.onnx", folder)
    refused(call("--json", *BUDGET), "11 models", "m09.onnx, ….")


def test_the_one_model_of_the_folder_is_meant(call: Call, folder: Path) -> None:
    (folder / "only.onnx").touch()
    refused(call("--json", *BUDGET), "only.onnx is empty")


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrays", [{"image": (10, 3)}, {"image": (0, 1, 64, 64)}, {}])
def test_calibration_data_that_do_not_fit(
    good: str, call: Call, folder: Path, arrays: dict[str, tuple[int, ...]]
) -> None:
    np.savez("data.npz", **{name: np.zeros(shape, "f4") for name, shape in arrays.items()})
    found = call(
        good, "--json", *BUDGET, "--calibration-data", "data.npz", "--executor", "in-process"
    )
    refused(found, "data.npz")
    assert not (folder / "results.db").exists()


def test_what_is_supposed_of_price_and_data_is_told(good: str, call: Call, folder: Path) -> None:
    rows = digits_rows()
    (image,) = rows.keys() - {"labels"}
    np.savez(folder / "xx.npz", xx=rows[image][:20])
    short = (*BUDGET, "--budget", "1ms", "--executor", "in-process")
    price = ("--price", "1/h", "--instance-type", "nope")
    found = call(good, *short, *price, "--calibration-data", "xx.npz")
    assert found.code == 4, found
    assert "Note: --instance-type nope is not in the price catalogue" in found.stderr
    assert f"Note: xx.npz: its only array, 'xx', is taken for the input '{image}'" in found.stderr
    known = call(good, *short, "--calibration-data", str(EXAMPLES / "digits.npz"))
    assert "is taken for" not in known.stderr and "catalogue" not in known.stderr


def test_calibration_data_that_are_no_data(good: str, call: Call, folder: Path) -> None:
    (folder / "data.npz").write_text("hello")
    found = call(
        good, "--json", *BUDGET, "--calibration-data", "data.npz", "--executor", "in-process"
    )
    refused(found, "data.npz", "numpy.savez")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("precisionz: [fp32]\n", ["precisionz", "top level"]),
        ("device: cpu\nparameters:\n  instance_cuont: [1]\n", ["instance_cuont", "instance_count"]),
        ("parameters: [\n", ["YAML"]),
        ("", []),
        ("parameters:\n  precision: [fp31]\n", ["fp31"]),
        ("parameters:\n  max_queue_delay: [5]\n", ["max_queue_delay", "5"]),
    ],
)
def test_a_space_with_a_mistake(
    good: str, call: Call, folder: Path, text: str, words: list[str]
) -> None:
    (folder / "mine.yaml").write_text(text)
    refused(call(good, "--json", *BUDGET, "--space", "mine.yaml"), "mine.yaml", *words)
    assert not (folder / "results.db").exists()


@pytest.mark.parametrize(
    ("text", "word"),
    [("when\n1\n", "arrival_ms"), ("arrival_ms\nsoon\n", "soon"), ("arrival_ms\n", "t.csv")],
)
def test_a_trace_with_a_mistake(good: str, call: Call, folder: Path, text: str, word: str) -> None:
    (folder / "t.csv").write_text(text)
    answer = call(good, "--json", *BUDGET, "--arrivals", "trace:t.csv")
    assert answer.code == 2
    assert "t.csv" in answer.document["error"]["message"]
    assert word in answer.stderr


def test_a_trace_that_is_not_there(good: str, call: Call) -> None:
    answer = call(good, "--json", *BUDGET, "--arrivals", "trace:nope.csv")
    assert answer.code == 2 and "nope.csv" in answer.document["error"]["message"]


# --- the database ---------------------------------------------------------------------------------


@pytest.fixture
def stored(folder: Path) -> Path:
    """A database with a study that was stopped at once."""
    from analyzer.domain.sla import Sla
    from analyzer.store.records import StudyRecord
    from analyzer.variants.inspect import inspect_model

    with open_store("sqlite:///results.db") as store:
        store.create_study(
            StudyRecord(
                name="mine",
                model=inspect_model(EXAMPLES / "digits.onnx"),
                sla=Sla(latency_budget_ms=50.0),
                options={},
                seed=1,
                provenance={},
            )
        )
    return folder / "results.db"


def test_a_study_of_that_name(good: str, call: Call, stored: Path) -> None:
    refused(call(good, "--json", *BUDGET, "--study", "mine"), "'mine'", "exists", "--resume")
    refused(call(good, "--json", *BUDGET, "--study", "other", "--resume"), "'other'", "mine")


def test_a_name_that_a_shell_would_split_is_quoted(good: str, call: Call, stored: Path) -> None:
    with open_store("sqlite:///results.db") as store:
        store.create_study(replace(store.study("mine"), name="my study"))
    refused(call(good, "--json", *BUDGET, "--study", "my study"), "--study 'my study' --resume")


def test_another_promise_or_model_is_no_resumption(
    call: Call, stored: Path, folder: Path, good: str
) -> None:
    in_process = ("--study", "mine", "--resume", "--executor", "in-process")
    found = call(good, "--json", "--latency-budget", "60ms", *in_process)
    refused(found, "another SLA", "--latency-budget 50ms", "--confidence 0.95")
    save_model("another.onnx", "Relu")
    refused(call("another.onnx", "--json", *BUDGET, *in_process), "another model")


def test_a_study_goes_on_with_the_real_data_it_was_begun_with(
    call: Call, stored: Path, folder: Path, good: str
) -> None:
    for name, count in (("few", 40), ("more", 41)):
        cut = {key: array[:count] for key, array in digits_rows().items()}
        np.savez(folder / f"{name}.npz", **cut)
    few, more = ("--calibration-data", "few.npz"), ("--calibration-data", "more.npz")
    # Too short for a measurement, so that it is answered at once.
    short = (good, "--json", *BUDGET, "--budget", "1ms", "--executor", "in-process", "--study")
    assert call(*short, "without").code == 4
    assert call(*short, "with", *few).code == 4
    refused(call(*short, "without", "--resume", *few), "without --calibration-data", "few.npz")
    refused(call(*short, "with", "--resume"), "Add --calibration-data few.npz")
    refused(call(*short, "with", "--resume", *more), "other rows", "few.npz", "more.npz")
    assert call(*short, "without", "--resume").code == 4
    (folder / "few.npz").rename(folder / "more.npz")  # what counts is what it holds
    assert call(*short, "with", "--resume", *more).code == 4
    # A study of an older version does not say what it had.
    assert call(*short, "mine", "--resume", *more).code == 4


def test_a_study_goes_on_with_the_space_and_load_it_was_begun_with(
    call: Call, stored: Path, folder: Path, good: str
) -> None:
    mine = folder / "mine.yaml"
    mine.write_text("parameters: {instance_count: [1]}\n")
    short = (good, "--json", *BUDGET, "--budget", "1ms", "--executor", "in-process")
    own = (*short, "--study", "own", "--space")
    assert call(*own, "mine.yaml").code == 4
    refused(call(*own, "cpu", "--resume"), "begun with --space mine.yaml", "with --space cpu")
    load = ("--arrivals", "constant")
    refused(call(*own, "mine.yaml", "--resume", *load), "begun with --arrivals poisson", "constant")
    mine.rename(folder / "same.yaml")  # what counts is what it holds
    assert call(*own, "same.yaml", "--resume").code == 4
    (folder / "mine.yaml").write_text("parameters: {instance_count: [1, 2]}\n")
    refused(call(*own, "mine.yaml", "--resume"), "with another content of mine.yaml")
    default = (*short, "--study", "default")
    assert call(*default, "--device", "cpu").code == 4
    refused(call(*default, "--resume", "--space", "mine.yaml"), "begun without --space")
    assert call(*default, "--resume", "--space", "cpu", "--device", "cpu").code == 4


def test_a_study_goes_on_with_the_trace_it_was_begun_with(
    call: Call, stored: Path, folder: Path, good: str
) -> None:
    trace = folder / "trace.csv"
    trace.write_text("arrival_ms\n0\n10\n30\n")
    own = (
        good, "--json", *BUDGET, "--budget", "1ms", "--executor", "in-process", "--study", "own",
        "--arrivals",
    )  # fmt: skip
    assert call(*own, "trace:trace.csv").code == 4
    trace.rename(folder / "same.csv")  # what counts is what it holds
    assert call(*own, "trace:same.csv", "--resume").code == 4
    trace.write_text("arrival_ms\n0\n1\n2\n")
    refused(call(*own, "trace:trace.csv", "--resume"), "with another content of trace:trace.csv")


def test_a_study_tells_how_it_went_on(call: Call, stored: Path, good: str) -> None:
    short = ("--budget", "1ms", "--executor", "in-process", "--study", "mine", "--resume")
    first = call(good, "--json", *BUDGET, *short)
    again = call(good, "--json", *BUDGET, *short, "--seed", "1")
    assert (first.code, again.code) == (4, 4)
    resumes = again.document["provenance"]["resumes"]
    assert len(resumes) == 2 and "--seed 1" in resumes[1]["command"], resumes
    assert resumes[:1] == first.document["provenance"]["resumes"]
    refused(call(good, "--json", *BUDGET, *short, "--seed", "2"), "its own seed, 1")


def test_a_trace_s_own_sizes_are_those_of_the_requests(good: str, call: Call, folder: Path) -> None:
    (folder / "trace.csv").write_text("arrival_ms,batch_size\n0,1\n5,8\n")
    sized = ("--arrivals", "trace:trace.csv", "--json")
    refused(call(good, *BUDGET, *sized, "--request-batch-size", "2"), "sizes of its own")
    measured = ("measure", good, "--rate", "100/s", "--duration", "1s", *sized)
    refused(call(*measured, "--request-batch-size", "2"), "sizes of its own")
    refused(call(*measured), "8 inferences", "4 inferences at most")
    closed = ("measure", good, "--concurrency", "2", "--duration", "1s", *sized)
    refused(call(*closed), "8 inferences", "4 inferences at most")


def test_a_newer_database_is_left_alone(good: str, call: Call, stored: Path) -> None:
    edit = sqlite3.connect(stored)
    with edit:
        edit.execute("UPDATE tritune_version SET schema_number = 99")
    edit.close()
    before = stored.read_bytes()
    for args in ((good, *BUDGET), ("studies",), ("report",), ("export", "--repository", "m")):
        refused(call(*args, "--json"), "schema 99", "Update tritune")
    assert stored.read_bytes() == before


def test_a_database_that_cannot_be_written_is_refused_at_once(
    good: str, call: Call, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the look at the model a search said so, and ``verify`` after all that it measured."""
    stored.chmod(0o444)
    if os.geteuid() == 0:  # root may write everything
        monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    for args in ((good, *BUDGET), ("verify", "mine")):
        answer = call(*args, "--json")
        refused(answer, "results.db is not writable", "--store")
        assert "inspecting" not in answer.stderr


def test_a_study_without_a_recommendation(call: Call, stored: Path, folder: Path) -> None:
    refused(
        call("export", "--repository", "models", "--json"),
        "'mine'", "recommends nothing", "Nothing was measured yet", "--study mine --resume",
    )  # fmt: skip
    refused(call("verify", "--json"), "'mine'", "recommends nothing")
    refused(call("export", "--repository", "models", "--config", "abc", "--json"), "abc")
    refused(call("studies", "show", "nope", "--json"), "'nope'", "mine")
    assert not (folder / "models").exists()


def test_the_database_of_another_program_is_left_alone(good: str, call: Call, folder: Path) -> None:
    file = folder / "shop.db"
    other = sqlite3.connect(file)
    with other:
        other.execute("CREATE TABLE customers (name TEXT)")
    other.close()
    before = file.read_bytes()
    at = ("--store", "sqlite:///shop.db", "--json")
    refused(call(good, *BUDGET, *at, "--executor", "in-process"), "shop.db", "customers")
    refused(call("studies", *at), "shop.db", "customers")
    assert file.read_bytes() == before


# --- the other commands ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["searhc"], ["searhc", "search"]),
        (["modles/good.onnx"], ["modles/good.onnx", "path"]),
        (["verfy"], ["verfy", "verify"]),
        (["model.onnx"], ["model.onnx", "neither a command nor a model"]),
        (["report"], ["results.db", "search"]),
        (["report", "-o", "x.pdf"], [".pdf", "--format"]),
        (["report", "-o", "."], ["is a folder", "report.html"]),
        (["export"], ["--repository"]),
        (["studies"], ["results.db"]),
        (["studies", "show"], ["NAME"]),
        (["verify"], ["results.db"]),
        (["verify", "--repository", "models"], ["--model"]),
        (["verify", "--budget", "0s"], ["--budget", "above 0"]),
        # None of the requests was over a budget of 0 ms; a fault of the program.
        (["measure", "m.onnx", "--rate", "1/s", "--latency-budget", "0ms"], ["above 0", "50ms"]),
        (["verify", "--latency-budget", "0ms"], ["--latency-budget", "above 0"]),
        (["export", "t1", "--repository", ""], ["--repository: ''", "analyze export"]),
        (["export", "t1", "--repository", "m", "--config", ""], ["--config: ''"]),
        ([""], ["an argument: ''"]),
        (["verify", "--repository", "nowhere", "--model", "m"], ["nowhere"]),
        (["verify", "--server", "http://localhost:1"], ["does not answer"]),
        (["verify", "s", "--repository", "models", "--model", "m"], ["two claims"]),
        (
            ["verify", "--repository", "models", "--model", "m", "--config", "abc"],
            ["--config abc", "--repository"],
        ),
        (["verify", "--server", "tritn"], ["tritn"]),
        (["verify", "--budget", "1e99s"], ["--budget", "336h"]),
        (["measure", "good.onnx"], ["--rate", "--concurrency"]),
        (["measure", "good.onnx", "--rate", "5/s", "--concurrency", "2"], ["--rate"]),
        # Each was measured as if the option were not there.
        (
            ["measure", "good.onnx", "--concurrency", "2", "--arrivals", "poisson"],
            ["--arrivals poisson", "--concurrency", "--rate"],
        ),
        (
            [*SENT, "--rate", "5/s", "--generator", "perf_analyzer", "--arrivals", "constant"],
            ["--arrivals constant", "perf_analyzer", "--generator tritune"],
        ),
        (
            [*SENT, "--concurrency", "2", "--generator", "both", "--arrivals", "trace:t.csv"],
            ["--arrivals trace:t.csv", "perf_analyzer"],
        ),
        (["measure", "good.onnx", "--rate", "5"], ["5/s"]),
        (["measure", "good.onnx", "--rate", "5/s", "--duration", "5"], ["--duration 5s"]),
        (["measure", "good.onnx", "--rate", "5/s", "--duration", "1e9h"], ["--duration", "336h"]),
        (["measure", "missing.onnx", "--rate", "5/s"], ["missing.onnx"]),
        (["measure", "grpc://localhost:1", "--rate", "5/s"], ["--model"]),
        (
            ["measure", "grpc://localhost:1", "--rate", "5/s", "--model", "m"],
            ["localhost:1 does not answer"],
        ),
        (
            ["measure", "http://localhost:1", "--rate", "5/s", "--model", "m"],
            ["localhost:1 does not answer"],
        ),
        (["measure", "ftp://localhost", "--rate", "5/s", "--model", "m"], ["ftp://localhost"]),
        (["simulate"], ["--service-time"]),
        (["simulate", "--service-time", "1=9", "--arrivals", "poisson:9/s"], ["9ms"]),
        (["simulate", "--service-time", "1=25h", "--arrivals", "poisson:9/s"], ["at most 24h"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_the_other_commands_refuse_as_clearly(
    call: Call, good: str, args: list[str], words: list[str]
) -> None:
    refused(call(*args, "--json"), *words)


def test_without_json_standard_output_stays_empty(call: Call, good: str) -> None:
    answer = call(good, "--latency-budget", "500")
    assert (answer.code, answer.stdout) == (2, "")


@pytest.mark.parametrize("flag", ["-v", "--verbose", "-qv", "-vq"])
def test_verbose_adds_the_traceback(call: Call, good: str, flag: str) -> None:
    assert "Traceback" in call(good, "--latency-budget", "500", flag).stderr
    assert "Traceback" not in call("report", "-q", "-ov.csv").stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_answer_to_a_full_disk_ends_without_a_traceback(program: Any) -> None:
    args = ["simulate", "--service-time", "1=10ms", "--arrivals", "constant:5/s", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*program.PROGRAM, *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
        )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: The disk is full.\n")
    assert "Traceback" not in done.stderr and "report it" not in done.stderr


def test_help_and_version_are_answers(call: Call) -> None:
    assert call("--version").stdout.startswith("analyze, version")
    assert "Commands:" in call("-h").stdout
    answer = call()
    assert answer.code == 2 and "Commands:" in answer.stderr
