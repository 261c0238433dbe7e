"""Which check runs at which place.

Vocabulary
----------
hook:  a place where mypy asks its plugins.
check: a function that is run at a hook, under one error code.
entry: a check with its code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from mypy.errorcodes import ErrorCode
from mypy.nodes import TypeInfo
from mypy.plugin import (
    AttributeContext,
    FunctionContext,
    FunctionSigContext,
    MethodContext,
    MethodSigContext,
)
from mypy.types import FunctionLike, Type

from declax.mypy_plugin.declared import DeclaredClass
from declax.mypy_plugin.reporting import Report

FunctionCheck: TypeAlias = Callable[[FunctionContext, Report], Type | None]
FunctionSignature: TypeAlias = Callable[[FunctionSigContext, Report], FunctionLike | None]
MethodCheck: TypeAlias = Callable[[MethodContext, Report], Type | None]
MethodSignature: TypeAlias = Callable[[MethodSigContext, Report], FunctionLike | None]
AttributeCheck: TypeAlias = Callable[[AttributeContext, Report], Type | None]
ClassCheck: TypeAlias = Callable[[DeclaredClass, Report], None]
CallCheck: TypeAlias = Callable[[TypeInfo, FunctionContext, Report], Type | None]


class Entry(NamedTuple):
    """A check and its code.

    Attributes:
      check: the function that runs.
      code: the code of what it finds.
      suits: of a check of calls, which classes it is for; all, where None.
      needs_dict: of a check of calls, whether it is only for those with ``**``.
    """

    check: Callable[..., Any]
    code: ErrorCode
    suits: Callable[[TypeInfo], bool] | None = None
    needs_dict: bool = False


class Registry:
    """All checks by the hook that runs them; several may share one.

    A check that gives a type replaces the one that mypy found; None leaves it.
    """

    def __init__(self) -> None:
        self.functions: dict[str, list[Entry]] = defaultdict(list)
        self.function_signatures: dict[str, list[Entry]] = defaultdict(list)
        self.methods: dict[str, dict[str, list[Entry]]] = defaultdict(dict)
        self.method_signatures: dict[str, dict[str, list[Entry]]] = defaultdict(dict)
        self.attributes: dict[str, list[Entry]] = defaultdict(list)
        self.classes: list[Entry] = []
        self.calls: list[Entry] = []
        self.call_signatures: list[Entry] = []

    def function(self, fullname: str, code: ErrorCode, check: FunctionCheck) -> None:
        """Runs after the types of a call of this function are known."""
        self.functions[fullname].append(Entry(check, code))

    def function_signature(self, fullname: str, code: ErrorCode, check: FunctionSignature) -> None:
        """Runs before the arguments of a call of this function are checked."""
        self.function_signatures[fullname].append(Entry(check, code))

    def method(self, owner: str, name: str, code: ErrorCode, check: MethodCheck) -> None:
        """Runs after a call of a method of the class `owner` and of those derived from it."""
        self.methods[name].setdefault(owner, []).append(Entry(check, code))

    def method_signature(self, owner: str, name: str, code: ErrorCode, check: MethodSignature) -> None:
        """Runs before the arguments of such a call are checked."""
        self.method_signatures[name].setdefault(owner, []).append(Entry(check, code))

    def attribute(self, owner: str, code: ErrorCode, check: AttributeCheck) -> None:
        """Runs where an attribute is read that the class `owner` defines, or answers for by ``__getattr__``."""
        self.attributes[owner].append(Entry(check, code))

    def declared_class(self, code: ErrorCode, check: ClassCheck) -> None:
        """Runs once for each class under ``@dx.dataclass``, when all types in its body are known."""
        self.classes.append(Entry(check, code))

    def pytree_call(
        self,
        code: ErrorCode,
        check: CallCheck,
        *,
        suits: Callable[[TypeInfo], bool] | None = None,
        needs_dict: bool = False,
    ) -> None:
        """Runs after a call of a class that derives from Pytree.

        Args:
          code: the code of the check.
          check: the check.
          suits: which classes it is for, asked once for each; all, where None.
          needs_dict: whether it is only for calls with ``**``.
        """
        self.calls.append(Entry(check, code, suits, needs_dict))

    def pytree_signature(self, code: ErrorCode, check: FunctionSignature) -> None:
        """Runs before the arguments of a call with ``**`` of a class that derives from Pytree are checked."""
        self.call_signatures.append(Entry(check, code))
