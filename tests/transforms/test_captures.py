"""What a function reaches without being given it goes into a transform as an argument does."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import gc
import importlib.util
import inspect
import sys
import textwrap
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import declax as dx
from declax.errors import DeclaxError, OverlookedModelWarning, TraceContextError, TransformError
from declax.transforms._engine.captures import Captures
from declax.transforms.vectorization import vmap

pytestmark = pytest.mark.sampled(6)

MODES = [
    pytest.param({"graph": False}, id="tree"),
    pytest.param({"graph": True, "graph_updates": False}, id="graph"),
    pytest.param({"graph": True, "graph_updates": True}, id="updates"),
]


class Scale(dx.Module):
    """Multiplies, and counts how often."""

    def __init__(self, factor=2.0):
        self.factor = dx.Param(jnp.array(factor))
        self.calls = dx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls.value = self.calls.value + 1
        return self.factor.value * x

    def twice(self, x):
        return self(self(x))


class Pair(dx.Module):
    def __init__(self):
        self.one = Scale(2.0)
        self.two = Scale(3.0)

    def __call__(self, x):
        return self.two(self.one(x))


def calls_of(model):
    return int(model.calls.value)


def check(f, model, x=1.0, expected=2.0):
    """Calls twice, between which the model changes outside; what was counted comes back."""
    before = calls_of(model)
    assert float(f(x)) == expected
    assert float(f(x)) == expected
    assert calls_of(model) == before + 2
    old = model.factor.value
    model.factor.value = old * 10
    assert float(f(x)) == 10 * expected
    model.factor.value = old
    assert calls_of(model) == before + 3
    assert isinstance(model.factor.value, jax.Array)
    assert not isinstance(model.calls.value, jax.core.Tracer)


@pytest.fixture
def module(tmp_path):
    """Makes modules of text; they are forgotten after the test."""
    names = []

    def make(text, name="user_module"):
        path = tmp_path / f"{name}.py"
        path.write_text("import jax, jax.numpy as jnp\nimport declax as dx\nimport functools\n" + textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made
        names.append(name)
        spec.loader.exec_module(made)
        return made

    yield make
    for name in names:
        del sys.modules[name]


SCALE = """
class Scale(dx.Module):
    def __init__(self, factor=2.0):
        self.factor = dx.Param(jnp.array(factor))
        self.calls = dx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls.value = self.calls.value + 1
        return self.factor.value * x

