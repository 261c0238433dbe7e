"""Builds models and specs from files and plain data, and describes models as specs."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, overload

import jax
import numpy as np

from declax._classes.construction import LOST_RECORD, call_now, is_recorded, refuse_loss
from declax._classes.pytree import Pytree
from declax._classes.records import record_of, refuse_own_init
from declax._fields.call import call_of
from declax._fields.class_info import maker_of
from declax._fields.overrides import override_of
from declax._fields.specifiers import is_init_var
from declax._graph.differences import Differing
from declax._graph.nodes import children_of
from declax._module.containers import Dict, List
from declax._random.streams import Rngs
from declax._typing import MISSING
from declax._variables.variable import Variable
from declax.config._building import Builder
from declax.config._conforming import changes_of, models_in
from declax.config._data import MAX_DEPTH, Ref, SpecData
from declax.config._files.documents import Document, HasPlaces, is_bounded, noting_place, problem_of_text, unreadable
from declax.config._files.formats import FORMATS, read_document
from declax.config._reading.catalog import catalog_for
from declax.config._reading.parameters import RNGS, Parameters, parameters_of
from declax.config._reading.part_readers import choices_at
from declax.config._reading.readers import Reader
from declax.config._sources.loading import Loading, name_of
from declax.config._sources.sweep_tables import take_sweeps
from declax.config._sources.sweeps import GRID, expand
from declax.config._sources.words import is_word, parse_word
from declax.config._writing import plain_data
from declax.config.problems import Path as KeyPath
from declax.config.problems import did_you_mean, path_text
from declax.config.specs import Spec
from declax.errors import ConfigError, DepthError, describe, type_name
from declax.training._transformation import description_of, is_transformation

M = TypeVar("M")

Source: TypeAlias = Mapping[str, Any] | str | os.PathLike[str] | Document
"""A configuration: plain data, or a file."""


@overload
def spec_from_config(
    cls: Callable[..., M],
    /,
    *sources: Source,
    words: Sequence[str] = (),
    extra: Iterable[Any] = (),
    env: Collection[str] = (),
    migrate: bool = False,
) -> Spec[M]: ...
@overload
def spec_from_config(
    cls: Any,
    /,
    *sources: Source,
    words: Sequence[str] = (),
    extra: Iterable[Any] = (),
    env: Collection[str] = (),
    migrate: bool = False,
) -> Spec[Any]: ...
def spec_from_config(
    cls: Any,
    /,
    *sources: Source,
    words: Sequence[str] = (),
    extra: Iterable[Any] = (),
    env: Collection[str] = (),
    migrate: bool = False,
) -> Spec[Any]:
    """Reads a configuration into a spec, which is checked but not built.

    Args:
      cls: the class to describe, or a union or a function.
      *sources: plain data, or paths of TOML, JSON or YAML files. Later ones win: tables are merged by key, and lists
        are replaced. A text such as ``"model.dim=4"`` is a word.
      words: changes of values, as on a command line: ``model.dim=4``, ``blocks+={kind="Mlp"}``, ``~schedule``,
        ``**.FeedForward.hidden=128``. They come after all files.
      extra: classes that data may choose by name where an annotation names one of their bases.
      env: variables of the environment that data may name.
      migrate: accept old names and versions (``renamed_from``, ``config_version``) and update them.

    Returns:
      The spec, equal to the result of `spec` with the same arguments.

    Raises:
      ConfigError: lists all mistakes, each with its path, file and line.
      MissingExtraError: the file is YAML, and PyYAML is not installed.

    >>> import declax as dx
    >>> dx.spec_from_config(dx.Linear, {"in_features": 2, "out_features": 3}) == dx.spec(dx.Linear, 2, 3)
    True
    >>> dx.spec_from_config(dx.Linear, {"in_features": 2}, {"out_features": 3}, "in_features=4")
    spec(Linear, in_features=4, out_features=3)
    """
    return _loaded(cls, sources, words, Loading(cls, extra=extra, migrate=migrate, env=env))[0]


def _loaded(cls: Any, sources: Sequence[Source], words: Sequence[str], loading: Loading) -> tuple[Spec[Any], HasPlaces]:
    if len(sources) == 1 and not words and not _is_word(sources[0]):
        document = read_source(sources[0])
        found = loading.read_alone(document)
        if isinstance(found, Spec):
            return found, document
        sources = (document,)
    documents = [read_source(source) for source in sources if not _is_word(source)]
    changes = [parse_word(str(word)) for word in (*filter(_is_word, sources), *words)]
    documents, changes, plan = take_sweeps(documents, changes, GRID)
    runs = list(itertools.islice(expand(changes, plan), 2))
    if len(runs) > 1:
        swept = next(word for word in changes if len(word.values) > 1)
        problem = "a word has several values, which are several runs"
        raise ConfigError(swept.text, problem, fix="one value, or dx.cli(..., sweep=True)")
    found, configuration = loading.run(documents, runs[0])
    if not isinstance(found, Spec):
        where = configuration.name or name_of(cls)
        raise ConfigError(where, "the configuration describes no object", expected=name_of(cls), got=describe(found))
    return found, configuration


def _is_word(source: object) -> bool:
    return isinstance(source, str) and is_word(source)


@overload
def from_config(
    cls: Callable[..., M],
    /,
    *sources: Source,
    words: Sequence[str] = (),
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    env: Collection[str] = (),
    migrate: bool = False,
) -> M: ...
@overload
def from_config(
    cls: Any,
    /,
    *sources: Source,
    words: Sequence[str] = (),
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    env: Collection[str] = (),
    migrate: bool = False,
) -> Any: ...
def from_config(
    cls: Any,
    /,
    *sources: Source,
    words: Sequence[str] = (),
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    env: Collection[str] = (),
    migrate: bool = False,
) -> Any:
    """Builds the object that a configuration describes.

    Data may name only the classes, functions and dtypes that the annotations of `cls`, `register_kind` or `extra`
    allow. No file can name a module, an attribute or code. An error of a constructor keeps its type, and gets a note
    with the place of its arguments in the file.

    Args:
      cls, sources, words, extra, env, migrate: as in `spec_from_config`.
      rngs: passed to every part that takes `rngs`.

    Returns:
      The object.

    Raises:
      ConfigError: lists all mistakes, each with its path, file and line.
      MissingExtraError: the file is YAML, and PyYAML is not installed.

    >>> import declax as dx
    >>> layer = dx.from_config(dx.Linear, {"in_features": 2, "out_features": 3, "use_bias": False}, rngs=dx.Rngs(0))
    >>> layer.kernel.shape, layer.bias
    ((2, 3), None)
    """
    spec, configuration = _loaded(cls, sources, words, Loading(cls, extra=extra, migrate=migrate, env=env))
    fix = f"dx.from_config({spec.parameters.name}, ..., rngs=dx.Rngs(0))"
    with noting_place(configuration):
        return Builder(spec, rngs, fix).run()  # without Spec.check: the readers have checked each value


def read_source(source: Source) -> Document:
    """Plain data, or the content of a file, as a document."""
    if isinstance(source, Document):
        return source
    if isinstance(source, Mapping):
        if not is_bounded(source):
            problem = problem_of_text(None, "the data contains itself, or the same tables again and again", code="size")
            raise unreadable(None, problem)
        return Document(None, source)
    if isinstance(source, (str, os.PathLike)):
        return read_document(source)
    raise ConfigError(
        "from_config",
        "not a configuration",
        expected="a dict of plain data, or the path of a file",
        got=describe(source),
        fix='dx.from_config(Model, "model.toml", rngs=dx.Rngs(0))',
    )


def to_config(x: Any, /, *, full: bool = False, extra: Iterable[Any] = ()) -> dict[str, Any]:
    """Converts a spec or a model to plain data.

    Args:
      x: a `Spec`, or an object that `spec_of` can describe. An object in two places is written once; the other places
        refer to it, so tied weights stay tied.
      full: write the exact record: also defaults, the version of each class, and under ``$computed`` what class
        bodies compute, so that the same model is built after any of these has changed in the code.
      extra: as in `from_config`.

    Returns:
      Tables (dicts), lists and plain values, from which ``from_config`` builds an equal model.

    Raises:
      ConfigError: data has no name for a value, such as a lambda.

    >>> import declax as dx
    >>> dx.to_config(dx.spec(dx.Linear, 2, 3, kernel_init=dx.initializers.normal(0.02)))
    {'kind': 'Linear', 'in_features': 2, 'out_features': 3, 'kernel_init': {'kind': 'normal', 'stddev': 0.02}}
    """
    spec = x if isinstance(x, SpecData) else spec_of(x)
    return plain_data(spec, full=full, extra=extra)


def write_config(path: str | os.PathLike[str], x: Any, /, *, full: bool = False, extra: Iterable[Any] = ()) -> None:
    """Writes a spec or a model to a configuration file.

    Args:
      path: the file. Its suffix selects the format: ``.toml``, ``.json``, ``.yaml`` or ``.yml``.
      x: as in `to_config`.
      full: write the exact record; see `to_config`.
      extra: as in `from_config`.

    Raises:
      ConfigError: the suffix is unknown, or data has no name for a value.
      MissingExtraError: the format is YAML, and PyYAML is not installed.

    >>> import pathlib, declax as dx
    >>> dx.write_config("layer.toml", dx.spec(dx.Linear, 2, 3, use_bias=False))
    >>> print(pathlib.Path("layer.toml").read_text().strip())
    kind = "Linear"
    in_features = 2
    out_features = 3
    use_bias = false
    """
    text = config_text(x, Path(path).suffix, full=full, extra=extra)
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        got = ascii(text[max(0, error.start - 40) : error.end + 40])
        problem = "a text has half of a surrogate pair, which no file can hold"
        raise ConfigError(os.fspath(path), problem, got=got) from None
    Path(path).write_bytes(content)


def config_text(x: Any, suffix: str, /, *, full: bool = False, extra: Iterable[Any] = ()) -> str:
    """The text of a configuration file; see `write_config`."""
    spec = x if isinstance(x, SpecData) else spec_of(x)
    chosen = suffix.lower()
    if chosen not in FORMATS:
        problem, hint = "unknown suffix of a configuration file", did_you_mean(chosen, FORMATS)
        raise ConfigError("config_text", problem, expected=", ".join(FORMATS), got=suffix, fix=hint)
    return FORMATS[chosen].write(plain_data(spec, full=full, extra=extra))


# --- from a model to a spec --------------------------------------------------------


def spec_of(model: M, /) -> Spec[M]:
    """Describes a model by a spec: the arguments of its constructors.

    Each argument is read from the attribute of the same name, and an InitVar (such as an initializer) from the record
    of constructor arguments. A shared part is a `Ref` in its second place. The Spec is built, abstractly, and the
    structure of the result is compared with that of the model. Values and dtypes of arrays, the modes of `train` and
    `eval`, random streams, caches, recorded values and shardings are not part of a Spec, and may differ.

    Args:
      model: a model, or an instance of any dataclass.

    Returns:
      The spec, for which ``dx.spec_of(spec.build(rngs=rngs)) == spec``. Arguments have the form in which the
      constructor stores them: ``kernel_size=(3,)`` for ``dx.Conv(4, 6, 3, rngs=rngs)``.

    Raises:
      ConfigError: an argument is neither an attribute nor in the record (an object from `merge`, `jax.tree.map` or a
        transform has no record), an argument is an array, or building the spec makes another structure, since a part,
        a static value, a Variable or what they share was changed after construction and no argument says it.
      DepthError: the model is nested more than 100 levels deep.

    >>> import declax as dx
    >>> layer = dx.Linear(3, 4, use_bias=False, rngs=dx.Rngs(0))
    >>> dx.spec_of(layer)
    spec(Linear, in_features=3, out_features=4, use_bias=False)
    """
    if isinstance(model, type) or not (isinstance(model, Pytree) or dataclasses.is_dataclass(model)):
        raise ConfigError(
            "spec_of", "not a model", expected="a Module, or an instance of a dataclass", got=describe(model)
        )
    spec = described(model)
    changes = _changes_of(model, spec)
    if changes:
        spec = _SpecExtractor(model, [held for one in changes for held in _along(model, one.path)]).value(model, ())
        _refuse(type_name(type(model)), _changes_of(model, spec))
    return spec


def described(model: M) -> Spec[M]:
    """As `spec_of`, but nobody checks that the Spec makes the structure that the model has."""
    found: Spec[M] = _SpecExtractor(model).value(model, ())
    return found


def _changes_of(model: Any, spec: Spec[Any]) -> list[Differing]:
    """How the structure of a model differs from what a Spec makes."""
    try:
        return list(changes_of(models_in(model), lambda: models_in(spec.build(rngs=Rngs(0)))))
    except Exception as error:
        raise ConfigError(
            type_name(type(model)),
            "the Spec of this object cannot be built, so that nothing says whether it describes the object",
            got=f"{type(error).__name__}: {error}",
            fix="the Spec that built the object, in place of spec_of",
        ) from error


def _along(model: Any, path: KeyPath) -> Iterator[Any]:
    """The objects on the way to a place in a model."""
    held = models_in(model)
    for key in path:
        held = dict(children_of(held)).get(key)
        yield held


def _refuse(name: str, changes: list[Differing]) -> None:
    """Raises for the first change, if there is one."""
    if not changes:
        return
    found = changes[0]
    where = f"{name}.{path_text(found.path)}" if found.path else name
    if found.is_tie:
        raise ConfigError(
            where,
            f"this is {found.after}, but building the spec would make two objects",
            why="a Ref can share a part, not an attribute inside a part",
            fix=f"tie {path_text(found.path)} in __init__ or __post_init__, so that building ties it",
        )
    raise ConfigError(
        where,
        "the structure of this object differs from what its Spec makes",
        expected=str(found.before),
        got=str(found.after),
        why="a Spec has the arguments of constructors, and this was changed since then",
        fix='dx.save(path, {"model": model})        # keeps the model as it is',
    )


_VALUES: Final = (bool, int, float, complex, str, bytes, type(None))


class _SpecExtractor:
    """Makes the spec of a model; an object in two places becomes a Ref."""

    def __init__(self, root: object, changed: Iterable[Any] = ()) -> None:
        self.name = type_name(type(root))
        self._changed = set(map(id, changed))  # what is described, also where the constructor made it
        self._seen: dict[int, KeyPath] = {}
        self._kept: list[object] = []

    def value(self, value: Any, path: KeyPath, reader: Reader | None = None) -> Any:
        """The spec of a part, the Ref to it, or a value as it is."""
        if isinstance(value, (*_VALUES, SpecData, Ref)):
            return value
        where = f"{self.name}.{path_text(path)}"
        if len(path) > MAX_DEPTH:
            raise DepthError(where, f"a model is nested more than {MAX_DEPTH} levels deep for a spec")
        is_part = isinstance(value, Pytree) and not isinstance(value, Variable)
        if is_part or type(value) in (list, dict):
            first = self._seen.setdefault(id(value), path)
            if first is not path:
                if path[: len(first)] != first:
                    return Ref.to(first)
                raise ConfigError(  # the part around this place is not finished
                    where,
                    f"the part contains itself; it is also at {path_text(first)}",
                    why="a constructor receives finished parts, so it cannot make a cycle",
                    fix="set the link after the model is built",
                )
            self._kept.append(value)  # keeps the object alive, and with it the meaning of its id
        call = override_of(value) or call_of(value)
        if call is not None:
            return SpecData.of_values(call.target, self._values(call.arguments(), path))
        if is_part or (dataclasses.is_dataclass(value) and _is_constructed(value, reader)):
            return self._spec(value, path)
        if isinstance(value, dict) or type(value) in (list, tuple):
            held: Any = value
            items = held.items() if isinstance(held, dict) else enumerate(held)
            found = {k: self.value(v, (*path, k), reader and reader.below(value, k)) for k, v in items}
            return found if isinstance(value, dict) else type(held)(found.values())
        if isinstance(value, (Variable, jax.Array, np.ndarray)):
            raise ConfigError(
                where,
                "a spec cannot hold an array, which the constructor takes here",
                got=describe(value),
                fix="declare it with dx.variable(...), or make it in __post_init__",
            )
        return (description_of(value) or value) if is_transformation(value) else value

    def _values(self, arguments: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
        return {name: self.value(value, (*path, name)) for name, value in arguments.items() if name != RNGS}

    def _spec(self, model: Any, path: KeyPath) -> Spec[Any]:
        parameters = parameters_of(type(model))
        if isinstance(model, List):
            given: dict[str, Any] = {"elements": list(model)}
        elif isinstance(model, Dict):
            given = {"entries": dict(model)}
        elif getattr(type(model), "_pytree__makes_layers", False) and parameters.positional_only == ("build", "n"):
            given = self._of_stack(model, parameters, path)
        else:
            given = self._attributes(model, parameters, path)
        reader_of = catalog_for(()).call(type(model)).reader_of
        return Spec(type(model), {n: self.value(value, (*path, n), reader_of(n)) for n, value in given.items()})

    def _of_stack(self, model: Any, parameters: Parameters, path: KeyPath) -> dict[str, Any]:
        given: dict[str, Any] = model._arguments()
        if "build" not in given:
            raise ConfigError(
                f"{self.name}.{path_text(path)}" if path else self.name,
                "a function made the layers of this stack, and a Spec cannot say which",
                got=describe(model),
                fix="dx.Stacked(dx.spec(Block, 8), 12, rngs=rngs)        # the Spec of a layer, not a function",
            )
        return {name: given[name] for name in parameters.by_name if given[name] is not parameters.by_name[name].default}

    def _attributes(self, model: Any, parameters: Parameters, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        fields = getattr(type(model), "__dataclass_fields__", {})
        known: dict[str, Any] | None = None
        where = f"{self.name}.{path_text(path)}" if path else self.name
        held = [field.name for field in dataclasses.fields(type(model)) if field.init] if fields else []
        if any(name != RNGS for name in (*held, *filter(lambda name: is_init_var(fields[name]), fields))):
            fix = "dx.spec({}, ...)        # and keep the spec that builds the model"
            refuse_own_init(type(model), "spec_of", ConfigError, where, fix)
        if fields and isinstance(model, Pytree):
            refuse_loss(model, "spec_of", ConfigError, where)
            known = dict(call_now(model).kwargs)
            for part in maker_of(type(model)).defaults:
                held_part = getattr(model, part.name, None)
                known |= {part.name: held_part} if id(held_part) in self._changed else {}
        record = record_of(model)
        if record is not None and not record.policy.is_empty:
            raise ConfigError(
                where,
                f"this {type_name(type(model))} was made in the block of a policy, which none of its arguments says",
                got=repr(record.policy),
                fix="policy: dx.Policy = dx.field(default=dx.Policy())        # a field of the class",
            )
        for parameter in parameters:
            name = parameter.name
            is_used_up = name in fields and is_init_var(fields[name])
            if known is not None and name in fields and name not in known and not is_used_up:
                continue  # the constructor made it
            value = MISSING if known is None else known.get(name, MISSING)
            if value is MISSING and not is_used_up:
                value = getattr(model, name, MISSING)
            if value is MISSING and is_used_up and record is not None and not parameter.is_required:
                if name not in record.call.kwargs:
                    continue  # of data, with the default
                raise self._of_array(model, name, path)
            if value is MISSING:
                raise self._unknown(type(model), name, path)
            if name == parameters.variadic:
                value = tuple(value)
            if value is not parameter.default:
                found[name] = value
        return found

    def _of_array(self, model: Any, name: str, path: KeyPath) -> ConfigError:
        return ConfigError(
            f"{self.name}.{path_text((*path, name))}",
            f"this {type_name(type(model))} was made with an array for {name!r}, which a spec cannot hold",
            fix=f"{type_name(type(model))}({name}=0.5)        # a number",
        )

    def _unknown(self, cls: type, name: str, path: KeyPath) -> ConfigError:
        problem, why = f"{type_name(cls)} takes {name!r}, but has no attribute of that name", None
        fix = f"self.{name} = {name}      # in __init__; or a field, not an InitVar"
        if is_recorded(cls, name):
            problem = f"this {type_name(cls)} has no record of the {name!r} that it was constructed with"
            why = LOST_RECORD
            fix = "dx.spec_of(model)      # before merge or tree.map; or keep the Spec that built the model"
        return ConfigError(f"{self.name}.{path_text((*path, name))}", problem, why=why, fix=fix)


def _is_constructed(value: Any, reader: Reader | None) -> bool:
    """Whether a spec describes an instance of a dataclass; it stores a frozen one, unless the annotation names it."""
    if isinstance(value, type):
        return False
    is_value = type(value).__dataclass_params__.frozen and type(value).__hash__ is not None
    return not is_value or any(isinstance(value, choice.objects) for choice in choices_at(reader))
