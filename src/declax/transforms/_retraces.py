"""What made a function be traced again.

Vocabulary
----------
trace:      one run of the user's function by JAX, for one structure, one set of
            static arguments, and one set of shapes and dtypes.
difference: of two traces: where, what it was, what it is.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from declax._static import is_frozen, thaw
from declax._typing import Path
from declax.errors import RetraceWarning, format_path, type_name
from declax.graph.defs import (
    CONTAINER,
    HAS_INDEX,
    LEAF,
    NODE,
    OBJECT,
    STATIC,
    VARIABLE,
    GraphDef,
    node_statics,
    walk_tokens,
)
from declax.transforms._structure import Structure

WARN_AFTER = 3
"""So many traces that one static value of a model has caused are no accident."""


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


class Traces:
    """The last two traces of one function, and what the static values of models have caused.

    Attributes:
      count: how many traces there were.
      last, before: the last trace, and the one before.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last: Trace | None = None
        self.before: Trace | None = None
        self._causes: dict[str, int] = {}
        self._lock = threading.Lock()

    def note(self, function: Callable[..., Any], structure: Structure, statics: Any, leaves: Sequence[Any]) -> None:
        """Takes note of a trace; warns where a static value of a model causes one after the other."""
        with self._lock:
            self.count += 1
            self.before, self.last = self.last, Trace(structure, statics, tuple(map(_aval_of, leaves)))
            if self.before is None or self.before.structure.graphdef is structure.graphdef:
                return
            for found in of_graphs(self.before.structure.graphdef, structure.graphdef):
                if found.what == "static value":
                    self._causes[found.where] = self._causes.get(found.where, 0) + 1
                    if self._causes[found.where] == WARN_AFTER:
                        _warn(function, found)


def _warn(function: Callable[..., Any], found: Difference) -> None:
    warnings.warn(
        f"dx.jit traced {getattr(function, '__name__', function)!r} again {WARN_AFTER} times, since a static value "
        f"changes: {found}. Each new value compiles the function anew. Make it a Variable, "
        f"dx.Variable(jnp.asarray({found.after})), if it counts or changes with the steps.",
        RetraceWarning,
        stacklevel=2,
    )


def _aval_of(leaf: Any) -> Any:
    return jax.tree.map(jax.typeof, leaf)


def differences(before: Trace, after: Trace) -> list[Difference]:
    """All differences of two traces, the likely causes first."""
    found = [*_of_statics(before.statics, after.statics)]
    found += of_graphs(before.structure.graphdef, after.structure.graphdef)
    if before.structure.tree != after.structure.tree:
        texts = [repr(jax.tree_util.tree_unflatten(s.tree, ["*"] * s.tree.num_leaves)[:2]) for s, *_ in (before, after)]
        if texts[0] != texts[1]:
            found.append(Difference("tree", "the arguments", *texts))
    if before.structure.captured is not after.structure.captured:
        found.append(Difference("place of captured models", "the function", "another", "this"))
    if before.structure.graphdef is after.structure.graphdef and len(before.avals) == len(after.avals):
        found += _of_avals(before, after)
    return found


def _of_statics(before: Any, after: Any) -> Iterator[Difference]:
    old = {} if before is None else dict([*before[0], *before[1]])
    new = {} if after is None else dict([*after[0], *after[1]])
    for label in [*old, *(n for n in new if n not in old)]:
        texts = [repr(given[label]) if label in given else "not given" for given in (old, new)]
        if label not in old or label not in new or old[label] != new[label] or texts[0] != texts[1]:
            yield Difference("static argument", f"argument {label!r}", *texts)


def of_graphs(before: GraphDef[Any] | None, after: GraphDef[Any] | None) -> Iterator[Difference]:
    """The differences of two structures: static values by path, and what came and went."""
    if before is after:
        return
    old, new = _described(before), _described(after)
    for where in [*old, *(w for w in new if w not in old)]:
        what = (old.get(where) or new[where])[0]
        texts = [found[where][1] if where in found else "not there" for found in (old, new)]
        if texts[0] != texts[1]:
            yield Difference(what if where in old and where in new else "structure", where, *texts)


def _described(graphdef: GraphDef[Any] | None) -> dict[str, tuple[str, str]]:
    """What a structure says of each path: static values of nodes one by one."""
    found: dict[str, tuple[str, str]] = {}
    objects: list[str] = []
    for path, token in () if graphdef is None else walk_tokens(graphdef.tokens):
        where = _where(path)
        if isinstance(token, int):
            found[where] = ("kind", f"the same object as {objects[token]}")
            continue
        if token[0] in HAS_INDEX:
            objects.append(where.partition(" of model")[0])
        if token[0] == VARIABLE:
            found[where] = ("kind", f"{type_name(token[1])} with {token[2]!r}" if token[2] else type_name(token[1]))
        elif token[0] == NODE:
            found[where] = ("class", type_name(token[1].cls))
            for name, value in node_statics(token):
                found[_where((*path, name))] = ("static value", repr(thaw(value) if is_frozen(value) else value))
        elif token[0] == OBJECT:
            found[where] = ("class", type_name(token[1]))
        elif token[0] == STATIC:
            found[where] = ("static value", repr(thaw(token[1]) if is_frozen(token[1]) else token[1]))
        elif token[0] == CONTAINER and path:
            found[where] = ("keys", repr(list(token[2])))
        elif token[0] <= LEAF:
            found[where] = ("kind", "an array")
    return found


def _where(path: Path) -> str:
    """A path below the tuple of roots: the model's number, and the path in it."""
    if len(path) < 2:
        return f"model {path[0]}" if path else "the models"
    return f"{format_path(path[1:])} of model {path[0]}"


def _of_avals(before: Trace, after: Trace) -> Iterator[Difference]:
    graphdef = after.structure.graphdef
    names = [] if graphdef is None else [_where(path) for path in graphdef.definition.paths]
    names += [f"array {i} of the arguments" for i in range(len(after.avals) - len(names))]
    for name, old, new in zip(names, before.avals, after.avals, strict=True):
        if old != new:
            yield Difference("shape or dtype", name, _text_of(old), _text_of(new))


def _text_of(aval: Any) -> str:
    if not hasattr(aval, "weak_type"):
        return repr(aval)
    text = f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
    return f"{text}, weakly typed" if aval.weak_type else text
