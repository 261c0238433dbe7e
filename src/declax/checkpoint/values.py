"""Static values as JSON, and back.

Numbers, texts, lists and None are as in JSON. Every other value is a table with one key that says what it is:
``{"tuple": [...]}``, ``{"dtype": "float32"}``, ``{"name": "jax.nn.relu"}``, ``{"object": "declax.Policy", ...}``.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from declax._classes.pytree import Pytree
from declax._fields.snapshots import Frozen, attributes_of, thaw
from declax._jax import current_trace
from declax._state.definition import LeafDef
from declax._state.states import State
from declax._typing import MISSING, Immutable, Path
from declax._variables.metadata import Metadata
from declax._variables.placement import context_mesh
from declax._variables.variable import Variable, new_variable
from declax.checkpoint.names import Names, is_local, name_of
from declax.config import registry
from declax.config._data import SpecData
from declax.config.registry import dtype_name
from declax.config.specs import Ref, Spec
from declax.errors import DeclaxError, describe, type_name
from declax.initializers import NamedInitializer
from declax.training._opt_state import OptLayout
from declax.training._transformation import StaticTransformation

Json = Any
"""What JSON can hold."""

_ATOMS: Final = frozenset({bool, int, str, type(None)})
_SEQUENCES: Final[Mapping[str, type]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_MAX_DEPTH: Final = 64
"""How deep values are nested in a file."""


class Problem(NamedTuple):
    """A value that a file cannot say, or that cannot be made of it; a class that is missing.

    Attributes:
      path: the keys that lead to it.
      reason: what is wrong.
      fix: what keeps it.
      missing: the name of the class or function that is not known, if that is the reason.
    """

    path: Path
    reason: str
    fix: str = ""
    missing: str = ""


class _UnnamedError(Exception):
    """A value has no form in a file."""


# --- to JSON ----------------------------------------------------------------------------


class Writer:
    """Writes static values.

    Attributes:
      problems: the values that have no form in a file; ``{"unnamed": description}`` stands for them.
      local: the paths of classes that were defined in functions, with their names.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.local: dict[Path, str] = {}

    def write(self, value: Any, path: Path, depth: int = 0) -> Json:
        """The form of a value at a path."""
        cls = type(value)
        if cls in _ATOMS:
            return value
        if cls is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        try:
            if depth == _MAX_DEPTH:
                raise _UnnamedError("it is nested too deeply")
            return self._form(thaw(value) if isinstance(value, Frozen) else value, path, depth + 1)
        except _UnnamedError as error:
            reason, fix = error.args if len(error.args) == 2 else (error.args[0], "")
            self.problems.append(Problem(path, str(reason), fix=fix))
            return {"unnamed": reason}

    def _items(self, values: Iterable[Any], path: Path, depth: int) -> list[Json]:
        return [self.write(value, (*path, index), depth) for index, value in enumerate(values)]

    def _named(self, values: Mapping[Any, Any], path: Path, depth: int) -> dict[str, Json]:
        return {str(name): self.write(value, (*path, name), depth) for name, value in values.items()}

    def _pairs(self, values: Mapping[Any, Any], path: Path, depth: int) -> list[list[Json]]:
        return [[self.write(key, path, depth), self.write(value, (*path, key), depth)] for key, value in values.items()]

    def name_at(self, target: Any, path: Path) -> str:
        """The name of a class or function at a path; that for people, with a problem, if it has none."""
        try:
            return self._name(target, path)
        except _UnnamedError as error:
            self.problems.append(Problem(path, *map(str, error.args)))
            return type_name(target) if isinstance(target, type) else describe(target)

    def _name(self, target: Any, path: Path) -> str:
        name = name_of(target)
        if name is None:
            what = "a lambda" if getattr(target, "__name__", "") == "<lambda>" else describe(target)
            fix = "a function of a module, registered by dx.register_kind, or given as extra= when it is loaded"
            raise _UnnamedError(f"{what} has no name in files", fix)
        if is_local(name):
            self.local[path] = name
        return name

    def _form(self, value: Any, path: Path, depth: int) -> Json:
        cls = type(value)
        if cls is list:
            return self._items(value, path, depth)
        for tag, kind in _SEQUENCES.items():
            if cls is kind:
                ordered = sorted(value, key=repr) if kind in (set, frozenset) else value
                return {
                    tag: self._items(ordered, path, depth),
                    **({} if kind is not deque else {"maxlen": value.maxlen}),
                }
        if cls in (dict, OrderedDict):
            return {"dict" if cls is dict else "OrderedDict": self._pairs(value, path, depth)}
        if cls is defaultdict:
            return {
                "defaultdict": self._pairs(value, path, depth),
                "factory": self.write(value.default_factory, path, depth),
            }
        scalar = _scalar_form(value) or _array_form(value)
        if scalar is not None:
            return scalar
        if isinstance(value, enum.Enum) and value.name in cls.__members__:
            return {"enum": self._name(cls, path), "member": value.name}
        if isinstance(value, functools.partial):
            function = self.write(value.func, path, depth)
            arguments = self._items(value.args, path, depth), self._named(value.keywords, path, depth)
            return {"partial": function, "args": arguments[0], "kwargs": arguments[1]}
        if isinstance(value, Ref):
            return {"ref": value.path}
        if isinstance(value, SpecData):
            return {"call": self._name(value.target, path), "arguments": self._named(value.arguments, path, depth)}
        if isinstance(value, PartitionSpec):
            return {"partition": self._items(value, path, depth)}
        if isinstance(value, (Mesh, AbstractMesh)):
            return {"mesh": [[name, size] for name, size in value.shape.items()]}
        if isinstance(value, NamedSharding):  # of its mesh, a file keeps the names of axes
            return {"sharding": self._items(value.spec, path, depth)}
        if isinstance(value, State):
            return {"state": self.state(value, path, depth)}
        if isinstance(value, NamedInitializer):
            return {"initializer": value.name, "arguments": self._named(value.arguments, path, depth)}
        return self._object(value, path, depth)

    def _object(self, value: Any, path: Path, depth: int) -> Json:
        """The form of an object of a class, or of a class or function itself."""
        cls = type(value)
        if isinstance(value, (Pytree, Variable)):
            raise _UnnamedError(f"{describe(value)} is static", "a part of the model, as data")
        if isinstance(value, tuple) and hasattr(cls, "_fields"):
            return {
                "object": self._name(cls, path),
                "items": self._items(value, path, depth),
                "fields": list(cls._fields),
            }
        parts = parts_of(value)
        if parts is not None:
            return {"object": self._name(cls, path), "attributes": self._named(parts, path, depth)}
        if callable(value) or isinstance(value, type):
            return {"name": self._name(value, path)}
        raise _UnnamedError(
            f"{describe(value)} has no form in files", "a dataclass, a number, a text or a named function"
        )

    def state(self, state: State[Any], path: Path, depth: int = 0) -> list[Json]:
        """The paths of a State, each with its kind, metadata and value."""
        entries = zip(state.definition.paths, state.definition.leaf_defs, state.leaves, strict=True)
        return [
            [self._items(keys, path, depth), self.leaf_def(leaf_def, path), self.write(leaf, (*path, *keys), depth)]
            for keys, leaf_def, leaf in entries
        ]

    def leaf_def(self, leaf_def: LeafDef, path: Path) -> Json:
        """The kind and the metadata of a Variable; None for a leaf that is in none."""
        if leaf_def is None:
            return None
        kind, metadata = leaf_def
        name = self.name_at(kind, path)
        return [name, self._named(metadata, path, 0)]


