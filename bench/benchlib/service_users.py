"""Users of a service whose parts fail: they try again until it answers, and note what they saw."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from onnx import TensorProto, helper

TERMINAL = ("SUCCEEDED", "FAILED", "CANCELLED")
# Longer than anything that fails stays away. (A key whose API was killed is free at once.)
_PATIENCE_S = 200.0
_WAIT_S = 0.3


class GaveUpError(Exception):
    """The service did not answer in a user's time."""


def scripted_model(script: Mapping[str, Any]) -> bytes:
    """A model that says what the scripted command shall do."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.doc_string = json.dumps(script)
    return bytes(model.SerializeToString())


class Client:
    """Asks one API, and the next one if that does not answer."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._bases = [f"http://127.0.0.1:{port}" for port in ports]
        self._turn = 0

    @property
    def base(self) -> str:
        """The API that is asked now."""
        return self._bases[self._turn % len(self._bases)]

    def turn(self) -> None:
        """Asks the next API from now on."""
        self._turn += 1

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The first answer that is not "now is a bad time".

        Raises:
            GaveUpError: There was none for minutes.
        """
        ends_at = time.monotonic() + _PATIENCE_S
        last = ""
        while time.monotonic() < ends_at:
            try:
                answer = httpx.request(method, f"{self.base}{path}", timeout=40, **more)
            except httpx.HTTPError as error:
                last = repr(error)
            else:
                in_flight = answer.status_code == 409 and "in_flight" in answer.text
                if answer.status_code < 500 and not in_flight:
                    return answer
                last = f"{answer.status_code} {answer.text[:300]}"
                if answer.status_code == 500:
                    raise GaveUpError(f"{method} {path}: {last}")
            self.turn()
            time.sleep(_WAIT_S)
        raise GaveUpError(f"{method} {path}: {last}")


@dataclass
class User(threading.Thread):
    """Uploads a model, hands a job in, and does one more thing to it.

    Args:
        wish: ``""``, ``cancel`` or ``pause`` (and resume).
    """

    ports: Sequence[int]
    script: Mapping[str, Any]
    submit_at_s: float
    wish: str
    wish_at_s: float
    job: str = ""
    trouble: str = ""
    follower: Follower | None = None
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        """The user's work."""
        try:
            self._work()
        except (GaveUpError, KeyError, ValueError) as error:
            self.trouble = repr(error)

    def _work(self) -> None:
        started = time.monotonic()
        client = Client(self.ports)
        content = scripted_model({**self.script, "name": self.key})
        time.sleep(self.submit_at_s)
        headers = {"Idempotency-Key": f"model-{self.key}"}
        done = client.ask(
            "POST", f"/api/v1/models?name=m{self.key[:8]}", content=content, headers=headers
        )
        body = {
            "kind": "search", "model": _created(done)["id"], "options": {"latency_budget": "50ms"},
        }  # fmt: skip
        headers = {"Idempotency-Key": f"job-{self.key}"}
        self.job = _created(client.ask("POST", "/api/v1/jobs", json=body, headers=headers))["id"]
        self.follower = Follower(self.ports, self.job)
        self.follower.start()
        if not self.wish:
            return
        time.sleep(max(self.wish_at_s - (time.monotonic() - started), 0.0))
        path = f"/api/v1/jobs/{self.job}"
        client.ask("POST", f"{path}/{self.wish}")
        while self.wish == "pause":
            time.sleep(_WAIT_S)
            if client.ask("GET", path).json()["state"] not in ("PAUSING", "PAUSED"):
                return
            client.ask("POST", f"{path}/resume")


def _created(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code != 201:
        raise ValueError(f"{answer.status_code} {answer.text[:500]}")
    return dict(answer.json())


class Follower(threading.Thread):
    """Watches a job's events to their end, over every interruption."""

    def __init__(self, ports: Sequence[int], job: str) -> None:
        super().__init__(daemon=True)
        self._client = Client(ports)
        self._job = job
        #: Numbers of the events, as they came.
        self.seen: list[int] = []
        self.ended = False

    def run(self) -> None:
        """Follows."""
        ends_at = time.monotonic() + _PATIENCE_S
        while not self.ended and time.monotonic() < ends_at:
            try:
                self._stream()
            except httpx.HTTPError:
                self._client.turn()
                time.sleep(_WAIT_S)

    def _stream(self) -> None:
        last = {"Last-Event-ID": str(self.seen[-1])} if self.seen else {}
        url = f"{self._client.base}/api/v1/jobs/{self._job}/events"
        with httpx.stream("GET", url, headers=last, timeout=20) as answer:
            if answer.status_code == 204:
                self.ended = True
                return
            if answer.status_code != 200:
                self._client.turn()
                time.sleep(_WAIT_S)
                return
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    self.seen.append(int(line[4:]))
