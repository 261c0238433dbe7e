"""Lists and tuples: files have one word for both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pytest

import declax as dx


@dx.dataclass
class Sizes(dx.Module):
    some: Sequence[int] = dx.static(default=())
    pairs: int | str | Sequence[int | tuple[int, int]] = dx.static(default=0)
    nested: Sequence[Sequence[int]] | None = dx.static(default=None)
    any_of: Iterable[str] | Collection[float] = dx.static(default=())
    bare: Sequence = dx.static(default=())  # type: ignore[type-arg]  # as programs write it
    lists: list[int] | Sequence[str] = dx.static(default=())
    named: Mapping[str, Any] = dx.data(default_factory=dict)
    parts: Sequence[dx.Linear] = dx.data(default=())
    anything: Any = dx.data(default=None)


def round_trip(spec, **options):
    data = dx.to_config(spec, **options)
    assert dx.spec_from_config(Sizes, data) == spec
    return data


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"some": [1, 2]}, {"some": [1, 2]}),
        ({"pairs": [(1, 1), (2, 2)]}, {"pairs": [[1, 1], [2, 2]]}),
        ({"pairs": [1, (2, 2)]}, {"pairs": [1, [2, 2]]}),
        ({"nested": [[1], (2,)]}, {"nested": [[1], [2]]}),
        ({"any_of": ["a"]}, {"any_of": ["a"]}),
        ({"bare": [1]}, {"bare": [1]}),
        ({"lists": [1]}, {"lists": [1]}),
    ],
)
def test_where_sequences_stand_lists_are_tuples(given, written):
    spec = dx.spec(Sizes, **given)
    assert round_trip(spec) == {"kind": "Sizes", **written}
    assert round_trip(dx.spec_of(Sizes(**given))) == {"kind": "Sizes", **written}


def test_lists_and_tuples_say_the_same_there():
    listed, paired = dx.spec(Sizes, [1], pairs=[(1, 1)]), dx.spec(Sizes, (1,), pairs=((1, 1),))
    assert listed == paired
    assert listed.fingerprint() == paired.fingerprint()
    assert dx.spec(Sizes, []) == dx.spec(Sizes)
    assert listed.build().some == (1,)
    assert listed.replace(some=[2])["some"] == (2,)


def test_elsewhere_they_stay_what_they_are():
    @dx.dataclass
    class Lists(dx.Module):
        listed: list[int] = dx.static(default_factory=list)
        anything: Any = dx.static(default=None)

    assert dx.spec(Lists, [1]).build().listed == [1]
    assert dx.spec(Lists, anything=[1]) != dx.spec(Lists, anything=(1,))


def test_parts_are_in_a_tuple_too():
    spec = dx.spec(Sizes, parts=[dx.spec(dx.Linear, 1, 2)])
    assert spec == dx.spec(Sizes, parts=(dx.spec(dx.Linear, 1, 2),))
    assert isinstance(spec.build(rngs=dx.Rngs(0)).parts, tuple)
    round_trip(spec)


def test_convolutions_round_trip():
    spec = dx.spec(dx.Conv, 3, 4, [3, 3], padding=[(1, 1), (1, 1)])
    data = dx.to_config(spec)
    assert data["padding"] == [[1, 1], [1, 1]]
    assert dx.spec_from_config(dx.Conv, data) == spec
    conv = dx.Conv(3, 4, [3, 3], padding=[(1, 1), (1, 1)], rngs=dx.Rngs(0))
    assert dx.to_config(conv) == data


# ----------------------------------------------------------------- where no annotation tells


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (("a", "b"), {"$tuple": ["a", "b"]}),
        (["a", "b"], ["a", "b"]),
        ((), {"$tuple": []}),
        ([(1, [2, (3,)])], [{"$tuple": [1, [2, {"$tuple": [3]}]]}]),
        ({"x": (None, "data")}, {"x": {"$tuple": [None, "data"]}}),
    ],
)
def test_a_tuple_has_a_word_of_its_own_where_anything_may_stand(value, written):
    for name in ("named", "anything"):
        at, said = (value, written) if name == "anything" else ({"it": value}, {"it": written})
        spec = dx.spec(Sizes, **{name: at})
        assert round_trip(spec) == {"kind": "Sizes", name: said}
        assert getattr(dx.spec_from_config(Sizes, {name: said}).build(), name) == at


@pytest.mark.parametrize("suffix", [".toml", ".json", ".yaml"])
def test_metadata_of_layers_round_trips_in_files(suffix, tmp_path):
    layer = dx.Linear(2, 3, kernel_metadata={"sharding_names": ("data", "model")}, rngs=dx.Rngs(0))
    dx.write_config(tmp_path / f"layer{suffix}", layer)
    again = dx.from_config(dx.Linear, tmp_path / f"layer{suffix}", rngs=dx.Rngs(0))
    assert again.kernel.get_metadata(exclude_required=True) == layer.kernel.get_metadata(exclude_required=True)


@pytest.mark.parametrize("wrong", [{"$tuple": 3}, {"$tuple": {}}, {"$tuple": [1], "more": 2}, {"$tuple": None}])
def test_what_is_no_tuple(wrong):
    with pytest.raises(dx.ConfigError, match=r'expected: { "\$tuple" = \[1, 2\] } and no other key') as caught:
        dx.spec_from_config(Sizes, {"anything": wrong})
    assert caught.value.problems[0].path == ("anything",)


def test_a_dict_that_looks_like_a_tuple_is_refused():
    with pytest.raises(dx.ConfigError, match="anything: the written data would be read back as another value"):
        dx.to_config(dx.spec(Sizes, anything={"$tuple": [1]}))


def test_references_lead_into_tuples():
    linear = dx.spec(dx.Linear, 1, 2)
    spec = dx.spec(Sizes, parts=(linear,), anything=(3, dx.Ref("/parts/0")))
    data = round_trip(spec)
    assert data["anything"] == {"$tuple": [3, {"$ref": "/parts/0"}]}
    built = dx.from_config(Sizes, data, rngs=dx.Rngs(0))
    assert built.anything[1] is built.parts[0]


def test_what_is_wrong_in_a_tuple_has_a_place(tmp_path):
    (tmp_path / "sizes.toml").write_text('named = 1\n\nanything = { "$tuple" = [1, {kind = "Linaer"}] }\n')
    with pytest.raises(dx.ConfigError, match=r"sizes\.toml:3:1 anything\.1\.kind: unknown kind"):
        dx.spec_from_config(Sizes, tmp_path / "sizes.toml")


def test_tuples_are_counted_as_levels():
    deep: Any = 1
    for _ in range(200):
        deep = {"$tuple": [deep]}
    with pytest.raises(dx.ConfigError, match="more than 64 levels"):
        dx.spec_from_config(Sizes, {"anything": deep})
