"""The program's three streams, some of which its caller may have closed."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import select
import sys

import click

_ESCAPES = "tritune-escapes"


def open_streams() -> None:
    """Opens those of the three that are closed on nothing; none fails for a character it lacks.

    A file that is opened later would else get the number of one, and whatever is written to that.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number, which is this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    codecs.register_error(_ESCAPES, _escaped)
    for stream in (sys.stdout, sys.stderr):
        # Whoever chose another way than to fail (PYTHONIOENCODING) keeps it.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=_ESCAPES)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""What an encoding lacks, as ``\uXXXX``: Python's own ``\xXX`` is no JSON."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def answer(text: str, *, newline: bool = True) -> None:
    """Writes to standard output; not where whoever reads it has left.

    What the command still has to do, and its exit code, do not depend on a reader.

    Raises:
        OSError: It cannot be written for another reason.
    """
    try:
        click.echo(text, nl=newline)
    except BrokenPipeError:
        if not reader_left():
            raise


def say(text: str, *, newline: bool = True) -> None:
    """Writes to standard error, if there is somebody who reads it."""
    with contextlib.suppress(OSError):
        click.echo(text, nl=newline, err=True)


def reader_left() -> bool:
    """Whether whoever read standard output, a pipe, has stopped reading."""
    poll = select.poll()
    poll.register(1, 0)  # errors alone
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
