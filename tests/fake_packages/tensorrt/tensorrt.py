"""TensorRT's fake, as a package of child processes."""

import sys

from made_up_machine import OPTIONS

from analyzer.engine.runtimes.fake_tensorrt import make_tensorrt

_fake = make_tensorrt(**OPTIONS.get("tensorrt", {}))
_fake.__spec__ = __spec__  # which `importlib.util.find_spec` asks for, once it is imported
sys.modules[__name__] = _fake
