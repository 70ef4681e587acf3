"""Dimensions of a model's tensors: which are known, which is the batch, which hold a state.

Names of dimensions are taken from the graph. Exporters also write placeholders (``?``, ``None``,
``unk__12``) where they knew nothing: each of those is an unknown of its own, even if two are spelt
alike. A real name (``batch``, ``tokens``) means the same size wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from analyzer.errors import ModelError
from analyzer.variants.derived_dims import names_in, note_size, size_of

Dims = tuple[int | str | None, ...]

_PLACEHOLDER = re.compile(
    r"\s*|\?+|\*|-?\d+|none|null|nan|any|dyn|dynamic|unknown([_.-].*)?|unk__.*"
    r"|(p2o\.)?DynamicDimension\.\d+",  # Paddle's exporter
    re.IGNORECASE,
)
_ONLY_AXIS_0 = "Triton batches on axis 0 only"
# First dimensions that exporters name after the batch, or after the input itself.
_BATCH_NAME = re.compile(r"batch|^n$|^b$|^bs$", re.IGNORECASE)
# What else they call rows of a batch; torch writes s0, s77, ….
_ROWS_NAME = re.compile(r"^s\d+$|bsz|rows|examples", re.IGNORECASE)
# Dimensions that count what the input is called after (``n_tokens`` of ``tokens``).
_COUNT_NAME = re.compile(r"^(?:n|nr|num|number|nof)(?:_of)?_", re.IGNORECASE)
_STATE_RANK = 3  # [layers, batch, hidden] of recurrent layers
_NEW_VALUE = re.compile(r"[_.]?(?:n|out|new|next)$")
_OLD_VALUE = re.compile(r"[_.]?(?:0|in|old|prev)$")
_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A tensor as the graph declares it; None is a dynamic dimension without a name."""

    name: str
    datatype: str
    dims: Dims


def declared_dims(shape: Sequence[int | str | None] | None) -> Dims:
    """A session's shape with every dynamic dimension as its name, or None if it has none."""
    return tuple(dim if _is_known(dim) else None for dim in shape or ())


def _is_known(dim: int | str | None) -> bool:
    if isinstance(dim, str):
        return not _PLACEHOLDER.fullmatch(dim)
    return dim is not None and dim >= 0


def is_length(tensor: Declared) -> bool:
    """Whether the first dimension has a name of its own that is none of a batch, like ``tokens``.

    Names that exporters make of the input's (``x_dynamic_axes_1``) say nothing. What stands on a
    later axis again (``[n, n]``: distances, an adjacency) is a length whatever its name.
    """
    first = tensor.dims[0] if tensor.dims else None
    if isinstance(first, str) and first in tensor.dims[1:]:
        return True
    if not isinstance(first, str) or _BATCH_NAME.search(first) or _ROWS_NAME.search(first):
        return False
    return re.match(re.escape(tensor.name) + r"(?![^\W_])", first) is None


def unbatched_reasons(inputs: Sequence[Declared], outputs: Sequence[Declared]) -> tuple[str, ...]:
    """Why requests cannot be joined along axis 0, a clause per tensor; empty if they can be.

    What the inputs say suffices: outputs are named only where no input stands in the way.
    """
    batch = {tensor.dims[0] for tensor in inputs if tensor.dims} - {None}
    names = {name for name in batch if isinstance(name, str)}
    if (rows := rows_elsewhere(inputs, outputs)) is not None:
        dim, name, axis = rows
        return (f"input {name!r} has the outputs' rows {dim!r} on axis {axis}, {_ONLY_AXIS_0}",)
    if several := _several_batches(inputs):
        return (several,)
    for role, tensors in (("input", inputs), ("output", outputs)):
        found = tuple(
            f"{role} {tensor.name!r} {reason}"
            for tensor in tensors
            if (reason := _obstacle(tensor.dims, names)) is not None
        )
        if found:
            return found
    return ()


