from pathlib import Path

from plugin_cases import assert_as_marked, check

MODELS = """
from typing import Generic, TypeVar

import jax

import declax as dx

T = TypeVar("T")


@dx.dataclass
class Block(dx.Layer):
    width: int = dx.field()
    linear: dx.Linear = dx.Linear(width, width)
    inner = dx.Linear(width, width)
    several = dx.repeat(2, dx.Linear(width, width))
    double = 2 * width

    def __call__(self, x: jax.Array) -> jax.Array:
        self.sow(dx.Intermediate, "seen", x)
        return self.linear(self.perturb("before", x))


@dx.dataclass
class Model(dx.Layer):
    width: int = dx.field()
    anything: object = dx.field()
    linear: dx.Linear = dx.Linear(width, width)
    inner = dx.Linear(width, width)
    several = dx.repeat(2, dx.Linear(width, width))
    double = 2 * width
    blocks: list[Block] = dx.data(default_factory=list[Block])
    heads: dict[str, dx.Linear] = dx.data(default_factory=dict[str, dx.Linear])
    pair: tuple[dx.Linear, jax.Array] | None = dx.field(default=None)
    offset: jax.Array | None = dx.field(default=None)
    scale: float = dx.data(default=1.0)
    stack: dx.List[dx.Linear] = dx.data(default_factory=dx.List[dx.Linear])
    chain: dx.Sequential[..., jax.Array] | None = dx.field(default=None)
    either: dx.Linear | dx.BatchNorm | None = dx.field(default=None)

    def __post_init__(self, *, rngs: dx.Rngs | None = None) -> None:
        self.extra = dx.Param(1)


class Open(dx.Module):
    def __init__(self) -> None:
        self.linear = dx.Linear(2, 2, rngs=dx.Rngs(0))
        self.size = 3


@dx.dataclass
class OfOpen(Open):
    added: int = 3


@dx.dataclass
class Box(dx.Module, Generic[T]):
    inner: T
"""

WRONG_PATHS = """
import jax.numpy as jnp

import declax as dx
from models import Box, Model


def paths(model: Model, state: dx.State[Model]) -> None:
    state.linaer.kernel  # E: declax-path | State[Model]: Model has no field 'linaer'; did you mean 'linear'?
    state.linear.kernle  # E: declax-path | State[Linear]: Linear has no field 'kernle'; did you mean 'kernel'?
    state["linear"]["kernal"]  # E: declax-path | State[Linear]: Linear has no field 'kernal'; did you mean 'kerne
    state["blocks"][0]["linear"]["weight"]  # E: declax-path | Linear has no field 'weight'
    state["blocks"]["0"]  # E: declax-path | State[list[Block]]: no entry '0'; the keys are indices
    state.blocks[0].seeen  # E: declax-path | Block has no field 'seeen'
    state.width  # E: declax-path | Model.width: int is static, so States do not contain it
    state["linear"]["in_features"]  # E: declax-path | State[Linear]: Linear.in_features: int is static, so St
    state.rngs  # E: declax-path | State[Model]: Model has no field 'rngs'
    state["pair"][2]  # E: declax-path | no entry 2; the keys are 0 to 1
    state[0]  # E: declax-path | State[Model]: Model has no field '0'
    state.heads.main.kern  # E: declax-path | did you mean 'kernel'?
    state.stack[0].kern  # E: declax-path | did you mean 'kernel'?
    state["linear"]["kernal"] = dx.Param(jnp.ones(2))  # E: declax-path | did you mean 'kernel'?
    state.linear["kernal"] = state["linear"]["wieght"] = 3  # E: declax-path & declax-path | 'kernel'?
    del state["linera"]  # E: declax-path | did you mean 'linear'?
    del state["linear"]["kernal"]  # E: declax-path | did you mean 'kernel'?
    state.linear.kerne = dx.Param(jnp.ones(2))  # E: declax-path | did you mean 'kernel'?
    state.blocks[0].linea = 3  # E: declax-path | did you mean 'linear'?
    dx.state(Box(model)).inner.linear.kernell  # E: declax-path | did you mean 'kernel'?
    dx.state(model, dx.Param)["linera"]  # E: declax-path | did you mean 'linear'?
    dx.split(model, dx.Param, ...)[1].linera  # E: declax-path | did you mean 'linear'?
    dx.unpack(model).linera  # E: declax-path | did you mean 'linear'?
"""

