"""What a spec is made of: a target, and its arguments as values that nobody can change.

Vocabulary
----------
frozen:  of arguments: lists and dicts are `FrozenList` and `FrozenDict`, all else is hashable.
key:     stands for a value in comparisons: ``1``, ``1.0`` and ``True`` have different keys, equal dtypes the same.
minimal: without the arguments that are equal to their defaults; so every spec is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, Self, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from declax._metadata import Metadata
from declax._pytree import Pytree
from declax._static import FrozenDict as FrozenDict
from declax._static import FrozenList as FrozenList
from declax._typing import MISSING
from declax._variables import Variable
from declax.config._parameters import RNGS, Parameter, Parameters, Target, parameters_of, plain_target, target_name
from declax.config._unions import is_dtype
from declax.config.problems import Path, did_you_mean, path_text
from declax.errors import ConfigError, ConstructionError, DepthError, describe, type_name

T = TypeVar("T")

MAX_DEPTH: Final = 100
"""How many specs, lists and dicts there may be, one in the other."""

_ATOMS: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})


def key_like(frozen: FrozenDict[Any], key: str) -> str | int | None:
    """The key that a path means by a text: the text, or an int that is written so; None where it is not there.

    >>> key_like(FrozenDict({"a": 1, 100: 2}), "100")
    100
    """
    if key in frozen:
        return key
    return next((known for known in frozen if type(known) is int and str(known) == key), None)


class Ref:
    """Stands for the object that is built at another place of the same spec.

    Two equal specs are two objects; one object in two places is a spec in the one and a Ref in the other.

    Args:
      path: from the root of the spec that is built, as a JSON pointer: ``/embed``, ``/blocks/0/mixer``.

    Raises:
      ConfigError: for what is no such path.

    >>> Ref("/blocks/0").keys
    ('blocks', '0')
    """

    __slots__ = ("keys", "path")

    keys: tuple[str, ...]
    path: str

    def __init__(self, path: str) -> None:
        given: object = path
        if not isinstance(given, str) or not given.startswith("/") or given == "/":
            fix = "/" + given.strip("./").replace(".", "/") if isinstance(given, str) else "/embed"
            raise ConfigError(
                "Ref",
                "this is no path to a part",
                expected="a path from the root: names and indices, with a / before each",
                got=describe(path),
                fix=f"dx.Ref({fix!r})" if len(fix) > 1 else "dx.Ref('/embed')",
            )
        keys = tuple(key.replace("~1", "/").replace("~0", "~") for key in path[1:].split("/"))
        object.__setattr__(self, "keys", keys)
        object.__setattr__(self, "path", path)

    @classmethod
    def to(cls, path: Iterable[str | int]) -> Ref:
        """The Ref to a path of names and indices.

        >>> Ref.to(("blocks", 0))
        Ref('/blocks/0')
        """
        return cls("".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path))

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError("Ref", f"a Ref cannot be changed; {name!r} was set", fix="dx.Ref(...)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self.path == other.path

    def __hash__(self) -> int:
        return hash((Ref, self.path))

    def __repr__(self) -> str:
        return f"Ref({self.path!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return Ref, (self.path,)


class Interpreter(Protocol):
    """Interprets the values of one parameter."""

    def __hash__(self) -> int: ...

    def holds(self, value: Any) -> bool:
        """Whether a frozen value may stay as it is."""
        ...

    def interpret(self, value: Any, make: Callable[[Any, Mapping[str, Any]], SpecData]) -> Any:
        """A frozen value as it would be read from a file; itself where it does not fit."""
        ...


class Interpreters(Protocol):
    """Interprets the arguments of a target."""

    def reader_of(self, name: str) -> Interpreter | None:
        """The interpretation of an argument; None for one that is kept as it is."""
        ...


class _AsTheyAre:
    def reader_of(self, name: str) -> None:
        return None


_AS_THEY_ARE: Final = _AsTheyAre()


class SpecData:
    """The data of a `Spec`, and all of it that needs no other file.

    Attributes:
      has_refs: whether there are Refs in it.
    """

    __slots__ = ("_arguments", "_depth", "_hash", "_keys", "_target", "has_refs")

    _target: Target
    _arguments: dict[str, Any]
    _keys: tuple[tuple[str, Hashable], ...]
    _depth: int
    _hash: int | None
    has_refs: bool

    def __init__(self, target: Target, arguments: Mapping[str, object] = MappingProxyType({})) -> None:
        self._set(plain_target(target), arguments, is_read=False)

    @classmethod
    def of_values(cls, target: Target, arguments: Mapping[str, object]) -> Self:
        """The spec of values that readers have made, and that are not read again."""
        made = cls.__new__(cls)
        made._set(target, arguments, is_read=True)
        return made

    @classmethod
    def _interpreters(cls, target: Target) -> Interpreters:
        """The interpretations of the arguments of a target."""
        return _AS_THEY_ARE

    def _set(self, target: Target, arguments: Mapping[str, object], *, is_read: bool) -> None:
        parameters = parameters_of(target)
        interpreters = self._interpreters(target)
        check_names(parameters, arguments)
        kept: dict[str, Any] = {}
        keys = []
        freezing = _Freezing(parameters)
        for name in _in_order(parameters, arguments):
            parameter = parameters.get(name)
            reader = interpreters.reader_of(name)
            value = arguments[name]
            if name == parameters.variadic:
                value = _as_positions(parameters, name, value)
            if type(value) not in _ATOMS:
                value = freezing.freeze(value, (name,))
            if not is_read and reader is not None and not reader.holds(value):
                value = freezing.freeze(reader.interpret(value, self.of_values), (name,))
            key = key_of(value)
            if parameter is None or key != _default_key(parameter, reader):
                kept[name] = value
                keys.append((name, key))
        put = object.__setattr__
        put(self, "_target", target)
        put(self, "_arguments", kept)
        put(self, "_keys", tuple(keys))
        put(self, "_depth", freezing.depth + 1)
        put(self, "_hash", None)
        put(self, "has_refs", freezing.has_refs)

    @property
    def target(self) -> Target:
        """The class or function."""
        return self._target

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments that differ from their defaults, by name, in the order of the parameters."""
        return MappingProxyType(self._arguments)

    @property
    def parameters(self) -> Parameters:
        """What the target takes."""
        return parameters_of(self._target)

    @property
    def full_arguments(self) -> Mapping[str, Any]:
        """All arguments, defaults included; a default that is no value of a spec (an array, say) is left out."""
        full: dict[str, Any] = {}
        interpreters = self._interpreters(self._target)
        for parameter in self.parameters:
            if parameter.name in self._arguments:
                full[parameter.name] = self._arguments[parameter.name]
            elif not parameter.is_required:
                default = _frozen_default(parameter, interpreters.reader_of(parameter.name))
                if default is not MISSING:
                    full[parameter.name] = default
        full.update((name, value) for name, value in self._arguments.items() if name not in full)
        return MappingProxyType(full)

    def with_arguments(self, arguments: Mapping[str, object]) -> Self:
        """The spec of the same target with other arguments."""
        return type(self)(self._target, arguments)

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(
            f"Spec of {target_name(self._target)}",
            f"a spec cannot be changed; {name!r} was set",
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
        return bool(self._target == other._target) and self._keys == other._keys

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self._target, self._keys)))
        return self._hash  # type: ignore[return-value]  # set just now

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._target, self._arguments)


