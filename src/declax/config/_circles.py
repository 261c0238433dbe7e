"""Where references lead to: to a part, of a class that fits, and not in a circle."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias

from declax.config._building import INSIDE, TO_BUILT, TO_DESCRIPTION, WRITE_OUT
from declax.config._parameters import target_name
from declax.config._parts import one_of
from declax.config._plain import Context
from declax.config.problems import Path, did_you_mean, shown

MAX_STEPS: Final = 20
"""By way of how many other refs one may lead to its part."""

_Followed: TypeAlias = tuple[Path, tuple[str, ...], str, Mapping[str, Any] | None]
"""The path of a ref, the path that it leads to in the end, the one that is written, and what may stand there."""


def check_refs(context: Context) -> None:
    """Checks where refs lead to: to a part, of a class that fits, and not in a circle."""
    refs = _followed(context)
    circular = _check_circles(context, refs)
    broken = {target for _, target, written, _ in refs if target not in context.parts and written == _written(target)}
    sizes = _sizes(broken)
    for path, target, written, choices in refs:
        if path in circular:
            continue
        part = context.parts.get(target)
        if part is None:
            if written != _written(target) and any(n <= len(target) and target[:n] in broken for n in sizes):
                continue  # the other ref, by way of which it leads there, is the problem
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


def check_borders(context: Context, kept: Mapping[Path, bool]) -> None:
    """Checks that no ref leads into, out of, or to a part that is not built with the whole.

    Args:
      context: of the reading.
      kept: the paths of what an annotation `Spec` keeps: of such parts, and of refs to them.
    """
    borders = {tuple(map(str, path)) for path, is_part in kept.items() if is_part}
    sizes = _sizes(borders)[::-1]
    refs = {path for path, is_part in kept.items() if not is_part}
    for path, target, _ in context.refs if kept else ():
        inside, outside = _within(tuple(map(str, path)), borders, sizes), _within(target, borders, sizes)
        if inside != outside:
            is_inside = target[: len(inside)] == inside
            way = f"into {_written(outside)}" if is_inside else f"out of {_written(inside)}"
            message = f"the reference leads {way}, which is not built with what is around it"
        elif path in refs and target in context.parts and target not in borders:
            message = TO_BUILT
        elif path not in refs and target in borders:
            message = TO_DESCRIPTION
        else:
            continue
        got = shown(_written(target))
        context.report.add("ref-border", path, message, expected=INSIDE, got=got, hint=WRITE_OUT)


def _within(path: tuple[str, ...], borders: Collection[tuple[str, ...]], sizes: list[int]) -> tuple[str, ...]:
    """The innermost border around a path; the empty path where there is none."""
    return next((path[:n] for n in sizes if n < len(path) and path[:n] in borders), ())


def _sizes(paths: Iterable[tuple[str, ...]]) -> list[int]:
    """How long paths are, so that a hostile reference of a million steps is not compared at each of them."""
    return sorted({len(path) for path in paths if path})


def _followed(context: Context) -> list[_Followed]:
    """The refs with the targets that are reached by way of others; without those that only lead to each other."""
    at = {tuple(map(str, path)): (path, target) for path, target, _ in context.refs}
    sizes = _sizes(at)
    found: list[_Followed] = []
    lost: set[Path] = set()
    for path, target, choices in context.refs:
        written = _written(target)
        trail: dict[Path, tuple[str, ...]] = {path: target}
        while (start := next((n for n in sizes if n <= len(target) and target[:n] in at), None)) is not None:
            here, further = at[target[:start]]
            if path in lost or here in lost:
                break
            target = (*further, *target[start:])
            if here in trail or len(trail) > MAX_STEPS:
                _add_circle(context, path, [*trail.values()])
                break
            trail[here] = target
        else:
            found.append((path, target, written, choices))
            continue
        lost.update(trail)
    return found


def _written(keys: tuple[str, ...]) -> str:
    return "/" + "/".join(keys)


def _add_circle(context: Context, path: Path, targets: list[tuple[str, ...]]) -> None:
    if len(targets) > MAX_STEPS:
        message = f"the reference leads on by way of more than {MAX_STEPS} others"
        context.report.add("ref-cycle", path, message, got=shown(_written(targets[0])), hint="refer to the part itself")
        return
    context.report.add(
        "ref-cycle", path, "the references go in a circle: they lead to each other, and to no part",
        got=" -> ".join(map(_written, [*targets, targets[0]][:8])), hint="write one of the parts out",
    )  # fmt: skip


def _check_circles(context: Context, refs: list[_Followed]) -> set[Path]:
    """Reports refs whose part contains, or leads back to, themselves; gives their paths.

    A target needs the targets of all refs that stand inside of it. A ref stands inside of no more targets than its path
    is long, so there are few of these.
    """
    targets = {target for _, target, _, _ in refs}
    needs: dict[tuple[str, ...], list[tuple[Path, tuple[str, ...]]]] = {target: [] for target in targets}
    for path, target, _, _ in refs:
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
