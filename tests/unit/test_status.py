"""What decides whether an attribute is data: specifier, then annotation, then value."""

import collections
import dataclasses
import enum
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NewType,
    Optional,
    Protocol,
    TypeVar,
    Union,
    get_overloads,
    get_type_hints,
)

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import typing_extensions
from jaxtyping import Float, PyTree

import declax as dx
from declax import errors
from declax._fields.annotations import AnnotationScope
from declax._fields.deciding import decide
from declax._fields.specifiers import DataOptions, Status

if TYPE_CHECKING:
    from nowhere import Missing

T = TypeVar("T")
BoundToModule = TypeVar("BoundToModule", bound=dx.Module)
Meters = NewType("Meters", int)
Alias = typing_extensions.TypeAliasType("Alias", list[dx.Linear])

DATA, STATIC, SNAPSHOT = Status.DATA, Status.STATIC, Status.SNAPSHOT


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Calls(Protocol):
    def __call__(self, x: Any) -> Any: ...


class Holder(dx.Module):
    """A scope for annotations."""


def status_of(annotation):
    return decide(annotation, AnnotationScope(Holder)).status


# --- annotations ------------------------------------------------------------------

DECIDED = {
    "data": [
        jax.Array,
        np.ndarray,
        jax.Ref,
        jax.ShapeDtypeStruct,
        dx.Param,
        dx.Param[jax.Array],
        dx.Variable[Any],
        dx.Module,
        dx.Linear,
        dx.Rngs,
        dx.List[dx.Linear],
        dx.Object,
        list[dx.Linear],
        tuple[dx.Linear, ...],
        tuple[int, jax.Array],
        dict[str, dx.Linear],
        Mapping[str, jax.Array],
        Sequence[dx.Linear],
        Iterable[dx.Param],
        collections.deque[dx.Linear],
        list[dict[str, tuple[jax.Array, ...]]],
        list[dx.Linear],
        Optional[dx.Param],
        dx.Param[jax.Array] | None,
        Union[jax.Array, np.ndarray],
        jax.Array | float,
        jax.typing.ArrayLike,
        Float[jax.Array, "batch dim"],
        Float[jax.Array, "batch dim"] | None,
        list[Float[np.ndarray, "..."]],
        jaxtyping.PRNGKeyArray,
        dx.Data[int],
        dx.Data[list],
        Annotated[jax.Array, "a note"],
        BoundToModule,
        list[BoundToModule],
        Alias,
        Final[jax.Array],
        "jax.Array",
        "list[dx.Linear]",
        list["dx.Linear"],
        Optional["dx.Linear"],
    ],
    "static": [
        int,
        float,
        bool,
        complex,
        str,
        bytes,
        None,
        type(None),
        np.float32,
        type,
        type[dx.Module],
        Color,
        Level,
        np.dtype,
        slice,
        range,
        Callable,
        Callable[[jax.Array], jax.Array],
        typing.Callable[..., Any],
        functools.partial,
        Literal["same", "valid"],
        int | str,
        Optional[int],
        Union[Callable[..., Any], None],
        tuple[int, ...],
        tuple[int, str],
        tuple[()],
        frozenset[str],
        Meters,
        dx.Static[Any],
        dx.Static[list[jax.Array]],
        Annotated[int, "a note"],
        ClassVar[int],
        "int",
        "Optional[int]",
    ],
    "snapshot": [
        list[int],
        dict[str, int],
        set[str],
        Sequence[int],
        Mapping[str, float],
        list[Callable[..., Any]],
        Optional[list[str]],
        tuple[list[int], ...],
        collections.OrderedDict[str, int],
        "list[int]",
    ],
    None: [
        Any,
        object,
        Calls,
        T,
        list,
        dict,
        tuple,
        list[Any],
        list[T],
        dict[str, Any],
        "Missing",
        "list[Missing]",
        "Missing | None",
        "Missing.Part",
        "Missing[int]",
        Optional["Missing"],
        "not an annotation",
        "1 +",
        Holder.__init_subclass__,
        dx.Linear | Callable[..., Any],
        Union[str, jax.Array],
        list[Union[str, jax.Array]],
        collections.abc.Hashable,
        PyTree[jax.Array],
        PyTree,
    ],
}


