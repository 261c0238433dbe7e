from pathlib import Path

from declax._variables.metadata import KNOWN
from declax.mypy_plugin.checks.reads import METADATA
from plugin_cases import assert_as_marked, check

MODELS = """
from collections.abc import Callable
from typing import Any

import jax

import declax as dx


@dx.dataclass
class Block(dx.Layer):
    width: int = dx.field()
    linear: dx.Linear = dx.Linear(width, width)
    norm: dx.BatchNorm = dx.BatchNorm(width)


@dx.dataclass
class Wide(Block):
    extra: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones)


@dx.dataclass
class Student(dx.Layer):
    linear: dx.Linear = dx.Linear(2, 2)
    norm: dx.BatchNorm = dx.BatchNorm(2)
    more: list[dx.Linear] = dx.data(default_factory=list[dx.Linear])
    maybe: dx.Linear | None = dx.field(default=None)
    pooled: dx.Dropout | None = dx.field(default=None)
    count: int = dx.field(default=0)


class Open(dx.Module):
    def __init__(self) -> None:
        self.linear = dx.Linear(2, 2, rngs=dx.Rngs(0))


@dx.dataclass
class Held(dx.Module):
    activation: Callable[..., Any]
    table: Any = dx.static(default=None)
    kept: dx.Static[Any] = None
    given: dx.Data[Any] = None
    free: Any = None
    anything: object = dx.data(default=None)
    size: int = dx.static(default=0)
    either: Callable[..., Any] | dx.Linear = dx.relu
    seed: dx.InitVar[Any] = None


@dx.dataclass
class OfHeld(Held):
    rate: float = 1.0


class Length(dx.Param[jax.Array]):
    unit: str = "m"
"""

WRONG_MODELS = """
import optax

import declax as dx
from models import Block, Wide

model = Block(2, rngs=dx.Rngs(0))
linear = dx.Linear(2, 3, rngs=dx.Rngs(0))
dx.split(Block)  # E: declax-model | split: Block is a class, not a model
dx.split(dx.Linear, dx.Param, ...)  # E: declax-model | fix: Linear(...)
dx.state(dx.Linear)  # E: declax-model | state: Linear is a class
dx.state(type(model))  # E: declax-model | state: Block is a class
dx.clone(dx.Linear)  # E: declax-model | clone: Linear is a class
dx.graphdef(dx.Linear)  # E: declax-model | graphdef: Linear is a class
dx.pop(Wide, dx.Intermediate)  # E: declax-model | pop: Wide is a class
dx.update(dx.Linear, dx.state(linear))  # E: declax-model | update: Linear is a class
dx.spec_of(dx.Linear)  # E: declax-model | spec_of: Linear is a class
dx.view(dx.Linear)  # E: declax-model | view: Linear is a class
dx.variables(dx.Linear)  # E: declax-model | variables: Linear is a class
dx.iter_graph(dx.Linear), dx.iter_modules(Wide)  # E: declax-model | iter_modules: Wide is a class
dx.Optimizer(Block, optax.sgd(0.1), wrt=dx.Param)  # E: declax-model | Optimizer: Block is a class, not a model
dx.update(linear, dx.state(model))  # E: declax-model | Linear has no 'linear', 'norm'
dx.update(model, dx.state(linear))  # E: declax-model | update: a State of Linear does not fit; Block has no 'kern
dx.update(model, dx.state(model), dx.state(model.linear))  # E: declax-model | Block has no 'kernel'
dx.update(model, dx.state(linear), strict=True)  # E: declax-model | update: a State of Linear does not fit; Block
dx.merge(dx.graphdef(linear), dx.state(model))  # E: declax-model | merge: a State of Block does not fit; Linear h
graphdef, params, rest = dx.split(model, dx.Param, ...)
of_linear = dx.state(linear)
dx.merge(graphdef, params, of_linear)  # E: declax-model | Block has no 'kernel'
"""

RIGHT_MODELS = """
from typing import Any

import declax as dx
from models import Block, Open, Student, Wide

model, wide = Block(2, rngs=dx.Rngs(0)), Wide(2, rngs=dx.Rngs(0))
student, linear = Student(rngs=dx.Rngs(0)), dx.Linear(2, 3, rngs=dx.Rngs(0))
dx.split(model), dx.state([model, linear]), dx.clone((model, linear)), dx.spec_of(model)
dx.update(model, dx.state(model)), dx.update(model, dx.state(wide)), dx.update(wide, dx.state(model))
dx.update(model, dx.state(student)), dx.update(student, dx.state(model))
dx.update(model, dx.state(linear), strict=False)
dx.update(Open(), dx.state(linear)), dx.update(model, dx.state(Open()))
dx.update([linear], dx.state([linear])), dx.update(model, {"linear": {}})
dx.merge(dx.graphdef(model), dx.state(student)), dx.merge(*dx.split(model))
graphdef, params, rest = dx.split(model, dx.Param, ...)
dx.merge(graphdef, params, rest)


def of_any(anything: Any, state: dx.State[Any], kind: type[Any], strict: bool) -> None:
    dx.update(model, state), dx.update(anything, dx.state(model)), dx.merge(anything, state)
    dx.split(kind), dx.clone(anything)
    dx.update(model, dx.state(linear), strict=strict)  # type: ignore[call-overload]  # a bool is no literal
"""

