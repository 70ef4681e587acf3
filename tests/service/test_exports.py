"""Exports to object stores: of the operator's list alone, with the worker's credentials alone."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from analyzer.cli.main import main
from analyzer.service.limits import ServiceLimits
from analyzer.service.options import check_options, may_export
from analyzer.service.problems import Problem

pytestmark = pytest.mark.sqlite_alone

_SPEC = importlib.util.spec_from_file_location(
    "buckets_conftest", Path(__file__).parents[1] / "buckets" / "conftest.py"
)
assert _SPEC is not None and _SPEC.loader is not None
_REAL = importlib.util.module_from_spec(_SPEC)
sys.modules["buckets_conftest"] = _REAL
_SPEC.loader.exec_module(_REAL)
s3_server = _REAL.s3_server


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        ("s3://models", True), ("s3://models/team/x", True), ("S3://models/a", True),
        ("s3://models2", False), ("s3://other/models", False), ("gs://models", False),
        ("s3://10.0.0.1:9000/models/x", False), ("as://account/models", False),
        ("gs://shared/team", True), ("gs://shared/team/x", True), ("gs://shared/teams", False),
        ("gs://shared", False),
    ],
)  # fmt: skip
def test_a_place_is_allowed_with_all_below_it(place: str, allowed: bool) -> None:
    assert may_export(place, ("s3://models", "gs://shared/team")) is allowed


@pytest.mark.parametrize(
    "place",
    [
        "s3://elsewhere/x", "/tmp/models", "file:///etc", "s3://models/../other", "https://x/y",
        "s3://key:secret@models/x", "models",
    ],
)  # fmt: skip
def test_other_places_are_refused(place: str) -> None:
    limits = ServiceLimits(buckets=("s3://models/team",))
    with pytest.raises(Problem) as refused:
        check_options("search", {"latency_budget": "5ms", "export": place}, limits)
    assert refused.value.status == 422
    with pytest.raises(Problem):
        check_options("search", {"latency_budget": "5ms", "export": "s3://models"}, ServiceLimits())
    with pytest.raises(Problem, match="belongs to export"):
        check_options("search", {"latency_budget": "5ms", "force": True}, limits)


def test_a_job_exports_to_a_real_store(
    service: Any, working: Any, s3_server: Any, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.writer[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.writer[1])
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    bucket = s3_server.make_bucket()
    place = s3_server.url(bucket, "")
    client: httpx.Client = service.client(buckets=(place,))
    model = tmp_path / "m.onnx"
    model.write_text(json.dumps({"outcomes": 1, "result": True}))

    def search(*more: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(
                ["search", str(model), "--latency-budget", "50ms", "--service",
                 str(client.base_url), "--export", s3_server.url(bucket), *more]
            )  # fmt: skip
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    with working(buckets=(place,)):
        code, out, err = search()
        assert code == 0 and f"Exported to {s3_server.url(bucket)}/m, version 1." in out, err
        refused, _, said = search()
        assert refused == 2 and "It is there already." in said
        assert search("--force")[0] == 0
    files = s3_server.files(bucket)
    assert files == [
        f"repository/m/{name}"
        for name in ("1/model.onnx", "2/model.onnx", "config.pbtxt", "tritune.json")
    ], "without what its links lead to"
    assert s3_server.rclone("cat", f"real:{bucket}/repository/m/config.pbtxt") == "version 2"
    jobs = client.get("/api/v1/jobs").json()["items"]
    assert [job["state"] for job in jobs] == ["SUCCEEDED"] * 3
    assert [job["reason"] for job in jobs] == [None, "export", None]
    page = client.get(f"/jobs/{jobs[1]['id']}").text
    assert "It is there already." in page
    # Nobody is told a credential.
    everything = json.dumps(jobs) + "".join(
        client.get(f"/api/v1/jobs/{job['id']}/{what}").text
        for job in jobs
        for what in ("log", "events", "result")
    )
    assert s3_server.writer[1] not in everything
