"""Expressions of fields: the values of a class body before an instance exists.

In the body of a declared class, a field is an `Expression`. Operations on it
give further expressions, and calls of Pytree classes with one among their
arguments are deferred. The constructor evaluates them (`_construction`).
"""

from __future__ import annotations

import collections
import dataclasses
import dis
import enum
import functools
import inspect
import keyword
import linecache
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from types import FrameType, FunctionType, NoneType, SimpleNamespace
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, overload

from declax.errors import DeclaxError, ExpressionError, FieldError, MissingAttributeError, describe, type_name

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
U = TypeVar("U")

Write = Callable[[Any], str]
"""Gives the source of an operand."""

CONTAINERS: Final = frozenset({list, tuple, dict})
"""The containers whose literals may hold expressions."""


_OF_JAX: Final = frozenset({"aval", "dtype", "ndim", "shape", "weak_type", "_evaluate"})
"""The attributes that JAX asks of arrays, and of symbolic dimensions."""

METHOD: Final = (
    "@dx.submodule\ndef part(self, rngs: dx.Rngs) -> dx.Linear: ...        # self has all fields declared above"
)


class Unmade:
    """The value of an attribute until its constructor makes the part."""

    __slots__ = ()


class Expression(Unmade):
    """An operation on fields. It has no value until an instance is created.

    Its own attributes begin with ``_pytree__``; all others are operations.
    Hashed by identity.
    """

    __slots__ = ("__weakref__", "_pytree__name", "_pytree__specified")  # JAX keeps weak references to arguments

    def __init__(self) -> None:
        self._pytree__name: str | None = None
        self._pytree__specified: dataclasses.Field[Any] | None = None  # by a specifier whose default it is

    def _pytree__source(self, write: Write) -> str:
        """The expression as Python source."""
        return self._pytree__name or "field()"

    def _pytree__operands(self) -> Iterator[Any]:
        """The values that the expression is made of."""
        return iter(())

    def __repr__(self) -> str:
        return _bare(self, text_of)

    # ------------------------------------------------------------- operations that give expressions

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __getattr__(self, name: str) -> Expression:
        if name.startswith(("__", "_pytree__")):
            raise AttributeError(name)  # numpy, copy and pickle probe for such names
        if name in _OF_JAX and _is_library(sys._getframe(1)):
            self._pytree__refuse("a function of JAX", f"dx.defer(function)({_bare(self, text_of)})")
        return _operation("{}." + name, self)

    def __getitem__(self, key: object) -> Expression:
        return _operation("{}[{}]", self, _deferred_slices(key))

    def __call__(self, /, *args: object, **kwargs: object) -> Expression:
        return defer_call(self, args, kwargs)

    # ------------------------------------------------------------- operations that need a value

    def _pytree__refuse(self, operation: str, fix: str = METHOD) -> NoReturn:
        _require_class_body(self)
        raise ExpressionError(
            _where(_bare(self, text_of)),
            f"a field has no value until an instance is created, and {operation} needs one",
            fix=_running_call(self) or fix,
        )

    def __bool__(self) -> bool:  # noqa: PLE0304  # it always raises
        fix = f"dx.when({_bare(self, text_of)}, part, other)"
        self._pytree__refuse("a truth test (if, not, and, or, in, max, min)", fix)

    def __index__(self) -> int:  # noqa: PLE0305  # it always raises
        self._pytree__refuse("range() or a shape", "blocks = dx.repeat(depth, Block(dim, rngs=rngs))")

    def __int__(self) -> int:
        self._pytree__refuse("int()", f"dx.defer(int)({_bare(self, text_of)})")

    def __float__(self) -> float:
        self._pytree__refuse("float(), or a function of math,", f"dx.defer(math.sqrt)({_bare(self, text_of)})")

    def __round__(self, digits: int | None = None) -> int:
        self._pytree__refuse("round()", f"dx.defer(round)({_bare(self, text_of)})")

    def __array_ufunc__(self, ufunc: Any, method: str, *args: object, **kwargs: object) -> Any:
        if method != "__call__":
            return NotImplemented
        return defer_call(ufunc, args, kwargs)  # numpy would call a method of the name of the function

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Any:
        self._pytree__refuse("an array of numpy", f"dx.defer(np.asarray)({_bare(self, text_of)})")

    @property
    def __jax_array__(self) -> None:
        # The functions of jax.numpy check their arguments by it. Other parts of JAX only probe for it.
        if str(sys._getframe(1).f_globals.get("__name__")).endswith("numpy.util"):
            self._pytree__refuse("a function of JAX", f"dx.defer(function)({_bare(self, text_of)})")
        raise AttributeError("__jax_array__")

    def __divmod__(self, other: object) -> Any:
        self._pytree__refuse("divmod()")

    __rdivmod__ = __divmod__

    def __len__(self) -> int:  # noqa: PLE0303  # it always raises
        self._pytree__refuse("len()", f"dx.defer(len)({_bare(self, text_of)})")

    def __iter__(self) -> Iterator[Any]:
        self._pytree__refuse("iteration or unpacking", "blocks = dx.repeat(depth, Block(dim, rngs=rngs))")

    def __contains__(self, item: object) -> bool:
        self._pytree__refuse("`in`")

    def __format__(self, spec: str) -> str:
        self._pytree__refuse("formatting", f'dx.defer("{{}}".format)({_bare(self, text_of)})')

    def __str__(self) -> str:
        text = repr(self)
        return text if _class_body() is None else self._pytree__refuse("str()", f'dx.defer("{{}}".format)({text})')


