"""``analyze service``: which of its options count where, and what they are without a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

pytest.importorskip("fastapi", reason="the extra service is not installed")

from analyzer.cli.service import service
from analyzer.cli.service_login import login_options
from analyzer.service.limits import ServiceLimits
from write_reference import option_row

Call = Callable[..., Any]
CREATE = ("token", "create", "--name", "ci")
LIST = ("token", "list")


@pytest.mark.parametrize(
    ("given", "wrote"),
    [
        (("--data", "own", *CREATE), "own/service.db"),
        (("--data", "own", *CREATE, "--data", "other"), "other/service.db"),
        (("--store", "sqlite:///own.db", *CREATE), "own.db"),
        (("--store", "sqlite:///own.db", *CREATE, "--store", "sqlite:///other.db"), "other.db"),
        (("--data", "own", "token", "list"), "own/service.db"),
        (("--data", "own", "gc"), "own/service.db"),
        (("gc",), "tritune-service/service.db"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_subcommand_has_the_database_that_is_named_before_it(
    call: Call, folder: Path, given: tuple[str, ...], wrote: str
) -> None:
    """The token was made in another database than the one that was named."""
    if given[-1] == "gc":  # which makes none
        assert call("service", *given[:-1], *LIST).code == 0
    answer = call("service", *given)
    assert answer.code == 0, answer
    assert [str(path.relative_to(folder)) for path in folder.rglob("*.db")] == [wrote]


def test_what_is_typed_counts_more_than_a_variable(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_SERVICE_STORE", "sqlite:///variable.db")
    assert call("service", "--store", "sqlite:///typed.db", *CREATE).code == 0
    assert [path.name for path in folder.rglob("*.db")] == ["typed.db"]


@pytest.mark.parametrize(
    "given",
    [
        ("--oidc-issuer", "https://id.example"),
        ("--public-url", "https://t.example"),
        ("--oidc-allow", "sub=x:default:read"),
        ("--auth", "tokens", "--oidc-client-secret-file", "secret"),
    ],
    ids=" ".join,
)
def test_an_option_of_a_login_that_is_not_asked_for_is_refused(
    call: Call, folder: Path, given: tuple[str, ...]
) -> None:
    """The service began, and let nobody log in."""
    answer = call("service", *given, "gc")
    assert answer.code == 2
    option = next(word for word in given if word.startswith(("--oidc", "--public")))
    assert f"{option} is for logins" in answer.stderr and "Add --auth oidc." in answer.stderr
    assert not any(folder.iterdir())


def test_variables_of_a_login_may_be_set_for_all_commands(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_OIDC_ISSUER", "https://id.example")
    monkeypatch.setenv("TRITUNE_OIDC_ALLOW", "sub=x:default:read")
    assert call("service", *LIST).code == 0
    assert call("service", "gc").code == 0


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 jobs and 0 files (0 bytes)"), (1, "1 job and 1 file (1 byte)"),
     (2000, "2,000 jobs and 2,000 files (2,000 bytes)")],
)  # fmt: skip
def test_what_was_removed_is_counted_as_it_is_said(
    call: Call, monkeypatch: pytest.MonkeyPatch, count: int, said: str
) -> None:
    done = SimpleNamespace(jobs=count, files=count, bytes=count)
    monkeypatch.setattr("analyzer.service.gc.collect", lambda *_, **__: done)
    assert call("service", *LIST).code == 0
    assert call("service", "gc").stdout == f"Removed {said}.\n"


def test_a_traceback_can_be_asked_for_behind_a_subcommand(call: Call) -> None:
    """The hint of a fault said so, and ``-v`` was no option there."""
    answer = call("service", "token", "list", "--store", "nonsense", "-v")
    assert answer.code == 2 and "StoreError" in answer.stderr
    assert "No such option" not in answer.stderr


def limits() -> dict[str, click.Option]:
    fields = ServiceLimits.__dataclass_fields__
    options = (one for one in service.params if isinstance(one, click.Option))
    return {str(one.name): one for one in options if one.name in fields and not one.multiple}


def test_every_limit_says_what_it_is_without_it() -> None:
    assert len(limits()) == 8
    for name, option in limits().items():
        _, _, said = (option.help or "").partition("  [default: ")
        value = getattr(ServiceLimits(), name)
        told = said.removesuffix("]")
        if value is None:
            assert told == "no limit"
        else:
            assert option.type.convert(told, option, None) == value, name
        assert option_row(option).endswith(f" | {told} |"), "in the reference as well"


def test_the_scopes_that_are_asked_for_are_told() -> None:
    from analyzer.service.oidc import OidcOptions

    @click.command()
    @login_options
    def told() -> None:
        pass

    (scopes,) = (one for one in told.params if one.name == "oidc_scopes")
    default = ",".join(OidcOptions.__dataclass_fields__["scopes"].default)
    assert isinstance(scopes, click.Option) and f"[default: {default}]" in (scopes.help or "")
