"""Expressions of fields: the values of a class body before an instance exists.

In the body of a declared class, a field is an `Expression`. Operations on it give further expressions, and calls of
Pytree classes with one among their arguments are deferred. The constructor evaluates them (`_classes.construction`).
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from declax._fields.body_code import is_subscript
from declax._fields.call import (
    ARITHMETIC,
    COMPARISONS,
    CONTAINERS,
    UNARY,
    Call,
    Term,
    attribute,
    call_of,
    calls_in,
    chosen,
    entries,
    has_expression,
    is_equality,
    item_of,
    literal,
    operands_of,
    repeated,
    same,
    target_of,
    walk,
)
from declax._fields.keys import lacks_rngs
from declax._fields.refusals import (
    class_body,
    compares_by_identity,
    is_class_body,
    is_library,
    makes_array,
    refuse,
    refuse_function,
    require_class_body,
)
from declax._fields.sources import declared_text, text_of
from declax.errors import ExpressionError, MissingAttributeError, type_name


class Expression(Term):
    """An operation on fields. It has no value until an instance is created.

    Its own attributes begin with ``_pytree__``; all others are operations.
    Hashed by identity, except in dicts and sets of a class body, which refuse it.
    """

    __slots__ = ()
    __isabstractmethod__: Final = False  # asked of all attributes of a class, which `__getattr__` would refuse slowly

    def __set_name__(self, owner: Any, name: str) -> None:
        if self._pytree__owner is None and not hasattr(owner, "_pytree__is_pytree"):
            _declare_plainly(owner, name, self)

    # ------------------------------------------------------------- operations that give expressions

    def __hash__(self) -> int:
        if is_class_body(sys._getframe(1)):
            refuse_function(self, "a dict or set", _LOOKUP)
        return object.__hash__(self)

    def __repr__(self) -> str:
        frame = sys._getframe(1)  # errors and debuggers call it from functions, or from an evaluated "<string>"
        if is_class_body(frame) and not frame.f_code.co_name.startswith("<"):
            refuse(self, "repr()", 'dx.defer("{!r}".format)(TERM)')
        return declared_text(self) if class_body() is None else text_of.argument(self)

    def __getattr__(self, name: str) -> Expression:
        if name == "__jax_array__" and makes_array(sys._getframe(1)):
            refuse_function(self, "a function of JAX or numpy", "dx.defer(function)(TERM)")
        if name.startswith(("__", "_pytree__")):
            raise AttributeError(name)  # numpy, copy and pickle probe for such names
        if is_library(sys._getframe(1)):
            refuse_function(self, "a function of JAX or numpy", "dx.defer(function)(TERM)")
        return _operation(attribute, self, name)

    def __getitem__(self, key: object) -> Expression:
        return _operation(item_of, self, _deferred_slices(key))

    def __call__(self, /, *args: object, **kwargs: object) -> Expression:
        return defer_call(self, args, kwargs)

    # ------------------------------------------------------------- operations that need a value

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: object, **options: object) -> Expression:
        function = _UFUNCS.get(ufunc.__name__)
        if function is None or method != "__call__" or options:
            refuse_function(self, "a function of JAX or numpy", "dx.defer(function)(TERM)")
        return _operation(function, *operands)

    def __bool__(self) -> bool:
        call = self._pytree__call
        if call is not None and is_equality(call.target):
            is_outside = class_body() is None and not any(value.__class__ in _CONSTANTS for value in call.args)
            if is_outside or compares_by_identity(sys._getframe(1)):
                # Caches of JAX, signatures and others compare what they hold.
                return (call.args[0] is call.args[1]) is (call.target is operator.eq)
        return refuse_function(self, "a truth test (if, not, and, or, in, max, min)", _TRUTH_TEST)

    def __index__(self) -> int:  # noqa: PLE0305  # it always raises
        if is_subscript(sys._getframe(1)):
            refuse(self, "a subscript", "dx.defer(operator.getitem)(values, TERM)        # in place of values[TERM]")
        refuse_function(self, "int(), float(), range(), a shape or another function", _NUMBER)

    def __round__(self, digits: int | None = None) -> Any:
        refuse_function(self, "round()", "dx.defer(round)(TERM)")

    def __trunc__(self) -> int:
        refuse_function(self, "math.trunc()", "dx.defer(math.trunc)(TERM)")

    def __divmod__(self, other: object) -> Any:
        refuse(self, "divmod()", f"dx.defer(divmod)(TERM, {text_of.argument(other)})")

    def __rdivmod__(self, other: object) -> Any:
        refuse(self, "divmod()", f"dx.defer(divmod)({text_of.argument(other)}, TERM)")

    def __invert__(self) -> Any:
        refuse(self, "~", _INVERTED)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Any:
        refuse_function(self, "an array of numpy", "dx.defer(np.asarray)(TERM)")

    def __len__(self) -> int:  # noqa: PLE0303  # it always raises
        refuse(self, "len()", "dx.defer(len)(TERM)")

    def __iter__(self) -> Iterator[Any]:
        refuse_function(self, "iteration or unpacking", _ITERATION)

    def __contains__(self, item: object) -> bool:
        refuse(self, "`in`", f"dx.defer(operator.contains)(TERM, {text_of(item)})")

    def __format__(self, spec: str) -> str:
        form = f"{{:{spec}}}" if spec else "{}"
        refuse_function(self, "formatting", f'dx.defer("{form}".format)(TERM)')

    def __str__(self) -> str:
        frame = sys._getframe(1)
        if is_library(frame):  # a primitive of JAX, which words that this is no array; it has swallowed other errors
            refuse_function(self, "a function of JAX or numpy", "dx.defer(function)(TERM)")
        if is_class_body(frame):
            refuse_function(self, "str()", 'dx.defer("{}".format)(TERM)')
        return repr(self)


_LOOKUP: Final = """\
dx.defer(operator.getitem)(table, TERM)        # in place of table[TERM]
dx.defer(operator.contains)(values, TERM)        # in place of TERM in values"""
_TRUTH_TEST: Final = """\
dx.when(TERM, part, other)        # in place of `if`, `and` and `or`
dx.defer(operator.not_)(TERM)        # in place of `not`
dx.defer(operator.contains)(values, FIELD)        # in place of `in`
dx.defer(max)(FIELD, other)        # in place of max, and in the same way other functions
def __post_init__(self): ...        # in place of `assert`, for values of self; or dx.field(ge=1, check=...)"""
_NUMBER: Final = """\
dx.defer(int)(TERM)        # and in the same way math.sqrt, jnp.zeros and others
dx.repeat(TERM, Block(dim))        # in place of a comprehension over range(TERM)"""
_INVERTED: Final = """\
dx.defer(operator.not_)(TERM)        # of a bool
dx.defer(operator.invert)(TERM)        # of an integer"""
_ITERATION: Final = """\
first, second = TERM[0], TERM[1]        # in place of first, second = TERM
dx.Sequential(TERM)        # in place of dx.Sequential(*TERM)
@dx.submodule
def layers(self, rngs: dx.Rngs) -> list[dx.Linear]: ...        # in place of a loop or comprehension"""

