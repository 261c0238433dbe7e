"""Declared shardings on eight devices; `test_on_devices.py` runs this file in a process that has them."""

from __future__ import annotations

import contextlib
import functools
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding

import declax as dx
from declax.errors import ReplicationWarning, ShardingError

P = jax.P
normal = dx.initializers.lecun_normal()
RULES = {"embed": None, "mlp": "model", "batch": "data"}


def mesh_of(data=4, model=2, kind=AxisType.Auto):
    return jax.make_mesh((data, model), ("data", "model"), axis_types=(kind, kind))


MESH = mesh_of()
EXPLICIT = mesh_of(kind=AxisType.Explicit)
both = pytest.mark.parametrize("mesh", [MESH, EXPLICIT], ids=["auto", "explicit"])


@dx.dataclass
class MLP(dx.Layer):
    dim: int = dx.field()
    hidden: int = dx.field()
    up: dx.Param[jax.Array] = dx.variable((dim, hidden), initializer=normal, sharding=("embed", "mlp"))
    down: dx.Param[jax.Array] = dx.variable((hidden, dim), initializer=normal, sharding=("mlp", "embed"))
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)

    def __call__(self, x):
        x = jax.nn.relu(x @ self.up.value)
        return (x @ self.down.value) * self.scale.value


def make():
    return MLP(8, 16, rngs=dx.Rngs(0))


EXPECTED = {"up": P(None, "model"), "down": P("model", None)}


def check(model, mesh):
    """Each parameter is where its class declares."""
    for name, spec in EXPECTED.items():
        value = getattr(model, name).value
        assert value.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
        assert {shard.data.nbytes for shard in value.addressable_shards} == {8 * 16 * 4 // 2}


def check_equal(model, other):
    for one, two in zip(jax.tree.leaves(model), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)


# ================================================================= creation


@both
def test_a_declared_variable_is_made_where_it_belongs(mesh):
    alone = make()
    with jax.set_mesh(mesh), dx.sharding_rules(RULES):
        model = make()
    check(model, mesh)
    check_equal(model, alone)


def test_the_page_shows_where_a_kernel_is(capsys):
    with jax.set_mesh(MESH), dx.sharding_rules(RULES):
        jax.debug.visualize_array_sharding(make().up.value, use_color=False)
    page = Path(__file__).parents[2] / "docs" / "parallel.md"
    assert capsys.readouterr().out in page.read_text(encoding="utf-8")


def test_annotations_have_no_effect_without_a_mesh():
    model = make()
    assert len(model.up.value.sharding.device_set) == 1
    assert model.up.out_sharding == ("embed", "mlp")


def test_rules_without_a_mesh_warn_once():
    with dx.sharding_rules(RULES):
        with pytest.warns(ReplicationWarning, match="there is no mesh, so that .* one of 8"):
            model = make()
        dx.with_sharding_constraint(jnp.ones((4, 4)), ("embed", "mlp"))
    assert len(model.up.value.sharding.device_set) == 1


def test_rules_without_a_mesh_are_fine_where_nothing_is_placed():
    """Other names, shapes, values that lie on a mesh, and Variables that stay where they are."""
    with dx.sharding_rules({"other": "data"}):
        make()
    with dx.sharding_rules(RULES):
        dx.eval_shape(make)
        dx.Param(jax.device_put(jnp.ones((8, 8)), NamedSharding(MESH, P())), out_sharding=("embed", "mlp"))
        with dx.use_eager_sharding(False):
            make()


def test_the_initializer_makes_shards_only():
    """The compiled program of a kernel has no array of its whole size."""
    from declax._variables.drawing import make_placed

    sharding = NamedSharding(MESH, P("data", "model"))
    shape = (1024, 512)
    lowered = make_placed.lower(dx.initializers.lecun_normal(), jax.random.key(0), shape, jnp.float32, sharding)
    memory = lowered.compile().memory_analysis()
    whole = 1024 * 512 * 4
    assert memory.output_size_in_bytes == whole // 8
    assert memory.temp_size_in_bytes < whole // 2


@both
def test_an_initializer_takes_a_spec(mesh):
    init = dx.initializers.ones
    with jax.set_mesh(mesh):
        made = init(None, (8, 4), jnp.float32, out_sharding=P("data"))
        keys = jax.random.split(jax.random.key(0), 2)
        stacked = jax.vmap(lambda key: normal(key, (8, 4), out_sharding=P("data", None)))(keys)
    assert made.sharding.is_equivalent_to(NamedSharding(mesh, P("data")), 2)
    assert stacked.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "data", None)), 3)
    with pytest.raises(ShardingError, match="there is no mesh for this spec"):
        init(None, (8, 4), out_sharding=P("data"))


