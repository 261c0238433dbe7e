"""Holds the programs of docs/mypy_plugin.md against mypy with the plugin.

Blocks ``python {mypy=code}`` are wrong programs, each with the message in the text block behind it. They and the other
Python blocks, which are right, stand on all right blocks before them.
"""

import re

import pytest

from checkers import ROOT
from declax.mypy_plugin.reporting import CODES
from fenced import blocks_of
from plugin_cases import Found, check

PAGE = ROOT / "docs" / "mypy_plugin.md"


def programs() -> tuple[dict[str, str], dict[str, tuple[str, str, int]]]:
    """The right programs by file, and the wrong ones: file -> code, message, first line of its own."""
    files: dict[str, str] = {}
    wrong: dict[str, tuple[str, str, int]] = {}
    before, last = "", ""
    for block in blocks_of(PAGE.read_text(encoding="utf-8")):
        number, language, info, text = block.line, block.language, block.info, block.text
        if language == "python" and info.startswith("{mypy="):
            last = f"wrong_{number}.py"
            files[last] = before + text
            wrong[last] = info.removeprefix("{mypy=").removesuffix("}"), "", before.count("\n") + 1
        elif language == "text" and not info:
            code, _, line = wrong[last]
            wrong[last] = code, text.strip(), line
        elif language == "python":
            before += ("\n\n" if before else "") + text
            files[f"right_{number}.py"] = before
    return files, wrong


FILES, WRONG = programs()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    # The page declares classes again where it corrects them. With an option for it, mypy would read JAX again, too.
    return [one for one in check(tmp_path_factory.mktemp("page"), FILES) if one.code != "no-redef"]


@pytest.mark.slow
def test_right_programs_of_the_page_pass(found: list[Found]) -> None:
    assert [one for one in found if one.file.startswith("right")] == []


@pytest.mark.slow
@pytest.mark.parametrize("file", WRONG)
def test_wrong_programs_of_the_page_fail_as_it_says(file: str, found: list[Found]) -> None:
    code, message, line = WRONG[file]
    told = [one for one in found if one.file == file]
    assert {one.code for one in told} == {code}
    assert all(one.line >= line for one in told)
    texts = [re.sub(r"^", "note: ", one.text, flags=re.MULTILINE).replace("note: ", "error: ", 1) for one in told]
    assert texts == [message]


def test_each_code_has_an_entry_with_a_wrong_and_a_right_program() -> None:
    text = PAGE.read_text(encoding="utf-8")
    entries = dict(re.findall(r"^## (declax-[\w-]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(entries) == set(CODES)
    for code, entry in entries.items():
        assert code == "declax-plugin" or f"[`{code}`](#{code})" in text
        assert code == "declax-plugin" or f"```python {{mypy={code}}}\n" in entry, code
        assert code == "declax-plugin" or "```python\n" in entry, code
