"""What the README and the reference promise is there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

import write_reference

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```", README, flags=re.M | re.S)


def _commands() -> list[str]:
    joined = "\n".join(BLOCKS).replace("\\\n", " ")
    return [
        line.split("#")[0].strip() for line in joined.splitlines() if line.startswith("analyze ")
    ]


def test_the_reference_is_up_to_date() -> None:
    assert write_reference.PAGE.read_text(encoding="utf-8") == write_reference.render(), (
        "run make docs"
    )


def test_the_reference_tells_every_variable_of_ours() -> None:
    # For the processes that a command starts.
    inner = {
        "TRITUNE_COMMAND", "TRITUNE_LEASE", "TRITUNE_REACHED_AT", "TRITUNE_SESSION",
    }  # fmt: skip
    code = "".join(path.read_text() for path in (ROOT / "analyzer").rglob("*.py"))
    used = set(re.findall(r"\"(TRITUNE_[A-Z_]+)\"", code))
    told = {name for name in write_reference.variables() if name.startswith("TRITUNE_")}
    assert used - inner == told


@pytest.mark.parametrize("line", _commands())
def test_every_command_of_the_readme_parses(line: str) -> None:
    from analyzer.cli.main import _COMMANDS, cli

    words = shlex.split(line)[1:]
    if words[0] not in _COMMANDS:
        words = ["search", *words]
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None
    # Parses the options (types, units, required ones) without running anything.
    command.make_context(words[0], words[1:])


def test_there_are_commands_to_check() -> None:
    assert len(_commands()) >= 8


def test_make_knows_the_targets_that_the_readme_names() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))
    named = set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", README, flags=re.M))
    assert {first or second for first, second in named} <= targets


def test_make_demo_is_the_command_that_the_readme_shows() -> None:
    options = [word for word in shlex.split(_commands()[0]) if word.startswith("--")]
    recipe = (ROOT / "Makefile").read_text().split("demo: $(STAMP)")[1].split("\n\n")[0]
    for option in options:
        assert option in recipe, option


@pytest.mark.parametrize("code", [0, 3, 4])
def test_make_demo_says_what_undecided_means(tmp_path: Path, code: int) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    program = tmp_path / ".venv" / "bin" / "analyze"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    done = subprocess.run(["make", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert f"exit code {code}" in done.stdout
    assert ("4 means undecided" in done.stdout) == (code == 4)
    assert (done.returncode == 0) == (code == 0)
    # make's own line still tells the code.
    assert (f"Error {code}" in done.stderr) == (code != 0)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?://)([^)#]+)", README))))
def test_every_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
