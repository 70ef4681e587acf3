"""What uploads, studies and tokens may be called, for the API, its pages and the command line."""

from __future__ import annotations

import re
import unicodedata

from analyzer.errors import UsageError
from analyzer.variants.naming import plain_name

#: An upload's name becomes a file's and a folder's in the job's own folder, and the model's in
#: Triton.
UPLOAD_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$"
#: Names of studies and machine types: what a file name may hold everywhere.
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NAME_MAX = 100  # characters of an upload's
_TOKEN_NAME_MAX = 128
_ID_SHOWN = 8  # characters of a job's id in its study's name
# Control characters and those that change the direction of the text around them, line ends.
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def upload_name(stem: str) -> str:
    """What a file is called as an upload: as the local commands name a model, 100 characters.

    Args:
        stem: Its name without folder and ending.
    """
    return plain_name(stem, longest=_NAME_MAX)


def own_study_name(model_name: str, job: str) -> str:
    """What a job's study is called where its user named none: the model's name and the job's id.

    A long name of a model is cut: the command takes no longer names of studies than 100 characters.
    """
    end = f"-{job[:_ID_SHOWN]}"
    return f"{model_name[: _NAME_MAX - len(end)]}{end}"


def check_study_name(name: str) -> None:
    """Raises UsageError where no study of a service can have the name."""
    if not PLAIN_NAME.fullmatch(name):
        raise UsageError(
            f"{name[:_NAME_MAX]!r} is no name of a study.",
            hint=f"Use letters, digits, '.', '_' and '-', {_NAME_MAX} at most, a letter or a digit "
            "first.",
        )


def check_token_name(name: str) -> None:
    """Raises UsageError where a list could not show a token's name as it is."""
    if not name.strip() or len(name) > _TOKEN_NAME_MAX:
        raise UsageError(
            f"A token's name has 1 to {_TOKEN_NAME_MAX} characters.",
            hint="Name who uses it, like ci or alice.",
        )
    if any(unicodedata.category(character) in _UNSHOWN for character in name):
        raise UsageError(
            f"The token's name {name!a} holds characters that are not shown.",
            hint="Use letters, digits, spaces and signs.",
        )
