"""Mistakes of shapes are found without data, at the user's line; their right twins are proven."""

import linecache

import pytest

import declax as dx
from shapes.planted import PAIRS

CASES = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


def test_there_are_fifty_pairs():
    assert len(PAIRS) >= 50
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)


@pytest.mark.sampled(12)
@CASES
def test_the_mistake_is_found_at_its_line(pair):
    report = dx.check_shapes(pair.wrong, *pair.inputs, where=pair.where if pair.both else ())
    found = [finding for finding in report.findings if finding.severity == pair.severity]
    assert found, report
    first = found[0]
    assert "# wrong" in linecache.getline(first.file, first.line), report
    assert first.column is not None
    if pair.severity == "warning":
        assert report.proven
        strict = dx.check_shapes(pair.wrong, *pair.inputs, strict=True)
        assert not strict.proven
        with pytest.raises(dx.ShapeError, match="by chance"):
            strict.raise_for_findings()
        return
    assert pair.verdict in {line.verdict for line in report.checked}, report
    assert not report.proven
    assert first.sizes, report
    assert (first.condition is not None) is (pair.verdict == "needs a condition")
    with pytest.raises(dx.ShapeError):
        report.raise_for_findings()


@pytest.mark.sampled(12)
@CASES
def test_the_right_twin_is_proven(pair):
    report = dx.check_shapes(pair.right, *pair.inputs, where=pair.where)
    assert report.proven, report
    assert not [finding for finding in report.findings if finding.severity != "note"], report
    report.raise_for_findings()
