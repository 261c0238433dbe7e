"""What is compiled for one structure.

Vocabulary
----------
program:  the compiled function of one structure and one set of static arguments.
donation: JAX may reuse the buffers of what is donated. Of a model, only those
          of the Variables that the function sets: the others keep theirs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import jax

from declax.transforms._arguments import Selection
from declax.transforms._explaining import deleted_leaves, note_donating
from declax.transforms._lift import Call, Outcome, Plan, written_leaves
from declax.transforms._naming import look_flat, name_of
from declax.transforms._output_groups import OutputGroups, from_groups, in_groups
from declax.transforms._running import calls_back, wait
from declax.transforms.prefixes import Labels

Traced = Callable[[Sequence[Any]], None]


class Untraced(Exception):  # noqa: N818  # no error: nobody but a Program and who runs it sees this
    """JAX is about to trace a function for shapes that nobody has looked at."""


class Program:
    """What is compiled for one structure.

    For other shapes a function may do other things: set other Variables, or
    call back. Donation and waiting depend on that. So each trace is looked at
    before it runs: the function refuses to be traced by a call, and is traced
    by `look`; JAX keeps that trace, and compiles it with the donation that suits.

    Args:
      function: of the graph's leaves and the plain ones; made by `lifted`, and `named`.
      count: how many leaves the graph has.
      donated: which arguments are donated.
      statics: the positions of static arguments, which the calls do not have.
      options: of `jax.jit`.
      placed: the shardings of the leaves, and those that results can have.
      on_trace: is called with the leaves whenever JAX traces the function.

    Attributes:
      is_donating: whether something is donated.
      at_once: JAX's function that runs each call, where nothing has to be done
        before or after; None otherwise. It may raise `Untraced`. Gives the parts
        of an Outcome as a tuple, for which JAX calls nothing of Python.
      calls_back: whether it calls Python while it runs; then nothing is given
        back before it has run to the end, since it may fail so late. One trace
        that does speaks for all.
    """

    __slots__ = (
        "_count",
        "_donated",
        "_flat",
        "_is_packed",
        "_options",
        "_positions",
        "_run",
        "_statics",
        "_tracing",
        "at_once",
        "calls_back",
        "is_donating",
    )

    def __init__(
        self,
        function: Callable[..., Outcome],
        count: int,
        donated: Selection,
        statics: tuple[int, ...],
        options: dict[str, Any],
        placed: tuple[Labels, OutputGroups] | None,
        on_trace: Traced,
    ) -> None:
        self._count = count
        self._donated = donated
        self._statics = statics
        self._options = dict(options)
        self._is_packed = placed is not None
        run: Callable[..., Any] = _in_parts(function)
        if placed is not None:
            labels, groups = placed
            run = in_groups(function, groups)
            self._options["in_shardings"] = (*labels.values, *labels.plain)
            self._options["out_shardings"] = (None, groups.known)
        tracing: list[int] = []

        def flat(*leaves: Any) -> Any:
            if threading.get_ident() not in tracing and not _is_jit_disabled():
                raise Untraced
            on_trace(leaves)
            return run(leaves[:count], leaves[count:])

        look_flat(flat, function)
        self._flat = flat
        self._tracing = tracing
        self._run: Any = jax.jit(flat, **self._options)
        self._positions: tuple[int, ...] | None = None
        self.is_donating: bool = not donated.is_empty
        self.at_once: Callable[..., tuple[Plan, tuple[Any, ...], Any]] | None = None
        self.calls_back: bool = False

    @property
    def name(self) -> str:
        """The name of the user's function."""
        return name_of(self._flat)

    def run(self, call: Call) -> Outcome:
        """Runs it on the leaves of a call, some of which are lost if it donates.

        An error says which Variables have lost their buffers.
        """
        try:
            result = self._result(call)
            if self.calls_back:
                wait(result)
        except BaseException as error:
            self.note_lost(call, error)
            raise
        return self.outcome(result)

    def _result(self, call: Call) -> Any:
        leaves = (*call.values, *call.plain)
        try:
            return self._run(*leaves)
        except Untraced:
            pass
        self.look(call)
        with self._may_trace():  # where JAX tells apart what its own trace does not
            return self._run(*leaves)

    def look(self, call: Call) -> None:
        """Traces it for a call, to see what it sets and whether it calls back; JAX keeps the trace for running it."""
        if _is_jit_disabled():  # whoever sets this wants no trace
            return
        try:
            with self._may_trace():
                traced = self._run.trace(*call.values, *call.plain)
        except (RecursionError, SystemError):
            if call.binding is not None:
                call.binding.check_depth()  # something has grown in a Variable that JAX cannot take apart
            raise
        self.calls_back = self.calls_back or calls_back(traced.jaxpr)
        if self.is_donating:
            self._donate(self._chosen(call, written_leaves(call, self.outcome(traced.out_info))))
        self.at_once = None if self._is_packed or self.calls_back else self._run

    def trace(self, call: Call) -> Any:
        """The stage of JAX for a call."""
        self.look(call)
        with self._may_trace():
            return self._run.trace(*call.values, *call.plain)

    @contextlib.contextmanager
    def _may_trace(self) -> Generator[None]:
        """Lets this thread trace the function."""
        self._tracing.append(threading.get_ident())
        try:
            yield
        finally:
            self._tracing.remove(threading.get_ident())

    def _donate(self, positions: tuple[int, ...]) -> None:
        """Donates these leaves from now on, of those that were donated so far."""
        if self._positions is not None:
            positions = tuple(position for position in self._positions if position in positions)
        if positions != self._positions:
            self._positions = positions
            self._run = jax.jit(self._flat, donate_argnums=positions, **self._options)
            note_donating(self.name)

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
        return from_groups(result) if self._is_packed else Outcome(*result)

    def _chosen(self, call: Call, written: set[int]) -> tuple[int, ...]:
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


def _in_parts(function: Callable[..., Outcome]) -> Callable[..., tuple[Plan, Any, Any]]:
    return lambda values, plain: function(values, plain).parts()


def _is_jit_disabled() -> bool:
    return bool(cast("Any", jax.config).jax_disable_jit)
