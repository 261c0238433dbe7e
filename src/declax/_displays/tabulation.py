"""A table of the calls of a model, with the arguments and the layout of the peer's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from declax._displays.calls import Call, calls_of, check_depth, shape_of_array
from declax._graph.api import state as state_of
from declax._text.arrays import amount_text, arrays_in, measure, type_text
from declax._text.tables import Options, boxed
from declax._typing import Path
from declax._variables.kinds import RngState
from declax._variables.variable import Variable
from declax.errors import type_name

_NONE: Options = MappingProxyType({})


def tabulate(
    obj: Any,
    *input_args: Any,
    depth: int | None = None,
    method: str = "__call__",
    row_filter: Callable[[Call], bool] = lambda call: True,
    table_kwargs: Options = _NONE,
    column_kwargs: Options = _NONE,
    console_kwargs: Options = _NONE,
    compute_flops: bool = False,
    compute_vjp_flops: bool = False,
    **input_kwargs: Any,
) -> str:
    """A table of the calls of the parts of a model: inputs, outputs, Variables and, on request, FLOPs.

    `dx.summary` is shorter, and returns numbers.

    Args:
      obj: a Module; may be abstract. It is traced once, and does not change.
      *input_args, **input_kwargs: arguments of the method.
      depth: the greatest length of a path that has a row; None for no limit.
      method: the method to call.
      row_filter: which calls have rows; receives a call with `path`, `type`, `method`, `inputs`, `outputs`, `cost`.
      table_kwargs, column_kwargs, console_kwargs: options of `rich.table.Table`, `Table.add_column` and
        `rich.console.Console`, if rich is installed; otherwise the table is plain text and they have no effect.
      compute_flops: whether to show the FLOPs of each call, as XLA counts them.
      compute_vjp_flops: whether to show those of its pullback, with the forward pass.

    Returns:
      The table. In a notebook it shows as HTML.

    Raises:
      GraphError: the object has no such method, or `depth` is negative.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> table = dx.tabulate(dx.Linear(2, 3, rngs=dx.Rngs(0)), jnp.ones((4, 2)))
    >>> "kernel: float32[2,3]" in table, "float32[4,3]" in table
    (True, True)
    """
    check_depth("tabulate", depth)
    costs = compute_flops or compute_vjp_flops
    calls = calls_of(obj, method, input_args, input_kwargs, cost=costs, vjp_cost=compute_vjp_flops)
    variables = dict(state_of(obj).flat_state())  # and arrays
    kinds = sorted({_kind(variable) for variable in variables.values()})
    flops = ["flops"] * compute_flops + ["vjp_flops"] * compute_vjp_flops
    table = [["path", "type", "inputs", "outputs", *flops, *kinds]]
    for call in _first_calls(calls, depth, row_filter):
        counted = [call.cost] * compute_flops + [call.vjp_cost] * compute_vjp_flops
        cells = ["/".join(map(str, _shown_path(call))), type_name(call.type), _inputs_text(call), _text(call.outputs)]
        cells += ["" if cost is None else str(cost.flops) for cost in counted]
        table.append([*cells, *(_held(variables, call.path, kind) for kind in kinds)])
    sizes = [_size(_of_kind(variables, (), kind).values()) for kind in kinds]
    table.append(["", "", "", *([""] * len(flops)), "Total", *sizes])
    title = f"{type_name(type(obj))} Summary"
    caption = f"Total Parameters: {_size(variables.values())}"
    return boxed(title, table, caption, (table_kwargs, column_kwargs, console_kwargs))


def _first_calls(calls: Iterable[Call], depth: int | None, row_filter: Callable[[Call], bool]) -> Iterable[Call]:
    """The calls that have rows: of equal ones, the first."""
    seen: set[Any] = set()
    for call in calls:
        key = call.path, call.method, _inputs_text(call)
        if key not in seen and (depth is None or len(_shown_path(call)) <= depth) and row_filter(call):
            yield call
        seen.add(key)


def _shown_path(call: Call) -> Path:
    return call.path if call.method == "__call__" else (*call.path, call.method)


# --- Variables -------------------------------------------------------------------


def _kind(value: Any) -> str:
    if not isinstance(value, Variable):
        return "array"
    return type_name(RngState if isinstance(value, RngState) else type(value))


def _of_kind(variables: Mapping[Path, Any], path: Path, kind: str) -> dict[Path, Any]:
    """The Variables of a kind in a part, by path."""
    return {p: value for p, value in variables.items() if p[: len(path)] == path and _kind(value) == kind}


def _held(variables: Mapping[Path, Any], path: Path, kind: str) -> str:
    """A cell: the Variables that a part holds itself, and the size of all in it."""
    inside = _of_kind(variables, path, kind)
    own = {p[-1]: _described(value) for p, value in inside.items() if len(p) == len(path) + 1}
    size = _size(inside.values()) if inside else ""
    return f"{_text(own)}\n\n{size}" if own else size


def _described(value: Any) -> Any:
    raw_value = value.raw_value if isinstance(value, Variable) else value
    metadata = (
        value.get_metadata(exclude_required=True)
        if isinstance(value, Variable) and not isinstance(value, RngState)
        else {}
    )
    shapes = list(map(shape_of_array, arrays_in(raw_value)))
    shown = shapes[0] if len(shapes) == 1 else shapes
    return {"value": shown, **metadata} if metadata else shown


def _size(values: Iterable[Any]) -> str:
    return amount_text(*measure([value.raw_value if isinstance(value, Variable) else value for value in values]))


# --- text -----------------------------------------------------------------------


def _inputs_text(call: Call) -> str:
    args, kwargs = call.inputs
    positional = _text(args[0] if len(args) == 1 and not kwargs else list(args)) if args else ""
    return "\n".join(filter(None, (positional, _text(kwargs) if kwargs else "")))


def _text(value: Any) -> str:
    """A nested value, an entry a line."""
    if isinstance(value, dict) and value:
        return "\n".join(_entry(f"{key}:", item) for key, item in value.items())
    if isinstance(value, (list, tuple)) and value:
        return "\n".join(_entry("-", item) for item in value)
    if isinstance(value, type):
        return f"{type_name(value)}(...)"
    is_array = getattr(value, "shape", None) is not None and getattr(value, "dtype", None) is not None
    return type_text(value) if is_array else str(value)


def _entry(front: str, item: Any) -> str:
    text = _text(item)
    if "\n" in text:
        indented = text.replace("\n", "\n  ")
        return f"{front} {indented}" if front == "-" else f"{front}\n  {indented}"
    return f"{front} {text}"


__all__ = ["tabulate"]
