"""Stands for the command ``analyze``: does what the "model" says, which is JSON, or an ONNX file
whose ``doc_string`` is.

``outcomes`` (how many it measures, one every ``pause_s``), ``hold`` (after so many it waits to be
ended, where it does not go on with a study), ``exit``, ``verdict``, ``error`` (in
which ``HERE`` is its folder), ``stubborn`` (ignores SIGTERM and SIGINT), ``daemon`` (leaves a
process behind in a session of its own, which sleeps for so many seconds), ``say`` (on standard
error), ``study_link`` (where its database leads), ``files`` (names and texts: says of each whether
it is so), ``reach`` (says what ``--server`` answers, and who answers at these other ports),
``result`` (stores one), ``builds`` (names of variants: says which of them are there, and makes
those that are not; one that ends in ``/`` has a link in it), ``constants`` (says what ``analyze
doctor --calibrate`` measured), ``limits`` (says what these resource limits are, and how much it is
offered to the OOM killer), ``told`` (says what it was told to call itself). It does not decide a
claim whose rate is given.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

_HELD_S = 600.0  # longer than any test


def option(name: str) -> str | None:
    """The value of ``--name=value``."""
    found = [arg.partition("=")[2] for arg in sys.argv if arg.startswith(f"--{name}=")]
    return found[-1] if found else None


def model_file() -> Path:
    """What stands for the model: the file, or that in a model directory."""
    given = Path(sys.argv[2])
    return given / "1" / "model.onnx" if given.is_dir() else given


def reached(others: list[int]) -> str:
    """What the server says, and what the other ports of loopback say."""
    server = urlsplit(str(option("server")))
    told = []
    for port in (os.environ["TRITUNE_REACHED_AT"].rpartition(":")[2], *others):
        try:
            with socket.create_connection(("127.0.0.1", int(port)), 5) as connection:
                connection.sendall(b"hello")
                told.append(connection.recv(100).decode())
        except OSError as error:
            told.append(type(error).__name__)
    return f"{server.geturl()} {' '.join(told)}"


def build(entry: Path, *, link: bool) -> None:
    """Makes a variant, or says that it is there."""
    there = entry.is_dir()
    print(f"{entry.name} {'was built before' if there else 'is built'}", file=sys.stderr)
    if not there:
        entry.mkdir(parents=True)
        (entry / "variant.json").write_text("{}")
        (entry / "engine.plan").write_bytes(bytes(1000))
        if link:
            (entry / "stolen").symlink_to("/etc/passwd")


def export() -> int:
    """Adds a version to the repository, beside those that are there."""
    repository = Path(str(option("repository")))
    model = repository / "m"
    version = 1 + max((int(p.name) for p in model.glob("[0-9]*")), default=0)
    manifest = model / "tritune.json"
    versions = json.loads(manifest.read_text())["versions"] if manifest.is_file() else {}
    if (model / "config.pbtxt").exists() and "--force" not in sys.argv:
        error = {"code": "repository", "message": "It is there already.", "hint": "Add --force."}
        print(json.dumps({"schema": 1, "error": error}))
        return 2
    (model / str(version)).mkdir(parents=True)
    (model / str(version) / "model.onnx").write_text(f"of version {version}")
    (model / "config.pbtxt").write_text(f"version {version}")
    versions[str(version)] = {"files": [f"{version}/model.onnx"]}
    manifest.write_text(json.dumps({"schema": 1, "versions": versions}))
    (model / str(version) / "stolen").symlink_to("/etc/passwd")
    told = {"path": str(repository), "model": "m", "version": version, "config_id": "c" * 12}
    print(json.dumps(told))
    return 0


def write_repository(model: Path) -> None:
    """A repository with one version, as a search exports it."""
    config = 'backend: "onnxruntime"\nmax_batch_size: 4\n'
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").write_text("weights")
    (model / "config.pbtxt").write_text(config)
    version = {
        "config_id": "c" * 12, "configuration": {}, "backend": "onnxruntime",
        "config_pbtxt": config, "files": {}, "evidence": {}, "written_at": "",
    }  # fmt: skip
    manifest = {"schema": 1, "model": model.name, "versions": {"1": version}}
    (model / "tritune.json").write_text(json.dumps(manifest))


def undecided_claim(rate_rps: float) -> dict[str, Any]:
    """What ``verify --json`` prints of a claim that it could not decide."""
    counted = {"requests": 1159, "over_budget": 76, "requests_missing": 5000}
    return {
        "schema": 1,
        "verdict": "undecided",
        "claim": {"rate_rps": rate_rps, "latency_budget_ms": 2000.0, "percentile": 90.0},
        "measured": {"certificate": counted | {"verdict": "UNDECIDED"}},
    }


def read_script(path: Path) -> dict[str, Any]:
    """What the model says."""
    content = path.read_bytes()
    if not content.startswith(b"{"):
        import onnx

        content = onnx.load_from_string(content).doc_string.encode()
    found: dict[str, Any] = json.loads(content)
    return found


def objects() -> ModuleType:
    """The stored objects that the tests of the store make."""
    spec = importlib.util.spec_from_file_location(
        "store_objects", Path(__file__).parents[1] / "store" / "store_objects.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """The exit code."""
    kind = sys.argv[1]
    if kind == "export":
        return export()
    script = {} if kind == "verify" else read_script(model_file())
    if script.get("stubborn"):
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
    print("[  0.0s] inspecting the model (about 2 s)", file=sys.stderr)
    if script.get("say"):
        print(script["say"], file=sys.stderr, flush=True)
    if script.get("daemon"):
        subprocess.Popen(["sleep", script["daemon"]], start_new_session=True)
    for name, value in script.get("files", {}).items():
        print(f"{name}: {Path(name).read_text() == value}", file=sys.stderr, flush=True)
    if script.get("constants"):
        folder = Path(os.environ["TRITUNE_CACHE"]) / "tritune" / "machine"
        print([path.read_text() for path in folder.glob("*.json")], file=sys.stderr, flush=True)
    for name in script.get("builds", ()):
        build(Path(os.environ["TRITUNE_CACHE"]) / "tritune" / name, link=name.endswith("/"))
    if script.get("told"):
        print("told", os.environ.get("TRITUNE_COMMAND"), file=sys.stderr, flush=True)
    if "limits" in script:
        found = [resource.getrlimit(getattr(resource, name))[1] for name in script["limits"]]
        offered = Path("/proc/self/oom_score_adj").read_text()
        print("limits", *found, "offered", offered, file=sys.stderr, flush=True)
    if "reach" in script:
        print(reached(script["reach"]), file=sys.stderr, flush=True)
    if kind == "search" and script.get("outcomes"):
        measure(script)
    if script.get("study_link"):
        Path("study.db").symlink_to(script["study_link"])
    time.sleep(script.get("seconds", 0))
    claimed = option("target-rate") if kind == "verify" else None
    if claimed:
        print(json.dumps(undecided_claim(float(claimed.removesuffix("/s")))))
    elif "error" in script:
        error = {
            name: text.replace("HERE", str(Path.cwd())) for name, text in script["error"].items()
        }
        print(json.dumps({"schema": 1, "error": error}))
    else:
        print(json.dumps({"schema": 1, "verdict": script.get("verdict", "found")}))
    if kind == "search" and script.get("export", True):
        model = Path("repository") / Path(sys.argv[2]).stem
        write_repository(model)
        if script.get("link"):
            (model / "stolen").symlink_to("/etc/passwd")
        Path(str(option("report"))).write_text("<p>report")
    return int(script.get("exit", 0))


def measure(script: dict[str, float]) -> None:
    """Measures what is not measured yet, and stores it, one outcome after the other."""
    from analyzer.store.results import open_store  # most scripts have no need of it

    made = objects()
    with open_store(str(option("store"))) as store:
        name = str(option("study"))
        if "--resume" not in sys.argv:
            store.create_study(made.make_record(name))
        there = len(store.outcomes(name))
        print(f"Note: {there} were there", file=sys.stderr, flush=True)
        for number in range(there, int(script["outcomes"])):
            if number == script.get("hold") and "--resume" not in sys.argv:
                time.sleep(_HELD_S)
            time.sleep(script.get("pause_s", 0.05))
            store.add_outcome(name, number, {}, made.make_measurement())
        if script.get("result"):
            store.save_result(made.make_result(name))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
