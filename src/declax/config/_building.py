"""Building the object of a spec, and checking its Refs: both traverse the spec in the same order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Final, cast

from declax._fields.call import Call
from declax._fields.expressions import Expression
from declax._fields.keys import OWN_RNGS
from declax._fields.overrides import DeclaredPart
from declax.config._data import MAX_DEPTH, FrozenDict, FrozenList, FrozenSet, Ref, SpecData, positions
from declax.config._declared import computed_arguments
from declax.config._reading.catalog import catalog_for
from declax.config._reading.limits import CheckedReader
from declax.config._reading.parameters import RNGS, Parameters, target_name
from declax.config._reading.readers import INVALID, Context, Reader
from declax.config._refs import Cursor, keeps_specs, keys_of, locate, reader_below, where
from declax.config._supplied import value_of
from declax.config.problems import Path, did_you_mean, path_text, shown
from declax.errors import ConfigError, MissingRngsError, with_article
from declax.training._transformation import Description, check_masks, describe_by, is_transformation

PATH_ATTRIBUTE: Final = "config_path"
MASK: Final = """mask=dx.spec(dx.mask_by, {})
mask = {{ kind = "mask_by", only = {{ kind = "PathContains", key = "kernel" }} }}   # in a file
dx.from_config(..., extra=[dx.mask_by, dx.PathContains])   # which reads it"""
"""How a mask is written in a Spec, with a place for its filter, and in a file."""


class SpecVisitor:
    """Visits a spec in the order of building: depth first, in the order of the parameters."""

    def __init__(self, root: SpecData) -> None:
        self.root = root
        self.made: dict[tuple[str, ...], Any] = {}  # the results for finished parts, to which Refs may point
        self.is_unmade = False  # whether the owner of a declared part makes what is visited

    def run(self) -> Any:
        return self.value(self.root, (), None)

    def value(self, value: Any, path: Path, reader: Reader | None) -> Any:
        """The result for the value at a path."""
        outer = self.is_unmade
        made: Any
        if isinstance(value, SpecData):
            self.is_unmade = outer or isinstance(value.target, DeclaredPart)
            made = self.kept(value, path) if path and keeps_specs(reader) else self.call(value, path)
        elif isinstance(value, Ref):
            made = self.shared(value, path, reader)
        elif type(value) in (tuple, FrozenList, FrozenDict):
            made = {k: self.value(value[k], (*path, k), reader_below(value, reader, k)) for k in keys_of(value)}
            if not isinstance(value, FrozenDict):
                made = tuple(made.values()) if type(value) is tuple else list(made.values())
        else:
            return set(value) if type(value) is FrozenSet else value_of(value)
        if not self.is_unmade:
            self.made[tuple(map(str, path))] = made
        self.is_unmade = outer
        return made

    def shared(self, ref: Ref, path: Path, reader: Reader | None) -> Any:
        """The result for the target of a Ref."""
        found = locate(self.root, ref)
        return self.made.get(ref.keys, None if found is None else found.value)  # plain values are what they are

    def arguments(self, spec: SpecData, path: Path) -> dict[str, Any]:
        reader_of = spec.reader_of
        return {name: self.value(value, (*path, name), reader_of(name)) for name, value in spec.arguments.items()}

    def kept(self, spec: SpecData, path: Path) -> Any:
        """The result for a spec that the annotation `Spec[...]` leaves unbuilt."""
        return spec

    def call(self, spec: SpecData, path: Path) -> Any:
        return self.arguments(spec, path)


def takes_rngs(value: Any, reader: Reader | None = None) -> bool:
    """Whether `build` passes `rngs` to a part of a spec, or of a list or dict in it."""
    if isinstance(value, SpecData):
        if keeps_specs(reader):
            return False
        if value.parameters.takes_rngs:
            return True
    items = value.arguments if isinstance(value, SpecData) else value
    return any(takes_rngs(items[key], reader_below(value, reader, key)) for key in keys_of(value))


