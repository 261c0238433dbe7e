"""The sizes that a check is about: names, the conditions on them, and numbers that satisfy these.

Divisibility and equality are carried out by substitution, since JAX cannot decide with them: of ``dim % heads == 0``,
`dim` becomes ``heads * k`` with a fresh k, and is written back as `dim` where a size is shown.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from declax._text.dimensions import (
    FLIPPED,
    Condition,
    Operation,
    Size,
    Symbol,
    evaluate,
    numbers_in,
    operation,
    product,
    substitute,
    symbols_of,
)
from declax.shapes.polynomials import is_never_negative

_PRIMES: Final = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59)
_MOST_TRIES: Final = 4000
_LARGEST: Final = 1 << 16
"""The largest number that is tried for its own sake."""


class Multiple(NamedTuple):
    """That a symbol was replaced by ``factor * k + offset``, with a fresh k."""

    key: str
    factor: Size
    offset: int


def _without_floor(condition: Condition) -> Condition:
    """The same condition on `size` in place of ``size // number``, where it is compared with a number."""
    left, sign, right, text = condition
    if not (isinstance(left, Operation) and left.sign == "//" and isinstance(right, int)):
        return condition
    size, divisor = left.operands
    if not isinstance(divisor, int) or divisor < 1 or sign == "==":
        return condition
    if sign in ("<=", ">"):  # than the next multiple
        sign, right = ("<" if sign == "<=" else ">="), right + 1
    return Condition(size, sign, right * divisor, text)