def test_a_function_as_initializer_is_placed_too():
    with jax.set_mesh(MESH):
        layer = dx.Linear(
            8,
            4,
            kernel_init=lambda key, shape, dtype: jnp.ones(shape, dtype),
            kernel_metadata={"out_sharding": ("data", "model")},
            rngs=dx.Rngs(0),
        )
    assert layer.kernel.value.sharding == NamedSharding(MESH, P("data", "model"))


@both
@pytest.mark.parametrize("names", [("data", "model"), P("data", "model"), P(("data", "model")), (None, "model"), ()])
def test_a_variable_made_by_hand(mesh, names):
    with jax.set_mesh(mesh):
        param = dx.Param(jnp.ones((8, 4)), out_sharding=names)
    assert param.sharding.is_equivalent_to(NamedSharding(mesh, P(*names)), 2)


def test_a_sharding_with_its_own_mesh_needs_no_context():
    place = NamedSharding(MESH, P("data"))
    assert dx.Param(jnp.ones(8), out_sharding=place).sharding == place
    assert dx.Param(jnp.ones(8), out_sharding=("data",), mesh=MESH).sharding == place


def test_eager_sharding_is_switched_off():
    with jax.set_mesh(MESH):
        with dx.use_eager_sharding(False):
            assert not dx.using_eager_sharding()
            assert dx.Param(jnp.ones(8), out_sharding=("data",)).sharding.spec != P("data")
            assert dx.Param(jnp.ones(8), out_sharding=("data",), eager_sharding=True).sharding.spec == P("data")
        assert dx.Param(jnp.ones(8), out_sharding=("data",), eager_sharding=False).sharding.spec != P("data")
        assert dx.Param(jnp.ones(8), out_sharding=("data",)).sharding.spec == P("data")


@both
@pytest.mark.parametrize("jit", [jax.jit, dx.jit], ids=["jax", "declax"])
def test_within_jit(mesh, jit):
    with jax.set_mesh(mesh), dx.sharding_rules(RULES):
        model = jit(make)()
    check(model, mesh)


def test_other_rules_trace_again():
    @dx.jit
    def made():
        return dx.Param(jnp.ones((8, 8)), out_sharding=("mlp", None))

    found = []
    with jax.set_mesh(MESH):
        for axis in ("data", "model", "data"):
            with dx.sharding_rules({"mlp": axis}):
                found.append(made().sharding.spec)
    assert found == [P("data"), P("model"), P("data")]


def test_within_shard_map_the_shards_stay():
    def body(x):
        return dx.Param(x, out_sharding=("data",)).value * 2

    mapped = jax.shard_map(body, mesh=MESH, in_specs=P("data"), out_specs=P("data"))
    assert mapped(jnp.arange(8.0)).tolist() == (2 * jnp.arange(8.0)).tolist()


def test_rules_of_a_variable():
    with jax.set_mesh(MESH), dx.sharding_rules({"col": "model"}):
        param = dx.Param(jnp.ones((8, 4)), out_sharding=("row", "col"), sharding_rules=(("row", "data"),))
        assert param.sharding.spec == P("data", "model")
        with pytest.raises(ShardingError, match="the rule for 'col' contradicts that of the context"):
            dx.Param(jnp.ones((8, 4)), out_sharding=("col", None), sharding_rules={"col": "data"})


# ================================================================= errors

