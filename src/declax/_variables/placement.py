"""Where the values of Variables lie: from names of axes, rules and a mesh to a sharding.

A dimension may have a mesh axis, a logical name that a rule turns into mesh axes, or None. Nothing happens without a
mesh: that of the metadata, or that of `jax.set_mesh`.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental.layout import Format
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from declax import _jax, errors
from declax._modes import Default, Mode
from declax._typing import Shape
from declax._variables.metadata import ACT_NAMES, EMPTY, Metadata, names_of_axes

T = TypeVar("T")

AnyMesh: TypeAlias = Mesh | AbstractMesh
AxisRules: TypeAlias = Mapping[str, Any] | Iterable[tuple[str, Any]]

# jax leaves these without types
make_spec: Callable[..., PartitionSpec] = PartitionSpec
_constrain: Callable[..., Any] = jax.lax.with_sharding_constraint
_barrier: Callable[..., Any] = jax.lax.optimization_barrier
reshard: Callable[..., Any] = jax.sharding.reshard


# --- rules ------------------------------------------------------------------------


class _RulesKey(NamedTuple):
    pairs: tuple[tuple[str, Hashable], ...] = ()
    otherwise: Literal["raise", "replicate", "later"] | None = None


class Rules(_RulesKey):
    """What logical names stand for, and what happens where a name does not fit.

    A tuple, since JAX hashes it with each operation that it traces.

    Attributes:
      pairs: names, and what they stand for.
      otherwise: what happens with a dimension that cannot be split: it is an error, or replicated with a warning; None
        as `sharding_rules` says; ``"later"`` leaves new Variables to a check of the whole model.
      reported: the warnings given so far; not a part of the value.
    """

    reported: set[str]

    def __init__(self, *_: object) -> None:
        self.reported = set()

    @staticmethod
    def of(rules: AxisRules, where: str, otherwise: Literal["raise", "replicate"] | None = None) -> Rules:
        """Rules as a user writes them: a mapping, or pairs.

        Raises:
          ShardingError: a rule is not a name, and a mesh axis, several, or None.
        """
        given: Any = rules.items() if isinstance(rules, Mapping) else rules
        pairs: list[Any] = list(given) if isinstance(given, Iterable) else [given]
        for pair in pairs:
            if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and _is_target(pair[1])):
                raise errors.ShardingError(
                    where,
                    "this is not a rule",
                    expected="a logical name with a mesh axis, a tuple of them, or None",
                    got=repr(pair),
                    fix='dx.sharding_rules({"embed": None, "mlp": "model", "batch": "data"})',
                )
        return Rules(tuple((name, tuple(to) if isinstance(to, list) else to) for name, to in pairs), otherwise)


def _is_target(axes: object) -> bool:
    several = axes if isinstance(axes, (tuple, list)) else (axes,)
    return axes is None or all(isinstance(axis, str) for axis in several)


class _JitKey(Generic[T]):
    """A `ContextVar` whose value is part of the key under which JAX keeps traces."""

    def __init__(self, default: T) -> None:
        self._context: Any = jax.make_user_context(default)  # type: ignore[no-untyped-call]  # of jax

    def get(self) -> T:
        return self._context.value  # type: ignore[no-any-return]  # set here

    def set(self, value: T) -> None:
        self._context(value).__enter__()


class sharding_rules(Default[Rules]):  # noqa: N801  # reads as a function
    """Sets what the logical names of axes stand for.

    A call sets it from now on, in a ``with`` until the end of the block, and as a decorator during the calls of a
    function; for this thread. Rules inside of others replace them. Functions under `jit` are traced again for other
    rules.

    Args:
      rules: for each logical name a mesh axis, a tuple of mesh axes, or None for a dimension that is not split. A mesh
        axis needs no rule for its own name.
      otherwise: what happens with a dimension whose name has no rule, or whose size the mesh axis does not divide:
        ``"raise"`` an error, or ``"replicate"`` it. None raises, except for a size in a Variable that is made while JAX
        traces, as under `jit` and `eval_shape`: there the dimension is replicated. A warning lists what is replicated,
        each kind once for a `sharding_rules`: parameters with the same shape and names are of one kind.

    Raises:
      ShardingError: a rule or `otherwise` is not valid.

    >>> import declax as dx
    >>> mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    >>> kernel = dx.eval_shape(lambda: dx.Param(jax.numpy.ones((8, 6)), out_sharding=("embed", "mlp")))
    >>> with dx.sharding_rules({"embed": None, "mlp": "model"}):
    ...     dx.get_named_sharding(kernel, mesh).value.spec
    P(None, 'model')
    """

    _current: ClassVar[Any] = _JitKey(Rules())

    def __init__(self, rules: AxisRules | Rules, *, otherwise: Literal["raise", "replicate"] | None = None) -> None:
        if otherwise not in ("raise", "replicate", None):
            raise errors.ShardingError(
                "sharding_rules.otherwise", "unknown choice", expected="'raise' or 'replicate'", got=repr(otherwise)
            )
        if not isinstance(rules, Rules):
            rules = Rules.of(rules, "sharding_rules", otherwise)
        super().__init__(rules)


class SplitBatch(NamedTuple):
    """The mesh on which the arguments of a compiled function lie, and the axes that split those in no model."""

    mesh: Mesh | None = None
    axes: tuple[str, ...] = ()


class mesh_of_arguments(Default[SplitBatch]):  # noqa: N801  # reads as a function
    """Sets where the arguments of a compiled function lie, while it is traced."""

    _current: ClassVar[Any] = _JitKey(SplitBatch())


logical_axis_rules = sharding_rules
"""The name of `sharding_rules` in NNX."""


class use_eager_sharding(Mode):  # noqa: N801  # reads as a function
    """Sets whether a new Variable with names of axes is put where it belongs on the mesh; initially True.

    A call sets it from now on, in a ``with`` until the end of the block, and as a decorator during the calls of a
    function; for this thread. The metadata ``eager_sharding`` of a Variable takes precedence.

    Raises:
      GraphError: the value is not a bool.

    >>> import declax as dx
    >>> with dx.use_eager_sharding(False):
    ...     dx.using_eager_sharding()
    False
    """

    _name = "use_eager_sharding"
    _current: ClassVar[Any] = _JitKey(True)


def using_eager_sharding() -> bool:
    """Whether new Variables are put where they belong on the mesh.

    >>> import declax as dx
    >>> dx.using_eager_sharding()
    True
    """
    return use_eager_sharding.current_value()


# --- from names to a sharding -----------------------------------------------------


class Misfit(NamedTuple):
    """A dimension that cannot be split as its Variable declares, and the line that changes this.

    The names fit if only its size does not.
    """

    where: str
    text: str
    fix: str
    names_fit: bool

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def checked_mesh(where: str, mesh: Any) -> AnyMesh:
    """A mesh that a user gave.

    Raises:
      ShardingError: it is none.
    """
    if isinstance(mesh, (Mesh, AbstractMesh)):
        return mesh
    raise errors.ShardingError(
        where,
        "this is not a mesh",
        expected="a Mesh, or an AbstractMesh where no device is needed",
        got=errors.describe(mesh),
        fix='jax.make_mesh((4, 2), ("data", "model"))',
    )


def context_mesh() -> AnyMesh | None:
    """The mesh of `jax.set_mesh`, or that of the arguments of the compiled function that is traced; or None."""
    abstract = jax.sharding.get_abstract_mesh()
    if abstract.empty:
        found: Mesh | None = mesh_of_arguments._current.get().mesh
        return found
    concrete = jax.sharding.get_mesh() if _jax.current_trace() is _jax.TOP else None
    return abstract if concrete is None or concrete.abstract_mesh != abstract else concrete


def mesh_of_array(value: Any) -> Mesh | None:
    """The mesh of several devices on which an array lies, also one that is differentiated outside of `jit`."""
    while isinstance(value, Tracer) and hasattr(value, "primal"):
        value = value.primal
    return mesh_of_sharding(None if isinstance(value, Tracer) else getattr(value, "sharding", None))


def mesh_of_sharding(sharding: Any) -> Mesh | None:
    """The mesh of several devices of a sharding."""
    mesh = sharding.mesh if type(sharding) is NamedSharding and sharding.num_devices > 1 else None
    return mesh if isinstance(mesh, Mesh) else None


def devices_along_batch(array: jax.Array) -> int:
    """How many devices split the first axis of an array of a batch, as far as that is known."""
    own = None if isinstance(array, Tracer) else getattr(array, "sharding", None)
    spec = own.spec if isinstance(own, NamedSharding) else explicit_spec(array)
    given: SplitBatch = mesh_of_arguments._current.get()
    mesh = own.mesh if isinstance(own, NamedSharding) else context_mesh()
    axes = names_of_entry(spec[0]) if spec else given.axes
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in axes)


def mesh_of(metadata: Metadata, default: AnyMesh | None = None) -> AnyMesh | None:
    """The mesh that a Variable names itself, or another one, or that of the context."""
    axes = metadata.axes.sharding if isinstance(metadata.axes, Format) else metadata.axes
    own = axes.mesh if isinstance(axes, NamedSharding) else metadata.get("mesh")
    if own is not None:
        return checked_mesh("the metadata mesh", own)
    return default or context_mesh()


def declared_spec(metadata: Metadata, where: str) -> PartitionSpec:
    """The entries of a Variable after its rules and those of the context; other names stay as they are."""
    if metadata.axes is None:
        return make_spec()
    rules = dict(_rules_of(metadata, where).pairs)
    return make_spec(*(rules.get(name, name) for name in _names(metadata.axes, where)))


def declared_sharding(
    where: str, metadata: Metadata, shape: Shape, mesh: AnyMesh
) -> tuple[NamedSharding, list[Misfit]]:
    """The sharding that a Variable declares on a mesh, replicated where it does not fit; and where that is.

    Args:
      where: the path of the Variable.
      metadata: its metadata.
      shape: of its value.
      mesh: the devices.
    """
    names = () if metadata.axes is None else _names(metadata.axes, where)
    spec, problems = _resolve(names, tuple(shape), _rules_of(metadata, where), mesh)
    axes = metadata.axes.sharding if isinstance(metadata.axes, Format) else metadata.axes
    kind = axes.memory_kind if isinstance(axes, NamedSharding) else None
    return NamedSharding(mesh, spec, memory_kind=kind), [Misfit(where, *problem) for problem in problems]


def declared_names(metadata: Metadata, where: str) -> list[str]:
    """The names of axes that a Variable declares; those of a sharding are axes of its mesh."""
    axes = metadata.axes.sharding if isinstance(metadata.axes, Format) else metadata.axes
    if axes is None or isinstance(axes, NamedSharding):
        return []
    return [part for name in _names(axes, where) for part in several(name) if isinstance(part, str)]


def activation_names(metadata: Metadata) -> list[str]:
    """The names of axes that a Variable declares for the result of its layer."""
    names = names_of_axes(metadata.get(ACT_NAMES)) or ()
    return [part for name in names for part in several(name) if isinstance(part, str)]


def rules_of(metadata: Metadata, where: str) -> dict[str, Any]:
    """What logical names stand for in a Variable: by the rules of the context, and its own.

    Raises:
      ShardingError: they contradict each other.
    """
    return dict(_rules_of(metadata, where).pairs)


def report(where: str, misfits: Sequence[Misfit], mesh: AnyMesh, *, is_traced: bool = False) -> None:
    """Raises for what does not fit; warns of what is replicated instead, once for each text.

    Args:
      where: what needs the sharding.
      misfits: what does not fit.
      mesh: the devices.
      is_traced: whether a size is no error if the rules do not say so, since a Variable is made while JAX traces.

    Raises:
      ShardingError: lists all of it.
    """
    if not misfits:
        return
    rules: Rules = sharding_rules._current.get()
    is_lenient = is_traced and rules.otherwise is None and all(misfit.names_fit for misfit in misfits)
    if is_lenient or rules.otherwise == "replicate":
        fresh = {misfit.text: misfit for misfit in reversed(misfits) if misfit.text not in rules.reported}
        rules.reported.update(fresh)
        if fresh:
            listed = "\n".join(map(str, reversed(fresh.values())))
            text = f"{where}: these dimensions are not split on the mesh {sizes_of(mesh)}:\n{listed}"
            warnings.warn(text, errors.ReplicationWarning, stacklevel=_jax.level_of_user(sys._getframe()))
        return
    raise errors.ShardingError(
        where,
        f"the declared sharding does not fit the mesh {sizes_of(mesh)}",
        got="\n".join(map(str, misfits)),
        expected="for each dimension None, a mesh axis, or a name with a rule; sizes that the mesh axes divide",
        fix="\n".join(dict.fromkeys(misfit.fix for misfit in misfits)),
    )


def sizes_of(mesh: AnyMesh) -> dict[str, int]:
    """The sizes of the axes of a mesh by name."""
    return dict(mesh.shape)


def _names(axes: Any, where: str) -> tuple[Any, ...]:
    names = names_of_axes(axes.sharding if isinstance(axes, Format) else axes)
    if names is None:
        raise errors.ShardingError(
            f"{where}.out_sharding",
            "this does not name the axes of an array",
            expected="a tuple of names, a PartitionSpec or a NamedSharding",
            got=errors.describe(axes),
            fix='dx.Param(value, out_sharding=(None, "model"))',
        )
    return tuple(tuple(name) if isinstance(name, list) else name for name in names)


def _rules_of(metadata: Metadata, where: str) -> Rules:
    """The rules of the context, and those of the Variable itself.

    Raises:
      ShardingError: they contradict each other.
    """
    rules: Rules = sharding_rules._current.get()
    own = metadata.get("sharding_rules")
    if isinstance(metadata.axes, NamedSharding):  # whose names are axes of its mesh
        return Rules((), rules.otherwise)
    if not own:
        return rules
    together = dict(rules.pairs)
    for name, target in Rules.of(own, f"{where}.sharding_rules").pairs:
        if together.setdefault(name, target) != target:
            raise errors.ShardingError(
                f"{where}.sharding_rules",
                f"the rule for {name!r} contradicts that of the context",
                expected=repr(together[name]),
                got=repr(target),
                fix="omit one of them",
            )
    return Rules(tuple(together.items()), rules.otherwise)


_Problem: TypeAlias = tuple[str, str, bool]
"""What is wrong with a dimension, the line that changes it, and whether its names fit the mesh."""


@functools.lru_cache(maxsize=4096)
def _resolve(
    names: tuple[Any, ...], shape: Shape, rules: Rules, mesh: AnyMesh
) -> tuple[PartitionSpec, tuple[_Problem, ...]]:
    """The entries of a sharding, and what is wrong with dimensions that are replicated instead."""
    if len(names) > len(shape):
        text = f"the sharding {names} has {len(names)} entries, for an array of shape {shape}"
        fix = f"out_sharding={names[: len(shape)]!r}        # an entry for each dimension"
        return make_spec(), ((text, fix, False),)
    targets, sizes = dict(rules.pairs), sizes_of(mesh)
    manual = {name for name, kind in _types_of(mesh).items() if kind is AxisType.Manual}
    entries: list[Any] = []
    problems: list[_Problem] = []
    taken: dict[str, int] = {}
    for dimension, (name, size) in enumerate(zip(names, shape, strict=False)):
        if name is PartitionSpec.UNCONSTRAINED:
            entries.append(name)
            continue
        axes = [axis for part in several(name) for axis in several(targets.get(part, part))]
        problem = _unknown_axis(name, axes, targets, sizes)
        axes = [axis for axis in axes if axis not in manual]  # in a shard_map, which has split the value
        problem = problem or _taken_axis(dimension, names, axes, taken)
        problem = problem or _indivisible(size, axes, sizes)
        if problem is None:
            taken |= dict.fromkeys(axes, dimension)
            entries.append(tuple(axes) if len(axes) > 1 else axes[0] if axes else None)
        else:
            text, fix, names_fit = problem
            problems.append((f"dimension {dimension} of {shape}, {name!r}: {text}", fix, names_fit))
            entries.append(None)
    types = _types_of(mesh)
    if len({types[axis] for axis in taken}) > 1:
        shown = ", ".join(f"{axis!r} is {types[axis].name}" for axis in taken)
        fix = f"jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto,) * {len(types)})"
        return make_spec(), ((f"one array cannot be split by axes of different types: {shown}", fix, False),)
    return make_spec(*entries), tuple(problems)


def _unknown_axis(
    name: Any, axes: Sequence[str], targets: Mapping[str, Any], sizes: Mapping[str, int]
) -> _Problem | None:
    """A name that is not an axis of the mesh, neither itself nor by its rule."""
    unknown = next((axis for axis in axes if axis not in sizes), None)
    if unknown is None:
        return None
    known = "        # or one of the mesh axes " + ", ".join(map(repr, sizes))
    if unknown in several(name) and unknown not in targets:
        near = errors.suggest(str(unknown), [*targets, *sizes])
        text = f"{unknown!r} has no rule, and is not an axis of the mesh" + (f"; {near}" if near else "")
        return text, f"dx.sharding_rules({{..., {unknown!r}: None}}){known}", False
    of = next(part for part in several(name) if unknown in several(targets.get(part)))
    return (
        f"its rule names {unknown!r}, which is not an axis of the mesh",
        f"dx.sharding_rules({{..., {of!r}: None}}){known}",
        False,
    )


def _taken_axis(dimension: int, names: Sequence[Any], axes: Sequence[str], taken: Mapping[str, int]) -> _Problem | None:
    """A mesh axis that splits another dimension too."""
    again = next((axis for i, axis in enumerate(axes) if axis in taken or axis in axes[:i]), None)
    if again is None:
        return None
    whole = (*names[:dimension], None, *names[dimension + 1 :])
    fix = f"out_sharding={whole!r}        # or rules with another mesh axis for one of the two"
    return f"mesh axis {again!r} splits dimension {taken.get(again, dimension)} already", fix, False


def _indivisible(size: int, axes: Sequence[str], sizes: Mapping[str, int]) -> _Problem | None:
    """A size that the mesh axes do not divide."""
    count = math.prod(sizes[axis] for axis in axes)
    if size % count == 0:
        return None
    fix = f'dx.sharding_rules(rules, otherwise="replicate")        # or a size that is a multiple of {count}'
    return f"its size {size} is not divisible by {count}, the size of mesh axis {_joined(axes)}", fix, True


def several(name: Any) -> tuple[Any, ...]:
    """The axes of one entry of a sharding, which may be None, an axis or several."""
    return () if name is None else tuple(name) if isinstance(name, (tuple, list)) else (name,)


def names_of_entry(entry: Any) -> tuple[str, ...]:
    """The mesh axes of one entry of a spec, which may also leave the place to JAX."""
    return tuple([axis for axis in several(entry) if isinstance(axis, str)])


def _joined(axes: Sequence[str]) -> str:
    return repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))


def _types_of(mesh: AnyMesh) -> dict[str, AxisType]:
    return dict(zip(mesh.axis_names, mesh.axis_types, strict=True))


# --- values -----------------------------------------------------------------------


def sharding_at_creation(
    where: str, metadata: Metadata, shape: Shape, *, is_new: bool = True
) -> NamedSharding | Format | None:
    """Where a value belongs, by default that of a new Variable; None without a mesh, or if it is to stay where it is.

    Raises:
      ShardingError: the names do not fit the mesh.
    """
    mesh = _mesh_at_creation(metadata)
    if mesh is None:
        return None
    sharding, misfits = declared_sharding(where, metadata, shape, mesh)
    if not (is_new and sharding_rules._current.get().otherwise == "later"):
        report(where, misfits, mesh, is_traced=is_new and _jax.current_trace() is not _jax.TOP)
    return Format(metadata.axes.layout, sharding) if isinstance(metadata.axes, Format) else sharding


def _mesh_at_creation(metadata: Metadata) -> AnyMesh | None:
    """The mesh on which a value is placed; None where it stays as it is."""
    if metadata.axes is None or not metadata.get("eager_sharding", using_eager_sharding()):
        return None
    mesh = mesh_of(metadata)
    return None if mesh is None or all(kind is AxisType.Manual for kind in mesh.axis_types) else mesh


def _warn_without_mesh(where: str, value: Any, metadata: Metadata) -> None:
    """Warns once of rules that have no effect, since there are several devices and no mesh of them."""
    rules: Rules = sharding_rules._current.get()
    is_placed_here = metadata.axes is not None and metadata.get("eager_sharding", using_eager_sharding())
    if not is_placed_here or _jax.current_trace() is not _jax.TOP:
        return
    if isinstance(getattr(value, "sharding", None), NamedSharding) or mesh_of(metadata) is not None:
        return
    used = {name for name, _ in rules.pairs}.intersection(declared_names(metadata, where))
    text = "sharding_rules: there is no mesh"
    if used and text not in rules.reported and jax.device_count() > 1:
        rules.reported.add(text)
        warnings.warn(
            f"{text}, so that {where} and what follows lie on one of {jax.device_count()} devices.\n"
            "  fix: with jax.set_mesh(mesh), dx.sharding_rules(rules): ...",
            errors.ReplicationWarning,
            stacklevel=_jax.level_of_user(sys._getframe()),
        )


def _report_traced(value: Any, metadata: Metadata) -> None:
    """Reports the dimensions of a value of another shape that the mesh does not divide; XLA places it."""
    mesh = _mesh_at_creation(metadata)
    if mesh is not None:
        _, misfits = declared_sharding("set_value", metadata, value.shape, mesh)
        if all(misfit.names_fit for misfit in misfits):  # in a vmap, the names are those of all instances
            report("set_value", misfits, mesh, is_traced=True)


def placed(where: str, value: Any, metadata: Metadata, *, is_new: bool = True) -> Any:
    """A value, by default that of a new Variable, where the metadata says; each array of a tree."""
    if isinstance(value, (list, tuple, dict)):
        return jax.tree.map(lambda leaf: placed(where, leaf, metadata, is_new=is_new), value)
    if not isinstance(value, (jax.Array, np.ndarray)):
        return value
    sharding = sharding_at_creation(where, metadata, value.shape, is_new=is_new)
    if sharding is None and sharding_rules._current.get().pairs:
        _warn_without_mesh(where, value, metadata)
    return value if sharding is None else put(value, sharding)


def is_committed(value: Any) -> bool:
    """Whether an array was put somewhere: by `jax.device_put`, by a mesh, or as the result of such arrays."""
    return isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.committed


def beside(old: Any, new: Any, metadata: Metadata = EMPTY) -> Any:
    """A value that takes the place of an old one: on the devices of the old one, unless it has its own.

    An array that JAX has not committed to devices has none. Nor has one that is whole on each device of the old one, as
    all new arrays are under `jax.set_mesh`. An array of another shape goes where that of a new Variable does.
    """
    if isinstance(old, (list, tuple, dict)):
        tree: Any = jax.tree.structure(old)
        is_placed = any(map(is_committed, jax.tree.leaves(old))) and tree == jax.tree.structure(new)
        return jax.tree.map(lambda a, b: beside(a, b, metadata), old, new) if is_placed else new
    if not is_committed(old) or isinstance(new, Tracer) or not isinstance(new, (jax.Array, np.ndarray)):
        if isinstance(old, Tracer) and isinstance(new, (jax.Array, np.ndarray)) and new.shape != old.shape:
            _report_traced(new, metadata)
        return _kept_in_memory(old, new)
    there, own = old.sharding, getattr(new, "sharding", None) if is_committed(new) else None
    is_whole = own is not None and own.is_fully_replicated and own.device_set == there.device_set
    if own == there or not (own is None or (is_whole and not is_in_host_memory(own))):
        return new
    return jax.device_put(new, there) if new.shape == old.shape else placed("set_value", new, metadata)


def within(old: jax.Array, new: Any) -> Any:
    """The new value of a whole array, placed as the old one unless it is committed to other devices."""
    if isinstance(old, Tracer):
        there, here = (jax.typeof(value).sharding for value in (old, new))
        is_explicit = AxisType.Explicit in there.mesh.axis_types
        return _kept_in_memory(old, reshard(new, there) if is_explicit and here != there else new)
    if not is_committed(old) or isinstance(new, Tracer) or getattr(new, "sharding", None) == old.sharding:
        return new
    is_elsewhere = is_committed(new) and new.sharding.device_set != old.sharding.device_set
    return new if is_elsewhere else jax.device_put(new, old.sharding)


def alike(value: jax.Array, other: Any) -> jax.Array:
    """A traced array that XLA splits as another, whose type does not say how, as on automatic axes."""
    is_placed_later = sharding_rules._current.get().otherwise == "later"  # by `init_sharded`, all arrays
    if is_placed_later or not (isinstance(value, Tracer) and isinstance(other, Tracer)):
        return value
    is_manual = AxisType.Manual in jax.typeof(other).sharding.mesh.axis_types  # in a shard_map, which has split it
    if is_manual:
        return value
    # XLA splits the operands of a select alike. The barrier keeps it from seeing that it always takes the value.
    never = _barrier(jnp.zeros((), bool))
    return jnp.where(never, in_device_memory(other).astype(value.dtype), value)


def explicit_spec(value: jax.Array) -> PartitionSpec | None:
    """How a mesh with explicit axes splits an array, traced or not; None on other meshes and without one."""
    sharding = jax.typeof(value).sharding
    return sharding.spec if AxisType.Explicit in sharding.mesh.axis_types else None


def on_mesh(sharding: PartitionSpec | NamedSharding | Format) -> NamedSharding | Format:
    """A sharding as a function takes it: a spec is of the mesh of the context.

    Raises:
      ShardingError: there is no mesh for a spec.
    """
    if not isinstance(sharding, PartitionSpec):
        return sharding
    mesh = context_mesh()
    if mesh is None:
        raise errors.ShardingError(
            "out_sharding",
            "there is no mesh for this spec",
            expected="a NamedSharding, or a call under jax.set_mesh",
            got=repr(sharding),
            fix="with jax.set_mesh(mesh): ...",
        )
    return NamedSharding(mesh, sharding)


def put(value: Any, sharding: NamedSharding | Format) -> Any:
    """An array at a sharding: moved at the top level, and constrained while JAX traces."""
    target: Any = sharding.sharding if isinstance(sharding, Format) else sharding
    is_abstract = isinstance(target.mesh, AbstractMesh)
    if _jax.current_trace() is _jax.TOP:
        is_there = is_abstract or getattr(value, "sharding", None) == sharding
        return value if is_there else jax.device_put(value, sharding)
    is_constrained = isinstance(sharding, Format) or not _is_explicit(target)
    moved = _constrain(value, sharding) if is_constrained else reshard(value, NamedSharding(target.mesh, target.spec))
    return jax.device_put(moved, jax.memory.Space.Host) if is_in_host_memory(target) else moved  # constraints drop it


def is_in_host_memory(sharding: Sharding) -> bool:
    """Whether a sharding is in the memory of the host, and not in that of its devices."""
    kind = sharding.memory_kind
    return kind is not None and "host" in kind and kind != _memory_of_devices(sharding)


def _memory_of_devices(sharding: Sharding) -> str | None:
    """The name of the memory with which the devices of a sharding compute; None without a device of this process."""
    if isinstance(getattr(sharding, "mesh", None), AbstractMesh):
        return None
    devices: Any = sharding.addressable_devices  # jax leaves them without types
    return next((str(device.default_memory().kind) for device in devices), None)


def is_on_host(value: Any) -> bool:
    """Whether an array, traced or not, is in the memory of the host, where devices do not compute with it."""
    if isinstance(value, Tracer):
        return getattr(jax.typeof(value), "memory_space", None) is jax.memory.Space.Host
    return isinstance(value, jax.Array) and is_in_host_memory(value.sharding)


def in_device_memory(tree: T) -> T:
    """A tree whose arrays are where devices compute with them; the tree itself if none is in the memory of the host."""
    return jax.tree.map(_to_device, tree) if any(map(is_on_host, jax.tree.leaves(tree))) else tree


def _to_device(value: Any) -> Any:
    if not is_on_host(value):
        return value
    if isinstance(value, Tracer):
        return jax.device_put(value, jax.memory.Space.Device)
    return jax.device_put(value, value.sharding.with_memory_kind(_memory_of_devices(value.sharding)))


def in_memory_of(old: Any, new: T) -> T:
    """A new value, or a tree of the same structure, in the memory of the host where the old one is there."""
    return jax.tree.map(_to_memory_of, old, new) if any(map(is_on_host, jax.tree.leaves(old))) else new


def _kept_in_memory(old: Any, new: T) -> T:
    """A new value in the memory of the host where a traced one is that it replaces, unless the user has moved it."""
    return in_memory_of(old, new) if isinstance(old, Tracer) and not _jax.is_moved(new) else new


def _to_memory_of(old: Any, new: Any) -> Any:
    if not is_on_host(old) or is_on_host(new):
        return new
    if isinstance(new, Tracer) or isinstance(old, Tracer):
        return jax.device_put(new, jax.memory.Space.Host)
    return jax.device_put(new, jnp.asarray(new).sharding.with_memory_kind(old.sharding.memory_kind))


def _is_explicit(sharding: NamedSharding) -> bool:
    """Whether the axes that split an array are explicit; of an array that is not split, all axes of the mesh."""
    types = _types_of(sharding.mesh)
    used = [axis for entry in sharding.spec for axis in names_of_entry(entry)]
    return all(types[axis] is AxisType.Explicit for axis in used or types)


def is_explicit_split(sharding: object) -> bool:
    """Whether a sharding splits an array along explicit axes only, all of those of the mesh of the context."""
    if not isinstance(sharding, NamedSharding) or not any(sharding.spec) or not _is_explicit(sharding):
        return False
    context = jax.sharding.get_abstract_mesh()
    types = set(context.axis_types)
    return types == {AxisType.Explicit} and context == getattr(sharding.mesh, "abstract_mesh", sharding.mesh)


def check_splits(leaves: Iterable[tuple[str, Any]], labels: Iterable[Any], mesh: AnyMesh | None) -> None:
    """Checks that specs and shardings can split the leaves of a transform, which have names; the mesh is for specs.

    Raises:
      TransformError: names the first leaf for which there is no mesh, or whose dimensions cannot be split.
    """
    for (where, value), label in zip(leaves, labels, strict=True):
        if not isinstance(label, (PartitionSpec, NamedSharding)):
            continue
        spec, on = (label.spec, label.mesh) if isinstance(label, NamedSharding) else (label, mesh)
        sizes = mesh_sizes(where, spec, on)
        for leaf in jax.tree.leaves(value):
            if not _can_split(spec, jnp.shape(leaf), sizes):
                raise cannot_split(where, spec, leaf, sizes)


def mesh_sizes(where: str, spec: PartitionSpec, mesh: AnyMesh | None) -> dict[str, int]:
    """The sizes of the axes of the mesh for a spec, by name.

    Raises:
      TransformError: there is no mesh.
    """
    if mesh is not None:
        return sizes_of(mesh)
    raise errors.TransformError(
        where,
        f"there is no mesh for {spec!r}",
        expected="the mesh of a sharding or of an argument, or a call under jax.set_mesh",
        fix="with jax.set_mesh(mesh): ...",
    )


def _can_split(spec: PartitionSpec, shape: Sequence[int], sizes: Mapping[Any, int]) -> bool:
    if len(spec) > len(shape):
        return False
    names = [names_of_entry(entry) for entry in spec]
    return all(
        sizes.keys() >= set(along) and size % math.prod(sizes[name] for name in along) == 0
        for size, along in zip(shape, names, strict=False)
    )


def cannot_split(where: str, spec: PartitionSpec, value: Any, sizes: Mapping[Any, int]) -> errors.TransformError:
    """The error for a leaf that a spec cannot split on a mesh."""
    return errors.TransformError(
        where,
        f"this cannot be split by {spec!r}",
        expected="at most one entry for each dimension, with mesh axes whose sizes divide it",
        got=f"{errors.describe(value)}, on a mesh of {dict(sizes)}",
        fix="dx.StateSharding({dx.Param: jax.P('data'), ...: None})        # None for leaves that are not split",
    )
