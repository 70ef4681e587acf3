"""The control side of a KServe v2 endpoint, whichever its protocol, and what both share."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from analyzer.domain.model import TensorSpec
from analyzer.engine.counters import ServerStatistics
from analyzer.errors import (
    LoadTimeoutError,
    TargetCrashError,
    TargetError,
    TargetLoadError,
    TargetMemoryError,
    is_out_of_memory,
)
from analyzer.targets.payload import RequestPool
from analyzer.targets.target import Connection

#: How long any request to the control side may take, and at most one that loads a model.
ANSWER_S = 30.0
LOAD_S = 600.0
_EXPLICIT = "Start it with --model-control-mode=explicit."


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointModel:
    """A model as an endpoint describes it.

    Args:
        name: Its name.
        inputs: Tensors without the batch axis where ``batchable``; −1 is a dynamic dimension.
        outputs: Likewise.
        batchable: Whether every tensor begins with a dynamic dimension.
        max_batch_size: The largest request; None where the endpoint does not tell.
        sequences: Whether it takes requests only as parts of a sequence.
        decoupled: Whether it may answer a request any number of times.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batchable: bool
    max_batch_size: int | None
    sequences: bool = False
    decoupled: bool = False


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

    def index(self) -> Sequence[Mapping[str, Any]]:
        """The repository's index: name, version, state and reason of each model."""

    def load(
        self,
        name: str,
        config: Any | None,
        files: Mapping[str, bytes],
        *,
        timeout_s: float = LOAD_S,
    ) -> None:
        """Loads a model, with a ``ModelConfig`` and ``file:<version>/<name>`` contents if given.

        Raises:
            TargetLoadError, TargetMemoryError: It could not be loaded.
            LoadTimeoutError: It was not loaded in time.
            TargetError: The server has no explicit model control, or the files are too large.
        """

    def unload(self, name: str) -> None:
        """Unloads a model; it may still be draining afterwards."""

    def statistics(self, name: str) -> ServerStatistics:
        """A model's counters, all its versions together."""

    def connect(self, name: str, pool: RequestPool) -> AbstractContextManager[Connection]:
        """A connection whose requests go to model ``name``."""


def authority(host: str, port: int) -> str:
    """``HOST:PORT`` as in an address, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def describe_model(endpoint: Endpoint, name: str, metadata: Mapping[str, Any]) -> EndpointModel:
    """A model's description from its metadata (in JSON's form), whose shapes carry the batch axis.

    Where the endpoint tells no configuration (KServe without Triton's extension), a dynamic first
    dimension of every tensor is the batch axis.
    """
    tensors = [
        [(t["name"], t["datatype"], tuple(map(int, t["shape"]))) for t in metadata.get(kind, ())]
        for kind in ("inputs", "outputs")
    ]
    sequences = decoupled = False
    try:
        config = endpoint.config(name)
        max_batch_size: int | None = config.max_batch_size
        batchable = bool(max_batch_size)
        sequences = config.HasField("sequence_batching")
        decoupled = config.model_transaction_policy.decoupled
    except TargetCrashError:
        raise
    except TargetError:
        max_batch_size = None
        batchable = all(shape[:1] == (-1,) for _, _, shape in (*tensors[0], *tensors[1]))
    inputs, outputs = (
        tuple(
            TensorSpec(name=own, datatype=datatype, shape=shape[int(batchable) :])
            for own, datatype, shape in told
        )
        for told in tensors
    )
    return EndpointModel(
        name=name,
        inputs=inputs,
        outputs=outputs,
        batchable=batchable,
        max_batch_size=max_batch_size,
        sequences=sequences,
        decoupled=decoupled,
    )


def model_states(index: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Each model's state from a repository's index: READY if one of its versions is."""
    states: dict[str, str] = {}
    for entry in index:
        if states.get(entry["name"]) != "READY":
            states[entry["name"]] = entry.get("state", "")
    return states


def unready_reason(index: Iterable[Mapping[str, Any]], name: str) -> str:
    """Why a model of a repository's index is not ready, as the server tells; else empty."""
    reasons = (entry.get("reason", "") for entry in index if entry["name"] == name)
    return next(filter(None, reasons), "")


def total_statistics(versions: Sequence[Mapping[str, Any]]) -> ServerStatistics:
    """The counters of a model's versions together, from ``model_stats`` in JSON's form."""
    batches: Counter[int] = Counter()
    batches_ns: Counter[int] = Counter()
    for version in versions:
        for batch in version.get("batch_stats", ()):
            size = int(batch["batch_size"])
            batches[size] += int(batch["compute_infer"]["count"])
            for stage in ("compute_input", "compute_infer", "compute_output"):
                batches_ns[size] += int(batch.get(stage, {}).get("ns", 0))

    def total(stage: str, what: str) -> int:
        found = (version["inference_stats"].get(stage, {}) for version in versions)
        return sum(int(values.get(what, 0)) for values in found)

    return ServerStatistics(
        inference_count=sum(int(version["inference_count"]) for version in versions),
        execution_count=sum(int(version["execution_count"]) for version in versions),
        success_count=total("success", "count"),
        success_ns=total("success", "ns"),
        fail_count=total("fail", "count"),
        queue_ns=total("queue", "ns"),
        compute_input_ns=total("compute_input", "ns"),
        compute_infer_ns=total("compute_infer", "ns"),
        compute_output_ns=total("compute_output", "ns"),
        batches=tuple(sorted(batches.items())),
        batches_ns=tuple(sorted(batches_ns.items())),
    )


def require_model_control(endpoint: Endpoint) -> None:
    """Checks that models can be loaded and unloaded; nothing is changed.

    Raises:
        TargetCrashError: It does not answer.
        TargetError: It has no explicit model control.
    """
    try:
        # Triton unloads what it does not have without a word.
        endpoint.unload(f"tritune_none_{secrets.token_hex(8)}")
    except TargetCrashError:
        raise
    except TargetError as error:
        raise TargetError(
            f"{error.message.rstrip('.')}: models cannot be loaded there.", hint=_EXPLICIT
        ) from error


def raise_load_failure(address: str, name: str, reason: str) -> NoReturn:
    """Raises the error that a refused or failed load of a model stands for.

    Raises:
        TargetError: No explicit model control.
        TargetMemoryError: Out of memory.
        TargetLoadError: Everything else.
    """
    if "not allowed" in reason and "load" in reason:
        raise TargetError(
            f"The server at {address} does not let models be loaded: {reason}",
            hint=_EXPLICIT,
        )
    kind = TargetMemoryError if is_out_of_memory(reason) else TargetLoadError
    said = reason.rstrip("; \n")  # Triton ends it with one for each version
    raise kind(
        f"The server at {address} could not load {name}: {said}",
        hint=f"The log of the server at {address} says more.",
    )


def load_timeout(address: str, name: str, timeout_s: float) -> LoadTimeoutError:
    """The error of a model that was not loaded within ``timeout_s``."""
    return LoadTimeoutError(
        f"The server at {address} did not load {name} within {timeout_s:.0f} s.",
        hint="Give it a longer --budget." if timeout_s < LOAD_S else "See whether it still runs.",
    )
