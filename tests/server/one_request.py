"""One request over HTTP, for the tests of the server's answers."""

from __future__ import annotations

import http.client
import json
from typing import Any

from analyzer.server.app import Addresses


def send(
    addresses: Addresses,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own."""
    host, _, port = addresses.http.rpartition(":")
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
