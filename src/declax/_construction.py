"""Makes the Variables and submodules that a class declares.

Vocabulary
----------
recipe: how a declared member is made (`_fields.VariableRecipe`,
        `_fields.SubmoduleRecipe`).
stream: the named source of random keys that an initializer draws from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from declax._annotations import Scope, decide, variable_class
from declax._fields import FieldSpec, Recipe, Status, SubmoduleRecipe, VariableRecipe
from declax._pytree import Pytree, prepare
from declax._variables import Variable
from declax.errors import FieldError, InitializerError, describe, format_path, suggest, type_name

RNGS = "rngs"


def recipes_of(cls: type) -> dict[str, Recipe]:
    """The recipes of a dataclass by field name, in declaration order."""
    found = {}
    for field in dataclasses.fields(cls):
        specifier = field.metadata.get("declax")
        if specifier is not None and specifier.recipe is not None:
            found[field.name] = specifier.recipe
    return found


def install_recipes(cls: type[Pytree]) -> None:
    """Puts the making of declared members in front of ``__post_init__``.

    Must run before `dataclasses.dataclass`, which looks for ``__post_init__``.
    """
    original: Callable[..., None] | None = cls.__dict__.get("__post_init__")

    def __post_init__(self: Pytree, *init_vars: object) -> None:
        make_members(self, init_vars)
        if original is not None:
            original(self, *init_vars)
        else:
            inherited = getattr(super(cls, self), "__post_init__", None)
            if inherited is not None:
                inherited(*init_vars)

    __post_init__._declax_makes_members = True  # type: ignore[attr-defined]  # a mark for has_recipes_installed
    __post_init__.__qualname__ = f"{cls.__qualname__}.__post_init__"
    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]  # of dataclasses


def make_members(self: Pytree, init_vars: Sequence[object]) -> None:
    """Makes all declared members of an object that it does not have yet."""
    cls = type(self)
    recipes = recipes_of(cls)
    if all(name in self.__dict__ for name in recipes):
        return
    if not cls.__dict__.get("_pytree__is_complete"):
        prepare(cls)
    names = [f.name for f in cls.__dataclass_fields__.values() if isinstance_init_var(f)]  # type: ignore[attr-defined]  # of dataclasses
    rngs = dict(zip(names, init_vars, strict=False)).get(RNGS, getattr(self, RNGS, None))
    for name, recipe in recipes.items():
        if name in self.__dict__:
            continue
        value = None
        if recipe.when is None or getattr(self, recipe.when):
            value = _make(self, cls._pytree__specs[name], recipe, rngs)
        setattr_declared(self, name, value)


def setattr_declared(self: Pytree, name: str, value: object) -> None:
    """Sets a declared member, also on a frozen object."""
    if type(self)._pytree__is_frozen or type(self).__dataclass_params__.frozen:  # type: ignore[attr-defined]  # of dataclasses
        object.__setattr__(self, name, value)
    else:
        setattr(self, name, value)


def isinstance_init_var(field: dataclasses.Field[Any]) -> bool:
    """Whether an entry of ``__dataclass_fields__`` is an InitVar."""
    return field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]  # the standard offers no public way


def _make(self: Pytree, spec: FieldSpec, recipe: Recipe, rngs: object) -> object:
    if isinstance(recipe, SubmoduleRecipe):
        return recipe.build(self, rngs)
    return _make_variable(self, spec, recipe, rngs)


def _make_variable(self: Pytree, spec: FieldSpec, recipe: VariableRecipe, rngs: Any) -> Variable[Any]:
    cls = type(self)
    where = f"{type_name(cls)}.{spec.name}"
    kind = variable_class(spec.annotation, Scope(cls), Variable)
    if kind is None:
        raise FieldError(
            where,
            "the annotation of a declared Variable names no kind of Variable",
            got=str(spec.annotation),
            fix=f"{spec.name}: dx.Param[jax.Array] = dx.variable(...)",
        )
    shape = _shape(self, where, recipe)
    initializer = _of_field(self, recipe.initializer)
    dtype = _of_field(self, recipe.dtype) if isinstance(recipe.dtype, str) and hasattr(self, recipe.dtype) else recipe.dtype
    dtype = jnp.float32 if dtype is None else dtype
    key = None
    if recipe.stream is not None:
        if rngs is None:
            raise FieldError(
                where,
                f"a declared Variable draws from the stream {recipe.stream!r}, and the constructor got no rngs",
                fix=f"{type_name(cls)}(..., rngs=dx.Rngs(0))",
            )
        key = _stream(rngs, recipe.stream)()
    value = initializer(key, shape, dtype)
    metadata = _metadata(self, spec, recipe)
    made: Variable[Any] = kind(value, **metadata)
    got = getattr(made.raw_value, "shape", None)
    if got is not None and tuple(got) != shape:
        raise InitializerError(
            where,
            "the initializer returned a value of the wrong shape",
            expected=f"shape {shape} and dtype {jnp.dtype(dtype)}",
            got=describe(made.raw_value),
        )
    return made


def _stream(rngs: Any, name: str) -> Callable[[], Any]:
    stream: Callable[[], Any] = getattr(rngs, name) if not _is_stream(rngs) else rngs
    return stream


def _is_stream(rngs: object) -> bool:
    return hasattr(rngs, "tag") and hasattr(rngs, "count") and callable(rngs)


def _of_field(self: Pytree, entry: Any) -> Any:
    return getattr(self, entry) if isinstance(entry, str) else entry


def _shape(self: Pytree, where: str, recipe: VariableRecipe) -> tuple[int, ...]:
    declared: Any = recipe.shape
    if isinstance(declared, str):
        declared = getattr(self, declared)
    elif callable(declared):
        declared = declared(self)
    shape = []
    for entry in declared:
        size = getattr(self, entry) if isinstance(entry, str) else entry(self) if callable(entry) else entry
        if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 0:
            raise FieldError(
                where,
                f"the entry {entry!r} of the declared shape gives no size",
                expected="an int of 0 or more",
                got=describe(size),
            )
        shape.append(int(size))
    return tuple(shape)


def _metadata(self: Pytree, spec: FieldSpec, recipe: VariableRecipe) -> dict[str, Any]:
    declared = _of_field(self, recipe.metadata)
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
      known: the annotations of all fields by name.

    Raises:
      FieldError: for names that are no field or a field of the wrong type, and
        for an annotation that does not suit.
    """
    where = f"{type_name(cls)}.{name}"
    scope = Scope(cls)
    if recipe.when is not None:
        _check_names_field(where, "when", recipe.when, known)
        _check_type(where, "when", recipe.when, known, scope, bool)
        decision = decide(annotation, scope)
        if not decision.is_optional and scope.is_complete:
            raise FieldError(
                where,
                f"`when={recipe.when!r}` can leave the field None, which its annotation does not allow",
                fix=f"{name}: {_text(annotation)} | None = ...",
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
            got=_text(annotation),
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
    if recipe.stream is not None and RNGS not in known:
        raise FieldError(
            where,
            f"a declared Variable draws from the stream {recipe.stream!r}, and the class takes no rngs",
            fix=f"{RNGS}: dx.InitVar[dx.Rngs]      # or variable(..., stream=None), which draws no key",
        )


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
    resolved = resolved.type if isinstance(resolved, dataclasses.InitVar) else resolved
    if isinstance(resolved, type) and not issubclass(resolved, wanted) and decide(resolved, scope).status is not None:
        raise FieldError(
            where,
            f"{option} names the field {name!r}, which is no {wanted.__name__}",
            expected=f"{name}: {wanted.__name__}",
            got=f"{name}: {_text(known[name])}",
        )


def _text(annotation: object) -> str:
    if isinstance(annotation, type):
        return type_name(annotation)
    return str(annotation)


def missing_members(self: Pytree) -> str | None:
    """The path of a declared member that was never made, if there is one."""
    for name in recipes_of(type(self)):
        if name not in self.__dict__:
            return format_path((name,))
    return None


__all__ = ["Status", "check_recipe", "install_recipes", "make_members", "missing_members", "recipes_of"]
