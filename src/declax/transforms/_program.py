"""The compiled function of one structure and one set of static arguments.

Vocabulary
----------
program:  what `jit` compiles for one structure.
donation: JAX may reuse the buffers of donated arrays. Of a model, only those of
          the Variables that the function sets are donated: the others keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax

from declax.transforms._arguments import Selection
from declax.transforms._explaining import deleted_leaves, note_donating
from declax.transforms._lift import Call, Outcome, Plan, written_leaves
from declax.transforms._naming import look_flat, name_of
from declax.transforms._output_groups import OutputGroups, from_groups, in_groups
from declax.transforms._running import calls_back, wait
from declax.transforms._structure import Structure
from declax.transforms.prefixes import Labels


class NarrowedError(Exception):
    """For other shapes, the function does not set all Variables that were donated, so fewer are from now on."""


class Donation:
    """Which leaves a program donates: of donated models, those that the function sets.

    Attributes:
      positions: of these leaves; None before the function was traced.
    """

    __slots__ = ("_plain", "_values", "positions")

    def __init__(self, values: frozenset[int], plain: tuple[int, ...]) -> None:
        self._values = values
        self._plain = plain
        self.positions: tuple[int, ...] | None = None

    @staticmethod
    def of(call: Call, selection: Selection, statics: Sequence[int]) -> Donation | None:
        """What a selection donates of a call that lacks the static arguments at these positions; None for nothing."""
        if selection.is_empty:
            return None
        structure = call.structure
        args, kwargs, _ = jax.tree_util.tree_unflatten(structure.tree, range(len(structure.is_root)))
        args = list(args)
        for number in statics:
            args.insert(number, None)
        chosen = set(jax.tree.leaves(selection.chosen(args, kwargs)))
        values = frozenset(i for i, root in enumerate(call.leaf_roots()) if root in chosen)
        plain_at = [i for i, is_one in enumerate(structure.is_root) if not is_one]
        return Donation(values, tuple(len(call.values) + rank for rank, i in enumerate(plain_at) if i in chosen))

    def choose(self, written: set[int]) -> None:
        """Donates those of the graph's leaves that are written."""
        self.positions = (*sorted(self._values & written), *self._plain)

    def check(self, written: set[int]) -> None:
        """Checks, while JAX traces, that all of the graph's leaves that are donated are written.

        Raises:
          NarrowedError: some are not; fewer are donated from now on.
        """
        kept = {*self._plain, *written}
        if self.positions is not None and not kept.issuperset(self.positions):
            self.positions = tuple(position for position in self.positions if position in kept)
            raise NarrowedError


