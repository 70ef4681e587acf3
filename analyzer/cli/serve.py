"""``analyze serve``: the embedded server on the network."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from analyzer.cli import options as shared


def _port(name: str, default: int, what: str) -> Callable[[Any], Any]:
    return click.option(
        name,
        type=click.IntRange(0, 65535),
        default=default,
        show_default=True,
        help=f"Port of {what}; 0: a free one.",
    )


@click.command()
@click.argument("repository", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@_port("--http-port", 8000, "KServe v2 over HTTP")
@_port("--grpc-port", 8001, "KServe v2 over gRPC")
@_port("--metrics-port", 8002, "Prometheus metrics")
@click.option(
    "--model-control-mode",
    "mode",
    type=click.Choice(["none", "poll", "explicit"]),
    default="none",
    show_default=True,
    help="none: load all at the start; poll: follow the folder; explicit: load on request.",
)
@click.option(
    "--load-model",
    "load_models",
    multiple=True,
    metavar="NAME",
    help="Load this model at the start (mode explicit; again for more; * for all).",
)
@click.option(
    "--repository-poll-secs",
    "poll_interval_s",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    help="Seconds between two looks at the folder in the mode poll.",
)
@click.option(
    "--disable-auto-complete-config",
    "--strict-model-config",
    "strict",
    is_flag=True,
    help="Do not complete configurations from the models.",
)
@click.option(
    "--model-config-name",
    "config_name",
    metavar="NAME",
    help="Use configs/NAME.pbtxt of a model where there is one.",
)
@click.option(
    "--allow-client-shm",
    type=bool,
    default=False,
    show_default=True,
    metavar="BOOL",
    help="Let clients register system shared memory.",
)
@click.option(
    "--cache-size",
    "cache_bytes",
    type=shared.SIZE_BYTES,
    default=0,
    help="Turn the response cache on, with this size (64MiB).",
)
@click.option("--exit-on-error", is_flag=True, help="End if a model cannot be loaded at the start.")
@shared.tracebacks
def serve(
    repository: Path,
    host: str,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    mode: str,
    load_models: tuple[str, ...],
    poll_interval_s: int,
    strict: bool,
    config_name: str | None,
    allow_client_shm: bool,
    cache_bytes: int,
    exit_on_error: bool,
) -> None:
    """Serve the model repository REPOSITORY over KServe v2: HTTP, gRPC and Prometheus metrics.

    Ports of 0 are free ones; the addresses are printed on stderr when the server is ready. It
    drains and ends on SIGTERM or Ctrl-C.
    """
    from analyzer.engine.backends import usable_gpus
    from analyzer.hardware.gpus import cuda_environment, visible_gpus
    from analyzer.server.app import ServeOptions
    from analyzer.server.app import serve as run

    visible = visible_gpus()
    # CUDA then counts them in this order, whatever it would have chosen.
    os.environ.update(cuda_environment(*visible) if visible else {})
    run(
        ServeOptions(
            repository=repository,
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            mode=mode,  # type: ignore[arg-type]
            load_models=load_models,
            poll_interval_s=poll_interval_s,
            auto_complete=not strict,
            config_name=config_name,
            cache_bytes=int(cache_bytes),
            allow_shared_memory=allow_client_shm,
            exit_on_error=exit_on_error,
            gpus=usable_gpus(len(visible)),
        )
    )
