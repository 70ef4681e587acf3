"""``analyze service``: jobs over HTTP; and what its operator needs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from analyzer.cli import options as shared
from analyzer.cli.service_limits import limit_arguments, limit_options
from analyzer.cli.service_login import login_options
from analyzer.cli.streams import say
from analyzer.domain.units import counted
from analyzer.errors import MissingPartError, UsageError

if TYPE_CHECKING:
    from analyzer.service.limits import ServiceLimits
    from analyzer.service.oidc import OidcOptions


def _of_group(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Click's callback: a subcommand takes over what is given before it, not behind it."""
    name = str(parameter.name)
    above: click.Context | None = context
    while above is not None:
        if above.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return value if above is context else above.params[name]
        above = above.parent
    return value


_DATA = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("tritune-service"),
    show_default=True,
    metavar="DIR",
    callback=_of_group,
    help="Folder of the uploaded and made files.",
)
_STORE = click.option(
    "--store",
    "store_url",
    metavar="URL",
    envvar="TRITUNE_SERVICE_STORE",
    callback=_of_group,
    help="Database of the jobs (SQLite or PostgreSQL); also TRITUNE_SERVICE_STORE.  "
    "[default: service.db in the folder of --data]",
)


def require_service() -> None:
    """Raises MissingPartError where the service's libraries are not installed."""
    from importlib.util import find_spec

    if find_spec("fastapi") is None or find_spec("alembic") is None:
        raise MissingPartError(
            "The service needs libraries that are not installed.",
            hint="pip install 'tritune[service]'",
        )


def store_of(store_url: str | None, data: Path, *, make: bool = True) -> str:
    """The database: as given, else a file in the service's folder.

    Args:
        make: Whether that folder is made.

    Raises:
        UsageError: The folder cannot be made.
    """
    if store_url:
        return store_url
    try:
        if make:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--data: {data} cannot be the service's folder: "
            f"{'it is a file' if data.is_file() else error.strerror}.",
            hint="Name another folder, or one that is not there yet.",
        ) from error
    from analyzer.store.engine import file_url

    return file_url(data / "service.db")


