"""The state of reading one configuration: problems, parts and references."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import Any, Final

from declax.config._data import SpecData
from declax.config._files.documents import MAX_DEPTH, TOO_DEEP
from declax.config._reading.parameters import target_name
from declax.config.problems import Path, Report, described


class _Invalid(enum.Enum):
    INVALID = "INVALID"


INVALID: Final = _Invalid.INVALID
"""The result of a reader for invalid data; the report has the problem."""


class Context(Report):
    """What the readers collect while they read one configuration: problems, parts and references."""

    def __init__(self, *, migrate: bool = False, catalog: Any = None) -> None:
        super().__init__()
        self.catalog = catalog
        self.parts: dict[tuple[str, ...], Any] = {}
        self.refs: list[tuple[Path, tuple[str, ...], Any]] = []
        self.base: Path = ()  # the path of the innermost spec that stays unbuilt, where Refs start
        self.migrate = migrate
        self.max_depth = MAX_DEPTH
        self.known: dict[Hashable, tuple[Any, object, Context]] | None = None

    def check(self, spec: SpecData, path: Path, call: Any = None) -> None:
        """Checks the arguments of a spec with the given `CallReader`, or that of its target."""
        if self.catalog is not None:
            (call or self.catalog.call(spec.target)).check(spec, path, self)

    def add_ref(self, path: Path, keys: tuple[str, ...], reader: Any) -> None:
        """Records a Ref, which `checked_refs` checks after reading."""
        self.refs.append((path, (*map(str, self.base), *keys), reader))

    def trial(self) -> Context:
        """The context for trying one member of a union; trials share the parts that they have read."""
        attempt = Context(migrate=self.migrate, catalog=self.catalog)
        attempt.max_depth = self.max_depth
        attempt.base = self.base
        attempt.known = {} if self.known is None else self.known
        return attempt

    def take(self, attempt: Context) -> None:
        self.refs += attempt.refs
        self.parts.update(attempt.parts)
        self.merge(attempt)

    def wrong(self, path: Path, expected: str, value: object, hint: str | None = None) -> Any:
        got = f"a spec of {target_name(value.target)}" if isinstance(value, SpecData) else described(value)
        self.add("wrong-type", path, "the value has the wrong type", expected=expected, got=got, hint=hint)
        return INVALID

    def is_too_deep(self, path: Path) -> bool:
        """Whether a table or list is nested too deeply, for example because it contains itself."""
        if len(path) < self.max_depth:
            return False
        self.add("too-deep", path, TOO_DEEP, hint="flatten them")
        return True
