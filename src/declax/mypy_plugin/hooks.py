"""The plugin class: connects mypy's hooks to the checks of the registry."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from mypy.errors import CompileError
from mypy.nodes import ArgKind, CallExpr, ClassDef, Context, TypeInfo
from mypy.options import Options
from mypy.plugin import AnalyzeTypeContext, ClassDefContext, FunctionContext, Plugin, ReportConfigContext
from mypy.plugins.dataclasses import dataclass_class_maker_callback
from mypy.types import Type

from declax.mypy_plugin import names
from declax.mypy_plugin.checks import registry
from declax.mypy_plugin.declared import declared_class, note_declaration
from declax.mypy_plugin.modules import CALLED, callable_module
from declax.mypy_plugin.registry import Entry
from declax.mypy_plugin.reporting import FAILED, Reporter


def fingerprint(folder: str | os.PathLike[str]) -> str:
    """A hash of the names and contents of all Python files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


FINGERPRINT: Final = fingerprint(os.path.dirname(__file__))
"""The hash of all files of the plugin; a new one makes mypy's cache stale."""

DEBUG: Final = "DECLAX_PLUGIN_DEBUG"
"""The environment variable with which a failing check ends the run and shows its traceback."""

Hook: TypeAlias = Callable[[Any], Any]
Find: TypeAlias = Callable[[str], "Hook | None"]

_DECORATORS: Final = frozenset({names.DATACLASS, names.STANDARD_DATACLASS})


