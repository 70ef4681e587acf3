"""The layers hold, and importing is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "analyzer"

# A higher number may import a lower one; equals may not import each other.
LAYERS = {
    "errors": 0,
    "resources": 0,
    "paths": 0,
    "domain": 1,
    "buckets": 2,
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
    "service": 9,
    "cli": 10,
    "__main__": 11,
}
HEAVY = (
    "alembic",
    "fastapi",
    "google.protobuf",
    "grpc",
    "msgspec",
    "numba",
    "obstore",
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
    "service",
    "worker",
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


def test_what_starts_with_each_job_and_upload_loads_nothing_heavy() -> None:
    started = ("keeper", "archive", "inspect_main", "sandbox", "snapshot_main")
    imports = "\n".join(f"import analyzer.service.{name}" for name in started)
    assert _loaded_by(f"{imports}\nassert 'numpy' not in sys.modules") == set()


def test_a_worker_loads_little_before_its_first_job() -> None:
    assert _loaded_by("import analyzer.service.worker") == {"msgspec", "pydantic", "sqlalchemy"}


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


def _modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = _modules()
    uses = {}
    for name, path in modules.items():
        wanted = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                both = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= {one if one in modules else str(node.module) for one in both}
            elif isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
        uses[name] = (wanted & modules.keys()) - {name, "analyzer"}
    done: set[str] = set()
    open_: list[str] = []

    def visit(name: str) -> None:
        assert name not in open_, f"a circle: {' -> '.join([*open_[open_.index(name) :], name])}"
        if name not in done:
            open_.append(name)
            for used in sorted(uses[name]):
                visit(used)
            done.add(open_.pop())

    for name in sorted(uses):
        visit(name)


def test_every_name_on_the_page_of_the_architecture_exists() -> None:
    root = PACKAGE.parent
    text = (root / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_*]+\.[a-z0-9.]+)(?::([A-Za-z_.]+))?`", text))
    assert len(named) > 60
    missing = []
    for file, name in sorted(named):
        candidates = [p for base in (PACKAGE, root) for p in base.glob(file)]
        if not candidates:
            missing.append(file)
        elif name:
            defined = _defined(candidates[0])
            missing += [f"{file}:{name}"] if name not in defined else []
    folders = re.findall(r"`([a-z_]+(?:/[a-z_]+)*/)`", text)
    missing += [f for f in folders if not any((b / f).is_dir() for b in (PACKAGE, root))]
    assert not missing, missing
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert rooms <= set(re.findall(r"[a-z]+", text)), rooms


def _defined(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names
