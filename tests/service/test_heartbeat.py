"""A lease is kept while its run does something long, and let go where the run hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from analyzer.errors import StoreError
from analyzer.service import heartbeat
from analyzer.service.content import ContentStore
from analyzer.service.heartbeat import Heart
from analyzer.service.queue import Claim, LeaseLostError, Queue
from analyzer.service.variants import KeptVariants

pytestmark = pytest.mark.sqlite_alone
ENGINE = "e" * 24
LEASE_S = 0.6


def test_a_copy_that_takes_longer_than_the_lease_ends_no_job(
    submit: Callable[..., str], working: Any, wait_for: Any, content: ContentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The keeper of the command was told of no lease meanwhile, and killed it."""
    take, taken = KeptVariants.take, []

    def slow(self: KeptVariants, work: Path, below: str, between: Callable[[], object]) -> None:
        copied_at = time.monotonic() + (2.5 if not taken else 0.0)
        while time.monotonic() < copied_at:
            between()
            time.sleep(0.05)
        time.sleep(3.5 if not taken else 0.0)  # it reaches the disk
        taken.append(work)
        take(self, work, below, between)

    monkeypatch.setattr(KeptVariants, "take", slow)
    job = submit(builds=[ENGINE], outcomes=2, pause_s=1.0, seconds=6)
    with working(lease_s=3.0):
        done = wait_for(job, "SUCCEEDED", "FAILED")
    assert (done["state"], done["attempt"]) == ("SUCCEEDED", 1), done["log_tail"]
    assert len(taken) > 1, "it was not beside the command"
    assert list(content.variants.glob(f"*/*/{ENGINE}"))


class Beats:
    """Stands for a queue: each beat does what ``does`` says."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    def beat(self, claim: Claim) -> float:
        self.count += 1
        if self.error is not None:
            raise self.error
        return time.monotonic() + LEASE_S


def a_heart(beats: Beats) -> Heart:
    claim = Claim(
        number=1, id="a" * 32, project="p", kind="search", model="0" * 64, model_name="m",
        options={}, study="s", source_job=None, attempt=1, until=time.monotonic() + LEASE_S,
    )  # fmt: skip
    return Heart(cast(Queue, beats), claim, LEASE_S)


def wait_until(true: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def test_a_lease_is_kept_whatever_the_database_does_for_a_while() -> None:
    beats = Beats()
    with a_heart(beats) as heart:
        first = heart.until
        wait_until(lambda: heart.until > first)
        beats.error = StoreError("It restarts.")
        there = beats.count
        wait_until(lambda: beats.count > there + 2)
        kept, beats.error = heart.until, None
        wait_until(lambda: heart.until > kept)
        heart.stay()
        beats.error = LeaseLostError("It is another worker's.")

        def lost() -> bool:
            try:
                heart.stay()
            except LeaseLostError:
                return True
            return False

        wait_until(lost)
    there = beats.count
    time.sleep(LEASE_S)
    assert beats.count == there, "it beats on"


def test_a_run_that_hangs_lets_its_lease_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_HANGS_S", 1.0)
    beats = Beats()
    with a_heart(beats) as heart:
        ends_at = time.monotonic() + 1.5
        while time.monotonic() < ends_at:
            heart.stay()
            time.sleep(0.05)
        alive = beats.count
        wait_until(lambda: beats.count > alive)
        time.sleep(1.5)
        there = beats.count
        time.sleep(LEASE_S)
        assert beats.count == there
