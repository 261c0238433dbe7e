"""Every exception of declax, and the one place that words them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from declax.config.problems import Problem


class DeclaxError(Exception):
    """Base of all exceptions of declax.

    Attributes:
      where: the ``Class.field`` or path of the failure.
      problem: one sentence.
      expected: the expected value.
      got: the given value (see `describe`).
      why: the reason, where it is not obvious.
      fix: the line, or lines, of code that fix it.
      part: the path of the module that failed, in the model that was called; None outside of a call.

    >>> import declax as dx
    >>> print(dx.errors.StatusError("Block.dim", "an array was assigned to a static field"))
    Block.dim: an array was assigned to a static field. [status]
    """

    code: ClassVar[str] = "declax"
    _options: ClassVar[tuple[str, ...]] = ("expected", "got", "why", "fix")

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code

    def __init__(
        self,
        where: str,
        problem: str,
        *,
        expected: str | None = None,
        got: str | None = None,
        why: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.where = where
        self.problem = problem
        self.expected = expected
        self.got = got
        self.why = why
        self.fix = fix
        self.part: str | None = None
        super().__init__(_format_message(self))

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show it quoted

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.where, self.problem, {name: getattr(self, name) for name in self._options})


class FieldError(DeclaxError, TypeError, code="field"):
    """A declaration is contradictory, or uses an unknown name."""


class ExpressionError(DeclaxError, RuntimeError, code="expression"):
    """An operation needs the value of a field, which only an instance has."""

    # no TypeError: numpy and JAX catch those, and raise their own, which do not name the field


class ConstructionError(DeclaxError, TypeError, code="construction"):
    """A constructor was called with names that it does not have."""


class InitializerError(DeclaxError, ValueError, TypeError, code="initializer"):
    """An initializer returned a value that differs from the declaration of its field, such as in shape."""


class StatusError(DeclaxError, ValueError, TypeError, code="status"):
    """A value does not suit the status (data or static) of its attribute."""


class TraceContextError(DeclaxError, code="trace-context"):
    """An object was changed in another trace than the one that created it."""


class MetadataError(DeclaxError, ValueError, TypeError, code="metadata"):
    """Metadata of a Variable is unknown, missing or unusable."""


class MissingMetadataError(MetadataError, KeyError):
    """A Variable has no metadata of that name."""


class MissingAttributeError(DeclaxError, AttributeError, code="attribute"):
    """An object has no attribute of that name, or none that may be set."""


class RegistryError(DeclaxError, ValueError, code="registry"):
    """A name or type is registered twice, or not at all."""


class FilterError(DeclaxError, ValueError, TypeError, code="filter"):
    """A value is not a filter, or filters do not match all leaves."""


class GraphError(DeclaxError, ValueError, TypeError, code="graph"):
    """A graph and a state, or two graphs, do not fit each other."""


class DepthError(DeclaxError, ValueError, code="depth"):
    """A structure is nested deeper than can be handled."""


class RngError(DeclaxError, ValueError, TypeError, code="rng"):
    """A random stream is missing or cannot be made."""


class MissingRngsError(RngError):
    """A constructor draws random keys, and got no `rngs`."""


class MissingStreamError(RngError, AttributeError, KeyError):
    """There is neither a stream of this name nor a `default`."""


class TransformError(DeclaxError, ValueError, TypeError, code="transform"):
    """A lifted transform was called in a way that it cannot carry out."""


class AbstractModelError(TransformError):
    """A computation used the shapes of an abstract model as arrays."""


class ShardingError(DeclaxError, ValueError, code="sharding"):
    """The shardings that Variables declare do not fit the mesh."""


class OptimizerError(DeclaxError, ValueError, TypeError, code="optimizer"):
    """An optimizer does not fit its model or its gradients."""


class LayerError(DeclaxError, ValueError, TypeError, code="layer"):
    """A layer was declared or called with sizes or options that do not fit."""


class ShapeError(DeclaxError, ValueError, code="shape"):
    """A check of shapes has found calls that fail, or that need a condition; the text lists them."""


class ConfigError(DeclaxError, ValueError, code="config"):
    """A configuration does not fit the classes that it describes.

    Args:
      problems: a `declax.config.problems.Problem` for each mistake; each is a paragraph of the message.
    """

    _options = (*DeclaxError._options, "problems")

    def __init__(self, where: str, problem: str, *, problems: Iterable[Problem] = (), **parts: str | None) -> None:
        super().__init__(where, problem, **parts)
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.args: tuple[Any, ...] = ("\n".join([str(self), *map(str, self.problems)]),)


class CheckpointError(DeclaxError, ValueError, code="checkpoint"):
    """A checkpoint or a file of arrays cannot be written, read or restored; the place is the path of the file."""


class MissingKeyError(DeclaxError, KeyError, code="key"):
    """A mapping has no such key."""


class MissingExtraError(DeclaxError, ImportError, code="missing-extra"):
    """An optional dependency is not installed."""


class MissingNameError(DeclaxError, ImportError, code="missing-name"):
    """A module has no such name to import, and Flax NNX has it."""


class WeightsError(DeclaxError, ValueError, code="weights"):
    """Tensors of a file and parameters of a model do not fit, or a map between them is wrong."""


class CheckpointWarning(UserWarning):
    """A checkpoint holds something that `load` cannot make again without a target; the text lists it."""


class OverlookedModelWarning(UserWarning):
    """A transformed function reads a model where captures are not looked for; the text names where and the remedy."""


class StaleValueWarning(UserWarning):
    """An attribute was written past ``__setattr__``, and compiled calls may have used its old value; names it."""


class LayerWarning(UserWarning):
    """A layer is called outside of transforms with an input that it accepts, and that is rarely meant."""


class LostWriteWarning(UserWarning):
    """A Variable was written under a raw transform of JAX, and nobody reads the value; the text says what to use."""


class ConfigWarning(UserWarning):
    """Values of a configuration were dropped, or those of a record were used in the place of computed ones."""


class ReplicationWarning(UserWarning):
    """Dimensions are not split as declared, since a size or a name does not fit the mesh; the text lists them."""


WHERE_CAPTURES_ARE_FOUND = (
    "The transforms of declax capture models in closures, defaults, names of the function's module, partials, bound\n"
    "methods of models, and lists, tuples, dicts and sets there; not in other objects, classes or modules"
)
"""Why a transform may have overlooked a model."""


def _rebuild(cls: type[DeclaxError], where: str, problem: str, parts: dict[str, Any]) -> DeclaxError:
    return cls(where, problem, **parts)


def _format_message(error: DeclaxError) -> str:
    stop = "" if error.problem.endswith("?") else "."
    where = error.where if error.part is None else f"{error.where}, in {error.part}"
    parts = {label: getattr(error, label) for label in DeclaxError._options}
    return "\n".join([f"{where}: {error.problem}{stop} [{error.code}]", *labelled(parts, "  ")])


def labelled(parts: Mapping[str, str | None], indent: str) -> Iterator[str]:
    """The lines of the parts of a message that are there, each behind its label."""
    for label, text in parts.items():
        if text is not None:
            first, *rest = text.splitlines() or [""]
            yield f"{indent}{label + ':':<10}{first}"
            yield from (f"{indent}{'':<10}{line}" for line in rest)


def set_fix(error: DeclaxError, fix: str | None) -> None:
    """Replaces the fix of an error by that of the code around it."""
    error.fix = fix
    error.args = (_format_message(error),)


def shortened(text: str, width: int) -> str:
    """A text, or its beginning if it is too wide."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def describe(value: object) -> str:
    """The type of a value and, of an array, its shape and dtype."""
    if value is None:
        return "None"
    name = type_name(type(value)).replace("ArrayImpl", "Array")
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None and any(cls.__name__ == "Tracer" for cls in type(value).__mro__):
        return f"an array of shape {shape}, while tracing ({dtype})"
    if isinstance(shape, tuple) and dtype is not None:
        return f"{name} of shape {shape} and dtype {dtype}"
    if isinstance(value, (int, float, complex, str, bytes, bool)):
        return f"{name} {shortened(repr(value), 40)}"
    if hasattr(type(value), "_pytree__call"):
        return f"the expression {value!r}, which has a value in an instance only; see dx.defer"
    if isinstance(value, type):
        return f"the type {type_name(value)}"
    return f"a value of type {name}"


