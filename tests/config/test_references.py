"""References in files: to later parts, with dots, and wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

import config_models as models
import declax as dx
from config.schema_checks import refused_by


@dx.dataclass
class Table(dx.Module):
    size: int = dx.field(ge=1)


@dx.dataclass
class Head(dx.Module):
    table: Table
    rate: float = dx.field(default=0.1, le=1.0)
    embed: Table | None = None


@dx.dataclass
class Net(dx.Module):
    head: Head
    embed: Table | None = None
    blocks: list[Head | Table] = dx.field(default_factory=list)
    steps: int = 1


LATER = """
steps = "many"

[head]
table = { "$ref" = "/embed" }

[embed]
size = 3
"""


def problems(data: Any, cls: Any = Net) -> list[Any]:
    with pytest.raises(dx.ConfigError) as caught:
        dx.from_config(cls, data, rngs=dx.Rngs(0))
    return list(caught.value.problems)


@pytest.mark.parametrize("has_another", [False, True])
def test_a_later_part_is_told_with_its_line_beside_other_problems(tmp_path, has_another):
    file = tmp_path / "net.toml"
    file.write_text(LATER if has_another else LATER.replace('"many"', "2"))
    found = problems(file)
    assert [p.code for p in found] == (["wrong-type"] if has_another else []) + ["ref-to-later"]
    later = found[-1]
    assert later.path == ("head", "table")
    assert "it is built after this place" in later.message
    assert later.got == "'/embed', a Table: line 7"
    assert later.hint == 'swap them: describe the part here, and write { "$ref" = "/head/table" } at embed'
    assert (later.place.line, "None" in str(later)) == (5, False)


def test_swapped_they_are_right():
    model = dx.from_config(Net, {"head": {"table": {"size": 3}}, "embed": {"$ref": "/head/table"}})
    assert model.embed is model.head.table


@pytest.mark.parametrize("has_another", [False, True])
def test_a_later_item_of_a_list_and_a_later_reference(has_another):
    blocks = [{"kind": "Head", "table": {"$ref": "/blocks/1"}}, {"kind": "Table", "size": 2}]
    data = {"head": {"table": {"size": 1}}, "blocks": blocks, "steps": "x" if has_another else 1}
    assert "ref-to-later" in [p.code for p in problems(data)]
    chain = {"head": {"table": {"$ref": "/embed"}}, "embed": {"$ref": "/head/embed"}, "steps": 1}
    assert problems(chain)
    earlier = {**data, "blocks": blocks[::-1]}
    earlier["blocks"][1] = {"kind": "Head", "table": {"$ref": "/blocks/0"}}
    if has_another:
        assert [p.code for p in problems(earlier)] == ["wrong-type"]
    else:
        dx.from_config(Net, earlier)


def test_in_python_too():
    spec = dx.spec(Net, dx.spec(Head, dx.Ref("/embed")), dx.spec(Table, 3))
    with pytest.raises(dx.ConfigError) as caught:
        spec.check()
    (problem,) = caught.value.problems
    assert problem.code == "ref-to-later"
    assert problem.got == "'/embed', a Table"


@pytest.mark.parametrize("written", ["/head/table", "head.table", "head['table']", "head.'table'"])
def test_paths_from_the_root(written):
    spec = dx.spec_from_config(Net, {"head": {"table": {"size": 3}}, "embed": {"$ref": written}})
    assert spec["embed"] == dx.Ref("/head/table")
    assert dx.to_config(spec)["embed"] == {"$ref": "/head/table"}


def test_indices_and_names_alone():
    data = {"head": {"table": {"size": 3}}, "embed": {"size": 1}, "blocks": [{"$ref": "embed"}, {"$ref": "blocks[0]"}]}
    spec = dx.spec_from_config(Net, data)
    assert [r.path for r in spec["blocks"]] == ["/embed", "/blocks/0"]
    assert dx.spec_from_config(Net, {**data, "blocks": [{"$ref": "embed"}, {"$ref": "blocks.0"}]}) == spec


def test_a_leading_dot_is_relative_to_the_table():
    inside = {"table": {"size": 3}, "embed": {"$ref": ".table"}}
    data = {"head": inside, "blocks": [{"kind": "Head", **inside}, {"$ref": ".head"}]}
    spec = dx.spec_from_config(Net, data)
    assert spec["head.embed"] == dx.Ref("/head/table")
    assert spec["blocks"][0].arguments["embed"] == dx.Ref("/blocks/0/table")
    assert spec["blocks"][1] == dx.Ref("/head")
    model = spec.build()
    assert model.blocks[0].embed is model.blocks[0].table


def test_in_an_unbuilt_spec_they_start_at_its_table():
    @dx.dataclass
    class Run(dx.Module):
        model: dx.Spec[Head]

    for written in ("/table", "table", ".table"):
        spec = dx.spec_from_config(Run, {"model": {"table": {"size": 3}, "embed": {"$ref": written}}})
        assert spec["model"].arguments["embed"] == dx.Ref("/table")


@pytest.mark.parametrize(
    "written", ["", ".", "..", "a..b", "*", "a.*", "file:///etc/passwd#/a", "a/b", "../x", " a", 3, None]
)
def test_other_texts_are_no_references(written):
    data = {"head": {"table": {"size": 3}}, "embed": {"$ref": written}}
    (problem,) = problems(data)
    assert problem.code == "ref"
    if isinstance(written, str) and problem.hint is not None:
        fixed = problem.hint.partition(" = ")[2].strip('"')
        assert fixed != written
        assert ":" not in fixed
    assert refused_by(dx.json_schema(Net), data)


def test_a_file_is_no_path_and_the_fix_does_not_repeat_it():
    (problem,) = problems({"head": {"table": {"size": 3}}, "embed": {"$ref": "file:///etc/passwd#/a"}})
    assert problem.hint is None
    assert "file:///etc" in problem.got


def test_the_schema_takes_all_spellings():
    schema = dx.json_schema(Net)
    for written in ("/head/table", "head.table", ".head", "head"):
        assert not refused_by(schema, {"head": {"table": {"size": 3}}, "embed": {"$ref": written}})


def test_a_reference_has_no_other_keys():
    (problem,) = problems({"head": {"table": {"size": 3}}, "embed": {"$ref": "/head/table", "size": 3}})
    assert problem.path == ("embed", "size")
    assert problem.hint == "remove 'size'; or remove '$ref', and describe a part of its own"
    assert "other keys" in problem.message


def test_the_models_of_the_other_tests_are_as_before():
    with pytest.raises(dx.ConfigError):
        dx.from_config(models.Block, {"mixer": {"$ref": "/mixer"}})
