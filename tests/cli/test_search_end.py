"""How a search ends that has its result: interrupted at each step, and told what is no text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from facts_example import WINNER, example_facts

from analyzer.cli import search_run, search_types
from analyzer.cli.search_options import SearchOptions
from analyzer.cli.search_run import save_at_end, study_status
from analyzer.cluster.in_process import InProcessExecutor
from analyzer.domain.study import StudyResult
from analyzer.errors import RunInterruptedError
from analyzer.search.request import SearchRequest
from analyzer.search.time_plan import TimePlan
from analyzer.store.results import ResultStore, open_store

EXAMPLES = Path(__file__).parents[2] / "examples"
REPORT = "analyze report digits-1"
EXPORT = f"analyze export digits-1 --config {WINNER.config_id} --repository models"


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.fixture
def searched(
    folder: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Runs a search of digits-1 whose measurements are made up."""
    shutil.copy(EXAMPLES / "digits.onnx", folder)

    def search(options: SearchOptions, request: SearchRequest, *_: Any) -> StudyResult:
        return example_facts(name=request.study, model=request.model, provenance=request.provenance)

    monkeypatch.setattr(search_run, "_search", search)
    words = ("digits.onnx", "--latency-budget", "50ms", "--executor", "in-process", "--json")
    return lambda *more: call("search", *words, *more)


def status(study: str) -> str:
    with open_store("sqlite:///results.db") as store:
        return store.study(study).status


@pytest.mark.parametrize("step", ["end of the workers", "answer"])
def test_an_interrupt_after_the_search_says_what_writes_its_answer(
    searched: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It was told to run the command again, of a study that is finished."""
    end = InProcessExecutor.__exit__

    def ended(executor: InProcessExecutor, *left: Any) -> NoReturn:
        end(executor, *left)
        raise KeyboardInterrupt

    if step == "answer":
        monkeypatch.setattr(search_run, "deliver", interrupt)
    else:
        monkeypatch.setattr(InProcessExecutor, "__exit__", ended)
    answer = searched()
    error = answer.document["error"]
    assert (answer.code, error["code"]) == (130, "interrupted")
    assert REPORT in error["hint"] and EXPORT in error["hint"]
    assert status("digits-1") == "finished"


def test_an_interrupt_before_the_result_is_stored_is_one_of_the_search(
    searched: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResultStore, "save_result", interrupt)
    answer = searched()
    assert answer.code == 130
    assert "--study digits-1 --resume" in answer.document["error"]["hint"]
    assert status("digits-1") == "interrupted"


def test_the_study_that_goes_on_is_named_as_a_shell_takes_it() -> None:
    store: Any = SimpleNamespace(set_status=lambda *_: None)
    with pytest.raises(RunInterruptedError) as caught, study_status(store, "my study", print):
        raise KeyboardInterrupt
    assert "--study 'my study' --resume" in caught.value.hint


def test_an_interrupt_after_a_comparison_of_machines_says_so_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one without a recommendation, too, which cannot be exported."""
    store: Any = SimpleNamespace(save_result=lambda result: None)
    plan = TimePlan(budget_s=20.0, started=0.0, clock=lambda: 1.0)

    def searched(options: SearchOptions, ending: ExitStack) -> StudyResult:
        with ExitStack() as workers:
            workers.callback(interrupt)
            found = example_facts(verdict="infeasible", recommended_id=None)
            return save_at_end(store, found, workers, plan, ending)

    monkeypatch.setattr(search_types, "_searched", searched)
    options: Any = SimpleNamespace()
    with pytest.raises(RunInterruptedError) as caught:
        search_types.run_types_command(options)
    assert REPORT in caught.value.hint and "export" not in caught.value.hint


def test_bytes_that_are_no_text_are_kept_as_escapes(searched: Callable[..., Any]) -> None:
    """The study could not be stored, which was told as a fault of the program."""
    answer = searched("--report", os.fsdecode(b"r\xe9sultat.html"))
    assert answer.code == 0, answer.stderr
    assert "'r\\udce9sultat.html'" in answer.document["provenance"]["command"]
    assert Path(os.fsdecode(b"r\xe9sultat.html")).is_file()
