"""From a class body to the function that makes the parts of an instance.

`collect` and `declare` turn expressions into standard fields, before the
standard's decorator runs. `install` generates the function that makes the
parts, in the order of the class body, as straight-line source.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType, MethodType, TracebackType
from typing import Any, ClassVar, Final, NamedTuple, get_origin

from declax._classes.argument_checks import ArgumentCheck, PartCheck, is_checked
from declax._classes.declared_variables import RNGS, VariableMaker
from declax._classes.pytree import Pytree, PytreeMeta
from declax._classes.records import Record
from declax._classes.shared_objects import call_of_shared, fix_of_shared, objects_shared_in
from declax._fields.annotations import Scope, annotation_text, decide, own_annotations, refuses_data
from declax._fields.class_body import BODY_KEY, RNGS_LINES, Body, base_with, text_of_annotation
from declax._fields.expressions import (
    CONTAINERS,
    Choice,
    Declaration,
    Deferred,
    Expression,
    Literal,
    Operation,
    Repeated,
    Writer,
    calls_of,
    constants_of,
    has_expression,
    items_of,
    leaves_of,
    refuse_hidden,
    text_of,
)
from declax._fields.overrides import OWN_RNGS, overriding
from declax._fields.specifiers import (
    PartRecipe,
    Recipe,
    Specifier,
    Status,
    SubmoduleRecipe,
    VariableRecipe,
    specifier_of,
    standard_field,
)
from declax._tree.codegen import compile_functions
from declax._tree.statuses import is_data
from declax._typing import MISSING, RECORD_KEY
from declax.errors import (
    DeclaxError,
    FieldError,
    describe,
    type_name,
)

MAKER_KEY: Final = "_pytree__maker"
EXPRESSIONS_KEY: Final = "_pytree__expressions"
_OPTIONS: Final = ("init", "repr", "hash", "compare", "metadata")


def is_init_var(field: dataclasses.Field[Any]) -> bool:
    """Whether an entry of ``__dataclass_fields__`` is an InitVar."""
    return field._field_type is dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]  # the standard offers no public way


def recipe_of(field: dataclasses.Field[Any]) -> Recipe | None:
    """How the field of a class is made, if its object makes it."""
    specifier = specifier_of(field)
    return None if specifier is None else specifier.recipe


# ================================================================= before the standard's decorator


def declare(cls: Any) -> dict[str, Expression]:
    """Turns what a class body binds to expressions into standard fields.

    Returns:
      The expressions by name, in the order of the body.

    Raises:
      FieldError: for what the rules of class bodies forbid.
    """
    body: Body = cls.__dict__.get(BODY_KEY) or Body()
    _check_shared(cls, body)
    if body.bound:
        delattr(cls, BODY_KEY)
        _check_body(cls, body)
    _check_bases(cls)
    _restore_inherited(cls)
    found: dict[str, Expression] = {}
    internal: dict[str, Any] = {}
    annotations = own_annotations(cls)
    for name, value in body.bound.items():
        expression = found[name] = value if isinstance(value, Expression) else Literal(value)
        _check_constants(cls, name, expression)
        if isinstance(expression, Declaration) and expression._pytree__name == name:
            recipe = recipe_of(expression._pytree__field)
            _check_declaration(cls, name, recipe, annotations)
            if isinstance(recipe, SubmoduleRecipe):
                internal[name] = Any
            continue
        if name not in annotations:
            internal[name] = _class_of(expression)
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


def _check_shared(cls: type, body: Body) -> None:
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
    for value in constants_of(_Reads(Part(name, expression, recipe or PartRecipe(expression), is_argument=False))):
        refuse_hidden(value, f"{type_name(cls)}.{name}")
        shared = [] if recipe is not None else objects_shared_in(value)
        if shared:
            raise FieldError(
                f"{type_name(cls)}.{name}",
                "all instances would share an object in this part",
                got=describe(value),
                why="only a call with a field among its arguments is made anew by each instance",
                fix=call_of_shared(shared[0]),
            )


def _check_bases(cls: type) -> None:
    """Refuses bases whose expressions nothing would evaluate."""
    for base in cls.__mro__[1:]:
        if EXPRESSIONS_KEY in base.__dict__ or base.__module__.startswith("declax."):
            continue
        name = next((n for n, v in vars(base).items() if has_expression(v)), None)
        if BODY_KEY in base.__dict__:
            raise FieldError(
                f"{type_name(base)}.{next(iter(base.__dict__[BODY_KEY].bound))}",
                f"only the decorator makes what a class declares, and this base of {type_name(cls)} has none",
                fix="@dx.dataclass",
            )
        if name is not None and not issubclass(base, Pytree):
            raise FieldError(
                f"{type_name(base)}.{name}",
                f"nothing evaluates this expression: it is of a base of {type_name(cls)} that is no Pytree",
                fix=f"@dx.dataclass\nclass {base.__name__}(dx.Module): ...",
            )


def _check_body(cls: type, body: Body) -> None:
    if body.twice is not None:
        raise FieldError(
            f"{type_name(cls)}.{body.twice}",
            "the class body binds this name twice",
            why="expressions refer to fields and parts by name, and could mean either",
            fix="give the second one another name",
        )
    annotations = own_annotations(cls)
    for name in body.bound:
        for read in _names_read(body, name, annotations):
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
            value = cls.__dict__.get(read, dataclasses.MISSING)
            if read not in annotations or _is_class_variable(annotations[read]):
                continue
            is_missing = value is dataclasses.MISSING
            what = "has no specifier" if is_missing else f"gives it the constant {value!r}"
            default = "" if is_missing else f"default={value!r}"
            raise FieldError(
                f"{type_name(cls)}.{read}",
                f"the expression of {name!r} reads this field, which {what}",
                why="only a field with a specifier has the value of the instance in the class body",
                fix=f"{read}: {text_of_annotation(annotations[read])} = dx.field({default})",
            )


def _names_read(body: Body, name: str, annotations: Collection[str]) -> Iterator[str]:
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
    """Keeps the declaration of a base where a class repeats an annotation without a value, as the standard does."""
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
    decision = decide(annotations[name], Scope(cls))
    is_number = decision.is_number or refuses_data(annotations[name], Scope(cls))
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


def text_of_part(expression: Expression) -> str:
    """The call that makes a part, as the class body writes it."""
    return expression._pytree__source(text_of)


def _class_of(expression: Expression) -> Any:
    function = expression._pytree__function if isinstance(expression, Deferred) else None
    return function if isinstance(function, type) else Any


def _status_of(cls: Any, expression: Expression) -> Status | None:
    """The status of a part whatever the values of the fields are, or None where a value decides."""
    if makes_data(expression):
        return Status.DATA
    return Status.STATIC if _is_static_number(cls, expression) else None


def makes_data(value: object) -> bool:
    """Whether a value gives a Pytree, or a container of some, whatever the values of the fields are."""
    if isinstance(value, Deferred):
        function = value._pytree__function
        return isinstance(function, type) and issubclass(function, Pytree)
    if isinstance(value, Repeated):
        return makes_data(value._pytree__item)
    if isinstance(value, Choice):
        return any(map(makes_data, value._pytree__pair))
    if isinstance(value, Literal):
        return any(map(makes_data, value._pytree__operands()))
    return value.__class__ in (list, tuple, dict) and makes_data(Literal(value))


def _is_static_number(cls: Any, value: object) -> bool:
    """Whether a value is a number, or arithmetic on fields that are annotated as numbers."""
    if isinstance(value, Operation):
        return value._pytree__is_arithmetic and all(_is_static_number(cls, v) for v in value._pytree__operands())
    if isinstance(value, Declaration):
        annotation = own_annotations(cls).get(value._pytree__name or "")
        return annotation is not None and decide(annotation, Scope(cls)).is_number
    return isinstance(value, int | float)


def _in_order(annotations: Mapping[str, Any], internal: Mapping[str, Any], body: Body) -> dict[str, Any]:
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


# ================================================================= after it


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
        raise AttributeError(f"{where} is an InitVar: the constructor used it up, and it is not an attribute{hint}")


class Overridden:
    """The method of a base that makes a part, for `super` in the method that overrides it."""

    def __init__(self, expression: Expression, build: Callable[..., object]) -> None:
        self._expression = expression
        self._build = build

    def __get__(self, instance: object | None, owner: type) -> Any:
        return self._expression if instance is None else MethodType(self._build, instance)


def _show_overridden(cls: type, name: str, build: Callable[..., object]) -> None:
    """Puts the overridden methods into the bases if `build` calls `super`; attributes are faster without them."""
    if "super" not in getattr(getattr(build, "__code__", None), "co_names", ()):
        return
    for base in cls.__mro__[1:]:
        field = base.__dict__.get("__dataclass_fields__", {}).get(name)
        recipe = None if field is None or name not in own_annotations(base) else recipe_of(field)
        if isinstance(recipe, SubmoduleRecipe) and name not in base.__dict__:
            setattr(base, name, Overridden(getattr(base, name), recipe.build))


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
            _show_overridden(cls, name, recipe.build)
    setattr(cls, EXPRESSIONS_KEY, known)
    setattr(cls, MAKER_KEY, Maker(cls, known))


class Part(NamedTuple):
    """One attribute that the constructor makes.

    Attributes:
      name: of the attribute.
      expression: how the class body declares it.
      recipe: how it is made.
      is_argument: whether the caller may supply it.
    """

    name: str
    expression: Expression
    recipe: Recipe
    is_argument: bool


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
      given: expressions in the place of those of annotated parts.

    Attributes:
      source: the function that makes the parts, as text.
      recorded: the names of the arguments that a `Record` keeps.
    """

    def __init__(
        self,
        cls: Any,
        known: Mapping[str, tuple[Expression, ...]],
        given: Mapping[str, Expression] = MappingProxyType({}),
    ) -> None:
        fields: dict[str, dataclasses.Field[Any]] = cls.__dataclass_fields__
        self._cls = cls
        self._known = known = {**known, **{name: (expression, *known[name]) for name, expression in given.items()}}
        self._overridden: dict[Any, tuple[Any, Maker]] = {}
        self._init_vars = [name for name, field in fields.items() if is_init_var(field)]
        self._parts = [
            Part(name, expressions[0], PartRecipe(given[name]) if name in given else recipe, is_argument)
            for name, expressions in known.items()
            for is_argument in (name in fields and fields[name].init and name not in given,)
            if name in fields and (recipe := recipe_of(fields[name])) is not None
        ]
        scope = Scope(cls)
        self._checks = [ArgumentCheck(field, scope, self._init_vars) for field in fields.values() if is_checked(field)]
        kept = [n for n in self._init_vars if decide(fields[n].type, scope).status is not Status.DATA]
        self._kept = [(self._init_vars.index(name), name, fields[name].default) for name in kept]
        self._defaults = [part for part in self._parts if part.is_argument]
        self.recorded = [*kept, *(part.name for part in self._defaults)]
        self._usual_record = Record({}, dict.fromkeys(part.name for part in self._defaults))
        self._names = self._names_of(known)
        self.source = ""
        self._function: Any = None
        if self._parts:
            self._generate(known)

    @property
    def is_needed(self) -> bool:
        """Whether the constructor has something to do."""
        return bool(self._parts or self._checks or self.recorded)

    def _names_of(self, known: Mapping[str, tuple[Expression, ...]]) -> dict[int, str]:
        """The source of each expression that has a name; of several names, the first.

        The items of literals get theirs when the literal is made.
        """
        names: dict[int, str] = {}
        items: set[int] = set()
        for name, expressions in known.items():
            for expression in expressions:
                if id(expression) not in items:
                    names.setdefault(id(expression), _local(name) if name in self._init_vars else f"self.{name}")
                if isinstance(expression, Literal):
                    items.update(id(item) for item, _ in items_of(expression._pytree__value) if id(item) not in names)
        names[id(OWN_RNGS)] = self._rngs
        return names

    def _name_items(self, name: str, expressions: Sequence[Expression]) -> None:
        """Lets the parts that are made next refer to a literal and its items."""
        for expression in expressions:
            if isinstance(expression, Literal):
                self._names[id(expression._pytree__value)] = f"self.{name}"
                for item, path in items_of(expression._pytree__value):
                    self._names.setdefault(id(item), f"self.{name}{path}")

    # ------------------------------------------------------------- the generated function

    def _generate(self, known: Mapping[str, tuple[Expression, ...]]) -> None:
        arguments = ["self", *map(_local, self._init_vars)]
        writer = Writer(self._names, {"make_parts", RNGS, *arguments})
        writer.constants["put"] = object.__setattr__
        lines = [f"def make_parts({', '.join(arguments)}):"]
        self._lines: list[Part | None] = [None]
        self._seen: dict[int, Part] = {}
        waiting = {part.name for part in self._parts}
        for part in self._parts:
            overridden = self._take_names(part, writer)
            self._check_reads(part, waiting)
            self._find_shared(part, writer)
            statement = self._statement(part, writer)
            lines += statement
            self._lines += [part] * len(statement)
            waiting.discard(part.name)
            self._names.update(overridden)
            self._name_items(part.name, known[part.name])
        self.source = "\n".join(lines)
        (self._function,) = compile_functions(f"{type_name(self._cls)} parts", [self.source], writer.constants)

    def _take_names(self, part: Part, writer: Writer) -> dict[int, str]:
        """Takes the names of what a part overrides, which it evaluates in its place; returns them."""
        old = f"self.{part.name}"
        overridden = [e for e in self._known[part.name][1:] if e is not part.expression]
        overridden = [e for e in overridden if self._names.get(id(e)) == old]
        for expression in overridden:
            del self._names[id(expression)]
            if isinstance(expression, Declaration) and expression._pytree__field.default is not dataclasses.MISSING:
                self._names[id(expression)] = writer(expression._pytree__field.default)
        return {id(expression): old for expression in overridden}

    def _find_shared(self, part: Part, writer: Writer) -> None:
        """Finds the calls without a name that a part has more than once; each is made once."""
        found: dict[int, tuple[int, ...]] = {}
        found_once = set[int]()
        for call, around in calls_of(_Reads(part), self._names):
            if found.setdefault(id(call), around) != around or self._seen.setdefault(id(call), part) is not part:
                raise FieldError(
                    f"{type_name(self._cls)}.{part.name}",
                    f"the call {text_of(call)} has no name, and is one object at places that are not made together",
                    why="a list or a branch may be made without the other, and a part without the other",
                    fix=f"shared = {text_of(call)}        # then use `shared`",
                )
            if id(call) in found_once:
                writer.shared.setdefault(id(call), "")
            found_once.add(id(call))

    def _statement(self, part: Part, writer: Writer) -> list[str]:
        source = self._source(part, writer)
        is_frozen = self._cls.__dataclass_params__.frozen
        line = f"self.{part.name} = {source}"
        if is_frozen:
            line = f"put(self, {part.name!r}, {source})"
        if not part.is_argument:
            return [f"    {line}"]
        declared = writer.constant(part.expression, f"declared_{part.name}")
        lines = [f"    if self.{part.name} is {declared}:", f"        {line}"]
        for notes in (check for check in self._checks if check.name == part.name):
            check = writer.constant(notes, f"check_{part.name}")
            lines += [f"        {check}(type(self), self.{part.name})"]
        part_check = PartCheck(self._cls, part.name, part.expression, is_data=makes_data(part.expression))
        if part_check.is_needed:
            check = writer.constant(part_check, f"check_class_of_{part.name}")
            lines += ["    else:", f"        {check}(self.{part.name})"]
        return lines

    def _source(self, part: Part, writer: Writer) -> str:
        recipe = part.recipe
        if isinstance(recipe, PartRecipe):
            name = self._names[id(part.expression)]
            return writer.whole(part.expression) if name == f"self.{part.name}" else name
        if isinstance(recipe, SubmoduleRecipe):
            return f"{writer(recipe.build)}(self, {self._rngs})"
        source = self._variable_source(part, recipe, writer)
        is_always = recipe.when is None or recipe.when is True
        return source if is_always else f"{source} if {writer(recipe.when)} else None"

    def _variable_source(self, part: Part, recipe: VariableRecipe, writer: Writer) -> str:
        maker = writer.constant(VariableMaker(self._cls, part.name, recipe), f"make_{part.name}")
        options = (recipe.shape, recipe.initializer, recipe.dtype, recipe.metadata)
        return f"{maker}({', '.join([self._rngs, *map(writer, options)])})"

    @property
    def _rngs(self) -> str:
        if RNGS in self._init_vars:
            return RNGS
        return f"self.{RNGS}" if RNGS in self._cls.__dataclass_fields__ else "None"

    def _check_reads(self, part: Part, later: set[str]) -> None:
        for leaf in leaves_of(_Reads(part), self._names):
            name = self._names.get(id(leaf), "").removeprefix("self.")
            field = self._cls.__dataclass_fields__.get(name)
            is_unset = field is not None and not field.init and field.default is field.default_factory
            if field is not None and is_unset and recipe_of(field) is None:
                raise FieldError(
                    f"{type_name(self._cls)}.{part.name}",
                    f"this part reads {name!r}, which the constructor does not set",
                    why="init=False without a default leaves it to __post_init__, which runs after the parts are made",
                    fix=f"{name} = ...        # an expression of fields",
                )
            if name in later and name != part.name:
                raise FieldError(
                    f"{type_name(self._cls)}.{part.name}",
                    f"this part reads {name!r}, which is made later",
                    why="parts are made in the order of the class body, and an overriding part keeps its position",
                    fix=f"declare {name} before {part.name}",
                )
            if id(leaf) not in self._names and any(leaf is older for older in self._known[part.name]):
                raise FieldError(
                    f"{type_name(self._cls)}.{part.name}",
                    f"the declaration reads the {part.name!r} that it overrides, and that has no default",
                    why="it has a value in an instance only, which gets the new one",
                    fix=f"other = ...        # under another name; {part.name!r} is then that of the base",
                )
            if id(leaf) not in self._names:
                raise FieldError(
                    f"{type_name(self._cls)}.{part.name}",
                    f"this part reads {text_of(leaf)!r}, a field of a class that is not a base",
                    fix="use fields of this class, or of one that it derives from",
                )

    # ------------------------------------------------------------- at construction

    def __call__(self, instance: Any, init_vars: Sequence[object]) -> None:
        """Checks the arguments, records those that are used up, and makes the parts."""
        attributes = instance.__dict__
        for check in self._checks:
            check(type(instance), attributes.get(check.name) if check.index is None else init_vars[check.index])
        maker = self
        if self.recorded:
            record = attributes[RECORD_KEY] = self._record(attributes, init_vars)
            if record is not self._usual_record:
                overrides = {name: value for name, value in record.made.items() if value is not None}
                maker = self._over(overrides) if overrides else self
        if maker._function is not None:
            maker.make(instance, init_vars)

    def _over(self, overrides: Mapping[str, Any]) -> Maker:
        """A function that makes the parts if some are declared calls with other arguments."""
        key = tuple((name, id(value)) for name, value in overrides.items())
        if key not in self._overridden:
            self._overridden.clear()  # what is repeated has the same ones
            given = {
                name: expression for name, value in overrides.items() if (expression := overriding(value)) is not None
            }
            self._overridden[key] = (overrides, Maker(self._cls, self._known, given))
        return self._overridden[key][1]

    def make(self, instance: Any, init_vars: Sequence[object]) -> None:
        """Makes the parts."""
        try:
            self._function(instance, *init_vars)
        except Exception as error:
            self._add_note(instance, error)
            raise

    def _record(self, attributes: Mapping[str, Any], init_vars: Sequence[object]) -> Record:
        """The record of the arguments that are not kept; one object for all instances made with the defaults."""
        given = [entry for entry in self._kept if init_vars[entry[0]] is not entry[2]]
        supplied = {
            part.name: attributes[part.name] for part in self._defaults if attributes[part.name] is not part.expression
        }
        if not given and not supplied:
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
        )

    def _add_note(self, instance: Any, error: Exception) -> None:
        """Says which part could not be made, with the values of its arguments."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self._function.__code__:
            trace = trace.tb_next
        part = None if trace is None else self._lines[trace.tb_lineno - 1]
        is_named = isinstance(error, DeclaxError) and error.where.startswith(f"{type_name(type(instance))}.")
        if part is None or is_named:
            return
        if trace is not None and _misses_rngs(error, trace):
            call = _call_without_rngs(part.expression)
            if call is not None:
                raise self._without_rngs(part, call) from error
        shown = {key: _shown(instance, source) for key, source in self._names.items()}
        for expression in self._known[part.name]:
            shown.pop(id(expression))
        text = self._source_with(part, Writer(shown))
        error.add_note(f"while {type_name(type(instance))}.{part.name} was made: {text}")
        if isinstance(error, AttributeError) and error.obj is instance and error.name in self._known:
            error.add_note(f"{error.name} is declared below {part.name}: declare it first")

    def _without_rngs(self, part: Part, call: Deferred) -> FieldError:
        given = {**call._pytree__kwargs, RNGS: OWN_RNGS}
        old, new = map(text_of_part, (call, Deferred(call._pytree__function, call._pytree__args, given)))
        lines = [] if RNGS in self._init_vars else [RNGS_LINES]
        return FieldError(
            f"{type_name(self._cls)}.{part.name}",
            f"the part {old} needs random keys, and no {RNGS} are passed to it",
            fix="\n".join([*lines, f"{part.name} = {text_of_part(part.expression).replace(old, new)}"]),
        )

    def _source_with(self, part: Part, writer: Writer) -> str:
        if isinstance(part.recipe, PartRecipe):
            return writer.whole(part.expression)
        if isinstance(part.recipe, VariableRecipe):
            return f"dx.variable({writer(part.recipe.shape)}, initializer={writer(part.recipe.initializer)})"
        return f"the method {part.name}(self, {self._rngs})"


def _local(name: str) -> str:
    """The name of an InitVar in the generated function, which uses some names itself."""
    return f"{name}_" if name in ("abs", "range", "put") else name


def _is_standard_replace() -> bool:
    """Whether the function of the standard makes the call of the constructor that runs."""
    frame: Any = sys._getframe(1)
    while frame.f_code is not PytreeMeta._construct.__code__ and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_back is not None and frame.f_back.f_globals.get("__name__") == "dataclasses"


def _misses_rngs(error: Exception, trace: TracebackType) -> bool:
    """Whether the function of the parts called a class without `rngs`, which it needs."""
    inner = trace.tb_next
    while inner is not None and inner.tb_frame.f_globals is vars(sys.modules[PytreeMeta.__module__]):
        inner = inner.tb_next
    return inner is None and str(error).endswith(f"argument: '{RNGS}'") and "missing 1 required" in str(error)


def _call_without_rngs(expression: Expression) -> Deferred | None:
    for call, _ in calls_of(Literal([expression]), {}):
        if isinstance(call, Deferred) and RNGS not in call._pytree__kwargs:
            function = call._pytree__function
            if isinstance(function, type) and RNGS in inspect.signature(function).parameters:
                return call
    return None


def _shown(instance: Any, source: str) -> str:
    name = source.removeprefix("self.")
    value = instance.__dict__.get(name, instance) if source != name else instance
    return repr(value) if value is None or value.__class__ in (int, float, str, bool, tuple) else name


class _Reads(Expression):
    """The names that a part of any kind reads."""

    __slots__ = ("_pytree__part",)

    def __init__(self, part: Part) -> None:
        super().__init__()
        self._pytree__part = part

    def _pytree__operands(self) -> Iterator[Any]:
        part = self._pytree__part
        recipe = part.recipe
        if isinstance(recipe, VariableRecipe):
            yield from (recipe.shape, recipe.initializer, recipe.dtype, recipe.metadata, recipe.when)
        elif isinstance(recipe, PartRecipe):
            yield from part.expression._pytree__operands()
