"""The program from outside, on the example model: answers, interruptions, what follows a search."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

Answer = Any  # conftest.Answer
Run = Callable[..., Answer]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = str(EXAMPLES / "digits.onnx")
# Two variants and two deployments: preparations of seconds.
SPACE = """
device: cpu
parameters:
  precision: [fp32]
  instance_count: [1, 2]
  intra_op_threads: [1]
  dynamic_batching: [false, true]
  max_batch_size: {choices: [4, 16], when: {dynamic_batching: true}}
"""
# The 95th percentile: a slow model proves a 99th only in minutes.
SEARCH = (
    MODEL, "--latency-budget", "100ms", "--percentile", "95", "--space", "small.yaml",
    "--executor", "in-process",
)  # fmt: skip

NUMBER, TEXT = (int, float), str
NONE = type(None)
MAYBE = (int, float, NONE)
ENTRY: dict[str, Any] = {
    "config_id": TEXT,
    "config": {
        "precision": TEXT,
        "quantization": (TEXT, NONE),
        "backend": TEXT,
        "device": TEXT,
        "max_batch_size": int,
        "dynamic_batching": bool,
        "preferred_batch_size": (list, NONE),
        "max_queue_delay_us": (int, NONE),
        "instance_count": int,
        "intra_op_threads": (int, NONE),
    },
    "capacity_rps": MAYBE,
    "edge_rps": MAYBE,
    "edge_interval_rps": (list, NONE),
    "measured_at_rps": MAYBE,
    "throughput_ips": MAYBE,
    "latency_ms": dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "sla"), MAYBE),
    "breakdown_ms": dict.fromkeys(
        ("queue", "compute_input", "compute_infer", "compute_output", "overhead"), MAYBE
    ),
    "errors": (int, NONE),
    "memory_bytes_peak": (int, NONE),
    "gpu_memory_bytes_peak": (int, NONE),
    "gpu_memory_source": (TEXT, NONE),
    "gpu_utilization": MAYBE,
    "power_watts": MAYBE,
    "energy_joules_per_inference": MAYBE,
    "gpu_clock_mhz": MAYBE,
    "gpu_clock_limits": list,
    "gpu_throttled": MAYBE,
    "accuracy": (dict, NONE),
    "certificate": (dict, NONE),
    "fleet": (dict, NONE),
    "hardware": (TEXT, NONE),
    "instance_type": (TEXT, NONE),
    "predicted": {
        "edge_rps": MAYBE,
        "latency_ms_p99": MAYBE,
        "error": MAYBE,
        "model_error": MAYBE,
        "drift": MAYBE,
    },
}
CERTIFICATE = {
    "verdict": TEXT,
    "requests": int,
    "over_budget": int,
    "effective_requests": MAYBE,
    "confidence": NUMBER,
    "mlperf": object,
}
DOCUMENT: dict[str, Any] = {
    "schema": int,
    "study": TEXT,
    "verdict": TEXT,
    "model": {"name": TEXT, "sha256": TEXT, "batchable": bool, "inputs": list, "outputs": list},
    "sla": {
        "latency_budget_ms": NUMBER,
        "percentile": NUMBER,
        "confidence": NUMBER,
        "target_rate_rps": MAYBE,
    },
    "recommendation": (dict, NONE),
    "baseline": ENTRY,
    "speedup": MAYBE,
    "speedup_basis": (TEXT, NONE),
    "speedup_interval": (list, NONE),
    "pareto": list,
    "closest": (dict, NONE),
    "search": {
        "sampler": TEXT,
        "space_size": int,
        "evaluated_live": int,
        "evaluated_twin": int,
        "failed": int,
        "load_test_seconds": NUMBER,
        "wall_seconds": NUMBER,
        "bound": (TEXT, NONE),
        "budget_s": NUMBER,
        "budget_needed_s": MAYBE,
        "accepted": TEXT,
        "conditions": (dict, NONE),
    },
    "provenance": {
        "analyzer": TEXT,
        "hardware": TEXT,
        "libraries": dict,
        "seeds": dict,
        "started_at": TEXT,
    },
}


def conforms(value: Any, shape: Any, where: str = "$") -> None:
    """Every key that the contract names is there, with its type; a bool is no number."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), f"{where}: {value!r} is no object"
        for key, inner in shape.items():
            assert key in value, f"{where}.{key} is missing"
            conforms(value[key], inner, f"{where}.{key}")
        return
    wanted = shape if isinstance(shape, tuple) else (shape,)
    assert isinstance(value, wanted), f"{where}: {value!r} is none of {wanted}"
    if isinstance(value, bool):
        assert bool in wanted or object in wanted, f"{where}: {value!r}"


