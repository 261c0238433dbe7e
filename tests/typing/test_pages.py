"""The Python blocks of the pages pass mypy --strict with the plugin, and pyright in its strict mode.

The blocks of a page, and the files that it shows, are one module, each line where the page has it. They run one after
the other, and what a block defines anew stays: so names may be defined again, with another type too, and what is only
shown need not be used.
Blocks that have to raise are there for what no other block defines; most are wrong on purpose, and nothing is said of
them.
"""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from checkers import PYRIGHT, WITH_PLUGIN, Programs, Report, cache_folder, search_paths
from fenced import FILE, ROOT, Block, blocks_of, pages

REDEFINED = frozenset({"no-redef", "reportRedeclaration"})
# Some functions of JAX have no types.
OF_MYPY = ("allow_redefinition = True", "local_partial_types = True", "untyped_calls_exclude = jax")
OF_PYRIGHT = (
    # What a page shows without using it.
    *((f"reportUnused{thing}", "none") for thing in ("Import", "Expression", "Variable", "Function", "Class")),
    # Values in trees are Any in the types of JAX; what may be Any is mypy's to say.
    *((f"reportUnknown{thing}Type", "none") for thing in ("Argument", "Parameter", "Variable", "Lambda", "Member")),
    ("reportPrivateUsage", "none"),
    ("reportUnnecessaryIsInstance", "none"),
)


@dataclass(frozen=True)
class Page:
    """A page as a module."""

    path: Path
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def module(self) -> str:
        return "page_" + re.sub(r"\W", "_", self.name.removesuffix(".md")).lower()

    @property
    def text(self) -> str:
        last = self.blocks[-1]
        lines = [""] * (last.line + last.text.count("\n"))
        for block in self.blocks:
            if block.info and self._defined_elsewhere(block):
                continue
            for number, line in _code_of(block):
                lines[number - 1] = "" if self._imports_a_file(line) else line
        return "\n".join(lines) + "\n"

    def _defined_elsewhere(self, block: Block) -> bool:
        others = {name for other in self.blocks if not other.info for name in _defined_in(other)}
        return not others.isdisjoint(_defined_in(block))

    def _imports_a_file(self, line: str) -> bool:
        """Whether a line imports from another file of the page, whose names are here."""
        found = re.match(r"from (\w+) import", line)
        return found is not None and f"{{file={found[1]}.py}}" in {block.info for block in self.blocks}

    def has_to_hold(self, line: int) -> bool:
        """Whether a line is in a block that need not raise."""
        for block in self.blocks:
            if block.line <= line < block.line + block.text.count("\n"):
                return not block.info or bool(FILE.fullmatch(block.info))
        raise AssertionError(f"{self.name}:{line} is in no block")


def _defined_in(block: Block) -> list[str]:
    return re.findall(r"^(?:class|def) (\w+)", block.text, re.MULTILINE)


def _code_of(block: Block) -> Iterator[tuple[int, str]]:
    """The lines of code in a block, by the number that they have in the page."""
    if not block.text.lstrip().startswith(">>>"):
        yield from enumerate(block.text.splitlines(), block.line)
        return
    for example in doctest.DocTestParser().get_examples(block.text):
        yield from enumerate(example.source.splitlines(), block.line + example.lineno)


def all_pages() -> Iterator[Page]:
    for path in pages():
        blocks = tuple(block for block in blocks_of(path.read_text(encoding="utf-8")) if block.language == "python")
        if blocks:
            yield Page(path, blocks)


PAGES = {page.module: page for page in all_pages()}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[str, list[Report]]:
    folder = tmp_path_factory.mktemp("pages")
    for page in PAGES.values():
        (folder / f"{page.module}.py").write_text(page.text, encoding="utf-8")
    programs = Programs(folder, cache_folder("pages", tmp_path_factory, pytestconfig), OF_MYPY, OF_PYRIGHT)
    found = programs.check((WITH_PLUGIN, PYRIGHT))
    return {checker: [r for r in them if r.module in PAGES and _counts(r)] for checker, them in found.items()}


def _counts(report: Report) -> bool:
    return report.code not in REDEFINED and PAGES[report.module].has_to_hold(report.line)


@pytest.mark.slow
@pytest.mark.parametrize("checker", [WITH_PLUGIN, PYRIGHT])
@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_a_page_has_no_error(reports: dict[str, list[Report]], page: Page, checker: str) -> None:
    if checker not in reports:
        pytest.skip(f"{checker.split()[0]} is not installed")
    found = [report for report in reports[checker] if report.module == page.module]
    assert not found, "\n".join(f"{page.name}:{report.line}: {report.text} [{report.code}]" for report in found)


@pytest.mark.slow
@pytest.mark.parametrize("is_set", [False, True])
def test_the_rule_of_basedpyright_about_parts(tmp_path: Path, is_set: bool) -> None:
    """Its default mode warns of each part, and not with the settings of the page."""
    page = (ROOT / "docs" / "howto" / "editors.md").read_text(encoding="utf-8")
    (settings,) = (block.text for block in blocks_of(page) if block.text.startswith("[tool.basedpyright]"))
    body = "    dim: int = dx.field()\n    up = dx.Linear(dim, dim)\n"
    program = f"import declax as dx\n\n\n@dx.dataclass\nclass Block(dx.Layer):\n{body}"
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    header, _, rule = settings.partition("\n")
    paths = f"extraPaths = {json.dumps([str(path) for path in search_paths()])}\n"
    (tmp_path / "pyproject.toml").write_text(f"{header}\n{paths}{rule if is_set else ''}", encoding="utf-8")
    words = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "program.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = [report["rule"] for report in json.loads(done.stdout)["generalDiagnostics"]]
    assert found == ([] if is_set else ["reportUnannotatedClassAttribute"])
