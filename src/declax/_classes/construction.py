"""Constructors: checks of arguments, the record of those that are used up, and the parts.

`declare` has turned the expressions of the class body into standard fields,
and the standard's decorator has run. `install` gives the class its `Maker`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, Final, TypeAlias

from declax._classes.argument_checks import ArgumentChecks
from declax._classes.declaring import Declared
from declax._classes.part_source import PartsFunction, part_draws_keys
from declax._classes.parts import Part
from declax._classes.pytree import MAKES_MEMBERS, PytreeMeta, check_added, read
from declax._classes.records import NEW, Record, record_of
from declax._classes.sizes import check_sizes, deciding_fields
from declax._fields.annotations import AnnotationScope
from declax._fields.call import Call
from declax._fields.class_body import PlainDefault
from declax._fields.class_info import ClassInfo, maker_of
from declax._fields.deciding import class_within, decide
from declax._fields.expressions import Expression
from declax._fields.keys import RNGS
from declax._fields.overrides import overriding
from declax._fields.sources import declared_text
from declax._fields.specifiers import (
    CLASS_VAR,
    FIELD,
    INIT_VAR,
    PartRecipe,
    Status,
    VariableRecipe,
    is_init_var,
)
from declax._tree.statuses import is_data
from declax._typing import MISSING, RECORD_KEY
from declax._variables.policy import NO_POLICY, POLICY, Policy, current_policy
from declax.errors import DeclaxError, FieldError, MissingRngsError, describe, set_fix, type_name

ALL: Final = ...
Taken: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""The names of the InitVars that a function takes by position, and by name."""