class Program:
    """What is compiled for one structure.

    JAX traces the function once for each set of shapes, at the first call with
    them. Each trace has its own `Plan`. Only a program that donates is traced
    before its first call, since what it donates depends on what the function sets.

    Args:
      function: of the graph's leaves and the plain ones; made by `lifted`, and `named`.
      structure: of the calls.
      count: how many leaves the graph has.
      donation: what is donated; None for nothing.
      options: of `jax.jit`.
      placed: the shardings of the leaves, and those that results can have.
      on_trace: is called with the leaves whenever JAX traces the function.

    Attributes:
      run_fast: JAX's function, where its result is the parts of an Outcome; None where results come in groups.
    """

    __slots__ = ("_donation", "_flat", "_is_packed", "_jitted", "_options", "_positions", "run_fast")

    def __init__(
        self,
        function: Callable[..., Outcome],
        structure: Structure,
        count: int,
        donation: Donation | None,
        options: dict[str, Any],
        placed: tuple[Labels, OutputGroups] | None,
        on_trace: Callable[[Sequence[Any]], None],
    ) -> None:
        self._donation = donation
        self._is_packed = placed is not None
        self._options: dict[str, Any] = options

        def traced(values: Sequence[Any], plain: Sequence[Any]) -> Outcome:
            outcome = function(values, plain)
            if donation is not None:
                donation.check(written_leaves(structure, outcome))
            return outcome

        run: Callable[..., Any] = _in_parts(traced)
        if placed is not None:
            labels, groups = placed
            run = in_groups(traced, groups)
            shardings = {"in_shardings": (*labels.values, *labels.plain), "out_shardings": (None, groups.known)}
            self._options = {**options, **shardings}

        def flat(*leaves: Any) -> Any:
            on_trace(leaves)
            return run(leaves[:count], leaves[count:])

        look_flat(flat, function)
        self._flat = flat
        self._compile()

    def _compile(self) -> None:
        """Has JAX compile the function with what is donated now; its traces are kept."""
        self._positions = None if self._donation is None else self._donation.positions
        self._jitted: Any = jax.jit(self._flat, donate_argnums=self._positions, **self._options)
        self.run_fast: Callable[..., Any] | None = None if self._is_packed else self._jitted
        if self._positions is not None:
            note_donating(self.name)

    @property
    def name(self) -> str:
        """The name of the user's function."""
        return name_of(self._flat)

    def run(self, call: Call) -> Outcome:
        """Runs it on the leaves of a call, some of which are lost if it donates.

        An error says which Variables have lost their buffers.
        """
        leaves = (*call.values, *call.plain)
        try:
            result = self._apply(call, lambda jitted: jitted(*leaves))
            outcome = self.outcome(result)
            self.wait_for_callbacks(outcome.plan, leaves, result)
        except BaseException as error:
            self.note_lost(call, error)
            raise
        return outcome

    def trace(self, call: Call) -> Any:
        """The stage of JAX for a call."""
        traced = self._apply(call, lambda jitted: jitted.trace(*call.values, *call.plain))
        plan = self.outcome(traced.out_info).plan
        plan.calls_back = calls_back(traced.jaxpr)
        return traced

    def _apply(self, call: Call, use: Callable[[Any], Any]) -> Any:
        """Uses JAX's function, after it was decided what to donate."""
        donation = self._donation
        if donation is None or _is_jit_disabled():
            return use(self._jitted)
        if donation.positions is None:
            donation.choose(self._written_by(call))
        while True:
            if self._positions != donation.positions:
                self._compile()
            try:
                return use(self._jitted)
            except NarrowedError:
                pass

    def _written_by(self, call: Call) -> set[int]:
        """The leaves of the graph that the function sets in a call, for which JAX traces it."""
        traced = self._jitted.trace(*call.values, *call.plain)
        outcome = self.outcome(traced.out_info)
        outcome.plan.calls_back = calls_back(traced.jaxpr)
        return written_leaves(call.structure, outcome)

    def wait_for_callbacks(self, plan: Plan, leaves: Sequence[Any], result: Any) -> None:
        """Waits for what ran, if it calls Python while it runs: it may still fail, and nothing is committed then."""
        if plan.calls_back is None:
            plan.calls_back = not _is_jit_disabled() and calls_back(self._jitted.trace(*leaves).jaxpr)
        if plan.calls_back:
            wait(result)

    def note_lost(self, call: Call, error: BaseException) -> None:
        """Adds to an error which of the donated leaves have lost their buffers."""
        lost = [] if self._donation is None else [name for name, _ in deleted_leaves(call)]
        if lost:
            error.add_note(
                "The arguments of this call were donated, and these have lost their buffers: "
                f"{', '.join(lost)}. Load a checkpoint, or call it without donation."
            )

    def outcome(self, result: Any) -> Outcome:
        """What a result of JAX's function says, whether it comes in groups or not."""
        return from_groups(result) if self._is_packed else Outcome(*result)


def _in_parts(function: Callable[..., Outcome]) -> Callable[..., tuple[Plan, Any, Any]]:
    return lambda values, plain: function(values, plain).parts()


def _is_jit_disabled() -> bool:
    return bool(cast("Any", jax.config).jax_disable_jit)
