"""The operator's limits: as options of the service, and handed on to its workers."""

from __future__ import annotations

import click
from click.testing import CliRunner

from analyzer.cli.service_limits import limit_arguments, limit_options
from analyzer.errors import UsageError
from analyzer.service.limits import ServiceLimits


@click.command()
@limit_options
def told(*, limits: ServiceLimits) -> None:
    click.echo(" ".join(limit_arguments(limits)))


def test_what_is_not_given_is_as_by_default() -> None:
    done = CliRunner().invoke(told, [])
    assert done.output.split() == limit_arguments(ServiceLimits())


def test_a_worker_gets_the_same_limits_from_the_arguments() -> None:
    given = ["--budget-max", "2h", "--upload-max", "512MiB", "--open-jobs-max", "3"]
    first = CliRunner().invoke(told, given)
    again = CliRunner().invoke(told, first.output.split())
    assert first.exit_code == again.exit_code == 0
    assert again.output == first.output
    assert "--budget-max 7200.0s" in first.output and "--upload-max 536870912B" in first.output
    assert "--open-jobs-max 3" in first.output and "--trials-max 10000" in first.output
    assert "--memory-max" not in first.output, "no limit is none"
    bounded = CliRunner().invoke(told, ["--memory-max", "32GiB"])
    assert f"--memory-max {32 << 30}B" in bounded.output
    assert CliRunner().invoke(told, bounded.output.split()).output == bounded.output


def test_a_limit_needs_its_unit() -> None:
    done = CliRunner().invoke(told, ["--upload-max", "12"])
    assert isinstance(done.exception, UsageError) and "--upload-max" in done.exception.message
