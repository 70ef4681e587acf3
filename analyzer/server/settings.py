"""Logging and trace settings: stored and returned as Triton does; nothing is traced."""

from __future__ import annotations

import threading
from typing import Any

from analyzer.engine.fault import Fault

_TRACE_DEFAULTS: dict[str, Any] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
_LOG_FORMATS = ("default", "ISO8601")


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
        """Changes logging settings; unknown ones are ignored, as in Triton.

        Raises:
            Fault: A wrong type, or a change that is not allowed over the network.
        """
        if values.get("log_file"):
            raise Fault(
                "unsupported", "log file location can not be updated through network protocol"
            )
        changes: dict[str, Any] = {}
        for key in ("log_info", "log_warning", "log_error"):
            if key in values:
                if not isinstance(values[key], bool):
                    raise Fault("internal", "attempt to access JSON non-boolean as boolean")
                changes[key] = values[key]
        if "log_verbose_level" in values:
            level = values["log_verbose_level"]
            if not isinstance(level, int) or isinstance(level, bool) or level < 0:
                raise Fault(
                    "internal",
                    "attempt to access JSON non-unsigned-integer as unsigned-integer",
                )
            changes["log_verbose_level"] = level % (1 << 32)  # Triton keeps 32 bits
        if "log_format" in values:
            if values["log_format"] not in _LOG_FORMATS:
                raise Fault(
                    "unavailable",
                    f"invalid argument for --log_format, got: {values['log_format']}",
                )
            changes["log_format"] = values["log_format"]
        with self._lock:
            self._log |= changes
            return dict(self._log)

    def trace(self, model: str = "") -> dict[str, Any]:
        """The trace settings of a model, or the server's."""
        with self._lock:
            return _TRACE_DEFAULTS | self._trace[""] | self._trace.get(model, {})

    def update_trace(self, values: dict[str, Any], model: str = "") -> dict[str, Any]:
        """Changes trace settings; None clears one, unknown ones are ignored.

        Raises:
            Fault: A wrong value, a change that is not allowed over the network, or tracing itself.
        """
        if values.get("trace_file"):
            raise Fault(
                "unsupported", "trace file location can not be updated through network protocol"
            )
        changes = {key: _trace_value(key, values[key]) for key in _TRACE_DEFAULTS if key in values}
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
        levels = value if isinstance(value, list) else [value]
        if any(not isinstance(level, str) for level in levels):
            raise Fault("internal", "attempt to access JSON non-string as string")
        known = [level for level in levels if level in ("TIMESTAMPS", "TENSORS", "OFF")]
        return known or ["OFF"]
    text = str(value[0] if isinstance(value, list) and value else value)
    if key in ("trace_rate", "trace_count", "log_frequency"):
        try:
            return str(int(text))
        except ValueError as error:
            raise Fault("invalid", f"failed to parse '{key}', got: {text[:100]}") from error
    return text[:100]
