"""The image's parts: versions that fit each other, the health check, the compose file."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SCHEMA = ROOT / ".tools" / "compose" / "compose_spec.json"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docker" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


constraints = load("constraints")
health = load("health")


@pytest.fixture
def image(tmp_path: Path) -> Callable[..., Path]:
    """The root of a Triton image, with TensorRT's library of some versions."""

    def make(*versions: str) -> Path:
        folder = tmp_path / "usr" / "lib" / "x86_64-linux-gnu"
        folder.mkdir(parents=True, exist_ok=True)
        for version in versions:
            (folder / f"libnvinfer.so.{version}").touch()
            (folder / f"libnvinfer.so.{version.split('.')[0]}").touch()
        return tmp_path

    return make


def test_the_image_the_table_and_the_extra_have_one_cuda() -> None:
    """The release of the Dockerfile is in the table, and its CUDA is the extra's."""
    release = re.search(r"^ARG TRITON_RELEASE=(\S+)$", DOCKERFILE, flags=re.M)
    assert release is not None
    known = constraints.releases()
    assert known[release[1]].split(".")[0] == constraints.cuda_of_extra() == "13"
    compose = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"TRITON_RELEASE:-([\d.]+)", compose)) == {release[1]}
    # All three stages are of that release; nothing else is built on.
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.M)
    assert bases == ["nvcr.io/nvidia/tritonserver:${TRITON_RELEASE}-py3", "triton", "triton"]


def test_every_row_of_the_table_names_where_it_was_read() -> None:
    lines = constraints.TABLE.read_text(encoding="utf-8").splitlines()[1:]
    for line in lines:
        release, cuda, source = line.split(",")
        assert re.fullmatch(r"\d\d\.\d\d", release) and re.fullmatch(r"[\d.]+", cuda)
        assert source.endswith(f"rel-{release.replace('.', '-')}.html")


def test_tensorrt_is_the_images_own(image: Callable[..., Path]) -> None:
    root = image("10.16.1")
    assert constraints.constraints("26.09", root, "13.4.1.009") == "tensorrt==10.16.1.*\n"
    command = [sys.executable, ROOT / "docker" / "constraints.py", "26.09", "--root", root]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "tensorrt==10.16.1.*\n"


@pytest.mark.parametrize(
    ("release", "versions", "cuda", "said"),
    [
        ("25.01", ("10.8.0",), None, "has no release 25.01; it has 26.02"),
        ("26.09", (), None, "The image has no version of TensorRT"),
        ("26.09", ("10.16.1", "11.4.0"), None, r"\['10.16.1', '11.4.0'\] version of TensorRT"),
        ("26.09", ("10.16.1",), "12.9.1", "has CUDA 12.9.1, and the extra gpu is for CUDA 13"),
    ],
)
def test_what_does_not_fit_ends_the_build(
    image: Callable[..., Path], release: str, versions: tuple[str, ...], cuda: str | None, said: str
) -> None:
    with pytest.raises(constraints.ConstraintError, match=said):
        constraints.constraints(release, image(*versions), cuda)


