"""Wrong programs are caught, right ones are not: by mypy with the plugin and without, and by four other checkers.

The programs are in ``programs/``; ``pairs.py`` describes their format. With ``DECLAX_UPDATE_GOLDEN=1`` in the
environment, the tests write the codes of mypy and pyright next to the programs, and the totals into docs/types.md.

More programs are checked with them: those in ``MARKED`` have marked errors, ``# error of mypy`` where pyright finds
none and ``# error of the plugin`` where mypy without it finds none either. ``right_ported.py``, what newcomers write,
and the longer programs in ``users/`` have none.
"""

from __future__ import annotations

import importlib
import math
import os
import runpy
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from checkers import (
    BASEDPYRIGHT,
    CACHE,
    MYPY,
    PYREFLY,
    PYRIGHT,
    ROOT,
    TY,
    WITH_PLUGIN,
    Programs,
    Report,
    tool_of,
    version_of,
)
from pairs import Group, Pair, read_groups, with_codes

UPDATES = bool(os.environ.get("DECLAX_UPDATE_GOLDEN"))
GROUPS = read_groups()
PAIRS = tuple(pair for group in GROUPS for pair in group.pairs)
PAGE = ROOT / "docs" / "types.md"
BEGIN, END = "<!-- what is caught: written by tests/typing -->\n", "<!-- the end of what is caught -->\n"
# No modules: `make types` would report their errors.
MARKED = tuple(Path(__file__).with_name(f"{name}.txt") for name in ("declarations", "layers", "sketch"))
OF_ALL, OF_MYPY, OF_PLUGIN = (
    ("# error",),
    ("# error", "# error of mypy"),
    ("# error", "# error of mypy", "# error of the plugin"),
)
MARKS = {
    WITH_PLUGIN: (OF_PLUGIN, OF_PLUGIN),
    MYPY: (OF_MYPY, OF_MYPY),
    PYRIGHT: (OF_ALL, OF_ALL),
    BASEDPYRIGHT: (OF_ALL, OF_ALL),
    PYREFLY: (OF_ALL, OF_PLUGIN),
    TY: (OF_ALL, OF_PLUGIN),
}
"""The marks of errors that a checker has to report, and that it may."""
PORTED = Path(__file__).with_name("right_ported.py")
USERS = tuple(sorted(Path(__file__).parent.glob("users/*.py")))
SHARE = 0.9
"""Of what annotations can express, this much is caught without the plugin."""

# A wrong program has imports that only its neighbours use. The line stands where right programs have it, too.
FIRST_LINE = "# pyright: reportUnusedImport=false\n"
NO_NAME = frozenset({"name-defined", "reportUndefinedVariable"})

CODED = (WITH_PLUGIN, MYPY, PYRIGHT)
"""The checkers whose codes stand next to the programs; those of others change with each of their versions."""
COUNTED = (*CODED, PYREFLY, TY)
"""The checkers in the table of the page, which run every day. basedpyright reports what pyright does."""
EACH_CHECKER = [*COUNTED, pytest.param(BASEDPYRIGHT, marks=pytest.mark.slow)]

KNOWN: Mapping[str, frozenset[tuple[str, str]]] = {
    MYPY: frozenset({("misc", "wave.function("), ("call-arg", "wave.function(")}),
    PYREFLY: frozenset({("bad-assignment", "argnums=1)(model, inputs)"), ("not-callable", "dx.value_and_grad(lambda")}),
    TY: frozenset(
        {
            ("not-subscriptable", "sizes["),
            ("not-subscriptable", "shape["),
            ("not-subscriptable", "channels["),
            ("unsupported-operator", "width // heads"),
            ("missing-attribute", "block.build("),
            ("unsupported-operator", "dim * rate"),
            ("too-many-positional-arguments", "wave.made("),
            ("invalid-argument-type", "dx.defer(max)("),
            ("no-matching-overload", "dx.defer(RATES.get)("),
            ("invalid-argument-type", "argnums=1)(model, inputs)"),
            ("invalid-assignment", "argnums=1)(model, inputs)"),
            ("invalid-argument-type", "argnums=(0, 1))(model, inputs)"),
            ("invalid-argument-type", "dx.grad(of_all)([model], inputs)"),
            ("not-callable", "dx.value_and_grad(lambda"),
        }
    ),
}
"""The false errors in right programs: a code, and what stands in the line. docs/types.md explains them."""


