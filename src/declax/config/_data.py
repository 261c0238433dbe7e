"""A spec as data: a target, and those of its arguments that differ from their defaults, frozen."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import jax
import numpy as np
from jax.core import Tracer

from declax._classes.pytree import Pytree
from declax._fields.call import Call
from declax._fields.expressions import Expression
from declax._fields.interning import Shared
from declax._fields.overrides import DeclaredPart, override_of
from declax._fields.snapshots import FrozenDict as FrozenDict
from declax._fields.snapshots import FrozenList as FrozenList
from declax._fields.snapshots import FrozenSet as FrozenSet
from declax._fields.snapshots import portable
from declax._typing import MISSING, Replacing
from declax._variables.metadata import Metadata
from declax._variables.variable import Variable
from declax.config._reading.parameters import (
    RNGS,
    Parameter,
    Parameters,
    Target,
    is_dtype,
    parameters_of,
    plain_target,
    target_name,
)
from declax.config._supplied import Supplied
from declax.config.problems import Path, did_you_mean, path_text
from declax.errors import ConfigError, ConstructionError, DepthError, describe, type_name

if TYPE_CHECKING:
    from declax.config._reading.part_readers import CallReader
    from declax.config._reading.readers import Reader

MAX_DEPTH: Final = 100

_ATOMS: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})
_LISTS: Final = (list, tuple, FrozenList)
_DICTS: Final = (dict, FrozenDict, MappingProxyType, Metadata)


def key_like(frozen: FrozenDict[Any], key: str) -> str | int | None:
    """The key of a dict that a path spells: a string, or the int with these digits; None if it is missing."""
    if key in frozen:
        return key
    return next((known for known in frozen if type(known) is int and str(known) == key), None)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Ref(Replacing):
    """Refers to the object that is built at another place of the same spec.

    Two equal specs build two objects. To have one object in two places, write a spec in one and a Ref in the other.

    Args:
      path: a JSON pointer from the root of the spec that is built: ``/embed``, ``/blocks/0/mixer``.

    Raises:
      ConfigError: the path is not a JSON pointer.

    >>> import declax as dx
    >>> dx.Ref("/blocks/0").keys
    ('blocks', '0')
    """

    path: str
    keys: tuple[str, ...] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given: object = self.path
        if not isinstance(given, str) or not given.startswith("/") or given == "/":
            fix = "/" + given.strip("./").replace(".", "/") if isinstance(given, str) else "/"
            raise ConfigError(
                "Ref",
                "not a path to a part",
                expected="a path from the root, with a / before each name and index",
                got=describe(given),
                fix=f"dx.Ref({fix if len(fix) > 1 else '/embed'!r})",
            )
        keys = tuple(key.replace("~1", "/").replace("~0", "~") for key in given[1:].split("/"))
        object.__setattr__(self, "keys", keys)

    @classmethod
    def to(cls, path: Iterable[str | int]) -> Ref:
        """The Ref to a path of names and indices.

        >>> import declax as dx
        >>> dx.Ref.to(("blocks", 0))
        Ref('/blocks/0')
        """
        return cls("".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path))

    def __repr__(self) -> str:
        return f"Ref({self.path!r})"


class SpecData(Shared):
    """A call whose arguments are frozen and compared by value: the data of a `Spec`, without building or printing.

    Attributes:
      has_refs: whether it contains Refs.
      parameters: those of the target.
    """

    __slots__ = ("_call", "_depth", "_hash", "_keys", "has_refs", "parameters")

    _call: Call  # of the arguments that differ from their defaults, by name
    _keys: tuple[tuple[str, Hashable], ...]
    _depth: int
    _hash: int | None
    has_refs: bool
    parameters: Parameters
    public: ClassVar[type[SpecData]]  # `Spec`, whose module imports this one

    def __init__(self, target: Target, arguments: Mapping[str, object] = MappingProxyType({})) -> None:
        self._set(plain_target(target), arguments, is_read=False)

    @classmethod
    def of_values(cls, target: Target, arguments: Mapping[str, object]) -> Any:
        """A `Spec` of values that readers have converted; they are not converted again."""
        made = SpecData.public.__new__(SpecData.public)
        made._set(target, arguments, is_read=True)
        return made

    @classmethod
    def _reader(cls, target: Target) -> CallReader | None:
        """The reader of the arguments of a target; None if nothing converts them."""
        return None

    def _set(self, target: Target, arguments: Mapping[str, object], *, is_read: bool) -> None:
        parameters = parameters_of(target)
        call = self._reader(target)
        _check_names(parameters, arguments)
        kept: dict[str, Any] = {}
        keys = []
        freezing = _Freezing(parameters)
        ordered = [name for name in parameters.by_name if name in arguments]
        if len(ordered) < len(arguments):
            ordered += [name for name in arguments if name not in parameters.by_name]
        for name in ordered:
            parameter = parameters.get(name)
            reader = None if call is None else call.reader_of(name)
            value = arguments[name]
            if name == parameters.variadic:
                value = tuple(cast("Iterable[Any]", value))
            if type(value) not in _ATOMS:
                value = freezing.freeze(value, (name,))
            if not is_read and reader is not None:
                value = freezing.freeze(reader.interpret(value), (name,))
            if parameter is not None and "secret" in parameter.notes and not isinstance(value, (Supplied, NoneType)):
                value = Supplied(None, value, is_secret=True)
            key = key_of(value)
            if parameter is None or key != _default_key(parameter, reader):
                kept[name] = value
                keys.append((name, key))
        put = object.__setattr__
        put(self, "_call", Call(target, (), kept))
        put(self, "parameters", parameters)
        put(self, "_keys", tuple(keys))
        put(self, "_depth", freezing.depth + 1)
        put(self, "_hash", None)
        put(self, "has_refs", freezing.has_refs)

    @property
    def target(self) -> Target:
        target: Target = self._call.target
        return target

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments that differ from their defaults, by name, in the order of the parameters."""
        return MappingProxyType(self._call.kwargs)

    @property
    def full_arguments(self) -> Mapping[str, Any]:
        """All arguments, with defaults; omits defaults that a spec cannot hold, such as arrays."""
        full: dict[str, Any] = {}
        given, reader_of = self._call.kwargs, self.reader_of
        for parameter in self.parameters:
            if parameter.name in given:
                full[parameter.name] = given[parameter.name]
            elif not parameter.is_required:
                default = frozen_default(parameter, reader_of(parameter.name))
                if default is not MISSING:
                    full[parameter.name] = default
        full.update((name, value) for name, value in given.items() if name not in full)
        return MappingProxyType(full)

    @property
    def reader_of(self) -> Callable[[str], Reader | None]:
        """A function from the name of an argument to its reader, or None."""
        call = self._reader(self.target)
        return (lambda name: None) if call is None else call.reader_of

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(
            f"Spec of {target_name(self.target)}",
            f"a spec is immutable; {name!r} was set",
            fix=f"spec = spec.replace({name}=...)",
        )

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, SpecData):
            return NotImplemented
        if self._hash is not None and other._hash is not None and self._hash != other._hash:
            return False
        return bool(self.target == other.target) and self._keys == other._keys

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self.target, self._keys)))
        return self._hash  # type: ignore[return-value]  # set just now

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (portable(self.target), portable(self._call.kwargs))


