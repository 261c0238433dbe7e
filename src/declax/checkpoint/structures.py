"""The structure of a model as JSON, and a model of it: classes, attributes, kinds and sharing, without arrays.

A structure has a list of objects in the order of the graph, each once. An object is a node, a Variable or a ref, and
what holds it refers to its place in the list, so that shared objects and cycles need nothing special.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from declax import _jax
from declax._classes.conformance import misfit_of
from declax._classes.pytree import Pytree, prepare, set_layout
from declax._classes.records import NEW, Record, record_of
from declax._fields.annotations import AnnotationScope, own_annotations
from declax._fields.call import Call
from declax._fields.class_info import info_of
from declax._fields.meanings import Meaning, bindings_of, meaning_of
from declax._fields.overrides import DeclaredPart, override_of, part_at
from declax._fields.specifiers import Status
from declax._graph.flattening import CONTAINER, LEAF, OBJECT, REF, STATIC, VARIABLE, child_keys, walk
from declax._graph.nodes import Kind, kind_of, open_container
from declax._state.definition import StateDef, are_sortable
from declax._state.states import State
from declax._state.tree import FlatForm
from declax._tree.attributes import class_attribute, is_behaviour, is_data_descriptor
from declax._tree.layout import INTERNAL_KEYS, RECORD_KEY, Layout, blank_maker
from declax._tree.statuses import is_data, static_status
from declax._typing import MISSING, Path
from declax._variables.policy import NO_POLICY, Policy
from declax._variables.variable import Variable, new_variable, set_raw
from declax.checkpoint.items import is_stored
from declax.checkpoint.names import Names
from declax.checkpoint.values import Json, Problem, Reader, Writer, default_of
from declax.config._reading.part_readers import version_of
from declax.errors import describe, type_name

FORMAT: Final = 1

_STORED: Final = dataclasses._FIELD  # type: ignore[attr-defined]  # of a field, neither an InitVar nor of the class

_STATIC: Final = (Status.STATIC, Status.SNAPSHOT)
_VALUES: Final = frozenset({"value", *(status.value for status in _STATIC)})
"""The forms of static values: in the place of data, and of attributes that are static."""

NUMPY: Final = "numpy"
"""An array of numpy."""
SCALAR: Final = "scalar"
"""A number of numpy."""
PLAIN: Final = "plain"
"""A number or text of Python."""
ARRAY: Final = "array"
"""An array of JAX. That of random keys is the name of their implementation."""


def structure(model: Any, /) -> dict[str, Any]:
    """What a checkpoint stores of a model beside its arrays, as data that JSON can hold.

    It lists each object once, in the order of the graph: a node with its class and attributes, a Variable with its kind
    and metadata. What holds an object refers to its place in the list. A value that has no form in files, such as a
    lambda, is ``{"unnamed": reason}``. Shapes, dtypes and values of arrays do not belong to the structure.

    Args:
      model: a model, an optimizer, or any tree or graph of them.

    Returns:
      A dict, equal for models of equal structure.

    >>> import declax as dx
    >>> found = dx.structure(dx.Linear(2, 3, rngs=dx.Rngs(0)))
    >>> found["objects"][0]["class"], found["objects"][0]["attributes"]["out_features"]
    ('declax.Linear', {'static': 3})
    >>> found == dx.structure(dx.Linear(2, 3, rngs=dx.Rngs(1)))
    True
    """
    found: dict[str, Any] = StructureWriter(model).structure
    for entry in found["objects"]:
        entry.pop("record", None)  # of the constructor, which equal models need not share
    return found


# --- to JSON ----------------------------------------------------------------------------


class StructureWriter:
    """Writes the structure of one value.

    Attributes:
      structure: what is stored.
      problems: what has no form in a file.
      local: the paths of objects whose classes were defined in functions, with their names.
      objects: the nodes, Variables and refs.
    """

    def __init__(self, value: Any) -> None:
        found = walk(value)
        self._values = Writer()
        self._meanings = _Meanings()
        self._objects = found.objects
        self._leaves = iter(zip(found.variables, found.read(), strict=True))
        self._entries: list[dict[str, Json]] = []
        root: dict[str, Json] = {}
        stack: list[tuple[Any, Any, Path]] = [(root, "root", ())]
        for token in found.tokens:
            holder, key, path = stack.pop()
            form, children = self._token(token, path)
            holder[key] = form
            stack += reversed(children)
        self.structure: dict[str, Json] = {"format": FORMAT, **root, "objects": self._entries}
        self.problems: list[Problem] = self._values.problems
        self.local: dict[Path, str] = self._values.local
        self.objects: list[Any] = found.objects

    def _token(self, token: Any, path: Path) -> tuple[Json, list[tuple[Any, Any, Path]]]:
        """The form of a token, and where the forms of its children belong."""
        if isinstance(token, int):
            return {"object": token}, []
        tag = token[0]
        if tag == STATIC:
            return {"value": self._values.write(token[1], path)}, []
        if tag == CONTAINER:
            return self._container(token[1], token[2], path)
        if tag == LEAF:
            return {"leaf": leaf_kind(next(self._leaves)[1])}, []
        index = len(self._entries)
        entry: dict[str, Json] = {}
        self._entries.append(entry)
        if tag in (VARIABLE, REF):
            _, value = next(self._leaves)
            entry |= {"ref": leaf_kind(value)} if tag == REF else self._variable(token, value, path)
            return {"object": index}, []
        return {"object": index}, self._node(entry, self._objects[index], token, path)

    def _variable(self, token: Any, value: Any, path: Path) -> dict[str, Json]:
        name, metadata = self._values.leaf_def((token[1], token[2]), path)
        return {"variable": name, **({"metadata": metadata} if metadata else {}), "value": self._tree(value, path)}

    def _tree(self, value: Any, path: Path) -> Json:
        """The form of the value of a Variable: of a leaf, or of a tree of them."""
        kind = kind_of(value)
        if value is None:
            return {"value": None}
        if kind is not Kind.CONTAINER:
            return {"leaf": leaf_kind(value)}
        keys, children, how = open_container(value)
        form, places = self._container(how, keys, path)
        for (holder, key, inner), child in zip(places, children, strict=True):
            holder[key] = self._tree(child, inner)
        return form

    def _node(self, entry: dict[str, Json], node: Any, token: Any, path: Path) -> list[tuple[Any, Any, Path]]:
        cls = type(node)
        entry["class"] = self._values.name_at(cls, path)
        if version_of(cls) != 1:
            entry["version"] = version_of(cls)
        attributes: dict[str, Json] = {}
        elements: dict[str, Json] = {}
        names = [name for name in vars(node) if name not in INTERNAL_KEYS and is_stored(cls, name)]
        statuses = {} if token[0] == OBJECT else token[1].statuses
        for name in names:
            status = statuses.get(name, Status.DATA)
            form = (
                None if status is Status.DATA else {status.value: self._values.write(vars(node)[name], (*path, name))}
            )
            (elements if isinstance(name, int) else attributes)[str(name)] = form  # that of data follows
        places = [
            (
                (elements if isinstance(name, int) else attributes) if is_stored(cls, name) else {},
                str(name),
                (*path, name),
            )
            for name in child_keys(token)
        ]
        self._values.problems += [
            Problem((*path, name), f"{type_name(cls)} has a method or property of this name")
            for name in attributes
            if not is_allowed(cls, name)
        ]
        entry["attributes"] = attributes
        if elements or getattr(cls, "_pytree__holds_elements", False):
            entry["elements"] = elements
        fields: Mapping[str, Any] = getattr(cls, "__dataclass_fields__", {})
        absent = [n for n, field in fields.items() if field._field_type is _STORED and n not in vars(node)]
        added = [name for name in attributes if fields and name not in fields]
        entry |= {"absent": absent} if absent else {}
        entry |= {"added": added} if added else {}
        record = self._record(node)
        if record is not None:
            entry["record"] = record
        return places

    def _record(self, node: Any) -> Json:
        """The arguments of the constructor that the node does not keep; None if a file cannot say them."""
        record = record_of(node)
        if record is None:
            return None
        writer = Writer()
        arguments = {name: _argument(writer, value) for name, value in record.call.kwargs.items()}
        form: dict[str, Json] = {"parts": sorted(record.as_made(vars(node)))}
        assigned = sorted(set(record.parts) - set(form["parts"]))
        form |= {"arguments": arguments} if arguments else {}
        form |= {"assigned": assigned} if assigned else {}
        form |= {} if record.policy.is_empty else {"policy": writer.write(record.policy, ())}
        return None if writer.problems else form

    def _container(self, how: Any, keys: Path, path: Path) -> tuple[Json, list[tuple[Any, Any, Path]]]:
        """The form of a container, and the places of its children."""
        slots: list[Json] = [None] * len(keys)
        if how is list or how is tuple:
            form: dict[str, Json] = {how.__name__: slots}
        elif isinstance(how, tuple):
            pairs = {key: [self._values.write(key, path), None] for key in how[1]}
            form = {how[0].__name__: list(pairs.values())}
            if how[0] is defaultdict:
                form["factory"] = self._values.write(how[2], path)
            return form, [(pairs[key], 1, (*path, key)) for key in keys]
        else:
            form = {**self._registered(how, keys, path), "children": slots}
        return form, [(slots, index, (*path, key)) for index, key in enumerate(keys)]

    def _registered(self, treedef: Any, keys: Path, path: Path) -> dict[str, Json]:
        """The form of a container that JAX opens: a State, a named tuple, or an object of a registered class."""
        cls, auxiliary = treedef.node_data()
        if cls is FlatForm:
            definition: StateDef = auxiliary[-1]
            entries = zip(*map(definition.in_jax_order, (definition.paths, definition.leaf_defs)), strict=True)
            rows = [[self._values.write(list(p), path), self._values.leaf_def(d, path)] for p, d in entries]
            return {"state": rows, "keys": [self._values.write(key, path) for key in keys]}
        if cls is OrderedDict:
            return {"OrderedDict": [self._values.write(key, path) for key in keys]}
        form: dict[str, Json] = {
            "node": self._values.name_at(cls, path),
            "keys": [self._values.write(key, path) for key in keys],
        }
        if auxiliary is not None and not hasattr(cls, "_fields"):
            form["auxiliary"] = self._values.write(auxiliary, path)
        return form


def leaf_kind(value: Any) -> str:
    """Which kind of leaf a value is, in a file."""
    if isinstance(value, (np.ndarray, np.generic)):
        return SCALAR if isinstance(value, np.generic) else NUMPY
    if isinstance(value, (bool, int, float, complex, str)):
        return PLAIN
    return str(jax.random.key_impl(value)) if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else ARRAY


def is_allowed(cls: Any, name: str) -> bool:
    """Whether an object may have an attribute: it hides no method, and nothing that Python or declax keeps there."""
    if name.startswith(("__", "_pytree__")) or not name:
        return False
    held = class_attribute(cls, name)
    is_field = name in info_of(cls).specs
    is_default = held is None or is_field or isinstance(held, staticmethod)  # of the class, which an object may replace
    return is_default or not (is_behaviour(held) or is_data_descriptor(cls, name))


def _argument(writer: Writer, value: Any) -> Json:
    """The form of a recorded argument."""
    if value is MISSING:
        return {"data": True}
    override = override_of(value)
    if override is None:
        return {"value": writer.write(value, ())}
    part: DeclaredPart = override.target
    arguments = {name: _argument(writer, inner) for name, inner in override.kwargs.items()}
    return {"part": writer.name_at(part.owner, ()), "steps": list(part.steps), "arguments": arguments}


# --- from JSON --------------------------------------------------------------------------

Placeholder = Callable[[Path, str, int | None], Any]
"""The value of a leaf, by its path and kind, and how many keys lead to its Variable."""


class StructureReader:
    """Makes the value that a structure describes, without a constructor or ``__setattr__`` of a class.

    Args:
      structure: what `StructureWriter` has written.
      names: what it may name.
      leaf: gives the value of each leaf.

    Attributes:
      problems: what cannot be made. The value must not be used if there are some.
    """

    def __init__(self, structure: Json, names: Names, leaf: Placeholder, mesh: Any = None) -> None:
        self._reader = Reader(names, mesh)
        self._leaf = leaf
        self.problems: list[Problem] = self._reader.problems
        self._entries: list[dict[str, Json]] = structure["objects"]
        self._root = structure["root"]
        if structure["format"] != FORMAT:
            self.problems.append(
                Problem((), f"a newer version of declax wrote this: format {structure['format']!r:.40}")
            )
        self._paths = _paths_of(self._root, self._entries)
        self._made: list[Any] = [None] * len(self._entries)
        self._meanings = _Meanings()

    def value(self) -> Any:
        """The value. Objects are made first and filled then, since they may hold each other."""
        for index, path in self._paths.items():
            self._made[index] = self._blank(self._entries[index], path)
        for index, path in self._paths.items():
            self._fill(self._made[index], self._entries[index], path)
        return self._form(self._root, ())

    def _blank(self, entry: dict[str, Json], path: Path) -> Any:
        if "ref" in entry:
            value = self._leaf(path, entry["ref"], None)
            if isinstance(value, jax.ShapeDtypeStruct):
                return value.update(is_ref=True)  # type: ignore[no-untyped-call]  # of JAX
            return MISSING if value is MISSING else jax.new_ref(value)
        if "variable" in entry:
            found = self._reader.leaf_def([entry["variable"], entry.get("metadata", {})], path)
            return MISSING if found is None else new_variable(found[0], None, found[1], _jax.current_trace())
        cls = self._reader.find(entry["class"], path)
        if cls is MISSING:
            return MISSING
        if not (isinstance(cls, type) and issubclass(cls, Pytree)):
            return self._reader.fail(path, f"{entry['class']:.80} is not a class of models")
        if not cls._pytree__info.is_complete:
            prepare(cls._pytree__info)
        return blank_maker(cls)(cls)

    def _fill(self, made: Any, entry: dict[str, Json], path: Path) -> None:
        if isinstance(made, Variable):
            set_raw(made, self._form(entry["value"], path, len(path)))
        elif isinstance(made, Pytree):
            self._fill_node(made, entry, path)
        elif made is MISSING:
            for name, form in entry.get("attributes", {}).items():  # which may name more classes that are missing
                self._form(form, (*path, name))

    def _fill_node(self, node: Any, entry: dict[str, Json], path: Path) -> None:
        cls = type(node)
        values: dict[Any, Any] = {}
        statuses: dict[Any, Status] = {}
        elements = {int(index): form for index, form in entry.get("elements", {}).items()}
        moves = renames_of(cls)
        fields = getattr(cls, "__dataclass_fields__", {})
        for name, form in {**elements, **entry["attributes"]}.items():
            place = (*path, name)
            value = self._form(form, place)
            name = moves.get(name, name)
            if isinstance(name, str) and fields and name not in fields and name not in entry.get("added", ()):
                fix = f"renamed_from={name!r} for the field that has its place, or into="
                self.problems.append(Problem(place, f"{type_name(cls)} has no such field any more", fix=fix))
            if isinstance(name, str) and not is_allowed(cls, name):
                self._reader.fail(place, f"{type_name(cls)} has no such attribute, or a method of this name")
            if value is MISSING:
                continue
            values[name] = value
            status = next((status for status in _STATIC if status.value in form), Status.DATA)
            statuses[name] = status
            if status is not Status.DATA and self._meanings.is_misfit(cls, name, value):
                self._reader.fail(place, f"{type_name(cls)}.{name} cannot be {describe(value)}")
        for name, value in self._defaults(cls, entry, moves, path).items():
            values[name] = value
            statuses[name] = Status.DATA if is_data(value) else static_status(value)
        vars(node).update(values)
        if cls._pytree__is_pytree:
            set_layout(node, Layout.of(cls, statuses))
        record = self._record(cls, entry.get("record"))
        if record is not None:
            vars(node)[RECORD_KEY] = record.seal(vars(node))

    def _defaults(self, cls: Any, entry: dict[str, Json], moves: Mapping[Any, str], path: Path) -> dict[str, Any]:
        """The fields that the class has gained since, with their defaults."""
        found: dict[str, Any] = {}
        known = {moves.get(name, name) for name in entry["attributes"]}
        for name, field in getattr(cls, "__dataclass_fields__", {}).items():
            if name in known or name in entry.get("absent", ()) or field._field_type is not _STORED:
                continue
            value = default_of(field)
            if value is MISSING or isinstance(value, Call) or hasattr(value, "_pytree__call"):
                fix = f"a default for {type_name(cls)}.{name}, or into="
                self._reader.problems.append(
                    Problem((*path, name), f"{type_name(cls)} has this field by now, without a default", fix=fix)
                )
            else:
                found[name] = value
        return found

    def _record(self, cls: type, form: Json) -> Record | None:
        if form is None:
            return None
        before = len(self.problems)
        arguments = {name: self._argument(value) for name, value in form.get("arguments", {}).items()}
        policy = self._reader.read(form["policy"], ()) if "policy" in form else NO_POLICY
        parts: dict[str, Any] = {**dict.fromkeys(form["parts"], NEW), **dict.fromkeys(form.get("assigned", ()))}
        if len(self.problems) > before or not isinstance(policy, Policy):  # without it, only `spec_of` has less to say
            del self.problems[before:]
            return None
        return Record(Call(cls, (), arguments), parts, policy)

    def _argument(self, form: Json) -> Any:
        if "data" in form:
            return MISSING
        if "value" in form:
            return self._reader.read(form["value"], ())
        owner = self._reader.find(form["part"], ())
        arguments = {name: self._argument(value) for name, value in form["arguments"].items()}
        return owner if owner is MISSING else part_at(owner, tuple(form["steps"]))(**arguments)

    def _form(self, form: Json, path: Path, depth: int | None = None) -> Any:
        """The value of a form: an object, a leaf, a static value, or a container of these."""
        if "object" in form:
            return self._made[form["object"]]
        if "leaf" in form:
            return self._leaf(path, form["leaf"], depth)
        for tag in _VALUES:
            if tag in form:
                return self._reader.read(form[tag], path)
        keys = [self._key(key) for key, _ in _children_of(form)]
        is_state = not path and "state" in form  # an item that is a State has its paths
        places = [key if is_state and isinstance(key, tuple) else (*path, key) for key in keys]
        children = [
            self._form(child, place, depth) for place, (_, child) in zip(places, _children_of(form), strict=True)
        ]
        if any(child is MISSING for child in children):
            return MISSING
        return self._container(form, keys, children, path)

    def _key(self, form: Json) -> Any:
        return self._reader.read(form, ())

    def _container(self, form: Json, keys: list[Any], children: list[Any], path: Path) -> Any:
        if "list" in form or "tuple" in form:
            return children if "list" in form else tuple(children)
        if "state" in form:
            return self._state(form, children, path)
        if "node" not in form:
            content = self._in_order(form, dict(zip(keys, children, strict=True)))
            if "defaultdict" in form:
                return defaultdict(self._reader.read(form["factory"], path), content)
            return OrderedDict(content) if "OrderedDict" in form else content
        cls = self._reader.find(form["node"], path)
        if cls is MISSING:
            return MISSING
        if issubclass(cls, tuple) and getattr(cls, "_fields", None) == tuple(keys):
            return tuple.__new__(cls, children)
        auxiliary = self._reader.read(form["auxiliary"], path) if "auxiliary" in form else None
        try:
            return _jax.unflatten_one(cls, auxiliary, children)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return self._reader.fail(path, f"{form['node']:.80} cannot be made: {error}"[:200])

    def _in_order(self, form: Json, content: dict[Any, Any]) -> dict[Any, Any]:
        """A dict in the order that it had, which is not that of the graph."""
        written = form.get("dict") or form.get("defaultdict") or ()
        return {key: content[key] for key in [self._key(key) for key, _ in written]} or content

    def _state(self, form: Json, children: list[Any], path: Path) -> Any:
        rows = [(tuple(self._reader.read(keys, path)), leaf_def) for keys, leaf_def in form["state"]]
        by_path = {
            keys: self._reader.variable(leaf_def, child, path)
            for (keys, leaf_def), child in zip(rows, children, strict=True)
        }
        return State.from_flat_path(by_path.items())


def statics_by_path(structure: Json) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """The path and the name of the class of each node, and its static numbers and texts."""
    for index, path in _paths_of(structure["root"], structure["objects"]).items():
        entry = structure["objects"][index]
        if "class" in entry:
            forms = {name: form[tag] for name, form in entry["attributes"].items() for tag in _VALUES & form.keys()}
            plain = {name: form for name, form in forms.items() if not isinstance(form, (list, dict))}
            yield path, entry["class"].rpartition(".")[2], plain


class _Meanings(dict[tuple[type, Any], "Meaning | None"]):
    """The meanings of the annotations of fields, each read once; None for an attribute that is none."""

    def __missing__(self, key: tuple[Any, Any]) -> Meaning | None:
        cls, name = key
        owner = next((base for base in cls.__mro__ if name in own_annotations(base)), None)
        found = None
        if owner is not None and name in info_of(cls).specs:
            bindings = bindings_of(cls).get(owner, {})
            found = meaning_of(own_annotations(owner)[name], AnnotationScope(owner), bindings)
        self[key] = found
        return found

    def is_misfit(self, cls: Any, name: Any, value: Any) -> bool:
        """Whether a static value is surely not one of its field."""
        meaning = self[cls, name]
        return meaning is not None and misfit_of(value, meaning) is not None


def renames_of(cls: Any) -> dict[Any, str]:
    """The current name of each field that had another one (``renamed_from``), by the old one."""
    specs = info_of(cls).specs
    found = {spec.notes.get("renamed_from"): name for name, spec in specs.items()}
    return {old: new for old, new in found.items() if old is not None and old not in specs}


def _children_of(form: Json) -> list[tuple[Json, Json]]:
    """The keys of a container, as forms, and its children, in the order of the graph."""
    for tag in ("list", "tuple"):
        if tag in form:
            return list(enumerate(form[tag]))
    for tag in ("dict", "defaultdict"):
        if tag in form:
            pairs = [(key, child) for key, child in form[tag]]
            keys = [key for key, _ in pairs]
            is_text = all(isinstance(key, str) for key in keys) or (
                are_sortable(keys) and not any(isinstance(k, dict) for k in keys)
            )
            return sorted(pairs, key=lambda pair: pair[0]) if is_text else pairs
    keys = form["OrderedDict"] if "OrderedDict" in form else form["keys"]
    return list(zip(keys, form["children"], strict=True))


def _paths_of(root: Json, entries: list[dict[str, Json]]) -> dict[int, Path]:
    """The first path of each object that the root leads to, in the order of the graph."""
    paths: dict[int, Path] = {}
    places = dict(enumerate(entries))  # of which a negative number is none
    stack: list[tuple[Json, Path]] = [(root, ())]
    reader = Reader(Names())
    while stack:
        form, path = stack.pop()
        if not _VALUES.isdisjoint(form) or "leaf" in form:
            continue
        if "object" not in form:
            children = _children_of(form)
            stack += [(child, (*path, reader.read(key, ()))) for key, child in reversed(children)]
            continue
        index = form["object"]
        if index in paths:
            continue
        entry = places[index]
        paths[index] = path
        if "class" in entry:
            elements = sorted((int(name), child) for name, child in entry.get("elements", {}).items())
            attributes = sorted(entry["attributes"].items())
            stack += [(child, (*path, name)) for name, child in reversed([*elements, *attributes])]
    return paths
