"""Export: a model as a program of StableHLO and a file of weights, which run without the classes of the model."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import jax
import jax.export
import jax.numpy as jnp

from declax._jax import is_symbolic
from declax._text.arrays import type_text
from declax._text.dimensions import is_input
from declax._variables.kinds import RngState
from declax.checkpoint.files import naming, new_file, open_regular, parse_json
from declax.checkpoint.safetensors import open_tensors, write_tensors
from declax.errors import CheckpointError, MissingExtraError, TransformError, describe
from declax.transforms._engine.call import Call
from declax.transforms._engine.structure import is_array_like, is_root
from declax.transforms.compilation import jit

FORMAT: Final = 1
"""The version of the files of an exported program."""

PROGRAM: Final = "program.jax_export"
WEIGHTS: Final = "weights.safetensors"
MANIFEST: Final = "export.json"

MAX_MANIFEST: Final = 1 << 20
"""How many bytes a manifest may have."""


class ExportedProgram:
    """A program with its weights; see `export` and `load_exported`.

    Attributes:
      exported: the object of `jax.export`; its first argument is the dict `weights`.
      weights: the weights that are inputs of the program, by path.
    """

    def __init__(self, exported: jax.export.Exported, weights: dict[str, jax.Array]) -> None:
        self.exported = exported
        self.weights = weights
        self._run = jax.jit(exported.call)

    def __call__(self, *args: Any) -> Any:
        """Runs the program on arrays of the exported shapes and dtypes, on one of the exported platforms.

        Raises:
          TransformError: for other arguments, another platform, or another number of devices.
        """
        try:
            return self._run(self.weights, *args)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise TransformError(
                f"ExportedProgram({self.exported.fun_name})",
                "the program cannot be called like this",
                expected=self._expected(),
                got=f"({', '.join(map(describe, args))}) on {jax.default_backend()}",
                why=_misfit_of(self.exported, self.weights) or str(error).splitlines()[0][:500],
                fix="dx.export(function, *examples, shapes=..., platforms=...)        # for such arguments and devices",
            ) from error

    def _expected(self) -> str:
        """The arguments, platforms and devices of the program."""
        count = self.exported.nr_devices
        devices = f", {count} devices" if count > 1 else ""
        return f"{self._shown_arguments()} on {' or '.join(self.exported.platforms)}{devices}"

    def _shown_arguments(self) -> str:
        (_, *arguments), _ = jax.tree.unflatten(self.exported.in_tree, self.exported.in_avals)
        shown = list(map(type_text, jax.tree.leaves(arguments)))
        return f"({', '.join(shown)})"

    def __repr__(self) -> str:
        return f"ExportedProgram({self.exported.fun_name}{self._shown_arguments()}, weights={len(self.weights)})"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the program and its weights to a new folder.

        Raises:
          CheckpointError: the folder exists, or cannot be written.
          MissingExtraError: flatbuffers is not installed.
          TransformError: arguments or results contain classes; a file describes tuples, lists and dicts of arrays. Or
            the weights do not fit the program.
        """
        folder = Path(folder)
        misfit = _misfit_of(self.exported, self.weights)
        if misfit is not None:
            raise TransformError("ExportedProgram.save", "the weights do not fit the program", got=misfit)
        if os.path.lexists(folder):
            raise CheckpointError(str(folder), "the folder exists", fix="another name, or remove the folder first")
        content = _serialized(self.exported)
        temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
        try:
            with naming(folder, "created"):
                temporary.mkdir()
            with new_file(temporary / PROGRAM) as file:
                file.write(content)
            digests = {PROGRAM: hashlib.sha256(content).hexdigest()}
            if self.weights:
                digests[WEIGHTS] = write_tensors(temporary / WEIGHTS, self.weights)
            manifest = {
                "format": FORMAT,
                "function": self.exported.fun_name,
                "platforms": self.exported.platforms,
                "jax": jax.__version__,
                "sha256": digests,
            }
            with new_file(temporary / MANIFEST) as file:
                file.write(json.dumps(manifest, indent=2).encode())
            with naming(folder, "renamed"):
                temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def export(
    function: Callable[..., Any],
    /,
    *examples: Any,
    shapes: Any = None,
    platforms: Sequence[str] | None = None,
    weights: Literal["inputs", "constants"] = "inputs",
    where: Sequence[str] | str = (),
) -> ExportedProgram:
    """Exports a model, or a function that captures models, as a program for other processes and machines.

    The program is that of `jax.export`: StableHLO with a promise of compatibility. It returns the results of the
    function. A function that changes its models is refused.

    Args:
      function: a model, a bound method of one, or a function that captures models.
      *examples: arrays, or trees of arrays or `jax.ShapeDtypeStruct`, that the function is called with; or texts such
        as ``"int32[b, n]"``, with names for sizes that each call may choose.
      shapes: the shapes of the examples as in `jax.export.symbolic_args_specs`: ``"b, ..."`` makes the first axis of
        each array symbolic; a tuple has one entry for each example. None takes the shapes of the examples.
      platforms: the platforms to compile for, such as ``("cpu", "cuda", "tpu")``; None for the one here.
      weights: "inputs" keeps the weights apart from the program, in `ExportedProgram.weights`; "constants" puts them
        into it. Random streams and Python numbers are always constants.
      where: conditions on the names of texts, such as ``"n <= 1024"``.

    Returns:
      The program, which can be called and saved.

    Raises:
      TransformError: an example contains a model, the model is abstract, the function changes its models or returns
        one, or there is no such platform.
      ShapeError: the function fails at a size, or needs a condition, as `check_shapes` finds out.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    >>> program = dx.export(model, jnp.ones((1, 2)), shapes="b, 2")
    >>> program(jnp.ones((5, 2))).shape
    (5, 3)
    >>> program.save("linear_program")
    >>> dx.load_exported("linear_program")
    ExportedProgram(Linear(float32[b,2]), weights=2)
    """
    if weights not in ("inputs", "constants"):
        problem = "weights are inputs of the program, or constants in it"
        raise TransformError("export, weights", problem, expected='"inputs" or "constants"', got=repr(weights))
    if isinstance(platforms, str):
        raise _platform_error(platforms)
    if any(map(is_root, jax.tree.leaves(examples, is_leaf=is_root))):
        raise TransformError(
            "export",
            "an example is a model",
            why="the weights of captured models are inputs of the program",
            fix="dx.export(lambda x: f(model, x), x)",
        )
    specs = _specs(function, examples, shapes, where)
    traced = jit(function).trace(*specs)
    traced.check_unchanging("export")
    call, run = traced.flat()
    values = dict(zip(_names(call), call.values, strict=True))
    abstract = [name for name, value in values.items() if isinstance(value, jax.ShapeDtypeStruct)]
    if abstract:
        raise TransformError("export", f"{abstract[0]} of the model is abstract", got=describe(values[abstract[0]]))
    chosen = _weights_of(call, values) if weights == "inputs" else {}

    def program(weights: dict[str, jax.Array], *args: Any) -> Any:
        return run([*(values | weights).values(), *jax.tree.leaves(args)])

    program.__name__ = getattr(function, "__name__", type(function).__name__)
    try:
        exported = jax.export.export(jax.jit(program), platforms=platforms)(chosen, *specs)
    except RuntimeError as error:
        if not str(error).startswith("Unknown backend"):
            raise
        raise _platform_error(platforms) from error
    return ExportedProgram(exported, chosen)


