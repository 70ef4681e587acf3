"""perf_analyzer's report, and the real program against the real server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from analyzer import resources
from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.errors import MissingPartError, TargetError
from analyzer.load import perf_analyzer
from analyzer.load.perf_analyzer import (
    PerfAnalyzerInstall,
    find_perf_analyzer,
    parse_report,
    require_perf_analyzer,
    run_perf_analyzer,
)
from analyzer.modelconfig.files import ModelFiles
from analyzer.targets.endpoint_target import local_target
from analyzer.targets.triton_install import find_triton
from analyzer.targets.triton_server import TritonServer

REPORT = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,"
    "Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,"
    "p50 latency,p90 latency,p95 latency,p99 latency\n"
    "4,200.5,16,1341,1616,25,16072,479,1,16140,35327,46095,64072\n"
)
CONFIG = (
    'backend: "python" max_batch_size: 8 dynamic_batching {} '
    'input { name: "x" data_type: TYPE_INT32 dims: 2 } '
    'output { name: "y" data_type: TYPE_INT32 dims: 2 }'
)
MODEL = b"""
import numpy as np, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.002)
        inputs = [pb_utils.get_input_tensor_by_name(r, "x").to_dlpack() for r in requests]
        outputs = [pb_utils.Tensor.from_dlpack("y", capsule) for capsule in inputs]
        return [pb_utils.InferenceResponse([output]) for output in outputs]
"""


def test_a_report_is_read_in_milliseconds() -> None:
    result = parse_report(REPORT)
    assert (result.concurrency, result.request_rate_rps) == (4, None)
    assert result.throughput_ips == pytest.approx(200.5)
    assert (result.latency_ms_p50, result.latency_ms_p99) == (16.14, 64.072)
    assert (result.queue_ms, result.compute_infer_ms) == (1.616, 16.072)
    assert result.latency_ms_mean == pytest.approx(19.55)


def test_a_report_without_statistics_or_rows() -> None:
    header, row, _ = REPORT.split("\n")
    keep = [0, 1, 9, 10, 11, 12]
    short = "\n".join(",".join(line.split(",")[i] for i in keep) for line in (header, row))
    result = parse_report(short.replace("Concurrency", "Request Rate"))
    assert (result.request_rate_rps, result.queue_ms, result.latency_ms_mean) == (4.0, None, None)
    with pytest.raises(TargetError, match="no row"):
        parse_report(header)
    with pytest.raises(TargetError, match="p99 latency"):
        parse_report(short.replace("p99 latency", "p98 latency"))


@pytest.mark.parametrize(
    ("address", "told"),
    [("grpc://[::1]:8001", "[::1]:8001"), ("http://127.0.0.1:8000", "127.0.0.1:8000")],
)
def test_an_ipv6_host_is_handed_over_in_brackets(tmp_path: Path, address: str, told: str) -> None:
    """``::1:8001`` is another host, without a port."""
    program = tmp_path / "perf_analyzer"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "given = dict(zip(sys.argv, sys.argv[1:]))\n"
        f"open({str(tmp_path / 'told')!r}, 'w').write(given['-u'])\n"
        f"open(given['-f'], 'w').write({REPORT!r})\n"
    )
    program.chmod(0o755)
    install = PerfAnalyzerInstall(executable=program, libraries=None, source="test")
    inputs = {"x": np.zeros((2, 3), np.float32)}
    run_perf_analyzer(install, address, "m", inputs, batchable=True, concurrency=1)
    assert (tmp_path / "told").read_text() == told


def test_windows_agree_within_a_tenth() -> None:
    def windows(*throughput: float) -> str:
        return "".join(
            f"  Pass [{i}] throughput: {t} infer/sec. Avg latency: 100 usec (std 3 usec).\n"
            for i, t in enumerate(throughput)
        )

    assert perf_analyzer._agree(windows(100, 105, 109))
    assert not perf_analyzer._agree(windows(100, 105, 111))
    assert not perf_analyzer._agree(windows(100, 105))


def test_a_machine_without_it_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(resources, "PACKAGE_ROOT", tmp_path)
    with pytest.raises(MissingPartError) as caught:
        require_perf_analyzer()
    assert "make tools" in caught.value.hint


@pytest.mark.triton
@pytest.mark.timing
def test_the_real_program_measures_the_real_server() -> None:
    install, program = find_triton(), find_perf_analyzer()
    if install is None or program is None or "python" not in install.backends:
        pytest.skip("there is no Triton or no perf_analyzer here (make tools fetches both)")
    model = ModelInfo(
        name="m",
        path=os.devnull,
        sha256="0" * 64,
        batchable=True,
        inputs=(TensorSpec(name="x", datatype="INT32", shape=(2,)),),
        outputs=(TensorSpec(name="y", datatype="INT32", shape=(2,)),),
    )
    files = ModelFiles(
        name="m",
        config_text=CONFIG,
        configuration=Configuration(backend="python", max_batch_size=8),
        version_files={"model.py": MODEL},
    )
    inputs = {"x": np.arange(8, dtype=np.int32).reshape(4, 2)}
    with TritonServer(install) as server, local_target(server, files, inputs, model=model):
        closed = run_perf_analyzer(
            program,
            f"grpc://{server.grpc_address}",
            "m",
            inputs,
            batchable=True,
            concurrency=2,
            duration_s=1.5,
        )
        opened = run_perf_analyzer(
            program,
            f"http://{server.http_address}",
            "m",
            inputs,
            batchable=True,
            rate_rps=50.0,
            request_batch_size=2,
            duration_s=1.5,
        )
        with pytest.raises(TargetError, match="absent"):
            run_perf_analyzer(
                program,
                f"http://{server.http_address}",
                "absent",
                inputs,
                batchable=True,
                concurrency=1,
                duration_s=1.5,
            )
    assert closed.concurrency == 2
    assert closed.compute_infer_ms is not None
    assert closed.compute_infer_ms >= 2.0
    assert closed.latency_ms_p99 >= closed.latency_ms_p50 >= 2.0
    assert opened.request_rate_rps == 50.0
    assert opened.throughput_ips > 10
