"""Reads a model that is deployed: its configuration, and what that tells of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analyzer.domain.model import ModelInfo
from analyzer.engine.backends import check_tensors, declared_tensors
from analyzer.engine.warmup import check_warmup
from analyzer.errors import InputError, ModelError
from analyzer.modelconfig.execution import check_accelerators
from analyzer.modelconfig.files import is_own_python_model
from analyzer.modelconfig.render import MODEL_FILENAMES, tuned_backend
from analyzer.modelconfig.repository import load_config
from analyzer.modelconfig.rules import (
    autocomplete_onnx,
    fill_from_repository,
    finish,
    normalize,
    normalize_instance_groups,
    validate_instance_groups,
)
from analyzer.modelconfig.text import CONFIG_NAME
from analyzer.modelconfig.validation import validate
from analyzer.variants.inspect import inspect_model
from analyzer.variants.onnx_file import locate_onnx

Shapes = Mapping[str, tuple[int, ...]]


def inspect_deployed(
    path: Path,
    told: Sequence[Shapes],
    *,
    given: Shapes | None = None,
    name: str | None = None,
    scratch: Path | None = None,
) -> ModelInfo:
    """:func:`~analyzer.variants.inspect.inspect_model` with the shapes that are known elsewhere.

    Args:
        told: Shapes of inputs as a configuration or a manifest has them, the likeliest first; used
            only where the graph and ``given`` leave a dimension open, or where the first ones show
            that the first dimension is no batch.
        given: Shapes by the user; they stand.

    Raises:
        ModelError: As ``inspect_model``, of what is not told: the first try's.
    """
    try:
        written = next(iter(told), None)
        return inspect_model(path, input_shapes=given, written=written, name=name, scratch=scratch)
    except ModelError:
        for shapes in filter(None, told):
            try:
                return inspect_model(
                    path, input_shapes={**shapes, **(given or {})}, name=name, scratch=scratch
                )
            except ModelError:
                continue
        raise


def deployed_config(path: Path) -> Any:
    """The ``ModelConfig`` of the model folder ``path``, completed and checked as a server does it.

    Instance groups are left as they are written: this machine need not have their GPUs.

    Raises:
        ModelError: The folder holds no ONNX file, or code of its own for the python backend; or the
            configuration does not fit the graph.
        RepositoryError: Its backend is none that can be tuned, or Triton refuses the configuration.
    """
    # A link is called by its own name, as in a repository.
    name = path.name if path.name not in ("", "..") else path.resolve().name
    config = load_config(path)
    file = None
    if not config.backend and not config.platform:
        file = locate_onnx(path)
    files = [entry.name for entry in file.parent.iterdir()] if file is not None else []
    fill_from_repository(config, directory_name=name, version_files=files)
    config.backend = tuned_backend(config)
    normalize(config)
    validate(config, directory_name=name)
    file = file or locate_onnx(path)
    if config.backend == "python":
        _require_own(file.parent / MODEL_FILENAMES["python"])
    _check_instances(config)
    if config.backend == "onnxruntime":
        inputs, outputs = declared_tensors(file)
        autocomplete_onnx(config, inputs, outputs)
        finish(config, directory_name=name)
        _require_no_sequences(config, path)
        try:
            check_tensors(config, inputs, outputs)
        except InputError as error:
            raise ModelError(
                f"{path / CONFIG_NAME}: {error.message}",
                hint="Correct its inputs and outputs, or leave them out: the graph tells them.",
            ) from error
    check_warmup(config, path)
    return config


def _check_instances(config: Any) -> None:
    """Refuses instances that Triton creates on no machine.

    Raises:
        RepositoryError: GPUs of instances on a CPU, a profile outside TensorRT, or an accelerator
            that ONNX Runtime's backend does not know.
    """
    resolved: Any = type(config)()
    resolved.CopyFrom(config)
    groups = config.instance_group
    # This machine need not have them.
    gpus = {gpu for group in groups for gpu in group.gpus}
    if any(group.kind == group.KIND_GPU for group in groups):
        gpus.add(0)
    normalize_instance_groups(resolved, gpus=sorted(gpus))
    validate_instance_groups(resolved, gpus=sorted(gpus))
    if config.backend == "onnxruntime":
        for group in resolved.instance_group:
            check_accelerators(config, "gpu" if group.kind == group.KIND_GPU else "cpu")


def _require_no_sequences(config: Any, path: Path) -> None:
    """Raises ModelError where a sequence batcher gives the model some of its inputs."""
    batcher = config.sequence_batching
    given = [control.name for control in batcher.control_input]
    given += [state.input_name for state in batcher.state]
    if given:
        raise ModelError(
            f"{path / CONFIG_NAME}: the sequence batcher gives the model "
            f"{', '.join(map(repr, given))}, and sequences are not measured here.",
            hint="Give the ONNX file itself to search it without sequences.",
        )


def _require_own(file: Path) -> None:
    """Raises ModelError where ``file`` is code that this program did not write."""
    if file.is_file() and is_own_python_model(file.read_text(encoding="utf-8", errors="replace")):
        return
    raise ModelError(
        f"{file.parent.parent} is served by code of its own ({file.name} of Triton's python "
        "backend), which would not be measured.",
        hint="If the ONNX file alone is to be served, give that file itself; the service around "
        "the model can be measured with `analyze measure http://HOST:PORT --model NAME`.",
    )
