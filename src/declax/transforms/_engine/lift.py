"""The engine of all transforms: JAX sees flat leaves, users see objects.

A `Call` flattens the arguments and captures. `lifted` rebuilds objects inside of the JAX transform, calls the user's
function, and returns its results and changes as an `Outcome`, which `commit` applies to the caller's objects.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import types
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import compress
from operator import attrgetter, is_, not_
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, SupportsIndex, overload

import jax
from jax.core import Tracer
from typing_extensions import TypeVar

from declax import _jax
from declax._fields.snapshots import exact_types
from declax._graph.binding import Binding, bind, bind_and_read, bind_many, check_mode
from declax._graph.differences import first_differing, leaves_of_objects, paths_of_objects
from declax._graph.flattening import GraphDef, Walk, walk
from declax._graph.nodes import is_ref
from declax._graph.sown import graph_without_sown, sown_attributes
from declax._graph.unflattening import (
    StructureChange,
    apply_change,
    blueprint_of,
    build_slots,
    check_trace_tokens,
    publish,
)
from declax._module.running import note_copy
from declax._tree import epoch
from declax._tree.epoch import committing
from declax._variables import uncaptured_reads
from declax._variables.variable import set_all_raw
from declax.errors import TransformError, describe
from declax.transforms._engine.captures import Captures, Closure, RebuiltClosure
from declax.transforms._engine.structure import (
    Mode,
    Statics,
    Structure,
    Trace,
    check_arguments_depth,
    check_returned,
    check_states_kept,
    contents_of_states,
    explain,
    flatten,
    is_array_like,
    is_leaf,
    is_root,
    name_path,
    name_plain,
    no_array,
    parameters,
    which_are_roots,
)

if TYPE_CHECKING:
    from declax.transforms._engine.prefixes import Labels


F = TypeVar("F")
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", default=Any)  # which mypy takes where a method returns Self; it would take Never
T = TypeVar("T")

_trace_state = _jax.trace_state


class Call:
    """The arguments of one call, flattened.

    Attributes:
      roots: the models; empty in a call that was like an earlier one.
      values: the raw values of the graph's leaves.
      plain: the other leaves.
      captures: the captures of the function; None before the search.
    """

    __slots__ = ("binding", "captures", "plain", "roots", "structure", "values")

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mode: Mode = Mode(),  # noqa: B008  # immutable
        captures: Captures | None = None,
        statics: Statics | None = None,
    ) -> None:
        self.captures: Captures | None = captures
        captured: tuple[Any, ...] = () if captures is None else captures.values
        key = None if captures is None else captures.key
        check_arguments_depth(args, kwargs)
        leaves, tree = flatten((args, kwargs, captured))
        pattern = which_are_roots(leaves)
        self.roots: tuple[Any, ...] = tuple(compress(leaves, pattern))
        self.plain: list[Any] = list(compress(leaves, map(not_, pattern))) if self.roots else leaves
        self.binding: Binding = NO_ROOTS
        self.values: list[Any] = []
        if self.roots:
            self.binding, values = bind_and_read(bind_many, self.roots)
            if not mode.graph:  # a captured argument counts once
                for part in (self.roots[: len(self.roots) - len(captured)], *((root,) for root in captured)):
                    check_mode(bind_many(part).graphdef, False)
            self.values = list(values)
        self.structure: Structure = Structure(tree, pattern, self.binding.graphdef, key, statics)

    @staticmethod
    def from_binding(structure: Structure, binding: Binding, values: Iterable[Any], plain: Iterable[Any]) -> Call:
        """A call with the roots of an earlier one, whose binding was valid when its values were read."""
        call: Call = object.__new__(Call)
        call.structure = structure
        call.binding = binding
        call.values = list(values)
        call.plain = list(plain)
        call.captures = None
        call.roots = ()
        return call

    def check_arrays(self, labels: Sequence[Any] | None = None) -> Call:
        """Checks that all leaves in no model are arrays or numbers, or have the label None; returns the call."""
        if all(map(is_leaf, self.plain)):
            return self
        labels = [...] * len(self.plain) if labels is None else labels
        for name, leaf, label in zip(name_plain(self.structure), self.plain, labels, strict=True):
            if label is not None and not is_array_like(leaf):
                argument = name if name.isidentifier() else "..."
                fix = f'dx.jit(f, static_argnames="{argument}")        # or read it from the closure, as a constant'
                raise no_array(name, leaf, fix)
        return self

    @property
    def leaves(self) -> list[Any]:
        """All leaves: those of the graph, then the plain ones."""
        return [*self.values, *self.plain]

    def trace(self) -> Trace:
        """The structure, and the shapes and dtypes of all leaves."""
        return Trace.of(self.structure, self.leaves)


_PAIR: Final = walk(((), ())).tokens[0]
"""The token of a tuple of two."""

NO_ROOTS: Final = bind_many(())
"""The binding of a call without models."""


class Rebuilt:
    """The arguments inside of a transform, and what takes the place of captures, made anew from all leaves."""

    __slots__ = ("_leaves", "_objects", "_roots", "_structure", "_values", "args", "captured", "kwargs")

    def __init__(self, structure: Structure, leaves: Sequence[Any]) -> None:
        count = structure.num_leaves
        self._structure = structure
        self._leaves = leaves
        self._values = leaves[:count]
        blueprint = blueprint_of(structure.graphdef)
        slots = build_slots(structure.graphdef, self._values)
        self._roots: tuple[Any, ...] = slots[blueprint.root]
        self._objects: list[Any] = [slots[i] for i in blueprint.indexed]
        roots, rest = iter(self._roots), iter(leaves[count:])
        parts = [next(roots) if is_one else next(rest) for is_one in structure.is_root]
        self.args, self.kwargs, self.captured = jax.tree_util.tree_unflatten(structure.tree, parts)

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function with some of the rebuilt objects."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            note_copy(error, self._objects)
            raise

    def apply(self, outcome: Outcome) -> Any:
        """The result of a function, with its outcome applied to these objects instead of the caller's."""
        return apply(outcome, self._objects, self._leaves)

    def conclude(self, output: Any, mode: Mode, labels: Labels | None = None, donated: Collection[int] = ()) -> Outcome:
        """The results and changes of the user's function; what is donated, or moves to another label, counts as new."""
        found = Walk()
        found.visit(self._roots)
        is_same = found.graphdef is self._structure.graphdef and all(map(is_, found.objects, self._objects))
        if not is_same and not mode.updates:
            after, objects = graph_without_sown(self._roots, found.objects)
            replaced = [a is not b for a, b in zip(objects, self._objects, strict=False)]
            if after is not self._structure.graphdef or True in replaced:
                raise _structure_changed(self._structure, after, replaced)
        leaves, tree = jax.tree_util.tree_flatten(output, is_leaf=is_root)
        pattern = [
            is_one or self._is_ref_of_call(leaf) for is_one, leaf in zip(which_are_roots(leaves), leaves, strict=True)
        ]
        has_roots = True in pattern
        if has_roots and not mode.returns:
            carried = () if labels is None else labels.carried(tree)
            check_returned(self._structure, self._objects, leaves, tree, mode, carried)
        if is_same and not has_roots:
            values = found.read()
            pairs = enumerate(zip(values, self._values, strict=True))
            changed = tuple(i for i, (new, old) in pairs if i in donated or not is_same_value(new, old))
            if not any(map(found.is_in_container, changed)) and not any(is_ref(values[i]) for i in changed):
                if not changed and labels is None:
                    return Outcome(UNCHANGED, (), output)
                found_labels = () if labels is None else [labels.leaves[i] for i in changed] + labels.of_results(tree)
                plan = Plan(changed, tree=tree, labels=found_labels)
                return Outcome(plan, tuple(values[i] for i in changed), output)
        return self._conclude_structural(found, leaves, tree, labels, tuple(pattern), donated)

    def _is_ref_of_call(self, leaf: Any) -> bool:
        """Whether a value is a ref that the function has got or made; JAX can return neither."""
        return is_ref(leaf) and (_jax.is_of_current_trace(leaf) or any(leaf is given for given in self._leaves))

    def _conclude_structural(
        self,
        found: Walk,
        leaves: list[Any],
        tree: Any,
        labels: Labels | None,
        pattern: tuple[bool, ...],
        donated: Collection[int],
    ) -> Outcome:
        """As `conclude`, for the graph of the roots and of the result."""
        found.visit(tuple(compress(leaves, pattern)))
        found.tokens.insert(0, _PAIR)
        given = [(i, value) for i, value in enumerate(self._values) if i not in donated and isinstance(value, Tracer)]
        given += [(i, value) for i, value in enumerate(self._leaves) if is_ref(value)]
        inputs = {id(value): i for i, value in given}
        values = found.read()
        kept = [inputs.get(id(value), -1) for value in values]
        ranks = {id(o): i for i, o in enumerate(self._objects)}
        origins = tuple(ranks.get(id(o), -1) for o in found.objects)
        change = StructureChange(found.graphdef, (), origins, tuple(sown_attributes(found.objects)))
        for place, leaf in leaf_origins(self._structure, change).items():
            if leaf not in donated and is_same_value(values[place], self._values[leaf]):
                kept[place] = leaf
        change = change._replace(kept=tuple(kept))
        of_results: Sequence[Any] = ()
        if labels is not None:
            of_graph, of_plain = labels.of_change(change, values, pattern, tree)
            change = change._replace(kept=labels.keep(change.kept, of_graph, values))
            of_results = [label for label, i in zip(of_graph, change.kept, strict=True) if i < 0] + of_plain
        added = [position for position, i in enumerate(change.kept) if i < 0]
        times = Counter(map(id, values))
        made = [i for i in added if self._is_ref_of_call(values[i]) and times[id(values[i])] == 1]
        for position in made:
            values[position] = jax.freeze(values[position])
        change = change._replace(refs=tuple(made))
        new = tuple(values[position] for position in added)
        plain = [leaf for leaf, is_one in zip(leaves, pattern, strict=True) if not is_one]
        return Outcome(Plan((), change, tree, pattern, of_results), new, plain)


