"""The charts' facts, and that what is drawn from them is what Plotly takes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
from facts_example import (
    BASELINE,
    OUTCOMES,
    WINNER,
    configuration,
    example_facts,
    infeasible_facts,
    measurement,
    undecided_facts,
)

from analyzer.domain.load_test import Breakdown, Validity
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.study import Explanation, Step
from analyzer.report.charts import POINTS_MAX, Curve, make_charts
from analyzer.report.entries import make_report
from analyzer.report.html import draw_figures, render_html
from analyzer.report.markdown import render_markdown


def of(config_id: str) -> Measurement:
    found = next(o for o in OUTCOMES if o.configuration.config_id == config_id)
    assert isinstance(found, Measurement)
    return found


class TestPoints:
    def test_every_measured_configuration_is_a_point_and_failures_are_not(self) -> None:
        charts = make_charts(make_report(example_facts()))
        assert len(charts.points) == charts.points_total == 10
        roles = [point.role for point in charts.points]
        assert roles == ["other"] * 6 + ["front"] * 2 + ["baseline", "recommended"]

    def test_a_point_carries_what_was_measured(self) -> None:
        point = make_charts(make_report(example_facts())).points[-1]
        assert point.config_id == WINNER.config_id
        assert (point.edge_rps, point.capacity_rps) == (618.0, pytest.approx(556.2))
        assert point.measured_at_rps == pytest.approx(556.2)
        assert point.memory_bytes == 131 << 20
        assert point.cost_per_million == pytest.approx(0.7364 / (618 * 3600) * 1e6)

    def test_an_open_edge_does_not_look_like_an_exact_one(self) -> None:
        baseline = replace(of(BASELINE.config_id), edge=Edge(interval_rps=(120.0, None)))
        facts = example_facts(outcomes=(baseline, *OUTCOMES[1:]))
        report = make_report(facts)
        charts = make_charts(report)
        assert [point.bounded for point in charts.points[-2:]] == [False, True]
        drawn = {t["name"]: t for t in draw_figures(charts, facts.sla)["chart-front"]["data"]}
        assert drawn["Triton's default"]["marker"]["symbol"] == ["triangle-up-open"]
        assert drawn["recommended"]["marker"]["symbol"] == ["star"]
        assert "A triangle is the highest rate that was kept" in render_html(report)
        assert "A triangle is" not in render_html(make_report(example_facts()))

    def test_an_edge_is_not_drawn_at_a_latency_beyond_the_budget(self) -> None:
        """One of at least 14.2 /s was, at the 968 ms of a run at 50 /s."""
        baseline = of(BASELINE.config_id)
        assert baseline.headline is not None
        late = replace(
            baseline.headline, latency_ms=replace(baseline.headline.latency_ms, sla=968.0)
        )
        for tests, rate_rps in ((baseline.load_tests[:2], 116.8), ((), None)):
            own = replace(baseline, headline=late, load_tests=(*tests, late))
            facts = example_facts(outcomes=(own, *OUTCOMES[1:]))
            point = make_charts(make_report(facts)).points[-2]
            assert point.role == "baseline" and point.measured_at_rps == rate_rps
            assert (point.latency_ms is None) == (rate_rps is None)

    def test_very_many_are_thinned_and_the_leaders_stay(self) -> None:
        crowd = tuple(
            measurement(configuration(instance_count=n + 3), 10.0 + n / 10, 9.0, memory_mib=400)
            for n in range(1500)
        )
        charts = make_charts(make_report(example_facts(outcomes=(*OUTCOMES, *crowd))))
        assert len(charts.points) == POINTS_MAX
        assert charts.points_total == 1510
        assert {"recommended", "baseline", "front"} <= {point.role for point in charts.points}
        # An even sample of the rest: both ends of the crowd are there.
        edges = [point.edge_rps for point in charts.points]
        assert min(edges) == pytest.approx(10.0)

    def test_a_front_beyond_the_limit_is_sampled(self) -> None:
        # Each is faster and needs more memory than the last: none dominates another.
        crowd = tuple(
            measurement(configuration(instance_count=n + 3), 700.0 + n, 9.0, memory_mib=200 + n)
            for n in range(900)
        )
        assert (
            len(make_charts(make_report(example_facts(outcomes=(*OUTCOMES, *crowd)))).points)
            <= POINTS_MAX
        )


class TestClosest:
    """It had no mark where nothing is recommended: neither a colour nor a name."""

    def test_what_came_closest_leads_where_nothing_is_recommended(self) -> None:
        report = make_report(undecided_facts())
        assert report.closest is not None
        config_id = report.closest.entry.configuration.config_id
        charts = make_charts(report)
        first, curve, bar = charts.points[-1], charts.curves[0], charts.bars[0]
        assert first.role == curve.role == bar.role == "closest"
        assert first.config_id == curve.config_id == bar.config_id == config_id
        second = charts.points[-2].role, charts.curves[1].role, charts.bars[1].role
        assert second == ("baseline",) * 3
        assert make_charts(make_report(infeasible_facts())).curves[0].role == "closest"

    def test_it_is_told_by_name_in_every_chart(self) -> None:
        certified = replace(
            example_facts(), status="interrupted", verdict="undecided", recommended_id=None
        )
        for facts, name in ((undecided_facts(), "closest"), (certified, "certified so far")):
            figures = draw_figures(make_charts(make_report(facts)), facts.sla)
            front = figures["chart-front"]["data"][-1]
            assert (front["name"], front["texttemplate"]) == (name, name)
            assert front["marker"]["symbol"] == ["star-open"]
            assert front["customdata"][0].startswith(f"<b>{name}: ")
            assert figures["chart-load"]["data"][0]["name"].startswith(f"{name}: ")
            label = figures["chart-stages"]["layout"]["annotations"][0]["text"]
            assert label.startswith(f"<b>☆ {name}</b>, at ")

    def test_a_baseline_that_is_recommended_is_drawn_once(self) -> None:
        """It had two curves and two bars, and took the place of two others."""
        facts = example_facts(recommended_id=BASELINE.config_id)
        charts = make_charts(make_report(facts))
        curves, bars = [c.config_id for c in charts.curves], [b.config_id for b in charts.bars]
        for ids in (curves, bars):
            assert ids[0] == BASELINE.config_id and len(set(ids)) == len(ids)


class TestCurves:
    def test_recommended_and_baseline_lead_and_rates_ascend(self) -> None:
        curves = make_charts(make_report(example_facts())).curves
        assert [curve.role for curve in curves] == ["recommended", "baseline", "front", "front"]
        for curve in curves:
            assert list(curve.offered_rps) == sorted(curve.offered_rps)

    def test_invalid_and_closed_loop_runs_are_left_out(self) -> None:
        winner = of(WINNER.config_id)
        spoilt = replace(
            winner,
            load_tests=(
                replace(winner.load_tests[0], validity=Validity(valid=False, reasons=("late",))),
                replace(winner.load_tests[1], concurrency=8),
                *winner.load_tests[2:],
            ),
        )
        outcomes = tuple(spoilt if o is winner else o for o in OUTCOMES)
        full = make_charts(make_report(example_facts())).curves[0]
        curve = make_charts(make_report(example_facts(outcomes=outcomes))).curves[0]
        assert curve.offered_rps == full.offered_rps[2:]

    def test_the_runs_at_one_rate_are_one_point(self) -> None:
        """They were drawn as a vertical zig-zag."""
        winner = of(WINNER.config_id)
        first, *rest = winner.load_tests
        again = [
            replace(first, latency_ms=replace(first.latency_ms, p50=ms, sla=ms))
            for ms in (None, 90.0, 10.0)
        ]
        curve = self.curve_of(replace(winner, load_tests=(*rest, *again)))
        assert len(set(curve.offered_rps)) == len(curve.offered_rps) == len(winner.load_tests)
        assert curve.latency_ms_sla[0] == 90.0, "a run that lost them counts as the slowest"
        lost = [replace(run, latency_ms=again[0].latency_ms) for run in again[:2]]
        assert self.curve_of(replace(winner, load_tests=tuple(lost))).latency_ms_sla == (None,)

    def curve_of(self, winner: Measurement) -> Curve:
        outcomes = tuple(winner if o.configuration == WINNER else o for o in OUTCOMES)
        return make_charts(make_report(example_facts(outcomes=outcomes))).curves[0]

    def test_a_curve_that_is_off_the_chart_is_named_below_it_alone(self) -> None:
        base = of(BASELINE.config_id)
        tests = tuple(
            replace(test, latency_ms=replace(test.latency_ms, p50=None, sla=None))
            for test in base.load_tests
        )
        facts = example_facts(outcomes=(replace(base, load_tests=tests), *OUTCOMES[1:]))
        report = make_report(facts)
        figure = draw_figures(make_charts(report), facts.sla)["chart-load"]
        assert not [trace for trace in figure["data"] if "Triton" in trace["name"]]
        assert [name.partition(":")[0] for name in figure["left_out"]] == ["Triton's default"]
        assert "Not drawn, since none of their runs lies within the chart: Trit" in render_html(
            report
        )
        assert "Not drawn" not in render_html(make_report(example_facts()))

    def test_what_is_shown_on_hover_has_no_exponent(self) -> None:
        winner = of(WINNER.config_id)
        slow = replace(winner.load_tests[0].latency_ms, p50=2345.0, sla=2345.0)
        tests = (replace(winner.load_tests[0], offered_rps=15432.0, latency_ms=slow),)
        outcomes = tuple(replace(winner, load_tests=tests) if o is winner else o for o in OUTCOMES)
        sla = replace(example_facts().sla, latency_budget_ms=3000.0)
        facts = example_facts(outcomes=outcomes, sla=sla)
        figures = draw_figures(make_charts(make_report(facts)), sla)
        assert "p99 2,345 ms at 15,432 /s" in figures["chart-load"]["data"][0]["customdata"][0]
        for figure in figures.values():
            for trace in figure["data"]:
                assert ":.3~g" not in trace["hovertemplate"]

    @pytest.mark.parametrize(("percentile", "lines"), [(50.0, 1), (99.0, 2)])
    def test_the_median_is_drawn_once(self, percentile: float, lines: int) -> None:
        facts = example_facts(sla=replace(example_facts().sla, percentile=percentile))
        charts = make_charts(make_report(facts))
        drawn = draw_figures(charts, facts.sla)["chart-load"]["data"]
        assert len(drawn) == lines * len(charts.curves)


class TestBars:
    def test_the_stages_are_those_of_the_shown_rate(self) -> None:
        bars = make_charts(make_report(example_facts())).bars
        assert [bar.role for bar in bars[:2]] == ["recommended", "baseline"]
        headline = of(BASELINE.config_id).headline
        assert headline is not None
        assert bars[1].rate_rps == headline.offered_rps
        assert bars[1].stages_ms[2] == headline.breakdown_ms.compute_infer

    def test_a_target_that_does_not_tell_has_no_bar(self) -> None:
        winner = of(WINNER.config_id)
        assert winner.headline is not None
        silent = replace(winner, headline=replace(winner.headline, breakdown_ms=Breakdown()))
        outcomes = tuple(silent if o is winner else o for o in OUTCOMES)
        bars = make_charts(make_report(example_facts(outcomes=outcomes))).bars
        assert WINNER.config_id not in [bar.config_id for bar in bars]


class TestSteps:
    def test_changes_are_against_the_last_known_edge(self) -> None:
        def step(name: str, edge: float | None, measured: bool = True) -> Step:
            return Step(setting=name, config_id=name, edge_rps=edge, measured=measured)

        explanation = Explanation(
            contributions=(step("a", 100.0), step("b", None), step("c", 150.0, False))
        )
        steps = make_charts(make_report(example_facts(explanation=explanation))).steps
        assert [bar.change_rps for bar in steps] == [None, None, 50.0]
        assert [bar.measured for bar in steps] == [True, True, False]

    def test_a_measured_edge_that_is_open_is_told_by_its_end(self) -> None:
        """The chart ended before the recommendation, whose row in Markdown had a dash."""
        contributions = (
            Step(setting="one thread", config_id="a", edge_rps=43.0, measured=False),
            Step(setting="two", config_id="b", edge_rps=104.0, measured=False),
            Step(setting="late", config_id=BASELINE.config_id, measured=True),
            Step(setting="batches", config_id=WINNER.config_id, measured=True),
        )
        ends = {WINNER: (53.3, None), BASELINE: (0.0, 80.0)}
        outcomes = tuple(
            replace(of(o.configuration.config_id), edge=Edge(interval_rps=ends[o.configuration]))
            if o.configuration in ends
            else o
            for o in OUTCOMES
        )
        facts = example_facts(
            outcomes=outcomes, explanation=Explanation(contributions=contributions)
        )
        report = make_report(facts)
        charts = make_charts(report)
        assert [bar.edge for bar in charts.steps[2:]] == ["below 80 /s", "at least 53.3 /s"]
        assert [bar.change_rps for bar in charts.steps] == [None, 61.0, None, None]
        drawn = draw_figures(charts, facts.sla)["chart-steps"]["data"][0]
        assert drawn["customdata"][-1] == "batches: <b>at least 53.3 /s</b>"
        assert drawn["x"][-1] == pytest.approx(53.3)
        assert "| batches | at least 53.3 /s | a measurement |" in render_markdown(report)


@pytest.mark.parametrize("facts", [example_facts(), infeasible_facts(), undecided_facts()])
def test_what_is_drawn_is_valid_to_plotly(facts: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party warnings at import are not ours
        graph = pytest.importorskip("plotly.graph_objects")
    figures = draw_figures(make_charts(make_report(facts)), facts.sla)
    assert figures

    def plain(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("var(--"):
            return "#123456"
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k != "alternatives"}
        return [plain(item) for item in value] if isinstance(value, list) else value

    for figure in figures.values():
        graph.Figure(data=plain(figure["data"]), layout=plain(figure["layout"]))


def test_the_switch_offers_cost_only_with_a_price() -> None:
    def axes(facts: Any) -> list[str]:
        figures = draw_figures(make_charts(make_report(facts)), facts.sla)
        return [axis["key"] for axis in figures["chart-front"]["axes"]]

    assert axes(example_facts()) == ["latency", "memory", "cost"]
    free = replace(example_facts().pricing, price_per_hour=None)
    assert axes(example_facts(pricing=free)) == ["latency", "memory"]


def test_the_load_chart_ends_where_nothing_is_left_to_see() -> None:
    facts = infeasible_facts()
    figures = draw_figures(make_charts(make_report(facts)), facts.sla)
    layout = figures["chart-load"]["layout"]
    ceiling = layout["yaxis"]["range"][1]
    lowest = [min(t["y"]) for t in figures["chart-load"]["data"] if t.get("showlegend", True)]
    assert max(lowest) < ceiling  # each curve starts within the chart
