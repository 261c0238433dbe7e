"""Models, Variables and States as text, and in notebooks."""

import collections
import dataclasses
import enum
import functools
import sys
import threading
import time
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax._text import arrays, objects
from declax._text.objects import display

# treescope looks at every public name of numpy when it first draws.
reads_numpy = pytest.mark.filterwarnings("ignore:The chararray class is deprecated:DeprecationWarning")


def lines(text):
    return [line.strip().rstrip(",") for line in text.splitlines()]


class Linear(dx.Module):
    def __init__(self):
        self.kernel = dx.Param(jnp.zeros((4, 4)))
        self.bias = dx.Param(jnp.zeros(4))
        self.in_features = 4


class Box(dx.Module):
    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def entry(**attribute):
    """The text of one attribute, without the object around it."""
    text = repr(Box(**attribute))
    ((name, _),) = attribute.items()
    around = ("Box(\n", "\n)") if "\n" in text else ("Box(", ")")
    start = around[0] + ("  " if "\n" in text else "") + f"{name}="
    assert text.startswith(start), text
    assert text.endswith(around[1]), text
    return text.removeprefix(start).removesuffix(around[1])


# ------------------------------------------------------------------ objects


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    hidden: int | None = dx.field(default=None)
    with_scale: bool = dx.field(default=False)
    _half = dim // 2
    up = dx.Linear(dim, 4 * dim)
    dropout = dx.Dropout(0.5)
    scale: dx.Param[jax.Array] | None = dx.variable((dim,), initializer=dx.initializers.ones, when=with_scale)


def test_a_module_that_fits_takes_one_line():
    assert repr(Linear()) == "Linear(kernel=f32[4,4], bias=f32[4], in_features=4)"
    layer = dx.Linear(2, 3, use_bias=False, rngs=dx.Rngs(0))
    assert repr(layer) == "Linear(in_features=2, out_features=3, use_bias=False, kernel=f32[2,3])"


def test_only_what_differs_from_the_defaults_is_printed():
    assert lines(repr(Block(4, rngs=dx.Rngs(0)))) == [
        "Block( # Param: 80 (320 B), RngState: 2 (12 B), Total: 82 (332 B)",
        "dim=4",
        "up=Linear(in_features=4, out_features=16, kernel=f32[4,16], bias=f32[16])",
        "dropout=Dropout(rate=0.5, rngs=RngStream('default', count=0))",
        ")",
    ]
    assert lines(repr(Block(4, 3, with_scale=True, rngs=dx.Rngs(0))))[1:4] == ["dim=4", "hidden=3", "with_scale=True"]
    assert "rngs=None" not in repr(dx.MultiHeadAttention(2, 4, rngs=dx.Rngs(0)))


def test_none_is_printed_where_it_is_no_default():
    @dx.dataclass
    class Masked(dx.Module):
        mask: object = dx.field()
        limit: int | None = dx.field(default=3)
        parts: dx.Static[dict] = dx.static(default_factory=dict)

    assert repr(Masked(None)) == "Masked(mask=None)"
    assert repr(Masked(0, None, {1: 2})) == "Masked(mask=0, limit=None, parts={1: 2})"


def test_true_is_not_the_default_one():
    @dx.dataclass
    class Scaled(dx.Module):
        scale: float = dx.field(default=1)

    assert repr(Scaled(True)) == "Scaled(scale=True)"


def test_private_static_attributes_are_left_out_and_keys_are_not():
    assert repr(Box(_size=3, _scale=dx.Param(jnp.ones(2)))) == "Box(_scale=f32[2])"
    assert repr(dx.Dict(_size=3)) == "Dict({'_size': 3})"


def test_kinds_and_metadata_of_variables():
    model = Box(a=dx.BatchStat(jnp.zeros(2)), b=dx.Param(jnp.zeros(2, jnp.bfloat16), tag="x"), c=dx.Param((1, "y")))
    assert repr(model) == "Box(a=BatchStat(f32[2]), b=Param(bf16[2], tag='x'), c=Param((1, 'y')))"


