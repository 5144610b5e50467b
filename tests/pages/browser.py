"""Pages in a real browser."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
# No background requests: the machine may have no network, and no report needs one.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Charts are drawn when their container gets a size, texts are unpacked when first shown:
# a tab is ready when it has not changed for 150 ms, on any machine.
GO = """place => new Promise(done => {
    let shown = [], since = 0
    const settle = now => {
        const all = [...document.querySelectorAll(".tab.on *")]
        if (all.length !== shown.length || all.some((each, at) => each !== shown[at])) since = now
        shown = all
        now - since < 150 ? requestAnimationFrame(settle) : done()
    }
    const before = location.hash
    location.hash = place
    if (location.hash === before) requestAnimationFrame(settle)
    else addEventListener("hashchange", () => requestAnimationFrame(settle), { once: true })
})"""
LEAVE_ROWS_ALIKE_OUT = """() => document.querySelectorAll("tbody").forEach(body => {
    const kept = {}
    const look = element => [
        element.tagName,
        ...["class", "style", "role", "colspan"].map(name => element.getAttribute(name)),
        ...["aria-label", "title", "id", "tabindex"].map(name => element.hasAttribute(name)),
    ]
    for (const row of [...body.rows]) {
        const shape = JSON.stringify([row, ...row.querySelectorAll("*")].map(look))
        kept[shape] = (kept[shape] ?? 0) + 1
        if (kept[shape] > 2) row.remove()
    }
})"""
RULES = ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]


def chromium() -> str | None:
    """Return the browser that CHROMIUM names, or the first on PATH."""
    given = os.environ.get("CHROMIUM")
    return given or next(filter(None, map(shutil.which, NAMES)), None)


def launched(playwright: Playwright) -> Browser:
    path = chromium()
    assert path is not None, "no Chromium: apt-get install chromium, or set CHROMIUM"
    return playwright.chromium.launch(executable_path=path, args=FLAGS)


@dataclass
class Visit:
    """An open page with its network requests and console messages."""

    page: Page
    address: str
    window: Window
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Clear the window for the next visit; a window in print layout is closed."""
        if self.page.evaluate("matchMedia('print').matches"):
            self.page.context.close()
            return
        self.window.visit = None
        self.page.goto("about:blank")
        Window.free[self.window.kind].append(self.window)

    @property
    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        width = self.page.evaluate("document.documentElement.scrollWidth")
        return width - self.page.viewport_size["width"]

    def tabs(self) -> list[str]:
        """Return the names of all tabs."""
        return self.page.evaluate("[...document.querySelectorAll('.tab')].map(tab => tab.id)")

    def go(self, place: str) -> None:
        """Follow a link within the page, and wait until its target is drawn."""
        self.page.evaluate(GO, place)

    def unfold(self) -> None:
        """Open everything that can be folded."""
        self.page.evaluate(
            "document.querySelectorAll('details').forEach(each => { each.open = true })"
        )

    def show_all(self) -> None:
        """Show all tabs below each other, as in print."""
        self.page.evaluate(
            "document.querySelectorAll('.tab').forEach(tab => tab.classList.add('on'))"
        )

    def leave_rows_alike_out(self) -> None:
        """Keep two of the table rows that differ only in text, since axe treats them alike."""
        self.page.evaluate(LEAVE_ROWS_ALIKE_OUT)

    def inaccessible(self) -> list[str]:
        """Return axe's violations: rule, count and first location."""
        options = {"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
        result = Axe().run(self.page, options=options).response
        assert result["passes"], "axe looked at nothing"
        return [
            f"{item['id']} x{len(item['nodes'])}: {item['nodes'][0]['failureSummary']}"
            f" {item['nodes'][0]['html'][:200]}"
            for item in result["violations"]
        ]


class Window:
    """A browser page in which files are opened one after the other, since starting one is slow.

    Its requests and console messages are recorded by the current visit.
    """

    free: ClassVar[dict[tuple[int, str], list[Window]]] = {}

    def __init__(self, browser: Browser, settings: dict[str, Any]) -> None:
        self.kind = id(browser), repr(sorted(settings.items()))
        self.size = settings.get("viewport")
        self.visit: Visit | None = None
        self.page = browser.new_context(**settings).new_page()
        self.page.route("**/*", self.answer)
        self.page.on("console", lambda said: self.note(said.type, said.text))
        self.page.on("pageerror", lambda error: self.note("error", str(error)))
        self.page.on("dialog", lambda dialog: self.note("error", dialog.message))

    def answer(self, route: Any) -> None:
        """Serve the opened file, and record all other requests."""
        address = route.request.url
        if self.visit is None or address == self.visit.address or address.startswith("data:"):
            route.continue_()
        else:
            self.visit.requests.append(address)
            route.abort()

    def note(self, kind: str, text: str) -> None:
        if self.visit is not None and kind in ("error", "warning"):
            self.visit.complaints.append(text)


def visit(browser: Browser, file: Path, **settings: Any) -> Visit:
    """Open a file; all other requests are recorded and blocked.

    `close` keeps the window for the next visit with the same settings.
    """
    others = Window.free.setdefault((id(browser), repr(sorted(settings.items()))), [])
    window = others.pop() if others else Window(browser, settings)
    window.visit = seen = Visit(window.page, file.as_uri(), window)
    if window.size is not None:
        window.page.set_viewport_size(window.size)
    window.page.goto(seen.address)
    return seen
