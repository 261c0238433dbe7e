"""Alternatives, references and values that follow others: in lists, dicts, unions, kept specs and declared parts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import declax as dx
from declax.errors import ConfigError, ConfigWarning


@dx.dataclass
class Conv(dx.Module):
    dim: int = dx.field(default=4)
    size: int = 3 * dim


@dx.dataclass
class Attention(dx.Module):
    dim: int = dx.field(default=4)
    heads: int = 2


@dx.dataclass
class Net(dx.Module):
    dim: int = dx.field(default=4)
    blocks: list[Conv | Attention] = dx.field(default=())
    named: dict[str, Conv] = dx.field(default_factory=dict)
    kept: dx.Spec[Conv | Attention] | None = None
    shared: Conv | None = None
    sizes: list[int] = dx.field(default=())
    token: frozenset[str] = dx.static(default=frozenset(), secret=True)
    body: Conv = Conv(dim)
    many: list[Conv] = dx.repeat(2, Conv(dim))


FILES = {
    "net.toml": 'blocks = ["conv", "attention"]\n',
    "blocks/conv.toml": 'kind = "Conv"\ndim = 8\n',
    "blocks/attention.toml": 'kind = "Attention"\nheads = 4\n',
    "kept/conv.toml": 'kind = "Conv"\ndim = 8\n',
    "named/conv.toml": "dim = 9\n",
    "shared/follow.toml": 'dim = 7\nsize = { "$value" = ".dim * 2" }\n',
    "body/follow.toml": 'size = { "$value" = ".dim * 5" }\n',
    "kept/list.json": "[1, 2]",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(*sources: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return dx.spec_from_config(Net, "net.toml", *sources)


def value(text: str) -> dict[str, str]:
    return {"$value": text}


def problems(*sources: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(*sources)
    return str(caught.value)


def test_items_of_lists_are_alternatives():
    conv, attention = dx.spec(Conv, dim=8), dx.spec(Attention, heads=4)
    assert list(read()["blocks"]) == [conv, attention]
    assert list(read("blocks.0=attention", "blocks+=conv")["blocks"]) == [attention, attention, conv]
    assert list(read({"blocks": [{"$use": "conv", "dim": 2}]})["blocks"]) == [dx.spec(Conv, dim=2)]
    assert list(read("blocks=[attention, conv]", "~blocks.0")["blocks"]) == [conv]


def test_entries_of_dicts_have_the_alternatives_of_their_field():
    assert read("named.a=conv")["named.a"] == dx.spec(Conv, dim=9)
    assert read({"named": {"b": {"$use": "conv", "size": 1}}})["named.b"] == dx.spec(Conv, dim=9, size=1)
    assert "there is no alternative 'conf' in named" in problems("named.b=conf")


def test_keys_of_tables_that_an_alternative_lacks_are_dropped_with_a_report():
    with pytest.warns(ConfigWarning, match=r"kept.heads \(data from Python\) was dropped by command line: kept=conv"):
        spec = dx.spec_from_config(Net, "net.toml", {"kept": {"kind": "Attention", "heads": 1, "dim": 2}}, "kept=conv")
    assert spec["kept"] == dx.spec(Conv, dim=2)


def test_a_list_has_no_further_keys():
    assert "kept/list.json is no table" in problems({"kept": {"$use": "list", "dim": 1}})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("dim=2", 'sizes=[{"$value" = "body.dim"}, {"$value" = "body.size"}]'), [2, 6]),
        (("dim=2", "body.size=7", 'sizes=[{"$value" = "body.dim"}, {"$value" = "body.size"}]'), [2, 7]),
        (("dim=2", "body=follow", 'sizes=[{"$value" = "body.dim"}, {"$value" = "body.size"}]'), [2, 10]),
        (("dim=2", "many.size=7", 'sizes=[{"$value" = "many[1].dim"}]'), [2]),
        (("shared=follow", 'sizes=[{"$value" = "shared.size"}]'), [14]),
        (("shared=follow", "shared.dim=1", 'sizes=[{"$value" = "shared.size"}]'), [2]),
        (('sizes=[{"$value" = "blocks[0].size"}, {"$value" = "sizes[0] + 1"}]',), [24, 25]),
        (('dim={"$value" = "blocks[0].dim"}', 'sizes=[{"$value" = "body.size"}]'), [24]),
    ],
)  # fmt: skip
def test_values_follow_what_is_built(words, expected):
    assert list(read(*words)["sizes"]) == expected


def test_values_that_cannot_be_followed():
    assert "name the part itself" in problems({"shared": {"$ref": "/blocks/0"}, "dim": value("shared.dim")})
    assert "body is a table" in problems({"sizes": [value("body")]})
    assert "in a circle" in problems({"dim": value("body.dim")})
    assert "in a circle" in problems({"dim": value("body.size")})
    assert "in a circle" in problems({"dim": value("sizes[0]"), "sizes": [value("many[1].size")]})


def test_merging_over_references():
    assert read({"shared": {"$ref": "/blocks/0"}}, {"shared": {"dim": 2}})["shared"] == dx.spec(Conv, dim=2)
    assert read({"shared": {"dim": 2}}, {"shared": {"$ref": "/blocks/0"}}).has_refs
    assert "has no other keys" in problems({"shared": {"$ref": "/blocks/0"}}, "shared.dim=2")


def test_a_secret_in_a_set_is_refused(monkeypatch):
    monkeypatch.setenv("TOKEN", "hidden")
    with pytest.raises(ConfigError) as caught:
        dx.spec_from_config(Net, {"token": [{"$env": "TOKEN"}]}, env=["TOKEN"])
    assert "does not say a secret itself" in str(caught.value)
    assert "hidden" not in str(caught.value)