class UsedUp:
    """An argument that only the constructor uses; reading it from an instance is an error that says so."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        name = self._name
        where = f"{type_name(owner)}.{name}"
        if instance is None:
            if name == RNGS and getattr(owner, "_pytree__implies_rngs", False):
                raise AttributeError(f"{where} is no attribute: the parts of a Layer get rngs without being told")
            annotation = "dx.Rngs" if name == RNGS else "..."
            lines = f"_: dx.KW_ONLY\n{name}: dx.InitVar[{annotation}] = dx.field()"
            raise AttributeError(f"{where} is an InitVar, which is not inherited; declare it again:\n{lines}")
        hint = "; dx.spec_of shows it, and dx.replace passes it on" if is_recorded(owner, name) else ""
        raise AttributeError(f"{where} is an InitVar: only the constructor receives it{hint}")


def install(info: ClassInfo, declared: Declared) -> None:
    """Reads the fields of a class that the standard's decorator has seen, and gives it what makes its parts.

    Defaults with an expression are not attributes of the class; those without a specifier are read by descriptors.
    """
    cls: Any = info.cls
    fields: dict[str, Any] = cls.__dataclass_fields__
    for name in info.annotations:
        field = fields.get(name)
        if field is None or name in declared.known or field._field_type is not FIELD:
            continue
        if field.default is cls.__dict__.get(name, MISSING) and not hasattr(type(field.default), "__set__"):
            setattr(cls, name, PlainDefault(cls, field))
    for name in declared.names:
        if fields[name]._field_type is INIT_VAR:
            setattr(cls, name, UsedUp(name))
        elif name in declared.known and fields[name].init and name in cls.__dict__:
            delattr(cls, name)  # the default: `PytreeMeta.__getattr__` gives the expression
    read(info)
    info.maker, info.is_declared = Maker(info, declared.own, declared.known), True
    owner = type_name(cls)
    for name, expression in declared.own.items():
        if expression._pytree__name == name and fields[name]._field_type is not INIT_VAR:
            expression._pytree__owner = owner


LOST_RECORD: Final = "merge, jax.tree.map and transforms return objects without the arguments of their construction"


def is_recorded(cls: type, name: str) -> bool:
    """Whether instances keep a record of the argument of a name."""
    return name in maker_of(cls).recorded


def call_now(obj: Any) -> Call:
    """The call that constructs an instance of a dataclass as it is now; MISSING stands for unknown arguments.

    Parts that the constructor makes as the class declares them are left out, and so are InitVars that are data and
    have a default, unless a number was given for it.
    """
    cls, record = type(obj), record_of(obj)
    made = set[str]() if record is None else record.as_made(obj.__dict__)
    recorded: Mapping[str, Any] = {} if record is None else record.call.kwargs
    found: dict[str, Any] = {}
    for name, field in cls.__dataclass_fields__.items():
        is_lost = record is None and is_recorded(cls, name)
        if not field.init or field._field_type is CLASS_VAR:
            continue
        if name in made:
            found |= {name: recorded[name]} if name in recorded else {}
        elif not is_init_var(field):
            found[name] = MISSING if is_lost else getattr(obj, name)
        elif is_recorded(cls, name):
            found[name] = MISSING if is_lost else recorded.get(name, field.default)
        elif recorded.get(name, MISSING) is not MISSING:
            found[name] = recorded[name]
        elif field.default is dataclasses.MISSING:
            found[name] = MISSING
    return Call(cls, (), found)


def refuse_loss(obj: Any, operation: str, error: type[DeclaxError], where: str) -> None:
    """Raises for an internal part that a new object would not have: it was assigned since, or that is unknown."""
    cls, record = type(obj), record_of(obj)
    maker: Maker = maker_of(cls)
    if not maker.internal:
        return
    if record is None:
        raise error(
            f"{where}.{maker.internal[0].name}",
            f"{operation} cannot tell whether this part was assigned after construction",
            why=LOST_RECORD,
            fix=f"dx.{operation}(...)        # of the object that was constructed, before merge or tree.map",
        )
    made = record.as_made(obj.__dict__)
    part = next((part for part in maker.internal if part.name not in made), None)
    if part is None:
        return
    text = declared_text(part.expression) if isinstance(part.recipe, PartRecipe) else "..."
    raise error(
        f"{where}.{part.name}",
        f"{operation} cannot keep this part: it was assigned after construction, or a part in it was",
        got=describe(obj.__dict__.get(part.name)),
        why="a part without an annotation is not an argument of the constructor, which makes it anew",
        fix=f"{part.name}: ... = {text}        # in {type_name(cls)}: with an annotation it is an argument",
    )


class Maker:
    """Checks the arguments of a constructor, and makes the parts of an instance.

    Attributes:
      own: the expressions that the body of the class binds, by name and in order.
      expressions: all names in the order of evaluation, each with its expression and those that it overrides.
      recorded: the names of the arguments that a `Record` keeps.
      defaults: the parts that the caller may supply.
      internal: the parts that the caller cannot supply.
      init_vars: the names of the InitVars, in the order of the constructor.
      names: of the fields and parts, if the class declares expressions.
      guarded: see `Layout.guarded`.
      draws: whether each construction draws keys from `rngs`.
    """

    def __init__(
        self, info: ClassInfo, own: Mapping[str, Expression], expressions: Mapping[str, tuple[Expression, ...]]
    ) -> None:
        cls: Any = info.cls
        fields: dict[str, dataclasses.Field[Any]] = cls.__dataclass_fields__
        self._cls = cls
        self._specs = info.specs
        self.own = own
        self.expressions = expressions
        self.init_vars = info.init_vars
        self._arguments = ArgumentChecks(cls, self.init_vars)
        parts = self._parts_with({})
        self._kept = _kept_init_vars(cls, self.init_vars)
        self.recorded = [name for _, name, _, is_data_field in self._kept if not is_data_field]
        self.defaults: list[Part] = []
        self.internal: list[Part] = []
        for part in parts:
            if part.is_argument:
                self.defaults.append(part)
                self.recorded.append(part.name)
            elif not isinstance(part.recipe, VariableRecipe):
                self.internal.append(part)
        self._usual_record = Record(Call(cls), {part.name: NEW for part in (*self.defaults, *self.internal)})
        field = fields.get(POLICY)
        self._has_policy = field is not None and class_within(field.type, AnnotationScope(cls), Policy) is not None
        if self._has_policy and (is_init_var(field) or any(part.name == POLICY for part in parts)):
            raise FieldError(
                f"{type_name(cls)}.{POLICY}",
                "the parts are made under this policy, so it must be an attribute before they are",
                got="an InitVar" if is_init_var(field) else "an expression",
                fix=f"{POLICY}: dx.Policy = dx.field(default=dx.Policy())",
            )
        self._says_dtypes = self._has_policy or "param_dtype" in fields
        self._make = PartsFunction(cls, own, expressions, parts, self.init_vars, self._arguments) if parts else None
        self._overridden: dict[Any, tuple[Any, PartsFunction]] = {}
        self.draws = any(map(part_draws_keys, parts))
        if self._make is not None and self._make.has_quotients:
            for part in parts:
                check_sizes(cls, part)
        self.names = frozenset(fields) if expressions else frozenset[str]()
        self.guarded: Collection[str] = self.names

    @property
    def source(self) -> str:
        """The function that makes the parts, as text."""
        return "" if self._make is None else self._make.source

    @property
    def is_needed(self) -> bool:
        """Whether the constructor has something to do."""
        return bool(self._make or self.init_vars or self._has_policy or self._arguments.is_needed)

    def wrap_post_init(self, info: ClassInfo) -> None:
        """Lets the ``__post_init__`` of a subclass without the decorator make the parts first."""
        wrap_post_init(info)

    @functools.cached_property
    def deciding(self) -> dict[str, str]:
        """The fields that decide what parts are made of, each with such a part; read at the first instance."""
        post_inits = _post_inits(self._cls) if self.names else ()
        found = self.guarded = deciding_fields(self._cls, self._parts_with({}), post_inits)
        return found

    def _parts_with(self, given: Mapping[str, Expression]) -> list[Part]:
        """The parts, some of them made by other expressions."""
        fields, parts = self._cls.__dataclass_fields__, []
        for name, expressions in self.expressions.items():
            if name in given:
                parts.append(Part(name, given[name], PartRecipe(given[name]), is_argument=False))
            elif name in self._specs and (recipe := self._specs[name].recipe) is not None:
                parts.append(Part(name, expressions[0], recipe, is_argument=fields[name].init))
        return parts

    def __call__(self, instance: Any, init_vars: Sequence[object]) -> None:
        """Checks the arguments, records those that are used up, and makes the parts."""
        attributes = instance.__dict__
        check = self._arguments.function
        if check is not None:
            check(instance, *init_vars)
        make = self._make
        if self._kept or self.recorded or self.internal or (make is not None and not current_policy().is_empty):
            record = attributes[RECORD_KEY] = self._record(attributes, init_vars)
            if record is not self._usual_record:
                overrides = {name: value for name, value in record.call.kwargs.items() if name in record.parts}
                make = self._over(overrides) if overrides else make
        policy = attributes.get(POLICY)
        try:
            if isinstance(policy, Policy):
                with policy as attributes[POLICY]:
                    if make is not None:
                        make.function(instance, *init_vars)
            elif make is not None:
                make.function(instance, *init_vars)
        except Exception as error:
            if make is not None:
                make.explain(error, instance, init_vars)
            raise

    def _over(self, overrides: Mapping[str, Any]) -> PartsFunction:
        """The function that makes the parts if some are declared calls with other arguments."""
        key = tuple((name, id(value)) for name, value in overrides.items())
        known = self._overridden.get(key)
        if known is None:
            self._overridden.clear()  # what is repeated has the same ones
            found = {name: overriding(value) for name, value in overrides.items()}
            given = {name: expression for name, expression in found.items() if expression is not None}
            nearer = {name: (expression, *self.expressions[name]) for name, expression in given.items()}
            names = {**self.expressions, **nearer}
            made = PartsFunction(self._cls, self.own, names, self._parts_with(given), self.init_vars, self._arguments)
            known = self._overridden[key] = (overrides, made)
        return known[1]

    def _record(self, attributes: Mapping[str, Any], init_vars: Sequence[object]) -> Record:
        """The record of the arguments that are not kept; one object for all instances made with the defaults."""
        given, supplied = {}, {}
        for index, name, default, _ in self._kept:
            if init_vars[index] is not default:
                given[name] = init_vars[index]
        for part in self.defaults:
            if attributes[part.name] is not part.expression:
                supplied[part.name] = attributes[part.name]
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
        values = {name: MISSING if is_data(value) else value for name, value in given.items()}
        overrides = {name: value for name, value in supplied.items() if overriding(value) is not None}
        made = [name for name in self._usual_record.parts if name not in supplied or name in overrides]
        return Record(Call(self._cls, (), {**values, **overrides}), dict.fromkeys(made, NEW), policy)


def _kept_init_vars(cls: Any, init_vars: Sequence[str]) -> list[tuple[int, str, object, bool]]:
    """The InitVars that a record keeps, each with its place and default, and whether it is data: all but `rngs`.

    Of those that are data, only numbers and other static values are kept.
    """
    found = []
    for index, name in enumerate(init_vars):
        field = cls.__dataclass_fields__[name]
        if name != RNGS:
            is_data_field = decide(field.type, AnnotationScope(cls)).status is Status.DATA
            found.append((index, name, field.default, is_data_field))
    return found


def _is_standard_replace() -> bool:
    """Whether the function of the standard makes the call of the constructor that runs."""
    frame: Any = sys._getframe(1)
    while frame.f_code is not PytreeMeta._construct.__code__ and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_back is not None and frame.f_back.f_globals.get("__name__") == "dataclasses"


# --- `__post_init__` ---------------------------------------------------------------


def wrap_post_init(info: ClassInfo) -> None:
    """Lets ``__post_init__`` make the parts of an instance first.

    Must run before `dataclasses.dataclass`, which looks for ``__post_init__``.
    """
    cls: Any = info.cls
    original: Callable[..., None] | None = cls.__dict__.get("__post_init__")

    def __post_init__(self: Any, *init_vars: object, **named: object) -> None:
        made: ClassInfo = self._pytree__info
        if made.post_init is not __post_init__:  # a subclass calls it by super()
            _run_post_init(cls, original, self, init_vars, named)
            return
        if len(made.cls.__dict__) != made.entries:
            check_added(made)
        made.maker(self, init_vars)
        taken: Any = made.taken if made.taken is not MISSING else _read_post_init(made)
        if taken is not None:
            if taken is not ALL:
                known = dict(zip(made.maker.init_vars, init_vars, strict=True))
                positional, by_name = taken
                init_vars, named = tuple(known[name] for name in positional), {name: known[name] for name in by_name}
            try:
                _run_post_init(cls, original, self, init_vars, named)
            except MissingRngsError as error:
                if isinstance(taken, tuple) and RNGS not in (*taken[0], *taken[1]):
                    line = "def __post_init__(self, *, rngs: dx.Rngs | None = None): ...        # gets the rngs of"
                    call = str(error.fix).replace("rngs=dx.Rngs(0)", "rngs=rngs")
                    set_fix(error, f"{line} {type_name(made.cls)}\n{call}")
                raise
        record: Record | None = self.__dict__.get(RECORD_KEY)
        if record is not None and record.parts:
            self.__dict__[RECORD_KEY] = record.seal(self.__dict__)

    if original is not None:
        __post_init__.__wrapped__ = original  # type: ignore[attr-defined]  # whose signature is checked
    setattr(__post_init__, MAKES_MEMBERS, True)
    __post_init__.__qualname__ = f"{cls.__qualname__}.__post_init__"
    __post_init__.__module__ = cls.__module__
    cls.__post_init__ = info.post_init = __post_init__


def _run_post_init(cls: Any, original: Any, self: Any, init_vars: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Calls the ``__post_init__`` that a class defines, or else the inherited one."""
    run = original.__get__(self) if original is not None else getattr(super(cls, self), "__post_init__", None)
    if run is not None:
        run(*init_vars, **named)


