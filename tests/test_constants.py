"""A number at the top of a module says where it comes from: beside it, or above its block."""

from __future__ import annotations

import ast
import re
from itertools import zip_longest
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "analyzer"
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")


def is_number(value: ast.expr | None) -> bool:
    """A number, or a tuple, list or table of nothing else."""
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    if isinstance(value, ast.Tuple | ast.List):
        return bool(value.elts) and all(is_number(element) for element in value.elts)
    return isinstance(value, ast.Dict) and bool(value.keys) and all(map(is_number, value.values))


def is_constant(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not is_number(node.value):
        return False
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    return all(isinstance(name, ast.Name) and CONSTANT.fullmatch(name.id) for name in names)


def unexplained(source: str) -> list[str]:
    """The lines of constants without an origin."""
    lines = source.splitlines()
    body = ast.parse(source).body
    explained: dict[int, bool] = {}  # by the last line of an assignment
    found = []
    for node, following in zip_longest(body, body[1:]):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        above = lines[node.lineno - 2] if node.lineno > 1 else ""
        documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        of_block = above.startswith("#") or explained.get(node.lineno - 1, False)
        explained[node.end_lineno or node.lineno] = of_block
        if is_constant(node) and not (of_block or documented or "#" in lines[node.lineno - 1]):
            found.append(f"{node.lineno}: {lines[node.lineno - 1]}")
    return found


def test_every_constant_tells_its_origin() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in unexplained(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("A = 1\n", 1),
        ("# of the protocol\nA = 1\nB = 'x'\nC = (2, 3)\n", 0),
        ("# of the protocol\nA = 1\n\nB = -2.0\n", 1),
        ("A = 1  # a byte\nB = {'s': 1}\n", 1),
        ("A, B = 1, 2 << 3\n'''Of the protocol.'''\n", 0),
        ("A = 'x'\nB: tuple[int, ...] = ()\nc = 1\nD = True\n", 0),
    ],
)
def test_a_constant_without_a_comment_is_found(source: str, lines: int) -> None:
    assert len(unexplained(source)) == lines
