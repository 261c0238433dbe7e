"""Turns the expressions of a class body into standard fields, before the standard's decorator runs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping
from types import FunctionType
from typing import Any, Final, NamedTuple, get_origin

from declax._classes.parts import MAY_BE_SHARED, fix_of_shared, is_shared, makes_data, may_make_data, recipe_of
from declax._classes.pytree import is_trained, shared_by_instances
from declax._fields.annotations import AnnotationScope, annotation_text, own_annotations
from declax._fields.call import (
    CONTAINERS,
    call_of,
    has_expression,
    is_arithmetic,
    operands_of,
    target_of,
    walk,
)
from declax._fields.class_body import RNGS_LINES, BodyNames, PlainDefault, base_with, reads_constant
from declax._fields.class_info import ClassInfo, make_shared_calls, take_marks
from declax._fields.deciding import decide, refuses_data
from declax._fields.expressions import Declaration, Expression, Literal, Reference, items_of, referred
from declax._fields.keys import RNGS
from declax._fields.refusals import refuse_holder
from declax._fields.sources import text_of
from declax._fields.specifiers import (
    CLASS_VAR,
    PartRecipe,
    Recipe,
    Specifier,
    Status,
    SubmoduleRecipe,
    specifier_of,
    standard_field,
)
from declax._tree.iterators import ITERATORS, check_iterators
from declax._tree.statuses import items_within
from declax._typing import INFO_KEY
from declax.errors import FieldError, describe, type_name

_OPTIONS: Final = ("init", "repr", "hash", "compare", "metadata", "kw_only")


class Declared(NamedTuple):
    """What a class declares by expressions, once its body is converted to standard fields.

    Attributes:
      own: the expressions that its body binds, by name and in order.
      known: those of its bases too, in the order of evaluation, each followed by those that it overrides.
      names: of the fields whose defaults are not attributes of the class.
    """

    own: dict[str, Expression]
    known: dict[str, tuple[Expression, ...]]
    names: list[str]


def declare(info: ClassInfo) -> Declared:
    """Converts the expressions of a class body to standard fields, and takes the fields of the bases."""
    cls, body = info.cls, info.body or BodyNames()
    _check_shared(info, body)
    if body.bound:
        info.body = None
        if info.class_variables:
            make_shared_calls(cls, body, info.class_variables & body.bound.keys())
        _check_body(info, body)
    _check_bases(cls)
    known = inherited_expressions(cls)
    if known or body.bound:
        _check_mixins(cls, {*known, *body.bound, *info.annotations})
    taken = take_fields(info, known)
    override(known, body.bound)
    added: dict[str, Any] = {}
    for name, expression in body.bound.items():
        given = specified(name, expression)
        specifier = None if given is None else specifier_of(given)
        if given is not None:
            _check_options(cls, name, given, specifier)
            recipe = None if specifier is None else specifier.recipe
            is_method = isinstance(recipe, SubmoduleRecipe)
            if name not in info.annotations and not is_method:
                raise _not_annotated(cls, name, recipe)
            if isinstance(expression, Declaration) and not is_method:
                continue
        if name in info.annotations:
            _declare_argument(info, name, expression, info.annotations[name], given)
        else:
            _declare_internal(info, name, expression, added)
    if added:
        info.annotate(_in_order(info.annotations, added, body))
    return Declared(body.bound, known, [*body.bound, *taken])


def specified(name: str, expression: Expression) -> dataclasses.Field[Any] | None:
    """The field of the specifier that binds a name; None for parts, and for further names of a field."""
    if expression._pytree__name != name:
        return None
    return expression._pytree__field if isinstance(expression, Declaration) else expression._pytree__specified


def _not_annotated(cls: type, name: str, recipe: Recipe | None) -> FieldError:
    kind, call = ("int", "field") if recipe is None else ("dx.Param[jax.Array]", "variable")
    return FieldError(
        f"{type_name(cls)}.{name}",
        "this field has no annotation, which decides its kind",
        fix=f"{name}: {kind} = dx.{call}(...)",
    )


def _check_shared(info: ClassInfo, body: BodyNames) -> None:
    for name, value in vars(info.cls).items():
        may_iterate = value.__class__ in ITERATORS or value.__class__ in CONTAINERS
        if may_iterate and not name.startswith(("__", "_pytree__")):
            fix = f"{name} = {{}}\n{name} = dx.repeat(3, dx.Linear(dim, dim))        # of sizes that are fields"
            check_iterators(items_within(value), f"{type_name(info.cls)}.{name}", fix)
        if value.__class__ in _METHODS:
            function = getattr(value, "__wrapped__", value)
            function = getattr(function, "fget", function)
            if isinstance(function, FunctionType) and (
                function.__closure__ or function.__defaults__ or function.__kwdefaults__
            ):
                refuse_holder(function, f"{type_name(info.cls)}.{name}")
            continue
        if isinstance(value, _NOT_SHARED) or name.startswith(("__", "_pytree__", "_abc_")):
            continue
        where = f"{type_name(info.cls)}.{name}"
        refuse_holder(value, where)
        if not isinstance(value, MAY_BE_SHARED):
            continue
        if name not in body.bound and value.__class__ in CONTAINERS and has_expression(value):
            raise FieldError(
                where,
                f"statements of the class body put expressions into this {type_name(type(value))}",
                why="all instances would share it, and nothing would evaluate them",
                fix=f"{name} = dx.repeat(depth, dx.Linear(dim, dim))\n"
                f"@dx.submodule\ndef {name}(self, rngs: dx.Rngs) -> list[dx.Linear]: ...        # what needs Python",
            )
        if name not in info.annotations and is_shared(value):
            raise FieldError(
                where,
                "all instances would share this object",
                got=describe(value),
                why="it is made once, when the class body runs. A comprehension there does not see the fields, and\n"
                "takes globals of the same names",
                fix=fix_of_shared(name, value),
            )


_METHODS: Final = frozenset({FunctionType, staticmethod, classmethod, property})
_NOT_SHARED: Final = (Expression, dataclasses.Field, int, float, str)
"""The classes of most attributes of classes, which need no look."""


def _check_options(cls: type, name: str, field: dataclasses.Field[Any], specifier: Specifier | None) -> None:
    """Refuses expressions in the options of a specifier, which nothing evaluates."""
    options: dict[str, object] = {} if specifier is None else {**specifier.notes}
    metadata = {key: value for key, value in field.metadata.items() if value is not specifier}
    if metadata:
        options["metadata"] = metadata
    for option, value in options.items():
        refuse_holder(value, f"{type_name(cls)}.{name}")
        if has_expression(value):
            raise FieldError(
                f"{type_name(cls)}.{name}",
                f"the option {option!r} of a field cannot be an expression",
                got=text_of(value),
                why="options are those of the class, and an expression has a value in an instance only",
                fix="def __post_init__(self, ...): ...        # checks that compare fields",
            )
    for value in (field.default, field.default_factory):
        if isinstance(value, MAY_BE_SHARED):
            refuse_holder(value, f"{type_name(cls)}.{name}")


def _check_bases(cls: type) -> None:
    """Refuses bases whose expressions nothing would evaluate."""
    for base in cls.__mro__[1:]:
        info: ClassInfo | None = base.__dict__.get(INFO_KEY)
        if info is None or info.is_declared or base.__module__.startswith("declax."):
            continue
        if "__dataclass_fields__" not in base.__dict__:
            take_marks(info)
        if info.body is not None:
            raise FieldError(
                f"{type_name(base)}.{next(iter(info.body.bound))}",
                f"the declarations of a class require the decorator, and this base of {type_name(cls)} has none",
                fix="@dx.dataclass",
            )


def _check_mixins(cls: type, declared: set[str]) -> None:
    """Refuses layers and Variables of bases that are no Pytrees, unless the class declares another of the name."""
    for base in cls.__mro__[1:]:
        if INFO_KEY in base.__dict__ or base.__module__ == "builtins":
            continue
        constants = {name for name, annotation in own_annotations(base).items() if "ClassVar" in str(annotation)}
        for name, value in base.__dict__.items():
            if not name.startswith("__") and name not in constants | declared and is_trained(value):
                fix = f"@dx.dataclass\nclass {type_name(base)}(dx.Layer): ...        # in place of a plain class"
                raise shared_by_instances(base, name, value, fix)


def _check_body(info: ClassInfo, body: BodyNames) -> None:
    cls, annotations = info.cls, info.annotations
    if body.twice is not None:
        name, value = body.twice, body.bound[body.twice]
        raise FieldError(
            f"{type_name(cls)}.{name}",
            "the class body binds this name twice",
            why="expressions refer to fields and parts by name, and could mean either",
            fix=f"{name}_2: {annotation_text(annotations.get(name, ...))} = dx.field()"
            if isinstance(value, Declaration)
            else f"{name}_2 = {text_of.whole(value)}",
        )
    for name, made in body.unpacked.items():
        if may_make_data(made):
            call = text_of.whole(made)
            raise FieldError(
                f"{type_name(cls)}.{name}",
                f"the unpacking binds one call to {made._pytree__name!r} and to {name!r}",
                got=call,
                why="they would be one object with one set of parameters: [part] * n does not repeat the call",
                fix=f"{made._pytree__name} = {call}\n{name} = {call}        # each its own object\n"
                f"{made._pytree__name} = {name} = {call}        # one object on purpose",
            )
    opened = []
    for name, value in body.bound.items():
        made_by = value._pytree__call
        if made_by is not None and name in body.reads:
            for operand in (*made_by.args, *made_by.kwargs.values()):
                if operand.__class__ in _OPENED and _may_hold_call(operand):
                    opened.append(name)
                    break
    if opened:
        _check_made_before(cls, body, opened)
    for test, name in body.faults.tested:
        if name in body.bound and test not in body.bound:
            raise FieldError(
                f"{type_name(cls)}.{name}",
                f"the class body applies {test} to {name!r}, which has a value in an instance only",
                why=f"{test} looks at the expression itself, and gives a constant in the class body",
                fix=f"{name} == None        # in place of `is None`, as in dx.when({name} == None, ..., {name})"
                if test == "`is`"
                else f"dx.defer({test})({name}, ...)        # in place of {test}({name}, ...)",
            )
    for read, name in _names_read(body, annotations).items():
        if isinstance(read, PlainDefault):
            raise reads_constant(read.where, read.value, read.annotation, f"expression of {name!r}")
        if read in annotations:
            if read not in body.bound and not _is_constant(info, read):
                where, value = f"{type_name(cls)}.{read}", cls.__dict__.get(read, dataclasses.MISSING)
                raise reads_constant(where, value, annotations[read], f"expression of {name!r}")
        elif read not in cls.__dict__ and (base := base_with(read, cls.__mro__[1:])) is not None:
            raise FieldError(
                f"{type_name(cls)}.{name}",
                f"the expression reads {read!r}, a field of the base {type_name(base)}, and Python finds a global",
                why="in Python, a class body does not see inherited names",
                fix=_fix_of_rngs(cls) if read == RNGS else f"{type_name(base)}.{read}",
            )


_OPENED: Final = frozenset({Expression, Reference, Literal, *CONTAINERS})
"""What may hold a call of an earlier statement: most operands are fields and numbers."""


def _may_hold_call(value: Any) -> bool:
    """Whether an operand may be or hold a call: all but arithmetic on fields and numbers."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        call = value._pytree__call if value.__class__ is Expression else None
        if call is None or not is_arithmetic(call.target):
            return True
        if id(value) not in seen:
            seen.add(id(value))
            waiting += [operand for operand in call.args if operand.__class__ in _OPENED]
    return False


