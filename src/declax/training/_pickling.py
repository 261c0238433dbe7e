"""Pickles for values made of closures, such as optax transformations.

Python pickles a function by its name, and a function made inside of another
one has none that leads to it. Its code, however, is a constant of the outer
function's code, which has a name. So a closure is written as that name, the
place of its code, and what its cells hold.

Vocabulary
----------
address: where to find code: a module, the path of attributes to the outermost
         function, the qualified name of the code, and its number among the
         codes of that name (lambdas share theirs).
cell:    where a closure keeps one variable. Cells are written one by one:
         functions that share one do not share it any more after reading.
"""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from declax import errors

_LOCALS = ".<locals>."


class Address(NamedTuple):
    """Where to find the code of a function.

    Attributes:
      module: the name of the module.
      qualname: the qualified name of the code.
      number: which of the codes of this name it is.
      cells: the names of its cells, to see whether it has changed since.
    """

    module: str
    qualname: str
    number: int
    cells: tuple[str, ...]


def dumps(value: object) -> bytes:
    """Pickles a value that may hold closures.

    Raises:
      OptimizerError: a function in it was made where its code cannot be found again.

    >>> import optax
    >>> type(loads(dumps(optax.adam(1e-3)))).__name__
    'GradientTransformationExtraArgs'
    """
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def loads(pickled: bytes) -> Any:
    """The value that `dumps` has written.

    Raises:
      OptimizerError: the code of a function in it is gone, or has other cells now.
    """
    return pickle.loads(pickled)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Takes over the functions that pickle cannot name."""
        if not isinstance(value, types.FunctionType) or _is_importable(value):
            return NotImplemented
        cells = tuple(_contents(cell) for cell in value.__closure__ or ())
        state = (cells, value.__defaults__, value.__kwdefaults__, vars(value))
        # The state is written after the function itself, so a closure may hold itself.
        return _make_function, (_address_of(value), value.__name__, value.__qualname__), state, None, None, _fill


def _is_importable(function: types.FunctionType) -> bool:
    try:
        found: Any = importlib.import_module(function.__module__)
        for name in function.__qualname__.split("."):
            found = getattr(found, name)
    except (AttributeError, ImportError, TypeError, ValueError):
        return False
    return found is function


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a name that its function has not assigned yet
        return ()


def _address_of(function: types.FunctionType) -> Address:
    code = function.__code__
    address = Address(function.__globals__.get("__name__", ""), code.co_qualname, 0, code.co_freevars)
    for number, found in enumerate(_codes_at(address)):
        if found is code or found == code:
            return address._replace(number=number)
    raise errors.OptimizerError(
        "Optimizer.tx",
        f"the function {code.co_qualname} in {address.module or 'no module'} cannot be pickled",
        why="it was made where its code cannot be found again, as by a lambda, exec or a notebook",
        fix="define it by def in a module, or pickle dx.state(optimizer) and make the optimizer anew",
    )


def _codes_at(address: Address) -> Iterator[types.CodeType]:
    """All codes of the name in the outermost function that the address leads to."""
    outermost, is_local, _ = address.qualname.partition(_LOCALS)
    try:
        found: Any = importlib.import_module(address.module)
        for name in outermost.split("."):
            found = inspect.getattr_static(found, name) if isinstance(found, type) else getattr(found, name)
    except (AttributeError, ImportError, ValueError):
        return
    code = getattr(inspect.unwrap(getattr(found, "__func__", found)), "__code__", None)
    if isinstance(code, types.CodeType) and is_local:
        yield from _codes_within(code, address.qualname)


def _codes_within(code: types.CodeType, qualname: str) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_qualname == qualname:
                yield constant
            yield from _codes_within(constant, qualname)


def _make_function(address: Address, name: str, qualname: str) -> types.FunctionType:
    codes = list(_codes_at(address))
    if address.number >= len(codes) or codes[address.number].co_freevars != address.cells:
        raise errors.OptimizerError(
            "Optimizer.tx",
            f"the function {address.qualname} of {address.module} is not what it was when the optimizer was pickled",
            expected=f"a function that closes over {', '.join(address.cells) or 'nothing'}",
            why="another version of the module is installed",
            fix="install that version, or make the optimizer anew and update its state",
        )
    module = importlib.import_module(address.module)
    cells = tuple(types.CellType() for _ in address.cells)
    function = types.FunctionType(codes[address.number], vars(module), name, None, cells)
    function.__qualname__ = qualname
    return function


def _fill(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    contents, function.__defaults__, function.__kwdefaults__, attributes = state
    vars(function).update(attributes)
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        if content:
            cell.cell_contents = content[0]
