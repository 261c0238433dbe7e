"""How Sphinx builds the site: `make docs` writes it to build/site."""

import os
import sys
from pathlib import Path

import declax

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_extensions"))

project = "declax"
author = "The declax authors"
copyright = f"2026, {author}"  # noqa: A001  # the name that Sphinx reads
version = release = declax.__version__

# "owner/name" of the public repository on GitHub, which the release sets. The links to it, to Colab and to edit a page,
# and the address of the site, follow from it; without it, the pages show no such links.
repository = os.environ.get("DECLAX_REPOSITORY", "")
owner, _, name = repository.partition("/")
html_baseurl = f"https://{owner}.github.io/{name}/" if repository else ""

extensions = [
    "myst_nb",  # pages in Markdown, and tutorials that run
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "api",
    "pages",
]
exclude_patterns = ["conf.py", "_*"]
source_suffix = {".md": "myst-nb", ".py": "myst-nb", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"  # a tutorial runs again when it has changed
nb_execution_cache_path = str(DOCS.parent / "build" / "tutorials")
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

default_role = "literal"  # single backticks in docstrings are code; `api` makes links of public names
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures come from `api`
add_module_names = False
toc_object_entries_show_parents = "hide"
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the signatures have the types

html_title = "declax"
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "_static" / "scorer.js")
html_domain_indices = False  # the index of names has the modules too
html_favicon = "_static/favicon.svg"
html_context = {
    "github_user": owner,
    "github_repo": name,
    "github_version": "main",
    "doc_path": "docs",
    "default_mode": "auto",
}
html_theme_options = {
    "use_edit_page_button": bool(repository),
    **({"github_url": f"https://github.com/{repository}"} if repository else {}),
    "navbar_align": "left",
    "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
    "switcher": {"json_url": f"{html_baseurl}_static/versions.json", "version_match": version},
    "check_switcher": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc", *(["edit-this-page"] if repository else [])],
}
copybutton_exclude = ".linenos, .gp, .go"
