"""Specs as text: `repr`, the tree of parts, and the text of fingerprints."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import math
import pathlib
import sys
import types
import uuid
from collections.abc import Callable
from types import MethodType
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp

from declax._classes.parts import makes_data, recipe_of
from declax._classes.pytree import Pytree
from declax._fields.annotations import annotation_text
from declax._fields.expressions import Declaration, Expression
from declax._fields.overrides import DeclaredPart
from declax._fields.sources import call_text, container_text, declared_text
from declax._fields.specifiers import SubmoduleRecipe
from declax.config._data import FrozenDict, FrozenList, FrozenSet, Ref, SpecData, positions
from declax.config._declared import ClassBodyScope
from declax.config._reading.parameters import is_dtype, target_name
from declax.config.problems import Path, path_text
from declax.config.registry import ACTIVATIONS, name_in
from declax.errors import ConfigError, describe
from declax.initializers import NamedInitializer

NameOf: TypeAlias = Callable[[Any, Path], str]
"""The text for a class or function at a path of a spec."""


def _bare_name(value: Any, path: Path) -> str:
    return target_name(value) if getattr(value, "__name__", None) else repr(value)


_WITH_REPR: Final = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, types.EllipsisType),
    *(Ref, NamedInitializer, jax.sharding.PartitionSpec, uuid.UUID, decimal.Decimal),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
)


def value_text(value: Any, path: Path = (), name: NameOf = _bare_name) -> str:
    """A frozen value as code, without imports."""
    if isinstance(value, SpecData):
        return _spec_text(value, path, name)
    if type(value) in (tuple, FrozenList, FrozenDict):
        if isinstance(value, FrozenDict):
            return container_text({repr(k): value_text(item, (*path, k), name) for k, item in value.items()}, str)
        texts = [value_text(item, (*path, index), name) for index, item in enumerate(value)]
        return container_text(tuple(texts) if type(value) is tuple else texts, str)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if is_dtype(value):
        return _dtype_text(value)
    if isinstance(value, enum.Enum):
        return f"{name(type(value), path)}.{value.name}"
    if isinstance(value, pathlib.PurePath):
        return f"Path({value.as_posix()!r})"
    if isinstance(value, FrozenSet):
        inside = ", ".join(sorted(value_text(item, path, name) for item in value))
        return f"{{{inside}}}" if inside else "set()"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(value, key=repr)!r})"
    if isinstance(value, functools.partial):
        args = [value_text(v, path, name) for v in (value.func, *value.args)]
        return call_text(
            "functools.partial", args, {key: value_text(v, path, name) for key, v in value.keywords.items()}
        )
    if isinstance(value, _WITH_REPR):
        return repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, Pytree)):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return call_text(name(type(value), path), (), {key: value_text(v, path, name) for key, v in fields.items()})
    if isinstance(value, tuple):  # a named tuple
        return call_text(name(type(value), path), [value_text(v, path, name) for v in value], {})
    return name(value, path)


def _spec_text(spec: SpecData, path: Path, name: NameOf) -> str:
    """The code for a spec: ``spec(Block, dim=64)``, or a dict for overrides of a declared part."""
    if isinstance(spec.target, DeclaredPart):
        return value_text(FrozenDict(spec.arguments), path, name)
    args, named = positions(spec.parameters, spec.arguments)
    items = [name(spec.target, path), *(value_text(v, (*path, i), name) for i, v in enumerate(args))]
    return call_text("spec", items, {key: value_text(v, (*path, key), name) for key, v in named.items()})


def _dtype_text(value: Any) -> str:
    name = jnp.dtype(value).name
    scalar = "bool_" if name == "bool" else name
    return f"jnp.{scalar}" if hasattr(jnp, scalar) else f"jnp.dtype({name!r})"


def tree_text(spec: SpecData, label: str = "", indent: str = "") -> str:
    """The parts of a spec, one line each with its arguments; declared parts are evaluated, except those of methods."""
    if isinstance(spec.target, DeclaredPart):
        overrides = f" with {spec!r}" if spec.arguments else ""
        return f"{indent}{label}{spec.target!r}{overrides} (unevaluated)"
    scope = ClassBodyScope(spec)
    plain = {name: scope.value(value) for name, value in spec.arguments.items()}
    found = {**{name: scope.read(name) for name in scope.parts}, **plain}
    shown = {name: value for name, value in plain.items() if not _parts_in(value)}
    head = call_text(target_name(spec.target), (), {n: value_text(v) for n, v in shown.items()})
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


# --- fingerprints -----------------------------------------------------------------


def canonical_text(spec: SpecData) -> str:
    """One text for all equal specs, in all processes: code with full names.

    >>> canonical_text(SpecData(sorted, {"iterable": (1, 2.0)}))
    'spec(builtins:sorted, (1, 2.0))'
    """

    def name(value: Any, path: Path) -> str:
        found = name_in(ACTIVATIONS, value) or importable_name(value)
        if found is None:
            raise ConfigError(
                ".".join([spec.parameters.name, *([path_text(path)] if path else [])]),
                "no code makes this value",
                got=describe(value),
                why="another process must find a class or function by its module and name",
                fix="a named function in a module, or dx.spec(make, ...) with a function that makes the value",
            )
        return found

    return value_text(spec, (), name)


def importable_name(obj: Any) -> str | None:
    """``module:qualname`` of a class or function; None for a value without a name, such as a lambda.

    A class in a function has a name, though no import reaches it. The main script has its name as a module.

    >>> importable_name(dict), importable_name(lambda x: x)
    ('builtins:dict', None)
    """
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    # each access to a class method creates another object
    is_found = found is obj or (isinstance(obj, MethodType) and bool(found == obj))
    is_local_class = isinstance(obj, type) and "<lambda>" not in name
    return f"{_importable(module)}:{name}" if is_found or is_local_class else None


def _importable(module: str) -> str:
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        name: str = spec.name
        return name.removesuffix(".__main__")
    return pathlib.Path(file).stem if file else module