def _structure_changed(structure: Structure, after: GraphDef[Any], replaced: Sequence[bool]) -> TransformError:
    found = first_differing(structure.graphdef, after)
    path: Any = found.path
    if not path and True in replaced:  # another object of the same structure
        path = paths_of_objects(structure.graphdef)[replaced.index(True)]
    return TransformError(
        name_path(structure, path) if path else "the arguments",
        "the function changes the structure of its arguments here, and changes of structure do not come back",
        why="graph_updates=False (or graph=False, or a default) forbids changes of structure",
        **found.details("graph_updates=True        # or undo the change before the function returns, as by dx.pop"),
    )


def is_same_value(a: Any, b: Any) -> bool:
    """Whether a raw value is the one that went in, looking into containers."""
    if a is b:
        return True
    if isinstance(a, jax.Array) or isinstance(b, jax.Array):
        return False
    flat: list[Any] = [jax.tree_util.tree_flatten(value) for value in (a, b)]
    (leaves_a, tree_a), (leaves_b, tree_b) = flat
    return tree_a == tree_b and all(map(is_, leaves_a, leaves_b))


def leaf_origins(structure: Structure, change: StructureChange) -> dict[int, int]:
    """For each leaf of a changed graph that the call has too, its position there."""
    before, after = leaves_of_objects(structure.graphdef), leaves_of_objects(change.graphdef)
    found = {leaf: before[change.origins[index]] for index, leaf in after.items() if change.origins[index] >= 0}
    of_objects = set(after.values())
    for leaf, path in enumerate(change.graphdef.definition.paths):
        if path[0] == 0 and leaf not in of_objects:
            origin = structure.graphdef.definition.position(path[1:])
            if origin is not None:
                found[leaf] = origin
    return found


