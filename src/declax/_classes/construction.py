"""Constructors: checks of arguments, the record of those that are used up, and the parts.

`declare` has turned the expressions of the class body into standard fields,
and the standard's decorator has run. `install` gives the class its `Maker`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from declax._classes.argument_checks import ArgumentCheck, is_checked
from declax._classes.declared_variables import RNGS
from declax._classes.declaring import EXPRESSIONS_KEY
from declax._classes.overriding import show_overridden
from declax._classes.part_source import PartsFunction
from declax._classes.parts import Part, is_init_var, recipe_of
from declax._classes.pytree import PytreeMeta
from declax._classes.records import Record
from declax._fields.annotations import AnnotationScope, decide
from declax._fields.expressions import Expression
from declax._fields.overrides import overriding
from declax._fields.specifiers import PartRecipe, Status, SubmoduleRecipe
from declax._tree.statuses import is_data
from declax._typing import MISSING, RECORD_KEY
from declax._variables.policy import NO_POLICY, POLICY, Policy, current_policy
from declax.errors import FieldError, type_name

MAKER_KEY: Final = "_pytree__maker"


class UsedUp:
    """An argument that only the constructor uses; reading it from an instance is an error that says so."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        name = self._name
        where = f"{type_name(owner)}.{name}"
        if instance is None:
            annotation = "dx.Rngs" if name == RNGS else "..."
            lines = f"_: dx.KW_ONLY\n{name}: dx.InitVar[{annotation}] = dx.field()"
            raise AttributeError(f"{where} is an InitVar, which is not inherited; declare it again:\n{lines}")
        hint = "; dx.spec_of shows it, and dx.replace passes it on" if is_recorded(owner, name) else ""
        raise AttributeError(f"{where} is an InitVar: only the constructor receives it{hint}")


def install(cls: Any, own: Mapping[str, Expression]) -> None:
    """Gives a class its expressions, and the function that makes the parts of its instances.

    Raises:
      FieldError: for an expression of a class that is not a base, and for a
        part that reads one that is made later.
    """
    fields: dict[str, dataclasses.Field[Any]] = cls.__dataclass_fields__
    known: dict[str, tuple[Expression, ...]] = {}
    for base in reversed(cls.__mro__[1:]):
        for name, expressions in base.__dict__.get(EXPRESSIONS_KEY, {}).items():
            older = (e for e in known.get(name, ()) if all(e is not nearer for nearer in expressions))
            known[name] = (*expressions, *older)
    for name, expression in own.items():
        known[name] = (expression, *known.get(name, ()))
        if is_init_var(fields[name]):
            setattr(cls, name, UsedUp(name))
        elif fields[name].init and name in cls.__dict__:
            delattr(cls, name)  # the default: `PytreeMeta.__getattr__` gives the expression
        recipe = recipe_of(fields[name])
        if isinstance(recipe, SubmoduleRecipe):
            show_overridden(cls, name, recipe.build)
    setattr(cls, EXPRESSIONS_KEY, known)
    setattr(cls, MAKER_KEY, Maker(cls, known))


LOST_RECORD: Final = "merge, jax.tree.map and transforms return objects without the arguments of their construction"


def is_recorded(cls: type, name: str) -> bool:
    """Whether instances keep a record of the argument of a name."""
    maker: Maker | None = getattr(cls, MAKER_KEY, None)
    return maker is not None and name in maker.recorded


def init_var_of(obj: Any, field: dataclasses.Field[Any]) -> Any:
    """The argument of an object for an InitVar; MISSING if it is not recorded."""
    if not is_recorded(type(obj), field.name) or RECORD_KEY not in obj.__dict__:
        return MISSING
    record: Record = obj.__dict__[RECORD_KEY]
    return record.values.get(field.name, field.default)


