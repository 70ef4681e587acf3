"""Metadata, index and statistics of the server and its models, as JSON with Triton's keys."""

from __future__ import annotations

from typing import Any

from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.signature import Port
from analyzer.server.slots import IndexEntry

SERVER_NAME = "triton"
# The release whose behaviour is reproduced (docs/triton-semantics.md); clients parse it.
SERVER_VERSION = "2.73.0"
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


def server_metadata() -> dict[str, Any]:
    """What ``GET /v2`` answers."""
    return {"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": list(EXTENSIONS)}


def model_metadata(model: LoadedModel, versions: list[str]) -> dict[str, Any]:
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
        "versions": versions or [model.version_text],
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


def statistics(model: LoadedModel) -> dict[str, Any]:
    """One entry of ``model_stats``, keys and order as Triton's."""
    details = model.details()
    server = details.server
    hits, misses = model.cache_hits, model.cache_misses
    count = server.success_count

    def entry(number: int, ns: int) -> dict[str, int]:
        return {"count": number, "ns": ns}

    return {
        "name": model.name,
        "version": model.version_text,
        "last_inference": details.last_inference_ms,
        "inference_count": server.inference_count,
        "execution_count": server.execution_count,
        "inference_stats": {
            "success": entry(count + hits.count, server.success_ns + hits.total_ns),
            "fail": entry(server.fail_count, details.fail_ns),
            "queue": entry(count + hits.count, server.queue_ns),
            "compute_input": entry(count, server.compute_input_ns),
            "compute_infer": entry(count, server.compute_infer_ns),
            "compute_output": entry(count, server.compute_output_ns),
            "cache_hit": entry(hits.count, hits.total_ns),
            "cache_miss": entry(misses.count, misses.total_ns),
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": batch.batch_size,
                "compute_input": entry(batch.count, batch.compute_input_ns),
                "compute_infer": entry(batch.count, batch.compute_infer_ns),
                "compute_output": entry(batch.count, batch.compute_output_ns),
            }
            for batch in details.batches
        ],
        "memory_usage": [],
    }
