"""From evaluations to a verdict.

1. *With symbols*: a comparison that is not decided splits the sizes in two or three cases, each of which is evaluated
   again; a size that the code needs as a number becomes some numbers, one size at a time.
2. *In numbers*: where nothing is left to say, the call is evaluated at eight sizes, and its shapes are compared.
3. Otherwise a counterexample is searched in numbers, and then a condition under which the first two steps find nothing.
"""

from __future__ import annotations

import enum
import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import jax

from declax._text.dimensions import FIELD, Condition, Symbol
from declax.shapes.comparisons import limiting_searches
from declax.shapes.domains import Domain
from declax.shapes.evaluation import Outcome, Subject, evaluate_numbers, evaluate_symbols
from declax.shapes.problems import Kind, Problem, residues_of
from declax.shapes.symbols import Scopes, Symbols, decided

SIZES: Final = 8
"""In how many sizes a proof is repeated."""
TRIES: Final = 20
"""In how many sizes a counterexample is searched."""
SECONDS: Final = 5.0
"""How long it is searched, in time of this thread: a busy machine changes no verdict."""
_MOST_TRIES_OF_EMPTY: Final = 300
_MOST_SPLITS: Final = 4
_MOST_REWRITES: Final = 4
_MOST_RESIDUES: Final = 4
_MOST_NEEDED: Final = 3
_MOST_CANDIDATES: Final = 12
_NUMBERS: Final = (1, 2, 3)


class Verdict(enum.Enum):
    """What a check has shown."""

    PROVEN = "proven"
    WRONG = "wrong"
    NEEDED = "needs a condition"
    TESTED = "tested only"


class Failure(NamedTuple):
    """A size at which a call fails."""

    values: Mapping[str, int]
    problem: Problem


class Proof(NamedTuple):
    """The result of a check.

    Attributes:
      verdict: what it has shown.
      problems: what was not decided, or is wrong.
      failure: a size at which the call fails; None if none was found.
      needed: the conditions to add.
      numbers: the sizes that became numbers, with these.
      tried: in how many sizes the call was evaluated.
      warnings: chance broadcasts.
      indices: whether values of arguments are indices.
    """

    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    failure: Failure | None = None
    needed: tuple[Condition, ...] = ()
    numbers: Mapping[str, tuple[int, ...]] = {}
    tried: int = 0
    warnings: tuple[Problem, ...] = ()
    indices: bool = False


class Leaf(NamedTuple):
    """One case of the sizes, with its evaluation."""

    symbols: Symbols
    outcome: Outcome


def prove(subject: Subject) -> Proof:
    """The proof of a call for all sizes, or what is wrong with it."""
    with limiting_searches():
        return _Search(subject).run()


