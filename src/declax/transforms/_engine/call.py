"""The arguments of one call, flattened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from operator import not_
from typing import Any, Final

import jax

from declax._graph.binding import Binding, bind_and_read, bind_as_written, bind_many, check_mode
from declax._variables.donation import is_deleted
from declax.transforms._engine.captures import Captures
from declax.transforms._engine.identities import plain_owners, warn_of_identities, warn_of_keys
from declax.transforms._engine.names import name_plain, names_of_call
from declax.transforms._engine.structure import (
    Mode,
    Statics,
    Structure,
    Trace,
    flatten,
    is_array_like,
    is_leaf,
    models_as_keys,
    no_array,
    which_are_roots,
)

NO_ROOTS: Final = bind_many(())
"""The binding of a call without models."""


class Call:
    """The arguments of one call, flattened.

    Attributes:
      roots: the models; empty in a call that was like an earlier one.
      values: the raw values of the graph's leaves.
      plain: the other leaves.
      captures: the captures of the function; None before the search.
    """

    __slots__ = ("binding", "captures", "plain", "roots", "structure", "values")

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mode: Mode = Mode(),  # noqa: B008  # immutable
        captures: Captures | None = None,
        statics: Statics | None = None,
        bind: Callable[[tuple[Any, ...]], Binding] = bind_as_written,
    ) -> None:
        self.captures: Captures | None = captures
        captured: tuple[Any, ...] = () if captures is None else captures.values
        key = None if captures is None else captures.key
        keys = models_as_keys(args, kwargs)
        leaves, tree, has_states = flatten((args, kwargs, captured))
        pattern = which_are_roots(leaves)
        self.roots: tuple[Any, ...] = tuple(compress(leaves, pattern))
        self.plain: list[Any] = list(compress(leaves, map(not_, pattern))) if self.roots else leaves
        self.binding: Binding = NO_ROOTS
        self.values: list[Any] = []
        if self.roots:
            self.binding, values = bind_and_read(bind, self.roots)
            if not mode.graph:  # a captured argument counts once
                for part in (self.roots[: len(self.roots) - len(captured)], *((root,) for root in captured)):
                    check_mode(bind_many(part).graphdef, False)
            self.values = list(values)
        of_graph = self.binding.graphdef, self.binding.orders
        self.structure: Structure = Structure(tree, pattern, *of_graph, key, statics, has_states)
        if keys and self.roots:
            warn_of_keys(keys, self.structure, self.binding)
        if captures is not None and self.roots and captures.identities != []:
            warn_of_identities(captures, self.structure, self.binding)

    @staticmethod
    def from_binding(structure: Structure, binding: Binding, values: Iterable[Any], plain: Iterable[Any]) -> Call:
        """A call with the roots of an earlier one, whose binding was valid when its values were read."""
        call: Call = object.__new__(Call)
        call.structure = structure
        call.binding = binding
        call.values = list(values)
        call.plain = list(plain)
        call.captures = None
        call.roots = ()
        return call

    def check_arrays(self, labels: Sequence[Any] | None = None) -> Call:
        """Checks that all leaves in no model are arrays or numbers, or have the label None; returns the call."""
        if all(map(is_leaf, self.plain)):
            return self
        labels = [...] * len(self.plain) if labels is None else labels
        for name, leaf, label in zip(name_plain(self.structure), self.plain, labels, strict=True):
            if label is not None and not is_array_like(leaf):
                argument = name if name.isidentifier() else "..."
                fix = f'dx.jit(f, static_argnames="{argument}")        # or read it from the closure, as a constant'
                owners = plain_owners(name, leaf)
                raise no_array(name, leaf, fix if owners is None else owners[1])
        return self

    @property
    def leaves(self) -> list[Any]:
        """All leaves: those of the graph, then the plain ones."""
        return [*self.values, *self.plain]

    def trace(self) -> Trace:
        """The structure, and the shapes and dtypes of all leaves."""
        return Trace.of(self.structure, self.leaves)


def named_leaves(call: Call) -> Iterator[tuple[str, Any]]:
    """The leaves of a call with what to call them: those of the graph, then the plain ones."""
    return zip(names_of_call(call.structure), call.leaves, strict=True)


def _arrays_of(call: Call) -> Iterator[tuple[str, Any]]:
    for name, value in named_leaves(call):
        yield from ((name, leaf) for leaf in jax.tree_util.tree_leaves(value))


def deleted_leaves(call: Call) -> list[tuple[str, Any]]:
    """The arrays of a call that have lost their buffers, with what to call them."""
    return [(name, leaf) for name, leaf in _arrays_of(call) if is_deleted(leaf)]
