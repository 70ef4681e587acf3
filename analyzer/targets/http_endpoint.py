"""The control side of a KServe v2 endpoint over HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx
from google.protobuf import json_format

from analyzer.engine.counters import ServerStatistics
from analyzer.errors import TargetCrashError, TargetError
from analyzer.modelconfig.text import ModelConfig
from analyzer.targets.endpoint import (
    ANSWER_S,
    LOAD_S,
    EndpointModel,
    authority,
    describe_model,
    load_timeout,
    model_states,
    raise_load_failure,
    total_statistics,
)
from analyzer.targets.http_connection import HttpConnection
from analyzer.targets.payload import RequestPool

# Triton refuses a larger JSON body unless it was told otherwise (--http-max-input-size).
_JSON_BYTES_MAX = 64 << 20


class HttpEndpoint:
    """A KServe v2 endpoint with Triton's extensions over HTTP."""

    # Base64 makes files a third larger; no server takes a body beyond 2 GiB.
    load_bytes_max = (2**31 - (1 << 20)) // 4 * 3

    def __init__(self, host: str, port: int) -> None:
        self._where = (host, port)
        self.address = f"http://{authority(host, port)}"
        try:
            self._client = httpx.Client(
                base_url=self.address,
                headers={"Accept-Encoding": "identity"},
                timeout=ANSWER_S,
                verify=False,  # never https, whose certificates take 50 ms to load
                trust_env=False,  # a proxy would stand between us and what is measured
                # A server under load keeps no idle connection for us, and we trust none to live.
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        except (httpx.InvalidURL, UnicodeError) as error:  # of a host such as 10.0.0.256
            raise TargetCrashError(
                f"No server can be reached at {self.address}: {error}.",
                hint="Correct the address.",
            ) from error

    def close(self) -> None:
        """Ends the client."""
        self._client.close()

    def live(self) -> bool:
        """Whether the server lives."""
        return self._ask("GET", "/v2/health/live").is_success

    def ready(self, model: str | None = None) -> bool:
        """Whether the server, or a model on it, is ready."""
        path = "/v2/health/ready" if model is None else f"{_model_path(model)}/ready"
        return self._ask("GET", path).is_success

    def models(self) -> dict[str, str]:
        """Every known model and its state; READY if one of its versions is."""
        return model_states(self.index())

    def index(self) -> Sequence[Mapping[str, Any]]:
        """The repository's index: name, version, state and reason of each model."""
        entries: list[dict[str, Any]] = self._json("POST", "/v2/repository/index", json={})
        return entries

    def model(self, name: str) -> EndpointModel:
        """A model's description."""
        return describe_model(self, name, self._json("GET", _model_path(name)))

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
        values = self._json("GET", f"{_model_path(name)}/config")
        if not isinstance(values, dict):
            raise TargetError(f"The server at {self.address} sent no configuration of {name}.")
        return values

    def load(
        self,
        name: str,
        config: Any | None,
        files: Mapping[str, bytes],
        *,
        timeout_s: float = LOAD_S,
    ) -> None:
        """Loads a model, with its configuration and files if given."""
        parameters = {
            f"file:{path}": base64.b64encode(content).decode("ascii")
            for path, content in files.items()
        }
        if config is not None:
            text = json_format.MessageToJson(config, preserving_proto_field_name=True)
            parameters["config"] = text
        body = json.dumps({"parameters": parameters} if parameters else {}).encode()
        path = f"{_repository_path(name)}/load"
        too_large = TargetError(
            f"The files of {name} ({len(body) / 2**20:.0f} MiB as JSON) are too large for the "
            f"server at {self.address} over HTTP.",
            hint="Attach by grpc:// (up to 2 GiB), or raise the server's --http-max-input-size.",
        )
        try:
            reply = self._ask("POST", path, content=body, timeout=timeout_s)
        except TargetCrashError as error:
            if isinstance(error.__cause__, httpx.ReadTimeout):
                raise load_timeout(self.address, name, timeout_s) from error
            if len(body) > _JSON_BYTES_MAX:
                raise too_large from error
            raise
        if reply.is_success:
            return
        reason = _reason(reply)
        told = reply.status_code == 413 or "size" in reason or "large" in reason
        if len(body) > _JSON_BYTES_MAX and told:
            raise too_large
        raise_load_failure(self.address, name, reason)

    def unload(self, name: str) -> None:
        """Unloads a model; it may still be draining afterwards."""
        self._json("POST", f"{_repository_path(name)}/unload", json={})

    def statistics(self, name: str) -> ServerStatistics:
        """A model's counters, all its versions together."""
        return total_statistics(self._json("GET", f"{_model_path(name)}/stats")["model_stats"])

    @contextmanager
    def connect(self, name: str, pool: RequestPool) -> Iterator[HttpConnection]:
        """A pool of sockets of its own whose requests go to model ``name``."""
        connection = HttpConnection(*self._where, name, pool)
        try:
            yield connection
        finally:
            connection.close()

    def _json(self, method: str, path: str, **options: Any) -> Any:
        reply = self._ask(method, path, **options)
        if not reply.is_success:
            raise TargetError(
                f"The server at {self.address}: {_reason(reply)} (status {reply.status_code})"
            )
        try:
            return reply.json() if reply.content else {}
        except ValueError as error:
            raise TargetError(f"The server at {self.address} sent no JSON for {path}.") from error

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        if self._client.is_closed:
            raise TargetCrashError(f"The connection to {self.address} is closed.")
        try:
            return self._client.request(method, path, **options)
        # UnicodeError: a name that can be no host's (triton..svc), from the resolver.
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise TargetCrashError(
                f"The server at {self.address} does not answer: {error or type(error).__name__}.",
                hint="See whether it still runs.",
            ) from error


def _model_path(name: str) -> str:
    return f"/v2/models/{quote(name, safe='')}"


def _repository_path(name: str) -> str:
    return f"/v2/repository/models/{quote(name, safe='')}"


def _reason(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"])
    except (ValueError, KeyError, TypeError):
        return reply.content[:200].decode("utf-8", "replace") or "no reason given"
