"""Configurations of several files, alternatives, words, and values that follow others."""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any

import optax
import pytest

import declax as dx
from declax.config._cli.main import main
from declax.errors import ConfigError, ConfigWarning


@dx.dataclass
class Feed(dx.Layer):
    dim: int = dx.field()
    hidden: int = 4 * dim
    up: dx.Linear = dx.Linear(dim, hidden)


@dx.dataclass
class Block(dx.Layer):
    dim: int = dx.field()
    feed: Feed = Feed(dim)


@dx.dataclass
class Model(dx.Layer):
    dim: int = dx.field(default=8, ge=1, le=64)
    depth: int = dx.field(default=2)
    blocks: list[Block] = dx.repeat(depth, Block(dim))


@dataclasses.dataclass
class Plain:
    size: int = 3


@dataclasses.dataclass
class Train:
    model: dx.Spec[Model]
    optimizer: optax.GradientTransformation
    steps: int = 100
    warmup: int = 10
    rates: list[float] = dataclasses.field(default_factory=list)
    notes: Any = None
    name: str = "run"
    plain: Plain | None = None


BASE = """
steps = 1000
optimizer = "adamw"
rates = [0.1, 0.2]

[model]
dim = 16
"""
FILES = {
    "base.toml": BASE,
    "cluster.toml": "steps = 2000\nrates = [0.3]\n[optimizer]\nlearning_rate = 0.5\nb1 = 0.8\n",
    "optimizer/adamw.toml": 'kind = "adamw"\nlearning_rate = 1e-3\nweight_decay = 0.1\n',
    "optimizer/lion.toml": 'kind = "lion"\nlearning_rate = 1e-4\n',
    "optimizer/sgd.yaml": "kind: sgd\nlearning_rate: 0.01\n",
    "optimizer/slow.toml": '"$use" = "lion"\nlearning_rate = 1e-6\n',
    "model/small.toml": "dim = 4\n",
    "model/large.toml": 'dim = 32\n[blocks]\nfeed = "wide"\n',
    "model/feed/wide.toml": "hidden = 99\n",
    "other.toml": '"$use" = ["base", "cluster"]\nsteps = 3\n',
    "used.toml": 'model = "small"\n[optimizer]\n"$use" = "lion"\nb2 = 0.5\n',
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(*sources: Any, **options: Any) -> dx.Spec[Train]:
    return dx.spec_from_config(Train, *sources, **options)


def problems(*sources: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(*sources, **options)
    return str(caught.value)


# ================================================================= several files


def test_a_later_file_wins_by_key_and_lists_are_replaced():
    spec = read("base.toml", "cluster.toml")
    assert (spec["steps"], list(spec["rates"]), spec["model.dim"]) == (2000, [0.3], 16)
    assert read("cluster.toml", "base.toml")["steps"] == 1000
    assert read("base.toml", {"steps": 5})["steps"] == 5
    assert dx.from_config(Train, "base.toml", "cluster.toml", "steps=3").steps == 3


def test_words_in_python_are_those_of_the_command_line(capsys):
    words = ["model.dim=4", "optimizer.learning_rate=1", "rates+=0.5", "name=x=y"]
    spec = read("base.toml", words=words)
    assert spec == read("base.toml", *words) == read(*words, "base.toml")
    assert (spec["model.dim"], spec["optimizer.learning_rate"], list(spec["rates"])) == (4, 1.0, [0.1, 0.2, 0.5])
    assert main(["show", f"{__file__}:Train", "base.toml", *words, "--format", "json"]) == 0
    assert '"name": "x=y"' in capsys.readouterr().out
    assert "several values" in problems("base.toml", "steps=1,2")


def test_a_file_includes_others_below_its_own_values():
    spec = read("other.toml")
    assert (spec["steps"], list(spec["rates"]), spec["model.dim"], spec["optimizer.b1"]) == (3, [0.3], 16, 0.8)
    assert read("other.toml", "steps=7")["steps"] == 7


def test_each_mistake_has_the_place_of_its_own_source(folder):
    (folder / "wrong.toml").write_text('stepz = 1\n[model]\ndim = 4000\n[optimizer]\nb3 = 1\nlearning_rate = "x"\n')
    told = problems("base.toml", "wrong.toml", "name=3", "warmup=x")
    for piece in (
        "wrong.toml:1:1 stepz", "wrong.toml:3:1 model.dim", "wrong.toml:5:1 optimizer.b3",
        "wrong.toml:6:1 optimizer.learning_rate", "command line: warmup=x",
    ):  # fmt: skip
        assert piece in told
    assert "name=3" not in told  # the field takes a text


def test_another_kind_starts_anew_and_says_what_it_dropped():
    with pytest.warns(ConfigWarning, match=r"optimizer.b1 \(data\) was dropped|optimizer.b1"):
        spec = read(
            {"model": {}, "optimizer": {"kind": "adamw", "learning_rate": 1.0, "b1": 0.5}},
            {"optimizer": {"kind": "sgd", "learning_rate": 2.0}},
        )
    assert spec["optimizer"] == dx.spec(optax.sgd, 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read("base.toml", {"optimizer": {"kind": "adamw"}})


# ================================================================= alternatives


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ("adamw", 1e-3)), (("optimizer=lion",), ("lion", 1e-4)), (("optimizer=sgd",), ("sgd", 0.01)),
        (("optimizer=slow",), ("lion", 1e-6)), (("optimizer=lion", "optimizer.learning_rate=1"), ("lion", 1.0)),
        (("optimizer.learning_rate=1", "optimizer=lion"), ("lion", 1.0)),
        (("optimizer=lion", "optimizer=sgd"), ("sgd", 0.01)),
        (("optimizer.kind=sgd", "optimizer.learning_rate=3"), ("sgd", 3.0)),
    ],
)  # fmt: skip
def test_a_name_is_a_file_in_the_folder_of_its_field(words, expected):
    spec = read("base.toml", words=words)
    assert (spec["optimizer"].target.__name__, spec["optimizer.learning_rate"]) == expected


