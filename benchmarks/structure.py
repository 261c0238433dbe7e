"""Counts the size of the sources, and the frames of common operations: ``python -m benchmarks.structure``.

Tokens are those of code, without comments and docstrings, and code lines are the lines with one. An import floor is a
module's longest chain of imports inside declax. A frame is a call of a Python function whose file belongs to declax;
generated functions count as the file `<declax ...>` that they name.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import jax
import jax.numpy as jnp

import declax as dx

SOURCE = Path(dx.__file__).parent
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}

LATER_PACKAGES = ("nn/", "_displays/", "_sharding/", "checkpoint/", "weights/")
"""The packages of layers, displays, sharding, checkpoints and weights, which grow with the library."""

NAMES_OF_NNX = (
    *("_absent", "bridge", "compat", "extract", "filterlib", "graph", "graphlib", "helpers", "ids", "module", "object"),
    *("pytreelib", "rnglib", "spmd", "statelib", "variablelib", "visualization"),
    *("transforms/general", "transforms/iteration", "transforms/transforms"),
)
"""Modules under the names that NNX programs import from."""

MODES_OF_NNX = (
    *("_graph/sown", "_tree/unique", "_variables/defaults"),
    *("transforms/_engine/placement", "transforms/_engine/refusals"),
)
"""Captures that survive transforms, numbers of objects, Variables by reference, and arguments placed by shardings."""

LAYERS_AND_TRAINING = (
    *("_module/running", "_variables/policy", "_variables/selection"),
    *("training/_branches", "training/_comparison", "training/accumulation", "training/adapters", "training/ema"),
    *("training/loss_scaling", "training/metrics", "training/selection", "training/train_state"),
)
"""What layers run and compute in, the paths of running modules and dtypes; and tools for training."""

DEVICES_AND_FILES = ("_export", "_variables/placement")
"""Programs for other processes, and Variables that are made on the devices of a mesh."""

LATER = frozenset((*NAMES_OF_NNX, *MODES_OF_NNX, *LAYERS_AND_TRAINING, *DEVICES_AND_FILES))
"""The modules of later features, which the goal for the core does not count."""

# ================================================================= the sources


@dataclass
class Size:
    """The size of some modules."""

    modules: int = 0
    lines: int = 0
    code_lines: int = 0
    tokens: int = 0
    functions: list[int] = field(default_factory=list)
    named_functions: list[int] = field(default_factory=list)

    @property
    def mean_function(self) -> float:
        return sum(self.functions) / max(1, len(self.functions))

    @property
    def mean_named_function(self) -> float:
        """Without special methods and properties, which Python asks for one by one, mostly of one line each."""
        return sum(self.named_functions) / max(1, len(self.named_functions))


def docstring_lines(tree: ast.Module) -> set[int]:
    """The numbers of the lines of all docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def code_of(text: str) -> tuple[set[int], int]:
    """The numbers of the lines that hold code, and how many tokens these have."""
    found, docstrings, tokens = set[int](), docstring_lines(ast.parse(text)), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE and token.start[0] not in docstrings:
            found.update(range(token.start[0], token.end[0] + 1))
            tokens += 1
    return found, tokens


