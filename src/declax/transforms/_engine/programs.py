"""The compiled programs of one structure, and what they donate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import jax
from jax.sharding import NamedSharding

from declax import _jax
from declax._graph.binding import Binding
from declax._jax import is_jit_disabled
from declax._variables.donation import note_donor
from declax._variables.placement import SplitBatch, context_mesh
from declax.transforms._engine.call import Call, deleted_leaves
from declax.transforms._engine.commit import calls_back, wait
from declax.transforms._engine.diagnostics import explain, unless_deleted
from declax.transforms._engine.holding import Held, holding, mesh_of, on_mesh, put_uncommitted, without_labels
from declax.transforms._engine.names import name_of
from declax.transforms._engine.outcome import Outcome, Plan
from declax.transforms._engine.placement import place, shardings_of
from declax.transforms._engine.prefixes import OutputGroups, from_groups, in_groups
from declax.transforms._engine.refusals import check_results, explain_shardings, unless_elsewhere
from declax.transforms._engine.structure import Structure, Trace, Traces
from declax.transforms._engine.tracing import written_leaves
from declax.transforms._engine.wrapped import Selection


class Donation:
    """Which leaves a program donates, of donated models those that the function sets; known once it was traced.

    A later trace, for other shapes, returns the values of the donated leaves of the graph also where it sets none.
    """

    __slots__ = ("_values", "of_graph", "plain", "positions")

    def __init__(self, values: frozenset[int], plain: tuple[int, ...]) -> None:
        self._values = values
        self.plain: tuple[int, ...] = plain
        self.of_graph: set[int] = set()
        self.positions: tuple[int, ...] | None = None

    @staticmethod
    def of(call: Call, selection: Selection) -> Donation | None:
        """The donated leaves of a call; None if there are none."""
        if selection.is_empty:
            return None
        structure = call.structure
        args, kwargs, _ = jax.tree_util.tree_unflatten(structure.tree, range(len(structure.is_root)))
        args = list(args)
        for number in structure.static_numbers:
            args.insert(number, None)
        chosen = set(jax.tree.leaves(selection.chosen(args, kwargs)))
        values = frozenset(i for i, root in enumerate(structure.leaf_roots()) if root in chosen)
        plain_at = [i for i, is_one in enumerate(structure.is_root) if not is_one]
        return Donation(values, tuple(len(call.values) + rank for rank, i in enumerate(plain_at) if i in chosen))

    def choose(self, written: set[int]) -> None:
        """Donates those of the graph's leaves that are written."""
        self.of_graph |= self._values & written
        self.positions = (*sorted(self.of_graph), *self.plain)


ROOM: Final = 2**14
"""How many words Python reserves for the frames of a trace.

It maps memory for 16 KiB of frames at a time, and unmaps it when the first of these returns. The frames of a trace need
20 to 40 KiB, so that the calls across the border of 16 KiB would map memory thousands of times.
"""