def _check_made_before(cls: type, body: BodyNames, opened: list[str]) -> None:
    """Refuses a call that another statement bound, in one that reads no name of it: a function gave the call twice."""
    names: dict[int, str] = {}
    for name, value in body.bound.items():
        for item in (*(item for item, _ in items_of(value)), value):
            names.setdefault(id(item), name)
    for name in opened:
        read = {*body.reads[name]}
        for other in body.reads[name]:
            if isinstance(other, str) and other not in body.bound:
                read.update(body.reads.get(other, ()))
        waiting: list[Any] = [body.bound[name]]
        while waiting:
            value = waiting.pop()
            first = names.get(id(value), name)
            if first in read:
                continue
            if first != name and isinstance(value, Expression) and may_make_data(value):
                raise _made_twice(cls, name, first, text_of.whole(value))
            waiting += operands_of(value)


def _made_twice(cls: type, name: str, first: str, call: str) -> FieldError:
    return FieldError(
        f"{type_name(cls)}.{name}",
        f"the call {call} is {first!r} too, which this statement does not read",
        why="they would be one object with one set of parameters: a function gave one call twice, as one\n"
        "under functools.cache does",
        fix=f"{name} = {call}        # its own object\n{name} = {first}        # one object on purpose",
    )


def _fix_of_rngs(cls: Any) -> str:
    return "dx.Linear(dim, dim)        # without rngs=rngs" if cls._pytree__implies_rngs else RNGS_LINES


