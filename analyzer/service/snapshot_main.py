"""``python -m analyzer.service.snapshot_main SOURCE TARGET``: a whole copy of a SQLite database.

Run with the rights of the job's command: what that command has put in the place of its database is
opened with no other rights than its own.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from pathlib import Path


def main() -> int:
    """0 where there is a copy; 1 where there is no such database (yet)."""
    source, target = map(Path, sys.argv[1:])
    if not source.is_file():
        return 1
    target.unlink(missing_ok=True)
    try:
        with (
            contextlib.closing(sqlite3.connect(source, timeout=30)) as live,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
    except sqlite3.Error:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
