"""Which machines of a Ray cluster are of which instance type, by their labels or accelerators.

Ray's node labels: ``ray start --labels`` on plain machines, ``labels`` of a group in KubeRay (Ray's
documentation, "Use labels to control scheduling"). Ray tells the model of a node's GPUs by itself,
as the label ``ray.io/accelerator-type`` and the resource ``accelerator_type:NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from analyzer.cluster.ray_lease import find_devices
from analyzer.domain.configuration import DeviceKind
from analyzer.errors import UsageError

# What an operator sets; the second is Kubernetes' own label of its machines; the third is Ray's
# name of the group that a node was started in.
LABELS = ("instance-type", "node.kubernetes.io/instance-type", "ray.io/node-group")
_ACCELERATOR_LABEL = "ray.io/accelerator-type"
_ACCELERATOR_RESOURCE = "accelerator_type:"


def nodes_by_type(
    nodes: Sequence[dict[str, Any]], types: Mapping[str, str]
) -> dict[str, frozenset[str]]:
    """Ray's names of the machines of each type.

    A machine is of the type that its label names. One without such a label is of the type whose
    device it has, where one of the types alone has that.

    Args:
        nodes: As of ``ray.nodes()``; those that are gone do not count.
        types: The instance types with the device that each has (``NVIDIA T4``; empty if unknown).

    Raises:
        UsageError: A type has no machine, or unlabelled machines could be of several types.
    """
    found: dict[str, set[str]] = {name: set() for name in types}
    alive = [node for node in nodes if node["Alive"]]
    for node in alive:
        named = {node.get("Labels", {}).get(label) for label in LABELS} - {None}
        if own := [name for name in types if name in named]:
            found[own[0]].add(node["NodeID"])
            continue
        if any(node.get("Labels", {}).get(label) for label in LABELS[:2]):
            continue  # it says that it is of another type
        has = _accelerators(node)
        fitting = [name for name, device in types.items() if has & _words(device)]
        if len(fitting) > 1:
            raise UsageError(
                f"The machine {node['NodeManagerAddress']} has a {', '.join(sorted(has))}, as "
                f"{' and '.join(fitting)} have.",
                hint=f"Say which it is: ray start --labels {LABELS[0]}={fitting[0]}.",
            )
        if fitting:
            found[fitting[0]].add(node["NodeID"])
    for name, own_nodes in found.items():
        if not own_nodes:
            labels = sorted({str(v) for n in alive for k, v in _labels(n) if k in LABELS[:2]})
            raise UsageError(
                f"--instance-types: no machine of the cluster is a {name}"
                + (f"; there are {', '.join(labels)}." if labels else "; none is labelled."),
                hint=f"Start its machines with ray start --labels {LABELS[0]}={name}, or in "
                f"KubeRay with the label {LABELS[0]}: {name} of their group.",
            )
    return {name: frozenset(ids) for name, ids in found.items()}


def kinds_of(nodes: Sequence[dict[str, Any]], device: DeviceKind) -> list[str]:
    """What tells the machines with such devices apart, a phrase each: ``4 cores, a10g``.

    Args:
        nodes: As of ``ray.nodes()``.
    """
    by_id = {node["NodeID"]: node for node in nodes}
    found = {
        ", ".join((f"{own.cores} cores", *sorted(_accelerators(by_id[own.node_id]))))
        for own in find_devices(nodes, device)
    }
    return sorted(found)


def _labels(node: dict[str, Any]) -> list[tuple[str, Any]]:
    return list(node.get("Labels", {}).items())


def _accelerators(node: dict[str, Any]) -> set[str]:
    """The models of a machine's GPUs as Ray spells them, in lower case: ``t4``, ``a10g``."""
    found = {
        name.removeprefix(_ACCELERATOR_RESOURCE)
        for name in node["Resources"]
        if name.startswith(_ACCELERATOR_RESOURCE)
    }
    found.add(str(node.get("Labels", {}).get(_ACCELERATOR_LABEL, "")))
    return {name.lower() for name in found if name}


def _words(device: str) -> set[str]:
    """How Ray may spell a device: each word of ``NVIDIA A10G``, and the words joined by hyphens.

    Ray makes its name of the word after the brand and a memory that follows
    (``ray/_private/accelerators/nvidia_gpu.py``).
    """
    words = re.split(r"[\s-]+", device.lower())
    own = [word for word in words if word not in ("", "nvidia", "tesla", "cpu")]
    return {*own, "-".join(own)} - {""}
