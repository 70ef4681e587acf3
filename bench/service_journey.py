"""A generated client's whole journey, a real Triton at its end, and Optuna's dashboard beside it.

    python bench/service_journey.py [--database sqlite|postgresql]

Starts `analyze service --auth tokens` with a worker; makes a client from its ``/openapi.json`` with
openapi-python-client, in a virtual environment of its own (``bench/.work``); lets that client
upload a model, search, watch, fetch; serves the fetched repository with the real Triton of
``make tools`` and compares its answers with ONNX Runtime's; and opens the study in the service's
database with optuna-dashboard, which may only read there (PostgreSQL: a role with SELECT alone;
SQLite: a file opened read-only). Writes ``bench/results/service_journey.json``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime

from analyzer.targets.ports import free_ports
from analyzer.targets.triton_install import find_triton
from analyzer.targets.triton_server import TritonServer
from benchlib.command import ROOT, WORK, Command, say, table
from benchlib.postgres import PostgresServer, postgres_server

_GENERATOR, _DASHBOARD = "openapi-python-client", "optuna-dashboard"
_MODEL, _DATA = ROOT / "examples" / "digits.onnx", ROOT / "examples" / "digits.npz"
_START_S = 60.0


def environment(name: str, *packages: str) -> Path:
    """The programs' folder of a virtual environment with these packages, made if need be."""
    home = WORK / name
    programs = home / "bin"
    if not (home / "complete").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([programs / "pip", "install", "--quiet", *packages], check=True)
        (home / "complete").touch()
    return programs


