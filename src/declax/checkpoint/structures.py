"""The form of a structure: classes, attributes, kinds and sharing as JSON, without arrays.

A structure has a list of objects in the order of the graph, each once. An object is a node, a Variable or a ref, and
what holds it refers to its place in the list, so that shared objects and cycles need nothing special.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from declax._classes.pytree import Pytree
from declax._fields.annotations import own_annotations
from declax._fields.class_info import info_of
from declax._fields.specifiers import FIELD, Status
from declax._graph.nodes import Link, link_of, path_of
from declax._state.definition import are_sortable
from declax._tree.attributes import class_attribute, is_behaviour, is_data_descriptor
from declax._typing import Path
from declax.checkpoint.arrays import implementation_of
from declax.checkpoint.names import Names
from declax.checkpoint.values import Json, Reader
from declax.errors import type_name

FORMATS: Final = (1, 2, 3)
"""Those that are read; the last one is written. In the first, `absent` lists fields of dataclasses only. The first two
do not say where objects deviate from their classes."""

STATIC: Final = (Status.STATIC, Status.SNAPSHOT)
VALUES: Final = frozenset({"value", *(status.value for status in STATIC)})
"""The forms of static values: in the place of data, and of attributes that are static."""

NUMPY: Final = "numpy"
"""An array of numpy."""
SCALAR: Final = "scalar"
"""A number of numpy."""
PLAIN: Final = "plain"
"""A number or text of Python."""
ARRAY: Final = "array"
"""An array of JAX. That of random keys is the name of their implementation."""


def leaf_form(value: Any) -> dict[str, Json]:
    """The form of a leaf: its kind; and that it is in a ref, weakly typed, or of another byte order."""
    if isinstance(value, (np.ndarray, np.generic)):
        order = {} if value.dtype.isnative else {"order": value.dtype.str[0]}
        return {"leaf": SCALAR if isinstance(value, np.generic) else NUMPY, **order}
    if isinstance(value, (bool, int, float, complex, str)):
        return {"leaf": PLAIN}
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    flags = {"ref": isinstance(value, jax.Ref), "weak": getattr(value, "weak_type", False)}
    return {
        "leaf": implementation_of(value) if is_key else ARRAY,
        **{name: True for name in flags if flags[name]},
    }


def shape_of_nothing(*, is_ref: bool) -> jax.ShapeDtypeStruct:
    """What stands for a leaf of which nothing is known."""
    return jax.ShapeDtypeStruct((), np.dtype(np.float32), is_ref=is_ref)  # type: ignore[no-untyped-call]  # of JAX


def why_refused(cls: Any, name: str) -> str | None:
    """Why no object may have an attribute: it hides a method, or what Python or declax keeps; None if it may."""
    if name.startswith(("__", "_pytree__")) or not name:
        return "a file has no attribute whose name is empty, or begins with __ or _pytree__"
    held = class_attribute(cls, name)
    is_field = name in info_of(cls).specs
    is_default = held is None or is_field or isinstance(held, staticmethod)  # of the class, which an object may replace
    if is_default or not (is_behaviour(held) or is_data_descriptor(cls, name)):
        return None
    return f"{type_name(cls)} has a method or property of this name"


def fields_of(cls: Any) -> list[str]:
    """The attributes that a class declares: its fields and parts, and the annotations of bases without a decorator."""
    fields = getattr(cls, "__dataclass_fields__", {})
    found = [name for name, field in fields.items() if field._field_type is FIELD]
    for base in cls.__mro__:
        if "__dataclass_fields__" in vars(base) or not issubclass(base, Pytree):
            continue
        for name, annotation in own_annotations(base).items():
            if name not in fields and "ClassVar" not in str(annotation) and why_refused(cls, name) is None:
                found.append(name)
    return found


# --- the walk ---------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a structure has a form.

    Attributes:
      link: the path of what it describes.
      holder, slot: the form is ``holder[slot]``.
    """

    link: Link
    holder: Any
    slot: Any

    @property
    def form(self) -> Json:
        """The form."""
        return self.holder[self.slot]


def children_of(form: Json) -> list[tuple[Json, Any, Any]]:
    """The keys of a container, as forms, and where its children are, in the order of the graph."""
    for tag in ("list", "tuple"):
        if tag in form:
            return [(index, form[tag], index) for index in range(len(form[tag]))]
    for tag in ("dict", "defaultdict"):
        if tag in form:
            pairs = [(pair[0], pair, 1) for pair in form[tag]]
            keys = [key for key, _, _ in pairs]
            is_text = all(isinstance(key, str) for key in keys) or (
                are_sortable(keys) and not any(isinstance(key, dict) for key in keys)
            )
            return sorted(pairs, key=lambda pair: pair[0]) if is_text else pairs
    if "state" in form:
        keys = [path[0] if len(path) == 1 else {"tuple": path} for path, _ in form["state"]]
    else:
        keys = form["OrderedDict"] if "OrderedDict" in form else form["keys"]
    return [(key, form["children"], index) for index, (key, _) in enumerate(zip(keys, form["children"], strict=True))]


def link_to(link: Link, key: Any, form: Json) -> Link:
    """The path of a child of a container. The paths of an item that is a State are its own."""
    return link_of(key if link is None and "state" in form and isinstance(key, tuple) else (key,), link)


def attributes_of(entry: Json) -> list[tuple[Any, Any, Any]]:
    """The elements and attributes of a node, and where their forms are, in the order of the graph."""
    elements, attributes = entry.get("elements", {}), entry["attributes"]
    found = [(int(name), elements, name) for name in elements]
    return [*sorted(found, key=lambda child: child[0]), *((name, attributes, name) for name in sorted(attributes))]


def places_in(structure: Json) -> Iterator[Place]:
    """Each place of a structure that a value has, what holds it first; what is in an object once."""
    entries = dict(enumerate(structure["objects"]))  # of which a negative number is none
    seen: set[int] = set()
    read = Reader(Names()).read
    stack = [Place(None, structure, "root")]
    while stack:
        place = stack.pop()
        yield place
        form, link = place.form, place.link
        if "leaf" in form or not VALUES.isdisjoint(form):
            continue
        if "object" not in form:
            children = reversed(children_of(form))
            stack += [Place(link_to(link, read(key, None), form), at, slot) for key, at, slot in children]
        elif form["object"] not in seen:
            seen.add(form["object"])
            entry = entries[form["object"]]
            if "variable" in entry:
                stack.append(Place(link, entry, "value"))
            elif "class" in entry:
                stack += [Place((link, name), at, slot) for name, at, slot in reversed(attributes_of(entry))]


def trees_in(structure: Json) -> set[Path]:
    """The paths of the Variables that hold trees."""
    entries = structure["objects"]
    places = (place for place in places_in(structure) if "object" in place.form)
    variables = ((place, entries[place.form["object"]].get("value", {"leaf": ARRAY})) for place in places)
    return {path_of(place.link) for place, form in variables if "leaf" not in form}


def objects_in(structure: Json) -> dict[int, Link]:
    """The first path of each object that the root leads to, in the order of the graph."""
    found: dict[int, Link] = {}
    for place in places_in(structure):
        if "object" in place.form:
            found.setdefault(place.form["object"], place.link)
    return found
