"""Which models of a repository need which others: ensembles and their members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Members = Mapping[str, Sequence[str]]


def members_first(names: Iterable[str], members: Members) -> list[str]:
    """``names``, each after those of its members that are among them.

    Args:
        members: Names of the models that an ensemble needs, by its own; a circle is no error here.
    """
    wanted = list(names)
    ordered: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in ordered or name in above or name not in wanted:
            return
        for member in members.get(name, ()):
            visit(member, (*above, name))
        ordered[name] = None

    for name in wanted:
        visit(name, ())
    return list(ordered)


def dependents(name: str, members: Members) -> list[str]:
    """The ensembles that need ``name``, directly or through others, each after what it needs.

    Args:
        members: As in :func:`members_first`.
    """
    found = {name}
    grown = True
    while grown:
        more = {own for own, needed in members.items() if found.intersection(needed)} - found
        grown = bool(more)
        found |= more
    return members_first(sorted(found - {name}), members)