SpecData.public = SpecData


def is_spec_class(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, SpecData)


# --- names and arity ----------------------------------------------------------


def _check_names(parameters: Parameters, arguments: Mapping[str, object]) -> None:
    """Raises for unknown arguments, and for missing ones."""
    where = f"{parameters.name}(...)"
    for name in arguments.keys() - parameters.by_name.keys():
        if name == RNGS:
            raise _rngs_given(where)
        if parameters.extra is None:
            hint = did_you_mean(name, parameters.by_name)
            raise ConstructionError(
                where,
                f"there is no parameter {name!r}" + (f"; {hint}" if hint else ""),
                expected=", ".join(parameters.by_name) or "no arguments",
                got=f"{name}=...",
            )
    missing = [name for name in parameters.required if name not in arguments]
    if missing:
        raise ConstructionError(
            where,
            f"missing arguments: {', '.join(map(repr, missing))}",
            got=", ".join(f"{name}=..." for name in arguments) or "no arguments",
            fix=f"dx.spec({parameters.name}, {', '.join(f'{name}=...' for name in [*arguments, *missing])})",
        )


def bind(parameters: Parameters, args: Sequence[object], named: Mapping[str, object]) -> dict[str, object]:
    """The arguments of a call by name; `rngs` has no position."""
    names = parameters.positional
    found: dict[str, object] = dict(zip(names, args, strict=False))
    left = args[len(names) :]
    if left and parameters.variadic is not None:
        found[parameters.variadic] = tuple(left)
    elif left:
        raise ConstructionError(
            f"{parameters.name}(...)",
            f"at most {len(names)} positional arguments are allowed",
            expected=", ".join(names) or "none",
            got=f"{len(args)}; the first extra one is {describe(left[0])}",
            fix=f"dx.spec({parameters.name}, name=value)",
        )
    for name in named.keys() & found.keys():
        raise ConstructionError(
            f"{parameters.name}(...)",
            f"the argument {name!r} is given twice, by position and by name",
            got=f"{describe(found[name])}, and {name}={describe(named[name])}",
        )
    return {**found, **named}


