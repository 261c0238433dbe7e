"""The whole text of each error of fields, classes, attributes and containers, as golden files."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from declax import errors

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "errors_of_the_core.txt"
ones = dx.initializers.ones


def declare(annotations, base=dx.Module, options=None, **body):
    cls = type("Model", (base,), {"__annotations__": annotations, "__module__": __name__, **body})
    return dx.dataclass(**(options or {}))(cls)


def w(self, rngs):
    """A method that makes a part."""


def variable(shape=(1,), **options):
    return dx.variable(shape, **{"initializer": ones, "stream": None, **options})


dim_field: Any = dx.field()


def member(annotation: Any = dx.Param, **options):
    annotations = {"dim": int, "name": str, "flag": bool, "w": annotation}
    return declare(annotations, dim=dim_field, w=variable(**options))


def with_rngs(rngs):
    return declare({"rngs": dx.InitVar[dx.Rngs], "w": dx.Param}, w=dx.variable((1,), initializer=ones))(rngs)


@dx.dataclass
class Block(dx.Module):
    dim: int
    hidden: int = 2
    weight: jax.Array | None = None
    made: dx.Param = variable()


def opened():
    model = dx.Module()
    model.name = "a"
    return model


def sub_of_int():
    return dx.dataclass(int)


def by_the_standard():
    dataclasses.make_dataclass("Model", [("w", dx.Param, variable())], bases=(dx.Module,))()


def captured():
    model = opened()
    jax.jit(lambda x: setattr(model, "name", x))(1.0)


ERRORS = {
    # fields
    # classes
    "slots": lambda: declare({"a": int}, options={"slots": True}),
    "no Pytree": sub_of_int,
    "own slots": lambda: type("Model", (dx.Module,), {"__slots__": ("a",)}),
    "a tag as a default": lambda: declare({"a": int}, a=dx.data(3)),
    "a mutable default": lambda: declare({"a": list[int]}, a=[1]),
    "an array as a default": lambda: declare({"a": jax.Array}, a=jnp.zeros(2)),
    "a field that hides a method": lambda: declare({"sow": bool}),
    # declared members
    "a method that takes rngs in a class without them": lambda: declare({}, w=dx.submodule(w)),
    "an entry that is no size": lambda: member(shape=(1.5,))(1, "a", True),
    "no Variable": lambda: member(jax.Array),
    "a stream without rngs": lambda: member(stream="params"),
    "a size that is none": lambda: member(shape=(dim_field,))(-1, "a", True),
    "a wrong shape": lambda: member(initializer=lambda *_: jnp.ones(2))(1, "a", True),
    "rngs without streams": lambda: with_rngs(3),
    "the standard decorator": by_the_standard,
    # constructors
    "a misspelt parameter": lambda: Block(1, hiden=3),
    "a parameter that is near nothing": lambda: Block(1, zzz=3),
    "a parameter that the object makes": lambda: Block(1, made=3),
    "a value that its check refuses": lambda: declare({"a": int}, a=dx.static(check=lambda a: f"{a} is odd"))(3),
    # replace
    "replace of no dataclass": lambda: dx.replace(dx.Module()),
    "replace of an unknown field": lambda: dx.replace(Block(1), hiden=3),
    "replace of a made field": lambda: dx.replace(Block(1), made=3),
    "replace without an InitVar": lambda: dx.replace(dx.Linear(1, 1, rngs=dx.Rngs(0))),
    # attributes
    "data in a static attribute": lambda: setattr(opened(), "name", jnp.ones(2)),
    "data in a static field": lambda: Block(jnp.ones(2)),
    "data in a container": lambda: setattr(opened(), "name", [1, dx.Param(1)]),
    "data tagged static": lambda: setattr(opened(), "x", dx.static(jnp.ones(2))),
    "tags in a container": lambda: setattr(opened(), "x", [dx.data(1), dx.static(2)]),
    "an attribute that hides a method": lambda: setattr(opened(), "sow", 3),
    "another trace": captured,
    "check_pytree of something else": lambda: dx.check_pytree([]),
    # containers
    "data in a static element": lambda: dx.List([1]).__setitem__(0, jnp.ones(2)),
    "data in a static entry": lambda: dx.Dict(a=1).update(a=jnp.ones(2)),
    "a key that is no string": lambda: dx.Dict().__setitem__(3, 1),
    "a key that hides a method": lambda: dx.Dict(items=1),
    "a missing key": lambda: dx.Dict(left=1)["lefft"],
    "a missing entry": lambda: dx.Dict(left=1).lefft,
    # modules
    "a name that is taken": lambda: opened().sow(dx.Intermediate, "name", 1),
    "attributes that no module has": lambda: opened().set_attributes(rate=1),
    # source
    "source of an open class": lambda: dx.source_of(dx.Module),
    "source of something else": lambda: dx.source_of(3),
}


def text_of(action):
    with pytest.raises(errors.DeclaxError, match=r"\w") as info:
        action()
    return re.sub(r"Array(Impl)? of", "Array of", str(info.value))


def test_the_texts_are_the_golden_ones():
    texts = "\n\n".join(f"--- {name}\n{text_of(action)}" for name, action in ERRORS.items()) + "\n"
    if os.environ.get("DECLAX_UPDATE_GOLDEN"):
        GOLDEN.write_text(texts, encoding="utf-8")
    assert texts == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ERRORS)
def test_the_texts_have_the_house_form(name):
    first, *rest = text_of(ERRORS[name]).splitlines()
    assert re.fullmatch(r"[\w.\[\]'() ]+(\(\.\.\.\))?: .+[.?] \[[a-z-]+\]", first)
    assert all(re.match(r"  (expected: |got:      |why:      |fix:      | {10})", line) for line in rest)
    assert all(len(line) <= 160 for line in (first, *rest))


class Intermediates(dx.Intermediate):
    pass


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Param", "a Param"),
        ("OptArray", "an OptArray"),
        ("OrderedDict", "an OrderedDict"),
        ("list", "a list"),
        ("int", "an int"),
        ("Union", "a Union"),
        ("LoRAParam", "a LoRAParam"),
        ("LSTMCell", "an LSTMCell"),
        ("RNN", "an RNN"),
        ("GRUCell", "a GRUCell"),
    ],
)
def test_names_have_the_article_that_is_spoken(name, text):
    assert errors.with_article(name) == text


def test_errors_name_kinds_with_their_article():
    kept = Intermediates(1.0)
    with pytest.raises(errors.TraceContextError, match=r"the value of an Intermediates was changed"):
        jax.jit(lambda x: setattr(kept, "value", x))(1.0)
    with pytest.raises(errors.MetadataError, match=r"the Variables are of different kinds") as caught:
        kept.copy_from(dx.Param(1.0))
    assert caught.value.expected == "an Intermediates"
