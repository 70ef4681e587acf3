"""Opens the server that ``--server`` names, with one configuration loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from analyzer.domain.configuration import Backend, Configuration
from analyzer.domain.model import ModelInfo
from analyzer.engine.tensor_file import read_tensors
from analyzer.errors import UsageError
from analyzer.targets.target import Target


def check_server(server: str) -> None:
    """Raises UsageError where ``server`` names none."""
    if server in ("embedded", "triton") or server.startswith(("grpc://", "http://")):
        return
    raise UsageError(
        f"--server: {server!r} names no server.",
        hint="Use embedded, triton, grpc://HOST:PORT or http://HOST:PORT.",
    )


def open_target(
    server: str,
    *,
    model: ModelInfo,
    model_path: Path,
    inputs_path: Path,
    configuration: Configuration,
    exported: Path | None = None,
    load_s: float = math.inf,
    token: str = "",
) -> AbstractContextManager[Target]:
    """The target, to be entered and left on one thread.

    Args:
        server: ``embedded``, ``triton`` (one of this machine, started for this configuration
            alone), or ``grpc://HOST:PORT`` or ``http://HOST:PORT`` of one that runs.
        model: What is served.
        model_path: Its variant's file.
        inputs_path: What :func:`~analyzer.engine.tensor_file.write_tensors` made of rows per input.
        configuration: How it is served.
        exported: The folder of a version in a repository, which a Triton that is started here
            serves with the ``config.pbtxt`` that is there, unmodified; one that runs serves
            ``configuration`` on the backend that is named there.
        load_s: What a Triton may take to load the model, up to its own limit.
        token: Of the name under which one that runs loads it
            (:func:`~analyzer.targets.endpoint_target.temporary_name`).

    Raises (all but the first also on entering):
        UsageError: ``server`` names none.
        MissingPartError: There is no Triton on this machine, or it has no fitting backend.
        RepositoryError: Triton cannot serve the model like this.
        TargetError: The server does not come up or answer, or the model cannot be loaded.
    """
    check_server(server)
    if server == "embedded":
        return _embedded(model, model_path, inputs_path, configuration)
    if server == "triton":
        return _started_triton(model, model_path, inputs_path, configuration, exported, load_s)
    return _running_server(
        server, model, model_path, inputs_path, configuration, exported, load_s, token
    )


def _embedded(
    model: ModelInfo, model_path: Path, inputs_path: Path, configuration: Configuration
) -> AbstractContextManager[Target]:
    from analyzer.modelconfig.execution import accelerator_settings
    from analyzer.targets.embedded import EmbeddedTarget
    from analyzer.targets.embedded_spec import EmbeddedSpec, FileModel

    return EmbeddedTarget(
        EmbeddedSpec(
            name=model.name,
            model=FileModel(
                path=str(model_path),
                accelerator_options=accelerator_settings(
                    model, configuration.variant, configuration.max_batch_size
                ),
            ),
            configuration=configuration,
            batchable=model.batchable,
            inputs_path=str(inputs_path),
        )
    )


@contextmanager
def _started_triton(
    model: ModelInfo,
    model_path: Path,
    inputs_path: Path,
    configuration: Configuration,
    exported: Path | None,
    load_s: float,
) -> Iterator[Target]:
    from analyzer.hardware.gpus import first_gpu
    from analyzer.modelconfig.files import exported_files, model_files
    from analyzer.targets.endpoint_target import local_target, temporary_name
    from analyzer.targets.triton_install import require_triton
    from analyzer.targets.triton_server import TritonServer

    install = require_triton()
    found = exported_files(exported) if exported is not None else None
    wanted = found.configuration.backend if found is not None else configuration.backend
    backend = install.backend_for(wanted)
    if found is not None and backend == wanted:
        files = found
    else:
        name = temporary_name(model.name, configuration)
        files = model_files(model, model_path, configuration, backend=backend, name=name)
    notes: tuple[str, ...] = ()
    if backend != wanted:
        absent = f"Triton here has no {wanted} backend"
        notes = (f"{absent}; ONNX Runtime was measured inside its {backend} backend.",)
    elif install.stand_in and backend == "onnxruntime":
        own = "on ONNX Runtime in a Python-based backend"
        notes = (f"Triton here has no onnxruntime backend: the native configuration ran {own}.",)
    inputs = read_tensors(inputs_path)
    gpu = first_gpu() if configuration.device == "gpu" else None
    with (
        TritonServer(install, gpu=gpu) as server,
        # Over HTTP the generator has the least work.
        local_target(
            server, files, inputs, model=model, notes=notes, unload=False, load_s=load_s
        ) as target,
    ):
        yield target


def _running_server(
    address: str,
    model: ModelInfo,
    model_path: Path,
    inputs_path: Path,
    configuration: Configuration,
    exported: Path | None,
    load_s: float,
    token: str,
) -> AbstractContextManager[Target]:
    from analyzer.modelconfig.files import exported_files, model_files
    from analyzer.targets.endpoint_target import attached_target, temporary_name

    name = temporary_name(model.name, configuration, token)
    wanted = configuration.backend
    if exported is not None:
        wanted = exported_files(exported).configuration.backend
    backends: list[Backend] = [wanted, "python"] if wanted == "onnxruntime" else [wanted]
    candidates = [
        model_files(model, model_path, configuration, backend=backend, name=name)
        for backend in backends
    ]
    inputs = read_tensors(inputs_path)
    return attached_target(address, candidates, inputs, model=model, load_s=load_s)
