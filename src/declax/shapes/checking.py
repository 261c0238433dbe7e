"""`check_shapes`: the calls of a target, proven one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from declax._classes.pytree import Pytree
from declax._text.dimensions import parse_condition
from declax.errors import DeclaxError, FieldError, ShapeError, describe, type_name
from declax.shapes.annotations import annotated_methods
from declax.shapes.domains import Domain
from declax.shapes.evaluation import Subject
from declax.shapes.inputs import names_of
from declax.shapes.places import place_of_text
from declax.shapes.proving import Proof, prove
from declax.shapes.report import Checked, Finding, ShapeReport, checked_of, findings_of
from declax.shapes.symbols import Symbols
from declax.shapes.targets import (
    Request,
    Unchecked,
    model_of,
    model_of_spec,
    models_of_class,
    subjects_of_function,
    subjects_of_model,
)


def check_shapes(
    target: Any,
    /,
    *inputs: Any,
    where: Sequence[str] | str = (),
    strict: bool = False,
    method: str = "__call__",
    **named_inputs: Any,
) -> ShapeReport:
    """Proves the shapes of a model for every size, or finds a size at which it fails.

    The model is evaluated with symbols in place of sizes; nothing is computed or allocated. The page "Shapes that hold
    for every size" says what a proof means.

    Args:
      target: a class, whose fields become symbols; a Spec; a model; or a function.
      *inputs, **named_inputs: the arguments of the call: texts such as ``"int32[b, n]"`` are arrays with these sizes,
        others are passed as they are. Without inputs, the annotations of the method say the shapes.
      where: conditions on the sizes, such as ``"n <= 1024"``.
      strict: whether warnings are errors.
      method: the method to call with the inputs.

    Returns:
      A line for each annotated method of the model and its parts, with one of four verdicts, and the findings.

    Raises:
      FieldError: an input or a condition cannot be read, or the target is none.
      ShapeError: no sizes satisfy the conditions.

    >>> import declax as dx
    >>> model = dx.Sequential(dx.Linear(8, 4, rngs=dx.Rngs(0)), dx.relu)
    >>> print(dx.check_shapes(model, "float32[b, n, 8]"))
    Sequential.__call__: proven for all b, n ≥ 1
    >>> report = dx.check_shapes(lambda x: x.reshape(x.shape[0], x.shape[1] // 2, 16), "float32[b, n, 8]")
    >>> report.findings[0].condition
    'n % 2 == 0'
    """
    request = _request(inputs, named_inputs, where)
    request.patterns()  # raises for inputs that cannot be read
    lines: list[Checked] = []
    findings: list[Finding] = []
    for title, group in _grouped(subjects_of(target, request, method)):
        proofs: list[tuple[Subject, Proof]] = []
        for subject in group:
            if isinstance(subject, Unchecked):
                place = subject.place
                lines.append(Checked(title, "tested only", f"in no size: {subject.reason}"))
                at = (None, None, None) if place is None else (place.file, place.line, place.column)
                findings.append(Finding(title, "note", subject.reason, *at))
                continue
            _check_conditions(subject, target)
            proofs.append((subject, prove(subject)))
        if proofs:
            lines.append(checked_of(title, proofs))
            findings += [finding for subject, proof in proofs for finding in findings_of(subject, proof)]
    return ShapeReport(lines, [*findings, *_notices(target)], strict=strict)


def abstract_inputs(inputs: tuple[Any, ...], where: Sequence[str] | str = ()) -> tuple[Any, ...]:
    """Inputs with abstract arrays of symbolic sizes in place of texts."""
    request = _request(inputs, {}, where)
    keys = [key for pattern in request.patterns() for key in names_of(pattern)]
    args, _ = request.values(Symbols(Domain(keys, request.where)).sizes)
    return args


def _request(inputs: tuple[Any, ...], named_inputs: dict[str, Any], where: Sequence[str] | str) -> Request:
    texts = (where,) if isinstance(where, str) else tuple(where)
    conditions = tuple(c for text in texts for c in parse_condition(text, "check_shapes, where"))
    return Request(inputs, named_inputs, conditions)


def report_of_module(module: ModuleType, *, strict: bool = False) -> ShapeReport:
    """The report of all declared classes of a module whose calls have shapes in their annotations."""
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Pytree)]
    own = [cls for cls in dict.fromkeys(classes) if cls.__module__ == module.__name__]
    checked = [cls for cls in own if "__dataclass_fields__" in vars(cls) and any(annotated_methods(cls))]
    reports = [_report_of_class(cls, strict=strict) for cls in checked]
    lines = dict.fromkeys(line for report in reports for line in report.checked)
    return ShapeReport(lines, [finding for report in reports for finding in report.findings], strict=strict)


def _report_of_class(cls: type, *, strict: bool) -> ShapeReport:
    """The report of a class; what stops its check is an error of it, and not of others."""
    try:
        return check_shapes(cls, strict=strict)
    except DeclaxError as error:
        name, place = type_name(cls), place_of_text(cls, "class ")
        message = f"{error.where}: {error.problem}" + (f", got {error.got}" if error.got else "")
        at = (None, None, None, "") if place is None else (place.file, place.line, place.column, place.source)
        finding = Finding(name, "error", message, *at)
        return ShapeReport([Checked(name, "tested only", "in no size")], [finding], strict=strict)


def subjects_of(target: Any, request: Request, method: str) -> Iterator[Subject | Unchecked]:
    """The calls of a target."""
    if isinstance(target, type) and issubclass(target, Pytree):
        try:
            for model in models_of_class(target, request):
                yield from subjects_of_model(model, request, method)
        except ShapeError as error:
            name = type_name(target)
            yield Unchecked(name, None, f"{error.problem}; check a Spec: dx.check_shapes(dx.spec({name}, ...))")
    elif isinstance(target, Pytree):
        yield from subjects_of_model(model_of(target), request, method)
    elif hasattr(target, "build") and hasattr(target, "target"):
        yield from subjects_of_model(model_of_spec(target), request, method)
    elif callable(target) and not isinstance(target, type):
        yield from subjects_of_function(target, request)
    else:
        raise FieldError(
            "check_shapes",
            "there is nothing to check",
            expected="a class of declax, a Spec, a model, or a function",
            got=describe(target),
        )


def _grouped(subjects: Iterable[Subject | Unchecked]) -> Iterator[tuple[str, list[Subject | Unchecked]]]:
    """The calls of each method, in the order of the first."""
    found: dict[str, list[Subject | Unchecked]] = {}
    for subject in subjects:
        found.setdefault(subject.title, []).append(subject)
    yield from found.items()


def _check_conditions(subject: Subject, target: Any) -> None:
    """Raises if the conditions of a call contradict each other, since anything follows from these."""
    if not subject.domain.names or next(subject.domain.samples(), None) is not None:
        return
    texts = [condition.text for condition in subject.domain.conditions]
    place = None
    if isinstance(target, type):
        place = next(filter(None, (place_of_text(target, text) for text in reversed(texts))), None)
    raise ShapeError(
        subject.title,
        "no sizes are found that satisfy its conditions",
        got=" and ".join(texts),
        why=None if place is None else f"stated at {place}",
    )


def _notices(target: Any) -> Iterator[Finding]:
    """Free names that are spelt like a field of sizes."""
    cls = target if isinstance(target, type) else type(target)
    fields = getattr(cls, "__dataclass_fields__", {})
    for name, found in annotated_methods(cls) if issubclass(cls, Pytree) else ():
        for free in found.names:
            if free in fields and fields[free].type in (int, "int"):
                message = (
                    f"{free!r} in an annotation is a free name, and not the field: write {{self.{free}}} for the field"
                )
                yield Finding(f"{type_name(cls)}.{name}", "note", message)