class Plan:
    """The static half of an Outcome; made while tracing, used at each call. To JAX, a tree without leaves.

    Attributes:
      changed: positions of leaves that got new values, where nothing else changed.
      change: the new structure, if it changed or if roots are returned.
      tree, is_root: of the output; unknown if nothing reads them.
      labels: of the arrays, if they have any: the new values, then the output.
      calls_back: whether the program calls Python while it runs; None if that is not known yet.
    """

    __slots__ = ("calls_back", "change", "changed", "flat", "is_root", "labels", "tree")

    def __init__(
        self,
        changed: tuple[int, ...],
        change: StructureChange | None = None,
        tree: Any = None,
        is_root: tuple[bool, ...] = (),
        labels: Sequence[Any] = (),
    ) -> None:
        self.changed: tuple[int, ...] = changed
        self.labels: Sequence[Any] = labels
        self.change: StructureChange | None = change
        self.tree: Any = tree
        self.is_root: tuple[bool, ...] = is_root
        self.calls_back: bool | None = None
        self.flat: tuple[tuple[()], _Key] = (), _Key({(): self})


class _Key(dict[tuple[()], Plan]):
    """A plan in a treedef, found under its children, of which it has none; compares by identity."""

    __slots__ = ()
    __hash__: ClassVar[Any] = object.__hash__
    __eq__: ClassVar[Any] = object.__eq__


