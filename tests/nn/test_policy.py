"""Dtype policies: what layers take from them, what overrides them, and how models keep them."""

import threading

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax.errors import ConfigError, FieldError, LayerError

MIXED = dx.Policy(compute=jnp.bfloat16, output=jnp.float32)
HALF = dx.Policy(jnp.bfloat16, jnp.bfloat16)


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    norm = dx.LayerNorm(dim, dtype=jnp.float32)
    up = dx.Linear(dim, 2 * dim)
    down = dx.Linear(2 * dim, dim)
    gain: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)
    seen: dx.BatchStat[jax.Array] = dx.variable((), initializer=dx.initializers.zeros, stream=None)

    def __call__(self, x):
        return self.down(dx.relu(self.up(self.norm(x))))


@dx.dataclass
class Net(dx.Layer):
    dim: int = dx.field()
    _: dx.KW_ONLY
    policy: dx.Policy = dx.field(default=dx.Policy())
    block = Block(dim)
    blocks = dx.Stacked(Block(dim), 2)
    head = dx.Linear(dim, 3, dtype=jnp.float32)

    def __call__(self, x):
        x = self.blocks(self.block(x))
        return {"logits": self.head(x), "hidden": x, "ids": jnp.arange(3)}


def rngs():
    return dx.Rngs(0)


def dtypes_of(tree):
    return jax.tree.map(lambda leaf: jnp.dtype(leaf.dtype), tree)


def test_parts_inherit_the_policy_of_their_model():
    net = Net(4, policy=HALF, rngs=rngs())
    assert set(dtypes_of(dx.state(net, dx.Param).leaves)) == {jnp.dtype(jnp.bfloat16)}
    assert net.block.up.dtype is jnp.bfloat16
    assert net.blocks.layers.up.param_dtype is jnp.bfloat16
    assert net.block.seen.dtype == jnp.float32  # a statistic is no parameter
    assert net.block.norm.dtype is jnp.float32  # its own argument
    assert net.head.dtype is jnp.float32
    assert net.block(jnp.ones((2, 4))).dtype == jnp.bfloat16


@pytest.mark.parametrize("call", [lambda net, x: net(x), dx.jit(lambda net, x: net(x))], ids=["eager", "jit"])
def test_results_of_the_model_are_in_the_output_dtype(call):
    found = call(Net(4, policy=MIXED, rngs=rngs()), jnp.ones((2, 4)))
    assert dtypes_of(found) == {"logits": jnp.float32, "hidden": jnp.float32, "ids": jnp.int32}
    with_double = Net(4, policy=dx.Policy(output=jnp.float16), rngs=rngs())
    assert dtypes_of(call(with_double, jnp.ones((2, 4))))["logits"] == jnp.float16


def test_results_that_are_objects_stay_the_same_objects():
    class Parts(dx.Module):
        def __init__(self):
            self.policy = dx.Policy(output=jnp.bfloat16)
            self.scale = dx.Param(jnp.ones(2))

        def __call__(self):
            return self.scale, self.scale.value

    parts = Parts()
    scale, value = parts()
    assert scale is parts.scale
    assert value.dtype == jnp.bfloat16


def test_a_block_holds_for_what_is_made_in_it():
    with MIXED:
        inside = dx.Linear(2, 3, rngs=rngs())
        with dx.Policy(param=jnp.float16):
            both = dx.Linear(2, 3, rngs=rngs())
        given = dx.Linear(2, 3, dtype=jnp.float32, param_dtype=jnp.float32, rngs=rngs())
    outside = dx.Linear(2, 3, rngs=rngs())
    assert (inside.dtype, inside.param_dtype) == (jnp.bfloat16, jnp.float32)
    assert (both.dtype, both.param_dtype, both.kernel.dtype) == (jnp.bfloat16, jnp.float16, jnp.float16)
    assert (given.dtype, given.param_dtype) == (jnp.float32, jnp.float32)
    assert (outside.dtype, outside.param_dtype) == (None, jnp.float32)


