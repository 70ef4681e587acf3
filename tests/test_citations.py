"""What pages and code name is there: pages, sections by number, files, and options of commands."""

from __future__ import annotations

import re
from pathlib import Path

import click

from analyzer.cli.main import cli

ROOT = Path(__file__).parents[1]
FOLDERS = ("analyzer", "bench", "docs", "examples", "search_spaces", "templates", "tests", "tools")
KINDS = (".py", ".j2", ".yaml", ".md")
# As in: ``docs/statistics.md``, section 4. The line may end in between; page.md.j2 is no page.
CITED = re.compile(r"([\w./-]*\w\.md)\b(?!\.)(?:[`)\],]*\s+(?:# )?section (\d+))?")


def files() -> list[Path]:
    """Everything that may cite a page."""
    found = [ROOT / "Makefile", ROOT / "Dockerfile", ROOT / "README.md"]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in KINDS]
    return [path for path in found if ".work" not in path.parts and path != Path(__file__)]


def fault(name: str, section: str, cited_in: Path) -> str | None:
    """What is wrong with a citation, if anything.

    A page is named from the root, by its name in docs/, or from beside the page that names it.
    """
    places = (ROOT / name, ROOT / "docs" / name, cited_in.parent / name)
    page = next((place for place in places if place.is_file()), None)
    where = f"{cited_in.relative_to(ROOT)} cites {name}"
    if page is None or not page.resolve().is_relative_to(ROOT):
        return f"{where}, which is no page of this repository"
    headings = re.findall(r"^#+ (\d+)\.", page.read_text(encoding="utf-8"), flags=re.M)
    if section and section not in headings:
        return f"{where}, section {section}, which it does not have"
    return None


def test_what_is_cited_is_there() -> None:
    faults = [
        fault(name, section, path)
        for path in files()
        for name, section in CITED.findall(path.read_text(encoding="utf-8"))
    ]
    assert [text for text in faults if text] == []


def test_wrong_citations_are_found() -> None:
    text = "(``docs/statistics.md``,\n    section 4), certificate.md, section 99, field.md, x.md.j2"
    found = CITED.findall(text)
    assert found == [("docs/statistics.md", "4"), ("certificate.md", "99"), ("field.md", "")]
    assert [fault(*one, ROOT / "Makefile") is not None for one in found] == [False, True, True]


# Code in a page: in a line, or fenced.
CODE = re.compile(r"```.*?```|`[^`]+`", flags=re.S)
# A file or a folder of this repository, from the root or from the package. Those of Triton's have
# a folder "src".
TOPS = {path.name for folder in (ROOT, ROOT / "analyzer") for path in folder.iterdir()}
NAMED_FILE = re.compile(r"(?<![\w./<{$-])([a-z_]+)(/[\w*/-]*(?:\.[a-z0-9]+)*)(?![\w<{])")
NAMED_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
# Options of Triton's own programs, Ray's, kubectl's, pip's, Docker's, PostgreSQL's, curl's
# and useradd's.
OTHERS = {"--exit-timeout-secs", "--input-data", "--metrics-config", "--rate-limit"}
OTHERS |= {"--address", "--disable-usage-stats", "--generate", "--head", "--labels", "--num-cpus"}
OTHERS |= {"--for", "--no-cache-dir", "--port", "--timeout", "--from-literal", "--model-repository"}
OTHERS |= {"--build", "--clean", "--detach", "--home-dir", "--if-exists", "--now", "--rm"}
OTHERS |= {"--system", "--data-binary", "--profile", "--pipe", "--wait", "--uid", "--property"}


def pages() -> list[Path]:
    """The pages that describe the present: a decision that was superseded does not."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if "**Superseded" not in path.read_text(encoding="utf-8")]


def missing_files(text: str) -> set[str]:
    """Files and folders that the code in a page names and that are not there."""
    found = set()
    for code in CODE.findall(text):
        for top, rest in NAMED_FILE.findall(code):
            name = (top + rest).rstrip("/")
            if (
                top in TOPS
                and "/src/" not in f"{name}/"
                and not any(list(base.glob(name)) for base in (ROOT, ROOT / "analyzer"))
            ):
                found.add(name)
    return found


def options() -> set[str]:
    """Every option of our commands, benches and tools."""
    context = click.Context(cli)
    found = {"--help", "--version"}
    open_ = [cli.get_command(context, name) for name in cli.list_commands(context)]
    while open_:
        command = open_.pop()
        assert command is not None
        for parameter in command.params:
            found |= {*parameter.opts, *parameter.secondary_opts}
        open_ += command.commands.values() if isinstance(command, click.Group) else ()
    for folder in ("bench", "tools", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r'argument\(\s*"(--[a-z-]+)"', path.read_text("utf-8")))
    return found


def test_files_that_pages_name_are_there() -> None:
    missing = {page.name: missing_files(page.read_text(encoding="utf-8")) for page in pages()}
    assert {page: names for page, names in missing.items() if names} == {}


def test_options_that_pages_name_are_there() -> None:
    known = options() | OTHERS
    missing = {
        page.name: set(NAMED_OPTION.findall("\n".join(CODE.findall(page.read_text("utf-8")))))
        for page in pages()
    }
    assert {page: names - known for page, names in missing.items() if names - known} == {}


def test_files_that_are_not_there_are_found() -> None:
    text = "`search/none.py:f`, `bench/search.py`, `python bench/none.py --x`, `docs/*.md`, a/b"
    assert missing_files(text + "\n```\nmake bench\ncat tools/none.py tools/\n```\n") == {
        "search/none.py", "bench/none.py", "tools/none.py",
    }  # fmt: skip
    assert NAMED_OPTION.findall("analyze m.onnx --no-such 5 -v a--b") == ["--no-such"]
