"""What the annotations of a method say of the shapes of its arguments and result."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin

from declax._fields.annotations import AnnotationScope, Unresolved, own_annotations
from declax._text.dimensions import Axis, Size, Symbol, parse_input, parse_shape, symbols_of
from declax.errors import FieldError, type_name
from declax.shapes.marks import Shape


class ArrayOf(NamedTuple):
    """An array of a shape."""

    axes: tuple[Axis, ...]
    dtype: Any


class ItemsOf(NamedTuple):
    """A tuple or list: of one pattern for each item, or, if `is_repeated`, of one for all."""

    items: tuple[Pattern, ...]
    is_repeated: bool
    cls: Any


class EntriesOf(NamedTuple):
    """Attributes of an object (`cls`), or values of a dict (None) whose keys are not known, under ``""``."""

    entries: Mapping[str, Pattern]
    cls: Any


class OptionalOf(NamedTuple):
    """None, or something."""

    inner: Pattern


class OneOf(NamedTuple):
    """One of some alternatives."""

    alternatives: tuple[Pattern, ...]


Pattern: TypeAlias = ArrayOf | ItemsOf | EntriesOf | OptionalOf | OneOf | None
"""What an annotation says of shapes; None if nothing."""


class Parameter(NamedTuple):
    """A parameter of a method."""

    name: str
    pattern: Pattern
    is_required: bool


class Annotated(NamedTuple):
    """A function whose annotations have shapes.

    Attributes:
      function: the function as it was defined.
      parameters: by name, without `self`.
      result: the pattern of the result.
      unread: annotations that could not be read, with the reason.
    """

    function: Callable[..., Any]
    parameters: Mapping[str, Parameter]
    result: Pattern
    unread: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The free names in the parameters, in order."""
        return list(dict.fromkeys(name for p in self.parameters.values() for name in names_in(p.pattern)))


@functools.lru_cache(maxsize=1024)
def annotated(function: Callable[..., Any], owner: type | None) -> Annotated | None:
    """What the annotations of a function say; None if they have no shape and none is unread."""
    plain: Any = inspect.unwrap(function)
    if not isinstance(plain, types.FunctionType):
        return None
    scope = _Names(plain, owner)
    reader = _Reader(scope)
    signature = inspect.signature(plain)
    given = list(signature.parameters.values())
    parameters = {}
    for parameter in given[1:] if owner is not None else given:
        is_required = parameter.default is inspect.Parameter.empty
        is_required = is_required and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        pattern = reader.read(parameter.name, parameter.annotation)
        parameters[parameter.name] = Parameter(parameter.name, pattern, is_required)
    result = reader.read("the result", signature.return_annotation)
    if result is None and not reader.unread and all(p.pattern is None for p in parameters.values()):
        return None
    return Annotated(plain, parameters, result, tuple(reader.unread))


def annotated_methods(cls: type) -> Iterator[tuple[str, Annotated]]:
    """The methods of a class whose annotations have shapes; those of declax's own classes have none."""
    methods: dict[str, tuple[type, Any]] = {}
    for owner in cls.__mro__:
        for name, value in vars(owner).items():
            methods.setdefault(name, (owner, value))
    for name, (owner, method) in methods.items():
        if isinstance(method, types.FunctionType) and (name == "__call__" or not name.startswith("_")):
            found = annotated(method, owner)
            if found is not None:
                yield name, found


# --- reading ----------------------------------------------------------------------


class _Names(dict[str, Any]):
    """The names that the annotations of a function may use."""

    def __init__(self, function: types.FunctionType, owner: type | None) -> None:
        super().__init__()
        self._closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
        self._globals = function.__globals__
        self._scope = None if owner is None else AnnotationScope(owner)
        self.missing = list[str]()

    def __missing__(self, name: str) -> Any:
        if name in self._closure:
            return self._closure[name].cell_contents
        found = self._scope[name] if self._scope is not None else Unresolved(name)
        if not isinstance(found, Unresolved):
            return found
        if name in self._globals:
            return self._globals[name]
        builtins: Any = self._globals["__builtins__"]
        builtins = builtins if isinstance(builtins, dict) else vars(builtins)
        if name in builtins:
            return builtins[name]
        self.missing.append(name)
        raise KeyError(name)  # of which Python makes a NameError


