"""`Layer`: class bodies that do not mention `rngs`."""

import copy
import functools
import importlib
import inspect
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import errors


def assert_equal(ours, theirs):
    ours, theirs = (jax.tree.leaves_with_path(dx.to_pure_dict(dx.state(model))) for model in (ours, theirs))
    assert [path for path, _ in ours] == [path for path, _ in theirs]
    for (_, a), (_, b) in zip(ours, theirs, strict=True):
        a, b = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b))
        np.testing.assert_array_equal(a, b)


class Backbone(dx.Module):
    """A hand-written class that requires keys."""

    def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
        self.drop = dx.Dropout(0.5, rngs=rngs)
        self.up = dx.Linear(dim, dim, rngs=rngs)


def head(dim: int, rngs: dx.Rngs | None = None) -> dx.Linear:
    return dx.Linear(dim, 2, rngs=rngs)


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field(ge=1)
    depth: int = dx.field(default=2)
    gated: bool = dx.field(default=True)
    norm: Any = dx.static(default=dx.LayerNorm)
    stem = dx.Conv(3, 4, (2, 2))
    backbone = Backbone(4)
    first: dx.Linear = dx.Linear(dim, 4 * dim)
    drop = dx.Dropout(0.1)
    layers = dx.repeat(depth, dx.Linear(dim, dim))
    gate = dx.when(gated, dx.Linear(dim, 1))
    head = dx.defer(head)(dim)
    stack = dx.Stacked(dx.Linear(dim, dim), 2)
    chain = dx.Sequential(dx.Linear(dim, dim), dx.Dropout(0.2))
    made = norm(dim)
    pair = [dx.Linear(2, 3) for _ in range(2)]
    without = dx.Dropout(0.3, rngs=None)
    scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.normal())

    @dx.submodule
    def last(self, rngs: dx.Rngs) -> dx.Linear:
        return dx.Linear(self.dim, self.dim, rngs=rngs)


class ByHand(dx.Module):
    """What `Block` declares, in the open style."""

    def __init__(self, dim: int, depth: int = 2, *, rngs: dx.Rngs) -> None:
        self.stem = dx.Conv(3, 4, (2, 2), rngs=rngs)
        self.backbone = Backbone(4, rngs=rngs)
        self.first = dx.Linear(dim, 4 * dim, rngs=rngs)
        self.drop = dx.Dropout(0.1, rngs=rngs)
        self.layers = dx.List([dx.Linear(dim, dim, rngs=rngs) for _ in range(depth)])
        self.gate = dx.Linear(dim, 1, rngs=rngs)
        self.head = head(dim, rngs)
        self.stack = dx.Stacked(lambda rngs: dx.Linear(dim, dim, rngs=rngs), 2, rngs=rngs)
        self.chain = dx.Sequential(dx.Linear(dim, dim, rngs=rngs), dx.Dropout(0.2, rngs=rngs))
        self.made = dx.LayerNorm(dim, rngs=rngs)
        self.pair = dx.List([dx.Linear(2, 3, rngs=rngs) for _ in range(2)])
        self.without = dx.Dropout(0.3)
        self.scale = dx.Param(dx.initializers.normal()(rngs.params(), (dim,)))
        self.last = dx.Linear(dim, dim, rngs=rngs)


def test_numbers_are_those_of_the_constructor_written_by_hand():
    block = Block(3, rngs=dx.Rngs(0, dropout=1))
    assert_equal(block, ByHand(3, rngs=dx.Rngs(0, dropout=1)))
    assert block.without.rngs is None
    assert block.pair[0] is not block.pair[1]


def test_the_source_reads_as_if_written_by_hand():
    lines = dx.source_of(Block).splitlines()
    assert lines[0] == "def make_parts(self, rngs):"
    assert "    self.stem = Conv(3, 4, (2, 2), rngs=rngs)" in lines
    assert "    self.backbone = Backbone(4, rngs=needed_rngs(rngs))" in lines
    assert "    self.made = with_rngs(self.norm, rngs)(self.dim)" in lines
    assert "    self.without = Dropout(0.3, rngs=None)" in lines


