"""Size and first paint of the reports of the sample data in headless Chromium.

`python benchmarks/pages.py` (or `make bench`) renders each page, opens it LOADS times from disk in
a fresh context and stores bytes and the median time of the first contentful paint in
`benchmarks/results/pages.json`. Without a Chromium it says so and stores nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from playwright.sync_api import Browser, sync_playwright  # noqa: E402

from benchmarks import RESULTS, store  # noqa: E402
from rcdiag.pages.page import page  # noqa: E402
from tests.pages.browser import chromium, launched, visit  # noqa: E402
from tests.pages.makers import MAKERS, swept  # noqa: E402

LOADS = 7
PAGES = {name: make for name, make in MAKERS.items() if not name.startswith("hostile")}
PAGES["sweep"] = swept  # with all its thresholds
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def first_paint_ms(browser: Browser, file: Path) -> float:
    seen = visit(browser, file, viewport={"width": 1280, "height": 900})
    # A function: the page's content security policy forbids the eval() of a bare expression.
    found = seen.page.wait_for_function(f"() => {PAINTED}").json_value()
    seen.page.context.close()
    return found


def measured(browser: Browser, name: str, folder: Path) -> dict:
    file = folder / f"{name}.html"
    start = time.perf_counter()
    result = PAGES[name]()
    computed = time.perf_counter()
    file.write_text(page(result))
    rendered = time.perf_counter()
    paints = [first_paint_ms(browser, file) for _ in range(LOADS)]
    return {
        "page": name,
        "kilobytes": round(file.stat().st_size / 1000),
        "compute_s": round(computed - start, 2),
        "render_s": round(rendered - computed, 2),
        "first_paint_ms": round(sorted(paints)[LOADS // 2]),
    }


def main() -> None:
    if chromium() is None:
        print("pages: no Chromium; apt-get install chromium, or set CHROMIUM")
        return
    results = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = launched(playwright)
        for name in PAGES:
            results.append(measured(browser, name, Path(folder)))
            print("   ".join(f"{key} {value}" for key, value in results[-1].items()), flush=True)
        version = browser.version
        browser.close()
    store(
        RESULTS / "pages.json",
        {
            "chromium": version,
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
