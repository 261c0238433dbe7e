"""Each annotation has one meaning: for statuses, constructors, configurations, schemas, and the mypy plugin."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from typing import Any

import jax
import jsonschema
import pytest

import declax as dx
from config.schema_checks import refused_by
from declax._fields.class_info import info_of
from declax._fields.specifiers import Status
from plugin_cases import check_statuses

DATA, STATIC, SNAPSHOT = Status.DATA, Status.STATIC, Status.SNAPSHOT

PRELUDE = """
from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
import uuid
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Generic, Literal, NewType, TypedDict, Union

import typing_extensions as te

import declax as dx

if TYPE_CHECKING:
    from collections.abc import Callable

T = te.TypeVar("T")
N = te.TypeVar("N", default=int)
Sized = te.TypeVar("Sized", int, str)
Meters = NewType("Meters", int)
Json = Union[str, int, list["Json"], dict[str, "Json"]]
Nested = Union[dx.Linear, list["Nested"]]
Many = te.TypeAliasType("Many", list[T], type_params=(T,))
Maybe = te.TypeAliasType("Maybe", Union[T, None], type_params=(T,))
Numbers = te.TypeAliasType("Numbers", list[int])


class Color(enum.Enum):
    RED = 1


class Options(TypedDict, total=False):
    size: te.Required[int]
    rate: float
    inner: Options


class Layers(TypedDict):
    up: dx.Linear
    name: te.NotRequired[str]


class Pair(TypedDict, Generic[T]):
    first: T


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T


@dataclass(frozen=True)
class Crate(Generic[N]):
    content: N


