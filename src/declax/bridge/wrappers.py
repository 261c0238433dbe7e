"""A Linen module as a model, and a model as a Linen module."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from declax import errors
from declax._fields.snapshots import exact_types, freeze
from declax._fields.specifiers import data
from declax._filters import Not
from declax._graph.api import state as state_of
from declax._graph.api import variables as variables_of
from declax._graph.updating import update
from declax._module.module import Module, iter_modules
from declax._random.streams import Rngs
from declax._state.functions import to_flat_state
from declax._variables.kinds import RngState
from declax._variables.variable import Variable
from declax.bridge.variables import linen_vars_to_nnx_attrs, nnx_attrs_to_linen_vars, to_linen_var
from declax.traversals import flatten_mapping, unflatten_mapping

# After `variables`, which raises the error of a missing Flax.
from flax import linen  # isort: skip
from flax.core import FrozenDict, meta  # isort: skip
from flax.errors import FlaxError  # isort: skip

T = TypeVar("T")

PREFIX = "to_nnx__"
"""What the names of attributes begin with that are not of Linen."""

_OF_LINEN = ("parent", "name")

_mutable: ContextVar[Any] = ContextVar("mutable", default=False)
"""The collections that may change in the Linen module around, if there is one."""


def lazy_init(fn: T, /, *args: Any, **kwargs: Any) -> T:
    """Makes the variables of all Linen modules in a model, by a call.

    Args:
      fn: a model, or a method of one.
      *args, **kwargs: arguments of the call, which may be of other values than later ones, but not of other shapes.

    Returns:
      `fn`.

    Raises:
      GraphError: `fn` is neither.

    >>> import jax.numpy as jnp
    >>> from flax import linen as nn
    >>> import declax as dx
    >>> model = dx.bridge.lazy_init(dx.bridge.ToNNX(nn.Dense(3), rngs=dx.Rngs(0)), jnp.ones((1, 2)))
    >>> model.kernel.shape
    (2, 3)
    """
    model = fn if isinstance(fn, Module) else getattr(fn, "__self__", None)
    if not isinstance(model, Module) or not callable(fn):
        raise errors.GraphError(
            "lazy_init",
            "this is neither a model that can be called nor a method of a model",
            got=errors.describe(fn),
            fix="lazy_init(model, x), or lazy_init(model.method, x)",
        )
    bridges = [part for _, part in iter_modules(model) if isinstance(part, ToNNX)]
    try:
        for part in bridges:
            part.to_nnx__is_initializing = True
        fn(*args, **kwargs)
    finally:
        for part in bridges:
            part.to_nnx__is_initializing = False
    return fn


class LinenModule:
    """A Linen module as a static value, equal to others of its class with equal fields."""

    __slots__ = ("_content", "_hash", "module")

    def __init__(self, module: linen.Module) -> None:
        self.module: linen.Module = module
        self._content = _content_of(module)
        self._hash = hash(self._content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LinenModule) and self._content == other._content

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        fields = [f for f in dataclasses.fields(self.module) if f.name not in _OF_LINEN]
        given = {f.name: getattr(self.module, f.name) for f in fields}
        shown = [f"{f.name}={given[f.name]!r}" for f in fields if given[f.name] is not f.default]
        return f"{type(self.module).__name__}({', '.join(shown)})"


def _content_of(value: Any) -> Hashable:
    """What two equal values have in common."""
    leaves, tree = jax.tree.flatten(value)
    return tree, tuple(map(_content_of_leaf, leaves))


def _content_of_leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, linen.Module):
        names = [f.name for f in dataclasses.fields(leaf) if f.name != "parent"]
        return type(leaf), tuple([(name, _content_of(getattr(leaf, name))) for name in names])
    frozen = freeze(np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf)
    return frozen, exact_types(frozen)


class ToNNX(Module):
    """A model that calls a Linen module, with its variables as attributes.

    The variables of all collections are attributes: ``model.Dense_0["kernel"]`` is the Param at
    ``variables["params"]["Dense_0"]["kernel"]``. `lazy_init` makes them. Methods of the Linen module are methods of the
    model.

    Args:
      module: the Linen module.
      rngs: gives the keys of each call, one of each stream, under the names of the streams; the stream ``default`` is
        ``params`` in Linen. The model forks its own. A key is the stream ``params``.

    >>> import jax.numpy as jnp
    >>> from flax import linen as nn
    >>> import declax as dx
    >>> model = dx.bridge.ToNNX(nn.BatchNorm(use_running_average=False), rngs=dx.Rngs(0)).lazy_init(jnp.ones((4, 2)))
    >>> y = model(jnp.ones((4, 2)), mutable=["batch_stats"])
    >>> model.mean.value
    Array([0.01, 0.01], dtype=float32)
    """

    to_nnx__held: LinenModule
    to_nnx__rngs: Rngs | None
    to_nnx__is_initializing: bool

    def __init__(self, module: linen.Module, rngs: Rngs | jax.Array | None = None) -> None:
        self.to_nnx__held = LinenModule(module)
        self.to_nnx__rngs = Rngs(params=rngs) if isinstance(rngs, jax.Array) else rngs and rngs.fork()
        self.to_nnx__is_initializing = False

    @property
    def to_nnx__module(self) -> linen.Module:
        """The Linen module."""
        return self.to_nnx__held.module

    def lazy_init(self, *args: Any, **kwargs: Any) -> ToNNX:
        """Makes the variables by a call with these arguments; returns the model."""
        return lazy_init(self, *args, **kwargs)

    def __call__(
        self,
        *args: Any,
        rngs: Rngs | jax.Array | None = None,
        method: Callable[..., Any] | str | None = None,
        mutable: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Calls the Linen module.

        Args:
          *args, **kwargs: its arguments.
          rngs: used in place of those of the model.
          method: the method to call in place of ``__call__``.
          mutable: the collections that may change, as for ``flax.linen.Module.apply``: a name, a list of names, or True
            for all. None is False, or inside of a `ToLinen` what the Linen module around may change. The Variables of
            the model get the new values.

        Returns:
          What the method returns.
        """
        keys = _keys_of(self.to_nnx__rngs if rngs is None else rngs)
        if self.to_nnx__is_initializing:
            out, changed = self.to_nnx__module.init_with_output(keys, *args, method=method, **kwargs)
        else:
            mutable = _mutable.get() if mutable is None else mutable
            variables = nnx_attrs_to_linen_vars(self._linen_attributes())
            try:
                found = self.to_nnx__module.apply(variables, *args, rngs=keys, method=method, mutable=mutable, **kwargs)
            except FlaxError as error:
                if not variables:
                    error.add_note("declax: dx.bridge.lazy_init(model, x) makes the variables of its Linen modules")
                raise
            if mutable is False:
                return found
            out, changed = found
        self._put(linen_vars_to_nnx_attrs(changed))
        return out

    def _linen_attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith(("_", PREFIX))}

    def _put(self, attributes: Mapping[str, Any]) -> None:
        """Sets the values of Variables that the model has, and adds others."""
        known = flatten_mapping(self._linen_attributes())
        added: dict[str, Any] = {}
        for path, new in flatten_mapping(attributes).items():
            old: Any = known.get(path)
            if type(old) is type(new) and old.get_metadata() == new.get_metadata():
                old.set_raw_value(new.raw_value)
            else:
                known[path] = new
                added[path[0]] = None
        whole = unflatten_mapping({path: value for path, value in known.items() if path[0] in added})
        for name in added:
            setattr(self, name, data(whole[name]))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            held = vars(self).get(PREFIX + "held")  # which an object in the making lacks
            method = getattr(held and type(held.module), name, None)
            if name in ("module", "rngs") and held is not None:  # older names
                return getattr(self, PREFIX + name)
            if name.startswith("_") or not callable(method):
                return super().__getattribute__(name)
            found = functools.partial(self.__call__, method=method)
            found.__self__ = self  # for lazy_init
            return found