class DeclaxPlugin(Plugin):
    """Runs the checks of the registry at the hooks of mypy."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._registry = registry()
        self._told: set[tuple[str, str]] = set()
        self._decorated: dict[int, tuple[CallExpr, ClassDef]] = {}
        # mypy asks for the hook of a name at every call; in the daemon, a class may stop being a Pytree between runs
        keep: Any = (lambda find: find) if options.fine_grained_incremental else functools.cache
        self._functions: Find = keep(self._find_function)
        self._signatures: Find = keep(self._find_signature)
        self._methods: Find = keep(self._find_method)
        self._class_attributes: Find = keep(self._find_class_attribute)

    def report_config_data(self, ctx: ReportConfigContext) -> Any:
        """Data that makes mypy's cache stale if it changes."""
        return FINGERPRINT

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        """The type of an annotation. mypy asks at each name in one, about 200,000 times when it reads JAX anew."""
        return functools.partial(callable_module, fullname) if fullname in CALLED else None

    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        """Stores the declaration of a class, after mypy has made it a dataclass."""
        return self._declare if fullname in _DECORATORS else None

    def _declare(self, ctx: ClassDefContext) -> bool:
        # this hook replaces mypy's own, which generates the constructor
        is_ready = dataclass_class_maker_callback(ctx)
        if ctx.cls.info.has_base(names.PYTREE):
            self._run(Entry(lambda ctx, report: note_declaration(ctx), FAILED), ctx.api, ctx.cls, ctx)
            if isinstance(ctx.reason, CallExpr):
                self._decorated[id(ctx.reason)] = ctx.reason, ctx.cls
        return is_ready

    def _check_class(self, ctx: FunctionContext) -> Type:
        info = self._class_decorated(ctx.context)
        if info is not None and info.has_base(names.PYTREE):
            cls = declared_class(info, ctx.api)
            for entry in self._registry.classes:
                self._run(entry, ctx.api, ctx.context, cls)
        return ctx.default_return_type

    def _class_decorated(self, context: Context) -> TypeInfo | None:
        """The class of a checked decorator; mypy checks the call ``@dx.dataclass(...)`` before the class is known."""
        if isinstance(context, ClassDef):
            return context.info
        call, defn = self._decorated.get(id(context), (None, None))
        return defn.info if defn is not None and call is context else None

    def get_function_hook(self, fullname: str) -> Hook | None:
        """The checks for calls of a function or class."""
        return self._functions(fullname)

    def _find_function(self, fullname: str) -> Hook | None:
        if fullname in _DECORATORS:
            return self._check_class
        entries = self._registry.functions.get(fullname, [])
        info = None if entries else self._pytree(fullname)
        if info is None:
            return self._chain(entries, "default_return_type")
        return self._chain(self._registry.calls, "default_return_type", info)

    def get_function_signature_hook(self, fullname: str) -> Hook | None:
        """The signature of a function for one call."""
        return self._signatures(fullname)

    def _find_signature(self, fullname: str) -> Hook | None:
        entries = self._registry.signatures.get(fullname)
        if entries or self._pytree(fullname) is None:
            return self._chain(entries or [], "default_signature")
        chain = self._chain(self._registry.call_signatures, "default_signature")

        def sign(ctx: Any) -> Any:
            is_open = isinstance(ctx.context, CallExpr) and ArgKind.ARG_STAR2 in ctx.context.arg_kinds
            return chain(ctx) if chain is not None and is_open else ctx.default_signature

        return sign

    def get_method_hook(self, fullname: str) -> Hook | None:
        """The checks for calls of a method."""
        return self._methods(fullname)

    def _find_method(self, fullname: str) -> Hook | None:
        table, fullnames = self._registry.methods, [fullname]
        owner, _, name = fullname.rpartition(".")  # of the receiver, or of the class that defines the method
        if fullname not in table and any(known.endswith(f".{name}") for known in table):
            found = self.lookup_fully_qualified(owner)
            bases = found.node.mro if found is not None and isinstance(found.node, TypeInfo) else []
            defining = next((number for number, base in enumerate(bases, 1) if name in base.names), 0)
            fullnames = [f"{base.fullname}.{name}" for base in bases[:defining]]
        entries = next((table[known] for known in fullnames if known in table), [])
        return self._chain(entries, "default_return_type")

    def get_attribute_hook(self, fullname: str) -> Hook | None:
        """The type of an attribute of an instance."""
        entries = self._registry.attributes.get(fullname.rpartition(".")[0])
        return self._chain(entries, "default_attr_type") if entries else None

    def get_class_attribute_hook(self, fullname: str) -> Hook | None:
        """The checks for an attribute of a Pytree class."""
        return self._class_attributes(fullname.rpartition(".")[0])

    def _find_class_attribute(self, owner: str) -> Hook | None:
        info = self._pytree(owner)
        entries = [] if info is None else self._registry.class_attributes
        return self._chain(entries, "default_attr_type", info)

    def _chain(self, entries: Sequence[Entry], result: str, *args: Any) -> Hook | None:
        """A hook that runs checks in order; each receives the result of the previous one."""

        def run(ctx: Any) -> Any:
            for entry in entries:
                found = self._run(entry, ctx.api, ctx.context, *args, ctx)
                if found is not None:
                    ctx = ctx._replace(**{result: found})
            return getattr(ctx, result)

        return run if entries else None

    def _run(self, entry: Entry, api: Any, place: Context, *args: Any) -> Any:
        """Runs a check; reports a failure of the check once."""
        try:
            return entry.check(*args, Reporter(api, entry.code))
        except Exception as error:  # an exception would end mypy's run
            if os.environ.get(DEBUG) or isinstance(error, CompileError):
                raise
            name, kind = entry.code.code, type(error).__name__
            if (name, kind) not in self._told:
                self._told.add((name, kind))
                Reporter(api, FAILED).error(
                    f"the check {name} of declax.mypy_plugin failed here: {kind}: {error}",
                    place,
                    fix=f"report it with the traceback from {DEBUG}=1; disable {FAILED.code} to hide it",
                )
            return None

    def _pytree(self, fullname: str) -> TypeInfo | None:
        """The class with this full name, if it is a Pytree."""
        if fullname.startswith(("builtins.", "typing.", "jax.")):
            return None
        found = self.lookup_fully_qualified(fullname)
        info = None if found is None else found.node
        return info if isinstance(info, TypeInfo) and info.has_base(names.PYTREE) else None
