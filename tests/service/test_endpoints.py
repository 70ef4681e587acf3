"""Jobs measure a Triton elsewhere only where the operator allows it, and reach nothing else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner

from analyzer.cli.service_limits import limit_arguments, limit_options
from analyzer.errors import UsageError
from analyzer.service.limits import ServiceLimits
from analyzer.service.options import check_options
from analyzer.service.problems import Problem
from analyzer.service.relay import parse_endpoint
from analyzer.service.sandbox import Isolation, probe
from analyzer.targets.http_endpoint import HttpEndpoint
from analyzer.targets.ports import free_ports

pytestmark = pytest.mark.sqlite_alone
ROOT = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[int]:
    """A server on loopback that answers each piece with its own name; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(1000):
                    connection.sendall(b"outside:" + data)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def test_two_spellings_of_an_address_are_one() -> None:
    for text in ("grpc://triton:8001", "GRPC://Triton:08001", "grpc://TRITON:8001/"):
        assert str(parse_endpoint(text)) == "grpc://triton:8001"
    assert str(parse_endpoint("http://[::1]:8000")) == "http://[::1]:8000"


LIMITS = ServiceLimits(endpoints=("grpc://triton:8001",))


@pytest.mark.parametrize(
    "server",
    [
        "grpc://triton:8002", "http://triton:8001", "grpc://triton.evil:8001", "grpc://triton",
        "grpc://user@triton:8001", "grpc://triton:8001/x", "http://169.254.169.254:80",
        "grpc://127.0.0.1:8001", "file:///etc/passwd", "https://triton:8001", "grpc://triton:80011",
    ],
)  # fmt: skip
def test_what_is_not_on_the_list_is_refused(server: str) -> None:
    for kind in ("search", "verify"):
        with pytest.raises(Problem) as refused:
            check_options(kind, {"latency_budget": "50ms", "server": server}, LIMITS)
        assert refused.value.status == 422 and refused.value.pointer == "/options/server"


def test_what_is_on_the_list_is_taken_whatever_its_case() -> None:
    found = check_options(
        "search", {"latency_budget": "50ms", "server": "GRPC://Triton:8001"}, LIMITS
    )
    assert str(found.endpoint) == "grpc://triton:8001"
    assert not [word for word in found.arguments if "server" in word], "the worker gives it"
    own = check_options("search", {"latency_budget": "50ms", "server": "triton"}, LIMITS)
    assert own.endpoint is None and "--server=triton" in own.arguments


@click.command()
@limit_options
def told(*, limits: ServiceLimits) -> None:
    click.echo(" ".join(limit_arguments(limits)))


def test_workers_get_the_same_list() -> None:
    given = ["--allow-endpoint", "grpc://A:8001", "--allow-endpoint", "http://b:8000"]
    first = CliRunner().invoke(told, given)
    again = CliRunner().invoke(told, first.output.split())
    assert again.output == first.output and "grpc://a:8001" in first.output
    wrong = CliRunner().invoke(told, ["--allow-endpoint", "https://a"])
    assert isinstance(wrong.exception, UsageError)


@pytest.mark.parametrize("isolated", [True, False])
def test_a_job_reaches_its_endpoint_and_nothing_else(
    service: Any, working: Any, wait_for: Any, server: int, isolated: bool
) -> None:
    if isolated and not probe().network:
        pytest.skip("this machine has no network namespaces")
    endpoints = (f"grpc://localhost:{server}",)
    client: httpx.Client = service.client(endpoints=endpoints)
    # What listens beside it, and is nobody's business: the service itself.
    script = json.dumps({"reach": [client.base_url.port, server]})
    model = client.post("/api/v1/models?name=m", content=script).json()["id"]
    options = {"latency_budget": "50ms", "server": f"grpc://LOCALHOST:{server}"}
    body = {"kind": "search", "model": model, "options": options}
    done = client.post("/api/v1/jobs", json=body)
    assert done.status_code == 201, done.text
    with working(isolation=None if isolated else Isolation(), endpoints=endpoints):
        wait_for(done.json()["id"], "SUCCEEDED", "FAILED")
    log = client.get(f"/api/v1/jobs/{done.json()['id']}/log").text
    others = " ConnectionRefusedError ConnectionRefusedError" if isolated else ""
    assert f"grpc://localhost:{server} outside:hello{others}" in log, "its own name, for the study"


_THROUGH_A_RELAY = """
import resource, socket, sys
from analyzer.service import relay
port, inner, count, soft, hard, wait_s = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
relay.listen(relay.start_relay("127.0.0.1", port), inner)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

def connection():
    made = socket.create_connection(("127.0.0.1", inner), 20)
    made.sendall(b"x")
    made.settimeout(wait_s)
    return made

def answered(made):
    try:
        return made.recv(100) == b"outside:x"
    except OSError:
        return False

held = [connection() for _ in range(count)]
print(sum(map(answered, held)))
for made in held:
    made.close()
print(any(answered(connection()) for _ in range(10)))
"""


@pytest.mark.parametrize("enough", [True, False])
def test_a_relay_carries_what_a_load_test_opens(server: int, enough: bool) -> None:
    """It ended where no handle was left, which was so at 510 connections."""
    limits = (600, 64, 4000, 20) if enough else (60, 80, 80, 1)
    numbers = (server, free_ports(1)[0], *limits)
    done = subprocess.run(
        [sys.executable, "-c", _THROUGH_A_RELAY, *map(str, numbers)],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    held, again = done.stdout.split()
    assert again == "True", done.stderr
    assert int(held) == 600 if enough else int(held) > 0


def test_an_endpoint_that_redirects_leads_nowhere() -> None:
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(3):
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(4000))
                    where = f"http://127.0.0.1:{listener.getsockname()[1]}/stolen"
                    connection.sendall(
                        f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n"
                        "Connection: close\r\n\r\n".encode()
                    )

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        endpoint = HttpEndpoint("127.0.0.1", listener.getsockname()[1])
        assert not endpoint.live() and not endpoint.ready()
        endpoint.close()
        listener.shutdown(socket.SHUT_RDWR)
    assert len(asked) == 2 and not [request for request in asked if b"/stolen" in request]