def _read_post_init(info: ClassInfo) -> Taken | EllipsisType | None:
    """The InitVars that ``__post_init__`` takes: all, or in a Layer its parameters; None if nobody wrote one."""
    cls: Any = info.cls
    taken: Taken | EllipsisType | None = None
    defined = next(_post_inits(cls), None)
    if defined is not None:
        taken = _names_taken(cls, defined) if cls._pytree__implies_rngs else ALL
    info.taken = taken
    return taken


def _post_inits(cls: type) -> Iterator[Callable[..., None]]:
    """Each ``__post_init__`` that somebody wrote for a class or its bases, the nearest first."""
    for base in cls.__mro__:
        found: Any = base.__dict__.get("__post_init__")
        found = getattr(found, "__wrapped__", None) if hasattr(found, MAKES_MEMBERS) else found
        if found is not None:
            yield found


def _names_taken(cls: Any, post_init: Callable[..., None]) -> Taken:
    """The InitVars that ``__post_init__`` gets by position, and by name.

    Those that no parameter names go to ``*args``, or else to ``**kwargs``; `rngs` only where it is named.
    """
    parameters = list(inspect.signature(post_init).parameters.values())[1:]
    kinds = {p.kind for p in parameters}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    init_vars = maker_of(cls).init_vars
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in init_vars:
            raise FieldError(
                f"{type_name(cls)}.__post_init__",
                f"the parameter {parameter.name!r} is no InitVar of the class",
                why="in a Layer, __post_init__ gets the InitVars by the names of its parameters",
                expected=", ".join(init_vars),
                fix=f"{parameter.name}: dx.InitVar[...] = dx.field()",
            )
    known = [p for p in named if p.name in init_vars]
    rest = [name for name in init_vars if name != RNGS and all(name != p.name for p in known)]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        positional = [p.name for p in known if p.kind is p.POSITIONAL_OR_KEYWORD]
        return (*positional, *rest), tuple(p.name for p in known if p.kind is p.KEYWORD_ONLY)
    extra = rest if inspect.Parameter.VAR_KEYWORD in kinds else []
    return (), (*(p.name for p in known), *extra)
