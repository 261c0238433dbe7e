"""declax-config: configurations that are literals, and calls with ``**config``, against what the class takes."""

from __future__ import annotations

from typing import Any, Final

from mypy.nodes import ArgKind, CallExpr, Context, DictExpr, Expression, FloatExpr, NameExpr, StrExpr, TypeInfo
from mypy.plugin import FunctionContext, FunctionSigContext
from mypy.subtypes import is_subtype
from mypy.types import (
    AnyType,
    FunctionLike,
    Instance,
    LiteralType,
    NoneType,
    ProperType,
    TupleType,
    Type,
    TypeOfAny,
    UnionType,
    get_proper_type,
)

from declax.mypy_plugin import names
from declax.mypy_plugin.constructors import Entries, Target, entries_of, target_of, target_of_class, type_where_wanted
from declax.mypy_plugin.expressions import UNKNOWN, arguments_of, items_of, literal
from declax.mypy_plugin.registry import Registry
from declax.mypy_plugin.reporting import Report, error_code
from declax.mypy_plugin.statuses import is_container
from declax.mypy_plugin.wording import text_of

CONFIG = error_code("declax-config", "A configuration has keys or values that its class does not take")

_KIND: Final = "kind"
_REF: Final = "$ref"
_MAX_DEPTH: Final = 50
_WORDS: Final = {
    "builtins.int": ("int",),
    "builtins.float": ("int", "float"),
    "builtins.str": ("string",),
    "builtins.bool": ("bool",),
}
"""The plain data that the types of Python take."""


def register(hooks: Registry) -> None:
    """Puts the check at its hooks."""
    for function in (names.FROM_CONFIG, names.SPEC_FROM_CONFIG):
        hooks.function(function, CONFIG, check)
    hooks.pytree_signature(CONFIG, without_types)
    hooks.pytree_call(CONFIG, check_call, needs_dict=True)


# --- configurations ------------------------------------------------------------


def check(ctx: FunctionContext, report: Report) -> Type | None:
    """Checks a configuration that is a literal."""
    call = ctx.context
    if not isinstance(call, CallExpr) or any(kind.is_star() for kind in call.arg_kinds):
        return None
    given = arguments_of(call, ("cls", "source"))
    if "cls" not in given or literal(given.get("migrate")) not in (UNKNOWN, False) or "migrate" in given:
        return None
    api: Any = ctx.api
    found = api.lookup_type_or_none(given["cls"])
    target = target_of(None if found is None else get_proper_type(found))
    entries = entries_of(given.get("source"), api)
    if target is not None and entries is not None:
        is_named = not isinstance(given["source"], DictExpr)
        _Configuration(api, report, call if is_named else None).check(target.without_rngs(), entries, target.name, 0)
    return None


class _Configuration:
    """One configuration, with the tables in it."""

    def __init__(self, api: Any, report: Report, place: Context | None) -> None:
        self._api = api
        self._report = report
        self._place = place

    def check(self, target: Target, entries: Entries, where: str, depth: int) -> None:
        """Checks one table against what is built of it."""
        kind = literal(entries.items.get(_KIND))
        if _REF in entries.items or (_KIND in entries.items and kind != target.name):
            return
        for key, value in entries.items.items():
            place = self._place or value
            if key in target.parameters:
                self._check_value(target.parameters[key].type, value, f"{where}.{key}", depth)
            elif key != _KIND and not key.startswith("$") and not target.takes_any:
                target.tell_unknown(f"config of {where}", key, place, self._report)
        if entries.is_whole:
            target.tell_missing(f"config of {where}", entries.items, self._place or entries.expr, self._report)

    def _check_value(self, wanted: ProperType | None, value: Expression, where: str, depth: int) -> None:
        if wanted is None or depth > _MAX_DEPTH:
            return
        options = [get_proper_type(item) for item in wanted.items] if isinstance(wanted, UnionType) else [wanted]
        word = _word_of(value)
        if word is not None and not any(_takes(option, word, value) for option in options):
            self._report.error(
                f"config of {where}: expected {text_of(wanted)}, got {_shown(value, word)}", self._place or value
            )
        elif len(options) == 1 or (len(options) == 2 and any(isinstance(option, NoneType) for option in options)):
            only = next((option for option in options if not isinstance(option, NoneType)), None)
            self._check_parts(only, value, where, depth)

    def _check_parts(self, wanted: ProperType | None, value: Expression, where: str, depth: int) -> None:
        """Checks what is in a table or list."""
        if not isinstance(wanted, Instance):
            return
        if isinstance(value, DictExpr) and _is_part(wanted):
            target, entries = target_of_class(wanted, self._api), entries_of(value, self._api)
            if target is not None and entries is not None:
                self.check(target.without_rngs(), entries, where, depth + 1)
        elif isinstance(value, DictExpr) and wanted.type.has_base("typing.Mapping") and len(wanted.args) == 2:
            for key, item in value.items:
                if isinstance(key, StrExpr):
                    self._check_value(get_proper_type(wanted.args[1]), item, f"{where}.{key.value}", depth + 1)
        elif items_of(value) is not None and is_container(wanted.type) and len(wanted.args) == 1:
            for index, item in enumerate(items_of(value) or ()):
                self._check_value(get_proper_type(wanted.args[0]), item, f"{where}.{index}", depth + 1)


