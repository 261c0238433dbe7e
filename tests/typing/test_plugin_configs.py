from pathlib import Path

from plugin_cases import assert_as_marked, check

MODELS = """
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import jax

import declax as dx

T = TypeVar("T", bound=dx.Module)


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    hidden: int = dx.field()
    _: dx.KW_ONLY
    rate: float = dx.field(default=0.1)
    act: Callable[[jax.Array], jax.Array] = dx.static(default=dx.gelu)
    mode: Literal["a", "b"] = dx.field(default="a")
    up: dx.Linear = dx.Linear(dim, hidden)


@dx.dataclass
class Wide(Block):
    factor: int = 2


@dx.dataclass
class Net(dx.Module):
    depth: int
    block: Block
    blocks: list[Block] = dx.data(default_factory=list[Block])
    sizes: tuple[int, ...] = ()
    pair: tuple[Block, Block] | None = None
    proto: dx.Spec[Block] | None = None
    named: dict[str, Block] = dx.data(default_factory=dict[str, Block])
    name: str | None = None
    body: Callable[[jax.Array], jax.Array] | None = None


@dx.dataclass
class Box(dx.Module, Generic[T]):
    inner: T


class Open(dx.Module):
    def __init__(self, size: int, **options: int) -> None:
        self.size = size


def make(width: int, rngs: dx.Rngs) -> Block:
    return Block(width, width, rngs=rngs)
"""

WRONG_SPECS = """
import declax as dx
from models import Block, Net, Wide, make

block = dx.spec(Block, 4, 8)
few = dx.spec(Block, 4)  # E: call-arg | Missing positional argument "hidden" in call to "Block"
misspelt = dx.spec(Block, 4, hiden=8)  # E: call-arg | Unexpected keyword argument "hiden" for "Block"; did you me
typed = dx.spec(Block, 4, "8")  # E: arg-type | Argument 2 to "Block" has incompatible type "str"; expected "int"
keyword = dx.spec(Block, 4, 8, rate="low")  # E: arg-type | Argument "rate" to "Block" has incompatible type "str"
streams = dx.spec(Block, 4, 8, rngs=dx.Rngs(0))  # E: call-arg | Unexpected keyword argument "rngs" for "Block"
many = dx.spec(Block, 4, 8, 9)  # E: call-arg | Too many positional arguments for "Block"
twice = dx.spec(Block, 4, dim=3, hidden=4)  # E: misc | "Block" gets multiple values for keyword argument "dim"
built: dx.Linear = block.build(rngs=dx.Rngs(0))  # E: assignment
part = dx.spec(Net, 3, dx.spec(dx.Linear, 2, 3))  # E: arg-type | Argument 1 to "spec" has incompatible type "type
parts = dx.spec(Net, 3, block, blocks=[block, dx.spec(dx.Linear, 2, 3)])  # E: arg-type | Argument 1 to "spec" has
pair = dx.spec(Net, 3, block, pair=(block, 3))  # E: arg-type | Argument "pair" to "Net" has incompatible type "tu
kept = dx.spec(Net, 3, block, proto=dx.spec(dx.Linear, 2, 3))  # E: arg-type | Argument 1 to "spec" has incompatib
function = dx.spec(make, "x")  # E: arg-type | Argument 1 to "make" has incompatible type "str"; expected "int"
of_dict = dx.spec(Block, **{"dim": 4, "hiden": 3})  # E: call-arg | Unexpected keyword argument "hiden" for "Block
layer = dx.spec(dx.Linear, 2, 3, use_bias="no")  # E: arg-type | Argument "use_bias" to "Linear" has incompatible
inner = dx.spec(Net, 3, dx.spec(Block, 4, "8"))  # E: arg-type | Argument 2 to "Block" has incompatible type "str"
derived = dx.spec(Wide, 4)  # E: call-arg | Missing positional argument "hidden" in call to "Wide"
without = dx.spec(Block, 4, 8).build()  # E: declax-spec | build: Block takes rngs
as_none = dx.spec(dx.Linear, 4, 8).build(rngs=None)  # E: declax-spec | fix: spec.build(rngs=dx.Rngs(0))


def local() -> Block:
    made = dx.spec(Block, 4, 8)
    return made.build()


replaced = block.replace({"hiden": 3})  # E: declax-spec | Block, in replace('hiden', ...): there is no parameter
by_name = block.replace(hidden="x")  # E: declax-spec | replace('hidden', ...): expected int, got str
path = dx.spec(Net, 3, block).replace({"bloks.0.hidden": 4})  # E: declax-spec | did you mean 'blocks'?
index = dx.spec(Net, 3, block).replace(**{"bloks[0].hidden": 4})  # E: declax-spec | did you mean 'blocks'?
"""

