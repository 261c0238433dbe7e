"""The plugin as mypy sees it: from mypy's hooks to the checks of the registry.

Vocabulary
----------
hook:        a function that mypy asks for by the full name of what it looks at.
fingerprint: a hash over all files of the plugin; another one makes mypy's cache stale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from mypy.nodes import CallExpr, ClassDef, Context, TypeInfo
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


def fingerprint(folder: Path) -> str:
    """A hash over all Python files in a folder, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


FINGERPRINT: Final = fingerprint(Path(__file__).parent)
"""The fingerprint of the plugin."""

_DECORATORS: Final = frozenset({names.DATACLASS, names.STANDARD_DATACLASS})


class DeclaxPlugin(Plugin):
    """Runs the checks of the registry at the hooks of mypy."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        switch_off(options)
        self._registry = registry()
        self._failures = Failures()
        self._decorated: dict[int, tuple[CallExpr, ClassDef]] = {}
        self._decorator_of: dict[str, int] = {}

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
        if fullname in _DECORATORS:
            return self._check_class
        entries = self._registry.functions.get(fullname)
        if entries:
            return lambda ctx: self._chain(entries, ctx, "default_return_type")
        info = self._pytree(fullname) if self._registry.calls else None
        return None if info is None else lambda ctx: self._check_call(info, ctx)

    def _check_call(self, info: TypeInfo, ctx: FunctionContext) -> Type:
        for entry in self._registry.calls:
            found = self._run(entry, ctx, info, ctx)
            ctx = ctx if found is None else ctx._replace(default_return_type=found)
        return ctx.default_return_type

    def get_function_signature_hook(self, fullname: str) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """The signature of a function, for one call of it."""
        entries = self._registry.function_signatures.get(fullname)
        if not entries and self._registry.call_signatures and self._pytree(fullname) is not None:
            entries = self._registry.call_signatures
        return None if not entries else lambda ctx: self._chain(entries, ctx, "default_signature")

    # --- methods and attributes

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """The checks of a call of a method."""
        entries = self._of_method(self._registry.methods, fullname)
        return None if not entries else lambda ctx: self._chain(entries, ctx, "default_return_type")

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        """The signature of a method, for one call of it."""
        entries = self._of_method(self._registry.method_signatures, fullname)
        return None if not entries else lambda ctx: self._chain(entries, ctx, "default_signature")

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """The type of an attribute of an instance."""
        entries = self._registry.attributes.get(fullname.rpartition(".")[0])
        return None if not entries else lambda ctx: self._chain(entries, ctx, "default_attr_type")

    # --- what all share

    def _run(self, entry: Entry, ctx: Any, *args: Any) -> Any:
        """Runs a check; one that fails has found nothing."""
        try:
            return entry.check(*args, Report(ctx.api, entry.code))
        except Exception as error:  # noqa: BLE001  # mypy would end the run for any of them
            self._failures.tell(entry.code.code, ctx.api, ctx.context, error)
            return None

    def _chain(self, entries: Sequence[Entry], ctx: Any, result: str) -> Any:
        """Runs checks one after the other; each sees what those before it made of the result."""
        for entry in entries:
            found = self._run(entry, ctx, ctx)
            ctx = ctx if found is None else ctx._replace(**{result: found})
        return getattr(ctx, result)

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