def log_to_stderr(*, verbose: bool = False) -> None:
    """What the service says to its operator: lines on standard error."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )


@click.group(invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8040,
    show_default=True,
    help="Port to listen on; 0: a free one.",
)
@_STORE
@_DATA
@click.option(
    "--workers",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    help="Workers on this machine; one measures at a time on each device.",
)
@click.option(
    "--auth",
    type=click.Choice(["none", "tokens", "oidc"]),
    default="none",
    show_default=True,
    help="Who may use it: everybody on this machine, who has a token, or also who logs in with "
    "OpenID Connect.",
)
@login_options
@click.option("-v", "--verbose", is_flag=True, help="More detail on standard error.")
@limit_options
@click.pass_context
def service(
    context: click.Context,
    *,
    limits: ServiceLimits,
    oidc: OidcOptions | None,
    host: str,
    port: int,
    store_url: str | None,
    data: Path,
    workers: int,
    auth: str,
    verbose: bool,
) -> None:
    """Serve searches to a team over HTTP: an API, a page, and workers that measure.

    \b
    analyze service                                        on this machine alone, with SQLite
    analyze service --store postgresql://… --host 0.0.0.0 --auth tokens
    analyze service token create --name ci --scope write   prints a token once
    """
    if context.invoked_subcommand is not None:
        return
    require_service()
    from analyzer.service.serve import ServiceOptions, serve

    log_to_stderr(verbose=verbose)
    serve(
        ServiceOptions(
            host=host,
            port=port,
            store_url=store_of(store_url, data),
            data=data,
            workers=workers,
            tokens=auth != "none",
            oidc=oidc,
            limits=limits,
            worker_arguments=tuple(limit_arguments(limits)),
        ),
        say=say,
    )


@service.group()
def token() -> None:
    """Make tokens, list and revoke them."""


@token.command("create")
@click.option("--name", required=True, help="Whose it is, for people and the audit.")
@click.option("--project", default="default", show_default=True, help="Whose jobs it sees.")
@click.option(
    "--scope",
    type=click.Choice(["read", "write", "admin"]),
    default="write",
    show_default=True,
    help="What it may do.",
)
@click.option("--expires", type=shared.KEPT_S, help="How long it is good (720h).")
@_STORE
@_DATA
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@shared.tracebacks
def create_token(
    name: str,
    project: str,
    scope: Any,
    expires: float | None,
    store_url: str | None,
    data: Path,
    as_json: bool,
) -> None:
    """Make a token and print it: it is shown this once."""
    require_service()
    if expires is not None and expires <= 0:
        raise UsageError(
            "--expires: a token must be good for some time.", hint="Write it like --expires 720h."
        )
    import json

    from analyzer.service import audit, auth
    from analyzer.service.database import open_service_database

    with (
        open_service_database(store_of(store_url, data)) as database,
        database.writing() as connection,
    ):
        made = auth.create_token(
            connection, project=project, name=name, scope=scope, expires_in_s=expires
        )
        audit.note(
            connection, project, "command line", "token.create", made.id, name=name, scope=scope
        )
        place = database.place
    # A service that has another database knows nothing of it.
    say(f"The token is good for the service whose database is {place}.")
    if as_json:
        click.echo(
            json.dumps(
                {
                    "id": made.id,
                    "token": made.secret,
                    "project": made.project,
                    "name": made.name,
                    "scope": made.scope,
                }
            )
        )
    else:
        click.echo(made.secret)


@service.command("gc")
@click.option(
    "--keep",
    type=shared.KEPT_S,
    default="2160h",
    show_default=True,
    help="How long jobs stay after their end (2160h: 90 days).",
)
@_STORE
@_DATA
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@shared.tracebacks
def collect_garbage(keep: float, store_url: str | None, data: Path, as_json: bool) -> None:
    """Remove jobs that ended long ago, and files that nothing needs any more.

    Safe while the service runs; meant to be started once a day. Files stay for an hour after the
    last job or upload that refers to them.
    """
    require_service()
    import json
    from dataclasses import asdict

    from analyzer.service.content import ContentStore, is_of
    from analyzer.service.database import open_service_database
    from analyzer.service.gc import collect

    # It runs by itself, at night: an upgrade is the operator's, with the other processes stopped.
    with open_service_database(store_of(store_url, data, make=False), upgrade=False) as database:
        with database.reading() as connection:
            own = is_of(connection, data)
        if not own:
            # Rows would go, and their files stay for ever.
            raise UsageError(
                f"--data: the folder {data} has none of the files of the database "
                f"{database.place}.",
                hint="Give the folder of analyze service; nothing was removed.",
            )
        done = collect(database, ContentStore(data), keep_s=keep)
    if as_json:
        click.echo(json.dumps(asdict(done)))
    else:
        click.echo(
            f"Removed {counted(done.jobs, 'job')} and {counted(done.files, 'file')} "
            f"({counted(done.bytes, 'byte')})."
        )


@token.command("list")
@click.option("--project", default="default", show_default=True, help="Whose tokens.")
@_STORE
@_DATA
@shared.tracebacks
def list_tokens(project: str, store_url: str | None, data: Path) -> None:
    """List a project's tokens: id, scope, name, and whether each is still good."""
    require_service()
    from analyzer.service.auth import tokens_of
    from analyzer.service.database import open_service_database

    with (
        open_service_database(store_of(store_url, data)) as database,
        database.reading() as connection,
    ):
        for row in tokens_of(connection, project):
            click.echo(f"{row.id}  {row.scope:<5}  {row.status:<7}  {row.name}")


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@click.option("--project", default="default", show_default=True, help="Whose token it is.")
@_STORE
@_DATA
@shared.tracebacks
def revoke_token(token_id: str, project: str, store_url: str | None, data: Path) -> None:
    """End a token now; ID as `token list` prints it."""
    require_service()
    from analyzer.service import audit, auth
    from analyzer.service.database import open_service_database

    with (
        open_service_database(store_of(store_url, data)) as database,
        database.writing() as connection,
    ):
        if not auth.revoke_token(connection, project, token_id):
            raise UsageError(
                f"The project {project!r} has no token {token_id!r} that is still good.",
                hint="analyze service token list shows them.",
            )
        audit.note(connection, project, "command line", "token.revoke", token_id)