def parts_of(value: Any) -> Mapping[str, Any] | None:
    """The parts by which an object of a class is made again without its constructor; None for other objects."""
    if isinstance(value, StaticTransformation):
        if value.description is None:
            fix = "tx = dx.spec(optax.adam, 1e-3).build()        # has the name and the arguments of the call"
            raise _UnnamedError("a transformation of closures has no name in files", fix)
        return {"description": value.description}
    if isinstance(value, OptLayout):
        return {"tree": value.unflatten(range(len(value.sources))), "targets": value.targets}
    if isinstance(value, Immutable):
        return vars(value)
    return attributes_of(value)


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
    return None


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

    def find(self, name: Any, path: Path) -> Any:
        """The class or function of a name; MISSING if it is not known."""
        found = self._names.find(name) if isinstance(name, str) else MISSING
        if found is MISSING:
            reason = "a class or function that this process does not know, or that is not among extra="
            self.problems.append(Problem(path, reason, missing=str(name)[:200]))
        return found

    def fail(self, path: Path, reason: str) -> Any:
        """Notes a problem; returns MISSING."""
        self.problems.append(Problem(path, reason))
        return MISSING

    def read(self, form: Json, path: Path) -> Any:
        """The value of a form; MISSING, with a problem, if it has none."""
        cls = type(form)
        if cls in _ATOMS or cls is float:
            return form
        if cls is list:
            return self._all(list, [self.read(item, (*path, index)) for index, item in enumerate(form)])
        if cls is not dict or not form:
            return self.fail(path, "this is not the form of a value")
        tag = next(iter(form))
        read = _READERS.get(tag)
        try:
            if read is None:
                return self.fail(path, f"a newer version of declax wrote a value of the form {tag!r:.40}")
            return read(self, form, path)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, DeclaxError) as error:
            return self.fail(path, f"this is not the form of a value: {type(error).__name__}: {error}"[:200])

    def _all(self, make: Callable[[list[Any]], Any], items: list[Any]) -> Any:
        """What a function makes of items; MISSING if one of them is."""
        return MISSING if any(item is MISSING for item in items) else make(items)

    def items(self, forms: list[Json], path: Path) -> list[Any]:
        """The values of forms."""
        return [self.read(form, (*path, index)) for index, form in enumerate(forms)]

    def _sequence(self, form: Json, path: Path) -> Any:
        tag = next(iter(form))
        items = self.items(form[tag], path)
        return self._all(lambda made: deque(made, form["maxlen"]) if tag == "deque" else _SEQUENCES[tag](made), items)

    def _mapping(self, form: Json, path: Path) -> Any:
        tag = next(iter(form))
        pairs = [(self.read(key, path), self.read(value, path)) for key, value in form[tag]]
        if any(MISSING in pair for pair in map(_by_identity, pairs)):
            return MISSING
        if tag == "defaultdict":
            return defaultdict(self.read(form["factory"], path), pairs)
        return dict(pairs) if tag == "dict" else OrderedDict(pairs)

    def named(self, forms: Mapping[str, Json], path: Path) -> dict[str, Any]:
        """The values of forms by name."""
        return {name: self.read(form, (*path, name)) for name, form in forms.items()}

    def _array(self, form: Json, path: Path) -> Any:
        dtype, shape, content = form["array"]
        array = np.frombuffer(base64.b64decode(content), np.dtype(dtype))
        return array[0] if shape is None else array.reshape(shape).copy()

    def _enum(self, form: Json, path: Path) -> Any:
        cls = self.find(form["enum"], path)
        if cls is MISSING or not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
            return MISSING if cls is MISSING else self.fail(path, f"{form['enum']} is not an enum")
        found = cls.__members__.get(form["member"])
        return self.fail(path, f"{type_name(cls)} has no member {form['member']!r:.40}") if found is None else found

    def _name(self, form: Json, path: Path) -> Any:
        return self.find(form["name"], path)

    def _partial(self, form: Json, path: Path) -> Any:
        function: Any = self.read(form["partial"], path)
        args = self.items(form["args"], path)
        kwargs = self.named(form["kwargs"], path)
        if function is not MISSING and not callable(function):
            return self.fail(path, "a partial holds no function")
        values = [function, *args, *kwargs.values()]
        return self._all(lambda made: functools.partial(made[0], *args, **kwargs), values)

    def _call(self, form: Json, path: Path) -> Any:
        name, arguments = form["call"], self.named(form["arguments"], path)
        table = {f"optax.{key}": target for key, target in _optax_calls(name).items()}
        target = table[name] if name in table else self.find(name, path)
        values = [target, *arguments.values()]
        return self._all(lambda _: Spec.of_values(target, arguments), values)

    def _initializer(self, form: Json, path: Path) -> Any:
        factory = registry.INITIALIZERS[form["initializer"]]
        arguments = self.named(form["arguments"], path)
        if isinstance(factory, NamedInitializer):
            return factory
        return self._all(lambda _: factory(**arguments), [*arguments.values()])

    def _of_mesh(self, form: Json, path: Path) -> Any:
        """The mesh of the load, or else the one around it, if it has the axes; an abstract one if there is none."""
        names, sizes = tuple([name for name, _ in form["mesh"]]), tuple([int(size) for _, size in form["mesh"]])
        mesh = self._mesh or context_mesh()
        return mesh if isinstance(mesh, Mesh) and mesh.axis_names == names else AbstractMesh(sizes, names)

    def _sharding(self, form: Json, path: Path) -> Any:
        def make(axes: list[Any]) -> Any:
            mesh = self._mesh or context_mesh()
            spec = _partition(axes)
            names = {
                name for axis in axes for name in (axis if isinstance(axis, tuple) else (axis,)) if name is not None
            }
            return NamedSharding(mesh, spec) if isinstance(mesh, Mesh) and names <= {*mesh.axis_names} else spec

        return self._all(make, self.items(form["sharding"], path))

    def state(self, entries: list[Json], path: Path) -> Any:
        """A State of its paths, kinds and values."""
        pairs: list[tuple[Path, Any]] = []
        for keys, leaf_def, form in entries:
            found, value = tuple(self.items(keys, path)), self.read(form, path)
            pairs.append((found, self.variable(leaf_def, value, (*path, *found))))
        return self._all(lambda _: State.from_flat_path(pairs), [value for _, value in pairs])

    def variable(self, form: Json, value: Any, path: Path) -> Any:
        """A Variable of a kind with metadata around a value; the value itself if there is no kind."""
        if form is None or value is MISSING:
            return value
        found = self.leaf_def(form, path)
        return MISSING if found is None else _new_variable(found[0], value, found[1])

    def leaf_def(self, form: Json, path: Path) -> LeafDef:
        """The kind and the metadata of a Variable; None, with a problem, if they cannot be made."""
        name, metadata = form
        kind, content = self.find(name, path), self.named(metadata, path)
        if kind is MISSING or MISSING in _by_identity(content.values()):
            return None
        if not (isinstance(kind, type) and issubclass(kind, Variable)):
            self.fail(path, f"{name:.80} is not a kind of Variables")
            return None
        return kind, Metadata.of(content)

    def _object(self, form: Json, path: Path) -> Any:
        cls: Any = self.find(form["object"], path)
        if "items" in form:
            return self._named_tuple(cls, self.items(form["items"], path), form["fields"], path)
        parts = self.named(form["attributes"], path)
        if cls is MISSING or MISSING in _by_identity(parts.values()):
            return MISSING
        if cls is StaticTransformation:
            if not self._may_call(parts["description"]):
                return self.fail(path, "this calls a function that is not of optax, given as extra=, or registered")
            return StaticTransformation(parts["description"].build())
        if cls is OptLayout:
            return OptLayout(parts["tree"], parts["targets"])
        return self._record(cls, parts, path)

    def _may_call(self, value: Any) -> bool:
        """Whether a Spec calls only functions that make transformations: a file must not run others."""
        if isinstance(value, SpecData):
            return self._names.may_call(value.target) and all(map(self._may_call, value.arguments.values()))
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, Sequence) else ()
        return isinstance(value, (str, bytes)) or all(map(self._may_call, items))

    def _named_tuple(self, cls: Any, items: list[Any], fields: list[str], path: Path) -> Any:
        if cls is MISSING or MISSING in _by_identity(items):
            return MISSING
        if not (issubclass(cls, tuple) and list(getattr(cls, "_fields", ())) == fields and len(fields) == len(items)):
            return self.fail(path, f"{type_name(cls)} has other fields")
        return tuple.__new__(cls, items)

    def _record(self, cls: Any, parts: dict[str, Any], path: Path) -> Any:
        """An object of a dataclass, or of an immutable class of declax, with defaults for fields that are new."""
        is_dataclass = hasattr(cls, "__dataclass_fields__")
        fields = {field.name: field for field in (dataclasses.fields(cls) if is_dataclass else ())}
        if not (is_dataclass or issubclass(cls, Immutable)) or issubclass(cls, (Pytree, Variable)):
            return self.fail(path, f"{type_name(cls)} is not a class of values")
        for name in parts:
            if name.startswith("__") or (name not in fields if is_dataclass else hasattr(cls, name)):
                return self.fail(path, f"{type_name(cls)} has no attribute {name!r:.40}")
        values = {name: default_of(field) for name, field in fields.items()} | parts
        missing = next((name for name, value in values.items() if value is MISSING), None)
        if missing is not None:
            return self.fail(path, f"{type_name(cls)}.{missing} is a field by now, without a default")
        made = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(made, name, value)
        return made


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, made by its factory if it has one; MISSING if there is none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return MISSING if field.default is dataclasses.MISSING else field.default


