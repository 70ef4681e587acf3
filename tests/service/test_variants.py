"""What one job has built is there for the next one with the same model, and for no other."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from analyzer.service.content import ContentStore, copy_file
from analyzer.service.gc import collect
from analyzer.service.limits import ServiceLimits
from analyzer.service.options import check_options
from analyzer.service.schema import JOBS
from analyzer.service.variants import KeptVariants
from analyzer.store.database import Database
from analyzer.variants.cache import own_key

pytestmark = pytest.mark.sqlite_alone
ENGINE, GRAPH = "e" * 24, "f" * 24


def nothing() -> None:
    """Nobody waits."""


def test_a_second_job_finds_what_the_first_has_built(
    client: httpx.Client, submit: Callable[..., str], working: Any, wait_for: Any,
    service: Any, content: ContentStore,
) -> None:  # fmt: skip
    def said(job: str) -> str:
        assert wait_for(job, "SUCCEEDED", "FAILED")["state"] == "SUCCEEDED"
        return client.get(f"/api/v1/jobs/{job}/log").text

    script = {"builds": [ENGINE, GRAPH], "outcomes": 1}
    with working():
        assert said(submit(**script)).count("is built") == 2
        assert said(submit(**script)).count("was built before") == 2
        assert said(submit(**script, say="another model")).count("is built") == 2
        stranger = service.client(token=service.token("other"))
        model = stranger.post(
            "/api/v1/models?name=m", content=b'{"builds": ["%s"]}' % ENGINE.encode()
        ).json()["id"]
        body = {"kind": "search", "model": model, "options": {"latency_budget": "50ms"}}
        theirs = stranger.post("/api/v1/jobs", json=body).json()["id"]
        while stranger.get(f"/api/v1/jobs/{theirs}").json()["finished_at"] is None:
            time.sleep(0.1)
        assert "is built" in stranger.get(f"/api/v1/jobs/{theirs}/log").text
    assert len(list(content.variants.glob(f"*/*/{ENGINE}"))) == 3
    assert not list(content.variants.glob("*/*/incoming-*"))


def test_a_job_that_goes_on_after_a_pause_finds_its_engines(
    client: httpx.Client, submit: Callable[..., str], working: Any, wait_for: Any
) -> None:
    job = submit(builds=[ENGINE], outcomes=30, hold=1, pause_s=0.3)
    with working():
        while not client.get(f"/api/v1/jobs/{job}/trials").json()["trials"]:
            time.sleep(0.1)
        client.post(f"/api/v1/jobs/{job}/pause")
        wait_for(job, "PAUSED")
        client.post(f"/api/v1/jobs/{job}/resume")
        wait_for(job, "RUNNING")
        while "was built before" not in client.get(f"/api/v1/jobs/{job}/log").text:
            assert client.get(f"/api/v1/jobs/{job}").json()["finished_at"] is None
            time.sleep(0.1)
        client.post(f"/api/v1/jobs/{job}/cancel")
        wait_for(job, "CANCELLED")


def entry(work: Path, name: str, size: int = 1000) -> Path:
    """A variant of a job."""
    made = work / "cache" / "tritune" / name
    made.mkdir(parents=True)
    (made / "variant.json").write_bytes(bytes(size))
    return made


def test_only_files_of_the_job_are_kept_and_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    work, root = tmp_path / "work", tmp_path / "variants"
    entry(work, "a" * 24)
    (entry(work, "b" * 24) / "link").symlink_to("/etc/passwd")
    os.mkfifo(entry(work, "c" * 24) / "pipe")
    (work / "cache" / "tritune" / ("d" * 24)).symlink_to("/etc")
    entry(work, "e" * 24, size=5000)
    entry(work, "machine")
    kept = KeptVariants(root, 3000)
    kept.take(work, "cache/tritune", nothing)
    assert [path.name for path in root.iterdir()] == ["a" * 24]
    given = tmp_path / "given"
    kept.give(given, nothing)
    assert (given / ("a" * 24) / "variant.json").stat().st_size == 1000
    (work / "cache").rename(tmp_path / "real")
    (work / "cache").symlink_to(tmp_path / "real")
    entry(work, "9" * 24)
    kept.take(work, "cache/tritune", nothing)
    assert not (root / ("9" * 24)).exists(), "a link led there"
    kept.take(tmp_path, "real/tritune", nothing)
    assert (root / ("9" * 24)).is_dir()


def test_what_has_no_room_is_not_copied_and_tried_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Gigabytes were copied, and removed again, after each trial."""
    work, root = tmp_path / "work", tmp_path / "variants"
    for name in ("a" * 24, "b" * 24):
        (entry(work, name, size=2000) / "engine.plan").write_bytes(bytes(2000))
    pieces: list[None] = []
    kept = KeptVariants(root, 5000)
    for _ in range(3):
        kept.take(work, "cache/tritune", lambda: pieces.append(None))
    assert [path.name for path in root.iterdir()] == ["a" * 24]
    assert len(pieces) == 2 and caplog.text.count("was not kept") == 1


