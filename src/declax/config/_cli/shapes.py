"""``declax check`` of shapes: of the classes in Python files, and of configured models."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Final

import jax

from declax._classes.pytree import Pytree
from declax.config._cli.arguments import load_module
from declax.config._cli.output import Output
from declax.config._cli.runs import ReadRun
from declax.config._data import SpecData
from declax.config._files.documents import HasPlaces
from declax.config._reading.parameters import target_name
from declax.config.problems import Path
from declax.config.specs import Spec, shapes_of
from declax.errors import type_name
from declax.shapes.annotations import annotated_methods
from declax.shapes.checking import check_shapes, report_of_module
from declax.shapes.report import Finding, ShapeReport

EXAMPLES: Final = "example_inputs"


def check_files(words: Sequence[str], output: Output, *, strict: bool) -> None:
    """Checks the declared classes with annotated calls in some files."""
    for word in words:
        with output.catching():
            _show(report_of_module(load_module(word), strict=strict), output, {"file": word})


def check_spec(run: ReadRun, inputs: Sequence[str], output: Output, *, strict: bool) -> None:
    """Checks the models that a spec builds, if their calls have shapes; says where the sizes were set.

    Without inputs, those of ``example_inputs()`` of the class are taken.
    """
    spec = run.spec
    parts = list(_parts_of(spec, ()))
    is_model = isinstance(spec.target, type) and issubclass(spec.target, Pytree)
    models = [spec] if is_model or inputs else [part for _, part in parts if isinstance(part, Spec)]
    for model in models:
        given = inputs or example_inputs(model)
        if given or any(
            isinstance(p.target, type) and any(annotated_methods(p.target)) for _, p in _parts_of(model, ())
        ):
            report = check_shapes(model, *given, strict=strict)
            _show(report, output, {"run": run.name}, lambda finding: _places(finding, parts, run.configuration))
        if not is_model and given:
            return  # parts of this model were checked with it


def example_inputs(spec: Spec[Any]) -> list[str]:
    """The types of the inputs that the class of a spec, or the model that it builds, gives as examples.

    ``example_inputs`` is a method, also of the class; it returns one input or a tuple: arrays, `jax.ShapeDtypeStruct`,
    or texts such as ``"int32[8, 16]"``.
    """
    target = spec.target
    if not isinstance(target, type) or not hasattr(target, EXAMPLES):
        return []
    is_of_class = isinstance(inspect.getattr_static(target, EXAMPLES), (classmethod, staticmethod))
    found = getattr(target if is_of_class else shapes_of(spec), EXAMPLES)()
    return [_input_text(one) for one in (found if isinstance(found, (tuple, list)) else (found,))]


def _input_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    array = jax.eval_shape(lambda: value) if not hasattr(value, "dtype") else value
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _show(report: ShapeReport, output: Output, data: dict[str, Any], places: Any = lambda finding: ()) -> None:
    """Prints a report."""
    for line in report.checked:
        output.add("", str(line), {**data, **dataclasses.asdict(line)})
    for finding in report.findings:
        found = list(places(finding))
        lines = [str(finding), *(f"  {'set in:':<10}{place}" for place in found)]
        output.wrong(
            "\n".join(lines),
            {**data, "finding": dataclasses.asdict(finding), "set": found},
            is_wrong=finding in report.errors,
        )


def _parts_of(value: Any, path: Path) -> Iterable[tuple[Path, SpecData]]:
    if isinstance(value, SpecData):
        yield path, value
        items: Any = value.arguments.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        items = value.items() if isinstance(value, dict) else ()
    for key, item in items:
        yield from _parts_of(item, (*path, key))


def _places(finding: Finding, parts: Iterable[tuple[Path, SpecData]], places: HasPlaces) -> Iterable[str]:
    """Where the integers of the class that a finding is about were set."""
    for path, part in parts:
        if isinstance(part.target, type) and finding.target.startswith(f"{type_name(part.target)}."):
            for name, value in part.arguments.items():
                if type(value) is int:
                    yield f"{places.place_of((*path, name))}: {target_name(part.target)}.{name} = {value}"
