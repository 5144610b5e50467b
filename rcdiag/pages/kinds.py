"""Every kind of result has its page here."""

from __future__ import annotations

from rcdiag.pages import compare, diagnose, replay, score, sweep
from rcdiag.pages.definitions import Page
from rcdiag.registry import Registry

PAGES: Registry[Page] = Registry(
    "page", (score.PAGE, compare.PAGE, diagnose.PAGE, sweep.PAGE, replay.PAGE)
)
