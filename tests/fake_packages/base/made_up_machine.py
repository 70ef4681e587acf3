"""What the modules of the folders beside this one pretend: JSON in MADE_UP_MACHINE."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

_HIDING = Path(__file__).parents[1] / "gpu"
OPTIONS: dict[str, Any] = json.loads(os.environ.get("MADE_UP_MACHINE", "{}"))


def behind(name: str) -> Any:
    """The installed module that one of ``gpu`` hides; it stays in ``sys.modules``."""
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if Path(entry) != _HIDING]
    try:
        sys.modules.pop(name)
        return importlib.import_module(name)
    finally:
        sys.path[:] = path
