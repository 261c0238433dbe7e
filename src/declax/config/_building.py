"""Building the object of a spec, and checking its Refs: both traverse the spec in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from declax._fields.expressions import Deferred
from declax._fields.overrides import OWN_RNGS, DeclaredPart
from declax.config._data import MAX_DEPTH, FrozenDict, FrozenList, Ref, SpecData
from declax.config._reading.catalog import catalog_for
from declax.config._reading.context import INVALID, Context
from declax.config._reading.parameters import RNGS, Parameters, target_name
from declax.config._reading.readers import Reader
from declax.config._refs import (
    CYCLE,
    MAX_AHEAD,
    Cursor,
    add_border,
    chain_error,
    cycle_error,
    keeps_specs,
    keys_of,
    locate,
    reader_below,
    taken_out,
    where,
)
from declax.config.problems import Path, did_you_mean, path_text, shown
from declax.errors import ConfigError, DepthError
from declax.training._transformation import Description, Transformation, describe_by, is_transformation

MAX_OPEN: Final = MAX_DEPTH + 10
"""The limit of unfinished parts; above the depth of a spec, since Refs may point forwards."""

PATH_ATTRIBUTE: Final = "config_path"


class SpecVisitor:
    """Visits a spec in the order of building: depth first; a Ref to a later part visits that part first."""

    def __init__(self, root: SpecData) -> None:
        self.root = root
        self.made: dict[Path, Any] = {}
        self._open: dict[Path, None] = {}
        self._ahead = 0

    def run(self) -> Any:
        return self.value(self.root, (), None)

    def value(self, value: Any, path: Path, reader: Reader | None) -> Any:
        """The result for the value at a path."""
        if isinstance(value, SpecData):
            if path and keeps_specs(reader):
                return self.kept(value, path)
            return self._once(value, path, reader)
        if isinstance(value, Ref):
            return self.shared(value, path, reader)
        return self._once(value, path, reader) if type(value) in (tuple, FrozenList, FrozenDict) else value

    def shared(self, ref: Ref, path: Path, reader: Reader | None) -> Any:
        """The result for the target of a Ref."""
        cursor = locate(self.root, ref, path)
        target = cursor.path
        if target in self._open and target not in self.made:
            within = [p for p in self._open if p and (p[: len(target)] == target or target[: len(p)] == p)]
            raise cycle_error(self.root, path, ["/" + "/".join(map(str, p)) for p in [*within, target]])
        is_ahead = not any(target[:n] in self.made for n in range(len(target) + 1))
        if is_ahead and (self._ahead >= MAX_AHEAD or len(self._open) >= MAX_OPEN):
            raise chain_error(self.root, path)
        self._ahead += is_ahead
        made = self.value(cursor.value, target, cursor.reader)
        self._ahead -= is_ahead
        return made

    def _once(self, value: Any, path: Path, reader: Reader | None) -> Any:
        if path in self.made:
            return self.made[path]
        self._open[path] = None
        made: Any
        if isinstance(value, SpecData):
            made = self.call(value, path)
        else:
            made = {k: self.value(value[k], (*path, k), reader_below(value, reader, k)) for k in keys_of(value)}
            if not isinstance(value, FrozenDict):
                made = tuple(made.values()) if type(value) is tuple else list(made.values())
        del self._open[path]
        self.made[path] = made
        return made

    def arguments(self, spec: SpecData, path: Path) -> dict[str, Any]:
        reader_of = spec.reader_of
        return {name: self.value(value, (*path, name), reader_of(name)) for name, value in spec.arguments.items()}

    def kept(self, spec: SpecData, path: Path) -> Any:
        """The result for a spec that the annotation `Spec[...]` leaves unbuilt."""
        return spec

    def call(self, spec: SpecData, path: Path) -> Any:
        return self.arguments(spec, path)


class Builder(SpecVisitor):
    """Builds the object of a spec; afterwards `made` has all parts by path."""

    def __init__(self, root: SpecData, rngs: object = None) -> None:
        super().__init__(root)
        self.rngs = rngs
        self._is_unmade = False

    def shared(self, ref: Ref, path: Path, reader: Reader | None) -> Any:
        """The target of a Ref, which is built even inside a declared part."""
        outer, self._is_unmade = self._is_unmade, False
        made = super().shared(ref, path, reader)
        self._is_unmade = outer
        return made

    def call(self, spec: SpecData, path: Path) -> Any:
        parameters = spec.parameters
        if isinstance(spec.target, DeclaredPart):
            outer, self._is_unmade = self._is_unmade, True
            found = self.arguments(spec, path)
            self._is_unmade = outer
            return spec.target(**found)
        args, named = positions(parameters, self.arguments(spec, path))
        if parameters.takes_rngs and (self.rngs is not None or parameters.needs_rngs):
            if self.rngs is None:
                raise ConfigError(
                    where(self.root, path),
                    f"{parameters.name} takes rngs, but build got none",
                    fix="spec.build(rngs=dx.Rngs(0))",
                )
            named[RNGS] = OWN_RNGS if self._is_unmade else self.rngs
        if self._is_unmade:
            return Deferred(spec.target, tuple(args), named)
        try:
            made = spec.target(*args, **named)
        except Exception as error:
            note_config_path(error, path, parameters.name)
            raise
        _remember(made, spec)
        return made


def _remember(made: object, spec: SpecData) -> None:
    """Lets a transformation of optax compare and pickle by its spec."""
    if not (spec.has_refs or spec.parameters.takes_rngs) and is_transformation(made):
        describe_by(cast(Description, spec), cast(Transformation, made))


def positions(parameters: Parameters, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Converts arguments by name to a call: by position only if necessary."""
    left = dict(arguments)
    args: list[Any] = []
    rest = left.pop(parameters.variadic, ()) if parameters.variadic is not None else ()
    for name in parameters.positional if rest else parameters.positional_only:
        if not rest and left.keys().isdisjoint(parameters.positional_only):
            break
        args.append(left.pop(name) if name in left else parameters.by_name[name].make_default())
    return [*args, *rest], left


