"""The facts that a class declares about its fields, and the functions that declare them.

`FieldSpec` is everything that is known of one field; the constructor, the layout and the static types derive from it.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY as KW_ONLY
from types import FunctionType, MappingProxyType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Never,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from declax._fields.call import has_expression
from declax._fields.expressions import Declaration, Expression, Reference
from declax._fields.expressions import Literal as LiteralExpression
from declax._typing import MISSING, MYPY, TYPE_CHECKING_WITH_PYREFLY, Dtype, Initializer, Missing, Replaces
from declax.errors import DeclaxError, FieldError, describe

if TYPE_CHECKING:
    import jax
    import numpy as np

    from declax._fields.functions import Function, FunctionPart, P, R

T = TypeVar("T")
M = TypeVar("M")
H = TypeVar("H", bound=Hashable)
S = TypeVar("S", bound=Replaces)

if TYPE_CHECKING_WITH_PYREFLY or not TYPE_CHECKING or MYPY:
    from dataclasses import InitVar as InitVar  # pyright: ignore[reportRedeclaration]  # not what it takes
else:

    class _UsedUp(Any):
        """The type of an InitVar that is read; assignable to all types, as are names in a class body."""

        def __get__(self, instance: Never, owner: Never) -> Never: ...

    InitVar: TypeAlias = T | _UsedUp
    """To pyright, which knows the InitVar of the standard by its module only."""


class Status(enum.Enum):
    """The role of an attribute in the tree that JAX sees."""

    DATA = "data"
    """A child of the pytree."""
    STATIC = "static"
    """Part of the tree's definition; hashable."""
    SNAPSHOT = "snapshot"
    """Static and mutable (a list, dict or set): a snapshot is part of the tree's definition."""

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...
    else:
        __hash__ = object.__hash__  # by identity: an Enum's own hash is a Python call

    @property
    def is_static(self) -> bool:
        """Whether the attribute is part of the tree's definition."""
        return self is not Status.DATA


Data: TypeAlias = Annotated[T, Status.DATA]
"""An annotation that makes a field data, whatever its type.

>>> import declax as dx
>>> @dx.dataclass
... class Warm(dx.Layer):
...     temperature: dx.Data[float]
>>> jax.tree.leaves(Warm(0.5))
[0.5]
"""

Static: TypeAlias = Annotated[T, Status.STATIC]
"""An annotation that makes a field static, whatever its type.

>>> import declax as dx
>>> @dx.dataclass
... class Named(dx.Layer):
...     name: dx.Static[object]
>>> jax.tree.leaves(Named("a"))
[]
"""


class VariableRecipe(NamedTuple):
    """How a declared Variable is made; the arguments of `variable`.

    `computed` has those of ``stream``, ``trainable`` and ``weight_decay`` that are expressions.
    """

    shape: Sequence[SupportsIndex] | SupportsIndex
    initializer: Initializer
    dtype: Dtype | None
    when: bool | None
    stream: str | None
    metadata: Mapping[str, object] | None
    sharding: object
    computed: Mapping[str, object]


class SubmoduleRecipe(NamedTuple):
    """A part that a method of ``(self)`` or ``(self, rngs)`` makes."""

    build: Callable[..., object]
    takes_rngs: bool


class PartRecipe(NamedTuple):
    """A part that an expression of the class body makes."""

    expression: Expression


Recipe: TypeAlias = VariableRecipe | SubmoduleRecipe | PartRecipe


class _NotesOfAll(TypedDict, total=False):
    """The notes of every field."""

    help: str | None
    renamed_from: str | None


class _NotesOfArguments(_NotesOfAll, total=False):
    """The notes of a field that the constructor takes."""

    choices: Sequence[object] | None
    ge: float | None
    le: float | None
    multiple_of: int | None
    check: Callable[[Any], object] | None
    allow_nan: bool
    env: str | Sequence[str]
    secret: bool


class _NotesOfVariables(_NotesOfAll, total=False):
    """The notes of a declared Variable."""

    trainable: bool
    weight_decay: bool


