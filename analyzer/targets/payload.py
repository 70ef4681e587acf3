"""Requests prepared before a run, so that sending one costs no encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.model import NUMPY_DTYPES
from analyzer.errors import TargetError

# A few different requests are enough to keep caches honest; more would only take memory.
PAYLOADS_MAX = 32
_PAYLOAD_BYTES_MAX = 64 << 20  # of all prepared requests of one size together
_KEPT_BYTES_MAX = 256 << 20  # of those of all sizes, from one connection to the next
_DATATYPES = {name: datatype for datatype, name in NUMPY_DTYPES.items()}


def datatype_of(array: NDArray[Any]) -> str:
    """Triton's name of an array's type.

    Raises:
        TargetError: Triton has none for it.
    """
    try:
        return _DATATYPES[array.dtype.name]
    except KeyError:
        raise TargetError(f"Triton has no data type for {array.dtype.name}.") from None


class RequestPool:
    """Rows of input from which requests take theirs in turn.

    Args:
        inputs: An array per input; its first axis counts rows: single inferences where the model
            is batchable, else whole inputs. All have the same number of rows, at least one. A
            batched input without further axes has the shape [batch, 1] in requests: Triton's
            configurations know no empty ``dims``, and reshape it.
        batchable: Whether the model's tensors carry a batch axis.
    """

    def __init__(self, inputs: Mapping[str, NDArray[Any]], *, batchable: bool) -> None:
        assert inputs, "a request needs an input"
        counts = {len(rows) for rows in inputs.values()}
        assert len(counts) == 1, counts
        self.rows = counts.pop()
        assert self.rows >= 1
        self.batchable = batchable
        self._inputs = {
            name: np.ascontiguousarray(rows[:, None] if batchable and rows.ndim == 1 else rows)
            for name, rows in inputs.items()
        }
        self._kept: dict[tuple[Callable[..., bytes], int], list[bytes]] = {}
        self._kept_bytes = 0

    @property
    def inputs(self) -> Mapping[str, NDArray[Any]]:
        """The rows by input; not to be modified."""
        return self._inputs

    def tensors(self, number: int, batch_size: int) -> dict[str, NDArray[Any]]:
        """The inputs of request ``number``: ``batch_size`` rows from where the last one ended.

        Raises:
            TargetError: The model has no batch axis and ``batch_size`` is not 1.
        """
        if not self.batchable:
            if batch_size != 1:
                raise TargetError(
                    f"A request of {batch_size} inferences needs a model with a batch axis.",
                    hint="Leave --request-batch-size at 1.",
                )
            return {name: rows[number % self.rows, ...] for name, rows in self._inputs.items()}
        picked = np.arange(number * batch_size, (number + 1) * batch_size) % self.rows
        return {name: rows[picked] for name, rows in self._inputs.items()}

    def payloads(
        self, batch_size: int, encode: Callable[[dict[str, NDArray[Any]]], bytes]
    ) -> Iterator[bytes]:
        """Encoded requests of ``batch_size`` inferences, in turn, without end.

        They are kept: for an equal ``encode`` the next connection has nothing left to encode.

        Raises:
            TargetError: As of :meth:`tensors`.
        """
        prepared = self._kept.get((encode, batch_size))
        if prepared is None:
            prepared = self._encoded(batch_size, encode)
            self._kept_bytes += sum(map(len, prepared))
            if self._kept_bytes > _KEPT_BYTES_MAX:
                self._kept.clear()
                self._kept_bytes = sum(map(len, prepared))
            self._kept[encode, batch_size] = prepared
        return cycle(prepared)

    def _encoded(
        self, batch_size: int, encode: Callable[[dict[str, NDArray[Any]]], bytes]
    ) -> list[bytes]:
        prepared = [encode(self.tensors(0, batch_size))]
        wanted = min(PAYLOADS_MAX, _PAYLOAD_BYTES_MAX // max(len(prepared[0]), 1))
        # Beyond this many requests the rows repeat.
        repeats_after = -(-self.rows // batch_size) if self.batchable else self.rows
        prepared += [
            encode(self.tensors(number, batch_size))
            for number in range(1, min(wanted, repeats_after))
        ]
        return prepared


class Payloads(dict[int, Iterator[bytes]]):
    """The encoded requests of one connection by their inferences, each size when it is asked for.

    Args:
        encode: As of :meth:`RequestPool.payloads`.
    """

    def __init__(
        self, pool: RequestPool, encode: Callable[[dict[str, NDArray[Any]]], bytes]
    ) -> None:
        super().__init__()
        self._pool, self._encode = pool, encode

    def __missing__(self, batch_size: int) -> Iterator[bytes]:
        self[batch_size] = found = self._pool.payloads(batch_size, self._encode)
        return found

    def prepare(self, batch_sizes: Iterable[int]) -> None:
        """As of :class:`~analyzer.targets.target.Connection`."""
        for size in batch_sizes:
            _ = self[size]
