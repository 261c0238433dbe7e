"""Objects of Python that hold the models of a call, or their ids, where no trace replaces them.

While a function is traced, a copy stands for each model that it receives or captures. `captures` replaces models in
functions, lists, tuples, dicts and sets. All else keeps the originals: plain objects and classes, other tables, and
numbers that `id` gave. A function that compares by them gets a warning.
"""

from __future__ import annotations

import dis
import functools
import gc
import sys
import types
import warnings
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from declax import _jax
from declax._fields.bytecode import chains_at, codes_within
from declax._graph.binding import Binding
from declax._graph.differences import paths_of_objects
from declax._typing import MISSING
from declax.errors import OverlookedModelWarning, type_name
from declax.transforms._engine.captures import (
    CONTAINERS,
    Captures,
    capture_kind,
    is_of_library,
    names_and_variables,
)
from declax.transforms._engine.names import name_path
from declax.transforms._engine.structure import ROOT_CLASSES, Structure

_LOWEST_ID: Final = 2**20
"""Smaller numbers are sizes or positions; `id` gives addresses."""

_MAX_OBJECTS: Final = 1000
_MAX_DEPTH: Final = 6
"""How many objects are opened for one function, and how many within each other."""

_CLOSED: Final = (str, bytes, float, complex, jax.Array, Tracer, np.ndarray, types.BuiltinFunctionType)


class Held(NamedTuple):
    """An object of Python that a function reaches, and what is in it.

    Attributes:
      path: the name by which the function knows it, with attributes.
      is_key: whether it is a key of a table or a member of a set, which are there to be looked up.
      is_replaced: whether the traced function has a copy in place of it, if it is a model.
      owners: the plain objects on the path.
    """

    path: str
    value: Any
    is_key: bool = False
    is_replaced: bool = False
    owners: tuple[Any, ...] = ()

    @property
    def is_id(self) -> bool:
        """Whether it may be a number that `id` gave."""
        return type(self.value) is int and self.value > _LOWEST_ID

    @property
    def identity(self) -> int:
        """The id of the model, to which a weak reference may be here."""
        return self.value if self.is_id else id(self.value())

    @property
    def name(self) -> str:
        """The attribute that holds it, or the name."""
        return self.path.rpartition(".")[2]

    def weak(self) -> Held:
        """The same without references to what it holds."""
        return self if self.is_id else self._replace(value=weakref.ref(self.value), owners=())


def warn_of_identities(captures: Captures, structure: Structure, binding: Binding) -> None:
    """Warns of what holds the models of a call, or their ids, where the function compares by it: once for each."""
    if captures.identities is None:
        captures.identities = _compared_by(captures)
    if not captures.identities:
        return
    numbers = {id(each): number for number, each in enumerate(binding.objects())}
    found = [held for held in captures.identities if held.identity in numbers]
    captures.identities = [held for held in captures.identities if held.identity not in numbers]
    paths = paths_of_objects(structure.graphdef) if found else ()
    for path, held in {held.path: held for held in reversed(found)}.items():
        model = name_path(structure, paths[numbers[held.identity]]).removeprefix("captured ")
        _warn(f"{path!r} holds {'the id of the model' if held.is_id else 'the model'} {model!r}")


def warn_of_keys(keys: list[Any], structure: Structure, binding: Binding) -> None:
    """Warns of models of a call that are keys of dicts among its arguments: keys are static, so they stay originals."""
    numbers = {id(each): number for number, each in enumerate(binding.objects())}
    paths = paths_of_objects(structure.graphdef)
    for number in dict.fromkeys(numbers[id(key)] for key in keys if id(key) in numbers):
        model = name_path(structure, paths[number]).removeprefix("captured ")
        _warn(f"a dict among the arguments has the model {model!r} as a key")


def _warn(what: str) -> None:
    warnings.warn(
        f"{what}. While a function is traced, another object stands for each model that "
        "it receives or captures, so that these are never the same. Use the model itself as the key of a dict or "
        "as the member of a set that the function reaches by name, or compare before the call",
        OverlookedModelWarning,
        stacklevel=_jax.level_of_user(sys._getframe()),
    )


