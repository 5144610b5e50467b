"""The pages under test, each with the function that makes its result.

A result is made once for all tests of a process; none of them changes it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from rcdiag.engines.tokenizer import decoder
from rcdiag.losses.settings import LossSettings
from rcdiag.results import CompareResult, Result, ScoreResult, SweepResult, from_json
from rcdiag.table.opening import open_table
from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import Plan, plan_corrections, preset_configs
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.replay.run import replay
from rcdiag.usecases.replay.update import TrainerUpdate
from rcdiag.usecases.replay.update_batch import Roles
from rcdiag.usecases.score import score
from rcdiag.usecases.sweep.run import sweep
from tests.pages.hostile import hostile_compare, hostile_score
from tests.results.stored import stored
from tests.usecases.replay.with_model import model_of, replay_model_of, training_of

SAMPLES = Path(__file__).parents[2] / "sample_data"


@cache
def every_preset() -> Plan:
    verl = find_trainer("verl")
    return plan_corrections(verl, preset_configs(verl, [], {}))


@cache
def scored(name: str, *, text: bool = False) -> ScoreResult:
    decode = decoder(str(SAMPLES / "policy" / "step_8")) if text else None
    return score(open_table(SAMPLES / name), decode=decode, plan=every_preset())


@cache
def compared(name: str) -> CompareResult:
    return compare(open_table(SAMPLES / name))


@cache
def swept_all(name: str, thresholds: int | None = None) -> SweepResult:
    table = open_table(SAMPLES / name)
    return sweep(table) if thresholds is None else sweep(table, thresholds=thresholds)


# One of each kind: one bound, two, a band, a veto, two thresholds together.
FEW_FAMILIES = (
    *("token_tis", "seq_tis", "token_icepop", "geo_rs", "veto"),
    *("geo_rs_token_tis", "k3_rs_seq_tis"),
)


@cache
def swept() -> SweepResult:
    """A sweep with few families and rows, since axe checks every cell, which is slow."""
    result = swept_all("rollouts.parquet", 12)
    few = {name: family for name, family in result.families.items() if name in FEW_FAMILIES}
    assert len(few) == len(FEW_FAMILIES)
    return replace(result, families=few)


@cache
def replayed(name: str = "stale.parquet") -> Result:
    update = TrainerUpdate(
        plan=every_preset(), loss="vanilla", settings=LossSettings(), advantage="column"
    )
    return replay(open_table(SAMPLES / name), update, roles=Roles())


@cache
def replayed_with_model() -> Result:
    """The stored result of all presets on `stale.parquet`; computing it takes a minute."""
    return from_json(stored("replay"), "replay")


@cache
def replayed_over_steps() -> Result:
    """A replay of short responses over two steps, with one batch split in two."""
    table = pl.read_parquet(SAMPLES / "rollouts.parquet").filter(
        pl.col("step").is_in([6, 7]), pl.col("response_ids").list.len() < 80
    )
    some = table.group_by("step", maintain_order=True).head(16)
    training = training_of("adamw", 1e-4, split=2)
    model = model_of(SAMPLES / "policy" / "step_8", training, steps=2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.parquet"
        some.write_parquet(path)
        return replay_model_of(path, model, "decoupled_token_is", "bypass_ppo_clip")


@cache
def whole() -> list[Result]:
    """All results of one dump, as `rcdiag report` combines them on one page."""
    name = "stale.parquet"
    return [scored(name), swept_all(name, 12), compared(name), replayed()]


@cache
def diagnosed() -> Result:
    """The stored result of all experiments on `stale.parquet`."""
    return from_json(stored("diagnose"), "diagnose")


MAKERS: dict[str, Callable[[], Result | list[Result]]] = {
    "whole": whole,
    "score": lambda: scored("rollouts.parquet"),
    "score-turns": lambda: scored("multi_turn.parquet", text=True),
    "score-temperature": lambda: scored("temperature.parquet"),
    "compare": lambda: compared("rollouts.parquet"),
    "sweep": swept,
    "replay": replayed,
    "replay-model": replayed_with_model,
    "replay-steps": replayed_over_steps,
    "diagnose": diagnosed,
    "hostile-score": cache(hostile_score),
    "hostile-compare": cache(hostile_compare),
}

# All pages as test parameters. `make test` opens the first of them, which has a part of each
# command; `make nightly` those with parts that the first lacks, `make weekly` all of them.
FIRST, *OTHERS = MAKERS
NIGHTLY = ("score-turns", "replay-model", "diagnose", "hostile-score")
PAGES = [
    FIRST,
    *(
        pytest.param(name, marks=pytest.mark.slow if name in NIGHTLY else pytest.mark.weekly)
        for name in OTHERS
    ),
]
