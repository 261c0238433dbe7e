"""A State that is being read and written through views, until somebody asks for its flat form.

Vocabulary
----------
draft:    the leaves of a State, the Variables that it has handed out, and what
          has been written since. Most States never have one.
box:      a Variable that was handed out; what is written into it belongs to
          the State, and is taken over when the State is settled.
settle:   take over what was written, so that leaves and definition are right.
position: the place of a leaf in the list of leaves.

A write changes a position, or the tree of positions, in steps that do not
depend on the size of the State; the flat form is made once, when it is asked
for. So a loop that writes n entries takes n steps, and not n times n.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

from declax._jax import current_trace
from declax._state_def import LeafDef, StateDef, in_order, insert
from declax._typing import MISSING, Key, Path
from declax._variables import Variable, new_variable
from declax.errors import (
    GraphError,
    MissingAttributeError,
    MissingKeyError,
    TraceContextError,
    describe,
    format_path,
    suggest,
)

LOCK: Final = threading.RLock()
"""Held where drafts are made, settled or written: threads may read one State."""

Tree = dict[Key, Any]
"""Positions of leaves in nested dicts by key."""

Entry = tuple[Path, Any, LeafDef]
"""A path, the raw value there, and the definition of its Variable."""


class Draft:
    """The open form of one State.

    Attributes:
      leaves: the raw values; what lies in a box counts more.
      boxes: the Variables that were handed out, by position.
    """

    __slots__ = ("_definition", "_has_new_paths", "_leaf_defs", "_tree", "boxes", "leaves")

    def __init__(self, leaves: list[Any], definition: StateDef) -> None:
        self.leaves = leaves
        self.boxes: dict[int, Variable[Any]] = {}
        self._definition = definition
        self._leaf_defs: list[LeafDef] | None = None  # as the definition has them
        self._tree: Tree | None = None  # that of the definition
        self._has_new_paths = False

    # --- reading

    @property
    def tree(self) -> Tree:
        """The positions by key; to be read only."""
        return self._definition.tree if self._tree is None else self._tree

    @property
    def is_tree_lasting(self) -> bool:
        """Whether the tree is an interned one, which never changes."""
        return self._tree is None

    def value(self, position: int, mark: Any) -> Any:
        """What reading gives: a raw value, or the box of a Variable, of the trace that the State belongs to."""
        leaf_def = (self._definition.leaf_defs if self._leaf_defs is None else self._leaf_defs)[position]
        if leaf_def is None:
            return self.leaves[position]
        box = self.boxes.get(position)
        if box is None:
            box = new_variable(leaf_def[0], self.leaves[position], leaf_def[1], mark)
            self.boxes[position] = box
        return box

    def settle(self) -> tuple[list[Any], StateDef]:
        """The leaves and the definition as of now."""
        for position, box in self.boxes.items():
            self.leaves[position] = box.raw_value
            self._note_kind(position, (type(box), box._metadata))
        if self._tree is not None:
            self._settle_paths()
        elif self._leaf_defs is not None:
            self._definition = StateDef.of(self._definition.paths, tuple(self._leaf_defs))
            self._leaf_defs = None
        return self.leaves, self._definition

    def _settle_paths(self) -> None:
        assert self._tree is not None and self._leaf_defs is not None  # noqa: PT018  # made together
        found = list(tree_leaves(self._tree))
        found = in_order(found) if self._has_new_paths else sorted(found, key=lambda leaf: leaf[1])
        positions = [position for _, position in found]
        definition = StateDef.of(tuple(path for path, _ in found), tuple(self._leaf_defs[i] for i in positions))
        moved = {old: new for new, old in enumerate(positions)}
        self.leaves = [self.leaves[i] for i in positions]
        self.boxes = {moved[i]: box for i, box in self.boxes.items()}
        self._definition, self._leaf_defs, self._tree, self._has_new_paths = definition, None, None, False

    # --- writing

    def put(self, position: int, leaf: Any, leaf_def: LeafDef) -> None:
        """Replaces a leaf; a Variable that was handed out for it is on its own from now on."""
        self.boxes.pop(position, None)
        self.leaves[position] = leaf
        self._note_kind(position, leaf_def)

    def _note_kind(self, position: int, leaf_def: LeafDef) -> None:
        leaf_defs = self._definition.leaf_defs if self._leaf_defs is None else self._leaf_defs
        if not same_kind(leaf_defs[position], leaf_def):
            if self._leaf_defs is None:
                self._leaf_defs = list(leaf_defs)
            self._leaf_defs[position] = leaf_def

    def replace(self, path: Path, entries: Sequence[Entry]) -> None:
        """Replaces all that is at a path or below by other leaves, which are at it or below.

        Raises:
          GraphError: for a path through a leaf, and for entries that contradict
            each other; nothing is changed.
        """
        self._check(path, [entry[0] for entry in entries])
        tree, leaf_defs = self._own()
        old = dict(tree_leaves(cut(tree, path), path))
        for entry_path, leaf, leaf_def in entries:
            position = old.pop(entry_path, None)
            if position is None:
                position = len(self.leaves)
                self.leaves.append(leaf)
                leaf_defs.append(leaf_def)
                self._has_new_paths = True
            else:
                self.put(position, leaf, leaf_def)
            insert(tree, entry_path, position)
        for position in old.values():
            self.boxes.pop(position, None)
            self.leaves[position] = None  # frees the array

    def _check(self, path: Path, added: list[Path]) -> None:
        node: Any = self.tree
        for depth, key in enumerate(path[:-1], 1):
            node = node.get(key, _EMPTY)
            if not isinstance(node, dict):
                raise GraphError(format_path(path), f"a path goes through the leaf at {format_path(path[:depth])}")
        if len(added) > 1:
            tree: Tree = {}
            for position, entry_path in enumerate(added):
                insert(tree, entry_path, position)

    def _own(self) -> tuple[Tree, list[LeafDef]]:
        """A tree, a list of leaves and one of kinds that may be changed."""
        if self._leaf_defs is None:
            self._leaf_defs = list(self._definition.leaf_defs)
        if self._tree is None:
            self.leaves = list(self.leaves)
            self._tree = copy_tree(self._definition.tree)
        return self._tree, self._leaf_defs


_EMPTY: Final[Tree] = {}


def same_kind(a: LeafDef, b: LeafDef) -> bool:
    """Whether two leaves are of one kind, with the same metadata."""
    return a is b or (a is not None and b is not None and a[0] is b[0] and a[1] is b[1])


class Place:
    """Where a nested view is: the State that holds the leaves, and the path there.

    Attributes:
      root: the State.
      prefix: the path.
    """

    __slots__ = ("_known", "prefix", "root")

    def __init__(self, root: Any, prefix: Path, known: tuple[Tree, Tree]) -> None:
        self.root = root
        self.prefix = prefix
        self._known = known  # a tree of the root, and what it has here

    @property
    def tree(self) -> Tree:
        """The positions below the view, by key; nothing where the State has no mapping there any more."""
        root = self.root
        tree, node = self._known
        draft = root._rest
        is_lasting = draft is None or (isinstance(draft, Draft) and draft.is_tree_lasting)
        now = root._tree()
        if is_lasting and now is tree:
            return node
        found: Any = now
        for key in self.prefix:
            found = found.get(key)
            if not isinstance(found, dict):
                found = {}
                break
        if is_lasting:
            self._known = now, found
        return found  # type: ignore[no-any-return]  # a dict, as just seen

    def settle(self) -> tuple[list[Any], StateDef]:
        """The leaves and the definition of the view as of now."""
        leaves, definition = self.root._pair
        own, positions = definition.sub(self.prefix) if self.tree else (StateDef.of((), ()), ())
        return [leaves[i] for i in positions], own


# --- trees of positions -------------------------------------------------------


def tree_leaves(tree: Any, prefix: Path = ()) -> Iterator[tuple[Path, int]]:
    """The path and the position of each leaf of a tree; of a position, itself."""
    if not isinstance(tree, dict):
        yield prefix, tree
        return
    keys: list[Key] = []
    levels = [iter(tree.items())]
    while levels:
        for key, value in levels[-1]:
            if isinstance(value, dict):
                keys.append(key)
                levels.append(iter(value.items()))
                break
            path = (*prefix, *keys, key)
            yield (() if path == ((),) and len(tree) == 1 else path), value
        else:
            levels.pop()
            if keys:
                keys.pop()


def copy_tree(tree: Tree) -> Tree:
    """The same positions in dicts of one's own."""
    made: Tree = {}
    open_levels = [(tree, made)]
    while open_levels:
        source, target = open_levels.pop()
        for key, value in source.items():
            if isinstance(value, dict):
                inner: Tree = {}
                target[key] = inner
                open_levels.append((value, inner))
            else:
                target[key] = value
    return made