@pytest.mark.parametrize(
    ("expected", "annotation"), [(name, a) for name, annotations in DECIDED.items() for a in annotations], ids=str
)
def test_what_an_annotation_says(expected, annotation):
    assert status_of(annotation) is (Status(expected) if expected else None)


# --- fields of a dataclass --------------------------------------------------------


def dataclass_with(annotation, **body):
    return dx.dataclass(
        type("Model", (dx.Module,), {"__annotations__": {"a": annotation}, "__module__": __name__, **body})
    )


def status_in(model, name="a"):
    from declax._classes.pytree import layout_of

    return layout_of(model).statuses[name]


def linear():
    return dx.Linear(1, 1, rngs=dx.Rngs(0))


def test_a_list_of_layers_is_data_without_a_wrapper():
    Model = dataclass_with(list[dx.Linear])
    model = Model([linear(), linear()])
    assert len(jax.tree.leaves(model)) == 4
    assert isinstance(model.a, list)
    assert status_in(Model([])) is DATA


def test_an_optional_variable_is_data_when_it_is_none():
    Model = dataclass_with(Optional[dx.Param])
    model = Model(None)
    assert status_in(model) is DATA
    model.a = dx.Param(jnp.ones(2))
    assert len(jax.tree.leaves(model)) == 1


def test_the_specifier_wins_over_the_annotation():
    assert status_in(dataclass_with(int, a=dx.data())(3)) is DATA
    assert status_in(dataclass_with(Any, a=dx.static())(3)) is STATIC
    assert status_in(dataclass_with(list[int], a=dx.data())([1, 2])) is DATA
    assert status_in(dataclass_with(list[int], a=dx.static())([1, 2])) is SNAPSHOT
    assert status_in(dataclass_with(list, a=dx.static())([1, 2])) is SNAPSHOT


def test_the_annotation_wins_over_the_value():
    assert status_in(dataclass_with(jax.Array)(3.0)) is DATA
    with pytest.raises(errors.StatusError, match="data was assigned to an attribute that is static"):
        dataclass_with(int)(jnp.ones(2))


def test_the_value_decides_where_nothing_else_does():
    Model = dataclass_with(Any)
    assert status_in(Model(3)) is STATIC
    assert status_in(Model([3])) is SNAPSHOT
    assert status_in(Model(jnp.ones(2))) is DATA
    assert status_in(Model(linear())) is DATA
    with pytest.raises(errors.StatusError, match="data was assigned to an attribute that is static"):
        Model([jnp.ones(2)])


def test_containers_of_undecided_parts_are_looked_into():
    for annotation in (list[Any], "list[Missing]", list, dict[str, T], PyTree, dx.Linear | Callable[..., Any]):
        Model = dataclass_with(annotation)
        assert status_in(Model([linear()])) is DATA
    assert status_in(dataclass_with(list[Any])([1, "a"])) is SNAPSHOT
    assert status_in(dataclass_with(tuple)((1, "a"))) is STATIC
    assert status_in(dataclass_with(Union[dx.Module, Callable[..., Any]])(jax.nn.relu)) is STATIC


def test_a_tag_in_a_constructor_call_wins_over_all():
    model = dataclass_with(int)(dx.data(3))
    assert model.a == 3
    assert jax.tree.leaves(model) == [3]
    assert jax.tree.leaves(dataclass_with(jax.Array)(dx.static(3))) == []


def test_a_type_parameter_is_decided_by_the_value():
    @dx.dataclass
    class Box(dx.Module, Generic[T]):
        item: T

    assert jax.tree.leaves(Box(3)) == []
    assert len(jax.tree.leaves(Box[Any](linear()))) == 2


# --- text annotations -------------------------------------------------------------

