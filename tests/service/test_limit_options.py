"""The operator's limits: as options of the service, and handed on to its workers."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from analyzer.cli.main import main
from analyzer.cli.service_limits import limit_arguments, limit_options, worker_limit_options
from analyzer.errors import UsageError
from analyzer.service.limits import ServiceLimits


@click.command()
@limit_options
def told(*, limits: ServiceLimits) -> None:
    click.echo(" ".join(limit_arguments(limits)))


@click.command()
@worker_limit_options
def worker(*, limits: ServiceLimits) -> None:
    click.echo(" ".join(limit_arguments(limits)))


def test_what_is_not_given_is_as_by_default() -> None:
    done = CliRunner().invoke(told, [])
    assert done.output.split() == limit_arguments(ServiceLimits())


def test_a_worker_gets_the_same_limits_from_the_arguments() -> None:
    given = ["--budget-max", "2h", "--upload-max", "512MiB", "--open-jobs-max", "3"]
    first = CliRunner().invoke(told, given)
    again = CliRunner().invoke(worker, first.output.split())
    assert first.exit_code == again.exit_code == 0
    assert again.output == first.output
    assert "--budget-max 7200.0s" in first.output and "--trials-max 10000" in first.output
    assert "--upload-max" not in first.output and "--open-jobs-max" not in first.output
    for option, value in (
        ("--upload-max", "1GiB"),
        ("--stored-max", "1GiB"),
        ("--open-jobs-max", "3"),
    ):
        assert CliRunner().invoke(worker, [option, value]).exit_code == 2, "read by no worker"
    assert "--memory-max" not in first.output, "no limit is none"
    bounded = CliRunner().invoke(told, ["--memory-max", "32GiB"])
    assert f"--memory-max {32 << 30}B" in bounded.output
    assert CliRunner().invoke(worker, bounded.output.split()).output == bounded.output


def test_a_limit_needs_its_unit() -> None:
    done = CliRunner().invoke(told, ["--upload-max", "12"])
    assert isinstance(done.exception, UsageError) and "--upload-max" in done.exception.message


@pytest.mark.parametrize(
    ("option", "value"), [("--budget-max", "0s"), ("--upload-max", "0B"), ("--memory-max", "0B")]
)
def test_a_limit_of_nothing_is_refused(option: str, value: str) -> None:
    done = CliRunner().invoke(told, [option, value])
    assert isinstance(done.exception, UsageError) and option in done.exception.message
    assert CliRunner().invoke(told, ["--variants-max", "0B"]).exit_code == 0


def test_a_file_in_the_place_of_the_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(SystemExit) as end:
        main(["service", "--data", str(tmp_path / "data"), "--port", "0"])
    assert end.value.code == 2 and "it is a file" in capsys.readouterr().err