class _Reader:
    """Reads annotations, and collects those that cannot be read."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        self.unread = list[str]()

    def read(self, where: str, annotation: Any) -> Pattern:
        """The pattern of an annotation."""
        if annotation is inspect.Parameter.empty:
            return None
        try:
            return self._pattern(annotation, 0)
        except NameError:
            name = self._names.missing[-1]
            self.unread.append(f"{where}: {name!r} does not exist at run time, or is a local name")
        except FieldError as error:
            self.unread.append(f"{where}: {error.got} is no shape: {error.why or error.problem}")
        except Exception as error:  # noqa: BLE001  # of an annotation, which may be anything
            self.unread.append(f"{where}: {type(error).__name__}: {error}")
        return None

    def _pattern(self, annotation: Any, depth: int) -> Pattern:
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
        if isinstance(annotation, str):
            annotation = eval(annotation, {}, self._names)
        if depth > 8 or annotation is None:
            return None
        if hasattr(annotation, "__value__") and type(annotation).__name__ == "TypeAliasType":
            return self._pattern(annotation.__value__, depth + 1)
        if isinstance(annotation, type) and hasattr(annotation, "dim_str") and hasattr(annotation, "dtypes"):
            return ArrayOf(parse_shape(annotation.dim_str), _dtype(annotation.dtypes))
        origin, args = get_origin(annotation), get_args(annotation)
        if hasattr(annotation, "__metadata__"):
            marks = [mark for mark in annotation.__metadata__ if isinstance(mark, Shape)]
            if marks:
                return ArrayOf(marks[0].axes, marks[0].dtype or "float32")
            return self._pattern(args[0], depth + 1)
        if origin in (Union, types.UnionType):
            return self._union(args, depth)
        if isinstance(origin, type) and issubclass(origin, tuple):
            is_repeated = len(args) == 2 and args[1] is Ellipsis
            return self._items(args[:1] if is_repeated else args, depth, is_repeated=is_repeated, cls=tuple)
        if isinstance(origin, type) and issubclass(origin, Mapping) and len(args) == 2:
            inner = self._pattern(args[1], depth + 1)
            return None if inner is None else EntriesOf({"": inner}, None)
        if isinstance(origin, type) and issubclass(origin, Sequence) and len(args) == 1:
            return self._items(args, depth, is_repeated=True, cls=list)
        if isinstance(annotation, type):
            return self._entries(annotation, depth)
        return None

    def _union(self, args: tuple[Any, ...], depth: int) -> Pattern:
        patterns = [self._pattern(arg, depth + 1) for arg in args if arg is not type(None)]
        if not patterns or None in patterns:
            return None
        keys = [pattern for pattern in patterns if isinstance(pattern, ArrayOf) and pattern.dtype == KEY]
        if keys:  # of jaxtyping's PRNGKeyArray, the others are old keys
            patterns = list(keys[:1])
        found = patterns[0] if len(patterns) == 1 else OneOf(tuple(patterns))
        return OptionalOf(found) if type(None) in args else found

    def _items(self, args: tuple[Any, ...], depth: int, *, is_repeated: bool, cls: Any) -> Pattern:
        items = tuple(self._pattern(arg, depth + 1) for arg in args)
        return ItemsOf(items, is_repeated, cls) if any(item is not None for item in items) else None

    def _entries(self, cls: type, depth: int) -> Pattern:
        """The fields of a dataclass, NamedTuple or TypedDict that have shapes."""
        is_typed_dict = typing.is_typeddict(cls)
        is_record = dataclasses.is_dataclass(cls) or hasattr(cls, "_fields") or is_typed_dict
        if not is_record or hasattr(cls, "_pytree__info"):
            return None
        inner = _Reader(self._names)
        scope = AnnotationScope(cls)
        entries = {name: inner.read(name, scope.resolve(value)) for name, value in own_annotations(cls).items()}
        found = {name: pattern for name, pattern in entries.items() if pattern is not None}
        return EntriesOf(found, dict if is_typed_dict else cls) if found else None


KEY: Final = "prng_key"
"""What jaxtyping calls the dtype of keys."""
_USUAL: Final = ("float32", "int32", "bool", "complex64", "uint32", KEY)


def _dtype(dtypes: Any) -> Any:
    """The usual dtype of those that an annotation of jaxtyping accepts."""
    texts = [dtype for dtype in dtypes if isinstance(dtype, str)] if isinstance(dtypes, (list, tuple)) else []
    return next((dtype for dtype in _USUAL if dtype in texts), texts[0] if texts else "float32")


# --- parts of patterns --------------------------------------------------------------


def arrays_in(pattern: Pattern) -> Iterator[ArrayOf]:
    """The arrays in a pattern."""
    if isinstance(pattern, ArrayOf):
        yield pattern
    elif isinstance(pattern, OptionalOf):
        yield from arrays_in(pattern.inner)
    elif isinstance(pattern, (ItemsOf, OneOf)):
        for item in pattern.items if isinstance(pattern, ItemsOf) else pattern.alternatives:
            yield from arrays_in(item)
    elif isinstance(pattern, EntriesOf):
        for item in pattern.entries.values():
            yield from arrays_in(item)


def axes_in(pattern: Pattern) -> Iterator[Axis]:
    """The axes in a pattern."""
    for array in arrays_in(pattern):
        yield from array.axes


def names_in(pattern: Pattern) -> list[str]:
    """The free names of single axes in a pattern."""
    sizes = [axis.size for axis in axes_in(pattern) if axis.size is not None]
    return [key for size in sizes for key in symbols_of(size) if not Symbol(key).is_field]


def input_of(text: str, where: str) -> ArrayOf:
    """The array that a text such as ``int32[b, n]`` describes."""
    dtype, axes = parse_input(text, where)
    return ArrayOf(axes, dtype)


def plain_name(size: Size | None) -> str | None:
    """The name of a size that is a free name alone."""
    return size.key if isinstance(size, Symbol) and not size.is_field else None


def title_of(cls: type | None, name: str) -> str:
    """``Class.method``, or the name of a function."""
    return name if cls is None else f"{type_name(cls)}.{name}"
