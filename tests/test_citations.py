"""Pages that code and pages name exist, and so do the sections that are cited by number."""

from __future__ import annotations

import re
from pathlib import Path

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
