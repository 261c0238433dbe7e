"""What is checked of a class, a Spec, a model or a function: one subject for each call."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from fractions import Fraction
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

import jax

from declax._classes.declared_variables import WITHOUT_VALUES
from declax._classes.pytree import Pytree
from declax._graph.abstract import as_abstract
from declax._graph.api import split
from declax._graph.nodes import walk_nodes
from declax._jax import is_symbolic
from declax._random.streams import Rngs
from declax._text.dimensions import FIELD, Condition, Size, Symbol, parse_condition, substitute, symbols_of
from declax._typing import INFO_KEY, Path
from declax.errors import DeclaxError, FieldError, ShapeError, describe, type_name
from declax.nn.stacking import Stacked
from declax.shapes.annotations import (
    Annotated,
    ArrayOf,
    Pattern,
    annotated,
    annotated_methods,
    axes_in,
    input_of,
)
from declax.shapes.calls import size_of_field
from declax.shapes.domains import Domain
from declax.shapes.evaluation import Called, Subject
from declax.shapes.fields import Fields, fields_of, instance_of
from declax.shapes.inputs import choices_for, chosen, made, names_of, value_without_shape
from declax.shapes.places import Place
from declax.shapes.symbols import Dimension, Scopes
from declax.transforms.abstract import eval_shape

MOST_EXAMPLES: Final = 20
MOST_CONSTANT: Final = 1 << 16
Sizes = Mapping[str, Dimension]


class Unchecked(NamedTuple):
    """A method of which nothing can be said."""

    title: str
    place: Place | None
    reason: str


class Request(NamedTuple):
    """The inputs and conditions that the caller gave."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    where: tuple[Condition, ...]

    @property
    def is_given(self) -> bool:
        """Whether there are inputs."""
        return bool(self.args or self.kwargs)

    def patterns(self) -> list[ArrayOf]:
        """The arrays that texts describe."""
        leaves = jax.tree.leaves((self.args, dict(self.kwargs)), is_leaf=_is_leaf)
        return [input_of(leaf, "check_shapes") for leaf in leaves if isinstance(leaf, str)]

    def values(self, sizes: Sizes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with abstract arrays in place of texts and of arrays."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, str):
                return made(input_of(leaf, "check_shapes"), sizes)
            return as_abstract(leaf) if isinstance(leaf, (Pytree, jax.Array)) else leaf

        found: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree.map(
            value, (self.args, dict(self.kwargs)), is_leaf=_is_leaf
        )
        return found


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, (str, Pytree))


# --- models -------------------------------------------------------------------------


