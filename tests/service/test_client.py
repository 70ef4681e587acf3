"""``analyze search --service URL``: same options, same answer, same exit codes."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from analyzer.cli.main import main
from analyzer.errors import TargetError
from analyzer.service import client as client_module
from analyzer.service.event_stream import EventHub
from analyzer.service.limits import INSPECTION_S

pytestmark = pytest.mark.sqlite_alone


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    told = capsys.readouterr()
    return int(end.value.code or 0), told.out, told.err


def test_the_answer_and_the_code_are_those_of_a_local_search(
    client: httpx.Client, working: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    for script, code in (
        ({"verdict": "found", "outcomes": 1}, 0),
        ({"verdict": "infeasible", "exit": 3, "export": False}, 3),
        ({"verdict": "undecided", "exit": 4, "export": False}, 4),
    ):
        model.write_text(json.dumps(script))
        exported = tmp_path / str(code)
        with working():
            ended, out, err = run(
                capsys, "search", str(model), "--latency-budget", "50ms", "--budget", "0.5m",
                "--target-rate", "600/min", "--max-memory", "8GiB", "--precisions", "fp32,int8",
                "--service", str(client.base_url), "--json", "--export", str(exported),
            )  # fmt: skip
        assert ended == code, err
        assert json.loads(out)["verdict"] == script["verdict"]
        assert "inspecting the model" in err
        assert (exported / "m" / "config.pbtxt").is_file() == (code == 0)
        options = client.get("/api/v1/jobs").json()["items"][0]["options"]
        assert options == {
            "latency_budget": "50.0ms", "budget": "30.0s", "target_rate": "10.0/s",
            "max_memory": "8589934592B", "precisions": "fp32,int8",
        }  # fmt: skip


def test_the_report_has_the_format_of_its_ending(
    client: httpx.Client, working: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_text(json.dumps({"outcomes": 1, "result": True}))
    for ending, begins in (
        ("html", "<!doctype html>"), ("md", "# "), ("csv", "number,config_id"), ("json", "{")
    ):  # fmt: skip
        report = tmp_path / f"report.{ending}"
        with working():
            code, _, err = run(
                capsys, "search", str(model), "--latency-budget", "50ms", "--report", str(report),
                "--service", str(client.base_url),
            )  # fmt: skip
        assert code == 0, err
        assert report.read_text().lower().startswith(begins)


def test_a_report_of_no_format_is_refused_before_anything_is_sent(
    client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_text("{}")
    code, _, err = run(
        capsys, "search", str(model), "--latency-budget", "50ms", "--report", "report.pdf",
        "--service", str(client.base_url),
    )  # fmt: skip
    assert code == 2 and "report.pdf" in err
    assert client.get("/api/v1/models").json()["items"] == []


def test_a_failure_there_is_a_failure_here(
    client: httpx.Client, working: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    error = {"code": "model", "message": "It is no ONNX file.", "hint": "Export it again."}
    model.write_text(json.dumps({"exit": 2, "error": error}))
    with working():
        code, out, err = run(
            capsys, "search", str(model), "--latency-budget", "50ms", "--json", "-q",
            "--service", str(client.base_url),
        )  # fmt: skip
    assert code == 2 and json.loads(out) == {"schema": 1, "error": error}, err


def test_what_a_service_cannot_do_is_refused(
    client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_text("{}")
    for arguments, says in (
        (["--store", "sqlite:///here.db"], "own database"),
        (["--server", "grpc://localhost:8001"], "server"),
        (["--ray-address", "x:1"], "operator"),
        (["--study", "s", "--resume"], "no study 's'"),
        (["--study", "a b"], "'a b' is no name of a study"),
        (["--resume"], "needs the study's name"),
        (["--force"], "belongs to --export"),
        (["--budget", "20h"], "budget"),
    ):
        code, _, err = run(
            capsys, "search", str(model), "--latency-budget", "50ms", *arguments,
            "--service", str(client.base_url),
        )  # fmt: skip
        assert code == 2 and says in err, err
        assert client.get("/api/v1/jobs").json()["items"] == [], arguments


def test_a_study_goes_on_in_a_new_job(
    client: httpx.Client, working: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_text(json.dumps({"outcomes": 2, "exit": 4, "verdict": "undecided"}))
    command = (
        "search", str(model), "--latency-budget", "50ms", "--service", str(client.base_url),
        "--study", "s", "--json",
    )  # fmt: skip
    with working():
        assert run(capsys, *command)[0] == 4
        assert run(capsys, *command)[0] == 2, "the name is taken"
        code, _, err = run(capsys, *command, "--resume")
    assert code == 4 and "Note: 2 were there" in err


def test_an_interrupt_here_cancels_the_job_there(
    client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model = tmp_path / "m.onnx"
    model.write_text("{}")

    def interrupted(self: client_module.ServiceClient, job: str) -> Iterator[client_module.Event]:
        assert self.job(job)["state"] == "QUEUED"
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(client_module.ServiceClient, "events", interrupted)
    code, out, err = run(
        capsys, "search", str(model), "--latency-budget", "50ms", "--json",
        "--service", str(client.base_url),
    )  # fmt: skip
    assert code == 130 and json.loads(out)["error"]["code"] == "interrupted", err
    assert [job["state"] for job in client.get("/api/v1/jobs").json()["items"]] == ["CANCELLED"]


def test_a_job_that_somebody_cancels_there_is_an_interrupt_here(
    client: httpx.Client, working: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_text(json.dumps({"seconds": 600}))

    def cancel() -> None:
        while not (jobs := client.get("/api/v1/jobs?state=RUNNING").json()["items"]):
            time.sleep(0.1)
        client.post(f"/api/v1/jobs/{jobs[0]['id']}/cancel")

    somebody = threading.Thread(target=cancel)
    somebody.start()
    with working():
        code, out, err = run(
            capsys, "search", str(model), "--latency-budget", "50ms", "--json",
            "--service", str(client.base_url),
        )  # fmt: skip
    somebody.join()
    assert code == 130 and "cancelled" in json.loads(out)["error"]["message"], err


def test_a_service_that_takes_no_more_watchers_is_asked_now_and_then(
    service: Any, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_AGAIN_S", 0.1)
    monkeypatch.setattr(client_module, "_PATIENCE_S", 0.35)
    job = submit(outcomes=1)
    url = service.serve(hub=EventHub(service.context.database, streams_max=0))
    with (
        client_module.ServiceClient(url, None) as asking,
        pytest.raises(TargetError, match="Too many clients"),
    ):
        list(asking.events(job))
    told = httpx.get(f"{url}/metrics").text
    asked = re.search(r'requests_total.*events",status="503"} ([0-9.]+)', told)
    assert asked is not None and 2 <= float(asked[1]) <= 5


def test_a_service_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.onnx"
    model.write_text("{}")
    nowhere = ("--service", "http://127.0.0.1:9", "--json")
    code, out, _ = run(capsys, "search", str(model), "--latency-budget", "50ms", *nowhere)
    error = json.loads(out)["error"]
    assert code == 2 and error["code"] == "missing" and "127.0.0.1:9" in error["message"]


def test_without_its_token_a_service_is_of_no_use(
    service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model = tmp_path / "m.onnx"
    model.write_text("{}")
    url = str(service.client(tokens=True).base_url)
    monkeypatch.delenv("TRITUNE_TOKEN", raising=False)
    code, _, err = run(capsys, "search", str(model), "--latency-budget", "50ms", "--service", url)
    assert code == 2 and "TRITUNE_TOKEN" in err


class Broken(httpx.SyncByteStream):
    """A body whose connection is lost before its end."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"hal"
        raise httpx.ReadError("the connection was lost")


