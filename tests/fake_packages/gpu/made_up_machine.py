"""What the modules beside this one pretend: JSON in the variable MADE_UP_MACHINE."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

OPTIONS: dict[str, Any] = json.loads(os.environ.get("MADE_UP_MACHINE", "{}"))


def behind(name: str) -> Any:
    """The installed module that one of this folder hides; it stays in ``sys.modules``."""
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if Path(entry) != Path(__file__).parent]
    try:
        sys.modules.pop(name)
        return importlib.import_module(name)
    finally:
        sys.path[:] = path
