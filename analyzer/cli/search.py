"""``analyze search``: from a model and an SLA to a certified configuration."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from analyzer.cli import options
from analyzer.cli.search_options import SearchOptions
from analyzer.domain.configuration import PRECISIONS
from analyzer.errors import UsageError
from analyzer.search.samplers import SAMPLERS

# The contract's: an answer, none is possible, the budget did not decide.
EXIT_CODES = {"found": 0, "estimated": 0, "infeasible": 3, "undecided": 4}


def _precisions(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    wrong = [name for name in names if name not in PRECISIONS]
    if wrong or not names:
        raise UsageError(
            f"--precisions: {', '.join(wrong) or 'nothing'} is none of {', '.join(PRECISIONS)}.",
            hint="Write --precisions fp32,fp16.",
        )
    return names


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in (value or "").split(",") if part.strip()))
    if value is not None and not names:
        raise UsageError(
            f"{param.opts[0]}: {value!r} names none.", hint="Write it like g5.xlarge,m7g.large."
        )
    return names


@click.command()
@click.argument("model", required=False, type=options.Place())
@click.option(
    "--latency-budget",
    type=options.LATENCY_BUDGET_MS,
    required=True,
    help="How long a request may take (50ms), from the moment it is meant to be sent.",
)
@options.sla
@click.option("--target-rate", type=options.RATE_RPS, help="Rate that must be carried (500/s).")
@click.option(
    "--objective",
    type=click.Choice(["capacity", "cost", "latency", "memory"]),
    help="What is optimised.  [default: capacity; cost with a target rate]",
)
@click.option(
    "--max-memory",
    type=options.MEMORY_BYTES,
    help="Limit on peak memory: of the GPU, or of the server on a CPU (8GiB).",
)
@click.option(
    "--max-accuracy-drop",
    type=options.Fraction(),
    default=0.01,
    show_default=True,
    help="Limit on the absolute loss of accuracy (0.01: one point in a hundred).",
)
@click.option(
    "--precisions",
    callback=_precisions,
    metavar="LIST",
    help=f"Precisions to consider, of {','.join(PRECISIONS)}.  [default: all]",
)
@click.option(
    "--calibration-data",
    type=click.Path(path_type=Path),
    metavar="FILE.npz",
    help="Real inputs, one array each, optionally labels: they calibrate int8 and score every "
    "precision. Without them int8 is recommended only if --precisions names it.",
)
@options.input_shape
@click.option(
    "--space",
    metavar="NAME|FILE",
    help="Search space: cpu, gpu, ablation or a YAML file.  [default: by device]",
)
@options.load
@click.option(
    "--budget",
    type=options.BUDGET_S,
    default="5m",
    show_default=True,
    help="Wall time of the whole command (60s); at most a quarter more where that completes a "
    "first proof.",
)
@click.option(
    "--accept",
    type=click.Choice(["certified", "estimated"]),
    default="certified",
    show_default=True,
    help="estimated: recommend the best candidate even where the budget did not prove it.",
)
@click.option(
    "--max-trials", type=click.IntRange(1), metavar="N", help="Configurations to measure at most."
)
@click.option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    default="twin",
    show_default=True,
    help="What proposes configurations: twin, the simulation, or a sampler of Optuna's.",
)
@click.option(
    "--server",
    default="embedded",
    show_default=True,
    metavar="SERVER",
    help="What is load-tested: embedded, triton, grpc://HOST:PORT or http://HOST:PORT.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "gpu"]),
    default="auto",
    show_default=True,
    help="What the model runs on.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Load tests at a time.  [default: one per device]",
)
@click.option("--ray-address", metavar="ADDR", help="A Ray cluster.  [default: a local Ray]")
@click.option(
    "--instance-type",
    metavar="NAME",
    help="Machine type of the price catalogue; with --price any name.",
)
@click.option(
    "--instance-types",
    callback=_names,
    metavar="LIST",
    help="Machine types of a --ray-address cluster to compare by cost (g5.xlarge,m7g.large); its "
    "machines are told apart by Ray's label instance-type.",
)
@click.option(
    "--price", type=options.PRICE_PER_HOUR, help="Price of a machine, in US dollars (0.7364/h)."
)
@click.option(
    "--prices",
    "prices_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Price catalogue for --instance-type (YAML).  [default: the shipped one]",
)
@options.store
@click.option("--study", metavar="NAME", help="Name of the study.  [default: model and a number]")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with --study NAME; nothing is measured twice on one machine.",
)
@click.option(
    "--export", "export_dir", type=options.Place(), metavar="DIR|URL",
    help="Write the recommended configuration as a Triton repository, here or in an object store.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="With --export: replace a configuration that differs.")
@click.option(
    "--report", "report_file", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the report (.html, .md, .csv, .json).",
)  # fmt: skip
@click.option(
    "--seed",
    type=options.SEED,
    metavar="N",
    help="Seed of all that is random.  [default: drawn and recorded]",
)
@click.option(
    "--executor",
    type=click.Choice(["ray", "in-process"]),
    default="ray",
    show_default=True,
    help="Where trials run: Ray actors, or this process.",
)
@click.option(
    "--service",
    metavar="URL",
    help="Let this service search (http://HOST:8040; its token in TRITUNE_TOKEN).",
)
@options.common
def search(**values: Any) -> int:
    """Find the configuration of MODEL that keeps a latency SLA, and certify it.

    MODEL is an ONNX file or a Triton model directory, here or in an object store
    (s3://BUCKET/PATH, s3://HOST:PORT/BUCKET/PATH, gs://, az://, as://); without it, the one model
    in ./model_repository or the one .onnx file here.

    Exit code 0: found (or an estimate that --accept allows); 3: nothing keeps the SLA; 4: the
    budget ended undecided; 130: interrupted, --resume goes on.

    \b
    analyze model.onnx --latency-budget 50ms --target-rate 500/s --price 0.7364/h
    analyze model.onnx --latency-budget 50ms --budget 60s --report report.html --export models/
    """
    started = time.monotonic()
    if values.pop("service") is not None:
        from analyzer.cli.remote import search_remotely

        return search_remotely(click.get_current_context(), EXIT_CODES)
    from analyzer.cli.search_run import run_search_command
    from analyzer.cli.search_types import run_types_command

    chosen: SearchOptions = SearchOptions(
        **{**values, "seed": options.seed_or_drawn(values["seed"])},
        seed_given=values["seed"] is not None,
        started=started,
        command=options.command_line(click.get_current_context().obj or ()),
    )
    run = run_types_command if chosen.instance_types else run_search_command
    return EXIT_CODES[run(chosen)]
