"""The layers hold, and importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "analyzer"

# A higher number may import a lower one; equals may not import each other.
LAYERS = {
    "errors": 0,
    "resources": 0,
    "domain": 1,
    "stats": 2,
    "hardware": 2,
    "modelconfig": 2,
    "spaces": 2,
    "store": 2,
    "engine": 3,
    "server": 4,
    "targets": 4,
    "variants": 4,
    "twin": 4,
    "load": 5,
    "measure": 6,
    "search": 7,
    "cluster": 7,
    "report": 8,
    "export": 8,
    "cli": 9,
}
HEAVY = (
    "google.protobuf",
    "grpc",
    "msgspec",
    "numba",
    "onnx",
    "onnxruntime",
    "optuna",
    "plotly",
    "pydantic",
    "pynvml",
    "ray",
    "scipy",
    "sqlalchemy",
    "tensorrt",
    "tritonclient",
    "uvicorn",
)
LINES_MAX = 450
COMMANDS = [
    "search",
    "report",
    "export",
    "verify",
    "serve",
    "measure",
    "simulate",
    "studies",
    "doctor",
]


def _part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append((node.lineno, node.module or ""))
    return found


def test_every_module_has_a_layer() -> None:
    parts = {_part(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "_resources"}
    assert parts <= set(LAYERS), parts - set(LAYERS)


def test_imports_only_go_down() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        own = _part(path)
        if own == "__init__":
            continue
        for line, module in _imports(path):
            parts = module.split(".")
            if parts[0] != "analyzer" or len(parts) < 2 or parts[1] == own:
                continue
            if LAYERS[parts[1]] >= LAYERS[own]:
                wrong.append(f"{path.relative_to(PACKAGE.parent)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_a_module_is_read_in_one_sitting() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    long = {str(path): length for path, length in lengths.items() if length > LINES_MAX}
    assert not long, f"find the part that is a purpose of its own: {long}"


def _loaded_by(code: str) -> set[str]:
    script = (
        f"import sys\n{code}\n"
        f"print('loaded', *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.strip().splitlines()[-1].split()[1:])


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert _loaded_by("import analyzer, analyzer.cli.main") == set()


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_works_and_loads_nothing_heavy(command: str) -> None:
    code = (
        "from analyzer.cli.main import main\n"
        f"try:\n    main({[command, '--help'] if command else ['--help']!r})\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
    )
    assert _loaded_by(code) == set()


def test_no_file_names_a_package_index() -> None:
    hosts = ("py" + "pi.org", "pythonhosted" + ".org", "npm" + "js.org", "deb." + "debian.org")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=PACKAGE.parent, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    found = []
    for name in listed:
        path = PACKAGE.parent / name
        if path.is_file() and path.stat().st_size < 2_000_000:
            text = path.read_bytes()
            found += [f"{name}: {host}" for host in hosts if host.encode() in text]
    assert not found, found
