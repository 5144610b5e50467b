"""Ctrl-C exits 130, and one line says from which parts the same command would resume."""

from __future__ import annotations

import pytest

from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import Backend
from tests.builders import write_table
from tests.engines.toy_engine import make_checkpoint


def never(*_):
    raise AssertionError("nothing is loaded here")


@pytest.fixture
def scoring(tmp_path):
    """The arguments of a command that scores with an engine."""
    table = write_table(
        tmp_path / "a.parquet",
        prompt_ids=[[1], [1]],
        response_ids=[[1, 2], [3]],
        rollout_log_probs=[[-1.0, -1.0], [-1.0]],
    )
    model = make_checkpoint(tmp_path / "model")
    toy = Backend(
        name="toy",
        says="Toy: for tests.",
        role="trainer",
        dtypes=("float32",),
        default_dtype="float32",
        load=never,
    )
    with BACKENDS.with_added(toy):
        yield ["score", table, "--policy", "old=toy", "--model", model]


def interrupted_after(parts: int):
    """Replace the engine by one that finishes this number of parts before Ctrl-C."""

    class Engine:
        def __init__(self, job):
            self.folder, self.left = job.folder, parts

        def load(self):
            pass

        def score(self, part, on_tokens):
            if self.left:
                (self.folder / part.name).touch()
                self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

        def close(self):
            pass

    return Engine


def last_line(rcdiag, *arguments) -> str:
    ran = rcdiag(*arguments)
    assert ran.code == 130
    assert "Traceback" not in ran.err
    return ran.err.splitlines()[-1]


def test_finished_parts_are_named(rcdiag, scoring, tmp_path, monkeypatch):
    monkeypatch.setattr("rcdiag.engines.process.EngineProcess", interrupted_after(1))
    output = tmp_path / "scored.parquet"
    line = last_line(rcdiag, *scoring, "-o", output)
    assert line.startswith("interrupted; ")
    assert f"{output}.parts: the same command goes on from them" in line


def test_parts_that_are_not_kept_are_reported_as_lost(rcdiag, scoring, monkeypatch):
    monkeypatch.setattr("rcdiag.engines.process.EngineProcess", interrupted_after(1))
    assert "-o FILE" in last_line(rcdiag, *scoring)


def test_without_a_finished_part_a_rerun_starts_from_scratch(
    rcdiag, scoring, tmp_path, monkeypatch
):
    monkeypatch.setattr("rcdiag.engines.process.EngineProcess", interrupted_after(0))
    line = last_line(rcdiag, *scoring, "-o", tmp_path / "scored.parquet")
    assert line == "interrupted; no part was finished: a rerun starts from scratch"
    assert last_line(rcdiag, *scoring) == "interrupted"
