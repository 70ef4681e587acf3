"""One request over HTTP, for the tests of the server's answers."""

from __future__ import annotations

import http.client
import json
from typing import Any

from analyzer.server.app import Addresses


def send_to(
    address: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own to ``host:port``: status, headers and body."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    if isinstance(body, dict | list):
        body = json.dumps(body).encode()
    try:
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        found = {key.lower(): value for key, value in response.getheaders()}
        return response.status, found, response.read()
    finally:
        connection.close()


def send(
    addresses: Addresses,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """As :func:`send_to`, to a server of ours."""
    return send_to(addresses.http, method, path, body, headers)
