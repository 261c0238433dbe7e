"""Every error has an entry in ``docs/errors.md``, with a block that raises it and one that mends it.

That the blocks do what they say is for ``test_docs.py``; here is held that they are there.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import declax
from declax import errors

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
RAISING = re.compile(r"^```python \{raises=(\w+)\}$", re.MULTILINE)
RUNNING = re.compile(r"^```python$", re.MULTILINE)
MESSAGE = re.compile(r"^```text \{output\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(
    r"^\| \[`(?P<code>[\w-]+)`\]\(#(?P<anchor>[\w-]+)\) \| `(?P<name>\w+)` \| (?P<base>`[\w`, ]+`) \|", re.MULTILINE
)


def error_classes() -> list[type[errors.DeclaxError]]:
    """The classes that have a code of their own; others say more than the class whose code they have."""
    found = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.DeclaxError)]
    own = [cls for cls in found if cls.__module__ == errors.__name__]
    return [cls for cls in own if all(cls.code != getattr(base, "code", None) for base in cls.__bases__)]


def sections() -> dict[str, str]:
    """The text below each heading of the page."""
    _, *parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def built_in_of(cls: type[errors.DeclaxError]) -> str:
    """The names of the built-in exceptions that a class is as well."""
    known = [base for base in cls.__mro__ if base.__module__ == "builtins"]
    nearest = [base for base in known if not any(base in other.__mro__[1:] for other in known)]
    return ", ".join(f"`{base.__name__}`" for base in nearest)


def test_each_class_has_a_code_of_its_own():
    codes = [cls.code for cls in error_classes()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


def test_each_code_has_an_entry_and_each_entry_a_code():
    assert list(sections()) == sorted(cls.code for cls in error_classes())


def test_the_table_lists_what_there_is():
    listed = [(row["code"], row["anchor"], row["name"], row["base"]) for row in ROW.finditer(PAGE.read_text("utf-8"))]
    assert listed == sorted((cls.code, cls.code, cls.__name__, built_in_of(cls)) for cls in error_classes())


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.code)
def test_an_entry_names_its_class_and_raises_it(cls):
    entry = sections()[cls.code]
    assert f"`{cls.__name__}`" in entry.partition("```")[0]
    assert set(RAISING.findall(entry)) == {cls.__name__}


@pytest.mark.parametrize("cls", [c for c in error_classes() if c is not errors.DeclaxError], ids=lambda cls: cls.code)
def test_an_entry_shows_the_message_and_the_mend(cls):
    _, _, mend = sections()[cls.code].rpartition("```text {output}")
    messages = MESSAGE.findall(sections()[cls.code])
    assert messages, "no message is shown"
    assert all(f"[{cls.code}]" in message for message in messages)
    after = mend.partition("\n```\n")[2].strip()
    assert after, "nothing says what mends it"
    if cls is not errors.MissingExtraError:  # which only an installer can mend
        assert RUNNING.search(after), "no block shows what mends it"


def test_an_error_without_a_code_of_its_own_is_named_in_the_entry():
    coded = error_classes()
    for found in pkgutil.walk_packages(declax.__path__, "declax."):
        try:
            classes = inspect.getmembers(importlib.import_module(found.name), inspect.isclass)
        except errors.MissingExtraError:
            continue
        for _, cls in classes:
            if issubclass(cls, errors.DeclaxError) and cls not in coded:
                assert f"`{cls.__name__}`" in sections()[cls.code]
