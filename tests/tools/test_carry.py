"""Packages that travel in parts arrive whole, or say which part is missing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import carry


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    """Two wheels of 30 and 5 kilobytes."""
    made = []
    for name, size in (("large", 30_000), ("small", 5_000)):
        path = tmp_path / f"{name}-1.0-py3-none-any.whl"
        info = f"{name}-1.0.dist-info"
        content = np.random.default_rng(size).bytes(size)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{name}/data", content)
            archive.writestr(f"{name}/__init__.py", "")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
            archive.writestr(f"{info}/RECORD", "")
        made.append(path)
    return made


def test_parts_arrive_in_any_order_and_become_the_same_wheels(
    wheels: list[Path], tmp_path: Path
) -> None:
    packed, kept = tmp_path / "packed", tmp_path / "kept"
    count = carry.split(wheels, packed, part_bytes=10_000)
    assert count >= 4
    assert all(path.stat().st_size <= 10_000 for path in packed.rglob("*.part")), (
        "a part is larger than what may travel"
    )
    for number in range(count, 1, -1):
        assert carry.take(packed / str(number), kept).startswith("missing yet: 1")
    with pytest.raises(carry.CarryError, match=r"missing or broken: 1\."):
        carry.join(kept)
    assert carry.take(packed / "1", kept) == "all parts are here"
    assert [path.read_bytes() for path in carry.join(kept)] == [
        path.read_bytes() for path in wheels
    ]
    assert carry.install(kept) == f"installed: set PYTHONPATH={kept / 'site'}"
    assert (kept / "site" / "small" / "data").is_file()


def test_a_part_that_was_damaged_on_the_way_is_told(wheels: list[Path], tmp_path: Path) -> None:
    packed, kept = tmp_path / "packed", tmp_path / "kept"
    for number in range(1, carry.split(wheels, packed, part_bytes=10_000) + 1):
        carry.take(packed / str(number), kept)
    (kept / "2.part").write_bytes(b"half")
    with pytest.raises(carry.CarryError, match=r"broken: 2\."):
        carry.join(kept)


def test_nothing_has_come(tmp_path: Path) -> None:
    with pytest.raises(carry.CarryError, match="There is no part in"):
        carry.join(tmp_path)
