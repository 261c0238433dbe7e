"""Modules: Pytrees that compute, and that can record intermediate values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, ClassVar, Final, TypeVar, get_origin, overload

import jax
import jax.numpy as jnp

from declax._classes.pytree import Pytree
from declax._filters import Filter, ask, predicate_of
from declax._graph import api
from declax._graph.binding import bind
from declax._graph.editing import attribute_changes, check_may_change
from declax._graph.flattening import GraphDef
from declax._graph.nodes import children_of, walk_nodes
from declax._graph.sown import put_sown
from declax._graph.updating import update
from declax._modes import is_graph
from declax._module.overridable import overridable, same_as
from declax._module.running import refuse_call, with_path
from declax._tree.attributes import class_attribute
from declax._tree.read_only import ReadOnly
from declax._typing import CAPTURES_KEY, ArrayLike, Path
from declax._variables.kinds import Intermediate, Perturbation, variable_type_from_name
from declax._variables.metadata import Metadata
from declax._variables.variable import Variable, new_variable
from declax.errors import GraphError, describe, type_name

A = TypeVar("A")
"""A type variable, for annotations."""
B = TypeVar("B")
M = TypeVar("M", bound="Module")
"""A type variable for a class of modules, for annotations."""


_CALL: Final = "__call__"


def first_from(*values: A | None, error_msg: str) -> A:
    """The first value that is not None; a GraphError with this message if all are None."""
    for value in values:
        if value is not None:
            return value
    raise GraphError("first_from", f"all values are None: {error_msg}")


def _append(kept: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    return (*kept, value)


@overload
def perturb(
    self: Module, name: str, value: ArrayLike, variable_type: type[Variable[Any]] | str = Perturbation
) -> jax.Array: ...
@overload
def perturb(self: Module, name: str, value: A, variable_type: type[Variable[Any]] | str = Perturbation) -> A: ...
def perturb(self: Module, name: str, value: Any, variable_type: type[Variable[Any]] | str = Perturbation) -> Any:
    """A value plus a Variable of zeros, which the first call creates.

    The gradient with respect to this Variable is the gradient of the value.

    Args:
      name: the attribute that holds the Variable.
      value: an array of any shape, or a tree of arrays.
      variable_type: the kind of the Variable, or its registered name.

    Raises:
      GraphError: the attribute holds something else.

    >>> import declax as dx
    >>> import jax.numpy as jnp
    >>> m = dx.Module()
    >>> float(m.perturb("grad_of_x", jnp.float32(2)))
    2.0
    """
    kind = _sown_kind(self, "perturb", name, variable_type)
    holder = _holder_of(self)
    if not hasattr(holder, name):
        put_sown(holder, name, kind(jax.tree.map(jnp.zeros_like, value)))
    added = _own_variable(self, name, kind, "perturb").get_value()
    shapes = jax.tree.map(jnp.shape, added)
    if holder is not self and shapes != jax.tree.map(jnp.shape, value):
        raise GraphError(
            f"{type_name(type(self))}.{name}",
            "the shapes of the perturbation and of the value differ",
            expected=str(jax.tree.map(jnp.shape, value)),
            got=str(shapes),
            fix="_, init = dx.capture(fn, dx.Perturbation)(model, ...)        # with inputs of this shape",
        )
    return jax.tree.map(jnp.add, added, value)


class Module(Pytree):
    """Base class of layers and models: a `Pytree` with methods for models.

    Raises:
      StatusError: for data in a static attribute.
      TraceContextError: for a change from another trace level.

    >>> import declax as dx
    >>> class Net(dx.Module):
    ...     def __init__(self, rngs: dx.Rngs):
    ...         self.up = dx.Linear(2, 4, rngs=rngs)
    ...         self.drop = dx.Dropout(0.5, rngs=rngs)
    ...     def __call__(self, x: jax.Array) -> jax.Array:
    ...         return self.drop(self.up(x))
    >>> net = Net(dx.Rngs(0))
    >>> net.eval()
    >>> net(jax.numpy.ones((3, 2))).shape
    (3, 4)
    """

    _pytree__is_module: ClassVar[bool] = True
    __annotations__.clear()  # as those of Pytree

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # By name: checkers take the assignment of an attribute for its declaration, and not each module has a call.
        if _CALL in cls.__dict__:
            setattr(cls, _CALL, with_path(cls.__dict__[_CALL]))
        elif isinstance(cls.__dict__.get("forward"), FunctionType) and class_attribute(cls, _CALL) is None:
            setattr(cls, _CALL, refuse_call)

    @overridable
    def sow(
        self,
        variable_type: type[Variable[Any]] | str,
        name: str,
        value: A,
        reduce_fn: Callable[[Any, A], Any] = _append,
        init_fn: Callable[[], Any] = tuple,
    ) -> bool:
        """Keeps a value in a Variable of this module, and returns True.

        Args:
          variable_type: the kind of the Variable, or its registered name.
          name: the attribute that holds it.
          value: the value.
          reduce_fn: combines the kept and the new value; by default, appends to a tuple.
          init_fn: makes the kept value before the first call.

        Raises:
          GraphError: the attribute holds something else.

        >>> import declax as dx
        >>> m = dx.Module()
        >>> m.sow(dx.Intermediate, "seen", 1), m.sow(dx.Intermediate, "seen", 2)
        (True, True)
        >>> m.seen.value
        (1, 2)
        """
        kind = _sown_kind(self, "sow", name, variable_type)
        holder = _holder_of(self)
        if not hasattr(holder, name):
            put_sown(holder, name, kind(reduce_fn(init_fn(), value)))
            return True
        variable = _own_variable(self, name, kind, "sow")
        variable.set_value(reduce_fn(variable.get_value(), value))
        return True

    # With `self` annotated, mypy binds it by the type of the function also where it reads this class from its cache.

    @overridable
    @same_as(perturb)
    def perturb(self: Module) -> None: ...

    @overridable
    @same_as(api.split)
    def split(self: Module) -> None: ...

    @overridable
    @same_as(api.state)
    def get_state(self: Module) -> None: ...

    @overridable
    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `update` with this module as the node, and with the same parameters.

        The results of `split` can be passed unchanged: a GraphDef must be the module's own. A subclass may define a
        method of this name with other parameters.

        Raises:
          GraphError: as `update`; a GraphDef has another structure.

        >>> import declax as dx
        >>> m = dx.Module()
        >>> m.scale = dx.Param(2.0)
        >>> graphdef, state = m.split()
        >>> m.update(graphdef, dx.State({"scale": dx.Param(3.0)}))
        >>> m.scale.value
        3.0
        """
        own = api.graphdef(self, graph=True)
        for other in args:
            if isinstance(other, GraphDef) and other is not own:
                raise GraphError(
                    f"{type_name(type(self))}.update",
                    "this GraphDef is not the module's own, and update does not change the structure",
                    expected=repr(own),
                    got=repr(other),
                    fix="model = graphdef.merge(state)",
                )
        return update(self, *(other for other in args if not isinstance(other, GraphDef)), **kwargs)

    @overridable
    def iter_modules(self) -> Iterator[tuple[Path, Module]]:
        """All modules inside of this one and itself, as the function `iter_modules`."""
        return iter_modules(self)

    @overridable
    def iter_children(self) -> Iterator[tuple[Any, Module]]:
        """The modules that are attributes of this one, as the function `iter_module_children`."""
        return iter_module_children(self)

    @overridable
    def set_attributes(
        self, *filters: Filter, raise_if_not_found: bool = True, graph: bool | None = None, **attributes: Any
    ) -> None:
        """Sets attributes of all modules inside that have them; on an error, nothing changes.

        Args:
          *filters: which modules; without filters, all.
          raise_if_not_found: whether a name that no module has is an error.
          graph: False if the module must be a tree; None for the default of `set_graph_mode`.
          **attributes: the new values.

        Raises:
          GraphError: no module has an attribute of this name, or a module is frozen.
          StatusError: data in a static attribute.
          TraceContextError: a module belongs to another trace level.

        >>> import declax as dx
        >>> m = dx.Module()
        >>> m.rate = 0.1
        >>> m.set_attributes(rate=0.5)
        >>> m.rate
        0.5
        """
        predicates = [predicate_of(f, f"set_attributes, filter {i}") for i, f in enumerate(filters or (True,))]
        chosen = [m for path, m in iter_modules(self, graph=graph) if any(ask(p, path, m) for p in predicates)]
        where = type_name(type(self))
        changes = attribute_changes(chosen, attributes, where, must_exist=raise_if_not_found)
        for module, name, _ in changes:
            check_may_change(module, name)
        for module, name, value in changes:
            setattr(module, name, value)

    @overridable
    def train(self, **attributes: Any) -> None:
        """Sets ``deterministic`` and ``use_running_average`` to False, and `attributes`, in all modules with them."""
        mode = {"deterministic": False, "use_running_average": False, **attributes}
        Module.set_attributes(self, raise_if_not_found=False, **mode)

    @overridable
    def eval(self, **attributes: Any) -> None:
        """Sets ``deterministic`` and ``use_running_average`` to True, and `attributes`, in all modules with them."""
        mode = {"deterministic": True, "use_running_average": True, **attributes}
        Module.set_attributes(self, raise_if_not_found=False, **mode)


