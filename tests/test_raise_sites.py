"""The reader of error texts finds them however they are written, and is not satisfied by less than a match."""

import ast
import textwrap

import pytest

from raise_sites import HOLE, Sources, error_classes, literals_of, unmatched


def sites_of(source, **others):
    modules = {name: ast.parse(textwrap.dedent(text)) for name, text in {"a.py": source, **others}.items()}
    return Sources(modules, {"StatusError"}).sites()


@pytest.mark.parametrize(
    ("source", "templates"),
    [
        ("StatusError(w, 'plain text')", ["plain text"]),
        ("StatusError(w, problem='by keyword')", ["by keyword"]),
        ("StatusError(w, f'field {x!r} is odd')", [f"field {HOLE} is odd"]),
        ("StatusError(w, 'one' if x else 'two')", ["one", "two"]),
        ("StatusError(w, 'a ' + x)", [f"a {HOLE}"]),
        ("StatusError(w, 'got %d of %s' % (a, b))", [f"got {HOLE} of {HOLE}"]),
        ("StatusError(w, 'got {} of {x}'.format(a))", [f"got {HOLE} of {HOLE}"]),
        ("TEXT = 'a constant'\nStatusError(w, TEXT)", ["a constant"]),
        ("TEXTS = {1: 'one', 2: 'two'}\nStatusError(w, TEXTS[k])", ["one", "two"]),
        ("def f(x):\n    text = 'local'\n    raise StatusError(w, text)", ["local"]),
        ("def f(x):\n    _, text = x, 'unpacked'\n    raise StatusError(w, text)", ["unpacked"]),
        ("def text():\n    return 'returned'\nStatusError(w, text())", ["returned"]),
        ("def no(w, text):\n    raise StatusError(w, text)\nno(1, 'first')\nno(1, text='second')", ["first", "second"]),
        ("class C:\n    def no(self, text):\n        raise StatusError(w, text)\nC().no('method')", ["method"]),
        (
            "class Fault(NamedTuple):\n    path: str\n    reason: str\nFault(p, 'found')\nStatusError(w, f.reason)",
            ["found"],
        ),
    ],
)
def test_texts_are_followed_to_where_they_are_written(source, templates):
    (site,) = sites_of(source)
    assert list(site.templates) == templates


def test_a_text_that_cannot_be_found_leaves_a_site_without_templates():
    (site,) = sites_of("StatusError(w, compute(x))")
    assert site.templates == ()
    (recursive,) = sites_of("def f(text):\n    f(text)\n    raise StatusError(w, text)")
    assert recursive.templates == ()


def test_constants_of_other_modules_are_followed():
    (site,) = sites_of("from b import TEXT\nStatusError(w, TEXT)", **{"b.py": "TEXT = 'from elsewhere'"})
    assert site.templates == ("from elsewhere",)


def test_only_descendants_of_the_base_are_errors():
    tree = ast.parse("class DeclaxError(Exception): ...\nclass A(DeclaxError): ...\nclass B(A): ...\nclass C: ...")
    assert error_classes(tree) == {"DeclaxError", "A", "B"}


def missing(source, tests):
    return [template for _, template in unmatched(sites_of(source), literals_of([ast.parse(tests)]))]


SOURCE = """
StatusError(w, f"the field {x} was assigned an array, here")
StatusError(w, f"the field {x} was assigned an array, there")
StatusError(w, f"no {x}, but {y}")
"""


def test_a_window_that_two_texts_share_matches_neither():
    assert len(missing(SOURCE, "match='was assigned an array'")) == 3


def test_a_window_of_its_own_matches_a_text():
    tests = "match=r'assigned an array, here'; match=r'an array,\\ there'; match='no kernel, but bias'"
    assert missing(SOURCE, tests) == []


def test_a_docstring_is_no_match():
    assert len(missing(SOURCE, "'''assigned an array, here'''")) == 3


def test_a_text_with_a_suggestion_is_a_text_of_its_own():
    source = "StatusError(w, f'there is no field of the name {x}' + (f'; did you mean {y}?' if y else ''))"
    plain = f"there is no field of the name {HOLE}"
    suggesting = plain + f"; did you mean {HOLE}?"
    assert missing(source, "match='something else entirely'") == [plain, suggesting]
    assert missing(source, "match='no field of the name foo'") == [suggesting]
    assert missing(source, "match='no field of the name foo; did you mean bar?'") == []
