"""Models of which a configuration declares only some outputs: a server gives no others."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from analyzer.variants.linked_weights import beside_weights, load_whole
from analyzer.variants.onnx_file import external_files, hash_model, load_onnx
from analyzer.variants.precision import save_shared_model


def with_outputs(file: Path, names: Collection[str], scratch: Path) -> Path:
    """The model at ``file`` with the outputs ``names`` alone: itself, or a copy in ``scratch``.

    What other outputs look like then neither keeps it from being batched nor is computed. Names
    that are none of its outputs are passed over; without any left the model stays as it is.

    Raises:
        ModelError: The file cannot be read.
        BuildError: ``scratch`` cannot be written.
    """
    proto = load_onnx(file)
    own = [value.name for value in proto.graph.output]
    kept = [name for name in own if name in names]
    if kept in ([], own):
        return file
    chosen = hashlib.sha256("\0".join(kept).encode()).hexdigest()
    behind = beside_weights(file, proto)
    external = external_files(behind, proto)
    source = hash_model(behind, external)
    target = scratch / f"{source[:24]}-{chosen[:8]}" / file.name
    if not target.is_file():
        proto = load_whole(behind, external)
        outputs = [value for value in proto.graph.output if value.name in kept]
        del proto.graph.output[:]
        proto.graph.output.extend(outputs)
        save_shared_model(proto, target)
    return target