def _names_read(body: BodyNames, annotations: Collection[str]) -> dict[str | PlainDefault, str]:
    """What the statements of expressions read, each with the first of them.

    A name that is no field counts for what its own statement read: a constant that the class body computed before.
    """
    found: dict[str | PlainDefault, str] = {}
    for name in body.bound:
        waiting: list[str] = [name]
        while waiting:
            for read in body.reads.get(waiting.pop(), ()):
                if read not in found and read != name:
                    found[read] = name
                    if isinstance(read, str) and read not in annotations and read not in body.bound:
                        waiting.append(read)
    return found


def _is_constant(info: ClassInfo, name: str) -> bool:
    annotation = info.annotations[name]
    return name in info.class_variables or annotation is Final or get_origin(annotation) is Final


def _declare_internal(info: ClassInfo, name: str, expression: Expression, added: dict[str, Any]) -> None:
    """Declares a part without an annotation: the new default of an argument that is inherited, or an internal part."""
    cls: Any = info.cls
    _, overridden = inherited(cls, name) or (cls, None)
    if overridden is not None and overridden.init:
        added[name] = inherited_annotation(cls, name)
        _declare_argument(info, name, expression, added[name], overridden)
    else:
        call = call_of(referred(expression))
        added[name] = call.target if call is not None and isinstance(call.target, type) else Any
        setattr(cls, name, standard_field(Specifier(*_made(info, expression)), init=False))


