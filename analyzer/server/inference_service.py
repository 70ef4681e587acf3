"""What the server does for a client, in no protocol's terms; HTTP and gRPC only translate.

A front end turns bytes into calls of :class:`InferenceService` and its results, or the
:class:`~analyzer.engine.fault.Fault` that it raises, into bytes and status codes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel, OnDone
from analyzer.engine.requests import InferCall, InferenceReply
from analyzer.engine.runtimes.base import Tensors
from analyzer.errors import AnalyzerError
from analyzer.server import describe
from analyzer.server.bridge import ReplyBridge
from analyzer.server.limits import Limits
from analyzer.server.repository import Repository
from analyzer.server.settings import Settings
from analyzer.server.shared_memory import SharedMemory

_VERSION = re.compile(r"\s*([+-]?[0-9]{1,25})")


class Admission:
    """How many inference requests of one front end are in the server."""

    __slots__ = ("in_flight",)

    def __init__(self) -> None:
        self.in_flight = 0


class Connection(Protocol):
    """A client's connection; ``on_lost`` is called when the client goes away."""

    on_lost: Callable[[], object] | None


class InferenceService:
    """The models of a repository and what clients may ask about them.

    ``infer``, ``load`` and ``unload`` belong to the bridge's event loop; the rest is thread-safe.

    Args:
        memory: Regions that requests may name; front ends register and read them here.
        settings: Logging and trace settings.
        bridge: Of the loop that awaits the results.
        log: Takes a line about a fault of the server.
    """

    def __init__(
        self,
        repository: Repository,
        memory: SharedMemory,
        settings: Settings,
        limits: Limits,
        bridge: ReplyBridge,
        log: Callable[[str], None],
    ) -> None:
        self.repository = repository
        self.memory = memory
        self.settings = settings
        self.limits = limits
        self._bridge = bridge
        self._log = log

    def model(self, name: str, version: str = "") -> LoadedModel:
        """A model that is ready; without a version the newest.

        Raises:
            Fault: There is none, or the version is no number.
        """
        return self.repository.get(name, _version(version))

    def ready(self, name: str, version: str = "") -> bool:
        """Whether a model answers; without a version the newest.

        Raises:
            Fault: The version is no number.
        """
        return self.repository.ready(name, _version(version))

    async def infer(
        self,
        model: LoadedModel,
        version: str,
        call: InferCall,
        admission: Admission,
        connection: Connection | None = None,
    ) -> tuple[LoadedModel, Tensors]:
        """The model that ran a call, and the outputs by name.

        It is another than ``model`` where that was replaced since it was looked up. A call whose
        awaiting task is cancelled, or whose connection is lost, is taken back where it has not
        begun.

        Args:
            version: As the client asked for it; empty for the newest.
            admission: Of the front end over which the call came.
            connection: Of the client; None where the protocol cancels the awaiting task by itself.

        Raises:
            Fault: The call is wrong or failed, or too many are in the server.
            asyncio.CancelledError: Nobody waits any more.
        """
        if admission.in_flight >= self.limits.requests_max:
            raise Fault("unavailable", "too many requests are in the server")
        future: asyncio.Future[InferenceReply] = asyncio.get_running_loop().create_future()
        post = self._bridge.post
        admission.in_flight += 1
        try:
            model, ticket = self._start(model, version, call, lambda reply: post(future, reply))
            if connection is not None:
                connection.on_lost = future.cancel
            try:
                reply = await future
            except asyncio.CancelledError:
                model.cancel(ticket)
                raise
        finally:
            admission.in_flight -= 1
            if connection is not None:
                connection.on_lost = None
        if reply.outputs is None:
            assert reply.fault is not None
            raise reply.fault
        return model, reply.outputs

    def _start(
        self, model: LoadedModel, version: str, call: InferCall, on_done: OnDone
    ) -> tuple[LoadedModel, int]:
        """Starts a call, on the copy that serves now where ``model`` takes no more.

        Returns:
            The model that took the call, and its ticket.

        Raises:
            Fault: The call is wrong, or no model takes it.
        """
        inputs = call.inputs
        try:
            return model, model.infer(call, on_done)
        except Fault as fault:
            if fault.kind != "unavailable":
                raise
            newer = self.model(model.name, version)
            if newer is model:
                raise
        call.inputs = inputs  # those of a raw request were completed for the other copy
        return newer, newer.infer(call, on_done)

    def as_fault(self, error: Exception, where: str) -> Fault:
        """``error`` as clients see it; one that is neither theirs nor Triton's is logged."""
        if isinstance(error, Fault):
            return error
        if isinstance(error, AnalyzerError):
            return Fault("invalid", error.message)
        text = f"{type(error).__name__}: {error}"
        self._log(f"{where}: {text}")
        return Fault("internal", text)

    def metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """A model's inputs and outputs, and its versions; of one version that alone.

        Raises:
            Fault: There is no such model.
        """
        model = self.model(name, version)
        versions = [model.version_text] if version else self.repository.versions(name)
        return describe.model_metadata(model, versions)

    def statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        """Counters of a model's versions, of one version, or of every model.

        Raises:
            Fault: There is no such model.
        """
        models = self.repository.models()
        version = _version(version)
        if name:
            models = [m for m in models if m.name == name and version in ("", m.version_text)]
            if not models and self.repository.ready(name):
                raise Fault(
                    "invalid", f"requested model version is not available for model '{name}'"
                )
            if not models:
                raise Fault("invalid", f"requested model '{name}' is not available")
        return [describe.statistics(model) for model in models]

    def index(self, repository_name: str | None, *, ready_only: bool) -> list[dict[str, str]]:
        """Every model and its state.

        Raises:
            Fault: A repository is named.
        """
        _only_one_repository(repository_name)
        entries = self.repository.index(ready_only=ready_only)
        return [describe.index_entry(entry) for entry in entries]

    async def load(
        self,
        repository_name: str | None,
        name: str,
        *,
        config_json: str | None,
        files: Mapping[str, bytes],
    ) -> None:
        """Loads or reloads a model on a thread; see :meth:`Repository.load`.

        Raises:
            Fault: A repository is named, the mode forbids it, or the load failed.
        """
        _only_one_repository(repository_name)
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: self.repository.load(name, config_json=config_json, files=files)
        )

    async def unload(
        self, repository_name: str | None, name: str, *, unload_dependents: bool
    ) -> None:
        """Unloads a model on a thread; see :meth:`Repository.unload`.

        Raises:
            Fault: A repository is named, or the mode forbids it.
        """
        _only_one_repository(repository_name)
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: self.repository.unload(name, unload_dependents=unload_dependents)
        )

    def trace_model(self, name: str) -> str:
        """``name``, whose trace settings are asked for; empty for the server's.

        Raises:
            Fault: There is no such model.
        """
        if name and not self.repository.ready(name):
            raise Fault("invalid", f"Request for unknown model : {name}")
        return name


def _version(text: str) -> str:
    """A version as folders are named; like Triton's ``std::stol`` it heeds the leading number.

    Raises:
        Fault: It is none.
    """
    if not text or text == "1":
        return text
    found = _VERSION.match(text)
    number = int(found[1]) if found else 1 << 63
    if not -(1 << 63) <= number < 1 << 63:
        raise Fault(
            "invalid",
            f"failed to get model version from specified version string '{text[:100]}' "
            "(details: stol), version should be an integral value > 0",
        )
    if number < 0:
        raise Fault(
            "invalid",
            f"invalid model version specified '{text[:100]}' , version should be an integral "
            "value > 0",
        )
    return str(number)


def _only_one_repository(name: str | None) -> None:
    if name:
        raise Fault("unsupported", "'repository_name' specification is not supported")
