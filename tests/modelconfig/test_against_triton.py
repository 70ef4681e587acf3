"""Our defaults and checks of a configuration against the real server's, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from analyzer.errors import AnalyzerError, RepositoryError
from analyzer.modelconfig.rules import finish, prepare, select_versions
from analyzer.modelconfig.text import ModelConfig, config_to_json, parse_config
from analyzer.targets.http_endpoint import HttpEndpoint
from analyzer.targets.triton_install import TritonInstall
from analyzer.targets.triton_server import TritonServer

MODEL = b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
PYTHON = 'backend: "python" '
IO = (
    'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } '
    'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } '
)
BOTH = PYTHON + IO
CONFIGURATIONS = [
    PYTHON,
    BOTH,
    BOTH + "max_batch_size: 8 dynamic_batching {}",
    BOTH + "dynamic_batching {}",
    BOTH + "max_batch_size: 8 instance_group { count: 2 }"
    ' instance_group { name: "g" kind: KIND_CPU count: 3 }'
    ' parameters { key: "a" value { string_value: "b" } } response_cache {}',
    BOTH + "max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 1"
    " priority_queue_policy { key: 2 value { max_queue_size: 3 } }"
    " default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 100 } }",
    BOTH + "version_policy { all {} }",
    BOTH + "version_policy { latest {} }",
    BOTH + "version_policy { specific { versions: [1, 2] } }",
    BOTH + "version_policy { specific { versions: 2 } }",
    BOTH + "max_batch_size: 2 sequence_batching { oldest {} }",
    BOTH + "max_batch_size: 2 sequence_batching { direct { minimum_slot_utilization: 0.5 } }",
    BOTH + "sequence_batching { direct { minimum_slot_utilization: 1.5 } }",
    BOTH + 'name: "other"',
    BOTH + 'platform: "unheard_of"',
    BOTH + 'platform: "tensorrt_plan"',
    BOTH + "max_batch_size: -1",
    BOTH + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }",
    BOTH + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 5 }",
    BOTH + "dynamic_batching { priority_levels: 2 }",
    BOTH + "dynamic_batching { priority_levels: 2 default_priority_level: 1"
    " priority_queue_policy { key: 3 value {} } }",
    BOTH + "dynamic_batching { preserve_ordering: true priority_levels: 2"
    " default_priority_level: 1 }",
    BOTH + "dynamic_batching { preserve_ordering: true default_queue_policy"
    " { timeout_action: DELAY default_timeout_microseconds: 5 } }",
    BOTH + "response_cache { enable: true } sequence_batching {}",
    BOTH + "response_cache { enable: true }",
    BOTH + "ensemble_scheduling {}",
    IO + 'platform: "ensemble"',
    PYTHON + IO.replace('name: "x" ', ""),
    PYTHON + IO.replace("data_type: TYPE_FP32 ", ""),
    PYTHON + IO.replace("dims: [ 4 ]", ""),
    PYTHON + IO.replace("[ 4 ]", "[ 0 ]"),
    PYTHON + IO.replace("[ 4 ]", "[ -2 ]"),
    PYTHON + IO.replace("[ 4 ]", "[ -1 ]"),
    PYTHON + IO.replace("[ 4 ] }", "[ 4 ] reshape { shape: [ 2, 3 ] } }"),
    PYTHON + IO.replace("[ 4 ] }", "[ 1 ] reshape { } }"),
    PYTHON + "max_batch_size: 2 " + IO.replace("[ 4 ] }", "[ 1 ] reshape { } }"),
    PYTHON + IO.replace("[ 4 ] }", "[ 4, -1, 6 ] reshape { shape: [2, 2, -1, 3, 2] } }"),
    PYTHON + IO.replace("[ 4 ] }", "[ 4 ] format: FORMAT_NCHW }", 1),
    PYTHON + IO.replace("[ 4 ] }", "[ 4 ] is_shape_tensor: true }"),
    BOTH + "instance_group { kind: KIND_CPU gpus: 0 }",
    BOTH + 'instance_group { kind: KIND_CPU profile: "0" }',
    BOTH + "instance_group { kind: KIND_MODEL }",
    BOTH + "instance_group { kind: KIND_CPU count: -3 }",
]


# A model of the python backend takes the real server a second to load and one to unload.
AT_ONCE = 4


@pytest.fixture(scope="module")
def answers(triton_install: TritonInstall) -> Iterator[dict[str, dict[str, Any] | str]]:
    """What the real server makes of each configuration, by its text; an error's message."""
    with TritonServer(triton_install, auto_complete=True) as server:

        def answer(text: str) -> dict[str, Any] | str:
            endpoint = HttpEndpoint("127.0.0.1", server.http_port)
            try:
                return theirs(endpoint, parse_config(text), name_of(text))
            finally:
                endpoint.close()

        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield dict(zip(CONFIGURATIONS, pool.map(answer, CONFIGURATIONS), strict=True))


def name_of(text: str) -> str:
    return f"m{CONFIGURATIONS.index(text)}"


def ours(written: Any, name: str) -> dict[str, Any] | str:
    proto = ModelConfig()
    proto.CopyFrom(written)
    try:
        prepare(proto, directory_name=name, version_files=("model.py",))
        finish(proto, directory_name=name)
        select_versions(proto, [1])
    except RepositoryError as error:
        return error.message
    return config_to_json(proto)


def theirs(endpoint: HttpEndpoint, written: Any, name: str) -> dict[str, Any] | str:
    try:
        endpoint.load(name, written, {"1/model.py": MODEL})
        answered: dict[str, Any] = endpoint.config_json(name)
    except AnalyzerError as error:
        return error.message
    endpoint.unload(name)
    return answered


@pytest.mark.triton
@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_the_real_server_agrees(answers: dict[str, dict[str, Any] | str], text: str) -> None:
    expected, answered = ours(parse_config(text), name_of(text)), answers[text]
    if isinstance(expected, str):
        assert isinstance(answered, str), f"we refuse: {expected}"
        # The server tells its reason where the backend had begun to load.
        if "UNAVAILABLE state" in answered and "profile" not in expected:
            assert expected.removeprefix("model ") in answered
        return
    assert answered == expected