def test_a_variable_with_a_repr_of_its_own():
    class Named(dx.Param):
        def __repr__(self):
            return "Named<>"

    assert repr(Box(a=Named(1))) == "Box(a=Named<>)"


def test_lines_are_at_most_120_columns():
    exact = Box(text="x" * (120 - len("Box(text='')")))
    assert len(repr(exact)) == 120
    exact.text += "x"
    assert lines(repr(exact))[0] == "Box("
    model = Box(parts=dx.List([Box(inner=dx.List([Box(text="x" * n), Box(text="x" * n)])) for n in range(60, 120)]))
    assert all(len(line) <= 120 for line in repr(model).splitlines() if "(" in line)


def test_equal_neighbours_print_once():
    model = Box(layers=dx.data([Linear(), Linear(), Box(), Linear()]), sizes=[1, 1])
    text = "Linear(kernel=f32[4,4], bias=f32[4], in_features=4)"
    assert lines(repr(model)) == [
        "Box( # Param: 60 (240 B)",
        "layers=[",
        f"2 x {text}",
        "Box()",
        text,
        "]",
        "sizes=[1, 1]",
        ")",
    ]
    assert repr(dx.List([Box(a=1), Box(a=1), Box(a=2)])) == "List([2 x Box(a=1), Box(a=2)])"


def test_neighbours_that_share_are_not_equal():
    shared = dx.Param(jnp.ones(2))
    assert repr(dx.List([Box(a=shared), Box(a=shared)])) == "List([Box(a=f32[2]), Box(a=Param(shared with [0].a))])"


def test_an_empty_object():
    assert repr(Box()) == "Box()"
    assert repr(dx.List([])) == "List()"


def test_nested_objects_and_containers():
    inner = Box(scale=dx.Param(jnp.ones(1), tag="a"))
    model = Box(parts=dx.List([inner, 3]), named=dx.Dict(x=dx.Param(2.0)))
    assert repr(model) == "Box(parts=List([Box(scale=Param(f32[1], tag='a')), 3]), named=Dict({'x': Param(2.0)}))"


def test_the_header_has_a_total_where_there_are_several_kinds():
    class Special(dx.Param):
        pass

    model = Box(
        a=dx.Param(jnp.zeros((10, 100))),
        b=Special(jnp.zeros(5)),
        c=dx.BatchStat(jnp.zeros(3, jnp.bfloat16)),
        d=dx.Cache(1),
        text="x" * 100,
    )
    assert repr(model).splitlines()[0] == "Box( # Param: 1,005 (4.0 KB), BatchStat: 3 (6 B), Total: 1,008 (4.0 KB)"
    assert repr(Box(a=dx.Variable(jnp.zeros(2)), text="x" * 110)).splitlines()[0] == "Box( # Variable: 2 (8 B)"


def test_streams_of_random_numbers_are_folded():
    rngs = dx.Rngs(params=0, dropout=1)
    rngs.dropout()
    assert repr(rngs) == "Rngs(params=RngStream('params', count=0), dropout=RngStream('dropout', count=1))"
    assert repr(rngs.params.split(3)) == "RngStream('params', count=u32[3])"
    assert repr(dx.RngStream.__new__(dx.RngStream)) == "RngStream(None, count=None)"
    texts = []
    dx.jit(lambda rngs: texts.append(repr(rngs.params)))(rngs)
    assert texts == ["RngStream('params', count=u32[])"]


def test_what_is_shared_is_counted_and_printed_once():
    left = Linear()
    model = Box(left=left, right=left, bias=left.bias, pair=dx.data([left]))
    text = repr(model)
    assert lines(text)[0] == "Box( # Param: 20 (80 B)"
    assert text.count("kernel=") == 1
    assert "  right=Linear(shared with .left),\n" in text
    assert "  bias=Param(shared with .left.bias),\n" in text
    assert "  pair=[Linear(shared with .left)]\n" in text