_ARITHMETIC: Final = (
    "add:+ sub:- mul:* truediv:/ floordiv:// mod:% pow:** matmul:@ and:& or:| xor:^ lshift:<< rshift:>>"
)
_COMPARISONS: Final = "eq:== ne:!= lt:< le:<= gt:> ge:>="
_UNARY: Final = "neg:- pos:+ invert:~"
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
        _require_class_body(made, MissingAttributeError if template.startswith("{}.") else ExpressionError)
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
    """An operation on operands.

    Args:
      template: its source, with a place for each operand.
      *operands: expressions and constants.
    """

    __slots__ = ("_pytree__template", "_pytree__values")

    def __init__(self, template: str, *operands: object) -> None:
        super().__init__()
        self._pytree__template = template
        self._pytree__values = operands

    def _pytree__operands(self) -> Iterator[Any]:
        yield from self._pytree__values

    def _pytree__source(self, write: Write) -> str:
        return self._pytree__template.format(*(_operand(value, write) for value in self._pytree__values))

    def __bool__(self) -> bool:
        template, values = self._pytree__template, self._pytree__values
        is_outside = _class_body() is None and not any(value.__class__ in _CONSTANTS for value in values)
        if template in _EQUALITIES and (is_outside or _is_library(sys._getframe(1))):
            # Caches of JAX, signatures and others compare what they hold.
            return (values[0] is values[1]) is ("==" in template)
        return super().__bool__()

    @property
    def _pytree__is_arithmetic(self) -> bool:
        """Whether numbers give a number."""
        return "." not in self._pytree__template and "[" not in self._pytree__template


class Deferred(Expression):
    """A call that each instance makes for itself.

    Args:
      function: a class, a function, or an expression.
      args, kwargs: its arguments.
    """

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
        written = [_argument(arg, write) for arg in args]
        if isinstance(write, Writer) and self._pytree__makes_layers:
            kwargs = {"rngs": args[0]._pytree__kwargs.get("rngs"), **kwargs}
            written[0] = write.function(args[0], kwargs["rngs"])
        written += [f"{name}={_argument(value, write)}" for name, value in kwargs.items()]
        return f"{write(self._pytree__function)}({', '.join(written)})"

    @property
    def _pytree__makes_layers(self) -> bool:
        """Whether the called class evaluates the first argument, a deferred call, once for each layer."""
        first = self._pytree__args[0] if self._pytree__args else None
        if not hasattr(self._pytree__function, "_pytree__makes_layers") or not isinstance(first, Deferred):
            return False
        made_by = first._pytree__function
        return isinstance(made_by, Expression) or hasattr(made_by, "_pytree__is_pytree")


