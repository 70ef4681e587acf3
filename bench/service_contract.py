"""The API against its own OpenAPI document, for ten minutes, by schemathesis.

    python bench/service_contract.py [--seconds 600] [--url postgresql://…] [--json]

Starts a service with tokens on a free port (on SQLite, or on the database that is given, which
should be empty), and lets schemathesis try examples, fuzzing and stateful walks with all checks,
ignored authentication and use after deletion among them. Of what is made up to be accepted, two of
three uploads and jobs are real ones (``benchlib/contract_hooks.py``). The goal is no finding.
Writes ``bench/results/service_contract.json``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from typing import Any

from analyzer.resources import search_path
from benchlib.command import ROOT, Command


def schemathesis(url: str, token: str, seconds: int, seed: int, *more: str) -> list[str]:
    """The command that holds a service against its own document; ``more`` of its options."""
    return [
        sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json",
        "--header", f"Authorization: Bearer {token}", "--max-time", str(seconds),
        "--seed", str(seed), "--exclude-path-regex", "/events$", "--request-timeout", "20",
        # What a document cannot say: an upload must be a model, options have units.
        "--exclude-checks", "positive_data_acceptance", *more,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    """For :func:`schemathesis`: with files that are what they should be."""
    return os.environ | {
        "NO_COLOR": "1",
        "PYTHONPATH": search_path("PYTHONPATH", ROOT, ROOT / "bench"),
        "SCHEMATHESIS_HOOKS": "benchlib.contract_hooks",
    }


def walked(seconds: int, url: str | None, seed: int) -> tuple[dict[str, Any], str]:
    """What schemathesis found at a service of this checkout, and its own report."""
    with tempfile.TemporaryDirectory(prefix="tritune-") as folder:
        store = ["--store", url] if url else []
        analyze = [sys.executable, "-m", "analyzer.cli.main", "service"]
        where = [f"--data={folder}/data", *store]
        made = subprocess.run(
            [*analyze, "token", "create", "--name", "bench", *where],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        token = made.stdout.strip()
        served = subprocess.Popen(
            [*analyze, "--port=0", "--auth=tokens", "--workers=0", *where],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert served.stderr is not None
            line = served.stderr.readline()
            while not line.startswith("http"):
                line = served.stderr.readline()
            base = line.strip()
            done = subprocess.run(
                [*schemathesis(base, token, seconds, seed), "--continue-on-failure"],
                capture_output=True, text=True, cwd=folder, env=environment(),
            )  # fmt: skip
        finally:
            served.terminate()
            served.wait(30)
    cases = re.search(r"([\d,]+) generated", done.stdout)
    links = re.search(r"API Links:\s+(\d+) covered / (\d+) selected", done.stdout)
    found = {
        "seconds": seconds,
        "database": "postgresql" if url else "sqlite",
        "cases": int(cases[1].replace(",", "")) if cases else None,
        "links": {"covered": int(links[1]), "of": int(links[2])} if links else None,
        "findings": len(re.findall(r"^- ", done.stdout, re.MULTILINE)),
        "passed": done.returncode == 0,
    }
    return found, done.stdout


def main() -> int:
    """Runs the bench; 1 where there is a finding."""
    command = Command("service_contract", __doc__, timing=False)
    command.argument("--seconds", type=int, default=600, help="how long (default: 600)")
    command.argument("--url", help="an empty database (default: a SQLite file)")
    command.argument("--seed", type=int, default=7)
    options = command.start()
    found, report = walked(options.seconds, options.url, options.seed)
    command.finish(options, found, lambda _: report)
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
