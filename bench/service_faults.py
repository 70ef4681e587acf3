"""The service while its parts are killed, stopped and starved: is anything lost, or done twice?

    python bench/service_faults.py [--database sqlite|postgresql] [--rounds 100] [--seconds 420]

Each round hands in three scripted jobs at two APIs with three workers on two devices, and does one
to three things at random moments: SIGKILL of a worker, of an API, of the database or of everything;
SIGSTOP of a worker past its lease and SIGCONT; a restart of the database (SQLite: another program
that holds the file); a full disk (a small tmpfs) of the files or of PostgreSQL; an upload that is
cut off; some jobs are cancelled, or paused and resumed, meanwhile. A round is over when every job
has ended. Half of the rounds are on SQLite, half on a PostgreSQL of their own. ``--seconds`` ends
between two rounds; the next call goes on where this one stopped (``bench/.work/service_faults``, in
a new checkout the stored results), and a call for each database may run beside the other.

Must hold: no job lost, none claimed or created twice, no command running twice, no stored
measurement lost or measured again by a later attempt, no orphan process or folder, no lease held,
no event missed by a watcher, every job in a terminal state, and FAILED only where a disk was full
or three workers were lost. Writes ``bench/results/service_faults.json``.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchlib.command import RESULTS, WORK, Command, say, table, write_json
from benchlib.service_checks import (
    Watcher,
    check_follower,
    check_jobs,
    check_site,
    wait_for_ends,
)
from benchlib.service_faults_plan import Planner, restore
from benchlib.service_site import Site, running_site
from benchlib.service_users import Client, User

_HOME = WORK / "service_faults"
_JOBS = 3
_ENDS_S = 240.0
_KINDS = ("sqlite", "postgresql")


def play(site: Site, number: int, seed: int, known: set[str], kills: list[int]) -> Any:
    """One round; what was done and what was found.

    Args:
        known: Ids of the jobs of earlier rounds on this site; those of this one are added.
        kills: How many processes of this site were killed; this round's are added.
    """
    rng = random.Random(f"{seed}/{site.kind}/{number}")
    kinds = Planner.kinds(site)
    faults = Planner(site, rng).draw(kinds[number % len(kinds)])
    users = [
        User(
            site.ports,
            {"outcomes": rng.randint(3, 7), "pause_s": rng.uniform(0.2, 0.6), "daemon": "900"},
            submit_at_s=rng.uniform(0.0, 2.0),
            wish=rng.choice(["", "", "", "cancel", "pause"]),
            wish_at_s=rng.uniform(1.0, 5.0),
        )
        for _ in range(_JOBS)
    ]
    started = time.monotonic()
    watcher = Watcher(site)
    watcher.start()
    for user in users:
        user.start()
    for step in sorted(
        (step for fault in faults for step in fault.steps), key=lambda one: one.at_s
    ):
        time.sleep(max(started + step.at_s - time.monotonic(), 0.0))
        step.act()
    fell = restore(site)
    site.wait_ready()
    for fault in faults:
        kills[0] += len(site.parts) if fault.name == "kill all" else fault.name.startswith("kill")
    for user in users:
        user.join()
    ids = [user.job for user in users if user.job]
    known.update(ids)
    findings = [f"a user: {user.trouble}" for user in users if user.trouble]
    findings += wait_for_ends(Client(site.ports), ids, _ENDS_S)
    watcher.end()
    findings += watcher.findings
    full = any(fault.name.startswith("full disk") for fault in faults)
    told = [user for user in users if user.job]
    findings += check_jobs(site, told, watcher, disk_was_full=full)
    for user in told:
        if user.follower is not None:
            findings += check_follower(user.follower)
    # Of uploads (one of them cut off) or of a study, by each process that was killed.
    findings += check_site(site, known, incoming_max=(_JOBS + 1) * kills[0])
    document = Client(site.ports).ask("GET", f"/api/v1/jobs?limit={_JOBS}").json()
    return {
        "round": number, "database": site.kind,        "faults": [fault.name for fault in faults],
        "jobs": [
            {key: job[key] for key in ("state", "attempt", "reason")} for job in document["items"]
        ],
        "fell": fell, "looks": watcher.looks, "seconds": round(time.monotonic() - started, 1),
        "findings": findings,
    }  # fmt: skip


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The rounds in numbers."""
    jobs = [job for one in rounds for job in one["jobs"]]
    return {
        "rounds": len(rounds),
        "by_database": Counter(one["database"] for one in rounds),
        "faults": Counter(
            " ".join(word for word in fault.split() if not word[-1].isdigit())
            for one in rounds for fault in one["faults"]
        ),
        "jobs": len(jobs),
        "jobs_by_state": Counter(job["state"] for job in jobs),
        "failed_reasons": Counter(job["reason"] for job in jobs if job["state"] == "FAILED"),
        "attempts_max": max((job["attempt"] for job in jobs), default=None),
        "rounds_with_findings": sum(1 for one in rounds if one["findings"]),
        "findings": [
            f"{one['database']} {one['round']}: {what}"
            for one in rounds
            for what in one["findings"]
        ],
        "seconds": sum(one["seconds"] for one in rounds),
    }  # fmt: skip