def positions(parameters: Parameters, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Converts arguments by name to a call: by position only if necessary."""
    left = dict(arguments)
    args: list[Any] = []
    rest = left.pop(parameters.variadic, ()) if parameters.variadic is not None else ()
    for name in parameters.positional if rest else parameters.positional_only:
        if not rest and left.keys().isdisjoint(parameters.positional_only):
            break
        args.append(left.pop(name) if name in left else parameters.by_name[name].make_default())
    return [*args, *rest], left


def _rngs_given(where: str, path: Path = ()) -> ConstructionError:
    return ConstructionError(
        where,
        f"{path_text(path) if path else 'rngs'}: a spec cannot hold random streams",
        why="a spec describes the structure; random streams belong to one build",
        fix="dx.spec(...).build(rngs=dx.Rngs(0))",
    )


# --- values -------------------------------------------------------------------


class _Freezing:
    """Freezes arguments, and records their depth and whether they contain Refs."""

    def __init__(self, parameters: Parameters | None) -> None:
        self._parameters = parameters
        self.depth = 0
        self.has_refs = False

    def freeze(self, value: Any, path: Path, depth: int = 0) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is Ref:
            self.has_refs = True
            return value
        inner = value._depth if isinstance(value, SpecData) else 1
        if depth + inner > MAX_DEPTH - 1:
            raise DepthError(
                self._where(path),
                f"a spec is nested more than {MAX_DEPTH} levels deep",
                why="each spec, list and dict is one level",
                fix="put repeated parts side by side in one list",
            )
        if isinstance(value, SpecData):
            self.depth = max(self.depth, depth + inner)
            self.has_refs = self.has_refs or value.has_refs
            return value
        if kind in _LISTS:
            self.depth = max(self.depth, depth + 1)
            items = [self.freeze(item, (*path, i), depth + 1) for i, item in enumerate(value)]
            return tuple(items) if kind is tuple else FrozenList(items)
        if kind is set or kind is FrozenSet:
            return FrozenSet([self.freeze(item, path, depth + 1) for item in value])
        if kind in _DICTS:
            self.depth = max(self.depth, depth + 1)
            self._check_keys(value, path)
            return FrozenDict({key: self.freeze(item, (*path, key), depth + 1) for key, item in value.items()})
        if isinstance(value, np.generic) and not isinstance(value, np.void):
            return value.item()
        return self._opaque(value, path)

    def _where(self, path: Path) -> str:
        return f"{'' if self._parameters is None else self._parameters.name}.{path_text(path)}"

    def _check_keys(self, value: Mapping[Any, Any], path: Path) -> None:
        wrong = [key for key in value if not isinstance(key, str) and type(key) is not int]
        if wrong:
            raise ConfigError(
                self._where(path),
                "the keys of a dict in a spec must be strings or ints",
                got=describe(wrong[0]),
                fix='{"**": ...}        # the pattern of all paths, in place of the key ...'
                if ... in wrong
                else "dx.spec(make, ...)        # of a function that makes the dict",
            )

    def _opaque(self, value: Any, path: Path) -> Any:
        if isinstance(value, DeclaredPart):
            return SpecData.of_values(value, {})
        override = override_of(value)
        if override is not None:
            return SpecData.of_values(override.target, override.kwargs)
        cls: Any = type(value)
        refused = _refused(cls)
        if refused is None:
            try:
                hash(value)
            except TypeError:
                refused = "a mutable object", "a tuple or list of its contents"
            else:
                return value
        noun, fix = refused
        if noun == _STREAMS:
            raise _rngs_given(self._where(()), path)
        raise ConfigError(
            self._where(path),
            f"a spec cannot hold {noun}",
            expected="numbers, strings, enums, dtypes, functions, specs, and lists and dicts of these",
            got=describe(value),
            why="specs are compared, hashed and written to files by value",
            fix=fix,
        )


_STREAMS: Final = "random streams"


@functools.lru_cache(maxsize=4096)
def _refused(cls: type) -> tuple[str, str] | None:
    """The noun for a class whose objects no spec holds, and what to write instead; None for other classes."""
    name = type_name(cls)
    if name in ("Rngs", "RngStream") and cls.__module__.startswith("declax._random"):
        return _STREAMS, ""
    if issubclass(cls, (np.ndarray, jax.Array, Tracer, jax.ShapeDtypeStruct)):
        return "an array", "array.tolist() for a few numbers; make a large array in __post_init__"
    return ("a model", f"dx.spec({name}, ...), or dx.spec_of(model)") if issubclass(cls, (Pytree, Variable)) else None


def freeze(value: Any) -> Any:
    return _Freezing(None).freeze(value, ())


def thaw(value: Any, leaf: Callable[[Any], Any] = lambda value: value) -> Any:
    """A frozen value with mutable lists and dicts, and a function applied to its leaves."""
    if isinstance(value, FrozenList):
        return [thaw(item, leaf) for item in value]
    if isinstance(value, FrozenDict):
        return {key: thaw(item, leaf) for key, item in value.items()}
    if type(value) is tuple:
        return tuple([thaw(item, leaf) for item in value])
    return leaf(set(value) if isinstance(value, FrozenSet) else value)


def key_of(value: Any) -> Hashable:
    """A hashable key by which frozen values are compared."""
    kind = type(value)
    if kind is float:
        return (float, value) if math.isfinite(value) and value != 0 else (float, repr(value))
    if kind in _ATOMS or kind is Ref:
        return (kind, repr(value)) if kind is complex else (kind, value)
    if isinstance(value, (SpecData, Expression)):
        return (SpecData, value) if isinstance(value, SpecData) else (kind, id(value))
    if kind is tuple or kind is FrozenList:
        return (kind, *[key_of(item) for item in value])
    if kind is FrozenSet:
        return (kind, frozenset(map(key_of, value)))
    if kind is FrozenDict:
        return (kind, *[(key, key_of(item)) for key, item in value.items()])
    if is_dtype(value):
        return (np.dtype, _dtype_name(value))
    if kind is functools.partial:
        named = tuple((name, key_of(v)) for name, v in value.keywords.items())
        return (kind, key_of(value.func), tuple(map(key_of, value.args)), named)
    return (kind, value)


@functools.lru_cache(maxsize=256)
def _dtype_name(value: Any) -> str:
    return str(jax.numpy.dtype(value).name)


@functools.lru_cache(maxsize=65536)
def _default_key(parameter: Parameter, reader: Reader | None) -> Hashable:
    """The key of a default; MISSING if there is none. Cached, since a factory may be slow."""
    default = frozen_default(parameter, reader)
    return MISSING if default is MISSING else key_of(default)


@functools.lru_cache(maxsize=65536)
def frozen_default(parameter: Parameter, reader: Reader | None) -> Any:
    """A default as a spec holds it; an expression as it is; MISSING if there is none. Cached, as its key is."""
    if parameter.is_required or isinstance(parameter.default, Expression):
        return parameter.default
    is_made = parameter.default_factory is not None or parameter.default is not MISSING
    try:
        frozen = freeze(parameter.make_default() if is_made else ())
        if reader is not None:
            frozen = freeze(reader.interpret(frozen))
        hash(key_of(frozen))
    except Exception:  # noqa: BLE001  # a user's factory; it raises again where the default is needed
        return MISSING
    return frozen
