"""Opens a real Triton with one configuration: one of our own, or a running one that is attached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo
from analyzer.modelconfig.files import model_files
from analyzer.targets.endpoint_target import (
    EndpointTarget,
    attached_target,
    local_target,
    temporary_name,
)


def served_backend(server: str, configuration: Configuration) -> Configuration:
    """``configuration`` on the backend that ``server`` will serve it with, as far as is known.

    For ``triton`` that is the backend of the server on this machine; elsewhere it is seen only on
    loading, and the target's ``configuration`` and ``notes`` tell.

    Raises:
        MissingPartError: There is no Triton on this machine, or it has no fitting backend.
    """
    if server != "triton":
        return configuration
    from analyzer.targets.triton_install import require_triton

    backend = require_triton().backend_for(configuration.backend)
    return replace(configuration, backend=backend).canonical()


@contextmanager
def open_triton(
    server: str,
    *,
    model: ModelInfo,
    model_path: Path,
    inputs_path: Path,
    configuration: Configuration,
    protocol: str = "http",
) -> Iterator[EndpointTarget]:
    """A target on a real Triton: ``triton`` starts one for this configuration alone.

    Args:
        server: ``triton``, ``grpc://HOST:PORT`` or ``http://HOST:PORT``.
        model: What is served.
        model_path: Its variant's file.
        inputs_path: A ``.npz`` with an array of rows per input.
        configuration: How it is served.
        protocol: How a server of our own is loaded: ``http`` costs the generator the least.

    Raises:
        MissingPartError: There is no Triton on this machine, or it has no fitting backend.
        TargetError: The server does not come up or answer, or the model cannot be loaded.
        RepositoryError: Triton cannot serve the model like this.
    """
    with np.load(inputs_path) as file:
        names = [tensor.name for tensor in model.inputs]
        inputs = {name: file[name] for name in names}
    name = temporary_name(model.name, configuration)
    if server == "triton":
        from analyzer.targets.triton import TritonServer
        from analyzer.targets.triton_install import require_triton

        install = require_triton()
        backend = install.backend_for(configuration.backend)
        files = model_files(model, model_path, configuration, backend=backend, name=name)
        notes: tuple[str, ...] = ()
        if backend != configuration.backend:
            absent = f"Triton here has no {configuration.backend} backend"
            notes = (f"{absent}; ONNX Runtime was measured inside its {backend} backend.",)
        with (
            TritonServer(install) as started,
            local_target(
                started, files, inputs, model=model, protocol=protocol, notes=notes, unload=False
            ) as target,
        ):
            yield target
        return
    candidates = [model_files(model, model_path, configuration, name=name)]
    if configuration.backend == "onnxruntime":
        candidates.append(
            model_files(model, model_path, configuration, backend="python", name=name)
        )
    with attached_target(server, candidates, inputs, model=model) as target:
        yield target