class Declaration(Expression):
    """A field of the class body: the result of a specifier.

    Args:
      field: the standard field that takes its place when the class is created.
    """

    __slots__ = ("_pytree__field",)

    def __init__(self, field: dataclasses.Field[Any]) -> None:
        super().__init__()
        self._pytree__field = field

    def __set_name__(self, owner: Any, name: str) -> None:
        if not hasattr(owner, "_pytree__is_pytree"):  # a plain class, which the standard's decorator reads
            setattr(owner, name, self._pytree__field)


class Repeated(Expression):
    """A list of the results of one expression, evaluated several times."""

    __slots__ = ("_pytree__count", "_pytree__item")

    def __init__(self, count: object, item: object) -> None:
        super().__init__()
        self._pytree__count = count
        self._pytree__item = item

    def _pytree__operands(self) -> Iterator[Any]:
        yield from (self._pytree__count, self._pytree__item)

    def _pytree__source(self, write: Write) -> str:
        return f"[{write(self._pytree__item)} for _ in range({write(self._pytree__count)})]"


class Choice(Expression):
    """One of two expressions; the other is not evaluated."""

    __slots__ = ("_pytree__flag", "_pytree__pair")

    def __init__(self, flag: object, chosen: object, other: object) -> None:
        super().__init__()
        self._pytree__flag = flag
        self._pytree__pair = (chosen, other)

    def _pytree__operands(self) -> Iterator[Any]:
        yield from (self._pytree__flag, *self._pytree__pair)

    def _pytree__source(self, write: Write) -> str:
        chosen, other = map(write, self._pytree__pair)
        return f"({chosen} if {write(self._pytree__flag)} else {other})"


class Literal(Expression):
    """A literal list, tuple or dict that holds expressions."""

    __slots__ = ("_pytree__value",)

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._pytree__value = value

    def _pytree__operands(self) -> Iterator[Any]:
        yield from _items(self._pytree__value)

    def _pytree__source(self, write: Write) -> str:
        return _container(self._pytree__value, write)


# ================================================================= finding expressions


def _items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def has_expression(value: object, depth: int = 8) -> bool:
    """Whether a value is an expression, or a literal list, tuple or dict that holds one.

    Args:
      value: any value.
      depth: how deep literals are nested at most.
    """
    if isinstance(value, Expression):
        return True
    if value.__class__ not in CONTAINERS or depth == 0:
        return False
    for item in _items(value):
        if isinstance(item, Expression) or (item.__class__ in CONTAINERS and has_expression(item, depth - 1)):
            return True
    return False


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
            stack.extend(_items(operand))


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
            if operand.__class__ is dict:
                yield dict.fromkeys(filter(has_expression, operand))  # which are refused
            yield from constants_of(Literal(operand))
        else:
            yield operand