def entry_conforms(entry: dict[str, Any], where: str) -> None:
    conforms(entry, ENTRY, where)
    canonical = json.dumps(entry["config"], sort_keys=True, separators=(",", ":"))
    assert entry["config_id"] == hashlib.sha256(canonical.encode()).hexdigest()[:12], where
    if entry["certificate"] is not None:
        conforms(entry["certificate"], CERTIFICATE, f"{where}.certificate")
    if entry["edge_interval_rps"] is not None:
        low, high = entry["edge_interval_rps"]
        if None not in (low, high, entry["edge_rps"]):
            assert low <= entry["edge_rps"] <= high, where


def document_conforms(document: dict[str, Any]) -> None:
    conforms(document, DOCUMENT)
    assert document["schema"] == 1
    entries = {"baseline": document["baseline"]}
    entries |= {f"pareto[{index}]": found for index, found in enumerate(document["pareto"])}
    if document["recommendation"] is not None:
        entries["recommendation"] = document["recommendation"]
    if document["closest"] is not None:
        entries["closest"] = document["closest"]["entry"]
        for miss in document["closest"]["misses"]:
            assert {"limit", "required", "observed"} <= miss.keys()
    for where, entry in entries.items():
        entry_conforms(entry, where)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("digits")
    (work / "small.yaml").write_text(SPACE)
    return work


@pytest.fixture
def other(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SPACE)
    return tmp_path


@pytest.fixture(scope="module")
def run(program: Any, place: Path) -> Callable[..., Answer]:
    """Runs the program to its end, in ``cwd`` or where the first search was made."""

    def run_program(*args: str, cwd: Path | None = None, timeout_s: float = 100.0) -> Answer:
        process = program.start(*args, cwd=cwd or place, cache=place.parent / "cache")
        return program.finish(process, timeout_s)

    return run_program


@pytest.fixture(scope="module")
def searched(run: Run) -> Answer:
    """One search with everything that follows from it."""
    return run(
        *SEARCH,
        "--calibration-data",
        str(EXAMPLES / "digits.npz"),
        "--budget",
        "30s",
        "--study",
        "first",
        "--report",
        "r.html",
        "--export",
        "models",
        "--price",
        "0.5/h",
        "--json",
    )


@pytest.mark.timing
def test_the_answer_is_one_document_that_obeys_the_contract(searched: Answer) -> None:
    assert searched.code == 0, searched.stderr
    document = searched.document  # the whole of standard output
    document_conforms(document)
    assert document["verdict"] == "found" and document["study"] == "first"
    best = document["recommendation"]
    assert best["certificate"]["verdict"] == "PASS"
    assert best["capacity_rps"] == best["measured_at_rps"]
    assert best["latency_ms"]["sla"] <= 100.0
    assert best["accuracy"]["value"] > 0.5 and best["accuracy"]["drop"] == 0
    assert best["gpu_memory_bytes_peak"] is None and best["power_watts"] is None
    assert document["baseline"]["config"]["instance_count"] == 2
    assert document["baseline"]["config"]["max_batch_size"] == 4


@pytest.mark.timing
def test_progress_is_on_standard_error_alone(searched: Answer) -> None:
    assert "measuring" in searched.stderr
    assert "Traceback" not in searched.stderr and "Warning:" not in searched.stderr


@pytest.mark.timing
def test_report_and_repository_were_written(searched: Answer, place: Path) -> None:
    assert (place / "r.html").read_text().lstrip().lower().startswith("<!doctype html")
    model = place / "models" / "digits"
    assert (model / "config.pbtxt").is_file() and (model / "1" / "model.onnx").is_file()
    assert not list(place.glob(".*part*"))


@pytest.mark.timing
def test_a_copy_of_the_database_alone_holds_the_study(searched: Answer, place: Path) -> None:
    """All that was measured lay in results.db-wal until another command opened the database."""
    assert searched.code == 0
    assert [file.name for file in place.glob("results.db*")] == ["results.db"]


@pytest.mark.timing
def test_reports_in_every_format(searched: Answer, run: Run, place: Path) -> None:
    for kind in ("html", "md", "csv", "json"):
        answer = run("report", "first", "-o", f"again.{kind}")
        assert (answer.code, answer.stdout) == (0, ""), answer.stderr
        assert (place / f"again.{kind}").stat().st_size > 300
    again = json.loads((place / "again.json").read_text())
    assert again["recommendation"] == searched.document["recommendation"]
    printed = run("report", "--json")
    assert printed.document["study"] == "first"


