"""The manifest for KubeRay: its fields by a schema of our own, and what the fields must agree on.

The schema names the fields of KubeRay's RayCluster and of Kubernetes' pods that the manifest uses,
with their types, after KubeRay's field reference (release 1.7.1); it is not KubeRay's own schema,
and no cluster was asked.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

FILE = Path(__file__).parents[2] / "deploy" / "raycluster.yaml"
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
# Kubernetes' resource.Quantity, as far as it is used.
QUANTITIES = {
    "type": "object",
    "required": ["cpu", "memory"],
    "additionalProperties": {"type": "string", "pattern": r"^\d+(\.\d+)?(m|[KMGT]i?)?$"},
}


def table(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }


def items(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": schema}


CONTAINER = table(
    {
        "name": NAME,
        "image": {"type": "string"},
        "resources": table({"requests": QUANTITIES, "limits": QUANTITIES}),
    },
    {
        "env": items(table({"name": {"type": "string"}, "value": {"type": "string"}})),
        "volumeMounts": items(table({"name": NAME, "mountPath": {"type": "string"}})),
    },
)
VOLUME = table({"name": NAME, "persistentVolumeClaim": table({"claimName": NAME})})
TEMPLATE = table(
    {"spec": table({"containers": items(CONTAINER)},
                   {"volumes": items(VOLUME), "nodeSelector": TEXTS,
                    "securityContext": table({"fsGroup": {"type": "integer", "minimum": 1}})})}
)  # fmt: skip
GROUP = table(
    {"rayStartParams": TEXTS, "template": TEMPLATE, "groupName": NAME},
    {"labels": TEXTS, **{key: {"type": "integer", "minimum": 0}
                         for key in ("replicas", "minReplicas", "maxReplicas")}},
)  # fmt: skip
SCHEMA = table(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayCluster"},
        "metadata": table({"name": NAME}),
        "spec": table(
            {
                "rayVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
                "headGroupSpec": table({"rayStartParams": TEXTS, "template": TEMPLATE}),
                "workerGroupSpecs": items(GROUP),
            },
            {"authOptions": table({"mode": {"enum": ["token", "disabled"]}})},
        ),
    }
)


@pytest.fixture
def manifest() -> dict[str, Any]:
    found = yaml.safe_load(FILE.read_text())
    assert isinstance(found, dict)
    return found


def test_the_manifest_has_fields_that_kuberay_knows(manifest: dict[str, Any]) -> None:
    jsonschema.validate(manifest, SCHEMA)
    for break_it in (
        lambda own: own["spec"].update(authOption={"mode": "token"}),
        lambda own: own["spec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
        lambda own: own["spec"]["workerGroupSpecs"][0].pop("template"),
    ):
        wrong = copy.deepcopy(manifest)
        break_it(wrong)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


def test_its_parts_agree(manifest: dict[str, Any]) -> None:
    spec = manifest["spec"]
    head, groups = spec["headGroupSpec"], spec["workerGroupSpecs"]
    assert spec["authOptions"]["mode"] == "token"
    assert head["rayStartParams"] == {"num-cpus": "0"}
    pods = [one["template"]["spec"] for one in (head, *groups)]
    # A fresh claim is root's, and none of the pods is.
    assert {pod["securityContext"]["fsGroup"] for pod in pods} == {1000}
    containers = [one["template"]["spec"]["containers"][0] for one in (head, *groups)]
    (image,) = {one["image"] for one in containers}
    assert image.endswith(f":{spec['rayVersion']}")  # Ray wants one version everywhere
    (mounts,) = {str(one["volumeMounts"]) for one in containers}  # one file system for all
    assert "/shared" in mounts
    (cache,) = {one["env"][0]["value"] for one in containers}
    assert cache.startswith("/shared/")
    for group, container in zip(groups, containers[1:], strict=True):
        # The label that the search reads says on what the pod really is.
        wanted = group["labels"]["instance-type"]
        selector = group["template"]["spec"]["nodeSelector"]
        assert selector == {"node.kubernetes.io/instance-type": wanted}
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    names = [group["labels"]["instance-type"] for group in groups]
    assert len(set(names)) == len(names)
    page = (FILE.parents[1] / "docs" / "cluster.md").read_text()
    assert f"--instance-types {','.join(names)}" in page
