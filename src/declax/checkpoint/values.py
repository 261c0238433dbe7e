"""Static values as JSON, and back.

Numbers, texts, lists and None are as in JSON. Every other value is a table with one key that says what it is:
``{"tuple": [...]}``, ``{"dtype": "float32"}``, ``{"name": "jax.nn.relu"}``, ``{"object": "declax.Policy", ...}``.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import pathlib
import types
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from declax._classes.defaults import default_maker
from declax._classes.pytree import Pytree
from declax._fields.snapshots import Frozen, attributes_of, thaw
from declax._graph.flattening import GraphDef
from declax._graph.nodes import Link, link_of, path_of
from declax._jax import current_trace
from declax._state.definition import LeafDef
from declax._state.states import State
from declax._tree.attributes import class_attribute, is_behaviour, is_data_descriptor
from declax._typing import MISSING, Immutable, Path
from declax._variables.metadata import Metadata
from declax._variables.placement import context_mesh
from declax._variables.variable import Variable, new_variable
from declax.checkpoint.names import Names, is_local, is_of_user, name_of, policy_name
from declax.config import registry
from declax.config._data import SpecData
from declax.config._reading.readers import TEXTS, Text
from declax.config.registry import dtype_name
from declax.config.specs import Ref, Spec
from declax.errors import DeclaxError, describe, format_path, type_name
from declax.initializers import NamedInitializer
from declax.training._opt_state import OptLayout
from declax.training._transformation import StaticTransformation, Transformation, description_of, is_transformation

Json = Any
"""What JSON can hold."""

_ATOMS: Final = frozenset({bool, int, str, type(None)})
_SEQUENCES: Final[Mapping[str, type]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_SPELLED: Final[Mapping[str, type]] = {
    kind.__name__: kind
    for kind in (
        *(pathlib.Path, pathlib.PurePosixPath, pathlib.PureWindowsPath, uuid.UUID, decimal.Decimal),
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    )
}
"""The classes that configurations spell as texts, by the key of their forms."""

_MAX_DEPTH: Final = 64
"""How deep values are nested in a file."""


_NAMED_FUNCTION: Final = "a function of a module, registered by dx.register_kind, or given as extra= when it is loaded"
_NAMED_TRANSFORMATION: Final = """\
tx = dx.spec(optax.adam, 1e-3).build()        # has the name and the arguments of the call
       tx = dx.spec(make_tx, 1e-3).build()        # of a function of a module; and extra=[make_tx] for dx.load"""


class Problem(NamedTuple):
    """A value that a file cannot say, or that cannot be made of it; a class that is missing.

    Attributes:
      link: its path.
      reason: what is wrong.
      fix: what keeps it.
      missing: the name of the class or function that is not known, if that is the reason.
    """

    link: Link
    reason: str
    fix: str = ""
    missing: str = ""

    def below(self, link: Link) -> Problem:
        """The same of a value in another one."""
        return self._replace(link=link_of(path_of(self.link), link))

    def text(self, item: str) -> str:
        """In an error or a warning, with the name of the item."""
        return f"{format_path((item, *path_of(self.link)))}: {self.reason}"


class _UnnamedError(Exception):
    """A value has no form in a file."""


def _unnamed(target: Any, fix: str) -> _UnnamedError:
    """The error of a class or function without a name."""
    called = getattr(target, "__qualname__", "")
    what = f"the function {called}" if isinstance(target, types.FunctionType) else describe(target)
    maker, _, inner = called.rpartition(".<locals>.")
    if inner == "<lambda>":
        what = "a lambda"
    elif fix is _NAMED_FUNCTION and hasattr(target, "__wrapped__"):
        what = f"what a transform has made of {called}"
        fix = "the transform as a decorator: the name of the function is that of the result then"
    elif fix is _NAMED_FUNCTION and maker and "<" not in maker:
        package = str(target.__module__).partition(".")[0]
        maker = maker if is_of_user(target) else f"{package.replace('declax', 'dx')}.{maker}"
        fix += f";\n       in the Spec of a transformation: dx.spec({maker}, ...) for {maker}(...)"
    return _UnnamedError(f"{what} has no name in files", fix)


# --- to JSON ----------------------------------------------------------------------------


