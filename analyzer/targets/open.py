"""Opens the server that ``--server`` names, with one configuration loaded."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo
from analyzer.errors import UsageError


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
) -> AbstractContextManager[Any]:
    """The target, to be entered and left on one thread.

    Raises:
        UsageError: ``server`` names none.
        MissingPartError: It is not on this machine.
        TargetError: On entering: it does not come up.
    """
    check_server(server)
    if server == "embedded":
        from analyzer.targets.embedded import EmbeddedTarget
        from analyzer.targets.embedded_spec import EmbeddedSpec, EngineModel, OnnxModel

        engine = configuration.backend == "tensorrt"
        return EmbeddedTarget(
            EmbeddedSpec(
                name=model.name,
                model=EngineModel(path=str(model_path))
                if engine
                else OnnxModel(path=str(model_path)),
                configuration=configuration,
                batchable=model.batchable,
                inputs_path=str(inputs_path),
            )
        )
    from analyzer.targets.triton_targets import open_triton

    return open_triton(
        server,
        model=model,
        model_path=model_path,
        inputs_path=inputs_path,
        configuration=configuration,
    )