class Program:
    """The compiled programs of one structure.

    JAX traces the function once for each set of shapes, at the first call with them. Each trace has its own `Plan`.
    Only a program with donation is traced before its first call, since it donates the values that the function sets.
    `run_fast` takes the leaves of a call, and returns the parts of an Outcome.
    """

    def __init__(
        self,
        function: Callable[..., Outcome],
        structure: Structure,
        donation: Donation | None,
        options: dict[str, Any],
        placed: tuple[Sequence[Any], OutputGroups] | None,
        traces: Traces,
        held: Held = None,
        batch: SplitBatch = SplitBatch(),  # noqa: B008  # immutable
    ) -> None:
        self._structure = structure
        self._held: Held = None
        self._written: Collection[int] | None = None
        self._donation = donation
        self._is_packed = placed is not None or held is not None
        self._labels: tuple[Any, ...] = ()
        self._results: Sequence[Any] = ()
        self._options: dict[str, Any] = options
        self.moves_arrays: bool = False
        check: Callable[..., None] | None = None
        groups: OutputGroups | None = None
        if placed is not None:
            labels, groups = placed
            self._labels, self._results = tuple(labels), tuple(groups.known)
            self._options = {**options, "in_shardings": self._labels}
            self.moves_arrays = any(label is not None for label in self._labels[: structure.num_leaves])
            check = functools.partial(check_results, structure)
        if batch.mesh is not None:
            function = on_mesh(function, batch)
        if held is not None:
            groups = OutputGroups((None,)) if groups is None else groups
            self._held = kept = without_labels(held, self._labels)
            groups.add(kept)
            function = holding(function, structure, kept)
        packed = None if groups is None else in_groups(function, groups, check)
        if groups is not None:
            self._options = {**self._options, "out_shardings": (None, groups.known)}
        self._shardings = functools.lru_cache(1)(functools.partial(shardings_of, structure, self._labels))

        def flat(*leaves: Any) -> Any:
            traces.note(Trace.of(structure, leaves))
            return function(*leaves).parts() if packed is None else packed(*leaves)

        flat.__code__ = flat.__code__.replace(co_stacksize=ROOM)
        self._flat = functools.update_wrapper(flat, function)
        self._compile()

    def _compile(self) -> None:
        """Compiles the function, anew once it is known what it donates; JAX keeps its traces."""
        positions = None if self._donation is None else self._donation.positions
        if positions:
            note_donor(self.name)
        self._jitted: Any = jax.jit(self._flat, donate_argnums=positions, **self._options)
        donated = self._donation is not None and self._donation.plain
        run = unless_deleted(self._jitted, self._structure, donated) if donated else self._jitted
        if any(isinstance(label, NamedSharding) for label in self._labels):
            run = unless_elsewhere(run, self._structure, self._labels)
        self.run_fast: Callable[..., Any] = (lambda *leaves: from_groups(run(*leaves))) if self._is_packed else run

    @property
    def name(self) -> str:
        """The name of the user's function."""
        return name_of(self._flat)

    def run(self, call: Call, leaves: Sequence[Any]) -> tuple[Plan, Any, Any]:
        """Runs it on the leaves of a call, and returns the parts of an Outcome; an error names donated leaves."""
        try:
            plan, new, output = self.run_fast(*leaves)
            self.wait_for_callbacks(plan, leaves, (new, output))
        except BaseException as error:
            self.explain(call, error)
            raise
        return plan, new, output

    def place(self, binding: Binding, plan: Plan) -> None:
        """Moves the arrays of the arguments that the function has not set to where `in_shardings` says."""
        if self.moves_arrays and len(plan.changed) < len(binding.cells):
            place(binding, self._shardings(context_mesh()))

    def trace(self, call: Call) -> Any:
        """The stage of JAX for a call."""
        self.prepare(call)
        return self._trace(call)[0]

    def prepare(self, call: Call) -> None:
        """Asks the trace, before the first call, what to donate and what a call sets on the mesh of the arguments."""
        held, donation = self._held, self._donation
        if held is not None and mesh_of(call.values) is not None:
            put_uncommitted(call, held, range(len(held)))
            held = None
        if self._written is None and (held or donation) and not is_jit_disabled():
            traced, plan = self._trace(call)
            self._written = written_leaves(call.structure, plan).keys()
            if donation:
                plan.calls_back = calls_back(traced.jaxpr)  # later, donated arrays are gone
                donation.choose({*self._written})
                self._compile()
        if held is not None:
            put_uncommitted(call, held, self._written or ())

    @property
    def num_compilations(self) -> int:
        """How many programs JAX has compiled of it."""
        return _jax.num_compiled(self._jitted)

    def _trace(self, call: Call) -> tuple[Any, Plan]:
        try:
            traced = self._jitted.trace(*call.leaves)
        except Exception as error:
            self.explain(call, error)
            raise
        return traced, self.outcome(traced.out_info).plan

    def wait_for_callbacks(self, plan: Plan, leaves: Sequence[Any], result: Any) -> None:
        """Waits for what ran, if it calls Python while it runs: it may still fail, and nothing is committed then."""
        if plan.calls_back is None:
            plan.calls_back = not is_jit_disabled() and calls_back(self._jitted.trace(*leaves).jaxpr)
        if plan.calls_back:
            wait(result)

    def explain(self, call: Call, error: BaseException) -> None:
        """Explains an error of a run in the user's words, and notes which donated leaves have lost their buffers."""
        lost = [] if self._donation is None else [name for name, _ in deleted_leaves(call)]
        if lost:
            error.add_note(
                "The arguments of this call were donated, and these have lost their buffers: "
                f"{', '.join(lost)}. Load a checkpoint, or call it without donation."
            )
        explain_shardings(call, self._labels, self._results, context_mesh(), error)
        explain(call, error)

    def outcome(self, result: Any) -> Outcome:
        """The plan and values in a result of JAX's function, grouped or not."""
        return Outcome(*from_groups(result)) if self._is_packed else Outcome(*result)
