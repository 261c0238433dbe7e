"""What a check has found, as values and as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from declax._text.dimensions import FIELD, Condition, Operation, Symbol, text_of
from declax.errors import ShapeError
from declax.shapes.places import Place
from declax.shapes.problems import Kind, Problem
from declax.shapes.proving import Proof, Verdict

VerdictText: TypeAlias = Literal["proven", "wrong", "needs a condition", "tested only"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a check has found.

    Attributes:
      target: the class and method, or the function.
      severity: "error", "warning", or "note" of what was not decided.
      message: one sentence.
      file, line, column: the user's line; None if there is none.
      source: the text of this line.
      expected, got: shapes, in the names of annotations and inputs.
      annotation: the file and line of the annotation that the shape differs from.
      sizes: the numbers at which the call fails.
      condition: the condition that the call needs.
      fix: the line to write.
    """

    target: str
    severity: Literal["error", "warning", "note"]
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    source: str = ""
    expected: str | None = None
    got: str | None = None
    annotation: str | None = None
    sizes: Mapping[str, int] | None = None
    condition: str | None = None
    fix: str | None = None

    @property
    def place(self) -> str | None:
        """The file, line and column."""
        return None if self.file is None else str(Place(self.file, self.line or 1, self.column, ""))

    def __str__(self) -> str:
        head = f"{self.place}: " if self.place else ""
        lines = [f"{head}{self.severity}: {self.target}: {self.message}"]
        if self.source:
            lines.append(f"    {self.source}")
        facts = {
            "expected": self.expected,
            "got": self.got,
            "declared": self.annotation,
            "sizes": None if not self.sizes else sizes_text(self.sizes),
            "needs": self.condition,
            "fix": self.fix,
        }
        lines += [f"  {name + ':':<10}{value}" for name, value in facts.items() if value is not None]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Checked:
    """One line of a report.

    Attributes:
      target: the class and method, or the function.
      verdict: what the check has shown.
      text: for which sizes, and what was not looked at.
    """

    target: str
    verdict: VerdictText
    text: str

    def __str__(self) -> str:
        space = "" if self.text.startswith(";") or not self.text else " "
        return f"{self.target}: {self.verdict}{space}{self.text}"


class ShapeReport:
    """The result of `check_shapes`; prints as a line for each method, and a paragraph for each finding.

    Attributes:
      checked: a line for each class and method, or function.
      findings: errors, warnings and notes, with places.
    """

    def __init__(self, checked: Iterable[Checked], findings: Iterable[Finding], *, strict: bool = False) -> None:
        self.checked: tuple[Checked, ...] = tuple(checked)
        self.findings: tuple[Finding, ...] = _unique(findings)
        self._strict = strict

    @property
    def proven(self) -> bool:
        """Whether all calls are proven for all sizes, and there is at least one."""
        return bool(self.checked) and all(line.verdict == "proven" for line in self.checked) and not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that `raise_for_findings` raises for: errors and, with ``strict=True``, warnings."""
        severities = ("error", "warning") if self._strict else ("error",)
        return tuple(finding for finding in self.findings if finding.severity in severities)

    def raise_for_findings(self) -> None:
        """Raises an error with all findings that are errors.

        Raises:
          ShapeError: there are some.
        """
        errors = self.errors
        if errors:
            count = "one call is" if len(errors) == 1 else f"{len(errors)} calls are"
            raise ShapeError("check_shapes", f"{count} not right for all sizes", why="\n".join(map(str, errors)))

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checked), *(f"\n{finding}" for finding in self.findings)])

    def __repr__(self) -> str:
        return f"ShapeReport({len(self.checked)} checked, {len(self.findings)} findings)"


def _unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding for each place and kind: that of the innermost method, which comes last, if several have it."""
    found: dict[Any, Finding] = {}
    for finding in findings:
        key = (finding.severity, finding.file, finding.line, finding.column)
        if finding.file is None:
            key = (*key, finding.target, finding.message)  # type: ignore[assignment]  # another key
        found.setdefault(key, finding)
    return tuple(found.values())


# --- from proofs --------------------------------------------------------------------


def checked_of(title: str, proofs: Sequence[tuple[Any, Proof]]) -> Checked:
    """The line of a method, of the proofs for all choices that its annotations leave open."""
    verdict = max((proof.verdict for _, proof in proofs), key=_RANK.__getitem__)
    names = list(dict.fromkeys(name for subject, _ in proofs for name in subject.domain.names))
    conditions = dict.fromkeys(c.text for subject, _ in proofs for c in subject.domain.conditions)
    numbers = {name: values for _, proof in proofs for name, values in proof.numbers.items()}
    shown_names = [
        name if name.removeprefix(FIELD) in names and name.startswith(FIELD) else name.removeprefix(FIELD)
        for name in names
        if name not in numbers
    ]
    parts = []
    if verdict in (Verdict.PROVEN, Verdict.TESTED) and shown_names:
        parts.append(f"for all {', '.join(shown_names)} ≥ 1")
    if verdict is Verdict.PROVEN and not names and not numbers:
        parts.append("for the one size that it has")
    if conditions:
        shown = ", ".join(text.replace("{self.", "").replace("}", "") for text in conditions)
        parts.append(f"besides {shown}" if verdict is Verdict.NEEDED else f"with {shown}")
    if verdict is Verdict.TESTED and numbers and not any(proof.problems for _, proof in proofs):
        fixed = (f"{name.removeprefix(FIELD)} = {', '.join(map(str, values))}" for name, values in numbers.items())
        parts.append(f"at {'; '.join(fixed)}")
    elif verdict is Verdict.TESTED:
        parts = [f"in {sum(proof.tried for _, proof in proofs)} sizes", *parts[1:]]
    notes = dict.fromkeys(note for subject, _ in proofs for note in subject.notes)
    if any(proof.indices for _, proof in proofs):
        notes["values of indices are not checked"] = None
    text = " ".join(parts) + "".join(f"; {note}" for note in notes)
    return Checked(title, verdict.value, text)


