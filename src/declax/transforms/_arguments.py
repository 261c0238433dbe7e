"""What the parameters of a function say of the arguments of a call.

Vocabulary
----------
positioned: of an argument: given by position, or by name to a parameter that
            has one. A prefix for the positional arguments holds for all of these.
selection:  of the arguments of a call, those that are static, or are donated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, SupportsIndex

import jax

from declax.errors import TransformError, describe
from declax.graph.binding import bind
from declax.transforms._roots import is_root

_NOTHING: Any = jax.tree_util.tree_structure(None)


class Positioned(NamedTuple):
    """The positioned arguments of a call.

    Attributes:
      tree: of them, a tuple by position; nothing where an argument that is not given keeps its default.
      leaves: its leaves, by their numbers among those of all arguments.
      named: the numbers of the leaves of other arguments.
    """

    tree: Any
    leaves: Sequence[int]
    named: Sequence[int]


def positioned(function: Callable[..., Any], tree: Any, skipped: Collection[int] = ()) -> Positioned:
    """The arguments of a call that have a position, also where they are given by name.

    Args:
      function: the function.
      tree: of the arguments by position, and of those by name.
      skipped: the positions that the call does not have, as those of static arguments.
    """
    args, kwargs, *_ = tree.children()
    count = args.num_leaves
    if not kwargs.children():
        return Positioned(args, range(count), ())
    taken = {place: rank for rank, place in enumerate(_places(function, skipped))}
    listed = [(part, range(start, start + part.num_leaves)) for part, start in _with_starts(args.children(), 0)]
    named: list[int] = []
    for name, (part, start) in zip(kwargs.node_data()[1], _with_starts(kwargs.children(), count), strict=True):
        numbers = range(start, start + part.num_leaves)
        place = taken.get(name, -1)
        if place < len(args.children()):  # none, or one that is taken, which is an error of the call
            named += numbers
            continue
        listed += [(_NOTHING, range(0))] * (place + 1 - len(listed))
        listed[place] = part, numbers
    return Positioned(
        jax.tree_util.treedef_tuple([part for part, _ in listed]), [i for _, numbers in listed for i in numbers], named
    )


def _places(function: Callable[..., Any], skipped: Collection[int]) -> list[str | None]:
    """The names of the parameters that have a position, in order; None for those that only have a position."""
    known = (parameters(function) or {}).values()
    found = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    # a name of a positional-only parameter may be one of the others, that `**kwargs` takes
    names = [p.name if p.kind is p.POSITIONAL_OR_KEYWORD else None for p in found]
    return [name for place, name in enumerate(names) if place not in skipped]


def _with_starts(parts: Sequence[Any], start: int) -> Iterator[tuple[Any, int]]:
    """Trees with the numbers of their first leaves."""
    for part in parts:
        yield part, start
        start += part.num_leaves


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The parameters of a function by name; None where Python does not know them."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


# --- arguments that an option selects ---------------------------------------------

Numbers = int | Sequence[int] | None
Names = str | Iterable[str] | None


class Selection:
    """Arguments that an option selects by number or by name.

    Args:
      fun: the function that has them.
      option: the beginning of the names of the options: ``"static"``.
      numbers, names: what the options say.

    Attributes:
      numbers: of positional arguments; those that count from the end of ``*args`` are known with a call only.
      names: of the arguments.
      is_empty: whether none is selected.
    """

    def __init__(self, fun: Callable[..., Any], option: str, numbers: Numbers, names: Names) -> None:
        self._option = option
        self._from_end: tuple[int, ...] = ()
        self.numbers: tuple[int, ...] = (int(numbers),) if isinstance(numbers, SupportsIndex) else tuple(numbers or ())
        self.names = (names,) if isinstance(names, str) else tuple(names or ())
        for number in self.numbers:
            if not isinstance(number, SupportsIndex):
                raise TransformError(
                    f"{option}_argnums",
                    "this is no number of a parameter",
                    expected="an int or several",
                    got=describe(number),
                    fix=f"{option}_argnames={number!r}" if isinstance(number, str) else f"{option}_argnums=0",
                )
        self.is_empty: bool = not self.numbers and not self.names
        if self.is_empty:
            return
        known = parameters(fun)
        if known is None:
            return
        positional = [n for n, p in known.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
        takes_more = any(p.kind is p.VAR_POSITIONAL for p in known.values())
        for name in self.names:
            if name not in known and not takes_any:
                raise TransformError(
                    f"{option}_argnames",
                    f"the function has no parameter {name!r}",
                    expected=", ".join(known),
                    fix=_fix(option, "names", [n for n, p in known.items() if p.kind is not p.POSITIONAL_ONLY]),
                )
        for number in self.numbers:
            if not -len(positional) <= number < len(positional) and not takes_more:
                raise TransformError(
                    f"{option}_argnums",
                    f"the function has no positional parameter {number}",
                    expected=_numbers_of(positional),
                    fix=_fix(option, "nums", list(range(len(positional)))),
                )
        if takes_more:
            self._from_end = tuple(number for number in self.numbers if number < 0)
            self.numbers = tuple(number for number in self.numbers if number >= 0)
        numbers_ = [number % len(positional) if number < 0 else number for number in self.numbers]
        by_name = [positional.index(n) for n in self.names if n in positional]
        self.names = (*self.names, *(positional[n] for n in numbers_ if n < len(positional)))
        self.numbers = tuple(sorted({*numbers_, *by_name}))

    def check_apart(self, donated: Selection) -> None:
        """Raises a TransformError where a static argument is donated too."""
        both = [name for name in self.names if name in donated.names]
        both = both or [str(number) for number in self.numbers if number in donated.numbers]
        if both:
            raise TransformError(
                f"argument {both[0]}",
                "it is static, and donated too",
                why="a static argument is compiled in: it has no buffer that a result could take over",
                fix="leave it out of donate_argnums and donate_argnames",
            )

    def take(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...] | None]:
        """The other arguments, and the selected ones by number and name; None where none can be selected."""
        if self.is_empty:
            return args, kwargs, None
        numbers = self._numbers_of(args)
        by_number = tuple((i, args[i]) for i in numbers if i < len(args))
        by_name = tuple((n, kwargs[n]) for n in self.names if n in kwargs)
        for label, value in (*by_number, *by_name):
            try:
                hash(value)
            except TypeError:
                raise TransformError(
                    f"argument {label!r}",
                    "a static argument has no hash",
                    got=describe(value),
                    fix="pass a tuple instead of a list, or leave it out of the static arguments",
                ) from None
            if is_root(value) and bind(value).graphdef.num_leaves:
                raise TransformError(
                    f"argument {label!r}",
                    "a model is no static argument",
                    got=describe(value),
                    why="its values would be compiled in, and later ones not be seen",
                    fix="leave it out of the static arguments: what is static in a model is compiled in anyway",
                )
        rest = tuple(a for i, a in enumerate(args) if i not in numbers)
        return rest, {n: v for n, v in kwargs.items() if n not in self.names}, (by_number, by_name)

    def give(self, fun: Callable[..., Any], statics: tuple[Any, ...] | None) -> Callable[..., Any]:
        """The function of the other arguments."""
        if statics is None:
            return fun
        by_number, by_name = statics

        def with_statics(*args: Any, **kwargs: Any) -> Any:
            listed = list(args)
            for index, value in by_number:
                listed.insert(index, value)
            return fun(*listed, **kwargs, **dict(by_name))

        return with_statics

    def chosen(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The selected ones of given arguments."""
        by_number = [args[i] for i in self._numbers_of(args) if i < len(args)]
        return by_number + [v for n, v in kwargs.items() if n in self.names]

    def _numbers_of(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The positions that are selected in a call."""
        if not self._from_end:
            return self.numbers
        for number in self._from_end:
            if number < -len(args):
                raise TransformError(
                    f"{self._option}_argnums",
                    f"the call has no positional argument {number}",
                    expected=f"at least {-number} positional arguments",
                    got=str(len(args)),
                    fix=f"{self._option}_argnums=0        # or give more arguments by position",
                )
        return tuple(sorted({*self.numbers, *(len(args) + number for number in self._from_end)}))


def _numbers_of(positional: Sequence[str]) -> str:
    """The numbers that a selection can have."""
    if not positional:
        return "no number, since the function has no positional parameters"
    last = len(positional) - 1
    return f"a number from {-len(positional)} to {last}, where 0 is {positional[0]!r}" + (
        f" and {last} is {positional[-1]!r}" if last else ""
    )


def _fix(option: str, kind: str, known: Sequence[Any]) -> str:
    """The line that selects the last parameter."""
    return f"{option}_arg{kind}={known[-1]!r}" if known else f"leave out {option}_arg{kind}"
