"""An optax transformation as a static value: how it compares, and how it is pickled.

`optax.adam(1e-3)` returns new functions on every call, so a transformation equals only itself, unless it was built
from a Spec, which is a value.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Hashable, Iterator
from types import EllipsisType, FunctionType, MethodType
from typing import Any, Final, Protocol, TypeGuard

import jax

from declax import errors
from declax._fields.interning import Shared
from declax._filters import BuiltIn, as_written
from declax._variables.variable import Variable


class Transformation(Protocol):
    """An optax transformation, or `optax.MultiSteps`."""

    @property
    def init(self) -> Callable[..., Any]:
        """Makes the state from the parameters."""
        ...

    @property
    def update(self) -> Callable[..., Any]:
        """Makes updates and the next state from gradients, state and parameters."""
        ...


class Description(Hashable, Protocol):
    """The call of a transformation, compared by value: a Spec."""

    def build(self) -> Any:
        """Makes the transformation."""
        ...


_DESCRIPTIONS: Final[weakref.WeakKeyDictionary[Any, tuple[weakref.ref[Any], Description]]] = weakref.WeakKeyDictionary()
"""By the `update` of a transformation, or the transformation: its `init`, and its Spec."""


def is_transformation(value: object) -> TypeGuard[Transformation]:
    """Whether an object has the methods of an optax transformation."""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def check_transformation(where: str, tx: object, fix: str) -> None:
    """Checks that an object has the methods of an optax transformation."""
    if not is_transformation(tx):
        raise errors.OptimizerError(
            where,
            "this is not an optax transformation",
            expected="an object with init and update, such as optax.adam(1e-3)",
            got=errors.describe(tx),
            fix=fix,
        )


def check_masks(where: str, tx: Transformation, written: str) -> None:
    """Raises for a mask of optax that is a name or a filter, and not a tree of bools or a function that makes one.

    Optax takes a name for the label of the whole tree, and since it is true, the mask selects all parameters.

    Args:
      where: whose masks these are.
      tx: the transformation.
      written: how a mask is written there, with ``{}`` for the filter.
    """
    for mask in _masks_in(tx):
        filters = [leaf for leaf in jax.tree.leaves(mask) if _is_filter(leaf)]
        if filters:
            only = ", ".join(map(_filter_text, filters))
            raise errors.OptimizerError(
                where,
                "a mask of optax is no name and no filter",
                expected="a function from the parameters to a State of bools, as dx.mask_by makes it",
                got=errors.describe(mask),
                fix=written.format(f"({only})" if len(filters) > 1 else only),
            )


def _masks_in(tx: Transformation) -> Iterator[Any]:
    """The values that functions of optax hold under the name ``mask``."""
    waiting: list[Any] = [tx.init, tx.update]
    seen = set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        named: dict[str, Any] = {}
        if isinstance(value, (tuple, list)):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, MethodType) and _is_of_optax(type(value.__self__)):
            named = vars(value.__self__)  # of MultiSteps
        elif isinstance(value, FunctionType) and _is_of_optax(value):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            named = {name: cell.cell_contents for name, cell in cells}
        if "mask" in named:
            yield named["mask"]
        waiting += named.values()


def _is_of_optax(made: FunctionType | type) -> bool:
    return made.__module__.partition(".")[0] == "optax"


def _is_filter(value: object) -> bool:
    is_kind = isinstance(value, type) and issubclass(value, Variable)
    return is_kind or isinstance(value, (str, EllipsisType, BuiltIn))


def _filter_text(given: Any) -> str:
    """The filter that is meant by a name, or a filter as it is written."""
    if isinstance(given, str):
        return f"dx.PathMatches({given!r})" if set(".*?") & set(given) else f"dx.PathContains({given!r})"
    return as_written(given)


def describe_by(description: Description, tx: Transformation) -> None:
    """Records the Spec that a transformation was built from, while the transformation lives."""
    anchor, check = _anchors(tx)
    try:
        _DESCRIPTIONS[anchor] = (weakref.ref(check), description)
    except TypeError:  # functions without weak references: the transformation equals only itself
        return


def description_of(tx: Transformation) -> Description | None:
    anchor, check = _anchors(tx)
    try:
        init, description = _DESCRIPTIONS[anchor]
    except (KeyError, TypeError):
        return None
    return description if init() is check else None


def _anchors(tx: Transformation) -> tuple[Any, Any]:
    # Named tuples have no weak references; their functions do.
    return (tx.update, tx.init) if isinstance(tx, tuple) else (tx, tx)


class StaticTransformation(Shared):
    """Holds a transformation. Two are equal if they hold the same one, or were built from equal Specs."""

    __slots__ = ("__weakref__", "_hash", "description", "tx")

    tx: Transformation
    description: Description | None

    def __init__(self, tx: Transformation) -> None:
        self.tx = tx
        self.description = description_of(tx)
        self._hash = id(tx) if self.description is None else hash(self.description)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StaticTransformation):
            return NotImplemented
        if self.tx is other.tx:
            return True
        return self.description is not None and self.description == other.description

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        if self.description is not None:
            return repr(self.description)
        return f"<{errors.type_name(type(self.tx))} at {id(self.tx):#x}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.description is not None:
            return _from_description, (self.description,)
        try:
            return _from_pickle, (pickle.dumps(self.tx),)
        except (pickle.PicklingError, AttributeError, TypeError):  # closures
            return _from_pickle, (_cloudpickle().dumps(self.tx),)


def _from_description(description: Description) -> StaticTransformation:
    return StaticTransformation(description.build())


def _from_pickle(pickled: bytes) -> StaticTransformation:
    return StaticTransformation(pickle.loads(pickled))


def _cloudpickle() -> Any:
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]  # an optional dependency
    except ImportError:
        raise errors.MissingExtraError(
            "Optimizer.tx",
            "the transformation is made of closures, which cannot be pickled without cloudpickle",
            why="Python pickles functions by name, and closures have none",
            fix='pip install "declax[pickle]"\n'
            "tx = dx.spec(optax.adam, 1e-3).build()   # pickles by its Spec, without cloudpickle",
        ) from None
    return cloudpickle
