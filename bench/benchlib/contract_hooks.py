"""For schemathesis: files that are what they should be, and jobs that may be made of them.

A document cannot say what a model is. Without this every upload would be refused, and no walk would
get any further.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import schemathesis
from schemathesis import GenerationMode

from benchlib.command import ROOT

_MODEL = (ROOT / "examples" / "digits.onnx").read_bytes()
_FILES = {
    "POST /api/v1/models": _MODEL,
    "POST /api/v1/calibration": (ROOT / "examples" / "digits.npz").read_bytes(),
    "POST /api/v1/scenarios": b"arrival_ms\n1\n2.5\n4\n",
}
_JOB = {
    "kind": "search",
    "model": hashlib.sha256(_MODEL).hexdigest(),
    "options": {"latency_budget": "50ms", "budget": "60s"},
}
_TURN = itertools.count()


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Puts a real file or job in the place of two of three that were made up to be accepted."""
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    if next(_TURN) % 3 == 0:
        return
    label = case.operation.label
    if label in _FILES:
        case.body = _FILES[label]
    elif label == "POST /api/v1/jobs":
        case.body = _JOB
