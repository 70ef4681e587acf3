"""Makes the example study importable under importlib mode."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location(
    "facts_example", Path(__file__).parent / "facts_example.py"
)
assert _SPEC is not None and _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("facts_example", _MODULE)
_SPEC.loader.exec_module(_MODULE)