NAME_KEY = "_declax_name"
"""The entry of a class that is shown under another name than its own."""


def type_name(cls: type) -> str:
    """The name of a class as a user writes it."""
    name: str = cls.__dict__.get(NAME_KEY, cls.__qualname__)
    return "None" if cls is type(None) else name.rpartition("<locals>.")[2]


def with_article(name: str) -> str:
    """A name of a class behind "a" or "an"; initials are spoken letter by letter, as in "an RNN"."""
    is_vowel = name[:1] in ("AEFHILMNORSX" if name[:2].isupper() else "AEIOaeio")
    return f"{'an' if is_vowel else 'a'} {name}"


def suggest(name: str, options: Iterable[str]) -> str | None:
    """A "did you mean" line for a name, or None where nothing is near."""
    near = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else None


PATH_END = 16
"""How many keys of a very long path are shown at either end."""

MAX_DEPTH = 400
"""How many levels plain containers may be nested."""


def too_deep(where: str, path: Iterable[object]) -> DepthError:
    """The error of plain containers that are nested too deeply."""
    keys = [f"[{key!r}]" for key in path]
    if len(keys) > PATH_END + 1:
        half = PATH_END // 2
        keys[half:-half] = [f" ... {len(keys) - PATH_END} more keys ... "]
    return DepthError(
        where + "".join(keys),
        f"a container is nested more than {MAX_DEPTH} levels deep",
        why="JAX flattens containers by recursion; models have no limit",
        fix="hold deep structures in a Pytree, or flatten them",
    )