layer = dx.Linear(2, 3, rngs=dx.Rngs(0))
"""

NEWER = """
type Act = Callable[[int], int]
type Listed[T] = list[T]
type Optional[T] = T | None
type Tree[T] = T | list[Tree[T]]
"""
"""What only Python 3.12 and later can read; `Act` names a class that exists for type checkers only."""

LINEAR = '{"in_features": 2, "out_features": 3}'


@dataclass(frozen=True)
class Case:
    """An annotation; a value and the data that describes it, and wrong ones, as source.

    Attributes:
      status: of its field; None if the value decides.
      wrong: None if no value is refused.
      is_newer: whether it needs Python 3.12.
      is_open: whether mypy accepts the wrong value too.
    """

    name: str
    annotation: str
    status: Status | None
    value: str
    wrong: str | None
    data: str | None = None
    wrong_data: str | None = None
    is_newer: bool = False
    is_open: bool = False

    @property
    def source(self) -> str:
        return f"@dx.dataclass\nclass {self.name}(dx.Module):\n    value: {self.annotation} = dx.field()\n"


CASES = [
    Case("OfInt", "int", STATIC, "3", "'3'", "3", "'3'"),
    Case("OfFloat", "float", STATIC, "0.5", "'a'", "0.5", "'a'"),
    Case("OfNewType", "Meters", STATIC, "Meters(3)", "'3'", "3", "'3'"),
    Case("OfAnnotated", "Annotated[int, 'a note']", STATIC, "3", "'3'", "3", "'3'"),
    Case("OfLiteral", "Literal['a', 'b']", STATIC, "'a'", "'c'", "'a'", "'c'"),
    Case("OfEnum", "Color", STATIC, "Color.RED", "'RED'", "'RED'", "'BLUE'"),
    Case("OfOptional", "int | None", STATIC, "3", "'3'", "3", "'3'"),
    Case("OfTuple", "tuple[int, str]", STATIC, "(1, 'a')", "(1, 2)", "[1, 'a']", "[1, 2]"),
    Case("OfTuples", "tuple[int, ...]", STATIC, "(1, 2)", "(1, 'a')", "[1, 2]", "[1, 'a']"),
    Case("OfList", "list[int]", SNAPSHOT, "[1]", "['a']", "[1]", "['a']"),
    Case("OfSet", "set[int]", SNAPSHOT, "{1, 2}", "{'a'}", "[1, 2]", "['a']"),
    Case("OfFrozenSet", "frozenset[int]", STATIC, "frozenset({1})", "{'a'}", "[1]", "['a']"),
    Case("OfAnySet", "Set[int]", SNAPSHOT, "frozenset({1})", "{'a'}", "[1]", "['a']"),
    Case("OfDict", "dict[str, int]", SNAPSHOT, "{'a': 1}", "{'a': 'b'}", "{'a': 1}", "{'a': 'b'}"),
    Case("OfTypedDict", "Options", SNAPSHOT, "{'size': 1, 'inner': {'size': 2}}", "{'size': 'a'}",
         "{'size': 1, 'inner': {'size': 2}}", "{'size': 1, 'inner': {'rate': 2.0}}"),
    Case("OfLackingKeys", "Options", SNAPSHOT, "{'size': 1}", "{'rate': 1.0}", "{'size': 1}", "{'size': 1, 'rte': 2}"),
    Case("OfTypedDictOfParts", "Layers", DATA, "{'up': layer}", "{'up': 3}", f"{{'up': {LINEAR}}}", "{'name': 'a'}"),
    Case("OfGenericTypedDict", "Pair[int]", SNAPSHOT, "{'first': 1}", "{'first': 'a'}", "{'first': 1}",
         "{'first': 'a'}"),
    Case("OfRecursive", "Json", SNAPSHOT, "{'a': [1, {'b': 'c'}]}", "{'a': [1.5]}", "{'a': [1]}", "{'a': [1.5]}"),
    Case("OfNested", "Nested", DATA, "[layer, [layer]]", "[3]", f"[{LINEAR}, [{LINEAR}]]", "[3]"),
    Case("OfAlias", "Numbers", SNAPSHOT, "[1]", "['a']", "[1]", "['a']"),
    Case("OfGenericAlias", "Many[int]", SNAPSHOT, "[1]", "['a']", "[1]", "['a']"),
    Case("OfMany", "Many[dx.Linear]", DATA, "[layer]", "[3]", f"[{LINEAR}]", "[3]"),
    Case("OfMaybe", "Maybe[dx.Linear]", DATA, "layer", "'a'", LINEAR, "3"),
    Case("OfText", "list['dx.Linear']", DATA, "[layer]", "[3]", f"[{LINEAR}]", "[3]"),
    Case("OfBoxes", "Box[int] | Box[str]", None, "Box('a')", "3", "{'kind': 'Box', 'content': 'a'}",
         "{'kind': 'Box', 'content': 0.5}"),
    Case("OfDefault", "Crate", None, "Crate(3)", "3", "{'content': 3}", "{'content': 'a'}"),
    Case("OfGivenDefault", "Crate[str]", None, "Crate('a')", "3", "{'content': 'a'}", "{'content': 3}"),
    Case("OfPath", "pathlib.Path", STATIC, "pathlib.Path('a/b')", "'a/b'", "'a/b'", "3"),
    Case("OfTime", "datetime.datetime", STATIC, "datetime.datetime(2026, 1, 31, 12)", "'now'", "'2026-01-31T12:00:00'",
         "20260131"),
    Case("OfDate", "datetime.date", STATIC, "datetime.date(2026, 1, 31)", "'now'", "'2026-01-31'", "20260131"),
    Case("OfTimeOfDay", "datetime.time", STATIC, "datetime.time(12)", "'now'", "'12:00:00'", "12"),
    Case("OfDuration", "datetime.timedelta", STATIC, "datetime.timedelta(1, 3600)", "3600", "'P1DT1H'", "3600"),
    Case("OfUuid", "uuid.UUID", STATIC, "uuid.UUID(int=3)", "3", "'00000000-0000-0000-0000-000000000003'", "3"),
    Case("OfDecimal", "decimal.Decimal", STATIC, "decimal.Decimal('0.1')", "'0.1'", "'0.1'", "0.1"),
    Case("OfDates", "Sequence[datetime.date] | None", SNAPSHOT, "(datetime.date(2026, 1, 31),)", "('now',)",
         "['2026-01-31']", "[3]"),
    Case("OfHidden", "Act", STATIC, "abs", "3", "'relu'", "3", is_newer=True),
    Case("OfListed", "Listed[dx.Linear]", DATA, "[layer]", "[3]", f"[{LINEAR}]", "[3]", is_newer=True),
    Case("OfNewOptional", "Optional[dx.Linear]", DATA, "layer", "'a'", LINEAR, "3", is_newer=True),
    Case("OfTree", "Tree[int]", SNAPSHOT, "[[1], 2]", "['a']", "[[1], 2]", "['a']", is_newer=True),
]  # fmt: skip
CASES = [case for case in CASES if not case.is_newer or sys.version_info >= (3, 12)]


@pytest.fixture(scope="module")
def models() -> Any:
    """The classes of all cases."""
    module = types.ModuleType("annotated_models")
    sys.modules[module.__name__] = module
    exec("\n\n".join([source_of_names(), *(case.source for case in CASES)]), vars(module))
    yield module
    del sys.modules[module.__name__]


def source_of_names() -> str:
    return PRELUDE.lstrip() + (NEWER if sys.version_info >= (3, 12) else "")


def evaluated(models: Any, text: str | None) -> Any:
    return eval(text or "None", vars(models))


each = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@each
def test_the_status(models, case):
    cls = getattr(models, case.name)
    # what is unknown at run time, a class need not know when it is made
    assert info_of(cls).specs["value"].status is (None if case.name == "OfHidden" else case.status)
    model = cls(evaluated(models, case.value))
    assert bool(jax.tree.leaves(model)) is (case.status is DATA)


@each
def test_the_check_of_the_constructor(models, case):
    cls = getattr(models, case.name)
    value = evaluated(models, case.value)
    assert cls(value).value == value
    if case.name != "OfHidden":
        with pytest.raises((dx.errors.LayerError, dx.errors.ConstructionError)) as caught:
            cls(evaluated(models, case.wrong))
        assert caught.value.where.startswith(f"{case.name}.value")
        assert caught.value.expected
        assert caught.value.got
        assert caught.value.fix


@each
def test_the_round_trip_of_a_configuration(models, case):
    cls = getattr(models, case.name)
    if case.name == "OfHidden":
        with pytest.raises(dx.ConfigError, match="the annotation names 'Act', which does not exist at run time"):
            dx.from_config(cls, {"value": evaluated(models, case.data)})
        return
    data = {"value": evaluated(models, case.data)}
    spec = dx.spec_from_config(cls, data)
    made = spec.build(rngs=dx.Rngs(0))
    if case.status is not DATA and case.name != "OfRecursive":
        assert made.value == evaluated(models, case.value)
        assert type(made.value) is type(evaluated(models, case.value))
        assert dx.spec(cls, evaluated(models, case.value)) == spec or "Box" in case.value or "Crate" in case.value
    written = dx.to_config(spec)
    assert dx.spec_from_config(cls, written) == spec
    assert dx.spec_of(made) == spec
    assert isinstance(repr(spec), str)
    assert isinstance(spec.fingerprint(), str)
    with pytest.raises(dx.ConfigError, match="one problem"):
        dx.from_config(cls, {"value": evaluated(models, case.wrong_data)}, rngs=dx.Rngs(0))


@each
def test_the_schema(models, case):
    cls = getattr(models, case.name)
    if case.name == "OfHidden":
        with pytest.raises(dx.ConfigError, match="which does not exist at run time"):
            dx.json_schema(cls)
        return
    schema = dx.json_schema(cls)
    jsonschema.Draft7Validator.check_schema(schema)
    assert not refused_by(schema, {"value": evaluated(models, case.data)})
    assert refused_by(schema, {"value": evaluated(models, case.wrong_data)})
    written = dx.to_config(dx.spec_from_config(cls, {"value": evaluated(models, case.data)}))
    assert not refused_by(schema, written)


def test_the_plugin(tmp_path):
    """Reports wrong arguments and no others, and decides on each field as the class does at run time."""
    lines: dict[int, str] = {}
    program = "\n\n".join([source_of_names(), *(case.source for case in CASES)]).splitlines()
    for case in CASES:
        program.append(f"{case.name}({case.value})")
        program.append(f"dx.spec({case.name}, {case.value.replace('layer', 'dx.spec(dx.Linear, 2, 3)')})")
        program.append(f'dx.from_config({case.name}, {{"value": {case.data}}}, rngs=dx.Rngs(0))')
        if not case.is_open:
            program.append(f"{case.name}({case.wrong})")
            lines[len(program)] = program[-1]
    found, statuses = check_statuses(tmp_path, "\n".join(program))
    reported = {one.line: f"{program[one.line - 1]}: {one.text}" for one in found}
    assert not [text for line, text in reported.items() if line not in lines]
    assert not [text for line, text in lines.items() if line not in reported]
    expected = {case.name: None if case.status is None else case.status.value for case in CASES}
    assert {name: statuses[name] for name in expected} == expected
