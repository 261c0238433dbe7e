"""Measures the core of declax beside its peers and the floor: ``python -m benchmarks.core --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.figures import FIGURES, GROUPS, OURS, Outcome, measure
from benchmarks.harness import Effort
from benchmarks.systems import load

RESULTS = Path(__file__).parent / "results"
QUICK = Effort(rounds=15, sample_ms=2.5)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core", description=__doc__)
    parser.add_argument("--only", action="append", choices=GROUPS, help="measure this group; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few and short rounds: seconds instead of minutes")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}/core.md and core.png")
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed or declax was not measured")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Measures, prints, and returns the exit status."""
    chosen = arguments(words)
    systems, skipped = load()
    for name, why in skipped.items():
        print(f"skipped: {name} ({why})", file=sys.stderr)
    names = [system.name for system in systems]
    outcomes: list[Outcome] = []
    for figure in FIGURES:
        if not chosen.only or figure.group in chosen.only:
            print(f"measuring: {figure.title}", file=sys.stderr, flush=True)
            outcomes.append(measure(figure, systems, QUICK if chosen.quick else Effort()))
    print(report.table(outcomes, names), *report.added(outcomes), sep="\n")
    if chosen.write:
        report.write_table(RESULTS / "core.md", outcomes, names, skipped)
        report.plot(RESULTS / "core.png", outcomes, names)
    missed = [outcome.figure.title for outcome in outcomes if outcome.met is False]
    for title in missed:
        print(f"over the bar: {title}", file=sys.stderr)
    return int(chosen.check and (bool(missed) or OURS not in names))


if __name__ == "__main__":
    sys.exit(main())