model = Scale()
"""


# ruff: noqa: PLW0108  # which function it is that captures is what is under test

# ================================================================= where a function reaches a model


@pytest.mark.parametrize("options", MODES)
def test_a_cell(options):
    model = Scale()
    check(dx.jit(lambda x: model(x), **options), model)


def test_a_nested_closure():
    model = Scale()

    def outer():
        def middle():
            def inner(x):
                return model(x)

            return inner

        return middle()

    check(dx.jit(outer()), model)
    check(dx.jit(lambda x: outer()(x)), model)


def test_functions_that_call_functions():
    model = Scale()

    def a(x):
        return model(x)

    def b(x):
        return a(x)

    def c(x):
        return (lambda y: b(y))(x)

    check(dx.jit(c), model)


def test_recursion_through_a_cell():
    model = Scale()

    def power(x, n):
        return x if n == 0 else model(power(x, n - 1))

    step = dx.jit(power, static_argnums=1)
    assert float(step(1.0, 3)) == 8
    assert calls_of(model) == 3
    model.factor.value = jnp.array(3.0)
    assert float(step(1.0, 3)) == 27


def test_mutual_recursion():
    model = Scale()

    def even(x, n):
        return x if n == 0 else odd(model(x), n - 1)

    def odd(x, n):
        return x if n == 0 else even(model(x), n - 1)

    step = dx.jit(even, static_argnums=1)
    assert float(step(1.0, 4)) == 16
    assert calls_of(model) == 4
    with jax.checking_leaks():
        assert float(dx.jit(even, static_argnums=1)(1.0, 3)) == 8


def test_recursion_of_a_jitted_function():
    model = Scale()

    @functools.partial(dx.jit, static_argnums=1)
    def power(x, n):
        return x if n == 0 else model(power(x, n - 1))

    assert float(power(1.0, 3)) == 8
    assert calls_of(model) == 3


def test_a_default():
    model = Scale()

    def f(x, m=model):
        return m(x)

    check(dx.jit(f), model)
    other = Scale(5.0)
    assert float(dx.jit(f)(1.0, other)) == 5
    assert calls_of(other) == 1


def test_a_keyword_default():
    model = Scale()

    def f(x, *, m=model, k=1.0):
        return m(x) * k

    step = dx.jit(f)
    check(step, model)
    f.__kwdefaults__["m"] = other = Scale(7.0)
    assert float(step(1.0)) == 7
    assert calls_of(other) == 1
    f.__kwdefaults__ = {"m": Scale(9.0), "k": 1.0}
    assert float(step(1.0)) == 9
    assert calls_of(f.__kwdefaults__["m"]) == 1
    assert calls_of(other) == 1


def test_defaults_that_are_assigned_later():
    def f(x, m=Scale(2.0)):  # noqa: B008  # the model is the default
        return m(x)

    step = dx.jit(f)
    assert float(step(1.0)) == 2
    f.__defaults__ = (Scale(9.0),)
    assert float(step(1.0)) == 9
    assert calls_of(f.__defaults__[0]) == 1


def test_a_default_of_a_function_that_is_called():
    model = Scale()

    def g(x, m=model):
        return m(x)

    check(dx.jit(lambda x: g(x)), model)


@pytest.mark.parametrize("options", MODES)
def test_partials(options):
    model, other = Scale(), Scale(3.0)

    def f(m, x, *, n):
        return n(m(x))

    check(dx.jit(functools.partial(functools.partial(f, model), n=other), **options), model, expected=6.0)
    g = functools.partial(f, model, n=other)
    check(dx.jit(lambda x: g(x), **options), model, expected=6.0)
    check(dx.jit(lambda x: g(x), **options), other, expected=6.0)


def test_another_model_in_the_keywords_of_a_partial():
    partial = functools.partial(lambda x, m: m(x), m=Scale(2.0))
    direct, enclosed = dx.jit(partial), dx.jit(lambda x: partial(x))
    assert float(direct(1.0)) == float(enclosed(1.0)) == 2
    partial.keywords["m"] = Scale(9.0)
    assert float(direct(1.0)) == float(enclosed(1.0)) == 9
    assert calls_of(partial.keywords["m"]) == 2


def test_a_partial_of_a_partial_with_attributes():
    model = Scale()
    f = functools.partial(lambda m, x: m(x), model)
    f.tag = "mine"
    g = functools.wraps(f)(functools.partial(f))
    seen = []

    def h(x):
        seen.append((g.tag, type(g)))
        return g(x)

    check(dx.jit(h), model)
    assert seen[0] == ("mine", functools.partial)


def test_a_partial_of_jax():
    model = Scale()
    f = jax.tree_util.Partial(lambda m, x: m(x), model)
    check(dx.jit(lambda x: f(x)), model)


def test_wrapped_by_functions():
    model = Scale()

    def doubled(f):
        @functools.wraps(f)
        def wrapper(*args):
            return 2 * f(*args)

        return wrapper

    @doubled
    @doubled
    def f(x):
        return model(x)

    check(dx.jit(f), model, expected=8.0)
    check(dx.jit(lambda x: f(x)), model, expected=8.0)


def test_attributes_of_functions_are_set_as_always():
    model = Scale()

    def f(x):
        f.traces += 1
        return model(x)

    f.traces = 0
    check(dx.jit(f), model)
    assert f.traces == 1


# ================================================================= plain objects are constants


class Holder:
    """A plain object that holds a model."""

    def __init__(self, model):
        self.model = model
        self.steps = 0

    def __call__(self, x):
        return self.step(x)

    def step(self, x):
        self.steps += 1
        return self.model.factor.value * x


class NamedList(list):
    """A container of the user."""


@dataclasses.dataclass
class Record:
    model: Scale


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    model: Scale


def with_attribute(model):
    def held():
        return None

    held.model = model
    return held


PLAIN = {
    "object": (Holder, lambda held: held.model),
    "namespace": (lambda m: types.SimpleNamespace(model=m), lambda held: held.model),
    "dataclass": (Record, lambda held: held.model),
    "frozen dataclass": (Frozen, lambda held: held.model),
    "UserDict": (lambda m: collections.UserDict(model=m), lambda held: held["model"]),
    "UserList": (lambda m: collections.UserList([m]), lambda held: held[0]),
    "deque": (lambda m: collections.deque([m]), lambda held: held[0]),
    "subclass of list": (lambda m: NamedList([m]), lambda held: held[0]),
    "lru_cache": (lambda m: functools.lru_cache(lambda: m), lambda held: held()),
    "attribute of a function": (with_attribute, lambda held: held.model),
}


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("transform", [dx.jit, dx.grad, dx.remat])
def test_models_of_plain_objects_are_constants_with_a_warning(kind, transform):
    make, read = PLAIN[kind]
    model = Scale()
    held, seen = make(model), []

    def f(x):
        seen.append(held)
        return read(held).factor.value * x

    with pytest.warns(OverlookedModelWarning, match="neither passed nor captured") as caught:
        assert float(transform(f)(1.0)) == 2
    assert len(caught) == 1
    assert all(one is held for one in seen)  # never copied
    assert read(held) is model


@pytest.mark.parametrize("make", [lambda h: h.step, lambda h: h, lambda h: lambda x: h(x), lambda h: h.step.__func__])
def test_methods_of_plain_objects_see_the_object_itself(make):
    holder = Holder(Scale())
    f = make(holder)
    f = functools.partial(f, holder) if f is Holder.step else f
    with pytest.warns(OverlookedModelWarning, match=r"'step' reads a Param"):
        assert float(dx.jit(f)(1.0)) == 2
    assert holder.steps == 1


def test_a_model_of_a_plain_object_is_not_written():
    holder = types.SimpleNamespace(model=Scale())
    assert Captures(lambda x: holder.model(x)).values == ()
    with pytest.raises(
        TraceContextError, match="the value of a Variable was changed from another trace level than its own"
    ):
        dx.jit(lambda x: holder.model(x))(1.0)
    assert calls_of(holder.model) == 0


# ================================================================= models and their methods


@pytest.mark.parametrize("options", MODES)
def test_a_model_as_the_function(options):
    model = Scale()
    check(dx.jit(model, **options), model)
    check(dx.jit(model.__call__, **options), model)
    assert float(dx.jit(model.twice, **options)(1.0)) == 4


def test_a_method_that_is_called_inside():
    model = Scale()
    method = model.twice
    f = dx.jit(lambda x: method(x))
    assert float(f(1.0)) == 4
    assert calls_of(model) == 2


def test_a_static_method_and_a_class_method(module):
    made = module(
        SCALE
        + """
class Steps:
    @staticmethod
    def static(x):
        return model(x)

    @classmethod
    def of_class(cls, x):
        return model(x)
