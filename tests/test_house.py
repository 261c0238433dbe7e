"""The house rules that a machine can hold: layers, docstrings, tested errors, sizes, and what is tested."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import declax
from declax._lazy import exports
from raise_sites import Sources, error_classes, literals_of, unmatched

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "declax"

# ================================================================= what the rules are

PEER_MODULES = (
    "compat extract filterlib graphlib helpers ids module pytreelib rnglib spmd statelib variablelib visualization"
)
OLDER_MODULES = "graph object"

# Each row stands on the rows above it: its modules and packages, and what they are for. A module that is not here is
# not built yet: decide where it belongs before writing it. "" is the package root, which only re-exports.
# CONTRIBUTING.md shows this table.
LAYERS: list[tuple[str, str]] = [
    ("errors _version _absent", "the errors that declax raises; the names of the peer that it lacks"),
    (
        "_typing _jax _lazy",
        "type aliases, the few private names of JAX, lazy public names",
    ),
    ("_filters _modes traversals", "filters, graph modes, nested dicts and flat ones"),
    ("_text", "text of what declax shows: arrays, objects with their contents, and tables"),
    ("mypy_plugin", "what mypy cannot know from annotations alone"),
    ("_fields", "what a class declares: specifiers, expressions, annotations, snapshots of static values"),
    ("_tree", "an object as a tree: statuses, layouts, generated functions, epochs, unique numbers"),
    ("_variables", "Variables, their kinds, metadata and operators; dtype policies"),
    ("_classes initializers", "Pytree, the dataclass transform, construction and its record; initializers as values"),
    ("_state", "States: flat lists of values under interned paths, views of them, and functions of them"),
    ("_graph", "objects with sharing and cycles, to a definition and a flat state, and back"),
    ("_module", "Module, containers, sow and capture, views"),
    ("_random", "random streams: keys and counts, split, fork, reseed, backup"),
    ("transforms", "one engine that lifts a JAX transform to models, and a file for each transform"),
    ("nn training", "layers; optimizers"),
    ("_sharding", "models on many devices: plans, declared shardings, creation in place, bytes per device"),
    ("_displays", "models as tables and pictures: parts with their shapes, sizes, outputs and costs"),
    ("shapes", "shapes that hold for every size: annotations, evaluation with symbols, proofs, counterexamples"),
    (
        PEER_MODULES,
        "names, under the peer's names of their modules; `compat` is always in graph mode",
    ),
    ("bridge", "Linen modules as models, and models as Linen modules"),
    (OLDER_MODULES, "older names of `graphlib` and `pytreelib`"),
    ("config", "models from configuration"),
    ("checkpoint", "checkpoints: files of arrays, what is saved with them, and restoring"),
    ("config._cli config._runs config._rename", "the command line: its commands, runs, and renaming"),
    (
        "weights _export testing launch",
        "weights of other libraries; programs for other processes; checks for tests of users; several processes",
    ),
    ("__main__", "the public names, and nothing else; nothing inside imports it"),
]
LAYER_OF = {name: number for number, (names, _) in enumerate(LAYERS) for name in names.split()}
LAYER_OF[""] = len(LAYERS) - 1

# Modules that hold names only, by which programs of the peer import. They do not count among the modules of the root.
MODULES_OF_NAMES = [*PEER_MODULES.split(), *OLDER_MODULES.split()]
MODULES_OF_NAMES += ["nn.initializers", "transforms.iteration", "transforms.transforms"]

# Imports within a layer, each pair said here so that a layer stays flat by default.
# Files of one package may import each other; that no import closes a circle is tested apart.
WITHIN_A_LAYER: set[tuple[str, str]] = {
    ("training", "nn"),
    ("config._runs", "config._cli"),
    ("config._cli", "config._runs"),
    ("config._cli", "config._rename"),
    ("config._rename", "config._cli"),
}

# Names that only a type checker follows upwards: (importing module, imported module) -> why.
UPWARDS_FOR_TYPES: dict[tuple[str, str], str] = {
    ("errors", "config"): "what the attribute `problems` of a ConfigError holds",
}

# Imports for types that close a circle of modules: (importing module, imported module) -> why.
_SCHEMAS = "a reader writes its part of a schema, which the schema of the whole asks for"
CIRCLES_FOR_TYPES: dict[tuple[str, str], str] = {
    ("errors", "config.problems"): "what the attribute `problems` of a ConfigError holds",
    ("config._data", "config._reading.readers"): "a Spec is data, and knows the readers of its arguments",
    ("config._data", "config._reading.part_readers"): "the same",
    ("config._reading.part_readers", "config._reading.catalog"): "the reader of a part finds those of its arguments",
    ("config._reading.readers", "config.schema"): _SCHEMAS,
    ("config._reading.part_readers", "config.schema"): _SCHEMAS,
}

# Importing these inside a function keeps them optional, or keeps `import declax` quick.
LATE_IMPORTS: dict[str, str] = {
    "matplotlib": "the extra `plot`",
    "rich": "draws boxes around a table, if it is installed",
    "treescope": "the extra `treescope`",
    "optax": "loads with the first optimizer",
    "cloudpickle": "the extra `pickle`",
    "annotationlib": "exists from Python 3.14 on",
    "declax.shapes.checking": "loads the layers, which a loaded program does without",
}

# Public names that are somebody else's objects.
DOCUMENTED_ELSEWHERE: dict[str, str] = {
    "KW_ONLY": "of the standard's dataclasses",
    "InitVar": "of the standard's dataclasses",
    "log1mexp": "of jax.nn",
    "relu": "of jax.nn",
    "relu6": "of jax.nn",
}

MODULE_LINES = 800
FUNCTION_LINES = 100
LONG_MODULES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

# Errors that no test can cause: their text -> why.
UNTESTED_ERRORS: dict[str, str] = {}

# Errors of Python that a protocol of Python asks for: (file, error) -> the protocol.
PROTOCOL_ERRORS: dict[tuple[str, str], str] = {
    ("config/_files/documents.py", "ValueError"): "stops a parser of the standard library at a number",
    ("checkpoint/files.py", "ValueError"): "stops the parser of the standard library at a key",
    ("config/_sources/expressions.py", "NoValueError"): "of a value that follows others; the report has it",
    ("config/_sources/resolving.py", "NoValueError"): "of a value that follows others; the report has it",
    ("config/_cli/output.py", "SystemExit"): "nobody reads what the command prints",
    ("_fields/expressions.py", "AttributeError"): "numpy, copy and pickle probe for special attributes",
    ("_classes/construction.py", "AttributeError"): "of an attribute that an object does not have",
    ("_classes/pytree.py", "AttributeError"): "of an attribute that a class does not have",
    ("_fields/annotations.py", "AttributeError"): "`typing` probes annotations for special attributes",
    ("launch/__main__.py", "ArgumentTypeError"): "argparse makes a message of it",
    ("shapes/annotations.py", "KeyError"): "of a name that does not exist, of which Python makes a NameError",
    ("shapes/comparisons.py", "InconclusiveDimensionOperation"): "in place of JAX, which would search too long",
    ("nn/cells.py", "NotImplementedError"): "of a member that a cell does not define",
    ("training/metrics.py", "NotImplementedError"): "of a method that a metric does not define",
}

# ================================================================= reading the sources


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def modules() -> dict[str, Path]:
    """Dotted name inside the package (the root is "") -> file."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py") if ".venv" not in path.parts)


