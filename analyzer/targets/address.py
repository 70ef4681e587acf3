"""``grpc://HOST:PORT`` and ``http://HOST:PORT``: such an address, and the endpoint behind it."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING

from analyzer.errors import TargetCrashError, TargetError, UsageError

if TYPE_CHECKING:
    from analyzer.targets.endpoint import Endpoint

#: In the environment of a job's command: HOST:PORT at which the one server that it may measure is
#: reached, whatever its own address is.
REACHED_AT = "TRITUNE_REACHED_AT"


def parse_address(text: str) -> tuple[str, str, int]:
    """Scheme, host and port of ``grpc://HOST:PORT`` or ``http://HOST:PORT``.

    Raises:
        UsageError: It is neither.
    """
    match = re.fullmatch(r"(grpc|http)://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})/?", text)
    if match is None or not 0 < int(match.group(3)) < 65536:
        raise UsageError(
            f"{text!r} is no address of a server.",
            hint="Write grpc://HOST:PORT (Triton's is 8001) or http://HOST:PORT (8000).",
        )
    return match.group(1), match.group(2).strip("[]"), int(match.group(3))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_elsewhere(server: str) -> bool:
    """Whether ``--server`` names one of another machine, whose GPU and memory are not ours.

    Raises:
        UsageError: It is no address.
    """
    return "://" in server and not is_loopback(parse_address(server)[1])


def open_endpoint(address: str) -> Endpoint:
    """The endpoint at ``grpc://HOST:PORT`` or ``http://HOST:PORT``; close it in the end.

    Raises:
        UsageError: The address is none.
        TargetCrashError: Nothing answers there.
    """
    scheme, host, port = parse_address(address)
    if there := os.environ.get(REACHED_AT):
        _, host, port = parse_address(f"{scheme}://{there}")
    endpoint: Endpoint
    if scheme == "grpc":
        from analyzer.targets.grpc_endpoint import GrpcEndpoint

        endpoint = GrpcEndpoint(host, port)
    else:
        from analyzer.targets.http_endpoint import HttpEndpoint

        endpoint = HttpEndpoint(host, port)
    try:
        # Not readiness: Triton is not ready while any of its models failed to load.
        live = endpoint.live()
    except TargetError as error:
        endpoint.close()
        raise TargetCrashError(
            error.message,  # which names the address
            hint="Start the server, or correct the address (Triton: gRPC 8001, HTTP 8000).",
        ) from error
    if not live:
        endpoint.close()
        raise TargetError(
            f"The server at {address} is not live.", hint="Wait until it has started."
        )
    return endpoint
