"""Fields of dtypes, whichever of the annotations for them a class uses."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import declax as dx
from declax._fields.annotations import annotation_text
from declax._typing import Dtype


@dx.dataclass
class Theirs(dx.Module):
    dtype: jax.typing.DTypeLike = dx.static(default=jnp.float32)
    other: jax.typing.DTypeLike | None = dx.static(default=None)
    several: tuple[jax.typing.DTypeLike, ...] = dx.static(default=())
    mixed: jax.typing.DTypeLike | int = dx.static(default=jnp.float32)


@dx.dataclass
class Ours(dx.Module):
    dtype: Dtype = dx.static(default=jnp.float32)
    other: Dtype | None = dx.static(default=None)
    several: tuple[Dtype, ...] = dx.static(default=())
    mixed: Dtype | int = dx.static(default=jnp.float32)


@dx.dataclass
class Plain(dx.Module):
    dtype: np.dtype[Any] = dx.static(default=np.dtype("int8"))
    marked: Annotated[jax.typing.DTypeLike, "of the sum"] = dx.static(default=jnp.float32)


@pytest.fixture(params=[Theirs, Ours])
def cls(request):
    return request.param


def problems_of(spec):
    with pytest.raises(dx.ConfigError, match="the configuration has") as caught:
        spec.check()
    with pytest.raises(dx.ConfigError, match="the configuration has"):
        spec.build()
    return [(p.code, p.path, p.hint) for p in caught.value.problems]


@pytest.mark.parametrize(
    ("argument", "code", "hint"),
    [
        ({"dtype": 3}, "wrong-type", None),
        ({"dtype": None}, "wrong-type", None),
        ({"dtype": (1,)}, "wrong-type", None),
        ({"dtype": dx.Linear}, "wrong-type", None),
        ({"dtype": jax.dtypes.prng_key}, "wrong-type", None),
        ({"dtype": np.floating}, "wrong-type", None),
        ({"dtype": np.generic}, "wrong-type", None),
        ({"dtype": jnp.sin}, "wrong-type", None),
        ({"dtype": dx.spec(dx.Linear, 1, 2)}, "wrong-type", None),
        ({"dtype": "float31"}, "unknown-dtype", "did you mean 'float32'?"),
        ({"dtype": "__class__"}, "unknown-dtype", None),
        ({"dtype": "sin"}, "unknown-dtype", None),
        ({"dtype": "half"}, "unknown-dtype", None),
        ({"other": "bfloat61"}, "unknown-dtype", "did you mean 'bfloat16'?"),
        ({"other": 1.0}, "wrong-type", None),
        ({"mixed": 1.0}, "wrong-type", None),
        ({"mixed": "flot32"}, "unknown-dtype", "did you mean 'float32'?"),
    ],
)
def test_what_is_no_dtype(cls, argument, code, hint):
    (name,) = argument
    assert problems_of(dx.spec(cls, **argument)) == [(code, (name,), hint)]


def test_what_is_expected_is_told_in_short(cls):
    with pytest.raises(dx.ConfigError, match=r"expected: the name of a dtype\n") as caught:
        dx.spec(cls, dtype=3, other=3).check()
    assert caught.value.problems[1].expected == "the name of a dtype or null"


def test_what_is_no_dtype_in_a_tuple(cls):
    assert problems_of(dx.spec(cls, several=("int8", "int9", 3))) == [
        ("unknown-dtype", ("several", 1), "did you mean 'int8'?"),
        ("wrong-type", ("several", 2), None),
    ]


@pytest.mark.parametrize("value", ["int8", jnp.int8, np.int8, np.dtype("int8"), jnp.dtype("int8")])
def test_all_that_jax_takes_is_a_dtype(cls, value):
    spec = dx.spec(cls, dtype=value, other=value, several=(value,), mixed=value)
    spec.check()
    assert spec == dx.spec(cls, jnp.int8, jnp.int8, (jnp.int8,), jnp.int8)
    assert dx.to_config(spec) == {
        "kind": cls.__name__, "dtype": "int8", "other": "int8", "several": ["int8"], "mixed": "int8",
    }  # fmt: skip
    assert dx.spec_from_config(cls, dx.to_config(spec)) == spec
    assert dx.spec_of(spec.build()) == spec


def test_names_are_the_dtypes_that_they_name(cls):
    assert dx.spec(cls, dtype="float32") == dx.spec(cls)
    assert dx.spec(cls, dtype="float32").fingerprint() == dx.spec(cls).fingerprint()
    assert dx.spec(cls, mixed=3)["mixed"] == 3
    assert repr(dx.spec(dx.Linear, 2, 3, param_dtype="bfloat16")).count("jnp.bfloat16") == 1
    assert dx.spec(dx.Linear, 2, 3, param_dtype="bfloat16").build(rngs=dx.Rngs(0)).kernel.dtype == jnp.bfloat16


@pytest.mark.parametrize("value", [bool, int, float, complex, jax.random.key(0).dtype])
def test_types_of_python_and_of_keys_are_dtypes_that_files_cannot_name(cls, value):
    dx.spec(cls, value).check()
    with pytest.raises(dx.ConfigError, match="a configuration cannot represent this value") as caught:
        dx.to_config(dx.spec(cls, value))
    assert caught.value.where == f"{cls.__name__}.dtype"


def test_types_of_python_are_told_the_dtype_to_write(cls):
    with pytest.raises(dx.ConfigError, match=r"fix: +a dtype that has a name, such as jnp\.float32"):
        dx.to_config(dx.spec(cls, float))


def test_other_annotations_of_dtypes():
    assert dx.spec(Plain, "int8", "float32") == dx.spec(Plain)
    assert problems_of(dx.spec(Plain, 3, "floot32")) == [
        ("wrong-type", ("dtype",), None),
        ("unknown-dtype", ("marked",), "did you mean 'float32'?"),
    ]


def test_texts_elsewhere_stay_texts():
    @dx.dataclass
    class Named(dx.Module):
        name: str = "float32"
        anything: Any = None

    spec = dx.spec(Named, "int8", "int8")
    assert (spec["name"], spec["anything"]) == ("int8", "int8")


def test_schemas_name_dtypes(cls):
    properties = dx.json_schema(cls)["properties"]
    assert properties["dtype"]["enum"][:2] == ["float32", "bfloat16"]
    assert properties["dtype"]["default"] == "float32"
    assert properties["other"]["enum"][-1] is None
    assert "int8" in properties["several"]["items"]["enum"]


def test_a_tuple_of_dtypes_in_words():
    with pytest.raises(dx.ConfigError, match=r"expected: a list, each item the name of a dtype\n"):
        dx.spec(Theirs, several=3).check()
    assert annotation_text(list[jax.typing.DTypeLike | None]) == "list[dtype | None]"


def test_float64_is_not_no_dtype() -> None:
    """In NumPy, ``np.dtype("float64") == None``."""
    initializer = dx.initializers.lecun_normal(dtype=np.dtype("float64"))
    assert initializer != dx.initializers.lecun_normal()
    assert repr(initializer) == "lecun_normal(dtype='float64')"
    spec = dx.spec(dx.Linear, in_features=2, out_features=3, dtype=np.dtype("float64"), kernel_init=initializer)
    data = dx.to_config(spec)
    assert data["dtype"] == data["kernel_init"]["dtype"] == "float64"
    assert dx.spec_from_config(dx.Linear, data) == spec
