"""What a trainer's own code gave on a batch, and how it is stored."""

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
    """One correction on one batch; weights are before rejection."""

    batch: str
    settings: Settings
    arithmetic: str = "float64"
    weight_sum: float | None  # over unmasked tokens; None without weights
    kept_tokens: int
    kept_sequences: int
    metrics: dict[str, float]
    # Whether OPSM lets each row into the loss, where it is on and current = old.
    rows_in_loss: list[bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Updated:
    """One loss on one batch, and its gradient by each unmasked token's current log-prob."""

    batch: str
    settings: Settings
    loss: float
    metrics: dict[str, float]
    gradient: list[float]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """All that is stored of a generation; `source` names package, version, file and functions."""

    trainer: str
    source: str
    corrections: list[Corrected]
    losses: list[Updated] = field(default_factory=list)


def read_answers(path: Path) -> Answers:
    """Stored numbers; JSON has NaN and Infinity as Python writes them."""
    stored = json.loads(path.read_text())
    return Answers(
        trainer=stored["trainer"],
        source=stored["source"],
        corrections=[Corrected(**each) for each in stored["corrections"]],
        losses=[Updated(**each) for each in stored["losses"]],
    )


def write_answers(path: Path, answers: Answers) -> None:
    """One line for each case, so that a change shows where it is."""

    def lines(cases: Iterable[Any]) -> str:
        return ",\n".join("  " + json.dumps(_short(asdict(case))) for case in cases)

    path.write_text(
        f'{{\n "trainer": "{answers.trainer}",\n "source": {json.dumps(answers.source)},\n'
        f' "corrections": [\n{lines(answers.corrections)}\n ],\n'
        f' "losses": [\n{lines(answers.losses)}\n ]\n}}\n'
    )


def _short(case: dict[str, Any]) -> dict[str, Any]:
    """Without what is not there."""
    return {
        name: value
        for name, value in case.items()
        if not (name == "rows_in_loss" and value is None)
    }
