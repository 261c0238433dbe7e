"""Edits of one value in the text of a configuration, which keep all other bytes: comments, order, quotes, lines."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from declax.config._files.documents import unreadable
from declax.config._files.flow_edits import Editor, has, value_at
from declax.config._files.formats import Format, format_of
from declax.config._files.scanning import Scan
from declax.config._files.toml_edits import TomlEditor
from declax.config._files.yaml_edits import YamlEditor
from declax.config.problems import Path, path_text, shown
from declax.errors import ConfigError, describe

_BOM: Final = "\ufeff"
_ATOMS: Final = (type(None), bool, int, float, str)
_INDENT: Final = re.compile(r"\n([ \t]+)\S")


def with_value(text: str, suffix: str, path: Path, value: Any) -> str:
    r"""A text in which a path has a value; all that is not part of the value stays as it is.

    A key that is missing is added to its table, and a missing table to the one around it. The index behind the last
    item of a list adds an item. If both values are tables, only the keys that differ change.

    Args:
      text: of a file.
      suffix: of its format, such as ``.toml``.
      path: of the value; not empty.
      value: plain data.

    Returns:
      The new text.

    Raises:
      ConfigError: the text is wrong, nothing can be at the path, or no edit of the text gives this data.

    >>> print(with_value('rate = 0.1  # low\n\n[model]\ndim = 8\n', ".toml", ("model", "heads"), 4), end="")
    rate = 0.1  # low
    <BLANKLINE>
    [model]
    dim = 8
    heads = 4
    """
    format_, document = _parsed(text, suffix)
    _refuse_root(path)
    if not _is_plain(value):
        raise ConfigError(path_text(path), "a file cannot have this value", expected="plain data", got=describe(value))
    _holder(document, path, creates=True)
    if has(document, path) and isinstance(old := value_at(document, path), dict) and isinstance(value, dict) and old:
        for key in value:
            if key not in old or not same(old[key], value[key]):
                text = with_value(text, suffix, (*path, key), value[key])
        for key in old:
            if key not in value:
                text = without(text, suffix, (*path, key))
        return text

    def put(data: Any) -> None:
        holder = _holder(data, path, creates=True)
        if path[-1] == len(holder):  # of a list
            holder.append(value)
        else:
            holder[path[-1]] = value

    return _edited(text, format_, path, put, lambda editor: editor.put(path, value))


def without(text: str, suffix: str, path: Path) -> str:
    r"""A text without a key or an item of a list, and without its lines.

    Args:
      text, suffix, path: as in `with_value`.

    Raises:
      ConfigError: the text is wrong, it has no such path, or no edit of the text gives this data.

    >>> without('{"a": 1, "b": 2}', ".json", ("a",))
    '{"b": 2}'
    """
    format_, document = _parsed(text, suffix)
    _refuse_missing(document, path)

    def remove(data: Any) -> None:
        del _holder(data, path)[path[-1]]

    return _edited(text, format_, path, remove, lambda editor: editor.removed(path))


def renamed(text: str, suffix: str, path: Path, key: str) -> str:
    r"""A text in which the last key of a path is another one, wherever it is written.

    Args:
      text, suffix, path: as in `with_value`.
      key: the new one.

    Raises:
      ConfigError: the text is wrong, it has no such path, the new key is there, or no edit of the text gives this data.

    >>> renamed("dim: 3  # small\n", ".yaml", ("dim",), "size")
    'size: 3  # small\n'
    """
    format_, document = _parsed(text, suffix)
    _refuse_missing(document, path)
    if not isinstance(path[-1], str) or key in value_at(document, path[:-1]):
        raise ConfigError(path_text(path), "the key cannot be renamed", got=shown(key), expected="a key that is free")

    def rename(data: Any) -> None:
        holder = _holder(data, path)
        holder[key] = holder.pop(path[-1])

    return _edited(text, format_, path, rename, lambda editor: editor.renamed(path, key))


def same(a: Any, b: Any) -> bool:
    """Whether plain data is equal, in its types too; NaN equals itself.

    >>> same([1, float("nan")], [1, float("nan")]), same(1, True)
    (True, False)
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if isinstance(value, list) else type(value) in _ATOMS