def rows_elsewhere(
    inputs: Sequence[Declared], outputs: Sequence[Declared]
) -> tuple[str, str, int] | None:
    """``(dimension, input, axis)`` where outputs have a row for each of an input's later axis.

    As time-major recurrent networks have: ``[time, batch, features]`` in, ``[batch, …]`` out. Where
    the first axis is called a batch, outputs with another one first are transposed.
    """
    first = {tensor.dims[0] for tensor in inputs if tensor.dims}
    answers = {tensor.dims[0] for tensor in outputs if tensor.dims} - first
    for tensor in inputs:
        lead = tensor.dims[0] if tensor.dims else None
        if isinstance(lead, str) and _BATCH_NAME.search(lead):
            continue
        for axis, dim in enumerate(tensor.dims[1:], start=1):
            if isinstance(dim, str) and dim in answers:
                return dim, tensor.name, axis
    return None


def _several_batches(inputs: Sequence[Declared]) -> str:
    """Where the inputs' first dimensions have names of their own, as items and bags of items."""
    named = {
        dim: tensor.name
        for tensor in inputs
        if tensor.dims
        and isinstance(dim := tensor.dims[0], str)
        and (tensor.name not in dim or _COUNT_NAME.match(dim))
    }
    if len(named) < 2 or all(_BATCH_NAME.search(dim) for dim in named):
        return ""
    shown = ", ".join(f"{dim!r} of {name!r}" for dim, name in list(named.items())[:2])
    return f"the first dimensions of the inputs are different ones ({shown})"


def _obstacle(dims: Dims, batch_names: set[str]) -> str | None:
    """What keeps a tensor from being joined with others along axis 0; None if nothing does."""
    if not dims:
        return "is a scalar"
    for axis, dim in enumerate(dims[1:], start=1):
        if isinstance(dim, str) and dim in batch_names:
            return f"has its dynamic batch dimension {dim!r} on axis {axis}, {_ONLY_AXIS_0}"
    if not isinstance(dims[0], int):
        return None
    if len(dims) == _STATE_RANK and [d for d in dims if not isinstance(d, int)] == [dims[1]]:
        return f"has its only dynamic dimension on axis 1, {_ONLY_AXIS_0}"
    return f"has its first dimension fixed at {dims[0]}"


def state_loops(
    inputs: Sequence[Declared], outputs: Sequence[Declared]
) -> tuple[tuple[str, str], ...]:
    """``(input, output)`` of each state that a client is meant to send back with its next request.

    An output is the next value of an input if their types and shapes agree and so do their names
    but for an ending (``h`` and ``hn``, ``state`` and ``state_out``, ``past.0`` and ``present.0``),
    or for a number at the end that is one more (``h0`` and ``h1``).
    """
    free = list(outputs) if len(inputs) > 1 else []  # a state comes beside an input of its own
    loops: dict[str, str] = {}
    for is_next in (_is_next, _is_counted_on):
        for tensor in inputs:
            output = next((new for new in free if is_next(tensor, new)), None)
            if output is not None and tensor.name not in loops:
                loops[tensor.name] = output.name
                free.remove(output)
    return tuple((tensor.name, loops[tensor.name]) for tensor in inputs if tensor.name in loops)


def _is_counted_on(old: Declared, new: Declared) -> bool:
    """Whether ``new`` is ``old`` with a number that is one more, and both have one shape.

    Bare numbers are names that an exporter counts through.
    """
    before, after = (_NUMBERED.fullmatch(tensor.name.lower()) for tensor in (old, new))
    if before is None or after is None or not before[1] or before[1] != after[1]:
        return False
    same = (old.datatype, old.dims) == (new.datatype, new.dims) and len(old.dims) >= 2
    return same and old.datatype != "BOOL" and int(after[2]) == int(before[2]) + 1