def test_what_is_one_study_s_alone_is_kept_for_when_it_goes_on(tmp_path: Path) -> None:
    """Its variants would be other files than those that were measured."""
    work, root = tmp_path / "work", tmp_path / "variants"
    own = own_key("a" * 24, "digits-1")
    entry(work, own)
    entry(work, "b" * 24 + "-refused-machine")
    KeptVariants(root, 3000).take(work, "cache/tritune", nothing)
    assert [path.name for path in root.iterdir()] == [own]


def test_a_job_gets_what_it_can_use(tmp_path: Path) -> None:
    work = tmp_path / "work"
    names = {}
    for device in ("cpu", "gpu"):
        for precision in ("fp32", "fp16", "int8"):
            made = entry(work, f"{len(names):024x}")
            record = {"built_for": {"precision": precision, "device": device}}
            (made / "variant.json").write_text(json.dumps(record))
            names[made.name] = f"{precision} {device}"
    for damaged in (b"{", b"[1]", b'{"built_for": 1}'):
        made = entry(work, f"{len(names):024x}")
        (made / "variant.json").write_bytes(damaged)
        names[made.name] = "unknown"
    kept = KeptVariants(tmp_path / "variants", 1 << 20)
    kept.take(work, "cache/tritune", nothing)

    def given(**options: Any) -> list[str]:
        checked = check_options("search", {"latency_budget": "5ms", **options}, ServiceLimits())
        place = tmp_path / "-".join(map(str, options.values()))
        kept.give(place, nothing, checked.devices("gpu"), checked.precisions)
        return [names[path.name] for path in sorted(place.iterdir())]

    unknown = ["unknown"] * 3
    assert given(device="auto") == list(names.values())
    assert given(device="gpu", precisions="int8") == ["fp32 gpu", "int8 gpu", *unknown]
    assert given(precisions=["fp16"]) == ["fp32 cpu", "fp16 cpu", "fp32 gpu", "fp16 gpu", *unknown]


@pytest.mark.parametrize("in_kernel", [True, False])
def test_a_copy_is_whole_and_does_not_change_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    def across(*_: Any) -> int:
        raise OSError(errno.EXDEV, "two file systems")

    if not in_kernel:
        monkeypatch.setattr(os, "copy_file_range", across)
    data = os.urandom((16 << 20) + 12345)
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.write_bytes(data)
    pieces: list[None] = []
    with original.open("rb") as source, copy.open("xb") as target:
        copy_file(source, target, lambda: pieces.append(None))
    assert copy.read_bytes() == data and len(pieces) > 1
    with copy.open("r+b") as target:
        target.write(b"changed")
    assert original.read_bytes() == data


def test_variants_go_with_their_model_or_when_nobody_uses_them(
    client: httpx.Client, submit: Callable[..., str], database: Database, content: ContentStore,
    tmp_path: Path,
) -> None:  # fmt: skip
    model = client.get(f"/api/v1/jobs/{submit()}").json()["model"]
    for number, of in enumerate(("0" * 64, model)):
        work = tmp_path / str(number)
        entry(work, ENGINE)
        kept = KeptVariants(content.variants / "default" / of, 1 << 20)
        kept.take(work, "cache/tritune", nothing)
    assert collect(database, content, keep_s=1e5).bytes == 1000
    assert [path.parent.name for path in content.variants.glob("*/*/*")] == [model]
    begun, given_up = (content.variants / "default" / model / f"incoming-{n}" for n in range(2))
    for place, age_s in ((begun, 3600), (given_up, 2 * 86_400)):
        place.mkdir()
        os.utime(place, (time.time() - age_s,) * 2)
    collect(database, content, keep_s=1e7)
    assert begun.is_dir() and not given_up.exists(), "it stayed for as long as jobs do"
    begun.rmdir()
    old = content.variants / "default" / model / ENGINE
    os.utime(old, (1, 1))
    kept.give(tmp_path / "given", nothing)
    collect(database, content, keep_s=1e5)
    assert old.is_dir(), "a job has just used it"
    os.utime(old, (1, 1))
    with database.writing() as connection:
        connection.execute(update(JOBS).values(finished_at=JOBS.c.created_at))
    collect(database, content, keep_s=1e5)
    assert not list(content.variants.glob("*/*"))
