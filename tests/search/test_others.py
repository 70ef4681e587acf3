"""What is said of other processes that kept cores busy while load tests ran."""

from __future__ import annotations

from dataclasses import replace

import pytest
from load_tests import load_test

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import ResourceUse
from analyzer.domain.measurement import Edge, Measurement
from analyzer.search.explain import others_sentence


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ([], None),
        ([None], None),
        ([0.04, 0.09], None),
        ([0.5, 0.0, None], "25% of the cores"),
    ],
)
def test_other_processes_are_told_where_they_took_a_good_part_of_the_cores(
    others: list[float | None], told: str | None
) -> None:
    tests = [
        replace(load_test([]), resources=ResourceUse(other_utilization=other)) for other in others
    ]
    measured = Measurement(
        configuration=Configuration().canonical(),
        edge=Edge(rate_rps=None, interval_rps=(None, None)),
        load_tests=tuple(tests),
    )
    sentence = others_sentence((measured,))
    assert bool(sentence) == (told is not None)
    assert (told or "") in sentence