def items_of(value: Any, path: str = "") -> Iterator[tuple[Any, str]]:
    """The containers and expressions in a literal, each with its subscripts."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        if isinstance(item, Expression):
            yield item, f"{path}[{key!r}]"
        elif item.__class__ in CONTAINERS and has_expression(item):
            yield item, f"{path}[{key!r}]"
            yield from items_of(item, f"{path}[{key!r}]")


# ================================================================= writing expressions


def text_of(value: object) -> str:
    """A value as the class body writes it."""
    if isinstance(value, Expression):
        name = value._pytree__name
        return name if name is not None else value._pytree__source(text_of)
    if value.__class__ in CONTAINERS:
        return _container(value, text_of)
    if isinstance(value, type):
        return type_name(value)
    is_long = not isinstance(value, (int, float, complex, str, bytes, enum.Enum, NoneType))
    return getattr(value, "__name__", None) or (f"{type_name(type(value))}(...)" if is_long else repr(value))


def _bare(value: Expression, write: Write) -> str:
    """The source of an expression by itself, without the brackets around all of it."""
    return _argument(value, lambda operand: operand._pytree__source(write) if operand is value else write(operand))


def _argument(value: Any, write: Write) -> str:
    text = write(value)
    is_bracketed = isinstance(value, Choice) or (isinstance(value, Operation) and value._pytree__template[0] == "(")
    return text[1:-1] if is_bracketed and text.startswith("(") else text  # a name has no brackets


def _operand(value: Any, write: Write) -> str:
    """The source of an operand; a negative number binds less than a power."""
    text = write(value)
    return f"({text})" if text.startswith("-") else text


def _deferred_slices(key: Any) -> Any:
    """A subscript, in which slices between expressions are deferred calls."""
    if key.__class__ is tuple:
        return tuple(map(_deferred_slices, key))
    if key.__class__ is slice and has_expression((key.start, key.stop, key.step)):
        return Deferred(slice, (key.start, key.stop, key.step), {})
    return key


def _container(value: Any, write: Write) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{write(k)}: {write(v)}" for k, v in value.items()) + "}"
    inside = ", ".join(map(write, value))
    if isinstance(value, list):
        return f"[{inside}]"
    return f"({inside},)" if len(value) == 1 else f"({inside})"


def _is_mutable(value: Any) -> bool:
    """Whether a literal is, or holds, a list or dict; each instance makes such a literal anew."""
    return value.__class__ is not tuple or any(item.__class__ in CONTAINERS and _is_mutable(item) for item in value)


class Writer:
    """Writes expressions as the source of a function, and collects the constants in them.

    Args:
      names: the source of each expression that has a name, by identity.
      reserved: the names that the function around the source binds.

    Attributes:
      constants: the values that are not literals, by the name that the source uses.
      shared: the local names of expressions that stand more than once in a part, by identity; empty until written.
    """

    def __init__(self, names: Mapping[int, str], reserved: Collection[str] = ()) -> None:
        self._names = names
        self._reserved = reserved
        self.shared: dict[int, str] = {}
        self.constants: dict[str, Any] = {"abs": abs, "range": range}

    def __call__(self, value: Any) -> str:
        """The source of a value."""
        known = self._names.get(id(value))
        if known is not None:
            return known
        if isinstance(value, Expression):
            return self._shared(value) if id(value) in self.shared else value._pytree__source(self)
        if value.__class__ in CONTAINERS and (has_expression(value) or _is_mutable(value)):
            return _container(value, self)
        if value is None or value.__class__ in (bool, int, str) or (value.__class__ is float and math.isfinite(value)):
            return repr(value)
        return self.constant(value, getattr(value, "__name__", None) or repr(value))

    def _shared(self, value: Expression) -> str:
        """The source of an expression that is evaluated where it stands first."""
        name = self.shared[id(value)]
        if name:
            return name
        name = self.shared[id(value)] = self.constant(value, "shared")
        return f"({name} := {value._pytree__source(self)})"

    def whole(self, value: Any) -> str:
        """The source of a value by its own expression, although it has a name."""
        return _bare(value, self)

    def function(self, item: Any, rngs: Any) -> str:
        """The source of a function that evaluates an expression, with the given keys in the place of `rngs`."""
        names = {**self._names} if rngs is None else {**self._names, id(rngs): "rngs"}
        writer = Writer(names, self._reserved)
        writer.constants = self.constants
        return f"lambda{'' if rngs is None else ' rngs'}: {writer(item)}"

    def constant(self, value: Any, name: str) -> str:
        """The name under which the source refers to a constant."""
        base = name if name.isidentifier() else "constant"
        name, number = base, 1
        while name in self._reserved or keyword.iskeyword(name) or self.constants.get(name, value) is not value:
            number += 1
            name = f"{base}_{number}"
        self.constants[name] = value
        return name


# ================================================================= deferring calls


def defer_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Deferred:
    """A deferred call, in a class body.

    Raises:
      FieldError: outside of a class body, where nothing would ever make the call.
    """
    call = Deferred(function, args, kwargs)
    _require_class_body(call)
    return call


def _class_body() -> FrameType | None:
    """The innermost class body of a Pytree among the frames that run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # The locals of functions are left alone: they would be copied.
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED and hasattr(type(frame.f_locals), "_pytree__is_class_body"):
            return frame
        frame = frame.f_back
    return None