def test_places_of_shared_things_are_written_as_code():
    leaf = dx.Param(1)
    assert repr(dx.List([leaf, leaf])) == "List([Param(1), Param(shared with [0])])"
    assert "Param(shared with .a[0].b)" in repr(Box(a=dx.List([Box(b=leaf)]), c=leaf))


def test_cycles():
    model = Box(child=Box())
    model.child.parent = model
    assert repr(model) == "Box(child=Box(parent=Box(shared with the root)))"
    items = [1]
    items.append(items)
    assert objects.text_of(items) == "[1, list(...)]"


def test_an_object_without_a_variable_in_it_has_no_header():
    assert repr(Box(x=jnp.zeros(3), y=Box(z="x" * 120))).splitlines()[0] == "Box("


def test_fields_that_ask_for_it_are_left_out():
    @dx.dataclass
    class Block(dx.Module):
        dim: int = dx.field()
        secret: str = dx.static(default="hidden", repr=False)
        scale: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)
        rngs: dx.InitVar[dx.Rngs | None] = dataclasses.field(default=None, kw_only=True)

    text = repr(Block(2, rngs=dx.Rngs(0)))
    assert text == "Block(dim=2, scale=f32[2])"
    assert "secret" not in repr(Block(2, secret="new", rngs=dx.Rngs(0)))


def test_names_of_the_machinery_are_left_out():
    model = Linear()
    dx.split(model)
    model.extra = 1  # gives the object a layout of its own
    assert "_pytree__" not in repr(model)


def test_an_object_in_the_making_prints():
    assert repr(Linear.__new__(Linear)) == "Linear()"


# ------------------------------------------------------------------ depth and size


def test_deep_nesting_is_cut_and_still_counted():
    model = Box(leaf=dx.Param(jnp.zeros(7)))
    for _ in range(3000):
        model = Box(inner=model)
    text = repr(model)
    assert text.splitlines()[0] == "Box( # Param: 7 (28 B)"
    assert "Box(...)" in text
    assert text.count("inner=") == objects.MAX_DEPTH + 1
    while True:  # unnested here, since freeing a deep chain at once is Python's affair
        inner = model.__dict__.get("inner")
        if inner is None:
            break
        model = inner


def test_deep_containers_are_cut():
    nested: list[object] = []
    for _ in range(5000):
        nested = [nested]
    text = objects.text_of(nested)
    assert "list(...)" in text
    assert text.count("[") == objects.MAX_DEPTH + 1


def test_long_sequences_are_cut():
    text = entry(sizes=list(range(1000)))
    assert text.endswith("    99,\n    ... 900 more\n  ]")
    assert "... 20 more" in repr(dx.List([dx.Param(i) for i in range(120)]))
    assert "... 1 more" in entry(named={str(i): i for i in range(101)})
    assert "... 1 more" not in entry(sizes=list(range(100)))


def test_long_values_are_cut():
    assert len(entry(text="x" * 100_000)) < 2100
    assert entry(text="x" * 100_000).endswith("...")


def test_counting_is_linear():
    """Each object is entered once, however often and however deep it is met."""
    model = Linear()
    for _ in range(40):
        model = Box(a=model, b=model)
    start = time.perf_counter()
    assert repr(model).splitlines()[0] == "Box( # Param: 20 (80 B)"
    assert time.perf_counter() - start < 5


# ------------------------------------------------------------------ values


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    NO = "no"


class Bits(enum.Flag):
    A = 1
    B = 2


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Settings:
    rate: float
    hidden: str = dataclasses.field(default="h", repr=False)