@pytest.mark.timing
def test_an_export_that_is_there_already_is_left_as_it_is(
    searched: Answer, run: Run, place: Path
) -> None:
    answer = run("export", "first", "--repository", "models", "--json")
    assert answer.code == 0, answer.stderr
    best = searched.document["recommendation"]["config_id"]
    assert answer.document["version"] == 1 and answer.document["config_id"] == best
    assert "already there" in answer.stderr
    assert (place / "models" / "digits" / "1" / "model.onnx").is_file()
    others = [e["config_id"] for e in searched.document["pareto"] if e["config_id"] != best]
    if others:
        conflict = run("export", "--repository", "models", "--config", others[0], "--json")
        assert conflict.code == 2 and "--force" in conflict.document["error"]["hint"]


@pytest.mark.timing
def test_studies_tell_the_search(searched: Answer, run: Run) -> None:
    listed = run("studies", "--json").document["studies"]
    assert [study["name"] for study in listed] == ["first"]
    assert listed[0].keys() >= {"name", "model", "verdict", "trials", "started_at"}
    trials = run("studies", "show", "first", "--json").document["trials"]
    assert len(trials) >= 2
    for trial in trials:
        assert trial.keys() >= {"number", "state", "config_id", "reason"}


@pytest.mark.timing
def test_doctor_names_what_is_here(searched: Answer, run: Run) -> None:
    document = run("doctor", "--json").document
    assert document["calibration"]["source"] in ("fallback", "measured")
    parts = {part["name"]: part for part in document["parts"]}
    assert all(part.keys() == {"name", "version", "usable", "adds"} for part in parts.values())
    assert parts["CPU"]["usable"] and parts["ONNX Runtime"]["usable"]
    assert "1 study" in parts["Database"]["version"]


def test_a_local_model_is_measured(run: Run) -> None:
    answer = run(
        "measure",
        MODEL,
        "--rate",
        "20/s",
        "--duration",
        "3s",
        "--latency-budget",
        "500ms",
        "--json",
    )
    assert answer.code == 0, answer.stderr
    document = answer.document
    without = {key: shape for key, shape in ENTRY.items() if key not in ("config_id", "config")}
    conforms(document, without)
    assert document["requests"] > 20 and document["offered_rps"] == 20
    assert document["validity"].keys() == {"valid", "reasons"}


@pytest.mark.timing
def test_a_claim_holds_and_an_absurd_one_is_refuted(searched: Answer, run: Run) -> None:
    half = searched.document["recommendation"]["capacity_rps"] * 0.5
    holds = run("verify", "first", "--target-rate", f"{half:.0f}/s", "--budget", "30s", "--json")
    assert holds.code == 0, holds.stdout + holds.stderr
    assert holds.document["verdict"] == "holds"
    entry_conforms(holds.document["measured"], "measured")
    assert {"claim", "measured", "verdict"} <= holds.document.keys()
    # Not so high that the generator is late on two cores: an invalid run never refutes.
    absurd = run("verify", "first", "--target-rate", "1500/s", "--budget", "12s", "--json")
    assert absurd.code == 3, absurd.stdout + absurd.stderr
    assert absurd.document["verdict"] == "refuted"


@pytest.mark.timing
def test_a_budget_that_nothing_keeps(run: Run, other: Path) -> None:
    args = ("--budget", "40s", "--export", "models", "--json")
    answer = run(
        MODEL,
        "--latency-budget",
        "100us",
        "--space",
        "small.yaml",
        "--executor",
        "in-process",
        *args,
        cwd=other,
    )
    assert answer.code == 3, answer.stdout + answer.stderr
    document = answer.document
    document_conforms(document)
    assert document["verdict"] == "infeasible" and document["recommendation"] is None
    assert document["closest"]["misses"] and document["search"]["bound"]
    assert not (other / "models").exists(), "nothing is exported"


# That this objective is judged at the target rate is in tests/search/test_study.py too.
@pytest.mark.long
@pytest.mark.timing
def test_the_least_latency_at_a_rate(run: Run, other: Path) -> None:
    answer = run(
        *SEARCH,
        "--objective",
        "latency",
        "--target-rate",
        "20/s",
        "--budget",
        "20s",
        "--json",
        cwd=other,
    )
    assert answer.code == 0, answer.stdout + answer.stderr
    document_conforms(answer.document)
    assert answer.document["recommendation"]["measured_at_rps"] == pytest.approx(20.0)


# --- interruptions --------------------------------------------------------------------------------

# Of searches that are interrupted, on a busy machine too.
INTERRUPTED = "120s"
# One whose first proof, and so its first trial, takes little time.
LONG = (*SEARCH, "--percentile", "80", "--study", "long", "--json")


def start_long(program: Any, other: Path, place: Path, *args: str) -> subprocess.Popen[str]:
    """A search with time enough to be interrupted."""
    process: subprocess.Popen[str] = program.start(
        *LONG, "--budget", INTERRUPTED, *args, cwd=other, cache=place.parent / "cache"
    )
    return process