def _is_next(old: Declared, new: Declared) -> bool:
    if old.datatype == "BOOL" or old.name == new.name:
        return False  # a mask that is handed on, or the input itself
    if old.datatype != new.datatype or not len(old.dims) == len(new.dims) >= 2:
        return False
    if any(
        before != after
        for before, after in zip(old.dims, new.dims, strict=True)
        if isinstance(before, int) and isinstance(after, int)
    ):
        return False
    old_name = old.name.lower().replace("past_key_values", "past")
    new_name = new.name.lower().replace("present", "past")
    stems = {old_name, _OLD_VALUE.sub("", old_name)}
    return not stems.isdisjoint({new_name, _NEW_VALUE.sub("", new_name)})


def resolve(
    inputs: Sequence[Declared],
    given: Mapping[str, tuple[int, ...]],
    *,
    batchable: bool,
    states: Sequence[str] = (),
    rows: str | None = None,
) -> tuple[dict[str, Dims], dict[str, int]]:
    """Shapes of the inputs as far as they are known, and the sizes of named dimensions.

    Without the batch axis where the model is batchable; else a dynamic first dimension is 1 unless
    it is given or a length by its name (:func:`is_length`), and so are the dynamic axis 1 of a
    state (``states``: its batch) and a later dimension that is called a batch.

    Args:
        rows: The dimension of the rows where that is a later one; it is 1 instead then.
        given: Shapes by input, without the batch axis; the first axis of a model that cannot be
            batched may be given or left out.

    Raises:
        ModelError: ``given`` does not fit the inputs.
    """
    names = [tensor.name for tensor in inputs]
    for name in given:
        if name not in names:
            raise ModelError(
                f"--input-shape names {name!r}, which is no input of the model.",
                hint=f"Its inputs are: {', '.join(names)}.",
            )
    symbols: dict[str, int] = {}
    own = {tensor.name: tensor.dims[1:] if batchable else tensor.dims for tensor in inputs}
    for name, shape in sorted(given.items(), key=lambda item: is_derived(own[item[0]])):
        own[name] = _given(name, own[name], shape, symbols, batchable=batchable)
    if rows is not None:
        symbols.setdefault(rows, 1)
    if not batchable:
        lengths = {tensor.dims[0] for tensor in inputs if is_length(tensor)}
        for name, dims in own.items():
            own[name] = tuple(
                _one_row(dim, symbols)
                if (axis == 0 and rows is None and dim not in lengths)
                or (axis == 1 and len(dims) == _STATE_RANK and name in states)
                or (axis > 0 and isinstance(dim, str) and "batch" in dim.lower())
                else dim
                for axis, dim in enumerate(dims)
            )
    return {name: known(dims, symbols) for name, dims in own.items()}, symbols


def _one_row(dim: int | str | None, symbols: dict[str, int]) -> int:
    if isinstance(dim, str):
        return symbols.setdefault(dim, 1)
    return 1 if dim is None else dim


def known(dims: Dims, symbols: Mapping[str, int]) -> Dims:
    """``dims`` with the sizes that ``symbols`` tells of named dimensions and those beside them."""
    return tuple(_size(dim, symbols) if isinstance(dim, str) else dim for dim in dims)


def _size(dim: str, symbols: Mapping[str, int]) -> int | str:
    size = size_of(dim, symbols)
    return dim if size is None else size


def is_derived(dims: Dims) -> bool:
    """Whether one of ``dims`` is computed from others."""
    return any(isinstance(dim, str) and bool(names_in(dim)) for dim in dims)


def as_sizes(dims: Dims) -> tuple[int, ...]:
    """``dims`` with −1 for every dynamic dimension."""
    return tuple(dim if isinstance(dim, int) else -1 for dim in dims)


