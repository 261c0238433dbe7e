"""Expressions of fields: the values of a class body before an instance exists.

In the body of a declared class, a field is an `Expression`. Operations on it give further expressions, and calls of
Pytree classes with one among their arguments are deferred. The constructor evaluates them (`_classes.construction`).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from declax._fields.keys import RNGS, is_without_rngs, needed_rngs, rngs_parameter, with_rngs
from declax._fields.refusals import (
    class_body,
    compares_by_identity,
    is_class_body,
    is_library,
    refuse,
    require_class_body,
)
from declax._fields.sources import (
    CONTAINERS,
    SourceWriter,
    Term,
    Write,
    argument_text,
    container_text,
    declared_text,
    entries,
    has_expression,
    items,
    operand_text,
    rebuilt,
    text_of,
)
from declax.errors import ExpressionError, MissingAttributeError


class Expression(Term):
    """An operation on fields. It has no value until an instance is created.

    Its own attributes begin with ``_pytree__``; all others are operations.
    Hashed by identity, except in dicts and sets of a class body, which refuse it.
    """

    __slots__ = ()

    # ------------------------------------------------------------- operations that give expressions

    def __hash__(self) -> int:
        if is_class_body(sys._getframe(1)):
            refuse(self, "a dict or set", _LOOKUP)
        return object.__hash__(self)

    def __repr__(self) -> str:
        frame = sys._getframe(1)  # errors and debuggers call it from functions, or from an evaluated "<string>"
        if is_class_body(frame) and not frame.f_code.co_name.startswith("<"):
            refuse(self, "repr()", 'dx.defer("{!r}".format)(TERM)')
        return declared_text(self) if class_body() is None else argument_text(self, text_of)

    def __getattr__(self, name: str) -> Expression:
        if name.startswith(("__", "_pytree__")):
            raise AttributeError(name)  # numpy, copy and pickle probe for such names
        if is_library(sys._getframe(1)):
            refuse(self, "a function of JAX or numpy", "dx.defer(function)(TERM)")
        return _operation("{}." + name, self)

    def __getitem__(self, key: object) -> Expression:
        return _operation("{}[{}]", self, _deferred_slices(key))

    def __call__(self, /, *args: object, **kwargs: object) -> Expression:
        return defer_call(self, args, kwargs)

    # ------------------------------------------------------------- operations that need a value

    __array_ufunc__ = None  # numpy leaves arithmetic to the expression, and refuses its other functions

    def __bool__(self) -> bool:  # noqa: PLE0304  # it always raises
        refuse(self, "a truth test (if, not, and, or, in, max, min)", _TRUTH_TEST)

    def __index__(self) -> int:  # noqa: PLE0305  # it always raises
        refuse(self, "int(), float(), range(), a shape or another function", _NUMBER)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Any:
        refuse(self, "an array of numpy", "dx.defer(np.asarray)(TERM)")

    def __len__(self) -> int:  # noqa: PLE0303  # it always raises
        refuse(self, "len()", "dx.defer(len)(TERM)")

    def __iter__(self) -> Iterator[Any]:
        refuse(self, "iteration or unpacking", _ITERATION)

    def __contains__(self, item: object) -> bool:
        refuse(self, "`in`", f"dx.defer(operator.contains)(TERM, {text_of(item)})")

    def __format__(self, spec: str) -> str:
        form = f"{{:{spec}}}" if spec else "{}"
        refuse(self, "formatting", f'dx.defer("{form}".format)(TERM)')

    def __str__(self) -> str:
        return refuse(self, "str()", 'dx.defer("{}".format)(TERM)') if is_class_body(sys._getframe(1)) else repr(self)


_LOOKUP: Final = """\
dx.defer(operator.getitem)(table, TERM)        # in place of table[TERM]
dx.defer(operator.contains)(values, TERM)        # in place of TERM in values"""
_TRUTH_TEST: Final = """\
dx.when(TERM, part, other)        # in place of `if`, `and` and `or`
dx.defer(operator.not_)(TERM)        # in place of `not`
dx.defer(operator.contains)(values, FIELD)        # in place of `in`
dx.defer(max)(FIELD, other)        # in place of max, and in the same way other functions"""
_NUMBER: Final = """\
dx.defer(int)(TERM)        # and in the same way math.sqrt, jnp.zeros and others
dx.repeat(TERM, Block(dim))        # in place of a comprehension over range(TERM)"""
_ITERATION: Final = """\
first, second = TERM[0], TERM[1]        # in place of first, second = TERM
dx.Sequential(TERM)        # in place of dx.Sequential(*TERM)
@dx.submodule
def layers(self, rngs: dx.Rngs) -> list[dx.Linear]: ...        # in place of a loop or comprehension"""