RIGHT_SPECS = """
from collections.abc import Callable
from typing import Any

import jax
from typing_extensions import assert_type

import declax as dx
from models import Block, Box, Net, Open, Wide, make

block = dx.spec(Block, 4, 8)
assert_type(block, dx.Spec[Block])
assert_type(block.build(rngs=dx.Rngs(0)), Block)
assert_type(dx.spec(make, 3), dx.Spec[Block])
listed = [block, block]
given: dict[str, Any] = {"dim": 4, "hidden": 8}
known = {"dim": 4, "hidden": 3}
a = dx.spec(Net, 3, block)
b = dx.spec(Net, 3, block=block, blocks=[block, dx.spec(make, 4)], sizes=[1, 2], pair=(block, dx.spec(Wide, 1, 2)))
c = dx.spec(Net, 3, dx.Ref("/block"), blocks=[block] * 3, proto=block, named={"a": block}, name="x")
d = dx.spec(Net, 3, block, listed, (1, 2), body=dx.spec(dx.Linear, 2, 3))
e = dx.spec(Net, 3, block, [], body=lambda x: x)
f = dx.spec(Box, block)
g = dx.spec(Block, **given)
dx.spec(Block, 4, 8).build(rngs=dx.Rngs(0)), block.build(rngs=dx.Rngs(0)), dx.spec(make, 3).build()
dx.spec(dx.Dropout, 0.5).build(), f.build(), block.build(**given), dx.spec(dx.Sequential, dx.relu).build()
h = dx.spec(Block, act=dx.relu, **known)
i = dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4), dx.relu)
j = dx.spec(Open, 3, width=4)
k = dx.spec(Block, *(1, 2))
l = block.replace({"hidden": 3, "rate": 0.5}, mode="b")
m = a.replace({"blocks.0.hidden": 4, "blocks[0].whatever": 4, "*.hidden": 3}, depth=3)
n = a.replace(**{"blocks.0.hidden": 4})
o = dx.spec(Net, 3, dx.spec(Block, dim=1, hidden=2), named={})


def of_any(anything: Any, target: Callable[..., Block], kind: type[Block], spec: dx.Spec[Any]) -> dx.Spec[Block]:
    dx.spec(anything, 1, x=2)
    dx.spec(Net, anything, spec)
    spec.replace({"whatever": 3})
    return dx.spec(target, 1, x=2)
"""

WRONG_CONFIGS = """
from typing import Any

import declax as dx
from models import Block, Net

rngs = dx.Rngs(0)
key = dx.from_config(Block, {"dim": 4, "hiden": 8})  # E: call-arg | Unexpected keyword argument "hiden" for "Bloc
missing = dx.from_config(Block, {"dim": 4})  # E: call-arg | Missing positional argument "hidden" in call to "Bloc
text = dx.from_config(Block, {"dim": "4", "hidden": 8})  # E: arg-type | Argument "dim" to "Block" has incompatibl
choice = dx.from_config(Block, {"dim": 4, "hidden": 8, "mode": "c"})  # E: arg-type | Argument "mode" to "Block" h
streams = dx.from_config(Block, {"dim": 4, "hidden": 8, "rngs": 0})  # E: call-arg | Unexpected keyword argument "
inner = dx.from_config(Net, {"depth": 2, "block": {"dim": 4, "hiden": 4}})  # E: call-arg | Unexpected keyword arg
kind = dx.from_config(Block, {"kind": "Block", "dimm": 4, "hidden": 8})  # E: call-arg | Unexpected keyword argume
in_list = dx.from_config(
    Net,
    {
        "depth": 2.0,  # E: arg-type | Argument "depth" to "Net" has incompatible type "float"; expected "int"
        "block": {"dim": 4, "hidden": 4},
        "blocks": [{"dim": "4", "hidden": 4}],  # E: arg-type | Argument "dim" to "Block" has incompatible type "s
        "sizes": {"a": 1},  # E: arg-type | Argument "sizes" to "Net" has incompatible type "dict[str, int]"; expe
        "name": 3,  # E: arg-type | Argument "name" to "Net" has incompatible type "int"; expected "str | None"
    },
)
config = {"dim": 4, "hiden": 8}
named = dx.from_config(Block, config)  # E: call-arg | Unexpected keyword argument "hiden" for "Block"; did you me
spec = dx.spec_from_config(Block, {"dim": 4, "hiden": 8})  # E: call-arg | Unexpected keyword argument "hiden" for

unknown = Block(**{"dim": 4, "hiden": 8}, rngs=rngs)  # E: call-arg | Unexpected keyword argument "hiden" for "Blo
by_name = Block(**config, rngs=rngs)  # E: call-arg | Unexpected keyword argument "hiden" for "Block"; did you mea
few = Block(**{"dim": 4}, rngs=rngs)  # E: call-arg | Missing positional argument "hidden" in call to "Block"
of_any: dict[str, Any] = {"dim": "4", "hidden": 8}  # E: arg-type | Argument "dim" to "Block" has incompatible typ
typed = Block(**of_any, rngs=rngs)
mixed = {"dim": 4, "hidden": "8", "act": dx.relu}  # E: arg-type | Argument "hidden" to "Block" has incompatible t
of_objects = Block(**mixed, rngs=rngs)
twice = Block(4, **{"dim": 4, "hidden": 8}, rngs=rngs)  # E: misc | "Block" gets multiple values for keyword argum
called = Block(**dict(dim=4, hiden=8), rngs=rngs)  # E: call-arg | Unexpected keyword argument "hiden" for "Block"


def build() -> Block:
    options = {"dim": 4, "hiden": 8}
    options["mode"] = 3
    print(options)
    return Block(**options, rngs=rngs)  # E: arg-type | Argument 1 to "Block" has incompatible type "**dict[str, i
"""