def has_server(process: subprocess.Popen[str]) -> bool:
    """Whether a search has a server now, which it loads."""
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "analyzer.targets.embedded_main" in child.cmdline():
                    return True
    return False


def is_interruption(answer: Answer) -> None:
    assert answer.code == 130, answer.stderr
    assert answer.document["error"]["code"] == "interrupted"
    assert "Traceback" not in answer.stderr and "***" not in answer.stderr


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_interrupted_and_killed_it_keeps_what_it_has_and_measures_nothing_twice(
    program: Any, place: Path, other: Path, run: Run
) -> None:
    """One study: interrupted after its first trial, again and killed under load, and ended.

    The second time with Ray, and as ``timeout`` and others do it: the whole group is signalled,
    Ray's daemons too, without which Ray ends us.
    """
    with start_long(program, other, place) as process:
        program.wait_for(process, lambda: program.measured(other))
        process.send_signal(signal.SIGINT)
        answer = program.finish(process)
    is_interruption(answer)
    assert "--resume" in answer.document["error"]["hint"]
    before = program.measured(other)
    assert before, answer.stderr
    with start_long(program, other, place, "--resume", "--executor", "ray") as process:
        program.wait_for(process, lambda: has_server(process))
        os.killpg(process.pid, signal.SIGTERM)
        answer = program.finish(process)
    is_interruption(answer)
    assert program.measured(other)[: len(before)] == before
    with start_long(program, other, place, "--resume") as process:
        program.wait_for(process, lambda: has_server(process))
        process.kill()
        process.communicate()
    answer = run(*LONG, "--budget", "18s", "--resume", cwd=other)
    assert answer.code in (0, 4), answer.stdout + answer.stderr
    document_conforms(answer.document)
    assert (answer.document["recommendation"] is not None) == (answer.code == 0)
    after = program.measured(other)
    assert after[: len(before)] == before
    assert len(set(after)) == len(after), "a configuration was measured twice"


# The hardest of its kind, a whole group that is signalled, is a part of the test before.
@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGINT, os.kill), (signal.SIGTERM, os.kill), (signal.SIGTERM, os.killpg)],
    ids=["ctrl-c", "sigterm", "sigterm-to-all"],
)
def test_interrupted_with_ray_running(
    program: Any,
    place: Path,
    other: Path,
    number: signal.Signals,
    send: Callable[[int, int], None],
) -> None:
    """Ray would install a handler of its own for SIGTERM, which kills us with a stack trace."""
    process = program.start(
        *SEARCH[:-2], "--budget", INTERRUPTED, "--json", cwd=other, cache=place.parent / "cache"
    )
    program.wait_for(process, lambda: has_server(process))
    send(process.pid, number)
    is_interruption(program.finish(process, timeout_s=40.0))


# Every millisecond of a start: tests/cluster/test_ray_end.py; here what the program makes of it.
_MOMENTS_S = [pytest.param(it, marks=pytest.mark.long) for it in (0.3, 1.7, 3.1)]


@pytest.mark.ray
@pytest.mark.parametrize("after_s", [1.0, 2.4, *_MOMENTS_S])
def test_interrupted_while_ray_starts(
    program: Any, place: Path, other: Path, after_s: float
) -> None:
    """Its core's own handler would print a stack trace; and nobody waits for the start.

    The whole group is signalled, as ``timeout`` does: of Ray's daemons none ends before us.
    """
    process = program.start(
        *SEARCH[:-2], "--budget", INTERRUPTED, "--json", cwd=other, cache=place.parent / "cache"
    )
    # The tables are there before Ray is.
    deadline = time.monotonic() + 100.0
    while not (other / "results.db").is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGTERM)
    is_interruption(program.finish(process))


# --- other servers and databases ------------------------------------------------------------------


@pytest.mark.timing
@pytest.mark.triton
def test_a_search_on_a_real_triton(run: Run, other: Path) -> None:
    from analyzer.targets.triton_install import find_triton

    if find_triton() is None:
        pytest.skip("there is no Triton on this machine (make tools)")
    answer = run(
        *SEARCH,
        "--server",
        "triton",
        "--budget",
        "25s",
        "--json",
        cwd=other,
        timeout_s=150.0,
    )
    assert answer.code in (0, 4), answer.stdout + answer.stderr
    document_conforms(answer.document)
    assert answer.document["search"]["evaluated_live"] >= 1
    # Triton's replies do not tell their stages; its counters do.
    chosen = answer.document["recommendation"] or answer.document["closest"]["entry"]
    stages = chosen["breakdown_ms"]
    assert all(stages[name] is not None for name in ("queue", "compute_infer", "overhead")), stages