class Builder(SpecVisitor):
    """Builds the object of a spec, whose Refs were checked."""

    def __init__(self, root: SpecData, rngs: object = None, fix: str = "spec.build(rngs=dx.Rngs(0))") -> None:
        super().__init__(root)
        self.rngs = rngs
        self.fix = fix  # the call that passes rngs

    def call(self, spec: SpecData, path: Path) -> Any:
        parameters = spec.parameters
        if isinstance(spec.target, DeclaredPart):
            return spec.target(**self.arguments(spec, path))
        arguments = self.arguments(spec, path)
        for name, value in computed_arguments(spec).items():
            self._check_computed(spec, name, value, path)
            arguments[name] = self.value(value, (*path, name), spec.reader_of(name))
        args, named = positions(parameters, arguments)
        if parameters.takes_rngs and (self.rngs is not None or parameters.needs_rngs):
            if self.rngs is None:
                raise self._without_rngs(parameters, path)
            named[RNGS] = OWN_RNGS if self.is_unmade else self.rngs
        if self.is_unmade:
            return Expression(Call(spec.target, tuple(args), named))
        try:
            made = spec.target(*args, **named)
            if is_transformation(made):
                check_masks(parameters.name, made, MASK)
        except Exception as error:
            if isinstance(error, MissingRngsError) and self.rngs is None:
                raise self._without_rngs(parameters, path, f"{error.where} draws random keys") from None
            note_config_path(error, path, parameters.name)
            raise
        if not (spec.has_refs or parameters.takes_rngs) and is_transformation(made):
            describe_by(cast(Description, spec), made)  # it compares and pickles by its spec
        return made

    def _check_computed(self, spec: SpecData, name: str, value: Any, path: Path) -> None:
        """Raises for a computed default that the bounds, choices or check of its field refuse.

        As for constructors, the annotation alone does not refuse a default.
        """
        reader, context = spec.reader_of(name), Context()
        if isinstance(reader, CheckedReader) and reader.read(value, (*path, name), context) is INVALID:
            error = context.error(f"Spec of {target_name(self.root.target)}")
            error.add_note(f"while the default of {name!r} was computed")
            raise error

    def _without_rngs(self, parameters: Parameters, path: Path, why: str | None = None) -> ConfigError:
        problem = f"{parameters.name} takes rngs, but none were passed"
        return ConfigError(where(self.root, path), problem, why=why, fix=self.fix)


def note_config_path(error: BaseException, path: Path, name: str) -> None:
    """Adds the path of the configuration to an error; its type and text stay."""
    error.add_note(f"in the configuration at {path_text(path)} ({name})")
    try:
        setattr(error, PATH_ATTRIBUTE, path)
    except AttributeError:  # an exception with slots; the note has the path
        return


# --- checking Refs -------------------------------------------------------------

NO_TARGET: Final = "the reference has no target: no earlier part has this path"
LATER: Final = "the reference points at a later part: the part is there, but it is built after this place"


def checked_refs(found: Any, context: Context) -> Any:
    """A value that was read, with its Refs checked."""
    if not context.refs:
        return INVALID if context else found
    at = {tuple(map(str, path)) for path, *_ in context.refs}
    targets = [(path, start, keys) for path, start, keys, _ in context.refs]
    for path, start, keys in list(targets):
        target = (*start, *keys)
        if (target not in context.parts and target not in at) or tuple(map(str, path))[: len(target)] == target:
            inside = (part[len(start) :] for part in context.parts if part[: len(start)] == start)
            _add_no_target(context, path, keys, inside)
            targets.remove((path, start, keys))
    if isinstance(found, SpecData) and not context:
        _RefCheck(found, context, ()).run()
    elif context:  # without a finished spec, what was read says which part comes first
        for path, start, keys in targets:
            if _is_later((*start, *keys), path, context):
                kind = context.parts.get((*start, *keys))
                _add_later(context, path, start, keys, None if kind is None else target_name(kind))
    return INVALID if context else found


def _is_later(target: Path, path: Path, context: Context) -> bool:
    """Whether a part is built after a place: in the order of parameters and lists; False where this is unknown."""
    there, here = list(map(str, target)), list(map(str, path))
    shared = next((n for n, pair in enumerate(zip(there, here, strict=False)) if pair[0] != pair[1]), None)
    if shared is None:
        return False
    mine, other = here[shared], there[shared]
    if type(path[shared]) is int:
        return other.isdecimal() and int(other) > int(mine)
    names = context.names.get(tuple(here[:shared]), ())
    return mine in names and other in names and names.index(other) > names.index(mine)


