"""The commands that a report tells its reader to type: with the study, and the store it lies in."""

from __future__ import annotations

import shlex

from analyzer.domain.study import StudyResult

DEFAULT_STORE = "sqlite:///results.db"
"""The database that a command uses where ``--store`` is not given."""


def command_of(result: StudyResult) -> list[str]:
    """The words of the command that began a study; empty where it was not kept."""
    return shlex.split(result.provenance.get("command") or "")


def budget_options(result: StudyResult) -> list[str]:
    """``--budget DUR`` as the last command on the study had it; empty where it had none."""
    resumes = result.provenance.get("resumes") or ()
    words = shlex.split(resumes[-1].get("command") or "") if resumes else command_of(result)
    budget = _value(words, "--budget")
    return ["--budget", budget] if budget else []


def without_options(words: list[str], options: dict[str, bool]) -> list[str]:
    """The words of a command without some of its options.

    Args:
        options: The names of these, and whether each takes a value.
    """
    kept = []
    left = iter(words)
    for word in left:
        name, _, value = word.partition("=")
        if name not in options:
            kept.append(word)
        elif options[name] and not value:
            next(left, None)
    return kept


def store_options(result: StudyResult, store_url: str | None) -> list[str]:
    """``--store URL`` where a command needs it to find a study.

    Args:
        store_url: The database that the study was read from; None: the one that its own command
            names.
    """
    url = store_url or _value(command_of(result), "--store")
    return ["--store", url] if url and url != DEFAULT_STORE else []


def study_command(
    verb: str, result: StudyResult, store_url: str | None, options: tuple[str, ...] = ()
) -> str:
    """``analyze export digits-1 …``: a command on a study, as a shell takes it."""
    words = ["analyze", *verb.split(), result.name, *store_options(result, store_url), *options]
    return shlex.join(words)


def export_command(result: StudyResult, store_url: str | None, config_id: str) -> str:
    """The command that exports one configuration of a study."""
    options = ("--config", config_id, "--repository", "models")
    return study_command("export", result, store_url, options)


def _value(words: list[str], option: str) -> str | None:
    """The value of an option in a command; None where it is not given."""
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else next(left, None)
    return None