class Model:
    """A model whose parts are checked: one that exists, or one of which some fields are sizes.

    Attributes:
      names: the keys of the fields that are sizes.
      conditions: on these.
      notes: what the report says of the fields.
      scopes: those of symbolic sizes.
    """

    def __init__(
        self,
        build: Callable[[Sizes], Any],
        names: Sequence[str] = (),
        conditions: Sequence[Condition] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """Describes a model.

        Args:
          build: makes the abstract model at sizes; None where the constructor refuses them.
          names, conditions, notes: the attributes.
        """
        self._build = build
        self._built: dict[tuple[Any, ...], tuple[list[Dimension], Any]] = {}
        self.names: list[str] = list(names)
        self.conditions: list[Condition] = list(conditions)
        self.notes: tuple[str, ...] = tuple(notes)
        self.scopes: Scopes = Scopes()

    def build(self, sizes: Sizes) -> Any:
        """The abstract model at sizes, made once for all of its parts; None where the constructor refuses them."""
        given = [sizes[name] for name in self.names]
        key = tuple(id(size) if is_symbolic(size) else size for size in given)  # equal symbols are of several scopes
        if key not in self._built:
            self._built[key] = given, self._build(sizes)  # which keeps the symbols alive, and so their ids
        return self._built[key][1]

    def fields_of_part(self, path: Path, keys: Iterable[str]) -> dict[str, Size]:
        """The fields of a part, made of the names of the whole; those are left out of which this is not known."""
        try:
            symbols = self.scopes.of(Domain(self.names, self.conditions))
            part = _part(self.build(symbols.sizes), path)
        except Exception:  # noqa: BLE001  # of the class of a user, which may need numbers
            return {}
        values = {key: size_of_field(part, key.removeprefix(FIELD)) for key in keys if _is_field(key)}
        return {key: symbols.written(value) for key, value in values.items() if value is not None}

    def example(self) -> Any:
        """The model at the first numbers that its constructor takes."""
        error: Exception | None = None
        for values in itertools.islice(Domain(self.names, self.conditions).samples((2, 4, 8)), MOST_EXAMPLES):
            try:
                found = self.build(values)
            except Exception as refused:  # noqa: BLE001  # of the class of a user
                error = error or refused
            else:
                if found is not None:
                    return found
        reason = "no sizes satisfy the conditions of its fields" if error is None else str(error).splitlines()[0]
        raise ShapeError("check_shapes", f"no object is made: {reason}")


def model_of(target: Any) -> Model:
    """A model that exists; only its shapes are used."""
    abstract = as_abstract(target)
    return Model(lambda sizes: abstract)


def model_of_spec(spec: Any) -> Model:
    """The model that a Spec builds."""
    abstract = eval_shape(lambda: spec.build(rngs=Rngs(0)))
    return Model(lambda sizes: abstract)


def models_of_class(cls: Any, request: Request) -> list[Model]:
    """The models of a class: one for each combination of the values of its fields with few."""
    named = {key.removeprefix(FIELD).partition(".")[0] for key in _named_fields(cls, request) if key.startswith(FIELD)}
    fields = fields_of(cls, named)
    return [_model_of_fields(cls, fields, values) for values in fields.combinations()]


def usual_model_of_class(cls: Any) -> Model:
    """The model of a class whose fields with few values have their defaults, or their first ones."""
    fields = fields_of(cls, ())
    defaults = {name for name, field in cls.__dataclass_fields__.items() if field.default is not MISSING}
    return _model_of_fields(cls, fields, {name: c[0] for name, c in fields.choices.items() if name not in defaults})


def _model_of_fields(cls: Any, fields: Fields, values: Mapping[str, Any]) -> Model:
    def build(sizes: Sizes) -> Any:
        given = {key.removeprefix(FIELD): sizes[key] for key in fields.symbols}
        token = WITHOUT_VALUES.set(True)
        try:
            return eval_shape(lambda: instance_of(cls, {**fields.chosen, **values, **given}))
        except ValueError as error:
            if any(map(is_symbolic, given.values())) or not _refuses(cls, error):
                raise
            return None
        finally:
            WITHOUT_VALUES.reset(token)

    defaults = [*fields.defaults, *(name for name in fields.choices if name not in values)]
    notes = [", ".join(f"{name}={value!r}" for name, value in {**values, **fields.chosen}.items())]
    notes.append(f"defaults of {', '.join(defaults)}" if defaults else "")
    of_fields = [c for c in conditions_of_class(cls) if set(fields.symbols).issuperset(c.symbols())]
    return Model(build, fields.symbols, [*fields.conditions, *of_fields], tuple(filter(None, notes)))


def _refuses(cls: type, error: ValueError) -> bool:
    """Whether the class itself refuses its arguments: by a note of a field, or in its ``__post_init__``."""
    if isinstance(error, DeclaxError):
        return error.where.startswith(f"{type_name(cls)}.")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_qualname.startswith(f"{cls.__qualname__}.")


def _named_fields(cls: Any, request: Request) -> Iterator[str]:
    for pattern in request.patterns():
        yield from names_of(pattern)
    for condition in (*request.where, *conditions_of_class(cls)):
        yield from condition.symbols()
    for _, found in annotated_methods(cls):
        for annotation in (*(p.pattern for p in found.parameters.values()), found.result):
            for axis in axes_in(annotation):
                yield from symbols_of(axis.size or 0)


# --- subjects -----------------------------------------------------------------------


def subjects_of_model(model: Model, request: Request, method: str) -> Iterator[Subject | Unchecked]:
    """The calls of a model and of its parts, each class with its sizes once; the whole first."""
    root = model.example()
    constants, classes = constants_of(root), tuple({type(node) for _, node in walk_nodes(root)})
    for found in _calls_of_model(model, root, request, method):
        if isinstance(found, Unchecked):
            yield found
        else:
            yield found._replace(constants=constants, scopes=model.scopes, classes=classes)


def _calls_of_model(model: Model, root: Any, request: Request, method: str) -> Iterator[Subject | Unchecked]:
    if request.is_given:
        yield _subject_of_inputs(model, root, request, method)
    for path in _different_parts(model, root):
        node = _part(root, path)
        for name, found in annotated_methods(type(node)):
            if path or not (request.is_given and name == method):
                yield from _subjects_of_method(model, path, node, name, found, request)


def _different_parts(model: Model, root: Any) -> list[Path]:
    """The paths of the parts with annotated methods; of equal parts the first, which fewer blocks have too.

    A part that is another one at a multiple of a field is left out: what is proven of ``Block(dim)`` for all `dim` is
    proven of ``Block(2 * dim)``.
    """
    first: dict[Any, Path] = {}
    for path, node in walk_nodes(root):
        if any(annotated_methods(type(node))):
            first.setdefault(_signature(_part(root, path)), path)
    shapes = {path: _shapes_of(_part(root, path)) for path in reversed(first.values())}
    sizes = model.scopes.of(Domain(model.names, model.conditions)).sizes
    free = [name for name in model.names if all(name not in condition.symbols() for condition in model.conditions)]
    scaled = functools.cache(lambda name, factor: {**sizes, name: factor * sizes[name]})

    def signature(path: Path, name: str, factor: int) -> Any:
        try:
            return _signature(_part(model.build(scaled(name, factor)), path))
        except Exception:  # noqa: BLE001  # of the class of a user, which may need numbers
            return None

    def is_multiple(path: Path, other: Path) -> bool:
        factor = _factor(shapes[path], shapes[other])
        if factor is None:
            return False
        pairs = ((signature(path, name, 1), signature(other, name, factor)) for name in free)
        return any(one is not None and one == two for one, two in pairs)

    return [path for path in shapes if not any(is_multiple(path, other) for other in shapes)]


def _shapes_of(part: Any) -> tuple[type, list[tuple[int, ...]]]:
    return type(part), [leaf.shape for leaf in jax.tree.leaves(part) if hasattr(leaf, "shape")]


def _factor(part: tuple[type, list[tuple[int, ...]]], other: tuple[type, list[tuple[int, ...]]]) -> int | None:
    """The number by which some sizes of one part are those of another one, if this is one number above 1."""
    ranks = [(cls, *map(len, shapes)) for cls, shapes in (part, other)]
    if ranks[0] != ranks[1]:
        return None
    pairs = zip(itertools.chain(*part[1]), itertools.chain(*other[1]), strict=True)
    ratios = {Fraction(*pair) for pair in pairs if 0 not in pair} - {1}
    factor = ratios.pop() if len(ratios) == 1 else Fraction(1)
    return int(factor) if factor.denominator == 1 and factor > 1 else None


def _signature(node: Any) -> Any:
    """What equal parts share: the class, what is static, and the shapes."""
    graphdef, state = split(node)
    return graphdef, tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(state) if hasattr(leaf, "shape"))