def check(spec: SpecData) -> None:
    """Raises one error with all problems of a spec; see `Spec.check`."""
    context = Context(catalog=catalog_for(()))
    context.max_depth = 2 * MAX_DEPTH  # a spec limits its own depth, in which a list is not a step
    context.check(spec, ())
    _RefCheck(spec, context, ()).run()
    if context:
        raise context.error(f"Spec of {target_name(spec.target)}")


def _add_no_target(context: Context, path: Path, target: tuple[str, ...], parts: Iterable[tuple[str, ...]]) -> None:
    written = "/" + "/".join(target)
    known = itertools.islice(parts, 0 if context.is_full else 1000)
    hint = did_you_mean(written, ["/" + "/".join(keys) for keys in known if keys and keys != target])
    expected = "the path of a part that is built before this one, together with it"
    context.add("ref-to-nothing", path, NO_TARGET, expected=expected, got=shown(written), hint=hint)


def _add_later(context: Context, path: Path, start: Path, target: tuple[str, ...], kind: str | None) -> None:
    """Reports a Ref to a later part, which may be a class or another Ref."""
    here = "/" + "/".join(map(str, path[len(start) :]))
    there, what = (*start, *target), "a reference" if kind is None else with_article(kind)
    hint = f'swap them: describe the part here, and write {{ "$ref" = "{here}" }} at {path_text(there)}'
    hint = hint if kind is not None else "refer to the part itself, which is described before this place"
    got = f"{shown('/' + '/'.join(target))}, {what}"
    expected = "the path of a part that is built before this one, together with it"
    context.add("ref-to-later", path, LATER, expected=expected, got=got, hint=hint, other=there)


class _RefCheck(SpecVisitor):
    """Reports the Refs of a spec without an earlier target, or with a target of a wrong class."""

    def __init__(self, root: SpecData, context: Context, start: Path) -> None:
        super().__init__(root)
        self.start = start
        self.context = context
        self.readers = {path: reader for path, *_, reader in context.refs}
        self.targets: dict[tuple[str, ...], Cursor] = {}  # of Refs, to which others may point

    def value(self, value: Any, path: Path, reader: Reader | None) -> Any:
        if isinstance(value, SpecData) and not value.has_refs and not isinstance(value.target, DeclaredPart):
            self.made[tuple(map(str, path))] = None
            return None
        return super().value(value, path, reader)

    def kept(self, spec: SpecData, path: Path) -> Any:
        _RefCheck(spec, self.context, (*self.start, *path)).run()

    def shared(self, ref: Ref, path: Path, reader: Reader | None) -> Any:
        cursor = locate(self.root, ref)
        is_part = cursor is not None and isinstance(cursor.value, (SpecData, Ref, tuple, FrozenList, FrozenDict))
        if cursor is None:
            _add_no_target(self.context, (*self.start, *path), ref.keys, self.made)
            return
        if is_part and not any(ref.keys[:n] in self.made for n in range(len(ref.keys) + 1)):
            is_around = tuple(map(str, path))[: len(ref.keys)] == ref.keys
            if is_around or not isinstance(cursor.value, (SpecData, Ref)):
                _add_no_target(self.context, (*self.start, *path), ref.keys, self.made)
            else:
                target = cursor.value.target if isinstance(cursor.value, SpecData) else None
                kind = None if target is None else target_name(target)
                _add_later(self.context, (*self.start, *path), self.start, ref.keys, kind)
            return
        cursor = self.targets.get(ref.keys, cursor)
        self.targets[tuple(map(str, path))] = cursor
        if isinstance(cursor.value, SpecData):
            self._check_target(ref, cursor, path, reader)

    def _check_target(self, ref: Ref, cursor: Cursor, path: Path, reader: Reader | None) -> None:
        at = (*self.start, *path)
        is_kept, known = keeps_specs(cursor.reader), self.readers.get(at)
        if is_kept != keeps_specs(reader):
            found, wanted = ("an unbuilt spec", "a built part") if is_kept else ("a built part", "an unbuilt spec")
            message = f"the reference points at {found}, but {wanted} is expected"
            self.context.add("ref-border", at, message, got=shown(ref.path), hint="write the part out")
        elif known is not None and not known.fits(cursor.value):
            message = f"the reference points at {with_article(target_name(cursor.value.target))}"
            hint = "refer to a part of an allowed class, or write one out"
            if all(problem.path != (*self.start, *cursor.path) for problem in self.context.problems):
                self.context.add("ref-kind", at, message, expected=known.expected, got=shown(ref.path), hint=hint)
