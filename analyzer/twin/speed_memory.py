"""How fast this machine was in earlier studies, kept for later ones.

A study of a minute meets the speeds of that minute. Shared machines change between speeds for
minutes: what earlier studies saw of the slow ones holds a claim back that this one would make.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from analyzer.twin.probe_cache import SECONDS_KEPT

_KIND = "speeds"
# The newest seconds that were watched: a state of 1 % of the time is ten of them.
_WATCHED_S_MAX = 1000


class SpeedMemory:
    """The canary's work in earlier studies on this hardware, of a week at most.

    Args:
        read: A kept value by kind and key; None if there is none (``ResultStore.get_cache``).
        write: Keeps a value under kind and key (``ResultStore.put_cache``).
        hardware_key: Equal where measurements can be shared.
        now: Seconds since 1970.
    """

    def __init__(
        self,
        read: Callable[[str, str], dict[str, Any] | None],
        write: Callable[[str, str, dict[str, Any]], None],
        hardware_key: str,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._read = read
        self._write = write
        self._key = hardware_key
        self._now = now

    def work_us(self, study: str) -> tuple[float, ...]:
        """``Conditions.work_us`` of what was watched before and beside ``study``, oldest first."""
        return tuple(
            float(work) for known in self._known() if known["of"] != study for work in known["us"]
        )

    def keep(self, study: str, work_us: Sequence[float]) -> None:
        """Keeps the speeds that a study met, in place of what is known of the same one."""
        if not work_us:
            return
        known = [of for of in self._known() if of["of"] != study]
        known.append({"of": study, "at": self._now(), "us": list(work_us[-_WATCHED_S_MAX:])})
        seconds = 0
        newest: list[dict[str, Any]] = []
        for of in reversed(known):
            seconds += len(of["us"])
            if newest and seconds > _WATCHED_S_MAX:
                break
            newest.append(of)
        self._write(_KIND, self._key, {"watched": newest[::-1]})

    def _known(self) -> list[dict[str, Any]]:
        since = self._now() - SECONDS_KEPT
        found = (self._read(_KIND, self._key) or {}).get("watched", [])
        return [of for of in found if of["at"] >= since]