class Notes(_NotesOfArguments, _NotesOfVariables, total=False):
    """Facts of a field for other layers, by the names of their options; none changes the pytree.

    A note that was not given, or is None, is missing.
    """

    sharding: object


class Specifier(NamedTuple):
    """The entry of a specifier in the metadata of its `dataclasses.Field`."""

    status: Status | None
    recipe: Recipe | None = None
    notes: Notes = Notes()


class FieldSpec(NamedTuple):
    """Everything that is known of one field of a class.

    Attributes:
      name: the field's name.
      annotation: its resolved annotation.
      status: data, static or snapshot; None if only the value decides.
      is_nested_undecided: whether an undecided annotation is a container.
      recipe: how the field is made, for `variable` and `submodule`.
      notes: what other layers read.
    """

    name: str
    annotation: object
    status: Status | None
    is_nested_undecided: bool
    recipe: Recipe | None
    notes: Notes


class Tagged(Generic[T]):
    """A value with an explicit status, on its way into an attribute."""

    __slots__ = ("status", "value")

    def __init__(self, status: Status, value: T) -> None:
        self.status = status
        self.value = value

    def __repr__(self) -> str:
        return f"{self.status.value}({self.value!r})"


_KEY = "declax"


def specifier_of(field: dataclasses.Field[Any]) -> Specifier | None:
    """The specifier of a standard field, also one written by hand.

    ``dataclasses.field(metadata={"static": True})`` counts as ``static()``.

    >>> specifier_of(dataclasses.field(metadata={"static": True})).status
    <Status.STATIC: 'static'>
    """
    found = field.metadata.get(_KEY)
    if isinstance(found, Specifier):
        return found
    is_static = field.metadata.get("static")
    if is_static is None:
        return None
    return Specifier(Status.STATIC if is_static else Status.DATA)


def _field(specifier: Specifier, *, metadata: Mapping[Any, Any] | None, **options: Any) -> Any:
    given = {k: v for k, v in options.items() if v is not MISSING}
    made = standard_field(specifier, metadata=metadata, **given)
    default = given.get("default")
    if not has_expression(default):
        return Declaration(made)
    if not isinstance(default, Expression):
        default = LiteralExpression(default)
    elif default._pytree__name is not None or isinstance(default, Declaration):
        default = Reference(default)
    default._pytree__specified = made
    return default


def standard_field(specifier: Specifier, *, metadata: Mapping[Any, Any] | None = None, **options: Any) -> Any:
    """A field of the standard with a specifier."""
    made = dataclasses.field(metadata={**(metadata or {}), _KEY: specifier}, **options)
    made.__class__ = PortableField
    return made


