"""A real search through the service: uploaded, isolated, measured, exported."""

from __future__ import annotations

import io
import tarfile
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from analyzer.service.content import ContentStore
from analyzer.service.limits import ServiceLimits
from analyzer.service.queue import Device
from analyzer.service.worker import Worker
from analyzer.store.database import Database

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_model_becomes_a_repository(
    client: httpx.Client, database: Database, content: ContentStore, wait_for: Any
) -> None:
    model = client.post(
        "/api/v1/models?name=digits", content=(EXAMPLES / "digits.onnx").read_bytes()
    ).json()["id"]
    data = client.post(
        "/api/v1/calibration?name=digits", content=(EXAMPLES / "digits.npz").read_bytes()
    ).json()["id"]
    # A budget that a busy machine can answer from: an estimate is enough here.
    options = {
        "latency_budget": "500ms", "budget": "30s", "accept": "estimated", "calibration_data": data,
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
    finally:
        stop.set()
        thread.join(60)
    assert done["state"] == "SUCCEEDED", (done["message"], done["log_tail"])
    path = f"/api/v1/jobs/{job}"
    result = client.get(f"{path}/result").json()
    assert result["verdict"] == done["verdict"] and result["model"]["name"] == "digits"
    assert b"<html" in client.get(f"{path}/artifacts/report.html").content[:500]
    if done["verdict"] in ("found", "estimated"):
        packed = client.get(f"{path}/artifacts/repository.tar").content
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            assert "repository/digits/config.pbtxt" in archive.getnames()
        manifest = client.get(f"{path}/artifacts/manifest.json").json()
        assert manifest["schema"] == 1
