"""What type checkers say of class bodies with expressions: the marked errors, and no others.

And of right programs that newcomers write: nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers import CHECKERS, PYRIGHT, Programs, Report, cache_folder, version_of

PROGRAM = Path(__file__).with_name("declarations.txt")  # no module: the checks of the tests would report its errors
RIGHT = Path(__file__).with_name("right_ported.py")
LINES = PROGRAM.read_text(encoding="utf-8").splitlines()
MARKED = [number for number, line in enumerate(LINES, 1) if line.endswith("# error")]
ONLY_MYPY = [number for number, line in enumerate(LINES, 1) if line.endswith("# error of mypy")]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[str, list[Report]]:
    folder = tmp_path_factory.mktemp("declarations")
    (folder / "declarations.py").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (folder / RIGHT.name).write_text(RIGHT.read_text(encoding="utf-8"), encoding="utf-8")
    return Programs(folder, cache_folder("declarations", tmp_path_factory, pytestconfig)).check()


def reports_of(checker: str, module: str, reports: dict[str, list[Report]]) -> list[Report]:
    if not version_of(checker):
        pytest.skip(f"{checker.split()[0]} is not installed")
    return [report for report in reports[checker] if report.module == module]


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_marked_errors_and_no_others(checker: str, reports: dict[str, list[Report]]) -> None:
    wanted = MARKED if checker == PYRIGHT else sorted([*MARKED, *ONLY_MYPY])
    found = reports_of(checker, "declarations", reports)
    assert sorted({report.line for report in found}) == wanted, "\n".join(map(str, found))


@pytest.mark.parametrize("checker", CHECKERS)
def test_right_programs_have_no_errors(checker: str, reports: dict[str, list[Report]]) -> None:
    assert reports_of(checker, RIGHT.stem, reports) == []