# Programs of NNX give these names to attributes: parts that split or update something, and a flag of training.
Module._pytree__info.reserved -= {"split", "get_state", "update", "train", "eval"}


def iter_modules(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Module]]:
    """The paths and modules of a graph, each module once, children first.

    Args:
      node: a model, or a container of models.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    >>> import declax as dx
    >>> m = dx.Module()
    >>> m.part = dx.Module()
    >>> [path for path, _ in dx.iter_modules(m)], [name for name, _ in dx.iter_module_children(m)]
    ([('part',), ()], ['part'])
    """
    if not is_graph(graph):
        bind(node, graph)
    return ((path, found) for path, found in walk_nodes(node) if isinstance(found, Module))


def iter_module_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Module]]:
    """The modules directly inside of a node, each with its key; arguments and example as of `iter_modules`."""
    if not is_graph(graph):
        bind(node, graph)
    return ((key, child) for key, child in children_of(node) if isinstance(child, Module))


# --- what modules sow ------------------------------------------------------------


class Captures(Pytree):
    """The Variables that one module sows during a captured call, by name.

    It is an attribute of the module, so transforms carry it along, and compiled functions trace a captured call
    separately. A State refers to it, under a Variable of the first of its `__kinds__`, which filters see.

    As a sequence, it has one read-only Variable for each kind, whose value is a dict by name.
    """

    def __init__(self, kinds: Sequence[type[Variable[Any]]], method_outputs: type[Variable[Any]] | None = None) -> None:
        self.__kinds__ = tuple(kinds)
        if method_outputs is not None:
            self.__method_outputs__ = method_outputs

    def variables(self) -> dict[str, Variable[Any]]:
        """The Variables, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Variable)}

    def __len__(self) -> int:
        return len(self.__kinds__)

    @overload
    def __getitem__(self, index: int) -> Variable[dict[str, Any]]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Variable[dict[str, Any]], ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        contents: list[dict[str, Any]] = [{} for _ in self.__kinds__]
        for name, variable in self.variables().items():
            position = position_of(variable, self.__kinds__)
            if position is not None:
                contents[position][name] = variable.raw_value
        pairs = zip(self.__kinds__, contents, strict=True)
        return tuple(new_variable(kind, content, Metadata.EMPTY, _SOWN) for kind, content in pairs)[index]

    def __iter__(self) -> Iterator[Variable[dict[str, Any]]]:
        return iter(self[:])


_SOWN: Final = ReadOnly(
    "what a module has sown",
    why="it is a copy: the captured call would not see the change",
    fix="self.sow(dx.Intermediate, name, value)",
)


def position_of(variable: Variable[Any], kinds: Sequence[type[Variable[Any]]]) -> int | None:
    """The index of the kind of a Variable, or else of its first base class; see `capture`."""
    own = type(variable)
    if own in kinds:
        return kinds.index(own)
    hidden = Intermediate if issubclass(own, Perturbation) else None
    return next((i for i, kind in enumerate(kinds) if issubclass(own, kind) and kind is not hidden), None)


def _holder_of(module: Any) -> Any:
    """The module's `Captures` during a captured call, otherwise the module."""
    return module.__dict__.get(CAPTURES_KEY, module)


