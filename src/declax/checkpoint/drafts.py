"""Structures of older code, brought up to date as data: renamed parts, former names of fields, versions of classes.

The reader then meets current names only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from declax._classes.pytree import Pytree
from declax._fields.annotations import AnnotationScope, own_annotations
from declax._fields.class_info import info_of
from declax._fields.deciding import class_within
from declax._graph.nodes import Link, path_of
from declax._typing import MISSING
from declax._variables.variable import Variable
from declax.checkpoint.items import text_of
from declax.checkpoint.names import Names, name_of
from declax.checkpoint.renaming import Ending, Renames, followers, former_names, key_of_text, outer_texts
from declax.checkpoint.structures import ARRAY, STATIC, VALUES, attributes_of, children_of, objects_in, places_in
from declax.checkpoint.values import Json, Writer
from declax.config._reading.part_readers import in_current_version, version_of
from declax.errors import CheckpointError, ConfigError
from declax.training._branches import Branch

_BRANCH: Final = name_of(Branch)
_LEAVES: Final = ("leaf", "ref")


class _Below(tuple[str, ...]):
    """The texts below some places."""

    __slots__ = ()

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and any(text.startswith(f"{place}.") for place in self)


class Moved(NamedTuple):
    """What was taken out of a structure.

    Attributes:
      form: of the value.
      leaf_def: its kind and metadata, in a State.
      is_added: whether it is an attribute that its class does not declare.
      is_deviating: whether it has another status or kind than its class declares.
    """

    form: Json
    leaf_def: Json = None
    is_added: bool = False
    is_deviating: bool = False


class Draft:
    """The structure of an item while it is brought up to date, in place.

    Attributes:
      where: the path of the checkpoint.
      name: of the item.
      structure: as a file has it.
      fix: what does the same with a target.
    """

    def __init__(self, where: str, name: str, structure: Json, names: Names) -> None:
        self.name = name
        self.structure = structure
        self.where = where
        self._names = names
        self.fix: str = f"dx.load(path, into={{{name!r}: ...}}, rename=...)        # the target has the new structure"
        self._holes: list[tuple[str, Any, Any]] = []
        self._makes_branches = False

    def nodes(self) -> Iterator[tuple[Link, Json, Any]]:
        """The path, the entry and the class of each node whose class is known, what holds it first."""
        for index, link in objects_in(self.structure).items():
            entry = self.structure["objects"][index]
            cls = self._names.find(entry["class"]) if "class" in entry else MISSING
            if isinstance(cls, type) and issubclass(cls, Pytree):
                yield link, entry, cls

    @property
    def is_graph(self) -> bool:
        """As of an `Item`."""
        return bool(self.structure["objects"])

    @property
    def leaves(self) -> Container[str]:
        """As of an `Item`, of what may mirror a model: Branches and States."""
        places = (place for place in places_in(self.structure) if "state" in place.form or self._is_branch(place.form))
        return _Below(text_of(self.name, path_of(place.link)) for place in places)

    def _is_branch(self, form: Json) -> bool:
        return bool(self._held(form).get("class") == _BRANCH)

    @property
    def classes(self) -> list[tuple[Link, type]]:
        """As of an `Item`."""
        return [(link, cls) for link, _, cls in self.nodes()]

    def texts(self, tags: Collection[str] = (*_LEAVES, "value")) -> dict[int, str]:
        """The text of each leaf and number, by the identity of its form, which stays when it moves."""
        found: dict[int, str] = {}
        for place in places_in(self.structure):
            held = self._held(place.form)
            if not held.keys().isdisjoint(tags) and "variable" not in held:
                found.setdefault(id(held), text_of(self.name, path_of(place.link)))
        return found

    def _held(self, form: Json) -> Json:
        """A form, or the entry of the object that it refers to."""
        found: Json = self.structure["objects"][form["object"]] if "object" in form else form
        return found

    def is_current(self) -> bool:
        """Whether no field has another name by now, and no class another version."""
        return not any(
            _former_names_in(entry, cls) or version_of(cls) != entry.get("version", 1) for _, entry, cls in self.nodes()
        )

    def use_current_names(self) -> None:
        """Gives fields their current names (``renamed_from``)."""
        for _, entry, cls in self.nodes():
            moves = _former_names_in(entry, cls)
            if not moves:
                continue
            entry["attributes"] = {moves.get(name, name): form for name, form in entry["attributes"].items()}
            record = entry.get("record", {})
            for table, key in ((entry, "absent"), (entry, "deviating"), (record, "parts"), (record, "assigned")):
                table |= {key: [moves.get(name, name) for name in table[key]]} if key in table else {}

    # --- parts at other places ----------------------------------------------------------

    def moves(self, renames: Renames) -> Renames:
        """The places that move as a whole if leaves get new texts: their new texts by the old ones."""
        places = {text_of(self.name, path_of(place.link)) for place in places_in(self.structure)}
        texts = sorted({*self.texts(_LEAVES).values()} | (renames.keys() & {*self.texts().values()}))
        moved: Renames = {}
        for old in texts:
            new = renames.get(old, old)
            if new == old or not moved.keys().isdisjoint(outer_texts(old)):
                continue
            for place in filter(places.__contains__, (*outer_texts(old), old)):  # the outermost first
                rest = old[len(place) :]
                target = new.removesuffix(rest)
                below = texts[bisect_left(texts, f"{place}.") : bisect_left(texts, f"{place}/")]
                is_whole = all(renames.get(text, text) == target + text[len(place) :] for text in below)
                if new.endswith(rest) and is_whole:
                    moved[place] = target
                    break
        return moved

    def take(self, text: str) -> Moved:
        """Takes out what is at a path."""
        holder, key = self._holder(text)
        if holder is None:
            return Moved(self.structure["root"])
        if "attributes" in holder:
            table = holder["attributes" if key in holder["attributes"] else "elements"]
            self._holes += [(text, holder, key)] if table is not holder["attributes"] else []
            marks = [_drop(holder, tag, key) for tag in ("added", "deviating")]
            return Moved(table.pop(key), None, *marks)
        if "state" in holder:
            index = [".".join(map(str, path)) for path, _ in holder["state"]].index(key)
            return Moved(holder["children"].pop(index), holder["state"].pop(index)[1])
        if _pairs_of(holder) is not None:
            pairs = _pairs_of(holder)
            index = [str(name) for name, _ in pairs].index(key)
            return Moved(pairs.pop(index)[1])
        if not ("list" in holder or "tuple" in holder):
            raise CheckpointError(f"{self.where}, {text}", "the container that holds this cannot lose it", fix=self.fix)
        children = holder.get("list", holder.get("tuple"))
        self._holes.append((text, children, int(key)))
        form, children[int(key)] = children[int(key)], None
        return Moved(form)

    def put(self, text: str, moved: Moved) -> None:
        """Puts something at a path."""
        holder, key = self._holder(text)
        if holder is None:
            self.structure["root"] = moved.form
        elif "attributes" in holder:
            table = holder["elements" if "elements" in holder and key.isdecimal() else "attributes"]
            if key in table:
                raise CheckpointError(f"{self.where}, {text}", "something is there already", fix=self.fix)
            table[key] = moved.form
            _drop(holder, "absent", key)
            for tag, is_marked in (("added", moved.is_added), ("deviating", moved.is_deviating)):
                holder |= {tag: [*holder.get(tag, ()), key]} if is_marked else {}
        elif "state" in holder:
            holder["state"].append([list(map(key_of_text, key.split("."))), moved.leaf_def])
            holder["children"].append(moved.form)
        elif _pairs_of(holder) is not None:
            pairs = _pairs_of(holder)
            is_int = bool(pairs) and all(type(name) is int for name, _ in pairs)
            pairs.append([key_of_text(key) if is_int else key, moved.form])
        else:
            children = holder.get("list", holder.get("tuple"))
            if children is None or not key.isdecimal() or int(key) > len(children):
                raise CheckpointError(f"{self.where}, {text}", "there is no place for it", fix=self.fix)
            children[int(key) : int(key) + 1] = [moved.form]

    def move(self, moves: Renames) -> None:
        """Moves places, all at once."""
        taken = [(new, self.take(old)) for old, new in moves.items()]
        for new, moved in sorted(taken, key=lambda pair: len(pair[0])):  # what holds a place first
            self.put(new, moved)
        for text, holder, key in self._holes:
            indexes = sorted(map(int, holder["elements"])) if isinstance(holder, dict) else []
            if indexes != list(range(len(indexes))) or (isinstance(holder, list) and holder[key] is None):
                raise CheckpointError(f"{self.where}, {text}", "rename= leaves a hole here", fix=self.fix)

    def _holder(self, text: str) -> tuple[Json, str]:
        """What holds a path, and the key in it; None for the root."""
        keys = text.split(".")[1:]
        at = self.structure["root"] if keys else None
        while keys:
            at = self._held(at)
            while "variable" in at:
                at = self._held(at["value"])
            if len(keys) == 1 or "state" in at:
                break
            children = attributes_of(at) if "attributes" in at else children_of(at) if "object" not in at else []
            found = [holder[slot] for key, holder, slot in children if str(key) == keys[0]]
            if not found and self._makes_branches and at.get("class") == _BRANCH:
                found = [self._new_object({"class": _BRANCH, "attributes": {}})]
                at["attributes"][keys[0]] = found[0]
            if not found or VALUES & found[0].keys():
                raise CheckpointError(f"{self.where}, {text}", "nothing is there that could hold it", fix=self.fix)
            at, keys = found[0], keys[1:]
        return at, ".".join(keys)

    def like(self, name: str, form: Json) -> Draft:
        """Another item of a part of this one."""
        return Draft(self.where, name, {**self.structure, "root": form}, self._names)

    def follow(self, renames: Renames, endings: Ending) -> None:
        """Moves leaves that mirror a model; replaces its paths among the static values, as an optimizer has them."""
        self._makes_branches = True
        self.move(self.moves(renames))
        for entry in self.structure["objects"]:
            for form in entry.get("attributes", {}).values():
                for tag in VALUES & form.keys():
                    form[tag] = _with_paths(form[tag], endings)
        for place in reversed(list(places_in(self.structure))):
            entry = self._held(place.form)
            if entry.get("class") == _BRANCH:
                entry["attributes"] = dict(sorted(entry["attributes"].items()))
                if not (entry["attributes"] or entry.get("elements")):
                    del place.holder[place.slot]

    # --- versions of classes ------------------------------------------------------------

    def versions(self) -> dict[str, int]:
        """The version that the class of each node had, where it was not 1, by text."""
        found = ((link, entry["version"]) for link, entry, _ in self.nodes() if "version" in entry)
        return {text_of(self.name, path_of(link)): version for link, version in found}

    def upgrade_statics(self) -> None:
        """Gives the numbers and texts of nodes to the `config_upgrades` of their classes."""
        for link, entry, cls in self.nodes():
            before = _statics_of(entry)
            try:
                table = in_current_version(cls, before, entry.pop("version", 1))
            except ConfigError as error:
                where, got = f"{self.where}, {text_of(self.name, path_of(link))}", f"{error.where}: {error.problem}"
                raise CheckpointError(where, "an upgrade of the class has failed", got=got) from error
            if table is not before:  # by an upgrade
                _set_statics(entry, cls, before, table)

    def fit_leaves(self, before: Iterable[str], after: Iterable[str]) -> None:
        """Makes places for the leaves that `checkpoint_upgrades` have made, and takes out those that are gone."""
        before, after = dict.fromkeys(before), dict.fromkeys(after)
        gone = [self.take(text) for text in before if text not in after]
        for text in after:
            if text not in before:
                self.put(text, self._new_leaf(text, gone))

    def _new_leaf(self, text: str, gone: list[Moved]) -> Moved:
        """A Variable as its class declares it, or else of the kind of those that are gone; an array as they are."""
        entries = [self._held(moved.form) for moved in gone]
        kinds = list({(entry.get("variable"), repr(entry.get("metadata"))): entry for entry in entries}.values())
        holder, name = self._holder(text)
        cls = self._names.find(holder.get("class", "")) if holder is not None else MISSING
        declared = None if cls is MISSING else declared_kind(cls, name)
        found = kinds[0] if len(kinds) == 1 else {}
        kind = found.get("variable") if declared is None else name_of(declared)
        if (not found and gone) or (kind is None and found.get("variable")) or (declared is None and not found):
            problem = "an upgrade makes this, and nothing says which kind and metadata it has"
            raise CheckpointError(f"{self.where}, {text}", problem, fix=self.fix)
        if kind is None:
            return Moved({"leaf": ARRAY})
        is_same = kind == found.get("variable") and found.get("metadata")
        entry = {"variable": kind, "value": {"leaf": ARRAY}, **({"metadata": found["metadata"]} if is_same else {})}
        return Moved(self._new_object(entry))

    def _new_object(self, entry: Json) -> Json:
        self.structure["objects"].append(entry)
        return {"object": len(self.structure["objects"]) - 1}


def brought_up_to_date(where: str, drafts: dict[str, Draft], renames: Renames) -> tuple[dict[str, Draft], Renames]:
    """The drafts of all items with the parts that the user renames where they are now, and with current names.

    What mirrors a model (the moments of an optimizer, an average) follows it.

    Returns:
      The drafts, and the new texts of all leaves that have moved.
    """
    before = _texts_of(drafts)
    moved = _moved_items(drafts, renames)
    for draft in moved.values():
        draft.use_current_names()
    groups: dict[str, Renames] = {name: {} for name in moved}
    for key, new in _texts_of(moved).items():
        groups[new.partition(".")[0]][before[key]] = new
    for name, (found, endings) in followers(where, list(moved.values()), groups, renames).items():
        if found:
            moved[name].follow(found, endings)
    return moved, {before[key]: text for key, text in _texts_of(moved).items() if text != before[key]}


def _texts_of(drafts: Mapping[str, Draft]) -> dict[int, str]:
    """The texts of all items, as of `Draft.texts`."""
    return {key: text for draft in drafts.values() for key, text in draft.texts().items()}


def _moved_items(drafts: dict[str, Draft], renames: Renames) -> dict[str, Draft]:
    """The drafts after `rename=`, which may make a part of one another item."""
    moved = dict(drafts)
    for name, draft in drafts.items():
        moves = draft.moves(renames)
        inner = {old: new for old, new in moves.items() if new.partition(".")[0] == name}
        for old, new in moves.items():
            if old in inner:
                continue
            if "." in new or new in moved:
                raise CheckpointError(
                    f"{draft.where}, {old}", f"this cannot become {new}, a part of another item", fix=draft.fix
                )
            form = draft.take(old).form
            moved[new] = draft.like(new, form)
            if old == name:
                del moved[name]
        draft.move(inner)
    return moved


def declared_kind(cls: Any, name: str) -> Any:
    """The kind of the Variable that a class declares under a name; None if it declares none."""
    owner = next((base for base in cls.__mro__ if name in own_annotations(base)), None)
    if owner is None:
        return None
    scope = AnnotationScope(owner)
    return class_within(scope.resolve(own_annotations(owner)[name]), scope, Variable)


def _former_names_in(entry: Json, cls: type) -> dict[str, str]:
    """The current names of fields with an old one. A field that has the old name today is another one."""
    held = {*entry["attributes"], *entry.get("absent", ())}
    return {old: new for old, new in former_names(cls).items() if old in held and new not in entry["attributes"]}


def _pairs_of(holder: Json) -> Any:
    """The pairs of a dict; None for what is none."""
    return holder.get("dict", holder.get("defaultdict"))


def _drop(entry: Json, tag: str, name: str) -> bool:
    """Removes a name from a list of an entry; whether it was there."""
    if name not in entry.get(tag, ()):
        return False
    entry[tag] = [other for other in entry[tag] if other != name]
    return True


def _with_paths(form: Json, endings: Ending) -> Json:
    """A static value with other paths of a model; a list of them is in the order of the graph again."""
    if isinstance(form, dict):
        return {tag: _with_paths(inner, endings) for tag, inner in form.items()}
    if not isinstance(form, list):
        return form
    if form and all(type(key) in (str, int) for key in form):
        new = endings.get(tuple(map(str, form)))
        return form if new is None else [*map(key_of_text, new)]
    found = [_with_paths(inner, endings) for inner in form]
    is_changed = found != form and all(isinstance(path, dict) and [*path] == ["tuple"] for path in found)
    return sorted(found, key=lambda path: [(type(key) is str, key) for key in path["tuple"]]) if is_changed else found


def _statics_of(entry: Json) -> dict[str, Any]:
    """The numbers, texts and lists of a node, and those among the recorded arguments of its constructor, by name."""
    forms = {name: argument.get("value", {}) for name, argument in entry.get("record", {}).get("arguments", {}).items()}
    for name, form in entry["attributes"].items():
        forms |= dict.fromkeys([name] if VALUES & form.keys() else (), next(iter(form.values())))
    return {name: form for name, form in forms.items() if _is_plain(form)}


def _is_plain(form: Json) -> bool:
    """Whether the form of a static value is that value."""
    return not isinstance(form, dict) and (not isinstance(form, list) or all(map(_is_plain, form)))


def _set_statics(entry: Json, cls: Any, before: Mapping[str, Any], table: Mapping[str, Any]) -> None:
    attributes = entry["attributes"]
    arguments = entry.get("record", {}).get("arguments", {})
    for name in before.keys() - table.keys():
        attributes.pop(name, None)
        arguments.pop(name, None)
    for name, value in table.items():
        form = Writer().write(value, None)
        if name in attributes:
            tag = next(iter(VALUES & attributes[name].keys()), STATIC[0].value)
            attributes[name] = {tag: form}
        elif name in info_of(cls).init_vars:
            arguments[name] = {"value": form}
        else:
            attributes[name] = {STATIC[0].value: form}
