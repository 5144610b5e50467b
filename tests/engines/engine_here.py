"""Scoring of a small table by the toy engine in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rcdiag.engines import BACKENDS
from rcdiag.engines.arrays import (
    rows_from_bytes,
    rows_to_bytes,
    scores_from_bytes,
    scores_to_bytes,
)
from rcdiag.engines.process import Job
from rcdiag.engines.schedule import OnTokens, ScoredPart, TablePart
from tests.builders import write_table
from tests.engines.toy_engine import TOY, make_checkpoint

scored_parts: list[str] = []  # names in the order of scoring


class EngineHere:
    """An engine in this process that exchanges rows and scores as bytes like any engine."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def load(self) -> None:
        spec = self.job.spec
        self.engine = BACKENDS[spec.backend].load(
            spec, self.job.max_length, self.job.folder / self.job.log
        )
        self._about()

    def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
        scored_parts.append(part.name)
        scores = self.engine.score(rows_from_bytes(rows_to_bytes(part.rows)), on_tokens)
        about = {**self._about(), "seconds": 1.0}
        return ScoredPart(scores=scores_from_bytes(scores_to_bytes(scores)), about=about)

    def _about(self) -> dict[str, Any]:
        return self.job.about({**self.engine.provenance(), "host": "here"})

    def close(self) -> None:
        pass


@contextmanager
def toy_scoring(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield arguments of `rcdiag.score`: six short responses, and the toy engine as `old`."""
    table = write_table(
        folder / "table.parquet",
        prompt_ids=[[1]] * 6,
        response_ids=[[1, 2], [3], [4, 5], [6], [7, 8], [9]],
        rollout_log_probs=[[-1.0, -1.0], [-1.0]] * 3,
    )
    model = make_checkpoint(folder / "model")
    scored_parts.clear()
    with pytest.MonkeyPatch.context() as patch, BACKENDS.with_added(TOY):
        patch.setattr("rcdiag.engines.process.EngineProcess", EngineHere)
        yield {"source": table, "model": model, "policies": {"old": "toy"}}
