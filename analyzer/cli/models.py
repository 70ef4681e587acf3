"""Which model is meant, and what it and its folder tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analyzer.buckets.location import Location
from analyzer.cli.options import cache_dir
from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo
from analyzer.errors import ModelError


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
        hint=f"Name the one that is meant, for instance: analyze {paths[0]}.",
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
    path: Path, input_shapes: dict[str, tuple[int, ...]]
) -> tuple[ModelInfo, Configuration | None]:
    """The model, and the configuration that a model directory's own ``config.pbtxt`` gives.

    What that leaves out is completed as ``analyze serve`` does it.

    Raises:
        AnalyzerError: The model cannot be used, or a server refuses its configuration.
    """
    from analyzer.variants.inspect import inspect_model

    scratch = cache_dir() / "models"
    config = path / "config.pbtxt"
    if not (path.is_dir() and config.is_file()):
        return inspect_model(path, input_shapes=input_shapes, scratch=scratch), None
    from analyzer.modelconfig.render import configuration_from_config
    from analyzer.modelconfig.render import input_shapes as shapes_in
    from analyzer.modelconfig.text import read_config
    from analyzer.modelconfig.unexpressed import unexpressed_settings
    from analyzer.variants.deployed import deployed_config, inspect_deployed

    completed = deployed_config(path)
    written = read_config(config)
    model = inspect_deployed(path, shapes_in(written), given=input_shapes, scratch=scratch)
    if ignored := unexpressed_settings(written):
        note = (
            f"What is measured and exported leaves out settings of {config.name}: "
            f"{', '.join(ignored)}."
        )
        model = replace(model, notes=(*model.notes, note))
    return model, configuration_from_config(completed)
