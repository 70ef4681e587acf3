"""The command ``analyze``: finds the subcommand, and turns every error into a sentence.

Subcommands are imported when they are used, so that ``--help`` stays fast.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import click

from analyzer import __version__
from analyzer.buckets.location import is_location
from analyzer.cli.signals import end_program, hear_signals, take_signals
from analyzer.cli.streams import open_streams, reader_left, say
from analyzer.errors import AnalyzerError, InputError, RunInterruptedError, UsageError
from analyzer.paths import barred, exists

# Among the flags that one word may hold, -v.
_VERBOSE = re.compile(r"-[hq]*v[hqv]*")
# What the system says of paths that the user may not have, or that are none.
_BARRED = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
# Name of the command -> (module, one line for the overview).
_COMMANDS = {
    "search": ("search", "Find the configuration that keeps a latency SLA (the default)."),
    "report": ("report", "Write a study's report: HTML, Markdown, CSV or JSON."),
    "export": ("export", "Write a configuration as a Triton model repository."),
    "verify": ("verify", "Measure a claim again, with fresh arrivals and a restart."),
    "serve": ("serve", "Serve a model repository over KServe v2 (HTTP and gRPC)."),
    "measure": ("measure", "Run one load test against an endpoint or a local model."),
    "simulate": ("simulate", "Run Triton's scheduler in virtual time."),
    "studies": ("studies", "List studies, or show one trial by trial."),
    "service": ("service", "Serve searches to a team: jobs over HTTP."),
    "worker": ("worker", "Measure for a service, on this machine."),
    "doctor": ("doctor", "Show what this machine has, and what missing parts would add."),
}


class LazyGroup(click.Group):
    """Knows its commands by name; imports one when it is needed.

    A first word that is no command is a model: ``analyze MODEL …`` is ``analyze search MODEL …``.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"analyzer.cli.{_COMMANDS[cmd_name][0]}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _require_no_empty(args)
        with _broken_pipes_told():
            return super().parse_args(ctx, _with_command(args))

    def invoke(self, ctx: click.Context) -> Any:
        with _broken_pipes_told():
            return super().invoke(ctx)


class _PipeBrokenError(Exception):
    """A pipe or connection whose other end is closed; the cause tells more."""


@contextlib.contextmanager
def _broken_pipes_told() -> Iterator[None]:
    """Keeps a broken pipe from click, which would end the program with 1 and without a word."""
    try:
        yield
    except BrokenPipeError as error:
        raise _PipeBrokenError from error


def _require_no_empty(args: list[str]) -> None:
    """Raises UsageError for an option or argument that is empty: nothing takes that."""
    for before, arg in zip(["", *args], args, strict=False):
        option, given, value = arg.partition("=")
        if not (arg == "" or (option.startswith("--") and given and not value)):
            continue
        what = option or (before if before.startswith("-") else "an argument")
        command = " ".join(takewhile(lambda word: word and not word.startswith("-"), args))
        raise UsageError(
            f"{what}: '' is no value.",
            hint=f"Write one, or leave it out; see analyze {command or 'search'} --help.",
        )


def _with_command(args: list[str]) -> list[str]:
    """``args`` with ``search`` put first where no command is named.

    Raises:
        UsageError: The first word is neither a command, nor a file, nor a place of an object store.
    """
    if not args or args[0] in _COMMANDS or args[0] in ("--help", "-h", "--version"):
        return args
    first = args[0]
    if first.startswith("-") or exists(first) or is_location(first):
        return ["search", *args]
    if first.endswith(".onnx") or "/" in first:
        raise UsageError(
            f"{first!r} is neither a command nor a model: "
            f"{barred(first) or 'there is no such file'}.",
            hint="Check the model's path; it is relative to the folder you are in.",
        )
    near = difflib.get_close_matches(first, _COMMANDS, n=3, cutoff=0.5)
    raise UsageError(
        f"{first!r} is neither a command nor a model file.",
        hint=(f"Did you mean {' or '.join(near)}?" if near else "Commands: " + ", ".join(_COMMANDS))
        + ("" if near else ".")
        + " A model is given by its path.",
    )