def plain_owners(name: str, value: Any) -> tuple[list[str], str] | None:
    """Where a plain object and those in it hold models, and the lines that make them modules; None for others."""
    if not _has_attributes(value):
        return None
    found = [held for held in _search([Held(name, value)], None) if ROOT_CLASSES[type(held.value)]]
    classes = dict.fromkeys(type_name(type(owner)) for held in found for owner in held.owners)
    lines = [f"class {cls}(dx.Module):        # an argument then, whose models can change" for cls in classes]
    return (list(dict.fromkeys(held.path for held in found)), "\n".join(lines)) if found else None


def _compared_by(captures: Captures) -> list[Held]:
    """What the functions of a user compare by: all ids and keys that they reach, and models if they compare these."""
    functions = list(captures.functions)
    waiting: list[Held] = [Held("self", owner) for owner in captures.plain_selves()]
    waiting += [held for function in functions for held in _names_of(function, is_replaced=True)]
    if not waiting:
        return []
    modules = [function.__globals__ for function in functions]
    found: list[Held] = []
    is_new = bool(functions)
    while is_new:
        is_new = False
        codes = [code for function in functions for code in codes_within(function.__code__)]
        found = list(_search(waiting, {"__call__", *(name for code in codes for name in code.co_names)}))
        for method in [held.value for held in found if type(held.value) is types.FunctionType]:
            if method not in functions and any(method.__globals__ is module for module in modules):
                is_new = True  # a method of a plain object, which knows the originals
                functions.append(method)
                waiting += [held._replace(path=f"{method.__name__}.{held.path}") for held in _names_of(method, False)]
    found = [held for held in found if held.is_id or ROOT_CLASSES[type(held.value)]]
    if not found:
        return []
    compared = frozenset[str]().union(*(_compared(function.__code__) for function in functions))
    return [h.weak() for h in found if h.is_id or h.is_key or not compared.isdisjoint((_ANY, h.name))]


def _names_of(function: types.FunctionType, is_replaced: bool) -> Iterator[Held]:
    """What a function knows by name: variables around it, names of its module, and defaults."""
    for site in names_and_variables(function, of_user=True):
        yield Held(str(site.key), site.content, is_replaced=is_replaced)
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for name, default in (*zip(names, defaults, strict=True), *(function.__kwdefaults__ or {}).items()):
        yield Held(name, default, is_replaced=is_replaced)


# ----------------------------------------------------------------- the search


def _search(names: list[Held], used: Collection[str] | None) -> Iterator[Held]:
    """The models, numbers and functions that are reached; of plain objects by attributes that are used, or by all."""
    waiting = deque((held, 0) for held in names)
    seen = set[tuple[int, bool]]()
    while waiting and len(seen) < _MAX_OBJECTS:
        held, depth = waiting.popleft()
        cls, key = type(held.value), (id(held.value), held.is_key)
        if ROOT_CLASSES[cls] or cls is int or cls is types.FunctionType:
            if not held.is_replaced or held.is_id:
                yield held
        elif key not in seen and depth < _MAX_DEPTH and not issubclass(cls, _CLOSED):
            seen.add(key)
            waiting.extend((part, depth + 1) for part in islice(_parts_of(held, used), _MAX_OBJECTS))


def _parts_of(held: Held, used: Collection[str] | None) -> Iterator[Held]:
    value, cls, kind = held.value, type(held.value), capture_kind(held.value)  # `isinstance` may run code of a proxy
    if kind is not None and kind not in CONTAINERS and held.is_replaced:
        return  # a function, which the search for captures follows
    held = held._replace(is_replaced=held.is_replaced and kind in CONTAINERS)
    if issubclass(cls, dict):
        yield from (held._replace(value=key, is_key=True) for key in list(dict.keys(value)))
        yield from (held._replace(value=item, is_key=False) for item in list(dict.values(value)))
    elif issubclass(cls, (set, frozenset, weakref.WeakSet, weakref.WeakKeyDictionary)):
        yield from (held._replace(value=item, is_key=True) for item in list(value))
    elif issubclass(cls, functools._lru_cache_wrapper):
        yield held._replace(value=value.__wrapped__)
    elif issubclass(cls, weakref.ref):
        yield held._replace(value=value())
    elif _has_attributes(value):
        names = _attribute_names(value) if used is None else used
        for name in names:
            content = _attribute(value, name)
            if content is not MISSING:
                yield held._replace(path=f"{held.path}.{name}", value=content, owners=(*held.owners, value))
    elif issubclass(cls, (type, types.ModuleType)):
        return  # of a library
    elif cls.__module__ in _OPENED or hasattr(cls, "__contains__"):
        parts = value if cls in (list, tuple, deque) else gc.get_referents(value)
        yield from (
            held._replace(value=part) for part in list(parts) if not issubclass(type(part), (type, types.ModuleType))
        )