def is_spec_class(cls: Any) -> bool:
    """Whether a class is that of specs, so that a field keeps the description of a part."""
    return isinstance(cls, type) and issubclass(cls, SpecData)


# --- names and arity ----------------------------------------------------------


def check_names(parameters: Parameters, arguments: Mapping[str, object]) -> None:
    """Asks that each argument has a parameter, and each parameter without a default an argument.

    Raises:
      ConstructionError: for names that are none, missing arguments, and rngs.
    """
    if not arguments.keys() <= parameters.by_name.keys():
        _check_unknown(parameters, arguments)
    missing = [name for name in parameters.required if name not in arguments]
    if missing:
        raise ConstructionError(
            f"{parameters.name}(...)",
            f"the argument {missing[0]!r} is missing"
            if len(missing) == 1
            else f"the arguments {', '.join(map(repr, missing))} are missing",
            got=", ".join(f"{name}=..." for name in arguments) or "no arguments",
            fix=f"dx.spec({parameters.name}, {', '.join(f'{name}=...' for name in [*arguments, *missing])})",
        )


def _check_unknown(parameters: Parameters, arguments: Mapping[str, object]) -> None:
    where = f"{parameters.name}(...)"
    for name in arguments:
        if name == RNGS:
            raise _rngs_given(where)
        if parameters.get(name) is None:
            hint = did_you_mean(name, parameters.by_name)
            raise ConstructionError(
                where,
                f"there is no parameter {name!r}" + (f"; {hint}" if hint else ""),
                expected=", ".join(parameters.by_name) or "no arguments",
                got=f"{name}=...",
            )