def _new_variable(kind: Any, value: Any, metadata: Metadata) -> Any:
    return new_variable(kind, value, metadata, current_trace())


def _partition(axes: Iterable[Any]) -> PartitionSpec:
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]  # of JAX


def _optax_calls(name: str) -> Mapping[str, Any]:
    if not name.startswith("optax."):
        return {}
    return {**registry.transformations(), **registry.schedules()}


def _by_identity(values: Iterable[Any]) -> Iterator[Any]:
    """MISSING for each value that is it, and None for others, whose ``==`` may be anything."""
    return (MISSING if value is MISSING else None for value in values)


_READERS: Final[Mapping[str, Callable[[Reader, Json, Path], Any]]] = {
    **dict.fromkeys(_SEQUENCES, Reader._sequence),
    **dict.fromkeys(("dict", "OrderedDict", "defaultdict"), Reader._mapping),
    "float": lambda _, form, __: float(form["float"]),
    "complex": lambda _, form, __: complex(form["complex"]),
    "bytes": lambda _, form, __: base64.b64decode(form["bytes"]),
    "ellipsis": lambda _, __, ___: Ellipsis,
    "slice": lambda _, form, __: slice(*form["slice"]),
    "range": lambda _, form, __: range(*form["range"]),
    "dtype": lambda _, form, __: np.dtype(form["dtype"]),
    "array": Reader._array,
    "enum": Reader._enum,
    "name": Reader._name,
    "partial": Reader._partial,
    "ref": lambda _, form, __: Ref(form["ref"]),
    "call": Reader._call,
    "partition": lambda self, form, path: self._all(_partition, self.items(form["partition"], path)),
    "mesh": Reader._of_mesh,
    "sharding": Reader._sharding,
    "state": lambda self, form, path: self.state(form["state"], path),
    "initializer": Reader._initializer,
    "object": Reader._object,
    "unnamed": lambda self, form, path: self.fail(path, f"{form['unnamed']}, so that the file does not have it"),
}
