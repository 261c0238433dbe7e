"""The check of a whole: of data that is read, and of a spec that is made in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from declax.config._building import Place, Walk, keeps_spec, locate
from declax.config._catalog import catalog_for
from declax.config._context import INVALID, Context
from declax.config._data import Ref, SpecData
from declax.config._parameters import target_name
from declax.config._refs import taken_out
from declax.config.problems import Path, Report, did_you_mean, shown
from declax.errors import ConfigError, DepthError

_INSIDE: Final = "the path of a part that is built together with this one"
_WRITE_OUT: Final = "write the part out, which makes it another one"


def checked_refs(found: Any, context: Context) -> Any:
    """A value that was read, with its refs checked; those of specs that are kept start there."""
    check_dangling(context)
    if isinstance(found, SpecData) and found.has_refs and not context.report:
        kept: dict[Path, bool] = {}
        found = taken_out(found, (), kept)
        check_borders(context, kept)
        if not context.report:
            check_refs(found, context)
    return INVALID if context.report else found


def check(spec: SpecData) -> None:
    """Raises one error with all that is wrong with a spec; see `Spec.check`."""
    context = Context(Report())
    context.read_by(catalog_for(()), type(spec).of_values)
    context.visit(spec, ())
    check_refs(spec, context)
    if context.report:
        raise context.report.error(f"Spec of {target_name(spec.target)}")


def check_dangling(context: Context) -> None:
    """Reports the refs of data that lead to no part, other than those that lead to another ref."""
    at = {tuple(map(str, path)) for path, _, _ in context.refs}
    sizes = _sizes(at)
    for path, target, _ in context.refs:
        if tuple(map(str, path))[: len(target)] == target:
            message = "the references go in a circle: a part would contain itself"
            context.report.add("ref-cycle", path, message, got=_written(target), hint="write one of the parts out")
        elif target not in context.parts and _within((*target, ""), at, sizes) == ():
            names = [_written(keys) for keys, _ in zip(context.parts, range(1000), strict=False) if keys]
            context.report.add(
                "ref-to-nothing", path, "the reference leads to no part", got=shown(_written(target)),
                expected="the path of a table that describes one",
                hint=None if context.report.is_full else did_you_mean(_written(target), names),
            )  # fmt: skip


def check_borders(context: Context, kept: dict[Path, bool]) -> None:
    """Reports the refs that lead into, or out of, a part that is not built with the whole.

    Args:
      context: of the reading.
      kept: the paths of all that an annotation `Spec` keeps, with whether it is a part and no ref.
    """
    borders = {tuple(map(str, path)) for path, is_part in kept.items() if is_part}
    sizes = _sizes(borders)[::-1]
    for path, target, _ in context.refs if kept else ():
        inside, outside = _within(tuple(map(str, path)), borders, sizes), _within(target, borders, sizes)
        if inside != outside:
            is_inside = target[: len(inside)] == inside
            way = f"into {_written(outside)}" if is_inside else f"out of {_written(inside)}"
            message = f"the reference leads {way}, which is not built with the parts around it"
            _add_border(context.report, path, message, _written(target))


def _add_border(report: Report, path: Path, message: str, got: str) -> None:
    report.add("ref-border", path, message, expected=_INSIDE, got=shown(got), hint=_WRITE_OUT)


def _within(path: tuple[str, ...], borders: set[tuple[str, ...]], sizes: list[int]) -> tuple[str, ...]:
    """The first of some paths, by these sizes, that a path is below; the empty path where there is none."""
    return next((path[:n] for n in sizes if n < len(path) and path[:n] in borders), ())


def _sizes(paths: Iterable[tuple[str, ...]]) -> list[int]:
    """How long paths are, so that a hostile reference of a million steps is not compared at each of them."""
    return sorted({len(path) for path in paths if path})


def _written(keys: Iterable[str]) -> str:
    return "/" + "/".join(keys)


def check_refs(root: SpecData, context: Context, start: Path = ()) -> None:
    """Reports the refs that lead to no part, to one that does not fit, or in a circle."""
    _RefCheck(root, context, start).run()


class _RefCheck(Walk):
    """Follows the refs of a spec in the order of building."""

    def __init__(self, root: SpecData, context: Context, start: Path) -> None:
        super().__init__(root)
        self.start = start
        self.context = context
        self.readers = {path: reader for path, _, reader in context.refs}
        self._circles: set[frozenset[str]] = set()

    def kept(self, spec: SpecData, path: Path) -> Any:
        check_refs(spec, self.context, (*self.start, *path))

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
        is_kept, is_asked = (known is not Any and keeps_spec(known) for known in (place.annotation, annotation))
        if isinstance(place.value, SpecData) and is_kept != is_asked:
            _add_border(self.context.report, at, _TO_DESCRIPTION if is_kept else _TO_BUILT, ref.path)
        elif isinstance(place.value, SpecData) and not self._fits(place, at):
            message = f"the reference leads to a {target_name(place.value.target)}"
            hint = "refer to a part of a class that fits, or write one out"
            expected = self.readers[at].expected
            self.context.report.add("ref-kind", at, message, expected=expected, got=shown(ref.path), hint=hint)

    def _fits(self, place: Place, at: Path) -> bool:
        """Whether a part may stand at a ref; one that is wrong at its own place is reported there."""
        reader = self.readers.get(at)
        is_known = any(problem.path == (*self.start, *place.path) for problem in self.context.report.problems)
        return is_known or reader is None or bool(reader.holds(place.value))


_TO_BUILT: Final = "the reference leads to a part that is built, where a description was expected"
_TO_DESCRIPTION: Final = "the reference leads to a description, where a part was expected that is built"
