"""``analyze worker``: measures for a service, on this machine's device."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from analyzer.cli import options as shared
from analyzer.cli.machine import constants_folder
from analyzer.cli.service import log_to_stderr, require_service
from analyzer.cli.service_limits import worker_limit_options
from analyzer.errors import StoreError, UsageError

if TYPE_CHECKING:
    from analyzer.service.limits import ServiceLimits


@click.command()
@click.option(
    "--store",
    "store_url",
    required=True,
    metavar="URL",
    envvar="TRITUNE_SERVICE_STORE",
    help="The service's database; also TRITUNE_SERVICE_STORE.",
)
@click.option(
    "--data",
    required=True,
    metavar="URL",
    help="The service's files: a folder that it shares with this machine.",
)
@click.option(
    "--lease",
    type=shared.DURATION_S,
    default="30s",
    show_default=True,
    help="How long a job stays with this worker while it does not answer.",
)
@click.option("--parent", type=int, hidden=True, help="End with the process of this number.")
@click.option("-v", "--verbose", is_flag=True, help="More detail on standard error.")
@worker_limit_options
def worker(
    *,
    limits: ServiceLimits,
    store_url: str,
    data: str,
    lease: float,
    parent: int | None,
    verbose: bool,
) -> None:
    """Measure for a service: take its jobs one after the other, on this machine.

    Ends on SIGTERM or Ctrl-C; a job that runs then is stopped, kept, and goes on elsewhere.
    """
    require_service()
    from analyzer.hardware.lifetime import die_with_parent
    from analyzer.service.content import ContentStore, is_of
    from analyzer.service.database import IDLE_S, open_service_database
    from analyzer.service.folder import ANALYZE
    from analyzer.service.worker import Worker, compiled_twin, this_device

    if lease < 1:
        raise UsageError("--lease must be 1s at least.", hint="Write it like --lease 30s.")
    folder = _folder(data)
    _check_there(store_url, folder)
    log_to_stderr(verbose=verbose)
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stop.set())
    if parent is not None:
        die_with_parent(signal.SIGTERM, parent_pid=parent)
    idle_s = min(IDLE_S, lease)  # what it holds must be free when its lease has ended
    with open_service_database(store_url, upgrade=False, idle_s=idle_s) as database:
        with database.reading() as connection:
            own = parent is not None or is_of(connection, folder)
        if not own:
            # It would take every job, and each would fail.
            raise UsageError(
                f"--data: the folder {data} has none of the files of the database "
                f"{database.place}.",
                hint="Give the folder of analyze service, which all of its machines share; see "
                "whether it is mounted here.",
            )
        Worker(
            database,
            ContentStore(folder),
            this_device(),
            limits,
            stopping=stop.is_set,
            lease_s=lease,
            analyze=replace(ANALYZE, compiled=compiled_twin(), constants=constants_folder()),
        ).run()


def _check_there(store_url: str, folder: Path) -> None:
    """Looks for the service's database and folder, which the service makes and no worker does.

    Raises:
        UsageError: There is no such folder.
        StoreError: There is no such file of SQLite, or ``store_url`` names no database.
    """
    from analyzer.store.engine import parse_url

    url = parse_url(store_url)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise StoreError(
            f"--store: the database {url.database} does not exist.",
            hint="Start analyze service on it once: it makes the tables.",
        )
    if not folder.is_dir():
        raise UsageError(
            f"--data: {folder} is {'no folder' if folder.exists() else 'not there'}.",
            hint="Name the folder that the service keeps its files in, as this machine sees it.",
        )


def _folder(data: str) -> Path:
    """The folder that ``--data`` names, by its path or as ``file://``.

    Raises:
        UsageError: It names something else.
    """
    if data.startswith("file://"):
        return Path(data.removeprefix("file://"))
    if "://" in data:
        raise UsageError(
            f"--data {data}: only folders are supported.",
            hint="Share the service's folder with this machine, and name it here.",
        )
    return Path(data)
