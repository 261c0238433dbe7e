"""Paths, replace and fingerprints."""

import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import declax as dx
from config.spec_models import Block, Gate, Mlp, Model, Order, Point, half, parts, schedule, small
from declax._fields.snapshots import thaw
from declax.config._printing import canonical_text
from declax.config._refs import parse_path
from declax.errors import ConfigError

# ================================================================= paths


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("a", ("a",)),
        ("a.b.0", ("a", "b", "0")),
        ("a[0][*].b", ("a", "0", "*", "b")),
        ("a.*.b-c", ("a", "*", "b-c")),
        ("a.'x.y'.b", ("a", "x.y", "b")),
        ('a["x y"]', ("a", "x y")),
    ],
)
def test_written_paths(text, keys):
    assert parse_path(text) == keys


@pytest.mark.parametrize("text", ["", ".", ".a", "a..b", "a[", "a[x]", "a.", "[", "a]b"])
def test_what_is_no_path(text):
    with pytest.raises(ConfigError, match="is not a path"):
        parse_path(text)


def test_reading_by_path():
    spec = small()
    assert spec["blocks.1.mixer"] == dx.spec(Gate, 4)
    assert spec["blocks[0].mixer.hidden"] == 6
    assert spec["blocks.1.mixer.order"] is Order.FIRST
    assert thaw(spec["blocks.0.sizes"]) == [1, 2]
    assert spec["proto"] is None


@pytest.mark.parametrize(
    ("path", "where", "text"),
    [
        ("blocs", "Model", "there is no 'blocs' at \\(the root\\); did you mean 'blocks'"),
        ("blocks.2", "Model.blocks", "there is no '2' at blocks"),
        ("blocks.x", "Model.blocks", "there is no 'x' at blocks"),
        ("blocks.0.mixer.rngs", "Model.blocks.0.mixer", "there is no 'rngs' at blocks.0.mixer"),
        ("named.x", "Model.named", "there is no 'x' at named; did you mean 'xy'"),
        ("head.features", "Model.head", "there is no 'features' at head"),
        ("embed.features.x", "Model.embed.features", "there is no 'x' at embed.features"),
        ("blocks.*", "Model.blocks", "there is no '\\*' at blocks"),
    ],
)
def test_paths_to_nothing(path, where, text):
    spec = small(named={"xy": dx.spec(Gate, 1)})
    with pytest.raises(ConfigError, match=text) as caught:
        spec[path]
    assert caught.value.where == where
    if path != "blocks.*":
        with pytest.raises(ConfigError, match=text):
            spec.replace({f"{path}.more": 1})


def test_a_default_that_is_no_value_of_a_spec():
    class Holder(dx.Module):
        def __init__(self, value: object = jnp.zeros):
            self.value = value

    Holder.__init__.__defaults__ = (jnp.ones(3),)
    with pytest.raises(ConfigError, match="there is no 'value' at"):
        dx.spec(Holder)["value"]


def test_all_parts():
    assert [(path, s.parameters.name) for path, s in parts(small())] == [
        ((), "Model"),
        (("embed",), "Embed"),
        (("blocks", 0), "Block"),
        (("blocks", 0, "mixer"), "Mlp"),
        (("blocks", 1), "Block"),
        (("blocks", 1, "mixer"), "Gate"),
    ]


# ================================================================= replace


def test_replace_gives_a_new_spec():
    spec = small()
    changed = spec.replace(**{"blocks.0.mixer.hidden": 128}, head=None)
    assert (spec["blocks.0.mixer.hidden"], changed["blocks.0.mixer.hidden"], changed["head"]) == (6, 128, None)
    assert changed["blocks.1"] is spec["blocks.1"]
    assert spec.replace() == spec


def test_replace_of_each_element():
    spec = small(named={"a": dx.spec(Mlp, 1), "b": dx.spec(Mlp, 2)})
    changed = spec.replace({"blocks[*].rate": 0.5, "named.*.hidden": 3})
    assert [changed[f"blocks.{i}.rate"] for i in range(2)] == [0.5, 0.5]
    assert [changed[f"named.{k}.hidden"] for k in "ab"] == [3, 3]
    assert changed.replace({"blocks.*": dx.spec(Block, dx.spec(Gate, 1))})["blocks.1.mixer.dim"] == 1


