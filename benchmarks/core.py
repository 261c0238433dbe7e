"""Measures the core of declax beside its peers and plain JAX: ``python -m benchmarks.core --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.figures import FIGURES, OURS, Count, Figure, Outcome, measure
from benchmarks.harness import Effort
from benchmarks.systems import load

RESULTS = Path(__file__).parent / "results"
QUICK = Effort(rounds=15, sample_ms=2.5)


def arguments(words: Sequence[str] | None, script: str, about: str | None, groups: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{script}", description=about)
    parser.add_argument("--only", action="append", choices=groups, help="measure this group; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few and short rounds: seconds instead of minutes")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}/{script}.md and {script}.png")
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed or declax was not measured")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Measures the core, prints, and returns the exit status."""
    return run(FIGURES, "core", "The core, measured", __doc__, words)


def run(
    figures: Sequence[Figure],
    script: str,
    title: str,
    about: str | None,
    words: Sequence[str] | None,
    counts: Sequence[Count] = (),
) -> int:
    """Measures figures, prints, and returns the exit status.

    Args:
        figures: what is measured.
        script: the name of the module, and of the files that it writes.
        title: of the table.
        about: what the script is for.
        words: the arguments of the command line.
        counts: what is counted once, after all figures.
    """
    groups = tuple(dict.fromkeys([*(figure.group for figure in figures), *(count.group for count in counts)]))
    chosen = arguments(words, script, about, groups)
    groups = tuple(chosen.only or groups)
    systems, skipped = load()
    for name, why in skipped.items():
        print(f"skipped: {name} ({why})", file=sys.stderr)
    names = [system.name for system in systems]
    outcomes: list[Outcome] = []
    for figure in figures:
        if figure.group in groups:
            print(f"measuring: {figure.title}", file=sys.stderr, flush=True)
            outcomes.append(measure(figure, systems, QUICK if chosen.quick else Effort()))
    names = [name for name in names if any(name in o.samples for o in outcomes)]
    numbers = {count: count.take() for count in counts if count.group in groups}
    tables = [part for part in (report.table(outcomes, names), report.added(outcomes), report.counted(numbers)) if part]
    print(*tables, sep="\n\n")
    if chosen.write:
        report.write_table(RESULTS / f"{script}.md", title, tables, skipped)
        report.plot(RESULTS / f"{script}.png", outcomes, names)
    missed = [outcome.figure.title for outcome in outcomes if outcome.met is False]
    missed += [count.title for count, number in numbers.items() if number > count.bar]
    for title_of_missed in missed:
        print(f"over the bar: {title_of_missed}", file=sys.stderr)
    was_measured = OURS in names or not outcomes
    return int(chosen.check and (bool(missed) or not was_measured))


if __name__ == "__main__":
    sys.exit(main())
