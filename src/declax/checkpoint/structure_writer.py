"""The structure of a value: what a checkpoint stores of a model beside its arrays."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

from declax._classes.records import record_of
from declax._fields.overrides import DeclaredPart, override_of
from declax._fields.specifiers import Status
from declax._graph.flattening import CONTAINER, LEAF, OBJECT, REF, STATIC, VARIABLE, GraphDef, child_keys
from declax._graph.nodes import Kind, Link, kind_of, link_of, open_container, path_of
from declax._graph.unflattening import build
from declax._state.definition import StateDef
from declax._state.tree import FlatForm
from declax._tree.layout import INTERNAL_KEYS
from declax._typing import MISSING
from declax.checkpoint.declared import Declarations
from declax.checkpoint.items import Graph, is_stored
from declax.checkpoint.structures import FORMATS, fields_of, leaf_form, places_in, shape_of_nothing, why_refused
from declax.checkpoint.values import Json, Problem, Writer
from declax.config._reading.part_readers import version_of

_Places = list[tuple[Any, Any, Link]]
"""Where the forms of children belong: ``holder[slot]``, and their paths."""


def structure(model: Any, /) -> dict[str, Any]:
    """What a checkpoint stores of a model beside its arrays, as data that JSON can hold.

    It lists each object once, in the order of the graph: a node with its class and attributes, a Variable with its kind
    and metadata. What holds an object refers to its place in the list. A value that has no form in files, such as a
    lambda, is ``{"unnamed": reason}``. Shapes, dtypes and values of arrays do not belong to the structure.

    Args:
      model: a model, an optimizer, or any tree or graph of them.

    Returns:
      A dict, equal for models of equal structure. The order of the keys of a dict that holds data does not count, as
      for JAX.

    >>> import declax as dx
    >>> found = dx.structure(dx.Linear(2, 3, rngs=dx.Rngs(0)))
    >>> found["objects"][0]["class"], found["objects"][0]["attributes"]["out_features"]
    ('declax.Linear', {'static': 3})
    >>> found == dx.structure(dx.Linear(2, 3, rngs=dx.Rngs(1)))
    True
    """
    found: dict[str, Any] = StructureWriter(Graph.of(model), keeps_order=False).structure
    for entry in found["objects"]:
        entry.pop("record", None)  # of the constructor, which equal models need not share
    for place in places_in(found):
        place.form.pop("weak", None)
    return found


class StructureWriter(Writer):
    """Writes the structure of one value.

    Args:
      graph: the value.
      keeps_order: whether dicts that hold data keep the order of their keys, which is none of the graph.

    Attributes:
      structure: what is stored.
    """

    def __init__(self, graph: Graph, *, keeps_order: bool = True) -> None:
        super().__init__()
        self._keeps_order = keeps_order
        self._declared = Declarations()
        self._objects = graph.objects
        self._leaves = iter(graph.leaves)
        self._entries: list[dict[str, Json]] = []
        root: dict[str, Json] = {}
        stack: _Places = [(root, "root", None)]
        for token in graph.tokens:
            holder, slot, link = stack.pop()
            form, children = self._token(token, link)
            holder[slot] = form
            stack += reversed(children)
        self.structure: dict[str, Json] = {"format": FORMATS[-1], **root, "objects": self._entries}

    def graphdef(self, graphdef: GraphDef[Any], link: Link) -> Json:
        """A structure without leaves; it is written as that of a graph of shapes."""
        leaves = [token for token in graphdef.tokens if isinstance(token, tuple) and token[0] <= LEAF]
        inner = StructureWriter(
            Graph.of(build(graphdef, [shape_of_nothing(is_ref=token[0] == REF) for token in leaves]))
        )
        self.problems.extend(problem.below(link) for problem in inner.problems)
        self.local.extend((link_of(path_of(at), link), name) for at, name in inner.local)
        return inner.structure

    def _token(self, token: Any, link: Link) -> tuple[Json, _Places]:
        """The form of a token, and where the forms of its children belong."""
        if isinstance(token, int):
            return {"object": token}, []
        tag = token[0]
        if tag == STATIC:
            return {"value": self.write(token[1], link)}, []
        if tag == CONTAINER:
            return self._container(token[1], token[2], link)
        if tag == LEAF:
            return leaf_form(next(self._leaves)), []
        index = len(self._entries)
        entry: dict[str, Json] = {}
        self._entries.append(entry)
        if tag == REF:
            entry["ref"] = leaf_form(next(self._leaves))["leaf"]
        elif tag == VARIABLE:
            entry["variable"], metadata = self.leaf_def((token[1], token[2]), link)
            entry |= {"metadata": metadata} if metadata else {}
            entry["value"] = self._tree(next(self._leaves), link)
        else:
            return {"object": index}, self._node(entry, self._objects[index], token, link)
        return {"object": index}, []

    def _tree(self, value: Any, link: Link) -> Json:
        """The form of the value of a Variable: of a leaf, or of a tree of them."""
        if value is None:
            return {"value": None}
        if kind_of(value) is not Kind.CONTAINER:
            return leaf_form(value)
        keys, children, how = open_container(value)
        form, places = self._container(how, keys, link)
        for (holder, slot, inner), child in zip(places, children, strict=True):
            holder[slot] = self._tree(child, inner)
        return form

    def _node(self, entry: dict[str, Json], node: Any, token: Any, link: Link) -> _Places:
        cls, held = type(node), vars(node)
        entry["class"] = self.name_at(cls, link)
        if version_of(cls) != 1:
            entry["version"] = version_of(cls)
        attributes: dict[str, Json] = {}
        elements: dict[str, Json] = {}
        statuses = {} if token[0] == OBJECT else token[1].statuses
        deviating: list[str] = []
        for name in held:
            if name in INTERNAL_KEYS or not is_stored(cls, name):
                continue
            status = statuses.get(name, Status.DATA)
            form = None if status is Status.DATA else {status.value: self.write(held[name], (link, name))}
            if isinstance(name, int):
                elements[str(name)] = form
                continue
            attributes[name] = form  # that of data follows
            if self._declared.deviates(cls, name, status, held[name]):
                deviating.append(name)
            reason = why_refused(cls, name)
            if reason is not None:
                self.problems.append(Problem((link, name), reason, fix="another name for the attribute, or into="))
        entry["attributes"] = attributes
        if elements or getattr(cls, "_pytree__holds_elements", False):
            entry["elements"] = elements
            if not self._keeps_order and [*attributes] != sorted(attributes):  # in files, that of the attributes
                entry["order"] = [*attributes]
        fields = fields_of(cls)
        absent = [name for name in fields if name not in held]
        added = [name for name in attributes if name not in fields] if hasattr(cls, "__dataclass_fields__") else []
        entry |= {"absent": absent} if absent else {}
        entry |= {"added": sorted(added)} if added else {}
        entry |= {"deviating": sorted(deviating)} if deviating else {}
        record = self._record(node)
        entry |= {} if record is None else {"record": record}
        return [
            (
                (elements if isinstance(name, int) else attributes) if is_stored(cls, name) else {},
                str(name),
                (link, name),
            )
            for name in child_keys(token)
        ]

    def _record(self, node: Any) -> Json:
        """The arguments of the constructor that the node does not keep; None if a file cannot say them."""
        record = record_of(node)
        if record is None:
            return None
        writer = Writer()
        arguments = {name: _argument(writer, value) for name, value in record.call.kwargs.items()}
        form: dict[str, Json] = {"parts": sorted(record.as_made(vars(node)))}
        assigned = sorted(set(record.parts) - set(form["parts"]))
        form |= {"arguments": arguments} if arguments else {}
        form |= {"assigned": assigned} if assigned else {}
        form |= {} if record.policy.is_empty else {"policy": writer.write(record.policy, None)}
        return None if writer.problems else form

    def _container(self, how: Any, keys: Any, link: Link) -> tuple[Json, _Places]:
        """The form of a container, and the places of its children."""
        slots: list[Json] = [None] * len(keys)
        if how is list or how is tuple:
            form: dict[str, Json] = {how.__name__: slots}
        elif isinstance(how, tuple):
            pairs = {key: [self.write(key, link), None] for key in (how[1] if self._keeps_order else keys)}
            form = {how[0].__name__: list(pairs.values())}
            if how[0] is defaultdict:
                form["factory"] = self.write(how[2], link)
            return form, [(pairs[key], 1, (link, key)) for key in keys]
        else:
            form = {**self._registered(how, keys, link), "children": slots}
        return form, [(slots, index, (link, key)) for index, key in enumerate(keys)]

    def _registered(self, treedef: Any, keys: Any, link: Link) -> dict[str, Json]:
        """The form of a container that JAX opens: a State, a named tuple, or an object of a registered class."""
        cls, auxiliary = treedef.node_data()
        if cls is FlatForm:
            definition: StateDef = auxiliary[-1]
            entries = zip(*map(definition.in_jax_order, (definition.paths, definition.leaf_defs)), strict=True)
            rows = [[self.write(list(p), link), self.leaf_def(d, link)] for p, d in entries]
            return {"state": rows}
        written = [self.write(key, link) for key in keys]
        if cls is OrderedDict:
            return {"OrderedDict": written}
        form: dict[str, Json] = {"node": self.name_at(cls, link), "keys": written}
        if auxiliary is not None and not hasattr(cls, "_fields"):
            form["auxiliary"] = self.write(auxiliary, link)
        return form


def _argument(writer: Writer, value: Any) -> Json:
    """The form of a recorded argument."""
    if value is MISSING:
        return {"data": True}
    override = override_of(value)
    if override is None:
        return {"value": writer.write(value, None)}
    part: DeclaredPart = override.target
    arguments: Mapping[str, Json] = {name: _argument(writer, inner) for name, inner in override.kwargs.items()}
    return {"part": writer.name_at(part.owner, None), "steps": list(part.steps), "arguments": arguments}
