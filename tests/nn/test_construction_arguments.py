"""Initializers, metadata and rngs of layers: arguments that construction uses up."""

import copy
import dataclasses
import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax.errors import ConfigError, FieldError

NORMAL = dx.initializers.normal(0.5)
SHAPES = {
    dx.Linear: (2, 3),
    dx.Conv: (2, 3, (3,)),
    dx.Embed: (4, 3),
    dx.LayerNorm: (3,),
    dx.BatchNorm: (3,),
}
USED_UP = [
    (layer, field.name)
    for layer in SHAPES
    for field in layer.__dataclass_fields__.values()
    if field.name.endswith(("_init", "_metadata"))
]


def make(layer=dx.Linear, **options):
    return layer(*SHAPES[layer], **options, rngs=dx.Rngs(0))


def test_each_layer_has_initializers_and_metadata():
    assert {layer for layer, _ in USED_UP} == set(SHAPES)
    assert len(USED_UP) == 18


@pytest.mark.parametrize(("layer", "name"), USED_UP)
def test_they_are_no_attributes(layer, name):
    made = make(layer)
    assert not hasattr(made, name)
    assert name not in {field.name for field in dataclasses.fields(made)}
    assert f"{name}=" not in repr(made)
    with pytest.raises(
        AttributeError, match=f"{layer.__name__}.{name} is an InitVar: only the constructor receives it"
    ):
        getattr(made, name)


@pytest.mark.parametrize("layer", SHAPES)
def test_layers_that_differ_in_them_have_equal_graphdefs(layer):
    options = {n: NORMAL if n.endswith("_init") else {} for owner, n in USED_UP if owner is layer}
    assert dx.graphdef(make(layer, **options)) == dx.graphdef(make(layer))
    assert jax.tree.structure(make(layer, **options)) == jax.tree.structure(make(layer))


def test_layers_that_differ_in_initializers_share_a_program():
    traces = []

    @dx.jit
    def run(layer, x):
        traces.append(None)
        return layer(x)

    layers = [make(), make(kernel_init=NORMAL), make(bias_init=dx.initializers.ones, kernel_metadata={})]
    results = [run(layer, jnp.ones((1, 2))) for layer in layers]
    assert len(traces) == 1
    np.testing.assert_array_equal(results[1], jnp.ones((1, 2)) @ layers[1].kernel)


def test_why_they_are_no_attributes():
    with pytest.raises(
        AttributeError, match=r"only the constructor receives it; dx.spec_of shows it, and dx.replace passes it on"
    ):
        make().kernel_init
    with pytest.raises(AttributeError, match=r"Linear.rngs is an InitVar: only the constructor receives it$"):
        make().rngs


def test_specs_have_them():
    spec = dx.spec(dx.Linear, 2, 3, kernel_init=NORMAL, bias_metadata={"unit": "m"})
    assert dx.spec_of(spec.build(rngs=dx.Rngs(0))) == spec
    assert dx.spec_of(make()) == dx.spec(dx.Linear, 2, 3)


def test_replace_passes_them_on():
    layer = dx.replace(make(kernel_init=NORMAL), use_bias=False, rngs=dx.Rngs(3))
    assert dx.spec_of(layer) == dx.spec(dx.Linear, 2, 3, use_bias=False, kernel_init=NORMAL)
    np.testing.assert_array_equal(layer.kernel, NORMAL(dx.Rngs(3).params(), (2, 3), jnp.float32))
    assert dx.spec_of(dx.replace(layer, kernel_init=dx.initializers.ones, rngs=dx.Rngs(3)))["kernel_init"] == (
        dx.initializers.ones
    )


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, dx.clone, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_copies_keep_the_record(duplicate):
    model = duplicate(dx.List([make(kernel_init=NORMAL)]))
    assert dx.spec_of(model)["elements.0"] == dx.spec(dx.Linear, 2, 3, kernel_init=NORMAL)


@dx.jit
def write(layer):
    layer.kernel.value = 2 * layer.kernel.value
    layer.precision = "highest"


