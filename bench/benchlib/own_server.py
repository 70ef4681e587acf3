"""``analyze serve`` in a process of its own, for benches and tests."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COMMAND = (sys.executable, "-m", "analyzer.cli.main", "serve")
FREE = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServer:
    """A server that answers; ``http`` and ``grpc`` are HOST:PORT."""

    process: subprocess.Popen[str]
    http: str
    grpc: str


@contextmanager
def own_server(repository: Path, *options: str) -> Iterator[OwnServer]:
    """Serves a repository on free ports; killed at the end.

    Raises:
        RuntimeError: It did not start; with what it said.
    """
    command = [*COMMAND, str(repository), *FREE, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # What it says later must not fill the pipe.
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        try:
            said = ""
            found: dict[str, str] = {}
            for line in process.stderr:
                said += line
                if started := re.match(r"Started (\w+).* at (\S+)", line):
                    found[started[1]] = started[2]
                if "Metrics" in found:
                    break
            drain.start()
            if "Metrics" not in found:
                raise RuntimeError(f"analyze serve did not start: {said[-2000:]}")
            yield OwnServer(
                process=process, http=found["HTTPService"], grpc=found["GRPCInferenceService"]
            )
        finally:
            process.kill()
            drain.join()