def test_a_block_ends_with_an_error_and_can_be_entered_again():
    with pytest.raises(ZeroDivisionError), MIXED, MIXED:
        raise ZeroDivisionError
    assert dx.Linear(2, 3, rngs=rngs()).dtype is None


def test_a_model_takes_what_it_does_not_say_from_the_block():
    with HALF:
        net = Net(4, policy=MIXED, rngs=rngs())
    assert net.policy == dx.Policy(jnp.bfloat16, jnp.bfloat16, jnp.float32)
    assert net.block.up.kernel.dtype == jnp.bfloat16


def test_other_threads_have_no_policy():
    found = []
    with HALF:
        thread = threading.Thread(target=lambda: found.append(dx.Linear(2, 3, rngs=rngs()).dtype))
        thread.start()
        thread.join()
    assert found == [None]


LAYERS = {
    "Linear": lambda **o: dx.Linear(2, 4, **o),
    "LinearGeneral": lambda **o: dx.LinearGeneral(2, (2, 2), **o),
    "Einsum": lambda **o: dx.Einsum("ab,bc->ac", (2, 3), (3,), **o),
    "Conv": lambda **o: dx.Conv(2, 4, 3, **o),
    "ConvTranspose": lambda **o: dx.ConvTranspose(2, 4, 3, **o),
    "Embed": lambda **o: dx.Embed(2, 4, **o),
    "BatchNorm": lambda **o: dx.BatchNorm(4, **o),
    "LayerNorm": lambda **o: dx.LayerNorm(4, **o),
    "RMSNorm": lambda **o: dx.RMSNorm(4, **o),
    "GroupNorm": lambda **o: dx.GroupNorm(4, 2, **o),
    "InstanceNorm": lambda **o: dx.InstanceNorm(4, **o),
    "LoRA": lambda **o: dx.LoRA(2, 1, 4, **o),
    "LoRALinear": lambda **o: dx.LoRALinear(2, 4, lora_rank=1, **o),
    "MultiHeadAttention": lambda **o: dx.MultiHeadAttention(2, 4, normalize_qk=True, **o),
    "LSTMCell": lambda **o: dx.LSTMCell(2, 4, **o),
    "OptimizedLSTMCell": lambda **o: dx.OptimizedLSTMCell(2, 4, **o),
    "GRUCell": lambda **o: dx.GRUCell(2, 4, **o),
    "SimpleCell": lambda **o: dx.SimpleCell(2, 4, **o),
    "MLP": lambda **o: dx.MLP(2, 4, **o),
    "GatedMLP": lambda **o: dx.GatedMLP(2, 4, **o),
    "PReLU": lambda rngs, **o: dx.PReLU(**o),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_each_layer_takes_the_policy_and_its_spec_rebuilds_it(make):
    with HALF:
        layer = make(rngs=rngs())
    assert {str(leaf.dtype) for leaf in dx.state(layer, dx.Param).leaves} == {"bfloat16"}
    assert layer.dtype is jnp.bfloat16
    if not isinstance(layer, dx.PReLU):  # it has no record of the slope at the start
        spec = dx.spec_of(layer)
        rebuilt = dx.eval_shape(lambda: spec.build(rngs=rngs()))
        assert dx.graphdef(rebuilt) == dx.graphdef(layer)
        assert dtypes_of(dx.state(rebuilt).leaves) == dtypes_of(dx.state(layer).leaves)


def test_a_policy_that_is_a_field_is_in_spec_config_and_replace():
    net = Net(4, policy=HALF, rngs=rngs())
    spec = dx.spec_of(net)
    rebuilt = spec.build(rngs=rngs())
    assert dx.graphdef(rebuilt) == dx.graphdef(net)
    assert rebuilt.block.up.kernel.dtype == jnp.bfloat16
    assert dx.replace(net, dim=6, rngs=rngs()).block.up.kernel.dtype == jnp.bfloat16
    data = {"kind": "Net", "dim": 4, "policy": {"compute": "bfloat16", "output": "float32"}}
    read = dx.from_config(Net, data, rngs=rngs())
    assert dx.graphdef(read) == dx.graphdef(Net(4, policy=MIXED, rngs=rngs()))
    assert "policy=Policy(param=" in repr(net)


def test_a_model_made_in_a_block_is_replaced_in_it_and_has_no_spec():
    with HALF:
        block = Block(4, rngs=rngs())
    wider = dx.replace(block, dim=6, rngs=rngs())
    assert wider.up.kernel.dtype == jnp.bfloat16
    assert dx.replace(wider, dim=8, rngs=rngs()).up.kernel.dtype == jnp.bfloat16
    for made in (block, dx.clone(block)):
        with pytest.raises(ConfigError, match="made in the block of a policy, which none of its arguments says"):
            dx.spec_of(made)


def test_equal_models_share_a_program():
    with HALF:
        made = dx.Linear(2, 3, rngs=rngs())
    given = dx.Linear(2, 3, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16, rngs=rngs())
    assert dx.graphdef(made) is dx.graphdef(given)
    assert repr(dx.Linear(2, 3, rngs=rngs())) == "Linear(in_features=2, out_features=3, kernel=f32[2,3], bias=f32[3])"
    assert "dtype=bfloat16, param_dtype=bfloat16" in repr(made)


@dx.dataclass
class OptionalNet(Net):
    policy: dx.Policy | None = dx.field(default=None)


@pytest.mark.parametrize("cls", [Net, OptionalNet])
def test_a_policy_in_a_spec(cls):
    spec = dx.spec(cls, 4, policy=MIXED)
    data = dx.to_config(spec)
    assert data["policy"] == {"kind": "Policy", "compute": "bfloat16", "output": "float32"}
    assert spec == dx.spec(cls, 4, policy=dx.Policy(compute="bfloat16", output="float32"))
    built = dx.from_config(cls, data, rngs=rngs())
    assert built.block.up.dtype == jnp.bfloat16
    assert dx.spec_of(built) == spec
    assert spec.replace({"policy.compute": "float16"}).build(rngs=rngs()).block.up.dtype == jnp.float16


@pytest.mark.parametrize("wrong", [jnp.int32, "float33", bool, 3, jnp.ones(2), jnp.float32(1)])
@pytest.mark.parametrize("name", ["param", "compute", "output"])
def test_wrong_dtypes_are_refused(name, wrong):
    with pytest.raises(LayerError, match=f"Policy.{name}: layers cannot compute in this dtype") as caught:
        dx.Policy(**{name: wrong})
    assert f"dx.Policy({name}=jnp.bfloat16)" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ('policy: dx.Policy = dx.defer(dx.Policy)("bfloat16")', "an expression"),
        ("policy: dx.InitVar[dx.Policy] = dx.field()", "an InitVar"),
        ("policy: dx.InitVar[dx.Policy | None] = dx.field(default=None)", "an InitVar"),
    ],
)
def test_a_policy_that_the_parts_could_not_follow_is_refused(line, got):
    with pytest.raises(FieldError, match=r"Model\.policy: the parts are made under this policy") as caught:
        exec(f"@dx.dataclass\nclass Model(dx.Module):\n    {line}", {"dx": dx, "__name__": __name__})
    assert caught.value.got == got
    exec(f"@dx.dataclass\nclass Model(dx.Module):\n    {caught.value.fix}", {"dx": dx, "__name__": __name__})


def test_a_part_may_be_called_policy():
    @dx.dataclass
    class Agent(dx.Layer):
        policy: dx.Linear = dx.Linear(2, 2)

    with HALF:
        agent = Agent(rngs=rngs())
    assert agent.policy.param_dtype is jnp.bfloat16
    assert dx.replace(agent, rngs=rngs()).policy.param_dtype is jnp.bfloat16