def _child(node: Any, key: Any) -> Any:
    """The value under a key; one of the layers of a `Stacked`, whose arrays have an axis for all of them."""
    if isinstance(node, Stacked) and key == "layers":
        return eval_shape(lambda stacked: stacked[0], node)
    return node[key] if isinstance(node, (list, tuple, dict)) or not isinstance(key, str) else getattr(node, key)


def _part(root: Any, path: Path) -> Any:
    return functools.reduce(_child, path, root)


def _subject_of_inputs(model: Model, root: Any, request: Request, method: str) -> Subject:
    """The whole, called with the inputs of the caller."""
    cls = type(root)
    title = f"{type_name(cls)}.{method}"
    if not callable(getattr(root, method, None)):
        raise FieldError(title, "there is no such method to check")
    found = dict(annotated_methods(cls)).get(method)
    translated = _translation(found, request)
    conditions = [_with(c, translated) for c in conditions_of_class(cls)]
    names = dict.fromkeys(key for pattern in request.patterns() for key in names_of(pattern))
    fields = _known_fields(root, model, [*names, *_keys([*conditions, *request.where])])
    domain = _domain(model, [*names], [*conditions, *request.where], fields)

    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(model, method)(*args, **kwargs)

    def called(sizes: Sizes) -> Called | None:
        args, kwargs = request.values({**fields, **sizes})
        built = model.build(sizes)
        return None if built is None else Called(call, (built, *args), kwargs)

    notes = (*model.notes, *_unread(found))
    return Subject(
        title,
        _place_of(cls, method),
        domain,
        called,
        _inner_conditions(cls),
        notes=notes,
        sizes=sizes_in(root, model),
        owner=cls,
    )


