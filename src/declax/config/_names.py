"""Under which name code finds a class or function, so that another process finds the same one."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, Final

import jax.numpy as jnp

_LIBRARIES: Final = ("jax.nn", "jax.lax", "jax.numpy", "jax.nn.initializers", "jax.random", "jax", "optax")
"""Where objects whose own module is private have their public names."""


def public_name(obj: Any) -> str | None:
    """``module:qualname`` of a class or function; None for what has no name of its own, such as a lambda.

    A class inside of a function has a name, though no import reaches it. The
    main script counts as the module that it would be when it is imported.

    >>> public_name(jax.nn.relu), public_name(dict), public_name(lambda x: x)
    ('jax.nn:relu', 'builtins:dict', None)
    """
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None) or getattr(obj, "__name__", "")
    if isinstance(module, str) and isinstance(name, str) and name:
        is_private = any(part.startswith("_") for part in module.split(".")) and module != "__main__"
        if not is_private and _is_found(module, name, obj):
            return f"{_importable(module)}:{name}"
        public = _in_libraries(obj)
        if public is not None:
            return public
        is_local_class = isinstance(obj, type) and "<lambda>" not in name
        if _is_found(module, name, obj) or is_local_class:
            return f"{_importable(module)}:{name}"
    return _in_libraries(obj)


def is_importable(name: str) -> bool:
    """Whether an import reaches the object of a name that `public_name` gave."""
    return "<locals>" not in name


def _is_found(module: str, name: str, obj: Any) -> bool:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    # a class method is another object each time that it is asked for
    return found is obj or (isinstance(obj, MethodType) and bool(found == obj))


def _in_libraries(obj: Any) -> str | None:
    for library in _LIBRARIES:
        module = sys.modules.get(library)
        name = None if module is None else _names_of(module).get(id(obj))
        if name is not None and getattr(module, name, None) is obj:
            return f"{library}:{name}"
    return None


@functools.cache
def _names_of(module: ModuleType) -> dict[int, str]:
    # the first of several names wins, in an order that does not depend on that of imports
    found = {}
    for name, value in sorted(vars(module).items(), reverse=True):
        if not name.startswith("_") and callable(value):
            found[id(value)] = name
    return found


def _importable(module: str) -> str:
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        name: str = spec.name
        return name.removesuffix(".__main__")
    return Path(file).stem if file else module


def dtype_code(value: Any) -> str:
    """A dtype as code, with the prefix ``jnp`` where that has it."""
    name = jnp.dtype(value).name
    if isinstance(value, jnp.dtype):
        return f"jnp.dtype({name!r})"
    scalar = getattr(jnp, name if name != "bool" else "bool_", None)
    return f"jnp.{name if name != 'bool' else 'bool_'}" if scalar is not None else f"jnp.dtype({name!r})"
