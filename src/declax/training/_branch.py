"""A node that mirrors one level of an optax state.

An optax state is made of named tuples, tuples and dicts. Those cannot report
that they have changed, so a jitted call would have to look into each of them
at every step. Branches report, and cost a step nothing.

Vocabulary
----------
branch: a node whose children are data, under names or indices, which are both
        read by ``[key]`` and, where they are names, by ``.name``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import jax

from declax import _epoch, _jax, errors
from declax._attributes import wrong_trace
from declax._fields import Status
from declax._layout import BOUND_KEY, LAYOUT_KEY, TRACE_KEY, Layout, Name
from declax._pytree import Pytree, layout_of


def _make_key(name: Name) -> Any:
    return jax.tree_util.DictKey(name) if isinstance(name, str) else jax.tree_util.SequenceKey(name)


class Branch(Pytree):
    """One level of a stored optax state.

    Args:
      children: what is below it, by name or index.

    >>> branch = Branch({"mu": jax.numpy.ones(2), 0: jax.numpy.zeros(2)})
    >>> branch.mu is branch["mu"], list(branch)
    (True, [0, 'mu'])
    """

    _pytree__make_key: ClassVar[Any] = staticmethod(_make_key)

    def __init__(self, children: Mapping[Name, Any]) -> None:
        attributes: dict[Any, Any] = vars(self)
        attributes[LAYOUT_KEY] = Layout.of(Branch, dict.fromkeys(children, Status.DATA))
        attributes.update(children)
        if _jax.trace_state.value is not _jax.TOP:
            attributes[TRACE_KEY] = _jax.trace_state.value

    def __getitem__(self, key: Name) -> Any:
        attributes: dict[Any, Any] = vars(self)
        if key not in self:
            raise errors.OptimizerError(
                "Optimizer.opt_state",
                f"there is nothing under {key!r}",
                expected=f"one of {list(self)}",
                fix=errors.suggest(str(key), map(str, self)),
            )
        return attributes[key]

    def __setitem__(self, key: Name, value: Any) -> None:
        self[key]  # says what is missing
        attributes: dict[Any, Any] = vars(self)
        if attributes.get(TRACE_KEY, _jax.TOP) is not _jax.trace_state.value:
            raise wrong_trace(self, key)
        attributes[key] = value
        if BOUND_KEY in attributes:
            _epoch.advance()

    def __contains__(self, key: object) -> bool:
        return key in layout_of(self).statuses

    def __iter__(self) -> Iterator[Name]:
        return iter(layout_of(self).statuses)

    def __len__(self) -> int:
        return len(layout_of(self).statuses)

    def _pytree__fields_for_repr(self) -> Iterable[tuple[Any, object]]:
        return ((name, self[name]) for name in self)
