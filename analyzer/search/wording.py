"""Configurations in words and in an order that people expect; what a twin's error means."""

from __future__ import annotations

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Edge
from analyzer.domain.twin_error import FAR_OFF


def complexity(configuration: Configuration) -> tuple[int, int, int]:
    """Sorts the simplest configuration first: by instances, batch, threads (0 is one per core)."""
    return (
        configuration.instance_count,
        configuration.max_batch_size,
        configuration.intra_op_threads or 1 << 30,
    )


def describe(configuration: Configuration) -> str:
    """One line about a configuration, for progress and warnings."""
    batching = "no batching"
    if configuration.dynamic_batching:
        delay_ms = (configuration.max_queue_delay_us or 0) / 1e3
        batching = f"batches up to {configuration.max_batch_size} (delay {delay_ms:g} ms)"
    count = configuration.instance_count
    instances = f"{count} instance{'s' * (count > 1)}"
    if configuration.intra_op_threads:
        threads = configuration.intra_op_threads
        instances += f" × {threads} thread{'s' * (threads > 1)}"
    return f"{configuration.variant.label}, {instances}, {batching}"


def scaled_together(configuration: Configuration) -> str | None:
    """What to know of answers that depend on the other requests of their batch; None else.

    DynamicQuantizeLinear takes one scale for the whole tensor. Source: the ONNX operator.
    """
    alone = configuration.max_batch_size <= 1
    if configuration.quantization != "dynamic" or alone:
        return None
    return (
        "int8-dynamic scales all activations of a batch by their common range: an answer depends a "
        "little on the requests that it is batched with."
    )


def why_followed(error: float, *, few: bool, beside_bias: float) -> str:
    """Why a twin that is far off is trusted still, to follow its error; empty where it is not.

    Args:
        error: Its median error, a fraction.
        few: Whether too little was measured to judge its order.
        beside_bias: The error without the factor that is common to its predictions.
    """
    if error <= FAR_OFF:
        return ""
    if few:
        return (
            "; that is too few measurements to tell whether it orders the configurations wrongly"
            " as well, so the search still followed its order"
        )
    if beside_bias <= FAR_OFF:
        return (
            ", nearly all of it by one common factor, which the search learned; it followed the"
            " twin's order"
        )
    return "; it was followed for its order of the configurations alone, which is not clearly wrong"


def spell_edge(edge: Edge) -> str:
    """``7,080/s``; of one that is open upwards ``at least 1,240/s``."""
    rate_rps = edge.at_least_rps or 0.0
    digits = 0 if rate_rps >= 10.0 else 1
    return f"{'' if edge.rate_rps else 'at least '}{rate_rps:,.{digits}f}/s"
