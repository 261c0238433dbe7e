"""The `dataclass` transform: the standard's, with the additions for pytrees."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, ParamSpec, TypeVar, get_origin, overload

import jax
from typing_extensions import dataclass_transform

from declax._classes.argument_checks import is_checked
from declax._classes.construction import (
    install,
    wrap_post_init,
)
from declax._classes.declared_variables import check_variable
from declax._classes.declaring import Declared, declare
from declax._classes.parts import fix_of_shared, is_shared
from declax._classes.pytree import MAKES_MEMBERS, Pytree, has_data, is_data, register
from declax._fields import specifiers
from declax._fields.annotations import AnnotationScope, annotation_text
from declax._fields.class_body import RNGS_LINES
from declax._fields.class_info import ClassInfo, info_of, maker_of
from declax._fields.expressions import Expression
from declax._fields.keys import RNGS
from declax._fields.sources import declared_text, text_of
from declax._fields.specifiers import (
    FIELD,
    KW_ONLY,
    PartRecipe,
    Specifier,
    Status,
    Tagged,
    VariableRecipe,
    data,
    is_init_var,
    specifier_of,
    static,
    variable,
)
from declax._text.dimensions import parse_condition
from declax._tree.statuses import same_value
from declax.errors import FieldError, describe, type_name

P = TypeVar("P", bound=Pytree)
Q = ParamSpec("Q")


@overload
def dataclass(cls: type[P], /) -> type[P]: ...
@overload
def dataclass(
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool | None = None,
    order: bool = False,
    unsafe_hash: bool = False,
    frozen: bool = False,
    match_args: bool = True,
    kw_only: bool = False,
    where: Sequence[str] = (),
) -> Callable[[type[P]], type[P]]: ...
@dataclass_transform(eq_default=False, field_specifiers=(specifiers.field, data, static, variable, dataclasses.field))
def dataclass(cls: type[P] | None = None, /, **options: Any) -> Any:
    """Makes a dataclass whose instances are pytrees.

    Field order, inheritance, ``KW_ONLY``, ``InitVar`` and ``__post_init__`` are those of `dataclasses.dataclass`. In
    addition, each field has a status (by `data`/`static`, then by its annotation, then by its first value), parts and
    Variables are made at construction, and the functions that flatten and unflatten instances are generated.

    Args:
      cls: the class, a subclass of `Pytree` or `Module`.
      init, order, unsafe_hash, frozen, match_args, kw_only: as in the standard.
      repr: whether instances print with their fields.
      eq: whether instances compare by value; by identity otherwise. A frozen
        class is a value type and compares by value unless eq=False is given.
      where: conditions on the sizes of arrays that methods are called with, such as ``"n <= {self.length}"``, in the
        names of their annotations; `check_shapes` reads them, and nothing does at run time.

    Raises:
      FieldError: for declarations that cannot be carried out.

    >>> import declax as dx
    >>> @dx.dataclass
    ... class Scale(dx.Layer):
    ...     dim: int
    ...     weight: jax.Array
    >>> jax.tree.leaves(Scale(2, jax.numpy.ones(2)))
    [Array([1., 1.], dtype=float32)]
    """
    if cls is None:
        return lambda decorated: _transform(decorated, options)
    return _transform(cls, options)


def _transform(cls: type[P], options: dict[str, Any]) -> type[P]:
    _check_call(cls)
    options = dict(options)
    if options.get("eq") is None:
        options["eq"] = options.get("frozen", False) or options.get("order", False)
    if options.pop("repr", True) is False and "__repr__" not in cls.__dict__:
        cls.__repr__ = object.__repr__  # type: ignore[method-assign]  # the plain one was asked for
    info = cls._pytree__info
    if "where" in options:
        info.where = _conditions(cls, options.pop("where"))
    _resolve_markers(info)
    declared = declare(info)
    specifiers = _read_specifiers(info)
    _check_own_init(info, declared, specifiers, is_generated=options.get("init", True))
    if options["eq"] and "__eq__" not in cls.__dict__:
        cls.__eq__ = _equals  # type: ignore[method-assign]  # installed before the standard would
    has_own_hash = cls.__eq__ is not _equals or cls.__dict__.get("__hash__") is not None
    if _needs_maker(info, specifiers) and not hasattr(getattr(cls, "__post_init__", None), MAKES_MEMBERS):
        wrap_post_init(info)
    if "__replace__" not in cls.__dict__:
        cls.__replace__ = _replace  # type: ignore[attr-defined]  # for `copy.replace`: that of the standard keeps old parts
    is_documented = cls.__doc__ is not None
    _decorate(info, options)
    if options.get("frozen"):
        _explain_frozen(cls)
    _check_fields(info, specifiers)
    install(info, declared)
    if not is_documented:
        _document_parts(info)
    register(info)
    if not has_own_hash and cls.__dict__.get("__hash__") and not _is_static(info):
        cls.__hash__ = _hash  # type: ignore[method-assign]  # that of the standard hashes data, which `_equals` compares by value
    return cls


def _conditions(cls: type, given: Any) -> tuple[str, ...]:
    """The conditions of a class, whose grammar is checked."""
    texts = (given,) if isinstance(given, str) else tuple(given)
    for text in texts:
        parse_condition(text, f"{type_name(cls)}, where")
    return texts


def _explain_frozen(cls: Any) -> None:
    """Lets the error of the standard for a change of a frozen object name its class, and the line to write."""
    for method in ("__setattr__", "__delattr__"):
        refuse: Callable[..., None] = cls.__dict__[method]

        def __setattr__(self: Any, name: str, *value: object, _refuse: Callable[..., None] = refuse) -> None:
            try:
                _refuse(self, name, *value)
            except dataclasses.FrozenInstanceError as error:
                owner = type_name(type(self))
                if not str(error).startswith(f"{owner}."):  # of a base, whose method ran first
                    lines = [f"@dx.dataclass        # above {owner}, without frozen=True"]
                    if value and name in type(self).__dataclass_fields__:
                        lines.insert(0, f"obj = dx.replace(obj, {name}=...)        # another object")
                    why = "the class is frozen, so that its objects never change"
                    error.args = (
                        "\n            ".join([f"{owner}.{name}: {error}: {why}.\n  fix:      {lines[0]}", *lines[1:]]),
                    )
                raise

        setattr(cls, method, functools.update_wrapper(__setattr__, refuse))


def _is_static(info: ClassInfo) -> bool:
    return {spec.status for spec in info.specs.values()} == {Status.STATIC}


def _decorate(info: ClassInfo, options: dict[str, Any]) -> None:
    try:
        dataclasses.dataclass(repr=False, **options)(info.cls)
    except TypeError as error:
        if str(error).startswith("cannot inherit "):
            raise _inherits_other(info.cls, is_frozen=options.get("frozen", False)) from None
        if not str(error).startswith("non-default argument "):
            raise
        name = str(error).split("'")[1]
        line = f"_: dx.KW_ONLY\n{name}: {annotation_text(info.annotations.get(name, '...'))} = dx.field()"
        raise FieldError(
            f"{type_name(info.cls)}.{name}",
            "a field without a default follows one with a default",
            why="the standard requires this order; parts have defaults",
            fix=RNGS_LINES if name == RNGS else line,
        ) from None


def _inherits_other(cls: type, *, is_frozen: bool) -> FieldError:
    """The error for a frozen class with a base that is not, or the reverse."""
    bases = [base for base in cls.__mro__[1:] if "__dataclass_params__" in base.__dict__]
    base = next(base for base in bases if base.__dict__["__dataclass_params__"].frozen is not is_frozen)
    line = f"@dx.dataclass(frozen=True)        # above class {type_name(base)} too"
    if base.__module__.startswith("declax."):
        line = f"class {type_name(cls)}(dx.Module): ...        # a dx.{type_name(base)} is not frozen"
    return FieldError(
        type_name(cls),
        f"the class is {'frozen' if is_frozen else 'not frozen'}, and its base {type_name(base)} is "
        f"{'not' if is_frozen else 'frozen'}",
        why="the standard requires that dataclasses and their bases agree on it",
        fix=("@dx.dataclass        # without frozen=True\n" + line) if is_frozen else "@dx.dataclass(frozen=True)",
    )


def _document_parts(info: ClassInfo) -> None:
    """Adds to the docstring of the standard, which is the signature, which parts are arguments and which are not."""
    cls: Any = info.cls
    maker = info.maker
    given = [f"{p.name} = {declared_text(p.expression)}" for p in maker.defaults if isinstance(p.recipe, PartRecipe)]
    if given:
        cls.__doc__ += f"\n\nParts with an annotation, which are arguments: {', '.join(given)}."
    if maker.internal:
        names = ", ".join([part.name for part in maker.internal])
        cls.__doc__ += f"\n\nParts without an annotation, which are no arguments: {names}."


def _resolve_markers(info: ClassInfo) -> None:
    """Evaluates text that names a KW_ONLY, InitVar or ClassVar, and finds the class variables.

    The standard recognises these in text only behind the name of its own
    module, and takes ``"dx.InitVar[...]"`` for a field.
    """
    scope = AnnotationScope(info.cls)
    shared = []
    for name, annotation in info.annotations.items():
        resolved: Any = scope.resolve(annotation) if isinstance(annotation, str) else annotation
        is_class_variable = resolved is ClassVar or get_origin(resolved) is ClassVar
        is_used_up = resolved is dataclasses.InitVar or isinstance(resolved, dataclasses.InitVar)
        if is_class_variable:
            shared.append(name)
        if is_class_variable or is_used_up or resolved is KW_ONLY:
            info.annotations[name] = resolved
    info.class_variables = frozenset(shared)


def _read_specifiers(info: ClassInfo) -> dict[str, Specifier | None]:
    """The specifiers of the fields in the body of a class; refuses defaults that instances would share."""
    found = {}
    for name in info.annotations:
        value = info.cls.__dict__.get(name, dataclasses.MISSING)
        if isinstance(value, dataclasses.Field):
            found[name] = specifier_of(value)
            value = value.default
        if value is not dataclasses.MISSING and name not in info.class_variables:
            _check_default(info, name, value)
    return found


def _needs_maker(info: ClassInfo, specifiers: Mapping[str, Specifier | None]) -> bool:
    """Whether constructing an instance makes parts, checks or records arguments."""
    for name, annotation in info.annotations.items():
        if annotation is dataclasses.InitVar or isinstance(annotation, dataclasses.InitVar):
            return True
        specifier = specifiers.get(name)
        if specifier is not None and (specifier.recipe is not None or is_checked(info.cls.__dict__[name], specifier)):
            return True
    return any(maker_of(base).is_needed for base in info.cls.__bases__)


def _check_call(cls: Any) -> None:
    is_class = isinstance(cls, type)
    if not is_class or not issubclass(cls, Pytree):
        raise FieldError(
            type_name(cls) if is_class else repr(cls),
            "dataclass decorates subclasses of Pytree",
            got=describe(cls),
            fix=f"class {getattr(cls, '__name__', 'Model')}(dx.Module): ...   # or use dataclasses.dataclass",
        )
    if cls._pytree__info.is_declared:
        raise FieldError(
            type_name(cls),
            "the class is decorated twice",
            why="the first @dx.dataclass generated the constructor from the class body",
            fix=f"@dx.dataclass        # once\nclass {type_name(cls)}(...): ...",
        )


def _check_default(info: ClassInfo, name: str, default: Any) -> None:
    if isinstance(default, Tagged):
        raise FieldError(
            f"{type_name(info.cls)}.{name}",
            "a tagged value cannot be a default",
            got=repr(default),
            fix=f"{name} = dx.{default.status.value}(default={default.value!r})",
        )
    if isinstance(default, Expression) or hasattr(type(default), "__set__"):
        return
    shared = is_shared(default)
    is_data_default = is_data(default) and not info_of(default).is_frozen
    if shared or is_data_default or default.__class__.__hash__ is None:
        text = "jnp.array(...)" if isinstance(default, jax.Array) else text_of(default)
        made = text if len(text) < 60 else "..."
        annotation = annotation_text(info.annotations[name])
        raise FieldError(
            f"{type_name(info.cls)}.{name}",
            "a mutable default would be shared by all instances",
            got=describe(default),
            fix=fix_of_shared(name, default)
            if shared
            else f"{name}: {annotation} = dx.field(default_factory=lambda: {made})",
        )


def _check_own_init(
    info: ClassInfo, declared: Declared, specifiers: Mapping[str, Specifier | None], *, is_generated: bool
) -> None:
    """Refuses a class whose parts no constructor makes: its own ``__init__`` does not, or there is none."""
    init: Any = info.cls.__dict__.get("__init__")
    if init is None and is_generated:
        return
    known = ((name, specifiers.get(name)) for name in declared.own)
    part = next((name for name, specifier in known if specifier is not None and specifier.recipe is not None), None)
    if part is None:
        return
    is_declared = any("__dataclass_fields__" in base.__dict__ for base in info.cls.__mro__[1:])
    if init is None:
        fields = ((name, info.cls.__dict__.get(name)) for name in declared.own)
        takes = next((name for name, field in fields if isinstance(field, dataclasses.Field) and field.init), None)
        if takes is not None or not is_declared:
            raise _without_constructor(info.cls, part, takes)
        return
    called = getattr(inspect.unwrap(init), "__code__", _check_own_init.__code__).co_names
    if "__post_init__" in called or ("__init__" in called and is_declared):
        return
    raise FieldError(
        f"{type_name(info.cls)}.__init__",
        f"the class declares parts, such as {part!r}, and has its own __init__, which does not make them",
        why="the constructor that @dx.dataclass generates makes the parts",
        fix="def __post_init__(self): ...        # in place of __init__: fields and parts exist when it runs\n"
        f"self.{part} = ...        # or, without @dx.dataclass and declarations, make all parts in __init__",
    )


def _without_constructor(cls: type, part: str, argument: str | None) -> FieldError:
    """The error for a class with init=False that has no constructor for its parts, or for an argument of it."""
    lacking = (
        "no constructor makes them" if argument is None else f"the inherited constructor does not know {argument!r}"
    )
    return FieldError(
        type_name(cls),
        f"the class declares parts, such as {part!r}, and with init=False {lacking}",
        why="the constructor that @dx.dataclass generates takes the fields and makes the parts",
        fix="@dx.dataclass        # without init=False\n"
        "def __init__(self, ...): ...        # or with self.__post_init__(...) at its end, which makes the parts",
    )


def _check_fields(info: ClassInfo, specifiers: Mapping[str, Specifier | None]) -> None:
    """Checks the fields in the body of a class, once the standard knows them."""
    cls: Any = info.cls
    fields: dict[str, Any] = cls.__dataclass_fields__
    if RNGS in info.annotations:
        _check_rngs(cls, fields[RNGS])
    for name in info.annotations:
        if name not in fields or fields[name]._field_type is not FIELD:  # KW_ONLY, an InitVar or a ClassVar
            continue
        if name in info.reserved:
            raise FieldError(
                f"{type_name(cls)}.{name}",
                f"a field named {name!r} hides a method of its base class",
                fix=f"{name}_: ...",
            )
        specifier = specifiers.get(name)
        if specifier is not None and isinstance(specifier.recipe, VariableRecipe):
            check_variable(cls, name, specifier.recipe, fields[name].type, fields)


def _check_rngs(cls: type, field: dataclasses.Field[Any]) -> None:
    """Refuses `rngs` in a class whose bases imply it, and positional streams if those of a base are keyword-only."""
    if any(getattr(base, "_pytree__implies_rngs", False) for base in cls.__mro__[1:]):
        _check_rngs_of_layer(cls, field)
    if not is_init_var(field) or field.kw_only:
        return
    for base in cls.__mro__[1:]:
        inherited = base.__dict__.get("__dataclass_fields__", {}).get(RNGS)
        if inherited is not None and inherited.kw_only:
            raise FieldError(
                f"{type_name(cls)}.{RNGS}",
                f"this InitVar is positional, and that of the base {type_name(base)} is keyword-only",
                why="_: dx.KW_ONLY applies to its class only",
                fix=RNGS_LINES,
            )


def _check_rngs_of_layer(cls: type, field: dataclasses.Field[Any]) -> None:
    """A Layer may keep its streams, by a keyword; it has the InitVar already."""
    where = f"{type_name(cls)}.{RNGS}"
    if is_init_var(field):
        raise FieldError(
            where,
            "a Layer has this argument, and passes it to its parts",
            fix=f"leave the line and each rngs=rngs out\n"
            f"class {type_name(cls)}(dx.Module): ...        # for keys that are passed explicitly",
        )
    if field.init and not field.kw_only:
        raise FieldError(
            where,
            "this field would be the first positional argument",
            why="it takes the place of the keyword of the base",
            fix=f"{RNGS}: dx.Rngs | None = dx.field(default=None, kw_only=True)",
        )


# --- values -------------------------------------------------------------------


def _equals(self: Any, other: Any) -> Any:
    """Whether two objects of one class have equal fields, arrays by value."""
    if self is other:
        return True
    if other.__class__ is not self.__class__:
        return NotImplemented
    names = [f.name for f in dataclasses.fields(self) if f.compare]
    return all(_values_equal(getattr(self, n), getattr(other, n)) for n in names)


def _hash(self: Any) -> int:
    """A hash of the class and of the fields that hold no data; equal objects have equal hashes."""
    specs = self._pytree__info.specs
    names = [f.name for f in dataclasses.fields(self) if (f.compare if f.hash is None else f.hash)]
    values = [getattr(self, name) for name in names if specs[name].status is not Status.DATA]
    return hash((type(self), *(value for value in values if not has_data(value))))


def _values_equal(a: Any, b: Any) -> bool:
    return a is b or (same_value(a, b) if has_data(a) or has_data(b) else bool(a == b))


def _replace(self: Any, /, **changes: Any) -> Any:
    """As `declax.replace`, which builds on files above this one."""
    return sys.modules["declax"].replace(self, **changes)
