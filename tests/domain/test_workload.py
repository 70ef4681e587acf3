"""Arrival processes: what their files may hold, and how each mistake is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.domain.workload import (
    Poisson,
    Trace,
    draw_arrivals_s,
    inferences_per_request,
    parse_arrivals,
    read_trace,
    request_batch_sizes,
)
from analyzer.errors import AnalyzerError, DataError
from analyzer.service.limits import ServiceLimits
from analyzer.service.options import check_options
from analyzer.service.problems import Problem


def test_a_trace_is_sorted_stably_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_ms,batch_size\n20,1\n10,2\n10,3\n")
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == [0.01, 0.01, 0.02]
    assert trace.batch_size.tolist() == [2, 3, 1]
    assert trace.row is not None and trace.row.tolist() == [2, 3, 1]


def test_a_trace_that_excel_has_saved_is_read(tmp_path: Path) -> None:
    """Its byte order mark was taken for a part of the header."""
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfarrival_ms,batch_size\r\n10,2\r\n20,1\r\n")
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == [0.01, 0.02] and trace.batch_size.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "working folder"),
        (b"", "arrival_ms"),
        (b"when\n1\n", "arrival_ms"),
        (b"arrival_ms\n", "has no rows"),
        (b"arrival_ms\nsoon\n", "row 1 (line 2)"),
        (b"arrival_ms,batch_size\n1,0\n", "at least 1"),
        (b"arrival_ms\nnan\n", "finite"),
        (b"arrival_ms\n\xff\n", "UTF-8"),
        (b"arrival_ms\n1\0\n", "t.csv"),
        (b"arrival_ms,batchsize\n1,2\n", "arrival_ms,batchsize"),
        (b"arrival_ms,batch_size\n1,2\n3\n", "row 2 (line 3): '3,' is not"),
        (b"arrival_ms,batch_size\n1,two\n", "'1,two' is not arrival_ms,batch_size"),
        (
            b"arrival_ms\n0,5\n",
            "row 1 (line 2): more fields than arrival_ms. A number has a decimal",
        ),
        (b"arrival_ms,batch_size\n1,2\n2,5,4\n", "row 2 (line 3): more fields"),
        (b"arrival_ms,batch_size\n1,99999999999999999999\n", "at most 2147483647"),
    ],
)
def test_a_trace_that_cannot_be_used_says_what_to_do(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        parse_arrivals(f"trace:{path}")
    assert "t.csv" in caught.value.message
    assert caught.value.hint
    assert says in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    "text",
    [
        "poison",
        "gamma:",
        "gamma:0",
        "gamma:nan",
        "gamma:1e300",
        "gamma:1e-300",
        "gamma:101",
        "gamma:inf",
        "gamma:2:5",
        "trace:",
        "poisson:5",
    ],
)  # fmt: skip
def test_a_process_that_is_none_says_what_to_write(text: str) -> None:
    with pytest.raises(AnalyzerError) as caught:
        parse_arrivals(text)
    assert repr(text) in caught.value.message and caught.value.hint


def test_the_name_of_a_trace_may_have_colons(tmp_path: Path) -> None:
    path = tmp_path / "t:80"
    path.write_text("arrival_ms\n1\n")
    assert parse_arrivals(f"trace:{path}").name == f"trace:{path}"


def test_a_trace_without_two_times_cannot_be_scaled() -> None:
    trace = Trace(path="t.csv", arrival_s=np.zeros(3), batch_size=np.ones(3, np.int64))
    with pytest.raises(DataError) as caught:
        draw_arrivals_s(trace, rate_rps=1.0, count=3, rng=np.random.default_rng(0))
    assert caught.value.hint


def trace(*sizes: int) -> Trace:
    times = np.arange(len(sizes)) * 0.1
    return Trace(path="t", arrival_s=times, batch_size=np.array(sizes, dtype=np.int64))


def test_requests_have_the_sizes_of_their_trace_and_count_with_their_mean() -> None:
    """A search once took the largest for all: its cost per inference was that of full requests."""
    mixed = trace(1, 4, 1)
    assert request_batch_sizes(mixed, 8).tolist() == [1, 4, 1]
    assert request_batch_sizes(mixed, 8, 5).tolist() == [1, 4, 1, 1, 4]
    assert inferences_per_request(mixed, 8) == 2.0


@pytest.mark.parametrize("process", [Poisson(), trace(1, 1, 1)])
def test_requests_without_sizes_of_their_own_have_the_one_asked_for(process: object) -> None:
    assert request_batch_sizes(process, 8, 5).tolist() == [8]  # type: ignore[arg-type]
    assert inferences_per_request(process, 8) == 8  # type: ignore[arg-type]


def section(of: Trace, **wanted: float) -> tuple[list[float], list[int]]:
    asked: dict[str, Any] = {"share": 0.0, "rate_rps": 10.0, "lead_in_s": 0.0, "count_min": 0}
    times, rows = of.section(**{**asked, "count_max": 10**6, **wanted})
    return times.round(9).tolist(), rows.tolist()


def test_a_section_goes_round_from_where_it_begins() -> None:
    four = trace(1, 2, 3, 4)
    assert section(four, seconds=0.35) == ([0.0, 0.1, 0.2, 0.3], [0, 1, 2, 3])
    assert section(four, share=0.6, seconds=0.35) == ([0.06, 0.16, 0.26], [3, 0, 1])
    assert section(four, share=0.6, seconds=0.9)[1] == [3, 0, 1, 2, 3, 0, 1, 2, 3]
    assert section(four, share=0.6, seconds=0.7, rate_rps=20.0)[1] == [3, 0, 1, 2] * 3 + [3, 0]
    assert section(four, seconds=9.0, count_max=3)[1] == [0, 1, 2]


def test_a_section_has_its_least_number_after_the_lead_in() -> None:
    times, _ = section(trace(1, 1, 1), lead_in_s=1.0, seconds=0.01, count_min=5)
    assert len([time for time in times if time >= 1.0]) == 5


def test_sections_that_begin_anywhere_meet_all_of_a_trace_equally_often() -> None:
    bursts = Trace(
        path="t",
        arrival_s=np.cumsum(np.repeat([1.0, 0.05], 40)),
        batch_size=np.ones(80, np.int64),
    )
    rng = np.random.default_rng(5)
    met = Counter[int]()
    for _ in range(20_000):
        met.update(section(bursts, share=rng.random(), seconds=1.0)[1])
    told = np.array([met[row] for row in range(80)])
    assert told.mean() == pytest.approx(20_000 * 10.0 / 80, rel=0.03), "the mean rate is kept"
    assert told.min() > 0.85 * told.mean() and told.max() < 1.15 * told.mean()


def test_a_decimal_comma_is_not_taken_for_a_field(tmp_path: Path) -> None:
    """0,5 was read as an arrival at 0; with a decimal point it is read as it is."""
    path = tmp_path / "t.csv"
    path.write_text("arrival_ms,batch_size\n0.5,2147483647\n")
    read = read_trace(path)
    assert read.arrival_s.tolist() == [0.0005] and read.batch_size.tolist() == [2**31 - 1]


@pytest.mark.parametrize("cv", ["0", "0.0009", "0.001", "2", "100", "101", "1e5", "nan"])
def test_a_service_takes_the_variation_that_the_command_line_takes(cv: str) -> None:
    def taken(read: Callable[[], object]) -> bool:
        try:
            read()
        except (AnalyzerError, Problem):
            return False
        return True

    options = {"latency_budget": "50ms", "arrivals": f"gamma:{cv}"}
    by_service = taken(lambda: check_options("search", options, ServiceLimits()))
    assert by_service == taken(lambda: parse_arrivals(f"gamma:{cv}"))
