"""The pages under test, each with the function that makes its result: to add one, one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rcdiag.backends.text import decoder
from rcdiag.compare import compare
from rcdiag.corrections.plan import Plan, plan_corrections, preset_configs
from rcdiag.corrections.trainers import find_trainer
from rcdiag.dumps import open_dump
from rcdiag.losses.settings import LossSettings
from rcdiag.replay import Roles, replay
from rcdiag.replaying.evaluate import Update
from rcdiag.results import Result, from_json
from rcdiag.score import score
from rcdiag.sweep import sweep
from tests.pages.hostile import hostile_compare, hostile_score

SAMPLES = Path(__file__).parents[2] / "sample_data"


def every_preset() -> Plan:
    verl = find_trainer("verl")
    return plan_corrections(verl, preset_configs(verl, [], {}))


def scored(name: str, *, text: bool = False) -> Result:
    decode = decoder(str(SAMPLES / "policy" / "step_8")) if text else None
    return score(open_dump(SAMPLES / name), decode=decode, plan=every_preset())


def swept(thresholds: int = 60) -> Result:
    return sweep(open_dump(SAMPLES / "rollouts.parquet"), thresholds=thresholds)


def replayed() -> Result:
    update = Update(loss="vanilla", settings=LossSettings(), advantage="column")
    return replay(open_dump(SAMPLES / "stale.parquet"), every_preset(), update, roles=Roles())


def replayed_with_model() -> Result:
    """As it is in `reports/`: making it anew would take minutes."""
    path = SAMPLES.parent / "reports" / "replay_stale.json"
    return from_json(path.read_text(), str(path))


MAKERS: dict[str, Callable[[], Result]] = {
    "score": lambda: scored("rollouts.parquet"),
    "score-turns": lambda: scored("multi_turn.parquet", text=True),
    "score-temperature": lambda: scored("temperature.parquet"),
    "compare": lambda: compare(open_dump(SAMPLES / "rollouts.parquet")),
    "sweep": lambda: swept(12),  # few rows: axe looks at every cell, and that takes its time
    "replay": replayed,
    "replay-model": replayed_with_model,
    "hostile-score": hostile_score,
    "hostile-compare": hostile_compare,
}
