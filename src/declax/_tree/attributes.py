"""Assignment of values to attributes: whether it is allowed, and with which status, before anything is changed."""

from __future__ import annotations

from typing import Any

import jax

from declax._fields.call import Unmade
from declax._fields.class_info import info_of
from declax._fields.expressions import Expression
from declax._fields.snapshots import attributes_of, model_among_keys, model_as_key
from declax._fields.specifiers import FieldSpec, PartRecipe, Status, SubmoduleRecipe, Tagged
from declax._tree.hidden import HOLDERS, check_hidden, is_of_library, may_hide
from declax._tree.iterators import check_iterators
from declax._tree.layout import Layout, Name
from declax._tree.read_only import ReadOnly
from declax._tree.statuses import (
    CONTAINERS,
    PLAIN,
    data_in_static,
    has_data,
    items_within,
    model_key_in,
    static_status,
    status_of_value,
)
from declax._typing import TRACE_KEY
from declax.errors import (
    WHERE_CAPTURES_ARE_FOUND,
    DeclaxError,
    FieldError,
    StatusError,
    TraceContextError,
    describe,
    type_name,
    with_article,
)


def is_behaviour(value: object) -> bool:
    """Whether a value in a class's namespace is something that its objects do."""
    is_function = callable(value) and not isinstance(value, Expression)
    return is_function or isinstance(value, property | classmethod | staticmethod)