# JAX asks at each call of a compiled function; so both return without a Python frame.
_from_key: Callable[[Any, Any], Any] = dict.get
jax.tree_util.register_pytree_node(Plan, attrgetter("flat"), _from_key)

UNCHANGED = Plan(())


class Outcome:
    """The result of a traced function: a pytree whose static part is the plan."""

    __slots__ = ("new", "output", "plan")

    def __init__(self, plan: Plan, new: Any, output: Any) -> None:
        self.plan: Plan = plan
        self.new: Any = new
        self.output: Any = output

    def parts(self) -> tuple[Plan, Any, Any]:
        """The parts from which it is made."""
        return self.plan, self.new, self.output


jax.tree_util.register_dataclass(Outcome, data_fields=["new", "output"], meta_fields=["plan"])


CONFLICT: Final = object()
"""The result of a commit that wrote nothing: another thread wrote first, so the call runs again."""


def commit(binding: Binding, read: Sequence[Any], result: tuple[Plan, Any, Any]) -> Any:
    """Writes the changes of a function to the caller's objects, all or none; returns its output, or `CONFLICT`.

    `read` are the leaves of the call.
    """
    plan, new, output = result
    if plan.change is None and not plan.changed:
        return output
    with committing:
        if not _is_current(binding, plan, read):
            return CONFLICT
        if plan.change is not None:
            return apply(Outcome(*result), binding.objects(), read)
        write(binding, plan.changed, new)
    return output


def apply(outcome: Outcome, objects: Sequence[Any], values: Sequence[Any]) -> Any:
    """Gives the objects of a graph the structure and values of an outcome, and returns the function's output."""
    plan = outcome.plan
    if plan.change is None:
        return outcome.output
    slots = apply_change(plan.change, objects, values, outcome.new)
    _, returned = slots[blueprint_of(plan.change.graphdef).root]
    roots, plain = iter(returned), iter(outcome.output)
    leaves = [next(roots) if is_one else next(plain) for is_one in plan.is_root]
    return jax.tree_util.tree_unflatten(plan.tree, leaves)


def write(binding: Binding, changed: tuple[int, ...], new: Iterable[Any]) -> None:
    """Sets leaves of a graph whose structure is unchanged; sets none if some are of another trace level."""
    variables = binding.variables
    if len(changed) < len(variables):
        variables = binding.variables_at(changed)
    if binding.array_leaves is None:
        views = () if binding.trace_token is _trace_state.value else check_trace_tokens(variables)
        set_all_raw(variables, new)  # type: ignore[arg-type]  # none of them is None
        publish(views)
        return
    binding.array_leaves.write(changed, new)


