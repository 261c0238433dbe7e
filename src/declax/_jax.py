"""The few private names of jax that are worth their risk; nothing else imports them.

A *trace token* identifies a trace without keeping it alive; tokens of one trace are the same object.
``tests/unit/test_jax.py`` tells when one of these names moves.
"""

from __future__ import annotations

import functools
import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import jax
from jax._src import core as _core
from jax._src import distributed as _distributed
from jax._src.array import ArrayImpl as ArrayImpl
from jax._src.clusters import ClusterEnv as _ClusterEnv
from jax._src.traceback_util import register_exclusion

from declax.errors import DeclaxError

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr

F = TypeVar("F", bound=Callable[..., Any])

trace_state: Final[Any] = _core.trace_state
"""Its ``value`` is the token of the current trace: one C call, about 25 ns.

The public way to ask (an opaque trace state) costs over thirty times as much,
and the question is asked whenever a pytree is rebuilt.
"""

TOP: Final[Any] = _core.eval_trace._weakref
"""The token of the top level, outside of all transforms."""


def converts_to_array(module: str) -> bool:
    """Whether the functions of a module ask for ``__jax_array__`` to convert their arguments.

    The operators of arrays ask for it too, before they leave an operand to its class. So does compiled code, which
    swallows exceptions.
    """
    return module.startswith("jax._src.numpy.") and module != "jax._src.numpy.array_methods"


def is_on_a_cluster() -> bool:
    """Whether `jax.distributed.initialize` finds out by itself which processes there are."""
    return any(env.is_env_present() for env in _ClusterEnv._cluster_types if not env.opt_in_only_method)


def first_to_say(key: str, value: str) -> str:
    """The value that the first process of a program gave for a key; this one, if it is the first or alone."""
    client = _distributed.global_state.client
    if client is None:
        return value
    try:
        client.key_value_set(key, value, allow_overwrite=False)
    except jax.errors.JaxRuntimeError:  # it exists already
        return cast(str, client.blocking_key_value_get(key, 10_000))
    return value


def current_trace() -> Any:
    """The token of the trace at which JAX runs now."""
    return trace_state.value


def outer_trace_tokens(trace_token: Any) -> list[Any]:
    """The tokens of the traces around a trace, the top level last."""
    found, trace = [], trace_token()
    while (trace := getattr(trace, "parent_trace", None)) is not None:
        found.append(trace._weakref)
    return [*found, TOP]


def is_mapped(tracer: Any) -> bool:
    """Whether a tracer has the axis of the `vmap` that is tracing now; a rule of JAX may make one that has not."""
    return tracer._trace._weakref is trace_state.value and getattr(tracer, "batch_dim", None) is not None


def is_of_current_trace(value: Any) -> bool:
    """Whether a value is a tracer of the current trace."""
    trace = getattr(value, "_trace", None)
    return trace is not None and trace._weakref is trace_state.value


def is_placed(value: Any) -> bool:
    """Whether a traced value is the result of a constraint, or of a move to a sharding."""
    made_by = getattr(value, "parent", None)
    if made_by is None:
        return False
    if made_by.primitive.name == "device_put" and made_by.params["devices"] == (jax.memory.Space.Host,):
        return is_placed(made_by.in_tracers[0])  # which is put back to the memory of the value that it replaces
    return made_by.primitive.name in {"sharding_constraint", "reshard"} or is_moved(value)


def is_moved(value: Any) -> bool:
    """Whether a traced value is the result of a move to a sharding, which says in which memory it is."""
    return moved_to(value) is not None


def moved_to(value: Any) -> jax.sharding.Sharding | None:
    """The sharding of the `jax.device_put` whose result a traced value is."""
    made_by = getattr(value, "parent", None)
    if made_by is None or made_by.primitive.name != "device_put":
        return None
    to = made_by.params["devices"][made_by.outvars.index(value.val)]
    return to if isinstance(to, jax.sharding.Sharding) else None


def unflatten_one(cls: type, auxiliary: Any, children: list[Any]) -> Any:
    """The object of a class that is registered with JAX, from what its flatten function gives.

    Raises:
      ValueError: the class is not registered.
    """
    registry = jax.tree_util.default_registry
    leaf = jax.tree.structure(0)
    treedef: Any = jax.tree_util.PyTreeDef.from_node_data_and_children(
        registry, (cls, auxiliary), [leaf] * len(children)
    )
    return treedef.unflatten(children)


def num_compiled(jitted: Any) -> int:
    """How many executables a function of `jax.jit` keeps."""
    return int(jitted._cache_size())


# --- flags ----------------------------------------------------------------------

_config: Final[Any] = jax.config  # whose flags jax leaves untyped


def is_jit_disabled() -> bool:
    """Whether functions run in Python, as in ``with jax.disable_jit():``."""
    return bool(_config.jax_disable_jit)


# --- tracebacks ---------------------------------------------------------------

register_exclusion(str(Path(__file__).parent))
"""JAX leaves the frames of declax out of tracebacks, and out of the places of operations, with its own frames."""


