"""Writes docs/reference.md: commands, options, exit codes and search-space keys from the code.

``python tools/write_reference.py`` (``make docs``) writes it; with ``--check`` it only says whether
the page is up to date (exit code 1 if not).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from analyzer import errors
from analyzer.cli.main import cli
from analyzer.domain.space import PARAMETER_NAMES
from analyzer.resources import search_spaces_dir

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
_COMMON = ("--json", "--verbose", "--quiet", "--help")

_EXIT_CODES = (
    (0, "Done; for `search` and `verify`: the SLA holds (or `--accept estimated` allowed it)."),
    (1, "A fault of the program."),
    (2, "Wrong usage or unusable input."),
    (3, "No configuration meets the SLA, or `verify` refutes the claim."),
    (4, "The budget ended undecided."),
    (130, "Interrupted; everything measured so far is stored, and `--resume` goes on."),
)

# What each parameter of a space means; a parameter without a line here fails the generation.
_SPACE_KEYS = {
    "precision": "`fp32`, `fp16`, `int8`; with TensorRT also `bf16` and `fp8`, where the GPU has "
    "them.",
    "quantization": "`static`, `dynamic` or `best` (of the two); with `int8` alone.",
    "backend": "`onnxruntime` or `tensorrt`; what is not here is left out.",
    "accelerator": "`none`, `openvino` (on a CPU) or `tensorrt` (on a GPU): an execution "
    "accelerator of ONNX Runtime; what is not here is left out.",
    "instance_count": "A number, or `cores` or `cores/2`.",
    "intra_op_threads": "A number, or `cores` or `cores/2`; 0 is ONNX Runtime's own choice.",
    "graph_level": "`optimization.graph.level`: −1 basic, 0 all, 1 extended, 2 no optimizations.",
    "execution_mode": "`sequential` or `parallel` (branches of the graph beside each other).",
    "inter_op_threads": "Threads of the parallel mode; 0 is ONNX Runtime's own choice.",
    "cuda_graphs": "`true` or `false`; of the backend `tensorrt`, and not on the server of this "
    "program.",
    "pinned_memory": "`true` or `false`: input and output through pinned memory, on a GPU.",
    "cudnn_search": "`heuristic`, `exhaustive` (Triton's default: slow at each new shape) or "
    "`default`: how cuDNN chooses algorithms for ONNX Runtime on a GPU.",
    "dynamic_batching": "`true` or `false`; if left out, `true` where `max_batch_size` is given.",
    "max_batch_size": "A number of inferences; `dynamic_batching: true` needs it.",
    "preferred_batch_size": "A list of batch sizes; empty means the maximum.",
    "max_queue_delay": "A duration with its unit (`5ms`), or 0.",
}
_TOP_KEYS = {
    "name": "What the study calls it; the file's name if left out.",
    "description": "For people.",
    "device": "`cpu` or `gpu`.",
    "threads_per_core": "Instances times threads stay within the cores times this.",
    "parameters": "The parameters below, each a list of choices, or `{choices, when}`: `when` "
    "names the values of earlier parameters under which it exists.",
    "configurations": "Instead of `parameters`: single configurations, in a list.",
}
# Those that stand for no option; the options that one stands for say so themselves.
_VARIABLES = {
    "TRITUNE_CACHE": "In its folder `tritune` lie built variants, fetched models and what `analyze "
    "doctor --calibrate` measured. Else `XDG_CACHE_HOME`, else `~/.cache`.",
    "XDG_CACHE_HOME": "The same where `TRITUNE_CACHE` is not set; in its folder `tritune` "
    "programs that were fetched (`triton`, `perf_analyzer`) are looked for, too.",
    "TRITUNE_TRITON_HOME": "The Triton of `--server triton`: an installation (`/opt/tritonserver`) "
    "or what `make tools` fetched (`.tools/triton`). Else `tritonserver` on the `PATH`.",
    "TRITUNE_TOKEN": "The token of `analyze search --service`.",
    "TRITUNE_OIDC_CLIENT_SECRET": "The secret of `analyze service --auth oidc`.",
    "CUDA_VISIBLE_DEVICES": "GPUs that may be used.",
    "TMPDIR": "Folder for temporary files; with a long name Ray's sockets lie in `/tmp`.",
}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, in the order of the overview."""
    context = click.Context(cli, info_name="analyze")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield from _with_inner(f"analyze {name}", command)


