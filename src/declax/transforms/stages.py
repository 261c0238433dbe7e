"""A compiled function, stage by stage: traced, lowered, compiled. Each stage holds that of JAX."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

import jax

from declax.errors import TransformError
from declax.transforms._engine.lift import Call, Outcome, Rebuilt, run, wait
from declax.transforms._engine.retraces import differences

if TYPE_CHECKING:
    from declax.transforms.compilation import Program

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

MAX_DIFFERENCES = 4
"""So many differences of two calls are listed in an error."""

Take = Callable[[tuple[Any, ...], dict[str, Any]], Call]
"""How a compiled function takes arguments apart."""


class Traced(Generic[R]):
    """A function that was traced for some arguments; see `JitWrapped.trace`.

    Attributes:
      traced: the stage of JAX; its arguments and results are flat leaves.
    """

    def __init__(self, traced: jax.stages.Traced, program: Program, take: Take, call: Call) -> None:
        self.traced = traced
        self._of = program, take, call

    @property
    def jaxpr(self) -> Any:
        """The program of JAX, a function of flat leaves."""
        return self.traced.jaxpr

    @property
    def out_info(self) -> R:
        """The result of a call, with shapes and dtypes in place of arrays."""
        program, _, call = self._of
        outcome = program.outcome(self.traced.out_info)
        found: R = Rebuilt(call.structure, call.values, call.plain).apply(outcome)
        return found

    def lower(self, *, lowering_platforms: tuple[str, ...] | None = None, **private: object) -> Lowered[R]:
        """The next stage.

        Args:
          lowering_platforms: as in JAX; None for the platform of the arguments.
          **private: only `jax.export` passes more.

        Raises:
          TransformError: for `jax.export`, which takes functions of `jax.jit`.
        """
        if private:
            raise TransformError(
                "jax.export",
                "this exports functions of jax.jit only",
                got="a function of dx.jit",
                why="it changes its arguments, and its program takes their leaves",
                fix="jax.export.export(jax.jit(model))(x)        # the values of the model become constants",
            )
        return Lowered(self.traced.lower(lowering_platforms=lowering_platforms), *self._of)


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


class Lowered(Generic[R]):
    """A function that was lowered for some arguments; see `JitWrapped.lower`.

    Attributes:
      lowered: the stage of JAX.
    """

    def __init__(self, lowered: jax.stages.Lowered, program: Program, take: Take, call: Call) -> None:
        self.lowered = lowered
        self._of = program, take, call

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The lowered program as text.

        Args:
          dialect: "stablehlo" or "hlo".
          debug_info: whether to print locations.
        """
        return self.lowered.as_text(dialect, debug_info=debug_info)

    def cost_analysis(self) -> Any:
        """The compiler's estimate of the cost, before optimization."""
        return self.lowered.cost_analysis()

    def compile(self, compiler_options: dict[str, Any] | None = None) -> Compiled[R]:
        """The next stage."""
        return Compiled(self.lowered.compile(compiler_options), *self._of)


class Compiled(Generic[R]):
    """A compiled function, to be called with arguments of one structure.

    Attributes:
      compiled: the stage of JAX.

    >>> import declax as dx
    >>> twice = dx.jit(lambda x: 2 * x).lower(1.0).compile()
    >>> float(twice(4.0))
    8.0
    """

    def __init__(self, compiled: jax.stages.Compiled, program: Program, take: Take, call: Call) -> None:
        self.compiled = compiled
        self._program = program
        self._take = take
        self._trace = call.trace()

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Calls it with the arguments of the function, the static ones too.

        What the function sets comes back, as from the function itself.

        Raises:
          TransformError: for arguments of another structure, shape or dtype, or other static ones; names what differs.
        """
        return cast("R", run(lambda: self._take(args, kwargs), self._run))

    def _run(self, call: Call) -> Outcome:
        if call.structure != self._trace.structure:
            raise self._differs(call)
        try:
            result = self.compiled(*call.values, *call.plain)
        except (TypeError, ValueError) as error:
            if call.trace().avals != self._trace.avals:
                raise self._differs(call) from error
            raise
        outcome = self._program.outcome(result)
        if outcome.plan.calls_back:  # known since it was traced
            wait(result)
        return outcome

    def _differs(self, call: Call) -> TransformError:
        found = differences(self._trace, call.trace())
        return TransformError(
            f"{self._program.name}, compiled",
            "it was compiled for other arguments",
            got="\n".join(map(str, found[:MAX_DIFFERENCES])) or "another graph, which prints in the same way",
            why="one executable is for one structure, and one set of shapes, dtypes and static arguments",
            fix=f"dx.jit({self._program.name})(...)        # compiles again where it has to",
        )

    def as_text(self) -> str:
        """The optimised program as text."""
        return str(self.compiled.as_text())

    def cost_analysis(self) -> Any:
        """The compiler's estimate of the cost."""
        return self.compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """The compiler's analysis of the memory, in bytes."""
        return self.compiled.memory_analysis()
