"""The server's and the models' metadata as JSON."""

from __future__ import annotations

from typing import Any

from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.protocol import EXTENSIONS, SERVER_NAME, SERVER_VERSION
from analyzer.engine.signature import Port
from analyzer.server.repository import IndexEntry, Repository


def server_metadata() -> dict[str, Any]:
    """What ``GET /v2`` answers."""
    return {"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": list(EXTENSIONS)}


def model_metadata(model: LoadedModel, repository: Repository) -> dict[str, Any]:
    """What ``GET /v2/models/M`` answers: shapes have a leading −1 where the model batches."""
    signature = model.signature
    batch = [-1] if signature.batch_size_max else []

    def port(tensor: Port) -> dict[str, Any]:
        return {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": [*batch, *tensor.dims],
        }

    return {
        "name": model.name,
        "versions": repository.versions(model.name) or [model.version_text],
        "platform": model.config.platform or model.config.backend,
        "inputs": [port(tensor) for tensor in signature.inputs.values()],
        "outputs": [port(tensor) for tensor in signature.outputs.values()],
    }


def index_entry(entry: IndexEntry) -> dict[str, str]:
    """One element of the repository's index; members without a value are left out."""
    values = {
        "name": entry.name,
        "version": entry.version,
        "state": entry.state,
        "reason": entry.reason,
    }
    return {key: value for key, value in values.items() if value or key == "name"}
