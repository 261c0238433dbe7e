"""Captured models as keys of dicts and members of sets; what no trace can keep the identity of is warned of."""

import collections
import functools
import gc
import types
import warnings
import weakref

import jax
import optax
import pytest

import declax as dx
from declax.transforms._engine import identities

net, head = dx.Linear(2, 3, rngs=dx.Rngs(0)), dx.Linear(3, 1, rngs=dx.Rngs(1))
decay, frozen = {net: 0.5}, {head}
by_pair, never = {(net, "kernel"): 0.5}, frozenset({head})
weak_decay, weak_frozen = weakref.WeakKeyDictionary({net: 0.5}), weakref.WeakSet({head})


def norm(layer):
    return (layer.kernel**2).sum()


def by_dict_and_set():
    return sum(decay.get(layer, 0.0) * norm(layer) for layer in (net, head) if layer not in frozen)


def by_pairs_and_frozenset():
    return sum(by_pair.get((layer, "kernel"), 0.0) * norm(layer) for layer in (net, head) if layer not in never)


def by_weak_tables():
    return sum(weak_decay.get(layer, 0.0) * norm(layer) for layer in (net, head) if layer not in weak_frozen)


@pytest.mark.parametrize("transform", [dx.jit, dx.remat, dx.checkify, dx.eval_shape], ids=lambda t: t.__name__)
@pytest.mark.parametrize("penalty", [by_dict_and_set, by_pairs_and_frozenset, by_weak_tables], ids=lambda f: f.__name__)
def test_captured_models_are_found_in_tables_and_sets(transform, penalty):
    expected = penalty()
    assert expected > 1.0
    if transform is dx.eval_shape:
        assert dx.eval_shape(penalty).shape == ()
    else:
        found = transform(penalty)()
        assert (found[1] if transform is dx.checkify else found) == pytest.approx(expected)
    assert list(decay) == list(weak_decay) == [net]
    assert head in frozen
    assert head in weak_frozen


def test_arguments_are_found_in_captured_tables():
    @dx.jit
    def penalty(layers):
        return sum(decay.get(layer, 0.0) * norm(layer) for layer in layers if layer not in frozen)

    assert penalty([net, head]) == pytest.approx(by_dict_and_set())
    assert penalty([head, dx.clone(net)]) == 0.0


def test_a_set_that_changes_is_seen():
    chosen = {head}

    @dx.jit
    def penalty():
        return sum(norm(layer) for layer in (net, head) if layer in chosen)

    assert penalty() == pytest.approx(norm(head))
    chosen.add(net)
    assert penalty() == pytest.approx(norm(net) + norm(head))
    chosen.remove(head)
    assert penalty() == pytest.approx(norm(net))
    assert penalty.num_traces == 3


def test_a_key_can_be_trained():
    rates = {dx.Linear(2, 2, rngs=dx.Rngs(0)): 0.5}

    @dx.jit
    def step():
        for layer, rate in rates.items():
            layer.kernel.value = layer.kernel.value * rate

    (layer,) = rates
    before = layer.kernel.value.copy()
    step()
    assert (layer.kernel.value == before * 0.5).all()


def test_a_table_that_the_function_changes_is_refused():
    rates = {net: 0.5}

    @dx.jit
    def step():
        rates[head] = norm(net)

    with pytest.raises(dx.errors.TransformError, match="it assigns to a container, where it captures a model"):
        step()
    assert rates == {net: 0.5}


def test_kept_tables_hold_the_originals_again():
    kept = []
    rates = {net: 0.5}

    @dx.jit
    def step():
        kept.append(rates)
        return rates[net] * norm(net)

    step()
    assert kept[0] == rates


trainer = types.SimpleNamespace(model=net, frozen={head}, layers=[net, head], rate=3, note=None, mode="a")
by_id = {id(net): 0.5}
kernels = {id(net.kernel)}


def by_ids():
    return sum(by_id.get(id(layer), 0.0) * norm(layer) for layer in (net, head))


def by_ids_of_variables():
    return sum(norm(layer) for layer in (net, head) if id(layer.kernel) in kernels)


def by_is():
    return norm(net) if trainer.model is net else 0.0


def by_set_of_an_object():
    return sum(norm(layer) for layer in (net, head) if layer not in trainer.frozen)


def by_list_of_an_object():
    return sum(norm(layer) for layer in (net, head) if layer in trainer.layers)


class Trainer:
    def __init__(self):
        self.model = net

    def step(self):
        return norm(net) if self.model is net else 0.0


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (by_ids, "'by_id' holds the id of the model 'net'"),
        (by_ids_of_variables, "'kernels' holds the id of the model 'net.kernel'"),
        (by_is, "'trainer.model' holds the model 'net'"),
        (by_set_of_an_object, "'trainer.frozen' holds the model 'head'"),
        (by_list_of_an_object, "'trainer.layers' holds the model 'net'"),
        (Trainer().step, "'self.model' holds the model 'net'"),
    ],
)
def test_identities_that_no_trace_keeps_are_told(function, text):
    with pytest.warns(dx.errors.OverlookedModelWarning, match=text) as caught:
        dx.jit(function)()
    assert caught[0].filename == __file__


class Config:
    decay = {net: 0.5}
    __slots__ = ("frozen",)

    def has(self, layer):
        return layer in self.frozen

    @property
    def first(self):
        return net

    def __call__(self, layer):
        return layer is net


@functools.lru_cache
def is_net(layer):
    return layer is net


class OwnDict(dict):
    pass