@contextmanager
def asking(
    answer: Callable[[httpx.Request], httpx.Response],
) -> Iterator[client_module.ServiceClient]:
    """A client of a service that answers like this."""
    with client_module.ServiceClient("http://service", None) as found:
        found._http.close()
        found._http = httpx.Client(
            base_url="http://service", transport=httpx.MockTransport(answer), timeout=45
        )
        yield found


def test_what_a_job_has_left_is_fetched_though_the_service_goes_away_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repository of a search of an hour was lost with one connection, and in httpx's words."""
    monkeypatch.setattr(client_module, "_AGAIN_S", 0.0)
    answers = iter(
        [
            httpx.Response(200, stream=Broken()), httpx.ConnectError("refused"),
            httpx.Response(503), httpx.Response(200, content=b"whole"), httpx.Response(409),
        ]
    )  # fmt: skip

    def answer(_: httpx.Request) -> httpx.Response:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    place = tmp_path / "repository.tar"
    with asking(answer) as client:
        assert client.fetch("j", "repository.tar", place) and place.read_bytes() == b"whole"
        assert not client.fetch("j", "repository.tar", place), "the job has left none"
    monkeypatch.setattr(client_module, "_PATIENCE_S", 0.05)
    with (
        asking(lambda _: httpx.Response(200, stream=Broken())) as client,
        pytest.raises(TargetError, match="does not answer: the connection was lost"),
    ):
        client.fetch("j", "repository.tar", place)


def test_what_is_handed_in_may_wait_for_its_inspection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gave up after 45 s, where one inspection alone may last for 60."""
    (tmp_path / "m.onnx").write_bytes(b"m")
    waits_s: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        waits_s.append(request.extensions["timeout"]["read"])
        return httpx.Response(201, json={"id": "1"})

    with asking(answer) as client:
        client.upload("models", tmp_path / "m.onnx", "m")
        client.submit({})
        client.job("1")
    assert min(waits_s[:2]) >= 2 * INSPECTION_S > waits_s[2]


def test_a_job_whose_answer_was_long_in_coming_is_asked_for_again_where_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The patience was over before there was a reason for it."""
    monkeypatch.setattr(client_module, "_AGAIN_S", 0.0)
    monkeypatch.setattr(client_module, "_PATIENCE_S", 0.1)
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            keys.append(request.headers["Idempotency-Key"])
            if len(keys) == 1:
                time.sleep(0.2)
                raise httpx.ReadError("the connection was lost")
        return httpx.Response(201, json={"id": "1"})

    with asking(answer) as client:
        client.job("1")
        assert client.submit({}) == {"id": "1"}
    assert len(keys) == 2 and keys[0] == keys[1]