RIGHT_CONFIGS = """
from typing import Any

import declax as dx
from models import Block, Net, Open

rngs = dx.Rngs(0)
a = dx.from_config(Block, {"kind": "Block", "dim": 4, "hidden": 8, "mode": "b", "act": "relu", "$schema": ""})
b = dx.from_config(Net, {"depth": 2, "block": {"dim": 4, "hidden": 4}, "blocks": [{"dim": 4, "hidden": 4}]}, rngs=rngs)
c = dx.from_config(Net, {"depth": 2, "block": {"kind": "Wide", "factor": 4, "dim": 1, "hidden": 2}}, extra=[Block])
d = dx.from_config(Net, {"depth": 2, "block": {"$ref": "/x"}, "pair": None, "name": None, "sizes": [1, 2]})
e = dx.from_config(Block, "block.toml", rngs=rngs)
f = dx.from_config(Block, {"dimm": 3, "hidden": 3}, migrate=True)
g = dx.from_config(Open, {"size": 3, "width": 4})
h = dx.from_config(Net, {"depth": 2, "block": dx.spec(Block, 1, 2), "body": {"kind": "Linear"}})

one = {"dim": 4, "hidden": 8}
i = Block(**{"dim": 4, "hidden": 8, "mode": "b", "rate": 1}, rngs=rngs)
j = Block(**one, rngs=rngs)
mixed = {"dim": 4, "hidden": 8, "mode": "b", "act": dx.relu, "rate": 1}
k = Block(**mixed, rngs=rngs)
late: dict[str, Any] = {}
late["dim"] = 4
late["hidden"] = 4
l = Block(**late, rngs=rngs)
gone: dict[str, Any] = {"dim": 4, "hidden": 4, "other": 3}
del gone["other"]
m = Block(**gone, rngs=rngs)
taken: dict[str, Any] = {"dim": 4, "hidden": 4, "other": 3}
taken.pop("other")
n = Block(**taken, rngs=rngs)
parts = {"depth": 3, "block": a, "blocks": [], "sizes": (1, 2)}
o = Net(**parts)
p = Open(**{"size": 3, "width": 4})
added: dict[str, Any] = {"dim": 4}
added.update(hidden=3)
q = Block(**added, rngs=rngs)
joined: dict[str, Any] = {**one, "mode": "b"}
r = Block(**joined, rngs=rngs)


def of_options(rngs: dx.Rngs, config: dict[str, Any], **options: Any) -> Block:
    sizes = {"dim": 4, "hidden": 8}
    Block(**config, rngs=rngs)
    dx.from_config(Block, config)
    return Block(**sizes, rngs=rngs, **options)


def of_either(deep: bool) -> Block:
    if deep:
        chosen = {"dim": 4, "hidden": 8, "depth": 3}
    else:
        chosen = {"dim": 4, "hidden": 8}
    chosen.pop("depth", None)
    return dx.from_config(Block, chosen)
"""

