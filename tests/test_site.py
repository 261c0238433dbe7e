"""The built site: links, navigation, pictures, signatures, and a browser that reads and searches it."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

import declax
from declax._lazy import exports

ROOT = Path(__file__).resolve().parents[1]

pytest.importorskip("sphinx", reason="the site needs declax[docs]")
webdriver = pytest.importorskip("selenium.webdriver")
pytestmark = [pytest.mark.slow, pytest.mark.timed]  # alone, since it builds the site

GENERATED = {"search.html", "genindex.html"}


class Page(HTMLParser):
    """The addresses of a page: what it links to, its anchors, its pictures."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.pictures: list[tuple[str, str | None]] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if tag == "img":
            self.pictures.append((str(found["src"]), found.get("alt")))


@pytest.fixture(scope="module")
def site() -> Path:
    """The folder of the site, which is built if what it shows has changed."""
    folder = ROOT / "build" / "site"
    command = [sys.executable, "-m", "sphinx", "-b", "html", "--fail-on-warning", "--quiet", "docs", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1200)
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """The pages by their path in the site; those with the source of modules are left out."""
    paths = (path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    return {path: Page(site / path) for path in paths if not path.startswith(("_modules/", "_static/"))}


def inside(page: str, link: str) -> tuple[str, str] | None:
    """The page and the anchor that a link leads to; None for another site."""
    address, anchor = urldefrag(urljoin(f"http://site/{page}", link))
    found = urlsplit(address)
    return (unquote(found.path).lstrip("/"), unquote(anchor)) if found.netloc == "site" else None


def test_every_internal_link_and_anchor_resolves(site, pages):
    broken = []
    for page, found in pages.items():
        for link in found.links:
            target = inside(page, link)
            if target is None or urlsplit(link).scheme not in ("", "http", "https"):
                continue
            file, anchor = target
            exists = (site / file).is_file()
            if not exists or (anchor and file in pages and anchor not in pages[file].anchors):
                broken.append(f"{page}: {link}")
    assert not broken


def test_each_page_has_a_title_of_its_own(pages):
    titles: dict[str, list[str]] = {}
    for page, found in pages.items():
        title = re.search(r"<h1>(.*?)<a ", found.text, re.DOTALL)
        if title is not None:
            titles.setdefault(re.sub(r"<[^>]+>", "", title[1]).casefold(), []).append(page)
    assert len(titles) > 90
    assert not {title: found for title, found in titles.items() if len(found) > 1}


def test_a_source_link_leads_to_its_line(site, pages):
    links = {
        (urljoin(f"http://site/{page}", link).removeprefix("http://site/"))
        for page, found in pages.items()
        for link in found.links
        if "_modules/" in link and page.startswith("reference/api/")
    }
    assert len(links) > 400
    sources = {file: Page(site / file).anchors for file in {urldefrag(link)[0] for link in links}}
    assert not [link for link in links if urldefrag(link)[1] not in sources[urldefrag(link)[0]]]


def test_no_link_needs_a_repository_that_is_not_set(pages):
    if os.environ.get("DECLAX_REPOSITORY"):
        return
    unset = re.compile(r"/blob/main/|/edit/main/|colab\.research|github\.io/declax")
    assert not [(page, link) for page, found in pages.items() for link in found.links if unset.search(link)]


def test_links_of_a_repository_that_is_set(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    from pages import target_of, with_links_to_notebook

    config = types.SimpleNamespace(repository="owner/name")
    app = types.SimpleNamespace(srcdir=str(ROOT / "docs"), config=config)
    notebook = "# %% [markdown]\n# # A title\n#\n# Text.\n"
    colab = "https://colab.research.google.com/github/owner/name/blob/gh-pages/notebooks/gpt.ipynb"
    assert target_of(app, "index", "../CHANGELOG.md") == "https://github.com/owner/name/blob/main/CHANGELOG.md"
    assert target_of(app, "index", "layers.md") == "layers.md"
    assert colab in with_links_to_notebook(app, "learn/gpt", notebook)
    config.repository = ""
    assert target_of(app, "index", "../CHANGELOG.md") == "path:../CHANGELOG.md"
    assert "colab" not in with_links_to_notebook(app, "learn/gpt", notebook)


def test_a_site_with_a_repository(tmp_path):
    """A page and a tutorial, built as a release builds the site: edit links, Colab, versions, the sitemap."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("conf.py", "_extensions", "_static", "../CHANGELOG.md"):
        (docs / name).symlink_to((ROOT / "docs" / name).resolve())
    (docs / "index.md").write_text("# Home\n\n| page |\n| --- |\n| [Tutorial](tutorial.py) |\n", encoding="utf-8")
    (docs / "tutorial.py").write_text("# %% [markdown]\n# # A tutorial\n#\n# Text.\n", encoding="utf-8")
    site = tmp_path / "site"
    # Without the API reference, which takes a minute.
    extensions = "myst_nb,sphinx_copybutton,pages"
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-D", f"extensions={extensions}"]
    environment = {**os.environ, "DECLAX_REPOSITORY": "owner/name"}
    subprocess.run([*command, str(docs), str(site)], env=environment, check=True, timeout=120)

    address = "https://owner.github.io/name/"
    home, tutorial = Page(site / "index.html"), Page(site / "tutorial.html")
    assert "https://github.com/owner/name/edit/main/docs/index.md" in home.links
    assert "https://github.com/owner/name" in home.links
    assert "https://github.com/owner/name/edit/main/docs/tutorial.py" in tutorial.links
    notebook = "https://colab.research.google.com/github/owner/name/blob/gh-pages/notebooks/tutorial.ipynb"
    assert notebook in tutorial.links
    assert f'<link rel="canonical" href="{address}tutorial.html"' in tutorial.text
    assert f"{address}_static/versions.json" in home.text
    versions = json.loads((site / "_static" / "versions.json").read_text(encoding="utf-8"))
    assert versions[0] == {"name": declax.__version__, "version": declax.__version__, "url": address}
    listed = (site / "sitemap.xml").read_text(encoding="utf-8")
    assert re.findall("<loc>(.*?)</loc>", listed) == [f"{address}index.html", f"{address}tutorial.html"]
    cells = json.loads((site / "notebooks" / "tutorial.ipynb").read_text(encoding="utf-8"))["cells"]
    assert "git+https://github.com/owner/name" in "".join(cells[0]["source"])


def test_the_menu_has_the_versions_of_the_changelog(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    from pages import versions_in

    changelog = "# Changelog\n\n## [0.2.0] - unreleased\n\n## [0.1.0] - 2026-12-01\n"
    found = {entry["version"]: entry["url"] for entry in versions_in(changelog, "0.2.0", "https://a/b/")}
    assert found == {"0.2.0": "https://a/b/", "0.1.0": "https://a/b/0.1.0/"}


def test_the_site_has_four_parts(pages):
    """At the top of each page, and nothing else there."""
    header = pages["index.html"].text.partition('class="bd-header')[2].partition("</nav>")[0]
    parts = re.findall(r'<a class="nav-link[^>]*>(.*?)</a>', header, re.DOTALL)
    assert [re.sub(r"<[^>]+>", "", part).strip() for part in parts] == ["Learn", "How to", "Reference", "Explain"]


def test_no_page_loads_files_of_another_site(pages):
    loaded = re.compile(
        r'<(?:script|img|iframe)\b[^>]*\bsrc="(?:https?:)?//|<link\b[^>]*stylesheet[^>]*href="(?:https?:)?//'
    )
    assert not [page for page, found in pages.items() if loaded.search(found.text)]


@pytest.mark.parametrize("tool", ["theme-switch-button", "version-switcher", "search-button", "copybutton.js"])
def test_each_page_has_the_tools_of_a_reader(pages, tool):
    """Dark mode, versions, search, buttons that copy code."""
    assert not [page for page, found in pages.items() if tool not in found.text]


def test_navigation_reaches_every_page(pages):
    reached, waiting = {"index.html"}, ["index.html"]
    while waiting:
        page = waiting.pop()
        for link in pages[page].links:
            target = inside(page, link)
            if target is not None and target[0] in pages and target[0] not in reached:
                reached.add(target[0])
                waiting.append(target[0])
    assert set(pages) - reached <= GENERATED


def test_pictures_have_a_text_and_are_small(site, pages):
    pictures = [(page, *picture) for page, found in pages.items() for picture in found.pictures]
    assert len(pictures) >= 8
    wrong = []
    for page, source, text in pictures:
        file = inside(page, source)
        if file is None or not text or len(text) < 10 or (site / file[0]).stat().st_size > 200_000:
            wrong.append((page, source, text))
    assert not wrong


def test_every_public_name_has_one_entry(pages):
    for name in exports("declax"):
        kind = "module-" if isinstance(getattr(declax, name), types.ModuleType) else ""
        target = f"{kind}declax.{name}"
        found = [page for page in pages if page.startswith("reference/api/") and target in pages[page].anchors]
        assert len(found) == 1, f"{name}: {found}"


def test_signatures_are_readable(site):
    for page in (site / "reference" / "api").glob("*.html"):
        for entry in re.findall(r"<dt class=\"sig[^>]*>(.*?)</dt>", page.read_text(encoding="utf-8"), re.DOTALL):
            text = re.sub(r"<[^>]+>", "", entry)
            assert not re.search(r" at 0x|&lt;|ForwardRef|MISSING|mappingproxy|: (&#39;|')", text), (
                f"{page.stem}: {text}"
            )


def test_tutorials_show_no_addresses_of_objects(pages):
    assert not [page for page, found in pages.items() if page.startswith("learn/") and " at 0x" in found.text]


def test_notebooks_of_the_tutorials(site):
    for tutorial in (ROOT / "docs" / "learn").glob("*.py"):
        notebook = json.loads((site / "notebooks" / f"{tutorial.stem}.ipynb").read_text(encoding="utf-8"))
        assert "pip install" in "".join(notebook["cells"][0]["source"])
        page = (site / "learn" / f"{tutorial.stem}.html").read_text(encoding="utf-8")
        assert f"notebooks/{tutorial.stem}.ipynb" in page


def test_the_sitemap_has_every_page(site, pages):
    listed = (site / "sitemap.xml").read_text(encoding="utf-8")
    assert {page for page in pages if f"/{page}</loc>" not in listed} <= GENERATED


# ================================================================= in a browser


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """A server that does not print what it is asked for."""

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a server of this test gives the site."""
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """Chromium, without a window."""
    binary = next((path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if os.path.exists(path)), None)
    if binary is None:
        pytest.skip("Chromium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    driver.implicitly_wait(10)  # for elements of a page that a busy machine shows late
    yield driver
    driver.quit()


SIZES = {"desktop": (1440, 900), "phone": (390, 844)}


def set_width(browser: webdriver.Chrome, size: str) -> None:
    """The width of the page itself, which windows of Chromium cannot make as small as a phone's."""
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@pytest.mark.parametrize("size", SIZES)
def test_the_home_page_renders_without_errors(browser, address, size):
    set_width(browser, size)
    browser.get_log("browser")
    browser.get(f"{address}/index.html")
    assert "declax" in browser.find_element("tag name", "h1").text
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors


@pytest.mark.parametrize("size", SIZES)
def test_no_page_is_wider_than_the_screen(browser, address, pages, size):
    set_width(browser, size)
    wide = []
    for page in pages:
        browser.get(f"{address}/{page}")
        excess = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        if excess > 0:
            wide.append((page, excess))
    assert not wide


def answers(browser: webdriver.Chrome, address: str, query: str) -> list[str]:
    """The pages that the search of the site shows for a query, in its order."""
    browser.get(f"{address}/search.html?q={query}")
    links: list[str] = []
    for _ in range(300):  # the search shows its answers one after the other
        time.sleep(0.1)
        found = browser.find_elements("css selector", "#search-results ul.search li > a")
        before, links = links, [str(link.get_attribute("href")).removeprefix(address + "/") for link in found]
        if links and links == before:
            break
    return [urldefrag(link.partition("?")[0])[0] for link in links]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("attention", ("reference/api/layers.html", "layers.html")),
        ("checkpoint", ("saving.html", "reference/api/saving.html", "learn/save_and_resume.html")),
        ("freeze layers", ("howto/freeze.html",)),
        ("data parallel", ("howto/data_parallel.html",)),
        ("two gpus", ("howto/data_parallel.html",)),
        ("shard the optimizer", ("howto/data_parallel.html", "explain/faq.html", "zero.html")),
        ("LoRA", ("learn/lora.html", "reference/api/layers.html", "reference/api/training.html")),
        ("number of parameters", ("howto/structure.html",)),
        ("tie weights", ("howto/structure.html",)),
        ("gradient accumulation", ("howto/optimizers.html",)),
        ("learning rate per layer", ("howto/optimizers.html",)),
        ("custom layer", ("howto/custom_layers.html",)),
        ("save model", ("saving.html", "learn/save_and_resume.html")),
        ("resume training", ("saving.html", "learn/save_and_resume.html", "howto/runs.html")),
        ("multiple gpus", ("howto/data_parallel.html", "explain/faq.html")),
        ("early stopping", ("explain/faq.html",)),
        ("retrace", ("howto/debugging.html",)),
        ("traced again", ("howto/debugging.html", "explain/faq.html")),
        ("recompiled", ("howto/debugging.html", "explain/faq.html")),
        ("configuration file", ("howto/configuration_file.html",)),
        ("toml rngs", ("howto/configuration_file.html", "explain/faq.html")),
        ("equal layers", ("howto/structure.html",)),
        ("share embedding", ("howto/structure.html", "explain/faq.html")),
        ("which nnx code works", ("coming_from_nnx.html", "explain/faq.html")),
        ("bfloat16", ("howto/mixed_precision.html",)),
        ("wandb", ("howto/logging.html",)),
        ("different learning rate", ("howto/optimizers.html",)),
        ("turn off dropout", ("layers.html", "explain/faq.html")),
        ("disable dropout", ("layers.html", "explain/faq.html")),
        ("identical layers", ("howto/structure.html",)),
        ("average weights", ("howto/ema.html",)),
        ("moving average weights", ("howto/ema.html",)),
        ("dataloader", ("howto/data.html",)),
        ("data loader", ("howto/data.html",)),
        ("ddp", ("howto/data_parallel.html",)),
        ("pytest", ("howto/testing.html",)),
        ("stable release", ("explain/versions.html",)),
        ("license", ("explain/status.html",)),
        ("install gpu", ("quickstart.html",)),
        ("initialize weights", ("howto/custom_layers.html",)),
        ("replace head", ("surgery.html", "explain/faq.html")),
        ("recompute activations", ("stacked.html",)),
        ("speed loop", ("howto/profiling.html",)),
        ("error status", ("errors.html",)),
        ("quickstart", ("quickstart.html",)),
        ("getting started", ("quickstart.html",)),
        ("get started", ("quickstart.html",)),
        ("output shape of each layer", ("explain/faq.html",)),
        ("clip gradients", ("howto/optimizers.html",)),
        ("load part of checkpoint", ("explain/faq.html",)),
        ("evaluate many batches", ("explain/faq.html",)),
        ("log learning rate", ("howto/logging.html",)),
        ("custom rnn cell", ("howto/custom_layers.html",)),
        ("model in lax.scan", ("explain/faq.html", "control_flow.html")),
        ("vmap models", ("learn/ensemble.html",)),
        ("hidden activations", ("explain/faq.html",)),
        ("convert to numpy", ("explain/faq.html", "states.html")),
        ("seed reproducible", ("explain/faq.html",)),
        ("static or data", ("explain/faq.html", "data_model.html")),
        ("attribute not trained", ("explain/faq.html", "howto/debugging.html")),
        ("copy weights", ("explain/faq.html",)),
        ("gradient of input", ("explain/faq.html",)),
        ("l2 regularization", ("howto/optimizers.html",)),
        ("no_grad", ("explain/faq.html",)),
        ("named parameters", ("explain/faq.html",)),
        ("print inside jit", ("explain/faq.html",)),
        ("if statement tracer", ("explain/faq.html",)),
        ("freeze batchnorm", ("explain/faq.html",)),
        ("dict of layers", ("explain/faq.html",)),
        ("nan loss", ("howto/debugging.html",)),
        ("deep copy", ("explain/faq.html",)),
        ("jupyter", ("displays.html",)),
        ("padding mask", ("explain/faq.html",)),
        ("double precision", ("explain/faq.html",)),
        ("change dropout rate", ("explain/faq.html",)),
        ("custom gradient", ("explain/faq.html",)),
        ("reset optimizer", ("explain/faq.html",)),
        ("weight sharing", ("explain/faq.html",)),
        ("unit test", ("howto/testing.html",)),
        ("breaking changes", ("explain/versions.html",)),
        ("windows", ("explain/versions.html",)),
    ],
)
def test_search_answers(browser, address, query, first):
    found = answers(browser, address, query)
    assert found[:1] in [[page] for page in first], found[:5]


def test_search_shows_pages_for_contributors_last(browser, address):
    found = answers(browser, address, "learning rate")
    is_design = [page.startswith("design/") for page in found]
    assert is_design == sorted(is_design)
    assert any(is_design)


def test_search_shows_pages_with_some_of_the_words(browser, address):
    assert "howto/freeze.html" in answers(browser, address, "freeze layers xylophone")[:3]


def test_search_finds_every_public_name_and_error_code(browser, address):
    browser.get(f"{address}/search.html?q=declax")
    # The search of the page itself, for many words at once.
    script = """return arguments[0].map(word => Search._performSearch(...Search._parseQuery(word).slice(0, 5))
        .map(found => found[0] + "#" + (found[2] || "")))"""
    names = [*exports("declax")]
    for name, found in zip(names, browser.execute_script(script, names), strict=True):
        assert any(re.fullmatch(rf"reference/api/\w+#.*[.#-]{name}", page) for page in found), f"{name}: {found[:5]}"
    codes = sorted({kind.code for kind in [declax.DeclaxError, *declax.DeclaxError.__subclasses__()]})
    for code, found in zip(codes, browser.execute_script(script, codes), strict=True):
        assert any(page.startswith("errors#") for page in found), f"{code}: {found[:5]}"
