"""The table "What a transform sees" in ``docs/transforms.md``: a program shows what each row says."""

from __future__ import annotations

import functools
import re
import threading
import types
import warnings
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transforms.md"
SECTION = re.compile(r"^## What a transform sees\n(.*?)^## ", re.MULTILINE | re.DOTALL)


class Row(NamedTuple):
    what: str
    seen: str
    otherwise: str


def rows():
    lines = SECTION.search(PAGE.read_text(encoding="utf-8"))[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [Row(*cells_of_row, *[""] * (3 - len(cells_of_row))) for cells_of_row in cells[2:]]


class Net(dx.Module):
    def __init__(self, value=1.0):
        self.w = dx.Param(jnp.array(value))
        self.total = jnp.array(value)
        self.scale = 2.0


class Pair(dx.Module):
    def __init__(self):
        self.one, self.other = Net(1.0), Net(2.0)


def told(program, *args):
    """What a program gives, and the name of the warning that it gives, or of its error."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result = program(*args)
        except dx.DeclaxError as error:
            return None, type(error).__name__
    names = {warning.category.__name__ for warning in seen}
    assert len(names) < 2, names
    return result, "".join(names)


def changes_of_an_argument():
    def change(net):
        net.w.value += 1
        net.total = net.total + 1
        net.part, net.again = Net(5.0), net.w
        del net.scale

    here, there = Net(), Net()
    change(here)
    _, name = told(dx.jit(change), there)
    is_same = jax.tree.leaves(here) == jax.tree.leaves(there) and there.again is there.w
    return is_same and vars(here).keys() - {"_pytree__bound"} <= vars(there).keys() | {"_pytree__layout"}, name


def changes_of_a_capture():
    net = Net()

    def change():
        net.w.value += 1
        net.total = net.total + 1
        net.new = dx.Param(jnp.array(7.0))

    _, name = told(dx.jit(change))
    return (float(net.w.value), float(net.total), float(net.new.value)) == (2.0, 2.0, 7.0), name


def a_captured_key():
    one, other = Net(1.0), Net(2.0)
    decay, frozen = {one: 10.0}, {other}
    result, name = told(dx.jit(lambda: sum(decay.get(n, 0.0) * n.w.value + float(n in frozen) for n in (one, other))))
    return bool(result == 11.0), name


def a_key_in_an_attribute():
    pair = Pair()

    def assign():
        pair.decay = {pair.one: 0.5}

    return "refused", told(assign)[1]


def a_key_of_an_argument():
    pair = Pair()
    results, name = told(dx.jit(lambda pair, decay: decay["by"].get(pair.one, 0.0)), pair, {"by": {pair.one: 0.5}})
    other, none = told(dx.jit(lambda pair, decay: sum(decay.values())), Pair(), {pair.one: 0.5})
    return ("no" if (float(results), float(other), none) == (0.0, 0.5, "") else ""), name


def a_key_of_a_result():
    names = set()
    for table in (dict, OrderedDict, lambda items: defaultdict(float, items)):
        _, name = told(dx.jit(lambda pair, table=table: [table({pair.one: 1.0})]), Pair())
        names.add(name)
    (name,) = names
    pair = Pair()
    loss = dx.grad(lambda by: sum(by.values()))({pair.one: 1.0})  # the key is the caller's
    return ("no" if loss == {pair.one: 1.0} else ""), name


def a_model_in_a_new_place():
    pair, found, holder = Pair(), [], types.SimpleNamespace()

    def keep():
        found.append(pair.one)
        holder.other = pair.other
        return 0.0

    _, name = told(dx.jit(keep))
    are_others = found[0] is not pair.one and holder.other is not pair.other
    pair.one.scale = 5.0
    return ("partly" if are_others and found[0].scale == 5.0 else ""), name


def a_hidden_variable():
    param, net, pair = dx.Param(jnp.array(1.0)), Net(), Pair()
    names = {
        told(setattr, pair, "hidden", value)[1]
        for value in (
            lambda x: param * x,
            [lambda x: param * x],
            functools.partial(print, net),
            lambda x, net=net: net.w * x,
            dx.jit(lambda x: param * x),
        )
    }
    assert not hasattr(pair, "hidden")
    return "refused", *names


def a_hidden_layer():
    layer, pair, other = Net(), Pair(), Pair()
    pair.hidden = lambda x: layer.w * x
    f = dx.jit(lambda pair: pair.hidden(1.0))
    first, name = told(f, pair)
    layer.w.value = jnp.array(5.0)
    assert f(pair) == first
    pair.hidden = other.one.__getstate__
    assert told(dx.jit(lambda pair: pair.hidden()["w"] * 1.0), pair)[1] == name
    return "partly", name


def an_id():
    pair = Pair()
    chosen = {id(pair.one)}
    f = dx.jit(lambda pair: sum(n.w.value for n in (pair.one, pair.other) if id(n) in chosen) + 0.0)
    result, name = told(f, pair)
    return bool(result == 1.0), name


def a_comparison_with_what_a_plain_object_holds():
    pair = Pair()
    best = types.SimpleNamespace(net=pair.one)
    result, name = told(dx.jit(lambda pair: float(pair.one is best.net) * pair.one.w.value), pair)
    return bool(result == 1.0), name


def an_object_that_gets_the_model_later():
    pair, best = Pair(), types.SimpleNamespace(net=None)
    f = dx.jit(lambda pair: float(pair.one is best.net) * pair.one.w.value)
    f(pair)
    best.net = pair.one
    result, name = told(f, pair)
    return bool(result == 1.0), name


def a_read_of_an_overlooked_variable():
    holder = types.SimpleNamespace(net=Net())
    f = dx.jit(lambda x: holder.net.w.value * x)
    first, name = told(f, 1.0)
    holder.net.w.value = jnp.array(5.0)
    return "partly" if (first, f(1.0)) == (1.0, 1.0) else "", name


def a_write_of_an_overlooked_variable():
    class Trainer:
        def __init__(self):
            self.net = Net()

        def step(self):
            self.net.w.value = jnp.array(5.0)

    trainer = Trainer()
    with pytest.raises(dx.errors.TraceContextError, match=r"class Trainer\(dx.Module\)"):
        dx.jit(trainer.step)()
    return bool(trainer.net.w.value != 1.0), told(dx.jit(trainer.step))[1]


def another_model_in_a_captured_place():
    net, nets, table, chosen = Net(), [Net()], {"net": Net()}, {Net()}

    def rebind():
        nonlocal net
        net = Net(5.0)

    def change_list():
        nets.append(Net(5.0))

    def change_dict():
        table["net"] = Net(5.0)

    def change_set():
        chosen.add(Net(5.0))

    names = {told(dx.jit(change))[1] for change in (rebind, change_list, change_dict, change_set)}
    assert len(names) == 1
    return (float(net.w.value), len(nets), float(table["net"].w.value), len(chosen)) != (1.0, 1, 1.0, 1), *names


def a_write_to_a_state():
    state = dx.state(Net())

    def write(state):
        state["w"] = dx.Param(jnp.array(5.0))

    _, name = told(dx.jit(write), state)
    return float(state["w"].value) != 1.0, name


def orders():
    class Ordered(dx.Module):
        def __init__(self):
            self.table = dx.Dict({"z": dx.Param(1.0), "a": dx.Param(2.0)})
            self.b, self.a = dx.Param(1.0), dx.Param(2.0)

    def attributes(net):
        return [name for name in vars(net) if isinstance(getattr(net, name), dx.Param)]

    def order(net):
        return list(net.table), attributes(net)

    seen, net = [], Ordered()
    _, name = told(dx.jit(lambda net: seen.append(order(net))), net)
    for made in (dx.merge(*dx.split(net)), jax.tree.map(lambda x: x, net)):
        assert (list(made.table), attributes(made)) == (["z", "a"], ["a", "b"])
    assert list(dx.clone(net).table) == list(dx.view(net).table) == list(net.table)
    return seen == [order(net)], name


def changed_orders():
    def turn(table):
        table["a"] = table.pop("a")

    table = dx.Dict({"a": dx.Param(1.0), "b": dx.Param(2.0)})
    assert told(dx.jit(turn), table) == (None, "")

    def step(table, x):
        turn(table)
        return table, x

    _, name = told(dx.scan(step), dx.Dict(a=dx.Param(1.0), b=dx.Param(2.0)), jnp.arange(3))
    return list(table) == ["b", "a"], name


def the_order_of_a_set():
    class Named(dx.Module):
        def __init__(self):
            self.names = {*map(str, range(100))} - {*map(str, range(10, 90))}  # has room for more

    nets, named, seen = {Net(float(i)) for i in range(20)}, Named(), []
    inside, name = told(dx.jit(lambda named: (seen.extend(named.names), [net.w.value for net in nets])[1]), named)
    assert sorted(map(float, inside)) == list(range(20))
    assert set(seen) == named.names
    return "no", name


def statics():
    f = dx.jit(lambda net: net.w.value / net.scale)
    net, results = Net(), []
    for scale in (0.0, -0.0, np.float32(2.0), 2.0):
        net.scale = scale
        results.append(float(f(net)))
    return results == [np.inf, -np.inf, 0.5, 0.5] and f.num_traces == 4, ""


def a_captured_array():
    table = {"x": jnp.array(1.0)}
    f = dx.jit(lambda: table["x"] * 2)
    first, name = told(f)
    table["x"] = jnp.array(5.0)
    return "partly" if (first, f()) == (2.0, 2.0) else "", name


def a_write_past_setattr():
    net, x = Net(), jnp.ones(1)
    mapped, compiled = dx.vmap(lambda net, x: net.scale * x, in_axes=(None, 0)), dx.jit(lambda net: net.scale * net.w)
    mapped(net, x), compiled(net)
    vars(net)["scale"] = 10.0
    result, name = told(compiled, net)
    assert result == 10.0
    vars(net)["scale"] = 20.0
    assert told(mapped, net, x) == (20.0, "")
    vars(net)["scale"] = 30.0
    results = [told(compiled, net)[0] for _ in range(61)]
    return "partly" if results[-1] == 30.0 else "", name


def a_write_of_another_thread():
    net = Net()
    write = functools.partial(setattr, net.w, "value", jnp.array(10.0))
    others = iter([threading.Thread(target=write)])

    def step(net):
        for other in others:  # in the first run only
            other.start()
            other.join()
        net.w.value += 1

    _, name = told(dx.remat(step), net)
    return float(net.w.value) == 11.0, name


def a_callback_that_writes():
    net = Net()

    class Hiding:
        w = net.w

    def write(value):
        Hiding.w.value = jnp.array(10.0)

    def step(net):
        net.w.value += 1
        jax.debug.callback(write, net.total)

    _, name = told(dx.jit(step), net)
    return float(net.w.value) == 2.0, name


def a_lost_write():
    net = Net()

    def step(net):
        net.w.value += 1

    _, name = told(jax.jit(step), net)
    (_, value), _ = told(jax.jit(lambda net: (step(net), net.w.value)), net)
    return "partly" if (float(value), float(net.w.value)) == (2.0, 1.0) else "", name


def lost_writes_that_nobody_tells():
    net = Net()

    def step(net):
        net.total = net.total + 1
        net.sow(dx.Intermediate, "seen", net.total)

    @jax.custom_vjp
    def rule(net):
        net.w.value += 1
        return net.total * 1.0

    rule.defvjp(lambda net: (rule(net), None), lambda _, __: (None,))
    _, name = told(jax.jit(step), net)
    _, of_rule = told(rule, net)
    unchanged = (float(net.total), float(net.w.value), hasattr(net, "seen")) == (1.0, 1.0, False)
    returned, _ = told(jax.jit(lambda net: (step(net), net)[1]), net)
    return "partly" if unchanged and float(returned.total) == 2.0 else "", name + of_rule


# The beginning, or another part, of a row, which only that row has.
PROGRAMS = {
    "a Variable or attribute of an argument is read or set": changes_of_an_argument,
    "the same of a captured model": changes_of_a_capture,
    "a captured model as the key of a dict": a_captured_key,
    "a model as the key of a dict in an attribute": a_key_in_an_attribute,
    "as the key of a dict among the arguments": a_key_of_an_argument,
    "as the key of a dict in the result": a_key_of_a_result,
    "that held no model": a_model_in_a_new_place,
    "a Variable in the closure of a function": a_hidden_variable,
    "a layer in such a closure": a_hidden_layer,
    "`id(model)`": an_id,
    "compared by `is`, `in` or `==`": a_comparison_with_what_a_plain_object_holds,
    "gets the model after the first call": an_object_that_gets_the_model_later,
    "another module reaches is read": a_read_of_an_overlooked_variable,
    "such a Variable is set": a_write_of_an_overlooked_variable,
    "gets another model": another_model_in_a_captured_place,
    "a State is written": a_write_to_a_state,
    "of a `dx.Dict` is read": orders,
    "of a `dx.Dict` is changed": changed_orders,
    "the order of a set": the_order_of_a_set,
    "statics:": statics,
    "a captured array": a_captured_array,
    "past `__setattr__`": a_write_past_setattr,
    "another thread writes": a_write_of_another_thread,
    "a callback of the function writes": a_callback_that_writes,
    "a Variable is set in a transform of JAX, also": a_lost_write,
    "a value sown": lost_writes_that_nobody_tells,
}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.what[:40])
def test_a_row_says_what_its_program_shows(row):
    (program,) = [program for part, program in PROGRAMS.items() if part in row.what]
    seen, name = program()
    said = row.seen.partition(";")[0]
    assert {True: "yes", False: "no", "partly": said}.get(seen, seen) == said.partition(" where")[0]
    assert (seen == "partly") is (said not in ("yes", "no", "refused where it is assigned"))
    assert re.findall(r"`(\w+(?:Warning|Error))`", row.otherwise) == ([name] if name else [])


def test_each_program_has_its_row():
    found = {part: [row.what for row in rows() if part in row.what] for part in PROGRAMS}
    assert {part: many for part, many in found.items() if len(many) != 1} == {}
