"""Logging and trace settings: stored and returned as Triton does; nothing is traced."""

from __future__ import annotations

import re
import threading
from typing import Any

from analyzer.engine.fault import Fault
from analyzer.server.json_values import as_array, as_boolean, as_string, as_unsigned

_TRACE_DEFAULTS: dict[str, Any] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
# Numbers, which travel as strings: the bounds that Triton names.
TRACE_BOUNDS = {
    "trace_rate": (0, (1 << 32) - 1),
    "trace_count": (-1, (1 << 31) - 1),
    "log_frequency": (0, (1 << 32) - 1),
}
_TRACE_KEYS = ("trace_level", *TRACE_BOUNDS)
_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,20})")
LOG_FORMATS = ("default", "ISO8601")


class Settings:
    """The server's settings and what models override. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._log: dict[str, Any] = {
            "log_file": "",
            "log_info": True,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 0,
            "log_format": "default",
        }
        self._trace: dict[str, dict[str, Any]] = {"": {}}

    def log(self) -> dict[str, Any]:
        """The logging settings."""
        with self._lock:
            return dict(self._log)

    def update_log(self, values: dict[str, Any]) -> dict[str, Any]:
        """Changes logging settings; unknown ones and None are ignored, as in Triton.

        Raises:
            Fault: A wrong type, or a change that is not allowed over the network.
        """
        values = {key: value for key, value in values.items() if value is not None}
        if "log_file" in values:
            raise Fault(
                "unsupported", "log file location can not be updated through network protocol"
            )
        changes: dict[str, Any] = {}
        for key in ("log_info", "log_warning", "log_error"):
            if key in values:
                changes[key] = as_boolean(values[key], "")
        if "log_verbose_level" in values:
            level = as_unsigned(values["log_verbose_level"], "")
            changes["log_verbose_level"] = level % (1 << 32)  # Triton keeps 32 bits
        if "log_format" in values:
            kind = as_string(values["log_format"], "")
            if kind not in LOG_FORMATS:
                raise Fault("unavailable", f"invalid argument for --log_format, got: {kind}")
            changes["log_format"] = kind
        with self._lock:
            self._log |= changes
            return dict(self._log)

    def trace(self, model: str = "") -> dict[str, Any]:
        """The trace settings of a model, or the server's."""
        with self._lock:
            return _TRACE_DEFAULTS | self._trace[""] | self._trace.get(model, {})

    def update_trace(self, values: dict[str, Any], model: str = "") -> dict[str, Any]:
        """Changes trace settings; None clears one, unknown ones and the mode are ignored.

        Raises:
            Fault: A wrong value, a change that is not allowed over the network, or tracing itself.
        """
        if "trace_file" in values:
            raise Fault(
                "unsupported", "trace file location can not be updated through network protocol"
            )
        changes = {key: _trace_value(key, values[key]) for key in _TRACE_KEYS if key in values}
        if changes.get("trace_level") not in (None, ["OFF"]):
            raise Fault(
                "invalid", "Attempting to set invalid trace setting :trace file name is not given"
            )
        with self._lock:
            own = self._trace.setdefault(model, {})
            for key, value in changes.items():
                if value is None:
                    own.pop(key, None)
                else:
                    own[key] = value
        return self.trace(model)


def _trace_value(key: str, value: Any) -> Any:
    if value is None:
        return None
    if key == "trace_level":
        levels = [as_string(level, "") for level in as_array(value, "")]
        if "OFF" in levels and len(levels) > 1:
            raise Fault("invalid", "Expect only one trace level 'OFF' is specified")
        return [level for level in levels if level in ("TIMESTAMPS", "TENSORS")] or ["OFF"]
    text = as_string(value, "")
    found = _INTEGER.match(text)
    if found is None:
        raise Fault("invalid", f"Unable to parse '{key}', got: {text[:100]}")
    number = int(found[1])
    low, high = TRACE_BOUNDS[key]
    if not -(1 << 31) <= number < 1 << 31:
        raise Fault(
            "invalid",
            f"Unable to parse '{key}', value is out of range [ {low}, {high} ], got: {text[:100]}",
        )
    if key == "trace_count" and number < low:
        raise Fault("invalid", f"Unable to parse '{key}'. Expecting value >= -1, got:{number}")
    return str(number % (1 << 32) if low == 0 else number)  # where Triton keeps no sign