config = Config()
config.frozen = {net}
groups = types.SimpleNamespace(decay={"x": [{net: 0.5}]}, inner=types.SimpleNamespace(ids=[id(net)]))
TABLES = {
    "counter": collections.Counter([net]),
    "deque": collections.deque([net]),
    "proxy": types.MappingProxyType({net: 1}),
    "own_dict": OwnDict({net: 1}),
    "own_set": type("OwnSet", (set,), {})([net]),
    "own_list": type("OwnList", (list,), {})([net]),
    "user_dict": collections.UserDict({net: 1}),
    "user_list": collections.UserList([net]),
    "chain_map": collections.ChainMap({}, {net: 1}),
    "keys": {net: 1}.keys(),
    "nested": [{"a": (OwnDict({net: 1}),)}],
}
reference, by_name, an_id, ids = weakref.ref(net), weakref.WeakValueDictionary({"a": net}), id(net), [id(net)]


def with_defaults(layer, table={id(net): 0.5}, *, other={(id(net), "kernel"): 0.5}):  # noqa: B006, B008
    return id(layer) in table or (id(layer), "kernel") in other


def table_test(table):
    found = table[0]["a"][0] if table is TABLES["nested"] else table
    return lambda layer: layer in found if table is not TABLES["nested"] else layer in table[0]["a"][0]


SELECTIONS = {
    **{name: table_test(table) for name, table in TABLES.items()},
    "class": lambda layer: layer in Config.decay,
    "object_of_a_class": lambda layer: layer in config.decay,
    "slot": lambda layer: layer in config.frozen,
    "method": config.has,
    "property": lambda layer: config.first is layer,
    "callable": config,
    "lru_cache": is_net,
    "nested_table": lambda layer: layer in groups.decay["x"][0],
    "nested_object": lambda layer: id(layer) in groups.inner.ids,
    "weak_reference": lambda layer: reference() is layer,
    "weak_values": lambda layer: by_name["a"] is layer,
    "id": lambda layer: id(layer) == an_id,
    "ids": lambda layer: id(layer) in ids,
    "defaults": with_defaults,
    "alias": lambda layer: [frozen := config.frozen] and layer in frozen,
    "alias_is": lambda layer: [model := trainer.model] and layer is model,
    "equal": lambda layer: layer == trainer.model,
}


@pytest.mark.parametrize("select", SELECTIONS.values(), ids=list(SELECTIONS))
def test_what_selects_nothing_inside_is_told(select):
    """Of a captured model and of an argument, in each transform; the eager result is another one."""
    assert select(net)
    is_net.cache_clear()

    def captured():
        return norm(net) if select(net) else 0.0

    with pytest.warns(dx.errors.OverlookedModelWarning, match=r"' holds the (id of the )?model 'net'\."):
        assert dx.jit(captured)() == 0.0
    is_net.cache_clear()

    def passed(model):
        return norm(model) if select(model) else 0.0

    with pytest.warns(dx.errors.OverlookedModelWarning, match=r"' holds the (id of the )?model '(model|net)'\."):
        assert dx.remat(passed)(net) == 0.0


def test_a_part_of_an_argument_is_named():
    model = dx.List([dx.Linear(2, 2, rngs=dx.Rngs(0)), dx.Linear(2, 2, rngs=dx.Rngs(0))])

    class Step:
        def __init__(self):
            self.frozen = {model[1]}

        def loss(self, model):
            return sum(norm(layer) for layer in model if layer not in self.frozen)

    loss = dx.jit(Step().loss)
    loss(dx.clone(model))
    with pytest.warns(dx.errors.OverlookedModelWarning, match=r"'self.frozen' holds the model 'model\[1\]'") as caught:
        loss(model)
    assert len(caught) == 1
    loss(model)  # told once


def test_what_is_compared_is_not_kept_alive():
    held = types.SimpleNamespace(best=dx.Linear(2, 2, rngs=dx.Rngs(0)))

    @dx.jit
    def step(model):
        return norm(model) if model is held.best else 0.0

    step(net)
    kept = weakref.ref(held.best)
    held.best = None
    gc.collect()
    assert kept() is None


def by_rate():
    return norm(net) * trainer.rate if trainer.note is None else 0.0


def by_membership_of_numbers():
    return norm(net) * trainer.rate if trainer.rate in (1, 2, 3) else 0.0


def by_numbers():
    return norm(net) * {2**40: 1.0}[2**40]


def by_text(mask=None):
    is_masked = mask is not None and trainer.mode in ("a", "b") and "a" in trainer.mode
    return norm(net) * (len(trainer.layers) + is_masked)


def by_kind(mode="a"):
    is_one = trainer.layers and net.kernel.dtype is jax.numpy.float32.dtype and mode == trainer.mode
    return norm(net) * ((trainer.model.in_features == net.in_features) + is_one)


def by_cache():
    return norm(net) * width(net) if net.in_features == head.out_features else width(net)


@functools.lru_cache
def width(layer):
    return layer.kernel.shape[0]


width(net)


@pytest.mark.parametrize(
    "function",
    [by_rate, by_membership_of_numbers, by_numbers, by_text, by_kind, by_cache],
    ids=lambda f: f.__name__,
)
def test_other_objects_are_not_warned_of(function):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dx.jit(function)()


def test_modules_of_libraries_are_not_opened():
    """Their thousands of objects would be read at each first call."""
    assert list(identities._search([identities.Held("optax", optax), identities.Held("dx", dx)], {"update"})) == []
