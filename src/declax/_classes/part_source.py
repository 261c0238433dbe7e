"""The function that makes the parts of an instance, generated as straight-line source."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from declax._classes.argument_checks import WRONG_TYPE, ArgumentChecks, PartCheck
from declax._classes.fixed_values import check_fixed
from declax._classes.parts import FIX_OF_SHARED, MAY_BE_SHARED, SELF, Part, is_shared, makes_data, may_make_data
from declax._classes.sizes import fix_of_size
from declax._fields.annotations import annotation_text, own_annotations
from declax._fields.call import Call, call_of, chosen, operands_of, target_of
from declax._fields.class_body import RNGS_LINES, layer_line
from declax._fields.class_info import maker_of
from declax._fields.expressions import Contents, Declaration, Expression, Literal, contents_of, items_of
from declax._fields.keys import NO_RNGS, OWN_RNGS, RNGS, explain_unseen_rngs, omits_rngs, requires_rngs
from declax._fields.refusals import NO_HOLDERS, refuse_holder
from declax._fields.sources import NoteWriter, SourceWriter, class_text, declared_text, text_of
from declax._fields.specifiers import PartRecipe, SubmoduleRecipe, VariableRecipe, specifier_of
from declax._tree.codegen import compile_functions
from declax._tree.iterators import ITERATORS, check_iterators
from declax.errors import DeclaxError, FieldError, LayerError, MissingRngsError, describe, set_fix, type_name


class PartsFunction:
    """Makes the parts of an instance, in the order of the class body.

    The class body is checked at once. The function is written at the first construction: few imported classes are used.
    `known` are the expressions of the class by name, the nearest first; some of the `arguments` are parts.

    Attributes:
      has_quotients: whether a part is computed by a division.
    """

    def __init__(
        self,
        cls: Any,
        own: Collection[str],
        known: Mapping[str, tuple[Expression, ...]],
        parts: Sequence[Part],
        init_vars: Sequence[str],
        arguments: ArgumentChecks,
    ) -> None:
        self._cls = cls
        self._own = own
        self._known = known
        self._parts = parts
        self._made = {part.name: part.made_by(cls) for part in parts}
        self._init_vars = init_vars
        self._arguments = arguments
        self._part_checks: dict[str, PartCheck] = {}
        self._implies_rngs: bool = cls._pytree__implies_rngs
        self._names: dict[int, str] = {}
        self._lines: list[Part | None] = [None]
        self._shared = set[int]()  # calls without a name that stand more than once in a part, by identity
        self.has_quotients = False
        self._check()

    def explain(self, error: Exception, instance: Any, init_vars: Sequence[object]) -> None:
        """Gives an error of the function a note that names the part; raises the error of missing keys with its path."""
        if isinstance(error, MissingRngsError) and self._implies_rngs and self._given_rngs(instance, init_vars) is None:
            raise self._without_keys(instance, error) from None
        self._add_note(instance, error)

    # ------------------------------------------------------------- names

    def _names_of(self) -> dict[int, str]:
        """The source of each expression that has a name; of several names, the first.

        The items of literals get theirs when the literal is made.
        """
        names: dict[int, str] = {}
        items: set[int] = set()
        for name, expressions in self._known.items():
            for expression in expressions:
                if id(expression) not in items:
                    names.setdefault(id(expression), _local(name) if name in self._init_vars else f"self.{name}")
                if isinstance(expression, Literal):
                    items.update(id(item) for item, _ in items_of(expression) if id(item) not in names)
        return {**names, id(OWN_RNGS): self._rngs, id(SELF): "self"}

    def _name_items(self, name: str, expressions: Sequence[Expression]) -> None:
        """Lets the parts that are made next refer to a literal and its items."""
        for expression in expressions:
            if isinstance(expression, Literal):
                self._names[id(expression._pytree__value)] = f"self.{name}"
                for item, path in items_of(expression):
                    self._names.setdefault(id(item), f"self.{name}{path}")

    # ------------------------------------------------------------- source

    def _in_order(self, write: Callable[[Any], str]) -> Iterator[Part]:
        """The parts in the order in which they are made, while `_names` has the names that each may read."""
        self._names.clear()
        self._names.update(self._names_of())
        for part in self._parts:
            overridden = self._take_names(part, write)
            yield part
            self._names.update(overridden)
            self._name_items(part.name, self._known[part.name])

    def _check(self) -> None:
        """Refuses what the function could not make."""
        later = {part.name for part in self._parts}
        seen: dict[int, Part] = {}
        for part in self._in_order(text_of):
            contents = contents_of(self._made[part.name], self._names)
            self.has_quotients |= bool(contents.quotients)
            self._check_constants(part, contents)
            self._check_reads(part, contents, later)
            self._check_calls(part, contents, seen)
            call = part.expression._pytree__call
            if call is not None and not isinstance(call.target, type):
                check_fixed(self._cls, part, self._names)
            later.discard(part.name)

    @functools.cached_property
    def _written(self) -> tuple[str, Mapping[str, Any]]:
        """The source, and the constants in it."""
        with _writing:
            return self.__dict__.get("_written") or self._write()

    def _write(self) -> tuple[str, Mapping[str, Any]]:
        self._lines = [None]
        arguments = ["self", *map(_local, self._init_vars)]
        writer = SourceWriter(self._names, {"make_parts", RNGS, *arguments}, implies_rngs=self._implies_rngs)
        writer.constants["put"] = object.__setattr__
        writer.shared.update(dict.fromkeys(self._shared, ""))
        lines = [f"def make_parts({', '.join(arguments)}):"]
        for part in self._in_order(writer):
            statement = self._statement(part, writer)
            lines += statement
            self._lines += [part] * len(statement)
        return "\n".join(lines), writer.constants

    @property
    def source(self) -> str:
        """The function as text."""
        return self._written[0]

    @functools.cached_property
    def function(self) -> Callable[..., None]:
        """The function of the source."""
        source, constants = self._written
        (function,) = compile_functions(f"{type_name(self._cls)} parts", [source], constants)
        return function

    def _take_names(self, part: Part, write: Callable[[Any], str]) -> dict[int, str]:
        """Removes and returns the names of the expressions that a part overrides, which it evaluates in its place."""
        if len(self._known[part.name]) == 1:
            return {}
        old = f"self.{part.name}"
        overridden = [e for e in self._known[part.name][1:] if e is not part.expression]
        overridden = [e for e in overridden if self._names.get(id(e)) == old]
        for expression in overridden:
            del self._names[id(expression)]
            if isinstance(expression, Declaration) and expression._pytree__field.default is not dataclasses.MISSING:
                self._names[id(expression)] = write(expression._pytree__field.default)
        return {id(expression): old for expression in overridden}

    def _check_constants(self, part: Part, contents: Contents) -> None:
        """Refuses real objects in a part, such as a layer that is made without a field among its arguments."""
        is_declared = isinstance(part.recipe, PartRecipe) and part.expression._pytree__name is not None  # no override
        for value in contents.constants:
            if value.__class__ in ITERATORS:
                check_iterators([value], self._where(part), f"{part.name} = (..., {{}})")
            if is_declared and not isinstance(value, NO_HOLDERS) and getattr(value, "__closure__", ()) is not None:
                refuse_holder(value, self._where(part))
            if is_declared and isinstance(value, MAY_BE_SHARED) and is_shared(value):
                raise FieldError(
                    self._where(part),
                    "all instances would share an object in this part",
                    got=describe(value),
                    why="only a call with a field among its arguments is made anew by each instance",
                    fix=FIX_OF_SHARED,
                )

    def _check_calls(self, part: Part, contents: Contents, seen: dict[int, Part]) -> None:
        """Checks the calls of a part, and finds those without a name that it has more than once; each is made once.

        `seen` has the calls of the parts before it.
        """
        if isinstance(part.recipe, SubmoduleRecipe) and part.recipe.takes_rngs and self._rngs == "None":
            raise FieldError(
                self._where(part),
                "this method takes rngs, and the class has none",
                fix=f"{layer_line(self._cls)}\ndef {part.name}(self): ...        # or a method that draws no keys",
            )
        found: dict[int, tuple[int, ...]] = {}
        found_once = set[int]()
        if not self._implies_rngs:
            for made in map(call_of, (self._made[part.name], *(call for call, _ in contents.calls))):
                if made is not None and _needs_rngs(made):
                    raise self._without_rngs(part, made)
        for call, around in contents.calls:
            if found.setdefault(id(call), around) != around or seen.setdefault(id(call), part) is not part:
                raise FieldError(
                    self._where(part),
                    f"the call {text_of(call)} has no name, and is one object at places that are not made together",
                    why="the list or branch and the part may be made independently",
                    fix=f"shared = {text_of(call)}        # then use `shared`",
                )
            if id(call) in found_once:
                self._check_once(part, call)
                self._shared.add(id(call))
            found_once.add(id(call))

    def _statement(self, part: Part, writer: SourceWriter) -> list[str]:
        source = self._source(part, writer)
        line = f"self.{part.name} = {source}"
        if self._cls.__dataclass_params__.frozen:
            line = f"put(self, {part.name!r}, {source})"
        if not part.is_argument:
            if source.removeprefix("self.") in self._part_checks:
                self._part_checks[source.removeprefix("self.")].names.append(part.name)
            return [f"    {line}"]
        declared = writer.constant(part.expression, f"declared_{part.name}")
        limits = self._arguments.limits_of(part.name)
        lines = [f"    if self.{part.name} is {declared}:", f"        {line}"]
        if limits is not None:
            lines.append(f"        {writer.constant(limits, f'check_{part.name}')}(self, self.{part.name})")
        is_data = isinstance(part.recipe, SubmoduleRecipe) or makes_data(part.expression)
        part_check = PartCheck(self._cls, part.name, is_data=is_data)
        if part_check.is_needed:
            self._part_checks[part.name] = part_check
            check = writer.constant(part_check, f"check_class_of_{part.name}")
            lines += ["    else:", f"        {check}(self)"]
        return lines

    def _source(self, part: Part, writer: SourceWriter) -> str:
        made = self._made[part.name]
        if isinstance(part.recipe, SubmoduleRecipe):
            later = itertools.dropwhile(lambda other: other is not part, self._parts)
            if self._cls.__dataclass_params__.frozen or any(other.is_argument for other in later):
                made = Expression(Call(_require_made, (self._where(part), made)))
        known = self._names.get(id(made), f"self.{part.name}")
        return writer.whole(made) if known == f"self.{part.name}" else known

    @property
    def _rngs(self) -> str:
        if RNGS in self._init_vars:
            return RNGS
        return f"self.{RNGS}" if RNGS in self._cls.__dataclass_fields__ else "None"

    def _check_reads(self, part: Part, contents: Contents, later: set[str]) -> None:
        for leaf in contents.leaves:
            name = self._names.get(id(leaf), "").removeprefix("self.")
            if name in later and name != part.name:
                is_overriding = len(self._known[part.name]) > 1
                raise FieldError(
                    self._where(part),
                    f"this part reads {name!r}, which is made later",
                    why="parts are made in the order of the class body, and an overriding part keeps its position",
                    fix=f"{self._statement_for(part, f'{part.name}_2')}        # made after the parts of the bases"
                    if is_overriding
                    else f"declare {name} before {part.name}",
                )
            if id(leaf) not in self._names:
                if isinstance(leaf, Declaration) and leaf._pytree__name is None:
                    raise self._nested_specifier(part, leaf)
                name = leaf._pytree__name or ""
                line = name if name in self._own else f"{name}: ... = dx.field()"
                raise FieldError(
                    self._where(part),
                    f"this part reads {text_of(leaf)!r}, a field of a class that is not a base",
                    why="or of a base that was defined again since, or one that this declaration overrides",
                    fix=f"{line}        # a field of {type_name(self._cls)}",
                )

    # ------------------------------------------------------------- errors

    def _where(self, part: Part) -> str:
        return f"{type_name(self._cls)}.{part.name}"

    def _nested_specifier(self, part: Part, leaf: Declaration) -> FieldError:
        specifier = specifier_of(leaf._pytree__field)
        is_variable = specifier is not None and isinstance(specifier.recipe, VariableRecipe)
        line = "dx.Param[jax.Array] = dx.variable(..., when=...)" if is_variable else "... = dx.field(...)"
        fix = f"{part.name}_1: {line}        # above; its name stands for its value"
        if is_variable and target_of(part.expression) is chosen:
            flag, item, other = operands_of(part.expression)
            if item is leaf and other is None:
                fix = f"{part.name}: dx.Param[jax.Array] | None = dx.variable(..., when={text_of.argument(flag)})"
        return FieldError(
            self._where(part),
            "a specifier in an expression declares nothing",
            why="it declares the attribute to which a statement of its own binds it",
            fix=fix,
        )

    def _add_note(self, instance: Any, error: Exception) -> None:
        """Says which part could not be made, with the values of its arguments."""
        part = self._part_of(error)
        if part is None:
            return
        prefix = f"{type_name(type(instance))}."
        if isinstance(error, DeclaxError) and error.where.startswith(prefix):
            name = re.split(r"\W", error.where.removeprefix(prefix))[0]  # of a field, read from the class
        else:
            if isinstance(error, LayerError) and error.problem == WRONG_TYPE and str(error.got).startswith("float"):
                set_fix(error, fix_of_size(part, error.where) or error.fix)
            if isinstance(error, MissingRngsError) and self._implies_rngs:
                explain_unseen_rngs(target_of(part.expression), error)
            if isinstance(error, MissingRngsError) and isinstance(part.recipe, SubmoduleRecipe):
                taken = "" if part.recipe.takes_rngs else f"def {part.name}(self, rngs: dx.Rngs): ...\n"
                set_fix(error, taken + str(error.fix).replace("rngs=dx.Rngs(0)", "rngs=rngs"))
            error.add_note(f"while {prefix}{part.name} was made: {self._text_with_values(part, instance)}")
            name = str(error.name) if isinstance(error, AttributeError) and error.obj is instance else ""
        known = self._known.get(name)
        if known and name != part.name and isinstance(instance.__dict__.get(name, known[0]), Expression):
            error.add_note(f"{name} is declared below {part.name}: declare it first")

    def _given_rngs(self, instance: Any, init_vars: Sequence[object]) -> object:
        """The `rngs` that the constructor got."""
        if RNGS in self._init_vars:
            return init_vars[list(self._init_vars).index(RNGS)]
        return instance.__dict__.get(RNGS)

    def _without_keys(self, instance: Any, error: MissingRngsError) -> MissingRngsError:
        """The error of a part, with the path of the part and the call of this constructor."""
        part = self._part_of(error)
        if part is None:
            return error
        inner = error.where.partition(".")[2] if "." in error.where else ""
        where = ".".join(filter(None, (type_name(type(instance)), part.name, inner)))
        return MissingRngsError(where, NO_RNGS, fix=_call_with_rngs(instance))

    def _part_of(self, error: Exception) -> Part | None:
        """The part whose line raised an error."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self.function.__code__:
            trace = trace.tb_next
        return None if trace is None else self._lines[trace.tb_lineno - 1]

    def _text_with_values(self, part: Part, instance: Any) -> str:
        shown = {key: _shown(instance, source) for key, source in self._names.items()}
        for expression in self._known[part.name]:
            shown.pop(id(expression))
            for item, _ in items_of(expression):
                if self._names.get(id(item), "").startswith(f"self.{part.name}["):
                    shown.pop(id(item), None)
        return self._source_with(part, NoteWriter(shown))

    def _without_rngs(self, part: Part, call: Call) -> FieldError:
        with_rngs = Call(call.target, call.args, {**call.kwargs, RNGS: OWN_RNGS})
        old, new = (text_of.term(Expression(made)) for made in (call, with_rngs))
        fix = layer_line(self._cls)
        if RNGS in self._cls.__dataclass_fields__:
            lines = [] if RNGS in own_annotations(self._cls) else [RNGS_LINES]
            fix = "\n".join([*lines, self._statement_for(part, part.name).replace(old, new)])
        return FieldError(
            self._where(part),
            f"the part {old} needs random keys, and no {RNGS} are passed to it",
            fix=fix,
        )

    def _check_once(self, part: Part, call: Expression) -> None:
        """Refuses a call that makes a model and stands more than once in a part, without what that overrides."""
        overridden = dict.fromkeys(map(id, self._known[part.name][1:]), "")
        contents = contents_of(self._made[part.name], {**self._names, **overridden})
        count = sum(other is call for other, _ in contents.calls)
        if count > 1 and may_make_data(call):
            text = text_of(call)
            raise FieldError(
                self._where(part),
                f"the call {text} has no name, and stands at {count} places of this part",
                why="they would be one object with one set of parameters: [part] * n does not repeat the call",
                fix=f"dx.repeat({count}, {text})        # objects that are made one by one\n"
                f"shared = {text}        # then use `shared`: one object on purpose",
            )

    def _statement_for(self, part: Part, name: str) -> str:
        """The statement that declares a part, under a name."""
        annotation = f": {annotation_text(own_annotations(self._cls)[part.name])}" if part.is_argument else ""
        return f"{name}{annotation} = {text_of.whole(part.expression)}"

    def _source_with(self, part: Part, writer: SourceWriter) -> str:
        if isinstance(part.recipe, PartRecipe):
            return writer.whole(part.expression)
        if isinstance(part.recipe, VariableRecipe):
            return f"dx.variable({writer(part.recipe.shape)}, initializer={writer(part.recipe.initializer)})"
        return f"the method {part.name}(self{f', {self._rngs}' if part.recipe.takes_rngs else ''})"


