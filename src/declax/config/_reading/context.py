"""The state of reading one configuration: problems, parts, references and removed keys."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, TypeAlias

from declax.config._data import SpecData
from declax.config._files.documents import MAX_DEPTH, TOO_DEEP
from declax.config._reading.parameters import target_name
from declax.config.problems import Path, Report, described


class _Invalid(enum.Enum):
    INVALID = "INVALID"


Make: TypeAlias = Callable[[Any, Mapping[str, Any]], SpecData]

INVALID: Final = _Invalid.INVALID
"""The result of a reader for invalid data; the report has the problem."""


class Context:
    """The problems and references that readers collect from one configuration."""

    def __init__(
        self,
        report: Report,
        *,
        migrate: bool = False,
        make: Make = SpecData.of_values,
        catalog: Any = None,
    ) -> None:
        self.report = report
        self.make = make
        self.catalog = catalog
        self.parts: dict[tuple[str, ...], Any] = {}
        self.refs: list[tuple[Path, tuple[str, ...], Any]] = []
        self.migrate = migrate
        self.dropped: list[tuple[Path, str, Any]] = []
        self.known: dict[Hashable, tuple[Any, object, Context]] | None = None

    def visit(self, spec: SpecData, path: Path, call: Any = None) -> None:
        """Checks the arguments of a spec with the given `CallReader`, or that of its target."""
        if self.catalog is not None:
            (call or self.catalog.call(spec.target)).check(spec, path, self)

    def trial(self) -> Context:
        """The context for trying one member of a union; trials share the parts that they have read."""
        attempt = Context(Report(), migrate=self.migrate, make=self.make, catalog=self.catalog)
        attempt.known = {} if self.known is None else self.known
        return attempt

    def take(self, attempt: Context) -> None:
        self.refs += attempt.refs
        self.dropped += attempt.dropped
        self.parts.update(attempt.parts)
        self.take_problems(attempt)

    def take_problems(self, attempt: Context) -> None:
        self.report.extend(attempt.report.problems)
        self.report.count += attempt.report.count - len(attempt.report.problems)

    def wrong(self, path: Path, expected: str, value: object, hint: str | None = None) -> Any:
        got = f"a spec of {target_name(value.target)}" if isinstance(value, SpecData) else described(value)
        self.report.add("wrong-type", path, "the value has the wrong type", expected=expected, got=got, hint=hint)
        return INVALID

    def is_too_deep(self, path: Path) -> bool:
        """Whether a table or list is nested too deeply, for example because it contains itself."""
        if len(path) < MAX_DEPTH:
            return False
        self.report.add("too-deep", path, TOO_DEEP, hint="flatten them")
        return True
