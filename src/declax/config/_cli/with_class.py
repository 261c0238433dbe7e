"""The commands that read a class, and therefore load JAX."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax

from declax._classes.pytree import Pytree
from declax._displays.summarizing import Summary
from declax._displays.summarizing import summary as summary_of
from declax._graph.api import state as state_of
from declax._sharding.fully_sharded import fsdp
from declax._sharding.planning import plan as plan_of
from declax._text.arrays import shapes_text
from declax._variables.placement import sharding_rules
from declax._variables.variable import Variable
from declax.config._cli import differences
from declax.config._cli.arguments import Words
from declax.config._cli.output import Output, usage_error, write
from declax.config._cli.runs import ReadRun, read_all, read_runs
from declax.config._cli.scripts import parameter_table, rngs_of, with_seed
from declax.config._cli.shapes import check_spec, example_inputs
from declax.config._cli.sources import documents_of
from declax.config._files.documents import noting_place
from declax.config._files.json_format import format_json
from declax.config._reading.parameters import target_name
from declax.config._sources.loading import Loading
from declax.config._sources.origins import origins_of, origins_text
from declax.config.loading import config_text, to_config
from declax.config.schema import json_schema
from declax.config.specs import Spec, SpecSummary, shapes_of
from declax.errors import ConfigError, ReplicationWarning, ShardingError, describe, set_fix, suggest, with_article
from declax.training import Optimizer
from declax.transforms.abstract import eval_shape

_MEMORY: Final = "OptVariable=pinned_host"
_INPUT: Final = re.compile(r"(\w+)\[([\d,\s]*)\]")


def _runs(cls: Any, words: Words, options: argparse.Namespace) -> list[ReadRun]:
    """The runs, each with the spec of the part that the words name."""
    found = read_all(words, _loading(cls, options))
    if words.part is None:
        return found
    parts = [run._replace(spec=run.spec[words.part]) for run in found]
    for run in parts:
        if not isinstance(run.spec, Spec):
            expected = "a part that a table describes at this path"
            where = f"{target_name(cls)}.{words.part}"
            raise ConfigError(where, "not a part", expected=expected, got=describe(run.spec))
    return parts


def _loading(cls: Any, options: argparse.Namespace) -> Loading:
    return Loading(cls, migrate=getattr(options, "migrate", False), env=options.env)


def schema(cls: Any, words: Words, options: argparse.Namespace, output: Output) -> None:
    del words, output
    text = format_json(json_schema(cls))
    if options.out is None:
        write(text, "json")
    else:
        Path(options.out).write_text(text, encoding="utf-8")


def check(cls: Any, words: Words, options: argparse.Namespace, output: Output) -> None:
    found, error = read_runs(documents_of(words), words.changes, _loading(cls, options))
    for run in found:
        kind, fingerprint = target_name(run.spec.target), run.spec.fingerprint()
        title = ", ".join(filter(None, (*words.files, run.name))) or words.target
        data = {"files": list(words.files), "run": run.name, "kind": kind, "fingerprint": fingerprint}
        output.add("", f"{title}: {with_article(kind)}, fingerprint {fingerprint[:12]}", data)
        with output.catching():
            check_spec(run, options.input, output, strict=options.strict)
    if error is not None:
        raise error


def show(cls: Any, words: Words, options: argparse.Namespace, output: Output) -> None:
    if not (words.files or words.changes or words.part):
        output.add("", parameter_table(cls), json_schema(cls) if output.is_json else None)
        return
    for run in _runs(cls, words, options):
        if options.origins:
            origins = origins_of(run.configuration)
            output.add(run.name, origins_text(origins), list(map(dataclasses.asdict, origins)), "table")
        elif output.is_json:
            output.add(run.name, "", to_config(run.spec, full=options.full))
        else:
            output.add(run.name, config_text(run.spec, f".{options.format}", full=options.full), None, options.format)


def summary(cls: Any, words: Words, options: argparse.Namespace, output: Output) -> None:
    """Prints a summary of the model, the shapes of its output, and the bytes on each device of a mesh."""
    inputs = [_input(text) for text in options.input]
    mesh = None if options.mesh is None else _sizes(options.mesh)
    tx = None if options.optimizer is None else _transformation(options.optimizer)
    with sharding_rules(_rules(options.rules)), _fixed_by_rules(mesh):
        _summarize(
            cls,
            words,
            options,
            output,
            lambda spec: spec.summary(*(inputs or map(_input, example_inputs(spec))), mesh=mesh, tx=tx),
        )


def plan(cls: Any, words: Words, options: argparse.Namespace, output: Output) -> None:
    """Prints where each array of the model, and of its optimizer, is on a mesh."""
    if options.mesh is None:
        raise usage_error("plan: the mesh is missing", fix="--mesh data=64,model=4")
    mesh, rules = _sizes(options.mesh), _rules(options.rules)
    tx = None if options.optimizer is None else _transformation(options.optimizer)
    strategy = fsdp if options.strategy == "fsdp" else None
    memory = _pairs("--memory", options.memory, _MEMORY)
    for run in _runs(cls, words, options):
        spec = run.spec
        with noting_place(run.configuration) if words.part is None else contextlib.nullcontext():
            model = shapes_of(spec)
        if not jax.tree.leaves(model) and words.part is None and (parts := _parts(spec)):
            raise usage_error(f"{target_name(spec.target)} is not a model", fix=f"add the name of a part: {parts}")
        whole = model if tx is None else {"model": model, "optimizer": eval_shape(Optimizer, model, tx)}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ReplicationWarning)
            with _fixed_by_rules(mesh):
                made = plan_of(whole, mesh, strategy, rules=rules, memory=_kinds_of_memory(memory, whole, tx))
        for warning in told:
            write(str(warning.message), "", sys.stderr)
        data = {**made.to_table(), "devices": {"bytes": made.nbytes, "of": made.whole}}
        output.add(run.name, str(made), data, "table")
        if options.out is not None:
            made.write(options.out)


def build(cls: Any, words: Words, options: argparse.Namespace, output: Output) -> None:
    words = with_seed(words, cls, options.seed)

    def make(spec: Spec[Any]) -> Summary:
        made = spec.build(rngs=rngs_of(spec, options.seed))
        if not isinstance(made, Pytree) and words.part is None and (parts := _parts(spec)):
            raise usage_error(f"{target_name(spec.target)} is not a model", fix=f"add the name of a part: {parts}")
        found: Summary = summary_of(made)
        return found

    _summarize(cls, words, options, output, make)


def diff(cls: Any, words: Words, options: argparse.Namespace, output: Output) -> None:
    differences.diff(cls, words, options, output, [_input(text) for text in options.input])


def _summarize(
    cls: Any, words: Words, options: argparse.Namespace, output: Output, make: Callable[[Spec[Any]], Summary]
) -> None:
    """Prints the summary of each run; if the root has no arrays, suggests its parts."""
    for run in _runs(cls, words, options):
        spec = run.spec
        with noting_place(run.configuration) if words.part is None else contextlib.nullcontext():
            found = make(spec)
        totals = {kind: {"elements": found.count(kind), "bytes": found.nbytes(kind)} for kind in found.kinds}
        data: dict[str, Any] = {"modules": list(map(dataclasses.asdict, found.rows)), "totals": totals}
        if isinstance(found, SpecSummary) and found.output is not None:
            data["output"] = shapes_text(found.output)
        if isinstance(found, SpecSummary) and found.devices is not None:
            data["devices"] = dataclasses.asdict(found.devices)
        output.add(run.name, str(found), data, "table")
        if not found.rows and words.part is None and (parts := _parts(spec)):
            name = target_name(spec.target)
            write(f"{name} has no arrays outside its parts. Add the name of a part: {parts}", "", sys.stderr)


def _parts(spec: Spec[Any]) -> str:
    return ", ".join(name for name, value in spec.arguments.items() if isinstance(value, Spec))


def _sizes(text: str) -> dict[str, int]:
    """The axes of a mesh, as `data=4,model=2`."""
    pairs = _pairs("--mesh", text, "data=4,model=2")
    if pairs and all(size.isdecimal() and int(size) for _, size in pairs):
        return {name: int(size) for name, size in pairs}
    raise usage_error("--mesh: these are not the sizes of mesh axes", got=repr(text), fix="--mesh data=4,model=2")


def _rules(text: str) -> dict[str, str | None]:
    """What logical names stand for, as `embed=,mlp=model`."""
    return {name: axis or None for name, axis in _pairs("--rules", text, "embed=,mlp=model")}


@contextlib.contextmanager
def _fixed_by_rules(mesh: Mapping[str, int] | None) -> Generator[None]:
    """Names the option in place of the function, in the fix of an error about names of axes or kinds of memory."""
    try:
        yield
    except ShardingError as error:
        names = re.findall(r"dx\.sharding_rules\(\{\.\.\., '([^']*)': None\}\)", error.fix or "")
        if names and mesh:
            rules = ",".join(f"{name}=" for name in dict.fromkeys(names))
            set_fix(error, f"--rules {rules}        # behind the = one of the mesh axes {', '.join(mesh)}, or nothing")
        elif (error.fix or "").startswith("dx.plan(") and error.where == "plan.memory":
            set_fix(error, f"--memory {_MEMORY}")
        raise


def _kinds_of_memory(pairs: Sequence[tuple[str, str]], model: Any, tx: Any) -> dict[Any, str] | None:
    """The kind of memory for each kind of Variable, by names as `OptVariable=pinned_host`."""
    leaf_defs = filter(None, state_of(model).definition.leaf_defs)
    every = dict.fromkeys(base for kind, _ in leaf_defs for base in kind.__mro__ if issubclass(base, Variable))
    kinds = {kind.__name__: kind for kind in every}
    for name, _ in pairs:
        if name not in kinds:
            is_of_optimizer = tx is None and name in ("OptState", "OptVariable", "OptArray")
            raise usage_error(
                "--memory: the model has no Variables of this kind",
                expected=", ".join(sorted(kinds)),
                got=repr(name),
                fix="--optimizer adam" if is_of_optimizer else suggest(name, kinds),
            )
    return {kinds[name]: memory for name, memory in pairs} or None


def _pairs(option: str, text: str, example: str) -> list[tuple[str, str]]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if all(name.strip() and equals for name, equals, _ in pairs):
        return [(name.strip(), value.strip()) for name, _, value in pairs]
    raise usage_error(f"{option}: not names with values", got=repr(text), fix=f"{option} {example}")


def _transformation(name: str) -> Any:
    """An optimizer of optax by name; its state does not depend on the learning rate."""
    import optax  # loads slowly

    if callable(getattr(optax, name, None)):
        return getattr(optax, name)(1e-3)
    raise usage_error("--optimizer: optax has no such optimizer", got=repr(name), fix="--optimizer adam")


def _input(text: str) -> jax.ShapeDtypeStruct:
    found = _INPUT.fullmatch(text.strip())
    try:
        if found is not None:
            shape = tuple(int(size) for size in found[2].split(",") if size.strip())
            return jax.ShapeDtypeStruct(shape, found[1])  # type: ignore[no-untyped-call]  # JAX has no type here
    except (TypeError, ValueError):
        pass
    raise usage_error("--input: not the type of an array", got=repr(text), fix="--input 'float32[8,28,28,1]'")
