"""Targets behind a KServe v2 endpoint: a model that is there, or one loaded for the measurement."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo
from analyzer.engine.counters import ServerStatistics
from analyzer.errors import (
    AnalyzerError,
    MissingPartError,
    TargetCrashError,
    TargetError,
    TargetLoadError,
    TargetMemoryError,
    is_out_of_memory,
)
from analyzer.modelconfig.files import ModelFiles
from analyzer.modelconfig.text import parse_config
from analyzer.targets.address import open_endpoint
from analyzer.targets.endpoint import LOAD_S, Endpoint, unready_reason
from analyzer.targets.payload import RequestPool
from analyzer.targets.target import Connection
from analyzer.targets.triton_server import TritonServer

_UNLOAD_S = 30.0  # a python backend takes more than a second per instance
# A server of our own ends anyway; what hangs in it is ended with it.
_UNLOAD_LOCAL_S = 3.0
_POLL_S = 0.02  # short against loading a model
_CORRECT = "Correct the model or its config.pbtxt: Triton does not serve them as they are."
# How Triton's core says that it has no such backend (backend_model.cc, newer and older versions).
_NO_BACKEND = (
    "unable to find backend library for backend '{}'",
    "unable to find 'libtriton_{}.so'",
)
# Of the log of a load that failed: so many lines, and none of Triton's that only inform or warn.
_LOG_LINES = 6
_INFORMS = re.compile(r"[IVW]\d{4} |[+|]")


class EndpointTarget:
    """One model on an endpoint.

    Args:
        endpoint: The server.
        model: The model's name there.
        pool: Inputs of requests.
        configuration: What was loaded; None for a model that was there.
        notes: Sentences that qualify what is measured (another backend than the configuration's).
        server: The server's process where it is ours.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        pool: RequestPool,
        *,
        configuration: Configuration | None = None,
        notes: tuple[str, ...] = (),
        server: TritonServer | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.model = model
        self.configuration = configuration
        self.notes = notes
        self.pool = pool
        self._server = server

    def connect(self) -> AbstractContextManager[Connection]:
        """A connection of its own."""
        return self.endpoint.connect(self.model, self.pool)

    def statistics(self) -> ServerStatistics | None:
        """The model's counters; None where the endpoint has no statistics.

        Raises:
            TargetCrashError: The server does not answer.
        """
        try:
            return self.endpoint.statistics(self.model)
        except TargetCrashError as error:
            if self._server is not None and not self._server.alive():
                raise TargetCrashError(self.why_gone()) from error
            raise
        except TargetError:
            return None

    @property
    def pids(self) -> tuple[int, ...]:
        """The server's processes where it is ours."""
        return self._server.pids if self._server is not None else ()

    def alive(self) -> bool:
        """Whether the model is ready."""
        if self._server is not None and not self._server.alive():
            return False
        try:
            return self.endpoint.ready(self.model)
        except TargetError:
            return False

    def why_gone(self) -> str:
        """The server's reason, or the end of its log where it is ours and ended."""
        if self._server is not None and not self._server.alive():
            return f"The server ended. Its last log lines:\n{self._server.log_tail(12)}"
        try:
            return unready_reason(self.endpoint.index(), self.model)
        except TargetError as error:
            return error.message


def temporary_name(model: str, configuration: Configuration, token: str = "") -> str:
    """A name for a model that is loaded to be measured, unlike any that may be there.

    Args:
        token: What makes it so, for who must know the name before; drawn where it is empty.
    """
    return f"tritune_{model[:64]}_{configuration.config_id}_{token or secrets.token_hex(4)}"


def unload_left(address: str, name: str) -> str:
    """Unloads a model whose measurement was killed before it could.

    The load may still be going on, which a server finishes first. That there is none of that name
    is no error.

    Args:
        name: Its :func:`temporary_name`.

    Returns:
        Why it may still be loaded, as a sentence; empty where it is not.
    """
    try:
        endpoint = open_endpoint(address)
    except AnalyzerError as error:
        return f"The model {name} may still be loaded: {error.message}"
    try:
        return _unload(endpoint, name)
    finally:
        endpoint.close()


@contextmanager
def existing_model_target(
    address: str, model: str, inputs: Mapping[str, NDArray[Any]] | None, *, batchable: bool
) -> Iterator[EndpointTarget]:
    """The model that is served at ``address``; nothing is loaded, changed or unloaded.

    Raises:
        TargetCrashError: Nothing answers there.
        MissingPartError: It is not ready there; the hint lists what is.
    """
    endpoint = open_endpoint(address)
    try:
        if not endpoint.ready(model):
            known: list[str] = []
            with suppress(TargetError):
                known = sorted(n for n, state in endpoint.models().items() if state == "READY")
            raise MissingPartError(
                f"The server at {address} has no model {model!r} that is ready.",
                hint=f"It serves: {', '.join(known) or 'no model'}.",
            )
        assert inputs, "a request needs inputs"
        yield EndpointTarget(endpoint, model, RequestPool(inputs, batchable=batchable))
    finally:
        endpoint.close()


@contextmanager
def local_target(
    server: TritonServer,
    files: ModelFiles,
    inputs: Mapping[str, NDArray[Any]],
    *,
    model: ModelInfo,
    protocol: str = "http",
    notes: tuple[str, ...] = (),
    unload: bool = True,
    load_s: float = math.inf,
) -> Iterator[EndpointTarget]:
    """A model written to the repository of a server of ours, loaded, and removed at the end.

    Args:
        server: Ready.
        files: The model under its name on the server (:func:`temporary_name`).
        inputs: Rows of input, as :class:`RequestPool` takes them.
        model: Its tensors.
        protocol: ``http`` or ``grpc``.
        notes: For :class:`EndpointTarget`.
        unload: False where the server ends right after: unloading takes a python backend more than
            a second per instance.
        load_s: What loading may take, up to the endpoint's limit.

    Raises:
        TargetLoadError, TargetMemoryError: It could not be loaded, or the server ended meanwhile.
        LoadTimeoutError: It was not loaded in time.
        TargetCrashError: The server is gone.
    """
    address = server.http_address if protocol == "http" else server.grpc_address
    endpoint = open_endpoint(f"{protocol}://{address}")
    try:
        server.put_model(files)
        try:
            _load_here(server, endpoint, files.name, load_s)
            yield EndpointTarget(
                endpoint,
                files.name,
                RequestPool(inputs, batchable=model.batchable),
                configuration=files.configuration,
                notes=notes,
                server=server,
            )
        finally:
            if unload and server.alive():
                _unload(endpoint, files.name, timeout_s=_UNLOAD_LOCAL_S)
            server.remove_model(files.name)
    finally:
        endpoint.close()


@contextmanager
def attached_target(
    address: str,
    candidates: Sequence[ModelFiles],
    inputs: Mapping[str, NDArray[Any]],
    *,
    model: ModelInfo,
    load_s: float = math.inf,
) -> Iterator[EndpointTarget]:
    """A model sent to a running server under a name of its own, and unloaded at the end.

    Models that were there before are never touched: the name is new, and only it is unloaded. Where
    that fails, a note of the target says so afterwards.

    Args:
        address: ``grpc://HOST:PORT`` or ``http://HOST:PORT``.
        candidates: The model for one backend after the other; the first that the server has is
            taken, and a note says so if it is not the first.
        inputs: Rows of input, as :class:`RequestPool` takes them.
        model: Its tensors.
        load_s: What loading may take, up to the endpoint's limit.

    Raises:
        TargetCrashError: Nothing answers.
        TargetError: The server has no explicit model control, or the model is too large to send.
        TargetLoadError, TargetMemoryError: It could not be loaded with any backend.
        LoadTimeoutError: It was not loaded in time.
    """
    assert candidates
    endpoint = open_endpoint(address)
    try:
        known = endpoint.models()
        loaded: ModelFiles | None = None
        notes: tuple[str, ...] = ()
        for number, files in enumerate(candidates):
            assert files.name not in known, "a temporary name is new"
            try:
                _send(endpoint, files, min(load_s, LOAD_S))
            except TargetLoadError as error:
                last = number == len(candidates) - 1
                if last or not _lacks_backend(error, files.configuration.backend):
                    raise
                instead = candidates[number + 1].configuration.backend
                without = f"{address} has no {files.configuration.backend} backend"
                notes = (f"{without}; {instead} was measured instead.",)
                continue
            loaded = files
            break
        assert loaded is not None
        target = EndpointTarget(
            endpoint,
            loaded.name,
            RequestPool(inputs, batchable=model.batchable),
            configuration=loaded.configuration,
            notes=notes,
        )
        try:
            yield target
        finally:
            if left := _unload(endpoint, loaded.name):
                target.notes = (*target.notes, left)
    finally:
        endpoint.close()


def _lacks_backend(error: TargetLoadError, backend: str) -> bool:
    """Whether a model was refused since the server has no such backend, in Triton's own words."""
    return any(said.format(backend) in error.message for said in _NO_BACKEND)


def _load_here(server: TritonServer, endpoint: Endpoint, name: str, load_s: float) -> None:
    """Loads a model that lies in the repository of ``server``, which may end by that."""
    before = len(server.log_lines())
    try:
        endpoint.load(name, None, {}, timeout_s=min(load_s, LOAD_S))
    except TargetCrashError as error:
        if not (how := server.how_ended()):
            raise
        lines = [line for line in server.log_lines()[before:] if not _INFORMS.match(line)]
        said = "\n".join(lines[-_LOG_LINES:])
        kind = TargetMemoryError if is_out_of_memory(said) else TargetLoadError
        raise kind(
            f"Triton ended {how} while it loaded {name}. The last lines of its log:\n{said}",
            hint=_CORRECT,
        ) from error
    except TargetLoadError as error:
        raise error.reworded(error.message, _CORRECT) from error


def _send(endpoint: Endpoint, files: ModelFiles, load_s: float) -> None:
    if files.size_bytes > endpoint.load_bytes_max:
        raise TargetError(
            f"The files of {files.name} ({files.size_bytes / 2**30:.2f} GiB) do not fit into one "
            f"message to {endpoint.address} (at most {endpoint.load_bytes_max / 2**30:.2f} GiB).",
            hint="Use --server triton on the server's machine; its models are files, not messages.",
        )
    contents = {
        f"1/{name}": content if isinstance(content, bytes) else content.read_bytes()
        for name, content in files.version_files.items()
    }
    try:
        endpoint.load(files.name, parse_config(files.config_text), contents, timeout_s=load_s)
    except BaseException:
        # An interrupted load may still come to pass.
        with suppress(AnalyzerError):
            endpoint.unload(files.name)
        raise


def _unload(endpoint: Endpoint, name: str, *, timeout_s: float = _UNLOAD_S) -> str:
    """Unloads a model and waits until it no longer answers.

    Returns:
        Why it may still be loaded, as a sentence; empty where it is not.
    """
    deadline = time.monotonic() + timeout_s
    why = f"it was still there after {timeout_s:g} s."
    try:
        endpoint.unload(name)
        while time.monotonic() < deadline:
            # One whose files were sent has no folder, and is not in the index of a Triton.
            state = endpoint.models().get(name, "UNAVAILABLE")
            if state in ("", "UNAVAILABLE") and not endpoint.ready(name):
                return ""
            time.sleep(_POLL_S)
    except TargetError as error:
        why = error.message
    return f"The model {name} may still be loaded at {endpoint.address}: {why}"