FUTURE = """
from __future__ import annotations
from typing import TYPE_CHECKING, Optional
import jax
import jax.numpy as jnp
import declax as dx
if TYPE_CHECKING:
    from nowhere import Missing

@dx.dataclass
class Early(dx.Module):
    later: Optional[Later]
    many: list[Later]
    missing: Missing
    maybe: Missing | None
    itself: Early | None = None

class Later(dx.Module):
    def __init__(self):
        self.w = jnp.ones(2)

def make_local():
    class Part(dx.Module):
        def __init__(self):
            self.w = jnp.ones(2)

    @dx.dataclass
    class Whole(dx.Module):
        part: Part | None
        parts: list[Part]
        count: int = 3

    class Open(dx.Module):
        parts: list[Part]
        def __init__(self):
            self.parts = []

    return Part, Whole, Open
"""


@pytest.fixture
def future():
    import sys
    import types

    module = types.ModuleType("declared_in_text")
    sys.modules[module.__name__] = module
    exec(compile(FUTURE, module.__name__, "exec"), vars(module))
    yield module
    del sys.modules[module.__name__]


def test_forward_references_are_resolved_at_the_first_construction(future):
    early = future.Early(None, [], 3, None)
    assert [status_in(early, n) for n in ("later", "many", "itself")] == [DATA, DATA, DATA]
    assert [status_in(early, n) for n in ("missing", "maybe")] == [STATIC, STATIC]
    full = future.Early(future.Later(), [future.Later()], jnp.ones(1), linear(), early)
    assert len(jax.tree.leaves(full)) == 5
    assert status_in(full, "missing") is DATA
    assert future.Early(None, [], 3, None).many == []


def test_names_of_the_functions_around_are_found(future):
    Part, Whole, Open = future.make_local()
    empty = Whole(None, [])
    assert [status_in(empty, n) for n in ("part", "parts", "count")] == [DATA, DATA, STATIC]
    assert len(jax.tree.leaves(Whole(Part(), [Part(), Part()]))) == 3
    opened = Open()
    assert status_in(opened, "parts") is DATA
    opened.parts = [Part()]
    assert len(jax.tree.leaves(opened)) == 1


def test_type_checking_names_in_a_dataclass():
    @dx.dataclass
    class Model(dx.Module):
        a: "Missing"
        b: "list[Missing]"
        c: "jaxtyping.Float[Missing, 'a b']"  # the text of a shape

    model = Model(linear(), [linear()], jnp.ones(2))
    assert len(jax.tree.leaves(model)) == 5


@pytest.mark.skipif("sys.version_info < (3, 12)")
def test_type_parameters_in_the_new_syntax():
    names = {"dx": dx, "jax": jax, "__name__": __name__}
    exec(
        "@dx.dataclass\n"
        "class Box[T](dx.Module):\n"
        "    item: T\n"
        "    items: 'list[T]'\n"
        "type Weights = list[jax.Array]\n"
        "@dx.dataclass\n"
        "class Model(dx.Module):\n"
        "    weights: Weights\n",
        names,
    )
    assert len(jax.tree.leaves(names["Box"](linear(), [linear()]))) == 4
    assert status_in(names["Model"]([]), "weights") is DATA


# --- open classes -----------------------------------------------------------------


class Open(dx.Module):
    layers: list[dx.Linear]
    count: int
    anything: Any
    forced: dx.Data[int]
    fixed: dx.Static[Any]


def test_annotations_of_an_open_class_decide_only_for_data():
    model = Open()
    model.layers = []
    model.count = jnp.ones(1)
    model.forced = 3
    model.fixed = (1, 2)
    statuses = {n: status_in(model, n) for n in ("layers", "count", "forced", "fixed")}
    assert statuses == {"layers": DATA, "count": DATA, "forced": DATA, "fixed": STATIC}
    with pytest.raises(errors.StatusError, match="data was assigned to an attribute that is static"):
        model.fixed = jnp.ones(2)
    other = Open()
    other.count = 3
    assert status_in(other, "count") is STATIC


def test_annotations_of_an_undecorated_subclass():
    @dx.dataclass
    class Base(dx.Module):
        a: int

    class Sub(Base):
        parts: list[dx.Linear]

        def __init__(self, a):
            super().__init__(a)
            self.parts = []

    assert status_in(Sub(1), "parts") is DATA


# --- how a status lives -----------------------------------------------------------


