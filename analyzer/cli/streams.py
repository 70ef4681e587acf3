"""The program's three streams, some of which its caller may have closed."""

from __future__ import annotations

import contextlib
import os
import select
import sys

import click


def open_streams() -> None:
    """Opens those of the three that are closed on nothing.

    A file that is opened later would else get the number of one, and whatever is written to that.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number, which is this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def say(text: str, *, newline: bool = True) -> None:
    """Writes to standard error, if there is somebody who reads it."""
    with contextlib.suppress(OSError):
        click.echo(text, nl=newline, err=True)


def reader_left() -> bool:
    """Whether whoever read standard output, a pipe, has stopped reading."""
    poll = select.poll()
    poll.register(1, 0)  # errors alone
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