class Maker:
    """Checks the arguments of a constructor, and makes the parts of an instance.

    Args:
      cls: the class.
      known: its expressions by name, the nearest first.

    Attributes:
      source: the function that makes the parts, as text.
      recorded: the names of the arguments that a `Record` keeps.
    """

    def __init__(self, cls: Any, known: Mapping[str, tuple[Expression, ...]]) -> None:
        fields: dict[str, dataclasses.Field[Any]] = cls.__dataclass_fields__
        self._cls = cls
        self._known = known
        self._init_vars = [name for name, field in fields.items() if is_init_var(field)]
        scope = AnnotationScope(cls)
        self._checks = [ArgumentCheck(field, scope, self._init_vars) for field in fields.values() if is_checked(field)]
        kept = [n for n in self._init_vars if decide(fields[n].type, scope).status is not Status.DATA]
        self._kept = [(self._init_vars.index(name), name, fields[name].default) for name in kept]
        parts = self._parts_with({})
        self._defaults = [part for part in parts if part.is_argument]
        self.recorded = [*kept, *(part.name for part in self._defaults)]
        self._usual_record = Record({}, dict.fromkeys(part.name for part in self._defaults))
        self._says_dtypes = not {POLICY, "param_dtype"}.isdisjoint(fields)
        self._make = PartsFunction(cls, known, parts, self._init_vars, self._checks) if parts else None
        self._overridden: dict[Any, tuple[Any, PartsFunction]] = {}
        self.source = "" if self._make is None else self._make.source

    @property
    def is_needed(self) -> bool:
        """Whether the constructor has something to do."""
        return bool(self._make or self._checks or self.recorded) or POLICY in self._cls.__dataclass_fields__

    def _parts_with(self, given: Mapping[str, Expression]) -> list[Part]:
        """The parts, some of them made by other expressions."""
        fields = self._cls.__dataclass_fields__
        return [
            Part(
                name,
                given.get(name, expressions[0]),
                PartRecipe(given[name]) if name in given else recipe,
                is_argument=fields[name].init and name not in given,
            )
            for name, expressions in self._known.items()
            if name in fields and (recipe := recipe_of(fields[name])) is not None
        ]

    def __call__(self, instance: Any, init_vars: Sequence[object]) -> None:
        """Checks the arguments, records those that are used up, and makes the parts."""
        attributes = instance.__dict__
        for check in self._checks:
            check(type(instance), attributes.get(check.name) if check.index is None else init_vars[check.index])
        make = self._make
        if self.recorded or (make is not None and not current_policy().is_empty):
            record = attributes[RECORD_KEY] = self._record(attributes, init_vars)
            if record is not self._usual_record:
                overrides = {name: value for name, value in record.made.items() if value is not None}
                make = self._over(overrides) if overrides else make
        policy = attributes.get(POLICY)
        if isinstance(policy, Policy):
            with policy as attributes[POLICY]:
                if make is not None:
                    make(instance, init_vars)
        elif make is not None:
            make(instance, init_vars)

    def _over(self, overrides: Mapping[str, Any]) -> PartsFunction:
        """The function that makes the parts if some are declared calls with other arguments."""
        key = tuple((name, id(value)) for name, value in overrides.items())
        if key not in self._overridden:
            self._overridden.clear()  # what is repeated has the same ones
            found = {name: overriding(value) for name, value in overrides.items()}
            given = {name: expression for name, expression in found.items() if expression is not None}
            known = {**self._known, **{name: (expression, *self._known[name]) for name, expression in given.items()}}
            made = PartsFunction(self._cls, known, self._parts_with(given), self._init_vars, self._checks)
            self._overridden[key] = (overrides, made)
        return self._overridden[key][1]

    def _record(self, attributes: Mapping[str, Any], init_vars: Sequence[object]) -> Record:
        """The record of the arguments that are not kept; one object for all instances made with the defaults."""
        given = [entry for entry in self._kept if init_vars[entry[0]] is not entry[2]]
        supplied = {
            part.name: attributes[part.name] for part in self._defaults if attributes[part.name] is not part.expression
        }
        policy = NO_POLICY if self._says_dtypes else current_policy()
        if not given and not supplied and policy.is_empty:
            return self._usual_record
        if supplied and _is_standard_replace():
            raise FieldError(
                type_name(self._cls),
                "dataclasses.replace passes on parts that were made for other arguments",
                got=", ".join(supplied),
                fix="dx.replace(obj, ...)        # makes them anew",
            )
        values = {name: MISSING if is_data(init_vars[index]) else init_vars[index] for index, name, _ in given}
        made = {name: supplied.get(name) for name in self._usual_record.made}
        return Record(
            values,
            {name: value for name, value in made.items() if name not in supplied or overriding(value) is not None},
            policy,
        )


def _is_standard_replace() -> bool:
    """Whether the function of the standard makes the call of the constructor that runs."""
    frame: Any = sys._getframe(1)
    while frame.f_code is not PytreeMeta._construct.__code__ and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_back is not None and frame.f_back.f_globals.get("__name__") == "dataclasses"
