"""TensorRT's real Python bindings, 10 and 11, over libraries that do nothing (tools)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import real_tensorrt
from analyzer.resources import child_environment

TOOLS = Path(real_tensorrt.__file__).parent
# Runs in a process of its own: two versions of the bindings register the same types.
CHILD = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import real_tensorrt

trt = real_tensorrt.load(sys.argv[2])
folder = Path(sys.argv[3])
assert trt.__version__.startswith(sys.argv[2] + "."), trt.__version__
assert real_tensorrt.disagreements(trt) == [], real_tensorrt.disagreements(trt)

# The check is not blind: what the real module has not is told, and a parameter too many.
from analyzer.engine.runtimes import fake_tensorrt
fake_tensorrt._Config.invented = lambda self: None
fake_tensorrt._Profile.set_shape = lambda self, name, low, middle, high, more: None
told = real_tensorrt.disagreements(trt)
assert "_Config: no invented" in told, told
assert any(text.startswith("_Profile: set_shape takes [(4, 4)]") for text in told), told
assert len(told) == 2, told

from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.engine.runtimes.tensorrt_ import (
    TensorRtEngine, library_version, load_plugins, product, recording_logger,
)
from analyzer.errors import MissingPartError
from analyzer.variants.tensorrt_build import EngineOptions, _network_flags, build_engine

logger = recording_logger(trt)
for number in range(25):
    logger.log(trt.ILogger.Severity.ERROR, f"failure {number}\\n")
    logger.log(trt.ILogger.Severity.WARNING, "no failure")
assert logger.errors == [f"failure {number}" for number in range(5, 25)], logger.errors
assert logger.seen == 25 and logger.since(24) == ["failure 24"] and logger.since(25) == []
load_plugins(trt, logger)
assert product(trt) == f"TensorRT {trt.__version__}" and library_version(trt) == trt.__version__
assert _network_flags(trt) == 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)

try:
    trt.nptype(trt.DataType.BF16)
except TypeError:
    pass
else:
    raise AssertionError("BF16 has a numpy type now")

# The builder and the runtime find nothing behind them, as without a GPU.
spec = TensorSpec(name="x", datatype="FP32", shape=(3,))
model = ModelInfo(name="m", path="m", sha256="", batchable=True, inputs=(spec,), outputs=(spec,))
try:
    build_engine(folder / "m.onnx", model, folder / "m.plan", EngineOptions(), trt=trt)
except MissingPartError as error:
    assert f"{trt.__version__}'s builder does not start" in error.message, error.message
else:
    raise AssertionError("the builder started")
from analyzer.engine.runtimes.fake_cuda import FakeCuda
(folder / "m.plan").write_bytes(b"plan")
try:
    TensorRtEngine(folder / "m.plan", trt=trt, cudart=FakeCuda())
except MissingPartError as error:
    assert f"{trt.__version__}'s runtime does not start" in error.message, error.message
else:
    raise AssertionError("the runtime started")
"""


@pytest.mark.parametrize("major", sorted(real_tensorrt.WHEELS))
def test_the_code_and_its_fake_fit_the_real_bindings(major: str, tmp_path: Path) -> None:
    if not real_tensorrt.home(major).is_dir():
        pytest.skip(f"TensorRT {major}'s bindings are not here (tools/real_tensorrt.py --fetch)")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(TOOLS), major, str(tmp_path)],
        capture_output=True, text=True, check=False, env=child_environment(), timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
