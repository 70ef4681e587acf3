"""The seam between the generator and whatever answers requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from analyzer.domain.load_test import STATUS_OK
from analyzer.engine.counters import ServerStatistics


class Completion(NamedTuple):
    """One reply. Times are the server's own, in nanoseconds; −1 where the target does not tell.

    ``request`` is the number under which it was sent, ``status`` one of the STATUS codes.
    """

    request: int
    status: int = STATUS_OK
    queue_ns: int = -1
    compute_input_ns: int = -1
    compute_infer_ns: int = -1
    compute_output_ns: int = -1


class Connection(Protocol):
    """A way to send requests without waiting for their replies; used by one thread.

    The generator numbers requests from 0 in each run and stamps send and receipt itself.
    """

    def prepare(self, batch_sizes: Iterable[int]) -> None:
        """Makes what requests of these numbers of inferences need, before a run.

        What was not prepared is made with the first request that needs it, which is late by that.

        Raises:
            TargetError: There are no such requests.
        """

    def send(self, request: int, batch_size: int) -> None:
        """Sends request ``request`` with ``batch_size`` inferences; never waits for a reply.

        The payload is one of the target's prepared inputs. The request may leave only with the next
        :meth:`receive`, together with others that were given until then. One that cannot be sent
        comes back as a failed :class:`Completion`.

        Raises:
            TargetCrashError: The target is gone.
        """

    def receive(self, timeout_s: float) -> Sequence[Completion]:
        """Sends what waits and returns the replies that are there.

        Waits at most ``timeout_s`` (0: not at all) for the first.

        Raises:
            TargetCrashError: The target is gone.
        """

    @property
    def failure(self) -> str:
        """What is known of why requests failed, the first of them; empty where nothing is.

        To be asked where one failed: a server of ours remembers those of earlier connections.
        """


class Target(Protocol):
    """A server with one model loaded, ready to answer. Made by a context manager that ends it."""

    def connect(self) -> AbstractContextManager[Connection]:
        """A new connection."""

    def statistics(self) -> ServerStatistics | None:
        """Counters since the start; None where the target does not tell."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes whose memory and CPU are the target's; empty for one that is elsewhere."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that qualify what is measured (another backend than the configuration's)."""

    def alive(self) -> bool:
        """Whether it still answers (its process lives, its endpoint is ready)."""

    def why_gone(self) -> str:
        """What is known of why it does not, as a sentence; empty where nothing is."""
