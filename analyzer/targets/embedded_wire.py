"""The records between an embedded server and its client; many of them go in one system call.

A control socket (``SOCK_SEQPACKET``, one JSON object per message) starts, asks and ends the server;
each connection is one end of a socket pair that is passed over it. Tensors do not travel: a request
names the rows of the input pool that the server has loaded.
"""

from __future__ import annotations

import json
import socket
from struct import Struct
from typing import Any

# request number, batch size, first row of the pool (modulo its length)
REQUEST = Struct("<III")
# request number, status, then queue, compute input, infer and output in nanoseconds
REPLY = Struct("<IIqqqq")

# More than a thousand replies, and more than the longest control message: the text of a fatal
# error, cut to 8,000 characters.
RECEIVE_BYTES = 1 << 16
#: What a line of the server's log begins with that says why a request failed.
REQUEST_FAILED = "request failed: "
CONTROL_BYTES = 1 << 16


def send_message(control: socket.socket, **fields: Any) -> None:
    """Sends one control message."""
    control.send(encode_message(fields))


def encode_message(fields: dict[str, Any]) -> bytes:
    """A control message, for :func:`decode_message`."""
    return json.dumps(fields).encode()


def decode_message(data: bytes) -> dict[str, Any]:
    """The control message in ``data``; empty at the end of the stream."""
    message: dict[str, Any] = json.loads(data) if data else {}
    return message
