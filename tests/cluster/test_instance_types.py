"""A mixed cluster: which machine is of which type, and a study that compares the types."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from analyzer.cli.cluster_machines import facts_of
from analyzer.cli.options import cache_dir
from analyzer.cluster.instance_types import kinds_of, nodes_by_type
from analyzer.errors import AnalyzerError, ModelError, UsageError
from analyzer.measure.facts import WorkerFacts, worker_facts
from analyzer.measure.jobs import Job, JobResult, WorkerContext
from benchlib.made_up_cluster import made_up_cluster

ROOT = Path(__file__).parents[2]


def node(name: str, *, alive: bool = True, resource: str = "", **labels: str) -> dict[str, Any]:
    resources = {"CPU": 4.0, **({f"accelerator_type:{resource}": 1.0} if resource else {})}
    named = {key.replace("_", "-"): value for key, value in labels.items()}
    return {
        "NodeID": name, "NodeManagerAddress": name, "Alive": alive, "Resources": resources,
        "Labels": named,
    }  # fmt: skip


def test_labels_say_the_type_and_accelerators_where_there_is_no_label() -> None:
    nodes = [
        node("a", instance_type="ml.g4dn.xlarge", resource="T4"),
        node("b", resource="A10G"),
        node("c", instance_type="other", resource="A10G"),  # it says that it is another
        node("gone", alive=False, instance_type="g5.xlarge"),
        node("head"),
        node("d") | {"Labels": {"node.kubernetes.io/instance-type": "g5.xlarge"}},
        node("e") | {"Labels": {"ray.io/accelerator-type": "A10G"}},
    ]
    types = {"ml.g4dn.xlarge": "NVIDIA T4", "g5.xlarge": "NVIDIA A10G"}
    assert nodes_by_type(nodes, types) == {
        "ml.g4dn.xlarge": {"a"},
        "g5.xlarge": {"b", "d", "e"},
    }


def test_machines_that_could_be_of_two_types_must_say_which() -> None:
    types = {"ml.g4dn.xlarge": "NVIDIA T4", "ml.g4dn.2xlarge": "NVIDIA T4"}
    with pytest.raises(UsageError, match=r"machine a has a t4, as ml\.g4dn\.xlarge and") as raised:
        nodes_by_type([node("a", resource="T4")], types)
    assert "ray start --labels instance-type=" in raised.value.hint
    labelled = [node("a", resource="T4", instance_type="ml.g4dn.2xlarge")]
    with pytest.raises(UsageError, match=r"no machine of the cluster is a ml\.g4dn\.xlarge; there"):
        nodes_by_type(labelled, types)


def test_machines_of_several_kinds_are_told_apart() -> None:
    def own(name: str, cores: int, gpus: int = 0, accelerator: str = "") -> dict[str, Any]:
        found = node(name, resource=accelerator)
        found["Resources"] |= {"CPU": float(cores)} | ({"GPU": float(gpus)} if gpus else {})
        return found

    nodes = [
        own("head", 0),
        own("a", 8, 2, "A10G"),
        own("b", 4, 1, "A10G"),
        own("c", 4, 1, "T4"),
        own("d", 4),
        own("gone", 64, 8, "H100") | {"Alive": False},
    ]
    # A GPU has its share of the cores.
    assert kinds_of(nodes, "gpu") == ["4 cores, a10g", "4 cores, t4"]
    assert kinds_of(nodes[3:], "cpu") == ["4 cores", "4 cores, t4"]
    assert kinds_of(nodes[:3], "gpu") == ["4 cores, a10g"]


class Asked:
    """An executor whose one worker answers with that."""

    def __init__(self, value: Any = None, error: AnalyzerError | None = None) -> None:
        self.answer = JobResult(
            job_id="facts", value=value, error=error, lost=False, seconds=0.1, worker_id="gpu-0"
        )

    def submit(self, job: Job) -> None:
        assert isinstance(job.run, partial) and job.run.func is worker_facts

    def next_result(self, timeout_s: float) -> JobResult | None:
        return self.answer


def test_a_machine_that_does_not_tell_or_cannot_run_models_is_a_sentence() -> None:
    facts = WorkerFacts(
        hardware="4 × CPU", hardware_key="k", runtimes="r", cores=4, backends=(), accelerators=(),
        tensorrt=False, compute_capability=None,
    )  # fmt: skip
    asked: Any = Asked(facts)
    assert facts_of(asked, "cpu", "The machines of the cluster", "/m.onnx") is facts
    with pytest.raises(UsageError, match="of the cluster have GPUs, but neither ONNX Runtime's"):
        facts_of(asked, "gpu", "The machines of the cluster", "/m.onnx")
    asked = Asked(error=UsageError("No such worker.", hint="Look."))
    with pytest.raises(AnalyzerError, match="do not tell what they are: No such worker") as caught:
        facts_of(asked, "gpu", "The machines of the cluster", "/m.onnx")
    assert caught.value.hint == "Look."


def test_a_model_that_the_machines_do_not_see_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy in the cache of the first machine: 'The model itself cannot be served', in the end."""
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path / "cache"))
    context = WorkerContext(
        worker_id="cpu-0", device="cpu", gpu=None, cores=1, cache_dir=tmp_path, node="worker"
    )
    own, copied = tmp_path / "m.onnx", cache_dir() / "models" / "0" / "m.onnx"
    for path, hint in (
        (own, "Put it into a folder that all"),
        (copied, "set TRITUNE_CACHE to one"),
    ):
        asked: Any = Asked(worker_facts(str(path), context))
        with pytest.raises(
            ModelError, match=f"of the cluster do not see the model at {path}"
        ) as no:
            facts_of(asked, "cpu", "The machines of the cluster", str(path))
        assert hint in no.value.hint
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        asked = Asked(worker_facts(str(path), context))
        assert facts_of(asked, "cpu", "The machines of the cluster", str(path)).has_model


