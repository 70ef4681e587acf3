"""How progress and warnings call what was measured."""

from __future__ import annotations

import pytest

from analyzer.domain.configuration import Configuration, Precision, Quantization
from analyzer.domain.measurement import Edge
from analyzer.search.wording import describe, scaled_together, spell_edge


@pytest.mark.parametrize(
    ("rate_rps", "interval_rps", "told"),
    [
        (7080.4, (6793.0, 7372.0), "7,080/s"),
        (None, (1240.0, None), "at least 1,240/s"),
        (None, (2.694, None), "at least 2.7/s"),
    ],
)
def test_an_edge_that_is_open_upwards_is_told_by_its_lower_end(
    rate_rps: float | None, interval_rps: tuple[float | None, float | None], told: str
) -> None:
    assert spell_edge(Edge(rate_rps=rate_rps, interval_rps=interval_rps)) == told


def test_answers_that_depend_on_the_rest_of_a_batch_are_told() -> None:
    def told(size: int, quantization: Quantization | None) -> str | None:
        precision: Precision = "int8" if quantization else "fp32"
        return scaled_together(
            Configuration(
                precision=precision,
                quantization=quantization,
                dynamic_batching=size > 1,
                max_batch_size=size,
            )
        )

    assert "batched with" in (told(4, "dynamic") or "")
    assert told(1, "dynamic") is told(4, "static") is told(4, None) is None


@pytest.mark.parametrize(
    ("threads", "told"),
    [
        (None, "fp32, 1 instance, no batching"),
        (0, "fp32, 1 instance, no batching"),
        (1, "fp32, 1 instance × 1 thread, no batching"),
        (2, "fp32, 1 instance × 2 threads, no batching"),
    ],
)
def test_threads_are_told_by_their_number(threads: int | None, told: str) -> None:
    """``× 1 threads`` was."""
    assert describe(Configuration(intra_op_threads=threads)) == told