WRONG_SIZES = """
import functools
from typing import Final

import jax
import jax.numpy as jnp

import declax as dx

r = dx.Rngs(0)
THREE: Final = 3
a = dx.Sequential(dx.Linear(2, 3, rngs=r), dx.Linear(4, 5, rngs=r))  # E: declax-sizes | Sequential: Linear expects
b = dx.Sequential(dx.Linear(2, 3, rngs=r), dx.relu, dx.Linear(4, 5, rngs=r))  # E: declax-sizes | Sequential: Linear e
c = dx.Sequential(
    [
        dx.Linear(2, 3, rngs=r),
        jax.nn.relu,
        jnp.tanh,
        dx.Dropout(0.1, rngs=r),
        dx.Linear(out_features=4, in_features=4, rngs=r),  # E: declax-sizes | Sequential: Linear expects 4 features
    ]
)
d = dx.Sequential(dx.Linear(2, 3, rngs=r), dx.LayerNorm(2, rngs=r))  # E: declax-sizes | Sequential: LayerNorm exp
e = dx.Sequential(dx.Conv(1, 8, 3, rngs=r), dx.BatchNorm(4, rngs=r))  # E: declax-sizes | Sequential: BatchNorm ex
f = dx.Sequential(
    dx.Conv(1, 8, kernel_size=3, rngs=r),
    functools.partial(dx.avg_pool, window_shape=(2,)),
    dx.Conv(4, 4, kernel_size=3, rngs=r),
)
g = dx.Sequential(dx.Embed(10, 8, rngs=r), dx.Linear(10, 3, rngs=r))  # E: declax-sizes | Sequential: Linear expects
i = dx.Sequential(dx.Linear(2, THREE, rngs=r), dx.Linear(4, 4, rngs=r))  # E: declax-sizes | returns THREE
j = dx.Sequential(dx.relu, dx.Linear(2, 3, rngs=r), dx.BatchNorm(3, rngs=r), dx.Linear(2, 3, rngs=r))  # E: declax-sizes
"""

RIGHT_SIZES = """
import functools
from typing import Final

import jax

import declax as dx

r = dx.Rngs(0)
THREE: Final = 3
n = 3


def flat(x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0], -1)


class Own(dx.Linear):
    def __call__(self, x: jax.Array) -> jax.Array:  # type: ignore[override]  # that is its point
        return x


a = dx.Sequential(dx.Linear(2, 3, rngs=r), dx.relu, dx.Linear(3, 2, rngs=r))
b = dx.Sequential(dx.Linear(2, 3, rngs=r), flat, dx.Linear(4, 2, rngs=r))
c = dx.Sequential([dx.Linear(2, THREE, rngs=r), dx.LayerNorm(3, rngs=r), dx.Dropout(0.5), dx.Linear(THREE, 2, rngs=r)])
d = dx.Sequential(dx.Linear(2, n, rngs=r), dx.Linear(4, 2, rngs=r))
e = dx.Sequential(
    dx.Conv(1, 8, (3, 3), rngs=r), dx.BatchNorm(8, rngs=r), dx.gelu, flat, dx.Linear(100, 2, rngs=r)
)
f = dx.Sequential(dx.Linear(2, 4, rngs=r), dx.glu, dx.Linear(2, 2, rngs=r))
g = dx.Sequential(*[dx.Linear(2, 2, rngs=r) for _ in range(3)], dx.Linear(3, 2, rngs=r))
h = dx.Sequential(dx.Linear(2, 3, rngs=r), dx.BatchNorm(7, axis=1, rngs=r), dx.Linear(5, 5, rngs=r))
i = dx.Sequential(dx.Linear(2, 3, rngs=r), Own(4, 5, rngs=r))
j = dx.Sequential(dx.Linear(2, 3, rngs=r), functools.partial(jax.nn.one_hot, num_classes=7), dx.Linear(7, 5, rngs=r))
k = dx.Sequential()
"""


def test_specs_configs_and_sizes(tmp_path: Path) -> None:
    files = {"models.py": MODELS, "wrong_specs.py": WRONG_SPECS, "right_specs.py": RIGHT_SPECS}
    files |= {"wrong_configs.py": WRONG_CONFIGS, "right_configs.py": RIGHT_CONFIGS}
    files |= {"wrong_sizes.py": WRONG_SIZES, "right_sizes.py": RIGHT_SIZES}
    assert_as_marked(files, check(tmp_path, files))