PRICES = """
sources: {test: {title: made up, url: "https://example.com"}}
instances:
  - {instance_type: one.core, usd_per_hour: 0.10, devices: 1, as_of: "2026-01-01", source: test}
  - {instance_type: no.such, usd_per_hour: 0.10, devices: 1, as_of: "2026-01-01", source: test}
  - {instance_type: two.cores, usd_per_hour: 0.90, devices: 1, as_of: "2026-01-01", source: test}
"""
SPACE = """
device: cpu
threads_per_core: 1.0
parameters:
  precision: [fp32]
  instance_count: [1, 2]
  intra_op_threads: [1]
  dynamic_batching: [false, true]
  max_batch_size: {choices: [8], when: {dynamic_batching: true}}
"""


# Three jobs on an executor of one type's machines: the cores of the node that ran each.
WHERE = """
import sys
from pathlib import Path
from analyzer.cluster.instance_types import nodes_by_type
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.cluster.ray_session import ray_session
from analyzer.measure.jobs import Job

def run(context):
    import ray
    return ray.get_runtime_context().get_node_id()

with ray_session(address=sys.argv[1], cores=1) as ray:
    cores = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes()}
    nodes = nodes_by_type(ray.nodes(), {"two.cores": ""})["two.cores"]
    with RayExecutor(
        device="cpu", cache_dir=Path(sys.argv[2]), ray_address=sys.argv[1], nodes=nodes
    ) as executor:
        for number in range(3):
            executor.submit(Job(str(number), run, 60.0))
        print(*(cores[executor.next_result(60.0).value] for _ in range(3)))
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT),
        "TRITUNE_CACHE": str(folder / "cache"),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "analyzer.cli.main", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timing
@pytest.mark.timeout(400)
def test_a_study_compares_two_types_on_their_own_machines(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES)
    (tmp_path / "space.yaml").write_text(SPACE)
    search = (
        "search", str(ROOT / "examples" / "digits.onnx"), "--latency-budget", "200ms",
        "--percentile", "90", "--budget", "60s", "--space", "space.yaml", "--study", "mixed",
        "--instance-types", "one.core,two.cores", "--prices", "prices.yaml", "--json",
        "--accept", "estimated",
    )  # fmt: skip
    nodes = [
        {"num_cpus": 1, "labels": {"instance-type": "one.core"}},
        {"num_cpus": 2, "labels": {"instance-type": "two.cores"}},
    ]
    with made_up_cluster(nodes) as cluster:
        started = time.monotonic()
        done = run(tmp_path, *search, "--ray-address", cluster.address)
        seconds = time.monotonic() - started
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        # The workers' end is counted: without it three seconds were missing.
        assert seconds - document["search"]["wall_seconds"] < 2.0
        report = run(tmp_path, "report", "mixed", "--format", "md").stdout
        again = run(tmp_path, *search, "--ray-address", cluster.address, "--resume")
        absent = run(
            tmp_path, *search, "--study", "other", "--ray-address", cluster.address,
            "--instance-types", "one.core,no.such",
        )  # fmt: skip
        where = subprocess.run(
            [sys.executable, "-c", WHERE, cluster.address, str(tmp_path)],
            env={**os.environ, "RAY_AUTH_MODE": "disabled"}, capture_output=True, text=True,
            timeout=100,
        )  # fmt: skip
    kinds = {one["instance_type"]: one for one in document["instance_types"]}
    assert list(kinds) == ["one.core", "two.cores"]
    assert document["sla"]["confidence"] == 0.95
    for name, cores in (("one.core", 1), ("two.cores", 2)):
        one = kinds[name]
        assert one["verdict"] in ("found", "estimated"), one
        assert one["hardware"].startswith(f"{cores} × ")
        entry = one["entry"]
        assert entry["instance_type"] == entry["config"]["instance_type"] == name
        assert entry["hardware"] == one["hardware"]
        # The space is each machine's own: no more threads than it has cores.
        assert entry["config"]["instance_count"] <= cores
        assert entry["fleet"]["cost_per_million_inferences"] > 0
        if entry["certificate"] is not None:
            assert entry["certificate"]["confidence"] == pytest.approx(0.975)
    # Nine times the price for at most twice the speed; what was proven comes before an estimate.
    costs = {n: k["entry"]["fleet"]["cost_per_million_inferences"] for n, k in kinds.items()}
    assert costs["one.core"] < costs["two.cores"]
    best = min(kinds, key=lambda name: (kinds[name]["verdict"] != "found", costs[name]))
    assert document["recommendation"]["instance_type"] == best
    assert [name for name, one in kinds.items() if one["recommended"]] == [best]
    assert document["baseline"]["instance_type"] == best
    # Each candidate ran on the machine it is for.
    with sqlite3.connect(tmp_path / "results.db") as store:
        bodies = [
            json.loads(body)
            for (body,) in store.execute("select body from tritune_outcomes where state='measured'")
        ]
    assert {body["configuration"]["instance_type"] for body in bodies} == set(kinds)
    for body in bodies:
        assert body["hardware"] == kinds[body["configuration"]["instance_type"]]["hardware"]
    assert "## Instance types" in report and f"| {best} (recommended) | " in report
    # What is stored is not measured again.
    assert again.returncode == 0, again.stderr
    trials = "select count(*) from tritune_outcomes where role='trial'"
    with sqlite3.connect(tmp_path / "results.db") as store:
        ids = "select count(distinct config_id) from tritune_outcomes where role='trial'"
        assert store.execute(trials).fetchone() == store.execute(ids).fetchone()
    assert absent.returncode == 2
    message = json.loads(absent.stdout)["error"]["message"]
    assert "no machine of the cluster is a no.such; there are one.core, two.cores" in message
    assert where.returncode == 0 and where.stdout.split() == ["2"] * 3, where.stderr


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timing
@pytest.mark.timeout(240)
def test_a_search_on_a_cluster_is_about_its_machines(tmp_path: Path) -> None:
    """It took its own machine's cores, libraries and name for theirs."""
    (tmp_path / "space.yaml").write_text(SPACE)
    with made_up_cluster([{"num_cpus": 1}]) as cluster:
        done = run(
            tmp_path, "search", str(ROOT / "examples" / "digits.onnx"), "--latency-budget", "200ms",
            "--percentile", "90", "--budget", "40s", "--space", "space.yaml", "--study", "one",
            "--ray-address", cluster.address, "--json", "--accept", "estimated",
        )  # fmt: skip
    assert done.returncode in (0, 4), done.stderr
    document = json.loads(done.stdout)
    assert document["provenance"]["hardware"].startswith("1 × ")
    with sqlite3.connect(tmp_path / "results.db") as store:
        bodies = [
            json.loads(body)
            for (body,) in store.execute("select body from tritune_outcomes where state='measured'")
        ]
    assert bodies
    for body in bodies:
        assert body["hardware"].startswith("1 × ")
    # Of the two numbers of instances the machine has cores for one; the baseline has two.
    tried = [body for body in bodies if body["configuration"]["intra_op_threads"] == 1]
    assert {body["configuration"]["instance_count"] for body in tried} <= {1}


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timing
@pytest.mark.timeout(400)
def test_engines_are_built_on_the_machines_that_they_are_for(
    made_up_machine: Callable[..., None],
    write_doubling: Callable[[Path], Path],
    engines_space: Path,
    tmp_path: Path,
) -> None:
    """Each type has a made-up GPU and TensorRT's fake; where the search is started is neither."""
    gpus = {"one.core": "NVIDIA T4", "two.cores": "NVIDIA A10G"}
    parts = {"tensorrt": {}, "cuda": {"memory_bytes": 1 << 30}, "onnxruntime": {"cuda": False}}
    nodes = []
    for number, (name, gpu) in enumerate(gpus.items()):
        nvml = {"gpus": [{"uuid": f"GPU-{os.getpid()}-{number}", "name": gpu}]}
        options = json.dumps(parts | {"nvml": nvml})
        labels = {"instance-type": name}
        nodes.append(
            {"num_cpus": 1, "num_gpus": 1, "labels": labels,
             "env_vars": {"MADE_UP_MACHINE": options}}
        )  # fmt: skip
    model = write_doubling(tmp_path)
    (tmp_path / "prices.yaml").write_text(PRICES)
    made_up_machine(**parts)
    try:
        with made_up_cluster(nodes) as cluster:
            done = run(
                tmp_path, "search", str(model), "--latency-budget", "200ms", "--percentile", "90",
                "--budget", "60s", "--space", str(engines_space), "--study", "engines", "--json",
                "--instance-types", ",".join(gpus), "--prices", "prices.yaml", "--accept",
                "estimated", "--ray-address", cluster.address,
            )  # fmt: skip
    finally:
        for number in range(len(gpus)):
            Path(f"/tmp/tritune-gpu-GPU-{os.getpid()}-{number}.lock").unlink(missing_ok=True)
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    for one in json.loads(done.stdout)["instance_types"]:
        name, entry = one["instance_type"], one["entry"]
        assert one["hardware"].endswith(gpus[name])
        assert (entry["config"]["backend"], entry["config"]["device"]) == ("tensorrt", "gpu")
        exported = run(
            tmp_path, "export", "engines", "--config", entry["config_id"], "--repository", name
        )
        assert exported.returncode == 0, exported.stderr
        assert f"runs on TensorRT 11.4.0, {gpus[name]}" in exported.stderr
        assert len(list((tmp_path / name / "double" / "1").glob("*.plan"))) == 1