def test_replace_adds_keys_of_dicts_and_goes_through_defaults():
    spec = small().replace({"named.new": dx.spec(Gate, 3), "blocks.0.sizes.1": 7})
    assert spec["named.new"] == dx.spec(Gate, 3)
    assert thaw(spec["blocks.0.sizes"]) == [1, 7]
    assert dx.spec(schedule, 1.0, 2.0, 3.0).replace({"more.0": 5.0}).build() == (1.0, 5.0, 3.0, 0.0)
    assert dx.spec(schedule, 1.0).replace(late=2.0).build() == (1.0, 0.0, 2.0)


def test_a_value_equal_to_the_default_is_gone_again():
    spec = small()
    assert spec.replace({"blocks.0.rate": 0.5}).replace({"blocks.0.rate": 0.0}) == spec


def test_replace_refuses_what_spec_refuses():
    with pytest.raises(ConfigError, match="a spec cannot hold an array") as caught:
        small().replace({"blocks.0.mixer.dim": jnp.zeros(2)})
    assert caught.value.where == "Mlp.dim"


# ================================================================= fingerprints


SPECS = {
    "model": lambda: small(3, protos=[dx.spec(Mlp, 1, activation=dx.relu)], named={"é": dx.spec(Gate, 2)}),
    "layers": lambda: dx.spec(dx.Sequential, dx.spec(dx.Linear, 3, 4, param_dtype=jnp.bfloat16), dx.gelu, half),
    "values": lambda: dx.spec(
        schedule,
        [1, 2.5, True, None, b"x", 1j, float("inf"), jax.lax.Precision.HIGHEST, range(3), frozenset({"b", "a"}), ...],
        functools.partial(half, x=1),
        Point(1, half),
        dx.initializers.normal(0.5),
        jax.P("a"),
    ),
}


def test_fingerprints_are_the_same_in_other_processes():
    code = "from config.test_spec_editing import SPECS\nfor make in SPECS.values(): print(make().fingerprint())"
    env = {"PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "7", "PATH": "/usr/bin"}
    here = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=here, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [make().fingerprint() for make in SPECS.values()]


def test_the_canonical_text_is_fixed():
    """Whoever kept a fingerprint wants it to stay: a change of this text is a change for users."""
    linear = (
        "spec(declax:Linear, bias_init=zeros, bias_metadata={}, dot_general=jax:dot_general, dtype=None, "
        "in_features=IN, kernel_init=lecun_normal(), kernel_metadata={}, out_features=OUT, param_dtype=jnp.float32, "
        "precision=None, preferred_element_type=None, promote_dtype=declax:promote_dtype, use_bias=True)"
    )
    up, down = (linear.replace("IN", i).replace("OUT", o) for i, o in (("4", "6"), ("6", "4")))
    mixer = f"spec(spec_models:Mlp, activation=gelu, dim=4, down={down}, hidden=6, up={up})"
    found = canonical_text(small(1))
    assert f"mixer={mixer}" in found
    assert "head=Ref('/embed')" in found
    assert "jax:Precision.HIGHEST" in canonical_text(SPECS["values"]())


@pytest.mark.parametrize("value", [lambda x: x, object(), functools.partial(lambda: 0)])
def test_what_has_no_name_has_no_fingerprint(value):
    spec = small().replace({"blocks.0.mixer.activation": value})
    with pytest.raises(ConfigError, match="no code makes this value") as caught:
        spec.fingerprint()
    assert caught.value.where.startswith("Model.blocks.0.mixer.activation")


def test_models_do_not_confuse_names():
    assert (
        dx.spec(Model, dx.spec(dx.Embed, 1, 2)).fingerprint() != dx.spec(Model, dx.spec(dx.Linear, 1, 2)).fingerprint()
    )
