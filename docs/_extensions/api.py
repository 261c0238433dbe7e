"""Writes the API reference: a page for each topic, with every public name of declax on one of them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject

import declax
from declax._fields.expressions import Expression
from declax._lazy import exports

# A topic takes the public names of the modules that begin with one of its prefixes; the longest prefix decides.
TOPICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "declaring": ("Classes and fields", "declared classes, their fields and parts", ("_classes", "_fields")),
    "variables": ("Variables", "kinds of Variables, their metadata and names", ("_variables",)),
    "modules": ("Modules and containers", "modules, lists and dicts of modules, views", ("_module",)),
    "random": ("Random numbers", "streams of keys", ("_random",)),
    "layers": ("Layers", "linear, convolution, attention, recurrent, normalization, dropout, pooling", ("nn",)),
    "functions": ("Activation functions", "functions without parameters", ("nn.activations",)),
    "initializers": ("Initializers", "functions that make the first value of a parameter", ("initializers",)),
    "training": ("Training", "optimizers, averages, adapters", ("training", "_variables.selection")),
    "metrics": ("Metrics", "numbers that accumulate over batches", ("training.metrics",)),
    "transforms": ("Transforms", "jit, derivatives, vmap, loops and branches for models", ("transforms",)),
    "graph": ("Graphs", "models as a structure and values", ("_graph",)),
    "states": ("States", "values by path", ("_state",)),
    "filters": ("Filters", "selections of Variables and leaves", ("_filters",)),
    "devices": (
        "Several devices",
        "shardings and meshes",
        ("_sharding", "_variables.placement", "transforms.sharding", "transforms.replication"),
    ),
    "config": ("Configuration", "models from files and the command line", ("config",)),
    "saving": ("Saving, weights and export", "files of models", ("checkpoint", "weights", "_export")),
    "shapes": ("Shapes", "checks of shapes for all sizes", ("shapes",)),
    "displays": ("Displays", "models as text, tables and pictures", ("_displays", "_text", "_tree")),
    "errors": ("Errors and warnings", "exceptions, each with its code", ("errors",)),
    "other": ("Types and modes", "types of arguments, global modes, the version", ("_typing", "_modes", "_version")),
    "modules_of_nnx": ("Modules with the names of NNX", "import paths of NNX programs", ()),
}
# Modules whose own public names belong to a topic too.
MODULES = {"metrics": "declax.training.metrics", "initializers": "declax.initializers", "errors": "declax.errors"}

# Names of modules that the docstrings of public names refer to.
INNER = {"layers": ["nn.dot_product_attention_weights"]}
# Names without a docstring of their own.
DESCRIBED = {
    "InitVar": "The annotation of an argument that construction uses and does not store, as in dataclasses.",
    "KW_ONLY": "Makes the fields below it keyword-only: ``_: dx.KW_ONLY``, as in dataclasses.",
    "Filter": "The annotation of a filter: a kind of Variable, a tag, ``...``, a function, or a tuple of these.",
    "initializers.ones": "Arrays of ones.",
    "initializers.zeros": "Arrays of zeros.",
}


def topic_of(module: str) -> str:
    """The topic of the names that a module of declax defines."""
    inner = module.removeprefix("declax.")
    found = [
        (len(prefix), topic)
        for topic, (_, _, prefixes) in TOPICS.items()
        for prefix in prefixes
        if inner == prefix or inner.startswith(prefix + ".")
    ]
    return max(found)[1]


def names_by_topic() -> dict[str, list[str]]:
    """The public names of each topic, as paths inside of declax; those of a module are grouped with the root's."""
    names: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for name, module in exports("declax").items():
        is_module = isinstance(getattr(declax, name), ModuleType)
        names["modules_of_nnx" if is_module else topic_of(module)].append(name)
    for topic, module in MODULES.items():
        path = module.removeprefix("declax.").removeprefix("training.")
        names[topic] += [f"{path}.{name}" for name in public(module) if name not in names[topic]]
    for topic, inner in INNER.items():
        names[topic] += inner
    return names


def public(module: str) -> list[str]:
    """The functions and classes that a module defines, or takes from JAX, and shows."""
    return [
        name
        for name, value in vars(importlib.import_module(module)).items()
        if not name.startswith("_")
        and (inspect.isclass(value) if module == "declax.errors" else callable(value))
        and str(getattr(value, "__module__", "")).startswith((module, "jax._src.nn"))
    ]


