"""What equality does not show: the order of attributes and of sets, signs of zeros, and NaN."""

import copy
import math
import pickle
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx


class Static(dx.Module):
    def __init__(self, value):
        self.value = value
        self.w = dx.Param(1.0)

    def method(self):
        pass


class Rate(float):
    pass


def horner(table):
    total = 0.0
    for param in table.values():
        total = total * 10 + param.value
    return total


@pytest.mark.parametrize("transform", [dx.jit, dx.remat])
def test_a_dict_has_its_order_inside(transform):
    first = dx.Dict({"b": dx.Param(2.0), "a": dx.Param(3.0)})
    second = dx.Dict({"a": dx.Param(3.0), "b": dx.Param(2.0)})
    f = transform(horner)
    assert [f(first), f(second), f(first)] == [23.0, 32.0, 23.0]


def loaded(table, folder):
    dx.save(folder / "c", {"table": table})
    return dx.load(folder / "c")["table"]


WAYS = {
    "clone": dx.clone,
    "view": dx.view,
    "merge": lambda table: dx.merge(*dx.split(table)),
    "map": lambda table: dx.map(lambda path, value: value, table),
    "jax.tree.map": lambda table: jax.tree.map(lambda a: a, table),
    "jax.jit": jax.jit(lambda table: table),
    "dx.jit": dx.jit(dx.clone),
    "eval_shape": lambda table: dx.update(dx.eval_shape(lambda: dx.clone(table)), dx.state(table)) or table,
    "from_tree": lambda table: dx.from_tree(dx.to_tree(table)),
    "pickle": lambda table: pickle.loads(pickle.dumps(table)),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_dict_keeps_its_order(way):
    table = dx.Dict(b=dx.Param(2.0), note="static", a=dx.Param(3.0), c=1)
    assert list(way(table)) == ["b", "note", "a", "c"]
    table["b"] = table.pop("b")
    assert list(way(table)) == ["note", "a", "c", "b"]


def test_a_dict_keeps_its_order_in_a_checkpoint(tmp_path):
    table = dx.Dict(b=dx.Param(2.0), note="static", a=dx.Param(3.0))
    assert list(loaded(table, tmp_path)) == ["b", "note", "a"]


@pytest.mark.parametrize("transform", [dx.jit, dx.remat])
def test_a_dict_that_is_made_inside_keeps_its_order(transform):
    made = transform(lambda: dx.Dict(b=dx.Param(jnp.array(2.0)), a=dx.Param(jnp.array(3.0))))()
    assert list(made) == ["b", "a"]


def test_a_new_order_comes_back():
    def move(table):
        table["b"] = table.pop("b")

    table = dx.Dict(b=dx.Param(2.0), note="static", a=dx.Param(3.0))
    dx.jit(move)(table)
    assert list(table) == ["note", "a", "b"]
    assert table.b.value == 2.0


def test_the_order_of_a_dict_is_a_difference():
    one, other = dx.Dict(b=dx.Param(2.0), a=dx.Param(3.0)), dx.Dict(a=dx.Param(3.0), b=dx.Param(2.0))
    assert [(d.expected, d.got) for d in dx.diff(one, other)] == [("b, a", "a, b")]
    dx.update(one, dx.state(other))  # by path
    assert list(one) == ["b", "a"]


def test_a_dict_has_its_order_in_a_gradient():
    table = dx.Dict({"b": dx.Param(2.0), "a": dx.Param(3.0)})
    grads = dx.grad(horner)(table)
    assert [float(grads["b"]), float(grads["a"])] == [10.0, 1.0]


def test_attributes_have_their_order_inside():
    class Model(dx.Module):
        def __init__(self):
            self.z, self.b, self.a = 1, dx.Param(1.0), dx.Param(2.0)

    seen = []
    dx.jit(lambda model: seen.extend(name for name in vars(model) if name[0] != "_"))(Model())
    assert seen == ["z", "b", "a"]


def test_an_attribute_that_is_set_again_comes_last():
    table = dx.Dict({"b": dx.Param(2.0), "a": dx.Param(3.0)})
    f = dx.jit(horner)
    assert f(table) == 23.0
    b = table.pop("b")
    table["b"] = b
    assert f(table) == horner(table) == 32.0


def test_an_order_is_told_as_the_cause_of_a_retrace(capsys):
    f = dx.jit(horner)
    f(dx.Dict({"b": dx.Param(2.0), "a": dx.Param(3.0)}))
    f(dx.Dict({"a": dx.Param(3.0), "b": dx.Param(2.0)}))
    dx.explain_retrace(f)
    assert "table: the order of attributes was b, a, and is a, b" in capsys.readouterr().out


def test_the_order_of_a_set_is_told_as_the_cause_of_a_retrace(capsys):
    f = dx.jit(lambda model: model.w * 1)
    f(Static({0, 8}))
    f(Static(set([8, 0])))  # noqa: C405  # a literal has the order of its constants
    dx.explain_retrace(f)
    assert "model.value: the order of the set was (0, 8), and is (8, 0)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0j, -0j),
        (0j, complex(0.0, -0.0)),
        ((1, 0j), (1, -0j)),
        (range(0), range(1, 1)),
        (range(0, 3, 2), range(0, 4, 2)),
        (set([0, 8]), set([8, 0])),  # noqa: C405  # as above
        (frozenset([0, 8]), frozenset([8, 0])),
        (0.0, -0.0),
        *[(kind(0.0), kind(-0.0)) for kind in (np.float16, np.float32, np.float64, np.complex64, np.complex128)],
        (Rate(0.0), Rate(-0.0)),
        ([np.float32(0.0)], [np.float32(-0.0)]),
        (Decimal("1.0"), Decimal("1.00")),
        (datetime(2020, 1, 1, 12, tzinfo=UTC), datetime(2020, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))),
        (datetime(2020, 1, 1), datetime(2020, 1, 1, fold=1)),
        (time(1), time(1, fold=1)),
        (slice(0, 1), slice(False, True)),
    ],
    ids=repr,
)
def test_equal_values_that_differ_share_no_program(one, other):
    assert one == other
    seen = []

    @dx.jit
    def f(model):
        seen.append(repr(model.value))
        return model.w * 1

    f(Static(one)), f(Static(other)), f(Static(one))
    assert seen == [repr(one), repr(other)]


