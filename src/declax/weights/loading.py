"""`load_weights` and `save_weights`: what goes where is decided, and all problems are known, before a value is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from declax._filters import Filter
from declax._graph.fit import CAST, STORED, Difference, Fit, Pairing, Rules, Target, compare
from declax._graph.updating import update
from declax._state.states import State
from declax._typing import Path
from declax.checkpoint.file_arrays import FileArray, aligned
from declax.errors import WeightsError, describe, suggest, type_name
from declax.weights.files import read_arrays, write_arrays
from declax.weights.maps import Pattern, Rule, Transfer, WeightMap, rules_of
from declax.weights.parameters import Parameters, name_of
from declax.weights.parts import Array, Index, Part, Shape, fill, whole

TensorMismatch = Difference
"""One tensor that does not fit."""

WeightsReport = Fit
"""What `load_weights` did, or would do."""


def load_weights(
    model: Any,
    file: str | os.PathLike[str],
    *,
    map: WeightMap | None = None,
    ignore: str | Sequence[str] = (),
    only: Filter | None = None,
    cast: bool = False,
    strict: bool = True,
    dry_run: bool = False,
) -> Fit:
    """Sets the parameters of a model to the tensors of a file, all or none.

    The map says which tensor goes to which parameter, and with which layout; see `declax.weights`. The first entry
    that matches a tensor counts. A layer of a `Stacked` has a path as in a list: ``blocks[3].kernel``. Parameters
    keep their shardings.

    Args:
      model: a model, or a container of models; it may be abstract.
      file: a ``.safetensors`` or ``.npz`` file, a ``.safetensors.index.json`` file, or a folder with one safetensors
        file or index.
      map: from names of tensors to paths of parameters. None means equal names, with dots: ``blocks.0.kernel``.
      ignore: patterns of tensors to leave out, as ``"h.{i}.attn.bias"``.
      only: a filter of the parameters to fill. None selects all leaves but random streams, caches and captured values.
      cast: whether a tensor may have another dtype than its parameter, of the same kind: float, complex or integer.
      strict: False sets the parameters whose tensors fit, and leaves the others.
      dry_run: read headers only, change nothing, and return the report.

    Returns:
      A report: `taken` has the parameters that are filled, `missing` those without a tensor, `unexpected` the tensors
      that no entry of the map names, `mismatches` those that do not fit, and `ignored` those that `ignore` or `only`
      leave out.

    Raises:
      WeightsError: the map is wrong; or tensors are unused or do not fit, or parameters are unfilled. It lists all of
        them. Or `only` selects nothing. Nothing is changed. With ``strict=False``, if no tensor is for this model.
      CheckpointError: a file is missing or invalid.

    >>> import declax as dx
    >>> model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    >>> dx.save_weights(model, "linear.safetensors", map={"fc.weight": dx.weights.transpose("kernel"), "fc.b": "bias"})
    >>> other = dx.eval_shape(lambda: dx.Linear(2, 3, rngs=dx.Rngs(0)))
    >>> print(dx.load_weights(other, "linear.safetensors", map={"fc.weight": "kernel"}, dry_run=True))
    taken: 0 of 2 leaves
    does not fit:
      fc.weight: expected shape (2, 3) for kernel, got shape (3, 2)
    missing:
      bias: expected an array of shape (3,) and dtype float32, got nothing
    unexpected:
      fc.b: no entry of the map has this name
    """
    rules = rules_of(map)
    skipped = _patterns(ignore)
    plan = _Plan(Parameters.of(model, only), read_arrays(file), CAST if cast else STORED)
    plan.assign(rules, skipped)
    fit = plan.fit()
    if dry_run:
        return fit
    if fit.is_refused(strict=strict):
        problem = f"the tensors of {os.fspath(file)} do not fit {type_name(type(model))} at {fit.count}"
        fix = "dx.load_weights(..., dry_run=True)        # the report"
        more = "\ndx.load_weights(..., strict=False)        # takes what fits"
        raise WeightsError("load_weights", problem, got=fit.listed, fix=fix + more if strict else fix)
    values = plan.values()
    if values:
        update(model, State.from_flat_path(values))
    return fit


def _patterns(ignore: Any) -> list[Pattern]:
    texts = [ignore] if isinstance(ignore, str) or not isinstance(ignore, Iterable) else [*ignore]
    if not all(isinstance(text, str) for text in texts):
        fix = 'ignore=["h.{i}.attn.bias"]'
        raise WeightsError("load_weights, ignore", "these are not patterns of names", got=describe(ignore), fix=fix)
    return [Pattern(text) for text in texts]


class _Plan:
    """Which tensors go to which parameters of a model."""

    def __init__(self, parameters: Parameters, tensors: Mapping[str, Any], rules: Rules) -> None:
        self._parameters = parameters
        self._tensors = tensors
        self._rules = rules
        self._transfers: dict[str, Transfer] = {}  # by the name of the parameter
        self._mismatches: list[Difference] = []
        self._refused: set[str] = set()  # the parameters whose tensors do not fit
        self._unexpected: list[Difference] = []
        self._ignored: list[str] = []

    def assign(self, rules: Sequence[Rule], ignored: Sequence[Pattern]) -> None:
        """Finds the rule of each tensor, and checks each use of a rule."""
        transfers: dict[tuple[str, ...], Transfer] = {}
        for name in self._tensors:
            if any(pattern.match(name) is not None for pattern in ignored):
                self._ignored.append(name)
                continue
            found = _transfer_of(rules, name)
            if found is None:
                self._unexpected.append(Difference(name, "no entry of the map has this name"))
            else:
                transfers[found.sources] = found
        for transfer in transfers.values():
            self._assign(transfer)

    def _assign(self, transfer: Transfer) -> None:
        known = self._parameters.by_name
        unknown = [name for name in transfer.targets.values() if name not in known]
        for name in unknown:
            near = suggest(name, known)
            text = f"the model has no parameter {name!r}" + (f"; {near}" if near else "")
            self._unexpected.append(Difference(transfer.sources[0], text))
        if unknown:
            return
        selected = [name for name in transfer.targets.values() if self._parameters.is_selected(name)]
        if not selected:
            self._ignored += [name for name in transfer.sources if name in self._tensors]
            return
        mismatches = self._mismatches_of(transfer, selected)
        self._mismatches += mismatches
        if mismatches:
            self._refused.update(selected)
        else:
            self._transfers |= dict.fromkeys(selected, transfer)

    def _mismatches_of(self, transfer: Transfer, targets: Sequence[str]) -> list[Difference]:
        """What does not fit of the tensors for some parameters."""
        known, first = self._parameters.by_name, transfer.sources[0]
        try:
            shapes = transfer.shapes(lambda name: known[name].shape)
        except WeightsError as error:
            return [Difference(first, f"{error.where}: {error.problem}", f"shape {error.got}")]
        found: list[Difference] = []
        names = {name: name for name in transfer.sources}
        shown = [known[name].shown for name in targets]
        pairing = Pairing({name: name for name in names if name in self._tensors})
        for dtype in {known[name].dtype for name in targets}:
            likes = {name: _like(shape, dtype) for name, shape in zip(names, shapes, strict=True)}
            fit = compare(Target(names, likes, dict.fromkeys(names)), [(pairing, self._tensors)], self._rules)
            found += [
                problem._replace(expected=problem.expected + _for(problem.path, shown)) for problem in fit.problems
            ]
        filled = [name for to in targets for name in self._parameters.overlapping(to) if name in self._transfers]
        for name in filled:
            other = self._transfers[name].sources[0]
            found.append(Difference(first, f"{known[name].shown} is filled by {other} already"))
        return found

    def fit(self) -> Fit:
        """What would be done."""
        known = self._parameters.by_name
        unfilled = [*self._parameters.missing(self._transfers)]
        paths = {name: known[name].shown for name in (*self._transfers, *unfilled)}
        likes = {name: _like(known[name].shape, known[name].dtype) for name in unfilled}
        return Fit(
            tuple(self._mismatches),
            Target(paths, likes, dict.fromkeys(paths)).missing({*self._transfers, *self._refused}),
            tuple(self._unexpected),
            ignored=tuple(self._ignored),
            is_foreign=bool(self._unexpected) and not (self._transfers or self._mismatches),
            sources={name: (0, transfer.sources[0]) for name, transfer in self._transfers.items()},
            paths=paths,
        )

    def values(self) -> dict[Path, Any]:
        """The new value of each leaf of which each part is known, where the old one is."""
        parameters = self._parameters
        unfilled = {parameters.by_name[name].path for name in parameters.missing(self._transfers)}
        return {path: self._value(path, leaf) for path, leaf in parameters.leaves.items() if path not in unfilled}

    def _value(self, path: Path, leaf: Any) -> Any:
        """An array where the old value is, or of numpy as it is; shapes without a sharding go to the default device."""
        known = self._parameters.by_name
        name = name_of(path)
        shape, dtype = known[name].shape, known[name].dtype
        parts = {
            known[part].layer: self._transfers[part].take(
                [_readable(self._tensors[source]) for source in self._transfers[part].sources],
                part,
                lambda name: known[name].shape,
            )
            for part in ([name] if name in self._transfers else self._parameters.layers[path])
        }
        if isinstance(leaf, np.ndarray):
            return _read(parts, whole(shape), dtype)
        sharding = getattr(leaf, "sharding", None)
        is_free = isinstance(leaf, jax.Array) and not leaf.committed
        if sharding is None or is_free:
            made: jax.Array = jax.device_put(_read(parts, whole(shape), dtype))
        else:
            made = jax.make_array_from_callback(
                shape, sharding, lambda index: _read(parts, _bounds(index, shape), dtype)
            )
        made.block_until_ready()  # before the next parameter is in the memory of the host
        return made


def _for(tensor: str, parameters: Sequence[str]) -> str:
    """The parameters that a tensor is for, unless they have its name."""
    return "" if list(parameters) == [tensor] else f" for {', '.join(parameters)}"


def _like(shape: Shape, dtype: Any) -> Any:
    """What stands for an array: of numpy in a dtype that JAX lacks, such as float64 without 64-bit numbers."""
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        return np.broadcast_to(np.zeros((), dtype), shape)
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # of JAX


def _readable(tensor: Any) -> Part:
    """A tensor of which parts can be read; one of an `.npz` file is read completely."""
    return tensor if isinstance(tensor, FileArray) else np.asarray(tensor)


def _bounds(index: Any, shape: Shape) -> Index:
    """Slices with a start and a stop."""
    return tuple([slice(*each.indices(size)[:2]) for each, size in zip(index, shape, strict=True)])


def _read(parts: Mapping[tuple[int, ...], Part], index: Index, dtype: np.dtype[Any]) -> Array:
    """The part of a leaf that one device holds, from the whole leaf or from each layer of a stack."""
    only = parts.get(())
    if isinstance(only, FileArray) and only.dtype == dtype:
        return only[index]
    made = aligned(tuple([each.stop - each.start for each in index]), dtype)
    for layer, part in parts.items():
        outer, inner = index[: len(layer)], index[len(layer) :]
        if all(each.start <= number < each.stop for number, each in zip(layer, outer, strict=True)):
            place = [number - each.start for number, each in zip(layer, outer, strict=True)]
            fill(made[(*place, ...)], part, inner)
    return made


def _transfer_of(rules: Iterable[Rule], name: str) -> Transfer | None:
    """The use of the first rule that matches the name of a tensor."""
    for rule in rules:
        for pattern in rule.sources:
            captures = pattern.match(name)
            if captures is not None:
                return rule.with_captures(captures)
    return None


# --- saving ---------------------------------------------------------------------------


def save_weights(
    model: Any,
    file: str | os.PathLike[str],
    *,
    map: WeightMap | None = None,
    only: Filter | None = None,
    dtype: Any = None,
    max_file_size: int | None = None,
) -> None:
    """Writes the parameters of a model to new files, in the names and layouts of another library.

    The inverse of `load_weights` with the same map. The first entry that matches a parameter counts.

    Args:
      model: a model, or a container of models.
      file: ends in ``.safetensors`` or ``.npz``.
      map: as in `load_weights`; None takes the paths of the parameters, with dots.
      only: a filter of the parameters to write; None as in `load_weights`.
      dtype: the dtype of floating-point tensors in the file; None keeps that of the parameters.
      max_file_size: in bytes. More than that goes to ``model-00001-of-00002.safetensors`` and so on, with an index
        ``model.safetensors.index.json``, as `transformers` does. A larger tensor has a separate file.

    Raises:
      WeightsError: the map is wrong, parameters have no entry in it, two of them have one name, `dtype` is no
        floating-point dtype, `max_file_size` is not a positive int, a file exists, or the model is abstract.
      CheckpointError: the file cannot be written, or cannot hold a dtype.

    >>> import declax as dx
    >>> model = dx.Linear(2, 3, rngs=dx.Rngs(0))
    >>> dx.save_weights(model, "plain.safetensors")
    >>> sorted(dx.load_weights(model, "plain.safetensors").taken)
    ['bias', 'kernel']
    """
    if dtype is not None and not _is_inexact(dtype):
        raise WeightsError(
            "save_weights, dtype", "this is not a floating-point dtype", got=repr(dtype), fix="dtype=jnp.bfloat16"
        )
    parameters = Parameters.of(model, only)
    abstract = [path for path, leaf in parameters.leaves.items() if isinstance(leaf, jax.ShapeDtypeStruct)]
    if abstract:
        raise WeightsError("save_weights", "the model is abstract", got=describe(parameters.leaves[abstract[0]]))
    transfers = _transfers_from(parameters, rules_of(map))
    tensors: dict[str, _Joined] = {}
    for transfer in transfers:
        for number, name in enumerate(transfer.sources):
            if name in tensors:
                raise WeightsError(
                    "save_weights", f"two parameters would have the name {name!r}", why="captures differ"
                )
            tensors[name] = _Joined(parameters, transfer, number, dtype)
    write_arrays(file, tensors, max_file_size)


def _is_inexact(dtype: Any) -> bool:
    try:
        return bool(jnp.issubdtype(np.dtype(dtype), jnp.inexact))
    except TypeError:
        return False


def _transfers_from(parameters: Parameters, rules: Sequence[Rule]) -> list[Transfer]:
    """The uses of rules that write all selected parameters, each once."""
    written: set[str] = set()
    found: list[Transfer] = []
    for rule in rules:
        pattern = next(iter(rule.targets.values()))
        for name in parameters.by_name:
            captures = pattern.match(name)
            if captures is None:
                continue
            transfer = rule.with_captures(captures)
            targets = transfer.targets.values()
            if all(_is_free(parameters, target, written) for target in targets):
                written |= set(targets)
                found.append(transfer)
    missing = [parameters.by_name[name].shown for name in parameters.missing(dict.fromkeys(written))]
    if missing:
        raise WeightsError(
            "save_weights",
            "the map has no entry for these parameters",
            got="\n".join(missing),
            fix="dx.save_weights(..., only=filter)        # leaves them out",
        )
    return found


def _is_free(parameters: Parameters, name: str, written: set[str]) -> bool:
    """Whether a parameter is selected, and neither it, nor the leaf that it is a part of, nor its parts are written."""
    if name not in parameters.by_name or not parameters.is_selected(name):
        return False
    return written.isdisjoint(parameters.overlapping(name))


class _Joined:
    """A tensor of the file, which is computed when it is written."""

    def __init__(self, parameters: Parameters, transfer: Transfer, number: int, dtype: Any) -> None:
        self._parameters = parameters
        self._transfer = transfer
        self._number = number
        known = parameters.by_name
        self.shape = transfer.shapes(lambda name: known[name].shape)[number]
        own = known[next(iter(transfer.targets.values()))].dtype
        self.dtype = np.dtype(dtype) if dtype is not None and jnp.issubdtype(own, jnp.floating) else own

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._transfer.join(self._value, self._number).astype(self.dtype, copy=False)

    def _value(self, name: str) -> Array:
        parameter = self._parameters.by_name[name]
        whole = np.asarray(self._parameters.leaves[parameter.path])
        return np.asarray(whole[parameter.layer])