_OPENED: Final = ("builtins", "collections", "functools", "weakref")
"""Modules of types that hold other objects; all that such an object refers to counts, as its keys and items."""


def _has_attributes(value: Any) -> bool:
    """Whether a value is a plain object, a class or a module, of which a function uses some attributes."""
    cls = type(value)
    if issubclass(cls, types.ModuleType):
        return not is_of_library(value.__name__)
    if issubclass(cls, type):
        return not ROOT_CLASSES[value] and not is_of_library(value.__module__)
    is_table = cls.__module__ in _OPENED or hasattr(cls, "__contains__") or issubclass(cls, _CLOSED)
    return not is_table and not ROOT_CLASSES[cls] and capture_kind(value) is None and not is_of_library(cls.__module__)


def _attribute_names(value: Any) -> list[str]:
    """The attributes that an object itself has."""
    slots = [n for base in type(value).__mro__ for n, a in vars(base).items() if type(a) is types.MemberDescriptorType]
    return [*_own_attributes(value), *slots]


def _own_attributes(value: Any) -> dict[str, Any]:
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, RuntimeError):  # it has none, or is a proxy of something that is not there yet
        return {}


def _attribute(value: Any, name: str) -> Any:
    """An attribute of an object or of its class, and of a property the function; without running code of users."""
    is_class = issubclass(type(value), type)
    if not is_class and name in (own := _own_attributes(value)):
        return own[name]
    for base in (value if is_class else type(value)).__mro__:
        if name in vars(base):
            found = vars(base)[name]
            if type(found) is types.MemberDescriptorType:
                try:
                    return found.__get__(value)
                except (AttributeError, TypeError):  # it has no value, or is that of a class
                    return MISSING
            return found.fget if type(found) is property else getattr(found, "__func__", found)
    return MISSING


# ----------------------------------------------------------------- what is compared

_ANY: Final = "*"


@functools.lru_cache(maxsize=4096)
def _compared(code: types.CodeType) -> frozenset[str]:
    """The names and attributes that code compares by ``is``, ``in`` or ``==``; `_ANY` where a variable may be one.

    A comparison with a constant does not count.
    """
    codes = list(codes_within(code))
    own = {name for each in codes for name in (*each.co_varnames, *each.co_cellvars)}
    found: set[str] = set()
    for each in codes:
        before: dis.Instruction | None = None
        for instruction in dis.get_instructions(each):
            if instruction.opname in _COMPARISONS and before is not None and before.opname != "LOAD_CONST":
                found |= _operands(each, instruction, own)
            before = instruction
    return frozenset(found)


_COMPARISONS: Final = ("CONTAINS_OP", "IS_OP", "COMPARE_OP")


def _operands(code: types.CodeType, instruction: dis.Instruction, own: Collection[str]) -> set[str]:
    """The names that an instruction compares: the right side of ``in``, both of ``is`` and ``==``."""
    chains = [chain.names for chain in chains_at(code, instruction.offset)]
    if instruction.opname == "COMPARE_OP":
        chains = chains if instruction.argval in ("==", "!=") else []
    elif len(chains) < (2 if instruction.opname == "IS_OP" else 1) or (len(chains[-1]) == 1 and chains[-1][0] in own):
        return {_ANY}
    elif instruction.opname == "CONTAINS_OP":
        chains = chains[-1:]
    return {names[-1] for names in chains}
