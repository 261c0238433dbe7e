"""Which classes a configuration may choose besides those that an annotation names."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast, overload

import typing_extensions

from declax._fields.annotations import Scope
from declax.config._reading.parameters import allowed_classes, plain_target, resolve, target_name
from declax.errors import ConfigError, RegistryError, describe

C = TypeVar("C", bound=Callable[..., Any])

_KINDS: dict[Any, dict[str, Callable[..., Any]]] = {}
_on_change: list[Callable[[], object]] = []


@overload
def register_kind(base: Any, kind: C, /, *, name: str | None = None) -> C: ...
@overload
def register_kind(base: Any, /, *, name: str | None = None) -> Callable[[C], C]: ...
def register_kind(base: Any, kind: Any = None, /, *, name: str | None = None) -> Any:
    """Lets configurations choose a class where an annotation names its base.

    A field annotated ``Mixer`` takes the class `Mixer` and no other. A subclass, or an implementation of a protocol, is
    let in here, by code. It is then chosen by its tag, ``kind = "Attention"``. A function that makes such an object
    can be let in as well.

    Args:
      base: the class or protocol that annotations name.
      kind: the class, or a function that makes one. Without it, a decorator is returned.
      name: its tag; by default its own name.

    Returns:
      The class or function itself.

    Raises:
      RegistryError: the name is taken by another class, or `kind` is none.

    >>> import declax as dx
    >>> class Mixer(dx.Module): ...
    >>> @dx.register_kind(Mixer)
    ... class Shift(Mixer): ...
    >>> type(dx.from_config(Mixer, {"kind": "Shift"})).__name__
    'Shift'
    """
    if kind is None:
        return functools.partial(register_kind, base, name=name)
    if not callable(kind):
        raise RegistryError(
            "register_kind",
            "a kind is a class, or a function that makes an object",
            got=describe(kind),
            fix="dx.register_kind(Mixer, Attention)",
        )
    tag = name or target_name(kind).rpartition(".")[2]
    origin: Any = typing.get_origin(base)
    if isinstance(origin, type) and (origin is not collections.abc.Callable or not typing.get_args(base)):
        base = origin  # what is registered for `Base[int]` or `typing.Callable` is so for the class
    kinds = _KINDS.setdefault(base, {})
    taken = kinds.get(tag)
    if taken is not None and not _is_again(taken, kind):
        raise RegistryError(
            "register_kind",
            f"the name {tag!r} is already that of another kind of {target_name(base)}",
            expected="an unused name",
            got=f"{taken.__module__}.{target_name(taken)}, and {kind.__module__}.{target_name(kind)}",
            fix=f"dx.register_kind({target_name(base)}, {target_name(kind)}, name=...)",
        )
    kinds[tag] = kind
    for notify in _on_change:
        notify()
    return kind


def kinds_of(base: Any) -> Mapping[str, Callable[..., Any]]:
    """The kinds that are registered for a base, by name."""
    try:
        return _KINDS.get(base, {})
    except TypeError:  # an annotation without a hash
        return {}


def on_change(notify: Callable[[], object]) -> None:
    """Calls a function at each registration, as what keeps something of the kinds has to know."""
    _on_change.append(notify)


def _extra_kinds(base: Any, extra: Iterable[Any]) -> dict[str, Any]:
    """Which of some classes and functions may stand for a base.

    Of the classes these are the base itself and those that derive from it; for a protocol, those that have its methods.
    Of the functions, those that are annotated to return such a class.
    """
    found = {}
    for kind in map(plain_target, extra):
        made = [kind] if isinstance(kind, type) else _returned_classes(kind)
        if made and isinstance(base, type) and all(_stands_for(cls, base) for cls in made):
            found[target_name(kind).rpartition(".")[2]] = kind
    return found


def extra_functions(extra: Iterable[Any]) -> dict[str, Any]:
    """The functions among what is let in, by name; they may stand where an annotation names a callable."""
    return {target_name(kind).rpartition(".")[2]: kind for kind in extra if isinstance(kind, types.FunctionType)}


def check_extra(extra: Iterable[Any]) -> None:
    """Asks that what is let in are classes and functions.

    Raises:
      ConfigError: something else is among them.
    """
    for kind in extra:
        if not callable(kind):
            raise ConfigError(
                "extra",
                "what is let in is a class, or a function that makes an object",
                got=describe(kind),
                fix="extra=[Attention]",
            )


def _returned_classes(function: Any) -> list[Any]:
    """The classes that a function is annotated to return, None left out; none of them if it does not say."""
    if not isinstance(function, types.FunctionType) or "return" not in function.__annotations__:
        return []
    returned = resolve(function.__annotations__["return"], Scope(cast(type, function)))
    found = [plain_target(member) for member in allowed_classes(returned) if member not in (None, type(None))]
    return found if all(isinstance(cls, type) for cls in found) else []


def _stands_for(cls: type, base: type) -> bool:
    if base in cls.__mro__:
        return True
    if not getattr(base, "_is_protocol", False):
        return issubclass(cls, base)
    # members that are annotated only are set by constructors, which a class does not tell
    names = [name for name in typing_extensions.get_protocol_members(base) if hasattr(base, name)]
    return all(getattr(cls, name, None) is not None for name in names)


def choices_of(base: Any, extra: Iterable[Any] = ()) -> dict[str, Any]:
    """All that may stand for a base, by tag: itself if it can be constructed, what is registered, what is extra."""
    found: dict[str, Any] = {}
    if not (inspect.isabstract(base) or getattr(base, "_is_protocol", False)):
        found[target_name(base).rpartition(".")[2]] = base
    return {**found, **_extra_kinds(base, extra), **kinds_of(base)}


def _is_again(taken: Any, kind: Any) -> bool:
    """Whether a class is the same one, or the one that a module defines when it is run again."""
    if taken is kind:
        return True
    names = [(getattr(k, "__module__", None), getattr(k, "__qualname__", None)) for k in (taken, kind)]
    return names[0] == names[1] and "<locals>" not in str(names[0][1])


def registered_name(kind: Any) -> str | None:
    """The first name under which a class or function is registered."""
    return next((tag for kinds in _KINDS.values() for tag, known in kinds.items() if known is kind), None)
