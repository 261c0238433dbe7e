"""Tells why a compiled function was traced again, and warns where a number of a model causes it again and again."""

from __future__ import annotations

import functools
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from declax._static import is_frozen, thaw
from declax._typing import Path
from declax.errors import RetraceWarning, TransformError, describe, format_path, type_name
from declax.graph.flattening import (
    CONTAINER,
    HAS_INDEX,
    LEAF,
    NODE,
    OBJECT,
    STATIC,
    VARIABLE,
    node_statics,
    walk_tokens,
)
from declax.transforms._structure import Structure, place

WARN_AFTER = 3
"""So many new values of one number of one model, each of which was traced for, are no accident."""

MAX_EARLIER = 32
"""With so many earlier traces, the last one is compared."""

MAX_ROOTS = 64
"""Of so many models, the numbers are followed."""


class Trace(NamedTuple):
    """One trace of a function.

    Attributes:
      structure: of the arguments.
      statics: the static arguments by number and by name; None where there are none.
      avals: shapes and dtypes of the leaves: those of the graph, then the plain ones.
    """

    structure: Structure
    statics: Any
    avals: tuple[Any, ...]

    @staticmethod
    def of(structure: Structure, statics: Any, leaves: Sequence[Any]) -> Trace:
        """What there is to compare of a trace for these leaves."""
        return Trace(structure, statics, tuple(map(_aval_of, leaves)))


class Difference(NamedTuple):
    """One difference of two traces.

    Attributes:
      what: which kind: "static value", "shape or dtype", "structure", ...
      where: the path or argument.
      before, after: what it was, and what it is.
    """

    what: str
    where: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.where}: the {self.what} was {self.before}, and is {self.after}"


class _Followed(NamedTuple):
    """What is known of a model that the function was traced for.

    Attributes:
      root: the model.
      rank: which root it was of the last trace that was for it.
      structure: of that trace.
      values: for each number among its static values, by path, those that it has had.
    """

    root: weakref.ref[Any]
    rank: int
    structure: Structure
    values: dict[Path, set[str]]


class Traces:
    """The traces of one function, and what the numbers among the static values of models have caused.

    Attributes:
      count: how many traces there were.
      last: the last one.
      earlier: those before it, oldest first.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last: Trace | None = None
        self.earlier: deque[Trace] = deque(maxlen=MAX_EARLIER)
        self._followed: dict[int, _Followed] = {}
        self._lock = threading.Lock()

    def note(
        self,
        function: Callable[..., Any],
        structure: Structure,
        statics: Any,
        roots: Sequence[weakref.ref[Any]],
        leaves: Sequence[Any],
    ) -> None:
        """Takes note of a trace; warns where a number of a model causes one after the other."""
        with self._lock:
            self.count += 1
            if self.last is not None:
                self.earlier.append(self.last)
            self.last = Trace.of(structure, statics, leaves)
            counting = [found for rank, root in enumerate(roots) for found in self._follow(rank, root, structure)]
        for found in counting:
            _warn(function, found)

    def nearest(self) -> Trace | None:
        """The earlier trace that differs least from the last one; of equals, the latest."""
        last = self.last
        if last is None or not self.earlier:
            return None
        found: Trace = min(reversed(self.earlier), key=lambda earlier: len(differences(earlier, last)))
        return found

    def _follow(self, rank: int, root: weakref.ref[Any], structure: Structure) -> list[Difference]:
        """The numbers of a model that have taken one new value after the other, the last one now."""
        model = root()
        known = self._followed.pop(id(model), None)
        if known is None or known.root() is not model:
            known = _Followed(root, rank, structure, {})
        if len(self._followed) >= MAX_ROOTS:
            self._followed.pop(next(iter(self._followed)))
        self._followed[id(model)] = known._replace(rank=rank, structure=structure)
        if known.structure.graphdef is structure.graphdef:
            return []
        before, now = _numbers_of(known.structure, known.rank), _numbers_of(structure, rank)
        found = []
        for path, number in now.items():
            if path not in before or before[path] == number:
                continue
            values = known.values.setdefault(path, {before[path]})
            is_new = number not in values and len(values) <= WARN_AFTER
            values.add(number)
            if is_new and len(values) == WARN_AFTER + 1:
                where = place(path, structure.names_of_roots()[rank])
                found.append(Difference("static value", where, before[path], number))
        return found


def _numbers_of(structure: Structure, rank: int) -> dict[Path, str]:
    """The numbers among the static values of one root, by path."""
    found: dict[Path, str] = {}
    for path, token in () if structure.graphdef is None else walk_tokens(structure.graphdef.tokens):
        if isinstance(token, int) or path[:1] != (rank,):
            continue
        if token[0] == NODE:
            found |= {(*path[1:], name): repr(value) for name, value in node_statics(token) if type(value) in _NUMBERS}
        elif token[0] == STATIC and type(token[1]) in _NUMBERS:
            found[path[1:]] = repr(token[1])
    return found


_NUMBERS = (int, float)


def _warn(function: Callable[..., Any], found: Difference) -> None:
    warnings.warn(
        f"dx.jit traced {getattr(function, '__name__', function)!r} again {WARN_AFTER} times, since a static value "
        f"of one model changes: {found}. Each new value compiles the function anew. Make it a Variable, "
        f"dx.Variable(jnp.asarray({found.after})), if it counts or changes with the steps.",
        RetraceWarning,
        stacklevel=2,
    )


def _aval_of(leaf: Any) -> Any:
    return jax.tree.map(jax.typeof, leaf)


def differences(before: Trace, after: Trace) -> list[Difference]:
    """All differences of two traces, the likely causes first."""
    found = [*_of_statics(before.statics, after.statics)]
    found += _of_graphs(before, after)
    if before.structure.tree != after.structure.tree:
        texts = [repr(jax.tree_util.tree_unflatten(s.tree, ["*"] * s.tree.num_leaves)[:2]) for s, *_ in (before, after)]
        if texts[0] != texts[1]:
            found.append(Difference("tree", "the arguments", *texts))
    if before.structure.captured is not after.structure.captured:
        found.append(Difference("place of captured models", "the function", "another", "this"))
    if _paths_of(before) == _paths_of(after) and len(before.avals) == len(after.avals):
        found += _of_avals(before, after)
    return found


def _paths_of(trace: Trace) -> Sequence[Path]:
    """The paths of the graph's leaves."""
    graphdef = trace.structure.graphdef
    return () if graphdef is None else graphdef.definition.paths