def _word_of(value: Expression) -> str | None:
    """What a literal is in plain data; None for what is no literal."""
    if isinstance(value, DictExpr):
        return "table"
    if isinstance(value, FloatExpr):
        return "float"
    if items_of(value) is not None:
        return "list"
    found = literal(value)
    words = {bool: "bool", int: "int", str: "string", type(None): "null"}
    return None if found is UNKNOWN else words.get(type(found))


def _shown(value: Expression, word: str) -> str:
    found = literal(value)
    if word in ("table", "list"):
        return f"a {word}"
    return str(value.value) if isinstance(value, FloatExpr) else repr(found)


def _takes(wanted: ProperType, word: str, value: Expression) -> bool:
    """Whether an annotation may take a literal."""
    if isinstance(wanted, NoneType):
        return word == "null"
    if isinstance(wanted, LiteralType):
        return bool(literal(value) == wanted.value)
    if isinstance(wanted, TupleType):
        return word == "list"
    if not isinstance(wanted, Instance):
        return True
    if wanted.type.fullname in _WORDS:
        return word in _WORDS[wanted.type.fullname]
    if _is_part(wanted):
        return word == "table"
    if is_container(wanted.type):
        return word == ("table" if wanted.type.has_base("typing.Mapping") else "list")
    return True


def _is_part(wanted: Instance) -> bool:
    """Whether values of a type are modules, which tables describe."""
    is_module = wanted.type.has_base(names.MODULE) and not wanted.type.fallback_to_any
    return is_module and not any(wanted.type.has_base(base) for base in (names.LIST, names.DICT, names.SEQUENTIAL))


# --- calls with **config -------------------------------------------------------


def without_types(ctx: FunctionSigContext, report: Report) -> FunctionLike | None:
    """The signature of a constructor, in which what dicts with known literals give may be of any type.

    mypy compares the type that all values of a dict have together with each parameter; `check_call` compares each value
    with its own.
    """
    del report
    call, signature = ctx.context, ctx.default_signature
    if not isinstance(call, CallExpr) or ArgKind.ARG_STAR2 not in call.arg_kinds:
        return None
    dicts = [arg for arg, kind in zip(call.args, call.arg_kinds, strict=True) if kind is ArgKind.ARG_STAR2]
    if not all(entries_of(arg, ctx.api) is not None or _holds_anything(arg, ctx.api) for arg in dicts):
        return None
    types = [
        typ if any(arg not in dicts for arg in given) else AnyType(TypeOfAny.special_form)
        for typ, given in zip(signature.arg_types, ctx.args, strict=True)
    ]
    return signature.copy_modified(arg_types=types)


def _holds_anything(arg: Expression, api: Any) -> bool:
    """Whether the values of a dict are Any, as those of ``**options: Any``."""
    found = get_proper_type(api.get_expression_type(arg)) if isinstance(arg, NameExpr) else None
    return isinstance(found, Instance) and bool(found.args) and isinstance(get_proper_type(found.args[-1]), AnyType)


def check_call(info: TypeInfo, ctx: FunctionContext, report: Report) -> Type | None:
    """Checks a call of a class with ``**`` and a dict whose literal is known."""
    call = ctx.context
    if not isinstance(call, CallExpr) or ArgKind.ARG_STAR2 not in call.arg_kinds:
        return None
    api: Any = ctx.api
    typ = get_proper_type(ctx.default_return_type)
    target = target_of_class(typ, api) if isinstance(typ, Instance) and typ.type is info else None
    if target is None:
        return None
    given, is_whole = _given(call, target)
    for arg, kind in zip(call.args, call.arg_kinds, strict=True):
        entries = entries_of(arg, api) if kind is ArgKind.ARG_STAR2 else None
        if entries is not None:
            _check_entries(target, entries, arg, given, api, report)
            given |= entries.items.keys()
        is_whole = is_whole and (kind is not ArgKind.ARG_STAR2 or (entries is not None and entries.is_whole))
    if is_whole:
        target.tell_missing(f"{target.name}(...)", given, call, report)
    return None


def _given(call: CallExpr, target: Target) -> tuple[set[str], bool]:
    """The names of the arguments besides those of dicts, and whether these are all."""
    named = {name for name in call.arg_names if name is not None}
    count = sum(kind is ArgKind.ARG_POS for kind in call.arg_kinds)
    return named | set(target.positional[:count]), ArgKind.ARG_STAR not in call.arg_kinds


def _check_entries(
    target: Target, entries: Entries, arg: Expression, given: set[str], api: Any, report: Report
) -> None:
    where = f"{target.name}(...)"
    for name, value in entries.items.items():
        place = value if entries.expr is arg else arg
        parameter = target.parameters.get(name)
        if name in given:
            report.error(f"{where}: {name!r} is given twice, in the dict and beside it", place)
        elif parameter is None:
            if not target.takes_any:
                target.tell_unknown(where, name, place, report)
        elif parameter.type is not None:
            _check_type(f"{where}: {name}", parameter.type, value, place, api, report)


def _check_type(where: str, wanted: ProperType, value: Expression, place: Context, api: Any, report: Report) -> None:
    found = api.lookup_type_or_none(value)
    if found is None or is_subtype(found, wanted):
        return
    typ = type_where_wanted(value, wanted, api)
    if not is_subtype(typ, wanted):
        report.error(f"{where}: expected {text_of(wanted)}, got {text_of(typ)}", place)
