"""Replays with a model, from short descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rcdiag.engines.notation import parse_policy
from rcdiag.learning.learner import Parts
from rcdiag.learning.trainee import Trainee
from rcdiag.learning.training_settings import SketchSettings
from rcdiag.results import ReplayResult
from rcdiag.table.opening import open_table
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.training import Training
from rcdiag.usecases.replay.update_batch import ReplayBatch, Roles, read_batch
from rcdiag.usecases.replay.with_model import replay_with_model
from tests.usecases.replay.builders import plan_of, update_of

PRESETS = ("decoupled_token_is", "bypass_ppo_clip", "bypass_pg_is")


def plan_for(*names: str) -> Plan:
    """Make a plan of some presets of verl 0.9."""
    presets = plan_of().configs
    return plan_of(**{name: presets[name] for name in names or PRESETS})


def training_of(name: str = "sgd", rate: float = 0.1, **given: Any) -> dict[str, Any]:
    """Make training options; by default gradients are not clipped."""
    return {"optimizer": name, "lr": rate, "max_grad_norm": 0.0, **given}


def model_of(folder: Path, training: dict[str, Any] | None = None, **given: Any) -> Training:
    sketch = SketchSettings(probes=4, dims=256)
    return Training(model=str(folder), sketch=sketch, **(training or training_of()), **given)


def replay_model_of(
    table: Path,
    training: Training,
    *names: str,
    plan: Plan | None = None,
    update: dict[str, Any] | None = None,
    **options: Any,
) -> ReplayResult:
    """Replay with a model, by preset names or a plan."""
    chosen = update_of(plan=plan or plan_for(*names), **(update or {}))
    return replay_with_model(open_table(table), chosen, training, roles=Roles(), **options)


def trainee_of(folder: Path) -> Trainee:
    return Trainee.load(parse_policy("model=hf:float32", str(folder)))


def loaded(table: Path) -> tuple[Parts, ReplayBatch]:
    """Return rows and batch; old and current log-probs are valid only after `scored`."""
    batch = read_batch(open_table(table), Roles(old="rollout"), None, "column", prompts=True)
    return batch.parts, batch
