"""Turns the expressions of a class body into standard fields, before the standard's decorator runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Final, get_origin

from declax._classes.declared_variables import RNGS
from declax._classes.parts import Part, Reads, makes_data, recipe_of, text_of_part
from declax._classes.pytree import Pytree
from declax._classes.shared_objects import call_of_shared, fix_of_shared, objects_shared_in
from declax._fields.annotations import AnnotationScope, annotation_text, decide, own_annotations, refuses_data
from declax._fields.class_body import BODY_KEY, RNGS_LINES, BodyNames, base_with, reads_constant
from declax._fields.expressions import Declaration, Deferred, Expression, Operation, constants_of, referred
from declax._fields.refusals import WHY_CONSTANT, refuse_hidden
from declax._fields.sources import CONTAINERS, has_expression, text_of
from declax._fields.specifiers import (
    PartRecipe,
    Recipe,
    Specifier,
    Status,
    SubmoduleRecipe,
    specifier_of,
    standard_field,
)
from declax._fields.table import take_marks
from declax.errors import FieldError, describe, type_name

EXPRESSIONS_KEY: Final = "_pytree__expressions"
_OPTIONS: Final = ("init", "repr", "hash", "compare", "metadata")


def declare(cls: Any) -> dict[str, Expression]:
    """Converts the names that a class body binds to expressions to standard fields.

    Returns:
      The expressions by name, in the order of the body.

    Raises:
      FieldError: for violations of the rules of class bodies.
    """
    body: BodyNames = cls.__dict__.get(BODY_KEY) or BodyNames()
    _check_shared(cls, body)
    if body.bound:
        delattr(cls, BODY_KEY)
        _check_body(cls, body)
    _check_bases(cls)
    _restore_inherited(cls)
    found: dict[str, Expression] = {}
    internal: dict[str, Any] = {}
    annotations = own_annotations(cls)
    for name, expression in body.bound.items():
        found[name] = expression
        _check_constants(cls, name, expression)
        if isinstance(expression, Declaration) and expression._pytree__name == name:
            recipe = recipe_of(expression._pytree__field)
            _check_declaration(cls, name, recipe, annotations)
            if isinstance(recipe, SubmoduleRecipe):
                internal[name] = Any
            continue
        if name not in annotations:
            internal[name] = _class_of(expression)
        elif annotations[name] is ClassVar or get_origin(annotations[name]) is ClassVar:
            raise FieldError(
                f"{type_name(cls)}.{name}",
                "a class variable has no value that is computed from fields",
                got=repr(expression),
                fix=f"{name} = {expression!r}        # an attribute of each instance",
            )
        _declare_part(cls, name, expression, annotations)
    if internal:
        cls.__annotations__ = _in_order(annotations, internal, body)
    return found


def _check_declaration(cls: type, name: str, recipe: Recipe | None, annotations: Collection[str]) -> None:
    """Refuses fields and Variables without an annotation, and functions that are not methods of the class body."""
    if isinstance(recipe, SubmoduleRecipe):
        code = getattr(recipe.build, "__code__", None)
        is_method = getattr(recipe.build, "__name__", None) == name and (code is None or code.co_argcount > 1)
        if name in annotations or not is_method:
            raise FieldError(
                f"{type_name(cls)}.{name}",
                "submodule decorates a method of (self, rngs), and takes nothing else",
                got=describe(recipe.build),
                fix=f"{name} = dx.Linear(dim, dim, rngs=rngs)        # with fields that are declared above\n"
                f"@dx.submodule\ndef {name}(self, rngs: dx.Rngs) -> dx.Linear: ...",
            )
    elif name not in annotations:
        kind, call = ("int", "field") if recipe is None else ("dx.Param[jax.Array]", "variable")
        raise FieldError(
            f"{type_name(cls)}.{name}",
            "this field has no annotation, which decides its kind",
            fix=f"{name}: {kind} = dx.{call}(...)",
        )


def _check_shared(cls: type, body: BodyNames) -> None:
    annotations = own_annotations(cls)
    for name, value in vars(cls).items():
        refuse_hidden(value, f"{type_name(cls)}.{name}")
        is_bound = name in body.bound or name.startswith("_pytree__")
        if not is_bound and value.__class__ in CONTAINERS and has_expression(value):
            raise FieldError(
                f"{type_name(cls)}.{name}",
                f"statements of the class body put expressions into this {type_name(type(value))}",
                why="all instances would share it, and nothing would evaluate them",
                fix=f"{name} = dx.repeat(depth, dx.Linear(dim, dim, rngs=rngs))\n"
                f"@dx.submodule\ndef {name}(self, rngs: dx.Rngs) -> list[dx.Linear]: ...        # what needs Python",
            )
        shared = [] if name.startswith("__") or name in annotations else objects_shared_in(value)
        if shared:
            raise FieldError(
                f"{type_name(cls)}.{name}",
                "all instances would share this object",
                got=describe(value),
                why="it is made once, when the class body runs. A comprehension there does not see the fields, and\n"
                "takes globals of the same names",
                fix=fix_of_shared(name, value, shared[0]),
            )


def _check_constants(cls: type, name: str, expression: Expression) -> None:
    """Refuses real objects in a part, such as a layer that is made without a field among its arguments."""
    recipe = recipe_of(expression._pytree__field) if isinstance(expression, Declaration) else None
    for value in constants_of(Reads(Part(name, expression, recipe or PartRecipe(expression), is_argument=False))):
        refuse_hidden(value, f"{type_name(cls)}.{name}")
        if isinstance(value, property | functools.cached_property):
            raise _reads_property(f"{type_name(cls)}.{name}", value)
        shared = [] if recipe is not None else objects_shared_in(value)
        if shared:
            raise FieldError(
                f"{type_name(cls)}.{name}",
                "all instances would share an object in this part",
                got=describe(value),
                why="only a call with a field among its arguments is made anew by each instance",
                fix=call_of_shared(shared[0]),
            )


def _reads_property(where: str, value: property | functools.cached_property[Any]) -> FieldError:
    """The error of an expression that has a property among its arguments."""
    name = getattr(value.fget if isinstance(value, property) else value.func, "__name__", "value")
    return FieldError(
        where,
        f"the expression reads the property {name!r}, which has a value in an instance only",
        fix=f"{name} = 2 * dim        # an expression in place of the property\n"
        f"@dx.submodule\ndef part(self, rngs: dx.Rngs) -> dx.Linear: ...        # a method, which reads self.{name}",
    )


def _check_bases(cls: type) -> None:
    """Refuses bases whose expressions nothing would evaluate."""
    for base in cls.__mro__[1:]:
        if EXPRESSIONS_KEY in base.__dict__ or base.__module__.startswith("declax."):
            continue
        name = next((n for n, v in vars(base).items() if has_expression(v)), None)
        if BODY_KEY in base.__dict__ and "__dataclass_fields__" not in base.__dict__:
            take_marks(base)
        if BODY_KEY in base.__dict__:
            raise FieldError(
                f"{type_name(base)}.{next(iter(base.__dict__[BODY_KEY].bound))}",
                f"the declarations of a class require the decorator, and this base of {type_name(cls)} has none",
                fix="@dx.dataclass",
            )
        if name is not None and not issubclass(base, Pytree):
            raise FieldError(
                f"{type_name(base)}.{name}",
                f"nothing evaluates this expression: it is of a base of {type_name(cls)} that is not a Pytree",
                fix=f"@dx.dataclass\nclass {base.__name__}(dx.Module): ...",
            )


def _check_body(cls: type, body: BodyNames) -> None:
    if body.twice is not None:
        raise FieldError(
            f"{type_name(cls)}.{body.twice}",
            "the class body binds this name twice",
            why="expressions refer to fields and parts by name, and could mean either",
            fix=_under_another_name(body.twice, body.bound[body.twice]),
        )
    if body.deleted is not None:
        raise _deletes(cls, body.deleted, body.bound[body.deleted])
    for name, test in body.tested_objects():
        raise _tests_object(f"{type_name(cls)}.{name}", name, test)
    annotations = own_annotations(cls)
    constants = _constants_of_bases(cls, body)
    for name in body.bound:
        for read in _names_read(body, name, annotations):
            if read in constants:
                owner, field = constants[read], read.rpartition(".")[2]
                place = (
                    f"in {type_name(owner)}"
                    if issubclass(owner, Pytree)
                    else f"again in {type_name(cls)}; read {field}"
                )
                raise _reads_constant(owner, field, f"{type_name(cls)}.{name}", f"        # {place}")
            if read in body.bound:
                continue
            base = base_with(read, cls.__mro__[1:])
            if base is not None and read not in cls.__dict__ and read not in annotations:
                raise FieldError(
                    f"{type_name(cls)}.{name}",
                    f"the expression reads {read!r}, a field of the base {type_name(base)}, and Python finds a global",
                    why="in Python, a class body does not see inherited names",
                    fix=RNGS_LINES if read == RNGS else f"{type_name(base)}.{read}",
                )
            if read in annotations and not _is_class_variable(annotations[read]):
                raise _reads_constant(cls, read, name)


def _under_another_name(name: str, value: Expression) -> str:
    is_field = isinstance(value, Declaration)
    return f"{name}_2: ... = dx.field()" if is_field else f"{name}_2 = {value._pytree__source(text_of)}"


def _deletes(cls: type, name: str, value: Any) -> FieldError:
    """The error of a name that the class body deletes."""
    source = repr(value) if isinstance(value, Expression) else text_of(value)
    is_field = isinstance(value, Declaration)
    return FieldError(
        f"{type_name(cls)}.{name}",
        f"the class body deletes {name!r}, and each instance has it",
        why="the constructor makes all fields and expressions of the class body",
        fix=f"leave `del {name}` out" if is_field else f"{source}        # in each place that reads {name}",
    )


def _tests_object(where: str, name: str, test: str) -> FieldError:
    """The error of a class body that asks which object a field is."""
    return FieldError(
        where,
        f"the class body applies {test} to {name!r}, which has a value in an instance only",
        why=WHY_CONSTANT,
        fix=f"{name} == None        # in place of `is None`, as in dx.when({name} == None, ..., {name})\n"
        f"dx.defer(function)({name})        # a function receives the value",
    )


def _reads_constant(owner: type, field: str, reader: str, place: str = "") -> FieldError:
    """The error of an expression that reads a field without a specifier."""
    where, value = f"{type_name(owner)}.{field}", owner.__dict__.get(field, dataclasses.MISSING)
    return reads_constant(where, value, own_annotations(owner)[field], f"expression of {reader!r}", place)


def _constants_of_bases(cls: type, body: BodyNames) -> dict[str, type]:
    """The dotted names that the class body read and that are plain defaults of a base, each with the class of it."""
    bases = {base.__name__: base for base in cls.__mro__[1:] if hasattr(base, "__dataclass_fields__")}
    found: dict[str, type] = {}
    scope = AnnotationScope(cls)
    for name, reads in body.attributes_read().items() if bases else ():
        body.reads[name] = (*body.reads.get(name, ()), *reads)
        for read in reads:
            owner, _, field = read.rpartition(".")
            base: Any = scope.resolve(owner)
            base = base if isinstance(base, type) else bases.get(owner.rpartition(".")[2])
            is_field = base in bases.values() and base_with(field, (base,)) is not None
            if is_field and field not in getattr(base, EXPRESSIONS_KEY, ()):
                found[read] = next(cls for cls in base.__mro__ if field in own_annotations(cls))
    return found


def _names_read(body: BodyNames, name: str, annotations: Collection[str]) -> Iterator[str]:
    """The names that a statement read, also by constants that the class body computed before."""
    waiting, seen = [name], {name}
    while waiting:
        for read in body.reads.get(waiting.pop(), ()):
            if read not in seen:
                seen.add(read)
                yield read
                if read not in annotations and read not in body.bound:
                    waiting.append(read)


def _is_class_variable(annotation: Any) -> bool:
    return annotation in (ClassVar, Final) or get_origin(annotation) in (ClassVar, Final)


def _restore_inherited(cls: Any) -> None:
    """Keeps the declaration of a base if a class repeats an annotation without a value, as the standard does."""
    expressions = getattr(cls, EXPRESSIONS_KEY, {})
    for name in own_annotations(cls):
        inherited = getattr(cls, "__dataclass_fields__", {}).get(name)
        if name in cls.__dict__ or name not in expressions or inherited is None:
            continue
        options = ("default", "default_factory", *_OPTIONS)
        setattr(cls, name, dataclasses.field(**{option: getattr(inherited, option) for option in options}))


def _declare_part(cls: type, name: str, expression: Expression, annotations: Mapping[str, Any]) -> None:
    status, recipe = _status_of(cls, expression), PartRecipe(expression)
    given = expression._pytree__specified if expression._pytree__name == name else None
    if name not in annotations and given is None:
        setattr(cls, name, standard_field(Specifier(status, recipe), init=False))
        return
    _check_declaration(cls, name, None, annotations)
    if isinstance(annotations[name], dataclasses.InitVar):
        raise FieldError(
            f"{type_name(cls)}.{name}",
            "an InitVar has no value that is computed from fields",
            got=repr(expression),
            fix=f"{name}: ... = {expression!r}        # a field",
        )
    specifier = (None if given is None else specifier_of(given)) or Specifier(None)
    is_static = specifier.status is Status.STATIC
    decision = decide(annotations[name], AnnotationScope(cls))
    is_number = decision.is_number or refuses_data(annotations[name], AnnotationScope(cls))
    if status is Status.DATA and (is_static or is_number):
        raise FieldError(
            f"{type_name(cls)}.{name}",
            f"the part {text_of_part(expression)} is data, and its annotation or specifier makes it static",
            got="dx.static(...)" if is_static else annotation_text(annotations[name]),
            fix=f"{name} = ...        # without an annotation, or with that of the part",
        )
    if decision.status is not None and status is not Status.DATA:
        status = None
    specifier = specifier._replace(status=specifier.status or status, recipe=recipe)
    options = {} if given is None else {option: getattr(given, option) for option in (*_OPTIONS, "kw_only")}
    if options.get("init") is not False:
        options["default"] = expression
    setattr(cls, name, standard_field(specifier, **options))


def _class_of(expression: Expression) -> Any:
    call = referred(expression)
    function = call._pytree__function if isinstance(call, Deferred) else None
    return function if isinstance(function, type) else Any


def _status_of(cls: Any, expression: Expression) -> Status | None:
    """The status of a part for all values of the fields; None if the value decides."""
    if makes_data(expression):
        return Status.DATA
    return Status.STATIC if _is_static_number(cls, expression) else None


def _is_static_number(cls: Any, value: object) -> bool:
    """Whether a value is a number, or arithmetic on fields that are annotated as numbers."""
    if isinstance(value, Operation):
        return value._pytree__is_arithmetic and all(_is_static_number(cls, v) for v in value._pytree__operands())
    if isinstance(value, Declaration):
        annotation = own_annotations(cls).get(value._pytree__name or "")
        return annotation is not None and decide(annotation, AnnotationScope(cls)).is_number
    return isinstance(value, int | float)


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
