"""Scoring of a small table by the toy engine, in this process: no engine is started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rcdiag.engines import BACKENDS, worker
from rcdiag.engines.process import Job
from rcdiag.engines.schedule import OnTokens, TablePart
from tests.builders import write_table
from tests.engines.toy_engine import TOY, make_checkpoint

scored_parts: list[str] = []  # their names, in the order of their scoring


class EngineHere:
    """The worker's own steps, in this process."""

    def __init__(self, job: Job) -> None:
        self.job = job.to_dict()

    def load(self) -> None:
        worker.run(self.job, iter(()), lambda message: None)

    def score(self, part: TablePart, on_tokens: OnTokens) -> None:
        header = {"part": part.name, **part.place, "bytes": len(part.rows)}
        worker.run(self.job, iter([(header, part.rows)]), lambda message: None)
        scored_parts.append(part.name)

    def close(self) -> None:
        pass


@contextmanager
def toy_scoring(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what `rcdiag.score` takes: six short responses, and the toy engine as policy `old`."""
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