"""
    )
    check(dx.jit(made.Steps.static), made.model)
    check(dx.jit(made.Steps.of_class), made.model)
    check(dx.jit(made.Steps().of_class), made.model)


def test_a_callable_object_whose_class_captures(module):
    made = module(
        SCALE + "class Step:\n    n = 0\n    def __call__(self, x):\n        self.n += 1\n        return model(x)\n"
    )
    step = made.Step()
    check(dx.jit(step), made.model)
    assert step.n == 1


def test_what_c_calls_is_left_alone():
    model = Scale()
    raw = jax.jit(lambda x: model.factor.value * x)
    f = dx.jit(lambda x: raw(x))
    with pytest.warns(OverlookedModelWarning, match=r"'<lambda>' reads a Param, .* in `raw = jax.jit"):
        assert float(f(1.0)) == 2
    assert Captures(f).values == ()


@pytest.mark.parametrize("f", [jnp.sin, jnp.add, abs, np.sin, jax.nn.relu, max])
def test_builtins_and_functions_of_libraries(f):
    captures = Captures(f)
    assert captures.watched() == []
    args = (1.0, 2.0) if f in (jnp.add, max) else (1.0,)
    if f in (max, np.sin):
        with pytest.raises(jax.errors.JAXTypeError):
            dx.jit(f)(*args)
    else:
        np.testing.assert_allclose(dx.jit(f)(*args), f(*args), rtol=1e-6)


def test_a_class_as_the_function():
    made = dx.jit(Scale)(3.0)
    assert isinstance(made, Scale)
    assert float(made(2.0)) == 6
    assert Captures(Scale).watched() == []


@pytest.mark.parametrize("options", MODES)
def test_bare_variables(options):
    w, count = dx.Param(jnp.array(2.0)), dx.Variable(jnp.array(0))

    @functools.partial(dx.jit, **options)
    def f(x):
        count.value = count.value + 1
        return w * x

    assert [float(f(1.0)), float(f(2.0))] == [2, 4]
    w.value = jnp.array(5.0)
    assert float(f(1.0)) == 5
    assert int(count.value) == 3


@pytest.mark.parametrize("options", MODES)
def test_rngs(options):
    rngs, twin = dx.Rngs(0, dropout=1), dx.Rngs(0, dropout=1)
    f = dx.jit(lambda: rngs.dropout(), **options)
    drawn = [f() for _ in range(3)]
    expected = [twin.dropout() for _ in range(3)]
    for a, b in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(jax.random.key_data(a), jax.random.key_data(b))


def test_an_optimizer_and_its_model():
    def run(decorate):
        model = Scale()
        optimizer = dx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=dx.Param)

        @decorate
        def step(x):
            grads = dx.grad(lambda m: (m(x) - 1) ** 2)(model)
            optimizer.update(model, grads)

        for _ in range(3):
            step(jnp.array(1.0))
        return float(model.factor.value), calls_of(model)

    assert run(dx.jit) == pytest.approx(run(lambda f: f))


def test_a_state_is_a_constant():
    state = dx.state(Scale())
    f = dx.jit(lambda x: state["factor"].value * x)
    with pytest.warns(OverlookedModelWarning, match=r"reads a Param, .* in `f = dx.jit"):
        assert float(f(1.0)) == 2
    assert Captures(f).values == ()


# ================================================================= names of a module


def test_a_name(module):
    made = module(SCALE + "@dx.jit\ndef f(x):\n    return model(x)\n")
    check(made.f, made.model)


def test_a_name_in_a_dict_of_globals():
    names = {"model": Scale(), "dx": dx}
    exec("def g(x):\n    return model(x)\ndef f(x):\n    return g(x)", names)
    check(dx.jit(names["f"]), names["model"])


def test_a_name_that_is_defined_later(module):
    made = module("@dx.jit\ndef f(x):\n    return helper(x)\n" + SCALE + "def helper(x):\n    return model(x)\n")
    check(made.f, made.model)


def test_a_name_that_is_defined_after_a_call(module):
    made = module("model = None\n@dx.jit\ndef f(x):\n    return x if model is None else model(x)\n" + SCALE[:-16])
    assert float(made.f(1.0)) == 1
    made.model = made.Scale()
    check(made.f, made.model)


def test_a_name_that_is_another_model_now(module):
    made = module(SCALE + "@dx.jit\ndef f(x):\n    return model(x)\n")
    check(made.f, made.model)
    made.model = made.Scale(5.0)
    check(made.f, made.model, expected=5.0)
    assert made.f.num_traces == 1


def test_a_cell_that_is_another_model_now():
    model = Scale()

    @dx.jit
    def f(x):
        return model(x)

    check(f, model)
    first = model
    model = Scale(5.0)
    check(f, model, expected=5.0)
    assert calls_of(first) == 3
    model = Pair()
    assert float(f(1.0)) == 6


def test_a_function_that_is_another_one_now():
    model = Scale()

    def g(x):
        return model(x)

    f = dx.jit(lambda x: g(x))
    assert float(f(1.0)) == 2

    def g(x):  # noqa: F811
        return model(x) + 1

    assert float(f(1.0)) == 3
    assert calls_of(model) == 2


def test_a_function_of_the_same_place_in_memory_is_another_one(module):
    made = module(SCALE + "def g(x):\n    return model(x)\n@dx.jit\ndef f(x):\n    return g(x)\n")
    results = []
    for number in range(20):  # the code of the last one is freed before the next one is made
        made.g = None
        exec(f"def g(x):\n    return model(x) + {number}", vars(made))
        results.append(float(made.f(1.0)))
    assert results == [2 + number for number in range(20)]


def test_mutual_recursion_of_names(module):
    made = module(
        SCALE
        + """
def even(x, n):
    return x if n == 0 else odd(model(x), n - 1)

def odd(x, n):
    return x if n == 0 else even(model(x), n - 1)

f = dx.jit(even, static_argnums=1)
"""
    )
    assert float(made.f(1.0, 4)) == 16
    assert calls_of(made.model) == 4
    with jax.checking_leaks():
        assert float(made.f(1.0, 5)) == 32


def test_comprehensions_and_nested_functions(module):
    made = module(
        SCALE
        + """
def f(x):
    parts = [model(x) for _ in range(2)]
    total = sum(model(p) for p in parts)
    named = {k: model(x) for k in "ab"}
    return total + named["a"] + (lambda y: model(y))(x)
"""
    )
    assert float(dx.jit(made.f)(1.0)) == 12
    assert calls_of(made.model) == 7


def test_what_python_does_with_names_goes_on_inside(module):
    made = module(
        SCALE
        + """
import warnings
LIMIT = 3

def f(x):
    import math
    class Local:
        limit = LIMIT
        other = model
    def inner():
        pass
    assert Local.__module__ == inner.__module__ == __name__ == "user_module"
    assert Local.other is model
    return model(x) * Local.limit * math.ceil(0.5)

def h(x):
    warnings.warn("look here")
    return model(x)
"""
    )
    check(dx.jit(made.f), made.model, expected=6.0)
    with pytest.warns(UserWarning, match="look here") as caught:
        check(dx.jit(made.h), made.model)
    assert caught[0].filename == made.__file__


def test_a_relative_import_inside(tmp_path, monkeypatch):
    package = tmp_path / "user_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("THREE = 3.0\n")
    text = "import jax.numpy as jnp\nimport declax as dx\n" + SCALE
    (package / "main.py").write_text(text + "def f(x):\n    from .other import THREE\n    return THREE * model(x)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    main = importlib.import_module("user_package.main")
    try:
        check(dx.jit(main.f), main.model, expected=6.0)
    finally:
        for name in ("user_package", "user_package.main", "user_package.other"):
            del sys.modules[name]


def test_global_counters(module):
    made = module(
        SCALE
        + """
count = 0

def tick():
    global count
    count += 1

@dx.jit
def f(x):
    global count, new
    count += 1
    new = "made inside"
    return model(x)

@dx.jit
def g(x):
    tick()
    return model(x) + 0 * count
