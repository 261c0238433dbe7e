"""The names of classes and functions in files, and what a file may name.

A file names classes and functions of declax, JAX and optax, those that are registered or given as ``extra=``, and those
that these name in their own code. Nothing else is looked up, and nothing is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import importlib
import inspect
import re
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import jax
import numpy as np

from declax._classes.pytree import Pytree
from declax._fields.annotations import own_annotations
from declax._fields.bytecode import codes_within
from declax._fields.call import Term, call_of, operands_of
from declax._fields.class_info import info_of, maker_of
from declax._fields.interning import Shared
from declax._fields.specifiers import SubmoduleRecipe
from declax._state.states import FlatState
from declax._typing import MISSING, Immutable
from declax._variables.variable import Variable
from declax.config import registry

_BUILTINS: Final = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, type(None))
_COLLECTIONS: Final = (OrderedDict, defaultdict, deque)
_PUBLIC: Final = ("jax.nn", "jax.nn.initializers", "jax.numpy", "jax.lax", "jax.random")
"""The modules of JAX whose public functions and classes have a name."""
_POLICIES: Final = "jax.checkpoint_policies"
_FILES: Final = frozenset({"load", "save", "savez", "fromfile", "from_dlpack", "frombuffer", "set_printoptions"})
"""The functions of `jax.numpy` that reach out of the process."""
_FUNCTIONS: Final = tuple(f"declax.{name}" for name in "nn initializers training _variables _sharding _filters".split())
"""The modules of declax whose functions a static value may be."""


_known: Final[dict[int, tuple[weakref.ref[Any], str]]] = {}
"""The names that were asked for, by the identity of the object: two dtypes may be equal and have two names."""


def name_of(target: Any) -> str | None:
    """The name of a class or function, with its module; None for lambdas, closures and objects without a name."""
    found = _known.get(id(target))
    if found is not None and found[0]() is target:
        return found[1]
    name = _name_of(target)
    with contextlib.suppress(TypeError):  # without weak references
        if name is not None:
            _known[id(target)] = weakref.ref(target, functools.partial(_forget, id(target))), name
    return name


def _forget(key: int, _: object) -> None:
    _known.pop(key, None)


def policy_name(target: Any) -> str | None:
    """The name of a policy of ``jax.checkpoint_policies``, which is a namespace of functions and objects."""
    names = (name for name, policy in vars(jax.checkpoint_policies).items() if policy is target)
    return next((f"{_POLICIES}.{name}" for name in names), None)


def _name_of(target: Any) -> str | None:
    if (policy := policy_name(target)) is not None:
        return policy
    name, module = getattr(target, "__qualname__", None), str(getattr(target, "__module__", None))
    name = name or getattr(target, "__name__", None)
    if not isinstance(name, str):
        return None
    package = module.partition(".")[0]
    if package == "declax" and getattr(sys.modules["declax"], name, None) is target:
        return f"declax.{name}" if _of_library(f"declax.{name}") is target else None
    if any(target is cls for cls in (*_BUILTINS, *_COLLECTIONS)):
        return f"{module}.{name}"
    for public in (*_PUBLIC, "numpy", "optax"):
        if getattr(sys.modules.get(public), name, None) is target and _of_library(f"{public}.{name}") is target:
            return f"{public}.{name}"
    if "<locals>" in name:
        return f"{module}.{name}" if isinstance(target, type) else None
    full = f"{module}.{name}"
    # a wrapper, such as a vmapped function, has the name of what it wraps
    is_found = _at(sys.modules.get(module), name) is target
    return full if is_found and (is_of_user(target) or _of_library(full) is target) else None


def _at(module: Any, name: str) -> Any:
    """What a module has under a qualified name; None if it has nothing."""
    return functools.reduce(lambda found, part: getattr(found, part, None), name.split("."), module)


def is_local(name: str) -> bool:
    """Whether a class was defined in a function, so that another process finds it only among ``extra=``."""
    return "<locals>" in name


class Names:
    """What one file may name.

    Args:
      extra: classes and functions, or modules, whose own classes and functions count.
    """

    def __init__(self, extra: Iterable[Any] = ()) -> None:
        self._given = [item for one in extra for item in _members(one)]
        self._found: dict[str, Any] = {}

    @property
    def given(self) -> list[str]:
        """The names of the classes and functions that the caller gave."""
        return [target.__name__ for target in self._given if hasattr(target, "__name__")]

    def may_call(self, target: Any) -> bool:
        """Whether a function may be called for a transformation: of optax or declax, or given or registered by name."""
        tables = (registry.named_transformations().values(), registry.schedules().values())
        is_class = isinstance(target, type) and not target.__module__.startswith("optax.")
        is_known = self.is_given(target) or any(target is function for table in tables for function in table)
        return not is_class and (is_known or str(getattr(target, "__module__", "")).startswith("declax.training."))

    def is_given(self, target: Any) -> bool:
        """Whether a function is given or registered by name."""
        return any(target is function for table in (self._given, registry.registered_kinds()) for function in table)

    def find(self, name: str) -> Any:
        """The class or function of a name; MISSING if there is none that the file may name."""
        if name not in self._found:
            self._found[name] = self._search(name)
        return self._found[name]

    def _search(self, name: str) -> Any:
        found = _of_library(name)
        if found is not MISSING:
            return found
        if name in self._table:
            return self._table[name]
        last = name.rpartition(".")[2]
        known = {id(target): target for target in (*self._given, *self._table.values())}
        moved = [target for target in known.values() if getattr(target, "__name__", None) == last]
        return moved[0] if len(moved) == 1 else MISSING  # of another module than at the time of the save

    @functools.cached_property
    def _table(self) -> Mapping[str, Any]:
        """The classes and functions of users by name: the given and registered ones, and what their code names."""
        found: dict[str, Any] = {}
        queue = [*self._given, *registry.registered_kinds()]
        while queue:
            target = queue.pop()
            name = name_of(target)
            if name is not None and name not in found and is_of_user(target):
                found[name] = target
                queue += _named_by(target)
        return found


def _members(given: Any) -> Iterator[Any]:
    if not isinstance(given, types.ModuleType):
        yield getattr(given, "__origin__", given)
        return
    for value in vars(given).values():
        if getattr(value, "__module__", None) == given.__name__ and isinstance(value, (type, types.FunctionType)):
            yield value


def is_of_user(target: Any) -> bool:
    """Whether a class or function is of the program of a user."""
    package = str(getattr(target, "__module__", "")).partition(".")[0]
    return package not in sys.stdlib_module_names and package not in ("declax", "jax", "jaxlib", "numpy", "optax")


# --- names of libraries -------------------------------------------------------------


def _of_library(name: str) -> Any:
    """A class or function of declax, JAX, numpy or optax; MISSING if there is none that a file may name."""
    module, _, last = name.rpartition(".")
    if module == "builtins":
        return next((cls for cls in _BUILTINS if cls.__name__ == last), MISSING)
    if module == "collections":
        return next((cls for cls in _COLLECTIONS if cls.__name__ == last), MISSING)
    if module == _POLICIES:
        return vars(jax.checkpoint_policies).get(last, MISSING)
    if module in _PUBLIC:
        is_allowed = not (last.startswith("_") or last in _FILES)
        found = getattr(sys.modules[module], last, MISSING) if is_allowed else MISSING
        return found if callable(found) else MISSING
    if module == "numpy":
        found = getattr(np, last, MISSING)
        return found if isinstance(found, np.ufunc) or _is_subclass(found, np.generic) else MISSING
    package = name.partition(".")[0]
    if package == "optax":
        called = registry.named_transformations().get(last) or registry.schedules().get(last)
        return called if called is not None and module == package else _in_package(name, _is_optax_state)
    return _in_package(name, _is_of_declax) if package == "declax" else MISSING


def _in_package(name: str, is_allowed: Callable[[Any], bool]) -> Any:
    """An object of a module of a package, by the name that `name_of` gives it."""
    for module in _modules_of(name):
        found = _at(module, name[len(module.__name__) + 1 :])
        if found is not None and is_allowed(found):
            return found
    return MISSING


def _modules_of(name: str) -> Iterator[Any]:
    """The modules in which a name may be: each prefix that is a module of its package."""
    parts = name.split(".")
    importlib.import_module(parts[0])
    for length in range(1, len(parts)):
        module = ".".join(parts[:length])
        if all(part.isidentifier() for part in parts) and (module in sys.modules or parts[0] == "declax"):
            try:
                yield importlib.import_module(module)
            except ImportError:
                return


def _is_optax_state(found: Any) -> bool:
    return _is_subclass(found, tuple) and hasattr(found, "_fields")


def _is_of_declax(found: Any) -> bool:
    if isinstance(found, type):
        is_value = (
            issubclass(found, (Immutable, Shared, enum.Enum, FlatState))
            or dataclasses.is_dataclass(found)
            or _is_optax_state(found)
        )
        return is_value or issubclass(found, (Pytree, Variable))
    return callable(found) and str(getattr(found, "__module__", "")).startswith(_FUNCTIONS)


def _is_subclass(found: Any, base: type) -> bool:
    return isinstance(found, type) and issubclass(found, base)


# --- what the code of a class names ---------------------------------------------------


def _named_by(target: Any) -> Iterator[Any]:
    """The classes and functions that a class or function of a user names: in its code, annotations and class body."""
    if isinstance(target, types.FunctionType):
        yield from _named_in(target)
        return
    if not isinstance(target, type):
        return
    for base in target.__mro__:
        if not is_of_user(base):
            continue
        yield base
        for value in vars(base).values():
            function = inspect.unwrap(_function_of(value))
            if isinstance(function, types.FunctionType):
                yield from _named_in(function)
        for expressions in maker_of(base).expressions.values():
            yield from _called_in(expressions)
        for spec in info_of(base).specs.values():
            if isinstance(spec.recipe, SubmoduleRecipe) and isinstance(spec.recipe.build, types.FunctionType):
                yield from _named_in(spec.recipe.build)
        namespace = vars(sys.modules.get(base.__module__, types))
        for annotation in own_annotations(base).values():
            yield from _in_annotation(annotation, namespace)


def _function_of(value: Any) -> Any:
    if isinstance(value, property):
        return value.fget
    return getattr(value, "__func__", getattr(value, "func", value))


def _named_in(function: types.FunctionType) -> Iterator[Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = {name: cell.cell_contents for name, cell in cells if _has_content(cell)}
    names = {name for code in codes_within(function.__code__) for name in code.co_names}
    for name in names:
        value = closure.get(name, function.__globals__.get(name))
        if isinstance(value, types.ModuleType):
            yield from filter(_is_nameable, (getattr(value, other, None) for other in names))
        elif _is_nameable(value):
            yield value
    yield from filter(_is_nameable, closure.values())


def _has_content(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # not assigned yet
        return False


def _called_in(values: Iterable[Any]) -> Iterator[Any]:
    """The targets of calls in the expressions of a class body."""
    stack = list(values)
    while stack:
        value = stack.pop()
        call = call_of(value)
        if call is not None and _is_nameable(call.target):
            yield call.target
        if _is_nameable(value):
            yield value
        stack += operands_of(value) if isinstance(value, (Term, list, tuple, dict)) else ()


def _in_annotation(annotation: Any, namespace: Mapping[str, Any]) -> Iterator[Any]:
    text = annotation if isinstance(annotation, str) else ""
    yield from filter(_is_nameable, map(namespace.get, re.findall(r"\w+", text)))
    yield from filter(_is_nameable, (annotation, *getattr(annotation, "__args__", ())))


def _is_nameable(value: Any) -> bool:
    return isinstance(value, (type, types.FunctionType)) and is_of_user(value)