MISFITS = {
    "'mpl' has no rule, and is not an axis of the mesh; did you mean 'mlp'?": (
        (8, 8),
        ("mpl", None),
        RULES,
        "dx.sharding_rules({..., 'mpl': None})        # or one of the mesh axes 'data', 'model'",
    ),
    "its rule names 'models', which is not an axis of the mesh": (
        (8, 8),
        ("mlp", None),
        {"mlp": "models"},
        "dx.sharding_rules({..., 'mlp': None})        # or one of the mesh axes 'data', 'model'",
    ),
    "its size 6 is not divisible by 4, the size of mesh axis 'data'": (
        (6, 8),
        ("batch", None),
        RULES,
        'dx.sharding_rules(rules, otherwise="replicate")        # or a size that is a multiple of 4',
    ),
    "its size 4 is not divisible by 8, the size of mesh axis ('data', 'model')": (
        (4,),
        ("all",),
        {"all": ("data", "model")},
        'dx.sharding_rules(rules, otherwise="replicate")        # or a size that is a multiple of 8',
    ),
    "mesh axis 'model' splits dimension 0 already": (
        (8, 8),
        ("mlp", "model"),
        RULES,
        "out_sharding=('mlp', None)        # or rules with another mesh axis for one of the two",
    ),
    "mesh axis 'data' splits dimension 0 already": (
        (16, 8),
        (("data", "data"), None),
        RULES,
        "out_sharding=(None, None)        # or rules with another mesh axis for one of the two",
    ),
    "has 3 entries, for an array of shape (8, 8)": (
        (8, 8),
        (None, None, "mlp"),
        RULES,
        "out_sharding=(None, None)        # an entry for each dimension",
    ),
}
"""For what is wrong: a shape, names, rules, and the line that changes it."""


@both
@pytest.mark.parametrize("text", MISFITS)
def test_what_does_not_fit_is_an_error_with_path_and_dimension(text, mesh):
    shape, names, rules, fix = MISFITS[text]

    class Model(dx.Module):
        def __init__(self):
            self.part = dx.Dict(kernel=dx.Param(jnp.ones(shape), out_sharding=names))

    with jax.set_mesh(mesh), dx.sharding_rules(rules), pytest.raises(ShardingError) as caught:
        Model()
    assert text in str(caught.value)
    assert caught.value.fix == fix
    with pytest.raises(ShardingError) as caught:
        dx.init_sharded(Model, mesh=mesh, rules=rules)
    assert text in str(caught.value)
    assert "part.kernel: " in str(caught.value)
    assert caught.value.fix == fix


def test_all_misfits_are_listed():
    refused = pytest.raises(ShardingError, match="the declared sharding does not fit the mesh")
    with jax.set_mesh(mesh_of(1, 8)), refused as caught:
        dx.init_sharded(lambda: MLP(8, 12, rngs=dx.Rngs(0)), rules={**RULES, "embed": "embeds"})
    assert "up: dimension 0 of (8, 12), 'embed'" in str(caught.value)
    assert "up: dimension 1 of (8, 12), 'mlp'" in str(caught.value)
    assert "down: dimension 0 of (12, 8), 'mlp'" in str(caught.value)
    assert sorted(caught.value.fix.splitlines(), reverse=True) == [
        "dx.sharding_rules({..., 'embed': None})        # or one of the mesh axes 'data', 'model'",
        'dx.sharding_rules(rules, otherwise="replicate")        # or a size that is a multiple of 8',
    ]


def test_other_shardings_replace_names_that_do_not_fit():
    everywhere = dx.StateSharding({...: P()})
    model = dx.init_sharded(lambda: MLP(8, 12, rngs=dx.Rngs(0)), mesh=mesh_of(1, 8), shardings=everywhere)
    assert model.up.value.sharding.is_fully_replicated


@pytest.mark.parametrize("make", [lambda f: f(), dx.init_sharded], ids=["eager", "init_sharded"])
def test_what_does_not_fit_is_replicated_on_request_and_reported_once(make):
    def made():
        model = MLP(8, 12, rngs=dx.Rngs(0))
        return model, dx.Optimizer(model, optax.adam(1e-3))

    def reports():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            model, _ = make(made)
        assert model.up.value.sharding.is_fully_replicated
        assert {warning.category for warning in seen} <= {ReplicationWarning}
        return "\n".join(str(warning.message) for warning in seen)

    with jax.set_mesh(mesh_of(1, 8)):
        for _ in range(2):
            with dx.sharding_rules(RULES, otherwise="replicate"):
                first, second = reports(), reports()
            assert first.count("dimension 1 of (8, 12), 'mlp'") == first.count("dimension 0 of (12, 8), 'mlp'") == 1
            assert not second


class OddLayer(dx.Module):
    """A kernel whose last dimension no mesh axis of size 2 or more divides."""

    def __init__(self):
        self.kernel = dx.Param(jnp.ones((32, 1)), out_sharding=("data", "model"))


