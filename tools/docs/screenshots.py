"""Take the pictures of README and docs: figures and tabs of pages of the sample data.

`python -m tools.docs.screenshots` (or `make screenshots`) creates the pages, opens them in headless
Chromium and writes docs/assets/*.png: in a wide window, on a tablet and on a phone, light and dark.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import rcdiag
from tests.pages.browser import launched
from tools.docs.commands import ROOT

ASSETS = ROOT / "docs" / "assets"
HEIGHT, SCALE = 900, 1.5
COLOURS = 128  # per picture: enough for text and flat areas


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: its page, the place where it is opened, the window, and what is shown."""

    name: str
    table: str
    place: str  # the part of the address after #
    width: int
    scheme: str = "light"
    figures: Sequence[str] = ()  # only these; empty: the whole window
    below: str = ""  # an element at the top edge of the picture
    height: int = HEIGHT


SHOTS = (
    *(
        Shot(
            f"report_{scheme}",
            "temperature",
            "tokens",
            1000,
            scheme,
            ("tokens-beyond-ratio", "concentration"),
        )
        for scheme in ("light", "dark")
    ),
    Shot("page_diagnosis", "stale", "diagnosis", 1280),
    Shot("page_reader", "stale", "tokens", 1280, "dark", below="#transcripts", height=640),
    Shot("page_corrections", "stale", "corrections", 800),
    Shot("page_phone", "stale", "diagnosis", 390),
)


def pages(folder: Path) -> dict[str, Path]:
    """Make the page of each table, from its results of `score` and `sweep`."""
    made = {}
    os.chdir(ROOT)  # pages show the paths as they are given
    for name in dict.fromkeys(shot.table for shot in SHOTS):
        table = rcdiag.open_table(f"sample_data/{name}.parquet")
        made[name] = folder / f"{name}.html"
        rcdiag.report([rcdiag.score(table), rcdiag.sweep(table)], made[name])
    return made


def taken(browser: Browser, shot: Shot, file: Path) -> bytes:
    """Return a picture as PNG."""
    page = browser.new_page(
        color_scheme=shot.scheme,
        device_scale_factor=SCALE,
        viewport={"width": shot.width, "height": shot.height},
    )
    page.goto(f"{file.as_uri()}#{shot.place}")
    page.locator(".tab.on figure svg, .tab.on .gauge").first.wait_for()
    page.wait_for_timeout(300)
    if shot.figures:
        picture = page.screenshot(clip=_around(page, shot.figures), full_page=True)
    else:
        if shot.below:
            page.evaluate(
                "selector => document.querySelector(selector).scrollIntoView()", shot.below
            )
            page.wait_for_timeout(200)
        picture = page.screenshot()
    page.close()
    return picture


def _around(page: Page, figures: Sequence[str]) -> dict[str, float]:
    """Return the rectangle around some figures."""
    boxes = [page.locator(f"figure[data-figure={name}]").bounding_box() for name in figures]
    left, top = (min(box[side] for box in boxes) for side in ("x", "y"))
    right = max(box["x"] + box["width"] for box in boxes)
    bottom = max(box["y"] + box["height"] for box in boxes)
    return {"x": left, "y": top, "width": right - left, "height": bottom - top}


def smaller(picture: bytes) -> bytes:
    """Return a PNG with a palette, which is a quarter of the size."""
    stream = io.BytesIO()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def main() -> None:
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        files = pages(Path(folder))
        browser = launched(playwright)
        for shot in SHOTS:
            picture = smaller(taken(browser, shot, files[shot.table]))
            (ASSETS / f"{shot.name}.png").write_bytes(picture)
        browser.close()


if __name__ == "__main__":
    main()