_UFUNCS: Final = dict(
    zip(
        """add subtract multiply divide floor_divide remainder power matmul
        bitwise_and bitwise_or bitwise_xor left_shift right_shift
        equal not_equal less less_equal greater greater_equal negative positive absolute""".split(),
        {**ARITHMETIC, **COMPARISONS, **UNARY}.values(),
        strict=True,
    )
)
"""The operators that NumPy calls by other names, where an operand is one of its arrays."""

_CONSTANTS: Final = frozenset({int, float, bool, str, bytes})


def _operation(function: Callable[..., Any], *operands: object) -> Expression:
    made = Expression(Call(function, operands))
    named = [value for value in operands if isinstance(value, Expression) and value._pytree__name is not None]
    if named and not is_equality(function):
        require_class_body(made, MissingAttributeError if function is attribute else ExpressionError)
    return made


def _binary(function: Callable[..., Any]) -> Callable[[Any, object], Expression]:
    return lambda self, other: _operation(function, self, other)


def _reflected(function: Callable[..., Any]) -> Callable[[Any, object], Expression]:
    return lambda self, other: _operation(function, other, self)


def _unary(function: Callable[..., Any]) -> Callable[[Any], Expression]:
    return lambda self: _operation(function, self)


def _add_operators() -> None:
    for name, function in {**ARITHMETIC, **COMPARISONS}.items():
        setattr(Expression, f"__{name}__", _binary(function))
    for name, function in ARITHMETIC.items():
        setattr(Expression, f"__r{name}__", _reflected(function))
    for name, function in UNARY.items():
        setattr(Expression, f"__{name}__", _unary(function))


_add_operators()


class Declaration(Expression):
    """A field of the class body: the result of a specifier, with the standard field that takes its place later."""

    __slots__ = ("_pytree__field",)

    def __init__(self, field: dataclasses.Field[Any]) -> None:
        super().__init__()
        self._pytree__field = field


class ComputedDefault:
    """The default of a field of a plain dataclass that is an expression of others.

    A configuration computes it. A call of the class itself cannot, and raises.
    """

    def __init__(self, owner: type, name: str, expression: Expression) -> None:
        self.owner = owner
        self.name = name
        self.expression = expression

    def __call__(self) -> Any:
        cls = type_name(self.owner)
        raise ExpressionError(
            f"{cls}.{self.name}",
            "this default is computed from other fields, which a plain dataclass does not do",
            got=declared_text(self.expression),
            why="dx.from_config and spec.build compute it; dataclasses.dataclass passes defaults on as they are",
            fix=f"dx.spec({cls}, ...).build()\n{cls}(..., {self.name}=...)\n"
            f"@dx.dataclass\nclass {cls}(dx.Pytree): ...        # computes it at each call",
        )

    def __repr__(self) -> str:
        return declared_text(self.expression)


_COMPUTED: Final = "_declax_computed"
"""The entry of a plain class for its fields with specifiers, and those that are expressions of them."""


