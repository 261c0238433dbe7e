"""Plans: where each array of a model is on a mesh, why, and how many bytes of it each device holds."""

from __future__ import annotations

import functools
import json
import math
import os
import pathlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from declax._filters import Filter, PathIn
from declax._sharding.memory_kinds import memories_of
from declax._sharding.plan_entries import DEVICE, PlanEntry, entry_of_table, measured
from declax._text.arrays import bytes_text
from declax._text.folding import Line, folded
from declax._text.tables import aligned
from declax._typing import Path
from declax._variables.placement import AnyMesh, checked_mesh, context_mesh, make_spec, sizes_of
from declax.errors import MissingKeyError, ShardingError, describe, format_path, suggest
from declax.transforms._engine.prefixes import StateSharding

_FORMAT = "declax-plan"
_VERSION = 1
_LISTED = 8


class Plan(StateSharding):
    """Where each array of a model is on a mesh, why, and its bytes on each device; prints as a table.

    Made by `plan`, or read from a file. `init_sharded`, `load`, `get_named_sharding` and the options ``in_shardings``
    and ``out_shardings`` of `jit` take it as the `StateSharding` that it is. They raise if a model has other arrays
    than the plan, and if their mesh has other sizes. A mapping from the text of each path to its `PlanEntry`.

    Attributes:
      mesh: the devices, or a mesh without devices.
      entries: one for each array, in the order of `state`.
      unused_rules: the names of rules that no Variable declares.

    >>> import declax as dx
    >>> names = {"out_sharding": (None, "model")}
    >>> layer = dx.eval_shape(lambda: dx.Linear(64, 128, kernel_metadata=names, rngs=dx.Rngs(0)))
    >>> print(dx.plan(layer, {"data": 64, "model": 4}))
    path    shape        spec               bytes  memory  reason
    ------  -----------  ----------------  ------  ------  --------------------
    bias    f32[128]     P()                512 B  device  replicated: no names
    kernel  f32[64,128]  P(None, 'model')  8.2 KB  device  declared
    ------  -----------  ----------------  ------  ------  --------------------
    total                                  8.7 KB          of 33.3 KB
    on each of 256 devices (data=64, model=4)
    whole on each device: 512 B, 1 of 2 arrays
    """

    mesh: AnyMesh
    entries: tuple[PlanEntry, ...]
    unused_rules: tuple[str, ...]

    def __init__(
        self,
        entries: Sequence[PlanEntry],
        mesh: AnyMesh,
        unused_rules: Sequence[str] = (),
        batch_axes: Sequence[str] = (),
    ) -> None:
        paths: dict[tuple[PartitionSpec, str], list[Path]] = {}
        _check_memories(entries, mesh)
        for entry in entries:
            paths.setdefault((entry.spec, entry.memory_kind), []).append(entry.path)
        super().__init__(
            {PathIn(*found): _sharding(mesh, spec, kind) for (spec, kind), found in paths.items()},
            {entry.path: entry.reason for entry in entries},
            batch_axes,
        )
        vars(self).update(mesh=mesh, entries=tuple(entries), unused_rules=tuple(unused_rules))

    # --- a mapping ---

    def __getitem__(self, path: Filter) -> PlanEntry:
        if isinstance(path, str) and path in self._by_text:
            return self._by_text[path]
        raise MissingKeyError("Plan", "there is no such array", got=repr(path), fix=suggest(str(path), self._by_text))

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_text)

    def __len__(self) -> int:
        return len(self.entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self.entries == other.entries and sizes_of(self.mesh) == sizes_of(other.mesh)

    def __hash__(self) -> int:
        return hash(self.entries)

    @functools.cached_property
    def _by_path(self) -> dict[Path, PlanEntry]:
        return {entry.path: entry for entry in self.entries}

    @functools.cached_property
    def _by_text(self) -> dict[str, PlanEntry]:
        return {format_path(entry.path): entry for entry in self.entries}

    # --- sizes ---

    @property
    def nbytes(self) -> int:
        """The bytes on each device, those in the memory of its host included."""
        return sum(entry.nbytes for entry in self.entries)

    @property
    def whole(self) -> int:
        """The bytes of all arrays, as if on one device."""
        return sum(entry.whole for entry in self.entries)

    @property
    def replicated(self) -> tuple[PlanEntry, ...]:
        """What is whole on each of several devices, the largest first."""
        if self.mesh.size == 1:
            return ()
        return tuple(sorted((entry for entry in self.entries if entry.is_whole), key=lambda entry: -entry.nbytes))

    # --- other plans ---

    def on(self, mesh: AnyMesh) -> Plan:
        """The same plan on devices.

        Args:
          mesh: with the axes and sizes of the plan.

        Raises:
          ShardingError: it has others, or its devices lack a memory of the plan.
        """
        if checked_mesh("Plan.on", mesh) == self.mesh:
            return self
        if sizes_of(mesh) != sizes_of(self.mesh):
            raise ShardingError(
                "Plan.on",
                "the plan is of another mesh",
                expected=str(sizes_of(self.mesh)),
                got=str(sizes_of(mesh)),
                fix="dx.plan(model, mesh, strategy)        # a plan of this mesh",
            )
        return Plan(self.entries, mesh, self.unused_rules, self.batch_axes)

    def part(self, *keys: Any) -> Plan:
        """The plan of a part, such as ``plan.part("optimizer")`` of that of a dict of a model and its optimizer.

        Raises:
          MissingKeyError: the plan has no array there.
        """
        found = [entry for entry in self.entries if entry.path[: len(keys)] == keys]
        if not found:
            starts = dict.fromkeys(format_path(entry.path[:1]) for entry in self.entries)
            raise MissingKeyError(
                "Plan.part", "there is no such part", got=format_path(keys), expected=", ".join(starts)
            )
        entries = [replace(entry, path=entry.path[len(keys) :]) for entry in found]
        return Plan(entries, self.mesh, self.unused_rules, self.batch_axes)

    def compare(self, other: Plan, /) -> PlanDifference:
        """What changes if a run with this plan resumes with another one.

        >>> import declax as dx
        >>> layer = dx.eval_shape(lambda: dx.Linear(512, 512, rngs=dx.Rngs(0)))
        >>> print(dx.plan(layer, {"data": 8}, dx.fsdp).compare(dx.plan(layer, {"data": 4}, dx.fsdp)))
        path    shape         from        to          bytes on each device
        ------  ------------  ----------  ----------  --------------------
        kernel  f32[512,512]  P('data',)  P('data',)  131.1 KB -> 262.1 KB
        ------  ------------  ----------  ----------  --------------------
        total                                         133.1 KB -> 264.2 KB
        from 8 devices (data=8) to 4 devices (data=4): 1 of 2 arrays are divided differently
        """
        return PlanDifference(self, other)

    def write(self, path: str | os.PathLike[str], /) -> None:
        """Writes the plan as a JSON file; its specs may be edited."""
        table: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, **self.to_table()}
        arrays = ",\n".join(map(json.dumps, table.pop("arrays")))  # one a line, to be edited and compared
        text = f'{json.dumps(table)[:-1]}, "arrays": [\n{arrays}\n]}}'
        pathlib.Path(path).write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def read(path: str | os.PathLike[str], /) -> Plan:
        """The plan of a file.

        Returns:
          A plan without devices: ``plan.on(mesh)`` puts it on some.

        Raises:
          ShardingError: the file is no plan, has an array twice, or a spec or memory does not fit its mesh.
        """
        try:
            table = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ShardingError(os.fspath(path), "this file cannot be read as a plan", got=str(error)) from None
        if not isinstance(table, dict) or (table.get("format"), table.get("version")) != (_FORMAT, _VERSION):
            raise ShardingError(
                os.fspath(path),
                "this is not a file of a plan",
                expected=f"{_FORMAT!r} of version {_VERSION}, which plan.write(path) writes",
                got=repr(table)[:80],
            )
        return Plan.from_table(os.fspath(path), table)

    def to_table(self) -> dict[str, Any]:
        """The plan as data of JSON."""
        return {
            "mesh": sizes_of(self.mesh),
            "arrays": [entry.to_table() for entry in self.entries],
            "unused_rules": list(self.unused_rules),
            "batch_axes": list(self.batch_axes),
        }

    @staticmethod
    def from_table(where: str, table: Any) -> Plan:
        """The plan that data of JSON describe.

        Raises:
          ShardingError: they do not describe one, have an array twice, or a spec or memory does not fit the mesh.
        """
        try:
            mesh = abstract_mesh(table["mesh"])
            entries = [entry_of_table(array) for array in table["arrays"]]
            unused = [str(name) for name in table["unused_rules"]]
            batch = [str(name) for name in table.get("batch_axes", ())]  # which older files do not have
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            got = f"{type(error).__name__}: {error}"[:200]
            raise ShardingError(where, "this is not a plan", got=got, fix="plan.write(path)") from None
        twice = next((path for path, count in Counter(entry.path for entry in entries).items() if count > 1), None)
        if twice is not None:
            raise ShardingError(
                f"{where}, {format_path(twice)}",
                "the plan has this array more than once",
                expected="one entry for each array",
                fix="remove the other entries, or plan.write(path)",
            )
        return Plan([measured(where, entry, sizes_of(mesh)) for entry in entries], mesh, unused, batch)

    # --- applied to a model ---

    def label_of(self, path: Path, held: Any, where: str) -> NamedSharding:
        """The sharding of a Variable or array."""
        entry = self._by_path.get(path)
        found = [entry] if entry else [entry for entry in self.entries if entry.path[: len(path)] == path]
        value = getattr(held, "raw_value", held)
        shape = getattr(value, "shape", None)
        if not found and not any(getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(value)):
            return _sharding(self.mesh, make_spec(), DEVICE)  # a number, which can only be whole
        if not found or (entry and shape is not None and tuple(shape) != entry.shape):
            raise ShardingError(
                f"{where}, {format_path(path)}",
                "the plan has an array of another shape here" if found else "the plan has no such array",
                expected=str(found[0].shape) if found else _text_of_some(self.entries),
                got=describe(value),
                fix=self._fix(path),
            )
        places = {(entry.spec, entry.memory_kind) for entry in found}
        if len(places) > 1:
            raise ShardingError(
                f"{where}, {format_path(path)}",
                "the arrays of this Variable are divided differently, and it has one label",
                got=", ".join(sorted(str(spec) for spec, _ in places)),
                fix="a Variable for each array",
            )
        return _sharding(self.mesh, *places.pop())

    def number_of(self, path: Path, held: Any) -> None:
        """None: a plan has paths, and no filters."""

    def unused(self, used: Collection[int]) -> list[Filter]:
        """None: `check_leaves` finds paths that a model does not have."""
        return []

    def _fix(self, path: Path) -> str:
        """The part of the plan that has a path, or another plan."""
        starts = (entry.path[: -len(path)] for entry in self.entries if path and entry.path[-len(path) :] == path)
        start = next(starts, ())
        part = f"plan.part({', '.join(map(repr, start))})" if start else "dx.plan(model, mesh, strategy)"
        return f"{part}        # the plan of the model that has it"

    def check_leaves(self, where: str, paths: Sequence[Path]) -> None:
        """Raises if the plan has arrays that a model does not have; `label_of` does for those that it has not."""
        known = {*paths}
        if left := [entry for entry in self.entries if known.isdisjoint(_starts(entry.path))]:
            raise ShardingError(
                where,
                "the model has not all arrays of the plan",
                expected=_text_of_some(left),
                fix="dx.plan(model, mesh, strategy)        # or plan.part(...), of a part",
            )

    def below(self, path: Path) -> Any:
        """The plan of a model in a container, or the sharding of an array."""
        return self.label_of(path, None, "the plan") if path in self._by_path else self.part(*path) if path else self

    def check_usable(self, option: str) -> None:
        """Raises for a plan without devices, since arrays are put on devices."""
        if isinstance(self.mesh, AbstractMesh):
            raise ShardingError(
                option,
                "the plan is of a mesh without devices",
                got=repr(self),
                fix=f"{option}=plan.on(mesh)        # a mesh of {math.prod(sizes_of(self.mesh).values())} devices",
            )

    # --- text ---

    def __str__(self) -> str:
        rows = [["path", "shape", "spec", "bytes", "memory", "reason"]]
        for line in folded([Line(entry.path, replace(entry, path=())) for entry in self.entries]):
            entry = line.content
            size = bytes_text(entry.nbytes) if line.times == 1 else f"{line.times} x {bytes_text(entry.nbytes)}"
            rows.append(
                [format_path(line.path), entry.shape_text, str(entry.spec), size, entry.memory_kind, entry.reason]
            )
        rows.append(["total", "", "", bytes_text(self.nbytes), "", f"of {bytes_text(self.whole)}"])
        lines = [aligned(rows, {"path", "shape", "spec", "memory", "reason"}), f"on each of {_mesh_text(self.mesh)}"]
        lines += [f"{bytes_text(size)} of these in {kind}" for kind, size in self._elsewhere().items()]
        if self.replicated:
            size = bytes_text(sum(entry.nbytes for entry in self.replicated))
            count = f"{len(self.replicated)} of {len(self.entries)} arrays"
            lines.append(f"whole on each device: {size}, {count}")
        if self.unused_rules:
            lines.append(f"rules that no Variable uses: {', '.join(self.unused_rules)}")
        return "\n".join(lines)

    def _elsewhere(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in self.entries:
            if entry.memory_kind != DEVICE:
                found[entry.memory_kind] = found.get(entry.memory_kind, 0) + entry.nbytes
        return found

    def __repr__(self) -> str:
        size = f"{bytes_text(self.nbytes)} of {bytes_text(self.whole)}"
        return f"<Plan of {len(self)} arrays, {size} on each of {_mesh_text(self.mesh)}>"


def mesh_of_plan(shardings: Any) -> Mesh | None:
    """The devices of a plan, where there is no mesh of the context."""
    mesh = shardings.mesh if isinstance(shardings, Plan) and context_mesh() is None else None
    return mesh if isinstance(mesh, Mesh) else None


def of_item(shardings: Any, name: str) -> Any:
    """The part of a plan that is of an item of a checkpoint, or the plan of each; other shardings as they are."""
    is_of_items = isinstance(shardings, Plan) and any(entry.path[:1] == (name,) for entry in shardings.entries)
    return shardings.part(name) if is_of_items else shardings


@dataclass(frozen=True)
class PlanDifference:
    """The difference of two plans: which arrays a run that resumes with the second one divides differently.

    Attributes:
      before, after: the plans.
    """

    before: Plan
    after: Plan

    @property
    def moved(self) -> tuple[tuple[PlanEntry, PlanEntry], ...]:
        """The arrays of which a device holds another part, or in another memory."""
        others = self.after._by_path
        pairs = ((entry, others[entry.path]) for entry in self.before.entries if entry.path in others)
        sizes = sizes_of(self.before.mesh), sizes_of(self.after.mesh)
        return tuple(pair for pair in pairs if pair[0].place(sizes[0]) != pair[1].place(sizes[1]))

    @property
    def missing(self) -> tuple[PlanEntry, ...]:
        """The arrays that the second plan does not have."""
        return tuple(entry for entry in self.before.entries if entry.path not in self.after._by_path)

    @property
    def added(self) -> tuple[PlanEntry, ...]:
        """The arrays that the first plan does not have."""
        return tuple(entry for entry in self.after.entries if entry.path not in self.before._by_path)

    def __bool__(self) -> bool:
        return bool(self.moved or self.missing or self.added)

    def __str__(self) -> str:
        rows = [["path", "shape", "from", "to", "bytes on each device"]]
        pairs: list[tuple[PlanEntry | None, PlanEntry | None]] = [*self.moved]
        pairs += [(entry, None) for entry in self.missing] + [(None, entry) for entry in self.added]
        lines = [Line(_one(pair).path, tuple(entry and replace(entry, path=()) for entry in pair)) for pair in pairs]
        for line in folded(lines):
            old, new = line.content
            shapes = dict.fromkeys(entry.shape_text for entry in (old, new) if entry)
            size = _arrow(*(bytes_text(entry.nbytes) if entry else "nothing" for entry in (old, new)))
            size = size if line.times == 1 else f"{line.times} x ({size})"
            rows.append([format_path(line.path), " -> ".join(shapes), _where(old), _where(new), size])
        totals = _arrow(bytes_text(self.before.nbytes), bytes_text(self.after.nbytes))
        rows.append(["total", "", "", "", totals])
        count = f"{len(self.moved)} of {len(self.before.entries)} arrays are divided differently"
        end = f"from {_mesh_text(self.before.mesh)} to {_mesh_text(self.after.mesh)}: {count}"
        return f"{aligned(rows, {'path', 'shape', 'from', 'to'})}\n{end}"


# --- meshes and texts --------------------------------------------------------------------


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """A mesh without devices."""
    given: Any = sizes
    if not isinstance(given, Mapping) or not all(type(size) is int and size > 0 for size in given.values()):
        raise ShardingError(
            "mesh",
            "this is not a mesh",
            expected="a Mesh, or the sizes of its axes by name",
            got=repr(sizes),
            fix='{"data": 4, "model": 2}',
        )
    return AbstractMesh(tuple(sizes.values()), tuple(sizes))


def _sharding(mesh: AnyMesh, spec: PartitionSpec, kind: str) -> NamedSharding:
    return NamedSharding(mesh, spec, memory_kind=None if kind == DEVICE else kind)


def _check_memories(entries: Sequence[PlanEntry], mesh: AnyMesh) -> None:
    """Raises if the devices of a mesh lack a memory of a plan."""
    known = memories_of(mesh)
    for entry in entries:
        if entry.memory_kind not in known:
            raise ShardingError(
                f"Plan, {format_path(entry.path)}",
                "the devices have no such memory",
                expected=" or ".join(map(repr, known)),
                got=repr(entry.memory_kind),
                fix=suggest(entry.memory_kind, known) or "dx.plan(model, mesh, strategy, memory=...)",
            )


def _starts(path: Path) -> list[Path]:
    """The path, and those of what holds it: an array may be in a Variable that holds a tree."""
    return [path[:end] for end in range(len(path), -1, -1)]


def _text_of_some(entries: Sequence[PlanEntry]) -> str:
    paths = [format_path(entry.path) for entry in entries[:_LISTED]]
    return ", ".join([*paths, f"and {len(entries) - _LISTED} more"] if len(entries) > _LISTED else paths)


def _mesh_text(mesh: AnyMesh) -> str:
    sizes = sizes_of(mesh)
    axes = ", ".join(f"{name}={size}" for name, size in sizes.items())
    return f"{math.prod(sizes.values())} devices ({axes})"


def _one(pair: tuple[PlanEntry | None, PlanEntry | None]) -> PlanEntry:
    found = pair[0] or pair[1]
    assert found is not None  # one plan has it
    return found


def _where(entry: PlanEntry | None) -> str:
    if entry is None:
        return "nothing"
    return str(entry.spec) if entry.memory_kind == DEVICE else f"{entry.spec} in {entry.memory_kind}"


def _arrow(old: str, new: str) -> str:
    return old if old == new else f"{old} -> {new}"
