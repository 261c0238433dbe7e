"""Specs as code: the calls of the constructors that a spec stands for, and the spec itself.

Vocabulary
----------
reference: the code that names a class or function, and the import that makes it mean that.
shared:    of a part: meant by a Ref, so that its first place gives it a name, ``(embed := dx.Embed(...))``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import importlib
import inspect
import keyword
import math
import pathlib
import types
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from declax import initializers
from declax._lazy import exports
from declax._pytree import Pytree
from declax._typing import MISSING
from declax.config._building import Walk, positions
from declax.config._data import FrozenDict, FrozenList, Ref, SpecData
from declax.config._names import dtype_code, is_importable, public_name
from declax.config._parameters import RNGS, target_name
from declax.config._refs import locate
from declax.config._unions import is_dtype
from declax.config.problems import Path, path_text, shown
from declax.errors import ConfigError, describe
from declax.initializers import NamedInitializer

VERSION: Final = "config_version"
"""The attribute of a class that counts the versions of its configuration."""

WIDTH: Final = 100
_INDENT: Final = "    "
_ON_ONE_LINE: Final = -1_000_000
"""The depth of code that is not wrapped."""

# --- references ---------------------------------------------------------------

_PREFIXES: Final = {
    "jax.numpy": "import jax.numpy as jnp",
    "numpy": "import numpy as np",
    "jax": "import jax",
    "functools": "import functools",
    "pathlib": "import pathlib",
    "declax": "import declax as dx",
}
_PATHS: Final = {  # the classes of paths of this system have the names of those that make them
    pathlib.PurePosixPath: "PurePosixPath",
    pathlib.PureWindowsPath: "PureWindowsPath",
    type(pathlib.PurePath()): "PurePath",
    type(pathlib.Path()): "Path",
}
_AS: Final = {"jax.numpy": "jnp", "numpy": "np", "declax": "dx"}


@functools.cache
def _root_names() -> dict[str, str]:
    return {name: module for name, module in exports("declax").items() if module != "declax"}


def _root_name(obj: Any) -> str | None:
    """The name of the package root that is this object."""
    name = getattr(obj, "__name__", None)
    module = _root_names().get(name) if isinstance(name, str) else None
    if module is None or getattr(importlib.import_module(module), name or "", None) is not obj:
        return None
    return name


class References:
    """The names that some code uses, and the imports that it needs."""

    def __init__(self, reserved: tuple[str, ...] = ()) -> None:
        self.imports: dict[str, str] = {}
        self._taken: dict[str, str | None] = dict.fromkeys(
            (*reserved, "dx", "jnp", "np", "jax", "functools", "pathlib")
        )

    def reserve(self, name: str) -> str:
        """A name that nothing else has: this one, or this one with a number."""
        name = name if name.isidentifier() and not keyword.iskeyword(name) else "part"
        free, number = name, 2
        while free in self._taken:
            free, number = f"{name}_{number}", number + 1
        self._taken[free] = None
        return free

    def under(self, module: str, rest: str = "") -> str:
        """The code for a name of a module that has a usual prefix, such as ``jnp``."""
        self.imports[module] = _PREFIXES[module]
        return f"{_AS.get(module, module)}.{rest}"

    def to(self, obj: Any) -> str | None:
        """The code that names a class or function; None for what has no name."""
        root = _root_name(obj)
        if root is not None:
            return self.under("declax", root)
        name = public_name(obj)
        if name is None:
            return None
        module, _, path = name.partition(":")
        if module == "declax.initializers":
            return self.under("declax", f"initializers.{path}")
        if module == "builtins" and path not in self._taken:
            return path
        if module in ("jax.numpy", "numpy"):
            return self.under(module, path)
        if module.partition(".")[0] in ("jax", "optax"):
            self.imports[module] = f"import {module}"
            return f"{module}.{path}"
        return self._imported(module, path.rpartition("<locals>.")[2], is_there=is_importable(path))

    def _imported(self, module: str, path: str, *, is_there: bool) -> str:
        head = path.partition(".")[0]
        if self._taken.get(head, module) != module:
            self.imports[module] = f"import {module}"
            return f"{module}.{path}"
        self._taken[head] = module
        if is_there:
            self.imports[f"{module}:{head}"] = f"from {module} import {head}"
        return path

    def lines(self) -> list[str]:
        """The imports, as sorted lines."""
        plain = sorted(line for line in self.imports.values() if line.startswith("import"))
        named: dict[str, list[str]] = {}
        for line in self.imports.values():
            if line.startswith("from"):
                module, _, name = line.removeprefix("from ").partition(" import ")
                named.setdefault(module, []).append(name)
        return [*plain, *(f"from {module} import {', '.join(sorted(n))}" for module, n in sorted(named.items()))]


class BareReferences(References):
    """Names alone, for a ``repr``."""

    def under(self, module: str, rest: str = "") -> str:
        """The last name, or ``jnp.x`` and the like."""
        return rest.rpartition(".")[2] if module == "declax" else f"{_AS.get(module, module)}.{rest}"

    def to(self, obj: Any) -> str | None:
        """The name of an object, whether or not an import would reach it."""
        return getattr(obj, "__name__", None) and target_name(obj)


# --- code ---------------------------------------------------------------------


def call_text(head: str, arguments: list[str], depth: int) -> str:
    """A call on one line, or with an argument on each where that is too long."""
    return _bracket(f"{head}(", arguments, ")", depth)


def _bracket(opening: str, items: list[str], closing: str, depth: int) -> str:
    line = f"{opening}{', '.join(items)}{closing}"
    if len(line) + len(_INDENT) * depth <= WIDTH and "\n" not in line:
        return line
    inner, outer = "\n" + _INDENT * (depth + 1), "\n" + _INDENT * depth
    return f"{opening}{''.join(f'{inner}{item},' for item in items)}{outer}{closing}"


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


class Values:
    """The code of the values in a spec."""

    def __init__(self, references: References, where: str) -> None:
        self.references = references
        self.where = where

    def text(self, value: Any, path: Path) -> str:
        """The code of a value that is no spec, list, dict or tuple.

        Raises:
          ConfigError: for a value that no code makes.
        """
        if isinstance(value, float) and not math.isfinite(value):
            return f"float({str(value)!r})"
        if value is None or (type(value) in (bool, int, float, complex, str, bytes)):
            return repr(value)
        if isinstance(value, Ref):
            return f"{self.references.under('declax', 'Ref')}({value.path!r})"
        if is_dtype(value):
            return self._dtype(value)
        if isinstance(value, enum.Enum):
            return f"{self._name(type(value), path)}.{value.name}"
        if isinstance(value, NamedInitializer):
            prefix = self.references.under("declax", "initializers.")
            return f"{prefix}{value!r}" if value.name in vars(initializers) else repr(value)
        if isinstance(value, jax.sharding.PartitionSpec):
            return call_text(self._name(jax.P, path), [repr(entry) for entry in value], 0)
        return self._compound(value, path)

    def _compound(self, value: Any, path: Path) -> str:
        if isinstance(value, functools.partial):
            inner = [self.any(v, path) for v in (value.func, *value.args)]
            inner += [f"{name}={self.any(v, path)}" for name, v in value.keywords.items()]
            return call_text(self.references.under("functools", "partial"), inner, 0)
        parts = parts_of_value(value)
        if parts is not None:
            named = [f"{name}={self.any(v, path)}" for name, v in parts.items()]
            return call_text(self._name(type(value), path), named, 0)
        if isinstance(value, pathlib.PurePath):
            return f"{self._path_class(value, path)}({str(value)!r})"
        if isinstance(value, frozenset):
            items = ", ".join(sorted(map(repr, value)))
            return f"frozenset({{{items}}})" if items else "frozenset()"
        if isinstance(value, (range, slice, types.EllipsisType)):
            return "..." if value is ... else repr(value)
        return self._name(value, path)

    def _path_class(self, value: pathlib.PurePath, path: Path) -> str:
        name = _PATHS.get(type(value))
        return self._name(type(value), path) if name is None else self.references.under("pathlib", name)

    def any(self, value: Any, path: Path) -> str:
        """The code of a value inside of one that is opaque: a plain tuple, or as `text`."""
        if type(value) is tuple:
            return _bracket(
                "(", [self.any(item, path) for item in value], ",)" if len(value) == 1 else ")", _ON_ONE_LINE
            )
        return self.text(value, path)

    def _dtype(self, value: Any) -> str:
        if isinstance(value, type) and issubclass(value, np.generic) and hasattr(np, value.__name__):
            return self.references.under("numpy", value.__name__)
        return self.references.under("jax.numpy", dtype_code(value).removeprefix("jnp."))

    def _name(self, value: Any, path: Path) -> str:
        name = self.references.to(value) if callable(value) else None
        if name is None:
            raise ConfigError(
                f"{self.where}.{path_text(path)}",
                "no code makes this value",
                got=describe(value),
                fix="a function with a name in a module, or dx.spec(make, ...) of one that makes the value",
            )
        return name

    def target(self, spec: SpecData, path: Path) -> str:
        """The code that names the target of a spec."""
        return self._name(spec.target, path)

    def spec(self, value: Any, path: Path, depth: int) -> str:
        """The code that makes a spec, or what is in one: ``dx.spec(Block, dim=64)``."""
        if isinstance(value, SpecData):
            items = [self.target(value, path)]
            args, named = positions(value.parameters, value.arguments)
            items += [self.spec(v, (*path, i), depth + 1) for i, v in enumerate(args)]
            items += [f"{name}={self.spec(v, (*path, name), depth + 1)}" for name, v in named.items()]
            return call_text(self.references.under("declax", "spec"), items, depth)
        if isinstance(value, FrozenDict):
            entries = [f"{k!r}: {self.spec(v, (*path, k), depth + 1)}" for k, v in value.items()]
            return _bracket("{", entries, "}", depth)
        if type(value) in (tuple, FrozenList):
            items = [self.spec(v, (*path, i), depth + 1) for i, v in enumerate(value)]
            return _sequence(value, items, depth)
        return self.text(value, path)


def _sequence(value: Any, items: list[str], depth: int) -> str:
    if isinstance(value, FrozenList):
        return _bracket("[", items, "]", depth)
    if len(items) == 1:
        return f"({items[0]},)"
    return _bracket("(", items, ")", depth)


class _Calls(Walk):
    """The calls that `Builder` would make, as code."""

    def __init__(self, root: SpecData, references: References) -> None:
        super().__init__(root)
        self.values = Values(references, root.parameters.name)
        self.uses_rngs = False
        self._spread: set[Path] = set()
        self._names: dict[Path, str] = {}
        self._shared = {place.path for place in _places(root)}
        self._given: set[Path] = set()

    def value(self, value: Any, path: Path, annotation: Any) -> Any:
        code = super().value(value, path, annotation)
        if path not in self._shared or path not in self.made:
            return code
        if path in self._given:
            return self._names[path]
        self._given.add(path)
        last = next((key for key in reversed(path) if isinstance(key, str)), "part")
        self._names[path] = self.values.references.reserve(last)
        return f"({self._names[path]} := {code})"

    def kept(self, spec: SpecData, path: Path) -> str:
        return self.values.spec(spec, (), self._depth() + 1)

    def leaf(self, value: Any, path: Path) -> str:
        return self.values.text(value, path)

    def container(self, value: Any, parts: list[tuple[Any, Any]]) -> _Container:
        if isinstance(value, FrozenDict):
            code = _Container(_bracket("{", [f"{key!r}: {item}" for key, item in parts], "}", self._depth()))
        else:
            code = _Container(_sequence(value, [item for _, item in parts], self._depth()))
        code.items = [item for _, item in parts]
        return code

    def call(self, spec: SpecData, path: Path) -> str:
        parameters = spec.parameters
        if parameters.variadic is not None:
            self._spread.add((*path, parameters.variadic))
        depth = self._depth()
        arguments = self.arguments(spec, path)
        args, named = positions(parameters, self._with_defaults(spec, path, arguments))
        items = [*args, *(f"{name}={code}" for name, code in named.items() if name in arguments)]
        if parameters.takes_rngs:
            self.uses_rngs = True
            items.append(f"{RNGS}={RNGS}")
        return call_text(self.values.target(spec, path), items, depth)

    def _with_defaults(self, spec: SpecData, path: Path, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the code of the defaults that stand before others by position."""
        given = dict(arguments)
        variadic = spec.parameters.variadic
        if variadic is not None and variadic in given:
            given[variadic] = given[variadic].items
        is_needed = variadic in given or any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in spec.parameters)
        for parameter in spec.parameters if is_needed else ():
            default = spec.full_arguments.get(parameter.name, MISSING)
            if parameter.is_positional and parameter.name not in given and default is not MISSING:
                given[parameter.name] = self.values.spec(default, (*path, parameter.name), 0)
        return given

    def _depth(self) -> int:
        return sum(path not in self._spread for path in self._open) - 1


