"""Triton's statistics of a model as JSON and protobuf, from the counters of its engine."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from analyzer.engine.counters import ServerStatistics
from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.served_model import BatchStatistics, ModelStatistics


def added(first: ModelStatistics, second: ModelStatistics) -> ModelStatistics:
    """Both counted together."""
    one, two = first.server, second.server
    batches: dict[int, BatchStatistics] = {}
    for batch in (*first.batches, *second.batches):
        known = batches.get(batch.batch_size)
        batches[batch.batch_size] = (
            batch
            if known is None
            else BatchStatistics(
                batch_size=batch.batch_size,
                count=known.count + batch.count,
                compute_input_ns=known.compute_input_ns + batch.compute_input_ns,
                compute_infer_ns=known.compute_infer_ns + batch.compute_infer_ns,
                compute_output_ns=known.compute_output_ns + batch.compute_output_ns,
            )
        )
    ordered = tuple(batches[size] for size in sorted(batches))
    sums = {
        field.name: getattr(one, field.name) + getattr(two, field.name)
        for field in fields(ServerStatistics)
        if field.name != "batches"
    }
    return ModelStatistics(
        server=ServerStatistics(
            **sums, batches=tuple((batch.batch_size, batch.count) for batch in ordered)
        ),
        batches=ordered,
        rejected_count=first.rejected_count + second.rejected_count,
        cancelled_count=first.cancelled_count + second.cancelled_count,
        fail_ns=first.fail_ns + second.fail_ns,
        waiting_count=first.waiting_count + second.waiting_count,
        last_inference_ms=max(first.last_inference_ms, second.last_inference_ms),
    )


def statistics_json(model: LoadedModel) -> dict[str, Any]:
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
