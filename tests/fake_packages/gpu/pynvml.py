"""NVML over made-up GPUs; the real module's constants, structures and errors are behind it."""

import sys

from made_up_machine import OPTIONS, behind

from analyzer.hardware.fake_nvml import FakeGpu, FakeNvml

behind(__name__)


def _gpu(values: dict) -> FakeGpu:
    instances = [_gpu(each) for each in values.get("instances", ())]
    return FakeGpu(**{**values, "instances": instances})


_values = OPTIONS.get("nvml", {})
sys.modules[__name__] = FakeNvml(
    [_gpu(each) for each in _values.get("gpus", [{}])],
    faults=_values.get("faults"),
    cuda=_values.get("cuda", 13000),
)
