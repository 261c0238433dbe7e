"""Links between the pages lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^ *(`{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def prose_of(page: Path) -> str:
    """A page without its blocks of code, in which brackets mean something else."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """The anchors that headings get where Markdown is shown: lower case, no punctuation, hyphens for spaces."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in HEADING.findall(prose_of(page))
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page):
    broken = []
    for link in LINK.findall(prose_of(page)):
        if re.match(r"[a-z]+:", link):
            continue  # of the web, which tests do not ask
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert not broken


def test_the_site_shows_the_figures_of_the_readme():
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Speed")[2].partition("\nAll tables:")[0]
    assert section.count("|") > 30
    assert section in (ROOT / "docs" / "explain" / "measurements.md").read_text(encoding="utf-8")


def test_the_indexes_link_to_every_page():
    docs = ROOT / "docs"
    indexes = [docs / "index.md", *sorted(docs.glob("*/index.md"))]
    linked = {
        (index.parent / link.partition("#")[0]).resolve() for index in indexes for link in LINK.findall(prose_of(index))
    }
    pages = {page for page in PAGES if page.is_relative_to(docs)} | set((docs / "learn").glob("*.py"))
    assert pages - linked == {docs / "index.md"}
