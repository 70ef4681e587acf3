"""``analyze search --service URL``: what is refused here, what is said and written at its end."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from analyzer.cli import remote
from analyzer.cli.main import main
from analyzer.errors import RepositoryError
from analyzer.service import client as client_module
from analyzer.service.inspection import Inspector
from analyzer.service.sandbox import Isolation
from analyzer.variants.onnx_file import default_name

pytestmark = pytest.mark.sqlite_alone
UNDECIDED = {"outcomes": 1, "exit": 4, "verdict": "undecided", "export": False}


@pytest.fixture
def run(client: httpx.Client, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Searches there for a "model" that says what happens; exit code, output, standard error."""

    def do(script: dict[str, Any], *options: str, name: str = "m.onnx") -> tuple[int, str, str]:
        model = tmp_path / name
        model.parent.mkdir(parents=True, exist_ok=True)
        model.write_text(json.dumps(script))
        arguments = ["search", str(model), "--latency-budget", "50ms", *options]
        with pytest.raises(SystemExit) as end:
            main([*arguments, "--service", str(client.base_url)])
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return do


def test_an_export_that_is_there_is_refused_before_anything_is_sent(
    client: httpx.Client, run: Any, tmp_path: Path
) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    code, out, _ = run({}, "--export", str(tmp_path / "models"), "--json")
    assert code == 2 and "is there already" in json.loads(out)["error"]["message"]
    assert client.get("/api/v1/models").json()["items"] == []


def test_an_export_that_fails_at_the_end_leaves_one_document(
    run: Any, working: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> list[Path]:
        raise RepositoryError("The disk is full.", hint="Free some space.")

    monkeypatch.setattr(remote, "_unpack", full)
    with working():
        code, out, _ = run({"outcomes": 1}, "--export", str(tmp_path / "models"), "--json")
    error = json.loads(out)["error"]
    assert code == 2 and (error["code"], error["message"]) == ("repository", "The disk is full.")
    assert error["hint"].startswith("Free some space. The job ")


def test_the_next_command_is_this_one(client: httpx.Client, run: Any, working: Any) -> None:
    with working():
        code, out, err = run(UNDECIDED)
    assert code == 4, err
    study = client.get("/api/v1/jobs").json()["items"][0]["study"]
    words = shlex.split(out.splitlines()[-1])
    assert words[:2] == ["analyze", "search"] and words[2].endswith("/m.onnx")
    assert words[words.index("--service") + 1] == str(client.base_url)
    assert words[words.index("--study") + 1] == study and "--resume" in words


def test_the_result_that_is_printed_has_the_commands_of_this_one(
    monkeypatch: pytest.MonkeyPatch, run: Any, working: Any
) -> None:
    told = {"provenance": {"command": "there"}, "closest": {"command": "there"}}
    monkeypatch.setattr(client_module.ServiceClient, "result", lambda *_: told)
    with working():
        _, out, _ = run(UNDECIDED, "--json")
    document = json.loads(out)
    assert document["provenance"]["command"].startswith("analyze search ")
    assert "--service" in document["provenance"]["command"]
    assert " --resume" in document["closest"]["command"]


def test_a_study_in_which_nothing_was_measured_is_begun_anew(
    client: httpx.Client, run: Any, working: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: client_module.ServiceClient, job: str) -> Iterator[client_module.Event]:
        raise KeyboardInterrupt
        yield

    with monkeypatch.context() as patched:
        patched.setattr(client_module.ServiceClient, "events", interrupted)
        code, _, err = run(UNDECIDED, "--study", "s")
    assert code == 130 and "--study s --resume" in err
    with working():
        code, _, err = run(UNDECIDED, "--study", "s", "--resume")
        assert code == 4 and "Note: 0 were there" in err
        again = run(UNDECIDED, "--study", "s", "--resume")
    assert again[0] == 4 and "Note: 1 were there" in again[2]
    studies = [job["study"] for job in client.get("/api/v1/jobs").json()["items"]]
    assert studies == ["s", "s", "s"]


def test_a_job_goes_on_with_what_an_earlier_one_of_its_study_measured(
    client: httpx.Client, submit: Any, working: Any, wait_for: Any
) -> None:
    first = submit(**UNDECIDED)
    with working():
        model = wait_for(first, "SUCCEEDED", "FAILED")["model"]
    body = {
        "kind": "search", "model": model, "job": first, "options": {"latency_budget": "50ms"}
    }  # fmt: skip
    cancelled = client.post("/api/v1/jobs", json=body).json()["id"]
    client.post(f"/api/v1/jobs/{cancelled}/cancel")
    last = client.post("/api/v1/jobs", json=body | {"job": cancelled}).json()
    assert last["job"] == first
    with working():
        done = wait_for(last["id"], "SUCCEEDED", "FAILED")
    assert "Note: 1 were there" in done["log_tail"]


def test_names_are_written_as_the_service_has_them(
    client: httpx.Client, run: Any, working: Any, tmp_path: Path
) -> None:
    data = tmp_path / "my data.npz"
    data.write_bytes(b"rows")
    wanted = ["--export", str(tmp_path / "models"), "--calibration-data", str(data)]
    with working():
        for name, called in (
            ("my model.onnx", "my_model"),
            ("модель.onnx", "model_b68fad"),
            ("größe.onnx", "gro_e_d353a2"),
            ("resnet/1/model.onnx", "resnet"),
        ):
            code, _, err = run({}, *wanted, name=name)
            assert code == 0, err
            assert (tmp_path / "models" / called).is_dir()
            assert called == default_name(tmp_path / name), "as a search here has it"
            assert client.get("/api/v1/calibration").json()["items"][0]["name"] == "my_data"


def test_an_error_is_said_once(run: Any, working: Any) -> None:
    error = {"code": "model", "message": "It is no ONNX file.", "hint": "Export it again."}
    said = "one\nError: It is no ONNX file.\n  Export it again."
    with working():
        code, _, err = run({"exit": 2, "error": error, "say": said})
    assert code == 2 and err.count("It is no ONNX file.") == 1 and "one\n" in err
    assert err.endswith("Error: It is no ONNX file.\n  Export it again.\n")


def test_what_looks_like_an_error_is_shown_where_there_is_none(run: Any, working: Any) -> None:
    with working():
        code, _, err = run({"say": "Error: of a library."})
    assert code == 0 and "Error: of a library." in err


def test_what_the_service_cannot_use_has_the_code_that_it_has_here(
    service: Any, isolation_here: Isolation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(service.client(inspector=Inspector(isolation_here)).base_url)
    examples = Path(__file__).parents[2] / "examples"
    broken, data = tmp_path / "broken.onnx", tmp_path / "data.npz"
    broken.write_bytes(b"nothing")
    np.savez(data, wrong=np.zeros((2, 3)), other=np.zeros((2, 3)))
    digits = str(examples / "digits.onnx")
    for arguments, code in (
        ([str(broken)], "model"),
        ([digits, "--calibration-data", str(broken)], "data"),
        ([digits, "--calibration-data", str(data)], "data"),
        ([digits, "--input-shape", "nothing:3"], "model"),
        ([digits, "--percentile", "99", "--budget", "90h"], "usage"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["search", *arguments, "--latency-budget", "50ms", "--service", url, "--json"])
        error = json.loads(capsys.readouterr().out)["error"]
        assert (end.value.code, error["code"]) == (2, code), error
