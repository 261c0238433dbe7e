"""The help of parameters and the summaries of classes, from docstrings.

They are read when somebody asks, never when a class is made or a module imported.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import textwrap
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from declax._fields.annotations import own_annotations

_GOOGLE: Final = re.compile(r"(?:Args|Arguments|Parameters|Params|Attributes|(?:Keyword|Other) (?:Args|Arguments)):\s*")
_NUMPY: Final = re.compile(r"(?:Other )?Parameters|Attributes")
_SPHINX: Final = re.compile(
    r":(?:param(?:eter)?|arg(?:ument)?|key(?:word)?|i?var)\s+(?:\S.*?\s)??(\S+?)\s*:", re.DOTALL
)
_NAMES: Final = r"(\\?\*{0,2}\w+(?:\s*,\s*\\?\*{0,2}\w+)*)\s*"
_COLON: Final = re.compile(_NAMES + r"(?:\(.*?\))?\s*:", re.DOTALL)
_LINE: Final = re.compile(_NAMES + r"(?::.*)?\n")


def help_of(target: Any, name: str, given: str | None = None, owner: Any = None) -> str | None:
    """The help of a parameter of a class or function; None if there is none.

    The nearest class that says something decides: by the `help=` of its field, an entry of its docstring, or the
    docstring below the field.

    Args:
      target: the class or function.
      name: the name of the parameter.
      given: the `help=` of the field.
      owner: the class that declares the field.
    """
    for holder in target.__mro__[:-1] if isinstance(target, type) else [_function_in(target)]:
        if given and holder is owner:
            return given
        text = _entries(holder).get(name)
        if text is None and isinstance(holder, type) and name in own_annotations(holder):
            text = _below_fields(holder).get(name)
        if text:
            return text
    return given


def first_paragraph(target: Any) -> str:
    """The first paragraph of a docstring in one line; empty if there is none, or the one of a standard dataclass."""
    found = _function_in(target)
    text = found.__dict__.get("__doc__") if isinstance(found, type) else found.__doc__
    if not isinstance(text, str) or (isinstance(found, type) and text.startswith(f"{found.__name__}(")):
        return ""
    return _in_one_line(inspect.cleandoc(text))


def _function_in(target: Any) -> Any:
    """The function of a partial, whose docstring is that of `functools.partial`."""
    while isinstance(target, functools.partial):
        target = target.func
    return target


def _in_one_line(text: str) -> str:
    """The first paragraph of a text as plain text: without roles, and code without its backticks."""
    paragraph = " ".join(re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0].split())
    paragraph = re.sub(r":[\w:]+:`(?:([^`<]+?)\s*<[^`>]+>|[~!]?([^`]+))`", r"\1\2", paragraph)
    return re.sub(r"``(.+?)``", r"\1", paragraph)


def _once(read: Callable[[Any], Mapping[str, str]]) -> Callable[[Any], Mapping[str, str]]:
    """The function, with its results kept as long as the class or function lives."""
    known: weakref.WeakKeyDictionary[Any, Mapping[str, str]] = weakref.WeakKeyDictionary()

    @functools.wraps(read)
    def reading(holder: Any) -> Mapping[str, str]:
        if not (isinstance(holder, type) or inspect.isfunction(holder)):
            return read(holder)
        if holder not in known:
            known[holder] = read(holder)
        return known[holder]

    return reading


@_once
def _entries(holder: Any) -> Mapping[str, str]:
    """The entries for parameters in the docstring of a function, or of a class and its constructor."""
    texts = [holder.__doc__]
    if isinstance(holder, type):
        texts = [getattr(holder.__dict__.get("__init__"), "__doc__", None), holder.__dict__.get("__doc__")]
    found: dict[str, str] = {}
    for text in texts:
        found.update(documented_in(text) if isinstance(text, str) else {})
    return found


@_once
def _below_fields(cls: Any) -> Mapping[str, str]:
    """The docstrings below the fields of a class, as in PEP 257; none for a class without source."""
    try:
        made = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):  # made by `exec` or in a notebook
        return {}
    if not isinstance(made, ast.ClassDef) or made.name != cls.__name__:  # the file has changed
        return {}
    found: dict[str, str] = {}
    for statement, below in itertools.pairwise(made.body):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        match targets, below:
            case [ast.Name(id=name)], ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = _in_one_line(inspect.cleandoc(text))
            case _:
                pass
    return found


# --- docstrings in the styles of Google, NumPy and Sphinx ---------------------------


def documented_in(docstring: str) -> dict[str, str]:
    r"""The first paragraph of the first entry for each parameter in a docstring.

    >>> documented_in("Adds.\n\nArgs:\n  a, b: the numbers,\n    any two.\n  c (int): another.")
    {'a': 'the numbers, any two.', 'b': 'the numbers, any two.', 'c': 'another.'}
    >>> documented_in("Adds.\n\nParameters\n----------\na : int\n    a number.\n\n:param int b: another.")
    {'a': 'a number.', 'b': 'another.'}
    """
    found: dict[str, str] = {}
    for names, text in _raw_entries(inspect.cleandoc(docstring)):
        line = _in_one_line(text)
        for name in names.split(",") if line else ():
            found.setdefault(name.strip().lstrip("\\*"), line)
    return found


def _raw_entries(docstring: str) -> Iterator[tuple[str, str]]:
    """The names and the text of each entry."""
    previous = section = ""
    for block in _blocks(docstring):
        head, _, body = block.partition("\n")
        if _GOOGLE.fullmatch(head):
            yield from _split(_COLON, _blocks(textwrap.dedent(body)))
        elif re.fullmatch("-{3,}", head.rstrip()):
            section = previous
        elif _NUMPY.fullmatch(section):
            yield from _split(_LINE, [block])
        yield from _split(_SPHINX, [block])
        previous = head.rstrip()


def _blocks(text: str) -> list[str]:
    """A text, divided before each line that is not indented."""
    return re.split(r"^(?=\S)", text, flags=re.MULTILINE)


def _split(pattern: re.Pattern[str], entries: list[str]) -> Iterator[tuple[str, str]]:
    """The names in the head of each entry, and the text behind it."""
    for entry in entries:
        if head := pattern.match(entry):
            yield head[1], entry[head.end() :]
