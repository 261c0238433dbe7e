"""The check of a whole: of data that is read, and of a spec that is made in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from declax.config._building import Walk
from declax.config._catalog import catalog_for
from declax.config._context import INVALID, Context
from declax.config._data import Ref, SpecData
from declax.config._parameters import target_name
from declax.config._refs import Place, add_border, keeps_spec, locate, taken_out
from declax.config.problems import Path, Report, did_you_mean, shown
from declax.errors import ConfigError, DepthError


def checked_refs(found: Any, context: Context) -> Any:
    """A value that was read, with its refs checked; those of specs that are kept start there."""
    if context.refs:
        _check_dangling(context)
        if isinstance(found, SpecData) and not context.report:
            found = taken_out(found, context.report)
            if not context.report:
                _RefCheck(found, context, ()).run()
    return INVALID if context.report else found


def check(spec: SpecData) -> None:
    """Raises one error with all that is wrong with a spec; see `Spec.check`."""
    context = Context(Report(), make=type(spec).of_values, catalog=catalog_for(()))
    context.visit(spec, ())
    _RefCheck(spec, context, ()).run()
    if context.report:
        raise context.report.error(f"Spec of {target_name(spec.target)}")


def _check_dangling(context: Context) -> None:
    """Reports the refs of data that lead to no part, other than those that lead to another ref."""
    at = {tuple(map(str, path)) for path, _, _ in context.refs}
    sizes = sorted({len(path) for path in at if path})  # a hostile reference has a million steps
    for path, target, _ in context.refs:
        written = _written(target)
        if tuple(map(str, path))[: len(target)] == target:
            message = "the references go in a circle: a part would contain itself"
            context.report.add("ref-cycle", path, message, got=written, hint="write one of the parts out")
        elif target not in context.parts and not any(target[:n] in at for n in sizes if n <= len(target)):
            names = [_written(keys) for keys, _ in zip(context.parts, range(1000), strict=False) if keys]
            context.report.add(
                "ref-to-nothing",
                path,
                "the reference leads to no part",
                expected="the path of a table that describes one",
                got=shown(written),
                hint=None if context.report.is_full else did_you_mean(written, names),
            )


def _written(keys: Iterable[str]) -> str:
    return "/" + "/".join(keys)


class _RefCheck(Walk):
    """Reports the Refs of a spec that lead to no part, to one that does not fit, or in a circle."""

    def __init__(self, root: SpecData, context: Context, start: Path) -> None:
        super().__init__(root)
        self.start = start
        self.context = context
        self.readers = {path: reader for path, _, reader in context.refs}
        self._circles: set[frozenset[str]] = set()

    def kept(self, spec: SpecData, path: Path) -> Any:
        _RefCheck(spec, self.context, (*self.start, *path)).run()

    def shared(self, ref: Ref, path: Path, annotation: Any) -> Any:
        try:
            self._check_place(ref, locate(self.root, ref, path), path, annotation)
            return super().shared(ref, path, annotation)
        except DepthError as error:
            self._report("ref-cycle", error, path)
        except ConfigError as error:
            paths = frozenset((error.got or "").split(" -> "))
            is_circle = "circle" in error.problem
            if not is_circle or paths not in self._circles:
                self._report("ref-cycle" if is_circle else "ref-to-nothing", error, path)
            self._circles |= {paths} if is_circle else set()
        return None

    def _report(self, code: str, error: ConfigError | DepthError, path: Path) -> None:
        at = (*self.start, *path)
        self.context.report.add(code, at, error.problem, expected=error.expected, got=error.got, hint=error.fix)

    def _check_place(self, ref: Ref, place: Place, path: Path, annotation: Any) -> None:
        at = (*self.start, *path)
        if not isinstance(place.value, SpecData):
            return
        is_kept = keeps_spec(place.annotation)
        if is_kept != keeps_spec(annotation):
            found, wanted = "a description", "a part that is built"
            found, wanted = (found, wanted) if is_kept else (wanted, found)
            add_border(self.context.report, at, f"the reference leads to {found}, where {wanted} was expected", ref)
        elif not self._fits(place, at):
            message = f"the reference leads to a {target_name(place.value.target)}"
            hint = "refer to a part of a class that fits, or write one out"
            expected = self.readers[at].expected
            self.context.report.add("ref-kind", at, message, expected=expected, got=shown(ref.path), hint=hint)

    def _fits(self, place: Place, at: Path) -> bool:
        """Whether a part may stand at a ref; one that is wrong at its own place is reported there."""
        reader = self.readers.get(at)
        is_known = any(problem.path == (*self.start, *place.path) for problem in self.context.report.problems)
        return is_known or reader is None or bool(reader.holds(place.value))