def test_no_instance_and_no_class_has_rngs():
    block = Block(3, rngs=dx.Rngs(0))
    with pytest.raises(AttributeError, match=r"Block\.rngs is an InitVar: only the constructor receives it"):
        _ = block.rngs
    with pytest.raises(AttributeError, match="the parts of a Layer get rngs without being told"):
        _ = Block.rngs
    assert "rngs" not in vars(block)
    parameter = inspect.signature(Block).parameters["rngs"]
    assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, None)


# --- keys that are missing ------------------------------------------------------------------


@dx.dataclass
class Tower(dx.Layer):
    width: int = dx.field()
    blocks = dx.repeat(2, Block(width))


@pytest.mark.parametrize(
    ("make", "where", "fix"),
    [
        (lambda: dx.Linear(2, 3), "Linear.kernel", "dx.Linear(2, 3, rngs=dx.Rngs(0))"),
        (lambda: Block(3), "Block.stem.kernel", "Block(3, rngs=dx.Rngs(0))"),
        (lambda: Tower(width=3), "Tower.blocks.stem.kernel", "Tower(3, rngs=dx.Rngs(0))"),
        (lambda: Tower(3, rngs=None), "Tower.blocks.stem.kernel", "Tower(3, rngs=dx.Rngs(0))"),
    ],
)
def test_a_part_that_needs_keys_where_the_instance_got_none(make, where, fix):
    with pytest.raises(
        errors.MissingRngsError, match="random keys are needed here, and the constructor got no rngs"
    ) as e:
        make()
    assert (e.value.where, e.value.fix) == (where, fix)
    assert isinstance(e.value, TypeError)


def test_a_class_by_hand_and_a_method_that_require_keys():
    @dx.dataclass
    class Open(dx.Layer):
        part = Backbone(3)

    @dx.dataclass
    class Method(dx.Layer):
        @dx.submodule
        def part(self, rngs: dx.Rngs) -> dx.Dropout:
            return dx.Dropout(0.1, rngs=rngs)

    for cls in (Open, Method):
        with pytest.raises(errors.MissingRngsError, match="random keys are needed here") as caught:
            cls()
        assert (caught.value.where, caught.value.fix) == (f"{cls.__name__}.part", f"{cls.__name__}(rngs=dx.Rngs(0))")


def test_parts_that_draw_no_keys_need_no_rngs():
    @dx.dataclass
    class Keyless(dx.Layer):
        dim: int = dx.field()
        drop = dx.Dropout(0.5)
        scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones, stream=None)

        @dx.submodule
        def pair(self, rngs: dx.Rngs | None = None) -> list[dx.Dropout]:
            return [dx.Dropout(0.1, rngs=rngs)]

    model = Keyless(3)
    assert (model.drop.rngs, model.pair[0].rngs) == (None, None)


def test_a_part_that_opted_out_says_where_it_stands():
    @dx.dataclass
    class OptedOut(dx.Layer):
        part = dx.Linear(2, 3, rngs=None)

    with pytest.raises(errors.MissingRngsError, match=r"Linear\.kernel") as caught:
        OptedOut(rngs=dx.Rngs(0))
    assert caught.value.__notes__ == ["while OptedOut.part was made: Linear(2, 3, rngs=None)"]


def test_replace_needs_keys():
    block = Block(3, rngs=dx.Rngs(0))
    with pytest.raises(errors.FieldError, match=r"Block\.rngs: replace constructs anew") as caught:
        dx.replace(block, dim=2)
    assert caught.value.fix == "dx.replace(obj, rngs=dx.Rngs(0))"
    assert caught.value.why == "Block.stem.kernel draws random keys"
    assert_equal(dx.replace(block, dim=2, rngs=dx.Rngs(0)), Block(2, rngs=dx.Rngs(0)))


# --- which targets get rngs -------------------------------------------------------------------


def test_targets_by_their_signature():
    seen = {}

    def required(rngs):
        seen["required"] = rngs

    def optional(*, rngs=None):
        seen["optional"] = rngs

    def flag(*, rngs=True):
        seen["flag"] = rngs

    def anything(**kwargs):
        seen["anything"] = kwargs

    @dx.dataclass
    class Model(dx.Layer):
        a = dx.defer(required)()
        b = dx.defer(optional)()
        c = dx.defer(flag)()
        d = dx.defer(anything)()
        e = dx.defer(functools.partial(optional))()

    rngs = dx.Rngs(0)
    Model(rngs=rngs)
    assert seen == {"required": rngs, "optional": rngs, "flag": True, "anything": {}}


