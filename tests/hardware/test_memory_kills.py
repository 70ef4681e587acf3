"""What is said of a killed child: no more than the kernel's counts tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.hardware.memory_kills import Likelihood, MemoryKills

VERSION_2 = "0::/user.slice/a\n"
VERSION_1 = "4:memory:/a\n3:cpuset:/\n0::/\n"


def kills(
    root: Path, membership: str, files: dict[str, str], machine: int | None = 0
) -> MemoryKills:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(membership)
    if machine is not None:
        (root / "proc/vmstat").write_text(f"nr_free_pages 7\noom_kill {machine}\n")
    for name, content in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return MemoryKills.until_now(root=root)


@pytest.mark.parametrize(
    ("membership", "files", "group"),
    [
        (VERSION_2, {"user.slice/a/memory.events.local": "oom 5\noom_kill 2\n"}, 2),
        # Of the groups above, other processes may have been killed.
        (VERSION_2, {"user.slice/memory.events.local": "oom_kill 2\n"}, None),
        (VERSION_2, {"user.slice/a/memory.events": "oom_kill 2\n"}, None),
        (VERSION_1, {"memory/a/memory.oom_control": "under_oom 0\noom_kill 3\n"}, 3),
        (VERSION_1, {"memory/a/memory.oom_control": "under_oom 0\n"}, None),
        # A container that sees only its own group, mounted as the root.
        ("0::/docker/77\n", {"memory.events.local": "oom_kill 4\n"}, 4),
        (VERSION_1, {"memory/memory.oom_control": "oom_kill 1\n"}, 1),
        ("", {}, None),
    ],
)
def test_the_count_of_the_own_control_group(
    membership: str, files: dict[str, str], group: int | None, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / "sys/fs/cgroup" / name).parent.mkdir(parents=True)
    if "user.slice" in membership:
        (tmp_path / "sys/fs/cgroup/user.slice/a").mkdir(parents=True, exist_ok=True)
    assert kills(tmp_path, membership, files, machine=9) == MemoryKills(group=group, machine=9)


def test_without_any_count_nothing_is_said(tmp_path: Path) -> None:
    assert kills(tmp_path, "", {}, machine=None) == MemoryKills(group=None, machine=0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((2, 5), (3, 6), "probably"),
        # Another process of the machine, which is in another group.
        ((2, 5), (2, 6), "no"),
        ((None, 5), (None, 6), "perhaps"),
        ((None, 5), (None, 5), "no"),
        ((None, 5), (1, 6), "perhaps"),
    ],
)
def test_a_kill_elsewhere_on_the_machine_is_not_ours(
    before: tuple[int | None, int], after: tuple[int | None, int], expected: Likelihood
) -> None:
    first, last = (MemoryKills(group=group, machine=machine) for group, machine in (before, after))
    assert last.likely_since(first) == expected