def named_function(x):
    return x


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        ("a\nb", r"'a\nb'"),
        (named_function, "named_function"),
        (lambda x: x, "<lambda>"),
        (jax.nn.relu, "relu"),
        (jax.jit(named_function), "named_function"),
        (Linear, "Linear"),
        (jnp.float32, "float32"),
        (np.dtype("float32"), "dtype('float32')"),
        (Color.RED, "Color.RED"),
        (Level.LOW, "Level.LOW"),
        (Word.NO, "Word.NO"),
        (Bits.A | Bits.B, "Bits.A|B"),
        (Bits(0), "<Bits: 0>"),
        (functools.partial(named_function, 1, x=Color.RED), "partial(named_function, 1, x=Color.RED)"),
        (functools.partial(named_function), "partial(named_function)"),
        ((), "()"),
        ((1,), "(1,)"),
        ((1, "a"), "(1, 'a')"),
        ([named_function, [1]], "[named_function, [1]]"),
        ({"a": (1, 2), 3: None}, "{'a': (1, 2), 3: None}"),
        ({}, "{}"),
        (collections.OrderedDict(a=1), "OrderedDict({'a': 1})"),
        (Pair(1, named_function), "Pair(first=1, second=named_function)"),
        (Settings(0.5), "Settings(rate=0.5)"),
        (types.MappingProxyType({"a": 1}), "mappingproxy({'a': 1})"),
    ],
)
def test_static_values(value, text):
    assert objects.text_of(value) == text
    assert entry(x=dx.static(value)) == text


def test_members_of_enums_in_a_variable():
    assert repr(dx.Param(1, level=Level.LOW)).splitlines()[2] == "  level=Level.LOW"


def test_methods_do_not_print_the_objects_that_they_are_bound_to():
    model = Linear()
    assert entry(f=model.train) == "Module.train"


def test_arrays():
    assert entry(x=jnp.array(1.0)) == "Array(1., dtype=float32, weak_type=True)"
    assert entry(x=np.zeros(2)) == "array([0., 0.])"
    assert entry(x=jnp.zeros((50, 50))) == "Array(shape=(50, 50), dtype=dtype('float32'))"
    assert entry(x=np.zeros((50, 50))) == "ndarray(shape=(50, 50), dtype=dtype('float64'))"
    assert entry(x=dx.data(jax.ShapeDtypeStruct((50, 50), jnp.float32))).startswith("ShapeDtypeStruct(shape=(50, 50)")
    assert entry(x=jax.random.key(0)).startswith("Array((), dtype=key<fry>)")


def test_lines_of_an_array_are_aligned():
    text = repr(Box(xy=jnp.ones((2, 2))))
    assert text == "Box(\n  xy=Array([[1., 1.],\n            [1., 1.]], dtype=float32)\n)"


def test_large_arrays_inside_of_other_containers_print_short():
    big = jnp.zeros((100, 100))
    short = "Array(shape=(100, 100), dtype=dtype('float32'))"
    assert objects.text_of(Pair(big, 1)) == f"Pair(first={short}, second=1)"
    assert objects.text_of([big]) == f"[{short}]"
    assert lines(objects.text_of([big, big])) == ["[", short, short, "]"]
    assert objects.text_of(functools.partial(named_function, big)) == f"partial(named_function, {short})"


def test_tracers_and_deleted_arrays_print():
    texts = []

    @jax.jit
    def f(x):
        texts.append(repr(Box(x=x)))
        texts.append(repr(Box(x=dx.Param(x))))
        return x

    f(jnp.zeros((3, 4)))
    assert "Tracer(float32[3,4])" in texts[0]
    assert texts[1] == "Box(x=f32[3,4])"
    gone = jnp.zeros(3)
    gone.delete()
    assert "deleted" in entry(x=gone)


def test_models_inside_of_partial_functions_print_once():
    inner = Linear()
    model = Box(inner=inner, call=functools.partial(named_function, inner))
    assert "call=partial(named_function, Linear(shared with .inner))" in repr(model)


# ------------------------------------------------------------------ reprs of users


def test_a_repr_of_the_user_is_used():
    class Named(dx.Module):
        def __repr__(self):
            return "Named<\n>"

    assert entry(x=Named()) == "Named<\n  >"


