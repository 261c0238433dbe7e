"""What was changed in an object since its construction, and a call of its constructor would not make.

The call runs abstractly, and the graph of what it makes is compared with that of the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import jax

from declax._classes.pytree import Pytree
from declax._classes.records import record_of
from declax._graph.differences import STATIC_VALUE, Differing, are_alike, differing
from declax._graph.fit import UPDATE, misfit
from declax._graph.flattening import HAS_INDEX, NODE, OBJECT, VARIABLE, GraphDef, walk, walk_tokens
from declax._graph.nodes import walk_nodes
from declax._random.streams import Rngs, RngStream
from declax._typing import Path
from declax._variables.kinds import Cache, Intermediate, RngState
from declax._variables.metadata import PLACEMENT
from declax.transforms.abstract import eval_shape

_MODES: Final = ("deterministic", "use_running_average")
"""What `Module.train` and `Module.eval` set."""

_FREE: Final = (Rngs, RngStream, Cache, Intermediate, RngState)
"""What calls of the model make and change, and `rngs`, which are not part of a description."""

_NEED_VALUES: Final = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def changes_of(model: Any, build: Callable[[], Any]) -> Iterator[Differing]:
    """The differences between what a constructor call makes anew, which come first, and an object.

    Values and dtypes of arrays may differ, and so may modes, random streams, caches, recorded values and shardings.
    Functions are equal if their code is, and objects that compare by identity if their classes are.

    Args:
      model: the object.
      build: makes it anew. It runs once more, on arrays, if it needs their values.
    """
    made: list[Any] = []

    def read() -> None:
        new = build()
        found = walk((new,))
        made[:] = found.graphdef, [_shape_of(value) for value in found.read()], _arguments_of(new)

    try:
        eval_shape(read, graph=True)
    except _NEED_VALUES:
        read()
    graphdef, values, arguments = made
    ours = walk((model,))
    for one in (*_structural(graphdef, ours.graphdef), *_of_arrays(graphdef, values, ours)):
        yield one._replace(path=one.path[1:])
    for path, now in _arguments_of(model).items():
        before = arguments.get(path, now)
        for name in now.keys() | before.keys():
            if not _are_alike(before.get(name), now.get(name)):
                yield Differing((*path, name), STATIC_VALUE, before.get(name), now.get(name))


def models_in(made: Any) -> Any:
    """A model, or those in the fields of a plain dataclass."""
    if isinstance(made, Pytree):
        return made
    return {name: value for name, value in vars(made).items() if isinstance(value, Pytree)}


def _structural(made: GraphDef[Any], ours: GraphDef[Any]) -> Iterator[Differing]:
    if made == ours:
        return
    free = {*_free_paths(made), *_free_paths(ours)}
    kinds = [dict(zip(one.definition.paths, one.definition.leaf_defs, strict=True)) for one in (made, ours)]
    for one in differing(made, ours):
        is_same = one.fact == STATIC_VALUE and (one.path[-1:] in _MODE_KEYS or _are_alike(one.before, one.after))
        if not is_same and not _is_free(one.path, free) and not _are_placed(*(found.get(one.path) for found in kinds)):
            yield one


_MODE_KEYS: Final = {(name,) for name in _MODES}


def _of_arrays(made: GraphDef[Any], values: list[Any], ours: Any) -> Iterator[Differing]:
    """The leaves whose shapes differ."""
    before = dict(zip(made.definition.paths, values, strict=True))
    free = _free_paths(ours.graphdef)
    for path, value in zip(ours.graphdef.definition.paths, ours.read(), strict=True):
        wrong = misfit(before[path], _shape_of(value), UPDATE) if path in before else None
        if wrong is not None and not _is_free(path, free):
            yield Differing(path, "value", *wrong)


def _free_paths(graphdef: GraphDef[Any]) -> set[Path]:
    found: set[Path] = set()
    objects: list[bool] = []
    for path, token in walk_tokens(graphdef.tokens):
        if isinstance(token, int):
            is_free = objects[token]
        else:
            cls: Any = token[1].cls if token[0] == NODE else token[1] if token[0] in (OBJECT, VARIABLE) else object
            is_free = issubclass(cls, _FREE)
            objects += [is_free] if token[0] in HAS_INDEX else []
        if is_free:
            found.add(path)
    return found


def _is_free(path: Path, free: set[Path]) -> bool:
    return any(path[:end] in free for end in range(1, len(path) + 1))


def _are_placed(before: Any, after: Any) -> bool:
    """Whether two Variables are of one kind, and their metadata say the same but for the placement."""
    if before is None or after is None or before[0] is not after[0]:
        return False
    texts = [
        {name: repr(v) for name, v in metadata.items() if name not in PLACEMENT} for _, metadata in (before, after)
    ]
    return texts[0] == texts[1]


def _shape_of(value: Any) -> Any:
    """A leaf with descriptions of arrays, since a trace may have made them."""
    return jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype) if hasattr(one, "dtype") else one,  # type: ignore[no-untyped-call]  # of JAX
        value,
    )


def _arguments_of(model: Any) -> dict[Path, Mapping[str, Any]]:
    """The arguments that constructors have used up, such as initializers, by the path of the object."""
    records = ((path, record_of(node)) for path, node in walk_nodes(model))
    return {
        path: {name: value for name, value in record.call.kwargs.items() if name not in record.parts}
        for path, record in records
        if record is not None
    }


def _are_alike(before: Any, after: Any) -> bool:
    return are_alike(_with_tuples(before), _with_tuples(after))


def _with_tuples(value: Any) -> Any:
    """A static value with tuples in place of lists, which a Spec does not tell apart."""
    if type(value) is dict:
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if type(value) in (list, tuple) else value