def target(name: str) -> str:
    """The place of a name, which autodoc imports."""
    inner, _, last = name.rpartition(".")
    return f"declax.{name}" if inner != "metrics" else f"{MODULES[inner]}.{last}"


def value_of(name: str) -> Any:
    value: Any = declax
    for part in name.split("."):
        value = getattr(value, part)
    return value


def write_pages(app: Sphinx) -> None:
    """Writes the pages anew where they differ, so that an unchanged topic is not read again."""
    folder = Path(app.srcdir, "reference", "api")
    folder.mkdir(exist_ok=True)
    names = names_by_topic()
    pages = {topic: page(topic, names[topic]) for topic in TOPICS} | {"index": index_page()}
    for stale in set(folder.glob("*.rst")) - {folder / f"{topic}.rst" for topic in pages}:
        stale.unlink()
    for topic, text in pages.items():
        path = folder / f"{topic}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def index_page() -> str:
    rows = "".join(f"   * - :doc:`{title} <{slug}>`\n     - {about}\n" for slug, (title, about, _) in TOPICS.items())
    hidden = "".join(f"   {slug}\n" for slug in TOPICS)
    return (
        f"{heading('API reference', '=')}Every public name, by topic. Programs write ``import declax as dx``. The\n"
        f":ref:`index <genindex>` lists all names in alphabetical order.\n\n"
        f".. list-table::\n   :widths: 35 65\n\n{rows}\n.. toctree::\n   :hidden:\n\n{hidden}"
    )


def page(topic: str, names: Iterable[str]) -> str:
    title, about, _ = TOPICS[topic]
    names = sorted(names, key=lambda name: (name.count("."), name.lower()))
    rows = "".join(
        f"   * - :py:obj:`{name} <{target(name)}>`\n     - {first_sentence(document(name))}\n" for name in names
    )
    begin = f"{heading(f'API: {lowered(title)}', '=')}{about[0].upper() + about[1:]}.\n\n.. currentmodule:: declax\n\n"
    table = f".. list-table::\n   :widths: 30 70\n\n{rows}\n"
    return begin + table + "\n".join(entry(name) for name in names)


def lowered(title: str) -> str:
    """A title after another word; the pages of concepts have it alone."""
    return title if title.startswith(("States", "Variables")) else title[0].lower() + title[1:]


def heading(title: str, line: str) -> str:
    return f"{title}\n{line * len(title)}\n\n"


def entry(name: str) -> str:
    """The directive that documents a name."""
    value = value_of(name)
    if is_of_jax(value):
        return (
            f".. py:function:: {name}{signature_of(value) or '(x)'}\n\n   {first_sentence(document(name))}\n"
            f"   This is :literal:`{value.__module__.replace('jax._src.nn.functions', 'jax.nn').split('._src')[0]}."
            f"{value.__name__}`.\n"
        )
    if name in DESCRIBED:
        return f".. py:data:: {name}\n\n{indented(document(name))}\n"
    if isinstance(value, ModuleType):
        return f".. py:module:: declax.{name}\n\n{indented(document(name))}\n"
    if inspect.isclass(value) and value.__name__ == name.rpartition(".")[2]:
        return f".. autoclass:: {target(name)}\n   :members:\n"
    if inspect.isroutine(value):
        return f".. autofunction:: {target(name)}\n"
    if inspect.isclass(value):
        package = value.__module__.split(".")[0]
        other = f"`{value.__name__}`" if package == "declax" else f":literal:`{package}.{value.__name__}`"
        return f".. py:data:: {name}\n\n   Another name of {other}.\n"
    return f".. py:data:: {name}\n\n{indented(document(name))}\n"


def indented(text: str) -> str:
    return "".join(f"   {line}".rstrip() + "\n" for line in text.splitlines())


def is_of_jax(value: Any) -> bool:
    return not inspect.isclass(value) and str(getattr(value, "__module__", "")).startswith("jax.")


def document(name: str) -> str:
    """The docstring of a value, or the string under the assignment that makes it."""
    value = value_of(name)
    if name in DESCRIBED:
        return DESCRIBED[name]
    if isinstance(value, ModuleType) or inspect.isclass(value) or inspect.isroutine(value) or is_of_jax(value):
        return inspect.getdoc(value) or ""
    module = exports("declax").get(name, "declax")
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        is_documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if is_documented and any(getattr(target, "id", None) == name for target in targets):
            return inspect.cleandoc(following.value.value)
    shown = repr(value)
    return f"The value ``{shown}``." if " at 0x" not in shown else f"That of ``{type(value).__module__}``."


