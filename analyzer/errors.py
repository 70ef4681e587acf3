"""The tree of errors. Each says what is wrong and where; ``hint`` says what to do next.

AnalyzerError                    1  a fault of the program
├── UsageError                   2  a wrong option or argument
├── InputError                   2  unusable input
│   ├── ModelError                  the model file or directory
│   ├── DataError                   calibration data, traces, tables
│   ├── SpaceError                  a search space file
│   ├── StoreError                  the results database
│   ├── RepositoryError             a Triton model repository (read or export)
│   └── MissingPartError            a library, device or server that is not here
├── TargetError                  1  the server under test
│   ├── TargetStartError            it did not come up
│   │   └── TargetLoadError      2  it did not load the model
│   ├── TargetCrashError            it went away while it was under test
│   ├── TargetMemoryError           it ran out of memory
│   └── TargetTimeoutError          it did not answer in time
│       └── LoadTimeoutError     2  nor load the model in time
├── BuildError                   1  a variant or engine that could not be built
│   └── BuildTimeoutError           not in the time that it had
├── BudgetEndedError            ends a search early; its answer is given all the same
└── RunInterruptedError         130  Ctrl-C or SIGTERM
"""

from __future__ import annotations

from typing import Self

# What ONNX Runtime, its CUDA provider, TensorRT, CUDA's libraries (``CUBLAS_STATUS_ALLOC_FAILED``,
# ``CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED``), Python, the C++ library and the C
# library say, lower case.
_OUT_OF_MEMORY = (
    "failed to allocate memory",
    "cannot allocate memory",
    "out of memory",
    "out_of_memory",
    "outofmemory",
    "_status_alloc_failed",
    "_allocation_failed",
    "memoryerror",
    "bad_alloc",
    "bad allocation",
    "cudaerrormemoryallocation",
    "smaller than requested bytes",
)


# What CUDA says (cudaGetErrorString) of errors that leave a process without a GPU. ONNX Runtime
# ("CUDA failure 700: …") and TensorRT ("Cuda Runtime (…)") quote it. Their names are in
# ``engine/runtimes/cuda.py:STICKY``; a test compares the two.
_DEVICE_LOST = (
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "an async error has occured in external entity outside of cuda",
    "device-side assert triggered",
    "hardware stack error",
    "invalid access of peer gpu memory over nvlink or a hardware error",
    "invalid program counter",
    "misaligned address",
    "operation not supported on global/shared address space",
    "tensor memory not completely freed",
    "the launch timed out and was terminated",
    "the mps client has been terminated by the server",
    "unspecified launch failure",
)


class AnalyzerError(Exception):
    """A fault of the program.

    Args:
        message: What is wrong and where (file, key, value), as a sentence.
        hint: What to do next, as a sentence; empty if nothing helps.

    Attributes:
        stage: Where of a measurement it came up (``Failure.stage``), if that is known better here
            than where it is caught; else empty.
    """

    exit_code = 1
    code = "internal"
    stage = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Keeps hint and stage when an error crosses a process boundary."""
        return (_rebuild, (type(self), self.message, self.hint, self.stage))

    def reworded(self, message: str, hint: str) -> Self:
        """The same error in other words."""
        other = type(self)(message, hint=hint)
        other.stage = self.stage
        return other


def _rebuild(kind: type[AnalyzerError], message: str, hint: str, stage: str) -> AnalyzerError:
    error = kind(message, hint=hint)
    error.stage = stage
    return error


class UsageError(AnalyzerError):
    """A wrong option or argument."""

    exit_code = 2
    code = "usage"


class InputError(AnalyzerError):
    """Input that cannot be used."""

    exit_code = 2
    code = "input"


class ModelError(InputError):
    """A model file or directory that cannot be used."""

    code = "model"


class DataError(InputError):
    """Calibration data, a trace or a table that cannot be used."""

    code = "data"


class SpaceError(InputError):
    """A search space that cannot be used."""

    code = "space"


class StoreError(InputError):
    """A results database that cannot be used."""

    code = "store"


class RepositoryError(InputError):
    """A Triton model repository that cannot be read or written."""

    code = "repository"


class MissingPartError(InputError):
    """A library, device or server that this machine does not have."""

    code = "missing"


class TargetError(AnalyzerError):
    """The server under test failed."""

    code = "target"


class TargetStartError(TargetError):
    """The server under test did not come up."""

    code = "target_start"


class TargetLoadError(TargetStartError):
    """The server under test did not load the model."""

    exit_code = 2
    code = "target_load"


class TargetCrashError(TargetError):
    """The server under test went away."""

    code = "target_crash"


class TargetMemoryError(TargetError):
    """The server under test ran out of memory."""

    code = "target_memory"


def is_out_of_memory(said: BaseException | str) -> bool:
    """Whether an exception, a reply or the end of a log means that memory ran out."""
    text = str(said).lower()
    return isinstance(said, MemoryError) or any(sign in text for sign in _OUT_OF_MEMORY)


def is_device_lost(said: BaseException | str) -> bool:
    """Whether an exception or a log means that this process cannot use its GPU any more."""
    text = str(said).lower()
    return any(sign in text for sign in _DEVICE_LOST)


class TargetTimeoutError(TargetError):
    """The server under test did not answer in time."""

    code = "target_timeout"


class LoadTimeoutError(TargetTimeoutError):
    """The time ended while the server under test loaded the model."""

    exit_code = 2
    code = "target_load_timeout"


class BuildError(AnalyzerError):
    """A variant or an engine could not be built."""

    code = "build"


class BuildTimeoutError(BuildError):
    """A variant or an engine could not be built in the time that there was."""


class BudgetEndedError(AnalyzerError):
    """The search's budget ended before a step, or in the middle of it."""

    code = "budget"


class RunInterruptedError(AnalyzerError):
    """The user interrupted the run; everything measured so far is stored."""

    exit_code = 130
    code = "interrupted"