class PortableField(dataclasses.Field[Any]):
    """A field of the standard whose pickle, which is part of one of its class, names the marks of the standard.

    The standard compares them by identity, and pickles copies.
    """

    __slots__ = ()

    def __getstate__(self) -> dict[str, Any]:
        content = {name: getattr(self, name) for name in dataclasses.Field.__slots__}
        kept = {name: value for name, value in content.items() if value is not dataclasses.MISSING}
        return {**kept, "metadata": dict(self.metadata), _KIND: getattr(content[_KIND], "name", None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        content = {**state, "metadata": MappingProxyType(state["metadata"]), _KIND: _KINDS.get(state[_KIND])}
        for name in dataclasses.Field.__slots__:
            setattr(self, name, content.get(name, dataclasses.MISSING))


_KIND: Final = "_field_type"
FIELD, INIT_VAR, CLASS_VAR = _MARKS = dataclasses._FIELD, dataclasses._FIELD_INITVAR, dataclasses._FIELD_CLASSVAR  # type: ignore[attr-defined]  # the standard has no public name for them
_KINDS: Final = {mark.name: mark for mark in _MARKS}
"""The kinds of the entries of ``__dataclass_fields__``."""


def is_init_var(field: Any) -> bool:
    """Whether an entry of ``__dataclass_fields__`` is an InitVar."""
    return field._field_type is INIT_VAR


def make_fields_portable(cls: type) -> None:
    """Makes the fields of a class portable that the standard has made; those of bases as copies."""
    fields = cls.__dict__.get("__dataclass_fields__", {})
    for name, field in fields.items():
        if field.__class__ is dataclasses.Field:
            tables = (base.__dict__.get("__dataclass_fields__", {}) for base in cls.__mro__[1:])
            is_inherited = any(table.get(name) is field for table in tables)
            fields[name] = copy.copy(field) if is_inherited else field
            fields[name].__class__ = PortableField


def _notes(**given: Unpack[Notes]) -> Notes:
    """The notes that were given and say something."""
    return cast("Notes", {name: note for name, note in given.items() if note is not None})


def is_restricted(notes: Notes) -> bool:
    """Whether the constructor checks the values of a field."""
    return not notes.keys().isdisjoint(("ge", "le", "multiple_of", "check"))


def multiple_of(notes: Notes) -> int | str | None:
    """The number that a field is a multiple of, or the name of the field that has it; None if there is none.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Attention(dx.Layer):
    ...     heads: int = dx.field(ge=1)
    ...     dim: int = dx.field(multiple_of=heads)
    >>> multiple_of(specifier_of(Attention.__dataclass_fields__["dim"]).notes)
    'heads'
    """
    factor: Any = notes.get("multiple_of")
    return factor._pytree__name if isinstance(factor, Expression) else factor


def _specify(status: Status | None, options: dict[str, Any]) -> Any:
    given = _NOTES & options.keys()
    notes = _notes(**{name: options.pop(name) for name in given}) if given else Notes()
    if (choices := notes.get("choices")) is not None:
        notes["choices"] = tuple(choices)
    if "multiple_of" in notes:
        notes["multiple_of"] = _factor(notes["multiple_of"])
    if options.get("init") is False and is_restricted(notes):
        raise FieldError(
            "field",
            "ge, le, multiple_of and check test an argument of the constructor; init=False means that there is none",
            fix="def __post_init__(self): ...        # checks what the class sets",
        )
    if notes.get("secret"):
        options.setdefault("repr", False)
    return _field(Specifier(status, notes=notes), **{"metadata": None, **options})


def _factor(factor: Any) -> Any:
    """A number, or the name of the field that has it; the class body of a plain dataclass has no names yet."""
    while isinstance(factor, Reference):
        factor = factor._pytree__target
    if isinstance(factor, Declaration) or (isinstance(factor, Expression) and factor._pytree__name is not None):
        return factor._pytree__name or factor
    if isinstance(factor, int) and not isinstance(factor, bool) and factor >= 1:
        return factor
    raise FieldError(
        "field, multiple_of",
        "a field is a multiple of a number, or of an earlier field",
        expected="an integer of at least 1, or the name of a field",
        got=describe(factor),
        fix="dim: int = dx.field(multiple_of=heads)        # below heads: int = dx.field(ge=1)",
    )


class MutableDefaultNeedsDefaultFactory:
    """The result, to a type checker, of a specifier with a list, dict or set as default; its name is the message."""


class ArrayDefaultNeedsDefaultFactory:
    """The result, to a type checker, of a specifier with an array as default; its name is the message."""


class StrIsNoDataUseStatic:
    """To a type checker, what `data` gives for a str as a default; its name is the message."""


class FieldOptions(_NotesOfArguments, total=False):
    """The options of all fields besides the default: those of `dataclasses.field`, and notes, which `data` explains."""

    init: bool
    repr: bool
    hash: bool | None
    compare: bool
    metadata: Mapping[Any, Any] | None
    kw_only: bool | Missing


class DataOptions(FieldOptions, total=False):
    """The options of fields that may be data."""

    sharding: object


class VariableOptions(_NotesOfVariables, total=False):
    """The options of `variable`, which says what they mean, besides those that decide its type."""

    dtype: Dtype | None
    sharding: object
    stream: str | None
    metadata: Mapping[str, object] | None
    repr: bool
    compare: bool


_NOTES = DataOptions.__annotations__.keys() & Notes.__annotations__.keys()
"""The options of fields that are notes; others are those of the standard, which refuses unknown names."""

Mutable: TypeAlias = list[Any] | dict[Any, Any] | set[Any] | bytearray
Text: TypeAlias = str | bytes
Array: TypeAlias = "jax.Array | np.ndarray[Any, Any]"

# Editors show the first overload, and offer the parameters of all: so the plain one of `field` is first, and no options
# are offered as a keyword. It names its parameters, because ty takes any keyword for one of an unpacked TypedDict.
# None of the message classes is what a field is annotated with, so the line of the field is an error. They
# overlap with the overloads behind them on purpose: a checker takes the first that fits. A Spec, which fits anywhere,
# would fit the first of them.
# In `T | Any`, the first part compares a default with the annotation. The second one keeps the annotation as the type
# of the name in the class body; without it, checkers narrow the name to the type of the default.


@overload
def field(
    *,
    help: str | None = None,
    choices: Sequence[object] | None = None,
    ge: float | None = None,
    le: float | None = None,
    multiple_of: int | None = None,
    check: Callable[[Any], object] | None = None,
    allow_nan: bool = False,
    env: str | Sequence[str] = (),
    secret: bool = False,
    renamed_from: str | None = None,
    sharding: object = None,
    init: bool = True,
    repr: bool = True,
    hash: bool | None = None,
    compare: bool = True,
    metadata: Mapping[Any, Any] | None = None,
    kw_only: bool | Missing = MISSING,
) -> Any: ...
@overload
def field(*, default: S, **options: Unpack[DataOptions]) -> S | Any: ...
@overload
def field(*, default: Mutable, **options: Unpack[DataOptions]) -> MutableDefaultNeedsDefaultFactory: ...
@overload
def field(*, default: Array, **options: Unpack[DataOptions]) -> ArrayDefaultNeedsDefaultFactory: ...
@overload
def field(*, default: T, **options: Unpack[DataOptions]) -> T | Any: ...
@overload
def field(*, default_factory: Callable[[], T], **options: Unpack[DataOptions]) -> T: ...
def field(**options: Any) -> Any:
    """Declares an argument of the constructor, which the class body can refer to.

    The annotation decides whether the field is data or static.

    Args:
      default: the field's default.
      default_factory: makes the field's default at each construction.
      init, repr, hash, compare, metadata, kw_only: as in `dataclasses.field`.
      sharding, help, choices, ge, le, multiple_of, check, allow_nan, env, secret, renamed_from: as in
        `data`.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Block(dx.Layer):
    ...     dim: int = dx.field(ge=1)
    ...     up = dx.Linear(dim, 4 * dim)
    >>> Block(3, rngs=dx.Rngs(0)).up.out_features
    12
    """
    return _specify(None, options)


@overload
def data(value: T, /) -> T: ...
@overload
def data(*, default: S, **options: Unpack[DataOptions]) -> S | Any: ...
@overload
def data(*, default: Text, **options: Unpack[DataOptions]) -> StrIsNoDataUseStatic: ...
@overload
def data(*, default: Mutable, **options: Unpack[DataOptions]) -> MutableDefaultNeedsDefaultFactory: ...
@overload
def data(*, default: Array, **options: Unpack[DataOptions]) -> ArrayDefaultNeedsDefaultFactory: ...
@overload
def data(*, default: T, **options: Unpack[DataOptions]) -> T | Any: ...
@overload
def data(*, default_factory: Callable[[], T], **options: Unpack[DataOptions]) -> T: ...
@overload
def data(**options: Unpack[DataOptions]) -> Any: ...
def data(value: Any = MISSING, /, **options: Any) -> Any:
    """Declares a field as pytree data, or tags a value as data.

    In a class body, ``x: int = data()`` is a field whose values are leaves (or subtrees) of the pytree; it takes the
    keywords of `dataclasses.field`. In an assignment, ``self.x = data(3)`` gives the attribute that status.

    Args:
      value: a value to tag, in an assignment to an attribute.
      default: the field's default.
      default_factory: makes the field's default at each construction.
      init, repr, hash, compare, metadata, kw_only: as in `dataclasses.field`.
      sharding: how the field's arrays are laid out over devices.
      help: one line that explains the field, in place of its entry under ``Args:`` and of the docstring below it.
      choices: the values that the field may have.
      ge, le: the field's bounds, both included.
      multiple_of: a number, or an earlier field, that divides the field.
      check: a function of the value, which refuses it by raising a ValueError, or by returning a description of the
        problem or False. Constructors and configurations call it, except for None.
      allow_nan: configurations may give NaN and infinity, which they otherwise may not; constructors take both anyway.
      env: variables of the environment that configurations may read here: ``{ "$env" = "DATA" }``.
      secret: configurations read the value from a variable of `env` or from a file, ``{ "$file" = "token.txt" }``, and
        show and record only where it is.
      renamed_from: the field's former name.

    >>> import declax as dx
    >>> dx.data(3)
    data(3)
    """
    return _specify(Status.DATA, options) if value is MISSING else Tagged(Status.DATA, value)


@overload
def static(value: T, /) -> T: ...
@overload
def static(*, default: S, **options: Unpack[FieldOptions]) -> S | Any: ...
@overload
def static(*, default: Mutable, **options: Unpack[FieldOptions]) -> MutableDefaultNeedsDefaultFactory: ...
@overload
def static(*, default: Array, **options: Unpack[FieldOptions]) -> ArrayDefaultNeedsDefaultFactory: ...
@overload
def static(*, default: H, **options: Unpack[FieldOptions]) -> H | Any: ...
@overload
def static(*, default_factory: Callable[[], T], **options: Unpack[FieldOptions]) -> T: ...
@overload
def static(**options: Unpack[FieldOptions]) -> Any: ...
def static(value: Any = MISSING, /, **options: Any) -> Any:
    """Declares a field as static, or tags a value as static.

    A static value is part of the tree's definition: two models with different static values have different treedefs,
    and a jitted function is traced for each. The value must be hashable, or a list, dict or set, which enters as a
    snapshot.

    Args:
      value: a value to tag, in an assignment to an attribute.
      default, default_factory, help, choices, ge, le, multiple_of, check, allow_nan, env, secret, renamed_from: as
        in `data`.
      init, repr, hash, compare, metadata, kw_only: as in `dataclasses.field`.

    >>> import declax as dx
    >>> dx.static("relu")
    static('relu')
    """
    return _specify(Status.STATIC, options) if value is MISSING else Tagged(Status.STATIC, value)


@overload
def variable(
    shape: Sequence[SupportsIndex] | SupportsIndex = (),
    *,
    initializer: Initializer,
    when: None = None,
    init: Literal[False] = False,
    **options: Unpack[VariableOptions],
) -> Any: ...
@overload
def variable(
    shape: Sequence[SupportsIndex] | SupportsIndex = (),
    *,
    initializer: Initializer,
    when: bool,
    init: Literal[False] = False,
    **options: Unpack[VariableOptions],
) -> Any | None: ...
def variable(
    shape: Sequence[SupportsIndex] | SupportsIndex = (),
    *,
    initializer: Initializer,
    dtype: Dtype | None = None,
    when: bool | None = None,
    sharding: object = None,
    stream: str | None = "params",
    metadata: Mapping[str, object] | None = None,
    init: Literal[False] = False,
    repr: bool = True,
    compare: bool = True,
    help: str | None = None,
    trainable: bool = True,
    weight_decay: bool = True,
    renamed_from: str | None = None,
) -> Any:
    """Declares a Variable that is made when the object is constructed.

    The annotation gives the kind: ``kernel: Param[jax.Array]`` makes a `Param`. Variables are made in declaration
    order, before `__post_init__`. The constructor does not take them.

    Args:
      shape: the sizes of the axes, or one size. All arguments may contain fields of the class.
      initializer: called with a key, the shape and the dtype.
      dtype: the dtype; None means float32.
      when: a condition; if it is False, this field is None.
      sharding: for each dimension a mesh axis, a logical name (see `sharding_rules`), a tuple of these, or None.
      stream: the stream of ``rngs`` that gives the key; None draws no key, and calls the initializer with None.
      metadata: more metadata of the Variable.
      init: always False; for type checkers.
      repr, compare: as in `dataclasses.field`.
      trainable: whether gradients and optimizers take it by default.
      weight_decay: whether `is_decayed` selects it.
      help, renamed_from: as in `data`.

    Raises:
      FieldError: when the class is created, if the annotation is not a kind of Variable, or the class takes no ``rngs``
        and `stream` is not None; at construction, for a shape with an entry that is not a size.
      InitializerError: at construction, if the initializer returns another shape.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Scale(dx.Layer):
    ...     dim: int = dx.field()
    ...     scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones, stream=None)
    >>> Scale(3).scale.value.tolist()
    [1.0, 1.0, 1.0]
    """
    del init
    options = {"stream": stream, "trainable": trainable, "weight_decay": weight_decay}
    computed = {name: value for name, value in options.items() if has_expression(value)}
    trainable, weight_decay = "trainable" in computed or trainable, "weight_decay" in computed or weight_decay
    notes = _notes(help=help, trainable=trainable, weight_decay=weight_decay, renamed_from=renamed_from)
    recipe = VariableRecipe(shape, initializer, dtype, when, stream, metadata, sharding, computed)
    specifier = Specifier(Status.DATA, recipe, notes)
    return _field(specifier, init=False, repr=repr, compare=compare, metadata=None)


@overload
def submodule(build: Callable[[Any, Any], Function[P, R]], /) -> FunctionPart[P, R]: ...
@overload
def submodule(build: Callable[[Any], Function[P, R]], /) -> FunctionPart[P, R]: ...
@overload
def submodule(build: Callable[[Any, Any], M], /) -> M: ...
@overload
def submodule(build: Callable[[Any], M], /) -> M: ...
def submodule(build: Any, /) -> Any:
    """Declares a part that a method makes, for parts that need statements.

    The method is called in its place in the class body: `self` has what is declared above it. It takes
    ``(self, rngs)``, with the `rngs` of the constructor, or ``(self)`` if it draws no keys.

    Args:
      build: the method. To a type checker, the attribute is its result.

    Raises:
      FieldError: for anything but a method of the class body; when the class is created, for a method that takes `rngs`
        in a class that does not.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class MLP(dx.Layer):
    ...     sizes: tuple[int, ...] = dx.field()
    ...     @dx.submodule
    ...     def layers(self, rngs: dx.Rngs) -> list[dx.Linear]:
    ...         return [dx.Linear(i, o, rngs=rngs) for i, o in zip(self.sizes, self.sizes[1:])]
    >>> len(MLP((4, 3, 2), rngs=dx.Rngs(0)).layers)
    2
    """
    if not isinstance(build, FunctionType) or build.__name__ == "<lambda>":
        raise FieldError(
            "submodule",
            "submodule decorates a method",
            got=describe(build),
            fix="up = dx.Linear(dim, dim)        # with fields that are declared above\n"
            "@dx.submodule\ndef up(self, rngs: dx.Rngs) -> dx.Linear: ...",
        )
    code = build.__code__
    recipe = SubmoduleRecipe(build, takes_rngs=code.co_varnames[1 : code.co_argcount][:1] == ("rngs",))
    return _field(Specifier(Status.DATA, recipe), init=False, metadata=None)


def objection(check: Callable[[Any], object], value: object) -> str | None:
    """The objection of a field's check to a value, or None.

    >>> objection(lambda size: size % 2 == 0, 3)
    'the value does not pass the check of its field'
    """
    try:
        found = check(value)
    except DeclaxError as error:
        return error.problem
    except ValueError as error:
        found = str(error)
    if found is False or (isinstance(found, str) and not found):
        return "the value does not pass the check of its field"
    return found.removesuffix(".") if isinstance(found, str) else None