def _declare_argument(info: ClassInfo, name: str, expression: Expression, annotation: Any, given: Any) -> None:
    """Declares a part that the caller may supply, with the options of its specifier, if any."""
    cls = info.cls
    is_class_variable = name in info.class_variables
    if is_class_variable or isinstance(annotation, dataclasses.InitVar):
        raise FieldError(
            f"{type_name(cls)}.{name}",
            f"{'a class variable' if is_class_variable else 'an InitVar'} has no value that is computed from fields",
            got=repr(expression),
            fix=f"{name}: ... = {expression!r}        # a field",
        )
    status, recipe = _made(info, expression)
    specifier = (None if given is None else specifier_of(given)) or Specifier(None)
    is_computed = specifier.recipe is not None  # the status of the part that this one overrides
    explicit = None if is_computed else specifier.status
    is_static = explicit is Status.STATIC
    scope = AnnotationScope(cls)
    decision = decide(annotation, scope)
    if status is Status.DATA and (is_static or decision.is_number or refuses_data(annotation, scope)):
        raise FieldError(
            f"{type_name(cls)}.{name}",
            f"the part {text_of.term(expression)} is data, and its annotation or specifier makes it static",
            got="dx.static(...)" if is_static else annotation_text(annotation),
            fix=f"{name} = {text_of.whole(expression)}        # without an annotation, or with that of the part",
        )
    if decision.status is not None and status is not Status.DATA:
        status = None
    options = {} if given is None else {option: getattr(given, option) for option in _OPTIONS}
    if options.get("init") is not False:
        options["default"] = expression
    setattr(cls, name, standard_field(specifier._replace(status=explicit or status, recipe=recipe), **options))


def _made(info: ClassInfo, expression: Expression) -> tuple[Status | None, Recipe]:
    """How a part is made, and its status for all values of the fields; None if the value decides."""
    if isinstance(expression, Declaration):
        return Status.DATA, recipe_of(expression._pytree__field) or PartRecipe(expression)
    if makes_data(expression):
        return Status.DATA, PartRecipe(expression)
    return Status.STATIC if _is_static_number(info, expression) else None, PartRecipe(expression)