def shown(document: dict[str, Any]) -> str:
    """The summary as text."""
    rows = [[name, json.dumps(value)] for name, value in document["summary"].items()]
    return table(["", ""], rows)


def main() -> int:
    """Plays rounds; 1 where one has a finding."""
    command = Command("service_faults", __doc__, timing=False)
    command.argument("--rounds", type=int, default=100, help="of both databases (default: 100)")
    command.argument("--seconds", type=float, default=420.0, help="of this call (default: 420)")
    command.argument("--seed", type=int, default=11)
    command.argument("--database", choices=_KINDS, help="plays on this one alone")
    command.argument("--only", type=int, help="plays this round of --database, and stores nothing")
    command.argument("--fresh", action="store_true", help="forget the rounds of earlier calls")
    options = command.start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _HOME.mkdir(parents=True, exist_ok=True)
    if options.only is not None:
        with running_site(options.database or _KINDS[0]) as site:
            found = play(site, options.only, options.seed, set(), [0])
            shutil.copy(site.log, _HOME / f"log-{site.kind}-{options.only}")
        print(json.dumps(found, indent=1))
        return 1 if found["findings"] else 0
    ends_at = time.monotonic() + options.seconds
    for kind in [options.database] if options.database else _KINDS:
        if options.fresh:
            write_json(_state(kind, options.seed), [])
        play_rounds(kind, options.seed, options.rounds // len(_KINDS), ends_at)
    rounds = [one for kind in _KINDS for one in _played(kind, options.seed)]
    document = {"summary": summary(rounds), "seed": options.seed, "all": rounds}
    command.finish(options, document, shown)
    return 1 if document["summary"]["rounds_with_findings"] else 0


def play_rounds(kind: str, seed: int, count: int, ends_at: float) -> None:
    """Plays what is missing of ``count`` rounds on one database, until a time."""
    rounds = _played(kind, seed)
    if len(rounds) >= count or time.monotonic() > ends_at:
        return
    with running_site(kind) as site:
        known: set[str] = set()
        kills = [0]
        while len(rounds) < count and time.monotonic() < ends_at:
            number = len(rounds)
            say(f"round {number} on {kind}, seed {seed}")
            rounds.append(play(site, number, seed, known, kills))
            say(f"  {json.dumps(rounds[-1])}")
            write_json(_state(kind, seed), rounds)
            if rounds[-1]["findings"]:
                shutil.copy(site.log, _HOME / f"log-{kind}-{number}")


def _state(kind: str, seed: int) -> Path:
    return _HOME / f"rounds-{kind}-{seed}.json"


def _played(kind: str, seed: int) -> list[dict[str, Any]]:
    state = _state(kind, seed)
    if state.is_file():
        return list(json.loads(state.read_text()))
    stored = RESULTS / "service_faults.json"
    if not stored.is_file() or (document := json.loads(stored.read_text()))["seed"] != seed:
        return []
    return [one for one in document["all"] if one["database"] == kind]


if __name__ == "__main__":
    raise SystemExit(main())
