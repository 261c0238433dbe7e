"""One evaluation of a call, with symbols or with numbers: nothing is computed, and nothing changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

import jax

from declax._displays.calls import parted
from declax._graph.nodes import walk_nodes
from declax._text.dimensions import Condition, Size, text_of
from declax.errors import DeclaxError
from declax.shapes.annotations import Annotated
from declax.shapes.calls import Bindings, Watch
from declax.shapes.comparisons import ASKED, watching_comparisons
from declax.shapes.domains import Domain
from declax.shapes.equations import Reading
from declax.shapes.places import Place, is_of_user, place_of_error, place_of_frame, place_of_text
from declax.shapes.problems import Kind, Problem, candidates_of
from declax.shapes.symbols import Dimension, Scopes, Symbols
from declax.transforms.abstract import make_jaxpr


class Called(NamedTuple):
    """A call that is evaluated.

    Attributes:
      function: the function.
      args, kwargs: its arguments: models, abstract or not, `jax.ShapeDtypeStruct`, and others.
      annotated: what its annotations say, if it is no method.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    annotated: Annotated | None = None


class Subject(NamedTuple):
    """What is checked.

    Attributes:
      title: ``Class.method``, or the name of a function.
      place: where it is defined.
      domain: the names of sizes, with conditions.
      called: the call, at sizes of the names; None at numbers that the constructor refuses.
      conditions: those of the methods of a class, on free names and fields.
      constants: integers of the user's code, at which sizes are tried.
      notes: what the report says besides: annotations that are not read, fields with their defaults.
      sizes: integers of the object by attribute, by which conditions may be stated.
      owner: the class of the object; None for a function.
      scopes: those of symbolic sizes; the parts of a model share them.
      classes: those of the whole model, whose methods are watched.
    """

    title: str
    place: Place | None
    domain: Domain
    called: Callable[[Mapping[str, Dimension]], Called | None]
    conditions: Callable[[type], Sequence[Condition]] = lambda cls: ()
    constants: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    sizes: Mapping[str, int] = {}
    owner: type | None = None
    scopes: Scopes | None = None
    classes: tuple[type, ...] = ()


class Outcome(NamedTuple):
    """What an evaluation found.

    Attributes:
      shapes: those of the arrays of the result; None if the call failed.
      problems: in order; none if everything is fine.
      warnings: chance broadcasts.
      indices: places at which the values of arguments are indices.
      is_refused: whether the constructor refuses the numbers.
      empty: conditions under which an array has no elements.
    """

    shapes: tuple[tuple[Dimension, ...], ...] | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()
    indices: tuple[Place | None, ...] = ()
    is_refused: bool = False
    empty: tuple[Condition, ...] = ()


def evaluate_symbols(subject: Subject, symbols: Symbols) -> Outcome:
    """Evaluates a call with symbolic sizes."""
    compared: list[Problem] = []

    def note(left: Any, right: Any, frame: FrameType) -> None:
        one = symbols.written(left)
        if right is None:
            text = f"{text_of(one)} is looked up, and JAX never finds it; use a tuple in place of a set or dict"
            compared.append(Problem(Kind.COMPARISON, place_of_frame(frame), text))
            return
        other = symbols.written(right)
        splits = tuple(Condition.of(one, sign, other) for sign in ("==", "<", ">"))
        text = f"{splits[0].text} is not decided, and JAX answers False"
        compared.append(Problem(Kind.COMPARISON, place_of_frame(frame), text, splits=splits, sizes=(one, other)))

    with watching_comparisons(note, is_of_user):
        found = _evaluated(subject, symbols.sizes, symbols.written, symbols)
    return found._replace(problems=(*dict.fromkeys(compared), *found.problems))


def evaluate_numbers(subject: Subject, values: Mapping[str, int]) -> Outcome:
    """Evaluates a call with numbers."""
    return _evaluated(subject, values, int, None)