class _Container(str):
    """The code of a list, tuple or dict, with that of its elements."""

    __slots__ = ("items",)

    items: list[str]


def _places(root: SpecData) -> list[Any]:
    """Where the Refs of a spec lead."""
    found: list[Any] = []

    class Finder(Walk):
        def shared(self, ref: Ref, path: Path, annotation: Any) -> Any:
            found.append(locate(self.root, ref, path))
            return super().shared(ref, path, annotation)

    Finder(root).run()
    return found


def to_python(spec: SpecData, *, name: str, rngs: str) -> str:
    """A program that builds what a spec describes; see `Spec.to_python`."""
    references = References((name, RNGS))
    calls = _Calls(spec, references)
    code = calls.run()
    lines = [f"{name} = {code}"]
    if calls.uses_rngs:
        references.under("declax")
        lines.insert(0, f"{RNGS} = {rngs}")
    imports = references.lines()
    return "\n".join([*imports, *([""] if imports else []), *lines]) + "\n"


def spec_text(spec: SpecData) -> str:
    """The ``repr`` of a spec: the call of `spec` that makes it, with names alone."""
    try:
        return Values(BareReferences(), spec.parameters.name).spec(spec, (), 0)
    except ConfigError:  # a value without code, which a repr may show as it is
        return f"spec({short_text(spec, 10_000)})"