def _is_library(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return module.startswith("jax.") or module == "inspect"


def _where(text: str) -> str:
    """An expression with the class whose body uses it, where that runs."""
    frame = _class_body()
    if frame is None:
        return text
    return f"{frame.f_code.co_name}.{text}" if text.isidentifier() else f"{frame.f_code.co_name}: {text}"


def _name_of_instruction(frame: FrameType) -> str:
    """The instruction that a frame runs; the interpreter may stand in the caches behind it."""
    return next(name for code in frame.f_code.co_code[frame.f_lasti :: -2] if (name := dis.opname[code]) != "CACHE")


def _running_call(expression: Expression) -> str | None:
    """The call that the class body makes now, written as a deferred one; None where there is none."""
    frame = _class_body()
    if frame is None or not _name_of_instruction(frame).startswith("CALL"):
        return None
    line, last, start, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    source = linecache.getline(frame.f_code.co_filename, line or 0, frame.f_globals).encode()[start:end].decode()
    function, _, arguments = source.partition("(")
    if arguments and line == last:
        if arguments.startswith("*"):
            return f"{function}({arguments[1:]}"
        return None if function == "range" else f"dx.defer({function})({arguments}"
    called: Any = sys._getframe(1)
    while called.f_back is not frame:
        called = called.f_back
    if called.f_globals is not globals():
        name = called.f_code.co_name
        return f"dx.defer({name})(...)" if name.isidentifier() else None
    if called.f_code.co_name != "__bool__":
        return None
    operands = ", ".join(map(text_of, expression._pytree__operands())) or text_of(expression)
    return f"dx.defer(f)({operands})        # in place of f({operands}), such as max or min"


def _require_class_body(expression: Expression, error: type[DeclaxError] = ExpressionError) -> None:
    """Raises outside of a class body, where nothing would ever evaluate an operation."""
    if _class_body() is None:
        raise error(
            _bare(expression, text_of),
            "a field has no value until an instance is created, and this is not in the body of a declared class",
            fix="block.dim        # the field of an instance, in place of Block.dim",
        )


def defer(function: Callable[P, R], /) -> Callable[P, R]:
    """Defers the call of a function, or of a class, to the creation of each instance.

    Calls of Pytree classes with fields among their arguments are deferred
    without it.

    Args:
      function: what to call.

    Returns:
      A function of the same arguments; its call declares a part.

    Raises:
      FieldError: if the argument cannot be called.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Table(dx.Module):
    ...     size: int = dx.field()
    ...     names: list[str] = dx.defer(sorted)(["b", "a"])
    >>> Table(3).names
    ['a', 'b']
    """
    if not callable(function):
        raise FieldError("defer", "the argument cannot be called", got=describe(function), fix="dx.defer(f)(dim)")
    refuse_hidden(function, "defer")

    def deferred(*args: P.args, **kwargs: P.kwargs) -> Any:
        return defer_call(function, args, kwargs)

    return deferred


def refuse_hidden(value: Any, where: str, depth: int = 8) -> None:
    """Raises for expressions where nothing evaluates them: in all containers but literal lists, tuples and dicts."""
    cls: Any = value.__class__
    held = next(filter(has_expression, _hidden_items(value)), None)
    if held is None:
        if cls in CONTAINERS and depth:
            for item in _items(value):
                refuse_hidden(item, where, depth - 1)
        return
    text, why = text_of(held), "nothing evaluates it there, and whoever reads it would get the expression"
    problem = f"a {cls.__name__} holds the field expression {text}"
    fix = f"dx.defer({cls.__name__})(...)        # each instance makes it"
    if issubclass(cls, functools.partial):
        fix = "dx.defer(functools.partial)(f, dim)        # each instance makes the partial"
    elif cls in (set, frozenset, dict):
        problem = f"the field expression {text} is {'a key' if cls is dict else 'an element'} of a {cls.__name__}"
        why = "it would be found by its identity, not by its value"
        fix = "dx.defer(dict)([(dim, part)])" if cls is dict else f"dx.defer({cls.__name__})([dim])"
    elif cls is FunctionType:
        problem = f"the default of a parameter is the field expression {text}"
        fix = f"def {value.__name__}(self, size=None): ...        # and read self.{text} there"
    raise FieldError(where, problem, why=why, fix=fix)


def _hidden_items(value: Any) -> Iterable[Any]:
    """The value, in a place where nothing evaluates expressions."""
    cls: Any = value.__class__
    if isinstance(value, functools.partial):
        return (*value.args, *value.keywords.values())
    if cls is FunctionType:
        return (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    if cls is slice:
        return (value.start, value.stop, value.step)
    if cls is SimpleNamespace or (dataclasses.is_dataclass(cls) and hasattr(value, "__dict__")):
        return tuple(vars(value).values())
    if cls in (list, tuple):
        return ()
    if isinstance(value, dict):
        return value if cls is dict else (*value, *value.values())
    return value if isinstance(value, (set, frozenset, tuple, list, collections.deque)) else ()


def repeat(n: int, item: T, /) -> list[T]:
    """Declares a list part: evaluates a deferred call several times.

    Args:
      n: the length of the list, usually a field.
      item: the deferred call.

    Returns:
      The list, to type checkers; in the class body, an expression.

    Raises:
      FieldError: if all elements would be one object: `item` is not an expression, or a part that has a name.
      ExpressionError: outside of a class body.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Tower(dx.Module):
    ...     depth: int = dx.field()
    ...     dim: int = dx.field()
    ...     rngs: dx.InitVar[dx.Rngs] = dx.field()
    ...     layers = dx.repeat(depth, dx.Linear(dim, dim, rngs=rngs))
    >>> len(Tower(3, 4, rngs=dx.Rngs(0)).layers)
    3
    """
    if not has_expression(item):
        raise FieldError(
            "repeat",
            "the repeated value is not a deferred call, so that all elements would be one object",
            got=describe(item),
            fix="dx.repeat(depth, dx.defer(Block)())",
        )
    if isinstance(item, Deferred) and item._pytree__name is not None:
        raise FieldError(
            "repeat",
            f"the repeated value is the part {item._pytree__name}, so that all elements would be one object",
            why="the name of a part refers to the object that an instance has",
            fix=f"dx.repeat(depth, {item._pytree__source(text_of)})",
        )
    made = Repeated(n, item)
    _require_class_body(made)
    return made  # type: ignore[return-value]  # an expression stands for its value


@overload
def when(flag: bool, item: T, /) -> T | None: ...
@overload
def when(flag: bool, item: T, other: U, /) -> T | U: ...
def when(flag: bool, item: Any, other: Any = None, /) -> Any:
    """Declares one of two parts; the other is not made.

    Args:
      flag: a condition on fields.
      item: the part if the condition holds.
      other: the part if it does not.

    Returns:
      The part, to type checkers; in the class body, an expression.

    Raises:
      FieldError: if the condition is True or False, as `size is None` is.
      ExpressionError: outside of a class body.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Head(dx.Module):
    ...     dim: int = dx.field()
    ...     is_small: bool = dx.field(default=True)
    ...     width = dx.when(is_small, dim, 4 * dim)
    >>> Head(3).width, Head(3, is_small=False).width
    (3, 12)
    """
    made = Choice(flag, item, other)
    if isinstance(flag, bool):
        raise FieldError(
            _where("when"),
            f"the condition is the constant {flag}",
            why="`is` compares the expression itself with None, where no value exists yet",
            fix="dx.when(size != None, part, other)        # in place of `size is not None`",
        )
    _require_class_body(made)
    return made
