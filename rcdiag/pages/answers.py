"""Every kind of result has its own answer, in a sentence without a full stop."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rcdiag.results import Result


def answer(result: Result) -> str:
    """Say in a sentence what a command found out."""
    words = import_module(f"rcdiag.pages.{result.kind}.words")  # of other kinds nothing is loaded
    answer: str = words.answer(result)
    return answer