@pytest.mark.parametrize("trace", [dx.jit, jax.jit, lambda f: functools.partial(dx.eval_shape, f)])
def test_a_size_that_does_not_fit_is_replicated_while_jax_traces(trace):
    """As the peer does, which does not warn."""
    with jax.set_mesh(mesh_of(4, 2)), dx.sharding_rules({}), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        models = [trace(lambda: OddLayer())() for _ in range(2)]  # noqa: PLW0108  # two functions
    for model in models:
        assert model.kernel.value.sharding.is_equivalent_to(NamedSharding(mesh_of(4, 2), P("data", None)), 2)
    (warning,) = seen
    assert warning.category is ReplicationWarning
    assert warning.filename == __file__
    assert "Param: dimension 1 of (32, 1), 'model': its size 1 is not divisible by 2" in str(warning.message)


def rewritten(shape, transform=dx.jit):
    """A Param of another shape after a write in a compiled function, and the warnings of two calls."""
    param = dx.Param(jnp.ones((8, 4)), out_sharding=("data", "model"))

    @transform
    def write(param):
        param.value = jnp.ones(shape)
        return param

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        write(param), write(param)
    return param, [warning for warning in seen if warning.category is ReplicationWarning]


def test_a_written_size_that_does_not_fit_is_reported_while_jax_traces():
    with jax.set_mesh(mesh_of(4, 2)), dx.sharding_rules({}):
        param, (warning,) = rewritten((8, 3))
        assert param.shape == (8, 3)
        assert warning.filename == __file__
        assert "set_value: dimension 1 of (8, 3), 'model': its size 3 is not divisible by 2" in str(warning.message)
        assert not rewritten((8, 4))[1]
        assert not rewritten((4, 2))[1]
        assert not rewritten((3,))[1]  # the names are those of another rank
    refused = pytest.raises(ShardingError, match="its size 3 is not divisible by 2")
    with jax.set_mesh(mesh_of(4, 2)), dx.sharding_rules({}, otherwise="raise"), refused:
        rewritten((8, 3))
    assert not rewritten((8, 3))[1]  # without a mesh


@pytest.mark.parametrize("trace", [lambda f: f, dx.jit, jax.jit, lambda f: functools.partial(dx.eval_shape, f)])
def test_a_size_that_does_not_fit_is_an_error_on_request_and_in_eager_creation(trace):
    is_eager = trace(len) is len
    refused = pytest.raises(ShardingError, match="its size 1 is not divisible by 2, the size of mesh axis 'model'")
    with jax.set_mesh(mesh_of(4, 2)), dx.sharding_rules({}, otherwise=None if is_eager else "raise"), refused:
        trace(lambda: OddLayer())()  # noqa: PLW0108  # another function each time


def test_a_name_that_does_not_fit_is_an_error_while_jax_traces():
    with jax.set_mesh(mesh_of(4, 2)), pytest.raises(ShardingError, match="'modl' has no rule"):
        dx.jit(lambda: dx.Param(jnp.ones((32, 1)), out_sharding=("modl", "model")))()


def test_inner_rules_replace_outer_ones():
    """As those of the peer do."""
    with jax.set_mesh(MESH), dx.sharding_rules({"row": "data", "col": "model"}):
        with dx.sharding_rules({"row": "model"}):
            assert dx.Param(jnp.ones((8, 4)), out_sharding=("row", None)).sharding.spec == P("model", None)
            with pytest.raises(ShardingError, match="'col' has no rule"):
                dx.Param(jnp.ones((8, 4)), out_sharding=("row", "col"))
        assert dx.Param(jnp.ones((8, 4)), out_sharding=("row", "col")).sharding.spec == P("data", "model")


