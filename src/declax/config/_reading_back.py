"""Whether the table of a spec says the same when it is read.

Vocabulary
----------
back: of a value: what the reader of its place makes of the data that was written for it.
"""

from __future__ import annotations

from typing import Any

from declax.config._checking import checked_refs
from declax.config._context import INVALID, Context
from declax.config._data import FrozenDict, FrozenList, Ref, SpecData, freeze, key_of, thaw
from declax.config._editing import diff
from declax.config._parameters import target_name
from declax.config._part_readers import KIND, Readers
from declax.config._readers import REF, Reader
from declax.config.problems import Path, Report, path_text, shown
from declax.errors import ConfigError, describe


def reads_back(value: Any, data: Any, reader: Reader) -> bool:
    """Whether a reader makes an equal value of data."""
    context = Context(Report())
    found = reader.read(data, (), context)
    return found is not INVALID and not context.report and key_of(freeze(found)) == key_of(value)


def check_read_back(spec: SpecData, data: dict[str, Any], readers: Readers) -> None:
    """Reads a table again, and compares.

    Raises:
      ConfigError: it cannot be read, or says something else. The path is that of the first such value.
    """
    context = Context(Report())
    context.read_by(readers, type(spec).of_values)
    found = checked_refs(readers.call(spec.target).read(data, (), context, {}), context)
    root = target_name(spec.target)
    if context.report:
        problem = context.report.problems[0]
        _check_shared(data, problem.path, root)
        raise ConfigError(
            _where(root, problem.path),
            f"what is written here could not be read back: {problem.message}",
            expected=problem.expected,
            got=problem.got,
            fix=problem.hint,
        )
    if found != spec:
        change = diff(spec, found)[0]
        path, value, back = change.path, change.old, change.new
        raise ConfigError(
            _where(root, path),
            "this would be read back as another value",
            expected=f"a value that data can tell from others: {_described(back)}",
            got=_described(value),
            why="data has texts, numbers, lists and tables only; the annotation says what they stand for",
            fix=_fix(value, back),
        )


def _check_shared(data: Any, path: Path, root: str) -> None:
    """Says of a ref that does not lead to a part that it is the trouble."""
    ref = _at(data, path)
    target = ref.get(REF) if isinstance(ref, dict) and len(ref) == 1 else None
    if not isinstance(target, str):
        return
    first = Ref(target).keys
    value = _at(data, first)
    if isinstance(value, list) or (isinstance(value, dict) and KIND not in value and REF not in value):
        kind = "list" if isinstance(value, list) else "dict"
        raise ConfigError(
            _where(root, path),
            f"this is the same {kind} as {path_text(first)}, and a {kind} cannot be shared in a file",
            why="a file can refer to parts alone, which are made by classes",
            fix=f"give each of the two places a {kind} of its own",
        )


def _at(data: Any, path: Path) -> Any:
    """What is at a path of plain data; None where nothing is."""
    for key in path:
        if isinstance(data, dict):
            data = data.get(str(key))
        elif isinstance(data, list) and str(key).isdecimal() and int(key) < len(data):
            data = data[int(key)]
        else:
            return None
    return data


def _where(root: str, path: Path) -> str:
    return f"{root}.{path_text(path)}" if path else root


def _described(value: Any) -> str:
    if isinstance(value, SpecData):
        return f"a spec of {target_name(value.target)}"
    if isinstance(value, (tuple, FrozenList, FrozenDict)):
        return shown(thaw(value))
    return describe(value)


def _fix(value: Any, back: Any) -> str:
    if type(value) is tuple and type(back) is FrozenList:
        return "a list in place of the tuple, or an annotation that names tuples alone: tuple[int, ...]"
    if type(value) is FrozenList and type(back) is tuple:
        return "a tuple in place of the list, or an annotation that names lists alone: list[int]"
    return "an annotation that allows one of the two alone"
