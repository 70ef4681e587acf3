"""Whoever asks a command for help learns what each of its options means."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from analyzer.cli.main import cli


def _options() -> Iterator[object]:
    context = click.Context(cli, info_name="analyze")
    groups = [(name, cli.get_command(context, name)) for name in cli.list_commands(context)]
    for name, command in groups:
        assert command is not None
        inner = command.commands.items() if isinstance(command, click.Group) else ()
        groups += [(f"{name} {own}", found) for own, found in inner]
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield pytest.param(parameter, id=f"{name} {parameter.opts[0]}")


@pytest.mark.parametrize("option", list(_options()))
def test_every_option_says_what_it_means(option: click.Option) -> None:
    meaning = (option.help or "").split("[default")[0].strip()
    assert len(meaning.split()) >= 2, "more than a default"
    assert meaning.endswith("."), meaning


def _commands() -> Iterator[object]:
    """Those that do something of their own; ``analyze service token`` has its subcommands alone."""
    context = click.Context(cli, info_name="analyze")
    found = [(name, cli.get_command(context, name)) for name in cli.list_commands(context)]
    for name, command in found:
        assert command is not None
        if isinstance(command, click.Group):
            found += [(f"{name} {inner}", own) for inner, own in command.commands.items()]
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield pytest.param(command, id=name)


@pytest.mark.parametrize("command", list(_commands()))
def test_every_command_can_be_run_again_with_v(command: click.Command) -> None:
    """A fault's hint says so, and ``serve`` and most of ``service`` refused it."""
    assert any("-v" in parameter.opts for parameter in command.params)