@dataclass(frozen=True)
class Findings:
    """What the checkers reported, by checker."""

    programs: Programs
    reports: dict[str, list[Report]]

    def of(self, checker: str) -> list[Report]:
        if checker not in self.reports:
            self.reports.update(self.programs.check([checker]))
        if checker not in self.reports:
            pytest.skip(f"{tool_of(checker)} is not installed")
        return self.reports[checker]

    def codes(self, checker: str, pair: Pair) -> list[str]:
        """The codes at the marked line. A type that is unknown to pyright is not what is wrong."""
        found = (report for report in self.of(checker) if report.module == pair.module)
        return sorted({r.code for r in found if r.line == pair.marked + 1 and not r.code.startswith("reportUnknown")})

    def caught(self, checker: str, pairs: Iterable[Pair] = PAIRS) -> list[Pair]:
        return [pair for pair in pairs if self.codes(checker, pair)]

    def row(self, pair: Pair) -> tuple[str, ...]:
        """The codes of mypy and pyright, as in the marker ``# error:``."""
        return tuple(", ".join(self.codes(checker, pair)) or "-" for checker in CODED)

    def known(self, checker: str, report: Report) -> set[tuple[str, str]]:
        """The known false errors of which a report is one."""
        text = (self.programs.folder / f"{report.module}.py").read_text(encoding="utf-8")
        line = text.splitlines()[report.line - 1]
        return {(code, part) for code, part in KNOWN.get(checker, ()) if code == report.code and part in line}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    folder = tmp_path_factory.mktemp("programs")
    for group in GROUPS:
        (folder / f"right_{group.name}.py").write_text(FIRST_LINE + group.right, encoding="utf-8")
    for pair in PAIRS:
        (folder / f"{pair.module}.py").write_text(FIRST_LINE + pair.wrong, encoding="utf-8")
    for program in (*MARKED, PORTED):
        (folder / f"{program.stem}.py").write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
    for program in USERS:
        (folder / f"right_{program.stem}.py").write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
    programs = Programs(folder, CACHE)
    return Findings(programs, programs.check(COUNTED))


# ================================================================= the pairs


def test_there_are_many_pairs_each_with_its_name() -> None:
    assert len({pair.module for pair in PAIRS}) == len(PAIRS) >= 90
    assert sum(not pair.annotations for pair in PAIRS) >= 30


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.module)
def test_a_wrong_program_is_valid_python(pair: Pair) -> None:
    compile(pair.wrong, pair.module, "exec")
    assert pair.wrong.splitlines()[pair.marked - 1].strip()


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_the_right_programs_run(group: Group) -> None:
    runpy.run_path(str(group.path), run_name=f"right_{group.name}")


@pytest.mark.slow
def test_wrong_programs_define_all_names(findings: Findings) -> None:
    """A name that is not defined would be what is reported, in the place of what is wrong."""
    meant = {pair.module for pair in PAIRS if "a name that there is not" in pair.title} | {path.stem for path in MARKED}
    found = [r for checker in findings.reports for r in findings.of(checker) if r.module not in meant]
    assert [str(report) for report in found if report.code in NO_NAME] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", USERS, ids=lambda path: path.stem)
def test_the_programs_of_users_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 140 < path.read_text(encoding="utf-8").count("\n") < 180
    monkeypatch.syspath_prepend(str(path.parent))
    importlib.import_module(path.stem).main()


@pytest.mark.slow
def test_programs_of_users_have_no_error_in_the_standard_mode(tmp_path: Path) -> None:
    if not version_of(BASEDPYRIGHT):
        pytest.skip("basedpyright is not installed")
    for path in USERS:
        shutil.copy(path, tmp_path)
    programs = Programs(tmp_path, CACHE, of_pyright=(("typeCheckingMode", "standard"),))
    assert list(map(str, programs.check([BASEDPYRIGHT])[BASEDPYRIGHT])) == []


# ================================================================= what is caught


def missed(findings: Findings, checker: str, pairs: Iterable[Pair]) -> list[str]:
    return [f"{pair.group}: {pair.title}" for pair in pairs if not findings.codes(checker, pair)]


def test_the_plugin_catches_all(findings: Findings) -> None:
    assert missed(findings, WITH_PLUGIN, PAIRS) == []


