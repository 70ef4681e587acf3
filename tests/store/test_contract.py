"""The contract of the store, kept by SQLite and PostgreSQL alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Measurement, RateEvidence
from analyzer.domain.sla import Sla
from analyzer.domain.study import Claim, Verification
from analyzer.errors import StoreError
from analyzer.store.blobs import LOG_REQUESTS_MAX
from analyzer.store.results import ResultStore, open_store


@pytest.fixture
def store(store_url: str) -> Iterator[ResultStore]:
    with open_store(store_url) as store:
        yield store


def test_a_study_comes_back_equal_and_stamped(store: ResultStore, make: ModuleType) -> None:
    record = make.make_record("mine")
    created = store.create_study(record)
    assert dataclasses.replace(created, started_at="") == record
    assert created.started_at.endswith("+00:00")
    assert store.study("mine") == created == store.newest_study()
    assert store.has_study("mine") and not store.has_study("yours")


def test_names_are_numbered_for_each_model(store: ResultStore, make: ModuleType) -> None:
    for name in ("", "", "digits-9", "digits-x", "digits_1-50"):
        store.create_study(make.make_record(name))
    assert store.create_study(make.make_record()).name == "digits-10"
    assert store.create_study(make.make_record(model="digits_1")).name == "digits_1-51"
    assert store.create_study(make.make_record(model="100%")).name == "100%-1"
    # The command takes no longer names than 100 characters.
    assert store.create_study(make.make_record(model="m" * 236)).name == f"{'m' * 90}-1"
    assert store.create_study(make.make_record(model="m" * 236)).name == f"{'m' * 90}-2"
    assert {s.name for s in store.list_studies()} >= {"digits-1", "digits-2"}


def test_concurrent_creators_get_different_names(store_url: str, make: ModuleType) -> None:
    def create(_: int) -> str:
        with open_store(store_url) as own:  # the tables are made in the same race
            return own.create_study(make.make_record()).name

    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(create, range(16)))
    assert sorted(names, key=lambda name: int(name[7:])) == [f"digits-{n}" for n in range(1, 17)]


def test_an_existing_name_is_refused(store: ResultStore, make: ModuleType) -> None:
    store.create_study(make.make_record("mine"))
    with pytest.raises(StoreError, match="'mine' exists already") as caught:
        store.create_study(make.make_record("mine"))
    assert "--resume" in caught.value.hint


def test_a_missing_study_names_those_that_are_there(store: ResultStore, make: ModuleType) -> None:
    with pytest.raises(StoreError, match="no studies yet"):
        store.newest_study()
    store.create_study(make.make_record("mine"))
    for use in (
        store.study, store.outcomes, store.trial_rows, store.load_result, store.verifications,
        lambda name: store.add_outcome(name, 0, {}, make.make_failure()),
        lambda name: store.set_status(name, "failed"),
        lambda name: store.save_result(make.make_result(name)),
    ):  # fmt: skip
        with pytest.raises(StoreError, match="no study named 'yours'") as caught:
            use("yours")
        assert "mine" in caught.value.hint


def test_outcomes_come_back_equal_in_order(store: ResultStore, make: ModuleType) -> None:
    name = store.create_study(make.make_record()).name
    failing = make.make_load_test(failing=True)
    stored = [
        (3, "trial", {"p": "int8", "n": 2}, make.make_measurement()),
        (0, "trial", {}, make.make_failure()),
        (3, "recommendation", {"x": float("inf")}, make.make_measurement(None, headline=failing)),
        (-1, "baseline", {}, make.make_measurement(load_tests=(), accuracy=None, headline=None)),
    ]
    for number, role, params, outcome in stored:
        store.add_outcome(name, number, params, outcome, role=role)
    back = store.outcomes(name)
    assert [(s.trial_number, s.role, s.params, s.outcome) for s in back] == stored
    assert [s.number for s in back] == sorted(s.number for s in back)
    other = store.create_study(make.make_record()).name
    assert store.outcomes(other) == []


def test_a_study_goes_on_after_it_was_closed(store_url: str, make: ModuleType) -> None:
    with open_store(store_url) as store:
        name = store.create_study(make.make_record()).name
        store.add_outcome(name, 0, {"x": 1}, make.make_measurement(), role="baseline")
    with open_store(store_url, create=False) as store:
        store.add_outcome(name, 1, {"x": 2}, make.make_failure())
        found = store.outcomes(name)
    assert [(item.trial_number, item.role, item.params) for item in found] == [
        (0, "baseline", {"x": 1}), (1, "trial", {"x": 2}),
    ]  # fmt: skip
    assert found[0].number < found[1].number


def test_load_tests_are_read_for_those_asked_for(store: ResultStore, make: ModuleType) -> None:
    name = store.create_study(make.make_record()).name
    one, other = make.make_measurement(), make.make_measurement()
    plain = dataclasses.replace(one.configuration, instance_count=7)
    other = dataclasses.replace(other, configuration=plain)
    store.add_outcomes(name, [(0, {}, one), (1, {"a": 1}, other), (2, {}, make.make_failure())])
    assert [s.outcome for s in store.outcomes(name)] == [one, other, make.make_failure()]
    back = store.outcomes(name, load_tests_of=[plain.config_id])
    assert back[0].outcome == dataclasses.replace(one, load_tests=())
    assert back[1].outcome == other
    none = store.outcomes(name, load_tests_of=())
    assert all(not getattr(s.outcome, "load_tests", ()) for s in none)


def test_rows_hold_the_figures(store: ResultStore, make: ModuleType) -> None:
    name = store.create_study(make.make_record()).name
    measured = make.make_measurement(float("nan"))
    store.add_outcome(name, 5, {}, measured, cost_per_hour=0.75)
    store.add_outcome(name, 6, {}, make.make_failure())
    row, failed = store.trial_rows(name)
    assert (row.trial_number, row.state, row.variant) == (5, "measured", "int8-dynamic")
    assert row.config_id == measured.configuration.config_id
    assert row.edge_rps is None  # a NaN is nothing that SQL could compare
    assert (row.capacity_rps, row.measured_at_rps, row.certificate) == (300.0, 300.0, "PASS")
    assert (row.latency_ms_p99, row.throughput_ips, row.cost_per_hour) == (23.0, 1200.0, 0.75)
    assert row.memory_bytes_peak == 1 << 33
    assert (failed.state, failed.reason, failed.message) == (
        "failed", "out_of_memory", "It needed 9 GiB.",
    )  # fmt: skip
    assert failed.edge_rps is None and failed.load_test_seconds == 1.5
    assert store.list_studies()[0].trials == 2


def test_a_study_counts_optunas_trials(store: ResultStore, make: ModuleType) -> None:
    """The baseline's measurement, and variants that could not be built, are none of them."""
    name = store.create_study(make.make_record()).name
    store.add_outcome(name, -1, {}, make.make_measurement(100.0), role="baseline")
    store.add_outcome(name, -1, {}, make.make_failure(), role="variant")
    assert store.list_studies()[0].trials == 0
    store.add_outcome(name, 0, {}, make.make_measurement())
    store.add_outcome(name, 0, {}, make.make_measurement(), role="recommendation")
    store.add_outcome(name, 1, {}, make.make_failure())
    assert store.list_studies()[0].trials == 2


