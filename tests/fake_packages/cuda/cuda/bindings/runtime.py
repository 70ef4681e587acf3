"""CUDA's fake, as a package of child processes."""

import sys

from made_up_machine import OPTIONS

from analyzer.engine.runtimes.fake_cuda import FakeCuda

sys.modules[__name__] = FakeCuda(**OPTIONS.get("cuda", {}))
