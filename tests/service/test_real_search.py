"""A real search through the service: uploaded, isolated, measured, exported."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from analyzer.service.archive import pack
from analyzer.service.content import ContentStore
from analyzer.service.limits import ServiceLimits
from analyzer.service.queue import Device
from analyzer.service.worker import Worker
from analyzer.store.database import Database
from analyzer.targets.ports import free_ports

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(480)
@pytest.mark.sqlite_alone
@pytest.mark.parametrize("directory", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_model_becomes_a_repository(
    client: httpx.Client, database: Database, content: ContentStore, wait_for: Any,
    tmp_path: Path, directory: bool,
) -> None:  # fmt: skip
    file = EXAMPLES / "digits.onnx"
    if directory:
        own = tmp_path / "model"
        (own / "1").mkdir(parents=True)
        (own / "1" / "model.onnx").write_bytes(file.read_bytes())
        (own / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 16\n')
        file = tmp_path / "model.tar"
        pack(own, "model", file)
    model = client.post("/api/v1/models?name=digits", content=file.read_bytes()).json()["id"]
    data = client.post(
        "/api/v1/calibration?name=digits", content=(EXAMPLES / "digits.npz").read_bytes()
    ).json()["id"]
    # A budget that a busy machine can answer from: an estimate is enough here.
    options = {
        "latency_budget": "500ms", "budget": "20s", "accept": "estimated", "calibration_data": data,
        "precisions": "fp32", "max_trials": 1, "seed": 7,
    }  # fmt: skip
    job = client.post(
        "/api/v1/jobs", json={"kind": "search", "model": model, "options": options}
    ).json()["id"]
    stop = threading.Event()
    worker = Worker(
        database, content, Device(id="here/cpu", kind="cpu", host="here", name="a CPU"),
        ServiceLimits(), stopping=stop.is_set,
    )  # fmt: skip
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        done = wait_for(job, "SUCCEEDED", "FAILED", timeout_s=200)
        if directory and done["verdict"] in ("found", "estimated"):
            # A rate that any machine carries: what is shown is the way, not the machine.
            claim = {"target_rate": "5/s", "budget": "20s", "seed": 8}
            body = {"kind": "verify", "job": job, "options": claim}
            verify = client.post("/api/v1/jobs", json=body).json()["id"]
            verified = wait_for(verify, "SUCCEEDED", "FAILED", timeout_s=200)
            assert verified["state"] == "SUCCEEDED", (verified["message"], verified["log_tail"])
            answer = client.get(f"/api/v1/jobs/{verify}/result").json()
            assert answer["verdict"] == verified["verdict"] in ("holds", "undecided")
            assert answer["claim"] and answer["measured"]
    finally:
        stop.set()
        thread.join(60)
    assert done["state"] == "SUCCEEDED", (done["message"], done["log_tail"])
    path = f"/api/v1/jobs/{job}"
    assert "8.8.8.8" not in client.get(f"{path}/log").text, "Ray asks nobody for its own address"
    result = client.get(f"{path}/result").json()
    assert result["verdict"] == done["verdict"] and result["model"]["name"] == "digits"
    if directory:
        assert result["baseline"]["config"]["max_batch_size"] == 16, "that of its config.pbtxt"
    assert b"<html" in client.get(f"{path}/artifacts/report.html").content[:500]
    if done["verdict"] in ("found", "estimated"):
        packed = client.get(f"{path}/artifacts/repository.tar").content
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            assert "repository/digits/config.pbtxt" in archive.getnames()
        manifest = client.get(f"{path}/artifacts/manifest.json").json()
        assert manifest["schema"] == 1


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.sqlite_alone
def test_a_job_measures_a_server_elsewhere(
    service: Any, database: Database, content: ContentStore, tmp_path: Path
) -> None:
    (tmp_path / "repository").mkdir()
    http, grpc, metrics = free_ports(3)
    limits = ServiceLimits(endpoints=(f"grpc://127.0.0.1:{grpc}",))
    client = service.client(endpoints=limits.endpoints)
    command = [
        sys.executable, "-m", "analyzer.cli.main", "serve", str(tmp_path / "repository"),
        "--model-control-mode", "explicit", f"--http-port={http}", f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
    ]  # fmt: skip
    with (tmp_path / "serve.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    model = client.post(
        "/api/v1/models?name=digits", content=(EXAMPLES / "digits.onnx").read_bytes()
    ).json()["id"]
    options = {
        "latency_budget": "500ms", "budget": "60s", "accept": "estimated", "precisions": "fp32",
        "max_trials": 1, "seed": 7, "executor": "in-process", "server": limits.endpoints[0],
    }  # fmt: skip
    body = {"kind": "search", "model": model, "options": options}
    job = client.post("/api/v1/jobs", json=body).json()["id"]
    stop = threading.Event()
    worker = Worker(
        database, content, Device(id="here/cpu", kind="cpu", host="here", name="a CPU"), limits,
        stopping=stop.is_set,
    )  # fmt: skip
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        ends_at = time.monotonic() + 200
        while (done := client.get(f"/api/v1/jobs/{job}").json())["finished_at"] is None:
            assert time.monotonic() < ends_at, done
            time.sleep(0.5)
    finally:
        stop.set()
        thread.join(60)
        server.terminate()
        server.wait(30)
    assert done["state"] == "SUCCEEDED", (done["message"], done["log_tail"])
    result = client.get(f"/api/v1/jobs/{job}/result").json()
    assert result["search"]["evaluated_live"] >= 1