def _specs(function: Callable[..., Any], examples: tuple[Any, ...], shapes: Any, where: Sequence[str] | str) -> Any:
    """The abstract arguments; sizes that are symbols are proven."""
    from declax.shapes.checking import abstract_inputs, check_shapes  # with the layers, which a loaded program lacks

    if any(map(is_input, examples)):
        check_shapes(function, *examples, where=where).raise_for_findings()
        return abstract_inputs(examples, where)
    specs: tuple[Any, ...] = jax.export.symbolic_args_specs(examples, shapes)
    leaves = jax.tree.leaves(specs)
    if any(is_symbolic(size) for leaf in leaves for size in leaf.shape):
        texts = [f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]" for leaf in leaves]
        check_shapes(function, *jax.tree.unflatten(jax.tree.structure(specs), texts)).raise_for_findings()
    return specs


def _platform_error(platforms: object) -> TransformError:
    return TransformError(
        "export, platforms", "there is no such platform", expected='such as ("cpu", "cuda", "tpu")', got=repr(platforms)
    )


def load_exported(folder: str | os.PathLike[str]) -> ExportedProgram:
    """Reads a program that `ExportedProgram.save` wrote, and its weights; needs no class of the model.

    Args:
      folder: the folder.

    Raises:
      CheckpointError: a file is missing, invalid, changed or of a later version of the format.
      MissingExtraError: flatbuffers is not installed.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> dx.export(jnp.sin, jnp.ones(2)).save("sine")
    >>> dx.load_exported("sine")(jnp.zeros(2)).tolist()
    [0.0, 0.0]
    """
    folder = Path(folder)
    _check_flatbuffers()
    manifest = _manifest_of(folder)
    for file, digest in manifest["sha256"].items():
        with open_regular(folder / file) as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != digest:  # type: ignore[arg-type]  # it reads
                raise CheckpointError(str(folder / file), "the file was changed after it was written", expected=digest)
    with naming(folder / PROGRAM, "read"):
        content = bytearray((folder / PROGRAM).read_bytes())
    try:
        exported = jax.export.deserialize(content)
    except Exception as error:  # of any kind, as flatbuffers finds them
        reason = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError(str(folder / PROGRAM), "JAX cannot read the program", got=reason) from error
    stored = open_tensors(folder / WEIGHTS) if WEIGHTS in manifest["sha256"] else {}
    misfit = _misfit_of(exported, stored)
    if misfit is not None:
        raise CheckpointError(str(folder / WEIGHTS), "the weights do not fit the program", got=misfit)
    return ExportedProgram(exported, {name: jnp.asarray(array[...]) for name, array in stored.items()})