def computed_fields(cls: Any) -> Mapping[str, tuple[Expression, ...]]:
    """The expressions of a plain dataclass, by name."""
    found: Mapping[str, tuple[Expression, ...]] = getattr(cls, _COMPUTED, {})
    return found


def _declare_plainly(owner: Any, name: str, value: Expression) -> None:
    """Puts standard fields into the place of expressions in a class that is no Pytree, for its decorator."""
    if isinstance(value, Declaration) and value._pytree__name is None:
        setattr(owner, name, value._pytree__field)
        for other, default in list(vars(owner).items()):  # of which Python does not set the names
            if other != _COMPUTED and default.__class__ in CONTAINERS and has_expression(default):
                _declare_plainly(owner, other, Literal(default))
    elif name in inspect.get_annotations(owner):
        given = value._pytree__specified
        options = {} if given is None else {option: getattr(given, option) for option in _OPTIONS}
        value = value if value._pytree__name is None else Reference(value)
        setattr(owner, name, dataclasses.field(default_factory=ComputedDefault(owner, name, value), **options))
    value._pytree__name = name
    setattr(owner, _COMPUTED, {**computed_fields(owner), name: (value,)})


_OPTIONS: Final = ("init", "repr", "hash", "compare", "metadata", "kw_only")


class Reference(Expression):
    """Another name of an expression, or an item of a literal that is not made for it."""

    __slots__ = ()

    def __init__(self, target: object) -> None:
        super().__init__(Call(same, (target,)))

    @property
    def _pytree__target(self) -> Any:
        return operands_of(self)[0]


def referred(value: Any) -> Any:
    """The expression or value of a reference; any other value itself."""
    while isinstance(value, Reference):
        value = value._pytree__target
    return value


class Literal(Expression):
    """A literal list, tuple or dict that holds expressions."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        super().__init__(Call(literal, (value,)))

    @property
    def _pytree__value(self) -> Any:
        return operands_of(self)[0]


# ================================================================= finding expressions


class Contents(NamedTuple):
    """What an expression is made of.

    Attributes:
      leaves: declarations, and expressions that have a name.
      calls: calls and lists without a name, at each place where they stand; with the branches and lists around it, in
        which it is evaluated or not, or several times.
      quotients: divisions, which give floats.
      constants: values that are not expressions, and hold none.
    """

    leaves: list[Expression]
    calls: list[tuple[Expression, tuple[int, ...]]]
    quotients: list[Expression]
    constants: list[Any]


def contents_of(value: Expression, known: Mapping[int, object]) -> Contents:
    """What an expression is made of; those whose identity is known have a name."""
    found = Contents([], [], [], [])
    waiting: list[tuple[Any, tuple[int, ...]]] = [(value, ())]
    opened = set[int]()
    while waiting:
        parent, around = waiting.pop()
        target = target_of(parent)
        is_forked = target is chosen or target is repeated
        if target is operator.truediv:
            found.quotients.append(parent)
        for number, operand in enumerate(operands_of(parent)):
            inside = (*around, id(parent), number) if is_forked and number else around
            if id(operand) in known or isinstance(operand, Declaration):
                found.leaves.append(operand)
            elif isinstance(operand, Expression):
                is_call = call_of(operand) is not None or target_of(operand) is repeated
                if is_call:
                    found.calls.append((operand, inside))
                if not is_call or id(operand) not in opened:
                    waiting.append((operand, inside))
                opened.add(id(operand))
            elif operand.__class__ in CONTAINERS and has_expression(operand):
                waiting.append((operand, inside))
            else:
                found.constants.append(operand)
    return found


def is_constant(value: Any) -> bool:
    """Whether a value is made of calls and literals alone, without a field, and its calls require no `rngs`."""
    terms = [term for term in walk(value) if isinstance(term, Term)]
    is_closed = all(call_of(term) is not None or isinstance(term, Literal | Reference) for term in terms)
    return is_closed and not any(map(lacks_rngs, calls_in(value)))


def items_of(value: Any, path: str = "") -> Iterator[tuple[Any, str]]:
    """The containers and expressions in a literal, each with its subscripts; none in another value."""
    held: Any = value._pytree__value if isinstance(value, Literal) else value
    if held.__class__ not in CONTAINERS:
        return
    for key, item in entries(held):
        if has_expression(item):
            yield item, f"{path}[{key!r}]"
            if item.__class__ in CONTAINERS:
                yield from items_of(item, f"{path}[{key!r}]")


# ================================================================= deferring calls


def _deferred_slices(key: Any) -> Any:
    """A subscript, in which slices between expressions are deferred calls."""
    if key.__class__ is tuple:
        return tuple(map(_deferred_slices, key))
    if key.__class__ is slice and has_expression((key.start, key.stop, key.step)):
        return Expression(Call(slice, (key.start, key.stop, key.step)))
    return key


def defer_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Expression:
    """A call that each instance makes for itself; in a class body, since elsewhere nothing would make it."""
    made = Expression(Call(function, args, kwargs or {}))
    require_class_body(made)
    return made