def class_attribute(cls: type, name: str) -> Any:
    """The definition of a name in the body of a class or its bases; None if there is none."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def is_data_descriptor(cls: type, name: str) -> bool:
    """Whether an attribute of a class accepts the assigned value."""
    return hasattr(type(class_attribute(cls, name)), "__set__")


def admit(self: Any, name: Any, value: Any, layout: Layout) -> tuple[bool, Any, Layout]:
    """Whether a descriptor takes the value, the value without its tag, and the layout from then on; or raises."""
    status = layout.statuses.get(name)
    if status is None and isinstance(name, str):
        if is_data_descriptor(type(self), name):
            return True, value, layout
        if name in info_of(self).reserved:
            raise FieldError(
                f"{type_name(type(self))}.{name}",
                f"an attribute named {name!r} hides a method of its base class",
                fix=f"self.{name}_ = ...",
            )
    if isinstance(value, Unmade):
        check_unmade(self, name, value)
        return False, value, layout
    is_checked = self._pytree__is_pytree
    if value.__class__ is Tagged:
        return False, value.value, layout.with_status(name, _explicit_status(self, name, value, is_checked))
    if is_checked and isinstance(value, CONTAINERS):
        check_tags(self, name, value)
    if status is None:
        status = _first_status(self, name, value)
        if status is not Status.DATA and is_checked:
            check_static(self, name, value, "is static")
        return False, value, layout.with_status(name, status)
    if status is Status.DATA or not is_checked:
        if is_checked and value.__class__ not in CONTAINERS:
            refuse_iterators(self, name, value)
        return False, value, layout
    check_static(self, name, value, "is static")
    if status is Status.STATIC and static_status(value) is Status.SNAPSHOT:
        return False, value, layout.with_status(name, Status.SNAPSHOT)
    return False, value, layout


def check_unmade(self: Any, name: Name, value: Unmade) -> None:
    """Raises for an expression that is not the default of its field: the constructor would not evaluate it."""
    fields = getattr(type(self), "__dataclass_fields__", {})
    if not isinstance(value, Expression) or (name in fields and fields[name].default is value):
        return
    raise FieldError(
        _place(self, name),
        "an attribute cannot hold a declaration or another field expression",
        got=repr(value),
        why="only class bodies declare fields, and only the constructor of their class gives them values",
        fix=f"{name}: int = dx.field()        # in the class body, under @dx.dataclass\n"
        f"{_target(self, name)} = block.dim        # the attribute of an instance, in place of Block.dim",
    )


def _explicit_status(self: Any, name: Name, tag: Tagged[Any], is_checked: bool) -> Status:
    if is_checked and isinstance(tag.value, (Tagged, *CONTAINERS)):
        check_tags(self, name, tag.value)
    if tag.status is Status.DATA:
        if is_checked:
            refuse_iterators(self, name, tag.value)
        return Status.DATA
    if is_checked:
        check_static(self, name, tag.value, "is annotated with static(...)")
    return static_status(tag.value)


def _first_status(self: Any, name: Name, value: object) -> Status:
    spec: FieldSpec | None = info_of(type(self)).specs.get(name) if isinstance(name, str) else None
    if spec is not None:
        if spec.status is not None:
            return spec.status if spec.status is Status.DATA else static_status(value)
        if spec.is_nested_undecided and has_data(value):
            return Status.DATA
    elif self._pytree__holds_elements and has_data(value):
        return Status.DATA
    return status_of_value(value)


def _place(self: Any, name: Name) -> str:
    """An attribute or element as it is written in code, behind the name of the class."""
    is_attribute = isinstance(name, str) and name.isidentifier() and not self._pytree__holds_elements
    return f"{type_name(type(self))}.{name}" if is_attribute else f"{type_name(type(self))}[{name!r}]"


def _target(self: Any, name: Name) -> str:
    return f"self[{name!r}]" if self._pytree__holds_elements else f"self.{name}"


def check_static(self: Any, name: Name, value: object, what: str) -> None:
    """Raises where a value of a static attribute is data or holds some."""
    if value.__class__ in HOLDERS or (value.__class__ not in PLAIN and may_hide(value)):
        if is_of_library(value):
            return
        check_hidden(self, value, _place(self, name), str(name), is_part=_is_part(self, name))
    if value.__class__ in PLAIN:
        return
    refuse_iterators(self, name, value)
    found = data_in_static(value)
    if found is None:
        if _is_part(self, name):
            check_hidden(self, value, _place(self, name), str(name), is_part=True)
        return
    holds = "" if found is value else f" that holds {describe(found)}"
    target = _target(self, name)
    is_in_record = isinstance(found, jax.Array) and attributes_of(value) is not None
    constant = (
        "\nnp.asarray(...)        # for an array in a dataclass, which is a constant then" if is_in_record else ""
    )
    annotated = f"        # or declare it:  {name}: dx.Data[...]" if isinstance(name, str) else ""
    if getattr(found, "_pytree__holds_elements", False):  # a List or Dict
        container = f"{target} = ...        # a list or dict of Python, of values that are static"
    else:
        container = f"{target} = dx.List(...)        # or dx.Dict, for containers"
    raise StatusError(
        _place(self, name),
        f"data was assigned to an attribute that {what}",
        expected="a static value: a number, a string, a function, or a container of such",
        got=describe(value) + holds,
        why="arrays, Variables and Pytrees must be children of the tree, or jit compiles them into the program",
        fix=f"{target} = dx.data(...){annotated}\n{container}{constant}",
    )


def _is_part(self: Any, name: Name) -> bool:
    """Whether the class body makes an attribute by a call or another expression."""
    spec: FieldSpec | None = info_of(type(self)).specs.get(name) if isinstance(name, str) else None
    return spec is not None and isinstance(spec.recipe, PartRecipe)


def refuse_iterators(self: Any, name: Name, value: object) -> None:
    """Raises for an iterator that gives models, and for any as the result of a method under `submodule`."""
    spec: FieldSpec | None = info_of(type(self)).specs.get(name) if isinstance(name, str) else None
    is_made = spec is not None and isinstance(spec.recipe, SubmoduleRecipe)
    fix = "return {}" if is_made else f"{_target(self, name)} = {{}}"
    check_iterators(items_within(value), _place(self, name), fix, "list" if is_made else "dx.List", is_part=is_made)


def wrong_trace(self: Any, name: Any) -> DeclaxError:
    """The error of changing an object from another trace level than its own, or one that is read only."""
    cls = type_name(type(self))
    trace_token = self.__dict__.get(TRACE_KEY)
    if isinstance(trace_token, ReadOnly):
        return trace_token.refusal(_place(self, name))
    return TraceContextError(
        _place(self, name),
        f"cannot mutate {cls!r} from a different trace level",
        why="the object was made outside of the function that JAX is tracing now; the change would leak a tracer.\n"
        + WHERE_CAPTURES_ARE_FOUND,
        fix="pass the object as an argument of the traced function, and return it or use the transforms of declax",
    )


def not_a_variable(self: Any, name: str, value: object) -> StatusError:
    """The error of an array in place of a declared Variable."""
    old = self.__dict__.get(name)
    kind = type_name(type(old)) if hasattr(type(old), "raw_value") else "Variable"
    return StatusError(
        _place(self, name),
        f"an array was assigned to a declared {kind}",
        expected=with_article(kind),
        got=describe(value),
        fix=f"{_target(self, name)}.value = ...        # or {_target(self, name)} = dx.{kind}(...)",
    )


def check_tags(node: Any, name: Name, value: object) -> None:
    """Raises where a container in an attribute holds tagged values or models as keys, or is nested too deeply."""
    items = items_within(value, lambda: _place(node, name))
    if tags := {item.status.value for item in items if isinstance(item, Tagged)}:
        raise StatusError(
            _place(node, name),
            f"found the tags {sorted(tags)} inside of a container",
            got=describe(value),
            why="data(...) and static(...) give the status of an attribute, and are the whole value of an assignment",
            fix=f"{_target(node, name)} = dx.data([...])",
        )
    model = model_key_in(value) if items else model_among_keys(value) if isinstance(value, dict) else None
    if model is not None:
        raise model_as_key(_place(node, name), model)
