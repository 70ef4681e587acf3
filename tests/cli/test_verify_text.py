"""What ``analyze verify`` says, and of a claim that it could not decide."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.cli.verify import _claim_line
from analyzer.cli.verify_answer import _missing, missing_text, print_verification
from analyzer.domain.load_test import ResourceUse
from analyzer.domain.measurement import Certificate


@pytest.mark.parametrize(
    ("requests", "rate_rps", "said"),
    [
        (3112, 200.0, "about 3,112 requests: give it more time (--budget 80s)"),
        (400_000, 1000.0, "about 400,000 requests: give it more time (--budget 8m)"),
        # A budget of 19452s was told, and of years.
        (10**9, 100.0, "more requests than a day holds: this rate is too near to the edge"),
    ],
)
def test_the_budget_that_decides_is_one_to_write(requests: int, rate_rps: float, said: str) -> None:
    assert missing_text(requests, rate_rps).startswith(said)


@pytest.mark.parametrize(
    ("inflation", "missing", "said"),
    [
        # It named --budget 80s to a user who had given it ten minutes.
        (2.0, 3000, "about 3,000 requests: give it more time (--budget 11m)"),
        # It said "undecided", and nothing else.
        (None, None, "too few requests to tell how far they depend on each other: give it more"),
        (2.0, None, "no number of requests decides: this rate is too near to the edge"),
    ],
)
def test_an_open_verdict_says_what_it_lacks(
    inflation: float | None, missing: int | None, said: str
) -> None:
    certificate = Certificate(
        verdict="UNDECIDED", requests=110_000, over_budget=900, effective_requests=0.0,
        confidence=0.95, mlperf="UNDECIDED", inflation=inflation, requests_missing=missing,
    )  # fmt: skip
    assert _missing(certificate, 200.0).startswith(said)
    assert not _missing(replace(certificate, void_reasons=("it throttled",)), 200.0) or missing


@pytest.mark.parametrize(
    ("claimed", "line", "verdict"),
    [
        (
            True,
            "Claim (study shop-1): 15,818 requests/s, 99 % within 50 ms at 0.95 confidence, ",
            "The claim holds.",
        ),
        (
            False,
            "No claim of study shop-1, but what the command names: 15,818 requests/s, 99 % within",
            "The rate that the command names holds.",
        ),
    ],
)
def test_a_rate_that_nobody_certified_is_no_claim(
    capsys: pytest.CaptureFixture[str], claimed: bool, line: str, verdict: str
) -> None:
    """And rates are written as in a search's answer; it said 15818.5 requests/s."""
    certificate = Certificate(
        verdict="PASS", requests=31_000, over_budget=0, effective_requests=30_999.6,
        confidence=0.95, mlperf="PASS",
    )  # fmt: skip
    subject: Any = SimpleNamespace(
        claimed=claimed,
        conditions=None,
        hardware="2 × AMD EPYC (AVX-512 VNNI), 24 GiB",
        claim=SimpleNamespace(
            source="study shop-1",
            rate_rps=15_818.49,
            sla=SimpleNamespace(percentile=99.0, latency_budget_ms=50.0, confidence=0.95),
            configuration=SimpleNamespace(config_id="0123456789ab"),
        ),
    )
    verification: Any = SimpleNamespace(
        verdict="holds",
        claim=subject.claim,
        measured=SimpleNamespace(
            certificate=certificate,
            headline=SimpleNamespace(
                achieved_rps=15_790.2,
                latency_ms=SimpleNamespace(sla=12.3456),
                validity=SimpleNamespace(reasons=()),
            ),
            resources=ResourceUse(),
            hardware="2 × AMD EPYC (AVX2), 24 GiB",
            notes=(),
        ),
    )
    assert _claim_line(subject).startswith(line)
    print_verification(verification, subject)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        verdict,
        "  rate         15,818 requests/s offered, 15,790 done",
        "  p99          12.3 ms, budget 50 ms",
        "  requests     31,000 (31,000 effective), 0 over budget",
    ]
    when = "the claim was certified" if claimed else "it was measured before"
    now, then = "2 × AMD EPYC (AVX2), 24 GiB", "2 × AMD EPYC (AVX-512 VNNI), 24 GiB"
    assert lines[4:] == [f"  differs      from when {when}: it is {now}, not {then}"]


def test_a_claim_is_written_as_it_was_given() -> None:
    """A budget of half an hour was 1.8e+06 ms, and many nines were a confidence of 1."""
    subject: Any = SimpleNamespace(
        claimed=True,
        claim=SimpleNamespace(
            source="repository models, net version 2",
            rate_rps=0.25,
            sla=SimpleNamespace(
                percentile=99.9, latency_budget_ms=1_800_000.0, confidence=0.9999999
            ),
            configuration=SimpleNamespace(config_id="0123456789ab"),
        ),
    )
    assert _claim_line(subject) == (
        "Claim (repository models, net version 2): 0.25 requests/s, 99.9 % within 1,800,000 ms at "
        "0.9999999 confidence, 0123456789ab."
    )


def test_what_the_gpu_told_meanwhile_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "the GPU throttled in 34% of the run (hw_slowdown)"
    certificate = Certificate(
        verdict="UNDECIDED", requests=900, over_budget=0, effective_requests=900.0,
        confidence=0.95, mlperf="PASS", void_reasons=(reason,),
    )  # fmt: skip
    told = ResourceUse(
        energy_joules_per_inference=0.25,
        gpu_clock_mhz=1980.0,
        gpu_clock_limits=("sw_power_cap", "hw_slowdown"),
    )

    def printed(use: ResourceUse) -> list[str]:
        verification: Any = SimpleNamespace(
            verdict="undecided",
            claim=SimpleNamespace(
                rate_rps=200.0,
                sla=SimpleNamespace(percentile=99.0, latency_budget_ms=50.0, confidence=0.95),
            ),
            measured=SimpleNamespace(
                certificate=certificate,
                headline=SimpleNamespace(
                    achieved_rps=199.0,
                    latency_ms=SimpleNamespace(sla=12.0),
                    validity=SimpleNamespace(reasons=(reason,)),
                ),
                resources=use,
                hardware="",
                notes=(),
            ),
        )
        subject: Any = SimpleNamespace(conditions=None, claimed=True, hardware="")
        print_verification(verification, subject)
        return capsys.readouterr().out.splitlines()

    lines = printed(told)
    assert "  GPU clock    1980 MHz, held down by sw_power_cap, hw_slowdown" in lines
    assert f"  void         {reason}" in lines
    assert any(line.startswith("  energy       0.25 J per inference") for line in lines)
    assert not any("GPU clock" in line for line in printed(ResourceUse()))
