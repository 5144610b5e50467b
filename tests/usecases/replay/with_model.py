"""Replays with a model, from short descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rcdiag.engines.spec import parse_policy
from rcdiag.learning.learner import Parts, Training
from rcdiag.learning.settings import OptimizerSettings, SketchSettings
from rcdiag.learning.trainee import Trainee
from rcdiag.results import ReplayResult
from rcdiag.table.table import open_table
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.batch import ReplayBatch, replay_batch
from rcdiag.usecases.replay.run import Roles, read_step
from rcdiag.usecases.replay.with_model import Model, replay_with_model
from tests.usecases.replay.builders import plan_of, update_of

PRESETS = ("decoupled_token_is", "bypass_ppo_clip", "bypass_pg_is")


def plan_for(*names: str) -> Plan:
    """Some presets of verl 0.9."""
    presets = plan_of().configs
    return plan_of(**{name: presets[name] for name in names or PRESETS})


def training_of(name: str = "sgd", rate: float = 0.1, **given: Any) -> Training:
    of_optimizer = ("momentum", "weight_decay", "max_grad_norm")
    options = {key: given.pop(key) for key in of_optimizer if key in given}
    optimizer = OptimizerSettings(name=name, learning_rate=rate, **options)
    sketch = SketchSettings(probes=4, dims=256)
    return Training(optimizer=optimizer, learning_rate=rate, sketch=sketch, **given)


def model_of(folder: Path, training: Training | None = None, **given: Any) -> Model:
    spec = parse_policy("model=hf:float32", str(folder))
    return Model(spec=spec, training=training or training_of(), **given)


def replay_model_of(
    table: Path,
    model: Model,
    *names: str,
    plan: Plan | None = None,
    update: dict[str, Any] | None = None,
    **options: Any,
) -> ReplayResult:
    """Presets by name, or a plan."""
    chosen, which = update_of(**(update or {})), plan or plan_for(*names)
    return replay_with_model(open_table(table), which, chosen, model, roles=Roles(), **options)


def trainee_of(folder: Path) -> Trainee:
    return Trainee.load(parse_policy("model=hf:float32", str(folder)))


def loaded(table: Path) -> tuple[Parts, ReplayBatch]:
    """Rows and batch; old and current stand for themselves only after `scored`."""
    parts, _, _ = read_step(open_table(table), Roles(old="rollout"), None, prompts=True)
    batch = replay_batch(parts, ("rollout", "rollout", "rollout"), "column")
    return [part.trajectories for part in parts], batch