def test_an_extra_for_two_cudas_is_told(tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    mixed = tmp_path / "pyproject.toml"
    mixed.write_text(text.replace("onnxruntime-gpu[cuda,cudnn]>=1.27", "onnxruntime-gpu>=1.20"))
    with pytest.raises(constraints.ConstraintError, match="is not built for CUDA 13"):
        constraints.cuda_of_extra(mixed)


def test_the_image_runs_as_nobody_and_is_checked() -> None:
    last = DOCKERFILE.split("FROM triton\n")[-1]
    assert last.index("USER 10001") < last.index("ENTRYPOINT")
    assert "HEALTHCHECK" in last and "/opt/tritune/health.py" in last
    assert "cp docker/health.py /opt/tritune/health.py" in DOCKERFILE


def extras(dockerfile: str) -> set[str]:
    found = re.search(r"pip install .*'\.\[([\w,]+)\]'", dockerfile)
    assert found is not None
    return set(found[1].split(","))


def test_a_worker_with_a_gpu_has_what_one_without_has() -> None:
    """Both images run workers of the service; only the runtime differs."""
    service = (ROOT / "deploy" / "service" / "Dockerfile").read_text(encoding="utf-8")
    assert extras(DOCKERFILE) - {"gpu"} == extras(service) - {"cpu"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extras(DOCKERFILE) | extras(service) <= set(project["optional-dependencies"])


def volumes(document: dict[str, Any]) -> set[tuple[str, str]]:
    """The Dockerfile of each service's image, and where a named volume is mounted in it."""
    return {
        (service["build"].get("dockerfile", "Dockerfile"), volume.split(":")[1])
        for service in document["services"].values()
        if "build" in service
        for volume in service.get("volumes", ())
        if volume.split(":")[0] in document["volumes"]
    }


@pytest.mark.parametrize("folder", ["docker", "deploy/service"])
def test_a_volume_is_mounted_where_the_image_has_a_folder_of_its_user(folder: str) -> None:
    """Elsewhere it would be root's, and could not be written."""
    document = yaml.safe_load((ROOT / folder / "compose.yaml").read_text(encoding="utf-8"))
    found = volumes(document)
    assert found
    for name, path in found:
        made = re.search(r"install --directory --owner=10001 .*", (ROOT / name).read_text("utf-8"))
        assert made is not None and path in made[0].split(), (name, path)


class _Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ready = self.path == "/v2/health/ready" and self.server.ready  # type: ignore[attr-defined]
        self.send_response(200 if ready else 503)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), _Ready) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_the_health_of_a_server_is_its_readiness(server: HTTPServer) -> None:
    words = ["analyze", "serve", "/models", "--http-port", str(server.server_port)]
    for ready in (True, False):
        server.ready = ready  # type: ignore[attr-defined]
        assert health.healthy(words) is ready
    assert health.address(["serve", "--http-port=9"]) == "http://127.0.0.1:9/v2/health/ready"
    assert not health.healthy(["analyze", "serve", "/models", "--http-port=1"])
    assert health.healthy(["analyze", "search", "model.onnx"])


@pytest.mark.parametrize(
    ("words", "port"),
    [
        (["/usr/bin/python3", "/opt/tritune/bin/analyze", "serve", "/m", ""], "8000"),
        (["python", "-m", "analyzer", "serve", "/m", "--http-port", "9", ""], "9"),
        (["analyze", "serve", "/m", "--http-port", "9", "--http-port=10"], "10"),
        (["analyze", "search", "serve"], None),
        (["analyze", "report", "serve", "--http-port", "1"], None),
        (["analyze", "serve", "/m", "--http-port", "0"], None),
        (["analyze", "serve", "/m", "--http-port"], None),
        (["analyze"], None),
    ],
)
def test_the_command_and_its_port_are_read_as_the_program_reads_them(
    words: list[str], port: str | None
) -> None:
    found = health.address(words)
    assert found == (f"http://127.0.0.1:{port}/v2/health/ready" if port else None)
    assert found is not None or health.healthy(words)


def test_what_the_search_exports_is_what_is_served() -> None:
    document = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    search, serve = document["services"]["search"], document["services"]["serve"]
    assert f"--export={serve['command'][1]}" in search["command"]
    (mounted,) = serve["volumes"]
    assert mounted.removesuffix(":ro") in search["volumes"]


def test_the_compose_file_reserves_a_gpu_and_calls_commands_that_are_there() -> None:
    from analyzer.cli.main import cli

    document = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    for name, service in document["services"].items():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]
        command = cli.get_command(click.Context(cli), service["command"][0])
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        used = {word.partition("=")[0] for word in service["command"] if word.startswith("--")}
        assert used <= known, name


def test_the_compose_file_keeps_to_the_specification() -> None:
    if not SCHEMA.is_file():
        pytest.skip(f"the Compose specification's schema is not at {SCHEMA} (make tools)")
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    document = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    validator.validate(document)
    document["services"]["serve"]["deploy"]["resources"]["reservations"]["devices"][0] = {"gpu": 1}
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(document)
