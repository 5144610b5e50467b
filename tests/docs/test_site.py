"""The built site: every link has a target, and nothing is loaded from the network."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import rcdiag
from rcdiag.diagnosis.causes.cause_words import cause_words
from rcdiag.table.schema import COLUMNS
from tools.docs.causes import INDEX, cause_pages, page_of, with_causes
from tools.docs.commands import ROOT
from tools.docs.reference import CAUSE, anchor, place_of_names, reference_pages

# Elements that a page loads by itself; links may lead to the network.
LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
# The build takes ten seconds.
BUILT = pytest.mark.slow
EXTERNAL = re.compile(r"https?://[\w.-]+\.[a-z]{2,}(/[^\s<>]*)?")


class Page(HTMLParser):
    """The ids, the links and the loaded files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and given.get("rel") != "canonical":
            self.loads.append(given.get(LOADS[tag], ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


@BUILT
def test_every_internal_link_has_its_page_and_anchor(site, pages):
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            if known is None and not target.exists():
                lost.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and known and unquote(parts.fragment) not in known.ids:
                lost.append(f"{path.relative_to(site)}: {link} (no such anchor)")
    assert not lost


@BUILT
def test_every_external_link_is_well_formed(site, pages):
    for path, page in pages.items():
        for link in page.links:
            if urlsplit(link).scheme:
                assert EXTERNAL.fullmatch(link), f"{path.relative_to(site)}: {link}"


@BUILT
def test_no_page_loads_anything_from_the_network(site, pages):
    for path, page in pages.items():
        for file in page.loads:
            assert not urlsplit(file).netloc, f"{path.relative_to(site)}: {file}"
    for path in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", path.read_text()), path.name


def test_every_entry_of_the_navigation_is_a_page():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    generated = reference_pages()
    for entry in entries(config["nav"]):
        assert entry in generated or (ROOT / "docs" / entry).is_file(), entry


def entries(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [entry for part in parts for entry in entries(part)]


def test_every_page_is_in_the_navigation():
    existing = {
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    }
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert existing | reference_pages().keys() == set(entries(config["nav"]))


def test_the_reference_has_every_name_of_explain():
    pages = reference_pages()
    for kind, names in rcdiag.explain().items():
        for name in names:
            page, _, place = place_of_names()[name].partition("#")
            text = cause_pages()[page_of(name)] if kind == CAUSE else pages[f"reference/{page}"]
            assert f"{{ #{place} }}" in text, name
            assert place == anchor(name)


@BUILT
def test_every_cause_has_a_page_in_the_navigation_and_a_line_in_the_index(site):
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    shown = entries(with_causes(config["nav"]))
    assert set(shown) - set(entries(config["nav"])) == cause_pages().keys()
    index = (site / INDEX).with_suffix(".html").read_text()
    for slug, words in cause_words().items():
        page = (site / page_of(slug)).with_suffix(".html").read_text()
        assert f'<a href="{slug}.html"><code>{slug}</code></a>' in index
        for link in words.links:
            assert f'href="{html.escape(link.url)}"' in page
        for other in words.look_alikes:
            assert f'<a href="{other}.html">' in page


def test_no_two_names_of_a_page_share_an_anchor():
    for path, text in reference_pages().items():
        anchors = re.findall(r"^##+ .*\{ #(\S+) \}$", text, re.MULTILINE)
        assert len(anchors) == len(set(anchors)), path


def test_the_page_of_the_table_names_every_column():
    text = (ROOT / "docs" / "table.md").read_text()
    for name in COLUMNS:
        assert f"`{name}`" in text, name


def test_examples_in_python_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    for page in ("python.md", "table.md"):
        text = (ROOT / "docs" / page).read_text()
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        assert blocks
        names: dict[str, object] = {}
        for block in blocks:
            if "model=" not in block:
                exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_docs_builds_this_site():
    output = subprocess.run(["make", "-n", "docs"], cwd=ROOT, capture_output=True, text=True)
    assert "mkdocs build --strict" in output.stdout
