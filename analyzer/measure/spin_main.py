"""A process that keeps one core busy with pieces of work when it is told to, and times each.

Reads lines from standard input, each a number of seconds; for each it writes one line, a JSON list
of ``[start, milliseconds]`` of every piece, start in seconds of CLOCK_MONOTONIC. A first line
``ready`` says that it is. Ends with its input.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from analyzer.hardware.lifetime import die_with_parent

# A piece takes this long on the core that first runs it: as long as an execution of a small model,
# a fiftieth of a window.
_PIECE_S = 1e-3
_SIZE = 64


def _piece(matrix: np.ndarray[tuple[int, int], np.dtype[np.float32]], repeats: int) -> None:
    for _ in range(repeats):
        matrix @ matrix


def main() -> None:
    """Spins for the seconds of each line."""
    die_with_parent(parent_pid=int(sys.argv[1]))
    matrix = np.random.default_rng(0).random((_SIZE, _SIZE), dtype=np.float32)
    _piece(matrix, 2000)
    began = time.perf_counter()
    _piece(matrix, 2000)
    repeats = max(1, round(_PIECE_S / (time.perf_counter() - began) * 2000))
    print("ready", flush=True)
    for line in sys.stdin:
        until = time.monotonic() + float(line)
        pieces = []
        while (start := time.monotonic()) < until:
            _piece(matrix, repeats)
            pieces.append((round(start, 6), round((time.monotonic() - start) * 1e3, 5)))
        print(json.dumps(pieces), flush=True)


if __name__ == "__main__":
    main()