def test_arguments_that_are_none():
    model, state = make(), dx.state(make())
    with pytest.raises(ShardingError, match="init_sharded: this makes no model"):
        dx.init_sharded(3, mesh=MESH)
    with pytest.raises(ShardingError, match="a model that exists has its arrays already"):
        dx.init_sharded(model, mesh=MESH)
    for result in (None, (None, []), 3):
        with pytest.raises(
            ShardingError, match=r"init_sharded: this makes no model(?s:.)*got: +(None|a value of type tuple|int 3)"
        ):
            dx.init_sharded(lambda result=result: result, mesh=MESH)
    assert isinstance(dx.init_sharded(lambda: dx.Sequential(dx.relu), mesh=MESH), dx.Sequential)
    for mesh in (3, {"data": 8}, MESH.abstract_mesh):
        with pytest.raises(ShardingError, match="init_sharded: this is not a mesh of devices"):
            dx.init_sharded(make, mesh=mesh)
    for shardings in (3, lambda model: P("data"), dx.State({"up": P()})):
        with pytest.raises(ShardingError, match=r"init_sharded\.shardings: these are not shardings by filter"):
            dx.init_sharded(make, mesh=MESH, rules=RULES, shardings=shardings)
    with pytest.raises(ShardingError, match=r"bytes_per_device\.shardings: these are not shardings"):
        dx.bytes_per_device(model, MESH, shardings=3)
    for function, where in (
        (lambda: dx.fsdp(model, mesh=3), "fsdp"),
        (lambda: dx.get_named_sharding(state, {"data": 4}), "get_named_sharding"),
        (lambda: dx.get_abstract_model(make, None), "get_abstract_model"),
        (lambda: dx.Param(jnp.ones(8), out_sharding=("data",), mesh=3), "the metadata mesh"),
    ):
        with pytest.raises(ShardingError, match=f"{where}: this is not a mesh"):
            function()
    with pytest.raises(ShardingError, match=r"fsdp\.min_size: this is not a number of elements"):
        dx.fsdp(model, mesh=MESH, min_size="large")


def test_rules_that_are_none():
    for rules in ({"embed": 3}, None, 3, "ab", [("a", "b", "c")], {3: "data"}):
        with pytest.raises(ShardingError, match="this is not a rule"):
            dx.sharding_rules(rules)
    with pytest.raises(ShardingError, match="unknown choice"):
        dx.sharding_rules({}, otherwise="ignore")
    with jax.set_mesh(MESH), pytest.raises(ShardingError, match="this does not name the axes of an array"):
        dx.Param(jnp.ones(8), out_sharding="data")
    with pytest.raises(ShardingError, match="there is no mesh"):
        dx.init_sharded(make)


def test_axes_of_different_types():
    mixed = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Explicit))
    with pytest.raises(ShardingError, match="one array cannot be split by axes of different types"):
        dx.Param(jnp.ones((8, 8)), out_sharding=("data", "model"), mesh=mixed)
    with jax.set_mesh(mixed):
        assert dx.Param(jnp.ones((8, 8)), out_sharding=("data", None)).sharding.spec == P("data", None)


# ================================================================= init_sharded


@both
def test_init_sharded(mesh):
    rngs = dx.Rngs(0)
    model = dx.init_sharded(MLP, 8, 16, rngs=rngs, mesh=mesh, rules=RULES)
    check(model, mesh)
    assert model.scale.value.sharding.is_equivalent_to(NamedSharding(mesh, P()), 1)
    assert int(rngs.params.count.value) == 3
    check_equal(model, make())


@both
@pytest.mark.parametrize("axis_name", [None, "layers"])
def test_the_layers_of_a_stack_keep_their_axes(mesh, axis_name):
    def stack():
        names = {"out_sharding": ("embed", "mlp")}
        build = functools.partial(dx.Linear, 8, 8, use_bias=False, kernel_metadata=names)
        return dx.Stacked(lambda rngs: build(rngs=rngs), 4, rngs=dx.Rngs(0), axis_name=axis_name)

    with jax.set_mesh(mesh), dx.sharding_rules({**RULES, "layers": None}):
        eager, made = stack(), dx.init_sharded(stack)
        moments = dx.Optimizer(eager, optax.adam(1e-3)).opt_state[0].mu
        declared = dx.get_named_sharding(dx.state(eager), mesh)
    for array in (eager.layers.kernel.value, made.layers.kernel.value, moments["layers"]["kernel"].value):
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, P(None, None, "model")), 3)
    assert declared["layers"]["kernel"].spec == P(None, None, "model")