def _of_statics(before: Any, after: Any) -> Iterator[Difference]:
    old = {} if before is None else dict([*before[0], *before[1]])
    new = {} if after is None else dict([*after[0], *after[1]])
    for label in [*old, *(n for n in new if n not in old)]:
        texts = [repr(given[label]) if label in given else "not given" for given in (old, new)]
        if label not in old or label not in new or old[label] != new[label] or texts[0] != texts[1]:
            yield Difference("static argument", f"argument {label!r}", *texts)


def _of_graphs(before: Trace, after: Trace) -> Iterator[Difference]:
    """The differences of two structures: static values by path, and what came and went."""
    if before.structure.graphdef is after.structure.graphdef:
        return
    old, new = _described(before), _described(after)
    for path in [*old, *(p for p in new if p not in old)]:
        what = (old.get(path) or new[path])[0]
        texts = [found[path][1] if path in found else "not there" for found in (old, new)]
        if texts[0] != texts[1]:
            is_in_both = path in old and path in new
            names = _arguments(after if path in new else before).names_of_roots()
            yield Difference(what if is_in_both else "structure", _where(path, names), *texts)


def _described(trace: Trace) -> dict[Path, tuple[str, str]]:
    """What a structure says of each path: static values of nodes one by one."""
    found: dict[Path, tuple[str, str]] = {}
    objects: list[Path] = []
    graphdef = trace.structure.graphdef
    for path, token in () if graphdef is None else walk_tokens(graphdef.tokens):
        if isinstance(token, int):
            other = objects[token]
            found[path] = ("kind", f"the same object as {format_path(other[1:]) if other[1:] else 'the model itself'}")
            continue
        if token[0] in HAS_INDEX:
            objects.append(path)
        if token[0] == VARIABLE:
            found[path] = ("kind", f"{type_name(token[1])} with {token[2]!r}" if token[2] else type_name(token[1]))
        elif token[0] == NODE:
            found[path] = ("class", type_name(token[1].cls))
            for name, value in node_statics(token):
                found[(*path, name)] = ("static value", repr(thaw(value) if is_frozen(value) else value))
        elif token[0] == OBJECT:
            found[path] = ("class", type_name(token[1]))
        elif token[0] == STATIC:
            found[path] = ("static value", repr(thaw(token[1]) if is_frozen(token[1]) else token[1]))
        elif token[0] == CONTAINER and path:
            found[path] = ("keys", repr(list(token[2])))
        elif token[0] <= LEAF:
            found[path] = ("kind", "an array")
    return found


