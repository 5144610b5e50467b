"""Results of a trainer's own code on a batch, and their storage."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
Settings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """Result of one correction on one batch; weights are before rejection."""

    batch: str
    settings: Settings
    arithmetic: str = "float64"
    weight_sum: float | None  # over unmasked tokens; None without weights
    kept_tokens: int
    kept_sequences: int
    metrics: dict[str, float]
    # Whether OPSM keeps each row in the loss, if it is on and current = old.
    rows_in_loss: list[bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Updated:
    """Result of one loss on one batch, with its gradient by unmasked current log-probs."""

    batch: str
    settings: Settings
    loss: float
    metrics: dict[str, float]
    gradient: list[float]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Stored results of a generation; `source` names package, version, file and functions."""

    trainer: str
    source: str
    corrections: list[Corrected]
    losses: list[Updated] = field(default_factory=list)


def read_answers(path: Path) -> Answers:
    """Read stored numbers; the JSON has NaN and Infinity as Python writes them."""
    stored = json.loads(path.read_text())
    return Answers(
        trainer=stored["trainer"],
        source=stored["source"],
        corrections=[Corrected(**each) for each in stored["corrections"]],
        losses=[Updated(**each) for each in stored["losses"]],
    )


def write_answers(path: Path, answers: Answers) -> None:
    """Write one line per case, so that diffs are readable."""

    def lines(cases: Iterable[Any]) -> str:
        return ",\n".join("  " + json.dumps(_short(asdict(case))) for case in cases)

    path.write_text(
        f'{{\n "trainer": "{answers.trainer}",\n "source": {json.dumps(answers.source)},\n'
        f' "corrections": [\n{lines(answers.corrections)}\n ],\n'
        f' "losses": [\n{lines(answers.losses)}\n ]\n}}\n'
    )


def _short(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case without its missing fields."""
    return {
        name: value
        for name, value in case.items()
        if not (name == "rows_in_loss" and value is None)
    }
