"""What is compiled for one structure.

Vocabulary
----------
program:  the compiled function of one structure and one set of static arguments.
donation: JAX may reuse the buffers of what is donated. Of a model, only those
          of the Variables that the function sets: the others keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax

from declax.transforms._explaining import deleted_leaves, note_donating
from declax.transforms._labels import Labels
from declax.transforms._lift import Call, Outcome, written_leaves
from declax.transforms._naming import look_flat, name_of
from declax.transforms._packing import Groups, packed, unpacked
from declax.transforms._running import calls_back, wait
from declax.transforms._selection import Selection

Traced = Callable[[Sequence[Any]], None]


class Program:
    """What is compiled for one structure.

    Donation needs to know which Variables the function sets. So the function
    is traced first; JAX keeps that trace, and compiles it with the donation
    that suits.

    Args:
      function: of the graph's leaves and the plain ones; made by `lifted`, and `named`.
      count: how many leaves the graph has.
      donated: which arguments are donated.
      statics: the positions of static arguments, which the calls do not have.
      options: of `jax.jit`.
      placed: the shardings of the leaves, and those that results can have.
      on_trace: is called with the leaves whenever JAX traces the function.

    Attributes:
      jitted: JAX's compiled function of the leaves, where nothing is donated.
      is_donating: whether something is.
      at_once: JAX's function that runs each call, where nothing has to be done
        before or after; None otherwise.
      calls_back: whether it calls Python while it runs; then nothing is given
        back before it has run to the end, since it may fail so late.
    """

    __slots__ = (
        "_count",
        "_donated",
        "_flat",
        "_is_packed",
        "_options",
        "_statics",
        "_with_donation",
        "at_once",
        "calls_back",
        "is_donating",
        "jitted",
    )

    def __init__(
        self,
        function: Callable[..., Outcome],
        count: int,
        donated: Selection,
        statics: tuple[int, ...],
        options: dict[str, Any],
        placed: tuple[Labels, Groups] | None,
        on_trace: Traced,
    ) -> None:
        self._count = count
        self._donated = donated
        self._statics = statics
        self._options = dict(options)
        self._is_packed = placed is not None
        run: Callable[..., Any] = function
        if placed is not None:
            labels, groups = placed
            run = packed(function, groups)
            self._options["in_shardings"] = (*labels.values, *labels.plain)
            self._options["out_shardings"] = (None, groups.known)

        def flat(*leaves: Any) -> Any:
            on_trace(leaves)
            return run(leaves[:count], leaves[count:])

        look_flat(flat, function)
        self._flat = flat
        self.jitted: Any = jax.jit(flat, **self._options)
        self.is_donating: bool = not donated.is_empty
        self.at_once: Callable[..., Outcome] | None = self.jitted if placed is None and donated.is_empty else None
        self.calls_back: bool = False
        self._with_donation: Any = None

    @property
    def name(self) -> str:
        """The name of the user's function."""
        return name_of(self._flat)

    def run(self, call: Call) -> Outcome:
        """Runs it on the leaves of a call."""
        if self.is_donating:
            return self._run_donating(call)
        result = self.jitted(*call.values, *call.plain)
        if self.calls_back:
            wait(result)
        outcome: Outcome = unpacked(result) if self._is_packed else result
        return outcome

    def look(self, call: Call) -> None:
        """Traces it for a call, to see whether it calls back; JAX keeps the trace for running it."""
        if cast("Any", jax.config).jax_disable_jit:  # whoever sets this wants no trace
            return
        try:
            traced = self.jitted.trace(*call.values, *call.plain)
        except (RecursionError, SystemError):
            if call.binding is not None:
                call.binding.check_depth()  # something has grown in a Variable that JAX cannot take apart
            raise
        self.calls_back = calls_back(traced.jaxpr)
        if self.calls_back:
            self.at_once = None

    def _run_donating(self, call: Call) -> Outcome:
        """Runs it on the leaves of a call, some of which are lost.

        An error says which Variables have lost their buffers.
        """
        function = self.compiled(call)
        try:
            result = function(*call.values, *call.plain)
            if self.calls_back:
                wait(result)
        except BaseException as error:
            self.note_lost(call, error)
            raise
        outcome: Outcome = unpacked(result) if self._is_packed else result
        return outcome

    def note_lost(self, call: Call, error: BaseException) -> None:
        """Adds to an error which of the donated leaves have lost their buffers."""
        lost = [name for name, _ in deleted_leaves(call)] if self.is_donating else []
        if lost:
            error.add_note(
                "The arguments of this call were donated, and these have lost their buffers: "
                f"{', '.join(lost)}. Load a checkpoint, or call it without donation."
            )

    def outcome(self, result: Any) -> Outcome:
        """What a result of JAX's function says, whether it comes in groups or not."""
        return unpacked(result) if self._is_packed else result

    def compiled(self, call: Call) -> Any:
        """The function of JAX that runs the calls of this structure."""
        if not self.is_donating:
            return self.jitted
        if self._with_donation is None:
            traced = self.jitted.trace(*call.values, *call.plain)
            positions = self._positions(call, written_leaves(call, self.outcome(traced.out_info)))
            self._with_donation = jax.jit(self._flat, donate_argnums=positions, **self._options)
            if not (self._is_packed or self.calls_back):
                self.at_once = self._with_donation
            note_donating(self.name)
        return self._with_donation

    def _positions(self, call: Call, written: set[int]) -> tuple[int, ...]:
        """The donated leaves: of the graph those that are written, and the plain ones."""
        structure = call.structure
        args, kwargs, _ = jax.tree_util.tree_unflatten(structure.tree, range(len(structure.is_root)))
        args = list(args)
        for number in self._statics:
            args.insert(number, None)
        chosen = set(jax.tree.leaves(self._donated.chosen(args, kwargs)))
        values = [i for i, root in enumerate(call.leaf_roots()) if root in chosen and i in written]
        plain_at = [i for i, is_one in enumerate(structure.is_root) if not is_one]
        plain = [self._count + rank for rank, i in enumerate(plain_at) if i in chosen]
        return (*values, *plain)
