"""How long each report of a study with 100,000 measurements takes, without the database.

python bench/report.py [--outcomes 100000]
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from analyzer.domain.load_test import ResourceUse
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.study import StudyResult
from analyzer.report.csv import render_csv
from analyzer.report.document import build_document, render_json
from analyzer.report.entries import make_report
from analyzer.report.html import render_html
from analyzer.report.markdown import render_markdown
from benchlib.command import ROOT, Command


def many_facts(count: int, seed: int) -> StudyResult:
    """The example study of the tests with ``count`` further made-up configurations."""
    sys.path.append(str(ROOT / "tests" / "report"))
    example: Any = importlib.import_module("facts_example")
    known = [o for o in example.OUTCOMES if isinstance(o, Measurement)]
    rng = np.random.default_rng(seed)
    picks = rng.integers(len(known), size=count).tolist()
    edges = rng.uniform(50, 600, count).tolist()
    tails = rng.uniform(5, 60, count).tolist()
    peaks = rng.integers(10**8, 10**9, count).tolist()
    crowd = []
    for index in range(count):
        base = known[picks[index]]
        test = base.load_tests[2]
        test = replace(
            test,
            latency_ms=replace(test.latency_ms, sla=tails[index]),
            resources=ResourceUse(memory_bytes_peak=peaks[index]),
        )
        configuration = replace(
            base.configuration,
            dynamic_batching=True,
            max_batch_size=16,
            preferred_batch_size=(16,),
            instance_count=1 + index // 256,
            max_queue_delay_us=index % 256,
        )
        crowd.append(
            replace(
                base,
                configuration=configuration,
                edge=Edge(
                    rate_rps=edges[index], interval_rps=(edges[index] * 0.9, edges[index] * 1.1)
                ),
                capacity_rps=None,
                certificate=None,
                headline=None,
                load_tests=(test,),
                resources=ResourceUse(),
            )
        )
    facts: StudyResult = example.example_facts(outcomes=(*example.OUTCOMES, *crowd))
    return facts


def main() -> int:
    command = Command("report", __doc__, timing=True)
    command.argument("--outcomes", type=int, default=100_000)
    command.argument("--seed", type=int, default=1)
    options = command.start()
    facts = many_facts(options.outcomes, options.seed)
    seconds: dict[str, float] = {}

    def timed(name: str, make: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        made = make()
        seconds[name] = round(time.perf_counter() - start, 3)
        return made

    report = timed("report", lambda: make_report(facts))
    document = timed("document", lambda: build_document(report))
    timed("html", lambda: render_html(report))
    timed("markdown", lambda: render_markdown(report))
    timed("json", lambda: render_json(document))
    timed("csv", lambda: render_csv(facts))
    results = {
        "outcomes": len(facts.outcomes),
        "front": len(document["pareto"]),
        "seed": options.seed,
        "seconds": seconds,
    }
    return command.finish(options, results, lambda found: json.dumps(found["seconds"]))


if __name__ == "__main__":
    raise SystemExit(main())
