"""A dry run states parts, engines, tokens, time and disk, and the source of the rate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rcdiag
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.parts import write_part
from rcdiag.engines.schedule import ScoredPart
from rcdiag.errors import RcdiagError
from rcdiag.progress import SILENT
from rcdiag.table.stream import decode, read_chunks
from rcdiag.table.trajectories import Scores
from tests.builders import write_table
from tests.engines.engine_here import toy_scoring


@pytest.fixture
def setting(tmp_path, monkeypatch) -> Iterator[dict[str, Any]]:
    """A set-up that scores a small table in three parts."""
    monkeypatch.setattr("rcdiag.engines.scoring.TOKENS_PER_PART", 5)
    with toy_scoring(tmp_path) as given:
        yield given


def test_without_a_rate_the_time_is_unknown(setting, tmp_path):
    text = rcdiag.score.dry_run(**setting, output=tmp_path / "out.parquet")
    assert "15 tokens to run, 9 of them sampled; longest sequence 3; 3 parts" in text
    assert "one engine on this machine" in text
    assert "15 tokens left: the time is unknown until the first part is done" in text
    assert not (tmp_path / "out.parquet").exists()


def test_a_given_rate_gives_the_time(setting):
    text = rcdiag.score.dry_run(**setting, rate=15 / 7200)
    assert "about 2 h 0 min at 0 tokens per second and engine (as " in text
    assert "about 15 s at 1 tokens" in rcdiag.score.dry_run(**setting, rate=1)


def test_the_last_round_of_parts_counts_fully(setting, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    text = rcdiag.score.dry_run(**setting, rate=0.01, devices=2)
    assert "2 engines side by side" in text
    assert "about 17 min at" in text, "two rounds of three parts, 1000 s"


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_an_invalid_rate_is_refused(setting, rate):
    with pytest.raises(RcdiagError, match="not a number of tokens per second"):
        rcdiag.score.dry_run(**setting, rate=rate)


def test_the_rate_comes_from_finished_parts(setting, tmp_path, monkeypatch):
    out = tmp_path / "out.parquet"
    plan = plan_of(setting, out)
    (spec,) = plan.specs
    plan.folder(spec).mkdir(parents=True)
    names = iter(plan.part_names().items())
    name, (first, end) = next(names)
    rows = decode(next(read_chunks(plan.dump, [(first, end)])))
    scores = Scores(np.full(len(rows.response_ids.values), -1.0, np.float32))
    scored = ScoredPart(scores=scores, about={"seconds": 50.0})  # for 5 tokens
    write_part(plan.folder(spec) / name, spec, rows, scored)
    text = rcdiag.score.dry_run(**setting, output=out)
    assert "1 of 3 parts are on disk, 10 tokens left: about 2 min at" in text
    assert "measured in the parts that are on disk" in text


def plan_of(setting: dict[str, Any], out: Path):
    from rcdiag.engines.scoring import plan_scoring

    spec = parse_policy("old=toy", str(setting["model"]))
    return plan_scoring(rcdiag.open_table(setting["source"]), [spec], out, SILENT.say)


def test_the_rate_comes_from_an_earlier_scoring_of_the_table(setting, tmp_path):
    out = tmp_path / "scored.parquet"
    rcdiag.score(**setting, output=out)
    metadata = rcdiag.open_table(out).metadata
    rate = metadata["tokens_per_second"]["old"]
    assert rate > 0
    again = {**setting, "source": out, "policies": {"once_more": "toy"}, "target": "once_more"}
    assert "measured when `old` of this table was scored" in rcdiag.score.dry_run(**again)
    other = {**again, "policies": {"tilted": "toy,tilt=1"}, "target": "tilted"}
    assert "the time is unknown" in rcdiag.score.dry_run(**other), "another policy's rate"


def test_the_stated_disk_space_is_an_upper_bound(setting, tmp_path):
    out = tmp_path / "out.parquet"
    text = rcdiag.score.dry_run(**setting, output=out)
    (said,) = re.findall(r"up to (\d+) (k?)B, and beside it", text)
    rcdiag.score(**setting, output=out)
    bytes_said = int(said[0]) * (1000 if said[1] else 1)
    assert bytes_said >= 9 * 4 + setting["source"].stat().st_size - 500
    assert "are free there" in text


@pytest.mark.parametrize("command", [rcdiag.score, rcdiag.compare, rcdiag.sweep])
def test_recorded_columns_need_only_a_pass(tmp_path, command):
    table = write_table(
        tmp_path / "table.parquet",
        response_ids=[[1, 2], [3]],
        rollout_log_probs=[[-1.0, -1.0], [-1.0]],
        old_log_probs=[[-1.0, -1.0], [-1.5]],
    )
    assert "3 response tokens, in this process" in command.dry_run(table)
