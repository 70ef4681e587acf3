"""Carries Python packages to a machine without a network, in parts below a limit of size.

    python tools/carry.py pack .carry REQUIREMENT…    here: wheels for that machine, in parts
    python tools/carry.py take .carry/1               there: keeps one part (any order, any time)
    python tools/carry.py install                     there: joins the parts and installs them

For machines whose transfers are limited, as those lent to this project are: 64 MiB a call
(``docs/gpu.md``). The parts of one archive of all wheels are kept in ``/tmp/carry`` there; the
packages come to ``/tmp/carry/site``, which is for ``PYTHONPATH``. Each part's checksum is compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

# Below the 64 MiB of a call, with room for the working tree beside it.
PART_BYTES = 48 << 20
KEPT = Path("/tmp/carry")
# The lent machine's Python, and the names of platforms that wheels for its Linux carry.
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17",
             "manylinux2014", "manylinux1")  # fmt: skip
_ARCHIVE, _INDEX = "wheels.tar", "parts.json"


class CarryError(Exception):
    """Something could not be carried; the message says what."""


def pack(folder: Path, requirements: list[str], *, part_bytes: int = PART_BYTES) -> int:
    """Downloads the wheels of ``requirements`` and what they need; returns the number of parts.

    Raises:
        CarryError: pip found no wheel for that machine.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:",
                   "--python-version", PYTHON, "--implementation", "cp"]  # fmt: skip
        command += ["--dest", scratch]
        for name in PLATFORMS:
            command += ["--platform", f"{name}_x86_64"]
        done = subprocess.run(
            [*command, *requirements], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise CarryError(f"pip found no wheels: {done.stderr.strip().splitlines()[-1:]}")
        return split(sorted(Path(scratch).glob("*.whl")), folder, part_bytes=part_bytes)


def split(wheels: list[Path], folder: Path, *, part_bytes: int = PART_BYTES) -> int:
    """Writes ``wheels`` as parts into ``folder/1``, ``folder/2`` …; returns how many."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = folder / _ARCHIVE
    with tarfile.open(archive, "w") as tar:
        for wheel in wheels:
            tar.add(wheel, wheel.name)
    sums: list[str] = []
    with archive.open("rb") as file:
        while data := file.read(part_bytes):
            sums.append(hashlib.sha256(data).hexdigest())
            part = folder / str(len(sums))
            part.mkdir()
            (part / f"{len(sums)}.part").write_bytes(data)
    archive.unlink()
    for number in range(1, len(sums) + 1):
        (folder / str(number) / _INDEX).write_text(json.dumps(sums), encoding="utf-8")
    return len(sums)


def take(part: Path, kept: Path = KEPT) -> str:
    """Keeps the part that has come; the sentence about what is missing yet."""
    kept.mkdir(parents=True, exist_ok=True)
    for path in part.iterdir():
        shutil.copy2(path, kept / path.name)
    missing = _missing(kept)
    return f"missing yet: {', '.join(missing)}" if missing else "all parts are here"


def _missing(kept: Path) -> list[str]:
    sums = json.loads((kept / _INDEX).read_text(encoding="utf-8"))
    return [
        str(number)
        for number, expected in enumerate(sums, start=1)
        if _checksum(kept / f"{number}.part") != expected
    ]


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def join(kept: Path = KEPT) -> list[Path]:
    """The wheels out of the parts.

    Raises:
        CarryError: A part is missing, or is not what was packed.
    """
    if not (kept / _INDEX).is_file():
        raise CarryError(f"There is no part in {kept}.")
    if missing := _missing(kept):
        raise CarryError(f"Parts are missing or broken: {', '.join(missing)}.")
    count = len(json.loads((kept / _INDEX).read_text(encoding="utf-8")))
    archive = kept / _ARCHIVE
    with archive.open("wb") as file:
        for number in range(1, count + 1):
            file.write((kept / f"{number}.part").read_bytes())
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(kept / "wheels")
    return sorted((kept / "wheels").glob("*.whl"))


def install(kept: Path = KEPT) -> str:
    """Installs the wheels; the sentence about where.

    Raises:
        CarryError: A part is missing, or pip failed.
    """
    site = kept / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
               "--no-compile", "--upgrade", "--target", str(site)]  # fmt: skip
    done = subprocess.run([*command, *map(str, join(kept))], capture_output=True, text=True,
                          check=False)  # fmt: skip
    if done.returncode != 0:
        raise CarryError(f"pip failed: {done.stderr.strip()[-400:]}")
    return f"installed: set PYTHONPATH={site}"


def main() -> int:
    """Runs one step; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    packing = steps.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("requirements", nargs="+")
    steps.add_parser("take").add_argument("part", type=Path)
    steps.add_parser("install")
    options = parser.parse_args()
    try:
        if options.step == "pack":
            print(f"{pack(options.folder, options.requirements)} parts in {options.folder}")
        else:
            print(take(options.part) if options.step == "take" else install())
    except CarryError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
