"""For all tests."""

import os
import signal

import pytest

from analyzer.targets.triton_install import TritonInstall, find_triton

# gRPC, once loaded, would tell on stderr of every child process that a later test starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# A shell that starts the tests in the background lets them, and every program that they start,
# ignore Ctrl-C; the tests of interrupts need it back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def triton_install() -> TritonInstall:
    """A real Triton that serves python models; the test is skipped where there is none."""
    found = find_triton()
    if found is None or "python" not in found.backends:
        pytest.skip("there is no Triton with a python backend here (make tools fetches one)")
    return found
