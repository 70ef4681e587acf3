"""How PostgreSQL is connected to: a server that vanishes is noticed within seconds."""

from __future__ import annotations

import os
import socket

import pytest

from analyzer.store.engine import make_engine, parse_url
from analyzer.store.results import open_store

pytestmark = pytest.mark.postgres

OPTIONS = {
    "TCP_USER_TIMEOUT": 10_000,  # milliseconds
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}


def told(url: str) -> dict[str, int]:
    """What the kernel was told of a connection."""
    engine = make_engine(parse_url(url))
    try:
        with engine.connect() as connection:
            own = connection.connection.driver_connection
            assert own is not None
            with socket.socket(fileno=os.dup(own.pgconn.socket)) as peer:
                return {
                    name: peer.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                    for name in OPTIONS
                }
    finally:
        engine.dispose()


def test_a_server_that_vanishes_is_noticed_sooner_than_a_lease_ends(postgres_url: str) -> None:
    found = told(postgres_url)
    assert found == OPTIONS
    rest_s = found["TCP_KEEPIDLE"] + found["TCP_KEEPINTVL"] * found["TCP_KEEPCNT"]
    assert max(rest_s, found["TCP_USER_TIMEOUT"] / 1e3) < 30
    with open_store(postgres_url) as store:
        arguments = store.engine_kwargs_for_optuna()["connect_args"]
    assert arguments["tcp_user_timeout"] == 10_000


def test_what_the_url_says_of_it_counts(postgres_url: str) -> None:
    found = told(f"{postgres_url}?keepalives_idle=60")
    assert found == OPTIONS | {"TCP_KEEPIDLE": 60}