def bind(parameters: Parameters, args: Sequence[object], named: Mapping[str, object]) -> dict[str, object]:
    """The arguments of a call by name; positions count without `rngs`.

    Raises:
      ConstructionError: for too many positions, and an argument that is given twice.
    """
    names = parameters.positional
    found: dict[str, object] = dict(zip(names, args, strict=False))
    left = args[len(names) :]
    if left and parameters.variadic is None:
        if any(_is_rngs(value) for value in left):
            raise _rngs_given(f"{parameters.name}(...)")
        raise ConstructionError(
            f"{parameters.name}(...)",
            f"it takes at most {len(names)} arguments by position",
            expected=", ".join(names) or "no positions",
            got=f"{len(args)} of them, the first too many being {describe(left[0])}",
            fix=f"dx.spec({parameters.name}, name=value)",
        )
    if left and parameters.variadic is not None:
        found[parameters.variadic] = tuple(left)
    for name, value in named.items():
        if name in found:
            raise ConstructionError(
                f"{parameters.name}(...)",
                f"the argument {name!r} is given twice, by position and by name",
                got=f"{describe(found[name])}, and {name}={describe(value)}",
            )
        found[name] = value
    return found


def _as_positions(parameters: Parameters, name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple, FrozenList)):
        raise ConfigError(
            f"{parameters.name}.{name}",
            "the arguments by position are one list",
            expected="a list or tuple",
            got=describe(value),
            fix=f"{name}=[...]",
        )
    return tuple(value)


def _rngs_given(where: str, path: Path = ()) -> ConstructionError:
    return ConstructionError(
        where,
        f"{path_text(path) if path else 'rngs'}: random streams are no part of a spec",
        why="a spec says what to build; with which numbers is said when it is built",
        fix="dx.spec(...).build(rngs=dx.Rngs(0))",
    )


def _in_order(parameters: Parameters, arguments: Mapping[str, object]) -> list[str]:
    names = [name for name in parameters.by_name if name in arguments]
    return names if len(names) == len(arguments) else [*names, *(n for n in arguments if n not in parameters.by_name)]


# --- values -------------------------------------------------------------------


