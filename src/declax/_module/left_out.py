"""The error of code that uses a part or a Variable that a condition of its class left out, in place of Python's."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from declax import _jax
from declax._fields.bytecode import chains_at
from declax._fields.call import CONTAINERS, Term, chosen, entries, operands_of, target_of
from declax._fields.class_info import info_of, maker_of
from declax._fields.expressions import Literal, referred
from declax._fields.sources import declared_text
from declax._fields.specifiers import VariableRecipe
from declax._typing import MISSING
from declax.errors import DeclaxError, LayerError, MissingAttributeError, type_name

_CALLED: Final = ("'NoneType' object is not callable",)


def use_of_none(error: Exception) -> DeclaxError | None:
    """The error for a use of None that Python refused; None if another None than one of these may be the cause."""
    if type(error) not in (TypeError, AttributeError) or "NoneType" not in str(error):
        return None
    trace = _jax.trace_of_user(error)
    if trace is None:
        return None
    is_called = error.args == _CALLED and trace.tb_next is None
    found = None
    for chain in chains_at(trace.tb_frame.f_code, trace.tb_lasti):
        if chain.is_called or not is_called:
            owner, name, value = _read(trace.tb_frame, chain.names)
            left_out = next(_left_out(owner, name, value), None)
            if left_out is None and value is None:
                return None
            found = found or left_out
    if found is None:
        return None
    place, declared, condition = found
    path = place.partition(".")[2]
    why = f"{path} = {declared}, and {condition} does not hold"
    guard = f"if self.{path} is not None: ..."
    if is_called:
        fix = f"x if self.{path} is None else self.{path}(x)"
        made: DeclaxError = LayerError(place, "this part is None, and is called", why=why, fix=fix)
    elif isinstance(error, TypeError):
        made = LayerError(place, "this part is None, and is used", why=why, fix=guard)
    else:
        made = MissingAttributeError(place, "this part is None, and is used", why=why, fix=guard)
    return made.with_traceback(error.__traceback__)


def _read(frame: FrameType, names: tuple[str, ...]) -> tuple[Any, str, Any]:
    """The first attribute behind a name that is None, or else the last: its object, its name, and its value."""
    owner, name, value = None, names[0], frame.f_locals.get(names[0], MISSING)
    for following in names[1:]:
        if value is not None:
            owner, name, value = value, following, getattr(value, "__dict__", {}).get(following, MISSING)
    return owner, name, value


def _left_out(owner: Any, name: str, value: Any) -> Iterator[tuple[str, str, str]]:
    """What conditions left out of an attribute: the place, the declaration and the condition as texts."""
    place = f"{type_name(type(owner))}.{name}"
    declared = next(iter(maker_of(type(owner)).expressions.get(name, ())), None)
    recipe = getattr(info_of(type(owner)).specs.get(name), "recipe", None)
    if value is None and isinstance(recipe, VariableRecipe) and recipe.when is not None:
        condition = _text(recipe.when)
        yield place, f"dx.variable(..., when={condition})", condition
    yield from _items_left_out(place, declared, value)


def _items_left_out(place: str, declared: Any, value: Any) -> Iterator[tuple[str, str, str]]:
    if value is None:
        if target_of(declared) is chosen:
            yield place, declared_text(declared), _text(operands_of(declared)[0])
        return
    literal: Any = declared._pytree__value if isinstance(declared, Literal) else declared
    for key, item in entries(literal) if type(literal) in CONTAINERS else ():
        try:
            found = value[key]
        except (LookupError, TypeError):  # the part was assigned
            continue
        yield from _items_left_out(f"{place}[{key!r}]", referred(item), found)


def _text(condition: Any) -> str:
    return declared_text(condition) if isinstance(condition, Term) else repr(condition)
