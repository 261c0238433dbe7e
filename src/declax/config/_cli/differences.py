"""``declax diff``: how two configurations, run folders or checkpoints differ."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jax

from declax._classes.pytree import Pytree
from declax._displays.summarizing import summary
from declax._text.arrays import bytes_text, shapes_text
from declax.checkpoint.loading import load
from declax.config._cli.arguments import Words
from declax.config._cli.output import Output, usage_error
from declax.config._data import Ref
from declax.config._files.formats import SUFFIXES, read_document
from declax.config._sources.loading import Loading
from declax.config._sources.sweeps import expand
from declax.config._writing import COMPUTED
from declax.config.loading import spec_of, to_config
from declax.config.problems import path_text, shown
from declax.config.specs import Spec, shapes_of
from declax.errors import ConfigError
from declax.transforms.abstract import eval_shape

_MOST: Final = 40
"""The number of arrays that the text lists; the JSON has all."""


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Attributes:
      name: of the file or folder.
      values: of its exact record, by pointer; None for a checkpoint whose constructor calls are not known.
      arrays: the shape and dtype of each array, by path.
      nbytes: of all arrays.
      output: the shapes of the result of the model, if inputs were given.
    """

    name: str
    values: Mapping[str, Any] | None
    arrays: Mapping[str, str]
    count: int
    nbytes: int
    output: str | None


def diff(cls: Any, words: Words, options: argparse.Namespace, output: Output, inputs: list[Any]) -> None:
    """Prints how two configurations differ."""
    if len(words.files) != 2:
        fix = "declax diff models:Net base.toml large.toml"
        raise usage_error("diff compares two files or folders", got=", ".join(words.files) or "none", fix=fix)
    one, two = (_side(cls, file, words, options, inputs) for file in words.files)
    values = [] if one.values is None or two.values is None else list(_differing(one.values, two.values))
    arrays = list(_differing(one.arrays, two.arrays))
    output.add("", "\n".join(_text(one, two, values, arrays)), _data(one, two, values, arrays))


def _side(cls: Any, name: str, words: Words, options: argparse.Namespace, inputs: list[Any]) -> Side:
    file = Path(name)
    if not file.exists():
        raise usage_error("there is no such file or folder", got=name)
    if file.is_dir():
        found = next((file / f"config{suffix}" for suffix in SUFFIXES if (file / f"config{suffix}").is_file()), None)
        if found is None:
            return _of_checkpoint(cls, name, inputs)
        file = found
    loading = Loading(cls, migrate=options.migrate, env=options.env)
    (run,) = expand(words.changes)
    spec, _ = loading.run([read_document(str(file))], run)
    if not isinstance(spec, Spec):
        raise usage_error("the configuration describes no object", got=name)
    return _side_of(name, _values(spec), _models_of(spec), inputs)


def _of_checkpoint(cls: Any, name: str, inputs: list[Any]) -> Side:
    items = load(name, abstract=True, extra=[sys.modules[cls.__module__]])
    models = {key: item for key, item in items.items() if isinstance(item, Pytree)}
    try:
        values: Mapping[str, Any] | None = _values(spec_of(models["model"])) if "model" in models else None
    except ConfigError:
        values = None
    return _side_of(name, values, models["model"] if len(models) == 1 and "model" in models else models, inputs)


def _models_of(spec: Spec[Any]) -> Any:
    """What a spec builds, in shapes; of one that only holds specs, what these build."""
    made = shapes_of(spec)
    if jax.tree.leaves(made):
        return made
    parts = {name: part for name, part in spec.arguments.items() if isinstance(part, Spec)}
    models = {name: shapes_of(part) for name, part in parts.items() if isinstance(part.target, type)}
    found = {name: model for name, model in models.items() if jax.tree.leaves(model)}
    return next(iter(found.values())) if len(found) == 1 else found


def _side_of(name: str, values: Mapping[str, Any] | None, models: Any, inputs: list[Any]) -> Side:
    leaves = jax.tree_util.tree_flatten_with_path(models)[0]
    arrays = {jax.tree_util.keystr(path, simple=True, separator="."): shapes_text(leaf) for path, leaf in leaves}
    found = summary(models)
    output = None
    if inputs:
        if not callable(models):
            raise usage_error("--input: there is no one model to call", got=name)
        output = shapes_text(eval_shape(lambda model, args: model(*args), models, inputs, graph=True))
    return Side(name, values, arrays, sum(map(found.count, found.kinds)), sum(map(found.nbytes, found.kinds)), output)


def _values(spec: Spec[Any]) -> dict[str, Any]:
    """The values of an exact record by pointer, also computed ones."""
    record = to_config(spec, full=True)
    computed = record.pop(COMPUTED, {})
    return {**dict(_flat(record, ())), **computed}


def _flat(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items or (not path and not isinstance(value, dict)):
        yield Ref.to(path).path, value
    if isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value):
        yield Ref.to(path).path, value
        return
    for key, item in items:
        yield from _flat(item, (*path, key))


_MISSING: Final = object()


def _differing(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for path in dict.fromkeys([*one, *two]):
        before, after = one.get(path, _MISSING), two.get(path, _MISSING)
        if before is _MISSING or after is _MISSING or before != after or type(before) is not type(after):
            yield path, before, after


def _text(one: Side, two: Side, values: list[Any], arrays: list[Any]) -> Iterator[str]:
    yield f"{one.name} -> {two.name}"
    if one.values is None or two.values is None:
        yield "  a checkpoint says no constructor calls: only arrays are compared"
    elif not values:
        yield "  the same values"
    yield from (f"  {path_text(Ref(path).keys)}: {_said(before)} -> {_said(after)}" for path, before, after in values)
    yield f"  parameters: {one.count:,} -> {two.count:,}, {bytes_text(one.nbytes)} -> {bytes_text(two.nbytes)}"
    if one.output is not None or two.output is not None:
        yield f"  output: {one.output} -> {two.output}"
    yield "  the same arrays" if not arrays else "  arrays:"
    yield from (f"    {path}: {_said(before)} -> {_said(after)}" for path, before, after in arrays[:_MOST])
    if len(arrays) > _MOST:
        yield f"    and {len(arrays) - _MOST} more"


def _said(value: Any) -> str:
    return "nothing" if value is _MISSING else value if isinstance(value, str) and "[" in value else shown(value)


def _data(one: Side, two: Side, values: list[Any], arrays: list[Any]) -> dict[str, Any]:
    def listed(found: list[Any]) -> list[dict[str, Any]]:
        pairs = ({"path": path, "before": before, "after": after} for path, before, after in found)
        return [{key: value for key, value in pair.items() if value is not _MISSING} for pair in pairs]

    sides = [{"name": s.name, "count": s.count, "bytes": s.nbytes, "output": s.output} for s in (one, two)]
    return {"sides": sides, "values": listed(values), "arrays": listed(arrays)}
