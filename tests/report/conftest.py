"""Makes the helpers beside these tests importable under pytest's importlib mode."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

for _name in ("facts_example", "chromium"):
    _spec = importlib.util.spec_from_file_location(_name, Path(__file__).parent / f"{_name}.py")
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[_name] = _module
    _spec.loader.exec_module(_module)
