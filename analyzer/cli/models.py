"""Which model is meant, and what it and its folder tell."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.buckets.location import Location
from analyzer.cli.options import cache_dir
from analyzer.domain.configuration import Configuration, DeviceKind
from analyzer.domain.model import ModelInfo
from analyzer.errors import ModelError, TargetError

if TYPE_CHECKING:
    from analyzer.variants.inputs import CalibrationData


def find_model(folder: Path) -> Path:
    """The one model of ``folder``: in its ``model_repository``, else its one ``.onnx`` file.

    Raises:
        ModelError: There is none, or more than one; the message lists what was found.
    """
    repository = folder / "model_repository"
    if repository.is_dir():
        models = sorted(
            path for path in repository.iterdir() if path.is_dir() and any(path.glob("*/*.onnx"))
        )
        if len(models) == 1:
            return models[0]
        if len(models) > 1:
            raise _several(models, "model_repository holds")
    files = sorted(folder.glob("*.onnx"))
    if len(files) == 1:
        return files[0]
    if len(files) > 1:
        raise _several(files, "The working folder holds")
    found = _names(sorted(folder.iterdir())) or "nothing"
    raise ModelError(
        "No MODEL was given, and there is neither a model in ./model_repository nor an .onnx file "
        f"in the working folder (found: {found}).",
        hint="Name the model: analyze model.onnx --latency-budget 50ms.",
    )


def _several(paths: list[Path], where: str) -> ModelError:
    return ModelError(
        f"{where} {len(paths)} models: {_names(paths)}.",
        hint=f"Name the one that is meant, for instance: analyze {shlex.quote(str(paths[0]))} "
        "--latency-budget 50ms.",
    )


def _names(paths: list[Path]) -> str:
    """The first ten names, and ``…`` where there are more."""
    return ", ".join([*(path.name for path in paths[:10]), *(["…"] if len(paths) > 10 else [])])


def local_model(place: Path | Location) -> Path:
    """The path of a model on this machine; one in an object store is fetched.

    Raises:
        ModelError: It cannot be fetched.
    """
    if isinstance(place, Path):
        return place
    from analyzer.variants.fetch import fetch_model

    return fetch_model(place, cache_dir())


def inspect_path(
    path: Path, input_shapes: dict[str, tuple[int, ...]], device: DeviceKind = "cpu"
) -> tuple[ModelInfo, Configuration | None]:
    """The model, and the configuration that a model directory's own ``config.pbtxt`` gives.

    What that leaves out is completed as ``analyze serve`` does it. Of the outputs only those count
    that it declares, and a model that cannot be batched gets no batches.

    Args:
        device: Where Triton's automatic configuration puts models: there is where instances without
            a kind are.

    Raises:
        AnalyzerError: The model cannot be used, or a server refuses its configuration.
    """
    from analyzer.variants.inspect import inspect_model

    scratch = cache_dir() / "models"
    config = path / "config.pbtxt"
    if not (path.is_dir() and config.is_file()):
        return inspect_model(path, input_shapes=input_shapes, scratch=scratch), None
    from analyzer.modelconfig.render import input_shapes as shapes_in
    from analyzer.modelconfig.text import read_config
    from analyzer.modelconfig.unexpressed import unexpressed_settings
    from analyzer.variants.declared_outputs import with_outputs
    from analyzer.variants.deployed import deployed_config, inspect_deployed
    from analyzer.variants.onnx_file import default_name, locate_onnx

    completed = deployed_config(path)
    written = read_config(config)
    file = locate_onnx(path)
    outputs = [tensor.name for tensor in completed.output]
    served = with_outputs(file, outputs, scratch)
    model = inspect_deployed(
        served, shapes_in(written), given=input_shapes, name=default_name(path), scratch=scratch
    )
    notes = []
    if served != file:
        shown = ", ".join(map(repr, outputs))
        notes.append(f"Only the outputs that {config.name} declares are served: {shown}.")
    if ignored := unexpressed_settings(written):
        notes.append(
            f"What is measured and exported leaves out settings of {config.name}: "
            f"{', '.join(ignored)}."
        )
    configuration = _as_served(_configuration(completed, device), model)
    if configuration.precision != "fp32":
        notes.append(
            f"{config.name} says that the file is {configuration.precision} already: in a search"
            " the precision fp32 means this file, and accuracies are told against its answers."
        )
    return replace(model, notes=(*model.notes, *notes)), configuration


def baseline_on(
    path: Path, model: ModelInfo, baseline: Configuration | None, device: DeviceKind
) -> Configuration | None:
    """``baseline``, a folder's own configuration found for a CPU, as it is on ``device``.

    Args:
        path: The folder; not looked at where there is no ``baseline``.
        model: What is known of it by now.
    """
    from analyzer.variants.deployed import deployed_config

    if baseline is None or device == "cpu":
        return baseline
    return _as_served(_configuration(deployed_config(path), device), model)


def as_it_is(configuration: Configuration) -> Configuration:
    """A folder's own ``configuration`` as a baseline: its file is the model, called fp32.

    The precision that an export wrote there is of the model that the file was made from; made again
    from the file it would be another one.
    """
    return replace(configuration, precision="fp32", quantization=None).canonical()


def _configuration(completed: Any, device: DeviceKind) -> Configuration:
    """What ``completed`` deploys where instances without a kind are on ``device``."""
    from analyzer.modelconfig.render import configuration_from_config

    listed = {gpu for group in completed.instance_group for gpu in group.gpus}
    gpus = sorted(listed | {0}) if device == "gpu" else ()
    return configuration_from_config(completed, gpus=tuple(gpus))


def as_it_runs(
    model: ModelInfo,
    configuration: Configuration | None,
    data: CalibrationData | None,
    seconds_max: float = math.inf,
) -> tuple[ModelInfo, Configuration | None, float]:
    """The model after it has run on a few rows of the data that it is measured with.

    Also ``configuration``, a folder's own, as such a model is served, and the seconds that one
    inference took.

    Args:
        data: Real inputs; rows are made up without.
        seconds_max: That this may take.

    Raises:
        ModelError: It does not run, or not to its end in time.
        TargetMemoryError: It runs out of memory.
    """
    from analyzer.variants.first_axis import needs_rows
    from analyzer.variants.try_model import rows_to_try, try_model

    rows = rows_to_try(model, data.inputs if data is not None else None)
    try:
        ran, inference_s = try_model(model, rows, seconds_max, made_up=data is None)
    except ModelError as error:
        # What did not end in time is not tried again.
        failed = isinstance(error.__cause__, TargetError)
        if failed and (asked := needs_rows(model, rows)) is not None:
            raise asked from error
        raise
    return ran, None if configuration is None else _as_served(configuration, ran), inference_s


def _as_served(configuration: Configuration, model: ModelInfo) -> Configuration:
    """``configuration``, without batches where ``model`` cannot be batched."""
    if model.batchable:
        return configuration
    unbatched = replace(
        configuration,
        max_batch_size=0,
        dynamic_batching=False,
        preferred_batch_size=None,
        max_queue_delay_us=None,
    )
    return unbatched.canonical()
