"""`dx.dataclass` against `dataclasses.dataclass`, declaration by declaration."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax import errors

T = TypeVar("T")

# --- the same declarations, decorated by either ---------------------------------
# Each function declares classes and returns one of them, with calls to compare.


def plain(decorate, base):
    @decorate()
    class Model(base):
        a: int
        b: str = "x"

    return Model, [((1,), {}), ((1, "y"), {}), ((), {"a": 1, "b": "z"}), ((), {}), ((1, 2, 3), {})]


def with_kw_only_marker(decorate, base):
    @decorate()
    class Model(base):
        a: int
        _: dataclasses.KW_ONLY
        b: int = 2
        c: int

    return Model, [((1,), {"c": 3}), ((1, 2), {}), ((1,), {"b": 5, "c": 6}), ((1,), {})]


def with_kw_only_option(decorate, base):
    @decorate(kw_only=True)
    class Model(base):
        a: int = 1
        b: int

    return Model, [((), {"b": 3}), ((1, 2), {})]


def with_init_var(decorate, base):
    @decorate()
    class Model(base):
        a: int
        scale: dataclasses.InitVar[int]
        shift: dataclasses.InitVar[int] = 1
        b: int = dataclasses.field(init=False)

        def __post_init__(self, scale, shift):
            self.b = self.a * scale + shift

    return Model, [((2, 3), {}), ((2, 3, 4), {}), ((2,), {}), ((), {"a": 1, "scale": 2})]


def with_init_false(decorate, base):
    @decorate()
    class Model(base):
        a: int
        b: int = dataclasses.field(default=7, init=False)
        c: tuple[int, ...] = dataclasses.field(default_factory=lambda: (1, 2), init=False)

    return Model, [((1,), {}), ((1, 2), {})]


def with_default_factory(decorate, base):
    @decorate()
    class Model(base):
        a: list[int] = dataclasses.field(default_factory=list)
        b: dict[str, int] = dataclasses.field(default_factory=lambda: {"x": 1})

    return Model, [((), {}), (([1],), {}), (([1], {}), {})]


def inherited(decorate, base):
    @decorate()
    class Parent(base):
        a: int
        b: int = 2

    @decorate()
    class Model(Parent):
        c: int = 3
        a: int = 4

    return Model, [((), {}), ((1,), {}), ((1, 2, 5), {})]


def with_mixed_markers(decorate, base):
    @decorate(kw_only=True)
    class Parent(base):
        name: str = "n"

    @decorate()
    class Model(Parent):
        a: int
        b: int = 2

    return Model, [((1,), {}), ((1, 5), {"name": "m"}), ((1, 5, "m"), {})]


def with_class_var(decorate, base):
    @decorate()
    class Model(base):
        a: int
        unit: ClassVar[str] = "m"

    return Model, [((1,), {}), ((1, "k"), {})]


def with_own_init(decorate, base):
    @decorate()
    class Model(base):
        a: int
        b: int = 2

        def __init__(self, total):
            self.a = total - 1
            self.b = 1

    return Model, [((5,), {}), ((5, 6), {})]


def without_init(decorate, base):
    @decorate(init=False)
    class Model(base):
        a: int = 1

    return Model, [((), {}), ((3,), {})]


def generic(decorate, base):
    @decorate()
    class Model(base, Generic[T]):
        item: T
        count: int = 1

    return Model, [((1,), {}), (("x", 2), {})]


def with_hidden_fields(decorate, base):
    @decorate(eq=True)
    class Model(base):
        a: int
        b: int = dataclasses.field(default=1, compare=False)
        c: int = dataclasses.field(default=2, repr=False)

    return Model, [((1,), {}), ((1, 5), {}), ((1, 5, 6), {})]


DECLARATIONS = [
    plain,
    with_kw_only_marker,
    with_kw_only_option,
    with_init_var,
    with_init_false,
    with_default_factory,
    inherited,
    with_mixed_markers,
    with_class_var,
    with_own_init,
    without_init,
    generic,
    with_hidden_fields,
]


class Plain:
    """What the standard decorates in these tests."""


def signature_of(cls):
    return [(p.name, p.kind, p.default) for p in inspect.signature(cls).parameters.values()]


def outcome(cls, args, kwargs):
    try:
        made = cls(*args, **kwargs)
    except TypeError as error:
        return type(error).__mro__[-3]  # TypeError, also of an error of declax
    return {f.name: getattr(made, f.name) for f in dataclasses.fields(made) if hasattr(made, f.name)}


@pytest.mark.parametrize("declare", DECLARATIONS)
@pytest.mark.parametrize("base", [dx.Module, dx.Pytree, dx.Object])
def test_constructors_are_the_standard_ones(declare, base):
    standard, calls = declare(dataclasses.dataclass, Plain)
    ours, _ = declare(dx.dataclass, base)
    assert signature_of(ours) == signature_of(standard)
    for args, kwargs in calls:
        got, expected = outcome(ours, args, kwargs), outcome(standard, args, kwargs)
        assert got == expected or (isinstance(got, type) and isinstance(expected, type)), (args, kwargs)


@pytest.mark.parametrize("declare", DECLARATIONS)
def test_fields_are_the_standard_ones(declare):
    standard, _ = declare(dataclasses.dataclass, Plain)
    ours, _ = declare(dx.dataclass, dx.Module)

    def facts(cls):
        names = ("name", "init", "repr", "compare", "hash", "kw_only", "default")
        return [tuple(getattr(f, n) for n in names) for f in dataclasses.fields(cls)]

    assert facts(ours) == facts(standard)
    assert ours.__match_args__ == standard.__match_args__
    assert dataclasses.is_dataclass(ours)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eq": True},
        {"eq": True, "frozen": True},
        {"eq": False, "frozen": True},
        {"eq": True, "unsafe_hash": True},
        {"eq": True, "order": True},
        {"match_args": False},
        {"init": False},
    ],
)
def test_options_do_what_the_standard_does(options):
    def declare(decorate, base):
        @decorate(**{"eq": False, **options})
        class Model(base):
            a: int = 1
            b: tuple[int, ...] = (1, 2)

        return Model

    standard, ours = declare(dataclasses.dataclass, Plain), declare(dx.dataclass, dx.Module)
    assert (ours.__hash__ is None) == (standard.__hash__ is None)
    assert hasattr(ours, "__match_args__") == hasattr(standard, "__match_args__")
    for compare in (lambda c: c() == c(), lambda c: c() == 1, lambda c: c() != c()):
        assert compare(ours) == compare(standard)
    if standard.__hash__ is not None:
        assert (hash(ours()) == hash(ours())) == (hash(standard()) == hash(standard()))
    if options.get("order"):
        assert ours(1) < ours(2)
        assert not ours(2) <= ours(1)
    else:
        with pytest.raises(TypeError, match="not supported"):
            assert ours() < ours()


def test_models_compare_by_identity_unless_values_are_asked_for():
    @dx.dataclass
    class Model(dx.Module):
        a: int

    one, other = Model(1), Model(1)
    assert one != other
    assert one == one
    assert len({one, other}) == 2


def test_a_frozen_dataclass_is_a_value():
    @dx.dataclass(frozen=True)
    class Point(dx.Pytree):
        x: int
        y: int = 0

    assert Point(1) == Point(1)
    assert hash(Point(1)) == hash(Point(1))
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        Point(1).x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del Point(1).x
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'z'"):
        Point(1).z = 2


@pytest.mark.parametrize("is_inherited", [False, True])
def test_the_error_of_a_frozen_object_names_the_class_and_another_object(is_inherited):
    @dx.dataclass(frozen=True)
    class Scale(dx.Module):
        by: int = dx.field()

        def __call__(self, x: int) -> int:
            self.by = x
            return x

    if is_inherited:

        @dx.dataclass(frozen=True)
        class Scaled(Scale):
            more: int = dx.field(default=1)

        scale: Scale = Scaled(2)
    else:
        scale = Scale(2)
    with pytest.raises(dataclasses.FrozenInstanceError) as caught:
        scale(3)
    name = type(scale).__name__
    assert str(caught.value).startswith(f"{name}.by: cannot assign to field 'by': the class is frozen")
    assert "dx.replace(obj, by=...)" in str(caught.value)
    assert scale.by == 2
    assert dx.replace(scale, by=3).by == 3
    assert copy.deepcopy(scale).by == 2


def test_eq_compares_arrays_by_value():
    @dx.dataclass(eq=True)
    class Model(dx.Module):
        w: jax.Array
        parts: list[jax.Array]
        p: dx.Param[jax.Array]
        sizes: list[int]

    def make(scale=1.0, size=3):
        return Model(jnp.ones(3) * scale, [jnp.zeros(2)], dx.Param(jnp.ones(2)), [size])

    assert make() == make()
    assert make() != make(2.0)
    assert make() != make(size=4)
    assert make() != 3
    assert Model(jnp.ones(3), [], dx.Param(1), []) != Model(jnp.ones(4), [], dx.Param(1), [])
    assert Model(jnp.ones(3), [], dx.Param(1), []) != Model(jnp.ones(3, int), [], dx.Param(1), [])
    assert Model.__hash__ is None


@dx.dataclass(frozen=True)
class Value(dx.Pytree):
    size: int = dx.field()
    weight: jax.Array = dx.field()
    mixed: object = dx.field(default=None)
    note: str = dx.field(default="", compare=False)
    rngs: dx.InitVar[dx.Rngs] = dx.field(kw_only=True, default=None)
    layer: dx.Linear = dx.Linear(size, 2, rngs=rngs)
    parts: list[dx.Linear] = dx.repeat(size, dx.Linear(size, 2, rngs=rngs))


def test_equal_values_have_equal_hashes():
    def make(size=2, scale=1.0, mixed=None, note=""):
        return Value(size, jnp.ones(2) * scale, mixed, note, rngs=dx.Rngs(0))

    assert make() == make(note="other")
    assert hash(make()) == hash(make(note="other"))
    assert len({make(), make()}) == 1
    assert make() != make(scale=2.0)
    assert hash(make(mixed=dx.List([jnp.ones(1)]))) == hash(make(mixed=dx.List([jnp.ones(1)])))
    assert make(mixed=dx.List([jnp.ones(1)])) == make(mixed=dx.List([jnp.ones(1)]))
    assert hash(make(1)) == hash(make(1)) != hash(make())
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        hash(make(mixed=[1]))


def test_own_eq_and_hash_stay():
    @dx.dataclass(eq=True)
    class Model(dx.Module):
        a: int

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 3

    assert Model(1) == Model(2)
    assert hash(Model(1)) == 3


@pytest.mark.parametrize("name", ["order", "frozen"])
def test_order_and_frozen_imply_eq(name):
    @dx.dataclass(**{name: True})
    class Model(dx.Module):
        a: int

    assert Model(1) == Model(1)


def test_repr_can_be_left_out():
    @dx.dataclass(repr=False)
    class Model(dx.Module):
        a: int

    assert "object at" in repr(Model(1))

    @dx.dataclass
    class Hiding(dx.Module):
        a: int
        b: int = dx.static(default=2, repr=False)

    assert repr(Hiding(1)) == "Hiding(a=1)"


# --- errors of the standard ------------------------------------------------------


def test_a_default_before_none():
    def declare(decorate, base):
        @decorate
        class Model(base):
            a: int = 1
            b: int

    with pytest.raises(TypeError, match="non-default argument 'b' follows default argument"):
        declare(dataclasses.dataclass, Plain)
    with pytest.raises(errors.FieldError, match="a field without a default follows one with a default"):
        declare(dx.dataclass, dx.Module)


def test_order_without_eq():
    with pytest.raises(ValueError, match="eq must be true if order is true"):

        @dx.dataclass(eq=False, order=True)
        class Model(dx.Module):
            a: int


def test_a_frozen_class_with_a_parent_that_is_not():
    @dx.dataclass
    class Parent(dx.Module):
        a: int

    with pytest.raises(TypeError, match="Child: the class is frozen, and its base Parent is not") as caught:

        @dx.dataclass(frozen=True)
        class Child(Parent):
            b: int

    assert "@dx.dataclass(frozen=True)        # above class Parent too" in str(caught.value)


# --- text annotations: this file's are all text ----------------------------------


def test_markers_are_found_in_text():
    @dx.dataclass
    class Model(dx.Module):
        a: int = dx.field()
        _: dx.KW_ONLY
        rngs: dx.InitVar[dx.Rngs]
        unit: ClassVar[str] = "m"
        w: dx.Param[jax.Array] = dx.variable((a,), initializer=dx.initializers.ones)

    assert [f.name for f in dataclasses.fields(Model)] == ["a", "w"]
    assert list(inspect.signature(Model).parameters) == ["a", "rngs"]
    model = Model(2, rngs=dx.Rngs(0))
    assert not hasattr(model, "rngs")
    assert model.w.shape == (2,)


# --- __post_init__, properties, descriptors --------------------------------------


def test_post_init_of_a_parent():
    calls = []

    @dx.dataclass
    class Parent(dx.Module):
        a: int

        def __post_init__(self):
            calls.append("parent")

    @dx.dataclass
    class Child(Parent):
        b: int = 2

        def __post_init__(self):
            super().__post_init__()
            calls.append("child")
            self.total = self.a + self.b

    assert Child(1).total == 3
    assert calls == ["parent", "child"]


def test_a_field_with_a_property():
    @dx.dataclass
    class Doubling(dx.Module):
        size: int
        weight: jax.Array = dx.data(default=None)

        @property
        def size(self):
            return self._size

        @size.setter
        def size(self, value):
            self._size = 2 * value

    model = Doubling(3)
    assert model.size == 6
    again = jax.tree.unflatten(jax.tree.structure(model), jax.tree.leaves(model))
    assert again.size == 6
    again.size = 5
    assert again.size == 10


def test_a_descriptor_as_a_field():
    class Clipped:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, instance, owner):
            return 5 if instance is None else getattr(instance, self.name)

        def __set__(self, instance, value):
            setattr(instance, self.name, min(value, 10))

    def declare(decorate, base):
        @decorate
        class Model(base):
            x: int = Clipped()

        return Model

    standard, ours = declare(dataclasses.dataclass, Plain), declare(dx.dataclass, dx.Module)
    for value in (3, 30):
        assert ours(value).x == standard(value).x
    assert ours().x == standard().x == 5
    assert jax.tree.map(lambda v: v, ours(30)).x == 10


# --- the standard's functions ----------------------------------------------------


def test_replace_makes_a_new_object():
    @dx.dataclass
    class Model(dx.Module):
        a: int
        w: jax.Array
        b: int = 2

    model = Model(1, jnp.ones(2))
    for replaced in (dx.replace(model, a=5), dataclasses.replace(model, a=5)):
        assert (replaced.a, replaced.b) == (5, 2)
        assert replaced.w is model.w
        assert model.a == 1
    if sys.version_info >= (3, 13):
        import copy

        assert copy.replace(model, b=9).b == 9


def test_replace_makes_declared_members_anew():
    @dx.dataclass
    class Model(dx.Module):
        dim: int = dx.field()
        rngs: dx.InitVar[dx.Rngs]
        w: dx.Param[jax.Array] = dx.variable((dim,), initializer=dx.initializers.ones)

    model = Model(2, rngs=dx.Rngs(0))
    assert dx.replace(model, dim=3, rngs=dx.Rngs(0)).w.shape == (3,)
    with pytest.raises(errors.FieldError, match="replace constructs anew, and the constructor needs this argument"):
        dx.replace(model, dim=3)
    with pytest.raises(errors.FieldError, match="the object makes this field itself; replace cannot set it"):
        dx.replace(model, w=dx.Param(1), rngs=dx.Rngs(0))
    with pytest.raises(errors.FieldError, match=r"replace got no field's name; did you mean 'dim'\?"):
        dx.replace(model, dimm=3)
    with pytest.raises(errors.FieldError, match=r"replace got no field's name\."):
        dx.replace(model, zzzz=3)
    with pytest.raises(errors.FieldError, match="replace takes an instance of a dataclass"):
        dx.replace(dx.Module())


def test_replace_passes_other_errors_on():
    @dx.dataclass
    class Model(dx.Module):
        a: int

        def __post_init__(self):
            if self.a < 0:
                raise ValueError("negative")

    with pytest.raises(ValueError, match="negative"):
        dx.replace(Model(1), a=-1)


def test_asdict_and_astuple():
    @dx.dataclass
    class Inner(dx.Pytree):
        x: int

    @dx.dataclass
    class Outer(dx.Pytree):
        inner: Inner
        sizes: list[int]

    assert dataclasses.asdict(Outer(Inner(1), [2])) == {"inner": {"x": 1}, "sizes": [2]}
    assert dataclasses.astuple(Outer(Inner(1), [2])) == ((1,), [2])


def test_pattern_matching():
    @dx.dataclass
    class Point(dx.Pytree):
        x: int
        y: int

    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


# --- the standard decorator itself -----------------------------------------------


def test_the_standard_decorator_with_metadata():
    @dataclasses.dataclass
    class Model(dx.Pytree):
        a: int = dataclasses.field(metadata={"static": False})
        b: str = dataclasses.field(metadata={"static": True})
        c: int = 3

    assert jax.tree.leaves(Model(a=10, b="hello")) == [10]
    again = jax.tree.map(lambda x: x + 1, Model(10, "hello"))
    assert (again.a, again.b, again.c) == (11, "hello", 3)


def test_the_standard_decorator_with_specifiers():
    @dataclasses.dataclass
    class Model(dx.Pytree):
        a: int = dx.data()
        w: dx.Data[int] = 2
        s: dx.Static[Any] = None

    assert jax.tree.leaves(Model(1)) == [1, 2]


def test_the_standard_decorator_makes_no_members():
    @dataclasses.dataclass
    class Model(dx.Module):
        w: dx.Param[jax.Array] = dx.variable((2,), initializer=dx.initializers.ones, stream=None)  # noqa: RUF009  # under test

    with pytest.raises(errors.FieldError, match="the declarations of a class require the decorator of declax"):
        Model()


def test_make_dataclass():
    Model = dataclasses.make_dataclass("Model", [("a", int), ("w", jax.Array)], bases=(dx.Module,))
    assert len(jax.tree.leaves(Model(1, jnp.ones(2)))) == 1


# --- declarations that contradict themselves -------------------------------------


def test_options_that_do_not_exist():
    with pytest.raises(errors.FieldError, match="a Pytree takes no __slots__"):
        dx.dataclass(slots=True)(type("M", (dx.Module,), {"__annotations__": {"a": int}}))
    with pytest.raises(TypeError, match="unexpected keyword argument 'frozn'"):
        dx.dataclass(frozn=True)(type("M", (dx.Module,), {}))


@pytest.mark.parametrize("target", [int, type("Plain", (), {}), lambda: None])
def test_only_pytrees_can_be_decorated(target):
    with pytest.raises(errors.FieldError, match="dataclass decorates subclasses of Pytree"):
        dx.dataclass(target)


@pytest.mark.parametrize("default", [[1], {}, {1}, bytearray(b"x")])
@pytest.mark.parametrize("specify", [None, dx.data, dx.static])
def test_mutable_defaults(default, specify):
    with pytest.raises(errors.FieldError, match="a mutable default would be shared by all instances"):

        @dx.dataclass
        class Model(dx.Module):
            a: Any = default if specify is None else specify(default=default)


@pytest.mark.parametrize("default", [dx.Rngs(0), dx.Param(1), dx.List([1]), dx.Linear(1, 1, rngs=dx.Rngs(0))])
def test_data_as_a_default(default):
    with pytest.raises(errors.FieldError, match="a mutable default would be shared by all instances"):

        @dx.dataclass
        class Model(dx.Module):
            a: Any = default


def test_a_frozen_value_as_a_default():
    @dx.dataclass(frozen=True)
    class Point(dx.Pytree):
        x: int = 0

    @dx.dataclass
    class Model(dx.Module):
        at: Point = Point(3)

    assert Model().at.x == 3


@pytest.mark.parametrize("default", [np.zeros(2), jnp.zeros(2)])
def test_an_array_as_a_default(default):
    with pytest.raises(errors.FieldError, match="a mutable default would be shared by all instances"):

        @dx.dataclass
        class Model(dx.Module):
            a: jax.Array = default


def test_a_tag_as_a_default():
    with pytest.raises(errors.FieldError, match=r"Model.a: a tagged value cannot be a default"):

        @dx.dataclass
        class Model(dx.Module):
            a: int = dx.data(3)

    with pytest.raises(errors.FieldError, match=r"Model.a: a tagged value cannot be a default"):

        @dx.dataclass
        class Model(dx.Module):
            a: int = dx.static(default=dx.data(3))


def test_an_option_of_a_field_that_does_not_exist():
    with pytest.raises(TypeError, match="unexpected keyword argument 'defualt'"):
        dx.data(defualt=3)


@pytest.mark.parametrize("option", ["trainable", "weight_decay"])
@pytest.mark.parametrize("specify", [dx.field, dx.data, dx.static])
def test_an_option_of_variables_on_another_field(specify, option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        specify(**{option: False})


@pytest.mark.parametrize("name", ["sow", "perturb", "iter_modules", "iter_children", "set_attributes"])
def test_a_field_that_hides_a_method(name):
    with pytest.raises(errors.FieldError, match=f"a field named '{name}' hides a method of its base class"):
        dx.dataclass(type("Model", (dx.Module,), {"__annotations__": {name: int}}))
    with pytest.raises(errors.FieldError, match=f"an attribute named '{name}' hides a method of its base class"):
        setattr(dx.Module(), name, 3)


def test_a_field_may_have_the_name_of_a_default_in_a_layer():
    @dx.dataclass
    class Wide(dx.Linear):
        kernel_init: Callable[..., Any] = dx.static(default=dx.initializers.zeros)

    assert float(jnp.sum(Wide(2, 3, rngs=dx.Rngs(0)).kernel.value)) == 0


# --- constructor names -----------------------------------------------------------


def test_unknown_names_get_a_suggestion():
    @dx.dataclass
    class Model(dx.Module):
        hidden: int
        rngs: dx.InitVar[dx.Rngs] = None
        made: int = dataclasses.field(default=1, init=False)

    with pytest.raises(errors.ConstructionError, match=r"there is no parameter 'hiden'; did you mean 'hidden'\?"):
        Model(hiden=3)
    with pytest.raises(errors.ConstructionError, match=r"there is no parameter 'made'") as info:
        Model(hidden=3, made=3)
    assert info.value.why == "made is made by the object itself"
    assert info.value.expected == "hidden, rngs"
    with pytest.raises(errors.ConstructionError, match=r"there is no parameter 'xyz'\.") as info:
        Model(1, xyz=3)
    assert info.value.__cause__ is None


def test_unknown_names_of_an_open_class():
    class Model(dx.Module):
        def __init__(self, width, *, depth=1):
            self.width = width + depth

    with pytest.raises(errors.ConstructionError, match=r"there is no parameter 'widht'; did you mean 'width'\?"):
        Model(widht=3)
    with pytest.raises(errors.ConstructionError, match=r"no parameters"):
        dx.Module(width=3)


def test_other_type_errors_stay_as_they_are():
    class Model(dx.Module):
        def __init__(self, **options):
            len(3)

    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        Model(widht=3)

    @dx.dataclass
    class Own(dx.Module):
        a: int

        def __init__(self, width):
            self.a = len(width)

    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        Own(width=3)

    class New(dx.Module):
        def __new__(cls, size):
            return super().__new__(cls)

        def __init__(self, size):
            self.size = size

    with pytest.raises(TypeError, match="unexpected keyword argument"):
        New(siez=3)
    assert New(size=3).size == 3