def test_raw_requests_come_back(store: ResultStore, make: ModuleType) -> None:
    name = store.create_study(make.make_record()).name
    logs = [make.make_log(500), make.make_log(0)]
    store.add_outcome(name, 1, {}, make.make_measurement(), logs=logs)
    store.add_outcome(name, 1, {}, make.make_failure(), role="probe", logs=[make.make_log(3)])
    back = store.request_logs(name, 1, role="trial")
    assert [len(log) for log in back] == [500, 0]
    assert back[0].warmup == 7
    for field in dataclasses.fields(logs[0]):
        before, after = getattr(logs[0], field.name), getattr(back[0], field.name)
        if isinstance(before, np.ndarray):
            assert after.dtype == before.dtype
            np.testing.assert_allclose(after, before, rtol=2e-7)
    np.testing.assert_array_equal(back[0].intended_s, logs[0].intended_s)
    assert [len(log) for log in store.request_logs(name, 1)] == [500, 0, 3]
    assert store.request_logs(name, 2) == []


def test_of_very_many_requests_some_are_stored_evenly_over_the_run(
    store: ResultStore, make: ModuleType
) -> None:
    name = store.create_study(make.make_record()).name
    log = make.make_log(10 * LOG_REQUESTS_MAX)
    log = dataclasses.replace(log, warmup=2 * LOG_REQUESTS_MAX)
    store.add_outcome(name, 1, {}, make.make_measurement(), logs=[log])
    (back,) = store.request_logs(name, 1)
    assert len(back) == LOG_REQUESTS_MAX and back.warmup == LOG_REQUESTS_MAX // 5
    assert (back.intended_s[0], back.intended_s[-1]) == (log.intended_s[0], log.intended_s[-1])
    gaps = np.diff(np.searchsorted(log.intended_s, back.intended_s))
    assert gaps.min() >= 10 and gaps.max() <= 11
    at = [np.quantile(one.latency_s[one.warmup :], 0.9) for one in (log, back)]
    assert at[1] == pytest.approx(at[0], rel=0.02)