def _given(
    name: str, own: Dims, shape: tuple[int, ...], symbols: dict[str, int], *, batchable: bool
) -> Dims:
    """The shape of an input for which one was given; notes its named dimensions."""
    spelled = f"--input-shape {name}:{','.join(map(str, shape))}"
    shown = ",".join("?" if dim is None else str(dim) for dim in own) or "(none)"
    skipped = len(own) - len(shape)
    if skipped not in ((0,) if batchable else (0, 1)):
        raise ModelError(
            f"{spelled} has {len(shape)} dimensions, and the input has {len(own)} ({shown}).",
            hint="Give every dimension except the batch axis.",
        )
    for dim, value in zip(own[skipped:], shape, strict=True):
        needed = _size(dim, symbols) if isinstance(dim, str) else dim
        if value >= 1 and isinstance(dim, str):
            fits = note_size(dim, value, symbols) == value
        else:
            fits = value >= 1 and needed in (value, None)
        if not fits:
            raise ModelError(
                f"{spelled} does not fit the input's shape {shown}: {value} where"
                f" {needed if value >= 1 else 'a positive number'} is needed.",
                hint="Change only the dynamic dimensions.",
            )
    return (*own[:skipped], *shape)


def unknown_shapes(
    shapes: Mapping[str, Dims], *, batchable: bool, example: Mapping[str, tuple[int, ...]] | None
) -> ModelError:
    """The error that says which dimensions have to be given, by the options that give them.

    Args:
        shapes: Of all inputs, some of them with dynamic dimensions.
        example: Shapes that the model was found to accept, in the same form; None if none were.
    """
    open_inputs = dict(_to_be_given(shapes))
    name, dims = next(iter(open_inputs.items()))
    index = as_sizes(dims).index(-1)
    label = dims[index]
    # The first dimension of what is served unbatched is left out where it is one row.
    drops = {
        key: 1 if not batchable and len(own) > 1 and isinstance(own[0], int) else 0
        for key, own in open_inputs.items()
    }
    size = _placeholder(open_inputs)
    options = " ".join(
        f"--input-shape {key}:{_spell(own[drops[key] :], size)}" for key, own in open_inputs.items()
    )
    hint = f"Add {options} with a number for each {size}"
    if batchable or all(drops.values()):
        hint += " (without the batch axis)"
    if example is not None:
        ready = " ".join(
            f"--input-shape {key}:{_spell(example[key][drop:])}" for key, drop in drops.items()
        )
        hint += f"; the model accepts, for example, {ready}"
    return ModelError(
        f"Dimension {index + (1 if batchable else 0)}"
        + (f" ({label})" if label else "")
        + f" of the input {name!r} is dynamic, so its size must be given.",
        hint=hint + ".",
    )


def _to_be_given(shapes: Mapping[str, Dims]) -> Iterator[tuple[str, Dims]]:
    """The inputs with a dynamic dimension that no input before them settles by its name."""
    named = {dim for dims in shapes.values() for dim in dims if isinstance(dim, str)}
    # What is computed from others follows from them.
    settled = {dim for dim in named if names_in(dim) and names_in(dim) <= named}
    for name, dims in shapes.items():
        if any(dim is None or (isinstance(dim, str) and dim not in settled) for dim in dims):
            settled |= {dim for dim in dims if isinstance(dim, str)}
            rests = [names_in(dim) - settled for dim in dims if isinstance(dim, str)]
            settled |= {next(iter(rest)) for rest in rests if len(rest) == 1}
            settled |= {dim for dim in named if names_in(dim) and names_in(dim) <= settled}
            yield name, dims


def _placeholder(shapes: Mapping[str, Dims]) -> str:
    """What stands for a size to be given: N, unless that is one of several sizes by its name."""
    sizes = [dim for dims in shapes.values() for dim in dims if not isinstance(dim, int)]
    return "SIZE" if "N" in sizes and set(sizes) != {"N"} else "N"


def _spell(dims: Dims, placeholder: str = "N") -> str:
    return ",".join(str(dim) if isinstance(dim, int) else placeholder for dim in dims)