def _is_current(binding: Binding, plan: Plan, read: Sequence[Any]) -> bool:
    """Whether the leaves that a call is about to set, or the whole graph if it changes that, are as they were read."""
    now = binding.read()
    if plan.change is not None:  # plain leaves follow in `read`
        return all(map(is_, now, read)) and (binding.is_valid() or _is_same_graph(binding, read))
    is_same = all(map(is_, map(now.__getitem__, plan.changed), map(read.__getitem__, plan.changed)))
    return is_same and (binding._token is epoch.token or _still_has(binding, plan.changed))


def _is_same_graph(binding: Binding, read: Sequence[Any]) -> bool:
    """Whether a graph still has its objects and leaves, those in containers too."""
    found = bind_many(_roots_of(binding))
    is_same = found.graphdef is binding.graphdef and all(map(is_, found.objects(), binding.objects()))
    return is_same and all(map(is_, found.read(), read))


def _still_has(binding: Binding, positions: Iterable[int]) -> bool:
    """Whether a graph still has the Variables and nodes of some leaves, so that a write to them is not lost."""
    now, before = bind_many(_roots_of(binding)).identities(), binding.identities()
    return {*map(before.__getitem__, positions)} <= {*now}


def _roots_of(binding: Binding) -> tuple[Any, ...]:
    blueprint = blueprint_of(binding.graphdef)
    known = dict(zip(blueprint.indexed, binding.objects(), strict=True))
    repeated = dict(blueprint.references)
    *_, (_, _, _, slots) = blueprint.containers  # the tuple of all roots is the outermost one
    return tuple([known[repeated.get(slot, slot)] for slot in slots])


def lifted(
    closure: Closure,
    structure: Structure,
    mode: Mode = Mode(),  # noqa: B008  # immutable
    labels: Labels | None = None,
    adapt: Callable[[Any], Callable[..., Any]] | None = None,
    donated: Collection[int] = (),
) -> Callable[..., Outcome]:
    """A function of the leaves of a call that rebuilds objects and calls the user's.

    `labels` are those of the call's leaves, if the results need labels; `adapt` turns the user's function into one of
    these arguments. Donated leaves of the graph count as set.
    """

    def call_on_leaves(*leaves: Any) -> Outcome:
        rebuilt = Rebuilt(structure, leaves)
        if structure.key is None or not structure.key.names:
            return call_user(closure.function, rebuilt)
        captures = structure.key.captures() or closure.find()  # those of the call, also after the function changed them
        with RebuiltClosure(captures, rebuilt.captured) as rebuilt_closure:
            outcome = call_user(rebuilt_closure.function, rebuilt)
            rebuilt_closure.conclude()  # last, since it changes what is outside
        return outcome

    def call_user(user: Callable[..., Any], rebuilt: Rebuilt) -> Outcome:
        function = user if adapt is None else adapt(user)
        states = contents_of_states((rebuilt.args, rebuilt.kwargs))
        with uncaptured_reads.body():
            output = rebuilt.call(function, *rebuilt.args, **rebuilt.kwargs)
            check_states_kept(states, output)
            return rebuilt.conclude(output, mode, labels, donated)

    return call_on_leaves


MAX_RUNS: Final = 1000
"""The number of runs with a conflict after which a call fails."""

wait: Callable[[Any], Any] = jax.block_until_ready  # without types
"""Waits until arrays are computed, so that a callback that fails does so before something is committed."""


def attempts() -> Iterator[None]:
    """The runs that a call may need, each after a conflict; raises TransformError after the last."""
    yield from itertools.repeat(None, MAX_RUNS)
    raise TransformError(
        "the call",
        f"other threads wrote what it is about to write during each of {MAX_RUNS} runs",
        why="a call with a conflict runs again, so that it does not overwrite what others wrote",
        fix="return the value that a callback of the function writes, and set it in the function",
    )


@_jax.with_short_tracebacks
def run(bind: Callable[[], Call], execute: Callable[[Call], Outcome]) -> Any:
    """Binds the arguments of a call, executes it and commits; again after a conflict."""
    output: Any = CONFLICT
    for _ in attempts():
        call = bind()
        try:
            outcome = execute(call)
        except Exception as error:
            explain(call, error)
            raise
        output = commit(call.binding, call.leaves, outcome.parts())
        if output is not CONFLICT:
            break
    return output


