"""What a search cannot be made of: shapes and data of another model, another study, no worker."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from page_example import Example
from sqlalchemy import update

from analyzer.service.gc import remove_unused_files
from analyzer.service.inspection import Inspector
from analyzer.service.limits import ServiceLimits
from analyzer.service.options import check_options
from analyzer.service.problems import Problem
from analyzer.service.queue import Device, Queue
from analyzer.service.sandbox import Isolation
from analyzer.service.schema import JOBS, OBJECTS

pytestmark = pytest.mark.sqlite_alone
BUDGET = {"latency_budget": "50ms"}
NO_JOB = "0" * 32


def model(
    *dims: int | str, operator: str = "Relu", opset: int = 17, kind: int = TensorProto.FLOAT
) -> bytes:
    """A model of one operator; without an input where ``dims`` is empty."""
    x = helper.make_tensor_value_info("x", kind, dims)
    y = helper.make_tensor_value_info("y", kind, dims or (1,))
    nodes = [helper.make_node(operator, ["x"], ["y"])]
    if not dims:
        value = helper.make_tensor("value", kind, (1,), [1.0])
        nodes = [helper.make_node("Constant", [], ["y"], value=value)]
    graph = helper.make_graph(nodes, "g", [x] if dims else [], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return bytes(made.SerializeToString())


def npz(**arrays: Any) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, **{name: np.asarray(array, np.float32) for name, array in arrays.items()})
    return packed.getvalue()


@pytest.fixture
def strict(service: Any, isolation_here: Isolation) -> httpx.Client:
    """A client of a service that looks at what is uploaded."""
    found: httpx.Client = service.client(inspector=Inspector(isolation_here))
    return found


def uploaded(client: httpx.Client, kind: str, content: bytes) -> str:
    done = client.post(f"/api/v1/{kind}?name=m", content=content)
    assert done.status_code == 201, done.text
    return str(done.json()["id"])


def asked(client: httpx.Client, **body: Any) -> httpx.Response:
    options = BUDGET | body.pop("options", {})
    return client.post("/api/v1/jobs", json={"kind": "search", "options": options} | body)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (model(), "has no inputs"),
        (model("N", 4, operator="Unheard"), "Unheard"),
        (model("N", 4, opset=99), "has opset 99, which is newer than"),
        (model("N", 4, operator="Identity", kind=TensorProto.STRING), "holds strings"),
    ],
    ids=["no inputs", "operator", "opset", "strings"],
)
def test_a_model_that_no_search_can_use_is_no_upload(
    strict: httpx.Client, body: bytes, says: str
) -> None:
    done = strict.post("/api/v1/models?name=m", content=body)
    assert done.status_code == 422 and says in done.text, done.text
    assert "/tmp" not in done.text and "tj-" not in done.text


def test_what_fits_a_model_is_taken_and_nothing_else(strict: httpx.Client) -> None:
    fixed, open_ = model("N", 4), model("N", "tokens")
    own, other = uploaded(strict, "models", fixed), uploaded(strict, "models", open_)
    rows = uploaded(strict, "calibration", npz(x=np.zeros((8, 4))))
    for options in ({}, {"input_shape": "x:4"}, {"calibration_data": rows}):
        assert asked(strict, model=own, options=options).status_code == 201, options
    assert asked(strict, model=other, options={"input_shape": "x:7"}).status_code == 201
    for options, says in (
        ({"input_shape": "z:4"}, "no input"),
        ({"input_shape": "x:5"}, "does not fit"),
        ({"input_shape": "x:4,4"}, "dimensions"),
    ):
        done = asked(strict, model=own, options=options)
        assert done.status_code == 422 and says in done.json()["detail"], done.text
        assert done.json()["pointer"] == "/options/input_shape"
    missing = asked(strict, model=other)
    assert missing.status_code == 422 and "dynamic" in missing.json()["detail"]
    assert missing.json()["pointer"] == "/options/input_shape"


def test_data_of_another_model_are_refused(strict: httpx.Client) -> None:
    own = uploaded(strict, "models", model("N", 4))
    for arrays, says in (
        ({"z": np.zeros((8, 4)), "w": np.zeros((8, 4))}, "no array for the input"),
        ({"x": np.zeros((8, 5))}, "is needed"),
        ({"x": np.zeros((0, 4))}, "no rows"),
        ({"x": np.full((8, 4), np.nan)}, "NaN"),
        ({"x": np.zeros((8, 4)), "labels": np.zeros(7)}, "labels"),
    ):
        data = uploaded(strict, "calibration", npz(**arrays))
        done = asked(strict, model=own, options={"calibration_data": data})
        assert done.status_code == 422 and says in done.json()["detail"], done.text
        assert done.json()["pointer"] == "/options/calibration_data" and "/tmp" not in done.text


def test_a_trace_with_sizes_leaves_none_to_give(strict: httpx.Client) -> None:
    own = uploaded(strict, "models", model("N", 4))
    plain, sized = (
        uploaded(strict, "scenarios", f"arrival_ms,batch_size\n0,1\n9,{size}\n".encode())
        for size in (1, 2)
    )
    for trace, size, status in ((plain, 2, 201), (sized, 1, 201), (sized, 2, 422)):
        options = {"arrivals": f"trace:{trace}", "request_batch_size": size}
        done = asked(strict, model=own, options=options)
        assert done.status_code == status, done.text
    assert done.json()["pointer"] == "/options/request_batch_size"


def test_a_model_whose_kernels_a_gpu_may_have_is_an_upload(strict: httpx.Client) -> None:
    made = onnx.load_from_string(model("N", 4, kind=TensorProto.BFLOAT16))
    done = strict.post("/api/v1/models?name=m", content=made.SerializeToString())
    assert done.status_code == 201, done.text


def test_the_name_of_a_study_is_one_studys(client: httpx.Client, upload: Any) -> None:
    own = upload()
    first = asked(client, model=own, options={"study": "s"})
    assert first.status_code == 201
    again = asked(client, model=own, options={"study": "s"})
    assert again.status_code == 409 and "'s'" in again.json()["detail"]
    job = first.json()["id"]
    client.post(f"/api/v1/jobs/{job}/cancel")
    other = asked(client, job=job, options={"study": "t"})
    assert other.status_code == 422 and other.json()["pointer"] == "/options/study"
    assert asked(client, job=job, options={"study": "s"}).json()["study"] == "s"
    cloned = client.post(f"/api/v1/jobs/{job}/clone")
    assert cloned.status_code == 201 and cloned.json()["study"] != "s"
    # A program that counts its studies gives numbers.
    numbered = [
        asked(client, model=own, options={"study": name}) for name in (20260101, "20260101")
    ]
    assert [done.status_code for done in numbered] == [201, 409], numbered[0].text
    assert numbered[0].json()["study"] == "20260101"


def test_a_study_goes_on_with_the_promise_that_it_was_begun_with(
    client: httpx.Client, upload: Any, working: Any, wait_for: Any
) -> None:
    body = {"model": upload(outcomes=1), "options": {"seed": 7}}
    job = asked(client, **body).json()["id"]
    with working():
        wait_for(job, "SUCCEEDED", "FAILED")
    same = {
        "latency_budget": "0.05s", "percentile": "99", "seed": "7", "request_batch_size": "1"
    }  # fmt: skip
    assert asked(client, job=job, options=same).status_code == 201
    data = client.post("/api/v1/calibration?name=d", content=b"d").json()["id"]
    for options in (
        {"latency_budget": "60ms"}, {"percentile": "95"}, {"target_rate": "5/s"},
        {"calibration_data": data}, {"seed": 8}, {"arrivals": "constant"},
        {"request_batch_size": 2}, {"server": "triton"},
    ):  # fmt: skip
        done = asked(client, job=job, options=options)
        assert done.status_code == 422, (options, done.text)
        assert done.json()["pointer"] == f"/options/{next(iter(options))}", done.text


@pytest.mark.parametrize("kind", ["search", "verify"])
def test_a_job_that_names_no_budget_is_bounded_as_well(kind: str) -> None:
    """It ran for the command's five minutes where the operator allows two."""
    options = BUDGET if kind == "search" else {}
    bounded = check_options(kind, options, ServiceLimits(budget_s_max=120.0))
    assert bounded.budget_s == 120.0 and "--budget=120s" in bounded.arguments
    usual = check_options(kind, options, ServiceLimits(budget_s_max=300.0))
    assert usual.budget_s == 300.0
    assert not any(argument.startswith("--budget=") for argument in usual.arguments)