def _translation(found: Annotated | None, request: Request) -> dict[str, Size]:
    """The sizes that the caller's inputs give to the names of annotations."""
    sizes: dict[str, Size] = {}
    parameters = list(found.parameters.values()) if found is not None else []
    given = [*zip(parameters, request.args, strict=False)]
    given += [(p, request.kwargs[p.name]) for p in parameters if p.name in request.kwargs]
    for parameter, value in given:
        pattern = parameter.pattern
        if isinstance(pattern, ArrayOf) and isinstance(value, str):
            axes = input_of(value, "check_shapes").axes
            if len(axes) == len(pattern.axes) and all(axis.rest is None for axis in pattern.axes):
                for axis, other in zip(pattern.axes, axes, strict=True):
                    if isinstance(axis.size, Symbol) and other.size is not None:
                        sizes.setdefault(axis.size.key, other.size)
    return {key: size for key, size in sizes.items() if not key.startswith(FIELD)}


def _subjects_of_method(
    model: Model,
    path: Path,
    node: Any,
    name: str,
    found: Annotated,
    request: Request,
) -> Iterator[Subject | Unchecked]:
    """The calls of one annotated method, for each choice that its annotations leave open."""
    cls = type(node)
    title = f"{type_name(cls)}.{name}"
    place = _place_of(cls, name)
    sizes = sizes_in(node, model)
    patterns = {p.name: p.pattern for p in found.parameters.values()}
    if all(pattern is None for pattern in patterns.values()) and found.unread:
        yield Unchecked(title, place, "; ".join(found.unread))
        return
    try:
        others = _others(found)
    except ShapeError as error:
        yield Unchecked(title, place, error.problem)
        return
    for given in _arguments(found):
        keys = [key for pattern in given.values() for key in names_of(pattern)]
        conditions = [*conditions_of_class(cls), *(() if path else request.where)]
        conditions = [c for c in conditions if all(key in keys or key.startswith(FIELD) for key in c.symbols())]
        fields = _known_fields(node, model, [*keys, *_keys(conditions)], is_root=not path)
        if path and model.names:
            of_root = model.fields_of_part(path, _keys(conditions))
            conditions = [
                _with(c, of_root) for c in conditions if all(k in of_root for k in c.symbols() if _is_field(k))
            ]
        domain = _domain(model, keys, conditions, {} if path and model.names else fields, fields)
        called = functools.partial(_called_method, model, path, name, given, others, fields)
        notes = (*model.notes, *_unread(found))
        yield Subject(title, place, domain, called, _inner_conditions(cls), notes=notes, sizes=sizes, owner=cls)


