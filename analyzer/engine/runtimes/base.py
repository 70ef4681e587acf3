"""The seam between a server's instances and the library that runs a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[np.generic]]


class Runtime(Protocol):
    """One instance of a model: a session, a stream or an engine context of its own.

    Used by one thread at a time.
    """

    def run(self, inputs: Tensors) -> Tensors:
        """The outputs of one batch; arrays with the batch axis first where the model is batchable.

        Raises:
            TargetMemoryError: The device is out of memory.
            TargetError: The execution failed.
        """

    def close(self) -> None:
        """Frees the instance."""
