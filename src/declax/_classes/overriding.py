"""What a subclass takes from its bases; the MRO is the only rule for fields, parts and methods."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from declax._classes.parts import recipe_of
from declax._fields.annotations import AnnotationScope, own_annotations
from declax._fields.expressions import Declaration, Expression
from declax._fields.specifiers import SubmoduleRecipe

OWN_KEY: Final = "_pytree__own"
"""The entry of a class for the expressions that its own body binds, by name and in order."""


def expressions_of(cls: type) -> dict[str, tuple[Expression, ...]]:
    """The expressions of a class by name, in the order of evaluation, each followed by those that it overrides."""
    found: dict[str, tuple[Expression, ...]] = {}
    for base in reversed(cls.__mro__):
        for name, expression in base.__dict__.get(OWN_KEY, {}).items():
            found[name] = (expression, *found.get(name, ()))
    return found


def inherited(cls: type, name: str) -> tuple[type, dataclasses.Field[Any]] | None:
    """The nearest base that declares a field of a name, with the field."""
    for base in cls.__mro__[1:]:
        field: Any = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if field is None or name not in own_annotations(base):
            continue
        if field._field_type is not dataclasses._FIELD_CLASSVAR:  # type: ignore[attr-defined]  # the standard offers no public way
            return base, field
    return None


def inherited_annotation(cls: type, name: str) -> object:
    """The annotation of the nearest base that declares a field of a name, resolved where all its names exist."""
    owner, field = inherited(cls, name) or (cls, None)
    scope = AnnotationScope(owner)
    resolved = Any if field is None else scope.resolve(field.type)
    return resolved if field is None or scope.is_complete else field.type


_OPTIONS: Final = ("default", "default_factory", "init", "repr", "hash", "compare", "metadata")


def take_fields(cls: Any, known: Collection[str]) -> list[str]:
    """Redeclares the inherited fields that the standard's decorator would take otherwise; returns their names.

    An annotation without a value keeps the inherited declaration, of which the class shows no default. Of several
    bases, the standard prefers all fields of the nearer one, also those that this inherits.

    Args:
      cls: the class.
      known: the names of the expressions of its bases.
    """
    annotations = own_annotations(cls)
    taken = []
    for name in annotations:
        nearest = inherited(cls, name) if name in known and name not in cls.__dict__ else None
        if nearest is not None:
            setattr(cls, name, dataclasses.field(**{option: getattr(nearest[1], option) for option in _OPTIONS}))
            taken.append(name)
    if sum(hasattr(base, "__dataclass_fields__") for base in cls.__bases__) < 2:
        return taken
    mro = reversed(cls.__mro__[1:])
    by_standard = {name: f for base in mro for name, f in getattr(base, "__dataclass_fields__", {}).items()}
    for name, field in by_standard.items():
        nearest = None if name in annotations or name in cls.__dict__ else inherited(cls, name)
        if nearest is not None and nearest[1] is not field:
            cls.__annotations__[name] = inherited_annotation(cls, name)
            setattr(cls, name, copy.copy(nearest[1]))
            taken.append(name)
    return taken


# --- methods that make parts: what `super` gives them ------------------------------------------


class OverridingMethod:
    """A method that reads ``super().part`` while it makes a part; the overridden method then makes its part once.

    Args:
      name: of the part.
      make: the method.
    """

    def __init__(self, name: str, make: SubmoduleRecipe) -> None:
        self.__name__ = name
        self._make = make

    def __call__(self, instance: Any, rngs: Any) -> object:
        """The part, made by the method."""
        token = _RUNNING.set(_Construction(instance, self.__name__, rngs, {}))
        try:
            return self._make(instance, rngs)
        finally:
            _RUNNING.reset(token)


class _Construction(NamedTuple):
    """The part that an overriding method makes, and those that the overridden methods made for it."""

    instance: Any
    name: str
    rngs: Any
    made: dict[Any, object]


_RUNNING: Final[ContextVar[_Construction | None]] = ContextVar("overriding method", default=None)


class OverriddenMethod:
    """The part of a base, which its method makes for ``super().part`` in the method that overrides it."""

    def __init__(self, name: str, expression: Expression, make: SubmoduleRecipe) -> None:
        self._name = name
        self._expression = expression
        self._make = make

    def __get__(self, instance: Any, owner: type) -> Any:
        """The part of the base while the part is made, then the part of the instance; of a class, the expression."""
        if instance is None:
            return self._expression
        running = _RUNNING.get()
        if running is None or running.instance is not instance or running.name != self._name:
            return instance.__dict__[self._name]
        if self not in running.made:
            running.made[self] = self._make(instance, running.rngs)
        return running.made[self]


def calls_super(make: SubmoduleRecipe) -> bool:
    """Whether a method reads the part that it overrides."""
    return "super" in getattr(getattr(make.build, "__code__", None), "co_names", ())


def show_overridden(cls: type, name: str, expressions: Sequence[Expression]) -> None:
    """Puts methods that others override by calls of `super` into their classes; attributes are faster without them."""
    recipes = ((e, recipe_of(e._pytree__field)) for e in expressions if isinstance(e, Declaration))
    methods = [(id(e), recipe) for e, recipe in recipes if isinstance(recipe, SubmoduleRecipe)]
    calling = next((number for number, (_, make) in enumerate(methods) if calls_super(make)), len(methods))
    overridden = dict(methods[calling + 1 :])
    for base in cls.__mro__[1:] if overridden else ():
        own = base.__dict__.get(OWN_KEY, {}).get(name)
        if id(own) in overridden and name not in base.__dict__:
            setattr(base, name, OverriddenMethod(name, own, overridden[id(own)]))