_ARITHMETIC: Final = (
    "add:+ sub:- mul:* truediv:/ floordiv:// mod:% pow:** matmul:@ and:& or:| xor:^ lshift:<< rshift:>>"
)
_COMPARISONS: Final = "eq:== ne:!= lt:< le:<= gt:> ge:>="
_UNARY: Final = "neg:- pos:+"
_EQUALITIES: Final = ("({} == {})", "({} != {})")
_CONSTANTS: Final = frozenset({int, float, bool, str, bytes})


def _binary(template: str) -> Callable[[Any, object], Expression]:
    return lambda self, other: _operation(template, self, other)


def _reflected(template: str) -> Callable[[Any, object], Expression]:
    return lambda self, other: _operation(template, other, self)


def _unary(template: str) -> Callable[[Any], Expression]:
    return lambda self: _operation(template, self)


def _operation(template: str, *operands: object) -> Operation:
    made = Operation(template, *operands)
    is_declared = any(isinstance(value, Expression) and value._pytree__name is not None for value in operands)
    if is_declared and template not in _EQUALITIES:
        require_class_body(made, MissingAttributeError if template.startswith("{}.") else ExpressionError)
    return made


def _add_operators() -> None:
    for entry in f"{_ARITHMETIC} {_COMPARISONS}".split():
        name, symbol = entry.split(":")
        setattr(Expression, f"__{name}__", _binary(f"({{}} {symbol} {{}})"))
        if entry in _ARITHMETIC.split():
            setattr(Expression, f"__r{name}__", _reflected(f"({{}} {symbol} {{}})"))
    for entry in _UNARY.split():
        name, symbol = entry.split(":")
        setattr(Expression, f"__{name}__", _unary(f"({symbol}{{}})"))
    setattr(Expression, "__abs__", _unary("abs({})"))  # noqa: B010  # added like the others


_add_operators()


class Operation(Expression):
    """An operation on operands; the template is its source, with a place for each."""

    __slots__ = ("_pytree__template", "_pytree__values")

    def __init__(self, template: str, *operands: object) -> None:
        super().__init__()
        self._pytree__template = template
        self._pytree__values = operands

    def _pytree__operands(self) -> Iterator[Any]:
        yield from self._pytree__values

    def _pytree__source(self, write: Write) -> str:
        return self._pytree__template.format(*(operand_text(value, write) for value in self._pytree__values))

    def __bool__(self) -> bool:
        template, values = self._pytree__template, self._pytree__values
        is_outside = class_body() is None and not any(value.__class__ in _CONSTANTS for value in values)
        if template in _EQUALITIES and (is_outside or compares_by_identity(sys._getframe(1))):
            # Caches of JAX, signatures and others compare what they hold.
            return (values[0] is values[1]) is ("==" in template)
        return super().__bool__()

    @property
    def _pytree__is_bracketed(self) -> bool:
        return self._pytree__template[0] == "("


class Reference(Operation):
    """Another name of an expression, or an item of a literal that is not made for it."""

    __slots__ = ()

    def __init__(self, target: object) -> None:
        super().__init__("{}", target)

    @property
    def _pytree__target(self) -> Any:
        return self._pytree__values[0]


def referred(value: Any) -> Any:
    """The expression or value of a reference; any other value itself."""
    while isinstance(value, Reference):
        value = value._pytree__target
    return value