class _Freezing:
    """Freezes one argument; knows afterwards how deep it is, and whether there are Refs in it."""

    def __init__(self, parameters: Parameters | None) -> None:
        self._parameters = parameters
        self.depth = 0
        self.has_refs = False

    @property
    def owner(self) -> str:
        return "" if self._parameters is None else self._parameters.name

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
                f"{self.owner}.{path_text(path)}",
                f"a spec is nested more than {MAX_DEPTH} levels deep",
                why="specs, lists and dicts count a level each",
                fix="hold parts that repeat in one list, side by side",
            )
        if isinstance(value, SpecData):
            self.depth = max(self.depth, depth + inner)
            self.has_refs = self.has_refs or value.has_refs
            return value
        if kind is list or kind is FrozenList:
            self.depth = max(self.depth, depth + 1)
            return FrozenList([self.freeze(v, (*path, i), depth + 1) for i, v in enumerate(value)])
        if kind is tuple:
            self.depth = max(self.depth, depth + 1)
            return tuple([self.freeze(v, (*path, i), depth + 1) for i, v in enumerate(value)])
        if kind in (dict, FrozenDict, MappingProxyType, Metadata):
            self.depth = max(self.depth, depth + 1)
            return FrozenDict(
                {self._key(k, path): self.freeze(v, (*path, k), depth + 1) for k, v in value.items()},
            )
        if isinstance(value, np.generic) and not isinstance(value, np.void):
            return value.item()
        return self._opaque(value, path)

    def _key(self, key: object, path: Path) -> str | int:
        if not isinstance(key, str) and type(key) is not int:
            raise ConfigError(
                f"{self.owner}.{path_text(path)}",
                "the keys of a dict in a spec are strings, or ints",
                got=describe(key),
                fix="a list of pairs, which the class makes a dict of",
            )
        return key

    def _opaque(self, value: Any, path: Path) -> Any:
        if isinstance(value, (np.ndarray, jax.Array, Tracer, jax.ShapeDtypeStruct)):
            raise ConfigError(
                f"{self.owner}.{path_text(path)}",
                "an array is no part of a spec",
                expected="numbers, texts, enums, dtypes, functions, lists and dicts of these, specs",
                got=describe(value),
                why="a spec is compared, hashed and written to files by value",
                fix=_array_fix(value),
            )
        if _is_rngs(value):
            raise _rngs_given(f"{self.owner}(...)", path)
        if isinstance(value, (Pytree, Variable)):
            name = type_name(type(value))
            raise ConfigError(
                f"{self.owner}.{path_text(path)}",
                "a model is no part of a spec; its description is",
                got=describe(value),
                fix=f"dx.spec({name}, ...), or dx.spec_of(model)",
            )
        try:
            hash(value)
        except TypeError:
            raise ConfigError(
                f"{self.owner}.{path_text(path)}",
                "a value that can change is no part of a spec",
                expected="a hashable value, a list or a dict",
                got=describe(value),
                fix="a tuple or list of what is in it" if isinstance(value, (set, bytearray)) else None,
            ) from None
        return value


def freeze(value: Any) -> Any:
    """A value as it is inside of a spec.

    >>> freeze([1, {"a": 2}])
    [1, {'a': 2}]
    """
    return _Freezing(None).freeze(value, ())


def _is_rngs(value: Any) -> bool:
    return type_name(type(value)) in ("Rngs", "RngStream") and type(value).__module__.startswith("declax.rngs")


def _array_fix(value: Any) -> str:
    if getattr(value, "ndim", None) == 0 and not isinstance(value, (Tracer, jax.ShapeDtypeStruct)):
        return "value.item(), which is a number"
    return "array.tolist() for a few numbers; a large array is made in __post_init__, or set in what was built"


def thaw(value: Any) -> Any:
    """A frozen value with lists and dicts for the frozen ones; specs stay as they are.

    >>> thaw(FrozenList([1, FrozenDict({"a": FrozenList([2])})]))
    [1, {'a': [2]}]
    """
    if isinstance(value, FrozenList):
        return [thaw(item) for item in value]
    if isinstance(value, FrozenDict):
        return {key: thaw(item) for key, item in value.items()}
    if type(value) is tuple:
        return tuple([thaw(item) for item in value])
    return value


def key_of(value: Any) -> Hashable:
    """What stands for a frozen value in comparisons."""
    kind = type(value)
    if kind is float:
        return (float, value) if math.isfinite(value) and value != 0 else (float, repr(value))
    if kind in _ATOMS or isinstance(value, (SpecData, Ref)):
        return (kind, repr(value)) if kind is complex else (kind, value)
    if kind is tuple or kind is FrozenList:
        return (kind, *[key_of(item) for item in value])
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
def _default_key(parameter: Parameter, reader: Interpreter | None) -> Hashable:
    """The key of a default; MISSING where that is none. Kept, since a factory may take long."""
    default = _frozen_default(parameter, reader)
    return MISSING if default is MISSING else key_of(default)


def _frozen_default(parameter: Parameter, reader: Interpreter | None) -> Any:
    if parameter.is_required:
        return MISSING
    is_made = parameter.default_factory is not None or parameter.default is not MISSING
    try:
        frozen = freeze(parameter.make_default() if is_made else ())
        if reader is not None and not reader.holds(frozen):
            frozen = freeze(reader.interpret(frozen, SpecData.of_values))
        hash(key_of(frozen))
    except Exception:  # noqa: BLE001  # a factory may raise anything, and will where the default is needed
        return MISSING
    return frozen