def test_a_result_comes_back_equal(store: ResultStore, make: ModuleType) -> None:
    record = store.create_study(make.make_record())
    measured, failed = make.make_measurement(), make.make_failure()
    for number, outcome in enumerate((failed, measured)):
        store.add_outcome(record.name, number, {}, outcome)
    for verdict in ("infeasible", "found"):  # a later result replaces the earlier
        result = make.make_result(
            record.name, verdict=verdict, outcomes=(failed, measured), provenance=record.provenance
        )
        store.save_result(result)
        assert store.load_result(record.name) == store.load_result() == result
    (summary,) = store.list_studies(limit=5)
    assert (summary.status, summary.verdict, summary.model) == ("finished", "found", "digits")


def test_what_a_result_does_not_tell_does_not_count(store: ResultStore, make: ModuleType) -> None:
    """A study that went on elsewhere told no gain; its report compared with the old baseline."""
    record = store.create_study(make.make_record())
    elsewhere, here = make.make_measurement(100.0), make.make_measurement()
    other = dataclasses.replace(
        here, configuration=Configuration(instance_count=7).canonical(), load_tests=()
    )
    untried = dataclasses.replace(make.make_failure(), configuration=other.configuration)
    for number, outcome in enumerate((elsewhere, other, here, untried)):
        store.add_outcome(record.name, number, {}, outcome)
    result = make.make_result(record.name, outcomes=(here, untried), provenance=record.provenance)
    store.save_result(result)
    assert store.load_result(record.name).outcomes == (here, untried)
    assert len(store.trial_rows(record.name)) == 4
    store.set_status(record.name, "running")  # resumed: nobody knows yet what counts
    assert store.load_result(record.name).outcomes == (here, other)


def test_a_study_that_did_not_end_has_a_result_too(store: ResultStore, make: ModuleType) -> None:
    name = store.create_study(make.make_record()).name
    store.set_status(name, "interrupted")
    measured = make.make_measurement()
    store.add_outcome(name, 0, {}, make.make_measurement(100.0))
    store.add_outcome(name, 1, {}, measured)
    failure = dataclasses.replace(make.make_failure(), configuration=measured.configuration)
    store.add_outcome(name, 2, {}, failure)
    other = Configuration(instance_count=7).canonical()
    untested = dataclasses.replace(
        measured, configuration=other, load_tests=(), load_test_seconds=0.0
    )
    store.add_outcome(name, 3, {}, untested)
    result = store.load_result(name)
    assert store.study(name).status == "interrupted"
    # The last measurement of the configuration; a failure does not hide it.
    assert result.outcomes == (measured, untested)
    assert (result.verdict, result.recommended_id) == ("undecided", None)
    assert result.search.sampler == "tpe"
    assert result.status == "interrupted" and "interrupted" in result.warnings[0]
    # Counted is what is stored and was tested under load; what is not stored is unknown, not 0.
    search = result.search
    assert (search.evaluated_live, search.failed) == (1, 0)
    assert search.load_test_seconds == measured.load_test_seconds
    assert search.evaluated_twin is None and search.wall_seconds is None
    assert search.budget_s == 60.0


def test_a_study_that_did_not_end_knows_the_baseline_that_it_measured(
    store: ResultStore, make: ModuleType
) -> None:
    """A folder's own, which was taken for Triton's default."""
    name = store.create_study(make.make_record()).name
    own = Configuration(max_batch_size=16, dynamic_batching=True, instance_count=2).canonical()
    baseline = dataclasses.replace(make.make_measurement(), configuration=own)
    store.add_outcome(name, -1, {}, baseline, role="baseline")
    store.add_outcome(name, 0, {}, make.make_measurement())
    store.set_status(name, "interrupted")
    assert store.load_result(name).baseline_id == own.config_id


def test_a_resumed_study_that_did_not_end_keeps_its_recommendation(
    store: ResultStore, make: ModuleType
) -> None:
    name = store.create_study(make.make_record()).name
    measured = make.make_measurement()
    store.add_outcome(name, 0, {}, measured)
    recommended = measured.configuration.config_id
    store.save_result(make.make_result(name, recommended_id=recommended))
    store.add_outcome(name, 1, {}, make.make_failure())
    store.set_status(name, "interrupted")
    result = store.load_result(name)
    assert (result.verdict, result.recommended_id) == ("found", recommended)
    assert not result.unfinished and (result.search.evaluated_live, result.search.failed) == (1, 1)
    assert f"--study {name} --resume" in result.warnings[-1]
    # Nothing was recommended: whatever was said of the space before holds for less than is stored.
    store.save_result(make.make_result(name, verdict="infeasible", recommended_id=None))
    store.set_status(name, "running")
    result = store.load_result(name)
    assert result.verdict == "undecided" and result.unfinished and result.search.bound is None