class Writer:
    """Writes static values.

    Attributes:
      problems: the values that have no form in a file; ``{"unnamed": description}`` stands for them.
      local: the classes that were defined in functions: their paths and names.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.local: list[tuple[Link, str]] = []

    def write(self, value: Any, link: Link, depth: int = 0) -> Json:
        """The form of a value at a path."""
        cls = type(value)
        if cls in _ATOMS:
            return value
        if cls is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        try:
            if depth == _MAX_DEPTH:
                raise _UnnamedError("it is nested too deeply")
            return self._form(thaw(value) if isinstance(value, Frozen) else value, link, depth + 1)
        except _UnnamedError as error:
            self.problems.append(Problem(link, *error.args))
            return {"unnamed": error.args[0]}

    def _items(self, values: Iterable[Any], link: Link, depth: int) -> list[Json]:
        return [self.write(value, (link, index), depth) for index, value in enumerate(values)]

    def _named(self, values: Mapping[Any, Any], link: Link, depth: int) -> dict[str, Json]:
        return {str(name): self.write(value, (link, name), depth) for name, value in values.items()}

    def _pairs(self, values: Mapping[Any, Any], link: Link, depth: int) -> list[list[Json]]:
        return [[self.write(key, link, depth), self.write(value, (link, key), depth)] for key, value in values.items()]

    def name_at(self, target: Any, link: Link) -> str:
        """The name of a class or function at a path; that for people, with a problem, if it has none."""
        try:
            return self._name(target, link)
        except _UnnamedError as error:
            self.problems.append(Problem(link, *error.args))
            return type_name(target) if isinstance(target, type) else describe(target)

    def _name(self, target: Any, link: Link, fix: str = _NAMED_FUNCTION) -> str:
        name = name_of(target)
        if name is None:
            raise _unnamed(target, fix)
        if is_local(name):
            self.local.append((link, name))
        return name

    def _form(self, value: Any, link: Link, depth: int) -> Json:
        cls = type(value)
        if cls is list:
            return self._items(value, link, depth)
        for tag, kind in _SEQUENCES.items():
            if cls is kind:
                ordered = sorted(value, key=repr) if kind in (set, frozenset) else value
                return {
                    tag: self._items(ordered, link, depth),
                    **({} if kind is not deque else {"maxlen": value.maxlen}),
                }
        if cls in (dict, OrderedDict):
            return {"dict" if cls is dict else "OrderedDict": self._pairs(value, link, depth)}
        if cls is defaultdict:
            return {
                "defaultdict": self._pairs(value, link, depth),
                "factory": self.write(value.default_factory, link, depth),
            }
        scalar = _scalar_form(value) or _array_form(value)
        if scalar is not None:
            return scalar
        if isinstance(value, enum.Enum) and value.name in cls.__members__:
            return {"enum": self._name(cls, link), "member": value.name}
        if isinstance(value, functools.partial):
            function = self.write(value.func, link, depth)
            arguments = self._items(value.args, link, depth), self._named(value.keywords, link, depth)
            return {"partial": function, "args": arguments[0], "kwargs": arguments[1]}
        if isinstance(value, Ref):
            return {"ref": value.path}
        if isinstance(value, SpecData):
            name = self._name(value.target, link, _NAMED_TRANSFORMATION)
            return {"call": name, "arguments": self._named(value.arguments, link, depth)}
        if isinstance(value, PartitionSpec):
            return {"partition": self._items(value, link, depth)}
        if isinstance(value, (Mesh, AbstractMesh)):
            axes = zip(value.shape.items(), value.axis_types, strict=True)
            return {"mesh": [[name, size, kind.name] for (name, size), kind in axes]}
        if isinstance(value, NamedSharding):  # of its mesh, a file keeps the names of axes
            return {"sharding": self._items(value.spec, link, depth)}
        if isinstance(value, State):
            return {"state": self.state(value, link, depth)}
        if isinstance(value, GraphDef):
            if value.base or value.outer is not None:
                raise _UnnamedError("a GraphDef that refers to objects of another graph has no form in files")
            return {"graphdef": self.graphdef(value, link)}
        if isinstance(value, NamedInitializer):
            return {"initializer": value.name, "arguments": self._named(value.arguments, link, depth)}
        return self._object(value, link, depth)

    def _object(self, value: Any, link: Link, depth: int) -> Json:
        """The form of an object of a class, or of a class or function itself."""
        cls = type(value)
        if isinstance(value, (Pytree, Variable)):
            raise _UnnamedError(f"{describe(value)} is static", "a part of the model, as data")
        if is_of_optax(value):
            return {"transformation": self.write(_description_of(value), link, depth)}
        if isinstance(value, tuple) and hasattr(cls, "_fields"):
            return {
                "object": self._name(cls, link),
                "items": self._items(value, link, depth),
                "fields": list(cls._fields),
            }
        parts = None if policy_name(value) else parts_of(value)
        if parts is not None:
            return {"object": self._name(cls, link), "attributes": self._named(parts, link, depth)}
        if callable(value) or isinstance(value, type):
            return {"name": self._name(value, link)}
        raise _UnnamedError(
            f"{describe(value)} has no form in files", "a dataclass, a number, a text or a named function"
        )

    def graphdef(self, graphdef: GraphDef[Any], link: Link) -> Json:
        """The form of a GraphDef, where there is one."""
        raise _UnnamedError("a GraphDef is an argument of a constructor")

    def state(self, state: State[Any], link: Link, depth: int = 0) -> list[Json]:
        """The paths of a State, each with its kind, metadata and value."""
        entries = zip(state.definition.paths, state.definition.leaf_defs, state.leaves, strict=True)
        return [
            [self._items(keys, link, depth), self.leaf_def(leaf_def, link), self.write(leaf, (link, keys), depth)]
            for keys, leaf_def, leaf in entries
        ]

    def leaf_def(self, leaf_def: LeafDef, link: Link) -> Json:
        """The kind and the metadata of a Variable; None for a leaf that is in none."""
        if leaf_def is None:
            return None
        kind, metadata = leaf_def
        name = self.name_at(kind, link)
        return [name, self._named(metadata, link, 0)]


def parts_of(value: Any) -> Mapping[str, Any] | None:
    """The parts by which an object of a class is made again without its constructor; None for other objects."""
    if isinstance(value, StaticTransformation):
        return {"description": _description_of(value.tx)}
    if isinstance(value, OptLayout):
        return value.description
    if isinstance(value, Immutable):
        return vars(value)
    return attributes_of(value)


def is_of_optax(value: Any) -> TypeGuard[Transformation]:
    """Whether a value is a transformation of optax, or was built from a Spec as one."""
    if isinstance(value, type) or not is_transformation(value):
        return False
    return type(value).__module__.startswith("optax.") or description_of(value) is not None


def _description_of(tx: Transformation) -> Any:
    """The Spec that a transformation was built from."""
    description = description_of(tx)
    if description is None:
        raise _UnnamedError("a transformation of closures has no name in files", _NAMED_TRANSFORMATION)
    return description


def _array_form(value: Any) -> Json:
    """The form of a dtype, number or array of numpy; None for other values."""
    if isinstance(value, np.dtype) and value.names is None:
        return {"dtype": value.str if dtype_name(value) is None else value.name}
    array: Any = value
    is_array = type(array) is np.ndarray and not array.dtype.hasobject
    if is_array or (isinstance(array, np.generic) and not isinstance(array, np.void)):
        return {"array": [str(array.dtype), list(array.shape) if is_array else None, _bytes_text(array.tobytes())]}
    return None


def _scalar_form(value: Any) -> Json:
    """The form of a constant of Python; None for other values."""
    cls: Any = type(value)
    if cls is complex:
        return {"complex": repr(value)}
    if cls is bytes:
        return {"bytes": _bytes_text(value)}
    if value is Ellipsis:
        return {"ellipsis": True}
    if cls in (slice, range):
        return {cls.__name__: [value.start, value.stop, value.step]}
    kind: type = pathlib.Path if isinstance(value, pathlib.Path) else cls  # of this system or another
    if _SPELLED.get(kind.__name__) is kind:
        return {kind.__name__: _text_of(kind).write(value)}
    return None


def _text_of(kind: type) -> Text:
    """How configurations spell the values of a class."""
    return next(text for cls, text in TEXTS.items() if issubclass(kind, cls))


def _bytes_text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


# --- from JSON --------------------------------------------------------------------------


class Reader:
    """Makes static values of their forms. It runs no constructor of a class that a file names.

    Attributes:
      problems: what could not be made; `MISSING` stands for it.
    """

    def __init__(self, names: Names, mesh: Mesh | None = None) -> None:
        self._names = names
        self._mesh = mesh
        self.problems: list[Problem] = []

    def find(self, name: Any, link: Link) -> Any:
        """The class or function of a name; MISSING if it is not known."""
        found = self._names.find(name) if isinstance(name, str) else MISSING
        if found is MISSING:
            reason = "a class or function that this process does not know, or that is not among extra="
            self.problems.append(Problem(link, reason, missing=str(name)[:200]))
        return found

    def fail(self, link: Link, reason: str) -> Any:
        """Notes a problem; returns MISSING."""
        self.problems.append(Problem(link, reason))
        return MISSING

    def read(self, form: Json, link: Link) -> Any:
        """The value of a form; MISSING, with a problem, if it has none."""
        cls = type(form)
        if cls in _ATOMS or cls is float:
            return form
        if cls is list:
            return self._all(list, [self.read(item, (link, index)) for index, item in enumerate(form)])
        if cls is not dict or not form:
            return self.fail(link, "this is not the form of a value")
        tag = next(iter(form))
        read = _READERS.get(tag)
        try:
            if read is None:
                return self.fail(link, f"a newer version of declax wrote a value of the form {tag!r:.40}")
            return read(self, form, link)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, DeclaxError) as error:
            return self.fail(link, f"this is not the form of a value: {type(error).__name__}: {error}"[:200])

    def _all(self, make: Callable[[list[Any]], Any], items: list[Any]) -> Any:
        """What a function makes of items; MISSING if one of them is."""
        return MISSING if any(item is MISSING for item in items) else make(items)

    def items(self, forms: list[Json], link: Link) -> list[Any]:
        """The values of forms."""
        return [self.read(form, (link, index)) for index, form in enumerate(forms)]

    def _sequence(self, form: Json, link: Link) -> Any:
        tag = next(iter(form))
        items = self.items(form[tag], link)
        return self._all(lambda made: deque(made, form["maxlen"]) if tag == "deque" else _SEQUENCES[tag](made), items)

    def _mapping(self, form: Json, link: Link) -> Any:
        tag = next(iter(form))
        pairs = [(self.read(key, link), self.read(value, link)) for key, value in form[tag]]
        if any(MISSING in pair for pair in map(_by_identity, pairs)):
            return MISSING
        if tag == "defaultdict":
            return defaultdict(self.read(form["factory"], link), pairs)
        return dict(pairs) if tag == "dict" else OrderedDict(pairs)

    def named(self, forms: Mapping[str, Json], link: Link) -> dict[str, Any]:
        """The values of forms by name."""
        return {name: self.read(form, (link, name)) for name, form in forms.items()}

    def _array(self, form: Json, link: Link) -> Any:
        dtype, shape, content = form["array"]
        array = np.frombuffer(base64.b64decode(content), np.dtype(dtype))
        return array[0] if shape is None else array.reshape(shape).copy()

    def _spelled(self, form: Json, link: Link) -> Any:
        ((tag, text),) = form.items()
        kind = _SPELLED[tag]
        made = _text_of(kind).read(kind, text) if isinstance(text, str) else None
        return self.fail(link, f"{text!r:.40} is not {_text_of(kind).noun}") if made is None else made

    def _enum(self, form: Json, link: Link) -> Any:
        cls = self.find(form["enum"], link)
        if cls is MISSING or not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
            return MISSING if cls is MISSING else self.fail(link, f"{form['enum']} is not an enum")
        found = cls.__members__.get(form["member"])
        return self.fail(link, f"{type_name(cls)} has no member {form['member']!r:.40}") if found is None else found

    def _name(self, form: Json, link: Link) -> Any:
        return self.find(form["name"], link)

    def _partial(self, form: Json, link: Link) -> Any:
        function: Any = self.read(form["partial"], link)
        args = self.items(form["args"], link)
        kwargs = self.named(form["kwargs"], link)
        if function is not MISSING and not callable(function):
            return self.fail(link, "a partial holds no function")
        values = [function, *args, *kwargs.values()]
        return self._all(lambda made: functools.partial(made[0], *args, **kwargs), values)

    def _call(self, form: Json, link: Link) -> Any:
        target, arguments = self.find(form["call"], link), self.named(form["arguments"], link)
        values = [target, *arguments.values()]
        return self._all(lambda _: Spec.of_values(target, arguments), values)

    def _initializer(self, form: Json, link: Link) -> Any:
        factory = registry.INITIALIZERS[form["initializer"]]
        arguments = self.named(form["arguments"], link)
        if isinstance(factory, NamedInitializer):
            return factory
        return self._all(lambda _: factory(**arguments), [*arguments.values()])

    def _of_mesh(self, form: Json, link: Link) -> Any:
        """The mesh of the load, or else the one around it, if it has the axes; an abstract one if there is none."""
        names, sizes, *kinds = zip(*form["mesh"], strict=True)  # older files have no kinds
        mesh = self._mesh or context_mesh()
        if isinstance(mesh, Mesh) and mesh.axis_names == names:
            return mesh
        types = tuple([AxisType[kind] for kind in kinds[0]]) if kinds else None
        return AbstractMesh(tuple(map(int, sizes)), names, axis_types=types)

    def _sharding(self, form: Json, link: Link) -> Any:
        def make(axes: list[Any]) -> Any:
            mesh = self._mesh or context_mesh()
            spec = _partition(axes)
            names = {
                name for axis in axes for name in (axis if isinstance(axis, tuple) else (axis,)) if name is not None
            }
            return NamedSharding(mesh, spec) if isinstance(mesh, Mesh) and names <= {*mesh.axis_names} else spec

        return self._all(make, self.items(form["sharding"], link))

    def graphdef(self, structure: Json, link: Link) -> Any:
        """The GraphDef of a form, where there is one."""
        return self.fail(link, "no GraphDef belongs here")

    def state(self, entries: list[Json], link: Link) -> Any:
        """A State of its paths, kinds and values."""
        pairs: list[tuple[Path, Any]] = []
        for keys, leaf_def, form in entries:
            found, value = tuple(self.items(keys, link)), self.read(form, link)
            pairs.append((found, self.variable(leaf_def, value, (link, found))))
        return self._all(lambda _: State.from_flat_path(pairs), [value for _, value in pairs])

    def variable(self, form: Json, value: Any, link: Link) -> Any:
        """A Variable of a kind with metadata around a value; the value itself if there is no kind."""
        if form is None or value is MISSING:
            return value
        found = self.leaf_def(form, link)
        return MISSING if found is None else _new_variable(found[0], value, found[1])

    def leaf_def(self, form: Json, link: Link) -> LeafDef:
        """The kind and the metadata of a Variable; None, with a problem, if they cannot be made."""
        name, metadata = form
        kind, content = self.find(name, link), self.named(metadata, link)
        if kind is MISSING or MISSING in _by_identity(content.values()):
            return None
        if not (isinstance(kind, type) and issubclass(kind, Variable)):
            self.fail(link, f"{name:.80} is not a kind of Variables")
            return None
        return kind, Metadata.of(content)

    def _object(self, form: Json, link: Link) -> Any:
        cls: Any = self.find(form["object"], link)
        if "items" in form:
            return self._named_tuple(cls, self.items(form["items"], link), form["fields"], link)
        parts = self.named(form["attributes"], link)
        if cls is MISSING or MISSING in _by_identity(parts.values()):
            return MISSING
        if cls is StaticTransformation:
            built = self._built(parts["description"], link)
            return built if built is MISSING else StaticTransformation(built)
        if cls is OptLayout:
            return OptLayout(**parts)
        return self._record(cls, parts, link)

    def _built(self, spec: Any, link: Link) -> Any:
        """The transformation of a Spec."""
        if spec is MISSING:
            return MISSING
        if isinstance(spec, Spec) and self._may_call(spec):
            return spec.build()
        return self.fail(link, "this calls a function that is not of optax, given as extra=, or registered")

    def _may_call(self, value: Any) -> bool:
        """Whether a Spec calls only functions that make transformations: a file must not run others."""
        if isinstance(value, SpecData):
            return self._names.may_call(value.target) and all(map(self._may_call, value.arguments.values()))
        if isinstance(value, types.FunctionType) and is_of_user(value):  # a mask, which the transformation calls
            return self._names.is_given(value)
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, Sequence) else ()
        return isinstance(value, (str, bytes)) or all(map(self._may_call, items))

    def _named_tuple(self, cls: Any, items: list[Any], fields: list[str], link: Link) -> Any:
        if cls is MISSING or MISSING in _by_identity(items):
            return MISSING
        if not (issubclass(cls, tuple) and list(getattr(cls, "_fields", ())) == fields and len(fields) == len(items)):
            return self.fail(link, f"{type_name(cls)} has other fields")
        return tuple.__new__(cls, items)

    def _record(self, cls: Any, parts: dict[str, Any], link: Link) -> Any:
        """An object of a dataclass, or of an immutable class of declax, with defaults for fields that are new."""
        is_dataclass = hasattr(cls, "__dataclass_fields__")
        fields = {field.name: field for field in (dataclasses.fields(cls) if is_dataclass else ())}
        if not (is_dataclass or issubclass(cls, Immutable)) or issubclass(cls, (Pytree, Variable)):
            return self.fail(link, f"{type_name(cls)} is not a class of values")
        for name in parts:
            held = class_attribute(cls, name)
            is_hidden = name not in fields if is_dataclass else is_behaviour(held) or is_data_descriptor(cls, name)
            if name.startswith("__") or is_hidden:
                return self.fail(link, f"{type_name(cls)} has no attribute {name!r:.40}")
        makers = {name: default_maker(field) for name, field in fields.items() if name not in parts}
        missing = next((name for name, make in makers.items() if make is None), None)
        if missing is not None:
            return self.fail(link, f"{type_name(cls)}.{missing} is a field by now, without a default")
        made = object.__new__(cls)
        for name, value in (parts | {name: make() for name, make in makers.items() if make}).items():
            object.__setattr__(made, name, value)
        return made


def _new_variable(kind: Any, value: Any, metadata: Metadata) -> Any:
    return new_variable(kind, value, metadata, current_trace())


def _partition(axes: Iterable[Any]) -> PartitionSpec:
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]  # of JAX


def _by_identity(values: Iterable[Any]) -> Iterator[Any]:
    """MISSING for each value that is it, and None for others, whose ``==`` may be anything."""
    return (MISSING if value is MISSING else None for value in values)


_READERS: Final[Mapping[str, Callable[[Reader, Json, Link], Any]]] = {
    **dict.fromkeys(_SEQUENCES, Reader._sequence),
    **dict.fromkeys(("dict", "OrderedDict", "defaultdict"), Reader._mapping),
    "float": lambda _, form, __: float(form["float"]),
    "complex": lambda _, form, __: complex(form["complex"]),
    "bytes": lambda _, form, __: base64.b64decode(form["bytes"]),
    "ellipsis": lambda _, __, ___: Ellipsis,
    "slice": lambda _, form, __: slice(*form["slice"]),
    "range": lambda _, form, __: range(*form["range"]),
    **dict.fromkeys(_SPELLED, Reader._spelled),
    "dtype": lambda _, form, __: np.dtype(form["dtype"]),
    "array": Reader._array,
    "enum": Reader._enum,
    "name": Reader._name,
    "partial": Reader._partial,
    "ref": lambda _, form, __: Ref(form["ref"]),
    "call": Reader._call,
    "partition": lambda self, form, link: self._all(_partition, self.items(form["partition"], link)),
    "mesh": Reader._of_mesh,
    "sharding": Reader._sharding,
    "state": lambda self, form, link: self.state(form["state"], link),
    "graphdef": lambda self, form, link: self.graphdef(form["graphdef"], link),
    "initializer": Reader._initializer,
    "object": Reader._object,
    "transformation": lambda self, form, link: self._built(self.read(form["transformation"], link), link),
    "unnamed": lambda self, form, link: self.fail(link, f"{form['unnamed']}, so that the file does not have it"),
}
