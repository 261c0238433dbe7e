"""Whether values fit the leaves that they are for: of a State, a checkpoint, a file of weights or derivatives.

A `Pairing` compares names and kinds, `misfit` compares two values, and `compare` makes a `Fit` of both. How strict a
caller is, is data: its `Rules`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from declax._graph.nodes import Kind, kind_of
from declax._state.definition import LeafDef, StateDef
from declax._typing import Path
from declax.errors import describe, type_name, with_article, written_path


class Rules(NamedTuple):
    """What a caller takes.

    Attributes:
      values: whether values are compared at all.
      dtypes: which ones may come: any; of the same sort, such as another float; the same; or the same as JAX types a
        value, for which a Python float is a float32.
      missing: what happens with a leaf that gets no value: it stays, is listed, or is a problem.
      once: whether a second value for a leaf is a problem; otherwise the last one counts.
    """

    values: bool = True
    dtypes: Literal["any", "sort", "same", "jax"] = "any"
    missing: Literal["stays", "listed", "refused"] = "refused"
    once: bool = False


MERGE: Final = Rules(values=False, once=True)
UPDATE: Final = Rules(missing="stays")
REPORT: Final = Rules(missing="listed")
COMPLETE: Final = Rules()
STRICT: Final = Rules(dtypes="jax")
STORED: Final = Rules(dtypes="same")
CAST: Final = Rules(dtypes="sort")
DERIVATIVE: Final = Rules(dtypes="jax", missing="stays")


class Difference(NamedTuple):
    """What does not fit at one path.

    Attributes:
      path: as it is written in code, ``blocks[0].kernel``; or the name of a tensor.
      expected: what fits there; the whole sentence if `got` is empty.
      got: what came.
    """

    path: str
    expected: str
    got: str = ""

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}" if self.got else f"{self.path}: {self.expected}"


@dataclass(frozen=True)
class Fit:
    """How values fit a target: the report of `update`, `load` and `load_weights`.

    Paths are texts as in code, ``model.blocks[0].kernel``, which `rename=` takes too. It is true if nothing is wrong.

    Attributes:
      mismatches: the values of another shape, dtype or kind.
      missing: the leaves of the target for which there is no value.
      unexpected: the values for which the target has no leaf.
      renamed: old paths in a checkpoint, and the paths that they have now.
      ignored: what the caller left out.
      taken: the paths that got a value.
      problems: all that is wrong.
    """

    mismatches: tuple[Difference, ...] = ()
    missing: tuple[Difference, ...] = ()
    unexpected: tuple[Difference, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    may_miss: bool = field(default=False, repr=False)
    """Whether a leaf without a value is no problem."""
    is_foreign: bool = field(default=False, repr=False)
    """Whether values came, and the target has the path of none."""
    sources: Mapping[Any, tuple[int, Any]] = field(default_factory=dict, repr=False)
    """For each leaf that gets a value: which of the given groups has it, and where."""
    paths: Mapping[Any, Path | str] | Sequence[Path | str] = field(default=(), repr=False)
    """The paths of the target."""

    @property
    def taken(self) -> tuple[str, ...]:
        return tuple([_written(self.paths[key]) for key in self.sources])

    @property
    def problems(self) -> list[Difference]:
        return [*self.mismatches, *(() if self.may_miss else self.missing), *self.unexpected]

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        lines = [f"taken: {len(self.sources)} of {len(self.paths)} leaves"]
        for title, entries in (
            ("does not fit", self.mismatches),
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("renamed", [f"{old} to {new}" for old, new in self.renamed]),
        ):
            lines += [f"{title}:", *(f"  {entry}" for entry in entries)] if entries else []
        return "\n".join(lines)

    @property
    def count(self) -> str:
        """How many paths are wrong, in words."""
        return f"{len(self.problems)} path{'' if len(self.problems) == 1 else 's'}"

    @property
    def listed(self) -> str:
        """All that is wrong, a line for each path."""
        return "\n".join(map(str, self.problems))

    def is_refused(self, *, strict: bool = True) -> bool:
        """Whether it is an error: if anything is wrong; without `strict`, only if no path of the values is known."""
        return bool(self.problems) and (strict or self.is_foreign)


class Pairing(NamedTuple):
    """Which given leaf belongs to which leaf of a target, by names and kinds.

    Attributes:
      pairs: the target's leaf of each given one.
      mismatches: what differs, by the target's leaf, where kinds do.
      unexpected: the given leaves that the target does not have.
      is_whole: whether the leaves are those of the target, in its order.
      keeps_metadata: whether all have the metadata of the target's Variables.
    """

    pairs: Mapping[Any, Any]
    mismatches: Mapping[Any, Difference] = MappingProxyType({})
    unexpected: tuple[Difference, ...] = ()
    is_whole: bool = False
    keeps_metadata: bool = False

    @property
    def fits(self) -> bool:
        """Whether each given leaf belongs to one of the target."""
        return not (self.mismatches or self.unexpected)


class Target(NamedTuple):
    """The leaves that values are for.

    Attributes:
      paths: their paths, by position or name.
      values: what they have now; None where values are not compared.
      leaf_defs: their kinds and metadata.
    """

    paths: Mapping[Any, Path | str] | Sequence[Path | str]
    values: Any
    leaf_defs: Mapping[Any, LeafDef] | Sequence[LeafDef]

    def missing(self, known: Iterable[Hashable]) -> tuple[Difference, ...]:
        """The leaves that are not among the known ones."""
        paths, known = self.paths, set(known)
        pairs: Iterable[tuple[Any, Any]] = paths.items() if isinstance(paths, Mapping) else enumerate(paths)
        left = [(key, path) for key, path in pairs if key not in known]
        return tuple([Difference(_written(path), self._expected(key), "nothing") for key, path in left])

    def _expected(self, key: Any) -> str:
        if self.values is None or self.leaf_defs[key] is not None:
            return kind_text(self.leaf_defs[key])
        return _text_of(self.values[key])


def compare(target: Target, given: Sequence[tuple[Pairing, Any]], rules: Rules) -> Fit:
    """How groups of values, each with its pairing, fit the leaves of a target."""
    sources: dict[Any, tuple[int, Any]] = {}
    mismatches: list[Difference] = []
    known: set[Any] = set()
    for number, (pairing, values) in enumerate(given):
        mismatches += pairing.mismatches.values()
        known |= pairing.mismatches.keys()
        found: dict[Any, tuple[int, Any]] = {}
        for index, key in pairing.pairs.items():
            wrong = misfit(target.values[key], values[index], rules) if rules.values else None
            if wrong is None:
                found[key] = number, index
            else:
                mismatches.append(Difference(_written(target.paths[key]), *wrong))
                known.add(key)
        twice = [key for key in found if key in sources] if rules.once else []
        mismatches += [
            Difference(_written(target.paths[key]), "one value", "a second one in another State") for key in twice
        ]
        sources |= found
    missing = () if rules.missing == "stays" else target.missing(known | sources.keys())
    return Fit(
        tuple(mismatches),
        missing,
        tuple([each for pairing, _ in given for each in pairing.unexpected]),
        may_miss=rules.missing != "refused",
        is_foreign=any(p.unexpected and not (p.pairs or p.mismatches) for p, _ in given),
        sources=sources,
        paths=target.paths,
    )


def pairing_of(target: StateDef, given: StateDef) -> Pairing:
    """Which leaf of a State belongs to which leaf of a graph; found once for a pair of structures."""
    found: Pairing | None = target.fits.get(given)
    if found is None:
        pairs: dict[int, int] = {}
        mismatches: dict[int, Difference] = {}
        unexpected: list[Difference] = []
        for index, (path, leaf_def) in enumerate(zip(given.paths, given.leaf_defs, strict=True)):
            position = target.position(path)
            own = None if position is None else target.leaf_defs[position]
            if position is None:
                unexpected.append(Difference(written_path(path), target.why_missing(path)))
            elif leaf_def is not None and (own is None or own[0] is not leaf_def[0]):
                mismatches[position] = Difference(written_path(path), kind_text(own), kind_text(leaf_def))
            else:
                pairs[index] = position
        is_whole = not (mismatches or unexpected) and [*pairs.values()] == [*range(len(target.paths))]
        keeps = all(given.leaf_defs[i] in (None, target.leaf_defs[p]) for i, p in pairs.items())
        found = target.fits[given] = Pairing(pairs, mismatches, tuple(unexpected), is_whole, keeps)
    return found


def kind_text(leaf_def: LeafDef) -> str:
    """What a leaf is, as errors name it."""
    return "an array" if leaf_def is None else with_article(type_name(leaf_def[0]))


# --- two values -----------------------------------------------------------------

Misfit = tuple[str, str]
"""What is expected, and what came."""


def misfit(like: Any, given: Any, rules: Rules) -> Misfit | None:
    """Why a value cannot take the place of another one; None if it can.

    Both may also be what has a shape and a dtype: a description of an array, or an array in a file.
    """
    if kind_of(like) is Kind.CONTAINER:
        return _misfit_of_trees(like, given, rules)
    shape, found = _shape_of(like), _shape_of(given)
    if shape is None:  # a text or another object; None stands for nothing yet
        is_any = rules.dtypes == "any" or like is None or type(like) is type(given)
        return None if is_any else (_text_of(like), _text_of(given))
    if found is None:
        return f"an array of shape {shape}", _text_of(given)
    if found != shape:
        return f"shape {shape}", f"shape {found}"
    if isinstance(given, jax.ShapeDtypeStruct) and not isinstance(like, jax.ShapeDtypeStruct):
        return f"an array of shape {shape}, not its description", _text_of(given)
    if isinstance(given, (np.ndarray, np.generic)) and (given.dtype.kind in "OSU" or given.dtype.type is np.void):
        return f"an array of numbers of shape {shape}", _text_of(given)
    if _is_key(like) != _is_key(given):
        text = "keys of random numbers" if _is_key(like) else f"an array of {getattr(like, 'dtype', 'numbers')}"
        return text, _text_of(given)
    return None if rules.dtypes == "any" else _misfit_of_dtypes(like, given, rules)


def _misfit_of_trees(like: Any, given: Any, rules: Rules) -> Misfit | None:
    tree: Any = jax.tree.structure(like)
    if kind_of(given) is not Kind.CONTAINER or tree != jax.tree.structure(given):
        return f"a tree {tree}".replace("PyTreeDef", ""), _text_of(given)
    pairs = zip(jax.tree.leaves(like), jax.tree.leaves(given), strict=True)
    found = next((found for a, b in pairs if (found := misfit(a, b, rules)) is not None), None)
    return None if found is None else (f"{found[0]} inside", found[1])


def _misfit_of_dtypes(like: Any, given: Any, rules: Rules) -> Misfit | None:
    if rules.dtypes == "jax":
        own, new = jax_dtype(like), jax_dtype(given)
        return None if own == new else (f"dtype {own}", f"dtype {new}")
    if not (hasattr(like, "dtype") and hasattr(given, "dtype")):  # a number that an array has replaced, or the reverse
        is_either = hasattr(like, "dtype") or hasattr(given, "dtype")
        return None if is_either or type(like) is type(given) else (_text_of(like), _text_of(given))
    if isinstance(like, jax.ShapeDtypeStruct) and not _is_key(like):
        if jax.dtypes.canonicalize_dtype(like.dtype) != like.dtype:
            return "a dtype that JAX has without jax_enable_x64", f"dtype {like.dtype}"
    own, new = _native(like.dtype), _native(given.dtype)
    if own == new or (rules.dtypes == "sort" and _are_of_one_sort(own, new)):
        return None
    return f"dtype {own}", f"dtype {new}"


def jax_dtype(value: Any) -> Any:
    """The dtype that a value has for JAX; None if it has none."""
    try:
        return value.dtype if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value).dtype
    except TypeError:
        return None


def _native(dtype: Any) -> Any:
    """A dtype in the byte order of this machine."""
    return dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype


def _are_of_one_sort(one: Any, other: Any) -> bool:
    sorts = (jnp.floating, jnp.complexfloating, jnp.integer)
    return any(jnp.issubdtype(one, sort) and jnp.issubdtype(other, sort) for sort in sorts)


def _text_of(value: Any) -> str:
    """A value in an error: what only stands for an array, such as one in a file, reads as one."""
    is_array = isinstance(value, (jax.Array, np.ndarray, np.generic)) or not hasattr(value, "dtype")
    return describe(value) if is_array else f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)


def _shape_of(leaf: Any) -> tuple[int, ...] | None:
    """The shape of an array or number; None for other values."""
    return () if isinstance(leaf, (int, float, complex)) else getattr(leaf, "shape", None)


def _written(path: Path | str) -> str:
    return path if isinstance(path, str) else written_path(path)