def test_equal_static_arguments_that_differ_share_no_program():
    f = dx.jit(lambda x, by: x / by, static_argnames="by")
    assert [float(f(1.0, by=np.float32(zero))) for zero in (0.0, -0.0)] == [math.inf, -math.inf]


class Version:
    """Its comparison says that the label is not a part of the value."""

    def __init__(self, number, label):
        self.number, self.label = number, label

    def __eq__(self, other):
        return isinstance(other, Version) and self.number == other.number

    def __hash__(self):
        return hash(self.number)

    def __repr__(self):
        return self.label


@pytest.mark.parametrize(
    "make",
    [
        lambda label: Version(1, label),
        lambda label: [Version(1, label)],
        lambda label: np.dtype("float32"),
        lambda label: Decimal("1.0"),
        lambda label: jax.tree.structure([0, label]),
        lambda label: dx.Rngs.split,
    ],
)
def test_values_that_their_class_takes_for_one_share_a_program(make):
    f = dx.jit(lambda model: model.w * 1)
    for label in ("a", "b"):
        f(Static(make(label)))
    assert f.num_traces == 1


def test_a_method_of_a_model_is_not_told_apart_by_the_text_of_the_model():
    owner, f = Static(1), dx.jit(lambda model: model.w * 1)
    f(Static(owner.method))
    owner.w.value = jnp.array(5.0)
    f(Static(owner.method))
    assert f.num_traces == 1


NANS = {
    "float": lambda: float("nan"),
    "in a tuple": lambda: (1, (float("nan"), 2)),
    "computed": lambda: math.nan * 2,
    "in a list": lambda: [[float("nan")]],
    "in a dict": lambda: {"a": (float("nan"),)},
    "float32": lambda: np.float32("nan"),
    "float64": lambda: np.float64("nan"),
}


@pytest.mark.parametrize("make", NANS.values(), ids=NANS)
def test_a_nan_is_one_value(make):
    f = dx.jit(lambda model: model.w * 1)
    for _ in range(3):
        f(Static(make()))
    assert f.num_traces == 1


