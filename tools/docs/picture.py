"""Take the picture of the README: two figures of a report, on white and on black.

`python -m tools.docs.picture` (or `make picture`) opens reports/temperature.html in headless
Chromium and writes docs/assets/report_light.png and report_dark.png.
"""

from __future__ import annotations

from playwright.sync_api import sync_playwright

from tests.pages.browser import launched
from tools.docs.commands import ROOT

REPORT = ROOT / "reports" / "temperature.html"
ASSETS = ROOT / "docs" / "assets"
FIGURES = ("tokens-beyond-ratio", "concentration")  # beside each other in the tab
WIDTH, SCALE = 1000, 1.5


def main() -> None:
    with sync_playwright() as playwright:
        browser = launched(playwright)
        for scheme in ("light", "dark"):
            page = browser.new_page(
                color_scheme=scheme,
                device_scale_factor=SCALE,
                viewport={"width": WIDTH, "height": WIDTH},
            )
            page.goto(f"{REPORT.as_uri()}#tokens")
            for name in FIGURES:
                page.locator(f"figure[data-figure={name}] svg").first.wait_for()
            page.evaluate("() => scrollTo(0, 0)")
            page.wait_for_timeout(300)
            boxes = [page.locator(f"figure[data-figure={name}]").bounding_box() for name in FIGURES]
            left, top = (min(box[side] for box in boxes) for side in ("x", "y"))
            right = max(box["x"] + box["width"] for box in boxes)
            bottom = max(box["y"] + box["height"] for box in boxes)
            page.screenshot(
                path=ASSETS / f"report_{scheme}.png",
                clip={"x": left, "y": top, "width": right - left, "height": bottom - top},
                full_page=True,
            )
        browser.close()


if __name__ == "__main__":
    main()
