"""A job as the command line that its user would type."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

#: In the environment of a job's command: the command line that its study notes as its own.
TOLD = "TRITUNE_COMMAND"


def command_text(
    kind: str, model_name: str, options: Mapping[str, Any], *, directory: bool, store: str = ""
) -> str:
    """The command that does on one's own machine what a job does.

    Args:
        kind: ``search`` or ``verify``.
        options: As the job was handed in.
        directory: Whether the model is a Triton model directory.
        store: Its database; empty for the default.
    """
    options = dict(options)
    if kind == "verify":
        words = ["analyze", "verify", "--repository=repository", f"--model={model_name}"]
    else:
        words = ["analyze", "search", f"{model_name}{'' if directory else '.onnx'}"]
    if str(options.pop("force", False)).lower() == "true":
        words.append("--force")
    for name, value in options.items():
        if name == "calibration_data":
            value = "calibration.npz"
        elif str(value).startswith("trace:"):
            value = "trace:trace.csv"
        for one in value if isinstance(value, list) and name == "input_shape" else [value]:
            text = ",".join(map(str, one)) if isinstance(one, list) else str(one)
            words.append(f"--{name.replace('_', '-')}={text}")
    if store:
        words.append(f"--store={store}")
    return shlex.join(words)