"""
    )
    check(made.f, made.model)
    assert made.count == 1
    assert made.new == "made inside"
    check(made.g, made.model)
    assert made.count == 2


def test_nonlocal_counters():
    model, count = Scale(), 0

    @dx.jit
    def f(x):
        nonlocal count
        count += 1
        return model(x)

    check(f, model)
    assert count == 1


def test_counters_on_the_function_itself(module):
    made = module(
        SCALE
        + """
def f(x):
    f.count += 1
    return model(x)

f.count = 0

@dx.jit
def g(x):
    g.count += 1
    return model(x)

g.count = 0
"""
    )
    check(dx.jit(made.f), made.model)
    assert made.f.count == 1
    check(made.g, made.model)
    assert made.g.count == 1


@pytest.mark.parametrize("text", ["model = Scale(3.0)", "del model", "model = None"])
def test_a_name_of_a_model_cannot_be_assigned_inside(module, text):
    made = module(
        SCALE + f"def f():\n    global model\n    {text}\n" + "def g(x):\n    y = model(x)\n    f()\n    return y\n"
    )
    model = made.model
    with pytest.raises(TransformError, match="it assigns to 'model', where it captures"):
        dx.jit(made.g)(1.0)
    assert made.model is model
    assert calls_of(model) == 0


def test_a_variable_of_an_outer_function_cannot_be_assigned_inside():
    model = Scale()

    def f(x):
        nonlocal model
        y = model(x)
        model = Scale(3.0)
        return y

    first = model
    with pytest.raises(TransformError, match="it assigns to 'model', where it captures"):
        dx.jit(f)(1.0)
    assert model is first
    assert calls_of(model) == 0


def test_decorated_functions_of_a_module_are_followed(module):
    library = module(
        """
def doubled(f):
    @functools.wraps(f)
    def wrapper(*args):
        return 2 * f(*args)
    return wrapper
""",
        name="user_library",
    )
    made = module(
        SCALE
        + """
from user_library import doubled

@doubled
def helper(x):
    return model(x)

@dx.jit
def f(x):
    return helper(x)