def update(layer):
    dx.update(layer, dx.state(make()))


@pytest.mark.parametrize("change", [write, update])
def test_what_writes_in_place_keeps_the_record(change):
    layer = make(kernel_init=NORMAL)
    change(layer)
    assert dx.spec_of(layer)["kernel_init"] == NORMAL


@pytest.mark.parametrize(
    "derive",
    [
        lambda layer: dx.merge(*dx.split(layer)),
        lambda layer: jax.tree.map(jnp.ones_like, layer),
        lambda layer: dx.jit(lambda: make(kernel_init=NORMAL))(),
        lambda layer: dx.eval_shape(lambda: make(kernel_init=NORMAL)),
    ],
    ids=["merge", "tree.map", "jit", "eval_shape"],
)
def test_what_jax_makes_has_no_record(derive):
    layer = derive(make(kernel_init=NORMAL))
    assert dx.graphdef(layer) == dx.graphdef(make())
    with pytest.raises(ConfigError, match="has no record of the 'kernel_init' that it was constructed with") as caught:
        dx.spec_of(dx.List([layer]))
    assert caught.value.where == "List.elements.0.kernel_init"
    with pytest.raises(FieldError, match="without the arguments of their construction"):
        dx.replace(layer, use_bias=False, rngs=dx.Rngs(0))
    given = {name: NORMAL if name.endswith("_init") else {} for owner, name in USED_UP if owner is dx.Linear}
    assert dx.replace(layer, use_bias=False, **given, rngs=dx.Rngs(0)).bias is None


def test_data_is_not_recorded():
    @dx.dataclass
    class Table(dx.Module):
        start: dx.InitVar[object]
        size: int = 3

    table = Table(jnp.zeros(2))
    with pytest.raises(ConfigError, match="Table has no record of the 'start'"):
        dx.spec_of(table)
    with pytest.raises(FieldError, match=r"Table.start: replace constructs anew"):
        dx.replace(table)


def test_a_layer_with_the_usual_arguments_shares_its_record():
    first, second = make(), make(use_bias=False)
    assert first.__dict__["_pytree__record"] is second.__dict__["_pytree__record"]


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    hidden: int = 1000 * dim
    _: dx.KW_ONLY
    mixer: dx.Module = dx.Linear(dim, dim)


COPIES = [copy.copy, copy.deepcopy, dx.clone, lambda block: pickle.loads(pickle.dumps(block))]


@pytest.mark.parametrize("duplicate", COPIES)
def test_copies_know_which_parts_were_made(duplicate):
    block = duplicate(Block(2, rngs=dx.Rngs(0)))
    assert dx.spec_of(block) == dx.spec(Block, 2)
    wider = dx.replace(block, dim=3, rngs=dx.Rngs(0))
    assert (wider.hidden, wider.mixer.kernel.shape) == (3000, (3, 3))


@pytest.mark.parametrize("duplicate", COPIES)
@pytest.mark.parametrize("is_late", [False, True])
def test_parts_that_were_assigned_are_passed_on(duplicate, is_late):
    block = Block(2, rngs=dx.Rngs(0))
    block = duplicate(block) if is_late else block
    block.mixer = dx.LayerNorm(2, rngs=dx.Rngs(0))
    block.hidden = 5
    block = block if is_late else duplicate(block)
    assert dx.spec_of(block) == dx.spec(Block, 2, hidden=5, mixer=dx.spec(dx.LayerNorm, 2))
    again = dx.replace(block, rngs=dx.Rngs(0))
    assert (again.hidden, again.mixer) == (5, block.mixer)


def test_a_record_keeps_no_part_alive():
    block = Block(2, rngs=dx.Rngs(0))
    old = weakref.ref(block.mixer)
    block.mixer = dx.LayerNorm(2, rngs=dx.Rngs(0))
    gc.collect()
    assert old() is None
    assert isinstance(dx.replace(pickle.loads(pickle.dumps(block)), rngs=dx.Rngs(0)).mixer, dx.LayerNorm)
