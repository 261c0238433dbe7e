"""The types that the plugin gives to items, captured States and calls of recurrent layers."""

from pathlib import Path

from plugin_cases import assert_as_marked, check

MODELS = """
from collections.abc import Callable
from enum import Enum

import jax
import optax

import declax as dx


class Mode(Enum):
    WIDE = "wide"


class Config:
    size = 3


@dx.dataclass
class Net(dx.Layer):
    dim: int = dx.field()
    _: dx.KW_ONLY
    mode: Mode = dx.field(default=Mode.WIDE)
    config: Config | None = dx.static(default=None)
    sizes: tuple[int, ...] = dx.field(default=(1, 2))
    names: list[str] = dx.field(default_factory=list[str])
    act: Callable[[jax.Array], jax.Array] = dx.field(default=dx.relu)
    up: dx.Linear = dx.Linear(dim, dim)
    many: list[dx.Linear] = dx.repeat(2, dx.Linear(dim, dim))
    last: dx.Linear | None = dx.field(default=None)
    hidden = dx.Linear(dim, dim)
    rnn = dx.RNN(dx.LSTMCell(dim, dim))
    with_carry = dx.RNN(dx.LSTMCell(dim, dim), return_carry=True)
    layers = dx.Sequential(dx.Linear(dim, dim), dx.relu)

    def __call__(self, x: jax.Array) -> jax.Array:
        self.sow(dx.Intermediate, "seen", x)
        return self.up(x)

    def encode(self, x: jax.Array) -> jax.Array:
        return x


net = Net(3, rngs=dx.Rngs(0))
optimizer = dx.Optimizer(net, optax.sgd(0.1))
chain = dx.Sequential([dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.Dropout(0.1, rngs=dx.Rngs(0))])
restored = dx.load("run", into={"net": net, "step": 3})
"""

RIGHT = """
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from typing_extensions import assert_type

import declax as dx
from models import Config, Mode, Net, chain, net, optimizer, restored

x = jnp.ones(3)
Lstm = tuple[jax.Array, jax.Array]

# --- checkpoints
items = {"net": net, "optimizer": optimizer, "step": 3, "rate": 0.1, "table": x, "state": dx.state(net)}
dx.save("run", items)
found = dx.load("run", into=items)
assert_type(found, dx.checkpoint.loading.Restored)
assert_type(found["net"], Net)
assert_type(found["optimizer"], dx.Optimizer[Net])
assert_type(found["step"], int)
assert_type(found["rate"], float)
assert_type(found["table"], Any)
assert_type(found["state"], dx.State[Net])
assert_type(found["other"], Any)
assert_type(restored["net"], Net)
assert_type(dx.load("run", {"net": net})["net"], Net)
assert_type(dx.load("run")["net"], Any)
checkpoints = dx.Checkpoints("runs")
assert_type(checkpoints.load("best", into={"net": net})["net"], Net)
assert_type(checkpoints.load(into={"net": net})["net"], Net)


def of_unknown(path: str, items: dict[str, Any], flag: bool) -> None:
    assert_type(dx.load(path, items)["net"], Any)
    one = dx.load(path, {"net": net}) if flag else dx.load(path, {"old": net})
    print(one["net"], one["old"])


# --- elements
assert_type(chain[0], dx.Linear)
assert_type(chain[-1], dx.Dropout)
assert_type(chain[2], Any)
assert_type(net.layers[0], dx.Linear)

# --- recurrent layers
cell = dx.GRUCell(3, 4, rngs=dx.Rngs(0))
assert_type(net.rnn(x), jax.Array)
assert_type(net.with_carry(x), tuple[Lstm, jax.Array])
assert_type(net.with_carry(x, return_carry=False), jax.Array)
assert_type(net.rnn(x, return_carry=True), tuple[Lstm, jax.Array])
assert_type(dx.Bidirectional(dx.RNN(cell), dx.RNN(cell))(x), jax.Array)
assert_type(dx.Bidirectional(dx.RNN(cell), dx.RNN(cell))(x, return_carry=True)[1], jax.Array)


def of_flags(flag: bool) -> None:
    assert_type(dx.RNN(cell, return_carry=flag)(x), Any)
    assert_type(net.rnn(x, return_carry=flag), Any)


# --- captures
def encode(model: Net, x: jax.Array) -> int:
    return 3


SNet = dx.State[Net]
outputs, seen = dx.capture(net, dx.Intermediate)(x)
assert_type(seen, SNet)
print(seen["seen"], seen["__call__"], seen.up)
assert_type(dx.capture(net.encode, dx.Intermediate, dx.Param)(x), tuple[jax.Array, SNet, SNet])
assert_type(dx.capture(net.encode, dx.Param, dx.Cache, dx.BatchStat)(x), tuple[Any, SNet, SNet, SNet])
assert_type(dx.capture(encode, dx.Intermediate)(net, x), tuple[int, SNet])
assert_type(dx.capture(encode)(net, x), int)
assert_type(dx.capture(net.act, dx.Intermediate)(x), tuple[jax.Array, dx.State[Any]])
assert_type(dx.capture(lambda m: m(x), dx.Intermediate)(net), tuple[Any, dx.State[Any]])

# --- specs
spec = dx.spec(Net, 4)
path = "dim"
assert_type(spec["dim"], int)
assert_type(spec["mode"], Mode)
assert_type(spec["config"], Any)
assert_type(spec["sizes"], tuple[int, ...])
assert_type(spec["names"], Sequence[str])
assert_type(spec["act"], Callable[[jax.Array], jax.Array])
assert_type(spec["up"], dx.Spec[dx.Linear])
assert_type(spec["up.use_bias"], bool)
assert_type(spec["many"], Sequence[dx.Spec[dx.Linear]])
assert_type(spec["many[0].in_features"], int)
assert_type(spec["last"], dx.Spec[dx.Linear] | None)
assert_type(spec[path], Any)
"""

WRONG = """
import declax as dx
from models import net, restored

restored["nte"]  # E: declax-path | did you mean 'net'?
spec = dx.spec(net.__class__, 4)
dx.spec(type(net), 4)["dmi"]  # E: declax-spec | did you mean 'dim'?
spec["hidden"]  # E: declax-spec | there is no parameter 'hidden'
spec["up.bais_init"]  # E: declax-spec | did you mean 'bias_init'?
"""

SURGERY = """
import declax as dx
from models import chain
from typing import Any
from typing_extensions import assert_type

chain[0] = dx.Dropout(0.1)
assert_type(chain[0], Any)
"""


def test_results(tmp_path: Path) -> None:
    files = {"models.py": MODELS, "right.py": RIGHT, "wrong.py": WRONG, "surgery.py": SURGERY}
    assert_as_marked(files, check(tmp_path, files))


def test_results_from_the_cache(tmp_path: Path) -> None:
    """What a type remembers is in mypy's cache."""
    files = {"models.py": MODELS, "right.py": RIGHT}
    assert check(tmp_path, files) == []
    again = {"models.py": MODELS, "right.py": RIGHT + "\nassert_type(chain[1], dx.Dropout)\n"}
    assert check(tmp_path, again) == []
