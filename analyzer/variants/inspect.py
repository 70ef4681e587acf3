"""Reads a model: its tensors, whether it can be batched, and what its inputs may hold.

Whether ONNX Runtime can run a model is asked of ONNX Runtime itself, by opening a session. ONNX's
own checker is not used: it refuses models that run (operators beside the standard, weights behind
symbolic links) and accepts models that do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.errors import ModelError
from analyzer.variants.example_shapes import accepted_shapes, output_ranks
from analyzer.variants.first_axis import (
    Shapes,
    given_reason,
    needs_rows,
    whole_shapes,
    without_batch,
)
from analyzer.variants.graph import (
    Amount,
    amounts,
    half_weights,
    quantized_weights,
    table_ranges,
    trains,
)
from analyzer.variants.inputs import synthetic_inputs
from analyzer.variants.linked_weights import beside_weights
from analyzer.variants.onnx_file import (
    default_name,
    external_files,
    hash_model,
    load_onnx,
    locate_onnx,
)
from analyzer.variants.open_rows import outputs_in_the_way, with_open_rows
from analyzer.variants.random_numbers import draws
from analyzer.variants.scalars import with_dimensions
from analyzer.variants.served_types import refuse_strings, served_type
from analyzer.variants.session import open_session
from analyzer.variants.shapes import (
    Declared,
    Dims,
    as_sizes,
    declared_dims,
    is_length,
    known,
    resolve,
    rows_elsewhere,
    state_loops,
    unbatched_reasons,
    unknown_shapes,
)
from analyzer.variants.try_model import rows_to_try, try_model

# More than three of a kind say nothing new.
_REASONS_SHOWN = 3
# Height and width of an image, as detectors take them to give boxes in its pixels.
_IMAGE_SIZE = (640, 640)
_WIDE_INTEGERS = ("INT16", "INT32", "INT64", "UINT16", "UINT32", "UINT64")


def inspect_model(
    path: Path,
    *,
    input_shapes: Shapes | None = None,
    written: Shapes | None = None,
    name: str | None = None,
    scratch: Path | None = None,
) -> ModelInfo:
    """What there is to know about the model at ``path``; opens a session to be sure that it runs.

    Ranges of integer inputs: those of the tables they index (:func:`~analyzer.variants.graph.
    table_ranges`); without a table, 8-bit ones may hold anything and wider ones hold 0 and 1, which
    is right for masks and segment ids and inside any table. Lengths of sequences are the full one,
    sizes of images 640.

    Args:
        path: An ONNX file or a Triton model directory.
        input_shapes: Shapes by input, without the batch axis, for inputs with dynamic dimensions; a
            named dimension given once holds for every input that has it. With the first axis of a
            model that only seems to have a batch: where a name or a run shows that it has none.
        written: Shapes that a configuration has; those of every dimension are used where they show
            that the first is no batch (:func:`~analyzer.variants.first_axis.without_batch`).
        name: The name to serve it under; default from the file or directory.
        scratch: Where a model with scalars, or with a wrong number of rows, is kept in the form
            that Triton can serve (:mod:`~analyzer.variants.scalars`, ``open_rows``), which is then
            the model; None leaves it as it is.

    Raises:
        BuildError: ``scratch`` cannot be written.
        ModelError: The file cannot be used, or ``input_shapes`` do not fit or are missing.
        MissingPartError: ONNX Runtime is not installed, or the memory does not suffice.
    """
    path = Path(path)
    file = locate_onnx(path).absolute()
    proto = load_onnx(file)
    file = beside_weights(file, proto)
    external = external_files(file, proto)
    refuse_strings(proto)  # first: operators on strings may need what is not installed
    session = open_session(file)
    given = input_shapes or {}
    inputs = [_declared(proto, value, "input") for value in session.get_inputs()]
    inputs = _with_rank(proto, inputs, given)
    flat = _inlined(proto)
    ranges = _value_ranges(flat, inputs)
    outputs = [_declared(proto, value, "output") for value in session.get_outputs()]
    if not inputs:
        raise ModelError(
            f"{file} has no inputs, so there is nothing to send to it.",
            hint="Export the model with its inputs.",
        )
    if unranked := _without_shape(proto.graph.output, outputs):
        ranks = _ranks(session, inputs, given, ranges)
        outputs = [
            replace(tensor, dims=(None,) * ranks.get(tensor.name, 0))
            if tensor.name in unranked
            else tensor
            for tensor in outputs
        ]
    reasons = unbatched_reasons(inputs, outputs)
    if reasons and scratch is not None and (rows := outputs_in_the_way(inputs, outputs)):
        target = scratch / f"{hash_model(file, external)[:24]}-rows" / file.name
        called = name or default_name(path)
        again = partial(inspect_model, input_shapes=input_shapes, written=written, name=called)
        if (corrected := with_open_rows(file, external, rows, target, again)) is not None:
            return corrected
    if not reasons and (trained := trains(proto)):
        reasons = (f"its {trained} computes over the whole batch, as in training",)
    told = without_batch(inputs, written or {})
    given = {**told, **given}
    whole = whole_shapes(inputs, given)
    if not reasons and whole and (told or _is_no_batch(path, whole, given)):
        reasons = (given_reason(whole, given),)
    loops = state_loops(inputs, outputs)
    batchable = not reasons
    elsewhere = rows_elsewhere(inputs, outputs)
    shapes, symbols = resolve(
        inputs,
        given,
        batchable=batchable,
        states=[name for name, _ in loops],
        rows=elsewhere[0] if elsewhere is not None else None,
    )
    weights = half_weights(proto) or quantized_weights(proto)
    ranges, counting = _counting(flat, shapes, ranges, batchable=batchable)
    notes = (
        *_notes(reasons, loops, weights, draws(proto)),
        *_sizes_note(inputs, given),
        *counting,
    )
    scalars = [tensor.name for tensor in (*inputs, *outputs) if not tensor.dims]
    if scalars and scratch is not None:
        served = scratch / hash_model(file, external)[:24] / file.name
        if not served.is_file():
            with_dimensions(file, external, scalars, served)
        name = name or default_name(path)
        model = inspect_model(served, input_shapes=input_shapes, written=written, name=name)
        shown = ", ".join(map(repr, scalars))
        note = f"Triton serves no scalars, so one dimension of size 1 is added to {shown}."
        return replace(model, notes=(*notes, note))
    drop = 1 if batchable else 0
    model = ModelInfo(
        name=name or default_name(path),
        path=str(file),
        sha256=hash_model(file, external),
        batchable=batchable,
        fixed_batch=None if batchable else _fixed_batch(inputs, outputs, shapes),
        inputs=_input_specs(inputs, shapes, ranges),
        outputs=tuple(_output_spec(tensor, symbols, drop) for tensor in outputs),
        opset=next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0),
        size_bytes=sum((file.parent / part).stat().st_size for part in (file.name, *external)),
        external_files=external,
        notes=notes,
    )
    _refuse_empty((*model.inputs, *model.outputs))
    if any(-1 in spec.shape for spec in model.inputs):
        raise unknown_shapes(
            shapes,
            batchable=batchable,
            example=accepted_shapes(
                session, (flat or proto).graph, model.inputs, shapes, batchable=batchable
            ),
        )
    return model


def _output_spec(tensor: Declared, symbols: Mapping[str, int], drop: int) -> TensorSpec:
    """An output without its first ``drop`` dimensions."""
    dims = tensor.dims[drop:]
    shape, declared = as_sizes(known(dims, symbols)), as_sizes(dims)
    return TensorSpec(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=shape,
        declared=declared if declared != shape else None,
    )


def _input_specs(
    inputs: Sequence[Declared],
    shapes: Mapping[str, Dims],
    ranges: Mapping[str, tuple[int, int]],
) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            name=tensor.name,
            datatype=tensor.datatype,
            shape=as_sizes(shapes[tensor.name]),
            value_range=ranges.get(tensor.name),
        )
        for tensor in inputs
    )


def _without_shape(values: Iterable[Any], tensors: Sequence[Declared]) -> set[str]:
    """Those of ``tensors`` of which neither the graph nor ONNX Runtime tells the rank.

    A session shows them like scalars.

    Args:
        values: The graph's inputs or outputs.
    """
    unsaid = {value.name for value in values if not value.type.tensor_type.HasField("shape")}
    return {tensor.name for tensor in tensors if not tensor.dims and tensor.name in unsaid}


def _with_rank(
    proto: Any, inputs: Sequence[Declared], given: Mapping[str, tuple[int, ...]]
) -> list[Declared]:
    """``inputs``, those that the graph declares without a shape with the rank of the given one.

    Raises:
        ModelError: None is given.
    """
    unranked = _without_shape(proto.graph.input, inputs)
    for name in sorted(unranked - given.keys()):
        raise ModelError(
            f"The model does not declare a shape for the input {name!r}.",
            hint=f"Add --input-shape {name}:N,… with its dimensions (without the batch axis), or "
            "export the model with shapes.",
        )
    return [
        replace(tensor, dims=(None,) * (1 + len(given[tensor.name])))
        if tensor.name in unranked
        else tensor
        for tensor in inputs
    ]


def _refuse_empty(tensors: Sequence[TensorSpec]) -> None:
    for tensor in tensors:
        if 0 in tensor.shape:
            raise ModelError(
                f"The tensor {tensor.name!r} has an empty dimension {list(tensor.shape)}, and "
                "Triton serves dimensions of at least 1.",
                hint="Export the model without it.",
            )


def _ranks(
    session: Any,
    inputs: Sequence[Declared],
    given: Mapping[str, tuple[int, ...]],
    ranges: Mapping[str, tuple[int, int]],
) -> dict[str, int]:
    """How many dimensions each output has, as one run shows; empty where the model does not run."""
    batchable = not unbatched_reasons(inputs, ()) and not whole_shapes(inputs, given)
    shapes, _ = resolve(inputs, given, batchable=batchable)
    specs = _input_specs(inputs, shapes, ranges)
    return output_ranks(session, specs, shapes, batchable=batchable)


def _is_no_batch(path: Path, whole: Sequence[Declared], given: Shapes) -> bool:
    """Whether the first dimensions of the inputs ``whole`` are lengths, by their names or by a run.

    Where one row does not run, or its rows prove to be a length whose size must be given, a run of
    the given shapes decides.

    Args:
        given: Shapes by input; those of ``whole`` with the first dimension.

    Raises:
        ModelError: Neither one row runs nor the given ones, but another number of them.
    """
    if all(map(is_length, whole)):
        return True
    rest = {tensor.name: given[tensor.name][1:] for tensor in whole}
    try:
        model = inspect_model(path, input_shapes={**given, **rest})
    except ModelError:
        return False  # these shapes do not fit at all
    rows = rows_to_try(model, None)
    try:
        return not try_model(model, rows)[0].batchable
    except ModelError:
        message = ""
    try:
        whole_model = inspect_model(path, written=given)
        if not whole_model.batchable:
            try_model(whole_model, synthetic_inputs(whole_model, 1, 0))
            return True
    except ModelError as error:
        message = error.message
    asked = needs_rows(model, rows)
    if asked is None:
        return False
    raise ModelError(message or asked.message, hint=asked.hint)


def _fixed_batch(
    inputs: Sequence[Declared], outputs: Sequence[Declared], shapes: Mapping[str, Dims]
) -> int | None:
    """The one first dimension that all inputs have, fixed or one row; None if there is none.

    One of more than a row is a batch only if an output has it too; otherwise it is a window of
    samples, or the features themselves.
    """
    kept = {shape[0] for shape in shapes.values() if shape}
    size = kept.pop() if len(kept) == 1 else None
    if size == 1 or not isinstance(size, int):
        return size if size == 1 else None
    fixed = {tensor.dims[0] for tensor in inputs if tensor.dims} == {size}
    answered = any(tensor.dims[:1] == (size,) for tensor in outputs)
    alone = all(len(tensor.dims) < 2 for tensor in inputs)
    # A later dimension that is called a batch leaves none for the first, which is time then.
    later = any(isinstance(dim, str) and "batch" in dim.lower() for t in inputs for dim in t.dims)
    return size if fixed and answered and not alone and not later else None


def _sizes_note(
    inputs: Sequence[Declared], given: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """Which sizes that the graph leaves open are fixed, as they were given."""
    fixed = [
        f"{tensor.name!r} {list(given[tensor.name])}"
        for tensor in inputs
        if tensor.name in given
        and any(not isinstance(dim, int) for dim in tensor.dims[-len(given[tensor.name]) :])
    ]
    told = f"Only the given sizes are measured and exported: {', '.join(fixed)}."
    return (told,) if fixed else ()


def _notes(
    reasons: Sequence[str], loops: Sequence[tuple[str, str]], weights: str, random: str
) -> tuple[str, ...]:
    """What to say of a model that cannot be batched, carries a state, is no fp32 model or draws."""
    notes = []
    if reasons:
        shown = [*reasons[:_REASONS_SHOWN], *(["…"] if len(reasons) > _REASONS_SHOWN else [])]
        notes.append(f"Served unbatched: {'; '.join(shown)}.")
    if loops:
        pairs = ", ".join(f"{old!r} comes back as {new!r}" for old, new in loops[:_REASONS_SHOWN])
        notes.append(
            f"The model carries a state ({pairs}): requests are measured with the same state"
            " each time."
        )
    if weights:
        notes.append(f"The weights are {weights}: the precision fp32 means the model as it is.")
    if random:
        notes.append(
            f"The model draws random numbers ({random}): two answers to one request differ, so the"
            " accuracy of its variants says little of them."
        )
    return tuple(notes)


def _declared(proto: Any, value: Any, role: str) -> Declared:
    """A session's NodeArg as our own record."""
    dims = declared_dims(value.shape)
    return Declared(name=value.name, datatype=served_type(proto, value, role), dims=dims)


