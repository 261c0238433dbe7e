"""What type checkers say of class bodies with expressions: the marked errors, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers import CHECKERS, PYRIGHT, Programs, Report, cache_folder, version_of

PROGRAM = Path(__file__).with_name("declarations.txt")  # no module: the checks of the tests would report its errors
LINES = PROGRAM.read_text(encoding="utf-8").splitlines()
MARKED = [number for number, line in enumerate(LINES, 1) if line.endswith("# error")]
ONLY_MYPY = [number for number, line in enumerate(LINES, 1) if line.endswith("# error of mypy")]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[str, list[Report]]:
    folder = tmp_path_factory.mktemp("declarations")
    (folder / "declarations.py").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return Programs(folder, cache_folder("declarations", tmp_path_factory, pytestconfig)).check()


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_marked_errors_and_no_others(checker: str, reports: dict[str, list[Report]]) -> None:
    if not version_of(checker):
        pytest.skip(f"{checker.split()[0]} is not installed")
    wanted = MARKED if checker == PYRIGHT else sorted([*MARKED, *ONLY_MYPY])
    assert sorted({report.line for report in reports[checker]}) == wanted, "\n".join(map(str, reports[checker]))
