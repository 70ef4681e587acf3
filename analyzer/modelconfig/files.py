"""The files of one model version as Triton wants them, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from analyzer import __version__
from analyzer.domain.configuration import Backend, Configuration
from analyzer.domain.model import ModelInfo
from analyzer.errors import RepositoryError
from analyzer.modelconfig.render import (
    MODEL_FILENAMES,
    configuration_from_config,
    render_config,
    served_configuration,
    template_environment,
)
from analyzer.modelconfig.repository import check_model_name, version_number
from analyzer.modelconfig.rules import normalize
from analyzer.modelconfig.text import CONFIG_NAME, read_config
from analyzer.modelconfig.weights import external_pieces

ONNX_FILENAME = "model.onnx"
_ENGINE_SUFFIXES = (".plan", ".engine", ".trt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model ready to be written to a repository or sent to a server.

    Args:
        name: The model's name.
        config_text: Contents of its ``config.pbtxt``.
        configuration: What ``config_text`` says, canonical, on the backend that serves it; the
            instance type is not told there.
        version_files: Contents of a version's folder by name: a path to copy or the bytes.
        other_files: What else lies in the model's folder and the server may read, by name: labels,
            data of warm-ups.
    """

    name: str
    config_text: str
    configuration: Configuration
    version_files: Mapping[str, Path | bytes]
    other_files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes of the version's files."""
        return sum(
            len(content) if isinstance(content, bytes) else content.stat().st_size
            for content in self.version_files.values()
        )


def model_files(
    model: ModelInfo,
    variant_file: Path,
    configuration: Configuration,
    *,
    backend: Backend | None = None,
    name: str | None = None,
    warmup: bool = True,
) -> ModelFiles:
    """The files that serve ``variant_file`` as ``configuration`` says.

    Args:
        model: Its tensors.
        variant_file: The ONNX graph, or the engine for TensorRT.
        configuration: How it is served.
        backend: The backend that serves it, if not the configuration's; ``python`` runs ONNX
            Runtime in a ``model.py``.
        name: The name under which it is served; the model's by default.
        warmup: Whether instances warm up before they are ready.

    Raises:
        RepositoryError: The name is none, the file is not there or not what the backend runs, or
            Triton cannot serve the model like this.
    """
    served = served_configuration(configuration, backend)
    served_as = check_model_name(name or model.name)
    if not variant_file.is_file():
        raise RepositoryError(
            f"The model file {variant_file} is not there.",
            hint="Run the search again: variants are made anew where their cache was cleared.",
        )
    engine = variant_file.suffix in _ENGINE_SUFFIXES
    if engine != (served.backend == "tensorrt"):
        raise RepositoryError(
            f"The {served.backend} backend cannot serve {variant_file.name}.",
            hint="A TensorRT engine needs --backend tensorrt, an ONNX graph any other.",
        )
    contents: dict[str, Path | bytes] = {}
    if engine:
        contents[MODEL_FILENAMES["tensorrt"]] = variant_file
    else:
        contents[ONNX_FILENAME] = variant_file
        contents.update(external_files(variant_file))
    if served.backend == "python":
        contents[MODEL_FILENAMES["python"]] = python_model().encode()
    return ModelFiles(
        name=served_as,
        config_text=render_config(model, served, warmup=warmup, name=served_as),
        configuration=replace(served, instance_type=None),
        version_files=contents,
    )


def exported_files(version_dir: Path) -> ModelFiles:
    """A version that lies in a repository, with the ``config.pbtxt`` that is there, unmodified.

    Raises:
        RepositoryError: The configuration cannot be read, or is none that we serve.
    """
    folder = version_dir.parent
    path = folder / CONFIG_NAME
    config = read_config(path)
    normalize(config)
    return ModelFiles(
        name=config.name or folder.name,
        config_text=path.read_text(encoding="utf-8"),
        configuration=configuration_from_config(config),
        version_files=_files_in(version_dir),
        other_files={
            name: file
            for name, file in _files_in(folder).items()
            if name != CONFIG_NAME and version_number(name.partition("/")[0]) is None
        },
    )


def _files_in(folder: Path) -> dict[str, Path]:
    """The files below ``folder`` by their path in it."""
    return {
        file.relative_to(folder).as_posix(): file
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def python_model() -> str:
    """The ``model.py`` that runs ``model.onnx`` in Triton's python backend."""
    return _model_py(ONNX_FILENAME)


def onnxruntime_backend() -> str:
    """The ``model.py`` of a Python-based backend that stands in for Triton's ``onnxruntime``."""
    return _model_py(None)


def is_own_python_model(text: str) -> bool:
    """Whether ``text`` is the :func:`python_model` of this program, of whatever version."""
    return _without_version(text) == _without_version(python_model())


def _without_version(text: str) -> str:
    return re.sub(r"Written by tritune [^\s]+\.(?=\s)", "", text)


def _model_py(filename: str | None) -> str:
    template = template_environment().get_template("model.py.j2")
    return template.render(filename=filename, generator_version=__version__)


def external_files(onnx_file: Path) -> dict[str, Path]:
    """Files with external weights that ``onnx_file`` names: name relative to its folder -> path.

    Raises:
        RepositoryError: The file is no ONNX graph, or one of them is missing or outside its folder.
    """
    found = {name: onnx_file.parent / name for name in external_names(onnx_file)}
    for name, path in found.items():
        if not path.is_file():
            raise RepositoryError(
                f"{onnx_file} keeps weights in {name}, which is not beside it.",
                hint="Copy the file with external weights next to the model.",
            )
    return found


def external_names(onnx_file: Path) -> tuple[str, ...]:
    """Names, relative to its folder, of the files in which ``onnx_file`` keeps weights.

    Raises:
        RepositoryError: The file is no ONNX graph, or one of them is outside its folder.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load(str(onnx_file), load_external_data=False).graph
    except DecodeError as error:
        raise RepositoryError(f"{onnx_file} is not an ONNX file.") from error
    names: dict[str, None] = {}
    for location, *_ in external_pieces(graph):
        relative = PurePosixPath(location)
        if not location or relative.is_absolute() or ".." in relative.parts:
            raise RepositoryError(
                f"{onnx_file} keeps weights in {location!r}, outside its folder.",
                hint="Save the model with its external weights beside it.",
            )
        names[str(relative)] = None
    return tuple(names)