RIGHT_PATHS = """
from typing import Any

import jax
import jax.numpy as jnp
from typing_extensions import assert_type

import declax as dx
from models import Block, Box, Model, OfOpen, Open

Kernel = dx.Param[jax.Array]


def types(state: dx.State[Model], key: str, index: int) -> None:
    assert_type(state.linear, dx.State[dx.Linear])
    assert_type(state.linear.kernel, Kernel)
    assert_type(state["linear"]["kernel"], Kernel)
    assert_type(state.linear.bias, Kernel)
    assert_type(state.inner.kernel, Kernel)
    assert_type(state["inner"]["kernel"], Kernel)
    assert_type(state.several[1].kernel, Kernel)
    grads = dx.grad(lambda model: jnp.sum(model.inner.kernel))(Model(1, 2, rngs=dx.Rngs(0)))
    assert_type(grads.inner.kernel, Kernel)
    assert_type(grads["linear"]["kernel"], Kernel)
    assert_type(state.blocks, dx.State[list[Block]])
    assert_type(state.blocks[0].linear.kernel, Kernel)
    assert_type(state["blocks"][index], dx.State[Block])
    assert_type(state["heads"][key]["kernel"], Kernel)
    assert_type(state.heads.main.kernel, Kernel)
    assert_type(state["pair"][0].kernel, Kernel)
    assert_type(state["pair"][1], jax.Array)
    assert_type(state.offset, jax.Array)
    assert_type(state.scale, float)
    assert_type(state.stack[1].kernel, Kernel)
    assert_type(state.extra, dx.Param[int])
    assert_type(state.either, dx.State[dx.Linear] | dx.State[dx.BatchNorm])
    assert_type(state.leaves, list[Any])
    assert_type(state[key], Any)
    assert_type(state.anything, Any)
    assert_type(dx.state(Box(Model(1, 2, rngs=dx.Rngs(0)))).inner.linear.kernel, Kernel)


def writes(state: dx.State[Model]) -> None:
    state["linear"]["kernel"] = dx.Param(jnp.ones((2, 2)))
    state.linear.kernel = dx.Param(jnp.ones((2, 2)))
    state.linear.bias += 1
    del state["blocks"]


def kept(model: Model, state: dx.State[Model], x: jax.Array) -> None:
    state["blocks"][0]["seen"]
    state["blocks"][0].before
    model.sow(dx.Intermediate, "here", x)
    dx.pop(model, dx.Intermediate).here
    if "maybe" in state:
        print(state["maybe"])
    if hasattr(state, "perhaps"):
        print(state.perhaps)


def unknown(any_state: dx.State[Any], plain: dx.State, flat: dict[str, Any]) -> None:
    any_state.whatever["a"].b
    plain.whatever
    dx.State(flat).whatever
    dx.state([dx.Linear(2, 2, rngs=dx.Rngs(0))])[0].kernel
    state = dx.state(Open())
    assert_type(state.linear.kernel, Kernel)
    assert_type(state.added_later, Any)
    dx.state(OfOpen()).added_later
    dx.state(dx.Sequential(dx.relu)).layers[0].kernel


def chain(state: dx.State[Model]) -> Any:
    return state.chain.layers[0].kernel
"""

WRONG_FILTERS = """
from typing import Any

import optax

import declax as dx

model = dx.Linear(2, 3, rngs=dx.Rngs(0))
state = dx.state(model)
module = dx.state(model, dx.Linear)  # E: declax-filter | state: Linear is not a kind of Variable
predicate = dx.state(model, dx.PathContains)  # E: declax-filter | PathContains(...)
combined = dx.state(model, dx.Not)  # E: declax-filter | Not is a class, not a filter
inner = dx.state(model, (dx.Param, [dx.Linear]))  # E: declax-filter | a filter is a kind of Variable, a tag, ...
early = dx.state(model, ..., dx.Param)  # E: declax-filter | the filter ... matches all leav
early_true = dx.split(model, True, ...)  # E: declax-filter | fix: True as the last filter
popped = dx.pop(model, dx.Rngs)  # E: declax-filter | pop: Rngs
filtered = state.filter(dx.Linear)  # E: declax-filter | filter: Linear
divided = state.flat_state().split(dx.Linear, ...)  # E: declax-filter | split: Linear
method = model.split(dx.Linear, ...)  # E: declax-filter | split: Linear
unpacked = dx.unpack(model, dx.Linear, ...)  # E: declax-filter | unpack: Linear
without = dx.Not(dx.Linear)  # E: declax-filter | Not: Linear
either = dx.Any(dx.Param, dx.Linear)  # E: declax-filter | Any: Linear
axes = dx.StateAxes({dx.Linear: 0, ...: None})  # E: declax-filter | StateAxes: Linear
early_axes = dx.StateAxes({...: 0, dx.Param: None})  # E: declax-filter | the filters after it match none
sharding = dx.StateSharding({dx.Linear: None})  # E: declax-filter | StateSharding: Linear
differentiated = dx.DiffState(0, dx.Linear)  # E: declax-filter | DiffState: Linear
by_name = dx.DiffState(argnum=0, filter=dx.Linear)  # E: declax-filter | DiffState: Linear
optimizer = dx.Optimizer(model, optax.sgd(0.1), dx.Linear)  # E: declax-filter | Optimizer: Linear
by_wrt = dx.Optimizer(model, optax.sgd(0.1), wrt=dx.Linear)  # E: declax-filter | Optimizer: Linear
dx.set_metadata(model, only=dx.Linear, sharding=None)  # E: declax-filter | set_metadata: Linear


def by_class(kind: type[dx.Module]) -> None:
    dx.state(model, kind)  # E: declax-filter | Module is not a kind of Variable
"""

