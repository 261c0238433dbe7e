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
from collections.abc import Iterable, Mapping
from types import MappingProxyType, MethodType
from typing import Any, Final

import jax
import jax.numpy as jnp

from declax._classes.parts import makes_data, recipe_of
from declax._classes.pytree import Pytree
from declax._fields.annotations import annotation_text
from declax._fields.call import Term
from declax._fields.expressions import Declaration, Expression
from declax._fields.overrides import DeclaredPart
from declax._fields.sources import Writer, call_text, declared_text
from declax._fields.specifiers import SubmoduleRecipe
from declax.config._data import FrozenDict, FrozenList, FrozenSet, Ref, SpecData, positions
from declax.config._declared import ClassBodyScope, exact_arguments
from declax.config._reading.parameters import is_dtype, target_name
from declax.config._reading.part_readers import version_of
from declax.config._refs import keys_of, where
from declax.config._supplied import Supplied
from declax.config.problems import Path
from declax.config.registry import ACTIVATIONS, name_in
from declax.errors import ConfigError, describe
from declax.initializers import NamedInitializer

_WITH_REPR: Final = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, types.EllipsisType),
    *(Ref, NamedInitializer, jax.sharding.PartitionSpec, uuid.UUID, decimal.Decimal),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
)


class SpecWriter(Writer):
    """Writes specs and the values in them as code, without imports."""

    def name(self, value: Any) -> str | None:
        """An expression as its class declares it."""
        return declared_text(value) if isinstance(value, Term) else None

    def is_open(self, value: Any) -> bool:
        """Whether a value is a container of a spec."""
        return type(value) in (tuple, FrozenList, FrozenDict)

    def plain(self, value: Any) -> str:
        """A spec, or a value that is no container."""
        if isinstance(value, SpecData):
            return self._spec(value)
        if isinstance(value, Supplied):
            return self.supplied(value)
        if isinstance(value, float) and not math.isfinite(value):
            return f"float({str(value)!r})"
        if is_dtype(value):
            return _dtype_text(value)
        if isinstance(value, enum.Enum):
            return f"{self.named(type(value))}.{value.name}"
        if isinstance(value, pathlib.PurePath):
            return f"Path({value.as_posix()!r})"
        if isinstance(value, FrozenSet):
            return f"{{{', '.join(sorted(map(self, value)))}}}" if value else "set()"
        if isinstance(value, frozenset):
            return f"frozenset({sorted(value, key=repr)!r})"
        if isinstance(value, functools.partial):
            return self._made_by("functools.partial", (value.func, *value.args), value.keywords)
        if isinstance(value, _WITH_REPR):
            return repr(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, (type, Pytree)):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            return self._made_by(self.named(type(value)), (), fields)
        if isinstance(value, tuple):  # a named tuple
            return self._made_by(self.named(type(value)), value)
        return self.named(value)

    def supplied(self, value: Supplied) -> str:
        """A value of the environment; of a secret, where it is."""
        return repr(value) if value.is_secret else self(value.value)

    def named(self, value: Any) -> str:
        """A class or function."""
        return target_name(value) if getattr(value, "__name__", None) else repr(value)

    def _spec(self, spec: SpecData) -> str:
        """The code for a spec: ``spec(Block, dim=64)``, or a dict for overrides of a declared part."""
        if isinstance(spec.target, DeclaredPart):
            return self(FrozenDict(spec.arguments))
        args, named = positions(spec.parameters, spec.arguments)
        return self._made_by("spec", (spec.target, *args), named)

    def _made_by(self, name: str, args: Iterable[Any], kwargs: Mapping[str, Any] = MappingProxyType({})) -> str:
        return call_text(name, map(self, args), {key: self(value) for key, value in kwargs.items()})


value_text: Final = SpecWriter(None)
"""Writes a spec or a frozen value for people."""


def _dtype_text(value: Any) -> str:
    name = jnp.dtype(value).name
    scalar = "bool_" if name == "bool" else name
    return f"jnp.{scalar}" if hasattr(jnp, scalar) else f"jnp.dtype({name!r})"