def test_init_sharded_of_a_spec_and_of_a_pair():
    spec = dx.spec(dx.Linear, 8, 4, kernel_metadata={"out_sharding": ("embed", "mlp")})
    layer = dx.init_sharded(spec, rngs=dx.Rngs(0), mesh=MESH, rules=RULES)
    assert layer.kernel.value.sharding.spec == P(None, "model")

    def both():
        model = make()
        return model, dx.Optimizer(model, optax.adam(1e-3))

    model, optimizer = dx.init_sharded(both, mesh=MESH, rules=RULES)
    assert optimizer.opt_state[0].mu["up"].value.sharding == model.up.value.sharding
    assert optimizer.step.value.sharding == NamedSharding(MESH, P())


def test_random_numbers_do_not_depend_on_the_mesh():
    meshes = [mesh_of(8, 1), mesh_of(4, 2), mesh_of(1, 8)]
    rules = {"embed": "data", "mlp": "model"}
    models = [dx.init_sharded(make, mesh=mesh, rules=rules) for mesh in meshes]
    for model in models[1:]:
        check_equal(model, models[0])


# ================================================================= optimizers


@both
@pytest.mark.parametrize("jit", [None, jax.jit, dx.jit], ids=["eager", "jax", "declax"])
def test_moments_have_the_sharding_of_their_parameters(mesh, jit):
    def adam(model):
        return dx.Optimizer(model, optax.adam(1e-3))

    with jax.set_mesh(mesh), dx.sharding_rules(RULES):
        model = make()
        optimizer = adam(model) if jit is None else jit(adam)(model)
    for moment in (optimizer.opt_state[0].mu, optimizer.opt_state[0].nu):
        for name in EXPECTED:
            assert moment[name].value.sharding.is_equivalent_to(getattr(model, name).value.sharding, 2)


@both
@pytest.mark.parametrize("jit", [None, jax.jit, dx.jit], ids=["eager", "jax", "declax"])
@pytest.mark.parametrize("names", [None, ("embed", "mlp")], ids=["by hand", "declared"])
@pytest.mark.parametrize("is_within", [True, False], ids=["under the mesh", "without"])
def test_moments_of_a_parameter_that_lies_on_a_mesh(mesh, jit, names, is_within):
    """Without a mesh of the context names say nothing; nor do they of an array that was split by hand."""

    def adam(model):
        return dx.Optimizer(model, optax.adam(1e-3))

    layer = dx.Linear(8, 16, kernel_metadata={"out_sharding": names}, rngs=dx.Rngs(0))
    place = NamedSharding(mesh, P(None, "model"))
    layer.kernel.value = jax.device_put(layer.kernel.value, place)
    layer.bias.value = jax.device_put(layer.bias.value, NamedSharding(mesh, P()))
    with jax.set_mesh(mesh) if is_within else contextlib.nullcontext(), dx.sharding_rules(RULES):
        optimizer = adam(layer) if jit is None else jit(adam)(layer)
    for moment in (optimizer.opt_state[0].mu, optimizer.opt_state[0].nu):
        assert moment["kernel"].value.sharding.is_equivalent_to(place, 2)
        assert not moment["kernel"].value.any()


def test_optimizers_of_an_ensemble_have_the_sharding_of_its_parameters():
    make = dx.vmap(lambda rngs: dx.Linear(8, 16, rngs=rngs))
    place = NamedSharding(MESH, P("data", None, "model"))
    ensemble = make(dx.Rngs(0).split(4))
    dx.update(ensemble, jax.device_put(dx.state(ensemble), NamedSharding(MESH, P("data"))))
    ensemble.kernel.value = jax.device_put(ensemble.kernel.value, place)
    optimizers = dx.jit(dx.vmap(lambda model: dx.Optimizer(model, optax.adam(1e-3))))(ensemble)
    assert optimizers.opt_state[0].mu["kernel"].value.sharding.is_equivalent_to(place, 3)