def _where(path: Path, names: Sequence[str]) -> str:
    """A path below the tuple of roots: the argument, and the path in it."""
    number = path[0] if path else None
    return place(path[1:], names[number]) if isinstance(number, int) else "the models"


def _arguments(trace: Trace) -> Structure:
    """The structure of a trace, with the numbers that arguments have beside the static ones."""
    structure = trace.structure
    if not trace.statics or not trace.statics[0]:
        return structure
    args, *rest = jax.tree_util.tree_unflatten(structure.tree, range(structure.tree.num_leaves))
    listed = list(args)
    for number, _ in trace.statics[0]:
        listed.insert(number, None)
    return structure._replace(tree=jax.tree.structure((tuple(listed), *rest)))


def _of_avals(before: Trace, after: Trace) -> Iterator[Difference]:
    structure = _arguments(after)
    graphdef, names = structure.graphdef, structure.names_of_roots()
    places = [] if graphdef is None else [_where(path, names) for path in graphdef.definition.paths]
    places += structure.names_of_plain()
    for name, old, new in zip(places, before.avals, after.avals, strict=True):
        if old != new:
            yield Difference("shape or dtype", name, _text_of(old), _text_of(new))


def _text_of(aval: Any) -> str:
    if not hasattr(aval, "weak_type"):
        return repr(aval)
    text = f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
    return f"{text}, weakly typed" if aval.weak_type else text


def explain_retrace(f: Callable[..., Any], /, *, limit: int | None = 20) -> None:
    """Prints why a function of `jit` was traced the last time: what no earlier trace had.

    Of the earlier traces, the one that differs least is compared. Names the path
    of each static value, each change of structure, each static argument, or
    each shape and dtype, with what it was and what it is.

    Args:
      f: the function, as `jit` or `jit_partial` returned it.
      limit: how many differences are listed; None for all.

    Raises:
      TransformError: for what is no function of `jit`.

    >>> from declax._module import Module
    >>> from declax.transforms.compilation import jit
    >>> m = Module()
    >>> m.calls = 0
    >>> f = jit(lambda m, x: x + m.calls)
    >>> _ = f(m, 1.0)
    >>> m.calls += 1
    >>> _ = f(m, 1.0)
    >>> explain_retrace(f)
    <lambda> was traced 2 times. What changed the last time:
      calls of argument 0: the static value was 0, and is 1
    """
    if isinstance(f, functools.partial):  # as `jit_partial` returns it
        f = f.func
    if isinstance(f, types.MethodType):
        f = f.__func__
    traces = getattr(f, "_traces", None)
    if not isinstance(traces, Traces):
        raise TransformError(
            "explain_retrace",
            "this is no function of dx.jit",
            got=describe(f),
            fix="f = dx.jit(f); dx.explain_retrace(f)",
        )
    name = getattr(f, "__name__", repr(f))
    print("\n".join(_lines(name, traces, limit)))  # noqa: T201  # to print is what it is for


def _lines(name: str, traces: Traces, limit: int | None) -> list[str]:
    last, nearest = traces.last, traces.nearest()
    if last is None:
        return [f"{name} was not traced yet."]
    if nearest is None:
        return [f"{name} was traced once."]
    found = differences(nearest, last)
    since = next(ago for ago, earlier in enumerate(reversed(traces.earlier), 1) if earlier is nearest)
    changed = (
        "What changed the last time"
        if since == 1
        else f"What differs from the nearest one, trace {traces.count - since}"
    )
    lines = [f"{name} was traced {traces.count} times. {changed}:"]
    if not found:
        lines.append("  nothing that declax sees: JAX dropped its trace, or its configuration was changed")
    lines += [f"  {difference}" for difference in found[:limit]]
    if limit is not None and len(found) > limit:
        lines.append(f"  and {len(found) - limit} more")
    return lines
