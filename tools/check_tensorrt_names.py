"""Holds the names that we use of TensorRT and CUDA against their real Python bindings.

The bindings come as wheels that download without NVIDIA's index (``pip download --no-deps
tensorrt-cu13-bindings cuda-bindings``) but need libraries to be imported; their names stand in
their binaries and declarations all the same. Unpack the wheels and give their folders:

    python tools/check_tensorrt_names.py --tensorrt DIR --cuda DIR

Exits 1 and lists what is missing, if anything is.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from analyzer.engine.runtimes.fake_tensorrt import CUDA_NAMES, TENSORRT_NAMES


def missing_names(folder: Path, names: tuple[str, ...]) -> list[str]:
    """Those of ``names`` that no binary, declaration or Python file under ``folder`` holds.

    In a binary a name ends with a zero byte; what precedes it does not count, since linkers merge
    a string with the end of a longer one. In text it is a whole word.
    """
    files = [path for path in folder.rglob("*") if path.suffix in (".so", ".py", ".pxd")]
    if not files:
        raise SystemExit(f"{folder} holds no bindings; unpack the wheel and give its folder.")
    binary = b"\0".join(path.read_bytes() for path in files if path.suffix == ".so")
    text = b"\n".join(path.read_bytes() for path in files if path.suffix != ".so")
    words = set(re.findall(rb"\w+", text))
    return [
        name for name in names if name.encode() + b"\0" not in binary and name.encode() not in words
    ]


def main() -> None:
    """Checks the folders given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensorrt", type=Path)
    parser.add_argument("--cuda", type=Path)
    args = parser.parse_args()
    absent = []
    for folder, names in ((args.tensorrt, TENSORRT_NAMES), (args.cuda, CUDA_NAMES)):
        if folder is not None:
            found = missing_names(folder, names)
            print(f"{folder}: {len(names) - len(found)} of {len(names)} names found")
            absent += found
    if absent:
        sys.exit("missing: " + ", ".join(absent))


if __name__ == "__main__":
    main()
