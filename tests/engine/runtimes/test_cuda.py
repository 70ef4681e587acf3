"""CUDA's own bindings on a machine without a driver."""

from __future__ import annotations

import pytest

from analyzer.engine.runtimes.cuda import CudaStream, import_cudart
from analyzer.engine.runtimes.fake_tensorrt import FakeCuda
from analyzer.errors import MissingPartError
from analyzer.hardware.machine import inspect_machine

pytest.importorskip("cuda.bindings.runtime", reason="the package cuda-bindings is not installed")


def test_a_missing_driver_is_told() -> None:
    if inspect_machine().gpus:
        pytest.skip("this machine has a GPU")
    with pytest.raises(MissingPartError, match="driver is missing, or older") as caught:
        CudaStream()
    assert "cudaErrorInsufficientDriver" in caught.value.message


def test_the_fake_has_the_numbers_of_the_real_module() -> None:
    real = import_cudart()
    enums = (real.cudaError_t, real.cudaMemcpyKind)
    functions = [name for name in vars(FakeCuda) if name.startswith("cuda")]
    assert [name for name in functions if not hasattr(real, name)] == []
    for fake, enum in ((FakeCuda.cudaError_t, enums[0]), (FakeCuda.cudaMemcpyKind, enums[1])):
        for name, value in vars(fake).items():
            if name.startswith("cuda"):
                assert int(getattr(enum, name)) == int(value), name
