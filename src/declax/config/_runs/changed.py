"""Defaults of the code that have changed since a run was recorded."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from typing import Any, Final

from declax._typing import MISSING
from declax.config._files.documents import Document
from declax.config._runs.folders import RunFolder
from declax.config._sources.loading import Loading, warn
from declax.config.loading import to_config
from declax.config.problems import Path, path_text, shown
from declax.config.specs import Spec
from declax.errors import ConfigError, ConfigWarning

_MAX_LINES: Final = 20


def warn_of_changed(
    folder: RunFolder, recorded: Spec[Any], target: Any, extra: tuple[Any, ...], env: Collection[str]
) -> None:
    """Warns of values that are recorded, and would be others if the same words were said now.

    What class bodies compute is reported where the record is read.
    """
    try:
        lines = _changes(folder.about.get("said"), recorded, Loading(target, extra=extra, env=env, migrate=True), extra)
    except ConfigError:
        return  # words that are wrong now tell nothing
    if not lines:
        return
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"  ... {len(lines) - _MAX_LINES} more"]
    title = f"{folder.record}: defaults of the code have changed; the values of the record are used:"
    text = "\n".join([title, *lines])
    warn(text)


def _changes(said: Any, recorded: Spec[Any], loading: Loading, extra: tuple[Any, ...]) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # the record gave them already
        found = loading.run([Document(None, said)]).value
    now, then = (dict(_values(to_config(spec, full=True, extra=extra), ())) for spec in (found, recorded))
    return [
        f"  {path_text(path)}: {shown(value)}, and not {shown(now[path])}"
        for path, value in then.items()
        if now.get(path, MISSING) not in (MISSING, value)
    ]


def _values(data: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """The values in tables and lists, by path; those of keys with a dollar apart."""
    items: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else None
    if items is None:
        yield path, data
        return
    for key, value in items:
        if not str(key).startswith("$"):
            yield from _values(value, (*path, key))
