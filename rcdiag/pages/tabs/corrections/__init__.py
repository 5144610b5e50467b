"""The tab Corrections: what each correction would do to the table, and which one to use."""

from __future__ import annotations

from rcdiag.pages.tabs.corrections.tab import tab

__all__ = ["tab"]
