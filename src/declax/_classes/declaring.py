"""Turns the expressions of a class body into standard fields, before the standard's decorator runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Final, get_origin

from declax._classes.overriding import expressions_of, inherited, inherited_annotation, take_fields
from declax._classes.parts import fix_of_shared, is_shared, makes_data, recipe_of
from declax._fields.annotations import AnnotationScope, annotation_text, own_annotations
from declax._fields.call import CONTAINERS, call_of, has_expression, is_arithmetic, operands_of, target_of
from declax._fields.class_body import BODY_KEY, RNGS_LINES, BodyNames, PlainDefault, base_with, reads_constant
from declax._fields.class_info import MAKER_KEY
from declax._fields.deciding import decide, refuses_data
from declax._fields.expressions import Declaration, Expression, referred
from declax._fields.keys import RNGS
from declax._fields.refusals import refuse_partial
from declax._fields.sources import bare, term_text, text_of
from declax._fields.specifiers import (
    PartRecipe,
    Recipe,
    Specifier,
    Status,
    SubmoduleRecipe,
    specifier_of,
    standard_field,
)
from declax._fields.table import make_shared_calls, take_marks
from declax._tree.statuses import PLAIN
from declax.errors import FieldError, describe, type_name

_OPTIONS: Final = ("init", "repr", "hash", "compare", "metadata", "kw_only")


def declare(cls: Any) -> tuple[dict[str, Expression], list[str]]:
    """Converts the names that a class body binds to expressions to standard fields, and takes the fields of the bases.

    Returns these expressions, and the names of the fields whose defaults are not attributes of the class.
    """
    body: BodyNames = cls.__dict__.get(BODY_KEY) or BodyNames()
    _check_shared(cls, body)
    if body.bound:
        delattr(cls, BODY_KEY)
        make_shared_calls(cls, body, [name for name in body.bound if _is_shared_on_purpose(cls, name)])
        _check_body(cls, body)
    _check_bases(cls)
    taken = take_fields(cls, expressions_of(cls, {}))
    added: dict[str, Any] = {}
    annotations = own_annotations(cls)
    for name, expression in body.bound.items():
        _check_options(cls, name, expression)
        if isinstance(expression, Declaration) and expression._pytree__name == name:
            recipe = recipe_of(expression._pytree__field)
            if not isinstance(recipe, SubmoduleRecipe):
                _check_annotated(cls, name, recipe, annotations)
                continue
        if name not in annotations:
            _declare_internal(cls, name, expression, added)
        else:
            given = expression._pytree__specified if expression._pytree__name == name else None
            _declare_argument(cls, name, expression, annotations[name], given)
    if added:
        cls.__annotations__ = _in_order(annotations, added, body)
    return body.bound, [*body.bound, *taken]


def _check_annotated(cls: type, name: str, recipe: Recipe | None, annotations: Collection[str]) -> None:
    if name not in annotations:
        kind, call = ("int", "field") if recipe is None else ("dx.Param[jax.Array]", "variable")
        raise FieldError(
            f"{type_name(cls)}.{name}",
            "this field has no annotation, which decides its kind",
            fix=f"{name}: {kind} = dx.{call}(...)",
        )


def _check_shared(cls: type, body: BodyNames) -> None:
    annotations = own_annotations(cls)
    for name, value in vars(cls).items():
        if name.startswith(("__", "_pytree__")) or value.__class__ in PLAIN:
            continue
        refuse_partial(value, f"{type_name(cls)}.{name}")
        if name not in body.bound and value.__class__ in CONTAINERS and has_expression(value):
            raise FieldError(
                f"{type_name(cls)}.{name}",
                f"statements of the class body put expressions into this {type_name(type(value))}",
                why="all instances would share it, and nothing would evaluate them",
                fix=f"{name} = dx.repeat(depth, dx.Linear(dim, dim))\n"
                f"@dx.submodule\ndef {name}(self, rngs: dx.Rngs) -> list[dx.Linear]: ...        # what needs Python",
            )
        if name not in annotations and is_shared(value):
            raise FieldError(
                f"{type_name(cls)}.{name}",
                "all instances would share this object",
                got=describe(value),
                why="it is made once, when the class body runs. A comprehension there does not see the fields, and\n"
                "takes globals of the same names",
                fix=fix_of_shared(name, value),
            )


def _check_options(cls: type, name: str, expression: Expression) -> None:
    """Refuses expressions in the options of a specifier, which nothing evaluates."""
    field = expression._pytree__field if isinstance(expression, Declaration) else expression._pytree__specified
    if field is None or expression._pytree__name != name:
        return
    where, specifier = f"{type_name(cls)}.{name}", specifier_of(field)
    notes: Mapping[str, object] = {} if specifier is None else specifier.notes
    metadata = {key: value for key, value in field.metadata.items() if value is not specifier}
    for option, value in {**notes, **({"metadata": metadata} if metadata else {})}.items():
        refuse_partial(value, where)
        if has_expression(value):
            raise FieldError(
                where,
                f"the option {option!r} of a field cannot be an expression",
                got=text_of(value),
                why="options are those of the class, and an expression has a value in an instance only",
                fix="def __post_init__(self, ...): ...        # checks that compare fields",
            )
    for value in (field.default, field.default_factory):
        refuse_partial(value, where)


def _check_bases(cls: type) -> None:
    """Refuses bases whose expressions nothing would evaluate."""
    for base in cls.__mro__[1:]:
        if MAKER_KEY in base.__dict__ or base.__module__.startswith("declax."):
            continue
        if BODY_KEY in base.__dict__ and "__dataclass_fields__" not in base.__dict__:
            take_marks(base)
        if BODY_KEY in base.__dict__:
            raise FieldError(
                f"{type_name(base)}.{next(iter(base.__dict__[BODY_KEY].bound))}",
                f"the declarations of a class require the decorator, and this base of {type_name(cls)} has none",
                fix="@dx.dataclass",
            )


def _check_body(cls: type, body: BodyNames) -> None:
    if body.twice is not None:
        name, value = body.twice, body.bound[body.twice]
        raise FieldError(
            f"{type_name(cls)}.{name}",
            "the class body binds this name twice",
            why="expressions refer to fields and parts by name, and could mean either",
            fix=f"{name}_2: {annotation_text(own_annotations(cls).get(name, ...))} = dx.field()"
            if isinstance(value, Declaration)
            else f"{name}_2 = {bare(value)}",
        )
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
    annotations = own_annotations(cls)
    for name in body.bound:
        for read in _names_read(body, name, annotations):
            if isinstance(read, PlainDefault):
                raise reads_constant(read.where, read.value, read.annotation, f"expression of {name!r}")
            if read in annotations:
                if read not in body.bound and not _is_class_variable(annotations[read]):
                    where, value = f"{type_name(cls)}.{read}", cls.__dict__.get(read, dataclasses.MISSING)
                    raise reads_constant(where, value, annotations[read], f"expression of {name!r}")
            elif read not in cls.__dict__ and (base := base_with(read, cls.__mro__[1:])) is not None:
                raise FieldError(
                    f"{type_name(cls)}.{name}",
                    f"the expression reads {read!r}, a field of the base {type_name(base)}, and Python finds a global",
                    why="in Python, a class body does not see inherited names",
                    fix=_fix_of_rngs(cls) if read == RNGS else f"{type_name(base)}.{read}",
                )


def _fix_of_rngs(cls: Any) -> str:
    return "dx.Linear(dim, dim)        # without rngs=rngs" if cls._pytree__implies_rngs else RNGS_LINES


def _names_read(body: BodyNames, name: str, annotations: Collection[str]) -> Iterator[str | PlainDefault]:
    """What a statement read, also by constants that the class body computed before."""
    waiting, seen = [name], set[str | PlainDefault]([name])
    while waiting:
        for read in body.reads.get(waiting.pop(), ()):
            if read not in seen:
                seen.add(read)
                yield read
                if isinstance(read, str) and read not in annotations and read not in body.bound:
                    waiting.append(read)


def _is_class_variable(annotation: Any) -> bool:
    return annotation in (ClassVar, Final) or get_origin(annotation) in (ClassVar, Final)


def _is_shared_on_purpose(cls: type, name: str) -> bool:
    annotation = own_annotations(cls).get(name)
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def _declare_internal(cls: Any, name: str, expression: Expression, added: dict[str, Any]) -> None:
    """Declares a part without an annotation: the new default of an argument that is inherited, or an internal part."""
    if expression._pytree__specified is not None and expression._pytree__name == name:
        _check_annotated(cls, name, None, ())
    _, overridden = inherited(cls, name) or (cls, None)
    if overridden is not None and overridden.init:
        added[name] = inherited_annotation(cls, name)
        _declare_argument(cls, name, expression, added[name], overridden)
    else:
        added[name] = _class_of(expression)
        setattr(cls, name, standard_field(Specifier(*_made(cls, expression)), init=False))


def _declare_argument(cls: Any, name: str, expression: Expression, annotation: Any, given: Any) -> None:
    """Declares a part that the caller may supply, with the options of its specifier, if any."""
    is_class_variable = _is_shared_on_purpose(cls, name)
    if is_class_variable or isinstance(annotation, dataclasses.InitVar):
        raise FieldError(
            f"{type_name(cls)}.{name}",
            f"{'a class variable' if is_class_variable else 'an InitVar'} has no value that is computed from fields",
            got=repr(expression),
            fix=f"{name}: ... = {expression!r}        # a field",
        )
    status, recipe = _made(cls, expression)
    specifier = (None if given is None else specifier_of(given)) or Specifier(None)
    is_computed = specifier.recipe is not None  # the status of the part that this one overrides
    explicit = None if is_computed else specifier.status
    is_static = explicit is Status.STATIC
    scope = AnnotationScope(cls)
    decision = decide(annotation, scope)
    if status is Status.DATA and (is_static or decision.is_number or refuses_data(annotation, scope)):
        raise FieldError(
            f"{type_name(cls)}.{name}",
            f"the part {term_text(expression, text_of)} is data, and its annotation or specifier makes it static",
            got="dx.static(...)" if is_static else annotation_text(annotation),
            fix=f"{name} = {bare(expression)}        # without an annotation, or with that of the part",
        )
    if decision.status is not None and status is not Status.DATA:
        status = None
    options = {} if given is None else {option: getattr(given, option) for option in _OPTIONS}
    if options.get("init") is not False:
        options["default"] = expression
    setattr(cls, name, standard_field(specifier._replace(status=explicit or status, recipe=recipe), **options))


def _made(cls: Any, expression: Expression) -> tuple[Status | None, Recipe]:
    """How a part is made, and its status for all values of the fields; None if the value decides."""
    if isinstance(expression, Declaration):
        return Status.DATA, recipe_of(expression._pytree__field) or PartRecipe(expression)
    status = Status.STATIC if _is_static_number(cls, expression) else None
    return Status.DATA if makes_data(expression) else status, PartRecipe(expression)


def _class_of(expression: Expression) -> Any:
    call = call_of(referred(expression))
    return call.target if call is not None and isinstance(call.target, type) else Any


def _is_static_number(cls: Any, value: Any) -> bool:
    """Whether a value is a number, or arithmetic on fields that are annotated as numbers."""
    waiting, seen = [value], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_arithmetic(target_of(value)):
            waiting.extend(operands_of(value))
        elif isinstance(value, Declaration):
            annotation = own_annotations(cls).get(value._pytree__name or "")
            if annotation is None or not decide(annotation, AnnotationScope(cls)).is_number:
                return False
        elif not isinstance(value, int | float):
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
            end = waiting.index(name) + 1
            ordered.update((before, annotations[before]) for before in waiting[:end])
            del waiting[:end]
    ordered.update((name, annotations[name]) for name in waiting)
    return ordered
