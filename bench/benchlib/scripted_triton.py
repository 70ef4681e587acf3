"""A model whose execution takes a scripted time, on a real Triton and on the embedded server.

Shared by ``scheduling.py``, ``generators.py`` and the test of the scheduling. On Triton it is a
python-backend model that sleeps; on the embedded server the scripted runtime.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.modelconfig.files import ModelFiles
from analyzer.targets.endpoint_target import EndpointTarget, local_target
from analyzer.targets.triton_server import TritonServer
from analyzer.twin.service import ServiceTime

# Tensors come and go by DLPack, since the wheel's backend was built for numpy 1 (model.py.j2).
MODEL_PY = """
import ctypes
import json
import os
import sys
import time

sys.path += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p not in sys.path]

import numpy as np
import triton_python_backend_utils as pb_utils

set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)
USED = b"used_dltensor"
# Timers of this thread may be late by 1 ns instead of 50 us.
ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.fixed_s = float(parameters["fixed_ms"]["string_value"]) / 1e3
        self.item_s = float(parameters["item_ms"]["string_value"]) / 1e3

    def execute(self, requests):
        start = time.perf_counter()
        rows = [
            np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "X")) for request in requests
        ]
        end = start + self.fixed_s + self.item_s * sum(len(part) for part in rows)
        replies = []
        for part in rows:
            capsule = np.array(part, copy=True).__dlpack__()
            replies.append(
                pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", capsule)])
            )
            set_name(capsule, USED)
        rest = end - time.perf_counter()
        if rest > 0:
            time.sleep(rest)
        return replies
"""
_TENSOR = (1,)
MODEL = ModelInfo(
    name="scripted",
    path="",
    sha256="0" * 64,
    batchable=True,
    inputs=(TensorSpec(name="X", datatype="FP32", shape=_TENSOR),),
    outputs=(TensorSpec(name="Y", datatype="FP32", shape=_TENSOR),),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Execution time: ``fixed_ms + item_ms × batch size``."""

    fixed_ms: float
    item_ms: float

    def at(self, batch_size: int) -> float:
        """Milliseconds of one execution."""
        return self.fixed_ms + self.item_ms * batch_size


def scripted_files(name: str, configuration: Configuration, script: Script) -> ModelFiles:
    """The model for Triton's python backend."""
    served = configuration.canonical()
    lines = [
        'backend: "python"',
        f"max_batch_size: {served.max_batch_size}",
        'input [{ name: "X" data_type: TYPE_FP32 dims: [1] }]',
        'output [{ name: "Y" data_type: TYPE_FP32 dims: [1] }]',
        f"instance_group [{{ count: {served.instance_count} kind: KIND_CPU }}]",
    ]
    for key in ("fixed_ms", "item_ms"):
        value = getattr(script, key)
        lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value!r}" }} }}')
    if served.dynamic_batching:
        preferred = ", ".join(map(str, served.preferred_batch_size or ()))
        delay_us = served.max_queue_delay_us or 0
        lines.append(
            f"dynamic_batching {{ preferred_batch_size: [{preferred}] "
            f"max_queue_delay_microseconds: {delay_us} }}"
        )
    return ModelFiles(
        name=name,
        config_text="\n".join(lines) + "\n",
        configuration=served,
        version_files={"model.py": MODEL_PY.encode()},
    )


@contextmanager
def triton_target(
    server: TritonServer,
    name: str,
    configuration: Configuration,
    script: Script,
    *,
    protocol: str = "grpc",
) -> Iterator[EndpointTarget]:
    """The scripted model, loaded for the ``with`` block."""
    files = scripted_files(name, configuration, script)
    with local_target(server, files, inputs(), model=MODEL, protocol=protocol) as target:
        yield target


def inputs() -> dict[str, NDArray[Any]]:
    """Rows of input."""
    return {"X": np.arange(8, dtype=np.float32).reshape(8, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Executions:
    """What a server counted: executions by batch size, and their whole time.

    Args:
        count: Executions by batch size.
        busy_ms: Their compute input, infer and output in all, by batch size.
    """

    count: dict[int, int]
    busy_ms: dict[int, float]

    def __sub__(self, earlier: Executions) -> Executions:
        count = {k: v - earlier.count.get(k, 0) for k, v in self.count.items()}
        busy = {k: v - earlier.busy_ms.get(k, 0.0) for k, v in self.busy_ms.items()}
        return Executions(
            count={k: v for k, v in count.items() if v},
            busy_ms={k: v for k, v in busy.items() if count[k]},
        )

    def __add__(self, other: Executions) -> Executions:
        sizes = self.count.keys() | other.count.keys()
        return Executions(
            count={k: self.count.get(k, 0) + other.count.get(k, 0) for k in sizes},
            busy_ms={k: self.busy_ms.get(k, 0.0) + other.busy_ms.get(k, 0.0) for k in sizes},
        )

    @property
    def batch_size_mean(self) -> float:
        """Inferences per execution."""
        inferences = sum(size * count for size, count in self.count.items())
        return inferences / sum(self.count.values())


def batch_stats(http_address: str, model: str) -> Executions:
    """Triton's ``batch_stats``, which our client of the protocols reduces to counts."""
    url = f"http://{http_address}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=10) as answer:
        (entry,) = json.load(answer)["model_stats"]
    stages = ("compute_input", "compute_infer", "compute_output")
    return Executions(
        count={s["batch_size"]: s["compute_infer"]["count"] for s in entry["batch_stats"]},
        busy_ms={
            s["batch_size"]: sum(s[stage]["ns"] for stage in stages) / 1e6
            for s in entry["batch_stats"]
        },
    )


def service_from(executions: Executions, idle: Executions, *, enough: int = 5) -> ServiceTime:
    """Service times by batch size: of the run where it has ``enough`` executions, else at idle."""
    times: dict[int, float] = {}
    for source, least in ((idle, 1), (executions, enough)):
        for size, count in source.count.items():
            if count >= least:
                times[size] = source.busy_ms[size] / count
    sizes = tuple(sorted(times))
    return ServiceTime(batch_sizes=sizes, service_ms=tuple(times[size] for size in sizes))
