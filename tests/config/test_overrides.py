"""Values that a command line gives in the place of those of a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import declax as dx
from declax.config._files.documents import Document
from declax.config._files.toml_format import parse_toml
from declax.config._reading.catalog import catalog_for
from declax.config._sources.composing import Configuration
from declax.config._sources.loading import Loading
from declax.config._sources.sweeps import expand
from declax.config._sources.words import is_word, parse_word

DATA = {
    "rate": 0.1,
    "blocks": [{"kind": "Attention", "dim": 8, "heads": 2}, {"kind": "Mlp", "dim": 8, "hidden": 3}],
    "names": {"a": {"size": 1}, "b": {"size": 2}},
}


def runs(*words):
    return list(expand([parse_word(word) for word in words]))


def composed(source, run):
    made = Configuration(catalog_for(()).anything)
    made.add(source if isinstance(source, Document) else Document("net.toml", source))
    for word, value in run.words():
        made.add_word(word, value)
    return made


def changed(source, *words):
    (run,) = runs(*words)
    return composed(source, run)


def overridden(*words):
    made = changed(DATA, *words)
    assert not made.problems, list(map(str, made.problems))
    return made.data


def problems(*words):
    return [str(problem) for problem in changed(DATA, *words).problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("0.5", 0.5), ("1e-3", 1e-3), ("true", True), ("null", None), ("text", "text"), ('"3"', "3"),
        ("[1, 2]", [1, 2]), ('{a = 1, b = "x,y"}', {"a": 1, "b": "x,y"}), ("a b", "a b"), ("", ""), ("'a,b'", "a,b"),
        ("x=y", "x=y"), ("models/a.toml", "models/a.toml"), ("[a, 2]", ["a", 2]), ("{a}", "{a}"),
        (".5", ".5"), ('{"$none" = true}', None), ('[1, {"$none" = true}]', [1, None]),
    ],
)  # fmt: skip
def test_a_value_is_one_of_toml_or_a_text(text, value):
    found = parse_word(f"rate={text}").values
    assert found == (value,)
    assert type(found[0]) is type(value)


def test_several_values_are_separated_by_commas_outside_of_brackets():
    assert parse_word("a=1,2,x").values == (1, 2, "x")
    assert parse_word("a=[1,2],[3]").values == ([1, 2], [3])
    assert parse_word('a="x,y",z').values == ("x,y", "z")


@given(st.lists(st.one_of(st.integers(-9, 9), st.booleans(), st.floats(-2, 2)), min_size=1, max_size=4))
def test_values_come_as_they_were_written(values):
    text = ",".join(str(v).lower() if isinstance(v, bool) else repr(v) for v in values)
    assert list(parse_word(f"a={text}").values) == values


def test_what_is_an_override():
    assert all(map(is_word, ["a=1", "a.b[0].c=", "a[*].b=1", "a.*.b=1", "a-b=1"]))
    assert not any(
        map(
            is_word,
            ["a", "net.toml", "module:Class", "a..b=1", "=3", "~", "[x]=3", "~/net.toml", "runs/rate=3/net.toml"],
        )
    )


def test_values_are_put_in_their_places():
    assert overridden("rate=1")["rate"] == 1
    assert overridden("blocks.1.hidden=5")["blocks"][1]["hidden"] == 5
    assert overridden("blocks[1].hidden=5") == overridden("blocks.1.hidden=5")
    assert [block["dim"] for block in overridden("blocks[*].dim=4")["blocks"]] == [4, 4]
    assert [entry["size"] for entry in overridden("names.*.size=4")["names"].values()] == [4, 4]
    assert overridden("new=1")["new"] == 1
    assert overridden("blocks[2]={kind = 'Mlp'}")["blocks"][2] == {"kind": "Mlp"}
    assert DATA["blocks"][1]["hidden"] == 3, "the data that was given has changed"


def test_a_table_that_the_file_leaves_out_is_made():
    """There may be a default for it; whether it may stand there is the validator's to say."""
    assert overridden("training.schedule.steps=3", "training.seed=1")["training"] == {
        "schedule": {"steps": 3},
        "seed": 1,
    }
    assert "training" not in DATA


def test_the_last_of_two_counts():
    assert overridden("rate=1", "rate=2")["rate"] == 2


def test_a_changed_kind_starts_its_table_anew():
    assert overridden("blocks.0.kind=Mlp")["blocks"][0] == {"kind": "Mlp"}
    assert overridden("blocks.0.kind=Mlp", "blocks.0.dim=4")["blocks"][0] == {"kind": "Mlp", "dim": 4}
    assert overridden("blocks.1.kind=Mlp") == DATA, "the same kind changes nothing"


def test_a_later_word_wins_over_an_earlier_one_for_what_is_around_it():
    found = overridden(
        "block={kind = 'Block', mixer = {kind = 'Mlp'}}", "block.mixer.kind=Attention", "block.mixer.dim=9"
    )
    assert found["block"] == {"kind": "Block", "mixer": {"kind": "Attention", "dim": 9}}
    found = overridden("blocks.0.kind=Mlp", "blocks.0={kind = 'Attention', dim = 3}")
    assert found["blocks"][0] == {"kind": "Attention", "dim": 3}
    assert overridden("blocks.0.dim=4", "blocks.0={kind = 'Mlp'}")["blocks"][0] == {"kind": "Mlp"}
    assert overridden("blocks.0.kind=Mlp", "blocks.0.kind=Wide")["blocks"][0] == {"kind": "Wide"}


