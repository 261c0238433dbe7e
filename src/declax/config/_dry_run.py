"""What a spec would build and answer, in shapes: nothing is allocated, nothing computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from declax._nodes import walk_nodes
from declax._pytree import Pytree
from declax._value_text import bytes_text
from declax.abstract import eval_shape
from declax.config._building import Builder, check, note_config_path
from declax.config._data import SpecData
from declax.config.problems import Path, path_text
from declax.errors import ConfigError, describe, type_name
from declax.rngs import Rngs
from declax.summarizing import Row, Summary, dtype_text
from declax.summarizing import summary as summary_of


class SpecSummary(Summary):
    """The arrays that a spec would make, module by module; prints as a table.

    Attributes:
      rows: one for each module that holds arrays itself.
      output: what the model would answer, in shapes; None where it was not called.
    """

    __slots__ = ("output",)

    output: Any

    def __init__(self, rows: Iterable[Row], output: Any = None) -> None:
        super().__init__(rows)
        self.output = output

    @property
    def sizes(self) -> dict[tuple[str, str], int]:
        """Bytes by kind and dtype, the largest first: ``{("Param", "bfloat16"): 1024}``."""
        found: dict[tuple[str, str], int] = {}
        for entry in self.entries:
            key = (entry.kind, str(entry.dtype))
            found[key] = found.get(key, 0) + entry.nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def __str__(self) -> str:
        lines = [super().__str__(), ""]
        lines += [f"{kind} in {dtype}: {bytes_text(size)}" for (kind, dtype), size in self.sizes.items()]
        if self.output is not None:
            lines.append(f"output: {shapes_text(self.output)}")
        return "\n".join(lines)


def summary(spec: SpecData, inputs: tuple[Any, ...], named_inputs: Mapping[str, Any]) -> SpecSummary:
    """The dry run of a spec; see `Spec.summary`."""
    check(spec)
    is_called = bool(inputs or named_inputs)
    built = eval_shape(lambda: _built(spec), graph=True)
    rows = summary_of(built).rows
    if not is_called:
        return SpecSummary(rows)
    if not callable(built):
        raise ConfigError(
            spec.parameters.name,
            "what the spec builds cannot be called, and inputs were given",
            got=describe(built) if isinstance(built, Pytree) else "parts without a model around them",
            fix="spec.summary()",
        )
    return SpecSummary(rows, eval_shape(_called, built, inputs, dict(named_inputs), graph=True))


def _built(spec: SpecData) -> Any:
    """What the spec builds; of what is no model, such as a plain dataclass, the models in it by path."""
    builder = Builder(spec, Rngs(0))
    made = builder.run()
    if isinstance(made, Pytree):
        return made
    outermost: dict[Path, Pytree] = {}
    for path, part in sorted(builder.made.items(), key=lambda item: len(item[0])):
        is_inside = any(path[: len(outer)] == outer for outer in outermost)
        if isinstance(part, Pytree) and not is_inside:
            outermost[path] = part
    return {path_text(path): part for path, part in outermost.items()}


def _called(model: Any, inputs: tuple[Any, ...], named_inputs: dict[str, Any]) -> Any:
    try:
        return model(*inputs, **named_inputs)
    except Exception as error:
        path, module = _innermost(model, error)
        note_config_path(error, path, type_name(type(module)))
        error.add_note(f"called with {shapes_text((*inputs, *named_inputs.values()))}")
        raise


def _innermost(model: Any, error: BaseException) -> tuple[Path, Any]:
    """The module whose method was running, innermost, when an error arose."""
    modules = {id(node): (path, node) for path, node in walk_nodes(model) if isinstance(node, Pytree)}
    found: tuple[Any, Any] = ((), model)
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        first = traceback.tb_frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        found = modules.get(id(first), found)
        traceback = traceback.tb_next
    return found


def shapes_text(tree: Any) -> str:
    """The shapes of a tree of arrays, as ``f32[2,3]``."""
    leaves = [
        f"{dtype_text(leaf.dtype)}[{','.join(map(str, leaf.shape))}]" if hasattr(leaf, "shape") else repr(leaf)
        for leaf in jax.tree.leaves(tree)
    ]
    return ", ".join(leaves) or repr(tree)
