"""`summary`: of a model, its table; of a class, the counts of its elements as formulas of its fields.

The model is made with symbols for the fields that are sizes. A field that the code needs as a number, such as a depth,
has three numbers in turn: if the counts grow by the same each time, this is the factor of the field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, overload

import jax

from declax._classes.pytree import Pytree
from declax._displays.summarizing import Summary
from declax._displays.summarizing import summary as summary_of_model
from declax._graph.api import state
from declax._text.dimensions import FIELD, Condition, Size, Symbol, evaluate, text_of
from declax.errors import FieldError, ShapeError, type_name
from declax.shapes.domains import Domain, sum_of
from declax.shapes.symbols import Symbols
from declax.shapes.targets import Model, usual_model_of_class

Terms: TypeAlias = dict[tuple[Size, ...], int]
"""A sum of products: the factors of each, with its number."""
Counts: TypeAlias = dict[str, Terms]
"""The number of elements of each kind of Variable."""

_NAMELESS: Final = Domain((), ())
_MOST_NUMBERS: Final = 2
"""How many fields become numbers."""


class ClassSummary:
    """The numbers of elements of a class, as formulas of its fields.

    Attributes:
      cls: the class.
      counts: the formula of each kind of Variable, such as ``"8*dim^2 + 7*dim"``.
    """

    __slots__ = ("_sizes", "cls", "counts")

    def __init__(self, cls: type, sizes: Mapping[str, Size]) -> None:
        self.cls: type = cls
        self.counts: Mapping[str, str] = {kind: text_of(size) for kind, size in sizes.items()}
        self._sizes = sizes

    def count(self, kind: str = "Param", /, **fields: int) -> int:
        """The number of elements of a kind, at numbers of the fields in its formula."""
        try:
            found: int = evaluate(self._sizes.get(kind, 0), {f"{FIELD}{name}": size for name, size in fields.items()})
        except KeyError as error:
            name = str(error.args[0]).removeprefix(FIELD)
            raise FieldError(
                f"{type_name(self.cls)}.{name}", "the formula needs this field", fix=f"{name}=..."
            ) from None
        return found

    def __str__(self) -> str:
        return "\n".join(f"{type_name(self.cls)}, {kind}: {formula}" for kind, formula in self.counts.items())

    def __repr__(self) -> str:
        return f"ClassSummary({type_name(self.cls)}, {dict(self.counts)})"


@overload
def summary(model: type[Pytree]) -> ClassSummary: ...
@overload
def summary(
    model: Any, *inputs: Any, depth: int | None = None, method: str = "__call__", **named_inputs: Any
) -> Summary: ...
def summary(model: Any, *inputs: Any, depth: int | None = None, method: str = "__call__", **named_inputs: Any) -> Any:
    """The shapes, counts and bytes of the arrays of a model, and outputs and costs of its parts in one call.

    Args:
      model: a Module, or a container of modules; may be abstract. Or a declared class, whose counts are formulas of
        its integer fields: of those without a default, or with ``ge=1`` or more.
      *inputs, **named_inputs: arguments of the model: arrays, `jax.ShapeDtypeStruct`, texts such as ``"int32[b, n]"``
        for arrays of any size, or others. Without them, the model is not called. With them it is traced once; nothing
        is computed, and the model does not change. With texts, outputs are shown in symbols, and costs are not.
      depth: rows of modules with longer paths are added to those of the module around them; None for no limit.
      method: the method to call.

    Returns:
      The rows, counts and bytes. Prints as a table, in which consecutive equal parts have one line. FLOPs and bytes
      (operands and results of all operations) are as XLA counts them before it optimizes; a part inside of a loop
      counts once.

    Raises:
      GraphError: this is not a model, or it has no such method; or `depth` is negative.
      ShapeError: the counts of a class are no formula of its fields.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> class Scale(dx.Module):
    ...     def __init__(self):
    ...         self.weight = dx.Param(jnp.ones((2, 3)))
    ...     def __call__(self, x):
    ...         return x @ self.weight
    >>> print(dx.summary(Scale()))
    module  class  holds               Param
    ------  -----  ---------------  --------
    (root)  Scale  weight f32[2,3]  6 (24 B)
    ------  -----  ---------------  --------
    total                           6 (24 B)
    >>> print(dx.summary(Scale(), jnp.ones((4, 2))))
    module  class  output    FLOPs  bytes  holds               Param
    ------  -----  --------  -----  -----  ---------------  --------
    (root)  Scale  f32[4,3]     48  104 B  weight f32[2,3]  6 (24 B)
    ------  -----  --------  -----  -----  ---------------  --------
    total                       48  104 B                   6 (24 B)
    >>> print(dx.summary(dx.Linear))
    Linear, Param: out_features + in_features*out_features
    """
    is_declared = isinstance(model, type) and issubclass(model, Pytree) and hasattr(model, "__dataclass_fields__")
    if is_declared and not (inputs or named_inputs):
        return ClassSummary(model, counts_of(model))
    return summary_of_model(model, *inputs, depth=depth, method=method, **named_inputs)


def counts_of(cls: Any) -> dict[str, Size]:
    """The number of elements of each kind of Variable, made of the fields of a class that are sizes.

    Raises:
      ShapeError: a field has no default and is no size, or the counts are no polynomial of its sizes.
    """
    found = _counts(usual_model_of_class(cls), {}, 0)
    if found is None:
        raise ShapeError("summary", f"the counts of {type_name(cls)} are no formula of its fields")
    return {kind: sum_of(terms) for kind, terms in found.items()}


def _counts(model: Model, numbers: Mapping[str, int], depth: int) -> Counts | None:
    """The counts with symbols, or with numbers in place of some fields."""
    fixed = [Condition.of(Symbol(name), "==", number) for name, number in numbers.items()]
    domain = Domain(model.names, [*model.conditions, *fixed])
    if model.names and next(domain.samples((), 200), None) is None:
        return None
    symbols = Symbols(domain)
    try:
        built = model.build(symbols.sizes)
    except Exception:  # noqa: BLE001  # of the class of a user, which needs a number
        built = None
    if built is not None:
        return _counts_in(built, symbols)
    for name in model.names if depth < _MOST_NUMBERS else ():
        found = None if name in numbers else _affine(model, name, numbers, depth)
        if found is not None:
            return found
    return None


def _counts_in(model: Any, symbols: Symbols) -> Counts:
    found: Counts = {}
    whole = state(model)
    for leaf_def, leaf in zip(whole.definition.leaf_defs, whole.leaves, strict=True):
        kind = "array" if leaf_def is None else type_name(leaf_def[0])
        for array in jax.tree.leaves(leaf):
            size = symbols.written(math.prod(array.shape))
            found[kind] = _sum(found.get(kind, {}), _NAMELESS.terms(size), 1)
    return found


def _affine(model: Model, name: str, numbers: Mapping[str, int], depth: int) -> Counts | None:
    """The counts in which a field is a factor; None if they do not grow by the same with it."""
    low = max((n for c in model.conditions for n in _least(c, name)), default=1)
    found = [_counts(model, {**numbers, name: low + step}, depth + 1) for step in range(3)]
    first, second, third = found
    if first is None or second is None or third is None:
        return None
    counts: Counts = {}
    for kind in first:
        growth = _sum(second[kind], first[kind], -1)
        if _nonzero(growth) != _nonzero(_sum(third[kind], second[kind], -1)):
            return None
        times = {tuple(sorted((Symbol(name), *atoms), key=str)): number for atoms, number in growth.items()}
        counts[kind] = _sum(times, _sum(first[kind], growth, -low), 1)
    return counts


def _least(condition: Condition, name: str) -> list[int]:
    is_low = condition.left == Symbol(name) and condition.sign == ">=" and isinstance(condition.right, int)
    return [condition.right] if is_low and isinstance(condition.right, int) else []


def _sum(one: Terms, other: Terms, factor: int) -> Terms:
    found = dict(one)
    for atoms, number in other.items():
        found[atoms] = found.get(atoms, 0) + factor * number
    return found


def _nonzero(terms: Terms) -> Terms:
    return {atoms: number for atoms, number in terms.items() if number}
