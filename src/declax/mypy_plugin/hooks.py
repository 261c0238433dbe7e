"""The plugin as mypy sees it: from mypy's hooks to the checks of the registry.

Vocabulary
----------
hook:        a function that mypy asks for by the full name of what it looks at.
answer:      a hook, or None; mypy asks for the same name at each call, so the answer is found once and kept.
fingerprint: a hash over all files of the plugin; another one makes mypy's cache stale.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from mypy.nodes import ArgKind, CallExpr, ClassDef, Context, TypeInfo
from mypy.options import Options
from mypy.plugin import (
    AttributeContext,
    ClassDefContext,
    FunctionContext,
    FunctionSigContext,
    MethodContext,
    MethodSigContext,
    Plugin,
    ReportConfigContext,
)
from mypy.plugins.dataclasses import dataclass_class_maker_callback
from mypy.types import FunctionLike, Type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks import registry
from declax.mypy_plugin.declared import declared_class, note_declaration, note_hash
from declax.mypy_plugin.registry import Entry
from declax.mypy_plugin.reporting import Failures, Report
from declax.mypy_plugin.settings import switch_off


def fingerprint(folder: str | os.PathLike[str]) -> str:
    """A hash over all Python files in a folder, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(_files(folder, "")):
        with open(os.path.join(folder, path), "rb") as file:
            digest.update(path.encode() + b"\0" + file.read() + b"\0")
    return digest.hexdigest()[:16]


def _files(folder: str | os.PathLike[str], below: str) -> Iterator[str]:
    """The paths of the Python files in a folder, from there; half as long as `Path.rglob` takes, at each start."""
    with os.scandir(os.path.join(folder, below)) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield below + entry.name
            elif "." not in entry.name and not entry.name.startswith("__") and entry.is_dir():
                yield from _files(folder, f"{below}{entry.name}/")


FINGERPRINT: Final = fingerprint(os.path.dirname(__file__))
"""The fingerprint of the plugin."""

Hook: TypeAlias = Callable[[Any], Any]

_DICT: Final = ArgKind.ARG_STAR2
_DECORATORS: Final = frozenset({names.DATACLASS, names.STANDARD_DATACLASS})


class Answers(dict[str, "Hook | None"]):
    """The hooks by full name; one that is not there yet is looked for."""

    def __init__(self, find: Callable[[str], Hook | None], *, is_kept: bool = True) -> None:
        super().__init__()
        self._find = find
        self._is_kept = is_kept

    def __missing__(self, fullname: str) -> Hook | None:
        found = self._find(fullname)
        if self._is_kept:
            self[fullname] = found
        return found


