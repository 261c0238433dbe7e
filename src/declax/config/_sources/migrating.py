"""Files of older versions of a class, brought up to date in their text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declax.config._files.documents import Document
from declax.config._files.editing import renamed, with_value, without
from declax.config._files.formats import format_of
from declax.config._reading.catalog import catalog_for
from declax.config._reading.part_readers import VERSION, CallReader, in_current_version, version_of
from declax.config._reading.readers import Reader
from declax.config._sources.composing import Configuration
from declax.config.problems import Path


def migrated(target: Any, text: str, suffix: str) -> str:
    """A text in which all tables have the current version and names of their classes.

    A key that was renamed is changed where it stands. Of a table with an older version, the keys that its
    ``config_upgrades`` change are written again.

    Args:
      target: the class that the file describes.
      text: of the file.
      suffix: of its format, such as ``.toml``.

    Raises:
      ConfigError: the text is wrong, an upgrade raises an error, or no edit of the text gives its result.
    """
    return _Migration(target, text, suffix).run()


class _Migration:
    def __init__(self, target: Any, text: str, suffix: str) -> None:
        self._reader = catalog_for(()).root_reader(target)
        self._text = text
        self._suffix = suffix

    def run(self) -> str:
        self._visit((), self._reader)
        return self._text

    def _parsed(self) -> Configuration:
        made = Configuration(self._reader)
        made.add(Document(None, format_of(self._suffix).parse(self._text.removeprefix("\ufeff"), None).data))
        return made

    def _visit(self, path: Path, reader: Reader | None) -> None:
        """Brings the table at a path up to date, and then those in it."""
        configuration = self._parsed()
        value = configuration.value_at(path)
        if isinstance(value, dict):
            call = configuration.call_at(reader, path, value)
            if call is not None:
                self._upgrade(path, value, call)
                configuration = self._parsed()
                value = configuration.value_at(path)
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            self._visit((*path, key), configuration.reader_below(reader, path, value, key))

    def _upgrade(self, path: Path, table: Mapping[str, Any], call: CallReader) -> None:
        current = version_of(call.called)
        given = table.get(VERSION, 1)
        if isinstance(given, int) and given < current:
            upgraded = in_current_version(call.called, {k: v for k, v in table.items() if k != VERSION}, given)
            table = {**upgraded, VERSION: current}
            self._put(path, table)
        for old, new in call.renamed.items():
            if old in table and new not in table and old not in call.parameters.by_name:
                self._text = renamed(self._text, self._suffix, (*path, old), new)

    def _put(self, path: Path, table: dict[str, Any]) -> None:
        if path:
            self._text = with_value(self._text, self._suffix, path, table)
            return
        before = self._parsed().data
        for key, value in table.items():
            if key not in before or before[key] != value:
                self._text = with_value(self._text, self._suffix, (key,), value)
        for key in before.keys() - table.keys():
            self._text = without(self._text, self._suffix, (key,))
