"""A name that stands in several places stands in all of them: who adds one learns what is left."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import click
import numpy as np
import pytest

from analyzer.cli.main import cli
from analyzer.cli.simulate_inputs import parse_arrivals_option
from analyzer.domain import configuration as domain
from analyzer.domain import workload
from analyzer.domain.configuration import Backend, Configuration
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.domain.study import StudyResult
from analyzer.domain.workload import draw_arrivals_s, parse_arrivals
from analyzer.engine.runtimes.open import open_runtime
from analyzer.errors import AnalyzerError
from analyzer.export import rtx
from analyzer.modelconfig.render import MODEL_FILENAMES, configuration_from_config, render_config
from analyzer.modelconfig.text import parse_config
from analyzer.report.wording import configuration_sentence
from analyzer.search.samplers import SAMPLERS
from analyzer.spaces import space_file
from analyzer.store.records import StoredResult

BACKENDS: tuple[Backend, ...] = get_args(Backend)
MODEL = ModelInfo(
    name="m",
    path="m.onnx",
    sha256="0" * 64,
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(3,)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(3,)),),
    batchable=True,
)


# Of each arrival process how --arrivals spells it, and the word for it in the option's help.
ARRIVALS = {
    "Poisson": ("poisson", "poisson"),
    "Constant": ("constant", "constant"),
    "Gamma": ("gamma:2", "gamma:CV"),
    "Trace": ("trace:t.csv", "trace:FILE"),
}


def option(command: str, name: str) -> click.Option:
    """An option of a command."""
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    (own,) = (p for p in found.params if name in p.opts)
    assert isinstance(own, click.Option)
    return own


def choices(command: str, name: str) -> tuple[str, ...]:
    """What an option of a command may be."""
    kind = option(command, name).type
    assert isinstance(kind, click.Choice)
    return tuple(kind.choices)


def test_every_arrival_process_is_listed_here() -> None:
    found = {name for name, kind in vars(workload).items() if hasattr(kind, "interarrival_s")}
    assert found - {"ArrivalProcess"} == set(ARRIVALS)


@pytest.mark.parametrize("kind", ARRIVALS)
def test_every_arrival_process_can_be_chosen_everywhere(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("arrival_ms\n0\n5\n30\n")
    text, word = ARRIVALS[kind]
    process = parse_arrivals(text)
    assert (type(process).__name__, process.name) == (kind, text)
    times_s = draw_arrivals_s(process, rate_rps=50.0, count=9000, rng=np.random.default_rng(0))
    assert times_s[-1] == pytest.approx(9000 / 50.0, rel=0.1)
    assert parse_arrivals_option(text, rate_wanted=False).process is not None
    if kind != "Trace":
        assert parse_arrivals_option(f"{text}:80/s", rate_wanted=True).rate_rps == 80.0
    for command in ("search", "measure", "simulate"):
        assert word in (option(command, "--arrivals").help or ""), command


def test_every_sampler_can_be_chosen() -> None:
    assert choices("search", "--sampler") == SAMPLERS


def test_every_backend_can_be_exported() -> None:
    # TensorRT for RTX is no backend of Triton's: its engines are for other programs.
    assert choices("export", "--backend") == ("auto", *BACKENDS, rtx.BACKEND)
    assert set(MODEL_FILENAMES) == set(BACKENDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_is_written_and_told(backend: Backend) -> None:
    configuration = Configuration(backend=backend, intra_op_threads=None, device="gpu").canonical()
    text = render_config(MODEL, configuration)
    assert configuration_from_config(parse_config(text, where="m")) == configuration
    assert configuration_sentence(configuration)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_has_a_runtime(backend: Backend, tmp_path: Path) -> None:
    """One that has none says so before it looks for the file; no other takes its place."""
    with pytest.raises(AnalyzerError) as caught:
        open_runtime(tmp_path / "none", backend=backend)
    assert "Nothing here runs" not in caught.value.message
    with pytest.raises(AnalyzerError, match="Nothing here runs"):
        open_runtime(tmp_path / "none", backend="another")


@pytest.mark.parametrize("name", ["Precision", "Quantization", "Backend"])
def test_a_space_knows_what_a_configuration_can_be(name: str) -> None:
    written = set(get_args(get_args(getattr(space_file, name))[0]))
    own_words = {"Quantization": {"best"}}.get(name, set())
    not_written = {"Backend": {"python"}}.get(name, set())
    assert written - own_words == set(get_args(getattr(domain, name))) - not_written


def test_every_field_of_a_result_is_stored() -> None:
    elsewhere = {
        "name",
        "model",
        "sla",
        "verdict",
        "status",
        "provenance",
        "outcomes",
        "verifications",
    }
    fields = {field.name for field in dataclasses.fields(StudyResult)}
    kept = {field.name for field in dataclasses.fields(StoredResult)}
    assert fields == elsewhere | kept - {"told"}, "which of the outcomes it tells"