def _others(found: Annotated) -> dict[str, Any]:
    """The arguments of the required parameters whose annotations have no shapes."""
    annotations = found.function.__annotations__
    parameters = [p for p in found.parameters.values() if p.pattern is None and p.is_required]
    return {p.name: value_without_shape(p, annotations.get(p.name)) for p in parameters}


def _arguments(found: Annotated) -> Iterator[dict[str, Pattern]]:
    """The chosen patterns of the parameters, for each choice that annotations leave open."""
    patterns = {p.name: p.pattern for p in found.parameters.values() if p.pattern is not None}
    for choice in choices_for(patterns.values()):
        numbers = itertools.count(1)
        yield {key: chosen(pattern, choice, numbers) for key, pattern in patterns.items()}


def _called_method(
    model: Model,
    path: Path,
    name: str,
    given: Mapping[str, Pattern],
    others: Mapping[str, Any],
    fields: Mapping[str, Dimension],
    sizes: Sizes,
) -> Called | None:
    built = model.build(sizes)
    if built is None:
        return None
    try:
        node = _part(built, path)
    except (AttributeError, IndexError, KeyError):  # a model of this size has no such part
        return None
    if not isinstance(node, Pytree):  # nor one of these sizes, as of `dx.when`
        return None
    current = {key: size_of_field(node, key.removeprefix(FIELD)) for key in fields}
    known = {key: value for key, value in current.items() if value is not None}
    arguments = {key: made(pattern, {**sizes, **known}) for key, pattern in given.items()}
    keywords = {key: value for key, value in {**others, **arguments}.items() if value is not None}

    def function(model: Any, **arguments: Any) -> Any:
        return getattr(model, name)(**arguments)

    return Called(function, (node,), keywords)


def sizes_in(node: Any, model: Model) -> dict[str, int]:
    """The integers of an object, which conditions may be stated by; not those that are symbols."""
    names = vars(node) if not model.names else ()
    return {name: value for name in names if type(value := vars(node)[name]) is int and value > 1}


def _domain(
    model: Model,
    keys: Iterable[str],
    conditions: Sequence[Condition],
    fields: Mapping[str, Dimension],
    known: Collection[str] = (),
) -> Domain:
    """The names and conditions of a call; fields that are numbers stand for these, and `known` ones are no names."""
    numbers = {key: value for key, value in fields.items() if isinstance(value, int) and key not in model.names}
    free = [key for key in keys if key not in fields and key not in known and key not in model.names]
    return Domain(
        [*free, *model.names],
        [*model.conditions, *(_with(c, numbers) for c in conditions if c not in model.conditions)],
    )


def _known_fields(node: Any, model: Model, keys: Iterable[str], *, is_root: bool = True) -> dict[str, Dimension]:
    """The values of the fields among some keys."""
    found: dict[str, Dimension] = {}
    for key in dict.fromkeys(keys):
        if key.startswith(FIELD) and not (is_root and key in model.names):
            value = size_of_field(node, key.removeprefix(FIELD))
            if value is None:
                raise FieldError(
                    f"{type_name(type(node))}.{key.removeprefix(FIELD)}",
                    "an annotation or condition uses this as a size, and it is none",
                    expected="an integer",
                    got=describe(getattr(node, key.removeprefix(FIELD).partition(".")[0], None)),
                )
            found[key] = value
    return found


def _with(condition: Condition, sizes: Mapping[str, Size]) -> Condition:
    left, right = (substitute(side, sizes) for side in (condition.left, condition.right))
    return Condition(left, condition.sign, right, condition.text)


def _is_field(key: str) -> bool:
    return key.startswith(FIELD)


def _keys(conditions: Iterable[Condition]) -> list[str]:
    return [key for condition in conditions for key in condition.symbols()]