@click.group(
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example:  analyze model.onnx --latency-budget 50ms --target-rate 500/s",
)
@click.version_option(__version__, prog_name="analyze")
def cli() -> None:
    """Find, prove and export the NVIDIA Triton configuration that keeps a latency SLA.

    An SLA is a promise like: 99 % of the requests within 50 ms.

    \b
    analyze MODEL --latency-budget 50ms        searches, and prints the recommendation
    analyze report -o report.html              writes the page about the newest study
    analyze export --repository models/        writes the recommended configuration for Triton
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with the contract's code."""
    args = list(sys.argv[1:] if argv is None else argv)
    # gRPC, once loaded, would tell on stderr of every child process that we start.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    take_signals()
    if argv is None:
        open_streams()
        hear_signals()
    try:
        code = cli.main(args=args, prog_name="analyze", standalone_mode=False, obj=tuple(args))
        status = code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        status = 2
    except click.ClickException as error:
        status = _show(_from_click(error), args)
    except (KeyboardInterrupt, click.Abort):
        interrupted = RunInterruptedError("Interrupted.", hint="Run the command again.")
        status = _show(interrupted, args)
    except AnalyzerError as error:
        status = _show(error, args)
    except _PipeBrokenError as error:
        status = 0 if reader_left() else _show(_unexpected(error.__cause__ or error), args)
    except Exception as error:
        status = _show(_unexpected(error), args)
    if argv is None:
        end_program(status)
    sys.exit(status)


def _from_click(error: click.ClickException) -> AnalyzerError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "analyze"
    return UsageError(error.format_message(), hint=f"See {path} --help.")


def _unexpected(error: BaseException) -> AnalyzerError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" ({error.filename})" if error.filename else ""
        wrapped = AnalyzerError(
            f"The disk is full{where}.", hint="Free some space; --resume goes on with a study."
        )
    elif isinstance(error, OSError) and error.errno in _BARRED and isinstance(error.filename, str):
        wrapped = InputError(
            f"{error.filename} cannot be used: {error.strerror}.",
            hint="Check the path, and the permissions of it and of the folders above it.",
        )
    else:
        wrapped = AnalyzerError(
            f"A fault of the program: {type(error).__name__}: {error}.",
            hint="Run it again with -v for the traceback, and report it.",
        )
    wrapped.__cause__ = error
    return wrapped


def _show(error: AnalyzerError, args: Sequence[str]) -> int:
    """Prints ``error`` (and as JSON where that was asked for); returns its exit code."""
    if _wants_trace(args):
        say("".join(traceback.format_exception(error)), newline=False)
    hint = error.hint or _hint(error, args)
    say(f"Error: {error.message}")
    if hint:
        say(f"  {hint}")
    if "--json" in args:
        body = {"code": error.code, "message": error.message, "hint": hint}
        with contextlib.suppress(OSError):  # where the answer goes may be what is full
            click.echo(json.dumps({"schema": 1, "error": body}))
    return error.exit_code


def _wants_trace(args: Sequence[str]) -> bool:
    return any(arg == "--verbose" or _VERBOSE.fullmatch(arg) for arg in args)


def _hint(error: AnalyzerError, args: Sequence[str]) -> str:
    """What to do where whoever raised the error did not say."""
    if error.exit_code == AnalyzerError.exit_code:
        return "" if _wants_trace(args) else "Run it again with -v to see where it comes from."
    if error.exit_code != UsageError.exit_code:
        return ""
    command = args[0] if args and args[0] in _COMMANDS else "search"
    return f"Correct it and run the command again; analyze {command} --help explains the options."


if __name__ == "__main__":
    main()