def test_an_rnn_keeps_its_own_stream():
    @dx.dataclass
    class Model(dx.Layer):
        rnn = dx.RNN(dx.LSTMCell(2, 3))

    assert_equal(Model(rngs=dx.Rngs(0)).rnn, dx.RNN(dx.LSTMCell(2, 3, rngs=dx.Rngs(0))))


def test_a_target_that_a_field_holds():
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        make: Any = dx.static()
        part = make(dim, 2)

    assert Model(3, functools.partial(dx.Linear, use_bias=False), rngs=dx.Rngs(0)).part.bias is None
    assert Model(3, max, rngs=dx.Rngs(0)).part == 3
    assert Model(3, lambda a, b: a + b).part == 5


# --- beside explicit keys -------------------------------------------------------------------------


@dx.dataclass
class Explicit(dx.Module):
    dim: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs] = dx.field()
    up = dx.Linear(dim, dim, rngs=rngs)


def test_a_part_that_says_rngs_itself():
    @dx.dataclass
    class Outer(dx.Layer):
        dim: int = dx.field()
        inner = Explicit(dim)

    assert_equal(Outer(3, rngs=dx.Rngs(0)).inner, Explicit(3, rngs=dx.Rngs(0)))
    with pytest.raises(errors.MissingRngsError, match=r"Outer\.inner: random keys are needed here"):
        Outer(3)


def test_a_layer_with_an_init_var_of_its_own_for_rngs():
    with pytest.raises(errors.FieldError, match=r"Again\.rngs: a Layer has this argument") as caught:

        @dx.dataclass
        class Again(dx.Layer):
            dim: int = dx.field()
            rngs: dx.InitVar[dx.Rngs] = dx.field()

    assert "class Again(dx.Module): ..." in caught.value.fix


def test_a_layer_that_keeps_rngs():
    @dx.dataclass
    class Keeper(dx.Layer):
        dim: int = dx.field()
        rngs: dx.Rngs | None = dx.field(default=None, kw_only=True)
        up = dx.Linear(dim, dim)

    rngs = dx.Rngs(0)
    keeper = Keeper(3, rngs=rngs)
    assert keeper.rngs is rngs
    assert_equal(keeper.up, dx.Linear(3, 3, rngs=dx.Rngs(0)))
    with pytest.raises(errors.MissingRngsError, match=r"Keeper\.up\.kernel"):
        Keeper(3)
    with pytest.raises(errors.FieldError, match="this field would be the first positional argument"):

        @dx.dataclass
        class First(dx.Layer):
            rngs: dx.Rngs = dx.field()


def test_a_body_that_reads_rngs():
    with pytest.raises(errors.FieldError, match=r"Reads\.rngs: in a Layer, calls get rngs without being told"):

        @dx.dataclass
        class Reads(dx.Layer):
            up = dx.Linear(2, 2, rngs=rngs)  # noqa: F821  # what is being refused


def test_a_body_that_reads_rngs_of_the_module():
    rngs = dx.Rngs(0)
    with pytest.raises(errors.FieldError, match="reads 'rngs', a field of the base Layer, and Python") as caught:

        @dx.dataclass
        class Reads(dx.Layer):
            dim: int = dx.field()
            up = dx.Linear(dim, dim, rngs=rngs)

    assert caught.value.fix == "dx.Linear(dim, dim)        # without rngs=rngs"


# --- __post_init__ ----------------------------------------------------------------------------


def test_post_init_gets_init_vars_by_name():
    @dx.dataclass
    class Plain(dx.Layer):
        dim: int = dx.field()

        def __post_init__(self):
            self.twice = 2 * self.dim

    @dx.dataclass
    class Named(dx.Layer):
        first: dx.InitVar[int] = dx.field()
        second: dx.InitVar[str] = dx.field()

        def __post_init__(self, second: str, *, rngs: dx.Rngs | None = None):
            self.seen = second, rngs is None

    @dx.dataclass
    class Below(Named):
        third: int = dx.field(default=3)

    class Undecorated(Below):
        def __post_init__(self, first: int, *_: object):
            super().__post_init__("by hand")
            self.first = first

    assert Plain(3).twice == 6
    assert Named(1, "a", rngs=dx.Rngs(0)).seen == ("a", False)
    assert Below(1, "b").seen == ("b", True)
    model = Undecorated(1, "c")
    assert (model.seen, model.first) == (("by hand", True), 1)