def test_a_repr_of_the_user_may_call_the_one_it_replaces():
    class Named(dx.Module):
        def __init__(self):
            self.x = 1

        def __repr__(self):
            return f"<{super().__repr__()}>"

    assert repr(Named()) == "<Named(x=1)>"
    assert entry(y=Named()) == "<Named(x=1)>"


def test_a_repr_of_the_user_may_come_back_to_the_model():
    class Holder:
        def __init__(self, model):
            self.model = model

        def __repr__(self):
            return f"Holder({self.model!r})"

    model = Box()
    model.holder = Holder(model)
    assert repr(model) == "Box(holder=Holder(Box(...)))"


def test_a_repr_that_fails_leaves_nothing_behind():
    class Failing:
        def __repr__(self):
            raise ZeroDivisionError

    model = Box(x=Failing())
    with pytest.raises(ZeroDivisionError):
        repr(model)
    model.x = 1
    assert repr(model) == "Box(x=1)"


def test_standard_dataclasses_print_nested_in_full_form():
    @dataclasses.dataclass
    class Point(dx.Pytree):
        x: jax.Array

    assert entry(p=Point(jnp.zeros((9, 9)))) == "Point(x=Array(shape=(9, 9), dtype=dtype('float32')))"


def test_a_dataclass_without_a_repr_prints_as_plain_objects_do():
    @dx.dataclass(repr=False)
    class Silent(dx.Module):
        x: int = 1

    assert "object at 0x" in entry(s=Silent())


