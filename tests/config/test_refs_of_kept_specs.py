"""Refs in parts that are not built with the whole: fields annotated `Spec[...]`. They start at the part."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

import declax as dx


@dx.dataclass
class Tied(dx.Module):
    embed: dx.Embed
    head: dx.Embed


@dx.dataclass
class Tower(dx.Module):
    first: dx.Spec[Tied]
    rest: list[dx.Spec[Tied]]
    named: dict[str, dx.Spec[Tied]]
    embed: dx.Embed


@dataclasses.dataclass
class Run:
    net: dx.Spec[Tied] | None = None
    tower: dx.Spec[Tower] | None = None
    other: dx.Spec[Tower] | None = None


EMBED = {"kind": "Embed", "num_embeddings": 3, "features": 4}
NET = {"kind": "Tied", "embed": EMBED, "head": {"$ref": "/embed"}}
TIED = dx.spec(Tied, dx.spec(dx.Embed, 3, 4), dx.Ref("/embed"))
TOWER = dx.spec(Tower, TIED, [TIED, TIED], {"a": TIED}, dx.spec(dx.Embed, 3, 4))


def test_a_ref_ties_what_is_built_later():
    run = dx.from_config(Run, {"net": NET})
    assert run.net == TIED
    model = run.net.build(rngs=dx.Rngs(0))
    assert model.head is model.embed
    assert dx.spec_from_config(Run, {"net": NET})["net"] == TIED


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("suffix", [".toml", ".json", ".yaml"])
def test_what_is_written_is_read_back(full, suffix, tmp_path):
    spec = dx.spec(Run, TIED, TOWER, dx.Ref("/tower"))
    path = tmp_path / f"run{suffix}"
    dx.write_config(path, spec, full=full and suffix != ".toml")
    assert dx.spec_from_config(Run, path) == spec
    built = spec.build()
    assert built.other is built.tower
    assert built.tower.build(rngs=dx.Rngs(0)).rest[1] == TIED


@pytest.mark.parametrize("place", ["net", "tower.rest.0"])
@pytest.mark.parametrize("target", ["/embde", "/net/embed", "/tower/rest/0/embed"])
def test_a_target_that_is_missing_is_named_from_the_part(place, target):
    """The hint is a path that can be written there."""
    wrong = NET | {"head": {"$ref": target}}
    tower = {"first": NET, "rest": [wrong], "named": {}, "embed": EMBED}
    with pytest.raises(dx.ConfigError, match="the reference has no target") as caught:
        dx.from_config(Run, {"net": wrong} if place == "net" else {"tower": tower})
    (problem,) = caught.value.problems
    assert problem.got == repr(target)
    assert problem.hint in (None, "did you mean '/embed'?")
    assert problem.hint is not None or target != "/embde"


def test_refs_are_written_from_the_part():
    made = dx.to_config(dx.spec(Run, TIED, TOWER))
    assert made["net"] == NET
    for part in (made["tower"]["first"], made["tower"]["rest"][1], made["tower"]["named"]["a"]):
        assert part == {**NET, "head": {"$ref": "/embed"}}


@pytest.mark.parametrize(
    ("place", "target", "piece"),
    [
        (("tower", "embed"), "/first/embed", "no earlier part has this path"),
        (("tower", "first", "head"), "/tower/embed", "no earlier part has this path"),
        (("net", "head"), "/net/embed", "no earlier part has this path"),
    ],
)
def test_no_ref_leads_to_what_is_built_at_another_time(place: tuple[str, ...], target: str, piece: str):
    data: Any = copy.deepcopy(dx.to_config(dx.spec(Run, TIED, TOWER)))
    holder = data
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = {"$ref": target}
    with pytest.raises(dx.ConfigError, match=piece) as caught:
        dx.spec_from_config(Run, data)
    assert [problem.path for problem in caught.value.problems] == [place]


@dx.dataclass
class Holder(dx.Module):
    part: dx.Spec[Tied]


@dx.dataclass
class Pair(dx.Module):
    later: dx.Spec[dx.Embed]
    now: dx.Embed
    holder: Holder | None = None


@pytest.mark.parametrize(
    ("data", "piece"),
    [
        ({"later": EMBED, "now": {"$ref": "/later"}}, "now: the reference points at an unbuilt spec, but"),
    ],
)
def test_a_description_is_no_part(data, piece):
    with pytest.raises(dx.ConfigError, match=piece):
        dx.spec_from_config(Pair, data)


PART = dx.spec(dx.Embed, 3, 4)


@pytest.mark.parametrize(
    ("spec", "piece"),
    [
        (dx.spec(Pair, dx.Ref("/now"), PART), "later: the reference points at a later part"),
        (dx.spec(Pair, PART, dx.Ref("/later")), "now: the reference points at an unbuilt spec, but a built part is"),
        (
            dx.spec(dx.List, [dx.spec(Pair, PART, PART), dx.spec(Pair, dx.Ref("/elements/0/now"), PART)]),
            r"elements\.1\.later: the reference points at a built part",
        ),
    ],
)
def test_no_ref_of_python_puts_a_part_in_the_place_of_a_description(spec, piece):
    with pytest.raises(dx.ConfigError, match=piece) as caught:
        spec.build(rngs=dx.Rngs(0))
    assert len(caught.value.problems) == 1


def test_a_ref_from_one_description_to_another():
    model = dx.spec(Tower, TIED, [dx.Ref("/first")], {"a": dx.Ref("/rest/0")}, PART).build(rngs=dx.Rngs(0))
    assert model.first is model.rest[0] is model.named["a"]