def _parsed(text: str, suffix: str) -> tuple[Format, Any]:
    found = format_of(suffix)
    document = found.parse(text.removeprefix(_BOM), None)
    if document.problems:
        raise unreadable(None, *document.problems)
    return found, document.data


def _refuse_root(path: Path) -> None:
    if not path:
        raise ConfigError("the configuration", "an edit needs a path", fix="the name of a key")


def _refuse_missing(data: Any, path: Path) -> None:
    _refuse_root(path)
    if not has(data, path):
        raise ConfigError(path_text(path), "the file has no such value")


def _holder(data: Any, path: Path, *, creates: bool = False) -> Any:
    """The table or list of the last key of a path."""
    for index, key in enumerate(path):
        at, is_last = path[:index], index == len(path) - 1
        if isinstance(data, dict) and isinstance(key, str):
            fits = creates or key in data
        else:
            size = len(data) + (creates and is_last) if isinstance(data, list) else 0
            fits = isinstance(key, int) and key in range(size)
        if not fits:
            got = shown(data) if isinstance(data, (dict, list)) else f"the value {shown(data)}"
            expected = "a table" if isinstance(key, str) else f"a list with {key} items or more"
            raise ConfigError(path_text(path), f"nothing can be set at {path_text(at)}", expected=expected, got=got)
        if is_last:
            return data
        data = data.setdefault(key, {}) if isinstance(data, dict) else value_at(data, (key,))
    return data


def _edited(
    text: str, format_: Format, path: Path, change: Callable[[Any], None], edit: Callable[[Editor[Any]], str]
) -> str:
    """The text after an edit, which changes the data as a change of the data does."""
    mark = _BOM if text.startswith(_BOM) else ""
    body = text.removeprefix(_BOM)
    data = format_.parse(body, None).data
    expected = copy.deepcopy(data)
    change(expected)
    scan = format_.scan(body)
    try:
        made = edit(_EDITORS[format_.name](body, data, scan)) if scan.is_complete else None
        after = None if made is None else format_.parse(made, None)
    except (ConfigError, KeyError, StopIteration) as error:
        raise _impossible(path) from error
    if made is None or after is None or after.problems or not same(after.data, expected):
        raise _impossible(path)
    return mark + made


def _impossible(path: Path) -> ConfigError:
    return ConfigError(
        path_text(path), "no edit of the text changes this value and nothing else", fix="change the file by hand"
    )


class JsonEditor(Editor[Scan]):
    """Edits JSON; new tables have a line for each key where the table around them has."""

    def inline(self, value: Any, indent: str | None = None) -> str:
        is_flat = isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)
        if indent is None or not value or is_flat or not isinstance(value, (dict, list)):
            return json.dumps(value, ensure_ascii=False)
        found = _INDENT.search(self.text)
        inner = indent + (found[1] if found else "  ")
        if isinstance(value, dict):
            lines = [self.entry((key,), item, inner) for key, item in value.items()]
        else:
            lines = [self.inline(item, inner) for item in value]
        opened, closed = "{}" if isinstance(value, dict) else "[]"
        text = f",{self.newline}{inner}".join(lines)
        return f"{opened}{self.newline}{inner}{text}{self.newline}{indent}{closed}"

    def entry(self, keys: Path, value: Any, indent: str | None = None) -> str:
        return f"{json.dumps(keys[0], ensure_ascii=False)}: {self.inline(value, indent)}"


_EDITORS: Final[Mapping[str, Callable[[str, Any, Any], Editor[Any]]]] = {
    "json": JsonEditor,
    "toml": TomlEditor,
    "yaml": YamlEditor,
}