def hide_frames(error: BaseException) -> None:
    """Leaves the frames of declax out of a traceback, as JAX does of those inside of a call of JAX.

    An error of Python or of another library keeps the frame that raised it.
    """
    if _config.jax_traceback_filtering == "off":
        return
    shown: TracebackType | None = None
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        is_hidden = name_of(frame)[0].partition(".")[0] == "declax"
        if not is_hidden or (shown is None and not isinstance(error, DeclaxError)):
            shown = TracebackType(shown, frame, frame.f_lasti, line)
    error.__traceback__ = shown


def with_short_tracebacks(function: F) -> F:
    """A function whose errors have no frames of declax in their tracebacks."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise  # without this frame, since the traceback is replaced

    return cast("F", call)


# --- who calls ----------------------------------------------------------------


def name_of(frame: FrameType) -> tuple[str, str]:
    """The module and the name of the function that a frame runs."""
    return str(frame.f_globals.get("__name__")), frame.f_code.co_name


def is_of_library(frame: FrameType) -> bool:
    """Whether a frame runs code of declax, of JAX or of what JAX calls."""
    return name_of(frame)[0].partition(".")[0] in _LIBRARIES


def frame_of_user(frame: FrameType) -> FrameType:
    """The innermost frame of the user's code, from a given one outwards."""
    found: FrameType | None = frame
    while found is not None and is_of_library(found):
        found = found.f_back
    return frame if found is None else found


def trace_of_user(error: BaseException) -> TracebackType | None:
    """The innermost entry of a traceback that is of the user's code."""
    trace, found = error.__traceback__, None
    while trace is not None:
        if not is_of_library(trace.tb_frame):
            found = trace
        trace = trace.tb_next
    return found


def level_of_user(frame: FrameType | None) -> int:
    """How many frames a frame is below the user's code, as ``stacklevel=`` of a warning counts them."""
    level, found = 1, frame
    while found is not None and is_of_library(found):
        level, found = level + 1, found.f_back
    return 2 if found is None else level


_LIBRARIES: Final = {"declax", "jax", "functools", "contextlib"}


# --- programs ---------------------------------------------------------------------


@functools.cache
def _programs() -> Any:
    """`jax.extend.core`, when it is needed: importing it loads Pallas, which takes as long as half of declax."""
    return importlib.import_module("jax.extend.core")


def equations_of(jaxpr: Any) -> Iterator[Any]:
    """The equations of a program of JAX, and of the programs inside of it."""
    waiting = [jaxpr]
    while waiting:
        for equation in getattr(waiting.pop(), "eqns", ()):
            yield equation
            for value in equation.params.values():
                waiting += value if isinstance(value, (list, tuple)) else (value,)


def primitives_of(jaxpr: Any) -> Iterator[str]:
    """The names of the primitives of a program of JAX, and of the programs inside of it."""
    return (equation.primitive.name for equation in equations_of(jaxpr))


def value_of(var: Any, values: Mapping[Any, Any]) -> Any:
    """The value of an input of an equation, which may be a literal."""
    return var.val if isinstance(var, _programs().Literal) else values[var]


def without_literals(equation: Any) -> tuple[Any, dict[Any, jax.Array]]:
    """An equation with variables in place of its literals, and the values of these variables."""
    literals: list[Any] = [var for var in equation.invars if isinstance(var, _programs().Literal)]
    values = [jax.numpy.asarray(var.val, var.aval.dtype) for var in literals]
    variables = jax.make_jaxpr(lambda *values: values)(*values).jaxpr.invars
    inputs = iter(variables)
    changed = [next(inputs) if isinstance(var, _programs().Literal) else var for var in equation.invars]
    return equation.replace(invars=changed), dict(zip(variables, values, strict=True))


def part_of(program: Any, inputs: Sequence[Any], equations: Sequence[Any], results: Sequence[Any]) -> ClosedJaxpr:
    """Some equations of a program, in their order, as a program of its own."""
    names = program.debug_info.with_unknown_names()
    part = program.replace(
        constvars=[], invars=[*inputs], outvars=[*results], eqns=[*equations], debug_info=names, effects=frozenset()
    )
    made: ClosedJaxpr = _programs().ClosedJaxpr(part, [])
    return made


def run_equations(program: Any, equations: Sequence[Any], values: dict[Any, Any]) -> None:
    """Runs some equations of a program, in their order, and adds what they give to the values of its variables."""
    inputs = (var for equation in equations for var in equation.invars if not isinstance(var, _programs().Literal))
    given = [*dict.fromkeys(var for var in inputs if var in values)]
    made = [var for equation in equations for var in equation.outvars if not isinstance(var, _programs().DropVar)]
    run = _programs().jaxpr_as_fun(part_of(program, given, equations, made))
    values.update(zip(made, run(*[values[var] for var in given]), strict=True))


# --- manual axes ------------------------------------------------------------------


def varying_axes(value: Any) -> frozenset[Any]:
    """The axes of `jax.shard_map` along which a traced value, or its shape, varies; none where that is not checked."""
    kind = value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)  # of which JAX may have no type
    return frozenset(getattr(getattr(kind, "manual_axis_type", None), "varying", ()))


# --- symbolic sizes -------------------------------------------------------------


def is_symbolic(size: Any) -> bool:
    """Whether a size is symbolic, as those of `jax.export.symbolic_shape`."""
    return getattr(type(size), "dimension_as_value", None) is not None
