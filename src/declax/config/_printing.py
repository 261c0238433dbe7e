"""Specs as text: `repr`, the tree of parts, reports and fingerprints."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import pathlib
import sys
import types
from collections.abc import Iterable, Mapping
from types import MethodType, ModuleType
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from declax import initializers
from declax._classes.parts import makes_data, recipe_of
from declax._classes.pytree import Pytree
from declax._fields.annotations import annotation_text
from declax._fields.expressions import Declaration, Expression
from declax._fields.overrides import DeclaredPart
from declax._fields.sources import declared_text
from declax._fields.specifiers import SubmoduleRecipe
from declax.config._building import positions
from declax.config._data import FrozenDict, FrozenList, Ref, SpecData
from declax.config._declared import ClassBodyScope
from declax.config._reading.parameters import is_dtype, target_name
from declax.config.problems import Path, path_text
from declax.errors import ConfigError, describe
from declax.initializers import NamedInitializer

_AS: Final = {"jax.numpy": "jnp", "numpy": "np"}


def _call(name: str, args: Iterable[str], named: Mapping[str, str]) -> str:
    return f"{name}({', '.join([*args, *(f'{key}={code}' for key, code in named.items())])})"


def _container(value: Any, items: Mapping[Any, str]) -> str:
    if isinstance(value, FrozenDict):
        return f"{{{', '.join(f'{key!r}: {code}' for key, code in items.items())}}}"
    inside = ", ".join(items.values())
    if isinstance(value, FrozenList):
        return f"[{inside}]"
    return f"({inside},)" if len(items) == 1 else f"({inside})"


class Printer:
    """Prints values as code with bare names, without imports."""

    def __init__(self, where: str) -> None:
        self.where = where

    def under(self, module: str, rest: str) -> str:
        """The code for a name in a module, with the usual prefix, such as ``jnp``."""
        return rest.rpartition(".")[2] if module == "declax" else f"{_AS.get(module, module)}.{rest}"

    def name(self, value: Any, path: Path) -> str:
        """The code that names a class or function."""
        return target_name(value) if getattr(value, "__name__", None) else repr(value)

    def value(self, value: Any, path: Path) -> str:
        if isinstance(value, SpecData):
            return self.spec(value, path)
        if type(value) in (tuple, FrozenList, FrozenDict):
            items = value.items() if isinstance(value, FrozenDict) else enumerate(value)
            return _container(value, {key: self.value(item, (*path, key)) for key, item in items})
        if isinstance(value, float) and not math.isfinite(value):
            return f"float({str(value)!r})"
        if value is None or type(value) in (bool, int, float, complex, str, bytes):
            return repr(value)
        if isinstance(value, Ref):
            return f"{self.under('declax', 'Ref')}({value.path!r})"
        if is_dtype(value):
            return self.dtype(value)
        if isinstance(value, enum.Enum):
            return f"{self.name(type(value), path)}.{value.name}"
        if isinstance(value, NamedInitializer):
            prefix = self.under("declax", "initializers.")
            return f"{prefix}{value!r}" if value.name in vars(initializers) else repr(value)
        if isinstance(value, pathlib.PurePath):
            return self.path(value)
        if isinstance(value, frozenset):
            members = ", ".join(sorted(map(repr, value)))
            return f"frozenset({{{members}}})" if members else "frozenset()"
        if isinstance(value, (range, slice, types.EllipsisType)):
            return "..." if value is ... else repr(value)
        return self._opaque(value, path)

    def _opaque(self, value: Any, path: Path) -> str:
        if isinstance(value, jax.sharding.PartitionSpec):
            return _call(self.name(jax.P, path), [repr(entry) for entry in value], {})
        if isinstance(value, functools.partial):
            args = [self.value(v, path) for v in (value.func, *value.args)]
            named = {name: self.value(v, path) for name, v in value.keywords.items()}
            return _call(self.under("functools", "partial"), args, named)
        parts: dict[str, Any] | None = None
        if isinstance(value, tuple) and (as_dict := getattr(value, "_asdict", None)) is not None:
            parts = as_dict()
        elif dataclasses.is_dataclass(value) and not isinstance(value, (type, Pytree)):
            parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        if parts is not None:
            return _call(self.name(type(value), path), (), {name: self.value(v, path) for name, v in parts.items()})
        return self.name(value, path)

    def spec(self, spec: SpecData, path: Path) -> str:
        """The code for a spec: ``dx.spec(Block, dim=64)``, or a dict for overrides of a declared part."""
        if isinstance(spec.target, DeclaredPart):
            given = FrozenDict(spec.arguments)
            return _container(given, {name: self.value(v, (*path, name)) for name, v in given.items()})
        args, named = positions(spec.parameters, spec.arguments)
        items = [self.name(spec.target, path), *(self.value(v, (*path, i)) for i, v in enumerate(args))]
        return _call(
            self.under("declax", "spec"), items, {name: self.value(v, (*path, name)) for name, v in named.items()}
        )

    def dtype(self, value: Any) -> str:
        if isinstance(value, type) and issubclass(value, np.generic) and hasattr(np, value.__name__):
            return self.under("numpy", value.__name__)
        name = jnp.dtype(value).name
        scalar = "bool_" if name == "bool" else name
        is_scalar = not isinstance(value, jnp.dtype) and hasattr(jnp, scalar)
        return self.under("jax.numpy", scalar if is_scalar else f"dtype({name!r})")

    def path(self, value: pathlib.PurePath) -> str:
        return repr(value)


def spec_text(spec: SpecData) -> str:
    return Printer(spec.parameters.name).value(spec, ())


def short_text(value: Any, size: int = 60) -> str:
    """A value in one line, for reports.

    >>> short_text(SpecData(sorted, {"iterable": FrozenList([1])}))
    'sorted(iterable=[1])'
    """
    text = _ShortPrinter("").value(value, ())
    return text if len(text) <= size else text[: size - 3] + "..."


class _ShortPrinter(Printer):
    """Prints specs as the calls that they describe."""

    def spec(self, spec: SpecData, path: Path) -> str:
        if isinstance(spec.target, DeclaredPart):
            declared = repr(spec.target)
            return f"{declared} with {super().spec(spec, path)}" if spec.arguments else declared
        return _call(target_name(spec.target), (), {name: self.value(v, path) for name, v in spec.arguments.items()})


def tree_text(spec: SpecData, label: str = "", indent: str = "") -> str:
    """The parts of a spec, one line each with its arguments; declared parts are evaluated, except those of methods."""
    if isinstance(spec.target, DeclaredPart):
        return f"{indent}{label}{short_text(spec, 200)} (unevaluated)"
    scope = ClassBodyScope(spec)
    plain = {name: scope.value(value) for name, value in spec.arguments.items()}
    found = {**{name: scope.read(name) for name in scope.parts}, **plain}
    shown = {name: value for name, value in plain.items() if not _parts_in(value)}
    head = _call(target_name(spec.target), (), {n: _ShortPrinter("").value(v, (n,)) for n, v in shown.items()})
    lines = [f"{indent}{label}{head}"]
    for name, value in found.items():
        recipe = recipe_of(value._pytree__field) if isinstance(value, Declaration) else None
        if isinstance(recipe, SubmoduleRecipe):
            made = getattr(recipe.build, "__annotations__", {}).get("return", "a part")
            text = made if isinstance(made, str) else annotation_text(made)
            lines.append(f"{indent}  {name}: {text} by a method (unevaluated)")
        elif isinstance(value, Expression) and makes_data(value):
            lines.append(f"{indent}  {name}: {declared_text(value)} (unevaluated)")
        for part, keys in _parts_in(value).items():
            lines.append(tree_text(part, f"{', '.join(f'{name}{key}' for key in keys)}: ", indent + "  "))
    return "\n".join(lines)


def _parts_in(value: Any, key: str = "") -> dict[SpecData, list[str]]:
    """The specs in a value, equal ones once, with all their subscripts."""
    if isinstance(value, SpecData):
        return {value: [key]}
    found: dict[SpecData, list[str]] = {}
    if type(value) in (tuple, FrozenList, FrozenDict):
        for index, item in value.items() if isinstance(value, FrozenDict) else enumerate(value):
            for part, keys in _parts_in(item, f"{key}[{index!r}]").items():
                found.setdefault(part, []).extend(keys)
    return found


class _CanonicalPrinter(Printer):
    """Code with full names, independent of the machine: one text for all equal specs."""

    def under(self, module: str, rest: str) -> str:
        return f"{module}:{rest}"

    def name(self, value: Any, path: Path) -> str:
        name = public_name(value)
        if name is None:
            raise ConfigError(
                f"{self.where}.{path_text(path)}" if path else self.where,
                "no code makes this value",
                got=describe(value),
                why="another process must find a class or function by its module and name",
                fix="a named function in a module, or dx.spec(make, ...) with a function that makes the value",
            )
        return name

    def spec(self, spec: SpecData, path: Path) -> str:
        if isinstance(spec.target, DeclaredPart):
            return super().spec(spec, path)
        named = {name: self.value(argument, (*path, name)) for name, argument in spec.arguments.items()}
        return _call("spec", [self.name(spec.target, path)], named)

    def dtype(self, value: Any) -> str:
        return f"dtype:{np.dtype(value).name}"

    def path(self, value: pathlib.PurePath) -> str:
        return f"path:{value.as_posix()!r}"


def canonical_text(spec: SpecData) -> str:
    """One text for all equal specs, in all processes.

    >>> canonical_text(SpecData(sorted, {"iterable": (1, 2.0)}))
    'spec(builtins:sorted, iterable=(1, 2.0))'
    """
    return _CanonicalPrinter(spec.parameters.name).value(spec, ())


# --- names of classes and functions ----------------------------------------------

_LIBRARIES: Final = ("jax.nn", "jax.lax", "jax.numpy", "jax.nn.initializers", "jax.random", "jax", "optax")
"""Modules with public names of objects from private modules."""


def public_name(obj: Any) -> str | None:
    """``module:qualname`` of a class or function; None for a value without a name, such as a lambda.

    A class in a function has a name, though no import reaches it. The main script has its name as a module.

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


def _is_found(module: str, name: str, obj: Any) -> bool:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    # each access to a class method creates another object
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
    # the alphabetically first of several names, so that the order of imports does not matter
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
    return pathlib.Path(file).stem if file else module