def _keys_of(rngs: Rngs | jax.Array | None) -> dict[str, jax.Array]:
    """A key of each stream, by the names of Linen."""
    if rngs is None:
        return {}
    if isinstance(rngs, jax.Array):
        return {"params": rngs}
    keys = {name: stream() for name, stream in rngs.items()}
    if "params" not in keys and "default" in keys:
        keys["params"] = keys.pop("default")
    return keys


def to_linen(
    nnx_class: Callable[..., Module],
    *args: Any,
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var,
    name: str | None = None,
    skip_rng: bool = False,
    **kwargs: Any,
) -> ToLinen:
    """A Linen module that makes a model with these arguments and calls it; see `ToLinen`.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import declax as dx
    >>> dense = dx.bridge.to_linen(dx.Linear, 2, out_features=3)
    >>> variables = dense.init(jax.random.key(0), jnp.ones((1, 2)))
    >>> variables["params"]["kernel"].shape, dense.apply(variables, jnp.ones((1, 2))).shape
    ((2, 3), (1, 3))
    """
    options: Mapping[str, Any] = FrozenDict(kwargs)  # type: ignore[no-untyped-call]  # flax leaves it untyped
    return ToLinen(nnx_class, args, options, skip_rng, metadata_fn, name=name)


class ToLinen(linen.Module):
    """A Linen module that makes a model and calls it.

    The class is called in `init` and again in each `apply`, with an `Rngs` of the keys that Linen got. The Variables of
    the model are in the collections of their kinds, apart from random streams: Linen gives new keys to each call.

    Attributes:
      nnx_class: the class of the model, or a function that makes one.
      args, kwargs: its arguments; `rngs` among them counts only with `skip_rng`.
      skip_rng: do not pass `rngs`.
      metadata_fn: what a collection holds of a Variable; None for its value. `NNXMeta` boxes those with metadata.
    """

    nnx_class: Callable[..., Module]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = FrozenDict()  # type: ignore[no-untyped-call]  # flax leaves it untyped
    skip_rng: bool = False
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var

    @linen.compact
    def __call__(self, *args: Any, nnx_method: Callable[..., Any] | str | None = None, **kwargs: Any) -> Any:
        """Calls the model, or another method of it.

        Args:
          *args, **kwargs: arguments of the method.
          nnx_method: the method, or its name.
        """
        scope: Any = self.scope  # which is there in a call
        model = self._make(scope.rngs)
        is_first = self.is_initializing()
        if is_first:
            self._save(model)
        else:
            self._restore(model)
        with _changing(scope.mutable):
            out = _method_of(model, nnx_method)(*args, **kwargs)
        if not is_first:
            self._save(model)
        return out

    def _make(self, streams: Iterable[str]) -> Module:
        if self.skip_rng:
            return self.nnx_class(*self.args, **self.kwargs)
        keys: dict[str, Any] = {name: self.make_rng(name) for name in streams}
        if not self.is_initializing():
            keys.setdefault("default", 0)
        return self.nnx_class(*self.args, **{**self.kwargs, "rngs": Rngs(**keys)})

    def _restore(self, model: Module) -> None:
        """Sets the Variables of a model that was made anew to those of the collections."""
        known = {path for path, _ in to_flat_state(state_of(model))}
        boxed = flatten_mapping(self.variables)
        values = {
            path[1:]: value.unbox() if isinstance(value, meta.AxisMetadata) else value for path, value in boxed.items()
        }
        unknown = ["/".join(map(str, path)) for path in values if path not in known]
        if unknown:
            warnings.warn(
                f"{self.nnx_class} has no Variables for these entries of the collections, which it does not read: "
                + ", ".join(unknown),
                stacklevel=2,
            )
        update(model, unflatten_mapping({path: value for path, value in values.items() if path in known}))

    def _save(self, model: Module) -> None:
        """Puts the Variables of a model into the collections that may change."""
        attributes = unflatten_mapping(to_flat_state(variables_of(model, Not(RngState))))
        for collection, content in nnx_attrs_to_linen_vars(attributes, self.metadata_fn).items():
            if self.is_mutable_collection(collection):
                for name, value in content.items():
                    self.put_variable(collection, name, value)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            arguments = vars(self).get("kwargs", {})
            if name in arguments:
                return arguments[name]
            method = getattr(vars(self).get("nnx_class"), name, None)
            if name.startswith("_") or not callable(method):
                return super().__getattr__(name)
            found = functools.partial(self.__call__, nnx_method=name)
            found.__self__ = self
            return found


@contextmanager
def _changing(mutable: Any) -> Generator[None]:
    token = _mutable.set(mutable)
    try:
        yield
    finally:
        _mutable.reset(token)


def _method_of(model: Module, method: Callable[..., Any] | str | None) -> Callable[..., Any]:
    found = getattr(model, method or "__call__", None) if method is None or isinstance(method, str) else method
    if not callable(found):
        raise errors.GraphError(
            f"{errors.type_name(type(model))}.{method}",
            "this is not a method of the model",
            got=errors.describe(found),
        )
    return found if isinstance(method, (str, type(None))) else functools.partial(found, model)