def map_tree(tree: Tree, values: Sequence[Any]) -> dict[Any, Any]:
    """Nested dicts with the value at each position."""
    made: dict[Any, Any] = {}
    open_levels = [(tree, made)]
    while open_levels:
        source, target = open_levels.pop()
        for key, value in source.items():
            if isinstance(value, dict):
                inner: dict[Any, Any] = {}
                target[key] = inner
                open_levels.append((value, inner))
            else:
                target[key] = values[value]
    return made


def cut(tree: Tree, path: Path) -> Any:
    """Takes out what is at a path, and the dicts that this leaves empty; an empty dict where nothing is."""
    nodes = [tree]
    for key in path[:-1]:
        inner = nodes[-1].get(key)
        if not isinstance(inner, dict):
            return {}
        nodes.append(inner)
    found = nodes[-1].pop(path[-1], {})
    for depth in range(len(nodes) - 1, 0, -1):
        if nodes[depth]:
            break
        del nodes[depth - 1][path[depth - 1]]
    return found


# --- errors ---------------------------------------------------------------------

NAMED: Final = 20
"""How many keys an error names, and up to how many times ten a "did you mean" looks through."""


def no_key(path: Path, key: Key, tree: Tree) -> MissingKeyError:
    """The error of a path at which a State has nothing, given what it has beside it."""
    hint = nearest(str(key), tree)
    names = [str(name) for name in list(tree)[:NAMED]]
    more = [f"and {len(tree) - NAMED} more"] if len(tree) > NAMED else []
    return MissingKeyError(
        format_path(path),
        "the State has nothing at this path" + (f"; {hint}" if hint else ""),
        expected=", ".join([*names, *more]) or "nothing: the State is empty",
    )


