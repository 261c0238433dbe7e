"""Calls methods of a graph that is taken apart, in one expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

from declax._graph.api import merge
from declax._graph.binding import check_mode
from declax._graph.flattening import GraphDef, walk
from declax._graph.graph_state import GraphState, make_graph_state
from declax._state.states import State, make_state
from declax.errors import GraphError, MissingAttributeError, describe

N = TypeVar("N")
R = TypeVar("R", covariant=True)


class Step(NamedTuple):
    """One step of a chain: the name of an attribute, or an index."""

    key: Any
    is_attribute: bool

    def __str__(self) -> str:
        return f".{self.key}" if self.is_attribute else f"[{self.key!r}]"


class Caller(Generic[R]):
    """What `call` gives: attributes and indexes lead to a method, and calling it calls that.

    All of the model's public attributes can be reached, since this has none.
    """

    __slots__ = ("_caller__chain", "_caller__source")

    _caller__source: _Source[R]
    _caller__chain: tuple[Step, ...]

    def __init__(self, source: _Source[R], chain: tuple[Step, ...] = ()) -> None:
        self._caller__source = source
        self._caller__chain = chain

    def __getattr__(self, name: str) -> Caller[R]:
        if name.startswith("__") and name.endswith("__"):
            raise MissingAttributeError(
                f"call(...){_word(self._caller__chain)}.{name}",
                "special methods are not reached",
                fix="graphdef.merge(state), and call it there",
            )
        return Caller(self._caller__source, (*self._caller__chain, Step(name, True)))

    def __getitem__(self, key: Any) -> Caller[R]:
        return Caller(self._caller__source, (*self._caller__chain, Step(key, False)))

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, R]:
        """Calls what the chain leads to; the result, and the graph after the call, taken apart."""
        source = self._caller__source
        root = source.merge()
        function = _follow(root, self._caller__chain)
        if not callable(function):
            raise GraphError(
                f"call(...){_word(self._caller__chain)}",
                "this is not callable",
                expected="a method, or a module with __call__",
                got=describe(function),
                fix="graphdef.merge(state), to read it",
            )
        output = function(*args, **kwargs)
        return output, source.split(root)

    def __reduce__(self) -> tuple[Any, ...]:
        return Caller, (self._caller__source, self._caller__chain)

    def __repr__(self) -> str:
        return f"call({self._caller__source.graphdef!r}){_word(self._caller__chain)}"


class _Source(NamedTuple, Generic[R]):
    """The graph that is called, and whether the caller gave one `GraphState`, and gets one back."""

    graphdef: GraphDef[Any]
    states: Sequence[State[Any]]
    is_single: bool

    def merge(self) -> Any:
        return merge(self.graphdef, *self.states)

    def split(self, root: Any) -> Any:
        """The graph taken apart as it came. Nobody holds it, so that there is nothing to bind to it."""
        found = walk(root)
        graphdef = found.graphdef
        check_mode(graphdef, None)
        if self.is_single:
            return make_graph_state(graphdef, graphdef.definition, found.read())
        return graphdef, make_state(graphdef.definition, found.read())


def _word(chain: Sequence[Step]) -> str:
    return "".join(map(str, chain))


def _follow(value: Any, chain: tuple[Step, ...]) -> Any:
    """What a chain leads to; an error tells where on the chain."""
    for place, (key, is_attribute) in enumerate(chain):
        try:
            value = getattr(value, key) if is_attribute else value[key]
        except Exception as error:
            error.add_note(f"raised at call(...){_word(chain[: place + 1])}")
            raise
    return value


@overload
def call(
    graphdef_state: tuple[GraphDef[N], State[Any], *tuple[State[Any], ...]], /
) -> Caller[tuple[GraphDef[N], State[N]]]: ...
@overload
def call(graphdef_state: GraphState[N], /) -> Caller[GraphState[N]]: ...
@overload
def call(graphdef_state: tuple[GraphState[N], ...], /) -> Caller[GraphState[N]]: ...
def call(graphdef_state: Any, /) -> Caller[Any]:
    """Calls a method of a graph that is taken apart.

    What it gives stands for the root: attributes and indexes lead on, and a
    call calls what they lead to, on a new graph. It returns what the method
    returns, and the graph after the call, taken apart again. So the states of
    a model go through functions that know no models, such as those of
    `jax.jit`.

    Args:
      graphdef_state: what `split` gave, or `unpack`. There may be several
        States; there is always one in what a call returns, as filters that
        would split it again are not known.

    Returns:
      A proxy. A call of it returns ``(output, (graphdef, state))`` or, where
      it was made from what `unpack` gives, ``(output, state)``.

    Raises:
      GraphError: for something else, and, at the call, for States that do not
        fit and for what is not callable.
      MissingAttributeError: for special methods.

    >>> from declax._module.module import Module
    >>> from declax._variables.variable import Variable
    >>> from declax._graph.api import split
    >>> class Counter(Module):
    ...     def __init__(self):
    ...         self.count = Variable(0)
    ...     def increment(self, by):
    ...         self.count += by
    ...         return self.count.value
    >>> counters = split({"a": Counter(), "b": Counter()})
    >>> output, counters = call(counters)["b"].increment(2)
    >>> output, counters[1].to_pure_dict()
    (2, {'a': {'count': 0}, 'b': {'count': 2}})
    """
    parts = graphdef_state if isinstance(graphdef_state, (tuple, list)) else (graphdef_state,)
    if parts and all(isinstance(part, GraphState) for part in parts):
        return Caller(_Source(parts[0].graphdef, parts, is_single=True))
    if len(parts) < 2 or not isinstance(parts[0], GraphDef):
        raise GraphError(
            "call",
            "the argument is no graph that was taken apart",
            expected="(graphdef, state), as of dx.split, or the State of dx.unpack",
            got=f"({', '.join(map(describe, parts))})" if parts is graphdef_state else describe(graphdef_state),
            fix="dx.call(dx.split(model)).method(...)",
        )
    return Caller(_Source(parts[0], parts[1:], is_single=False))


__all__ = ["Caller", "call"]
