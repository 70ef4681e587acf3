"""TensorRT's fake, as a package of child processes."""

import sys

from made_up_machine import OPTIONS

from analyzer.engine.runtimes.fake_tensorrt import make_tensorrt

sys.modules[__name__] = make_tensorrt(**OPTIONS.get("tensorrt", {}))
