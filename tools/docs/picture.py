"""Take the picture of the README: the head of a report, on white and on black.

`python -m tools.docs.picture` (or `make picture`) opens reports/temperature.html in headless
Chromium and writes docs/assets/report_light.png and report_dark.png.
"""

from __future__ import annotations

from playwright.sync_api import sync_playwright

from tests.pages.browser import launched
from tools.docs.commands import ROOT

REPORT = ROOT / "reports" / "temperature.html"
ASSETS = ROOT / "docs" / "assets"
WIDTH, HEIGHT, SCALE = 1000, 760, 1.5


def main() -> None:
    with sync_playwright() as playwright:
        browser = launched(playwright)
        for scheme in ("light", "dark"):
            page = browser.new_page(
                color_scheme=scheme,
                device_scale_factor=SCALE,
                viewport={"width": WIDTH, "height": HEIGHT},
            )
            page.goto(REPORT.as_uri())
            page.screenshot(path=ASSETS / f"report_{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