def test_post_init_with_a_parameter_that_is_no_init_var():
    @dx.dataclass
    class Wrong(dx.Layer):
        first: dx.InitVar[int] = dx.field()

        def __post_init__(self, frist: int): ...

    with pytest.raises(errors.FieldError, match=r"the parameter 'frist' is no InitVar of the class"):
        Wrong(1)


# --- what a class body defers ---------------------------------------------------------------------


def test_calls_of_helpers_and_comprehensions_are_deferred_and_others_are_real(tmp_path, monkeypatch):
    def helper():
        return dx.Dropout(0.2)

    def real():
        return Backbone(2, rngs=dx.Rngs(0)).drop

    (tmp_path / "shared_of_a_body.py").write_text("import declax as dx\nshared = dx.Dropout(0.5)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    @dx.dataclass
    class Model(dx.Layer):
        a = helper()
        b = [helper() for _ in range(2)]
        rate: float = dx.field(default=real().rate)
        imported: dx.InitVar[type] = dx.field(default=type(importlib.import_module("shared_of_a_body").shared))

        class Inner(dx.Module):
            kind = type(dx.Dropout(0.1, deterministic=True, rngs=dx.Rngs(0)))

    first, second = Model(), Model()
    assert first.a is not second.a
    assert first.b[0] is not first.b[1]
    assert (first.rate, inspect.signature(Model).parameters["imported"].default) == (0.5, dx.Dropout)


def test_a_body_that_failed_defers_nothing_later():
    def attempt():
        class Net(dx.Module):
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            attempt()

    class Net:
        drop = dx.Dropout(0.1)

    assert isinstance(Net.drop, dx.Dropout)


def test_bodies_of_other_threads_are_not_open_here():
    ready, done = threading.Event(), threading.Event()

    def work():
        class Slow(dx.Layer):
            ready.set()
            done.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(10)
    try:
        assert isinstance(dx.Dropout(0.1), dx.Dropout)
    finally:
        done.set()
        thread.join()


def test_a_class_that_was_never_decorated_makes_calls_without_keys_once():
    class Net(dx.Module):
        drop = dx.Dropout(0.5, deterministic=True)
        drops = [dx.Dropout(0.1)]

        def __init__(self) -> None:
            self.up = dx.Linear(2, 2, rngs=dx.Rngs(0))

    assert Net().drop is Net().drop
    assert isinstance(Net.drops[0], dx.Dropout)


def test_the_body_of_a_module_makes_calls_without_keys_at_once():
    def rate_of(layer: dx.Dropout) -> Callable[..., Any]:
        return lambda method: method if isinstance(layer, dx.Dropout) else None

    class Net(dx.Module):
        drop: ClassVar[dx.Dropout] = dx.Dropout(0.5)
        rate = drop.rate
        table = {}
        table["drop"] = dx.Dropout(0.25)

        @rate_of(dx.Dropout(0.5))
        def use(self, drop: dx.Dropout = dx.Dropout(0.125)) -> dx.Dropout:  # noqa: B008  # what the test is about
            return drop

    assert (Net.drop.rate, Net.rate, Net.table["drop"].rate) == (0.5, 0.5, 0.25)
    assert isinstance(Net().use(), dx.Dropout)

    @dx.dataclass
    class Declared(dx.Module):
        size: int = 3
        drop: ClassVar[dx.Dropout] = dx.Dropout(0.5)

    assert Declared().drop is Declared.drop


def test_a_class_variable_of_a_layer_is_made_once():
    @dx.dataclass
    class Net(dx.Layer):
        dim: int = dx.field(default=3)
        drop: ClassVar[dx.Dropout] = dx.Dropout(0.5, deterministic=True)
        table: ClassVar = {"low": dx.Dropout(0.1)}
        up = dx.Linear(dim, dim)

    @dx.dataclass
    class Alone(dx.Layer):
        drop: ClassVar[dx.Dropout] = dx.Dropout(0.5)

    net = Net(rngs=dx.Rngs(0))
    assert net.drop is Net.drop is Net(rngs=dx.Rngs(1)).drop
    assert (net.drop.rate, net.table["low"].rate, Alone().drop.rate) == (0.5, 0.1, 0.5)
    assert {path for path, _ in dx.iter_modules(net)} == {(), ("up",)}
    with pytest.raises(errors.FieldError, match="a class variable has no value that is computed from fields"):

        @dx.dataclass
        class Wrong(dx.Layer):
            up: ClassVar[dx.Linear] = dx.Linear(3, 3)


def test_defaults_of_methods_are_made_once():
    class Gained(dx.Linear):
        def __init__(self, dim: int, *, rngs: dx.Rngs, drop: dx.Dropout = dx.Dropout(0.5)) -> None:  # noqa: B008
            super().__init__(dim, dim, rngs=rngs)
            self.drop = drop

        @staticmethod
        def rates(*drops: dx.Dropout, last: Any = [dx.Dropout(0.25)]) -> list[float]:  # noqa: B006, B008
            return [drop.rate for drop in (*drops, *last)]

    assert Gained(2, rngs=dx.Rngs(0)).drop is Gained(2, rngs=dx.Rngs(1)).drop
    assert Gained.rates(dx.Dropout(0.5)) == [0.5, 0.25]


def test_a_part_without_keys_or_fields_in_a_declared_module():
    with pytest.raises(errors.FieldError, match=r"Net\.drop: all instances would share this object"):

        @dx.dataclass
        class Net(dx.Module):
            size: int = 3
            drop = dx.Dropout(0.5)

    @dx.dataclass
    class Fixed(dx.Module):
        size: int = 3
        drop = dx.defer(dx.Dropout)(0.5)

    assert Fixed().drop is not Fixed().drop


def test_a_class_that_was_never_decorated_with_a_call_that_needs_keys():
    class Net(dx.Module):
        up = dx.Linear(2, 2)

        def __init__(self) -> None: ...

    with pytest.raises(
        errors.FieldError, match=r"Net\.up: the declarations of a class require the decorator"
    ) as caught:
        Net()
    assert caught.value.fix == "@dx.dataclass"


def test_a_part_without_keys_in_an_undecorated_subclass_of_a_declared_class():
    class Sub(Block):
        extra = dx.Dropout(0.5, deterministic=True)
        rates = {"low": dx.Dropout(0.1)}
        other: ClassVar = dx.Dropout(0.5)

    model = Sub(3, rngs=dx.Rngs(0))
    assert model.extra is Sub.extra is Sub(2, rngs=dx.Rngs(1)).extra
    assert (Sub.extra.rate, Sub.rates["low"].rate, Sub.other.rate) == (0.5, 0.1, 0.5)
    assert_equal(model, Block(3, rngs=dx.Rngs(0)))

    class Open(Block):
        soft = dx.Dropout(0.5)

        def __init__(self) -> None:
            super().__init__(3, rngs=dx.Rngs(0))

    assert Open().soft is Open.soft

    class Hiding(Block):
        drop = dx.Dropout(0.5)

    class Drawing(Block):
        extra = dx.Linear(2, 2)

    for cls, name in ((Hiding, "drop"), (Drawing, "extra")):
        where = rf"{cls.__name__}\.{name}: the declarations of a class require the decorator"
        with pytest.raises(errors.FieldError, match=where):
            cls(3, rngs=dx.Rngs(0))


# --- subclasses, generic classes, several bases -----------------------------------------------------


T = TypeVar("T", bound=dx.Module)


@dx.dataclass
class Holder(dx.Layer, Generic[T]):
    dim: int = dx.field()
    held: T = dx.field()
    norm = dx.LayerNorm(dim)


@dx.dataclass
class Gated(dx.Layer):
    dim: int = dx.field()
    gate = dx.Linear(dim, 1)


@dx.dataclass
class Both(Holder[dx.Linear], Gated):
    out = dx.Linear(Holder.dim, 2)


def test_generic_classes_and_several_bases():
    both = Both(3, dx.Linear(3, 3, rngs=dx.Rngs(1)), rngs=dx.Rngs(0))
    rngs = dx.Rngs(0)
    gate, norm, out = dx.Linear(3, 1, rngs=rngs), dx.LayerNorm(3, rngs=rngs), dx.Linear(3, 2, rngs=rngs)
    for ours, theirs in ((both.gate, gate), (both.norm, norm), (both.out, out)):
        assert_equal(ours, theirs)


def test_overriding_a_part():
    @dx.dataclass
    class Wider(Block):
        first: dx.Linear = dx.Linear(Block.dim, 5)

    assert Wider(3, rngs=dx.Rngs(0)).first.out_features == 5
    given = dx.Linear(3, 12, rngs=dx.Rngs(5))
    assert Block(3, first=given, rngs=dx.Rngs(0)).first is given


# --- everything else that makes or moves a model -------------------------------------------------------


def test_specs_and_configurations():
    spec = dx.spec(Block, 3)
    assert_equal(spec.build(rngs=dx.Rngs(0)), Block(3, rngs=dx.Rngs(0)))
    with pytest.raises(errors.DeclaxError, match="rngs"):
        spec.build()
    block = dx.from_config(Block, {"dim": 3, "first": {"use_bias": False}}, rngs=dx.Rngs(0))
    assert block.first.bias is None
    assert "rngs" not in str(dx.to_config(block))
    assert '"rngs"' not in json.dumps(dx.json_schema(Block))
    with pytest.raises(errors.ConfigError, match="random streams are not configuration"):
        dx.from_config(Block, {"dim": 3, "rngs": 0}, rngs=dx.Rngs(0))


def test_abstract_and_sharded_construction():
    abstract = dx.eval_shape(lambda: Block(3, rngs=dx.Rngs(0)))
    assert abstract.first.kernel.shape == (3, 12)
    mesh = jax.make_mesh((1,), ("x",))
    assert_equal(dx.init_sharded(Block, 3, rngs=dx.Rngs(0), mesh=mesh), Block(3, rngs=dx.Rngs(0)))


def test_lora():
    model = Gated(3, rngs=dx.Rngs(0))
    tuned = dx.lora(model, dx.Linear, rank=2, rngs=dx.Rngs(1))
    np.testing.assert_array_equal(dx.merge_lora(tuned).gate.kernel[...], model.gate.kernel[...])


def test_copies_and_pickles():
    block = Block(3, rngs=dx.Rngs(0))
    for copied in (copy.deepcopy(block), pickle.loads(pickle.dumps(block)), dx.clone(block)):
        assert_equal(copied, block)
        assert_equal(dx.replace(copied, rngs=dx.Rngs(1)), Block(3, rngs=dx.Rngs(1)))


PICKLED = """
import cloudpickle, sys
import declax as dx

@dx.dataclass
class Local(dx.Layer):
    dim: int = dx.field()
    up = dx.Linear(dim, 2)
    drop = dx.Dropout(0.1)
    def __post_init__(self):
        self.seen = True

sys.stdout.buffer.write(cloudpickle.dumps((Local, Local(3, rngs=dx.Rngs(0)))))
"""


def test_cloudpickle_by_value():
    done = subprocess.run([sys.executable, "-c", PICKLED], capture_output=True, check=True)
    cls, model = cloudpickle.loads(done.stdout)
    assert_equal(cls(3, rngs=dx.Rngs(0)), model)
    assert cls(3, rngs=dx.Rngs(0)).seen
    with pytest.raises(errors.MissingRngsError, match=r"Local\.up\.kernel"):
        cls(3)


def test_a_class_without_a_body():
    made = dx.dataclass(
        type(dx.Layer)(
            "Made", (dx.Layer,), {"__annotations__": {"dim": int}, "dim": dx.field(), "__module__": __name__}
        )
    )
    assert made(3).dim == 3


def test_eight_threads_make_the_first_instances_of_a_class():
    @dx.dataclass
    class Shared(dx.Layer):
        dim: int = dx.field()
        parts = dx.repeat(20, dx.Dropout(0.1))
        drop: dx.Dropout = dx.Dropout(0.1)
        both = [drop, dx.Dropout(0.2)]

    barrier, made = threading.Barrier(8), []

    def work():
        barrier.wait()
        made.append(Shared(3))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert all(model.both[0] is model.drop for model in made)


def test_two_methods_that_require_keys():
    @dx.dataclass
    class Base(dx.Layer):
        dim: int = dx.field()

        @dx.submodule
        def down(self, rngs: dx.Rngs) -> dx.Linear:
            return dx.Linear(self.dim, 3, rngs=rngs)

        @dx.submodule
        def up(self, rngs: dx.Rngs) -> dx.Linear:
            return dx.Linear(self.dim, 3, rngs=rngs)

    rngs = dx.Rngs(0)
    model = Base(2, rngs=dx.Rngs(0))
    assert_equal(model.down, dx.Linear(2, 3, rngs=rngs))
    assert_equal(model.up, dx.Linear(2, 3, rngs=rngs))


def test_stacks_of_what_a_field_makes():
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        make: Any = dx.static()
        block: dx.Spec[dx.Linear] = dx.static()
        made = dx.Stacked(make(dim, dim), 2)
        built = dx.Stacked(block.build(), 2)

    model = Model(3, dx.Linear, dx.spec(dx.Linear, 3, 3), rngs=dx.Rngs(0))
    rngs = dx.Rngs(0)
    for stack in (model.made, model.built):
        assert_equal(stack, dx.Stacked(lambda rngs: dx.Linear(3, 3, rngs=rngs), 2, rngs=rngs))


@pytest.mark.parametrize("is_wide", [True, False])
def test_a_stack_of_one_of_two_layers(is_wide):
    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        wide: bool = dx.field()
        blocks = dx.Stacked(dx.when(wide, dx.LoRALinear(dim, dim, lora_rank=2), dx.Linear(dim, dim)), 2)

    model = Model(3, is_wide, rngs=dx.Rngs(0))
    made = dx.LoRALinear if is_wide else dx.Linear
    options = {"lora_rank": 2} if is_wide else {}
    assert_equal(model.blocks, dx.Stacked(lambda rngs: made(3, 3, rngs=rngs, **options), 2, rngs=dx.Rngs(0)))


def test_stacks_of_what_a_function_makes():
    def block(dim: int, rngs: dx.Rngs) -> dx.Linear:
        return dx.Linear(dim, dim, rngs=rngs)

    class Scale(dx.Module):
        def __init__(self, dim: int) -> None:
            self.weight = dx.Param(jnp.ones(dim))

    def scale(dim: int) -> Scale:
        return Scale(dim)

    @dx.dataclass
    class Model(dx.Layer):
        dim: int = dx.field()
        made = dx.Stacked(dx.defer(block)(dim), 2)
        plain = dx.Stacked(dx.defer(scale)(dim), 2)
        partial = dx.Stacked(dx.defer(functools.partial)(block, dim), 2)

    @dx.dataclass
    class Explicit(dx.Module):
        dim: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs] = dx.field()
        made = dx.Stacked(dx.defer(block)(dim, rngs), 2)

    expected = dx.Stacked(lambda rngs: dx.Linear(3, 3, rngs=rngs), 2, rngs=dx.Rngs(0))
    assert_equal(Explicit(3, rngs=dx.Rngs(0)).made, expected)
    model = Model(3, rngs=dx.Rngs(0))
    assert_equal(model.made, expected)
    assert model.partial.layers.kernel.shape == (2, 3, 3)
    assert model.plain.layers.weight.shape == (2, 3)

    @dx.dataclass
    class Wrong(dx.Layer):
        dim: int = dx.field()
        made = dx.Stacked(dx.defer(jnp.zeros)(dim), 2)

    with pytest.raises(errors.LayerError, match="the function does not return a Module"):
        Wrong(3)


