"""Models with functions of their own, in a process that nothing else has prepared.

``onnx.inliner`` is imported by none of ONNX's other modules, but by some of the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from analyzer.variants.session import open_session

INSPECT = """
import json, sys
from pathlib import Path
from analyzer.variants.inspect import inspect_model
print(json.dumps(inspect_model(Path(sys.argv[1])).inputs[0].value_range))
"""
CONVERT = """
import sys
from pathlib import Path
from analyzer.variants.precision import convert_fp16
convert_fp16(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def embedding(write_model: Callable[..., Path]) -> Path:
    """A table of 1,000 rows and a product, both inside the function ``Embed``."""
    function = helper.make_function(
        "local",
        "Embed",
        ["table", "ids", "weights"],
        ["y"],
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("MatMul", ["rows", "weights"], ["y"]),
        ],
        [helper.make_opsetid("", 17)],
    )
    rng = np.random.default_rng(0)
    path = write_model(
        [helper.make_node("Embed", ["table", "ids", "weights"], ["y"], domain="local")],
        [("ids", TensorProto.INT64, ["n", 6])],
        [("y", TensorProto.FLOAT, ["n", 6, 2])],
        {
            "table": rng.standard_normal((1000, 4)).astype(np.float32),
            "weights": rng.standard_normal((4, 2)).astype(np.float32),
        },
        domains=("local",),
    )
    model = onnx.load(path)
    model.functions.append(function)
    onnx.save(model, path)
    return path


def fresh(code: str, *arguments: Path) -> str:
    """What a new process prints that runs ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_input_of_a_function_has_the_range_of_its_table(
    write_model: Callable[..., Path],
) -> None:
    """It was 0 and 1, as without a table: caches of a thousand rows were measured with two."""
    assert json.loads(fresh(INSPECT, embedding(write_model))) == [0, 999]


def test_a_model_with_functions_is_converted_to_fp16(
    write_model: Callable[..., Path], tmp_path: Path
) -> None:
    path, half = embedding(write_model), tmp_path / "half.onnx"
    fresh(CONVERT, path, half)
    converted = onnx.load(half)
    assert not converted.functions
    kinds = {tensor.data_type for tensor in converted.graph.initializer}
    assert kinds == {TensorProto.FLOAT16}
    ids = np.array([[0, 1, 500, 999, 7, 7]])
    (expected,), (seen,) = (open_session(file).run(None, {"ids": ids}) for file in (path, half))
    assert np.allclose(seen, expected, rtol=0.01, atol=0.02)