def test_a_nan_as_a_static_argument_is_one_value():
    f = dx.jit(lambda x, limit: x * limit, static_argnames="limit")
    for _ in range(3):
        assert math.isnan(f(1.0, limit=float("nan")))
    assert f.num_traces == 1


def test_a_nan_is_a_nan_inside():
    seen = []
    dx.jit(lambda model: seen.append(model.value))(Static(float("nan")))
    assert math.isnan(seen[0])


def test_a_clone_shares_the_program():
    f = dx.jit(lambda model: model.w * 1)
    model = Static(3)
    f(model), f(dx.clone(model)), f(copy.deepcopy(model)), f(dx.map(lambda path, v: v, model))
    assert f.num_traces == 1
    f(dx.merge(*dx.split(model))), f(jax.tree.map(lambda x: x, model))
    assert f.num_traces == 2


def test_an_executable_takes_a_copy_of_jax():
    model = Static(3)
    abstract = jax.eval_shape(lambda: model)
    assert own_names(abstract) != own_names(model)
    compiled = dx.jit(lambda model: model.w * 2).lower(abstract).compile()
    assert compiled(model) == 2.0
    compiled = dx.jit(horner).lower(table()).compile()
    with pytest.raises(dx.errors.TransformError, match="order of attributes was b, a, and is a, b"):
        compiled(dx.Dict(sorted(table().items())))


# ================================================================= attributes in another order


class Ordered(dx.Module):
    def __init__(self, *names):
        for name in names:
            setattr(self, name, dx.Param(jnp.array(float(len(name)))))


def own_names(node):
    return [name for name in vars(node) if name[0] != "_"]


def table():
    return dx.Dict({"b": dx.Param(jnp.array(2.0)), "a": dx.Param(jnp.array(3.0))})


def turn(node):
    """Moves the first attribute to the end."""
    first = own_names(node)[0]
    value = getattr(node, first)
    delattr(node, first)
    setattr(node, first, value)


def test_instances_with_other_orders_share_no_program():
    f = dx.jit(lambda model: [getattr(model, name).value for name in own_names(model)])
    one, other = Ordered("x", "yy"), Ordered("yy", "x")
    assert dx.graphdef(one) is dx.graphdef(other)
    assert [f(one), f(other), f(one)] == [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]


def test_a_copy_that_takes_the_place_of_a_model():
    """The structure is the same, and the order of the attributes is another one."""

    def first_of(node):
        return next(v.value for v in vars(node).values() if isinstance(v, dx.Param))

    def step(root):
        y = first_of(root.left)
        root.left = dx.merge(*dx.split(root.left))
        return y

    def results(step):
        root = Ordered("yy", "x")
        root.left = Ordered("yy", "x")
        return [float(step(root)) for _ in range(3)]

    assert results(dx.jit(step)) == results(step) == [2.0, 1.0, 1.0]


TRANSFORMS = {
    "jit": dx.jit,
    "remat": dx.remat,
    "nested": lambda f: dx.jit(dx.jit(f)),
    "without updates": dx.jit(graph_updates=False),
    "cond": lambda f: lambda node: dx.cond(True, f, f, node),
    "vmap": lambda f: dx.vmap(f, in_axes=None, out_axes=None, axis_size=2),
    "grad": lambda f: dx.grad(lambda node: (f(node), 1.0)[1]),
}


def test_the_order_of_a_dict_is_structure():
    node = table()
    with pytest.raises(dx.errors.TransformError, match="the function changes the structure of its arguments here"):
        dx.jit(turn, graph_updates=False)(node)
    assert own_names(node) == own_names(table())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *[(lambda: Ordered("b", "a", "c"), name) for name in TRANSFORMS],
        *[(table, name) for name in TRANSFORMS if name != "without updates"],
    ],
)
def test_an_order_that_a_function_changes_comes_back(name, make):
    turned, node = make(), make()
    step = TRANSFORMS[name](turn)
    for _ in range(3):
        turn(turned)
        step(node)
        assert own_names(node) == own_names(turned)


