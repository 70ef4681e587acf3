"""The response cache: answers of earlier requests by their inputs, bounded in bytes."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.tensors import to_bytes

_ENTRY_OVERHEAD_BYTES = 512  # roughly what the dictionaries and array headers of an entry take


class ResponseCache:
    """Keeps the most recently used answers. Thread-safe.

    Args:
        bytes_max: Most bytes of all answers together.
    """

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: OrderedDict[bytes, tuple[int, Mapping[str, NDArray[Any]]]] = OrderedDict()
        self._lock = threading.Lock()
        self._copies = itertools.count()
        self._generation = 0

    def new_copy_number(self) -> int:
        """A number for a model that was loaded, for :meth:`key`; no other has it."""
        return next(self._copies)

    def key(self, copy_number: int, inputs: Mapping[str, NDArray[Any]]) -> bytes:
        """Under what an answer to ``inputs`` is kept: their names and raw bytes, as in Triton.

        Args:
            copy_number: Instead of Triton's name and version of the model: the next one that is
                loaded under these must not answer with what an old one puts here while it ends.
        """
        digest = hashlib.blake2b(f"{self._generation}\0{copy_number}\0".encode(), digest_size=16)
        for name in sorted(inputs):
            data = to_bytes(inputs[name])
            digest.update(f"{name}\0{len(data)}\0".encode())
            digest.update(data)
        return digest.digest()

    def get(self, key: bytes) -> Mapping[str, NDArray[Any]] | None:
        """The answer under ``key``; its arrays must not be changed."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def put(self, key: bytes, outputs: Mapping[str, NDArray[Any]]) -> None:
        """Stores an answer, owned by the cache from now on; one too large is not stored."""
        size = _ENTRY_OVERHEAD_BYTES + sum(_size(array) for array in outputs.values())
        if size > self._bytes_max:
            return
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self._bytes -= old[0]
            self._entries[key] = (size, outputs)
            self._bytes += size
            while self._bytes > self._bytes_max:
                _, (freed, _) = self._entries.popitem(last=False)
                self._bytes -= freed

    def forget(self) -> None:
        """Drops everything (a model was loaded anew), and what keys from before would find.

        An ensemble's answer that is put later may come from a member that is no more.
        """
        with self._lock:
            self._generation += 1
            self._entries.clear()
            self._bytes = 0


def _size(array: NDArray[Any]) -> int:
    if array.dtype == np.dtype(object):
        # 64: the header of a Python object of type bytes (33 bytes) and its pointer, rounded up.
        return sum(len(value) + 64 for value in array.reshape(-1).tolist())
    return array.nbytes
