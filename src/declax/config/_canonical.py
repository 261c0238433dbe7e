"""Specs as text: one that is the same in every process, to be hashed, and a short one for people.

Vocabulary
----------
minimal, full: without, and with, the arguments that are equal to their defaults. The full text
               changes when a default of the code does; the minimal one says what was asked for.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import pathlib
from typing import Any, Final

import jax
import jax.numpy as jnp

from declax._pytree import Pytree
from declax._typing import MISSING
from declax.config._data import FrozenDict, FrozenList, Ref, SpecData
from declax.config._names import public_name
from declax.config._parameters import target_name
from declax.config._unions import is_dtype
from declax.config.problems import Path, path_text, shown
from declax.errors import ConfigError, describe
from declax.initializers import NamedInitializer

VERSION: Final = "config_version"
"""The attribute of a class that counts the versions of its configuration."""


def fingerprint(spec: SpecData, *, full: bool) -> str:
    """The SHA-256 of the canonical text; see `Spec.fingerprint`."""
    return hashlib.sha256(canonical_text(spec, full=full).encode()).hexdigest()


def canonical_text(spec: SpecData, *, full: bool = False) -> str:
    """One text for all equal specs, in this process and others.

    Raises:
      ConfigError: for a value that has no such text, such as a lambda.

    >>> canonical_text(SpecData(sorted, {"iterable": (1, 2.0)}))
    '{"builtins:sorted","iterable":(1,2.0)}'
    """
    return _Text(spec, is_full=full).of(spec, ())


class _Text:
    def __init__(self, root: SpecData, *, is_full: bool) -> None:
        self.root = root
        self.is_full = is_full

    def of(self, value: Any, path: Path) -> str:
        if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, enum.Enum)):
            return json.dumps(value)
        if isinstance(value, SpecData):
            return self._spec(value, path)
        if isinstance(value, (FrozenList, FrozenDict)) or type(value) is tuple:
            return self._container(value, path)
        return self._other(value, path)

    def _spec(self, spec: SpecData, path: Path) -> str:
        arguments = spec.full_arguments if self.is_full else spec.arguments
        head = [json.dumps(self._name(spec.target, path))]
        version = getattr(spec.target, VERSION, None)
        if self.is_full and isinstance(version, int):
            head.append(f"version:{version}")
        for name, value in arguments.items():
            try:
                text = self.of(value, (*path, name))
            except ConfigError:
                if name in spec.arguments:
                    raise
                text = f"default:{head[0]}.{name}"  # a lambda, say, that is known by where it is declared
            head.append(f"{json.dumps(name)}:{text}")
        return "{" + ",".join(head) + "}"

    def _container(self, value: Any, path: Path) -> str:
        if isinstance(value, FrozenDict):
            return "{" + ",".join(f"{json.dumps(k)}:{self.of(v, (*path, k))}" for k, v in value.items()) + "}"
        inner = ",".join([self.of(item, (*path, index)) for index, item in enumerate(value)])
        return f"[{inner}]" if isinstance(value, FrozenList) else f"({inner})"

    def _other(self, value: Any, path: Path) -> str:
        if isinstance(value, (float, complex, bytes)):
            return repr(value)
        if isinstance(value, Ref):
            return f"ref:{json.dumps(value.path)}"
        if is_dtype(value):
            return f"dtype:{jnp.dtype(value).name}"
        if isinstance(value, enum.Enum):
            return f"{self._name(type(value), path)}.{value.name}"
        if isinstance(value, pathlib.PurePath):
            return f"path:{json.dumps(value.as_posix())}"
        if isinstance(value, NamedInitializer):
            return f"initializer:{value!r}"
        if isinstance(value, jax.sharding.PartitionSpec):
            return f"partition:{tuple(value)!r}"
        return self._compound(value, path)

    def _compound(self, value: Any, path: Path) -> str:
        inner: dict[str, Any] | None = parts_of_value(value)
        if isinstance(value, functools.partial):
            inner = {"function": value.func, "args": value.args, "named": FrozenDict(value.keywords)}
        if isinstance(value, (frozenset, range, slice, type(...))):
            return repr(sorted(value, key=repr)) if isinstance(value, frozenset) else repr(value)
        if inner is None:
            return f"name:{self._name(value, path)}"
        texts = (f"{json.dumps(name)}:{self.of(v, (*path, name))}" for name, v in inner.items())
        return f"{self._name(type(value), path)}({','.join(texts)})"

    def _name(self, value: Any, path: Path) -> str:
        name = public_name(value) if callable(value) else None
        if name is not None:
            return name
        root = self.root.parameters.name
        raise ConfigError(
            f"{root}.{path_text(path)}" if path else root,
            "this value has no text that is the same in every process",
            got=describe(value),
            why="another process finds a class or function by its module and name",
            fix="a function with a name in a module, or dx.spec(make, ...) of one that makes the value",
        )


def parts_of_value(value: Any) -> dict[str, Any] | None:
    """The arguments that make a named tuple or an instance of a dataclass; None for other values.

    >>> import collections
    >>> parts_of_value(collections.namedtuple("Point", "x y")(1, 2))
    {'x': 1, 'y': 2}
    """
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        named: Any = value
        return dict(named._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, Pytree)):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    return None


def short_text(value: Any, size: int = 60) -> str:
    """A value in a line, for reports.

    >>> short_text(SpecData(sorted, {"iterable": FrozenList([1])}))
    'sorted(iterable=[1])'
    """
    text = _short(value)
    return text if len(text) <= size else text[: size - 3] + "..."


def _short(value: Any) -> str:
    if isinstance(value, SpecData):
        inner = ", ".join(f"{name}={_short(v)}" for name, v in value.arguments.items())
        return f"{target_name(value.target)}({inner})"
    if isinstance(value, FrozenList):
        return f"[{', '.join(map(_short, value))}]"
    if isinstance(value, FrozenDict):
        return f"{{{', '.join(f'{k!r}: {_short(v)}' for k, v in value.items())}}}"
    if type(value) is tuple:
        return f"({', '.join(map(_short, value))}{',' if len(value) == 1 else ''})"
    if is_dtype(value):
        return str(jnp.dtype(value).name)
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is MISSING or not callable(value) or isinstance(value, (NamedInitializer, functools.partial)):
        return repr(value)
    return target_name(value)