@_jax.with_short_tracebacks
def run_with(bind: Callable[[], Call], execute: Callable[[Call], tuple[Outcome, T]]) -> tuple[Any, T]:
    """As `run`, with something else that is made beside the outcome, and that does not go to the caller's models."""
    extra: list[T] = []

    def keep_extra(call: Call) -> Outcome:
        outcome, made = execute(call)
        extra[:] = [made]  # that of the last run
        return outcome

    output = run(bind, keep_extra)
    return output, extra[0]


def calls_back(jaxpr: Any) -> bool:
    """Whether a program of JAX calls Python while it runs, so that it may fail after its arrays were given back."""
    waiting = [jaxpr]
    while waiting:
        for equation in getattr(waiting.pop(), "eqns", ()):
            if equation.primitive.name == "debug_print" or "callback" in equation.primitive.name:
                return True
            for value in equation.params.values():
                waiting += value if isinstance(value, (list, tuple)) else (value,)
    return False


# --- arguments that an option selects ---------------------------------------------

Numbers = int | Sequence[int] | None
Names = str | Iterable[str] | None


class Selection:
    """Arguments that an option, as ``"static"``, selects by number or by name.

    Numbers that count from the end of ``*args`` are known with a call only.
    """

    def __init__(self, fun: Callable[..., Any], option: str, numbers: Numbers, names: Names) -> None:
        listed: Sequence[Any] = (numbers,) if isinstance(numbers, SupportsIndex) else tuple(numbers or ())
        self.names = (names,) if isinstance(names, str) else tuple(names or ())
        for number in listed:
            if not isinstance(number, SupportsIndex):
                raise TransformError(
                    f"{option}_argnums",
                    "this is not the number of a parameter",
                    expected="an int or several",
                    got=describe(number),
                    fix=f"{option}_argnames={number!r}" if isinstance(number, str) else f"{option}_argnums=0",
                )
        self.numbers: tuple[int, ...] = tuple(map(int, listed))
        self.is_empty: bool = not self.numbers and not self.names
        known = None if self.is_empty else parameters(fun)
        if known is None:
            return
        kinds = {parameter.kind for parameter in known.values()}
        positional = [name for name, p in known.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        count = len(positional)
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            by_name = [name for name, p in known.items() if p.kind is not p.POSITIONAL_ONLY]
            _check_known(f"{option}_argnames", "parameter", [n for n in self.names if n not in known], by_name)
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            unknown = [number for number in self.numbers if not -count <= number < count]
            _check_known(f"{option}_argnums", "positional parameter", unknown, dict(enumerate(positional)))
            self.numbers = tuple(number % count for number in self.numbers)
        places = {positional.index(name) for name in self.names if name in positional}
        self.names = (*self.names, *(positional[number] for number in self.numbers if 0 <= number < count))
        self.numbers = tuple(sorted({*self.numbers, *places}))

    def check_apart(self, donated: Selection) -> None:
        """Raises a TransformError where a static argument is donated too."""
        both = [name for name in self.names if name in donated.names]
        both = both or [str(number) for number in self.numbers if number in donated.numbers]
        if both:
            raise TransformError(
                f"argument {both[0]}",
                "it is static, and donated too",
                why="a static argument is a constant of the program, and has no buffer",
                fix="leave it out of donate_argnums and donate_argnames",
            )

    def take(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Statics | None]:
        """The other arguments, and the selected ones by number and name; None where none can be selected."""
        if self.is_empty:
            return args, kwargs, None
        numbers = self._numbers_among(args)
        by_number = tuple((i, args[i]) for i in numbers)
        by_name = tuple((n, kwargs[n]) for n in self.names if n in kwargs)
        for label, value in (*by_number, *by_name):
            try:
                hash(value)
            except TypeError:
                raise TransformError(
                    f"argument {label!r}",
                    "a static argument is not hashable",
                    got=describe(value),
                    fix="pass a tuple instead of a list, or leave it out of the static arguments",
                ) from None
            if is_root(value) and bind(value).graphdef.num_leaves:
                raise TransformError(
                    f"argument {label!r}",
                    "a model cannot be a static argument",
                    got=describe(value),
                    why="its values would be constants of the program",
                    fix="leave it out of the static arguments: what is static in a model is compiled in anyway",
                )
        rest = tuple(a for i, a in enumerate(args) if i not in numbers)
        statics = Statics(by_number, by_name, exact_types((by_number, by_name)))
        return rest, {n: v for n, v in kwargs.items() if n not in self.names}, statics

    def give(self, fun: Callable[..., Any], statics: Statics | None) -> Callable[..., Any]:
        """The function of the other arguments."""
        if statics is None:
            return fun

        def with_statics(*args: Any, **kwargs: Any) -> Any:
            listed = list(args)
            for index, value in statics.by_number:
                listed.insert(index, value)
            return fun(*listed, **kwargs, **dict(statics.by_name))

        return with_statics

    def chosen(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The selected ones of given arguments."""
        return [args[i] for i in self._numbers_among(args)] + [v for n, v in kwargs.items() if n in self.names]

    def _numbers_among(self, args: Sequence[Any]) -> list[int]:
        """The positions that are selected in a call; as in JAX, it may leave some out."""
        places = {number + len(args) if number < 0 else number for number in self.numbers}
        return [place for place in sorted(places) if 0 <= place < len(args)]


def _check_known(option: str, what: str, unknown: Sequence[Any], known: Collection[Any]) -> None:
    for given in unknown:
        numbered = [f"{number} for {name!r}" for number, name in known.items()] if isinstance(known, dict) else known
        raise TransformError(
            option,
            f"the function has no {what} {given!r}",
            expected=", ".join(numbered) or f"none, since the function has no {what}s",
            fix=f"{option}={[*known][-1]!r}" if known else f"leave out {option}",
        )


MAX_PROGRAMS = 1024
"""How many structures one function keeps programs for; the oldest goes first."""


class Wrapped(Generic[P, R]):
    """A function that a transform has made of another; also usable as a method."""

    _transform: ClassVar[str]

    def __init__(self, function: Callable[P, R], mode: Mode, static: Selection | None = None) -> None:
        look_like(self, function)
        self._closure = Closure(function)
        self._mode = mode
        self._static = Selection(function, "static", None, None) if static is None else static
        self._forget()

    def __repr__(self) -> str:
        return f"{self._transform}({self._closure.user!r})"

    def _forget(self) -> None:
        """Drops the cached programs of the function."""

    def _over(self, closure: Closure) -> Self:
        """The same transform of another function."""
        made = copy.copy(self)
        made._closure = closure
        made._forget()
        return made

    def _bind_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        args, kwargs, statics = self._static.take(args, kwargs)
        return Call(args, kwargs, self._mode, self._closure.find(), statics)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self: Wrapped[Concatenate[T, Q], R], instance: T, owner: type | None = None) -> Callable[Q, R]: ...
    @overload
    def __get__(
        self: Wrapped[Concatenate[type[T], Q], R], instance: T, owner: type | None = None
    ) -> Callable[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[P, R]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        """The method of an instance."""
        function: Any = self  # which subclasses make callable
        return self if instance is None else types.MethodType(function, instance)


def program_for(programs: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """The program of a key, which is made if there is none; the oldest goes first."""
    program = programs.get(key)
    if program is None:
        while len(programs) >= MAX_PROGRAMS:
            programs.pop(next(iter(tuple(programs))), None)
        program = programs.setdefault(key, make())
    return program


def look_like(wrapper: F, function: Callable[..., Any]) -> F:
    """Gives a wrapper the name, docstring and signature of a function; of a model, those of its `__call__`."""
    made: Any = wrapper
    if is_root(function):
        made.__wrapped__ = type(function).__call__
        made.__name__ = made.__qualname__ = type(function).__name__
        made.__doc__ = type(function).__call__.__doc__
    else:
        functools.update_wrapper(made, function)
    return wrapper