def test_a_status_stays_on_reassignment():
    model = Open()
    model.x = jnp.ones(2)
    model.x = "text"
    assert jax.tree.leaves(model) == ["text"]
    model.y = "text"
    with pytest.raises(errors.StatusError, match="data was assigned to an attribute that is static"):
        model.y = jnp.ones(2)
    assert model.y == "text"


def test_tags_change_a_status():
    model = Open()
    model.x = 1
    model.x = dx.data(2)
    assert jax.tree.leaves(model) == [2]
    model.x = dx.static(3)
    assert jax.tree.leaves(model) == []
    assert model.x == 3
    model.x = dx.data(None)
    model.x = jnp.ones(1)
    assert len(jax.tree.leaves(model)) == 1


def test_a_deleted_attribute_starts_anew():
    model = Open()
    model.x = 3
    del model.x
    model.x = jnp.ones(2)
    assert status_in(model, "x") is DATA
    with pytest.raises(AttributeError, match="nothing"):
        del model.nothing


def test_registered_types_are_data():
    class Table:
        pass

    assert not dx.is_data(Table())
    holder = dx.Object()
    holder.table = Table()
    assert jax.tree.leaves(dx.state(holder)) == []
    assert dx.register_data_type(Table) is Table
    model = Open()
    model.table = Table()
    assert dx.is_data(model.table)
    assert status_in(model, "table") is DATA
    assert jax.tree.leaves(dx.state(holder)) == [holder.table]
    assert status_of(Table) is DATA
    assert status_of(list[Table]) is DATA


# --- snapshots --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, 2], lambda v: v.append(3)),
        ({"a": 1}, lambda v: v.update(b=2)),
        ({1, 2}, lambda v: v.add(3)),
        ({"a": [1]}, lambda v: v["a"].append(2)),
        ([{"a": {1}}], lambda v: v[0]["a"].add(2)),
        (bytearray(b"x"), lambda v: v.extend(b"y")),
        (collections.deque([1]), lambda v: v.append(2)),
    ],
)
@pytest.mark.parametrize("is_declared", [True, False])
def test_a_static_container_is_a_snapshot(value, change, is_declared):
    import copy

    value = copy.deepcopy(value)
    model = dataclass_with(Any)(value) if is_declared else Open()
    if not is_declared:
        model.a = value
    before = jax.tree.structure(model)
    assert jax.tree.structure(model) == before
    assert hash(jax.tree.structure(model)) == hash(before)
    rebuilt = jax.tree.unflatten(before, [])
    assert rebuilt.a == value
    assert rebuilt.a is not value
    assert type(rebuilt.a) is type(value)
    change(value)
    assert jax.tree.structure(model) != before
    assert rebuilt.a != value


@pytest.mark.parametrize("jit", [jax.jit, dx.jit])
def test_a_change_in_place_traces_again(jit):
    traces = []

    @jit
    def total(model):
        traces.append(list(model.a))
        return jnp.float32(sum(model.a))

    model = dataclass_with(list[int])([1, 2])
    assert total(model) == total(model) == 3
    model.a.append(4)
    assert total(model) == 7
    assert traces == [[1, 2], [1, 2, 4]]


def test_a_static_object_without_a_hash_is_compared_by_its_equality_or_identity():
    class NoHash:
        __hash__ = None

    Model = dataclass_with(Any)
    value = NoHash()
    assert jax.tree.structure(Model(value)) == jax.tree.structure(Model(value))
    assert jax.tree.structure(Model(value)) != jax.tree.structure(Model(NoHash()))


Json = Union[str, list["Json"], dict[str, "Json"]]
Tree = Union[jax.Array, list["Tree"], dict[str, "Tree"]]
Numbers = Union[int, list["Numbers"]]
Frozen = Union[str, tuple["Frozen", ...]]
Mixed = Union[str, list["Others"]]
Others = Union[jax.Array, list["Mixed"]]
Itself = list["Itself"]
Text = "str | list[Text] | tuple[Text, ...]"
Elsewhere = "NameOfAnotherModule | tuple[Elsewhere, ...] | list[Elsewhere]"
Alias = typing_extensions.TypeAliasType("Alias", Union[str, list["Alias"]])  # type: ignore[misc]  # defined by itself


