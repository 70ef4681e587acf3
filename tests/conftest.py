"""For all tests."""

import os

# gRPC, once loaded, would tell on stderr of every child process that a later test starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
