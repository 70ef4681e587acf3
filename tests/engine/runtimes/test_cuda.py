"""CUDA's own bindings on a machine without a driver."""

from __future__ import annotations

import pytest

from analyzer.engine.runtimes.cuda import STICKY, CudaStream, import_cudart
from analyzer.engine.runtimes.fake_cuda import FakeCuda
from analyzer.errors import MissingPartError, is_device_lost, is_out_of_memory
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
    fake = FakeCuda()
    functions = [name for name in vars(FakeCuda) if name.startswith("cuda")]
    assert len(functions) >= 9
    assert [name for name in functions if not hasattr(real, name)] == []
    for enum in ("cudaError_t", "cudaMemcpyKind"):
        for member in getattr(fake, enum):
            assert int(getattr(getattr(real, enum), member.name)) == int(member), member
    assert {member.name for member in real.cudaMemcpyKind} == {
        member.name for member in fake.cudaMemcpyKind
    }
    # The flags that we write as numbers.
    assert (real.cudaStreamNonBlocking, real.cudaHostAllocDefault) == (1, 0)
    for name in functions:
        # Cython's own: positional arguments, after self.
        own = getattr(FakeCuda, name).__code__.co_argcount - 1
        assert own == getattr(real, name).__code__.co_argcount, name


def test_what_sticks_is_what_cudas_documentation_says() -> None:
    real = import_cudart().cudaError_t
    told = {
        each.name
        for each in real
        if "process must be terminated" in " ".join((each.__doc__ or "").split())
    }
    if not told:
        pytest.skip("these bindings carry no documentation of their errors (older than 13)")
    assert told - STICKY == set()
    assert {name for name in STICKY if hasattr(real, name)} - told == set()


def test_the_words_of_a_lost_gpu_are_cudas_own() -> None:
    real = import_cudart()
    for each in real.cudaError_t:
        _, words = real.cudaGetErrorString(each)
        said = f"CUDA failure {int(each)}: {words.decode()} ; GPU=0 ; hostname=a ; file=b ; line=1"
        # Of a launch before: no error of today's CUDA, and the same to whoever meets it.
        lost = each.name in STICKY or each.name == "cudaErrorPriorLaunchFailure"
        assert is_device_lost(said) == lost, each
        assert is_out_of_memory(said) == (each.name == "cudaErrorMemoryAllocation"), each
