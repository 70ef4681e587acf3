"""Takes lost jobs back now and then, in every process of the service, whatever else it does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from analyzer.errors import StoreError
from analyzer.service.queue import sweep
from analyzer.store.database import Database

_LOG = logging.getLogger(__name__)
#: A sixth of a lease: a lost one is seen soon after it ran out.
SWEEP_S = 5.0


def _nothing() -> None:
    """What is done beside where there is nothing else."""


@contextmanager
def sweeping(
    database: Database, *, every_s: float = SWEEP_S, beside: Callable[[], object] = _nothing
) -> Iterator[None]:
    """Sweeps in a thread, at once and then every ``every_s``, for as long as the context lasts.

    Args:
        beside: Called after each sweep.
    """
    ended = threading.Event()

    def go_on() -> None:
        while True:
            try:
                sweep(database)
                beside()
            except StoreError as error:
                _LOG.warning("%s", error.message)
            except Exception:
                # A process that no longer sweeps would look like one that does.
                _LOG.exception("Lost jobs could not be looked for; trying again.")
            if ended.wait(every_s):
                return

    thread = threading.Thread(target=go_on, name="sweeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