# --- one text in every process ------------------------------------------------


class _CanonicalReferences(References):
    def under(self, module: str, rest: str = "") -> str:
        return f"{module}:{rest}"

    def to(self, obj: Any) -> str | None:
        return public_name(obj)


class _Canonical(Values):
    """The code of a spec with full names, without what depends on the machine."""

    def __init__(self, root: SpecData, *, is_full: bool) -> None:
        super().__init__(_CanonicalReferences(), root.parameters.name)
        self.is_full = is_full

    def spec(self, value: Any, path: Path, depth: int) -> str:
        if not isinstance(value, SpecData):
            return super().spec(value, path, depth)
        target = self.target(value, path)
        version = getattr(value.target, VERSION, None)
        items = [target] + ([f"version:{version}"] if self.is_full and isinstance(version, int) else [])
        for name, argument in (value.full_arguments if self.is_full else value.arguments).items():
            try:
                text = self.spec(argument, (*path, name), depth)
            except ConfigError:
                if name in value.arguments:
                    raise
                text = f"default:{target}.{name}"  # a lambda, say, that is known by where it is declared
            items.append(f"{name}={text}")
        return f"spec({', '.join(items)})"

    def text(self, value: Any, path: Path) -> str:
        return f"path:{value.as_posix()!r}" if isinstance(value, pathlib.PurePath) else super().text(value, path)

    def _dtype(self, value: Any) -> str:
        return f"dtype:{np.dtype(value).name}"

    def _name(self, value: Any, path: Path) -> str:
        name = self.references.to(value) if callable(value) else None
        if name is None:
            raise ConfigError(
                f"{self.where}.{path_text(path)}" if path else self.where,
                "this value has no text that is the same in every process",
                got=describe(value),
                why="another process finds a class or function by its module and name",
                fix="a function with a name in a module, or dx.spec(make, ...) of one that makes the value",
            )
        return name


def canonical_text(spec: SpecData, *, full: bool = False) -> str:
    """One text for all equal specs, in this process and others.

    Raises:
      ConfigError: for a value that has no such text, such as a lambda.

    >>> canonical_text(SpecData(sorted, {"iterable": (1, 2.0)}))
    'spec(builtins:sorted, iterable=(1, 2.0))'
    """
    return _Canonical(spec, is_full=full).spec(spec, (), _ON_ONE_LINE)


def fingerprint(spec: SpecData, *, full: bool) -> str:
    """The SHA-256 of the canonical text; see `Spec.fingerprint`."""
    return hashlib.sha256(canonical_text(spec, full=full).encode()).hexdigest()


# --- one line for reports -----------------------------------------------------


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