def tree_text(spec: SpecData, label: str = "", indent: str = "") -> str:
    """The parts of a spec, one line each with its arguments; declared parts are evaluated, except those of methods.

    Private names are shown where they hold data, which is in the model.
    """
    if isinstance(spec.target, DeclaredPart):
        overrides = f" with {spec!r}" if spec.arguments else ""
        return f"{indent}{label}{spec.target!r}{overrides} (unevaluated)"
    scope = ClassBodyScope(spec)
    plain = {name: scope.value(value) for name, value in spec.arguments.items()}
    shown_parts = [name for name, part in scope.parts.items() if not name.startswith("_") or makes_data(part)]
    found = {**{name: scope.read(name) for name in shown_parts}, **plain}
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


class _UnnamedError(Exception):
    """No code makes a value."""


class _Exact(SpecWriter):
    """Writes all that an object is made of, with the modules of classes and functions."""

    def __init__(self) -> None:
        super().__init__(None)
        self._known: dict[SpecData, str] = {}  # equal blocks of a model are written once

    def name(self, value: Any) -> str | None:
        """An expression as its class declares it, with the names in it."""
        return f"{value._pytree__owner}.{declared_text(value)}" if isinstance(value, Term) else None

    def supplied(self, value: Supplied) -> str:
        """Where a value is, which may be another one on each machine."""
        return f"supplied({self(value.table)})"

    def named(self, value: Any) -> str:
        """The name by which another process finds a class or function."""
        found = name_in(ACTIVATIONS, value) or importable_name(value)
        if found is None:
            raise _UnnamedError(value)
        return found

    def _spec(self, spec: SpecData) -> str:
        if isinstance(spec.target, DeclaredPart):
            return super()._spec(spec)
        if spec not in self._known:
            self._known[spec] = self._call(spec)
        return self._known[spec]

    def _call(self, spec: SpecData) -> str:
        said, made = exact_arguments(spec)
        texts = {n: self(v) if n in spec.arguments else self._default(v) for n, v in said.items()}
        texts |= {name: self._default(value) for name, value in made.items()}
        version = version_of(spec.target)
        head = (self(spec.target),) if version == 1 else (self(spec.target), f"version {version}")
        return call_text("spec", head, dict(sorted(texts.items())))

    def _default(self, value: Any) -> str:
        """A value that the class supplies; one without a name, such as a lambda, is left to the class."""
        try:
            return self(value)
        except _UnnamedError:
            return "..."


def canonical_text(spec: SpecData) -> str:
    """One text for all specs that build the same, in all processes: ASCII code with full names and all values.

    >>> canonical_text(SpecData(sorted, {"iterable": (1, 2.0)}))
    'spec(builtins:sorted, iterable=(1, 2.0), key=None, reverse=False)'
    """
    try:
        # Which characters `repr` escapes depends on the version of Unicode; their escapes are the same.
        return _Exact()(spec).encode("ascii", "backslashreplace").decode()
    except _UnnamedError as error:
        raise ConfigError(
            where(spec, _place_of_unnamed(spec)),
            "no code makes this value",
            got=describe(error.args[0]),
            why="another process must find a class or function by its module and name",
            fix="a named function in a module, or dx.spec(make, ...) with a function that makes the value",
        ) from None


def _place_of_unnamed(value: Any, path: Path = ()) -> Path:
    """The path of the innermost value that has no text."""
    items = value.arguments if isinstance(value, SpecData) else value
    for key in keys_of(value):
        try:
            _Exact()(items[key])
        except _UnnamedError:
            return _place_of_unnamed(items[key], (*path, key))
    return path


_LIBRARIES: Final = frozenset({"declax", "jax", "jaxlib", "numpy", "optax"})
"""Libraries whose names do not depend on the module in which they are defined, which changes."""


def importable_name(obj: Any) -> str | None:
    """``module:qualname`` of a class or function; None for a value without a name, such as a lambda.

    Of the module, the last name counts, which is the same for ``models/nets.py`` and ``models.nets``; of a library,
    the first. A class in a function has a name, though no import reaches it.

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
    if not (is_found or is_local_class):
        return None
    names = _importable(module).split(".")
    return f"{names[0] if names[0] in _LIBRARIES else names[-1]}:{name}"


def _importable(module: str) -> str:
    """The name of a module; the main script has that of its file."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        name: str = spec.name
        return name.removesuffix(".__main__")
    return pathlib.Path(file).stem if file else module