@pytest.mark.parametrize(
    ("annotation", "status"),
    [
        ("Json", Status.SNAPSHOT),
        ("list[Json]", Status.SNAPSHOT),
        ("Json | None", Status.SNAPSHOT),
        ("Tree", Status.DATA),
        ("dict[str, Tree]", Status.DATA),
        ("Numbers", Status.SNAPSHOT),
        ("Frozen", Status.STATIC),
        ("Mixed", None),
        ("Others", None),
        ("Itself", None),
        ("Alias", Status.SNAPSHOT),
        ("Text", Status.SNAPSHOT),
        ("Elsewhere", None),
    ],
)
def test_a_recursive_alias_counts_within_itself_as_outside(annotation, status):
    Model = dataclass_with(annotation)
    assert decide(annotation, AnnotationScope(Model)).status is status
    made = Model([])
    assert jax.tree.leaves(made) == []


@dataclasses.dataclass
class Holder:
    content: object


@pytest.mark.parametrize("make", [lambda: jnp.ones(1), Open, lambda: dx.Param(1.0), lambda: [(Holder(Open()),)]])
def test_data_in_a_static_dataclass_is_refused(make):
    model = Open()
    with pytest.raises(errors.StatusError, match=r"Open.a: data was assigned to an attribute that is static"):
        model.a = Holder(make())
    model.a = held = Holder(1)
    held.content = make()
    with pytest.raises(errors.StatusError, match=r"Open.a: data was assigned to an attribute that is static"):
        dx.check_pytree(model)


def test_an_array_that_came_into_a_static_list_is_named_when_it_is_hashed():
    model = Open()
    model.a = [1]
    model.a.append(jnp.ones(1))
    with pytest.raises(errors.StatusError, match=r"Open.a\[1\]: an array cannot be static"):
        jax.tree.structure(model)


def test_a_static_tuple_field_may_get_a_list():
    model = dataclass_with(tuple[int, ...])([1, 2])
    assert jax.tree.unflatten(jax.tree.structure(model), []).a == [1, 2]
    model.a = (1, 2)
    assert jax.tree.unflatten(jax.tree.structure(model), []).a == (1, 2)


def test_a_container_that_holds_itself():
    loop: list = [1]
    loop.append(loop)
    model = Open()
    model.a = loop
    with pytest.raises(errors.StatusError, match="a static container holds itself"):
        jax.tree.structure(model)


# ================================================================= deep containers


def deep(value: Any, make: Callable[[Any], Any], levels: int = 10_000) -> Any:
    for _ in range(levels):
        value = make(value)
    return value


DEEP: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"k": inner},
}


@pytest.mark.parametrize("tag", [lambda v: v, dx.data, dx.static], ids=["no tag", "data", "static"])
@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
def test_a_deep_container_is_one_error_that_names_the_attribute_and_the_limit(make, tag):
    model = dx.Module()
    model.sizes = 3
    with pytest.raises(errors.DepthError, match=r"Module\.sizes\[.*more than 400 levels deep"):
        model.sizes = tag(deep(1, make))
    assert model.sizes == 3
    with pytest.raises(errors.DepthError, match=r"Module\.other\["):
        model.other = tag(deep(1, make))
    assert not hasattr(model, "other")


def test_a_deep_container_in_a_list():
    with pytest.raises(errors.DepthError, match=r"List\[0\]\[0\].*more keys"):
        dx.List([deep(1, DEEP["list"])])


def test_containers_up_to_the_limit_are_used_as_others():
    model = dx.Module()
    model.static = deep(1, DEEP["list"], errors.MAX_DEPTH)
    model.arrays = dx.data(deep(jnp.ones(2), DEEP["dict"], errors.MAX_DEPTH))
    copied = dx.clone(model)
    assert dx.graphdef(copied) is dx.graphdef(model)
    assert len(jax.tree.leaves(dx.jit(lambda m: m)(model))) == 1
    with pytest.raises(errors.DepthError, match="nested more than 400"):
        model.static = [model.static]


