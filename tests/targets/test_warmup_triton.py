"""Warm-ups of a configuration: refused and run as by the real server, in its words."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from analyzer.engine.loader import LoadSettings, load_versions, read_model_config
from analyzer.errors import ModelError, RepositoryError
from analyzer.targets.triton_install import TritonInstall
from analyzer.targets.triton_server import TritonServer

MODEL = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        y = pb.Tensor("y", np.zeros((1, 4), np.float32))
        return [pb.InferenceResponse([y]) for _ in requests]
"""
IO = (
    'backend: "python" max_batch_size: 4 '
    'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } '
    'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } '
)
OPEN = IO.replace("dims: [ 4 ]", "dims: [ -1 ]", 1)
RESHAPED = IO.replace("[ 4 ] }", "[ 4 ] reshape { shape: [ 2, 2 ] } }", 1)
# The real server itself ends now and then (signal 11; 2 of 33 times beside other processes) while
# it refuses `large`: another one is asked then.
SERVERS = 4
FILES = {"short": bytes(15), "long": bytes(17)}


def sample(
    dims: str, *, kind: str = "zero_data: true", of: str = "FP32", name: str = "x", batch: int = 1
) -> str:
    value = f'key: "{name}" value {{ data_type: TYPE_{of} dims: [ {dims} ] {kind} }}'
    return f'model_warmup {{ name: "s" batch_size: {batch} inputs {{ {value} }} }}'


def also(more: str) -> str:
    return sample("4").removesuffix("}") + more.split("batch_size: 1 ", 1)[1]


# What each says where it is refused, as far as the words are ours to choose; empty where it loads.
CASES = {
    "fits": (IO + sample("4"), ""),
    "other_rank": (IO + sample("4, 1"), "Expected [-1,4], got [1,4,1]. NOTE: Setting a non-zero"),
    "own_batch": (IO + sample("1, 4"), "unexpected shape for input 'x' for model 'own_batch'"),
    "other_dim": (IO + sample("5"), "Expected [-1,4], got [1,5]"),
    "open_dim": (OPEN + sample("-1"), "expects all variable-size dimensions are specified for"),
    "empty_dim": (OPEN + sample("0"), ""),
    "reshaped": (RESHAPED + sample("4"), ""),
    "as_reshaped": (RESHAPED + sample("2, 2"), "Expected [-1,4], got [1,2,2]"),
    "other_type": (IO + sample("4", of="FP64"), "data-type is 'FP64', but model 'other_type' exp"),
    "no_type": (IO + sample("4", of="INVALID"), "data-type is '<invalid>'"),
    "unknown": (IO + sample("4", name="q"), "expected 1 inputs but got 0 inputs for model"),
    "one_more": (IO + also(sample("4", name="q")), ""),
    "none": (IO + 'model_warmup { name: "s" batch_size: 1 }', "missing required input(s) ['x']"),
    "no_data": (IO + sample("4", kind=""), "expects input 'x' to have input_data_type set"),
    "large": (IO + sample("4", batch=5), "failed to run warmup sample 's': batch size 5 for"),
    "skipped": (IO + sample("9", batch=0), ""),
    "no_count": (IO + sample("4").replace("batch", "count: 0 batch"), ""),
    "short": (IO + sample("4", kind='input_data_file: "short"'), "expects 16 bytes, but the data"),
    "long": (IO + sample("4", kind='input_data_file: "long"'), ""),
}


def write(folder: Path, config: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "warmup").mkdir()
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(config)
    for name, content in FILES.items():
        (folder / "warmup" / name).write_bytes(content)


@pytest.mark.parametrize("name", CASES)
def test_a_warm_up_is_checked_as_a_request_is(tmp_path: Path, name: str) -> None:
    """Missing inputs and data were accepted; an empty dimension and longer files were refused."""
    config, said = CASES[name]
    folder = tmp_path / name
    write(folder, config.replace("python", "scripted"))
    settings = LoadSettings()

    def load() -> None:
        read = read_model_config(folder, name, settings, None)
        for model in load_versions(folder, read, settings, _no_other).values():
            model.close()

    if not said:
        load()
        return
    with pytest.raises(RepositoryError) as refused:
        load()
    assert said in refused.value.message and "warm-up 's'" in refused.value.hint


def _no_other(name: str, version: int) -> NoReturn:
    raise ModelError(name)


@pytest.fixture(scope="module")
def answers(triton_install: TritonInstall) -> dict[str, str]:
    """What the real server says to each; empty where it loads."""
    said: dict[str, str] = {}
    for _ in range(SERVERS):
        with TritonServer(triton_install, auto_complete=True) as server:
            # One after the other: beside other tests, loads at once did not end in a minute.
            for name in [name for name in CASES if name not in said]:
                write(server.repository / name, CASES[name][0])
                url = f"http://{server.http_address}/v2/repository/models/{name}/load"
                try:
                    response = httpx.post(url, timeout=120.0)
                except (httpx.RemoteProtocolError, httpx.NetworkError):
                    break
                said[name] = "" if response.status_code == 200 else str(response.json()["error"])
    return said


@pytest.mark.triton
@pytest.mark.parametrize("name", CASES)
def test_the_real_server_says_the_same(answers: dict[str, str], name: str) -> None:
    said = CASES[name][1]
    assert said in answers[name] and bool(said) == bool(answers[name])
