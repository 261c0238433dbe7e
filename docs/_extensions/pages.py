"""What the site adds to the pages: navigation, links to the repository, and notebooks of the tutorials."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from sphinx.application import Sphinx

FILE = re.compile(r"(?m)^```(\w+) \{file=([\w./]+)\}$")
LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(?=[)#])")


def read_source(app: Sphinx, page: str, content: list[str]) -> None:
    """Changes the text of a page before Sphinx reads it."""
    text = content[0]
    text = LINK.sub(lambda found: target_of(app, page, found[1]), text)
    text = FILE.sub(r"```{code-block} \1\n:caption: \2\n", text)
    if posixpath.basename(page) == "index":
        text = with_navigation(page, text)
    if is_tutorial(app, page):
        text = with_links_to_notebook(app, page, text)
    content[0] = text


def target_of(app: Sphinx, page: str, link: str) -> str:
    """A link to a file outside of the docs leads to the repository; without one, the site has a copy to download."""
    path = Path(app.srcdir, posixpath.dirname(page), link).resolve()
    root = Path(app.srcdir).parent
    if path.is_relative_to(app.srcdir) or not path.exists():
        return link
    if not app.config.repository:
        return f"path:{link}"  # a download, also of files that have the suffix of a page
    return f"https://github.com/{app.config.repository}/blob/main/{path.relative_to(root).as_posix()}"


def with_navigation(page: str, text: str) -> str:
    """The pages that the tables of an index name become the navigation, a caption for each heading."""
    sections = re.split(r"(?m)^## ", text)
    parts = [sections[0] + tree(sections[0], "")]
    parts += [f"## {section.rstrip()}\n\n{tree(section, section.splitlines()[0])}\n" for section in sections[1:]]
    return "".join(parts)


def tree(section: str, caption: str) -> str:
    names = [link.rpartition(".")[0] for link in links_in_tables(section)]
    if not names:
        return ""
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"\n:::{{toctree}}\n{options}\n" + "\n".join(names) + "\n:::\n"


def links_in_tables(section: str) -> Iterator[str]:
    for line in section.splitlines():
        if line.startswith("|"):
            yield from dict.fromkeys(link for link in LINK.findall(line) if link.endswith((".md", ".py")))


def is_tutorial(app: Sphinx, page: str) -> bool:
    return app.env.doc2path(page).suffix == ".py"


def with_links_to_notebook(app: Sphinx, page: str, text: str) -> str:
    """Under the title: the notebook to download, and to open in Colab where the repository is public."""
    name = posixpath.basename(page)
    links = [f'<a href="../notebooks/{name}.ipynb" download>Download the notebook</a>']
    if repository := app.config.repository:
        colab = f"https://colab.research.google.com/github/{repository}/blob/gh-pages/notebooks/{name}.ipynb"
        links.insert(0, f'<a href="{colab}">Open in Colab</a>')
    line = f"# {' · '.join(links)}"
    title, _, rest = text.partition("\n\n") if text.startswith("# #") else text.partition("\n#\n")
    return f"{title}\n#\n{line}\n#\n{rest}"


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Writes each tutorial as a notebook beside the site. Its first cell installs declax, or says how."""
    if error is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir, "notebooks")
    folder.mkdir(exist_ok=True)
    repository = app.config.repository
    install = f'%pip install -q "declax[examples] @ git+https://github.com/{repository}"'
    if not repository:
        install = '# declax is not on PyPI yet. In a clone of its repository:\n# %pip install -q ".[examples]"'
    for page in app.env.found_docs:
        if is_tutorial(app, page):
            notebook = jupytext.read(str(app.env.doc2path(page)), fmt="py:percent")
            notebook.cells.insert(0, nbformat.v4.new_code_cell(install))
            nbformat.write(notebook, folder / f"{posixpath.basename(page)}.ipynb")


def write_sitemap(app: Sphinx, error: Exception | None) -> None:
    """Names every page for search engines; libraries name those of the last, partial build only."""
    if error is not None or app.builder.format != "html":
        return
    address = app.config.html_baseurl or "/"
    urls = (f"<url><loc>{address}{page}.html</loc></url>" for page in sorted(app.env.found_docs))
    head = '<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    Path(app.outdir, "sitemap.xml").write_text(head + "\n".join(urls) + "\n</urlset>\n", encoding="utf-8")


def write_versions(app: Sphinx, error: Exception | None) -> None:
    """Lists the versions of the changelog for the menu of versions; each older one has a folder of the site."""
    if error is not None or app.builder.format != "html":
        return
    changelog = Path(app.srcdir).parent.joinpath("CHANGELOG.md").read_text(encoding="utf-8")
    entries = versions_in(changelog, app.config.version, app.config.html_baseurl or "/")
    Path(app.outdir, "_static", "versions.json").write_text(json.dumps(entries), encoding="utf-8")


def versions_in(changelog: str, current: str, address: str) -> list[dict[str, str]]:
    """The entries of the menu: the current version is at the address of the site, another one in its folder."""
    found = re.findall(r"(?m)^## \[(\d[\w.]*)\]", changelog)
    places = {current: address, **{version: f"{address}{version}/" for version in found if version != current}}
    return [{"name": version, "version": version, "url": url} for version, url in places.items()]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_config_value("repository", "", "env")
    app.connect("source-read", read_source)
    app.connect("build-finished", write_notebooks)
    app.connect("build-finished", write_sitemap)
    app.connect("build-finished", write_versions)
    return {"parallel_read_safe": True}