def test_rngs_without_the_stream():
    with pytest.raises(errors.MissingStreamError, match="there is no stream 'params'"):
        dx.Linear(2, 2, rngs=dx.Rngs(dropout=0))


def test_signatures_show_rngs_last():
    assert list(inspect.signature(dx.Linear).parameters)[-1] == "rngs"
    assert list(inspect.signature(dx.Dropout).parameters)[-1] == "rngs"


class Fixed(dx.Layer):
    def __init__(self) -> None:
        self.scale = dx.Param(jnp.ones(2))


def test_an_own_init_without_parameters(tmp_path):
    @dx.dataclass
    class Decorated(dx.Layer):
        def __init__(self) -> None:
            self.scale = dx.Param(jnp.ones(2))

    class Three(Gated):
        def __init__(self) -> None:
            super().__init__(3, rngs=dx.Rngs(0))

    for cls in (Fixed, Decorated, Three):
        assert not inspect.signature(cls).parameters
    for cls in (Fixed, Decorated):
        assert dx.spec_of(cls()) == dx.spec(cls)
    with pytest.raises(errors.ConfigError, match="this class has its own __init__, which may change them"):
        dx.spec_of(Three())
    dx.save(tmp_path / "model", {"model": Fixed()})
    assert_equal(dx.load(tmp_path / "model", extra=[Fixed])["model"], Fixed())


