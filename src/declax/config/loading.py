"""Models and specs from files and plain data, and back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, overload

from declax._annotations import annotation_text
from declax.config._building import Builder, checked_refs
from declax.config._catalog import catalog_for
from declax.config._context import Context
from declax.config._data import SpecData
from declax.config._parameters import target_name
from declax.config._reading import spec_of
from declax.config._versions import dropped_text
from declax.config._writing import plain_data
from declax.config.files.documents import Document
from declax.config.files.formatting import format_json, format_toml, format_yaml
from declax.config.files.reading import FORMATS, read_document
from declax.config.problems import Report, did_you_mean
from declax.config.spec import Spec
from declax.errors import ConfigError, MigrationWarning, describe
from declax.rngs import Rngs

M = TypeVar("M")

Source: TypeAlias = Mapping[str, Any] | str | os.PathLike[str] | Document
"""A configuration: plain data, or the file that has it."""


@overload
def spec_from_config(
    cls: Callable[..., M], source: Source, /, *, extra: Iterable[Any] = (), migrate: bool = False
) -> Spec[M]: ...
@overload
def spec_from_config(cls: Any, source: Source, /, *, extra: Iterable[Any] = (), migrate: bool = False) -> Spec[Any]: ...
def spec_from_config(cls: Any, source: Source, /, *, extra: Iterable[Any] = (), migrate: bool = False) -> Spec[Any]:
    """The spec of a configuration, checked and not built.

    Args:
      cls: the class that it describes; a union or a function may stand for it.
      source: plain data, or the path of a TOML, JSON or YAML file.
      extra: classes that may be chosen by their names wherever an annotation names a base class of theirs.
      migrate: bring old names and versions up to date (``renamed_from``, ``config_version``) instead of refusing them;
        a MigrationWarning lists the keys that are left out for it.

    Returns:
      The spec, with all names resolved; equal to the one that `spec` makes of the same arguments.

    Raises:
      ConfigError: with all that is wrong, each with its path, file and line.
      MissingExtraError: the file is YAML, and PyYAML is not installed.

    >>> import declax as dx
    >>> spec_from_config(dx.Linear, {"in_features": 2, "out_features": 3}) == dx.spec(dx.Linear, 2, 3)
    True
    """
    return _spec_of_source(cls, source, extra, migrate)


def _spec_of_source(cls: Any, source: Source, extra: Iterable[Any], migrate: bool) -> Spec[Any]:
    """The spec of a configuration; a warning is that of the line that called the caller of this."""
    document = read_source(source)
    report = Report()
    report.extend(document.problems)
    context = Context(report, migrate=migrate)
    where = document.name or _name_of(cls)
    found = structure(cls, document.data, context, extra)
    if report:
        raise report.error(where, document.place_of)
    if not isinstance(found, Spec):
        raise ConfigError(where, "the configuration describes no object", expected=_name_of(cls), got=describe(found))
    if context.dropped:
        warnings.warn(dropped_text(where, context.dropped), MigrationWarning, stacklevel=3)
    return found


@overload
def from_config(
    cls: Callable[..., M],
    source: Source,
    /,
    *,
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    migrate: bool = False,
) -> M: ...
@overload
def from_config(
    cls: Any,
    source: Source,
    /,
    *,
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    migrate: bool = False,
) -> Any: ...
def from_config(
    cls: Any,
    source: Source,
    /,
    *,
    rngs: Rngs | None = None,
    extra: Iterable[Any] = (),
    migrate: bool = False,
) -> Any:
    """Builds what a configuration describes.

    Which classes, functions and dtypes data may name is decided by the annotations of `cls` and by code
    (`register_kind`, `extra`); no file can name a module, an attribute or code.

    Args:
      cls: the class that it describes; a union or a function may stand for it.
      source: plain data, or the path of a TOML, JSON or YAML file.
      rngs: given to every part that takes them.
      extra: classes that may be chosen by their names wherever an annotation names a base class of theirs.
      migrate: bring old names and versions up to date (``renamed_from``, ``config_version``) instead of refusing them;
        a MigrationWarning lists the keys that are left out for it.

    Returns:
      The object.

    Raises:
      ConfigError: with all that is wrong, each with its path, file and line.
      MissingExtraError: the file is YAML, and PyYAML is not installed.

    An error of a constructor keeps its type, and gets a note that says where in the file its arguments are.

    >>> import declax as dx
    >>> layer = from_config(dx.Linear, {"in_features": 2, "out_features": 3, "use_bias": False}, rngs=dx.Rngs(0))
    >>> layer.kernel.shape, layer.bias
    ((2, 3), None)
    """
    document = read_source(source)
    spec = _spec_of_source(cls, document, extra, migrate)
    try:
        return Builder(spec, rngs).run()  # which the readers have checked
    except Exception as error:
        path = getattr(error, "config_path", None)
        if document.name is not None and path is not None:
            error.add_note(f"its arguments are written in {document.place_of(tuple(path))}")
        raise


def structure(annotation: Any, data: object, context: Context, extra: Iterable[Any] = ()) -> Any:
    """The spec, or other value, of plain data where an annotation is expected; INVALID with problems in the report."""
    context.catalog, context.make = catalog_for(tuple(extra)), Spec.of_values
    found = context.catalog.root_reader(annotation).read(data, (), context)
    return checked_refs(found, context)


def read_source(source: Source) -> Document:
    """The document of plain data or of a file.

    Raises:
      ConfigError: it is neither, or the file cannot be read.
      MissingExtraError: the file is YAML, and PyYAML is not installed.
    """
    if isinstance(source, Document):
        return source
    if isinstance(source, Mapping):
        return Document(None, source)
    if isinstance(source, (str, os.PathLike)):
        return read_document(source)
    raise ConfigError(
        "from_config",
        "a configuration is plain data or the path of a file",
        got=describe(source),
        fix='dx.from_config(Model, "model.toml", rngs=dx.Rngs(0))',
    )


def to_config(x: Any, /, *, full: bool = False, extra: Iterable[Any] = ()) -> dict[str, Any]:
    """The plain data of a spec, or of a model.

    Args:
      x: a `Spec`, or an object that `spec_of` can describe. An object in two places is written once; the other places
        refer to it, so that tied weights stay tied.
      full: write the defaults as well, and the version of each class.
      extra: as in `from_config`.

    Returns:
      Tables (dicts), lists and plain values. ``from_config`` makes an equal spec, and an equal model, of it.

    Raises:
      ConfigError: a value has no name that data could use, such as a lambda.

    >>> import declax as dx
    >>> to_config(dx.spec(dx.Linear, 2, 3, kernel_init=dx.initializers.normal(0.02)))
    {'kind': 'Linear', 'in_features': 2, 'out_features': 3, 'kernel_init': {'kind': 'normal', 'stddev': 0.02}}
    """
    spec = x if isinstance(x, SpecData) else spec_of(x)
    return plain_data(spec, full=full, extra=extra)


def write_config(path: str | os.PathLike[str], x: Any, /, *, full: bool = False, extra: Iterable[Any] = ()) -> None:
    """Writes the configuration of a spec, or of a model, into a file.

    Args:
      path: the file; its suffix says the format: ``.toml``, ``.json``, ``.yaml`` or ``.yml``.
      x: as in `to_config`.
      full: write the defaults as well, and the version of each class.
      extra: as in `from_config`.

    Raises:
      ConfigError: the suffix names no format, a value has no name that data could use, or the format cannot hold it:
        TOML has no null.
    """
    text = config_text(x, Path(path).suffix, full=full, extra=extra)
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(os.fspath(path), "half of a surrogate pair has no text in a file", why=str(error)) from None
    Path(path).write_bytes(content)


def config_text(x: Any, suffix: str, /, *, full: bool = False, extra: Iterable[Any] = ()) -> str:
    """The text of a configuration file; see `write_config`.

    >>> import declax as dx
    >>> print(config_text(dx.spec(dx.Linear, 2, 3), ".toml"), end="")
    kind = "Linear"
    in_features = 2
    out_features = 3
    """
    spec = x if isinstance(x, SpecData) else spec_of(x)
    chosen = suffix.lower()
    write = _WRITERS.get(chosen)
    if write is None:
        problem, hint = "the suffix names no format of configurations", did_you_mean(chosen, FORMATS)
        raise ConfigError("config_text", problem, expected=", ".join(FORMATS), got=suffix, fix=hint)
    return write(plain_data(spec, full=full, extra=extra, has_null=chosen != ".toml"))


_WRITERS: Final = {".toml": format_toml, ".json": format_json, ".yaml": format_yaml, ".yml": format_yaml}


def _name_of(cls: Any) -> str:
    if isinstance(cls, type) or hasattr(cls, "__name__"):
        return target_name(cls)
    return annotation_text(cls) or "the configuration"
