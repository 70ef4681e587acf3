"""Prints pip's constraints for the Triton image that this runs in (the Dockerfile's build).

    python3 docker/constraints.py 26.09 [--root /]

TensorRT is taken at the version whose ``libnvinfer`` lies in the image: an engine runs on the
version that built it alone. ``triton-releases.csv`` tells the image's CUDA; its major version must
be the one that the libraries of the extra ``gpu`` are built for, and the image's own if it tells
one (``CUDA_VERSION``). Exits 1 with the reason where something does not fit. Standard library only.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLE = HERE / "triton-releases.csv"
PROJECT = HERE.parent / "pyproject.toml"
# The first release of onnxruntime-gpu in the index that is built for this major version of CUDA.
ONNXRUNTIME_OF_CUDA = {"13": "1.27"}


class ConstraintError(Exception):
    """The image and the extra do not fit each other; the message says why."""


def releases(table: Path = TABLE) -> dict[str, str]:
    """The version of CUDA of each release."""
    with table.open(newline="", encoding="utf-8") as file:
        return {row["release"]: row["cuda"] for row in csv.DictReader(file)}


def cuda_of_extra(project: Path = PROJECT) -> str:
    """The major version of CUDA that the extra ``gpu`` is for.

    Raises:
        ConstraintError: Its packages do not agree.
    """
    wanted = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    bindings = next(name for name in wanted["gpu"] if name.startswith("cuda-bindings"))
    major = re.search(r">=(\d+)", bindings)
    if major is None:
        raise ConstraintError(f"The extra gpu names no version of CUDA's bindings: {bindings}.")
    runtime = next(name for name in wanted["gpu"] if name.startswith("onnxruntime-gpu"))
    least = ONNXRUNTIME_OF_CUDA.get(major[1])
    if least is None or f">={least}" not in runtime:
        raise ConstraintError(f"{runtime} of the extra gpu is not built for CUDA {major[1]}.")
    return major[1]


def image_tensorrt(root: Path) -> str:
    """The version of the image's ``libnvinfer``: major, minor and patch.

    Raises:
        ConstraintError: There is none, or there are several.
    """
    places = (root / "usr" / "lib", root / "opt")
    files = [path for place in places for path in place.rglob("libnvinfer.so.*.*.*")]
    found = {".".join(path.name.split(".so.")[1].split(".")[:3]) for path in files}
    if len(found) != 1:
        raise ConstraintError(f"The image has {sorted(found) or 'no'} version of TensorRT.")
    return found.pop()


def constraints(release: str, root: Path, image_cuda: str | None) -> str:
    """The text of the file of constraints.

    Raises:
        ConstraintError: Something does not fit.
    """
    known = releases()
    if release not in known:
        raise ConstraintError(
            f"{TABLE.name} has no release {release}; it has {', '.join(known)}. Add it from"
            " NVIDIA's release notes."
        )
    wanted = cuda_of_extra()
    for what, cuda in (("Triton", known[release]), ("The image of Triton", image_cuda)):
        if cuda and cuda.split(".")[0] != wanted:
            raise ConstraintError(
                f"{what} {release} has CUDA {cuda}, and the extra gpu is for CUDA {wanted}."
            )
    return f"tensorrt=={image_tensorrt(root)}.*\n"


def main() -> int:
    """Prints the constraints; returns the exit code."""
    parser = argparse.ArgumentParser(description="pip's constraints for a Triton image")
    parser.add_argument("release")
    parser.add_argument("--root", type=Path, default=Path("/"))
    options = parser.parse_args()
    try:
        text = constraints(options.release, options.root, os.environ.get("CUDA_VERSION"))
    except ConstraintError as error:
        print(error, file=sys.stderr)
        return 1
    print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