WRONG_STATIC = """
import jax.numpy as jnp
import numpy as np

import declax as dx
from models import Held, OfHeld

linear = dx.Linear(2, 3, rngs=dx.Rngs(0))
dx.Linear(2, 3, param_dtype=jnp.zeros(3), rngs=dx.Rngs(0))  # E: declax-field | param_dtype is static, but jax.Array is
dx.Linear(2, 3, dtype=np.zeros(3), rngs=dx.Rngs(0))  # E: declax-field | Linear(...): dtype is static, but ndarray
dx.Conv(2, 3, 3, param_dtype=linear.kernel, rngs=dx.Rngs(0))  # E: declax-field | Conv(...): param_dtype is static
Held(linear)  # E: declax-field | fix: activation: dx.Data[...]
Held(dx.relu, jnp.ones(2))  # E: declax-field | table is static
Held(dx.relu, kept=linear.kernel.value)  # E: declax-field | kept is static
OfHeld(activation=dx.relu, table=linear)  # E: declax-field | OfHeld(...): table is static, but Linear is data
Held(dx.relu, size=jnp.ones(2))  # E: arg-type
"""

RIGHT_STATIC = """
from typing import Any

import jax.numpy as jnp
import numpy as np

import declax as dx
from models import Held, OfHeld

array = jnp.ones(2)
linear = dx.Linear(2, 3, dtype=array.dtype, param_dtype=jnp.bfloat16, rngs=dx.Rngs(0))
Held(dx.relu, given=array, free=linear, anything=array, either=linear, seed=array)
OfHeld(lambda x: x, table=np.float32(2), kept="name", size=3, rate=2.0)
Held(np.tanh, table=(1, 2))


def of_any(anything: Any, given: dict[str, Any], many: list[Any]) -> None:
    Held(anything, table=anything), Held(**given), Held(*many)
"""

WRONG_ATTRIBUTES = """
from typing import Any

import jax
import jax.numpy as jnp

import declax as dx
from models import Length

linear = dx.Linear(2, 3, rngs=dx.Rngs(0))
linear.kernel.valeu  # E: declax-attribute | Param.valeu: neither the Variable nor its value has this attribute
linear.kernel.vlaue + 1  # E: declax-attribute | did you mean 'value'?
linear.kernel.sape  # E: declax-attribute | did you mean 'shape'?
linear.kernel.dtpye  # E: declax-attribute | did you mean 'dtype'?
linear.kernel.get_vale()  # E: declax-attribute | did you mean 'get_value'?
linear.kernel.shardin  # E: declax-attribute | did you mean 'sharding'?
linear.kernel.trainabel  # E: declax-attribute | did you mean 'trainable'?
linear.kernel.nbyte  # E: declax-attribute | did you mean 'nbytes'?


def of_kind(length: Length) -> None:
    length.unti, length.unt  # E: declax-attribute | Length.unt: neither


def written(kernel: dx.Param[jax.Array], other: dx.Param[Any]) -> None:
    kernel.vaule = jnp.ones(3)  # E: declax-attribute | Param.vaule: this sets new metadata; did you mean 'value'?
    linear.kernel.vallue += 1  # E: declax-attribute | did you mean 'value'?
    linear.kernel.raw_vale, size = jnp.ones(3), 3  # E: declax-attribute | did you mean 'raw_value'?
    other.valu = 3  # E: declax-attribute | Param.valu: this sets new metadata; did you mean 'value'?
"""

RIGHT_ATTRIBUTES = """
from typing import Any

import jax
import jax.numpy as jnp

import declax as dx
from models import Length

linear = dx.Linear(2, 3, rngs=dx.Rngs(0), kernel_metadata={"shapee": 1})
kernel = linear.kernel
kernel.value, kernel.shape, kernel.T, kernel.at[0], kernel.nbytes, kernel.sharding, kernel.mesh, kernel.on_get_value
kernel.unknown, kernel.shapes, kernel.dtype_name, kernel.group, kernel.shapee
given = dx.Param(jnp.ones(2), sizee=3, szie=4)
given.sizee, given.szie
kernel.valuee = 3
kernel.p_value = kernel.old_value = kernel.values = 3
kernel.shardin = 3
kernel.shape.vale = 3  # type: ignore[attr-defined]  # of a tuple, and of no Variable
given.valu = 3
given.set_metadata("valu", 3)
kernel.set_metadata("taag", 3)
kernel.taag, kernel.valuee


def of_any(any_value: dx.Param[Any], tree: dx.Param[dict[str, Any]], anything: Any, length: Length) -> None:
    any_value.valeu, anything.valeu
    tree.keys(), length.unit, length.units
"""


def test_models_static_values_and_attributes(tmp_path: Path) -> None:
    files = {
        "models.py": MODELS,
        "wrong_models.py": WRONG_MODELS,
        "right_models.py": RIGHT_MODELS,
        "wrong_static.py": WRONG_STATIC,
        "right_static.py": RIGHT_STATIC,
        "wrong_attributes.py": WRONG_ATTRIBUTES,
        "right_attributes.py": RIGHT_ATTRIBUTES,
    }
    assert_as_marked(files, check(tmp_path, files))


def test_metadata_is_what_declax_knows() -> None:
    """The plugin imports no JAX, and so nothing of declax."""
    assert METADATA == KNOWN