def test_tables_change_an_alternative_and_outlive_another_one():
    assert read("used.toml")["optimizer.b2"] == 0.5
    assert read("used.toml")["model.dim"] == 4
    assert read("base.toml", "cluster.toml")["optimizer.weight_decay"] == 0.1
    with pytest.warns(ConfigWarning, match=r"optimizer.b1 \(cluster.toml:5:1\) was dropped by command line"):
        spec = read("base.toml", "cluster.toml", "optimizer=sgd")
    assert spec["optimizer"] == dx.spec(optax.sgd, 0.5)  # the rate of cluster.toml stays


def test_alternatives_in_alternatives_are_beside_their_file():
    spec = read("base.toml", "model=large")
    assert spec["model.dim"] == 16, "what base.toml says wins"
    assert spec["model"].arguments["blocks"].arguments["feed"].arguments["hidden"] == 99


def test_what_is_no_alternative():
    assert "did you mean 'lion'?" in problems("base.toml", "optimizer=lino")
    assert "expected: adamw, lion, sgd, slow" in problems("base.toml", "optimizer=lino")
    assert read("base.toml", "name=lion")["name"] == "lion"  # the field takes strings
    assert read("base.toml", "notes=lion")["notes"] == "lion"
    assert read("base.toml", {"notes": {"$use": "lion"}})["notes"].items() == {"$use": "lion"}.items()
    assert "the value has the wrong type" in problems({"model": {}, "optimizer": "lion"})  # no file, so no folder


def test_an_unknown_key_beside_an_alternative_is_a_mistake(folder):
    (folder / "both.toml").write_text('[model]\n[optimizer]\n"$use" = "sgd"\nb1 = 0.5\n')
    assert "both.toml:4:1 optimizer.b1: sgd has no parameter 'b1'" in problems("both.toml")