def no_attribute(name: str, tree: Tree) -> MissingAttributeError:
    """The error of a name that a State does not have, given what it has."""
    hint = nearest(name, tree)
    problem = "the State has no such attribute or entry" + (f"; {hint}" if hint else "")
    return MissingAttributeError(f"State.{name}", problem)


def check_trace(mark: Any, path: Path, value: Any = MISSING) -> None:
    """Checks that a State of this mark may be written at a path, or deleted there.

    Raises:
      TraceContextError: the State belongs to another trace.
    """
    if current_trace() is not mark:
        raise TraceContextError(
            format_path(path),
            "a State was changed from another trace level than its own",
            got="a deletion" if value is MISSING else describe(value),
            why="the change would happen once, while JAX traces, and a tracer would leak into the State",
            fix="pass the State to the transformed function as an argument, or change a copy: copy.copy(state)",
        )


def nearest(name: str, tree: Tree) -> str | None:
    """A "did you mean" for a key, where there are not too many to compare it with."""
    return suggest(name, map(str, tree)) if len(tree) <= 10 * NAMED else None


def sorted_pair(entries: list[Entry]) -> tuple[StateDef, list[Any]]:
    """A definition and leaves in the order of the paths, so that equal ones are one structure."""
    order = [i for _, i in in_order([(entry[0], i) for i, entry in enumerate(entries)])]
    definition = StateDef.of(tuple(entries[i][0] for i in order), tuple(entries[i][2] for i in order))
    definition.tree  # noqa: B018  # raises for paths that contradict each other
    return definition, [entries[i][1] for i in order]