class Deferred(Expression):
    """A call that each instance makes for itself, of a class, a function, or an expression."""

    __slots__ = ("_pytree__args", "_pytree__function", "_pytree__kwargs")

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self._pytree__function = function
        self._pytree__args = args
        self._pytree__kwargs = dict(kwargs)

    def _pytree__operands(self) -> Iterator[Any]:
        yield self._pytree__function
        yield from self._pytree__args
        yield from self._pytree__kwargs.values()

    def _pytree__source(self, write: Write) -> str:
        args, kwargs = self._pytree__args, self._pytree__kwargs
        function = write(self._pytree__function)
        written = [argument_text(arg, write) for arg in args]
        if isinstance(write, SourceWriter):
            if self._pytree__makes_layers:
                kwargs = {RNGS: _rngs_of(args[0], write), **kwargs}
                written[0] = write.function(args[0], kwargs[RNGS])
            elif write.implies_rngs and isinstance(self._pytree__function, Expression) and RNGS not in kwargs:
                function = f"{write.constant(with_rngs, 'with_rngs')}({function}, {write(OWN_RNGS)})"
            elif write.implies_rngs and is_without_rngs(self._pytree__function, args, kwargs):
                kwargs = {**kwargs, RNGS: own_rngs_for(self._pytree__function)}
        elif self._pytree__function is not slice and not _defers_calls(self._pytree__function):
            function = f"dx.defer({function})"
        written += [f"{name}={argument_text(value, write)}" for name, value in kwargs.items()]
        return f"{function}({', '.join(written)})"

    @property
    def _pytree__makes_layers(self) -> bool:
        """Whether the called class evaluates the first argument, a deferred call, once for each layer."""
        first = self._pytree__args[0] if self._pytree__args else None
        if not hasattr(self._pytree__function, "_pytree__makes_layers") or not isinstance(first, Deferred):
            return False
        return _defers_calls(first._pytree__function)


def _rngs_of(call: Expression, write: SourceWriter) -> Any:
    """The argument `rngs` of a call, or else of a call among its arguments."""
    if isinstance(call, Deferred):
        given = call._pytree__kwargs.get(RNGS)
        if given is not None:
            return given
        if write.implies_rngs and is_without_rngs(call._pytree__function, call._pytree__args, call._pytree__kwargs):
            return OWN_RNGS
    inner = (operand for operand in call._pytree__operands() if isinstance(operand, Expression))
    return next((found for operand in inner if (found := _rngs_of(operand, write)) is not None), None)


class _OwnRngs(Expression):
    """The random streams of the constructor in which an expression is evaluated."""

    __slots__ = ()

    def _pytree__source(self, write: Write) -> str:
        return RNGS

    def __reduce__(self) -> str:
        return "OWN_RNGS"


OWN_RNGS: Final = _OwnRngs()
"""Stands for `rngs` in calls whose class body does not mention it."""
_NEEDED_RNGS: Final = Deferred(needed_rngs, (OWN_RNGS,), {})


def own_rngs_for(function: Any) -> Expression:
    """The `rngs` for a call that leaves them out; checked if the function requires some."""
    parameter = rngs_parameter(function)
    return _NEEDED_RNGS if parameter is not None and parameter.is_required else OWN_RNGS


def _defers_calls(function: Any) -> bool:
    """Whether a call with an expression among its arguments is deferred without `defer`."""
    return isinstance(function, Expression) or hasattr(function, "_pytree__is_pytree")


class Declaration(Expression):
    """A field of the class body: the result of a specifier, with the standard field that takes its place later."""

    __slots__ = ("_pytree__field",)

    def __init__(self, field: dataclasses.Field[Any]) -> None:
        super().__init__()
        self._pytree__field = field

    def __set_name__(self, owner: Any, name: str) -> None:
        if not hasattr(owner, "_pytree__is_pytree"):  # a plain class, which the standard's decorator reads
            setattr(owner, name, self._pytree__field)


class Repeated(Operation):
    """A list of the results of one expression; the operands are its length and the expression."""

    __slots__ = ()

    def __init__(self, count: object, item: object) -> None:
        super().__init__("dx.repeat({}, {})", count, item)

    def _pytree__source(self, write: Write) -> str:
        if not isinstance(write, SourceWriter):  # for people: as the class body declares it
            return super()._pytree__source(write)
        count, item = map(write, self._pytree__values)
        return f"[{item} for _ in range({count})]"


class Choice(Operation):
    """One of two expressions; the operands are a condition and the two, of which one is not evaluated."""

    __slots__ = ()

    def __init__(self, flag: object, chosen: object, other: object) -> None:
        super().__init__("(dx.when({}, {}, {}))", flag, chosen, other)

    def _pytree__source(self, write: Write) -> str:
        if not isinstance(write, SourceWriter):
            return f"dx.when({', '.join(argument_text(value, write) for value in self._pytree__values)})"
        flag, chosen, other = map(write, self._pytree__values)
        return f"({chosen} if {flag} else {other})"


class Literal(Expression):
    """A literal list, tuple or dict that holds expressions."""

    __slots__ = ("_pytree__value",)

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._pytree__value = value

    def _pytree__operands(self) -> Iterator[Any]:
        yield from items(self._pytree__value)

    def _pytree__source(self, write: Write) -> str:
        return container_text(self._pytree__value, write)