"""
    )
    assert library.doubled.__module__ == "user_library"
    check(made.f, made.model, expected=4.0)


@pytest.mark.parametrize("decorator", ["dx.jit", "vmap", "dx.remat", "dx.value_and_grad"])
@pytest.mark.parametrize("is_imported", [False, True])
def test_transformed_functions_of_a_module_are_followed(module, decorator, is_imported):
    text = "from declax.transforms.vectorization import vmap\n" + SCALE
    made = module(f"{text}@{decorator}\ndef helper(x):\n    return model(x)\ndef f(x):\n    return helper(x)\n")
    if is_imported:
        user = module("from user_module import helper\ndef f(x):\n    return helper(x)\n", "user")
    f = dx.jit(user.f if is_imported else made.f)
    x = jnp.ones(2) if decorator == "vmap" else jnp.array(1.0)
    for expected in (2.0, 3.0):
        made.model.factor.value = jnp.array(expected)
        y = f(x)
        y = y[0] if decorator == "dx.value_and_grad" else y
        assert float(jnp.ravel(y)[0]) == expected
    assert calls_of(made.model) == 2


def test_functions_of_other_modules_are_not_followed_by_name(module):
    module(SCALE + "def helper(x):\n    return model(x)\n", "elsewhere")
    made = module("from elsewhere import helper\n@dx.jit\ndef f(x):\n    return helper(x)\n")
    with pytest.raises(TraceContextError, match="changed from another trace level than its own"):
        made.f(1.0)


# ================================================================= lists, tuples and dicts

Two = collections.namedtuple("Two", "model other")


@pytest.mark.parametrize(
    "make",
    [
        lambda m, n: [m, n],
        lambda m, n: (m, n),
        lambda m, n: {0: m, 1: n},
        lambda m, n: collections.OrderedDict([(0, m), (1, n)]),
        lambda m, n: collections.defaultdict(list, {0: m, 1: n}),
        lambda m, n: Two(m, n),
        lambda m, n: [lambda x: m(x), functools.partial(n)],
        lambda m, n: {0: m.__call__, 1: dx.jit(n)},
    ],
)
@pytest.mark.parametrize("options", MODES)
def test_containers(make, options):
    model, other = Scale(), Scale(3.0)
    models = make(model, other)
    f = dx.jit(lambda x: models[1](models[0](x)), **options)
    check(f, model, expected=6.0)
    check(f, other, expected=6.0)
    assert type(models) is type(make(model, other))


def test_nested_containers_and_what_is_in_them_twice():
    model = Scale()
    inner = [model]
    outer = {"a": inner, "b": [inner, ({"c": model},)]}
    seen = []

    def f(x):
        seen.append((outer["a"] is outer["b"][0] is inner, outer["b"][1][0]["c"] is inner[0]))
        return inner[0](outer["b"][1][0]["c"](x))

    step = dx.jit(f)
    assert float(step(1.0)) == 4
    assert seen == [(True, True)]
    assert calls_of(model) == 2


def test_containers_that_grow_and_change_outside():
    model, other = Scale(), Scale(3.0)
    models, inner, named, empty = [model], {"a": []}, {"m": model}, []

    @dx.jit
    def f(x):
        for m in [*models, *inner["a"], *named.values(), *empty]:
            x = m(x)
        return x

    assert float(f(1.0)) == 4
    models.append(other)
    assert float(f(1.0)) == 12
    models[0] = other
    assert float(f(1.0)) == 18
    inner["a"].append(model)
    assert float(f(1.0)) == 36
    named["n"] = other
    assert float(f(1.0)) == 108
    empty.append([])
    del empty[0]
    empty.append(other)
    assert float(f(1.0)) == 324
    del models[:], named["n"], inner["a"][:], empty[:]
    assert float(f(1.0)) == 2
    assert (calls_of(model), calls_of(other)) == (12, 12)


def test_a_list_of_models_that_moves_to_another_key():
    held = {"double": [Scale(2.0)]}

    @dx.jit
    def f(x):
        for m in held.get("double", ()):
            x = m(x)
        for m in held.get("twice", ()):
            x = m(m(x))
        return x

    assert float(f(1.0)) == 2
    held["twice"] = held.pop("double")
    assert float(f(1.0)) == 4


def test_long_containers():
    models = [Scale(1.0) for _ in range(300)]

    @dx.jit
    def f(x):
        return models[7](x) + models[299](x)

    assert float(f(1.0)) == 2
    models[7] = Scale(5.0)
    assert float(f(1.0)) == 6
    assert calls_of(models[7]) == 1
    assert calls_of(models[299]) == 2


def test_long_containers_of_data_that_get_a_model():
    log = [float(i) for i in range(1000)]
    nested = [[float(i)] for i in range(1000)]

    @dx.jit
    def f(x):
        for item in (log[-1], nested[-1][0]):
            x = item(x) if isinstance(item, Scale) else x
        return x

    assert float(f(1.0)) == 1
    log.append(Scale())
    assert float(f(1.0)) == 2
    nested.append([Scale(3.0)])
    assert float(f(1.0)) == 6
    assert calls_of(log[-1]) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["list"].append(1),
        lambda c: c["list"].pop(),
        lambda c: c["dict"].update(new=1),
        lambda c: c["dict"].pop("m"),
        lambda c: c["nested"][0].append(1),
        lambda c: c["nested"][0][0]["x"].clear(),
    ],
)
def test_containers_of_models_cannot_change_inside(change):
    model = Scale()
    held = {
        "list": [model],
        "dict": {"m": model},
        "nested": ([{"x": [model]}],),
    }
    before = repr(jax.tree.structure(copy.copy(held), is_leaf=lambda x: x is model))

    def f(x):
        y = model(x)
        change(held)
        return y

    with pytest.raises(TransformError, match="it assigns to a container, where it captures"):
        dx.jit(f)(1.0)
    assert calls_of(model) == 0
    assert repr(jax.tree.structure(copy.copy(held), is_leaf=lambda x: x is model)) == before


def test_containers_without_models_stay_what_they_are():
    model, log, records = Scale(), [], {}

    @dx.jit
    def f(x):
        log.append(jnp.shape(x))
        records["dtype"] = str(x.dtype)
        return model(x)

    check(f, model)
    assert log == [()]
    assert records == {"dtype": "float32"}


def test_circles_of_containers():
    model = Scale()
    circle = {"model": model, "list": []}
    circle["list"].append(circle)
    data = []
    data.append(data)

    def f(x):
        assert data[0] is data
        assert circle["list"][0] is circle
        return circle["list"][0]["model"](x)

    check(dx.jit(f), model)


@pytest.mark.parametrize(
    "wrap", [lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: functools.partial(max, x)]
)
def test_deep_containers(wrap):
    model = Scale()
    deep = model
    for _ in range(10_000):
        deep = wrap(deep)

    @dx.jit
    def f(x):
        assert deep is not None
        return x

    f(1.0)
    assert Captures(f).values == (model,)
    while deep is not model:  # Python itself cannot free some of them at once
        deep = next(iter(deep.values() if isinstance(deep, dict) else deep.args if callable(deep) else deep))


# ================================================================= a thing that is captured and passed


@pytest.mark.parametrize("options", MODES)
def test_captured_and_passed_is_one_thing(options):
    model = Scale()

    @functools.partial(dx.jit, **options)
    def f(m, x):
        assert m is model
        return m(model(x))

    assert float(f(model, 1.0)) == 4
    assert calls_of(model) == 2


def test_captured_and_another_is_passed():
    model, other = Scale(), Scale(3.0)
    f = dx.jit(lambda m, x: (m(model(x)), m is model))
    y, is_same = f(other, 1.0)
    assert (float(y), bool(is_same)) == (6, False)
    assert float(f(model, 1.0)[0]) == 4
    assert (calls_of(model), calls_of(other)) == (3, 1)
    assert f.num_traces == 2


@pytest.mark.parametrize("options", MODES)
def test_a_part_of_what_is_passed_is_captured(options):
    pair = Pair()
    part, variable = pair.one, pair.one.factor

    @functools.partial(dx.jit, **options)
    def f(p, x):
        assert p.one is part
        assert part.factor is variable
        variable.value = variable.value + 1
        return p(x) + part(x)

    assert float(f(pair, 1.0)) == 12
    assert calls_of(part) == 2
    assert float(variable.value) == 3
    assert pair.one is part


def test_captured_and_returned():
    model = Scale()
    f = dx.jit(lambda: (model, model.factor))
    assert f() == (model, model.factor)
    assert f()[0] is model


def test_captured_passed_and_donated():
    model = Scale()

    @functools.partial(dx.jit, donate_argnums=0)
    def f(m, x):
        m.factor.value = m.factor.value + 1
        return model(x)

    for expected in (3.0, 4.0, 5.0):
        assert float(f(model, 1.0)) == expected
    assert calls_of(model) == 3


def test_captured_only_is_not_donated():
    model = Scale()
    f = dx.jit(lambda x: model(x), donate_argnums=0)
    factor, calls = model.factor.value, model.calls.value
    f(jnp.ones(3))
    assert not factor.is_deleted()
    assert not calls.is_deleted()


def test_static_arguments_beside_captures():
    model = Scale()

    @functools.partial(dx.jit, static_argnames="n")
    def f(x, n):
        for _ in range(n):
            x = model(x)
        return x

    assert [float(f(1.0, n=n)) for n in (1, 2, 3)] == [2, 4, 8]
    assert calls_of(model) == 6


# ================================================================= structure


def test_structure_comes_back_with_graph_updates():
    model = Scale()

    @dx.jit
    def f(x):
        if not hasattr(model, "extra"):
            model.extra = dx.Variable(x)
            model.child = Scale(x)
        model.extra.value = model.extra.value + 1
        return model.child(x)

    assert float(f(3.0)) == 9
    assert float(model.extra.value) == 4
    assert calls_of(model.child) == 1
    assert float(f(3.0)) == 9
    assert float(model.extra.value) == 5


def test_a_captured_model_takes_and_loses_parts():
    one, two = Pair(), dx.Module()

    @dx.jit
    def move():
        two.part = one.one
        del one.one

    part = one.one
    move()
    assert two.part is part
    assert not hasattr(one, "one")


@pytest.mark.parametrize("options", MODES[:2])
def test_structure_is_refused_without(options):
    model = Scale()
    model.count = 0

    @functools.partial(dx.jit, **options)
    def f(x):
        model(x)
        model.extra = dx.Variable(x)

    with pytest.raises(TransformError, match="the function changes the structure of its arguments"):
        f(1.0)
    assert not hasattr(model, "extra")
    assert calls_of(model) == 0


def test_trees_of_captured_models_share_nothing():
    model = Scale()
    both = dx.Module()
    both.a, both.b = model, model
    with pytest.raises(DeclaxError, match="this is reached twice, so the argument is not a tree"):
        dx.jit(lambda x: both.a(x), graph=False)(1.0)
    assert float(dx.jit(lambda x: both.a(x))(1.0)) == 2


# ================================================================= all or nothing


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_inside_leaves_all_as_it_was(options, error, module):
    made = module(
        SCALE + "count = 0\ndef f(x, error):\n    global count\n    count += 1\n    y = model(x)\n"
        "    model.new = 1\n    raise error('inside')\n"
    )
    f, model, before = made.f, made.model, dict(vars(made))

    def g(x):
        model(x)
        return f(x, error)

    for step in (dx.jit(functools.partial(f, error=error), **options), dx.jit(g, **options)):
        with pytest.raises(error, match="inside"):
            step(1.0)
    assert calls_of(made.model) == 0
    assert not hasattr(made.model, "new")
    assert made.f is f
    assert {n: v for n, v in vars(made).items() if n != "count"} == {n: v for n, v in before.items() if n != "count"}


def test_an_exception_leaves_globals_and_attributes(module):
    made = module(
        SCALE + "count = 0\ndef f(x):\n    global count\n    count += 1\n    model(x)\n    raise ValueError('inside')\n"
    )
    with pytest.raises(ValueError, match="inside"):
        dx.jit(made.f)(1.0)
    assert made.count == 0
    holder = Holder(Scale())
    step = dx.jit(holder.step)
    with pytest.raises(TransformError, match="this is not an array, a number or a model"):
        step("no array")
    assert holder.steps == 0
    assert calls_of(holder.model) == 0


def test_refused_structure_leaves_globals(module):
    made = module(SCALE + "count = 0\ndef f(x):\n    global count\n    count += 1\n    model.extra = dx.Param(x)\n")
    with pytest.raises(TransformError, match="the function changes the structure"):
        dx.jit(made.f, graph_updates=False)(1.0)
    assert made.count == 0


# ================================================================= nested transforms


@pytest.mark.parametrize("options", MODES)
def test_jit_of_vmap(options):
    model = Scale()

    @functools.partial(vmap, **options)
    def rows(x):
        return model.factor.value * x

    f = dx.jit(lambda x: rows(x), **options)
    for expected in (2.0, 7.0):
        model.factor.value = jnp.array(expected)
        np.testing.assert_array_equal(f(jnp.arange(3.0)), expected * jnp.arange(3.0))
    assert f.num_traces == 1
    direct = dx.jit(rows, **options)
    np.testing.assert_array_equal(direct(jnp.arange(3.0)), 7 * jnp.arange(3.0))


@pytest.mark.parametrize("options", MODES)
def test_vmap_counts_once(options):
    model = Scale()
    rows = vmap(lambda x: model(x), **options)
    np.testing.assert_array_equal(rows(jnp.arange(3.0)), 2 * jnp.arange(3.0))
    assert calls_of(model) == 1
    np.testing.assert_array_equal(dx.jit(rows, **options)(jnp.arange(3.0)), 2 * jnp.arange(3.0))
    assert calls_of(model) == 2


@pytest.mark.parametrize("options", MODES)
def test_vmap_of_jit(options):
    model = Scale()
    one = dx.jit(lambda x: model(x), **options)
    rows = vmap(lambda x: one(x), **options)
    np.testing.assert_array_equal(rows(jnp.arange(3.0)), 2 * jnp.arange(3.0))
    np.testing.assert_array_equal(vmap(one, **options)(jnp.arange(3.0)), 2 * jnp.arange(3.0))
    assert calls_of(model) == 2


def test_captured_rngs_draw_the_same_for_all_rows():
    rngs = dx.Rngs(0)
    rows = vmap(lambda x: rngs.params.uniform() + x)
    with pytest.warns(UserWarning, match="draws the same random numbers from the stream"):
        drawn = rows(jnp.zeros(3))
    assert len(set(drawn.tolist())) == 1
    assert int(rngs.params.count.value) == 1


def test_a_captured_model_without_an_axis_is_set_to_one_value():
    model = Scale()

    def f(x):
        model.factor.value = x

    with pytest.raises(TransformError, match="this differs between instances"):
        vmap(f)(jnp.arange(3.0))
    assert float(model.factor.value) == 2


@pytest.mark.parametrize("options", MODES)
def test_grad_of_jit_and_jit_of_grad(options):
    if options.get("graph") is False:
        pytest.skip("trees have no filters")
    model, head = Scale(), Scale(3.0)
    loss = dx.jit(lambda m, x: head(m(x)), **options)
    grad = functools.partial(dx.grad, argnums=dx.DiffState(0, dx.Param), **options)
    inner = grad(lambda m, x: loss(m, x))
    outer = dx.jit(grad(lambda m, x: head(m(x))), **options)
    for grads in (inner, outer, grad(loss)):
        assert float(grads(model, 5.0)["factor"].value) == 15
    assert calls_of(head) == calls_of(model) == 3


def test_grad_over_a_plain_argument_with_captures():
    model = Scale()
    value, grad = dx.value_and_grad(lambda x: model(x) ** 2)(3.0)
    assert (float(value), float(grad)) == (36, 24)
    assert calls_of(model) == 1


def test_the_gradient_of_what_is_captured_and_passed():
    model = Scale()
    grads = dx.grad(lambda m, x: model(x) * m.factor.value)(model, 3.0)
    assert float(grads["factor"].value) == 12  # both are one parameter


def test_three_levels():
    model, rows_model = Scale(), Scale(3.0)

    @dx.jit
    def inner(x):
        return model(x)

    @vmap
    def rows(x):
        return rows_model(inner(x))

    @dx.jit
    def loss(x):
        return rows(x).sum()

    f = dx.jit(dx.value_and_grad(loss))
    value, grad = f(jnp.arange(3.0))
    assert float(value) == 18
    np.testing.assert_array_equal(grad, [6, 6, 6])
    assert calls_of(model) == calls_of(rows_model) == 1
    model.factor.value = jnp.array(1.0)
    assert float(f(jnp.arange(3.0))[0]) == 9
    assert f.num_traces == 1


def test_a_jitted_function_of_a_module_that_captures(module):
    made = module(
        SCALE
        + """