class Domain:
    """Names of sizes with conditions.

    Attributes:
      names: the keys of the symbols, as the user wrote them.
      conditions: all conditions.
      replaced: sizes in place of some symbols, made of the symbols in `free`.
      multiples: the fresh symbols, by key.
      free: the symbols that may have any number.
      remaining: the conditions that no substitution carries out, on the symbols in `free`.
    """

    def __init__(self, names: Iterable[str], conditions: Iterable[Condition]) -> None:
        self.names: list[str] = list(dict.fromkeys(names))
        self.conditions: list[Condition] = list(conditions)
        self.free: list[str] = list(self.names)
        self.replaced: dict[str, Size] = {}
        self.multiples: dict[str, Multiple] = {}
        self.remaining: list[Condition] = []
        for condition in sorted(self.conditions, key=_order):
            if condition.sign != "==" or not (self._divide(condition) or self._equate(condition)):
                self.remaining.append(condition)
        self._substitute_remaining()
        low, high = self._bounds()
        for key, bound in high.items():
            if low.get(key, 1) == bound:
                self._replace(key, bound)
        self._substitute_remaining()
        for key, size in self.replaced.items():
            if not _is_positive(size):
                self.remaining.append(Condition(size, ">=", 1, f"{key} >= 1"))

    def _substitute_remaining(self) -> None:
        self.remaining = [
            Condition(self.substituted(c.left), c.sign, self.substituted(c.right), c.text) for c in self.remaining
        ]

    def with_conditions(self, conditions: Iterable[Condition]) -> Domain:
        """The same names under more conditions."""
        return Domain(self.names, [*self.conditions, *conditions])

    # --- substitution ---------------------------------------------------------------

    def _divide(self, condition: Condition) -> bool:
        """Carries out ``size % factor == rest``; whether it could."""
        left, rest = condition.left, condition.right
        if not (isinstance(left, Operation) and left.sign == "%" and isinstance(rest, int) and rest >= 0):
            return False
        size, factor = (substitute(operand, self.replaced) for operand in left.operands)
        if isinstance(size, Operation) and size.sign == "*" and isinstance(factor, int) and rest == 0 and factor:
            scale, size = size.operands
            factor //= math.gcd(scale, factor) if isinstance(scale, int) else 1
            if not isinstance(scale, int):
                return False
            if factor == 1:
                return True
            if isinstance(size, Symbol) and size.key in self.multiples:
                return self._divide_again(size.key, factor)
        is_known = isinstance(factor, int) and (factor == 0 or rest >= factor)
        if not isinstance(size, Symbol) or size.key in symbols_of(factor) or is_known:
            return False
        if rest and not isinstance(factor, int):
            return False
        fresh = f"{size.key}:{len(self.multiples)}"
        offset = rest - factor if rest and isinstance(factor, int) else 0
        self.multiples[fresh] = Multiple(size.key, factor, offset)
        self.free.append(fresh)
        self._replace(size.key, operation("+", product([factor, Symbol(fresh)]), offset) if offset else product(
            [factor, Symbol(fresh)]
        ))  # fmt: skip
        return True

    def _divide_again(self, fresh: str, factor: int) -> bool:
        """Carries out a second number of which a symbol is a multiple."""
        key, known, offset = self.multiples.pop(fresh)
        if not isinstance(known, int) or offset:
            self.multiples[fresh] = Multiple(key, known, offset)
            return False
        again = f"{fresh}:"
        self.multiples[again] = Multiple(key, known * factor, 0)
        self.free.append(again)
        self._replace(fresh, product([factor, Symbol(again)]))
        del self.replaced[fresh]
        return True

    def _equate(self, condition: Condition) -> bool:
        """Carries out ``name == size``; whether it could."""
        left, right = (substitute(side, self.replaced) for side in (condition.left, condition.right))
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Symbol) and one.key not in symbols_of(other):
                self._replace(one.key, other)
                return True
        return left == right

    def _replace(self, key: str, size: Size) -> None:
        self.replaced = {name: substitute(old, {key: size}) for name, old in self.replaced.items()}
        self.replaced[key] = size
        self.free.remove(key)

    def is_impossible(self, condition: Condition) -> bool:
        """Whether a condition holds for no numbers; False if this is not seen. Products are seen, unlike by JAX."""
        condition = _without_floor(condition)
        left, right = self.substituted(condition.left), self.substituted(condition.right)
        low, _ = self._bounds()
        starts = {key: low.get(key, 1) for key in self.free}
        margin = int(condition.sign in ("<=", ">=", "=="))
        above = is_never_negative(Operation("-", (Operation("-", (left, right)), margin)), starts)
        below = is_never_negative(Operation("-", (Operation("-", (right, left)), margin)), starts)
        return (above and condition.sign in ("<", "<=", "==")) or (below and condition.sign in (">", ">=", "=="))

    def substituted(self, size: Size) -> Size:
        """A size, made of the free symbols."""
        return substitute(size, self.replaced)

    def written(self, size: Size) -> Size:
        """A size of the free symbols, made of the names of the user."""
        return sum_of(self.terms(size))

    def terms(self, size: Size) -> dict[tuple[Size, ...], int]:
        """The products in a sum, each with its number, in the names of the user."""
        if isinstance(size, int):
            return {(): size}
        if isinstance(size, Symbol):
            return self._of_multiple({(size,): 1})
        left, right = size.operands
        if size.sign in ("+", "-"):
            sign = 1 if size.sign == "+" else -1
            return _added([self.terms(left), {atoms: sign * scale for atoms, scale in self.terms(right).items()}])
        factors = _factors(size)
        if factors is not None:
            scale, atoms = factors
            plain = [atom for atom in atoms if isinstance(atom, Symbol)]
            others = [sum_of(self._terms_inside(atom)) for atom in atoms if not isinstance(atom, Symbol)]
            return self._of_multiple({(*plain, *others): scale})
        return {(sum_of(self._terms_inside(size)),): 1}

    def _terms_inside(self, size: Size) -> dict[tuple[Size, ...], int]:
        if isinstance(size, Operation) and size.sign in ("+", "-"):
            return self.terms(size)
        if isinstance(size, Operation):
            left, right = size.operands
            return {(operation(size.sign, self.written(left), self.written(right)),): 1}
        return self.terms(size)

    def _of_multiple(self, term: dict[tuple[Size, ...], int]) -> dict[tuple[Size, ...], int]:
        """A product, in which a fresh symbol with its factor is the symbol that it stands for."""
        ((atoms, scale),) = term.items()
        for fresh, (key, factor, offset) in reversed(self.multiples.items()):
            while Symbol(fresh) in atoms:
                rest = list(atoms)
                rest.remove(Symbol(fresh))
                if offset and isinstance(factor, int) and scale % factor == 0:
                    scale //= factor
                    parts: dict[tuple[Size, ...], int] = {(*rest, Symbol(key)): scale, tuple(rest): -scale * offset}
                    return _added(self._of_multiple({part: number}) for part, number in parts.items())
                if offset:
                    rest.append(Operation("//", (operation("+", Symbol(key), -offset), factor)))
                elif factor in rest:
                    rest.remove(factor)
                    rest.append(Symbol(key))
                elif isinstance(factor, int) and scale % factor == 0:
                    scale //= factor
                    rest.append(Symbol(key))
                elif isinstance(factor, int) and scale > 0 and factor % scale == 0:
                    rest.append(Operation("//", (Symbol(key), factor // scale)))
                    scale = 1
                else:
                    rest.append(Operation("//", (Symbol(key), factor)))
                atoms = tuple(rest)
        return {tuple(sorted(atoms, key=lambda atom: (not isinstance(atom, Symbol), str(atom)))): scale}

    # --- numbers --------------------------------------------------------------------

    def free_values(self, values: Mapping[str, int]) -> dict[str, int]:
        """The numbers of the free symbols, from those of the names."""
        found = {key: value for key, value in values.items() if key in self.free}
        for fresh, (key, factor, offset) in self.multiples.items():
            known = {**values, **found}
            found[fresh] = (known[key] - offset) // evaluate(factor, known)
        return found

    def complete(self, free: Mapping[str, int]) -> dict[str, int] | None:
        """The numbers of all names, from those of the free symbols; None if a condition does not hold."""
        try:
            values = {**free, **{key: evaluate(size, free) for key, size in self.replaced.items()}}
            is_fine = all(values[name] >= 1 for name in self.names)
            is_fine = is_fine and all(condition.holds(values) for condition in self.conditions)
        except ZeroDivisionError:
            return None
        return {name: values[name] for name in self.names} if is_fine else None

    def samples(self, constants: Sequence[int] = (), most_tries: int = _MOST_TRIES) -> Iterator[dict[str, int]]:
        """Different numbers that satisfy the conditions: uneven ones, then ones, equal ones, limits and constants."""
        seen = set[tuple[int, ...]]()
        for free in itertools.islice(self._tries(constants), most_tries):
            values = self.complete(free)
            key = None if values is None else tuple(values.values())
            if values is not None and key is not None and key not in seen:
                seen.add(key)
                yield values

    def _tries(self, constants: Sequence[int]) -> Iterator[dict[str, int]]:
        low, high = self._bounds()
        sides = [side for condition in self.remaining for side in (condition.left, condition.right)]
        limits = _around(number for side in sides for number in numbers_in(side))
        given = _around(constants)
        count = len(self.free)

        def fitted(values: Sequence[int]) -> dict[str, int]:
            pairs = zip(self.free, values, strict=True)
            return {key: max(low.get(key, 1), min(value, high.get(key, value))) for key, value in pairs}

        uneven = list(itertools.islice(itertools.cycle(_PRIMES), count))
        bounds = [(index, known[key]) for known in (high, low) for index, key in enumerate(self.free) if key in known]
        sources: tuple[Iterable[list[int]], ...] = (
            [[1] * count, *[_with(uneven, index, 1) for index in range(count)]],
            (_with(uneven, index + 1, uneven[index]) for index in range(count - 1)),
            (_with(uneven, index, limit) for limit in limits for index in range(count)),
            (_with(uneven, index, bound) for index, bound in bounds),
            (_with(uneven, index, number) for number in given for index in range(count)),
            ([number] * count for number in (2, 4, 7)),
        )
        mixed = itertools.chain.from_iterable(itertools.zip_longest(*sources))
        yield from map(fitted, (uneven, *filter(None, mixed)))
        chosen = random.Random(0)
        pool = [*range(1, 12), *_PRIMES, *limits, *given]
        while uneven:
            yield fitted([chosen.choice(pool) if chosen.random() < 0.8 else _wide(chosen) for _ in uneven])

    def _bounds(self) -> tuple[dict[str, int], dict[str, int]]:
        """The least and the greatest numbers of free symbols that conditions with one symbol and one number say."""
        low: dict[str, int] = {}
        high: dict[str, int] = {}
        for condition in self.remaining:
            left, right, sign = condition.left, condition.right, condition.sign
            if isinstance(left, int):
                left, right, sign = right, left, FLIPPED[sign]
            scale: Size = 1
            if isinstance(left, Operation) and left.sign == "*":
                scale, left = left.operands
            if not (isinstance(left, Symbol) and isinstance(right, int) and isinstance(scale, int) and scale > 0):
                continue
            if sign in (">", ">="):
                low[left.key] = max(low.get(left.key, 1), (right + (sign == ">") + scale - 1) // scale)
            elif sign in ("<", "<="):
                bound = (right - (sign == "<")) // scale
                high[left.key] = min(high.get(left.key, bound), bound)
        return low, high


def _around(numbers: Iterable[int]) -> list[int]:
    """Numbers and their neighbours, from small to large."""
    return sorted({n + step for n in numbers for step in (-1, 0, 1) if 1 <= n + step <= _LARGEST})


def _wide(chosen: random.Random) -> int:
    """A number of any magnitude."""
    return int(2 ** (12 * chosen.random()))


def _with(values: Sequence[int], index: int, value: int) -> list[int]:
    return [*values[:index], value, *values[index + 1 :]]


def _order(condition: Condition) -> int:
    """Multiples of symbols first, then equalities, then multiples of numbers."""
    left = condition.left
    if isinstance(left, Operation) and left.sign == "%" and condition.sign == "==":
        return 2 if isinstance(left.operands[1], int) else 0
    return 1


def _is_positive(size: Size) -> bool:
    if isinstance(size, int):
        return size >= 1
    return isinstance(size, Symbol) or (size.sign in ("*", "+", "max", "min") and all(map(_is_positive, size.operands)))


def _factors(size: Operation) -> tuple[int, tuple[Size, ...]] | None:
    """The number and the other factors of a product; None for another operation."""
    if size.sign == "^" and isinstance(size.operands[1], int):
        return 1, (size.operands[0],) * size.operands[1]
    if size.sign != "*":
        return None
    scale, atoms = 1, list[Size]()
    for operand in size.operands:
        inner = _factors(operand) if isinstance(operand, Operation) else None
        if isinstance(operand, int):
            scale *= operand
        elif inner is None:
            atoms.append(operand)
        else:
            scale *= inner[0]
            atoms += inner[1]
    return scale, tuple(atoms)


def _added(sums: Iterable[Mapping[tuple[Size, ...], int]]) -> dict[tuple[Size, ...], int]:
    """The sum of sums of products."""
    found: dict[tuple[Size, ...], int] = {}
    for atoms, scale in itertools.chain.from_iterable(terms.items() for terms in sums):
        found[atoms] = found.get(atoms, 0) + scale
    return found


def sum_of(terms: Mapping[tuple[Size, ...], int]) -> Size:
    """The sum of products with numbers; the number alone is last."""
    found: Size = 0
    present = [(atoms, scale) for atoms, scale in terms.items() if scale]
    for atoms, scale in sorted(present, key=lambda term: term[1] < 0 or not term[0]):
        powers = [_power(atom, len(list(same))) for atom, same in itertools.groupby(atoms)]
        part = product([abs(scale), *powers])
        found = operation("-" if scale < 0 else "+", found, part) if found != 0 or scale < 0 else part
    return found


def _power(atom: Size, power: int) -> Size:
    return atom if power == 1 else Operation("^", (atom, power))