class DeclaxPlugin(Plugin):
    """Runs the checks of the registry at the hooks of mypy."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        switch_off(options)
        self._registry = registry()
        self._failures = Failures()
        self._decorated: dict[int, tuple[CallExpr, ClassDef]] = {}
        self._decorator_of: dict[str, int] = {}
        # In the daemon a class may be a Pytree in one run, and none in the next.
        is_kept = not options.fine_grained_incremental
        self._functions = Answers(self._find_function, is_kept=is_kept)
        self._function_signatures = Answers(self._find_function_signature, is_kept=is_kept)
        self._methods = Answers(self._find_method, is_kept=is_kept)
        self._method_signatures = Answers(self._find_method_signature, is_kept=is_kept)
        self._attributes = Answers(self._find_attribute)

    def report_config_data(self, ctx: ReportConfigContext) -> Any:
        """What makes cached results stale when it changes."""
        return FINGERPRINT

    # --- classes

    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        """Reads the declaration of a class, after mypy has made it a dataclass."""
        return self._declare if fullname in _DECORATORS else None

    def _declare(self, ctx: ClassDefContext) -> bool:
        # A hook of one's own replaces mypy's, which makes the constructor.
        is_ready = dataclass_class_maker_callback(ctx)
        try:
            if ctx.cls.info.has_base(names.PYTREE):
                note_declaration(ctx)
                self._keep_decorator(ctx)
            else:
                note_hash(ctx)
        except Exception as error:  # noqa: BLE001  # as in `_run`
            self._failures.tell("of declarations", ctx.api, ctx.cls, error)
        return is_ready

    def _keep_decorator(self, ctx: ClassDefContext) -> None:
        """Keeps which class ``@dx.dataclass(...)`` decorates; its call is checked without being told of the class."""
        if isinstance(ctx.reason, CallExpr):
            self._decorated.pop(self._decorator_of.get(ctx.cls.fullname, 0), None)  # of an earlier run of the daemon
            self._decorated[id(ctx.reason)] = ctx.reason, ctx.cls
            self._decorator_of[ctx.cls.fullname] = id(ctx.reason)

    def _check_class(self, ctx: FunctionContext) -> Type:
        info = self._class_decorated(ctx.context)
        if info is not None and info.has_base(names.PYTREE):
            cls = declared_class(info, ctx.api)
            for entry in self._registry.classes:
                self._run(entry, ctx, cls)
        return ctx.default_return_type

    def _class_decorated(self, context: Context) -> TypeInfo | None:
        """The class of the decorator that is being checked, when all that is in the class has been."""
        if isinstance(context, ClassDef):
            return context.info
        call, defn = self._decorated.get(id(context), (None, None))
        return defn.info if defn is not None and call is context else None

    # --- functions and classes that are called

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        """The checks of a call of a function or class."""
        return self._functions[fullname]

    def _find_function(self, fullname: str) -> Hook | None:
        if fullname in _DECORATORS:
            return self._check_class
        entries = self._registry.functions.get(fullname)
        if entries:
            return self._chain(entries, "default_return_type")
        info = self._pytree(fullname) if self._registry.calls else None
        return None if info is None else self._calls_of(info)

    def _calls_of(self, info: TypeInfo) -> Hook | None:
        """The checks of the calls of a class."""
        entries = [entry for entry in self._registry.calls if entry.suits is None or entry.suits(info)]
        always = [entry for entry in entries if not entry.needs_dict]

        def check(ctx: FunctionContext) -> Type:
            call = ctx.context
            has_dict = isinstance(call, CallExpr) and _DICT in call.arg_kinds
            for entry in entries if has_dict else always:
                try:
                    found = entry.check(info, ctx, Report(ctx.api, entry.code))
                except Exception as error:  # noqa: BLE001  # as in `_chain`
                    self._failures.tell(entry.code.code, ctx.api, call, error)
                    continue
                if found is not None:
                    ctx = ctx._replace(default_return_type=found)
            return ctx.default_return_type

        return check if entries else None

    def get_function_signature_hook(self, fullname: str) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """The signature of a function, for one call of it."""
        return self._function_signatures[fullname]

    def _find_function_signature(self, fullname: str) -> Hook | None:
        entries = self._registry.function_signatures.get(fullname)
        if entries:
            return self._chain(entries, "default_signature")
        entries = self._registry.call_signatures
        if not entries or self._pytree(fullname) is None:
            return None
        chain = self._chain(entries, "default_signature")

        def sign(ctx: FunctionSigContext) -> FunctionLike:
            call = ctx.context
            found: FunctionLike = ctx.default_signature
            return chain(ctx) if isinstance(call, CallExpr) and _DICT in call.arg_kinds else found

        return sign

    # --- methods and attributes

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """The checks of a call of a method."""
        return self._methods[fullname]

    def _find_method(self, fullname: str) -> Hook | None:
        entries = self._of_method(self._registry.methods, fullname)
        return self._chain(entries, "default_return_type") if entries else None

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        """The signature of a method, for one call of it."""
        return self._method_signatures[fullname]

    def _find_method_signature(self, fullname: str) -> Hook | None:
        entries = self._of_method(self._registry.method_signatures, fullname)
        return self._chain(entries, "default_signature") if entries else None

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """The type of an attribute of an instance."""
        return self._attributes[fullname]

    def _find_attribute(self, fullname: str) -> Hook | None:
        entries = self._registry.attributes.get(fullname.rpartition(".")[0])
        return self._chain(entries, "default_attr_type") if entries else None

    # --- what all share

    def _run(self, entry: Entry, ctx: Any, *args: Any) -> Any:
        """Runs a check; one that fails has found nothing."""
        try:
            return entry.check(*args, Report(ctx.api, entry.code))
        except Exception as error:  # noqa: BLE001  # mypy would end the run for any of them
            self._failures.tell(entry.code.code, ctx.api, ctx.context, error)
            return None

    def _chain(self, entries: Sequence[Entry], result: str) -> Hook:
        """A hook that runs checks one after the other; each sees what those before it made of the result."""
        pairs = [(entry.check, entry.code) for entry in entries]

        def run(ctx: Any) -> Any:
            for check, code in pairs:
                try:
                    found = check(ctx, Report(ctx.api, code))
                except Exception as error:  # noqa: BLE001  # mypy would end the run for any; it has found nothing
                    self._failures.tell(code.code, ctx.api, ctx.context, error)
                    continue
                if found is not None:
                    ctx = ctx._replace(**{result: found})
            return getattr(ctx, result)

        return run

    def _of_method(self, table: dict[str, dict[str, list[Entry]]], fullname: str) -> list[Entry]:
        """The entries of a method. mypy names it by the class of the receiver, or by the one that defines it."""
        owner, _, name = fullname.rpartition(".")
        owners = table.get(name)
        if not owners:
            return []
        if owner in owners:
            return owners[owner]
        found = self.lookup_fully_qualified(owner)
        if found is None or not isinstance(found.node, TypeInfo):
            return []
        return next((owners[base.fullname] for base in found.node.mro if base.fullname in owners), [])

    def _pytree(self, fullname: str) -> TypeInfo | None:
        """The class of this name, where it is a Pytree."""
        if fullname.startswith(("builtins.", "typing.", "jax.")):
            return None
        found = self.lookup_fully_qualified(fullname)
        info = None if found is None else found.node
        return info if isinstance(info, TypeInfo) and info.has_base(names.PYTREE) else None