@dx.jit
def one(x):
    return model(x)

@dx.jit
def two(x):
    return one(one(x))

@dx.jit
def three(x):
    return two(one(x))
"""
    )
    assert float(made.three(1.0)) == 8
    assert calls_of(made.model) == 3
    made.model = made.Scale(1.0)
    assert float(made.three(1.0)) == 1
    assert calls_of(made.model) == 3
    assert made.three.num_traces == 1


def test_functions_that_are_made_and_transformed_inside():
    model = Scale()

    @dx.jit
    def f(x):
        local = Scale(3.0)

        @dx.jit
        def inner(y):
            return local(model(y))

        @dx.grad
        def slope(y):
            return model(inner(y))

        return inner(x), slope(x), local.calls.value

    assert [float(y) for y in f(1.0)] == [6, 12, 2]
    assert calls_of(model) == 3


def test_a_jitted_method_of_a_model():
    class Model(Scale):
        @dx.jit
        def step(self, x):
            return self(x)

    model = Model()
    check(dx.jit(lambda x: model.step(x)), model)
    check(model.step, model)
    step = model.step
    check(dx.jit(lambda x: step(x)), model)


def test_raw_vmap_of_captured_variables_still_raises():
    count = dx.Variable(jnp.array(0))

    def f(x):
        count.value = count.value + 1
        return x

    with pytest.raises(TraceContextError, match="changed from another trace level than its own"):
        jax.vmap(f)(jnp.arange(3.0))
    with pytest.raises(TraceContextError, match="changed from another trace level than its own"):
        dx.jit(jax.vmap(f))(jnp.arange(3.0))
    assert int(count.value) == 0


def test_raw_vmap_in_jit_reads_what_is_captured():
    model = Scale()
    rows = jax.vmap(lambda x: model.factor.value * x)
    f = dx.jit(lambda x: rows(x))
    for expected in (2.0, 7.0):
        model.factor.value = jnp.array(expected)
        np.testing.assert_array_equal(f(jnp.arange(3.0)), expected * jnp.arange(3.0))


def test_the_peer_agrees_where_it_is_given_all():
    nnx = pytest.importorskip("flax.nnx")

    def loss(w, count, x):
        count[...] = count[...] + 1
        return (w[...] * x) ** 2

    w, count = dx.Param(jnp.array(2.0)), dx.Variable(jnp.array(0))
    f = dx.jit(lambda x: dx.grad(lambda w: loss(w, count, x))(w))
    w2, count2 = nnx.Param(jnp.array(2.0)), nnx.Variable(jnp.array(0))
    g = nnx.jit(nnx.grad(loss))
    for x in (3.0, 4.0):
        assert float(f(x)[...]) == float(g(w2, count2, x)[...])
        assert int(count[...]) == int(count2[...])


# ================================================================= which places hold the same


def total(x, *models):
    models[0].factor.value = models[0].factor.value + x
    return sum(10.0**n * model.factor.value for n, model in enumerate(models))


@pytest.mark.parametrize("transform", [dx.jit, dx.remat, lambda f: dx.jit(dx.jit(f))], ids=["jit", "remat", "nested"])
@pytest.mark.parametrize("is_listed", [False, True], ids=["names", "list"])
@pytest.mark.parametrize("order", [(0, 1, 1), (1, 0, 2), (2, 2, 0), (1, 1, 2), (0, 0, 0), (0, 1, 0)], ids=str)
def test_a_name_that_comes_to_hold_what_another_holds(transform, is_listed, order):
    """The number of models stays, and so may their structure; but each is read and written in its own places."""
    models, plain = [Scale(n + 1.0) for n in range(3)], [float(n + 1) for n in range(3)]
    for start in range(3):
        p = q = r = models[start]
        listed, ranks = [p, q, r], [start, start, start]
        f = transform((lambda x: total(x, *listed)) if is_listed else (lambda x: total(x, p, q, r)))  # noqa: B023  # meant
        for place, rank in enumerate((0, *order, 1, 2)):
            ranks[place % 3] = rank
            p, q, r = (models[n] for n in ranks)
            listed[:] = p, q, r
            for _ in range(2):
                plain[ranks[0]] += 0.5
                assert float(f(0.5)) == sum(10.0**n * plain[rank] for n, rank in enumerate(ranks))
                assert [float(model.factor.value) for model in models] == plain


class Unready:
    """As a proxy of a web framework outside of a request: whatever is asked of it raises."""

    def __getattribute__(self, name):
        raise RuntimeError("there is no request")


@pytest.mark.parametrize("captures", [False, True])
def test_a_proxy_that_is_not_ready_is_left_alone(captures):
    proxy, model = Unready(), Scale()

    def f(x, used=False):
        if used:
            proxy.user.name
        return model(x) if captures else x

    assert dx.jit(f)(1.0) == f(1.0)


# ================================================================= tracers that are kept


@pytest.mark.parametrize("transform", [dx.jit, vmap, dx.grad])
@pytest.mark.parametrize("captures", [False, True])
def test_jax_reports_the_use_of_a_kept_tracer(transform, captures):
    kept, model = [], Scale()

    def f(x):
        kept.append(x * 2)
        return model(x).sum() if captures else x.sum()

    transform(f)(jnp.ones(2) if transform is vmap else jnp.array(1.0))
    with pytest.raises(jax.errors.UnexpectedTracerError):
        kept[0] + 1


# ================================================================= what cannot be transformed


def _generator(x):
    yield x


async def _coroutine(x):
    return x


async def _both(x):
    yield x


class _Methods:
    def method(self, x):
        yield x


@pytest.mark.parametrize("f", [_generator, _coroutine, _both, _Methods().method])
@pytest.mark.parametrize("transform", [dx.jit, vmap, dx.grad])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore:Python iterable type 'generator'")
def test_generator_functions_and_coroutines(f, transform):
    """They return no array."""
    with pytest.raises(TransformError, match=r"of type (async_)?(generator|coroutine)"):
        transform(f)(jnp.ones(1) if transform is vmap else 1.0)


def test_generators_inside():
    model = Scale()

    def results(x):
        for _ in range(3):
            x = model(x)
            yield x

    f = dx.jit(lambda x: list(results(x)))
    assert [float(y) for y in f(1.0)] == [2, 4, 8]
    assert calls_of(model) == 3


# ================================================================= how it looks from outside


def test_the_look_of_transformed_functions():
    model = Scale()

    def f(x: float, m=model) -> float:
        """Applies it."""
        return m(x)

    for wrapped in (dx.jit(f), vmap(f), dx.grad(f), dx.value_and_grad(f)):
        assert inspect.signature(wrapped) == inspect.signature(f)
        assert (wrapped.__name__, wrapped.__doc__, wrapped.__module__) == ("f", "Applies it.", __name__)
        assert wrapped.__wrapped__ is f


def test_functions_inside_look_as_outside():
    model = Scale()
    seen = []

    def g(x: float, *, m: Scale = model) -> float:
        """Applies it."""
        return m(x)

    def f(x):
        seen.append((g.__name__, g.__qualname__, g.__doc__, g.__module__, str(inspect.signature(g)).split("=")[0]))
        return g(x)

    outside = (g.__name__, g.__qualname__, g.__doc__, g.__module__, str(inspect.signature(g)).split("=")[0])
    check(dx.jit(f), model)
    assert seen == [outside]


def test_a_plain_function_is_untouched_by_its_transforms():
    model = Scale()

    def f(x, m=model):
        return m(x) + model(x)

    cells, defaults, names = f.__closure__, f.__defaults__, dict(f.__globals__)
    dx.jit(f)(1.0)
    assert f.__closure__ is cells
    assert f.__defaults__ is defaults
    assert f.__globals__ == names
    assert f.__closure__[0].cell_contents is model


# ================================================================= cost


@pytest.fixture
def searches(monkeypatch):
    made = []
    init = Captures.__init__

    def counting(self, function):
        if function is not Scale.__call__:  # a method, which is looked at once for each function and structure
            made.append(function)
        init(self, function)

    monkeypatch.setattr(Captures, "__init__", counting)
    return made


def test_without_captures_nothing_is_looked_at_again(searches):
    f = dx.jit(lambda m, x: m(x) * jnp.sum(x))
    model = Scale()
    for _ in range(5):
        f(model, jnp.ones(2))
    assert f._closure.captures.watched() == []
    assert len(searches) == 1


def test_with_captures_one_search_is_made(searches):
    model, models, log = Scale(), [Scale()], []

    def helper(x, m=model):
        return m(x)

    f = dx.jit(lambda x: models[0](helper(model(x))))
    g = dx.jit(lambda x: (log, helper(x))[1])
    for i in range(100):
        f(1.0)
        log.append(float(i))
        g(1.0)
    assert len(searches) == 2
    assert f.num_traces == g.num_traces == 1


def test_no_growth_in_a_thousand_calls():
    model = Scale()
    f = dx.jit(lambda x: model(x))
    x = jnp.array(1.0)
    f(x)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1000):
        f(x)
    gc.collect()
    assert len(gc.get_objects()) - before < 50
    assert calls_of(model) == 1001


def test_no_growth_with_other_models():
    def g(x):
        return model(x)

    f = dx.jit(lambda x: g(x))
    model = Scale()
    f(1.0)
    for _ in range(100):
        model = Scale()
        f(1.0)
    assert len(f._closure._keys) == 1
    assert f.num_traces == 1


@pytest.fixture
def without_gc():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("transform", [dx.jit, vmap, dx.grad])
@pytest.mark.parametrize("kind", ["cell", "default", "partial", "list", "method"])
def test_freed_by_reference_counts(without_gc, transform, kind):
    def make():
        model = Scale()
        if kind == "cell":
            f = lambda x: model(x)  # noqa: E731
        elif kind == "default":
            f = lambda x, m=model: m(x)  # noqa: E731
        elif kind == "partial":
            f = functools.partial(lambda m, x: m(x), model)
        elif kind == "list":
            models = [model]
            f = lambda x: models[0](x)  # noqa: E731
        else:
            f = model.__call__
        return weakref.ref(model), transform(f)

    alive, f = make()
    x = jnp.ones(2) if transform is vmap else jnp.array(1.0)
    f(x)
    f(x)
    assert alive() is not None
    del f
    assert alive() is None


def test_a_name_does_not_keep_the_last_model_long(module, without_gc):
    made = module(SCALE + "@dx.jit\ndef f(x):\n    return model(x)\n")
    made.f(1.0)
    alive = weakref.ref(made.model)
    made.model = made.Scale()
    made.f(1.0)
    assert alive() is None


def test_no_tracer_is_left(module):
    made = module(SCALE + "def helper(x):\n    return model(x)\n@dx.jit\ndef f(x):\n    return helper(x)\n")
    model, models = Scale(), [Scale()]
    with jax.checking_leaks():
        assert float(made.f(1.0)) == 2
        assert float(dx.jit(lambda x: models[0](model(x)))(1.0)) == 4


# ================================================================= threads


def test_eight_threads_call_one_function():
    model = Scale()
    f = dx.jit(lambda x: model.factor.value * x)
    barrier = threading.Barrier(8)

    def work(number):
        barrier.wait()
        return [float(f(float(number))) for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    assert results == [[2.0 * n] * 50 for n in range(8)]


def test_eight_threads_count_in_one_model():
    model = Scale()
    f = dx.jit(lambda x: model(x))
    f(1.0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(f, [1.0] * 80))
    assert calls_of(model) == 81


def test_threads_that_trace_at_once_with_globals(module):
    made = module(SCALE + "def g(x):\n    return model(x)\n")
    barrier, g = threading.Barrier(8), made.g

    def work(number):
        barrier.wait()
        return float(dx.jit(lambda x: g(x) + number)(float(number)))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [3.0 * n for n in range(8)]
    assert calls_of(made.model) == 8
    assert made.g is g


# ================================================================= models that are being made


@dx.dataclass
class Parts(dx.Module):
    size: int = dx.field()
    _: dx.KW_ONLY
    rngs: dx.InitVar[dx.Rngs]

    @dx.submodule
    def parts(self, rngs):
        return dx.vmap(lambda rngs: dx.Linear(self.size, self.size, rngs=rngs))(rngs.split(3))

    scale: dx.Param[jax.Array] = dx.variable((size,), initializer=dx.initializers.ones)

    def __post_init__(self, rngs):
        self.doubled = dx.static(dx.jit(lambda: self.scale * 2))
        self.doubled()


def test_a_model_that_is_being_made_is_no_argument_yet():
    assert Parts(2, rngs=dx.Rngs(0)).parts.kernel.shape == (3, 2, 2)


def test_once_made_it_is_one():
    model = Parts(2, rngs=dx.Rngs(0))
    assert model.doubled().tolist() == [2.0, 2.0]
    model.scale.value = jnp.array([3.0, 4.0])
    assert model.doubled().tolist() == [6.0, 8.0]