def test_a_tag_keeps_values_of_the_command_line():
    assert overridden("blocks.0.dim=4", "blocks.0.kind=Wide")["blocks"][0] == {"kind": "Wide", "dim": 4}
    assert overridden("blocks.1.hidden=4", "blocks[*].kind=Wide")["blocks"] == [
        {"kind": "Wide"},
        {"kind": "Wide", "hidden": 4},
    ]


def test_absent_parts_of_items_are_made():
    found = overridden("blocks.0.norm.kind=LayerNorm", "blocks.0.norm.num_features=16")
    assert found["blocks"][0]["norm"] == {"kind": "LayerNorm", "num_features": 16}
    found = overridden("blocks[*].norm.size=1")["blocks"]
    assert [block["norm"] for block in found] == [{"size": 1}, {"size": 1}]
    assert changed({"head": None}, "head.dim=3").data == {"head": {"dim": 3}}


def test_a_tag_makes_a_table_of_a_name_and_of_a_reference():
    data = {"init": "zeros", "inits": ["zeros"], "tied": {"$ref": "/head"}, "blocks": []}

    def after(*words):
        made = changed(data, *words)
        assert not made.problems
        return made.data

    assert after("init.kind=normal", "init.stddev=0.1")["init"] == {"kind": "normal", "stddev": 0.1}
    assert after("inits[*].kind=normal")["inits"] == [{"kind": "normal"}]
    assert after("tied.kind=Mlp", "tied.dim=3")["tied"] == {"kind": "Mlp", "dim": 3}
    assert after("blocks.0.kind=Mlp", "blocks.0.dim=3", "blocks.1.kind=Wide")["blocks"] == [
        {"kind": "Mlp", "dim": 3},
        {"kind": "Wide"},
    ]
    assert "there is no item kind at blocks" in str(changed(data, "blocks.kind=Mlp").problems[0])
    assert after("blocks.0.dim=3")["blocks"] == [{"dim": 3}]


def test_what_is_overridden_is_placed_at_the_command_line():
    text = "rate = 1\n[[blocks]]\nkind = 'Mlp'\ndim = 3\n[[blocks]]\nkind = 'Attention'\ndim = 4\n"

    def place(path, *words):
        made = changed(parse_toml(text, "net.toml"), *words)
        assert not made.problems
        return str(made.place_of(path))

    assert place(("blocks", 1, "dim")) == "net.toml:7:1"
    assert place(("blocks", 1, "dim"), "blocks.1.dim=3") == "command line: blocks.1.dim=3"
    assert place(("modl",), "modl.x=3") == "command line: modl.x=3"
    assert place(("modl",), "modl.y.x=3") == "command line: modl.y.x=3"
    assert place(("blocks", 1, "dim"), "blocks.1.kind=Wide") == "command line: blocks.1.kind=Wide"
    assert place(("blocks", 1, "dim"), "blocks.1={kind='Wide'}") == "command line: blocks.1={kind='Wide'}"


def test_a_path_to_nothing_is_a_problem():
    (found,) = problems("blokcs.*.dim=3")
    assert "command line: blokcs.*.dim=3 blokcs: there is no item * at blokcs" in found
    assert "there is no item 7 at blocks" in problems("blocks.7.dim=3")[0]
    assert "there is no item 5 at blocks" in problems("blocks[5]=3")[0]


def test_a_table_replaces_another_value():
    assert overridden("rate.x.y=3")["rate"] == {"x": {"y": 3}}


def test_a_sweep_makes_a_run_of_each_combination():
    found = runs("rate=1,2", "blocks.1.hidden=3,4", "new=x")
    assert [run.name for run in found] == [
        "rate=1,blocks.1.hidden=3", "rate=1,blocks.1.hidden=4", "rate=2,blocks.1.hidden=3", "rate=2,blocks.1.hidden=4",
    ]  # fmt: skip
    datas = [composed(DATA, run).data for run in found]
    assert [(data["rate"], data["blocks"][1]["hidden"]) for data in datas] == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert all(data["new"] == "x" for data in datas)
    assert len({id(data["blocks"]) for data in datas}) == 4


@pytest.mark.parametrize("text", ["8#9", "8 # nine", '"a"#b', "1] #", "[1] # two"])
def test_what_looks_like_a_comment_is_a_text(text):
    assert parse_word(f"x={text}").values == (text,)


@dx.dataclass
class Rate(dx.Module):
    rate: float


def test_a_number_that_no_float_holds_is_a_text():
    (run,) = runs("rate=1e400")
    with pytest.raises(dx.ConfigError, match="the string '1e400'") as caught:
        Loading(Rate).run([Document("net.toml", DATA)], run)
    problem = next(problem for problem in caught.value.problems if problem.path == ("rate",))
    assert problem.place.file == "command line: rate=1e400"


def test_a_key_of_a_reference():
    @dx.dataclass
    class Tied(dx.Module):
        head: dx.Dropout
        tied: dx.Dropout

    document = Document("net.toml", {"head": {"rate": 0.5}, "tied": {"$ref": "/head"}})
    with pytest.raises(dx.ConfigError, match=r"tied.rate: a table with '\$ref'(.|\n)*and no other key"):
        dx.spec_from_config(Tied, document, words=["tied.rate=0.1"])


def test_a_reference_gives_way_to_a_part_or_another_reference():
    data = {"head": {"dim": 8}, "tied": {"$ref": "/head"}}
    assert changed(data, "tied.kind=Mlp", "tied.dim=3").data == {"head": {"dim": 8}, "tied": {"kind": "Mlp", "dim": 3}}
    assert changed(data, "tied.$ref=/other").data["tied"] == {"$ref": "/other"}
