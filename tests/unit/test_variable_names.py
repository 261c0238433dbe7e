from __future__ import annotations

import pytest

from declax import errors
from declax._variables import kinds as names
from declax._variables.kinds import BatchStat, Cache, Intermediate, Param, Perturbation
from declax._variables.variable import Variable


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("params", Param),
        ("batch_stats", BatchStat),
        ("cache", Cache),
        ("intermediates", Intermediate),
        ("perturbations", Perturbation),
    ],
)
def test_the_built_in_kinds_have_names(name, kind):
    assert names.variable_type_from_name(name) is kind
    assert names.variable_name_from_type(kind) == name


def test_a_kind_is_registered_by_call_or_decorator():
    class Count(Variable):
        pass

    assert names.register_variable_name("counts", Count) is Count
    assert names.register_variable_name("counts", Count) is Count

    @names.register_variable_name("totals")
    class Total(Variable):
        pass

    assert names.variable_type_from_name("counts") is Count
    assert names.variable_name_from_type(Total) == "totals"


def test_a_name_is_taken_only_on_demand():
    class Mine(Variable):
        pass

    with pytest.raises(errors.RegistryError, match=r"'params': another kind has this name"):
        names.register_variable_name("params", Mine)
    names.register_variable_name("params", Mine, overwrite=True)
    assert names.variable_type_from_name("params") is Mine


def test_only_kinds_have_names():
    with pytest.raises(errors.RegistryError, match="only kinds of Variable have names"):
        names.register_variable_name("numbers", int)  # type: ignore[type-var]  # what is being refused


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(errors.RegistryError, match=r"no kind of Variable has this name(.|\n)*did you mean 'params'"):
        names.variable_type_from_name("param")


def test_a_kind_is_made_for_a_new_name():
    kind = names.variable_type_from_name("lora", base=Param, allow_register=True)
    assert issubclass(kind, Param)
    assert kind(1.0).value == 1.0
    assert names.variable_type_from_name("lora") is kind


def test_a_kind_without_a_name_is_registered_on_demand():
    class Lora(Variable):
        pass

    with pytest.raises(errors.RegistryError, match="Lora: this kind of Variable has no name"):
        names.variable_name_from_type(Lora)
    assert names.variable_name_from_type(Lora, allow_register=True) == "Lora"
    assert names.variable_type_from_name("Lora") is Lora