_RANK = {Verdict.PROVEN: 0, Verdict.TESTED: 1, Verdict.NEEDED: 2, Verdict.WRONG: 3}


def findings_of(subject: Any, proof: Proof) -> list[Finding]:
    """What a proof says of the user's lines."""
    found = []
    if proof.verdict is Verdict.WRONG and proof.failure is not None:
        found.append(_wrong(subject.title, proof))
    elif proof.verdict is Verdict.NEEDED:
        found.append(_needed(subject, proof))
    elif proof.verdict is Verdict.TESTED:
        found += [_note(subject.title, problem, "note") for problem in proof.problems]
        if proof.needed and found:
            found[0] = dataclasses.replace(found[0], **_condition(subject, proof.needed))
    found += [_note(subject.title, problem, "warning", "an axis is added by chance: ") for problem in proof.warnings]
    return found


def _wrong(title: str, proof: Proof) -> Finding:
    failure = proof.failure
    assert failure is not None  # as the verdict says
    shown = _with_names(failure.problem, proof.problems)
    return dataclasses.replace(
        _note(title, shown, "error"), sizes={name.removeprefix(FIELD): n for name, n in failure.values.items()}
    )


def _with_names(problem: Problem, problems: Sequence[Problem]) -> Problem:
    """The problem of the same place that speaks in names; otherwise the one in numbers."""
    for other in problems:
        is_same = other.place == problem.place and other.kind not in (Kind.COMPARISON, Kind.STOP)
        if is_same and (other.kind is problem.kind or problem.kind is Kind.ERROR):
            return other
    return problem


def _needed(subject: Any, proof: Proof) -> Finding:
    asking = [p for p in proof.problems if proof.needed[0] in p.candidates] or proof.problems
    failed = proof.failure and proof.failure.problem.place
    problem = next((p for p in asking if p.place and failed and p.place[:2] == failed[:2]), asking[0])
    made = _note(subject.title, problem, "error")
    sizes = proof.failure and {name.removeprefix(FIELD): n for name, n in proof.failure.values.items()}
    return dataclasses.replace(made, sizes=sizes or None, **_condition(subject, proof.needed))


def _condition(subject: Any, needed: Sequence[Condition]) -> dict[str, str]:
    """What a finding says of the conditions under which a call is proven."""
    return {"condition": " and ".join(c.text for c in needed), "fix": _fix_of(subject, needed)}


def _fix_of(subject: Any, conditions: Sequence[Condition]) -> str:
    """The lines that state conditions: notes of fields, or conditions of the class."""
    lines, texts = [], []
    for condition in conditions:
        left, right = condition.left, condition.right
        if isinstance(left, Operation) and left.sign == "%" and _is_field(left.operands[0]) and right == 0:
            name, factor = (text_of(operand) for operand in left.operands)
            if not _is_earlier(factor, name, subject.owner):
                texts.append(condition.text)
                continue
            lines.append(f"{name}: int = dx.field(multiple_of={factor})")
        elif _is_field(left) and isinstance(right, int) and condition.sign in (">=", "<="):
            lines.append(f"{text_of(left)}: int = dx.field({'ge' if condition.sign == '>=' else 'le'}={right})")
        else:
            texts.append(_by_field(condition, subject.sizes).text)
    if texts:
        listed = ", ".join(f'"{text}"' for text in texts) + ("," if len(texts) == 1 else "")
        is_method = "." in subject.title
        lines.append(f"@dx.dataclass(where=({listed}))" if is_method else f"dx.check_shapes(..., where=({listed}))")
    return "\n            ".join(lines)


def _is_earlier(factor: str, name: str, owner: type | None) -> bool:
    """Whether a class declares a field before another one, which may then be a multiple of it; true of numbers."""
    names = list(getattr(owner, "__dataclass_fields__", {}))
    return factor not in names or name not in names or names.index(factor) < names.index(name)


def _by_field(condition: Condition, sizes: Mapping[str, int]) -> Condition:
    """A condition with the field that has its number, if there is one such field."""
    names = [name for name, value in sizes.items() if value == condition.right]
    if len(names) != 1 or condition.sign == "==":
        return condition
    return Condition.of(condition.left, condition.sign, Symbol(FIELD + names[0]))


def _is_field(size: object) -> bool:
    return isinstance(size, Symbol) and size.is_field


def _note(title: str, problem: Problem, severity: Any, prefix: str = "") -> Finding:
    place = problem.place
    made = Finding(
        title,
        severity,
        prefix + problem.text,
        expected=problem.expected,
        got=problem.got,
        annotation=None if problem.annotation is None else str(problem.annotation),
    )
    if place is None:
        return made
    return dataclasses.replace(made, file=place.file, line=place.line, column=place.column, source=place.source)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Sizes, as ``b = 3, n = 5``."""
    return ", ".join(f"{name} = {value}" for name, value in sizes.items())