# ================================================================= finding expressions


def is_deferred_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call has an expression among its arguments."""
    for value in args:
        if isinstance(value, Expression) or (value.__class__ in CONTAINERS and has_expression(value)):
            return True
    for value in kwargs.values():
        if isinstance(value, Expression) or (value.__class__ in CONTAINERS and has_expression(value)):
            return True
    return False


def leaves_of(value: Any, known: Mapping[int, object]) -> Iterator[Expression]:
    """The declarations in an expression, and the expressions in it whose identity is known."""
    stack = list(value._pytree__operands())
    while stack:
        operand = stack.pop()
        if isinstance(operand, Expression):
            if id(operand) in known or isinstance(operand, Declaration):
                yield operand
            else:
                stack.extend(operand._pytree__operands())
        elif operand.__class__ in CONTAINERS:
            stack.extend(items(operand))


def calls_of(value: Any, known: Mapping[int, object]) -> Iterator[tuple[Expression, tuple[int, ...]]]:
    """The calls and lists in an expression that have no name, at each place where they stand.

    Each comes with the branches and lists around it, in which it is evaluated or not, or several times.
    """
    waiting: list[tuple[Any, tuple[int, ...]]] = [(value, ())]
    opened = set[int]()
    while waiting:
        parent, around = waiting.pop()
        is_forked = isinstance(parent, Choice | Repeated)
        for number, operand in enumerate(parent._pytree__operands()):
            inside = (*around, id(parent), number) if is_forked and number else around
            if operand.__class__ in CONTAINERS:
                waiting.append((Literal(operand), inside))
            if not isinstance(operand, Expression) or id(operand) in known:
                continue
            is_call = isinstance(operand, Deferred | Repeated)
            if is_call:
                yield operand, inside
            if not is_call or id(operand) not in opened:
                waiting.append((operand, inside))
            opened.add(id(operand))


def constants_of(value: Any) -> Iterator[Any]:
    """The values in an expression that are not expressions or containers."""
    for operand in value._pytree__operands():
        if isinstance(operand, Expression):
            if operand._pytree__name is None:  # a named expression is a separate part
                yield from constants_of(operand)
        elif operand.__class__ in CONTAINERS and has_expression(operand):
            yield from constants_of(Literal(operand))
        else:
            yield operand


def is_constant(value: Any) -> bool:
    """Whether a value is made of calls and literals alone, without a field, and its calls require no `rngs`."""
    if isinstance(value, Deferred):
        parameter = rngs_parameter(value._pytree__function)
        is_lacking = parameter is not None and parameter.is_required and RNGS not in value._pytree__kwargs
        return not is_lacking and all(map(is_constant, value._pytree__operands()))
    if isinstance(value, Literal | Reference):
        return all(map(is_constant, value._pytree__operands()))
    return not isinstance(value, Expression) and (not has_expression(value) or all(map(is_constant, items(value))))


def evaluate_constant(value: Any) -> Any:
    """The value of what `is_constant` accepts."""
    value = referred(value)
    if isinstance(value, Deferred):
        args = map(evaluate_constant, value._pytree__args)
        kwargs = {name: evaluate_constant(arg) for name, arg in value._pytree__kwargs.items()}
        return value._pytree__function(*args, **kwargs)
    held = value._pytree__value if isinstance(value, Literal) else value
    if not has_expression(held):
        return held
    return rebuilt(held, {key: evaluate_constant(item) for key, item in entries(held)})


def items_of(value: Any, path: str = "") -> Iterator[tuple[Any, str]]:
    """The containers and expressions in a literal, each with its subscripts."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        if isinstance(item, Expression):
            yield item, f"{path}[{key!r}]"
        elif item.__class__ in CONTAINERS and has_expression(item):
            yield item, f"{path}[{key!r}]"
            yield from items_of(item, f"{path}[{key!r}]")


# ================================================================= deferring calls


def _deferred_slices(key: Any) -> Any:
    """A subscript, in which slices between expressions are deferred calls."""
    if key.__class__ is tuple:
        return tuple(map(_deferred_slices, key))
    if key.__class__ is slice and has_expression((key.start, key.stop, key.step)):
        return Deferred(slice, (key.start, key.stop, key.step), {})
    return key


def defer_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Deferred:
    """A deferred call, in a class body; elsewhere nothing would make it."""
    call = Deferred(function, args, kwargs)
    require_class_body(call)
    return call
