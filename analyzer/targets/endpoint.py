"""The control side of a KServe v2 endpoint, whichever its protocol, and what both share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from analyzer.domain.model import TensorSpec
from analyzer.engine.counters import ServerStatistics
from analyzer.errors import (
    TargetError,
    TargetMemoryError,
    TargetStartError,
    is_out_of_memory,
)
from analyzer.targets.payload import RequestPool
from analyzer.targets.target import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointModel:
    """A model as an endpoint describes it.

    Args:
        name: Its name.
        versions: Its ready versions.
        platform: Its platform or backend.
        inputs: Tensors without the batch axis where ``batchable``; −1 is a dynamic dimension.
        outputs: Likewise.
        batchable: Whether every tensor begins with a dynamic dimension.
        max_batch_size: The largest request; None where the endpoint does not tell.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batchable: bool
    max_batch_size: int | None


class Endpoint(Protocol):
    """A KServe v2 endpoint. Each method raises TargetCrashError where it does not answer."""

    @property
    def address(self) -> str:
        """``grpc://HOST:PORT`` or ``http://HOST:PORT``."""

    @property
    def load_bytes_max(self) -> int:
        """The most bytes of files that a load request can carry."""

    def close(self) -> None:
        """Closes what it keeps open."""

    def server_version(self) -> str:
        """Name and version of the server."""

    def live(self) -> bool:
        """Whether the server lives."""

    def ready(self, model: str | None = None) -> bool:
        """Whether the server, or a model on it, is ready."""

    def models(self) -> dict[str, str]:
        """Every known model and its state (READY, UNAVAILABLE, …; empty if never loaded)."""

    def model(self, name: str) -> EndpointModel:
        """A model's description; TargetError if there is none of that name."""

    def config(self, name: str) -> Any:
        """A model's configuration after completion, a ``ModelConfig``."""

    def load(self, name: str, config: Any | None, files: Mapping[str, bytes]) -> None:
        """Loads a model, with a ``ModelConfig`` and ``file:<version>/<name>`` contents if given.

        Raises:
            TargetStartError, TargetMemoryError: It could not be loaded.
            TargetError: The server has no explicit model control, or the files are too large.
        """

    def unload(self, name: str) -> None:
        """Unloads a model; it may still be draining afterwards."""

    def statistics(self, name: str) -> ServerStatistics:
        """A model's counters, all its versions together."""

    def connect(self, name: str, pool: RequestPool) -> AbstractContextManager[Connection]:
        """A connection whose requests go to model ``name``."""


def describe(
    name: str,
    versions: list[str],
    platform: str,
    tensors: tuple[list[tuple[str, str, list[int]]], list[tuple[str, str, list[int]]]],
    max_batch_size: int | None,
) -> EndpointModel:
    """An :class:`EndpointModel` from metadata, whose shapes carry the batch axis.

    Where the configuration is unknown, a dynamic first dimension everywhere is the batch axis.
    """
    inputs, outputs = tensors
    if max_batch_size is None:
        batchable = all(shape[:1] == [-1] for _, _, shape in (*inputs, *outputs))
    else:
        batchable = max_batch_size > 0
    skipped = 1 if batchable else 0

    def specs(found: list[tuple[str, str, list[int]]]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(name=own, datatype=datatype, shape=tuple(shape[skipped:]))
            for own, datatype, shape in found
        )

    return EndpointModel(
        name=name,
        versions=tuple(versions),
        platform=platform,
        inputs=specs(inputs),
        outputs=specs(outputs),
        batchable=batchable,
        max_batch_size=max_batch_size,
    )


def raise_load_failure(address: str, name: str, reason: str) -> NoReturn:
    """Raises the error that a refused or failed load of a model stands for.

    Raises:
        TargetError: No explicit model control.
        TargetMemoryError: Out of memory.
        TargetStartError: Everything else.
    """
    if "not allowed" in reason and "load" in reason:
        raise TargetError(
            f"The server at {address} does not let models be loaded: {reason}",
            hint="Start it with --model-control-mode=explicit.",
        )
    kind = TargetMemoryError if is_out_of_memory(reason) else TargetStartError
    raise kind(
        f"The server at {address} could not load {name}: {reason}",
        hint="The server's own log says more.",
    )