def version(programs: Path, package: str) -> str:
    """Of an installed package."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.check_output([programs / "python", "-c", code], text=True).strip()


@contextlib.contextmanager
def service(url: str, data: Path) -> Iterator[tuple[str, str]]:
    """A service with tokens and a worker: its address, and a token."""
    surroundings = os.environ | {"TRITUNE_SERVICE_STORE": url, "PYTHONPATH": str(ROOT)}
    analyze = [sys.executable, "-m", "analyzer.cli.main", "service"]
    made = subprocess.run(
        [*analyze, "token", "create", "--name", "journey", f"--data={data}"],
        capture_output=True, text=True, check=True, env=surroundings,
    )  # fmt: skip
    log = data.parent / "service.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*analyze, "--port=0", "--auth=tokens", f"--data={data}"],
            env=surroundings, stderr=stream,
        )  # fmt: skip
    try:
        ends_at = time.monotonic() + _START_S
        while not (said := [line for line in log.read_text().splitlines() if "http://" in line]):
            if process.poll() is not None or time.monotonic() > ends_at:
                raise SystemExit(f"The service did not start: {log.read_text()}")
            time.sleep(0.1)
        yield said[0].strip(), made.stdout.strip()
    finally:
        process.terminate()
        process.wait(100)


def journey(base: str, token: str, folder: Path) -> dict[str, Any]:
    """What the generated client saw; what it fetched lies in ``folder``."""
    programs = environment("client-venv", _GENERATOR)
    generated = folder / "generated"
    made = subprocess.run(
        [
            programs / _GENERATOR, "generate", "--url", f"{base}/openapi.json", "--meta", "none",
            "--output-path", generated / "tritune_client",
        ],
        capture_output=True, text=True,
        env=os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    if made.returncode != 0:
        raise SystemExit(f"No client was generated: {made.stdout}{made.stderr}")
    started = time.monotonic()
    done = subprocess.run(
        [
            programs / "python", ROOT / "bench" / "benchlib" / "journey.py", generated, base, token,
            _MODEL, _DATA, folder,
        ],
        capture_output=True, text=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"The journey ended: {done.stderr[-3000:]}")
    warnings = [line for line in made.stdout.splitlines() if "WARNING" in line]
    return {
        "generator": f"{_GENERATOR} {version(programs, _GENERATOR)}",
        "generator_warnings": warnings,
        "seconds": round(time.monotonic() - started, 1),
        **json.loads(done.stdout),
    }


def served_by_triton(folder: Path) -> dict[str, Any]:
    """Serves the fetched repository; whether its answers are the model's."""
    from tritonclient import http as client

    install = find_triton()
    if install is None:
        return {"triton": None}
    with tarfile.open(folder / "repository.tar") as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    with np.load(_DATA) as arrays:
        session = onnxruntime.InferenceSession(_MODEL, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        rows = arrays[name][:4].astype(np.float32)  # kept as bytes in the examples
    expected = session.run(None, {name: rows})[0]
    repository = folder / "repository"
    arguments = ("--model-repository", str(repository), "--load-model", "digits")
    with (
        TritonServer(install, arguments=arguments) as server,
        client.InferenceServerClient(server.http_address) as triton,
    ):
        served = triton.get_model_config("digits")
        answers = []
        parts = math.ceil(len(rows) / max(served["max_batch_size"], 1))
        for part in np.array_split(rows, parts):
            tensor = client.InferInput(name, part.shape, client.np_to_triton_dtype(part.dtype))
            tensor.set_data_from_numpy(part)
            found = triton.infer("digits", [tensor])
            answers.append(found.as_numpy(session.get_outputs()[0].name))
        answer = np.concatenate(answers)
    return {
        "triton": install.described,
        "max_batch_size": served["max_batch_size"],
        "largest_difference": float(np.max(np.abs(answer - expected))),
    }


def dashboard(url: str) -> dict[str, Any]:
    """What optuna-dashboard tells of the studies at ``url``.

    Raises:
        SystemExit: It does not answer.
    """
    programs = environment("dashboard-venv", _DASHBOARD, "psycopg[binary]")
    [port] = free_ports(1)
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [programs / _DASHBOARD, url, "--host", "127.0.0.1", "--port", str(port)],
            stdout=log, stderr=log, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        try:
            base = f"http://127.0.0.1:{port}"
            ends_at = time.monotonic() + _START_S
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    studies = httpx.get(f"{base}/api/studies", timeout=30).raise_for_status().json()
                    break
                if process.poll() is not None or time.monotonic() > ends_at:
                    log.seek(0)
                    raise SystemExit(f"optuna-dashboard: {log.read()[-3000:]}")
                time.sleep(0.2)
            summaries = studies["study_summaries"]
            shown = httpx.get(f"{base}/api/studies/{summaries[0]['study_id']}", timeout=30)
            trials = shown.raise_for_status().json()["trials"]
            page = httpx.get(f"{base}/dashboard/", timeout=30).status_code
        finally:
            process.terminate()
            process.wait(30)
    return {
        "dashboard": f"{_DASHBOARD} {version(programs, _DASHBOARD)}",
        "studies": [summary["study_name"] for summary in summaries],
        "trials": len(trials),
        "page": page,
    }


def reading_url(server: PostgresServer | None, url: str) -> tuple[str, bool]:
    """The same database for a reader, and whether writing was refused there."""
    import sqlalchemy

    if server is not None:
        import psycopg

        name = url.rpartition("/")[2]
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE ROLE reader LOGIN PASSWORD 'reads'")
            connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        address = server.url.rpartition("@")[2]
        reading = f"postgresql+psycopg://reader:reads@{address}/{name}"
    else:
        path = url.removeprefix("sqlite:///")
        reading = f"sqlite:///file:{path}?mode=ro&uri=true"
    engine = sqlalchemy.create_engine(reading)
    try:
        with engine.begin() as connection_:
            connection_.execute(sqlalchemy.text("DELETE FROM service_jobs"))
    except sqlalchemy.exc.DBAPIError:
        return reading, True
    finally:
        engine.dispose()
    return reading, False


def travel(kind: str) -> dict[str, Any]:
    """The whole journey on one database."""
    with contextlib.ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="tr-")))
        server = ends.enter_context(postgres_server()) if kind == "postgresql" else None
        url = server.create("service") if server else f"sqlite:///{folder / 'service.db'}"
        with service(url, folder / "data") as (base, token):
            found = {"journey": journey(base, token, folder)}
            reading, refused = reading_url(server, url)
            found["dashboard"] = dashboard(reading) | {"writing_refused": refused}
        found["triton"] = served_by_triton(folder)
    return found


def shown(document: dict[str, Any]) -> str:
    """The findings as a table."""
    rows = [
        [kind, part, json.dumps(value)]
        for kind, found in document["databases"].items()
        for part, value in found.items()
    ]
    return table(["database", "part", "found"], rows)


def main() -> int:
    """Travels; 1 where something was not as it should be."""
    command = Command("service_journey", __doc__, timing=False)
    command.argument("--database", choices=["sqlite", "postgresql"], help="one alone")
    options = command.start()
    databases: dict[str, Any] = {}
    if options.out.is_file():
        databases = json.loads(options.out.read_text()).get("databases", {})
    for kind in [options.database] if options.database else ["sqlite", "postgresql"]:
        say(kind)
        databases[kind] = travel(kind)
    command.finish(options, {"databases": databases}, shown)
    good = all(
        found["journey"]["events_in_order"]
        and found["dashboard"]["writing_refused"]
        and found["dashboard"]["trials"] > 0
        and found["triton"].get("largest_difference", 0.0) < 1e-4
        for found in databases.values()
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