def test_replace_of_a_subclass_with_its_own_init():
    class Double(Gated):
        def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
            super().__init__(2 * dim, rngs=rngs)

    model = Double(3, rngs=dx.Rngs(0))
    assert model.dim == 6
    with pytest.raises(errors.FieldError, match="this class has its own __init__, which may change them"):
        dx.replace(model, rngs=dx.Rngs(0))
    for described in (model, dx.Sequential(model)):
        with pytest.raises(
            errors.ConfigError, match="this class has its own __init__, which may change them"
        ) as caught:
            dx.spec_of(described)
        assert caught.value.fix.startswith("dx.spec(Double, ...)")
        assert "def __post_init__(self)" in caught.value.fix


def test_a_subclass_with_its_own_init_and_the_same_arguments():
    class Same(Gated):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    model = Same(3, rngs=dx.Rngs(0))
    for read in (dx.spec_of, dx.to_config, functools.partial(dx.replace, rngs=dx.Rngs(0))):
        with pytest.raises(errors.DeclaxError, match="this class has its own __init__, which may change them"):
            read(model)


def test_a_spec_of_a_layer_with_its_own_init():
    class Plain(dx.Layer):
        def __init__(self, dim: int, *, rngs: dx.Rngs) -> None:
            self.dim = dim
            self.up = dx.Linear(dim, dim, rngs=rngs)

    @dx.dataclass
    class Decorated(Gated):
        pass

    assert dx.spec_of(Plain(3, rngs=dx.Rngs(0))) == dx.spec(Plain, 3)
    assert dx.spec_of(Decorated(3, rngs=dx.Rngs(0))) == dx.spec(Decorated, 3)


