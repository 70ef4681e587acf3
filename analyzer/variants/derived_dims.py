"""Dimensions that are computed from others: sums and products, as ``past + new`` and ``2*s1``.

Exporters write them where an axis of one tensor follows from those of others: a decoder's mask
covers the past and the new tokens, an encoder halves a length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, MutableMapping

_DERIVED = re.compile(r"[\w.]+(\s*[*+]\s*[\w.]+)+")
_PLUS = re.compile(r"\s*\+\s*")
_TIMES = re.compile(r"\s*\*\s*")


def names_in(dim: str) -> set[str]:
    """What ``dim`` is computed from; empty if it is a name of its own."""
    return {name for _, names in _terms(dim) for name in names}


def size_of(dim: str, symbols: Mapping[str, int]) -> int | None:
    """The size of ``dim`` that the sizes ``symbols`` of named dimensions tell; None if none."""
    if dim in symbols:
        return symbols[dim]
    terms = _terms(dim)
    if not terms or not names_in(dim) <= symbols.keys():
        return None
    return sum(factor * math.prod(symbols[name] for name in names) for factor, names in terms)


def note_size(dim: str, size: int, symbols: MutableMapping[str, int]) -> int:
    """Notes in ``symbols`` that ``dim`` has the size ``size``, and what follows of one beside it.

    Returns:
        The size that it has: the next smaller one that is possible (the smallest of all where there
        is none), and the one that is known already.
    """
    found = size_of(dim, symbols)
    if found is None:
        found = size
        unknown = names_in(dim) - symbols.keys()
        open_terms = [term for term in _terms(dim) if unknown.intersection(term[1])]
        if len(open_terms) == 1 and len(unknown) == 1:
            ((factor, names),) = open_terms
            (name,) = unknown
            factor *= math.prod(symbols[other] for other in names if other != name)
            if names.count(name) == 1 and factor > 0:
                rest = sum(
                    known * math.prod(symbols[other] for other in others)
                    for known, others in _terms(dim)
                    if name not in others
                )
                symbols[name] = max(1, (size - rest) // factor)
                found = rest + factor * symbols[name]
    symbols[dim] = found
    return found


def _terms(dim: str) -> list[tuple[int, tuple[str, ...]]]:
    """Summands of ``dim``, each a number times names; empty if it is computed from nothing."""
    if not _DERIVED.fullmatch(dim):
        return []
    found = []
    for term in _PLUS.split(dim):
        factors = _TIMES.split(term)
        number = math.prod(int(factor) for factor in factors if factor.isdecimal())
        found.append((number, tuple(f for f in factors if not f.isdecimal())))
    return found
