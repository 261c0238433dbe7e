"""Configurations of older versions of a class: `config_version` and `config_upgrades`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from declax.config._reading.readers import Context
from declax.config.problems import Path, described
from declax.errors import FieldError, describe, type_name

VERSION: Final = "$version"
MIGRATE: Final = "pass migrate=True to update old files, and write the result with dx.to_config"


def version_of(target: Any) -> int:
    """The version of a class's parameters; 1 by default."""
    version = getattr(target, "config_version", 1)
    if type(version) is not int or version < 1:
        raise FieldError(
            f"{type_name(target)}.config_version",
            "the version of a class must be an int of at least 1",
            got=describe(version),
        )
    return version


def upgraded(target: Any, table: Mapping[str, Any], path: Path, context: Context) -> Mapping[str, Any] | None:
    """The table in the current version; without ``$version`` it is current, or 1 when migrating. None if invalid."""
    given = table.get(VERSION)
    if given is None and not context.migrate:
        return table
    current = version_of(target)
    if given is None and current == 1:
        return table
    version = 1 if given is None else given
    if type(version) is not int or version < 1:
        context.wrong((*path, VERSION), "int", given)
        return None
    if version > current or (version < current and not context.migrate):
        is_old = version < current
        context.add(
            "version",
            (*path, VERSION),
            f"the table has {'an older' if is_old else 'a newer'} version of {type_name(target)}",
            expected=str(current),
            got=described(version),
            hint=MIGRATE if is_old else "install the version of the program that wrote it",
        )
        return None
    made: Any = {key: value for key, value in table.items() if key != VERSION}
    upgrades: Mapping[int, Any] = getattr(target, "config_upgrades", {})
    for step in range(version, current):
        try:
            if step in upgrades:
                made = upgrades[step](copy.deepcopy(made))  # an upgrade may change the user's data
        except Exception as error:  # noqa: BLE001  # a user's function, called with untrusted data
            message = f"the upgrade of {type_name(target)} from version {step} raised {type(error).__name__}: {error}"
            context.add("version", path, message)
            return None
    return made  # type: ignore[no-any-return]  # a dict