def first_sentence(text: str) -> str:
    """The first paragraph up to its first full stop, on one line, with formulas as code: MathJax is on another site."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    paragraph = re.sub(r":math:`(.*?)`", lambda math: "``" + re.sub(r"\\mathrm|[{}\\]", "", math[1]) + "``", paragraph)
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


# ================================================================= signatures


def write_signature(app: Sphinx, what: str, name: str, value: Any, *_: Any) -> tuple[str, str] | None:
    """The signature as a reader would write it: annotations as in the source, no addresses, `...` for parts."""
    if what not in ("class", "function", "method", "exception"):
        return None
    text = signature_of(value)
    return None if text is None else (text, "")


def signature_of(value: Any) -> str | None:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    result = "" if inspect.isclass(value) else returned(signature)
    return f"({', '.join(written(parameters))}){result}"


def returned(signature: inspect.Signature) -> str:
    missing = signature.return_annotation is inspect.Signature.empty
    return "" if missing else f" -> {annotation_text(signature.return_annotation)}"


def written(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """The parameters, with the `/` and `*` between their kinds."""
    kinds = [parameter.kind for parameter in parameters]
    for n, parameter in enumerate(parameters):
        before = kinds[n - 1] if n else None
        if parameter.kind is parameter.KEYWORD_ONLY and before not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            yield "*"
        yield one_parameter(parameter)
        is_last = n + 1 == len(kinds) or kinds[n + 1] is not parameter.POSITIONAL_ONLY
        if parameter.kind is parameter.POSITIONAL_ONLY and is_last:
            yield "/"


def one_parameter(parameter: inspect.Parameter) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = star + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {annotation_text(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {default_text(parameter.default)}"
    return text


def annotation_text(annotation: Any) -> str:
    """The annotation as it stands in the source, without the modules of its names."""
    annotation = getattr(annotation, "type", annotation)  # an InitVar is passed as what is in its brackets
    annotation = getattr(annotation, "__forward_arg__", annotation)  # of a named tuple
    is_class = inspect.isclass(annotation) and not hasattr(annotation, "__args__")
    text = annotation if isinstance(annotation, str) else annotation.__name__ if is_class else str(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text).strip("'").removesuffix(" | Missing")


def default_text(default: Any) -> str:
    if isinstance(default, Expression):
        return "..."  # a part, which the constructor makes
    if isinstance(default, MappingProxyType):
        return repr(dict(default))
    text = getattr(default, "__name__", None) or repr(default)
    is_readable = len(text) <= 60 and "<" not in text and " at 0x" not in text and text not in ("MISSING", "Ellipsis")
    return text if is_readable else "..."


def skip_member(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out the fields of named tuples, which the docstrings of their classes describe."""
    return True if type(value).__name__ == "_tuplegetter" else None


def escape_stars(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Keeps `*args` in a list of arguments from being read as emphasis."""
    names = r"^ *\*{0,2}\w+(?:, \*{0,2}\w+)*(?=:)"
    lines[:] = [re.sub(names, lambda found: found[0].replace("*", "\\*"), line) for line in lines]


# ================================================================= links to names


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Makes links of names in code: `dx.jit` on every page, and `jit` too where the API is described."""
    known = {name: name for name in exports("declax")}
    known |= {name.rpartition(".")[2]: name for inner in INNER.values() for name in inner}
    is_api = app.env.docname.startswith("reference/api/")
    for literal in list(doctree.findall(nodes.literal)):
        text = literal.astext()
        found = re.fullmatch(r"(dx\.|nnx\.)?(\w+)((?:\.\w+)*)(?:\(.*\))?", text)
        inside_link = any(
            isinstance(parent, nodes.reference | nodes.title | addnodes.pending_xref) for parent in above(literal)
        )
        if not found or found[2] not in known or inside_link or found[1] == "nnx." or not (found[1] or is_api):
            continue
        target = f"declax.{known[found[2]]}{found[3]}"
        link = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=target, refexplicit=True, refwarn=False, refdoc=app.env.docname
        )
        literal.replace_self(link)
        link += literal


def above(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # Sphinx calls them Variables, which are something else here
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-signature", write_signature)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-docstring", escape_stars, priority=400)  # before napoleon
    app.connect("doctree-read", link_names)
    return {"parallel_read_safe": True}
