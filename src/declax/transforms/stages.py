"""A compiled function, stage by stage: traced, lowered, compiled.

Vocabulary
----------
stage: what `jax.jit` makes of a function on the way to running it. Each holds
       the stage of JAX that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, cast

import jax

from declax.errors import TransformError
from declax.transforms._lift import Call, Outcome, Rebuilt
from declax.transforms._program import Program
from declax.transforms._running import run

R = TypeVar("R", covariant=True)


class Dispatch(NamedTuple):
    """How a compiled function finds what runs a call.

    Attributes:
      take: takes arguments apart.
      program: what runs a call.
    """

    take: Callable[[tuple[Any, ...], dict[str, Any]], Call]
    program: Callable[[Call], Program]


class Traced(Generic[R]):
    """A function that was traced for some arguments; see `JitWrapped.trace`.

    Attributes:
      traced: the stage of JAX; its arguments and results are flat leaves.
    """

    def __init__(self, traced: jax.stages.Traced, program: Program, dispatch: Dispatch, call: Call) -> None:
        self.traced = traced
        self._program = program
        self._dispatch = dispatch
        self._call = call

    @property
    def jaxpr(self) -> Any:
        """The program of JAX, a function of flat leaves."""
        return self.traced.jaxpr

    @property
    def out_info(self) -> R:
        """What a call would return, with shapes and dtypes in the place of arrays."""
        outcome = self._program.outcome(self.traced.out_info)
        found: R = Rebuilt(self._call.structure, self._call.values, self._call.plain).apply(outcome)
        return found

    def lower(self, *, lowering_platforms: tuple[str, ...] | None = None) -> Lowered[R]:
        """The next stage.

        Args:
          lowering_platforms: as in JAX; None for the platform of the arguments.
        """
        return Lowered(
            self.traced.lower(lowering_platforms=lowering_platforms), self._program, self._dispatch, self._call
        )


class Lowered(Generic[R]):
    """A function that was lowered for some arguments; see `JitWrapped.lower`.

    Attributes:
      lowered: the stage of JAX.
    """

    def __init__(self, lowered: jax.stages.Lowered, program: Program, dispatch: Dispatch, call: Call) -> None:
        self.lowered = lowered
        self._program = program
        self._dispatch = dispatch
        self._call = call

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The lowered program as text.

        Args:
          dialect: "stablehlo" or "hlo".
          debug_info: whether to print locations.
        """
        return self.lowered.as_text(dialect, debug_info=debug_info)

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The lowered program as an object of the compiler."""
        return self.lowered.compiler_ir(dialect)

    def cost_analysis(self) -> Any:
        """What the compiler estimates of the cost, before it optimises."""
        return self.lowered.cost_analysis()

    def compile(self, compiler_options: dict[str, Any] | None = None) -> Compiled[R]:
        """The next stage."""
        compiled = self.lowered.compile(compiler_options)
        return Compiled(compiled, self._program, self._dispatch, self._call)


class Compiled(Generic[R]):
    """A compiled function, to be called with arguments of one structure.

    Attributes:
      compiled: the stage of JAX.

    >>> from declax.transforms.compilation import jit
    >>> twice = jit(lambda x: 2 * x).lower(1.0).compile()
    >>> float(twice(4.0))
    8.0
    """

    def __init__(self, compiled: jax.stages.Compiled, program: Program, dispatch: Dispatch, call: Call) -> None:
        self.compiled = compiled
        self._program = program
        self._dispatch = dispatch
        self._structure = call.structure

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Calls it with the arguments of the function, the static ones too.

        What the function sets comes back, as from the function itself.

        Raises:
          TransformError: for arguments of another structure, or other static ones.
        """
        return cast("R", run(lambda: self._dispatch.take(args, kwargs), self._run))

    def _run(self, call: Call) -> Outcome:
        if self._dispatch.program(call) is not self._program:
            raise TransformError(
                "the compiled function",
                "it was compiled for arguments of another structure",
                expected=repr(self._structure.graphdef or self._structure.tree),
                got=repr(call.structure.graphdef or call.structure.tree),
                fix="call the function of dx.jit itself, which compiles again where it has to",
            )
        return self._program.outcome(self.compiled(*call.values, *call.plain))

    def as_text(self) -> str:
        """The optimised program as text."""
        return str(self.compiled.as_text())

    def cost_analysis(self) -> Any:
        """What the compiler estimates of the cost."""
        return self.compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """What the compiler knows of the memory, in bytes."""
        return self.compiled.memory_analysis()

    @property
    def input_shardings(self) -> Any:
        """The shardings of the flat leaves that go in."""
        return self.compiled.input_shardings

    @property
    def output_shardings(self) -> Any:
        """The shardings of the flat leaves that come out."""
        return self.compiled.output_shardings

    def runtime_executable(self) -> Any:
        """The executable of the runtime."""
        return self.compiled.runtime_executable()