class _Search:
    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.numbers: dict[str, tuple[int, ...]] = {}
        self._scopes = subject.scopes or Scopes()
        self._end = time.thread_time() + SECONDS

    def run(self) -> Proof:
        leaves, problems = self._cases(self.subject.domain, 0)
        failure: Failure | None
        warnings = tuple(dict.fromkeys(warning for leaf in leaves for warning in leaf.outcome.warnings))
        indices = any(leaf.outcome.indices for leaf in leaves)
        count, failure = self._repeat(leaves) if not problems else (0, None)
        found = Proof(Verdict.PROVEN, numbers=self.numbers, tried=count, warnings=warnings, indices=indices)
        if not problems and failure is None:
            return found._replace(verdict=Verdict.TESTED) if self.numbers else found
        if failure is None:
            count, failure = self._counterexample(problems)
        found = found._replace(problems=tuple(dict.fromkeys(problems)), tried=count, failure=failure)
        if failure is None and (proof := self._with_numbers(found)) is not None:
            return proof
        needed = self._needed(self.subject.domain, problems, failure, ())
        failed = Verdict.NEEDED if needed else Verdict.WRONG
        return found._replace(verdict=Verdict.TESTED if failure is None else failed, needed=needed)

    # --- with symbols ---------------------------------------------------------------

    def _cases(self, domain: Domain, depth: int) -> tuple[list[Leaf], list[Problem]]:
        """The evaluations of all cases, and the problems that are left."""
        try:
            symbols, outcome = self._evaluated(domain)
        except jax.errors.InconclusiveDimensionOperation as error:  # of a maximum in the conditions themselves
            return [], [Problem(Kind.COMPARISON, self.subject.place, str(error).partition("\n")[0])]
        whole = [Leaf(symbols, outcome)], list(outcome.problems)
        first = next((p for p in outcome.problems if p.kind in (Kind.COMPARISON, Kind.STOP)), None)
        if not outcome.problems or depth >= _MOST_SPLITS:
            return whole
        if first is not None and first.kind is Kind.STOP:
            cases = self._fixed(domain, first)
        elif residues := residues_of(_undecided(outcome.problems, domain), _MOST_RESIDUES):
            cases = self._splits(symbols, residues)  # JAX may decide each where it cannot decide all
        else:
            cases = [] if first is None else self._splits(symbols, first.splits)
        results = [self._cases(case, depth + 1) for case in cases]
        leaves = [leaf for found, _ in results for leaf in found]
        problems = [problem for _, left in results for problem in left]
        if not results or (first is None and problems):
            return whole
        fine = [case.conditions[-1] for case, (_, left) in zip(cases, results, strict=True) if not left]
        if first is not None and not first.is_branch:
            return leaves, [p._replace(candidates=(*p.candidates, *fine)) for p in problems]
        return leaves, [
            p._replace(candidates=(*p.candidates, *residues_of(fine, _MOST_RESIDUES, fine))) for p in problems
        ]

    def _evaluated(self, domain: Domain) -> tuple[Symbols, Outcome]:
        """The evaluation with symbols; if something is not decided, once more with rounded sizes in one form."""
        found = best = self._evaluated_once(domain)
        for _ in range(_MOST_REWRITES):
            symbols, outcome = found
            rules = symbols.rules_for(size for problem in outcome.problems for size in problem.sizes)
            if not rules:
                break
            try:
                found = self._evaluated_once(domain, [*symbols.rules, *rules])
            except jax.errors.InconclusiveDimensionOperation:  # of a maximum, under these equations
                break
            best = found if len(found[1].problems) < len(best[1].problems) else best
        return best

    def _evaluated_once(self, domain: Domain, rules: Sequence[str] = ()) -> tuple[Symbols, Outcome]:
        symbols = self._scopes.of(domain, rules)
        outcome = evaluate_symbols(self.subject, symbols)
        if outcome.problems:
            self._scopes.forget(symbols)
        return symbols, outcome

    def _splits(self, symbols: Symbols, conditions: Sequence[Condition]) -> list[Domain]:
        """The cases of some conditions, without impossible ones; none if one of them has no sizes that are found."""
        known = set(symbols.domain.names)
        if not conditions or any(not known.issuperset(condition.symbols()) for condition in conditions):
            return []
        domain = symbols.domain
        possible = [c for c in conditions if decided(c, symbols.sizes) is not False and not domain.is_impossible(c)]
        cases = [symbols.domain.with_conditions([condition]) for condition in possible]
        return cases if all(next(case.samples(), None) for case in cases) else []

    def _fixed(self, domain: Domain, problem: Problem) -> list[Domain]:
        """Numbers in place of the size that the code needs: fields first, and those first that the problem names."""
        open_names = [name for name in domain.names if name not in self.numbers]
        open_names.sort(key=lambda name: (name.removeprefix("self.") not in problem.text, not name.startswith("self.")))
        for name in open_names:
            values = self._numbers_of(domain, name)
            cases = [_equal(domain, name, value) for value in values]
            if cases and not self._stops_at(cases[-1], problem):
                self.numbers[name] = values
                return cases
        return []

    def _with_numbers(self, found: Proof) -> Proof | None:
        """The proof with numbers in place of one field that the problems name, if nothing is left to say then."""
        texts = " ".join(problem.text for problem in found.problems)
        domain = self.subject.domain
        for name in domain.names:
            bare = name.removeprefix(FIELD)
            if bare == name or name in self.numbers or re.search(rf"\b{bare}\b", texts) is None:
                continue
            values = self._numbers_of(domain, name)
            results = [self._cases(_equal(domain, name, value), 1) for value in values]
            leaves = [leaf for part, _ in results for leaf in part]
            if not any(left for _, left in results):
                count, failure = self._repeat(leaves)
                if failure is None:
                    numbers = {**self.numbers, name: values}
                    return found._replace(verdict=Verdict.TESTED, problems=(), numbers=numbers, tried=count)
        return None

    def _numbers_of(self, domain: Domain, name: str) -> tuple[int, ...]:
        """Some numbers of a size."""
        values = {sample[name] for sample in itertools.islice(domain.samples(_NUMBERS), 60)}
        return tuple(sorted(values)[: len(_NUMBERS)])

    def _stops_at(self, domain: Domain, problem: Problem) -> bool:
        """Whether the code needs a number at the same place, or at one before."""
        _, outcome = self._evaluated_once(domain)
        return any(p.kind is Kind.STOP and p.place == problem.place for p in outcome.problems)

    # --- in numbers -----------------------------------------------------------------

    def _repeat(self, leaves: Sequence[Leaf]) -> tuple[int, Failure | None]:
        """Evaluates each case in numbers, and compares the shapes."""
        count = 0
        share = max(3, SIZES // len(leaves))
        for leaf in leaves:
            for values in self._samples_of(leaf, share):
                outcome = evaluate_numbers(self.subject, values)
                if outcome.is_refused:
                    continue
                count += 1
                if outcome.problems:
                    return count, Failure(values, outcome.problems[0])
                expected = [
                    tuple(leaf.symbols.number(size, values) for size in shape) for shape in leaf.outcome.shapes or ()
                ]
                if list(outcome.shapes or ()) != expected:
                    text = "the shape of the result is not that of the evaluation with symbols"
                    wanted, got = (", ".join(map(str, shapes)) for shapes in (expected, outcome.shapes or ()))
                    return count, Failure(values, Problem(Kind.RESULT, self.subject.place, text, wanted, got))
        return count, None

    def _samples_of(self, leaf: Leaf, count: int) -> Iterator[Mapping[str, int]]:
        """Numbers of one case, and those at which an array is empty."""
        domain = leaf.symbols.domain
        chosen = list(itertools.islice(domain.samples(self.subject.constants), count))
        yield from chosen
        for condition in leaf.outcome.empty:
            if not any(_holds(condition, values) for values in chosen):
                narrower = domain.with_conditions([condition])
                yield from itertools.islice(narrower.samples((), _MOST_TRIES_OF_EMPTY), 1)

    def _counterexample(self, problems: Sequence[Problem]) -> tuple[int, Failure | None]:
        """The smallest of the sizes at which the call fails; small and uneven ones are tried first."""
        failures: list[Failure] = []
        count = 0
        for values in itertools.islice(self._sizes(problems), TRIES):
            if (failures and count >= SIZES) or time.thread_time() > self._end:
                break
            outcome = evaluate_numbers(self.subject, values)
            count += not outcome.is_refused
            if outcome.problems:
                failures.append(Failure(values, outcome.problems[0]))
        return count, min(failures, key=_order, default=None)

    def _sizes(self, problems: Sequence[Problem]) -> Iterator[Mapping[str, int]]:
        """Sizes on both sides of what was not decided, and then others."""
        domain = self.subject.domain
        seen: list[Mapping[str, int]] = []
        undecided = dict.fromkeys(c for p in problems for c in (*p.splits, *p.candidates))
        sides = [_with(domain, side) for c in undecided for side in (c, *_opposites(c))]
        sources = [domain.samples(self.subject.constants), *(side.samples() for side in sides if side is not None)]
        for values in itertools.chain.from_iterable(itertools.zip_longest(*sources)):
            if values is not None and values not in seen:
                seen.append(values)
                yield values

    # --- conditions -----------------------------------------------------------------

    def _needed(
        self, domain: Domain, problems: Iterable[Problem], failure: Failure | None, added: tuple[Condition, ...]
    ) -> tuple[Condition, ...]:
        """The conditions under which nothing is left to say; none if none are found."""
        candidates = [c for c in dict.fromkeys(c for p in problems for c in p.candidates) if c not in added]
        for candidate in candidates[:_MOST_CANDIDATES]:
            if time.thread_time() > self._end or (failure is not None and _holds(candidate, failure.values)):
                continue
            narrower = _with(domain, candidate)
            if narrower is None:
                continue
            leaves, rest = self._cases(narrower, 0)
            if not rest and self._repeat(leaves)[1] is None:
                return (*added, candidate)
            now = (*added, candidate)
            if rest and len(now) < _MOST_NEEDED and _signature(rest, now) != _signature(problems, added):
                more = self._needed(narrower, rest, None, now)
                if more:
                    return more
        return ()


def _equal(domain: Domain, name: str, value: int) -> Domain:
    return domain.with_conditions([Condition.of(Symbol(name), "==", value)])


def _undecided(problems: Iterable[Problem], domain: Domain) -> Iterator[Condition]:
    """What problems ask for, without the rests that the conditions of a domain say."""
    known = {condition.left for condition in domain.conditions if condition.sign == "=="}
    for problem in problems:
        yield from (c for c in (*problem.splits, *problem.candidates) if c.left not in known)


def _signature(problems: Iterable[Problem], added: Sequence[Condition]) -> set[tuple[str, frozenset[Condition]]]:
    return {(problem.text, frozenset(problem.candidates) - {*added}) for problem in problems}


def _with(domain: Domain, condition: Condition) -> Domain | None:
    """The sizes under one more condition; None if no sizes are found."""
    if not set(domain.names).issuperset(condition.symbols()) or not condition.symbols():
        return None
    narrower = domain.with_conditions([condition])
    return narrower if next(narrower.samples(), None) is not None else None


def _opposites(condition: Condition) -> list[Condition]:
    signs = {"<": [">="], ">=": ["<"], ">": ["<="], "<=": [">"], "==": ["<", ">"]}[condition.sign]
    return [Condition.of(condition.left, sign, condition.right) for sign in signs]


def _holds(condition: Condition, values: Mapping[str, int]) -> bool:
    try:
        return condition.holds(values)
    except (ZeroDivisionError, KeyError):  # of a name that is no name of the user
        return False


def _order(failure: Failure) -> tuple[int, int]:
    """Small sizes first, but those of ones and of equal sizes last, which hide what is wrong."""
    values = list(failure.values.values())
    return len(values) - len(set(values) - {1}), sum(values)