def _is_static_number(info: ClassInfo, value: Any) -> bool:
    """Whether a value is a number, or arithmetic on fields that are annotated as numbers."""
    scope = AnnotationScope(info.cls)
    for part in walk(value):
        if isinstance(part, Declaration):
            annotation = info.annotations.get(part._pytree__name or "")
            if annotation is None or not decide(annotation, scope).is_number:
                return False
        elif not (isinstance(part, int | float) or is_arithmetic(target_of(part))):
            return False
    return True


def _in_order(annotations: Mapping[str, Any], internal: Mapping[str, Any], body: BodyNames) -> dict[str, Any]:
    """The annotations with those of internal parts among them, in the order of the class body."""
    waiting = list(annotations)
    ordered: dict[str, Any] = {}
    for name in body.bound:
        if name in internal:
            ordered[name] = internal[name]
        elif name in waiting:
            for before in waiting[: waiting.index(name) + 1]:
                ordered[before] = annotations[before]
            del waiting[: waiting.index(name) + 1]
    for name in waiting:
        ordered[name] = annotations[name]
    return ordered


# --- what a class takes from its bases; the MRO is the only rule for fields, parts and methods ----------------------


def inherited_expressions(cls: type) -> dict[str, tuple[Expression, ...]]:
    """The expressions of the bases by name, in the order of evaluation, each followed by those that it overrides."""
    found: dict[str, tuple[Expression, ...]] = {}
    for base in reversed(cls.__mro__[1:]):
        info: ClassInfo | None = base.__dict__.get(INFO_KEY)
        if info is not None and info.is_declared:
            override(found, info.maker.own)
    return found


def override(known: dict[str, tuple[Expression, ...]], own: Mapping[str, Expression]) -> None:
    """Puts the expressions of a nearer class in front of those of its bases."""
    for name, expression in own.items():
        known[name] = (expression, *known.get(name, ()))


def inherited(cls: type, name: str) -> tuple[type, dataclasses.Field[Any]] | None:
    """The nearest base that declares a field of a name, with the field."""
    for base in cls.__mro__[1:]:
        field: Any = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if field is not None and field._field_type is not CLASS_VAR and name in own_annotations(base):
            return base, field
    return None


def inherited_annotation(cls: type, name: str) -> object:
    """The annotation of the nearest base that declares a field of a name, resolved where all its names exist."""
    owner, field = inherited(cls, name) or (cls, None)
    scope = AnnotationScope(owner)
    resolved = Any if field is None else scope.resolve(field.type)
    return resolved if field is None or scope.is_complete else field.type


_COPIED: Final = ("default", "default_factory", "init", "repr", "hash", "compare", "metadata")


def take_fields(info: ClassInfo, known: Collection[str]) -> list[str]:
    """Redeclares the inherited fields that the standard's decorator would take otherwise; returns their names.

    An annotation without a value keeps the inherited declaration, of which the class shows no default. Of several
    bases, the standard prefers all fields of the nearer one, also those that this inherits.
    """
    cls, taken = info.cls, []
    for name in info.annotations:
        nearest = inherited(cls, name) if name in known and name not in cls.__dict__ else None
        if nearest is not None:
            setattr(cls, name, dataclasses.field(**{option: getattr(nearest[1], option) for option in _COPIED}))
            taken.append(name)
    if len(cls.__bases__) < 2 or sum(hasattr(base, "__dataclass_fields__") for base in cls.__bases__) < 2:
        return taken
    mro = reversed(cls.__mro__[1:])
    by_standard = {name: f for base in mro for name, f in getattr(base, "__dataclass_fields__", {}).items()}
    added: dict[str, Any] = {}
    for name, field in by_standard.items():
        nearest = None if name in info.annotations or name in cls.__dict__ else inherited(cls, name)
        if nearest is not None and nearest[1] is not field:
            added[name] = inherited_annotation(cls, name)
            setattr(cls, name, copy.copy(nearest[1]))
    if added:
        info.annotate({**info.annotations, **added})
    return [*taken, *added]
