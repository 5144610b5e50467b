"""Use case `replay` with a model: a real update of every preset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rcdiag.engines.checkpoint import check_checkpoint, limits
from rcdiag.engines.spec import PolicySpec
from rcdiag.engines.tokenizer import decoder
from rcdiag.errors import RcdiagError
from rcdiag.learning.learner import Parts, Sampler, Training
from rcdiag.learning.memory import TrainingPlan, check_memory
from rcdiag.learning.policy import check_free
from rcdiag.learning.settings import LoraSettings
from rcdiag.learning.trainee import Trainee
from rcdiag.results import ReplayResult, ReplayStep
from rcdiag.table.columns import known_steps, read_rows
from rcdiag.table.survey import check_limits
from rcdiag.table.table import Table
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.batch import ReplayBatch, replay_batch
from rcdiag.usecases.replay.factors import factors
from rcdiag.usecases.replay.fresh_samples import Prompts, Reward, prompts_of, sampler
from rcdiag.usecases.replay.model_run import ModelRun, run_on_model
from rcdiag.usecases.replay.preset import Update, preset_replay
from rcdiag.usecases.replay.run import Roles, read_step, result_of, with_findings
from rcdiag.usecases.replay.several_steps import over_steps
from rcdiag.usecases.replay.updates import ModelReplay, train

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The model that is updated, and how."""

    spec: PolicySpec
    training: Training
    lora: LoraSettings | None = None
    checkpointing: bool = False
    batch_tokens: int | None = None
    reward: Reward | None = None
    steps: int = 1
    save: Path | None = None


def replay_with_model(
    dump: Table,
    plan: Plan,
    update: Update,
    model: Model,
    *,
    roles: Roles,
    step: int | None = None,
    seed: int = 0,
    say: Progress = lambda text: None,
) -> ReplayResult:
    """As `replay`, with old and current log-probs, gradients and steps of a real model."""
    dump.require("prompt_ids")
    rollout_only = replace(roles, old=roles.rollout, current=None)
    first = _first_step(dump, step, model.steps)
    chosen, number, non_finite = read_step(dump, rollout_only, first, prompts=True)
    parts = [part.trajectories for part in chosen]
    _check_limits(model, parts, dump)
    prompts = _prompts(dump, parts, model)
    if model.save is not None:
        check_free(model.save)
    presets = len(plan.corrections) + 3
    check_memory(
        TrainingPlan(
            spec=model.spec,
            presets=presets,
            copies=presets - 2 if model.steps > 1 else 0,
            optimizer=model.training.optimizer.name,
            lora=model.lora,
            checkpointing=model.checkpointing,
            batch_tokens=model.batch_tokens,
        ),
        parts,
    )
    batch = replace(replay_batch(chosen, rollout_only.names, update.advantage), step=number)
    say(f"loading {model.spec.model}")
    trainee = Trainee.load(
        model.spec,
        lora=model.lora,
        checkpointing=model.checkpointing,
        batch_tokens=model.batch_tokens,
    )
    say(f"gradients of {presets - 2} updates on {batch.num_tokens:,} tokens")
    samples = _sampler(trainee, prompts, model)
    run = ModelReplay(
        learner=trainee,
        plan=plan,
        update=update,
        training=model.training,
        parts=parts,
        batch=batch,
    )
    done = run_on_model(run, samples)
    found = factors(done.batch, seed)
    replays = {
        name: preset_replay(
            plan,
            name,
            each,
            found,
            gradient=done.gradients[name],
            after_step=done.after[name],
            split=done.splits.get(name),
        )
        for name, each in done.presets.items()
    }
    result = result_of(dump, plan, update, roles, done.batch, replays, found, seed)
    result = replace(
        result,
        old="computed",
        current="computed",
        model=_about(model, done),
        steps=_over_steps(run, dump, model, rollout_only, number, say),
    )
    if model.save is not None:
        _save(replace(run, batch=done.batch), trainee, model)
    return with_findings(result, plan, non_finite)


def _first_step(dump: Table, step: int | None, count: int) -> int | None:
    """Where there are several steps to go, the first of the last so many."""
    if count == 1:
        return step
    known = [each for each in known_steps(dump) if step is None or each >= step]
    if len(known) < count:
        raise RcdiagError(
            f"--steps {count}: the table has {len(known)} steps to go", hint=f"--steps {len(known)}"
        )
    return known[-count] if step is None else step


def _check_limits(model: Model, parts: Parts, dump: Table) -> None:
    limit = limits(model.spec.model, check_checkpoint(model.spec.model))
    for part in parts:
        check_limits(part, limit, partial(_where, dump, part.first_row))


def _where(dump: Table, first: int, row: int) -> str:
    return dump.where(first + row)


def _prompts(dump: Table, parts: Parts, model: Model) -> Prompts | None:
    """What fresh samples answer, where there are any; before anything is loaded."""
    if model.training.reference != "fresh" and not model.training.evaluate:
        return None
    if model.reward is None:
        raise RcdiagError(
            "fresh samples need a reward function",
            hint="--reward FILE.py:FUNCTION, taking (prompt, response, row)",
        )
    return prompts_of(parts, lambda rows: read_rows(dump, rows))


def _sampler(trainee: Trainee, prompts: Prompts | None, model: Model) -> Sampler | None:
    if prompts is None or model.reward is None:
        return None
    return sampler(trainee, prompts, model.reward, decoder(model.spec.model))


def _about(model: Model, done: ModelRun) -> dict[str, Any]:
    training = model.training
    return {
        "model": model.spec.model,
        "dtype": model.spec.dtype,
        "options": model.spec.options,
        "lora_rank": None if model.lora is None else model.lora.rank,
        "checkpointing": model.checkpointing,
        "reference": training.reference,
        "epochs": training.epochs,
        "minibatches": training.minibatches,
        "backwards": done.backwards,
        "updates": len(done.presets),
        **training.about,
    }


def _save(run: ModelReplay, trainee: Trainee, model: Model) -> None:
    """Save the model after the update of its one preset, which several steps have left there."""
    assert model.save is not None
    (name,) = run.plan.corrections
    if model.steps == 1:
        trainee.restore()
        train(run, name)
    trainee.save(model.save)


def _over_steps(
    run: ModelReplay, dump: Table, model: Model, roles: Roles, first: int | None, say: Progress
) -> list[ReplayStep]:
    """Go on over `model.steps` steps of the table, from step `first`."""
    if model.steps == 1 or first is None:
        return []

    def batches() -> Iterator[tuple[Parts, ReplayBatch]]:
        for number in [each for each in known_steps(dump) if each >= first][: model.steps]:
            chosen, _, _ = read_step(dump, roles, number, prompts=True)
            batch = replay_batch(chosen, roles.names, run.update.advantage)
            yield [part.trajectories for part in chosen], replace(batch, step=number)

    return over_steps(run, batches(), say)
