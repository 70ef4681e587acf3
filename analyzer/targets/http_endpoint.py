"""A KServe v2 endpoint over HTTP, and a connection that keeps a pool of sockets alive.

A request is one prepared block of bytes (binary tensors) and its reply's body is not decoded, so
that the client costs as little as it can: HTTP/1.1 has one request at a time on a socket, and there
are as many sockets as requests were ever in flight together.
"""

from __future__ import annotations

import base64
import http.client
import json
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httptools
from google.protobuf import json_format
from numpy.typing import NDArray

from analyzer.domain.measurement import STATUS_ERROR, STATUS_OK
from analyzer.engine.counters import ServerStatistics
from analyzer.errors import TargetCrashError, TargetError
from analyzer.modelconfig.text import ModelConfig
from analyzer.targets.endpoint import EndpointModel, describe, raise_load_failure
from analyzer.targets.payload import RequestPool, datatype_of
from analyzer.targets.target import Completion

_ANSWER_S = 30.0
_LOAD_S = 600.0
_CONNECT_S = 5.0
# Triton refuses a larger JSON body unless it was told otherwise (--http-max-input-size).
_JSON_BYTES_MAX = 64 << 20
_RECEIVE_BYTES = 1 << 18
_SOCKETS_MAX = 4096


class HttpEndpoint:
    """A KServe v2 endpoint with Triton's extensions over HTTP."""

    # Base64 makes files a third larger; no server takes a body beyond 2 GiB.
    load_bytes_max = (2**31 - (1 << 20)) // 4 * 3

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    @property
    def address(self) -> str:
        """``http://HOST:PORT``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def close(self) -> None:
        """Nothing is kept open between calls."""

    def server_version(self) -> str:
        """Name and version of the server."""
        reply = self._get("/v2")
        return f"{reply.get('name', '')} {reply.get('version', '')}"

    def live(self) -> bool:
        """Whether the server lives."""
        status, _ = self._ask("GET", "/v2/health/live")
        return status == 200

    def ready(self, model: str | None = None) -> bool:
        """Whether the server, or a model on it, is ready."""
        path = "/v2/health/ready" if model is None else f"/v2/models/{quote(model, safe='')}/ready"
        status, _ = self._ask("GET", path)
        return status == 200

    def models(self) -> dict[str, str]:
        """Every known model and its state; READY if one of its versions is."""
        states: dict[str, str] = {}
        for entry in self._post("/v2/repository/index", {}):
            if states.get(entry["name"]) != "READY":
                states[entry["name"]] = entry.get("state", "")
        return states

    def model(self, name: str) -> EndpointModel:
        """A model's description."""
        meta = self._get(f"/v2/models/{quote(name, safe='')}")
        try:
            maximum: int | None = self.config(name).max_batch_size
        except TargetCrashError:
            raise
        except TargetError:
            maximum = None  # a KServe endpoint without Triton's extension
        inputs, outputs = (
            [(t["name"], t["datatype"], [int(d) for d in t["shape"]]) for t in meta.get(kind, [])]
            for kind in ("inputs", "outputs")
        )
        return describe(
            name,
            [str(version) for version in meta.get("versions", [])],
            meta.get("platform", ""),
            (inputs, outputs),
            maximum,
        )

    def config(self, name: str) -> Any:
        """A model's configuration after completion, a ``ModelConfig``."""
        values = self.config_json(name)
        try:
            # A newer server may know more fields than this client.
            return json_format.ParseDict(values, ModelConfig(), ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise TargetError(
                f"The server at {self.address} sent no configuration: {error}"
            ) from error

    def config_json(self, name: str) -> dict[str, Any]:
        """A model's configuration as the server prints it."""
        values = self._get(f"/v2/models/{quote(name, safe='')}/config")
        if not isinstance(values, dict):
            raise TargetError(f"The server at {self.address} sent no configuration of {name}.")
        return values

    def load(self, name: str, config: Any | None, files: Mapping[str, bytes]) -> None:
        """Loads a model, with its configuration and files if given."""
        parameters: dict[str, str] = {}
        if config is not None:
            text = json_format.MessageToJson(config, preserving_proto_field_name=True)
            parameters["config"] = text
        for path, content in files.items():
            parameters[f"file:{path}"] = base64.b64encode(content).decode("ascii")
        body = json.dumps({"parameters": parameters}).encode() if parameters else b"{}"
        path = f"/v2/repository/models/{quote(name, safe='')}/load"
        try:
            status, reply = self._ask("POST", path, body, timeout_s=_LOAD_S)
        except TargetCrashError as error:
            if len(body) > _JSON_BYTES_MAX:
                raise self._too_large(name, len(body)) from error
            raise
        if status == 200:
            return
        reason = _reason(reply)
        if len(body) > _JSON_BYTES_MAX and (status == 413 or "size" in reason or "large" in reason):
            raise self._too_large(name, len(body))
        raise_load_failure(self.address, name, reason)

    def _too_large(self, name: str, size: int) -> TargetError:
        return TargetError(
            f"The files of {name} ({size / 2**20:.0f} MiB as JSON) are too large for the server at "
            f"{self.address} over HTTP.",
            hint="Attach by grpc:// (up to 2 GiB), or raise the server's --http-max-input-size.",
        )

    def unload(self, name: str) -> None:
        """Unloads a model; it may still be draining afterwards."""
        self._post(f"/v2/repository/models/{quote(name, safe='')}/unload", {})

    def statistics(self, name: str) -> ServerStatistics:
        """A model's counters, all its versions together."""
        entries = self._get(f"/v2/models/{quote(name, safe='')}/stats")["model_stats"]
        batches: dict[int, int] = {}
        for entry in entries:
            for batch in entry.get("batch_stats", []):
                size, count = int(batch["batch_size"]), int(batch["compute_infer"]["count"])
                batches[size] = batches.get(size, 0) + count

        def total(stage: str, what: str) -> int:
            return sum(int(entry["inference_stats"][stage][what]) for entry in entries)

        return ServerStatistics(
            inference_count=sum(int(entry["inference_count"]) for entry in entries),
            execution_count=sum(int(entry["execution_count"]) for entry in entries),
            success_count=total("success", "count"),
            success_ns=total("success", "ns"),
            fail_count=total("fail", "count"),
            queue_ns=total("queue", "ns"),
            compute_input_ns=total("compute_input", "ns"),
            compute_infer_ns=total("compute_infer", "ns"),
            compute_output_ns=total("compute_output", "ns"),
            batches=tuple(sorted(batches.items())),
        )

    @contextmanager
    def connect(self, name: str, pool: RequestPool) -> Iterator[HttpConnection]:
        """A pool of sockets of its own whose requests go to model ``name``."""
        connection = HttpConnection(self._host, self._port, name, pool)
        try:
            yield connection
        finally:
            connection.close()

    def _get(self, path: str) -> Any:
        return self._json("GET", path, b"")

    def _post(self, path: str, body: Any) -> Any:
        return self._json("POST", path, json.dumps(body).encode())

    def _json(self, method: str, path: str, body: bytes) -> Any:
        status, reply = self._ask(method, path, body)
        if status != 200:
            raise TargetError(f"The server at {self.address}: {_reason(reply)} (status {status})")
        try:
            return json.loads(reply) if reply else {}
        except ValueError as error:
            raise TargetError(f"The server at {self.address} sent no JSON for {path}.") from error

    def _ask(
        self, method: str, path: str, body: bytes = b"", *, timeout_s: float = _ANSWER_S
    ) -> tuple[int, bytes]:
        client = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            client.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            reply = client.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise TargetCrashError(
                f"The server at {self.address} does not answer: {error or type(error).__name__}.",
                hint="See whether it still runs.",
            ) from error
        finally:
            client.close()


class HttpConnection:
    """Sends prepared requests over a pool of sockets; used by one thread."""

    def __init__(self, host: str, port: int, model: str, pool: RequestPool) -> None:
        self._where = (host, port)
        self._model = model
        self._pool = pool
        self._payloads: dict[int, Iterator[bytes]] = {}
        self._poll = select.epoll()
        self._idle: list[_Socket] = []
        self._by_handle: dict[int, _Socket] = {}
        self._ended: list[Completion] = []
        try:
            self._idle.append(self._open())
        except OSError as error:
            self.close()
            raise TargetCrashError(
                f"The server at http://{host}:{port} does not answer: {error}."
            ) from error

    def send(self, request: int, batch_size: int) -> None:
        """Sends a request; waits only where a new socket must be opened.

        Raises:
            TargetCrashError: The server is gone: no socket is left and none can be opened.
        """
        payloads = self._payloads.get(batch_size)
        if payloads is None:
            payloads = self._pool.payloads(batch_size, self._encode)
            self._payloads[batch_size] = payloads
        one: _Socket | None = None
        try:
            one = self._idle.pop() if self._idle else self._open()
            one.begin(request, next(payloads))
        except OSError as error:
            # A socket that the server closed while it was idle, or no further one to be had.
            if one is None and not self._by_handle:
                raise self._gone(error) from error
            self._ended.append(Completion(request, STATUS_ERROR))
            if one is not None:
                self._drop(one)
            return
        if one.unsent is not None:
            self._poll.modify(one.handle, select.EPOLLIN | select.EPOLLOUT)

    def receive(self, timeout_s: float) -> Sequence[Completion]:
        """Replies that are there, waiting at most ``timeout_s`` for the first.

        Raises:
            TargetCrashError: The server is gone.
        """
        # An epoll handle can itself be waited for, with the resolution that epoll's own lacks.
        if timeout_s > 0 and not self._ended:
            select.select((self._poll,), (), (), timeout_s)
        for handle, event in self._poll.poll(0):
            one = self._by_handle[handle]
            try:
                if event & select.EPOLLOUT:
                    one.go_on()
                    if one.unsent is None:
                        self._poll.modify(handle, select.EPOLLIN)
                if event & ~select.EPOLLOUT:
                    self._read(one)
            except (OSError, httptools.HttpParserError):
                self._lost(one)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Closes every socket; the server drops what is in flight."""
        for one in self._by_handle.values():
            one.socket.close()
        self._by_handle.clear()
        self._idle.clear()
        if not self._poll.closed:
            self._poll.close()

    def _read(self, one: _Socket) -> None:
        data = one.socket.recv(_RECEIVE_BYTES)
        if not data:
            self._lost(one)
            return
        one.parser.feed_data(data)
        if one.done:
            one.done = False
            status = STATUS_OK if one.parser.get_status_code() == 200 else STATUS_ERROR
            self._ended.append(Completion(one.request, status))
            one.request = -1
            if one.parser.should_keep_alive():
                self._idle.append(one)
            else:
                self._drop(one)

    def _lost(self, one: _Socket) -> None:
        """The server closed the socket: what was in flight on it failed."""
        if one.request >= 0:
            self._ended.append(Completion(one.request, STATUS_ERROR))
            one.request = -1
        elif one in self._idle:
            self._idle.remove(one)
        self._drop(one)
        if not self._by_handle:
            try:
                self._idle.append(self._open())
            except OSError as error:
                raise self._gone(error) from error

    def _gone(self, error: OSError) -> TargetCrashError:
        host, port = self._where
        return TargetCrashError(
            f"The server at http://{host}:{port} went away: {error}.",
            hint="Its own log may say why.",
        )

    def _open(self) -> _Socket:
        if len(self._by_handle) >= _SOCKETS_MAX:
            raise OSError(f"{_SOCKETS_MAX} requests are in flight")
        one = _Socket(socket.create_connection(self._where, timeout=_CONNECT_S))
        self._by_handle[one.handle] = one
        self._poll.register(one.handle, select.EPOLLIN)
        return one

    def _drop(self, one: _Socket) -> None:
        if self._by_handle.pop(one.handle, None) is not None:
            one.socket.close()  # which also takes it out of the epoll set

    def _encode(self, tensors: dict[str, NDArray[Any]]) -> bytes:
        host, port = self._where
        return encode_request(f"{host}:{port}", self._model, tensors)


class _Socket:
    """A kept-alive socket, its parser and the request on it."""

    __slots__ = ("done", "handle", "parser", "request", "socket", "unsent")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.handle = connected.fileno()
        self.parser = httptools.HttpResponseParser(self)
        self.request = -1
        self.done = False
        self.unsent: memoryview | None = None

    def begin(self, request: int, payload: bytes) -> None:
        self.request = request
        try:
            sent = self.socket.send(payload)
        except BlockingIOError:
            sent = 0
        if sent < len(payload):
            self.unsent = memoryview(payload)[sent:]

    def go_on(self) -> None:
        """Sends more of a request that did not fit into the socket's buffer."""
        if self.unsent is not None:
            rest = self.unsent[self.socket.send(self.unsent) :]
            self.unsent = rest if rest else None

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.done = True


def encode_request(host: str, model: str, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """A whole HTTP request with binary tensors, outputs binary as well."""
    inputs = []
    blobs = []
    for name, array in tensors.items():
        blob = array.tobytes()
        blobs.append(blob)
        inputs.append(
            {
                "name": name,
                "datatype": datatype_of(array),
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(blob)},
            }
        )
    header = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    text = json.dumps(header, separators=(",", ":")).encode()
    body = b"".join((text, *blobs))
    head = (
        f"POST /v2/models/{quote(model, safe='')}/infer HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


def _reason(reply: bytes) -> str:
    try:
        return str(json.loads(reply)["error"])
    except (ValueError, KeyError, TypeError):
        return reply[:200].decode("utf-8", "replace") or "no reason given"