def note_config_path(error: BaseException, path: Path, name: str) -> None:
    """Adds the path of the configuration to an error; its type and text stay."""
    error.add_note(f"in the configuration at {path_text(path)} ({name})")
    try:
        setattr(error, PATH_ATTRIBUTE, path)
    except AttributeError:  # an exception with slots; the note has the path
        return


# --- checking Refs -------------------------------------------------------------


def checked_refs(found: Any, context: Context) -> Any:
    """A value that was read, with its Refs checked; those in unbuilt specs become relative to that spec."""
    if context.refs:
        _check_dangling(context)
        if isinstance(found, SpecData) and not context:
            found = taken_out(found, context)
            if not context:
                _RefCheck(found, context, ()).run()
    return INVALID if context else found


def check(spec: SpecData) -> None:
    """Raises one error with all problems of a spec; see `Spec.check`."""
    context = Context(catalog=catalog_for(()))
    context.max_depth = 2 * MAX_DEPTH  # a spec limits its own depth, in which a list is not a step
    context.check(spec, ())
    _RefCheck(spec, context, ()).run()
    if context:
        raise context.error(f"Spec of {target_name(spec.target)}")


def _check_dangling(context: Context) -> None:
    """Reports the references of data without a target; `_RefCheck` follows those that point at another reference."""
    at = {tuple(map(str, path)) for path, _, _ in context.refs}
    sizes = sorted({len(path) for path in at if path})  # a hostile reference has a million steps
    for path, target, _ in context.refs:
        written = "/" + "/".join(target)
        if tuple(map(str, path))[: len(target)] == target:
            message = "the references form a cycle: a part would contain itself"
            context.add("ref-cycle", path, message, got=written, hint="write one of the parts out")
        elif target not in context.parts and not any(target[:n] in at for n in sizes if n <= len(target)):
            names = ["/" + "/".join(keys) for keys, _ in zip(context.parts, range(1000), strict=False) if keys]
            context.add(
                "ref-to-nothing",
                path,
                "the reference has no target",
                expected="the path of a table that describes a part",
                got=shown(written),
                hint=None if context.is_full else did_you_mean(written, names),
            )


class _RefCheck(SpecVisitor):
    """Reports the Refs of a spec without a target, with a target of a wrong class, and cycles."""

    def __init__(self, root: SpecData, context: Context, start: Path) -> None:
        super().__init__(root)
        self.start = start
        self.context = context
        self.readers = {path: reader for path, _, reader in context.refs}
        self._cycles: set[frozenset[str]] = set()

    def value(self, value: Any, path: Path, reader: Reader | None) -> Any:
        if isinstance(value, SpecData) and not value.has_refs:
            self.made[path] = None
            return None
        return super().value(value, path, reader)

    def kept(self, spec: SpecData, path: Path) -> Any:
        _RefCheck(spec, self.context, (*self.start, *path)).run()

    def shared(self, ref: Ref, path: Path, reader: Reader | None) -> Any:
        try:
            cursor = locate(self.root, ref, path)
            if isinstance(cursor.value, SpecData):
                self._check_target(ref, cursor, path, reader)
            return super().shared(ref, path, reader)
        except DepthError as error:
            self._report("ref-cycle", error, path)
        except ConfigError as error:
            paths = frozenset((error.got or "").split(" -> "))
            is_cycle = error.problem == CYCLE
            if not is_cycle or paths not in self._cycles:
                self._report("ref-cycle" if is_cycle else "ref-to-nothing", error, path)
            self._cycles |= {paths} if is_cycle else set()
        return None

    def _report(self, code: str, error: ConfigError | DepthError, path: Path) -> None:
        at = (*self.start, *path)
        self.context.add(code, at, error.problem, expected=error.expected, got=error.got, hint=error.fix)

    def _check_target(self, ref: Ref, cursor: Cursor, path: Path, reader: Reader | None) -> None:
        at = (*self.start, *path)
        is_kept, known = keeps_specs(cursor.reader), self.readers.get(at)
        if is_kept != keeps_specs(reader):
            found, wanted = ("an unbuilt spec", "a built part") if is_kept else ("a built part", "an unbuilt spec")
            add_border(self.context, at, f"the reference points at {found}, but {wanted} is expected", ref)
        elif known is not None and not known.holds(cursor.value):
            message = f"the reference points at a {target_name(cursor.value.target)}"
            hint = "refer to a part of an allowed class, or write one out"
            if all(problem.path != (*self.start, *cursor.path) for problem in self.context.problems):
                self.context.add("ref-kind", at, message, expected=known.expected, got=shown(ref.path), hint=hint)