def unbound_axis(where: str, name: object, array: object, fix: str) -> LayerError:
    """The error of a call outside of the transform that has a mapped axis."""
    return LayerError(
        where,
        f"no transform around this call has the axis {name!r}",
        expected=f"a call under vmap or shard_map with the axis name {name!r}",
        got=describe(array),
        fix=f"dx.vmap(function, axis_name={name!r}), or {fix}",
    )


def format_path(path: Iterable[object]) -> str:
    """A path as it is written in code; the middle of a very long one is left out."""
    keys = list(path)
    if len(keys) > 2 * PATH_END + 1:
        left = len(keys) - 2 * PATH_END
        return f"{written_path(keys[:PATH_END])} ... {left} more keys ... {written_path(keys[-PATH_END:])}"
    return written_path(keys)


def written_path(path: Iterable[object]) -> str:
    """A path of names and indices as it is written in code: ``blocks[0].kernel``."""
    text = ""
    for key in path:
        if isinstance(key, str) and key.isidentifier():
            text += f".{key}" if text else key
        else:
            text += f"[{key!r}]"
    return text or "()"


_IN_BRACKETS = re.compile(r"""\[(["']?)(.*?)\1\]""")


def dotted(text: str) -> str:
    """The text of a path with dots only, ``blocks.0.kernel``, from one that is written as in code."""
    return _IN_BRACKETS.sub(r".\2", text).removeprefix(".")


def note_part(error: Exception, part: str) -> None:
    """Adds the part of a model that failed to an error, in place of a shorter path."""
    if isinstance(error, DeclaxError):
        error.part = part
        error.args = (_format_message(error),)
        return
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(_IN_PART)]
    error.__notes__ = [*notes, f"{_IN_PART}{part}"]


_IN_PART = "raised in "


def note_path(error: BaseException, function: str, path: Iterable[object]) -> None:
    """Adds the path in the graph or State to the error of a user's function."""
    error.add_note(f"raised by {function}, at {format_path(path)}")
