"""One browser, and each page rendered once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from rcdiag.api.report import explanation
from rcdiag.pages.page import page
from tests.pages.browser import Visit, launched, visit
from tests.pages.makers import MAKERS, PAGES


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = launched(playwright)
        yield started
        started.close()


@pytest.fixture(scope="session")
def rendered(tmp_path_factory) -> Callable[[str], Path]:
    """Return the file of a page in MAKERS; the processes of a test run share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pages"
    folder.mkdir(exist_ok=True)

    def render(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            made = folder / f"{name}.{os.getpid()}"
            made.write_text(page(MAKERS[name](), explain=explanation))
            made.rename(path)
        return path

    return render


@pytest.fixture(scope="session", params=PAGES)
def file(request, rendered) -> Path:
    return rendered(request.param)


# Layout depends on the width and colours on the scheme: each value of both is in one window.
WINDOWS = [("light", 1280), ("dark", 390)]


@pytest.fixture(scope="module", params=WINDOWS, ids=lambda window: "-".join(map(str, window)))
def window(request) -> tuple[str, int]:
    return request.param


@pytest.fixture(scope="module")
def seen(browser, file, window) -> Iterator[Visit]:
    """The page in one scheme and width."""
    scheme, width = window
    size = {"width": width, "height": 900}
    opened = visit(browser, file, color_scheme=scheme, viewport=size)
    yield opened
    opened.close()
