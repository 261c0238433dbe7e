"""A compiled function, stage by stage: traced, lowered, compiled. Each stage has the attributes of that of JAX."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import jax

from declax.errors import TransformError
from declax.transforms._engine.call import Call
from declax.transforms._engine.commit import run, wait
from declax.transforms._engine.names import names_of_call
from declax.transforms._engine.outcome import Outcome, Rebuilt
from declax.transforms._engine.programs import Program
from declax.transforms._engine.retraces import differences
from declax.transforms._engine.structure import Structure
from declax.transforms._engine.wrapped import P

R = TypeVar("R", covariant=True)

BindArguments = Callable[[tuple[Any, ...], dict[str, Any]], Call]
"""How a compiled function takes arguments apart."""


class Stage(Generic[R]):
    """A stage of JAX, for calls with models; other attributes, such as `as_text`, are those of JAX's stage."""

    def __init__(self, stage: Any, program: Program, bind_arguments: BindArguments, call: Call) -> None:
        self._stage = stage
        self._program = program
        self._bind_arguments = bind_arguments
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_stage"), name)  # raises AttributeError while it is copied


class Traced(Stage[R]):
    """A function that was traced for some arguments; see `JitWrapped.trace`. Its `jaxpr` takes flat leaves."""

    def __init__(
        self, stage: Any, program: Program, bind_arguments: BindArguments, call: Call, trace_alone: Callable[[], Any]
    ) -> None:
        super().__init__(stage, program, bind_arguments, call)
        self._trace_alone = trace_alone

    @property
    def out_info(self) -> R:
        """The result of a call, with shapes and dtypes in place of arrays."""
        outcome = self._program.outcome(self._stage.out_info)
        found: R = Rebuilt(self._call.structure, self._call.leaves).apply(outcome)
        return found

    def lower(self, *, lowering_platforms: tuple[str, ...] | None = None, **private: Any) -> Lowered[R]:
        """The next stage.

        Args:
          lowering_platforms: as in JAX; None for the platform of the arguments.
          **private: only `jax.export` passes more.

        Raises:
          TransformError: in `jax.export`, for a function that changes its arguments.
        """
        if private:
            self.check_unchanging("jax.export")
            # jax.export reads the jaxpr next; it has to be that of the function of the caller's arguments
            self._stage = self._trace_alone()
            exported: Lowered[R] = self._stage.lower(lowering_platforms=lowering_platforms, **private)
            return exported
        try:
            lowered = self._stage.lower(lowering_platforms=lowering_platforms)
        except Exception as error:
            self._program.explain(self._call, error)
            raise
        return Lowered(lowered, self._program, self._bind_arguments, self._call)

    def interpreted(self, interpret: Callable[[Any, Sequence[Any]], list[Any]]) -> Compiled[R]:
        """The function, run by an interpreter of its `jaxpr`, which takes that and its arguments, in place of XLA."""
        program, tree = self._stage.jaxpr, jax.tree.structure(self._stage.out_info)

        def run(*leaves: Any) -> Any:
            return jax.tree.unflatten(tree, interpret(program, jax.tree.leaves(leaves)))

        return Compiled(run, self._program, self._bind_arguments, self._call)

    def check_unchanging(self, where: str) -> None:
        """Raises TransformError if the function changes its arguments, or returns models, which a file cannot hold."""
        plan = self._program.outcome(self._stage.out_info).plan
        if plan.change is None and not plan.changed:
            return
        names = names_of_call(self._call.structure)
        raise TransformError(
            where,
            "an exported program returns results only, and this function changes its arguments or returns models",
            got=", ".join(names[i] for i in plan.changed) or "a changed structure, or a model in the result",
            fix="model.eval()        # no statistics or random streams change then\n"
            "lambda x: dx.clone(model)(x)        # each call begins with the same ones, as an RNN needs",
        )

    def flat(self) -> tuple[Call, Callable[[Sequence[Any]], Any]]:
        """The call, and the function from its leaves to the results; for functions that change nothing."""
        run = self._program.run_fast
        return self._call, lambda leaves: Outcome(*run(*leaves)).output


class Staged(Generic[P, R]):
    """A compiled function that can be traced, and so be lowered, without a call of it."""

    @abstractmethod
    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Traced[R]:
        """Traces the function for arguments, without compiling or running it."""

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered[R]:
        """Lowers the function for arguments, without compiling or running it.

        >>> import declax as dx
        >>> "add" in dx.jit(lambda x: x + 1).lower(1).as_text()
        True
        """
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of a call, with shapes and dtypes in place of arrays.

        >>> import declax as dx
        >>> dx.jit(lambda x: x + 1).eval_shape(1).dtype
        dtype('int32')
        """
        return self.trace(*args, **kwargs).out_info


class Lowered(Stage[R]):
    """A function that was lowered for some arguments; see `JitWrapped.lower`."""

    def compile(self, compiler_options: dict[str, Any] | None = None) -> Compiled[R]:
        """The next stage."""
        return Compiled(self._stage.compile(compiler_options), self._program, self._bind_arguments, self._call)


class Compiled(Stage[R]):
    """A compiled function, to be called with arguments of one structure.

    >>> import declax as dx
    >>> twice = dx.jit(lambda x: 2 * x).lower(1.0).compile()
    >>> float(twice(4.0))
    8.0
    """

    def __init__(self, stage: Any, program: Program, bind_arguments: BindArguments, call: Call) -> None:
        super().__init__(stage, program, bind_arguments, call)
        self._trace = call.trace()
        del self._call  # so that its arrays can be freed

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Calls it with the arguments of the function, the static ones too.

        Variables that the function sets are written to the caller's models, as by the function itself.

        Raises:
          TransformError: for arguments of another structure, shape or dtype, or other static ones; names what differs.
        """
        return cast("R", run(lambda: self._bind_arguments(args, kwargs), self._run))

    def _run(self, call: Call) -> Outcome:
        if not self._fits(call.structure):
            raise self._differs(call)
        try:
            result = self._stage(*call.leaves)
        except (TypeError, ValueError) as error:
            if call.trace().avals != self._trace.avals:
                raise self._differs(call) from error
            raise
        outcome = self._program.outcome(result)
        if outcome.plan.calls_back:  # known since it was traced
            wait(result)
        return outcome

    def _fits(self, structure: Structure) -> bool:
        """Whether a call has the structure of the trace; attributes may have the order that copies of JAX have."""
        known, orders = self._trace.structure, structure.orders
        if structure == known:
            return True
        return structure._replace(orders=known.orders) == known and orders.sets == known.orders.sets

    def _differs(self, call: Call) -> TransformError:
        found = differences(self._trace, call.trace())
        return TransformError(
            f"{self._program.name}, compiled",
            "it was compiled for other arguments",
            got="\n".join(found[:4]) or "another graph, which prints in the same way",
            why="one executable is for one structure, and one set of shapes, dtypes and static arguments",
            fix=f"dx.jit({self._program.name})(...)        # compiles again where it has to",
        )