def _sown_kind(module: object, method: str, name: object, variable_type: Any) -> type[Variable[Any]]:
    """The kind of Variable that a call of `sow` or `perturb` names."""
    if isinstance(variable_type, str):
        return variable_type_from_name(variable_type, allow_register=True)
    kind: Any = get_origin(variable_type) or variable_type
    if not (isinstance(kind, type) and issubclass(kind, Variable)):
        raise GraphError(
            f"{type_name(type(module))}.{name}",
            "this is not a kind of Variable",
            expected="a subclass of dx.Variable, or its registered name",
            got=describe(variable_type),
            fix=f"self.sow(dx.Intermediate, {name!r}, value)" if method == "sow" else f"self.perturb({name!r}, value)",
        )
    return kind


def _own_variable(module: object, name: str, kind: type[Variable[Any]], method: str) -> Variable[Any]:
    """The Variable of a kind that a module has under a name."""
    found = getattr(_holder_of(module), name)
    if isinstance(found, kind):
        return found
    raise GraphError(
        f"{type_name(type(module))}.{name}",
        f"the attribute holds something else than {method} expects",
        expected=f"no attribute, or a Variable of the kind {type_name(kind)}",
        got=describe(found),
        fix=f"self.{method}(..., {name + '_'!r}, ...)",
    )
