"""Which runs a sweep has: combinations of values, values that go together, and random ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from declax.config._sources.series import MAX_VALUES, Draw
from declax.config._sources.words import Run, Word, parse_word, short
from declax.config.problems import path_text
from declax.errors import ConfigError, suggest

MAX_RUNS: Final = 100_000


class Plan(NamedTuple):
    """How the values of words make runs.

    Attributes:
      samples: the number of random values; None if none was said.
      seed: of the random values; None is 0.
      zipped: groups of paths whose values go together, the first with the first, instead of in all combinations.
    """

    samples: int | None = None
    seed: int | None = None
    zipped: tuple[tuple[str, ...], ...] = ()


GRID: Final = Plan()
"""All combinations, and no random values."""


def expand(words: Sequence[Word], plan: Plan = GRID) -> Iterator[Run]:
    """One run for each combination of values; the last word varies fastest. Random words are drawn together.

    Raises:
      ConfigError: random values without a number of samples, a number without random values, or values that cannot
        go together.
    """
    if plan.samples is not None and not any(map(_is_random, words)):
        problem, fix = "the number of random values is given, and no value is random", "rate=uniform(0,1)"
        raise ConfigError("--samples", problem, got=str(plan.samples), fix=fix)
    made = [_drawn(word, plan) if _is_random(word) else word for word in words]
    groups = _groups(made, [index for index, word in enumerate(words) if _is_random(word)], plan)
    sizes = [len(made[group[0]].values) for group in groups]
    count = 1
    for size in sizes:
        count *= size
    if count > MAX_RUNS:
        raise ConfigError("the sweep", "it has too many runs", expected=f"at most {MAX_RUNS}", got=str(count))
    swept = [index for index, word in enumerate(made) if len(word.values) > 1 or _is_random(words[index])]
    for places in itertools.product(*map(range, sizes)):
        at = {index: place for group, place in zip(groups, places, strict=True) for index in group}
        chosen = tuple((word, word.values[at[i]], word.others[at[i]]) for i, word in enumerate(made))
        name = ",".join(f"{path_text(chosen[i][0].path)}={short(chosen[i][1])}" for i in swept)
        yield Run(name, chosen)


def _is_random(word: Word) -> bool:
    return any(isinstance(value, Draw) for value in word.values)


def _drawn(word: Word, plan: Plan) -> Word:
    """A word with random values. They depend on its path and the seed alone, and more samples leave the first ones."""
    if len(word.values) > 1:
        raise ConfigError(word.text, "random values stand beside others", fix="one of them alone")
    if plan.samples is None:
        raise ConfigError(word.text, "nobody says how many random values there are", fix="--samples 20")
    if not 1 <= plan.samples <= MAX_VALUES:
        got = str(plan.samples)
        raise ConfigError("--samples", "not a number of values", expected=f"1 to {MAX_VALUES}", got=got)
    source = random.Random(f"{plan.seed or 0} {path_text(word.path)}")
    draw = next(iter(word.values))
    values: tuple[Any, ...] = tuple(draw.of(source) for _ in range(plan.samples))
    return word._replace(values=values, others=values)


def _groups(words: Sequence[Word], drawn: Sequence[int], plan: Plan) -> list[tuple[int, ...]]:
    """The numbers of words whose values go together, in the order of the first of each group."""
    paths = [path_text(word.path) for word in words]
    found: list[tuple[int, ...]] = []
    for names in ([path_text(parse_word(f"{name}=").path) for name in group] for group in plan.zipped):
        for name in names:
            if name not in paths:
                known = [path for path, word in zip(paths, words, strict=True) if len(word.values) > 1]
                problem, fix = "no values of a sweep are given for a path of --zip", suggest(name, known)
                raise ConfigError(name, problem, expected=", ".join(known) or None, fix=fix)
        group = tuple(index for index, path in enumerate(paths) if path in names)
        sizes = {paths[index]: len(words[index].values) for index in group}
        if len(set(sizes.values())) > 1:
            got = ", ".join(f"{size} of {path}" for path, size in sizes.items())
            raise ConfigError(",".join(names), "values that go together are not equally many", got=got)
        if any(index in other for index in group for other in found):
            raise ConfigError(",".join(names), "a path is in two groups of --zip", fix="write them as one group")
        found.append(group)
    taken = {index for group in found for index in group}
    together = tuple(index for index in drawn if index not in taken)
    found += [together] if together else []
    found += [(index,) for index in range(len(words)) if index not in taken and index not in together]
    return sorted(found)
