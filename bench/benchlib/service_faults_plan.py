"""The faults of a round: what is done to a site at which moment, and how it ends."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from benchlib.postgres import PostgresUnavailableError
from benchlib.service_site import LEASE_S, Disk, Part, Site

LATEST_S = 6.0  # jobs of a round run for about as long
_UPLOAD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done so many seconds after the round's beginning."""

    at_s: float
    act: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A named fault and its steps."""

    name: str
    steps: tuple[Step, ...]


class Planner:
    """Draws the faults of one round."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        self._site = site
        self._rng = rng
        self._free_workers = list(site.workers)
        self._free_apis = list(site.apis)
        self._database_free = True

    @staticmethod
    def kinds(site: Site) -> list[str]:
        """What can be done to this site."""
        found = ["kill worker", "stop worker", "kill API", "cut upload", "kill all"]
        if site.server is not None:
            found += ["kill database", "restart database"]
        else:
            found += ["lock database"]
        if site.disk.own:
            found += ["full disk"]
        if site.database_disk is not None and site.database_disk.own:
            found += ["full disk of the database"]
        return found

    def draw(self, first: str) -> list[Fault]:
        """``first``, and up to two more."""
        others = [kind for kind in self.kinds(self._site) if kind != first]
        more = self._rng.sample(others, self._rng.randrange(3))
        found = (self._fault(kind) for kind in [first, *more])
        return [fault for fault in found if fault is not None]

    def _fault(self, kind: str) -> Fault | None:
        site, at = self._site, self._rng.uniform(0.0, LATEST_S)
        later = at + self._rng.uniform(0.1, 2.5)
        if kind == "kill worker":
            return self._killed(kind, self._take(self._free_workers), at, later)
        if kind == "kill API":
            return self._killed(kind, self._take(self._free_apis), at, later)
        if kind == "stop worker":
            worker = self._take(self._free_workers)
            wakes = at + LEASE_S + self._rng.uniform(0.5, 3.0)
            return Fault(f"{kind} {worker.name}", (
                Step(at, lambda: _signal(worker, signal.SIGSTOP)),
                Step(wakes, lambda: _signal(worker, signal.SIGCONT)),
            ))  # fmt: skip
        if kind == "cut upload":
            port, share = self._rng.choice(site.ports), self._rng.uniform(0.0, 0.99)
            return Fault(kind, (Step(at, lambda: cut_upload(port, share)),))
        if kind == "kill all":
            steps = [Step(at, lambda part=part: _kill(part)) for part in site.parts]  # type: ignore[misc]
            if site.server is not None and self._take_database():
                steps += [Step(at, site.server.kill), Step(later, lambda: start_database(site))]
            return Fault(kind, (*steps, Step(later, lambda: _start_all(site))))
        if kind.startswith("full disk"):
            disk = site.database_disk if kind.endswith("database") else site.disk
            assert disk is not None
            return self._filled(kind, disk, at)
        return self._database_fault(kind, at, later)

    def _database_fault(self, kind: str, at: float, later: float) -> Fault | None:
        if not self._take_database():
            return None
        site = self._site
        # Now and then longer than a lease.
        until = later + (LEASE_S if self._rng.random() < 0.3 else 0.0)
        if site.server is None:
            lock = contextlib.ExitStack()
            take = Step(at, lambda: lock.enter_context(site.locked()))
            return Fault(kind, (take, Step(until, lock.close)))
        server = site.server
        ends = server.kill if kind == "kill database" else lambda: server.stop("fast")
        return Fault(kind, (Step(at, ends), Step(until, lambda: start_database(site))))

    def _filled(self, kind: str, disk: Disk, at: float) -> Fault:
        until = at + self._rng.uniform(0.5, LEASE_S + 2.0)
        return Fault(kind, (Step(at, disk.fill), Step(until, disk.free)))

    def _killed(self, kind: str, part: Part, at: float, later: float) -> Fault:
        start = Step(later, lambda: _start(self._site, part))
        return Fault(f"{kind} {part.name}", (Step(at, lambda: _kill(part)), start))

    def _take(self, free: list[Part]) -> Part:
        return free.pop(self._rng.randrange(len(free)))

    def _take_database(self) -> bool:
        free, self._database_free = self._database_free, False
        return free


def _signal(part: Part, signum: int) -> None:
    if part.process is not None and part.process.poll() is None:
        part.process.send_signal(signum)


def _kill(part: Part) -> None:
    if part.process is not None:
        part.process.kill()
        part.process.wait()


def _start(site: Site, part: Part) -> None:
    if part.process is None or part.process.poll() is not None:
        site.start(part)


def _start_all(site: Site) -> None:
    for part in site.parts:
        _start(site, part)


def start_database(site: Site) -> None:
    """Starts the server if it is down; one that cannot start now is started later."""
    if site.server is not None and not site.server.processes():
        with contextlib.suppress(PostgresUnavailableError):
            site.server.start()


def restore(site: Site) -> list[str]:
    """Ends every fault; names of the parts that had ended by themselves."""
    for disk in (site.disk, site.database_disk):
        if disk is not None:
            disk.free()
    for part in site.parts:
        _signal(part, signal.SIGCONT)
    start_database(site)
    return site.start_dead()


def cut_upload(port: int, share: float) -> None:
    """Sends this share of an upload, and goes away."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as peer:
        peer.settimeout(10)
        peer.sendall(
            b"POST /api/v1/models?name=cut HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Length: %d\r\n\r\n" % _UPLOAD_BYTES
        )
        left = int(_UPLOAD_BYTES * share)
        while left > 0:
            left -= peer.send(bytes(min(left, 1 << 18)))
