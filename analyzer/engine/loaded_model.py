"""One version of a model in memory: checks requests, runs them, counts, keeps answers in the cache.

The engine behind it is a :class:`~analyzer.engine.served_model.ServedModel` (its own scheduler, one
thread per instance) or an ensemble.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np

from analyzer.engine.counters import ModelStatistics
from analyzer.engine.fault import Fault
from analyzer.engine.requests import InferCall, InferenceReply, InferenceRequest
from analyzer.engine.response_cache import ResponseCache
from analyzer.engine.runtimes.base import Tensors
from analyzer.engine.signature import Signature

OnDone = Callable[[InferenceReply], None]
Submit = Callable[[InferenceRequest], int]  # as Engine.submit
DONE_TICKET = -1  # of a request that was answered at once


class Engine(Protocol):
    """What runs a model's requests; thread-safe."""

    def submit(self, request: InferenceRequest) -> int:
        """Queues a request and returns its ticket."""

    def hold_members(self, held: ExitStack) -> Submit:
        """Keeps the models that it needs open until ``held`` is closed.

        Returns:
            :meth:`submit` on these.

        Raises:
            Fault: One of them is not loaded.
        """

    def cancel(self, ticket: int) -> bool:
        """Takes a request back; no reply follows a True."""

    def details(self) -> ModelStatistics:
        """All counters since the start."""

    def close(self, *, timeout_s: float | None) -> None:
        """Answers what is queued, then frees everything.

        Args:
            timeout_s: For both; None for no limit. It may be called again, with less time.
        """


