"""Modules: Pytrees that compute, with ways to record what happens inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import jax
import jax.numpy as jnp

from declax._classes.pytree import Pytree
from declax._filters import Filter, ask, predicate_of
from declax._graph import api
from declax._graph.binding import bind
from declax._graph.editing import attribute_changes, check_may_change
from declax._graph.flattening import GraphDef
from declax._graph.nodes import children_of, walk_nodes
from declax._graph.updating import update
from declax._modes import is_graph
from declax._module.sowing import holder_of, own_variable, sown_kind
from declax._typing import ArrayLike, Path
from declax._variables.variable import Perturbation, Variable
from declax.errors import GraphError, type_name

A = TypeVar("A")
B = TypeVar("B")


def _append(kept: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    return (*kept, value)


class Module(Pytree):
    """Base of layers and models.

    >>> class Double(Module):
    ...     def __call__(self, x):
    ...         return 2 * x
    >>> Double()(3)
    6
    """

    if TYPE_CHECKING:  # most modules are called, and each has parameters of its own

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def sow(
        self,
        variable_type: type[Variable[Any]] | str,
        name: str,
        value: A,
        reduce_fn: Callable[[Any, A], Any] = _append,
        init_fn: Callable[[], Any] = tuple,
    ) -> bool:
        """Keeps a value in a Variable of this module.

        Args:
          variable_type: the kind of the Variable, or its registered name.
          name: the attribute that holds it.
          value: what to keep.
          reduce_fn: combines what is kept with the new value; appends to a
            tuple unless given.
          init_fn: makes what is kept before the first value.

        Returns:
          True: the value was kept.

        Raises:
          GraphError: where the attribute is something else.

        >>> from declax._variables.variable import Intermediate
        >>> m = Module()
        >>> m.sow(Intermediate, "seen", 1), m.sow(Intermediate, "seen", 2)
        (True, True)
        >>> m.seen.value
        (1, 2)
        """
        kind = sown_kind(self, "sow", name, variable_type)
        holder = holder_of(self)
        if not hasattr(holder, name):
            setattr(holder, name, kind(reduce_fn(init_fn(), value)))
            return True
        variable = own_variable(self, name, kind, "sow")
        variable.set_value(reduce_fn(variable.get_value(), value))
        return True

    @overload
    def perturb(
        self, name: str, value: ArrayLike, variable_type: type[Variable[Any]] | str = Perturbation
    ) -> jax.Array: ...
    @overload
    def perturb(self, name: str, value: A, variable_type: type[Variable[Any]] | str = Perturbation) -> A: ...
    def perturb(self, name: str, value: Any, variable_type: type[Variable[Any]] | str = Perturbation) -> Any:
        """Adds a Variable of zeros to a value, made at the first call.

        Differentiating with respect to that Variable gives the gradient of the
        value.

        Args:
          name: the attribute that holds the Variable.
          value: an array of any shape, or a tree of arrays.
          variable_type: the kind of the Variable, or its registered name.

        Returns:
          The value plus the Variable.

        Raises:
          GraphError: where the attribute is something else.

        >>> m = Module()
        >>> float(m.perturb("grad_of_x", jnp.float32(2)))
        2.0
        """
        kind = sown_kind(self, "perturb", name, variable_type)
        holder = holder_of(self)
        if not hasattr(holder, name):
            setattr(holder, name, kind(jax.tree.map(jnp.zeros_like, value)))
        added = own_variable(self, name, kind, "perturb").get_value()
        shapes = jax.tree.map(jnp.shape, added)
        if holder is not self and shapes != jax.tree.map(jnp.shape, value):
            raise GraphError(
                f"{type_name(type(self))}.{name}",
                "the perturbation has another shape than the value that it is added to",
                expected=str(jax.tree.map(jnp.shape, value)),
                got=str(shapes),
                fix="_, init = dx.capture(fn, dx.Perturbation)(model, ...)        # with inputs of this shape",
            )
        return jax.tree.map(jnp.add, added, value)

    if TYPE_CHECKING:
        split: Final = api.split  # at run time, an annotation would declare a field
        get_state: Final = api.state
    else:
        split = api.split
        get_state = api.state

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Puts values into the module: `update` with this module as the node.

        A GraphDef among the arguments has to be the module's own: so that what
        `split` gave can be handed back as it is.

        Its parameters are those of `update`. They are not spelt out, so that a
        module may have a method of this name with other parameters.

        Raises:
          GraphError: as `update`; and for a GraphDef of another structure.

        >>> from declax._variables.variable import Param
        >>> from declax._state.states import State
        >>> m = Module()
        >>> m.scale = Param(2.0)
        >>> graphdef, state = m.split()
        >>> m.update(graphdef, State({"scale": Param(3.0)}))
        >>> m.scale.value
        3.0
        """
        own = api.graphdef(self, graph=True)
        for other in args:
            if isinstance(other, GraphDef) and other is not own:
                raise GraphError(
                    f"{type_name(type(self))}.update",
                    "the GraphDef is not the module's own, and update changes no structure",
                    expected=repr(own),
                    got=repr(other),
                    fix="model = graphdef.merge(state)",
                )
        return update(self, *(other for other in args if not isinstance(other, GraphDef)), **kwargs)

    def iter_modules(self) -> Iterator[tuple[Path, Module]]:
        """All modules inside of this one and itself, each once, children first.

        >>> m = Module()
        >>> m.part = Module()
        >>> [path for path, _ in m.iter_modules()]
        [('part',), ()]
        """
        return iter_modules(self)

    def iter_children(self) -> Iterator[tuple[Any, Module]]:
        """The modules that are attributes of this one, by name.

        >>> m = Module()
        >>> m.part = Module()
        >>> [name for name, _ in m.iter_children()]
        ['part']
        """
        return iter_module_children(self)

    def set_attributes(self, *filters: Filter, raise_if_not_found: bool = True, **attributes: Any) -> None:
        """Sets attributes of all modules inside that have them.

        Args:
          *filters: which modules; all where none is given.
          raise_if_not_found: whether a name that no module has is an error.
          **attributes: the new values.

        Raises:
          GraphError: for a name that none of the modules has, and for a frozen
            module; no module is changed then.
          StatusError: for data in a static attribute; likewise.
          TraceContextError: for a module of another trace level; likewise.

        >>> m = Module()
        >>> m.rate = 0.1
        >>> m.set_attributes(rate=0.5)
        >>> m.rate
        0.5
        """
        predicates = [predicate_of(f, f"set_attributes, filter {i}") for i, f in enumerate(filters or (True,))]
        chosen = [m for path, m in self.iter_modules() if any(ask(p, path, m) for p in predicates)]
        where = type_name(type(self))
        changes = attribute_changes(chosen, attributes, where, must_exist=raise_if_not_found)
        for module, name, _ in changes:
            check_may_change(module, name)
        for module, name, value in changes:
            setattr(module, name, value)

    def train(self, **attributes: Any) -> None:
        """Sets ``deterministic`` and ``use_running_average`` to False inside.

        Args:
          **attributes: further attributes to set, as in `set_attributes`.
        """
        mode = {"deterministic": False, "use_running_average": False, **attributes}
        self.set_attributes(raise_if_not_found=False, **mode)

    def eval(self, **attributes: Any) -> None:
        """Sets ``deterministic`` and ``use_running_average`` to True inside.

        Args:
          **attributes: further attributes to set, as in `set_attributes`.
        """
        mode = {"deterministic": True, "use_running_average": True, **attributes}
        self.set_attributes(raise_if_not_found=False, **mode)


def iter_modules(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Module]]:
    """All modules of a graph, each once, children first.

    Args:
      node: a model, or a container of models.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Yields:
      Paths and modules.

    >>> [path for path, _ in iter_modules([Module()])]
    [(0,)]
    """
    if not is_graph(graph):
        bind(node, graph)
    return ((path, found) for path, found in walk_nodes(node) if isinstance(found, Module))


def iter_module_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Module]]:
    """The modules directly inside of a node, by key.

    Args:
      node: a node, or a container of nodes.
      graph: False if the node must be a tree; None for the default of `set_graph_mode`.

    Yields:
      Keys and modules.

    >>> list(iter_module_children(Module()))
    []
    """
    if not is_graph(graph):
        bind(node, graph)
    return ((key, child) for key, child in children_of(node) if isinstance(child, Module))
