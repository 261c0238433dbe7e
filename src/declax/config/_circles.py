"""Where references lead to: to a part, of a class that fits, and not in a circle."""

from __future__ import annotations

import itertools

from declax.config._parameters import target_name
from declax.config._parts import one_of
from declax.config._plain import Context
from declax.config.problems import Path, did_you_mean, shown


def check_refs(context: Context) -> None:
    """Checks where refs lead to: to a part, of a class that fits, and not in a circle."""
    circular = _check_circles(context)
    for path, target, choices in context.refs:
        if path in circular:
            continue
        part = context.parts.get(target)
        written = "/" + "/".join(target)
        if part is None:
            names = ["/" + "/".join(keys) for keys in itertools.islice(context.parts, 1000) if keys]
            context.report.add(
                "ref-to-nothing", path, "the reference leads to no part", got=shown(written),
                expected="the path of a table that describes one",
                hint=None if context.report.is_full else did_you_mean(written, names),
            )  # fmt: skip
        elif choices is not None and not any(part is choice for choice in choices.values()):
            context.report.add(
                "ref-kind", path, f"the reference leads to a {target_name(part)}", expected=one_of(choices),
                got=shown(written), hint="refer to a part of a class that fits, or write one out",
            )  # fmt: skip


def _check_circles(context: Context) -> set[Path]:
    """Reports refs whose part contains, or leads back to, themselves; gives their paths.

    A target needs the targets of all refs that stand inside of it. A ref stands inside of no more targets than its path
    is long, so there are few of these.
    """
    targets = {target for _, target, _ in context.refs}
    needs: dict[tuple[str, ...], list[tuple[Path, tuple[str, ...]]]] = {target: [] for target in targets}
    for path, target, _ in context.refs:
        keys = tuple(map(str, path))
        for end in range(1, len(keys) + 1):
            if keys[:end] in targets:
                needs[keys[:end]].append((path, target))
    done: set[tuple[str, ...]] = set()
    found: set[Path] = set()
    for start in sorted(targets):
        trail: dict[tuple[str, ...], int] = {}
        stack = [(start, iter(needs[start]))] if start not in done else []
        trail.update({start: 0} if stack else {})
        while stack:
            here, inside = stack[-1]
            step = next(inside, None)
            if step is None:
                stack.pop()
                trail.pop(here)
                done.add(here)
            elif step[1] in trail:
                circle = [*list(trail)[trail[step[1]] :], step[1]]
                found.add(step[0])
                context.report.add(
                    "ref-cycle", step[0], "the references go in a circle: a part would contain itself",
                    got=" -> ".join("/" + "/".join(keys) for keys in circle[:8]), hint="write one of the parts out",
                )  # fmt: skip
            elif step[1] not in done:
                trail[step[1]] = len(trail)
                stack.append((step[1], iter(needs[step[1]])))
    return found