@dataclass(frozen=True)
class Import:
    line: int
    target: str  # absolute, "declax" alone being the root
    in_function: bool
    for_types: bool


def imports_of(name: str, tree: ast.Module, known: set[str], *, is_package: bool) -> Iterator[Import]:
    """Every import of a module, with `from declax import errors` read as one of `declax.errors`."""
    package = ["declax", *name.split(".")] if name else ["declax"]
    package = package if is_package else package[:-1]
    for node, in_function, for_types in _import_nodes(tree, in_function=False, for_types=False):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import declax.errors` binds the root; `import declax.errors as errors` does not.
                target = alias.name if alias.asname or not alias.name.startswith("declax.") else "declax"
                yield Import(node.lineno, target, in_function, for_types)
            continue
        base = [] if node.level == 0 else package[: len(package) - node.level + 1]
        source = ".".join([*base, *(node.module.split(".") if node.module else [])])
        for alias in node.names:
            inner = f"{source}.{alias.name}"
            is_module = inner.startswith("declax.") and inner.removeprefix("declax.") in known
            yield Import(node.lineno, inner if is_module else source, in_function, for_types)


def _import_nodes(
    node: ast.AST, *, in_function: bool, for_types: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node, in_function, for_types
    is_guard = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    guarded = set(map(id, node.body)) if is_guard else set()
    inside = in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for child in ast.iter_child_nodes(node):
        yield from _import_nodes(child, in_function=inside, for_types=for_types or id(child) in guarded)


def unit_of(name: str) -> str | None:
    """The row of LAYERS that a module belongs to."""
    parts = name.split(".")
    rows = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((row for row in rows if row in LAYER_OF), None)


def all_imports() -> Iterator[tuple[str, Import]]:
    files = modules()
    for name, path in files.items():
        for found in imports_of(name, parsed(path), set(files), is_package=path.name == "__init__.py"):
            yield name, found


# ================================================================= the layers


def fault_of(name: str, found: Import) -> str | None:
    """What is wrong with an import, or None."""
    top = found.target.partition(".")[0]
    if found.in_function and LATE_IMPORTS.keys().isdisjoint({top, found.target}):
        return f"imports {found.target} inside a function, and it is not in LATE_IMPORTS"
    if top in ("jax", "jaxlib") and any(part.startswith("_") for part in found.target.split(".")) and name != "_jax":
        return f"imports {found.target}, a private name of jax: only _jax.py may"
    if top != "declax":
        return None
    if found.target == "declax":
        return "imports the package root"
    unit, other = unit_of(name), unit_of(found.target.removeprefix("declax."))
    if unit is None or other is None:
        return f"imports {found.target}; both ends need a row in LAYERS"
    down = LAYER_OF[unit] > LAYER_OF[other]
    declared = unit == other or (LAYER_OF[unit] == LAYER_OF[other] and (unit, other) in WITHIN_A_LAYER)
    if down or declared or (found.for_types and (unit, other) in UPWARDS_FOR_TYPES):
        return None
    return f"(layer {LAYER_OF[unit]}) imports {found.target} (layer {LAYER_OF[other]}), which is not below it"


def test_contributing_shows_the_layers():
    """`DECLAX_UPDATE_GOLDEN=1` writes the table."""
    path = ROOT / "CONTRIBUTING.md"
    text = path.read_text(encoding="utf-8")
    rows = []
    for number, (names, purpose) in reversed(list(enumerate(LAYERS))):
        shown = "declax" if names == "__main__" else ", ".join(f"`{name}`" for name in names.split())
        rows.append(f"| {number} | {shown} | {purpose} |")
    table = "\n".join(["| layer | modules | purpose |", "| --- | --- | --- |", *rows])
    shown = re.search(r"^\| layer \|.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    if os.environ.get("DECLAX_UPDATE_GOLDEN"):
        path.write_text(text.replace(shown[0], table), encoding="utf-8")
    assert table in path.read_text(encoding="utf-8")


def test_few_modules_stand_in_the_root():
    root = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", *MODULES_OF_NAMES}
    assert len(root) <= 12, sorted(root)


def test_modules_of_names_hold_names_only():
    """Imports, ``__all__``, aliases of types, and how a name loads."""
    files = modules()
    faults = [
        f"{name}:{node.lineno} {ast.unparse(node)}"
        for name in MODULES_OF_NAMES
        for node in parsed(files[name]).body
        if not _only_names(node)
    ]
    assert not faults, "\n".join(["move these to a module that is not in MODULES_OF_NAMES:", *faults])


def _only_names(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        is_alias = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"
        return is_alias or ast.unparse(target) in ("__all__", "__getattr__")
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "not TYPE_CHECKING" and all(map(_loads_names, node.body))
    return isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and _is_text(node.value))


def _loads_names(node: ast.stmt) -> bool:
    return ast.unparse(node).startswith(("__getattr__ = lazy_names(", "globals().update({name: in_graph_mode("))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize(
    ("line", "is_allowed"),
    [
        ("from declax import errors", True),
        ("__all__ = ['a']", True),
        ("A: TypeAlias = int", True),
        ("if not TYPE_CHECKING:\n    __getattr__ = lazy_names(__name__)", True),
        ("if not TYPE_CHECKING:\n    def f(): pass", False),
        ("def f(): pass", False),
        ("class A: pass", False),
        ("f = lambda: 1", False),
        ("register()", False),
    ],
)
def test_the_test_of_modules_of_names_itself(line, is_allowed):
    assert _only_names(ast.parse(line).body[0]) is is_allowed


def test_no_module_has_the_name_of_a_public_function_beside_it():
    """Python binds a loaded module in its package, where it would hide the function."""
    files = modules()
    packages = {name for name, path in files.items() if path.name == "__init__.py"}
    public = [(node.module, alias.asname) for node, alias in exported()]
    faults = [
        f"{package}.{name}"
        for module, name in public
        for package in _packages_above(str(module), packages)
        if f"{package}.{name}".lstrip(".") in files and not inspect.ismodule(getattr(declax, str(name)))
    ]
    assert not faults, f"rename the modules {', '.join(faults)}"


def _packages_above(module: str, packages: set[str]) -> list[str]:
    """The root, and the package of the module that defines a public name."""
    inner = module.removeprefix("declax").removeprefix(".")
    return ["", inner if inner in packages else inner.rpartition(".")[0]]


def test_every_module_has_a_layer():
    unknown = [name for name in modules() if unit_of(name) is None]
    assert not unknown, f"no row in LAYERS of tests/test_house.py for: {', '.join(unknown)}"


def test_imports_point_down():
    faults = [f"{name or '__init__'}:{i.line} {fault}" for name, i in all_imports() if (fault := fault_of(name, i))]
    assert not faults, "\n".join(["imports that the layers forbid:", *dict.fromkeys(faults)])


def test_no_import_closes_a_circle():
    """Imports for types count too."""
    edges: dict[str, set[str]] = {name: set() for name in modules()}
    needed = set(CIRCLES_FOR_TYPES)
    for name, found in all_imports():
        target = found.target.removeprefix("declax.")
        if found.for_types and (name, target) in CIRCLES_FOR_TYPES:
            needed.discard((name, target))
        elif target in edges and not found.in_function:
            edges[name].add(target)
    assert not needed, f"no import for types needs these exceptions: {needed}"
    assert (circle := circle_of(edges)) is None, f"imports in a circle: {' -> '.join(circle)}"
    for name, target in CIRCLES_FOR_TYPES:
        assert circle_of({**edges, name: {*edges[name], target}}), f"{name} -> {target} closes no circle any more"


def circle_of(edges: dict[str, set[str]]) -> tuple[str, ...] | None:
    """The names along the first circle; None if there is none."""
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> tuple[str, ...] | None:
        if name in trail:
            return (*trail[trail.index(name) :], name)
        if name in done:
            return None
        found = next((c for target in sorted(edges[name]) if (c := visit(target, (*trail, name)))), None)
        done.add(name)
        return found

    return next((circle for name in edges if (circle := visit(name, ()))), None)


def test_the_test_of_circles_itself():
    assert circle_of({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ("b", "c", "b")
    assert circle_of({"a": {"a"}}) == ("a", "a")


def test_only_one_file_reaches_into_jax():
    reaching = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for name, path in modules().items()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr == "_src" and name != "_jax"
    ]
    assert not reaching, f"jax._src outside of _jax.py: {', '.join(reaching)}"


@pytest.mark.parametrize(
    ("module", "line", "fault"),
    [
        ("_fields", "from declax.errors import FieldError", None),
        ("_fields", "from declax import errors", None),
        ("_graph.binding", "from .flattening import GraphDef", None),
        ("_graph.binding", "from .. import errors", None),
        ("_fields", "import jax._src.core", "private name of jax"),
        ("_fields", "from jax._src import core", "private name of jax"),
        ("_jax", "from jax._src import core", None),
        ("_fields", "import declax as dx", "imports the package root"),
        ("_fields", "import declax.errors", "imports the package root"),
        ("_fields", "from declax import dataclass", "imports the package root"),
        ("_fields", "from declax._graph.api import split", "which is not below it"),
        ("_fields", "if TYPE_CHECKING:\n    from declax._graph.api import split", "which is not below it"),
        ("_fields", "from declax._tree.layout import Layout", "which is not below it"),
        ("_fields", "from declax.unheard_of import x", "need a row in LAYERS"),
        ("nn.linear", "def f():\n    from declax import errors", "inside a function"),
        ("training.optimizer", "def f():\n    import optax", None),
    ],
)
def test_the_layer_test_itself(module, line, fault):
    known = {"errors", "_graph.api", "_graph.flattening", "_graph.binding", "_fields", "_tree.layout"}
    (found,) = imports_of(module, ast.parse(line), known, is_package=False)
    said = fault_of(module, found)
    assert said is None if fault is None else said is not None and fault in said


# ================================================================= public names


def exported() -> list[tuple[ast.ImportFrom, ast.alias]]:
    """The imports of the stub, from which the names are read at run time too."""
    stub = parsed(SOURCE / "__init__.pyi")
    return [(node, alias) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]


def is_documented(name: str) -> bool:
    """Whether a name of the root has a docstring, or a string under the assignment that makes it."""
    value = getattr(declax, name)
    if inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value):
        own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
        generated = inspect.isclass(value) and str(own).startswith(f"{value.__name__}(")
        if own and not generated:
            return True
    return any(_has_string_below(tree, name) for tree in map(parsed, modules().values()))


def _has_string_below(tree: ast.Module, name: str) -> bool:
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        is_it = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if is_it and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return isinstance(following.value.value, str)
    return False


def test_checkers_and_the_package_read_the_same_names():
    names = {alias.asname: node.module for node, alias in exported()}
    assert names == exports("declax")
    assert len(names) == len(exported()) == len(parsed(SOURCE / "__init__.pyi").body) - 1, "one import a line"
    assert dir(declax) == declax.__all__ == sorted(name for name in names if not str(name).startswith("_"))


def test_no_public_name_is_that_of_a_module():
    """Python puts a module into its package when it loads it, in the place of what had its name."""
    names = {alias.name for node, alias in exported() if node.module != "declax"}
    assert not names & {name.split(".")[0] for name in modules()}, "rename these modules"


def test_every_public_name_loads():
    for name in declax.__all__:
        assert getattr(declax, name) is not None
    with pytest.raises(AttributeError, match="module declax: it has no attribute 'Lineer'"):
        declax.Lineer  # the access is what is tested


def test_public_names_have_docstrings():
    public = [alias.asname or alias.name for node, alias in exported()]
    own = [name for name in public if not name.startswith("_") and name not in DOCUMENTED_ELSEWHERE]
    missing = [name for name in own if not is_documented(name)]
    assert not missing, f"public names without a docstring: {', '.join(missing)}"


# ================================================================= errors


@functools.cache
def sources() -> Sources:
    trees = {str(path.relative_to(SOURCE)): parsed(path) for path in modules().values()}
    return Sources(trees, error_classes(parsed(SOURCE / "errors.py")))


def test_only_errors_of_declax_are_raised():
    wrong = []
    for path in modules().values():
        tree = parsed(path)
        caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Raise) or node.exc is None:
                continue
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
            # A name in lower case is a variable, or a function that words an error and returns it.
            file = str(path.relative_to(SOURCE))
            is_fine = name in sources().errors or name in caught or (file, name) in PROTOCOL_ERRORS
            if not is_fine and (not name or name[0].isupper()):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} raises {name or ast.unparse(made)}")
    assert not wrong, "\n".join(["raise only classes of declax.errors:", *wrong])


def test_every_error_has_a_problem_that_can_be_read():
    silent = [f"{site.place} {site.error}" for site in sources().sites() if not site.templates]
    assert not silent, "\n".join(["no text found for the `problem` of:", *silent])


def test_every_error_is_matched_by_a_test():
    own = {ROOT / "tests" / name for name in ("test_house.py", "raise_sites.py", "test_raise_sites.py")}
    trees = [parsed(path) for path in python_files("tests") if path not in own]
    golden = sorted(path for path in (ROOT / "tests").rglob("*") if path.suffix in (".txt", ".md"))
    missing = [
        f"{site.place} {site.error}: {template.replace(chr(0), '{}')}".replace(chr(10), "\\n")
        for site, template in unmatched(sources().sites(), literals_of(trees, golden))
        if template not in UNTESTED_ERRORS
    ]
    assert not missing, "\n".join([f"{len(missing)} errors whose text no test mentions:", *missing])


def test_the_texts_of_all_errors_are_the_golden_ones():
    """Each error of the package, with {} for what varies; whole messages are in the other goldens and in docs."""
    golden = ROOT / "tests" / "golden" / "all_errors.golden"  # no .txt: a list from the sources is no test of them
    texts = sorted(
        {
            f"{site.error}: {template.replace(chr(0), '{}')}".replace(chr(10), "\\n")
            for site in sources().sites()
            for template in site.templates
        }
    )
    if os.environ.get("DECLAX_UPDATE_GOLDEN"):
        golden.write_text("\n".join(texts) + "\n", encoding="utf-8")
    assert texts == golden.read_text(encoding="utf-8").splitlines()


# ================================================================= sizes


def test_modules_are_short():
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    long = [f"{name}: {n} lines" for name, n in lines.items() if n > MODULE_LINES and name not in LONG_MODULES]
    assert not long, "\n".join([f"split at the second idea what is above {MODULE_LINES} lines:", *long])


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, its docstring apart."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def test_functions_are_short():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length_of(node)} lines"
        for name, path in modules().items()
        for node in ast.walk(parsed(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if length_of(node) > FUNCTION_LINES and f"{name}:{node.name}" not in LONG_FUNCTIONS
    ]
    assert not long, "\n".join([f"functions above {FUNCTION_LINES} lines:", *long])


# ================================================================= comments and paths

CHECKER_COMMENT = re.compile(r"#\s*(?:type|pyright):\s*ignore(?P<rest>.*)")
CODE_AND_REASON = re.compile(r"\[[\w\-, ]+\]\s+#\s*\S")
# A folder of somebody's machine at the start of a path; an address on the web is none.
MACHINE_PATH = re.compile(r"(?<![\w.:/~-])/(?:root|home|Users|work|workspace|opt|mnt|tmp|data)/[\w.]")


def lines_matching(paths: list[Path], pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := pattern.search(line):
                yield f"{path.relative_to(ROOT)}:{number} {line.strip()}", match


def test_every_ignored_type_names_its_code_and_reason():
    files = python_files("src", "tests", "examples", "benchmarks")
    files.remove(Path(__file__).resolve())
    bare = [where for where, m in lines_matching(files, CHECKER_COMMENT) if not CODE_AND_REASON.match(m["rest"])]
    assert not bare, "\n".join(["write `# type: ignore[code]  # reason`:", *bare])


