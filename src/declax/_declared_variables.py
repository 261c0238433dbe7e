"""How declared Variables are made, and what their declarations may refer to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from itertools import filterfalse
from typing import Any, Final

import jax.numpy as jnp

from declax._annotations import Scope, annotation_text, decide, variable_class
from declax._expressions import Deferred, Expression, has_expression, text_of
from declax._fields import SubmoduleRecipe, VariableRecipe
from declax._variables import Variable, VariableMetadata
from declax.errors import FieldError, InitializerError, describe, suggest, type_name

RNGS: Final = "rngs"


class VariableMaker:
    """Makes a declared Variable.

    Args:
      cls: the class that declares it, or a subclass.
      name: the field.
      recipe: its declaration.
    """

    def __init__(self, cls: Any, name: str, recipe: VariableRecipe) -> None:
        self._cls = cls
        self._name = name
        self._recipe = recipe
        self._kind: Any = None

    @property
    def _where(self) -> str:
        return f"{type_name(self._cls)}.{self._name}"

    def __call__(self, rngs: Any, shape: Any, initializer: Any, dtype: Any, metadata: Any) -> Variable[Any]:
        """Makes the Variable with a key of its stream."""
        if self._kind is None:
            self._kind = self._find_kind()
        shape = self._shape(shape)
        dtype = jnp.float32 if dtype is None else dtype
        stream = self._recipe.stream
        key = None if stream is None else _draw(self._cls, self._where, rngs, stream)
        if not callable(initializer):
            raise FieldError(
                self._where,
                "the initializer of a declared Variable cannot be called",
                got=describe(initializer),
                fix="variable(..., initializer=dx.initializers.zeros)",
            )
        value = initializer(key, shape, dtype)
        _check_made(self._where, value.value if isinstance(value, VariableMetadata) else value, shape, dtype)
        made: Variable[Any] = self._kind(value, **self._metadata(metadata))
        return made

    def _find_kind(self) -> type:
        annotation = self._cls._pytree__specs[self._name].annotation
        kind = variable_class(annotation, Scope(self._cls), Variable)
        if kind is None:
            raise FieldError(
                self._where,
                "the annotation of a declared Variable names no kind of Variable",
                got=annotation_text(annotation),
                fix=f"{self._name}: dx.Param[jax.Array] = dx.variable(...)",
            )
        return kind

    def _shape(self, given: Any) -> tuple[int, ...]:
        sizes = (given,) if hasattr(given, "__index__") else tuple(given)
        for index, size in enumerate(sizes):
            if isinstance(size, bool) or not hasattr(size, "__index__") or int(size) < 0:
                raise FieldError(
                    self._where,
                    f"the entry {self._entry_text(index)} of the declared shape gives no size",
                    expected="an int of 0 or more",
                    got=describe(size),
                )
        return tuple(map(int, sizes))

    def _entry_text(self, index: int) -> str:
        shape = self._recipe.shape
        entry = shape[index] if isinstance(shape, tuple | list) else shape
        if isinstance(entry, Expression):
            return text_of(entry)
        return f"<{getattr(entry, '__name__', 'function')}>" if callable(entry) else repr(entry)

    def _metadata(self, declared: Mapping[str, Any] | None) -> dict[str, Any]:
        metadata: dict[str, Any] = dict(declared) if declared else {}
        notes = self._cls._pytree__specs[self._name].notes
        if notes.sharding is not None:
            metadata.setdefault("sharding", notes.sharding)
        if not notes.trainable:
            metadata.setdefault("trainable", False)
        if not notes.weight_decay:
            metadata.setdefault("weight_decay", False)
        return metadata


def _check_made(where: str, value: Any, shape: tuple[int, ...], dtype: Any) -> None:
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


# --- checks at class creation -------------------------------------------------


def check_recipe(
    cls: type, name: str, recipe: VariableRecipe | SubmoduleRecipe, annotation: object, known: Mapping[str, object]
) -> None:
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
    if isinstance(recipe.when, str):
        _check_names_field(where, "when", recipe.when, known)
        _check_type(where, "when", recipe.when, known, scope, bool)
    if recipe.when is not None and recipe.when is not True:
        decision = decide(annotation, scope)
        if not decision.is_optional and scope.is_complete:
            raise FieldError(
                where,
                f"`when={text_of(recipe.when)}` can leave the field None, which its annotation does not allow",
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
        for entry in filterfalse(has_expression, recipe.shape):
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


# ================================================================= options as expressions


class _Source(Expression):
    """An expression that is given by its source."""

    __slots__ = ("_pytree__text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self._pytree__text = text

    def _pytree__source(self, write: Callable[[Any], str]) -> str:
        return self._pytree__text


def expression_of(entry: Any) -> Any:
    """An option of a declaration as an expression: a text is the name of a field."""
    return _Source(f"self.{entry}") if isinstance(entry, str) else entry


def shape_expression(shape: Any) -> Any:
    """A declared shape as an expression."""
    if isinstance(shape, Expression | str):
        return expression_of(shape)
    if callable(shape):
        return Deferred(shape, (_Source("self"),), {})
    entries = (
        Deferred(e, (_Source("self"),), {}) if callable(e) and not isinstance(e, Expression) else e for e in shape
    )
    return tuple(map(expression_of, entries))