def _misfit_of(exported: jax.export.Exported, weights: Mapping[str, Any]) -> str | None:
    """The first weight that is not as the program takes it; None if all are."""
    (expected, *_), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    for name in {**expected, **weights}:
        if name not in weights:
            return f"no weight {name!r}"
        if name not in expected:
            return f"weight {name!r}, which the program does not have"
        found, aval = weights[name], expected[name]
        if (tuple(found.shape), found.dtype) != (aval.shape, aval.dtype):
            return f"{name!r} of shape {tuple(found.shape)} and dtype {found.dtype}, not {aval.shape} and {aval.dtype}"
    return None


def _manifest_of(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    with open_regular(path) as file, naming(path, "read"):
        found = parse_json(path, file.read(MAX_MANIFEST))
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        got = repr(found.get("format")) if isinstance(found, dict) else type(found).__name__
        raise CheckpointError(
            str(path), "this is not a manifest that this version reads", expected=f"format {FORMAT}", got=got
        )
    files = found.get("sha256")
    files = files if isinstance(files, dict) else {}
    are_texts = all(isinstance(digest, str) for digest in files.values())
    if PROGRAM not in files or files.keys() - {PROGRAM, WEIGHTS} or not are_texts:
        raise CheckpointError(str(path), "the manifest does not list the files", expected=f"{PROGRAM} and {WEIGHTS}")
    return found


def _names(call: Call) -> list[str]:
    """The name of each leaf in models: its path, behind the number of the model if there are several."""
    start = int(sum(call.structure.is_root) == 1)
    return [".".join(map(str, path[start:])) for path in call.structure.graphdef.definition.paths]


def _weights_of(call: Call, values: dict[str, Any]) -> dict[str, jax.Array]:
    """The values that are inputs of the program: arrays that are not of random streams. Numbers have no dtype."""
    leaf_defs = call.structure.graphdef.definition.leaf_defs
    kinds = [type(None) if leaf_def is None else leaf_def[0] for leaf_def in leaf_defs]
    return {
        name: jnp.asarray(value)
        for (name, value), kind in zip(values.items(), kinds, strict=True)
        if not issubclass(kind, RngState)
        and is_array_like(value)
        and hasattr(value, "dtype")
        and not jnp.issubdtype(value.dtype, jax.dtypes.extended)
    }


def _serialized(exported: jax.export.Exported) -> bytes:
    _check_flatbuffers()
    try:
        return bytes(exported.serialize())
    except ValueError as error:
        raise TransformError(
            "ExportedProgram.save",
            "the arguments or results contain classes that a file cannot describe",
            expected="tuples, lists and dicts of arrays",
            got=str(error).splitlines()[0],
        ) from error


def _check_flatbuffers() -> None:
    if find_spec("flatbuffers") is None:
        raise MissingExtraError("export", "flatbuffers is not installed", fix='pip install "declax[export]"')
