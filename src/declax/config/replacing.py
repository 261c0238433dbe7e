"""`replace`: an object that the constructor makes anew, with some arguments changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from typing_extensions import deprecated

from declax._classes.argument_checks import kept
from declax._classes.construction import LOST_RECORD, call_now, is_recorded, refuse_loss
from declax._classes.pytree import Pytree
from declax._classes.records import Record, record_of, refuse_own_init
from declax._fields.class_info import maker_of
from declax._fields.keys import RNGS
from declax._random.streams import Rngs
from declax._tree.layout import INTERNAL_KEYS
from declax._typing import MISSING, MYPY
from declax._variables.policy import NO_POLICY
from declax.config._conforming import changes_of
from declax.errors import FieldError, MissingRngsError, describe, format_path, suggest, type_name

P = TypeVar("P", bound=Pytree)
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)


class _Constructed(Protocol[Q, R]):
    def __init__(self, *args: Q.args, **kwargs: Q.kwargs) -> None: ...

    def __copy__(self) -> R: ...


# The second lets editors offer the fields by name; the plugin checks them for mypy. They do not offer a keyword for
# what begins with an underscore.
if TYPE_CHECKING and not MYPY:

    @overload
    def replace(obj: P, /, **_changes: object) -> P: ...  # a literal for Any would fit the second one as well
    @overload
    @deprecated("replace takes fields by name")
    def replace(obj: _Constructed[Q, R], /, *_: Q.args, **_changes: Q.kwargs) -> R: ...


def replace(obj: P, /, **changes: Any) -> P:  # pyright: ignore[reportInconsistentOverload]  # by position: no
    """A new object with some fields changed, made by the constructor.

    Fields that the constructor takes are passed on; declared Variables and parts are made anew, and ``rngs`` must be
    given. A part that is an argument is kept if the caller supplied it, or if it or something in it was changed since.
    Other InitVars, such as initializers, are those of the record that a constructed object keeps. To see the changes,
    the constructor runs once more, abstractly, with the old arguments.

    Args:
      obj: an instance of a dataclass.
      **changes: new values by field name.

    Raises:
      FieldError: for names that are not fields, fields that are made by the object itself, an ``InitVar`` that is
        missing, and a part without an annotation, or another attribute, that was changed since; `clone` copies these.
        Values and dtypes of arrays, the modes of `train` and `eval`, random streams, caches and recorded values do not
        count: the constructor makes them.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Scale(dx.Layer):
    ...     dim: int
    >>> dx.replace(Scale(2), dim=3).dim
    3
    """
    cls = type(obj)
    if not dataclasses.is_dataclass(obj) or not hasattr(cls, "__dataclass_fields__"):  # a class passes the first
        raise FieldError(type_name(cls), "replace takes an instance of a dataclass", got=describe(obj))
    fix = "{}(...)        # construct it, or update: dx.update(new, dx.state(obj))"
    refuse_own_init(cls, "replace", FieldError, type_name(cls), fix)
    fields: dict[str, dataclasses.Field[Any]] = obj.__dataclass_fields__
    for name in changes:
        if name not in fields:
            hint = suggest(name, [known for known, field in fields.items() if field.init])
            raise FieldError(f"{type_name(cls)}.{name}", "replace got no field's name" + (f"; {hint}" if hint else ""))
        if not fields[name].init:
            raise FieldError(f"{type_name(cls)}.{name}", "the object makes this field itself; replace cannot set it")
    refuse_loss(obj, "replace", FieldError, type_name(cls))
    now = dict(call_now(obj).kwargs)
    for name, value in now.items():
        if value is MISSING and name not in changes:
            raise _must_be_given(cls, name, LOST_RECORD if is_recorded(cls, name) else None)
    now |= _changed_parts(obj, now, changes)
    try:
        return _construct(cls, {**now, **changes}, changes, record_of(obj))
    except MissingRngsError as error:
        raise _must_be_given(cls, RNGS, f"{error.where} draws random keys") from None


def _construct(cls: type[P], arguments: Mapping[str, Any], changes: Mapping[str, Any], record: Record | None) -> P:
    """Calls the constructor under the policy of a record; what is not changed was checked before."""
    outer = kept.set((cls, frozenset(arguments.keys() - changes.keys())))
    try:
        with NO_POLICY if record is None else record.policy:
            return cls(**arguments)
    finally:
        kept.reset(outer)


def _changed_parts(obj: Any, now: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The parts in which something was changed since construction, and which the constructor takes.

    Raises:
      FieldError: something else is not as the constructor makes it.
    """
    if vars(obj).keys() <= now.keys() | INTERNAL_KEYS:
        return {}  # the arguments are all that it has
    cls, record = type(obj), record_of(obj)
    parts = {} if record is None else record.parts
    made_as = {} if record is None else record.call.kwargs
    assigned = {name for name in parts if name in now and now[name] is not made_as.get(name)}  # which are passed on
    passed_on = assigned | changes.keys()
    first = {name: value for name, value in now.items() if name not in assigned}
    first |= {name: made_as[name] for name in assigned & made_as.keys()}
    needed = {name: value for name, value in changes.items() if first.get(name, MISSING) is MISSING}
    first |= {name: value for name, value in needed.items() if name not in parts}
    if RNGS in cls.__dataclass_fields__ and first.get(RNGS) is None:  # parts need keys, and which ones is no matter
        first[RNGS] = Rngs(0)
    try:
        differing = changes_of(obj, lambda: _construct(cls, first, changes, record))
        found = [one for one in differing if one.path[0] not in passed_on]
    except Exception:  # noqa: BLE001  # the constructor may refuse what is about to be changed
        return {}
    arguments = {part.name for part in maker_of(cls).defaults}
    lost = next((one for one in found if one.path[0] not in arguments), None)
    if lost is None:
        return {one.path[0]: getattr(obj, one.path[0]) for one in found}
    path, name = lost.path, type_name(cls)
    raise FieldError(
        f"{name}.{format_path(path)}",
        "replace cannot keep this: it was changed after construction",
        expected=str(lost.before),
        got=str(lost.after),
        why="replace calls the constructor, which makes it anew",
        fix=f"new = dx.clone(obj)        # and assign to the copy, which keeps {format_path(path)}",
    )


def _must_be_given(cls: type, name: str, why: str | None) -> FieldError:
    return FieldError(
        f"{type_name(cls)}.{name}",
        "replace constructs anew, and the constructor needs this argument",
        why=why,
        fix=f"dx.replace(obj, {name}={'dx.Rngs(0)' if name == RNGS else '...'})",
    )