def test_no_path_of_a_machine():
    suffixes = {".py", ".pyi", ".md", ".toml", ".ini", ".yaml", ".yml", ".txt", ".json", ".csv", ".sh"}
    folders = ("src", "tests", "docs", "examples", "benchmarks", "stubs")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes]
    files += [
        path for path in ROOT.iterdir() if path.is_file() and (path.suffix in suffixes or path.name == "Makefile")
    ]
    files += [path for path in (ROOT / ".ci").glob("*") if path.is_file()]
    found = [where for where, _ in lines_matching(files, MACHINE_PATH)]
    assert not found, "\n".join(["paths of one machine:", *found])


# ================================================================= what is tested


@pytest.mark.skipif(os.environ.get("DECLAX_TESTED_AS") != "wheel", reason="`make test` tests the wheel")
def test_the_installed_wheel_is_tested():
    installed = Path(sysconfig.get_path("purelib")).resolve()
    assert Path(declax.__file__).resolve().is_relative_to(installed)
    assert not any(Path(entry).resolve() == ROOT / "src" for entry in sys.path)
    assert (Path(declax.__file__).parent / "py.typed").is_file()
    missing = [name for name in modules() if importlib.util.find_spec(f"declax.{name}".rstrip(".")) is None]
    assert not missing, f"not in the wheel: {missing}"


def test_tests_run_without_the_peers():
    """The newest jax is tested without them: `pytest.importorskip` in place of an import at the top."""
    peers = re.compile(r"^(?:from|import) (?:flax|equinox)\b", re.MULTILINE)
    found = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py") if peers.search(path.read_text())]
    assert not found, found