def test_a_label_may_be_of_any_length(store: ResultStore, make: ModuleType) -> None:
    """PostgreSQL refused what 64 characters could not hold, and the search ended."""
    name = store.create_study(make.make_record()).name
    store.add_outcome(name, 0, {}, make.make_wordy())
    assert [item.outcome for item in store.outcomes(name)] == [make.make_wordy()]


def test_rows_and_result_tell_the_same_edges(store: ResultStore, make: ModuleType) -> None:
    """Rows gave edges of short runs that the result had lowered."""
    name = store.create_study(make.make_record()).name
    bare = {"capacity_rps": None, "certificate": None, "headline": None}
    first, later = make.make_measurement(200.0, **bare), make.make_measurement(400.0, **bare)
    for outcome in (first, make.make_failure(), later):
        store.add_outcome(name, 0, {}, outcome)
    config_id = later.configuration.config_id
    store.save_result(make.make_result(name, speed_factors=((config_id, 0.5),)))
    told = next(
        o for o in store.load_result(name).outcomes if o.configuration.config_id == config_id
    )
    assert told.edge.rate_rps == 200.0
    assert [row.edge_rps for row in store.trial_rows(name)] == [100.0, None, 200.0]


@pytest.mark.parametrize("met", [True, False])
def test_what_was_kept_at_usual_speeds_alone_raises_no_edge(
    store: ResultStore, make: ModuleType, met: bool
) -> None:
    name = store.create_study(make.make_record()).name
    kept = RateEvidence(
        rate_rps=390.0, requests=9000, over_budget=0, inflation=5.0, claim=1, blocks=1
    )
    measured = make.make_measurement(
        400.0, capacity_rps=None, certificate=None, headline=None, evidence=(kept,)
    )
    store.add_outcome(name, 0, {}, measured)
    config_id = measured.configuration.config_id
    unmet = () if met else ((config_id, 390.0),)
    store.save_result(make.make_result(name, speed_factors=((config_id, 0.5),), unmet_rates=unmet))
    (told,) = store.load_result(name).outcomes
    assert isinstance(told, Measurement)
    assert told.edge.rate_rps == (390.0 if met else 200.0)
    assert [row.edge_rps for row in store.trial_rows(name)] == [told.edge.rate_rps]


def test_a_claim_that_is_not_upheld_is_none_in_result_and_rows(
    store: ResultStore, make: ModuleType
) -> None:
    name = store.create_study(make.make_record()).name
    measured = make.make_measurement()
    store.add_outcome(name, 0, {}, measured)
    config_id = measured.configuration.config_id
    store.save_result(make.make_result(name, recommended_id=None, taken_back=(config_id,)))
    (told,) = store.load_result(name).outcomes
    assert measured.capacity_rps and told == dataclasses.replace(measured, capacity_rps=None)
    assert [row.capacity_rps for row in store.trial_rows(name)] == [None]
    # What resumes the study knows what its runs came to.
    assert [item.outcome.capacity_rps for item in store.outcomes(name)] == [measured.capacity_rps]


def test_studies_are_listed_newest_first(store: ResultStore, make: ModuleType) -> None:
    for _ in range(3):
        store.create_study(make.make_record())
    assert [s.name for s in store.list_studies(limit=2)] == ["digits-3", "digits-2"]


def test_verifications_come_back_equal(store: ResultStore, make: ModuleType) -> None:
    name = store.create_study(make.make_record()).name
    verification = Verification(
        claim=Claim(
            source="study digits-1", model="digits", sla=Sla(latency_budget_ms=50.0),
            configuration=make.make_measurement().configuration, rate_rps=300.0,
            arrivals="poisson", request_batch_size=2,
        ),
        verdict="holds", measured=make.make_measurement(), server="embedded",
        at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    store.add_verification(name, verification)
    assert store.verifications(name) == [verification]


def test_the_cache_keeps_the_last_value(store: ResultStore) -> None:
    assert store.get_cache("calibration", "k") is None
    for value in ({"a": 1.5}, {"a": [float("-inf")]}):
        store.put_cache("calibration", "k", value)
        assert store.get_cache("calibration", "k") == value
    assert store.get_cache("other", "k") is None


def test_several_studies_write_at_once(store_url: str, make: ModuleType) -> None:
    def search(_: int) -> int:
        with open_store(store_url) as own:
            name = own.create_study(make.make_record()).name
            for number in range(20):
                own.add_outcome(name, number, {}, make.make_measurement(), logs=[make.make_log(9)])
            return len(own.outcomes(name))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(search, range(4))) == [20] * 4