def _inlined(proto: Any) -> Any:
    """``proto`` without functions of its own; None where they cannot be replaced."""
    from onnx import checker, inliner

    if not proto.functions:
        return proto
    try:
        return inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, checker.ValidationError):  # what ONNX's library raises
        return None


def _value_ranges(proto: Any | None, inputs: Sequence[Declared]) -> dict[str, tuple[int, int]]:
    """Of integer inputs, and of others that index a table; ``proto`` None knows of no tables."""
    ranges = {} if proto is None else table_ranges(proto)
    return {
        tensor.name: ranges.get(tensor.name, _IMAGE_SIZE if _is_image_size(tensor) else (0, 1))
        for tensor in inputs
        if tensor.name in ranges or tensor.datatype in _WIDE_INTEGERS
    }


def _is_image_size(tensor: Declared) -> bool:
    """Whether an input of integers holds a height and a width, by its name and its shape."""
    return tensor.dims[-1:] == (2,) and "size" in tensor.name.lower()


def _counting(
    proto: Any | None,
    shapes: Mapping[str, Dims],
    ranges: Mapping[str, tuple[int, int]],
    *,
    batchable: bool,
) -> tuple[dict[str, tuple[int, int]], tuple[str, ...]]:
    """``ranges`` with the most for inputs that say how much work there is, and what is to be said.

    Less would make up requests that take less time than real ones.
    """
    lead = (None,) if batchable else ()
    whole = {name: (*lead, *dims) for name, dims in shapes.items()}
    known_ranges, notes = dict(ranges), []
    for name, amount in ({} if proto is None else amounts(proto, whole)).items():
        low, high = known_ranges.get(name, (0, 1))
        value = 1 if amount.most is None else amount.most
        guessed = (low, high) in ((0, 1), _IMAGE_SIZE)
        if guessed or (amount.most is not None and low <= value <= high):
            known_ranges[name] = (value, value)
        if amount.most is None or amount.kind != "steps":
            notes.append(_amount_note(name, amount, known_ranges[name]))
    return known_ranges, tuple(notes)


def _amount_note(name: str, amount: Amount, made_up: tuple[int, int]) -> str:
    """What is to be said of an input that says how much work a request is and is ``made_up``."""
    low, high = made_up
    as_what = f"it is made up as {low}" + (f" to {high}" if high > low else "")
    if amount.kind == "steps":
        said, effect = "often a loop runs", "it is made up and the loop runs hardly at all"
    elif amount.kind == "best":
        said, effect = "many of the best values are given", as_what
        effect += ", which is all of them" if amount.most == low else ""
    else:
        said, effect = "large tensors are", f"{as_what}, and real requests may be more work"
    return (
        f"The input {name!r} says how {said}. Without --calibration-data {effect}: give real"
        " values."
    )
