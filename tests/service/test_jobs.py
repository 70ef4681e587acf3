"""Jobs from their upload to their files, with a command that does as it is told."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from analyzer.cli.machine import constants_folder
from analyzer.cli.main import main
from analyzer.cli.options import command_line
from analyzer.cli.preflight import check_store
from analyzer.service.folder import CONSTANTS, JobFolder
from analyzer.service.progress import LogReader
from analyzer.service.variants import KeptVariants

# The command, its files and its processes, which know nothing of the service's database; that what
# they leave gets into a PostgreSQL is shown by the other tests.
of_the_command = pytest.mark.long_on_postgres

Submit = Callable[..., str]
WaitFor = Callable[..., dict[str, Any]]


def processes_with(argument: str) -> list[str]:
    """Ids of processes of this machine that have the argument."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if argument.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(entry.name)
    return found


def test_a_search_from_upload_to_repository(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    job = submit(outcomes=2)
    with working():
        done = wait_for(job, "SUCCEEDED", "FAILED")
    assert done["verdict"] == "found", done["log_tail"]
    path = f"/api/v1/jobs/{job}"
    assert client.get(f"{path}/result").json() == {"schema": 1, "verdict": "found"}
    report = client.get(f"{path}/artifacts/report.html")
    assert report.text == "<p>report"
    # Made of what users uploaded: it must not run as this site's.
    assert report.headers["content-security-policy"] == "sandbox allow-scripts"
    assert report.headers["content-disposition"].startswith("attachment")
    assert report.headers["x-content-type-options"] == "nosniff"
    assert client.get(f"{path}/artifacts/study.db").content.startswith(b"SQLite format 3")
    assert list(client.get(f"{path}/artifacts/manifest.json").json()["versions"]) == ["1"]
    packed = client.get(f"{path}/artifacts/repository.tar").content
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert "repository/m/config.pbtxt" in archive.getnames()
    assert [trial["trial_number"] for trial in client.get(f"{path}/trials").json()["trials"]] == [
        0,
        1,
    ]
    assert "inspecting the model" in client.get(f"{path}/log").text
    kinds = [
        line.partition(": ")[2]
        for line in client.get(f"{path}/events").text.splitlines()
        if line.startswith("event: ")
    ]
    assert kinds[:2] == ["state", "state"] and kinds[-1] == "state"
    assert kinds.count("trial") == 2 and "phase" in kinds


def test_trials_are_numbered_as_the_command_line_numbers_them(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """``number`` was the row's place in the database of the study, from 1."""
    job = submit(outcomes=2, result=True)
    with working():
        study = wait_for(job, "SUCCEEDED", "FAILED")["study"]
    path = f"/api/v1/jobs/{job}"
    (tmp_path / "left.db").write_bytes(client.get(f"{path}/artifacts/study.db").content)
    store = f"sqlite:///{tmp_path / 'left.db'}"
    with pytest.raises(SystemExit) as end:
        main(["studies", "show", study, "--store", store, "--json"])
    assert end.value.code == 0
    told = json.loads(capsys.readouterr().out)["trials"]
    assert [trial["number"] for trial in told] == [0, 1]
    found = client.get(f"{path}/trials").json()["trials"]
    for name in ("number", "position", "config_id", "role", "state"):
        assert [trial[name] for trial in found] == [trial[name] for trial in told], name


@pytest.mark.parametrize(("code", "verdict"), [(3, "infeasible"), (4, "undecided")])
def test_that_nothing_keeps_the_sla_is_an_answer(
    submit: Submit, working: Any, wait_for: WaitFor, code: int, verdict: str
) -> None:
    job = submit(exit=code, verdict=verdict, export=False)
    with working():
        done = wait_for(job, "SUCCEEDED", "FAILED")
    assert (done["state"], done["verdict"], done["exit_code"]) == ("SUCCEEDED", verdict, code)


def test_the_study_of_a_model_with_a_long_name_has_a_name_that_the_command_takes(
    client: httpx.Client, submit: Submit, tmp_path: Path
) -> None:
    made = [client.get(f"/api/v1/jobs/{submit(name='m' * 100)}").json() for _ in range(2)]
    assert [job["study"] for job in made] == [f"{'m' * 91}-{job['id'][:8]}" for job in made]
    for job in made:
        check_store(f"sqlite:///{tmp_path}/own.db", study=job["study"], resume=False)


def test_why_a_job_failed_stands_in_fields_of_its_own(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    error = {"code": "model", "message": "It is no ONNX file.", "hint": "Export it again."}
    job = submit(exit=2, error=error, say="the last words")
    with working():
        done = wait_for(job, "SUCCEEDED", "FAILED")
    assert done["state"] == "FAILED"
    assert (done["reason"], done["message"], done["hint"]) == tuple(error.values())
    assert done["log_tail"].endswith("the last words\n")
    [listed] = client.get("/api/v1/jobs").json()["items"]
    assert done == {**listed, "log_tail": done["log_tail"]}, "all but its log is in the list"
    assert client.get(f"/api/v1/jobs/{job}/result").status_code == 409
    assert client.get(f"/api/v1/jobs/{job}/artifacts/repository.tar").status_code == 409


@pytest.mark.long_on_postgres
def test_a_pause_keeps_what_was_measured_and_the_job_goes_on_there(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    job = submit(outcomes=6, hold=2)
    path = f"/api/v1/jobs/{job}"
    with working():
        while not client.get(f"{path}/trials").json()["trials"]:
            time.sleep(0.1)
        assert client.post(f"{path}/pause").json()["state"] == "PAUSING"
        wait_for(job, "PAUSED")
        kept = len(client.get(f"{path}/trials").json()["trials"])
        assert client.post(f"{path}/resume").json()["attempt"] == 2
        done = wait_for(job, "SUCCEEDED", "FAILED")
    assert done["state"] == "SUCCEEDED", done["log_tail"]
    assert f"Note: {kept} were there" in client.get(f"{path}/log").text
    assert len(client.get(f"{path}/trials").json()["trials"]) == 6
    assert client.get(f"{path}/events").text.count("event: trial") == 6, "each is told once"


@of_the_command
def test_a_cancel_ends_a_stubborn_command_and_what_it_left_behind(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    mark = f"600.{time.monotonic_ns()}"
    job = submit(seconds=600, stubborn=True, daemon=mark)
    with working():
        while not processes_with(mark):
            time.sleep(0.1)
        assert client.post(f"/api/v1/jobs/{job}/cancel").json()["state"] == "CANCELLING"
        wait_for(job, "CANCELLED", timeout_s=60)
        assert not processes_with(mark)


def test_a_cancel_ends_a_job_that_is_being_prepared(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def give(_: KeptVariants, place: Path, between: Callable[[], object], *__: object) -> None:
        while True:  # a copy of many gigabytes
            between()
            time.sleep(0.05)

    job = submit()
    with working(lease_s=6.0):
        with monkeypatch.context() as patch:
            patch.setattr(KeptVariants, "give", give)
            wait_for(job, "RUNNING")
            assert client.post(f"/api/v1/jobs/{job}/cancel").json()["state"] == "CANCELLING"
            done = wait_for(job, "CANCELLED", timeout_s=60)
        assert done["attempt"] == 1, "it was not its lease that ended it"
        assert client.get(f"/api/v1/jobs/{job}/log").text == "", "its command has begun"
        wait_for(submit(say="the next"), "SUCCEEDED")


def test_a_job_that_is_cancelled_while_its_answer_is_stored_has_no_result(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    manifest = JobFolder.manifest

    def cancelled_meanwhile(own: JobFolder, model: str) -> Any:
        assert client.post(f"/api/v1/jobs/{job}/cancel").json()["state"] == "CANCELLING"
        return manifest(own, model)

    job = submit(outcomes=1)
    monkeypatch.setattr(JobFolder, "manifest", cancelled_meanwhile)
    with working():
        done = wait_for(job, "CANCELLED", "SUCCEEDED", "FAILED")
    assert (done["state"], done["verdict"], done["message"]) == ("CANCELLED", None, None)
    for name in ("result", "artifacts/repository.tar", "artifacts/report.html"):
        assert client.get(f"/api/v1/jobs/{job}/{name}").status_code == 409, name
    assert client.get(f"/api/v1/jobs/{job}/artifacts/study.db").status_code == 200


@of_the_command
def test_a_command_has_limits_and_goes_before_the_service_where_memory_is_short(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    job = submit(limits=["RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_CORE"])
    with working(memory_bytes_max=64 << 30, file_bytes_max=1 << 30):
        wait_for(job, "SUCCEEDED", "FAILED")
    log = client.get(f"/api/v1/jobs/{job}/log").text
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert f"limits {64 << 30} {1 << 30} 0 offered {max(own, 500)}\n" in log


@pytest.mark.long_on_postgres
def test_a_worker_that_is_told_to_end_gives_its_job_back(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    job = submit(outcomes=5, hold=2)
    with working():
        while not client.get(f"/api/v1/jobs/{job}/trials").json()["trials"]:
            time.sleep(0.1)
    given_back = wait_for(job, "QUEUED")
    kept = len(client.get(f"/api/v1/jobs/{job}/trials").json()["trials"])
    assert given_back["attempt"] == 2
    with working():
        wait_for(job, "SUCCEEDED")
    log = client.get(f"/api/v1/jobs/{job}/log").text
    assert "Note: 0 were there" in log and f"Note: {kept} were there" in log


@of_the_command
def test_links_in_a_repository_are_left_out(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    job = submit(link=True)
    with working():
        wait_for(job, "SUCCEEDED")
    packed = client.get(f"/api/v1/jobs/{job}/artifacts/repository.tar").content
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert all(member.isreg() or member.isdir() for member in archive)
        assert "repository/m/stolen" not in archive.getnames()


@of_the_command
def test_a_study_that_is_a_link_to_another_database_is_not_copied(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor, tmp_path: Path
) -> None:
    secret = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(secret)) as other:
        other.execute("CREATE TABLE secret (word TEXT)")
    job = submit(study_link=str(secret))
    with working() as worker:
        if missing := worker.isolation.missing():
            pytest.skip(f"this machine does not keep a command from {missing}")
        wait_for(job, "SUCCEEDED")
    assert client.get(f"/api/v1/jobs/{job}/artifacts/study.db").status_code == 409


def test_verify_measures_the_repository_of_a_search(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    search = submit()
    with working():
        model = wait_for(search, "SUCCEEDED")["model"]
        done = client.post("/api/v1/jobs", json={"kind": "verify", "model": model})
        assert done.status_code == 201, done.text
        assert done.json()["job"] == search
        assert wait_for(done.json()["id"], "SUCCEEDED")["message"] is None
        body = {"kind": "verify", "model": model, "options": {"target_rate": "25/s"}}
        done = client.post("/api/v1/jobs", json=body)
        verified = wait_for(done.json()["id"], "SUCCEEDED")
    assert verified["verdict"] == "undecided"
    assert verified["message"].startswith("Undecided: 76 of 1,159 requests at 25 /s")
    assert "5,000 more requests" in verified["hint"]


@of_the_command
def test_a_log_is_plain_text(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    job = submit(say="\x1b[1;31mred [E:onnxruntime]\x1b[m and plain", exit=1, error={"code": "x"})
    with working():
        done = wait_for(job, "FAILED")
    log = client.get(f"/api/v1/jobs/{job}/log").text
    assert "red [E:onnxruntime] and plain" in log and "\x1b" not in log + done["log_tail"]


def test_a_colour_that_comes_in_pieces_is_left_out() -> None:
    reader = LogReader(1000)
    pieces = ["one \x1b", "[1;3", "1mtwo\x1b[", "m three\n"]
    said = [event for piece in pieces for event in reader.feed(piece)]
    assert "".join(body["text"] for _, body in said) == reader.tail == "one two three\n"


@of_the_command
def test_a_trial_tells_the_interval_of_its_edge(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    job = submit(outcomes=1)
    with working():
        wait_for(job, "SUCCEEDED")
    (found,) = client.get(f"/api/v1/jobs/{job}/trials").json()["trials"]
    assert (found["edge_rps"], found["edge_interval_rps"]) == (320.5, [300.25, None])


def test_words_that_no_database_holds_end_no_worker(
    submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    error = {"code": "a\x00b", "message": "half \ud800 and \x00", "hint": "\udfff"}
    job = submit(exit=1, error=error, say="null \x00 here")
    with working():
        done = wait_for(job, "FAILED")
    assert done["attempt"] == 1 and done["message"] == "half ? and \ufffd"


@of_the_command
def test_what_was_measured_of_the_machine_reaches_the_job(
    client: httpx.Client, submit: Submit, working: Any, wait_for: WaitFor, tmp_path: Path
) -> None:
    folder = tmp_path / "constants"
    folder.mkdir()
    (folder / "machine-1.json").write_text("of this machine")
    job = submit(constants=True)
    with working(constants=folder):
        wait_for(job, "SUCCEEDED", "FAILED")
    assert "['of this machine']" in client.get(f"/api/v1/jobs/{job}/log").text
    again = submit(constants=True, seconds=0)
    with working(constants=tmp_path / "none"):
        wait_for(again, "SUCCEEDED", "FAILED")
    assert "\n[]\n" in client.get(f"/api/v1/jobs/{again}/log").text


def test_both_sides_keep_the_constants_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITUNE_CACHE", "/x")
    assert constants_folder() == Path("/x") / CONSTANTS


@of_the_command
def test_a_command_is_told_what_its_user_would_type(
    client: httpx.Client, upload: Callable[..., str], working: Any, wait_for: WaitFor
) -> None:
    options = {"latency_budget": "50ms", "input_shape": ["x:3,4", "y:5"], "study": "s"}
    body = {"kind": "search", "model": upload(told=True), "options": options}
    job = client.post("/api/v1/jobs", json=body).json()["id"]
    with working():
        log = wait_for(job, "SUCCEEDED", "FAILED")["log_tail"]
    assert (
        "told analyze search m.onnx --latency-budget=50ms --input-shape=x:3,4 --input-shape=y:5 "
        "--study=s --store=sqlite:///study.db\n"
    ) in log


def test_a_study_notes_the_command_that_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_line(["search", "m.onnx"]) == "analyze search m.onnx"
    monkeypatch.setenv("TRITUNE_COMMAND", "analyze search other.onnx")
    assert command_line(["search", "m.onnx"]) == "analyze search other.onnx"


@of_the_command
def test_why_a_job_failed_does_not_say_where_it_ran(
    submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    error = {"code": "model", "message": "HERE/m.onnx has no inputs.", "hint": "See HERE/m.onnx."}
    job = submit(exit=2, error=error, export=False)
    with working():
        done = wait_for(job, "SUCCEEDED", "FAILED")
    assert (done["message"], done["hint"]) == ("m.onnx has no inputs.", "See m.onnx.")


@of_the_command
def test_an_undecided_job_says_why_and_what_helps(
    submit: Submit, working: Any, wait_for: WaitFor
) -> None:
    job = submit(outcomes=1, exit=4, verdict="undecided", export=False)
    with working():
        done = wait_for(job, "SUCCEEDED", "FAILED")
    assert done["verdict"] == "undecided" and done["message"].endswith(".")
    assert f"--study {done['study']} --resume" in done["hint"]