def _evaluated(
    subject: Subject, sizes: Mapping[str, Dimension], written: Callable[[Dimension], Size], symbols: Symbols | None
) -> Outcome:
    watch = Watch(written, subject.conditions)
    try:
        called = subject.called(sizes)
        if called is None:
            return Outcome(None, (), is_refused=True)
        with watch.over((*subject.classes, *_classes(called))):
            jaxpr, shapes, count = _traced(called, watch, subject.title)
        reading = Reading(written)
        reading.read(jaxpr, count)
    except Exception as error:  # noqa: BLE001  # of the user's code, or of JAX
        problem = _problem_of(error, symbols, subject.owner)
        return Outcome(None, (*watch.problems, problem))
    return Outcome(
        shapes,
        (*watch.problems, *reading.problems),
        tuple(reading.warnings),
        tuple(reading.indices),
        empty=tuple(reading.empty),
    )


def _traced(called: Called, watch: Watch, title: str) -> tuple[Any, tuple[tuple[Dimension, ...], ...], int]:
    """The jaxpr of a call, the shapes of its result, and the number of arrays among its arguments."""
    data, rest = parted((called.args, called.kwargs))
    function = called.function  # a cell of `run`, in which models are looked for
    shapes: list[tuple[Dimension, ...]] = []

    def run(data: dict[str, Any]) -> list[Any]:
        args, kwargs = rest.joined(data)
        found = called.annotated
        bindings = Bindings(lambda path: None)
        if found is not None:
            named = dict(zip(found.parameters, args, strict=False)) | kwargs
            watch.check_arguments(title, found, bindings, named)
        result = function(*args, **kwargs)
        if found is not None:
            watch.check_result(title, found, bindings, result)
        leaves = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
        shapes[:] = [tuple(leaf.shape) for leaf in leaves]
        return leaves

    jaxpr = make_jaxpr(run, graph=True)(data)
    count = sum(isinstance(value, jax.ShapeDtypeStruct) for value in data.values())
    return jaxpr, tuple(shapes), count


def _classes(called: Called) -> Iterator[type]:
    cells = [] if (closure := getattr(called.function, "__closure__", None)) is None else closure
    for value in (*called.args, *called.kwargs.values(), *(cell.cell_contents for cell in cells)):
        for _, node in walk_nodes(value):
            yield type(node)


# --- errors -------------------------------------------------------------------------

_COMPARISON: Final = re.compile(r"comparison '(.+?)' (<=|>=|<|>) '(.+?)' is inconclusive")
_STOPS: Final = ("_DimExpr", "Symbolic dimension", "symbolic dimension")


def _problem_of(error: Exception, symbols: Symbols | None, owner: type | None) -> Problem:
    """The problem that an exception is."""
    place, text = place_of_error(error), _message(error)
    if place is None and owner is not None and isinstance(error, DeclaxError):  # of a part that the class body declares
        place = place_of_text(owner, f"{error.where.partition('.')[0]}(")
    expected, got = (error.expected, error.got) if isinstance(error, DeclaxError) else (None, None)
    if symbols is None:
        return Problem(Kind.ERROR, place, text, expected, got)
    found = _COMPARISON.search(str(error))
    if found is not None:
        left, right = (symbols.read_text(side) for side in (found[1], found[3]))
        opposite = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}[found[2]]
        splits = tuple(Condition.of(left, sign, right).simplified() for sign in (found[2], opposite))
        is_branch = getattr(error, ASKED, True)
        text = f"{splits[0].text} is not decided"
        return Problem(
            Kind.COMPARISON, place, text, splits=splits, candidates=splits, is_branch=is_branch, sizes=(left, right)
        )
    if any(mark in str(error) for mark in _STOPS):
        return Problem(Kind.STOP, place, symbols.message(text))
    expected, got = (None if part is None else symbols.message(part) for part in (expected, got))
    sizes = tuple(symbols.sizes_in(str(error)))
    return Problem(
        Kind.ERROR, place, symbols.message(text), expected, got, candidates=candidates_of(sizes), sizes=sizes
    )


def _message(error: Exception) -> str:
    if isinstance(error, DeclaxError):
        return f"{error.where}: {error.problem}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
