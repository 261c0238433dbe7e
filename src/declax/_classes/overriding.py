"""Methods that make parts and override others: what `super` gives them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from declax._classes.parts import recipe_of
from declax._fields.annotations import own_annotations
from declax._fields.expressions import Expression
from declax._fields.specifiers import SubmoduleRecipe

Build = Callable[[Any, Any], object]


class OverridingMethod:
    """A method that reads ``super().part`` while it makes a part; the overridden method then makes its part once.

    Args:
      name: of the part.
      build: the method.
    """

    def __init__(self, name: str, build: Build) -> None:
        self.__name__ = name
        self._build = build

    def __call__(self, instance: Any, rngs: Any) -> object:
        """The part, made by the method."""
        token = _RUNNING.set(_Construction(instance, self.__name__, rngs))
        try:
            return self._build(instance, rngs)
        finally:
            _RUNNING.reset(token)


class _Construction:
    """The part that an overriding method makes, and those that the overridden methods made for it."""

    def __init__(self, instance: Any, name: str, rngs: Any) -> None:
        self.instance = instance
        self.name = name
        self.rngs = rngs
        self.made: dict[OverriddenMethod, object] = {}


_RUNNING: Final[ContextVar[_Construction | None]] = ContextVar("overriding method", default=None)


class OverriddenMethod:
    """The part of a base, which its method makes for ``super().part`` in the method that overrides it."""

    def __init__(self, name: str, expression: Expression, build: Build) -> None:
        self._name = name
        self._expression = expression
        self._build = build

    def __get__(self, instance: Any, owner: type) -> Any:
        """The part of the base while the part is made, then the part of the instance; of a class, the expression."""
        if instance is None:
            return self._expression
        running = _RUNNING.get()
        if running is None or running.instance is not instance or running.name != self._name:
            return instance.__dict__[self._name]
        if self not in running.made:
            running.made[self] = self._build(instance, running.rngs)
        return running.made[self]


def method_of(name: str, build: Build) -> Build:
    """The function that makes a part by a method."""
    return OverridingMethod(name, build) if _calls_super(build) else build


def show_overridden(cls: type, name: str, build: Build) -> None:
    """Puts the overridden methods into the bases if `build` calls `super`; attributes are faster without them."""
    if not _calls_super(build):
        return
    for base in cls.__mro__[1:]:
        field = base.__dict__.get("__dataclass_fields__", {}).get(name)
        recipe = None if field is None or name not in own_annotations(base) else recipe_of(field)
        if isinstance(recipe, SubmoduleRecipe) and name not in base.__dict__:
            setattr(base, name, OverriddenMethod(name, getattr(base, name), recipe.build))


def _calls_super(build: Build) -> bool:
    return "super" in getattr(getattr(build, "__code__", None), "co_names", ())