def test_optimizer_sharding_replaces_that_of_the_parameter():
    with jax.set_mesh(MESH):
        layer = dx.Linear(8, 4, kernel_metadata={"optimizer_sharding": ("data", "model")}, rngs=dx.Rngs(0))
        optimizer = dx.Optimizer(layer, optax.adam(1e-3))
    assert optimizer.opt_state[0].mu["kernel"].value.sharding.spec == P("data", "model")
    assert optimizer.opt_state[0].mu["kernel"].out_sharding == ("data", "model")


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_optimizer_sharding_is_on_the_mesh_of_the_parameter(is_compiled, axis_type):
    """No `set_mesh` says which mesh that is."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type,) * 2)
    metadata = {"out_sharding": (None, "model"), "optimizer_sharding": ("data", "model")}
    layer = dx.init_sharded(lambda: dx.Linear(8, 4, kernel_metadata=metadata, rngs=dx.Rngs(0)), mesh=mesh)
    make = dx.jit(lambda layer: dx.Optimizer(layer, optax.adam(1e-3))) if is_compiled else dx.Optimizer
    optimizer = make(layer) if is_compiled else make(layer, optax.adam(1e-3))
    moments = optimizer.opt_state[0]
    for moment in (moments.mu["kernel"], moments.nu["kernel"]):
        assert moment.value.sharding.spec == P("data", "model")
        assert moment.out_sharding == ("data", "model")
        assert "mesh" not in moment.get_metadata()
    assert layer.kernel.value.sharding.spec == P(None, "model")


@pytest.mark.parametrize("mesh", [{"data": 0}, {"data": -1}, {"data": "4"}, [("data", 4)], 8])
def test_bytes_need_the_sizes_of_a_mesh(mesh):
    with pytest.raises(ShardingError, match="mesh: this is not a mesh"):
        dx.bytes_per_device(make(), mesh)


# ================================================================= abstract models, specs and constraints


def test_specs_and_shardings():
    state = dx.state(make())
    with dx.sharding_rules({"embed": None}):
        assert dx.get_partition_spec(state)["up"].value == P(None, "mlp")
    with dx.sharding_rules(RULES):
        shardings = dx.get_named_sharding(state, MESH)
        placed = jax.device_put(state, shardings)
    assert shardings["scale"].value == NamedSharding(MESH, P())
    assert placed["up"].value.sharding == NamedSharding(MESH, P(None, "model"))
    with pytest.raises(ShardingError, match=r"get_named_sharding: (.|\n)*up: dimension 0"):
        dx.get_named_sharding(state, MESH)


@both
def test_abstract_models_keep_shardings(mesh):
    with jax.set_mesh(mesh), dx.sharding_rules(RULES):
        model = dx.eval_shape(make)
        assert model.up.value.sharding.spec == P(None, "model")
        graphdef, state = dx.get_abstract_model(make, mesh)
    assert state["up"].value.sharding == NamedSharding(mesh, P(None, "model"))
    assert state["scale"].value.sharding == NamedSharding(mesh, P())
    with dx.sharding_rules(RULES):
        _, on_shapes = dx.get_abstract_model(make, jax.sharding.AbstractMesh((4, 2), ("data", "model")))
    assert on_shapes["up"].value.sharding.spec == P(None, "model")
    assert isinstance(dx.merge(graphdef, state), MLP)


@both
def test_a_constraint_with_logical_names(mesh):
    def double(x):
        return dx.with_sharding_constraint(x * 2, ("batch", None))

    x = jnp.ones((8, 2))
    assert double(x).tolist() == dx.jit(double)(x).tolist() == [[2.0, 2.0]] * 8
    with jax.set_mesh(mesh), dx.sharding_rules(RULES):
        for f in (double, dx.jit(double), jax.jit(double)):
            assert f(x).sharding.is_equivalent_to(NamedSharding(mesh, P("data")), 2)
        with pytest.raises(ShardingError, match="with_sharding_constraint"):
            dx.with_sharding_constraint(jnp.ones((6, 2)), ("batch", None))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_constraint_outside_of_jit_takes_the_mesh_of_the_array(kind):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    x = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P("data")))
    assert dx.with_sharding_constraint(x, (None, "model")).sharding == NamedSharding(mesh, P(None, "model"))
    with dx.sharding_rules({"mlp": "model"}), pytest.warns(ReplicationWarning, match="there is no mesh"):
        found = dx.with_sharding_constraint({"x": x, "y": jnp.ones((2, 2))}, (None, "mlp"))
    assert found["x"].sharding.spec == P(None, "model")
    assert not isinstance(found["y"].sharding, NamedSharding)
    with pytest.raises(ShardingError, match="modle"):
        dx.with_sharding_constraint(x, (None, "modle"))
    with pytest.raises(ShardingError, match="modle"):
        dx.grad(lambda x: dx.with_sharding_constraint(x, (None, "modle")).sum())(x)
    y, _ = dx.vjp(lambda x: dx.with_sharding_constraint(x, (None, "model")), x)
    assert y.sharding.spec == P(None, "model")