def test_post_init_gets_the_other_init_vars_by_stars():
    @dx.dataclass
    class Named(dx.Layer):
        first: dx.InitVar[int] = dx.field()
        second: dx.InitVar[int] = dx.field()

        def __post_init__(self, second: int, **kwargs: Any):
            self.seen = second, kwargs

    @dx.dataclass
    class Listed(dx.Layer):
        first: dx.InitVar[int] = dx.field()
        second: dx.InitVar[int] = dx.field()

        def __post_init__(self, *args: Any, rngs: dx.Rngs | None = None):
            self.seen = args, rngs

    assert Named(1, 2).seen == (2, {"first": 1})
    assert Listed(1, 2).seen == ((1, 2), None)


class Valid(dx.Conv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, padding="VALID", **kwargs)


def test_a_constructor_that_takes_rngs_among_other_keywords():
    @dx.dataclass
    class Sized(dx.Layer):
        dim: int = dx.field()
        conv = Valid(dim, 4, (3, 3))

    def fixed() -> None:
        @dx.dataclass
        class Fixed(dx.Layer):
            conv = Valid(3, 4, (3, 3))

    for make in (fixed, lambda: Sized(3, rngs=dx.Rngs(0))):
        with pytest.raises(errors.MissingRngsError, match="random keys are needed here") as caught:
            make()
        assert caught.value.fix.startswith(
            "def __init__(self, ..., *, rngs: dx.Rngs | None = None): ...        # of Valid"
        )
    with pytest.raises(errors.MissingRngsError) as caught:
        Valid(3, 4, (3, 3))
    assert caught.value.fix == "Valid(3, 4, (3, 3), rngs=dx.Rngs(0))"


@pytest.mark.parametrize("parameters", ["self, rngs", "self"])
def test_a_method_that_forgets_to_pass_rngs_on(parameters):
    source = f"""
@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field()

    @dx.submodule
    def layers({parameters}):
        return [dx.Linear(self.dim, 3) for _ in range(2)]
"""
    names = {"dx": dx}
    exec(source, names)
    with pytest.raises(errors.MissingRngsError) as caught:
        names["Model"](3, rngs=dx.Rngs(0))
    *taken, call = caught.value.fix.splitlines()
    assert call == "dx.Linear(3, 3, rngs=rngs)"
    assert taken == ([] if "rngs" in parameters else ["def layers(self, rngs: dx.Rngs): ..."])