def test_a_shared_container_is_no_deep_one():
    model, shared = dx.Module(), [1]
    model.sizes = [shared] * 1_000
    model.pairs = deep(shared, lambda inner: [inner, inner], 5)
    assert len(dx.clone(model).sizes) == 1_000


def test_tags_and_data_are_found_in_deep_containers():
    model = dx.Module()
    with pytest.raises(errors.StatusError, match="found the tags"):
        model.x = deep(dx.static(1), DEEP["tuple"], 300)
    with pytest.raises(errors.StatusError, match="data was assigned"):
        model.y = dx.static(deep(jnp.ones(1), DEEP["tuple"], 300))


@pytest.mark.parametrize("use", [dx.graphdef, dx.clone, dx.jit(lambda m: 1)], ids=["graphdef", "clone", "jit"])
@pytest.mark.parametrize("tag", [dx.data, dx.static], ids=["data", "static"])
def test_a_container_that_grew_deep_in_place_is_one_error(tag, use):
    model, sizes = dx.Module(), []
    model.part = dx.Module()
    model.part.sizes = tag(sizes)
    sizes.append(deep(1, DEEP["list"]))
    with pytest.raises(errors.DepthError, match=r"Module\.sizes\[0\]\[0\].*more than 400 levels deep"):
        use(model)
    assert model.part.sizes is sizes


def test_a_deep_container_at_the_root():
    with pytest.raises(errors.DepthError, match=r"a list\[0\]\[0\].*more than 400 levels deep"):
        dx.graphdef(deep(dx.Param(1.0), DEEP["list"]))


# ---- models as keys


class Keyed(dx.Module):
    def __init__(self, make):
        self.a = dx.Linear(2, 2, rngs=dx.Rngs(0))
        self.decay = make(self.a)


@dx.dataclass
class DeclaredTable(dx.Module):
    decay: dict[Any, float]


@pytest.mark.parametrize(
    "make",
    [
        lambda a: {a: 0.5},
        lambda a: {"x": 1, a: 0.5},
        lambda a: {(a, "kernel"): 0.5},
        lambda a: [{"groups": ({a: 0.5},)}],
        lambda a: dx.data({a: 0.5}),
        lambda a: dx.static({a: 0.5}),
        lambda a: collections.defaultdict(float, {a: 0.5}),
        lambda a: collections.OrderedDict({a: 0.5}),
    ],
)
def test_a_model_as_a_key_is_refused(make):
    with pytest.raises(
        dx.errors.StatusError, match=r"^Keyed\.decay: a Linear cannot be a key in an attribute"
    ) as caught:
        Keyed(make)
    assert "by the name or path of the part" in caught.value.fix
    with pytest.raises(dx.errors.StatusError, match="cannot be a key in an attribute"):
        DeclaredTable(make(dx.Linear(2, 2, rngs=dx.Rngs(0))))


def test_a_model_that_becomes_a_key_later_is_refused_by_the_next_walk():
    model = Keyed(lambda _: {})
    model.decay[model.a] = 0.5
    with pytest.raises(dx.errors.StatusError, match=r"Keyed\.decay: a Linear cannot be a key in an attribute"):
        dx.split(model)


def test_a_refused_key_leaves_the_attribute_as_it_was():
    model = Keyed(lambda _: {"a": 0.5})
    with pytest.raises(dx.errors.StatusError, match="cannot be a key"):
        model.decay = {model.a: 0.5}
    assert model.decay == {"a": 0.5}


def test_other_keys_are_not_refused():
    @dx.dataclass(frozen=True)
    class Key(dx.Pytree):
        name: str

    table = {1: 2, (1, "a"): {dx.Linear: 3}, jax.numpy.float32: 1, len: 2, frozenset({1}): 3, Key("a"): 4}
    model = Keyed(lambda _: table)
    assert dx.jit(lambda model: model.decay[Key("a")] + 0)(model) == 4


def test_the_plain_overload_of_field_has_all_options():
    """It names them, for editors, and for a checker that takes any keyword for one of an unpacked TypedDict."""
    plain = inspect.signature(get_overloads(dx.field)[0])
    assert plain.parameters.keys() == get_type_hints(DataOptions).keys()
    assert {parameter.kind for parameter in plain.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