def test_files_outside_of_the_folder_and_circles_are_refused(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "evil.toml"
    outside.write_text('kind = "sgd"\nlearning_rate = 1\n')
    (folder / "optimizer/link.toml").symlink_to(outside)
    assert "outside of the folder" in problems("base.toml", "optimizer=link")
    up = os.path.relpath(outside, folder / "optimizer").removesuffix(".toml")
    for name in (up, str(outside), "\0", "x" * 5000):
        assert problems("base.toml", {"optimizer": name})
    (folder / "optimizer/a.toml").write_text('"$use" = "b"\n')
    (folder / "optimizer/b.toml").write_text('"$use" = "a"\n')
    assert "name each other in a circle: optimizer/a.toml -> optimizer/b.toml" in problems("base.toml", "optimizer=a")
    (folder / "self.toml").write_text('"$use" = "self"\n')
    assert "circle" in problems("self.toml")


def test_mistakes_in_an_alternative_are_told_with_its_file(folder):
    (folder / "optimizer/bad.toml").write_text('kind = "adamw"\nlearning_rate = "fast"\n')
    (folder / "optimizer/broken.toml").write_text("kind = \n")
    assert "optimizer/bad.toml:2:1 optimizer.learning_rate" in problems("base.toml", "optimizer=bad")
    told = problems("base.toml", "optimizer=broken", "steps=x")
    assert "optimizer/broken.toml:1" in told
    assert "command line: steps=x" in told


# ================================================================= values that follow others


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps // 10", 100), (".steps // 10", 100), ("model.dim * 4 + 1", 65), ("model.depth", 2), ("-(-3)", 3),
        ("model.blocks[1].feed.hidden", 64), ("(steps > 10) * 7 + 0", 7), ("2 ** 5 % 7", 4),
    ],
)  # fmt: skip
def test_a_value_follows_others(text, expected):
    assert read("base.toml", {"warmup": {"$value": text}})["warmup"] == expected


def test_values_follow_defaults_words_and_each_other():
    data = {"warmup": {"$value": "steps // 10"}, "model": {"depth": {"$value": ".dim // 4"}}}
    assert read("base.toml", data)["model.depth"] == 4
    assert read("base.toml", data, "model.dim=8", "steps=50")["model.depth"] == 2
    assert read("base.toml", data, "steps={'$value' = 'model.depth * 10'}")["warmup"] == 4
    assert read("base.toml", {"rates": [1.0, {"$value": "steps / 4"}]})["rates"][1] == 250.0
    assert read("base.toml", {"plain": {"size": {"$value": "..warmup"}}})["plain.size"] == 10
    assert dict(read("base.toml", {"notes": {"$value": "x"}})["notes"]) == {"$value": "x"}  # data, in a field Any


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("steps +", "it ends too early"), ("stepz", "there is no stepz; did you mean 'steps'?"), ("1/0", "division"),
        ("model", "model is a table; $ref shares a part"), ("1 )", "')' does not fit here"), ("(1", "a ) is missing"),
        ("__import__('os')", "is no number, path or sign"), ("f(1)", "there is no f"), ("", "it ends too early"),
        ("2 ** 1000", "a number has more than 128 bits"), ("steps.x", "there is no steps.x"), (3, "expected {"),
        ("name * 2", "name is str, and not a number"), ("9e999", "a number is out of the range of floats"),
        ("...steps", "...steps has more dots than there are tables around it"), ("(-1) ** 0.5", "a root of a negative"),
        ("+".join(["1"] * 200), "it has more than 200 tokens"), ("warmup", "in a circle: warmup"),
        ("(" * 90 + "1" + ")" * 90, "it is nested more than 30 levels deep"),
    ],
)  # fmt: skip
def test_an_expression_without_a_value(text, piece):
    told = problems("base.toml", {"warmup": {"$value": text}}, "rates.0=x")
    assert piece in told
    assert "the configuration has 2 problems" in told  # nothing else is hidden


def test_a_value_that_follows_one_without_a_value():
    told = problems("base.toml", {"warmup": {"$value": "model.dim"}, "model": {"dim": {"$value": "1 / 0"}}})
    assert "model.dim has none either" in told
    assert "division by zero" in told


def test_circles_name_all_places(folder):
    (folder / "circle.toml").write_text(
        'steps = { "$value" = "warmup" }\nwarmup = { "$value" = "model.dim" }\n[model]\ndim = { "$value" = "steps" }\n'
    )
    told = problems("base.toml", "circle.toml")
    for place in ("steps (circle.toml:1:1)", "warmup (circle.toml:2:1)", "model.dim (circle.toml:4:1)"):
        assert place in told


def test_a_value_is_checked_and_told_with_its_expression():
    told = problems("base.toml", {"model": {"dim": {"$value": "steps * 2"}}})
    assert "the maximum is 64" in told
    assert "got:      2000, the value of steps * 2" in told
    told = problems("base.toml", {"warmup": {"$value": "steps / 3"}})
    assert "the float 333.33" in told


# ================================================================= changes by class, and of lists