_writing = threading.RLock()


def _local(name: str) -> str:
    """The name of an InitVar in the generated function, which uses some names itself."""
    return f"{name}_" if name in ("abs", "range", "put") else name


def _require_made(where: str, result: Any) -> Any:
    """The result of a method under `submodule`, which may hold no expression: the value of a part below it."""
    later = next((item for item, _ in items_of([result]) if isinstance(item, Expression)), None)
    check_iterators([result], where, "return {}", is_part=True)
    if later is not None:
        problem = f"this method returns the expression {text_of(later)} in place of a value"
        fix = f"{later._pytree__name}: ... = {declared_text(later)}        # above the method"
        raise FieldError(where, problem, why="parts are made in the order of the class body", fix=fix)
    return result


def _needs_rngs(call: Call) -> bool:
    """Whether a call leaves out `rngs`, and its target requires them or draws keys from them."""
    is_known = not isinstance(call.target, Expression)
    return is_known and omits_rngs(call) and (requires_rngs(call.target) or bool(maker_of(call.target).draws))


def part_draws_keys(part: Part) -> bool:
    """Whether each construction that makes a part draws keys."""
    recipe, call = part.recipe, call_of(part.expression)
    if isinstance(recipe, VariableRecipe):
        return recipe.when is None and isinstance(recipe.stream, str)
    if call is None or part.is_argument:
        return False
    return bool(maker_of(call.target).draws) and (call.kwargs.get(RNGS) is not None or omits_rngs(call))


def _call_with_rngs(instance: Any) -> str:
    """The call that made an instance, with `rngs`; only arguments without a default are shown."""
    fields = dataclasses.fields(instance)
    required = (f for f in fields if f.init and f.default is f.default_factory is dataclasses.MISSING)
    given = [f"{f.name + '=' if f.kw_only else ''}{text_of(instance.__dict__.get(f.name))}" for f in required]
    return f"{class_text(type(instance))}({', '.join([*given, 'rngs=dx.Rngs(0)'])})"


def _shown(instance: Any, source: str) -> str:
    name = source.removeprefix("self.")
    value = instance.__dict__.get(name, instance) if source != name else instance
    return repr(value) if value is None or value.__class__ in (int, float, str, bool, tuple) else name
