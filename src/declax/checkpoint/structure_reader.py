"""A value of its structure, without a constructor or ``__setattr__`` of a class."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import jax

from declax import _jax
from declax._classes.defaults import default_maker
from declax._classes.pytree import Pytree, prepare, set_layout
from declax._classes.records import NEW, Record
from declax._fields.call import Call
from declax._fields.overrides import part_at
from declax._fields.specifiers import Status
from declax._graph.flattening import walk
from declax._graph.nodes import Link, path_of
from declax._state.states import State
from declax._tree.attributes import class_attribute
from declax._tree.layout import RECORD_KEY, Layout, blank_maker
from declax._tree.statuses import is_data, static_status
from declax._typing import MISSING, Path
from declax._variables.policy import NO_POLICY, Policy
from declax._variables.variable import Variable, new_variable, set_raw
from declax.checkpoint.declared import Declarations
from declax.checkpoint.names import Names
from declax.checkpoint.structures import (
    FORMATS,
    STATIC,
    VALUES,
    children_of,
    fields_of,
    link_to,
    objects_in,
    shape_of_nothing,
    why_refused,
)
from declax.checkpoint.values import Json, Problem, Reader
from declax.errors import describe, type_name

Placeholder = Callable[[Path, Json], Any]
"""The value of a leaf, by its path and form."""


class StructureReader(Reader):
    """Makes the value that a structure describes.

    Args:
      structure: what `StructureWriter` has written.
      names: what it may name.
      leaf: gives the value of each leaf.

    Attributes:
      problems: what cannot be made. The value must not be used if there are some.
    """

    def __init__(self, structure: Json, names: Names, leaf: Placeholder, mesh: Any = None) -> None:
        super().__init__(names, mesh)
        self._leaf = leaf
        self._entries: list[dict[str, Json]] = structure["objects"]
        self._root = structure["root"]
        self._format = structure["format"]
        if self._format not in FORMATS:
            self.fail(None, f"a newer version of declax wrote this: format {self._format!r:.40}")
        self._links = objects_in(structure)
        self._made: list[Any] = [None] * len(self._entries)
        self._declared = Declarations()

    def value(self) -> Any:
        """The value. Objects are made first and filled then, since they may hold each other."""
        for index, link in self._links.items():
            self._made[index] = self._blank(self._entries[index], link)
        for index, link in self._links.items():
            self._fill(self._made[index], self._entries[index], link)
        if self._format not in FORMATS[:2]:
            for index, link in self._links.items():
                self._compare(self._made[index], self._entries[index], link)
        return self._form(self._root, None)

    def graphdef(self, structure: Json, link: Link) -> Any:
        """The GraphDef of a structure without leaves."""
        inner = StructureReader(structure, self._names, lambda _, form: shape_of_nothing(is_ref=False), self._mesh)
        value = inner.value()
        self.problems.extend(problem.below(link) for problem in inner.problems)
        return MISSING if inner.problems else walk(value).graphdef

    def _compare(self, node: Any, entry: dict[str, Json], link: Link) -> None:
        """Notes where a class declares another status or kind by now; not where an object has deviated from it."""
        cls = type(node)
        for name in entry.get("attributes", ()) if isinstance(node, Pytree) else ():
            if name in entry.get("deviating", ()) or name not in vars(node):
                continue
            value, form = vars(node)[name], entry["attributes"][name]
            status = next((status for status in STATIC if status.value in form), Status.DATA)
            if self._declared.deviates(cls, name, status, value):
                declared = self._declared[cls, name].text
                reason = f"{type_name(cls)}.{name} is declared as {declared} by now, and was saved as "
                reason += f"{status.value}: {describe(value)}"
                fix = f"checkpoint_upgrades of {type_name(cls)} that give it another name, or a load with the old class"
                self.problems.append(Problem((link, name), reason, fix=fix))

    def _blank(self, entry: dict[str, Json], link: Link) -> Any:
        if "ref" in entry:
            return self._ref(self._leaf(path_of(link), {"leaf": entry["ref"]}))
        if "variable" in entry:
            found = self.leaf_def([entry["variable"], entry.get("metadata", {})], link)
            return MISSING if found is None else new_variable(found[0], None, found[1], _jax.current_trace())
        cls = self.find(entry["class"], link)
        if cls is MISSING:
            return MISSING
        if not (isinstance(cls, type) and issubclass(cls, Pytree)):
            return self.fail(link, f"{entry['class']:.80} is not a class of models")
        if not cls._pytree__info.is_complete:
            prepare(cls._pytree__info)
        return blank_maker(cls)(cls)

    def _ref(self, value: Any) -> Any:
        if isinstance(value, jax.ShapeDtypeStruct):
            return value.update(is_ref=True)  # type: ignore[no-untyped-call]  # of JAX
        return MISSING if value is MISSING else jax.new_ref(value)

    def _fill(self, made: Any, entry: dict[str, Json], link: Link) -> None:
        if isinstance(made, Variable):
            set_raw(made, self._form(entry["value"], link))
        elif isinstance(made, Pytree):
            self._fill_node(made, entry, link)
        elif made is MISSING:
            for name, form in entry.get("attributes", {}).items():  # which may name more classes that are missing
                self._form(form, (link, name))

    def _fill_node(self, node: Any, entry: dict[str, Json], link: Link) -> None:
        cls = type(node)
        values: dict[Any, Any] = {}
        statuses: dict[Any, Status] = {}
        elements = {int(index): form for index, form in entry.get("elements", {}).items()}
        known = {*fields_of(cls), *entry.get("added", ())} if hasattr(cls, "__dataclass_fields__") else None
        for name, form in {**elements, **entry["attributes"]}.items():
            place = (link, name)
            value = self._form(form, place)
            if isinstance(name, str) and known is not None and name not in known:
                fix = f"renamed_from={name!r} for the field that has its place, or into="
                self.problems.append(Problem(place, f"{type_name(cls)} has no such field any more", fix=fix))
            reason = why_refused(cls, name) if isinstance(name, str) else None
            if reason is not None:
                self.fail(place, reason)
            if value is MISSING:
                continue
            values[name] = value
            statuses[name] = next((status for status in STATIC if status.value in form), Status.DATA)
            if statuses[name] is not Status.DATA and self._declared.is_misfit(cls, name, value):
                self.fail(place, f"{type_name(cls)}.{name} cannot be {describe(value)}")
        for name, value in self._defaults(cls, entry, link).items():
            values[name] = value
            statuses[name] = Status.DATA if is_data(value) else static_status(value)
        vars(node).update(values)
        if cls._pytree__is_pytree:
            set_layout(node, Layout.of(cls, statuses))
        record = self._construction(cls, entry.get("record"))
        if record is not None:
            vars(node)[RECORD_KEY] = record.seal(vars(node))

    def _defaults(self, cls: Any, entry: dict[str, Json], link: Link) -> dict[str, Any]:
        """The fields that the class has gained since, with their defaults."""
        found: dict[str, Any] = {}
        fields = getattr(cls, "__dataclass_fields__", {})
        for name in fields_of(cls):
            if name in entry["attributes"] or name in entry.get("absent", ()):
                continue
            make = default_maker(fields[name]) if name in fields else None
            if make is not None:
                found[name] = make()
            elif name in fields or (self._format != FORMATS[0] and class_attribute(cls, name) is None):
                fix = f"a default for {type_name(cls)}.{name}, or into="
                self.problems.append(
                    Problem((link, name), f"{type_name(cls)} has this field by now, without a default", fix=fix)
                )
        return found

    def _construction(self, cls: type, form: Json) -> Record | None:
        """The record of the constructor call."""
        if form is None:
            return None
        before = len(self.problems)
        arguments = {name: self._argument(value) for name, value in form.get("arguments", {}).items()}
        policy = self.read(form["policy"], None) if "policy" in form else NO_POLICY
        parts: dict[str, Any] = {**dict.fromkeys(form["parts"], NEW), **dict.fromkeys(form.get("assigned", ()))}
        if len(self.problems) > before or not isinstance(policy, Policy):  # without it, only `spec_of` has less to say
            del self.problems[before:]
            return None
        return Record(Call(cls, (), arguments), parts, policy)

    def _argument(self, form: Json) -> Any:
        if "data" in form:
            return MISSING
        if "value" in form:
            return self.read(form["value"], None)
        owner = self.find(form["part"], None)
        arguments = {name: self._argument(value) for name, value in form["arguments"].items()}
        return owner if owner is MISSING else part_at(owner, tuple(form["steps"]))(**arguments)

    def _form(self, form: Json, link: Link) -> Any:
        """The value of a form: an object, a leaf, a static value, or a container of these."""
        if "object" in form:
            return self._made[form["object"]]
        if "leaf" in form:
            value = self._leaf(path_of(link), form)
            return self._ref(value) if form.get("ref") else value
        for tag in VALUES:
            if tag in form:
                return self.read(form[tag], link)
        keys: list[Any] = []
        children: list[Any] = []
        for key, holder, slot in children_of(form):
            keys.append(self.read(key, None))
            children.append(self._form(holder[slot], link_to(link, keys[-1], form)))
        if any(child is MISSING for child in children):
            return MISSING
        return self._container(form, keys, children, link)

    def _container(self, form: Json, keys: list[Any], children: list[Any], link: Link) -> Any:
        if "list" in form or "tuple" in form:
            return children if "list" in form else tuple(children)
        if "state" in form:
            return self._state(form, children, link)
        if "node" not in form:
            content = self._in_order(form, dict(zip(keys, children, strict=True)))
            if "defaultdict" in form:
                return defaultdict(self.read(form["factory"], link), content)
            return OrderedDict(content) if "OrderedDict" in form else content
        cls = self.find(form["node"], link)
        if cls is MISSING:
            return MISSING
        if issubclass(cls, tuple) and getattr(cls, "_fields", None) == tuple(keys):
            return tuple.__new__(cls, children)
        auxiliary = self.read(form["auxiliary"], link) if "auxiliary" in form else None
        try:
            return _jax.unflatten_one(cls, auxiliary, children)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return self.fail(link, f"{form['node']:.80} cannot be made: {error}"[:200])

    def _in_order(self, form: Json, content: dict[Any, Any]) -> dict[Any, Any]:
        """A dict in the order that it had, which is not that of the graph."""
        written = form.get("dict") or form.get("defaultdict") or ()
        return {key: content[key] for key in [self.read(key, None) for key, _ in written]} or content

    def _state(self, form: Json, children: list[Any], link: Link) -> Any:
        rows = [(tuple(self.read(keys, link)), leaf_def) for keys, leaf_def in form["state"]]
        pairs = [
            (keys, self.variable(leaf_def, child, link)) for (keys, leaf_def), child in zip(rows, children, strict=True)
        ]
        return State.from_flat_path(pairs)