def function_lengths(text: str, code: set[int]) -> Iterator[tuple[int, bool]]:
    """The code lines of each function from its `def` on, and whether it is a special method or property.

    Overloads, which have no body, do not count.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            is_special = node.name.endswith("__") or any(d.endswith(("property", ".setter")) for d in decorators)
            if "overload" not in decorators:
                yield len(code & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))), is_special


def size_of(paths: list[Path]) -> Size:
    size = Size()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        code, tokens = code_of(text)
        size.modules += 1
        size.lines += text.count("\n")
        size.code_lines += len(code)
        size.tokens += tokens
        for length, is_special in function_lengths(text, code):
            size.functions.append(length)
            size.named_functions += [] if is_special else [length]
    return size


def imports_of(path: Path) -> set[Path]:
    """The modules of declax that a module imports when it runs, not those for type checkers."""
    found: set[Path] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in skipped and (node.module or "").startswith("declax"):
            for alias in node.names:
                found |= {p for p in (module_path(f"{node.module}.{alias.name}"), module_path(node.module)) if p}
    return found - {path}


def module_path(name: str | None) -> Path | None:
    base = SOURCE.parent.joinpath(*(name or "").split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def floors(paths: list[Path]) -> int:
    """The longest chain of imports."""
    imports = {path: imports_of(path) for path in paths}
    heights: dict[Path, int] = {}

    def height(path: Path, above: frozenset[Path] = frozenset()) -> int:
        if path not in heights:
            below = [height(p, above | {path}) for p in imports.get(path, ()) if p not in above]
            heights[path] = 1 + max(below, default=0)
        return heights[path]

    return max(height(path) for path in paths)


def sizes() -> dict[str, Size]:
    """All of declax, then each package and the modules of the root."""
    everything = sorted(SOURCE.rglob("*.py"))
    table = {"all": size_of(everything), "root": size_of(sorted(SOURCE.glob("*.py")))}
    for folder in sorted(path for path in SOURCE.iterdir() if (path / "__init__.py").is_file()):
        table[folder.name] = size_of(sorted(folder.rglob("*.py")))
    return table


def lines_of_the_core() -> int:
    """The lines of all modules except the layers and later features."""
    paths = {path.relative_to(SOURCE).with_suffix("").as_posix(): path for path in SOURCE.rglob("*.py")}
    return size_of([p for name, p in paths.items() if name not in LATER and not name.startswith(LATER_PACKAGES)]).lines


# ================================================================= frames


@dataclass
class Trail:
    """The calls of declax that some work makes, in order."""

    files: list[str] = field(default_factory=list)

    def note(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and (name.startswith(str(SOURCE)) or "<declax" in name):
            self.files.append(name)

    @property
    def row(self) -> tuple[int, int, int]:
        """Frames, files, and changes of file."""
        changes = sum(a != b for a, b in zip(self.files, self.files[1:], strict=False))
        return len(self.files), len(set(self.files)), changes


def trail_of(work: Callable[[], object]) -> Trail:
    trail = Trail()
    sys.setprofile(trail.note)
    try:
        work()
    except dx.errors.DeclaxError:
        pass
    finally:
        sys.setprofile(None)
    return trail


def declare() -> type:
    @dx.dataclass
    class Declared(dx.Module):
        a: dx.Param[object]
        b: int = 1

    return Declared


def declare_layer() -> type:
    @dx.dataclass
    class Block(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, 4)

    return Block


def declare_readme() -> type:
    @dx.dataclass
    class Block(dx.Layer):
        dim: int = dx.field()
        up = dx.Linear(dim, 4 * dim)
        down = dx.Linear(4 * dim, dim)

        def __call__(self, x: jax.Array) -> jax.Array:
            return x + self.down(dx.relu(self.up(x)))

    return Block


@dx.dataclass
class Scale(dx.Module):
    """A model without a layer of declax, and without static attributes."""

    weight: dx.Param[jax.Array]

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.weight.value


def operations() -> Iterator[tuple[str, Trail]]:
    """The operations that are counted, each on objects of its own."""
    model, x = dx.Linear(4, 4, rngs=dx.Rngs(0)), jnp.ones((2, 4))
    step = dx.jit(lambda model, x: model(x))
    dx.jit(lambda x: x)(x)
    yield "first jit call", trail_of(lambda: step(model, x))
    step(model, x)
    yield "later jit call", trail_of(lambda: step(model, x))
    scale, scaled = Scale(dx.Param(jnp.ones(4))), dx.jit(lambda model, x, y: model(x) + y)  # a guard of another form
    yield "first jit call of a model without layers", trail_of(lambda: scaled(scale, x, x))
    other = dx.Linear(4, 4, rngs=dx.Rngs(0))
    yield "first split", trail_of(lambda: dx.split(other))
    yield "later split", trail_of(lambda: dx.split(other))
    declare()
    yield "class creation", trail_of(declare)
    declare_layer()
    yield "class creation, with a field, keys and a part", trail_of(declare_layer)
    declare_readme()
    yield "class creation, the Block of README", trail_of(declare_readme)
    rngs = dx.Rngs(0)
    dx.Linear(3, 4, rngs=rngs)
    yield "Linear(3, 4, rngs=rngs)", trail_of(lambda: dx.Linear(3, 4, rngs=rngs))
    config = {"in_features": 4, "out_features": 8}
    dx.from_config(dx.Linear, config, rngs=dx.Rngs(0))
    yield "from_config", trail_of(lambda: dx.from_config(dx.Linear, config, rngs=dx.Rngs(0)))
    wrong = dx.state(dx.Linear(3, 4, rngs=dx.Rngs(0)))
    yield "failing update", trail_of(lambda: dx.update(other, wrong))


# ================================================================= the tables


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Prints both tables."""
    argparse.ArgumentParser(prog="python -m benchmarks.structure", description=__doc__).parse_args()
    rows = [
        [name, *map(str, (s.modules, s.lines, s.code_lines, s.tokens, len(s.functions))), f"{s.mean_function:.1f}"]
        for name, s in sizes().items()
    ]
    print(table(["package", "modules", "lines", "code lines", "tokens", "functions", "code lines a function"], rows))
    everything = size_of(sorted(SOURCE.rglob("*.py")))
    print(f"\nlines without layers and later features: {lines_of_the_core()}")
    print(f"code lines a function, special methods and properties apart: {everything.mean_named_function:.1f}")
    print(f"import floors: {floors(sorted(SOURCE.rglob('*.py')))}\n")
    print(table(["operation", "frames", "files", "changes of file"], [[n, *map(str, t.row)] for n, t in operations()]))


if __name__ == "__main__":
    main()