def test_the_next_call_sees_the_new_order():
    model = table()
    f = dx.jit(lambda model: (horner(model), turn(model))[0])
    assert [float(f(model)) for _ in range(3)] == [23.0, 32.0, 23.0]


@pytest.mark.parametrize("name", ["jit", "remat", "nested", "cond", "vmap"])
def test_new_objects_have_their_order(name):
    def make(_):
        return Ordered("b", "a"), table()

    made, entries = TRANSFORMS[name](make)(Ordered("x"))
    assert own_names(made) == ["b", "a"]
    assert list(entries) == ["b", "a"]


def test_attributes_that_are_added_have_their_order():
    model, eager = Ordered("x"), Ordered("x")

    def add(model):
        for name in ("z", "b", "a"):
            setattr(model, name, 1 if name == "b" else dx.Param(jnp.array(1.0)))
        del model.x

    dx.jit(add)(model), add(eager)
    assert own_names(model) == own_names(eager) == ["z", "b", "a"]


def test_an_object_without_a_layout():
    class Holder(dx.Object):
        def __init__(self):
            self.b, self.a = dx.Param(jnp.array(1.0)), dx.Param(jnp.array(2.0))

    holder = Holder()
    dx.jit(turn)(holder)
    assert own_names(holder) == ["a", "b"]
    assert own_names(dx.clone(holder)) == ["a", "b"]


def test_an_error_keeps_the_order():
    @dx.jit
    def fail(node):
        turn(node)
        raise KeyError

    node = table()
    with pytest.raises(KeyError):
        fail(node)
    assert own_names(node) == ["b", "a"]


LOOPS = {
    "fori_loop": lambda f, node: dx.fori_loop(0, 2, lambda i, node: (f(node), node)[1], node),
    "while_loop": lambda f, node: dx.while_loop(
        lambda s: s[1] < 2, lambda s: (f(s[0]), (s[0], s[1] + 1))[1], (node, 0)
    ),
    "scan": lambda f, node: dx.scan(lambda node, x: (f(node), x)[1], in_axes=(None, 0), out_axes=0)(node, jnp.ones(2)),
    "one branch": lambda f, node: dx.cond(True, f, lambda node: None, node),
    "the other branch": lambda f, node: dx.cond(True, lambda node: None, f, node),
}


@pytest.mark.parametrize("name", LOOPS)
def test_steps_and_branches_keep_the_order_of_a_dict(name):
    node = table()
    with pytest.raises(
        dx.errors.TransformError, match=r"expected: the order (a, b\n  got:      b, a|b, a\n  got:      a, b)"
    ):
        LOOPS[name](turn, node)
    assert own_names(node) == ["b", "a"]
    LOOPS[name](lambda node: None, node)


def test_branches_may_agree_on_an_order():
    node = table()
    dx.switch(1, [turn] * 3, node)
    assert own_names(node) == ["a", "b"]


@pytest.mark.parametrize(
    "copied",
    [
        dx.clone,
        lambda node: dx.clone(node, variables=False),
        copy.copy,
        copy.deepcopy,
        dx.view,
        dx.as_abstract,
        dx.to_refs,
        lambda node: dx.to_arrays(dx.to_refs(node)),
        lambda node: dx.map(lambda path, v: v, node),
        lambda node: dx.recursive_map(lambda path, v: v, node),
        lambda node: dx.eval_shape(lambda: node),
        lambda node: dx.EMA(node, 0.5).apply_to(node),
        lambda node: dx.with_vars(node, ref=None),
    ],
)
def test_copies_have_the_order(copied):
    node = Ordered("b", "a")
    node.parts, node.names = table(), {8, 0}
    made = copied(node)
    assert own_names(made) == ["b", "a", "parts", "names"]
    assert list(made.parts) == ["b", "a"]
    assert [*made.names] == [*node.names]


def test_copies_without_shared_refs_have_the_order():
    ref = dx.array_ref(jnp.ones(2))
    node = [dx.Variable(ref), dx.Variable(ref), Ordered("b", "a"), table()]
    made = dx.to_arrays(node, allow_duplicates=True)
    assert [own_names(one) for one in made[2:]] == [["b", "a"], ["b", "a"]]