@pytest.mark.parametrize("checker", [MYPY, PYRIGHT, PYREFLY, TY])
def test_nine_in_ten_of_what_annotations_express_are_caught(findings: Findings, checker: str) -> None:
    expressible = [pair for pair in PAIRS if pair.annotations]
    lost = missed(findings, checker, expressible)
    assert len(expressible) - len(lost) >= math.ceil(SHARE * len(expressible)), "\n".join(lost)


@pytest.mark.slow
def test_basedpyright_reports_what_pyright_does(findings: Findings) -> None:
    assert set(findings.caught(PYRIGHT)) <= set(findings.caught(BASEDPYRIGHT))


@pytest.mark.parametrize("checker", EACH_CHECKER)
def test_right_programs_are_not_flagged(findings: Findings, checker: str) -> None:
    right = [report for report in findings.of(checker) if report.module.startswith("right_")]
    assert [str(report) for report in right if not findings.known(checker, report)] == []


@pytest.mark.usefixtures("same_checkers")
@pytest.mark.parametrize("checker", KNOWN)
def test_the_known_false_errors_are_still_there(findings: Findings, checker: str) -> None:
    right = [report for report in findings.of(checker) if report.module.startswith("right_")]
    assert set[object]().union(*(findings.known(checker, report) for report in right)) == KNOWN[checker]


@pytest.mark.parametrize("checker", EACH_CHECKER)
def test_only_the_marked_line_is_reported(findings: Findings, checker: str) -> None:
    marked = {(pair.module, pair.marked + 1) for pair in PAIRS}
    wrong = [report for report in findings.of(checker) if report.module.startswith("wrong_")]
    surplus = [report for report in wrong if report[:2] not in marked and not findings.known(checker, report)]
    assert [str(report) for report in surplus] == []


@pytest.mark.parametrize("path", MARKED, ids=lambda path: path.stem)
@pytest.mark.parametrize("checker", EACH_CHECKER)
def test_the_marked_errors_are_reported_and_no_others(findings: Findings, checker: str, path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    wanted, allowed = [{n for n, line in enumerate(lines, 1) if line.endswith(marks)} for marks in MARKS[checker]]
    found = [report for report in findings.of(checker) if report.module == path.stem]
    reported = {report.line for report in found}
    assert (wanted - reported, reported - allowed) == (set(), set()), "\n".join(map(str, found))


# ================================================================= what is written of it


def made_with() -> str:
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    *others, last = [f"{tool_of(checker)} {version_of(checker)}" for checker in COUNTED[1:]]
    return f"With {', '.join(others)} and {last} on {python}"


def written() -> str:
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


@pytest.fixture
def same_checkers() -> None:
    """Other versions report with other codes, and some mistakes later or earlier."""
    if not UPDATES and made_with() not in written():
        pytest.skip(f"docs/types.md is not of what is here: {made_with()}")


@pytest.mark.usefixtures("same_checkers")
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_the_codes_are_those_in_the_programs(findings: Findings, group: Group) -> None:
    if UPDATES:
        text = with_codes(group.path, {pair.title: findings.row(pair) for pair in group.pairs})
        group.path.write_text(text, encoding="utf-8")
        return
    assert {pair.title: pair.expected for pair in group.pairs} == {p.title: findings.row(p) for p in group.pairs}


@pytest.mark.usefixtures("same_checkers")
def test_the_page_has_the_table(findings: Findings) -> None:
    table = "\n".join(_totals(findings)) + "\n"
    if UPDATES:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        PAGE.write_text(before + BEGIN + table + END + after, encoding="utf-8")
        return
    assert written() == table, "run the test with DECLAX_UPDATE_GOLDEN=1, and look at what has changed"


def _totals(findings: Findings) -> list[str]:
    lines = [
        f"{made_with()}: pairs of programs, and the number of wrong programs that each checker reports.",
        "",
        f"| subject | pairs | {' | '.join(COUNTED)} |",
        f"| --- | --- |{' --- |' * len(COUNTED)}",
    ]
    expressible = [pair for pair in PAIRS if pair.annotations]
    of_groups = [(group.about, list(group.pairs)) for group in GROUPS]
    for label, pairs in [*of_groups, ("**all**", PAIRS), ("that annotations can express", expressible)]:
        counts = " | ".join(str(len(findings.caught(checker, pairs))) for checker in COUNTED)
        lines.append(f"| {label} | {len(pairs)} | {counts} |")
    return lines