def _with_inner(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for inner in sorted(command.commands):
            yield from _with_inner(f"{name} {inner}", command.commands[inner])


def usage(name: str, command: click.Command) -> str:
    """The arguments of a command."""
    words = [name]
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            word = parameter.metavar or (parameter.name or "").upper()
            words.append(word if parameter.required else f"[{word}]")
    return " ".join(words)


def option_row(option: click.Option) -> str:
    """One row of a command's table."""
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))
    if isinstance(option.type, click.Choice):
        value = " ".join(f"`{choice}`" for choice in option.type.choices)
    elif option.is_flag:
        value = ""
    else:
        value = f"`{option.metavar or option.type.name.upper().replace(' RANGE', '')}`"
    text = option.help or ""
    default = _default(option)
    if "[default" in text:
        text, _, rest = text.partition("[default:")
        default = rest.strip().rstrip("]")
    return f"| {names} | {_cell(value)} | {_cell(text.strip())} | {_cell(default)} |"


def _default(option: click.Option) -> str:
    if option.required:
        return "required"
    if not option.show_default or option.default is None:
        return ""
    return str(option.default)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _first_sentence(command: click.Command) -> str:
    return (command.help or "").split("\n\n")[0].replace("\n", " ").strip()


def variables() -> dict[str, str]:
    """Every environment variable, and what it means."""
    found = dict(_VARIABLES)
    for name, command in commands():
        for option in command.params:
            if isinstance(option, click.Option) and isinstance(option.envvar, str):
                known = found.get(option.envvar)
                stands = f"`{option.opts[0]}` of" if known is None else f"{known},"
                found[option.envvar] = f"{stands} `{name}`"
    return found


def _error_codes() -> list[tuple[str, int, str]]:
    found: list[tuple[str, int, str]] = []

    def walk(kind: Any) -> None:
        if all(kind.code != code for code, _, _ in found):
            found.append((kind.code, kind.exit_code, (kind.__doc__ or "").strip().splitlines()[0]))
        for inner in kind.__subclasses__():
            if inner.__module__ == errors.__name__:  # whatever else a process has imported
                walk(inner)

    walk(errors.AnalyzerError)
    return found


def render() -> str:
    """The whole page."""
    lines = [
        "# Reference",
        "",
        (
            "Written by `make docs` from the code; do not edit it by hand. Metrics and JSON keys "
            "are in [metrics.md](metrics.md)."
        ),
        "",
        (
            "`analyze MODEL --latency-budget 50ms` is `analyze search MODEL …` with that budget. "
            "Nearly every command has `--json` (one JSON document on standard output), `-v` "
            "(tracebacks of errors) and `-q` (no progress, no warnings); `-h` explains each."
        ),
        "",
        (
            "Durations, rates, prices and sizes carry their unit: `250us` `20ms` `0.5s` `5m` `1h`, "
            "`500/s` `30000/min`, `0.7364/h`, `512MiB` `8GiB`."
        ),
    ]
    for name, command in commands():
        lines += ["", f"## {name}", "", f"`{usage(name, command)}`", "", _first_sentence(command)]
        options = [
            parameter
            for parameter in command.params
            if isinstance(parameter, click.Option)
            and not parameter.hidden
            and not set(parameter.opts) & set(_COMMON)
        ]
        if options:
            lines += ["", "| option | value | meaning | default |", "|---|---|---|---|"]
            lines += [option_row(option) for option in options]
    lines += ["", "## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in _EXIT_CODES]
    lines += ["", ("With `--json`, exits 1, 2 and 130 print "
              '`{"schema": 1, "error": {"code", "message", "hint"}}`; `code` is one of:'),
              "", "| code | exit | meaning |", "|---|---|---|"]  # fmt: skip
    lines += [f"| `{code}` | {status} | {text} |" for code, status, text in _error_codes()]
    lines += ["", "## Environment variables", "",
              "Credentials of object stores are in [object-stores.md](object-stores.md).", "",
              "| variable | meaning |", "|---|---|"]  # fmt: skip
    lines += [f"| `{name}` | {meaning} |" for name, meaning in variables().items()]
    shipped = ", ".join(f"`{path.stem}`" for path in sorted(search_spaces_dir().glob("*.yaml")))
    lines += ["", "## Search spaces", "",
              f"`--space` takes a shipped name ({shipped}) or a YAML file with these keys.",
              "", "| key | meaning |", "|---|---|"]  # fmt: skip
    lines += [f"| `{key}` | {meaning} |" for key, meaning in _TOP_KEYS.items()]
    lines += ["", "| parameter | choices |", "|---|---|"]
    names = [name.removesuffix("_us") for name in PARAMETER_NAMES]
    lines += [f"| `{name}` | {_SPACE_KEYS[name]} |" for name in names]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Writes or checks the page; returns the exit code."""
    text = render()
    if "--check" in arguments:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        print(f"{PAGE.name} is {'up to date' if same else 'out of date: run make docs'}.")
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
