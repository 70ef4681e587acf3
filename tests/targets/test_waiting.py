"""Waiting for sockets, with few and with many files open."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from analyzer.targets.waiting import wait_for


@pytest.fixture(params=[False, True], ids=["few", "many"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Connected sockets; of ``many`` files, their numbers lie beyond what select knows."""
    ours, other = socket.socketpair()
    if request.param:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limits[1] < 2048:
            pytest.skip("this process may not open 2048 files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
        with ours, other:
            high = [os.dup2(one.fileno(), number) for one, number in ((ours, 1100), (other, 1101))]
        ours, other = (socket.socket(fileno=number) for number in high)
    with ours, other:
        yield ours, other
    if request.param:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_can_be_read_or_written_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, other = pair
    handles = [ours.fileno()]
    assert list(wait_for(handles, 0.01)) == []
    assert list(wait_for(handles, 1.0, writers=handles)) == handles
    other.send(b"x")
    assert list(wait_for(handles, 1.0)) == handles
    assert set(wait_for([*handles, other.fileno()], 1.0)) == set(handles)