class LoadedModel:
    """One version of a model, ready to answer. Thread-safe.

    Args:
        config: The complete ``ModelConfig``.
        version: Number of the version.
        engine: Runs the requests; owned by this object from now on.
        signature: Of the configuration.
        cache: The server's cache if both it and the model enable one.
        load_seconds: How long the load took.
        labels: Names of the classes of outputs that have some.
        inherited_labels: Those of an output that has none of its own: an ensemble's, from a member.
    """

    def __init__(
        self,
        *,
        config: Any,
        version: int,
        engine: Engine,
        signature: Signature,
        cache: ResponseCache | None = None,
        load_seconds: float = 0.0,
        labels: Mapping[str, tuple[str, ...]] | None = None,
        inherited_labels: Callable[[str], tuple[str, ...]] | None = None,
    ) -> None:
        self.config = config
        self.name: str = config.name
        self.version = version
        self.version_text = str(version)
        self.signature = signature
        self.load_seconds = load_seconds
        self.labels = labels or {}
        self._inherited_labels = inherited_labels
        self._engine = engine
        self._cache = cache
        self._copy_number = cache.new_copy_number() if cache is not None else 0
        self._ordered = _OrderedReplies() if config.dynamic_batching.preserve_ordering else None
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._holds = 0
        self._closed = False
        self.cache_hits = CacheCounter()
        self.cache_misses = CacheCounter()
        # Requests that were refused before they were queued; no statistics, only a metric.
        self.rejected_count = 0

    def labels_of(self, output: str) -> tuple[str, ...]:
        """Names of the classes of an output; empty where it has none."""
        if output in self.labels or self._inherited_labels is None:
            return self.labels.get(output, ())
        return self._inherited_labels(output)

    def infer(self, call: InferCall, on_done: OnDone, *, submit: Submit | None = None) -> int:
        """Starts a request; ``on_done`` is called once with its reply, on any thread.

        The reply holds the outputs that the call asks for, in the shapes that clients see.

        Args:
            submit: From :meth:`hold`, where the caller holds the model.

        Returns:
            The ticket for :meth:`cancel`.

        Raises:
            Fault: The request is wrong or cannot be queued; ``on_done`` is not called.
        """
        inputs, batch_size = self.signature.prepare(call)
        listed = call.outputs
        wanted = tuple(name for name in self.signature.outputs if not listed or name in listed)
        key = b""
        if self._cache is not None:
            start_ns = time.monotonic_ns()
            key = self._cache.key(self._copy_number, inputs)
            outputs = self._cache.get(key)
            elapsed_ns = time.monotonic_ns() - start_ns
            if outputs is not None:
                with self._lock:
                    self.cache_hits.add(elapsed_ns)
                reply = InferenceReply(outputs)
                self._present(reply, wanted)
                (on_done if self._ordered is None else self._ordered.place(on_done))(reply)
                return DONE_TICKET

        def finish(reply: InferenceReply) -> None:
            if reply.outputs is not None:
                if self._cache is not None:
                    self._store(key, reply.outputs)
                self._present(reply, wanted)
            on_done(reply)

        on_reply = finish if self._ordered is None else self._ordered.place(finish)
        try:
            return (submit or self._engine.submit)(
                InferenceRequest(
                    batch_size, inputs, on_reply, call.priority, call.timeout_us, wanted
                )
            )
        except Fault as fault:
            if self._ordered is not None:
                self._ordered.drop(on_reply)
            if fault.kind == "unavailable":
                with self._lock:
                    self.rejected_count += 1
            raise

    def cancel(self, ticket: int) -> bool:
        """Takes a request back; False if it runs already or is done. No result follows a True."""
        # With preserved order a cancelled request would leave a gap that holds the others up.
        return ticket != DONE_TICKET and self._ordered is None and self._engine.cancel(ticket)

    def details(self) -> ModelStatistics:
        """The engine's counters (the cache's are attributes of this object)."""
        return self._engine.details()

    def hold(self, held: ExitStack) -> Submit | None:
        """Keeps the model open until ``held`` is closed, with the members of an ensemble.

        Returns:
            What :meth:`infer` needs to run on these; None where the model is closed already.

        Raises:
            Fault: A member is not loaded.
        """
        with self._lock:
            if self._closed:
                return None
            self._holds += 1
        held.callback(self._release)
        return self._engine.hold_members(held)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Ends the model after nobody holds it and what it has taken is answered.

        Args:
            timeout_s: For each of the two; None for no limit. It may be called again, with less
                time, while another call waits.
        """
        with self._lock:
            self._released.wait_for(lambda: self._closed or not self._holds, timeout_s)
            self._closed = True
            self._released.notify_all()
        self._engine.close(timeout_s=timeout_s)

    def _release(self) -> None:
        with self._lock:
            self._holds -= 1
            self._released.notify_all()

    def _store(self, key: bytes, outputs: Tensors) -> None:
        assert self._cache is not None
        start_ns = time.monotonic_ns()
        if outputs.keys() >= self.signature.outputs.keys():  # the next request may want others
            self._cache.put(key, {name: np.array(array) for name, array in outputs.items()})
        with self._lock:
            self.cache_misses.add(time.monotonic_ns() - start_ns)

    def _present(self, reply: InferenceReply, wanted: tuple[str, ...]) -> None:
        """Leaves the wanted outputs in the reply, in the shapes that clients see, or a fault."""
        assert reply.outputs is not None
        try:
            present, outputs = self.signature.present, reply.outputs
            reply.outputs = {name: present(name, outputs[name]) for name in wanted}
            return
        except KeyError as error:
            problem = f" gave no output {error}"
        except ValueError as error:
            problem = f": {error}"
        reply.outputs = None
        reply.fault = Fault("internal", f"model '{self.name}'{problem}")


class CacheCounter:
    """How often something happened, and how long it took in total."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0

    def add(self, ns: int) -> None:
        """Counts one more."""
        self.count += 1
        self.total_ns += ns


class _OrderedReplies:
    """Gives replies out in the order of their requests (``preserve_ordering``)."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: dict[int, tuple[Callable[[InferenceReply], None], InferenceReply]] = {}
        self._places: dict[Callable[[InferenceReply], None], int] = {}
        self._dropped: set[int] = set()
        self._last = self._next = 0

    def place(self, on_reply: Callable[[InferenceReply], None]) -> Callable[[InferenceReply], None]:
        """A callback that holds its reply back until those before have gone out."""
        with self._lock:
            number = self._last
            self._last += 1

        def hold(reply: InferenceReply) -> None:
            with self._lock:
                self._waiting[number] = (on_reply, reply)
                self._places.pop(hold, None)
                self._release()

        with self._lock:
            self._places[hold] = number
        return hold

    def drop(self, hold: Callable[[InferenceReply], None]) -> None:
        """Frees the place of a request that was not taken."""
        with self._lock:
            self._dropped.add(self._places.pop(hold))
            self._release()

    def _release(self) -> None:
        while True:
            if self._next in self._dropped:
                self._dropped.discard(self._next)
            elif self._next in self._waiting:
                on_reply, reply = self._waiting.pop(self._next)
                on_reply(reply)
            else:
                return
            self._next += 1
