"""The steps of an ensemble's configuration, and whether its members fit it and each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType

from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.signature import listed
from analyzer.errors import RepositoryError

Resolve = Callable[[str, int], LoadedModel]
NEWEST = -1  # as a step's version


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A member and how its tensors are called in the ensemble."""

    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]  # (the member's name, the ensemble's)
    outputs: tuple[tuple[str, str], ...]


def steps_of(config: Any) -> tuple[Step, ...]:
    """The steps of an ensemble's configuration, in its order."""
    return tuple(
        Step(
            model=step.model_name,
            version=step.model_version,
            inputs=tuple(sorted(step.input_map.items())),
            outputs=tuple(sorted(step.output_map.items())),
        )
        for step in config.ensemble_scheduling.step
    )


def member_names(config: Any) -> tuple[str, ...]:
    """Names of the models that an ensemble needs; empty for other models."""
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def needed_steps(steps: Sequence[Step], outputs: Iterable[str]) -> list[int]:
    """Numbers of the steps that ``outputs`` come from, directly or through others, ascending."""
    makers = {outer: number for number, step in enumerate(steps) for _, outer in step.outputs}
    needed: set[int] = set()
    tensors = list(outputs)
    while tensors:
        number = makers.get(tensors.pop())
        if number is not None and number not in needed:
            needed.add(number)
            tensors += [outer for _, outer in steps[number].inputs]
    return sorted(needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A tensor as the model that names it first in an ensemble has it."""

    model: str
    datatype: int
    dims: tuple[int, ...]
    shape: tuple[int, ...]  # with the batch axis of a model that batches


def _node(model: str, config: Any, datatype: int, dims: Sequence[int]) -> _Node:
    axis = (-1,) if config.max_batch_size else ()
    return _Node(model=model, datatype=datatype, dims=tuple(dims), shape=(*axis, *dims))


def labels_of_member(config: Any, resolve: Resolve, output: str) -> tuple[str, ...]:
    """Names of the classes of a tensor of an ensemble: those of the member that makes it."""
    for step in steps_of(config):
        for inner, outer in step.outputs:
            if outer == output:
                with contextlib.suppress(Fault):  # it has just been unloaded
                    return resolve(step.model, step.version).labels_of(inner)
    return ()


def validate_ensemble(config: Any, resolve: Resolve) -> None:
    """Checks that the members of an ensemble fit it and each other.

    Texts and order are those of ``ValidateEnsembleConfig`` in Triton's ``ensemble_utils.cc``; that
    its steps can run has been checked with the rest of the configuration.

    Raises:
        RepositoryError: They do not.
        Fault: A member is not loaded.
    """
    nodes: dict[str, _Node] = {}
    for tensor in (*config.input, *config.output):
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        nodes.setdefault(tensor.name, _node(config.name, config, tensor.data_type, dims))
    for step in steps_of(config):
        member = _member(config, step, resolve).config
        limit = member.max_batch_size
        if limit and limit < config.max_batch_size:
            raise RepositoryError(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it "
                f"contains model {step.model} which only allows maximum batch size to be {limit}"
            )
        _check_step(config.name, step, member, nodes)


def _member(config: Any, step: Step, resolve: Resolve) -> LoadedModel:
    try:
        return resolve(step.model, step.version)
    except Fault as fault:
        if step.version == NEWEST:
            raise
        raise RepositoryError(
            f"ensemble '{config.name}' depends on '{step.model}' whose required version "
            f"{step.version} is not loaded.",
            hint="A model_version of -1 is the newest; one that is left out is 0.",
        ) from fault


def _check_step(ensemble: str, step: Step, member: Any, nodes: dict[str, _Node]) -> None:
    """Checks a step against the tensors that are known, and adds those that it names first."""
    where = f"in ensemble {ensemble}, "
    for inner, outer in step.inputs:
        if all(tensor.name != inner for tensor in member.input):
            raise RepositoryError(
                f"{where}ensemble tensor {outer} is mapping to non-existing input {inner} in model "
                f"{step.model}"
            )
    mapped = {inner for inner, _ in step.inputs}
    for tensor in member.input:
        if not tensor.optional and tensor.name not in mapped:
            raise RepositoryError(
                f"{where}input {tensor.name} in model {step.model} is not mapped to any ensemble "
                "tensors"
            )
    for inner, outer in step.outputs:
        if all(tensor.name != inner for tensor in member.output):
            raise RepositoryError(
                f"{where}ensemble tensor {outer} is mapped from non-existing output {inner} in "
                f"model {step.model}"
            )
    for tensors, pairs in ((member.input, step.inputs), (member.output, step.outputs)):
        known = {tensor.name: tensor for tensor in tensors}
        for inner, outer in pairs:
            tensor = known[inner]
            node = _node(step.model, member, tensor.data_type, tensor.dims)
            _check_consistent(
                nodes.setdefault(outer, node), node, f"{where}ensemble tensor {outer}"
            )


def _check_consistent(first: _Node, second: _Node, where: str) -> None:
    """Checks that a tensor can be both; a variable dimension is left to the requests."""
    if first.datatype != second.datatype:
        name = DataType.Name
        raise RepositoryError(
            f"{where}: inconsistent data type: {name(first.datatype)} is inferred from model "
            f"{first.model} while {name(second.datatype)} is inferred from model {second.model}"
        )
    # A model without a batch axis may have that axis in its dimensions.
    if not (fits(first.dims, second.dims) or fits(first.shape, second.shape)):
        raise RepositoryError(
            f"{where}: inconsistent shape: {listed(first.shape)} is inferred from model "
            f"{first.model} while {listed(second.shape)} is inferred from model {second.model}"
        )


def fits(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Whether shapes can be the same, where −1 is any size."""
    return len(first) == len(second) and all(
        one == other or -1 in (one, other) for one, other in zip(first, second, strict=True)
    )
