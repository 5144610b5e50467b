"""Every kind of result has its own answer, in a sentence without a full stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rcdiag.pages.compare import words as compare
from rcdiag.pages.diagnose import words as diagnose
from rcdiag.pages.replay import words as replay
from rcdiag.pages.score import words as score
from rcdiag.pages.sweep import words as sweep
from rcdiag.results import Result

_ANSWERS: dict[str, Callable[[Any], str]] = {
    "score": score.answer,
    "compare": compare.answer,
    "diagnose": diagnose.answer,
    "sweep": sweep.answer,
    "replay": replay.answer,
}


def answer(result: Result) -> str:
    """Say in a sentence what a command found out."""
    return _ANSWERS[result.kind](result)