def test_words_for_each_part_of_a_class():
    spec = read("base.toml", "**.Feed.hidden=3")
    assert spec["model"].build(rngs=dx.Rngs(0)).blocks[1].feed.up.kernel.shape == (16, 3)
    assert spec == read("base.toml", {"model": {"blocks": {"feed": {"hidden": 3}}}})
    assert read("base.toml", "**.use_bias=false")["model.blocks.0.feed.up"].arguments["use_bias"] is False
    assert "there is no part of this class: Fed" in problems("base.toml", "**.Fed.hidden=3")
    assert "there is no part with this argument: hiden" in problems("base.toml", "**.hiden=3")
    assert "did you mean 'Feed'?" in problems("base.toml", "**.Fed.hidden=3")
    assert "hiden" in problems("base.toml", "**.Feed.hiden=3")


def test_specs_are_changed_by_words_and_by_class():
    spec = read("base.toml")
    assert spec.replace("**.Feed.hidden=3") == read("base.toml", "**.Feed.hidden=3")
    assert spec["model"].select(Feed).replace(hidden=3).build(rngs=dx.Rngs(0)).blocks[0].feed.hidden == 3
    assert spec.replace("steps=7", {"warmup": 1}, name="n") == spec.replace(steps=7, warmup=1, name="n")
    assert list(spec.replace("rates+=1", "rates.0+=2")["rates"]) == [2.0, 0.1, 0.2, 1.0]
    assert spec.replace("~rates.0", "~steps")["steps"] == 100
    with pytest.raises(ConfigError, match="the string 'x'"):
        spec.replace("steps=x")
    with pytest.raises(ConfigError, match="no part is a Dropout"):
        spec.select(dx.Dropout).replace(rate=0.5)
    with pytest.raises(ConfigError, match="there is nothing to remove"):
        spec.replace("~rates.5")
    with pytest.raises(ConfigError, match=r"no item can be inserted at rates\.9"):
        spec.replace("rates.9+=1.0")
    for word, text in (("**.Fed.hidden=3", "of this class"), ("**.nothing=3", "with this argument")):
        with pytest.raises(ConfigError, match=f"there is no part {text}"):
            spec.replace(word)


def test_items_of_lists_are_inserted_and_removed():
    assert list(read("base.toml", "rates+=0.5", "rates.0+=0.7", "~rates.1")["rates"]) == [0.7, 0.2, 0.5]
    assert list(read("base.toml", "~rates")["rates"]) == []
    assert "there is nothing at rates.7.x" in problems("base.toml", "~rates.7.x") or "no item 7" in problems(
        "base.toml", "~rates.7.x"
    )
    assert "no item can be inserted here" in problems("base.toml", "steps+=3")
    told = problems("base.toml", "rates.0+=0.9", "rates+=x")
    assert "command line: rates+=x rates.3" in told


# ================================================================= origins


def test_origins_of_all_values(capsys):
    words = ["base.toml", "cluster.toml", "optimizer=lion", 'warmup={"$value" = "steps // 10"}']
    assert main(["show", f"{__file__}:Train", *words, "--origins"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "steps = 2000  cluster.toml:1:1; replaced 1000 (base.toml:2:1)" in lines
    assert (
        "optimizer = alternative 'lion'  command line: optimizer=lion; replaced 'adamw' (base.toml:3:1); "
        "or adamw, sgd, slow"
    ) in lines
    assert "optimizer.kind = 'lion'  optimizer/lion.toml:1:1" in lines
    assert any(line.startswith("warmup = 200  command line: ") and line.endswith("= steps // 10") for line in lines)


def test_an_alternative_that_a_word_replaced_is_told(capsys):
    """Also where no table changed it."""
    (line,) = (line for line in origins("base.toml", "optimizer=lion", capsys=capsys) if line.startswith("optimizer ="))
    assert "replaced 'adamw' (base.toml:3:1); or" in line
    (line,) = (line for line in origins("base.toml", "cluster.toml", capsys=capsys) if line.startswith("optimizer ="))
    assert "replaced" not in line


def origins(*words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["show", f"{__file__}:Train", *words, "--origins"]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_slice_in_a_word_is_refused(capsys):
    assert main(["check", f"{__file__}:Train", "base.toml", "rates[0:1]=3"]) != 0
    assert "a path has an index or a star, and no slice" in capsys.readouterr().err