def conditions_of_class(cls: Any) -> list[Condition]:
    """The conditions of a class and its bases, from ``@dx.dataclass(where=...)``."""
    infos = [base.__dict__.get(INFO_KEY) for base in reversed(cls.__mro__)]
    texts = [text for info in infos for text in getattr(info, "where", ())]
    return [c for text in dict.fromkeys(texts) for c in parse_condition(text, type_name(cls))]


def _inner_conditions(root: type) -> Callable[[type], Sequence[Condition]]:
    """The conditions of the classes that a method calls; those of its own class are assumed."""
    known = functools.cache(conditions_of_class)
    return lambda cls: () if cls is root else known(cls)


def _unread(found: Annotated | None) -> tuple[str, ...]:
    return () if found is None else tuple(f"unread annotation of {text}" for text in found.unread)


def _place_of(cls: type, method: str) -> Place | None:
    owner = next((base for base in cls.__mro__ if method in vars(base)), cls)
    function = vars(owner).get(method)
    return place_of_function(function) if isinstance(function, FunctionType) else None


def place_of_function(function: Any) -> Place | None:
    """Where a function is defined."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else Place(code.co_filename, code.co_firstlineno, None, code.co_qualname)


# --- functions ----------------------------------------------------------------------


def subjects_of_function(function: Any, request: Request) -> Iterator[Subject | Unchecked]:
    """The calls of a function: with the inputs of the caller, or as its annotations say."""
    found = annotated(function, None)
    title = getattr(function, "__name__", type(function).__name__)
    place = place_of_function(function)
    constants = tuple(sorted(set(_constants_in(function))))
    if request.is_given:
        keys = [key for pattern in request.patterns() for key in names_of(pattern)]
        domain = Domain(keys, request.where)

        def called(sizes: Sizes) -> Called:
            args, kwargs = request.values(sizes)
            return Called(function, args, kwargs, found)

        yield Subject(title, place, domain, called, conditions_of_class, constants, _unread(found))
        return
    if found is None or all(p.pattern is None for p in found.parameters.values()):
        reason = "" if found is None else "; ".join(found.unread)
        yield Unchecked(title, place, reason or "its annotations have no shapes, and no inputs are given")
        return
    try:
        others = _others(found)
    except ShapeError as error:
        yield Unchecked(title, place, error.problem)
        return
    for given in _arguments(found):
        keys = [key for pattern in given.values() for key in names_of(pattern)]

        def called_as_annotated(sizes: Sizes, given: Mapping[str, Pattern] = given) -> Called:
            arguments = {key: made(pattern, sizes) for key, pattern in given.items()}
            return Called(function, (), {k: v for k, v in {**others, **arguments}.items() if v is not None}, found)

        domain = Domain(keys, request.where)
        yield Subject(title, place, domain, called_as_annotated, conditions_of_class, constants, _unread(found))


# --- integers of the code -----------------------------------------------------------


def constants_of(root: Any) -> tuple[int, ...]:
    """The integers in the methods of the user's classes in a model."""
    classes = {base for _, node in walk_nodes(root) for base in type(node).__mro__}
    own = [cls for cls in classes if not cls.__module__.startswith(("declax.", "builtins"))]
    return tuple(sorted({n for cls in own for value in vars(cls).values() for n in _constants_in(value)}))


def _constants_in(function: Any) -> Iterator[int]:
    code = getattr(function, "__code__", None)
    waiting: list[CodeType] = [] if code is None else [code]
    inner = getattr(function, "__wrapped__", None)
    if inner is not None:
        yield from _constants_in(inner)
    while waiting:
        for value in waiting.pop().co_consts:
            if isinstance(value, CodeType):
                waiting.append(value)
            elif type(value) is int and 1 < value <= MOST_CONSTANT:
                yield value
            elif isinstance(value, (tuple, frozenset)):
                yield from (item for item in value if type(item) is int and 1 < item <= MOST_CONSTANT)
