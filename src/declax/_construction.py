"""Makes the Variables and submodules that a class declares, once the values of its fields pass their checks.

Vocabulary
----------
recipe: how a declared member is made (`_fields.VariableRecipe`,
        `_fields.SubmoduleRecipe`).
stream: the named source of random keys that an initializer draws from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from declax._annotations import Scope, annotation_text, decide, variable_class
from declax._fields import FieldSpec, Recipe, SubmoduleRecipe, VariableRecipe, objection, specifier_of
from declax._pytree import MAKES_MEMBERS
from declax._variables import Variable, VariableMetadata
from declax.errors import FieldError, InitializerError, LayerError, describe, suggest, type_name

RNGS = "rngs"


def recipes_of(cls: type) -> dict[str, Recipe]:
    """The recipes of a dataclass by field name, in declaration order."""
    found = {}
    for field in dataclasses.fields(cls):
        specifier = specifier_of(field)
        if specifier is not None and specifier.recipe is not None:
            found[field.name] = specifier.recipe
    return found


def install_recipes(cls: Any) -> None:
    """Puts the checks of fields and the making of declared members in front of ``__post_init__``.

    Must run before `dataclasses.dataclass`, which looks for ``__post_init__``.
    """
    original: Callable[..., None] | None = cls.__dict__.get("__post_init__")

    def __post_init__(self: Any, *init_vars: object, **named: object) -> None:
        checks = type(self)._pytree__checks
        if checks and type(self).__post_init__ is __post_init__:  # of several classes, the last checks for all
            check_values(self, checks, init_vars)
        make_members(self, init_vars)
        if original is not None:
            original(self, *init_vars, **named)
        else:
            inherited = getattr(super(cls, self), "__post_init__", None)
            if inherited is not None:
                inherited(*init_vars, **named)

    setattr(__post_init__, MAKES_MEMBERS, True)
    __post_init__.__qualname__ = f"{cls.__qualname__}.__post_init__"
    __post_init__.__module__ = cls.__module__
    cls.__post_init__ = __post_init__
    cls._pytree__install = staticmethod(install_recipes)


def checks_of(cls: type) -> tuple[tuple[str, Callable[[Any], object]], ...]:
    """The checks that the fields of a dataclass declare, by name, in declaration order."""
    fields = getattr(cls, "__dataclass_fields__", {})
    specifiers = ((name, specifier_of(field)) for name, field in fields.items())
    return tuple((name, s.notes.check) for name, s in specifiers if s is not None and s.notes.check is not None)


def check_values(self: Any, checks: Iterable[tuple[str, Callable[[Any], object]]], init_vars: Sequence[object]) -> None:
    """Runs the checks of fields on what the constructor was given.

    Raises:
      LayerError: a check has an objection.
    """
    cls = type(self)
    names = [f.name for f in cls.__dataclass_fields__.values() if is_init_var(f)]
    handed_on = dict(zip(names, init_vars, strict=False))
    for name, check in checks:
        value = handed_on.get(name) if name in names else self.__dict__.get(name)
        problem = None if value is None else objection(check, value)
        if problem is not None:
            raise LayerError(f"{type_name(cls)}.{name}", problem, got=describe(value))


def make_members(self: Any, init_vars: Sequence[object]) -> None:
    """Makes all declared members of an object that it does not have yet."""
    cls = type(self)
    recipes = recipes_of(cls)
    if all(name in self.__dict__ for name in recipes):
        return
    names = [f.name for f in cls.__dataclass_fields__.values() if is_init_var(f)]
    rngs = dict(zip(names, init_vars, strict=False)).get(RNGS) if RNGS in names else getattr(self, RNGS, None)
    put = object.__setattr__ if cls._pytree__is_frozen else setattr
    for name, recipe in recipes.items():
        if name in self.__dict__:
            continue
        is_wanted = recipe.when is None or _of_field(self, cls, name, recipe.when)
        put(self, name, _make(self, cls._pytree__specs[name], recipe, rngs) if is_wanted else None)


def is_init_var(field: dataclasses.Field[Any]) -> bool:
    """Whether an entry of ``__dataclass_fields__`` is an InitVar."""
    return field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]  # the standard offers no public way


def _make(self: Any, spec: FieldSpec, recipe: Recipe, rngs: object) -> object:
    if isinstance(recipe, SubmoduleRecipe):
        return recipe.build(self, rngs)
    return _make_variable(self, spec, recipe, rngs)


def _make_variable(self: Any, spec: FieldSpec, recipe: VariableRecipe, rngs: Any) -> Variable[Any]:
    cls = type(self)
    where = f"{type_name(cls)}.{spec.name}"
    kind = variable_class(spec.annotation, Scope(cls), Variable)
    if kind is None:
        raise FieldError(
            where,
            "the annotation of a declared Variable names no kind of Variable",
            got=annotation_text(spec.annotation),
            fix=f"{spec.name}: dx.Param[jax.Array] = dx.variable(...)",
        )
    shape = _shape(self, spec.name, where, recipe)
    initializer = _of_field(self, cls, spec.name, recipe.initializer)
    dtype = _dtype(self, spec.name, recipe)
    key = None if recipe.stream is None else _draw(cls, where, rngs, recipe.stream)
    if not callable(initializer):
        raise FieldError(
            where,
            "the initializer of a declared Variable cannot be called",
            got=describe(initializer),
            fix="variable(..., initializer=dx.initializers.zeros)",
        )
    value = initializer(key, shape, dtype)
    _check_value(where, value.value if isinstance(value, VariableMetadata) else value, shape, dtype)
    made: Variable[Any] = kind(value, **_metadata(self, spec, recipe))
    return made


def _check_value(where: str, value: Any, shape: tuple[int, ...], dtype: Any) -> None:
    got = getattr(value, "shape", () if isinstance(value, (int, float, complex)) else None)
    if got is None or tuple(got) != shape:
        raise InitializerError(
            where,
            "the initializer returned a value of the wrong shape",
            expected=f"an array of shape {shape} and dtype {jnp.dtype(dtype)}",
            got=describe(value),
        )


def _draw(cls: type, where: str, rngs: Any, stream: str) -> Any:
    """The next key of a stream; of the one stream, where the constructor got that."""
    if rngs is None:
        raise FieldError(
            where,
            f"a declared Variable draws from the stream {stream!r}, and the constructor got no rngs",
            fix=f"{type_name(cls)}(..., rngs=dx.Rngs(0))",
        )
    draw: Any = rngs if _is_stream(rngs) else getattr(rngs, stream, None)
    if not callable(draw):
        raise FieldError(
            where,
            f"a declared Variable draws from the stream {stream!r}, and the given rngs have no streams",
            expected="dx.Rngs, or one of its streams",
            got=describe(rngs),
            fix=f"{type_name(cls)}(..., rngs=dx.Rngs(0))",
        )
    return draw()


def _is_stream(rngs: object) -> bool:
    # by its own attributes: an Rngs answers for any name with its default stream
    return callable(rngs) and {"key", "count", "tag"} <= getattr(rngs, "__dict__", {}).keys()


def _of_field(self: Any, cls: type, name: str, entry: Any) -> Any:
    """What an entry stands for: the value of a field where it is a name, else itself."""
    if not isinstance(entry, str):
        return entry
    if not hasattr(self, entry):
        raise FieldError(
            f"{type_name(cls)}.{name}",
            f"the field {entry!r} has no value yet when this Variable is made",
            why="declared members are made in declaration order, before __post_init__",
            fix=f"declare {entry} with a default, or as a parameter of the constructor",
        )
    return getattr(self, entry)


def _dtype(self: Any, name: str, recipe: VariableRecipe) -> Any:
    dtype: Any = recipe.dtype
    if isinstance(dtype, str) and dtype in type(self).__dataclass_fields__:
        dtype = _of_field(self, type(self), name, dtype)
    return jnp.float32 if dtype is None else dtype


def _shape(self: Any, name: str, where: str, recipe: VariableRecipe) -> tuple[int, ...]:
    cls = type(self)
    declared: Any = recipe.shape
    if isinstance(declared, str):
        declared = _of_field(self, cls, name, declared)
        declared = (declared,) if hasattr(declared, "__index__") else declared
    elif callable(declared):
        declared = declared(self)
    shape = []
    for entry in declared:
        size: Any = entry(self) if callable(entry) else _of_field(self, cls, name, entry)
        if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 0:
            raise FieldError(
                where,
                f"the entry {_entry_text(entry)} of the declared shape gives no size",
                expected="an int of 0 or more",
                got=describe(size),
            )
        shape.append(int(size))
    return tuple(shape)


def _entry_text(entry: object) -> str:
    return f"<{getattr(entry, '__name__', 'function')}>" if callable(entry) else repr(entry)


def _metadata(self: Any, spec: FieldSpec, recipe: VariableRecipe) -> dict[str, Any]:
    declared = _of_field(self, type(self), spec.name, recipe.metadata)
    metadata: dict[str, Any] = dict(declared) if declared else {}
    notes = spec.notes
    if notes.sharding is not None:
        metadata.setdefault("sharding", notes.sharding)
    if not notes.trainable:
        metadata.setdefault("trainable", False)
    if not notes.weight_decay:
        metadata.setdefault("weight_decay", False)
    return metadata


# --- checks at class creation -------------------------------------------------


def check_recipe(cls: type, name: str, recipe: Recipe, annotation: object, known: Mapping[str, object]) -> None:
    """Checks at class creation what a declared member refers to.

    Args:
      cls: the class.
      name: the field.
      recipe: its recipe.
      annotation: its annotation.
      known: the annotations of all fields and InitVars by name.

    Raises:
      FieldError: for names that are no field or a field of the wrong type, and
        for an annotation that does not suit.
    """
    where = f"{type_name(cls)}.{name}"
    scope = Scope(cls)
    if isinstance(recipe, VariableRecipe) and recipe.stream is not None and RNGS not in known:
        raise FieldError(
            where,
            f"a declared Variable draws from the stream {recipe.stream!r}, and the class takes no rngs",
            fix=f"{RNGS}: dx.InitVar[dx.Rngs]      # or variable(..., stream=None), which draws no key",
        )
    # an InitVar is gone when members are made
    known = {n: a for n, a in known.items() if not isinstance(scope.resolve(a), dataclasses.InitVar)}
    if recipe.when is not None:
        _check_names_field(where, "when", recipe.when, known)
        _check_type(where, "when", recipe.when, known, scope, bool)
        decision = decide(annotation, scope)
        if not decision.is_optional and scope.is_complete:
            raise FieldError(
                where,
                f"`when={recipe.when!r}` can leave the field None, which its annotation does not allow",
                fix=f"{name}: {annotation_text(annotation)} | None = ...",
            )
    if isinstance(recipe, SubmoduleRecipe):
        return
    _check_variable(where, name, recipe, annotation, known, scope)


def _check_variable(
    where: str,
    name: str,
    recipe: VariableRecipe,
    annotation: object,
    known: Mapping[str, object],
    scope: Scope,
) -> None:
    resolved = scope.resolve(annotation)
    if scope.is_complete and variable_class(resolved, scope, Variable) is None:
        raise FieldError(
            where,
            "variable(...) declares a Variable, and the annotation is none",
            expected="a kind of Variable, as Param[jax.Array]",
            got=annotation_text(annotation),
            fix=f"{name}: dx.Param[jax.Array] = dx.variable(...)",
        )
    if isinstance(recipe.shape, str):
        _check_names_field(where, "shape", recipe.shape, known)
    elif not callable(recipe.shape):
        for entry in recipe.shape:
            if isinstance(entry, str):
                _check_names_field(where, "shape", entry, known)
                _check_type(where, "shape", entry, known, scope, int)
            elif not callable(entry) and (isinstance(entry, bool) or not hasattr(entry, "__index__")):
                raise FieldError(
                    where,
                    "an entry of a declared shape is an int, the name of an int field, or a function",
                    got=describe(entry),
                )
    for option in ("initializer", "metadata"):
        given = getattr(recipe, option)
        if isinstance(given, str):
            _check_names_field(where, option, given, known)
    if isinstance(recipe.dtype, str) and recipe.dtype not in known:
        try:
            jnp.dtype(recipe.dtype)
        except TypeError:
            _check_names_field(where, "dtype", recipe.dtype, known)


def _check_names_field(where: str, option: str, name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        hint = suggest(name, known)
        raise FieldError(
            where,
            f"{option} names {name!r}, which is no field of the class" + (f"; {hint}" if hint else ""),
            expected="one of " + ", ".join(known),
        )


def _check_type(where: str, option: str, name: str, known: Mapping[str, object], scope: Scope, wanted: type) -> None:
    resolved = scope.resolve(known[name])
    if isinstance(resolved, type) and not issubclass(resolved, wanted) and decide(resolved, scope).status is not None:
        raise FieldError(
            where,
            f"{option} names the field {name!r}, which is no {wanted.__name__}",
            expected=f"{name}: {wanted.__name__}",
            got=f"{name}: {annotation_text(known[name])}",
        )