def test_one_server_takes_one_load_test_at_a_time() -> None:
    """Such a job was made, and failed at once."""
    limits = ServiceLimits(endpoints=("grpc://there:8001",))
    with pytest.raises(Problem) as refused:
        check_options("search", BUDGET | {"workers": 2, "server": "grpc://there:8001"}, limits)
    assert refused.value.pointer == "/options/workers"


@pytest.mark.parametrize(
    "options", [{"space": "gpu"}, {"precisions": "fp8"}, {"workers": 2}], ids=str
)
def test_what_needs_a_gpu_waits_for_one_or_is_refused(
    client: httpx.Client, service: Any, upload: Any, options: dict[str, Any]
) -> None:
    own = upload()
    assert asked(client, model=own, options=options).json()["device"] == "gpu", "who knows yet"
    Example(service.context)  # a worker with a CPU
    done = asked(client, model=own, options=options)
    assert done.status_code == 422 and done.json()["pointer"] == f"/options/{next(iter(options))}"
    gpu = Device(id="GPU-1", kind="gpu", host="there", name="a GPU")
    Queue(service.context.database, "there-1", gpu, lease_s=600).enrol(
        pid=1, version="0", isolation={}
    )
    assert asked(client, model=own, options=options).json()["device"] == "gpu"


def test_why_a_job_waits_is_told(client: httpx.Client, service: Any, upload: Any) -> None:
    own = upload()
    job = asked(client, model=own, options={"device": "gpu"}).json()
    assert job["phase"] == "waiting: no worker answers"
    Example(service.context)
    told = "waiting: the job needs a GPU, and no worker has one"
    assert client.get(f"/api/v1/jobs/{job['id']}").json()["phase"] == told
    assert client.get("/api/v1/jobs").json()["items"][0]["phase"] == told
    for page in ("/", f"/jobs/{job['id']}"):
        assert told in client.get(page).text
    other = asked(client, model=own).json()
    assert other["phase"] == "waiting for a worker"