RIGHT_FILTERS = """
from typing import Any, TypeVar

import jax
import numpy as np
from typing_extensions import assert_type

import declax as dx


class Kind(dx.Param[jax.Array]):
    pass


M = TypeVar("M", bound=dx.Module)
model = dx.Linear(2, 3, rngs=dx.Rngs(0))
state = dx.state(model)
some = dx.state(model, (dx.Param, "frozen"), dx.Not(dx.Param), dx.All(Kind, dx.PathContains("a")), jax.Array)
others = dx.state(model, dx.Param[jax.Array], lambda path, value: True, dx.RngState, np.ndarray, None, True)
last = dx.split(model, Kind, dx.OfType(Kind), dx.WithTag("a"), dx.Everything(), ...)
nested = dx.state(model, (..., dx.Param), ...)
axes = dx.StateAxes({dx.Param: None, (dx.BatchStat, "a"): 0, ...: 0})
viewed = dx.view(model, only=dx.Linear)

ten = dx.split(model, "a", "b", "c", "d", "e", "f", "g", "h", "i", ...)
graphdef, a, b, c, d, e, f, g, h, i, rest = ten
assert_type(graphdef, dx.GraphDef[dx.Linear])
assert_type(rest, dx.State[dx.Linear])
of_method = model.split("a", "b", "c", "d", "e", "f", "g", "h", "i", ...)
assert_type(of_method[10], dx.State[dx.Linear])
states = dx.state(model, "a", "b", "c", "d", "e", "f", "g", "h", "i", ...)
assert_type(states[9], dx.State[dx.Linear])
parts = state.filter("a", "b", "c", "d", "e", "f", "g", "h", "i", ...)
assert_type(parts[9], dx.State[dx.Linear])
unpacked = dx.unpack(model, "a", "b", "c", "d", "e", "f", "g", "h", "i", ...)
assert_type(unpacked[9], dx.GraphState[dx.Linear])
flat = state.flat_state().split("a", "b", ...)
of_state = dx.statelib.split_state(state, "a", "b", "c", "d", "e", "f", "g", "h", "i", ...)
assert_type(of_state[9], dx.State[dx.Linear])
eight = dx.split(model, "a", "b", "c", "d", "e", "f", "g", ...)
assert_type(eight[8], dx.State[dx.Linear])


def of_any(anything: Any, kind: type[dx.Variable[Any]], filters: list[str], module: M) -> dx.State[M]:
    dx.state(anything, kind, anything)
    dx.split(anything, *filters)
    parts: tuple[Any, ...] = dx.split(module, *filters)
    assert_type(dx.state(module, kind), dx.State[M])
    return dx.split(module, "a", "b", "c", "d", "e", "f", "g", "h", "i", ...)[3]
"""

WRONG_COUNT = """
import declax as dx

model = dx.Linear(2, 3, rngs=dx.Rngs(0))
g, a, b, c, d, e, f = dx.split(model, "a", "b", "c", "d", "e", "f", "g", "h", "i", ...)  # E: misc
"""


def test_paths_and_filters(tmp_path: Path) -> None:
    files = {"models.py": MODELS, "wrong_paths.py": WRONG_PATHS, "right_paths.py": RIGHT_PATHS}
    files |= {"wrong_filters.py": WRONG_FILTERS, "right_filters.py": RIGHT_FILTERS, "wrong_count.py": WRONG_COUNT}
    assert_as_marked(files, check(tmp_path, files))