def test_threads_print_at_once():
    model = Box(parts=dx.List([Linear() for _ in range(20)]))
    expected, found = repr(model), []
    threads = [threading.Thread(target=lambda: found.append(repr(model))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


# ------------------------------------------------------------------ States


def test_a_state():
    class Shared(dx.Pytree):
        def __init__(self):
            self.x = jnp.array(1.0)

    class Parent(dx.Pytree):
        def __init__(self):
            self.left = Shared()
            self.right = self.left

    assert repr(dx.state(Parent())) == (
        "State({\n  'left': {\n    'x': Array(1., dtype=float32, weak_type=True)\n  }\n})"
    )


def test_a_state_of_variables():
    assert repr(dx.State({"blocks": {0: {"y": dx.Intermediate((jnp.zeros((), jnp.float32),))}}})) == (
        "State({\n"
        "  'blocks': {\n"
        "    0: {\n"
        "      'y': Intermediate( # 1 (4 B)\n"
        "        value=(Array(0., dtype=float32),)\n"
        "      )\n"
        "    }\n"
        "  }\n"
        "})"
    )


def test_an_empty_state():
    assert repr(dx.State({})) == "State({})"
    assert repr(dx.state(Box())) == "State({})"


def test_a_state_of_a_bare_variable():
    state = dx.State.from_flat_path({(): 3})
    assert repr(state) == "State({\n  (): 3\n})"


def test_large_states_are_cut():
    text = repr(dx.State({"a": dict.fromkeys(range(150), 0.5)}))
    assert text.endswith("    99: 0.5,\n    ... 50 more\n  }\n})")
    deep = dx.State.from_flat_path({tuple(range(3000)): 1})
    assert "..." in repr(deep)


def test_printing_a_state_does_not_change_how_it_is_read():
    state = dx.State({"a": dx.Param(1)})
    repr(state)
    assert state._rest is None


# ------------------------------------------------------------------ display


def test_display_prints_text(capsys):
    model = Linear()
    display(model, dx.state(model), {"p": dx.Param(1)}, 3)
    text = capsys.readouterr().out
    assert text == f"{model!r}\n{dx.state(model)!r}\n{{\n  'p': Param(\n    value=1\n  )\n}}\n3\n"


@pytest.fixture
def notebook(monkeypatch):
    """Stands in for a kernel of IPython, and collects what treescope is asked to show."""
    treescope = pytest.importorskip("treescope")
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    shown: list[object] = []
    monkeypatch.setattr(treescope, "display", shown.append)
    return shell, shown


def test_display_uses_treescope_in_a_notebook(notebook, capsys):
    model = Linear()
    display(model, 3)
    assert notebook[1] == [model, 3]
    assert capsys.readouterr().out == ""


def test_display_prints_text_in_a_terminal(notebook, capsys):
    shell, shown = notebook
    del shell.kernel
    display(Linear())
    assert not shown
    assert capsys.readouterr().out.startswith("Linear(kernel=f32[4,4]")


# ------------------------------------------------------------------ treescope


@reads_numpy
def test_treescope_shows_objects():
    treescope = pytest.importorskip("treescope")
    assert treescope.render_to_text(Box(a=1, b="x")) == "Box(a=1, b='x')"
    assert treescope.render_to_text(dx.List([1, 2])) == "List([1, 2])"
    assert treescope.render_to_text(dx.Dict(a=1)) == "Dict({'a': 1})"
    assert treescope.render_to_text(dx.State({"a": {"b": 1}})) == "State({'a': {'b': 1}})"
    assert treescope.render_to_text(Box()) == "Box()"


@reads_numpy
def test_treescope_shows_optimizers_specs_and_definitions():
    treescope = pytest.importorskip("treescope")
    layer = dx.Linear(2, 3, rngs=dx.Rngs(0))
    optimizer = dx.Optimizer(layer, optax.sgd(0.1), wrt=dx.Param)
    assert lines(treescope.render_to_text(optimizer))[::3] == ["Optimizer(", ")"]
    assert "opt_state=(EmptyState(), EmptyState())" in treescope.render_to_text(optimizer)
    assert treescope.render_to_text(dx.spec(dx.Linear, 2, 3)).startswith("spec(Linear, in_features=2, out_features=3)")
    assert treescope.render_to_text(dx.graphdef(layer)).startswith("GraphDef(Linear, nodes=1, leaves=2)")


def test_treescope_shows_the_metadata_of_variables():
    pytest.importorskip("treescope")
    from treescope import rendering_parts

    names = []

    def render(value, path):
        names.append((path, value))
        return rendering_parts.text(repr(value))

    objects.treescope_repr(dx.Param(1, tag="a"), "p", render)
    assert names == [("p.value", 1), ("p.tag", "a")]


def test_a_value_that_has_grown_in_a_variable():
    start = []
    variable = dx.Variable({"a": start})
    inner = start
    for _ in range(10_000):
        inner.append(inner := [])
    inner.append(jnp.ones((3, 4)))
    text = repr(variable)
    assert "Variable( # 12 (48 B)" in text
    assert text.count("[") == objects.MAX_DEPTH
    assert "[list(...)]" in text
    state = dx.state([variable])
    assert "# 12 (48 B)" in repr(state)


def test_a_value_that_contains_itself():
    value = [jnp.ones(2)]
    value.append(value)
    assert arrays.size_comment(value) == " # 2 (8 B)"
    assert objects.value_text(value) == "[Array([1., 1.], dtype=float32), list(...)]"


def test_equal_layers_fold_before_the_text_is_cut():
    layers = [dx.Dropout(0.5) for _ in range(150)]
    assert repr(dx.List(layers)) == "List([150 x Dropout(rate=0.5)])"
    text = repr(dx.List([*layers, *(dx.Dropout(rate / 200) for rate in range(120))]))
    assert "150 x Dropout(rate=0.5)" in text
    assert text.endswith("... 21 more\n])")


def test_the_state_of_an_optimizer_shows_its_sizes():
    optimizer = dx.Optimizer(dx.Linear(2, 3, rngs=dx.Rngs(0)), optax.adam(0.1))
    assert "mu=Branch(OptState: 9 (36 B))" in repr(optimizer)
    assert "kernel" in repr(optimizer.opt_state[0].mu)