def test_a_job_that_was_made_already_is_not_looked_at_again(
    service: Any, isolation_here: Isolation
) -> None:
    """Each try of a client whose answer was lost had the same files inspected anew."""
    looked: list[Path] = []

    class Counting(Inspector):
        async def check_job(self, model: Path, shapes: Any, data: Path | None) -> None:
            looked.append(model)
            await super().check_job(model, shapes, data)

    client: httpx.Client = service.client(inspector=Counting(isolation_here))
    body = {
        "kind": "search", "model": uploaded(client, "models", model("N", 4)),
        "options": BUDGET | {"input_shape": "x:4"},
    }  # fmt: skip
    key = {"Idempotency-Key": "a-key"}
    first, again = (client.post("/api/v1/jobs", json=body, headers=key) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json() and len(looked) == 1
    other = body | {"options": BUDGET | {"input_shape": "x:5"}}
    reused = client.post("/api/v1/jobs", json=other, headers=key)
    assert reused.status_code == 422 and reused.json()["type"].endswith("key_reused")
    assert client.post("/api/v1/jobs", json=body).status_code == 201 and len(looked) == 2


def test_what_goes_on_with_a_job_goes_where_it_was_measured(
    client: httpx.Client, service: Any, submit: Any, working: Any, wait_for: Any
) -> None:
    """The claim of a GPU went to a worker with a CPU, where it could not be verified."""
    search, unmeasured = submit(outcomes=1), submit(say="nothing is measured")
    assert client.get(f"/api/v1/jobs/{search}").json()["device"] == "auto"
    with working():
        assert wait_for(search, "SUCCEEDED")["device"] == "cpu"
        assert wait_for(unmeasured, "SUCCEEDED")["device"] == "auto"
    with service.context.database.writing() as connection:
        # As a worker with a GPU would have left it.
        connection.execute(update(JOBS).where(JOBS.c.id == search).values(device="gpu"))
    verified = client.post("/api/v1/jobs", json={"kind": "verify", "job": search}).json()
    assert verified["device"] == "gpu" and "device" not in verified["options"]
    assert asked(client, job=search).json()["device"] == "gpu"
    assert asked(client, job=search, options={"device": "cpu"}).json()["device"] == "cpu"
    assert asked(client, job=unmeasured).json()["device"] == "auto"
    clone = client.post(f"/api/v1/jobs/{search}/clone").json()
    assert clone["device"] == "auto", "it begins anew"


def test_a_claim_is_verified_without_the_model_that_it_does_not_read(
    client: httpx.Client, service: Any, submit: Any, working: Any, wait_for: Any
) -> None:
    search = submit(outcomes=1)
    context = service.context
    with working():
        own = wait_for(search, "SUCCEEDED")["model"]
    assert client.delete(f"/api/v1/models/{own}").status_code == 204
    with context.database.writing() as connection:
        connection.execute(update(OBJECTS).values(created_at=OBJECTS.c.created_at - 7200))
    assert remove_unused_files(context.database, context.content)[0] >= 1
    assert not context.content.path(own).exists()
    done = client.post("/api/v1/jobs", json={"kind": "verify", "job": search})
    assert done.status_code == 201, done.text
    with working():
        wait_for(done.json()["id"], "SUCCEEDED")
    for body in ({"kind": "verify", "model": own}, {"kind": "search", "job": search}):
        refused = client.post("/api/v1/jobs", json={**body, "options": BUDGET})
        assert refused.status_code == 404, refused.text
