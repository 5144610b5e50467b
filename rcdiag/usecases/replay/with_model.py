"""Use case `replay` with a model: a real update of every preset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rcdiag.engines.checkpoint import check_checkpoint, limits
from rcdiag.engines.hf.model import device_name
from rcdiag.engines.tokenizer import decoder
from rcdiag.errors import RcdiagError, setting
from rcdiag.learning.memory_estimate import TrainingPlan, check_memory
from rcdiag.learning.policy import check_free
from rcdiag.learning.trainee import Trainee
from rcdiag.results import ReplayResult, ReplayStep
from rcdiag.table.survey import check_limits, known_steps, read_rows
from rcdiag.table.table import Table
from rcdiag.usecases.diagnosed import diagnosis_of_table
from rcdiag.usecases.replay.factors import factors
from rcdiag.usecases.replay.fresh_samples import Prompts, prompts_of, sampler
from rcdiag.usecases.replay.model_run import over_steps, replay_presets
from rcdiag.usecases.replay.real_updates import ModelReplay, train
from rcdiag.usecases.replay.run import replay_result
from rcdiag.usecases.replay.training import Training
from rcdiag.usecases.replay.update import TrainerUpdate
from rcdiag.usecases.replay.update_batch import ReplayBatch, Roles, read_batch

Progress = Callable[[str], None]


def replay_with_model(
    dump: Table,
    update: TrainerUpdate,
    training: Training,
    *,
    roles: Roles,
    step: int | None = None,
    say: Progress = lambda text: None,
) -> ReplayResult:
    """Replay like `replay`, but with log-probs, gradients and steps of a real model."""
    dump.require("prompt_ids")
    first = _first_step(dump, step, training.steps)
    # The model computes old and current log-probs itself.
    recorded = Roles(rollout=roles.rollout, old=roles.rollout)
    batch = read_batch(dump, recorded, first, update.advantage, prompts=True)
    prompts = _checked(dump, batch, update, training)
    decode = None if prompts is None else decoder(training.spec.model)
    say(f"loading {training.model}")
    trainee = Trainee.load(
        training.spec,
        lora=training.lora_settings,
        checkpointing=training.checkpointing,
        batch_tokens=training.batch_tokens,
    )
    say(f"gradients of {len(update.names)} updates on {batch.num_tokens:,} tokens")
    samples = None
    if prompts is not None and decode is not None:
        assert callable(training.reward)
        samples = sampler(trainee, prompts, training.reward, decode)
    replay = ModelReplay(learner=trainee, update=update, training=training, batch=batch).scored()
    ratios = factors(replay.batch)
    presets, paired, backwards = replay_presets(replay, ratios, samples)
    counts = {"backwards": backwards, "updates": len(presets)}
    result = replay_result(
        dump,
        update,
        replay.batch,
        presets,
        ratios,
        training.seed,
        device_name(trainee.policy.device),
        diagnosis=diagnosis_of_table(dump),
        rollout=roles.rollout,
        old="computed",
        current="computed",
        model=training.to_dict() | counts,
        paired=paired,
        steps=_over_steps(replay, dump, recorded, say),
    )
    if training.save is not None:
        if training.steps == 1:  # several steps leave the model after the only preset's update
            (name,) = update.plan.corrections
            trainee.restore()
            train(replay, name)
        trainee.save(training.save)
    return result


def _first_step(dump: Table, step: int | None, count: int) -> int | None:
    """Return the first step to replay: `step`, or the first of the table's last `count` steps."""
    if count == 1:
        return step
    steps = [number for number in known_steps(dump) if step is None or number >= step]
    if len(steps) < count:
        raise RcdiagError(
            f"{setting('steps', count)}: the table has only {len(steps)} steps to replay",
            hint=setting("steps", len(steps)),
        )
    return steps[-count] if step is None else step


def _checked(
    dump: Table, batch: ReplayBatch, update: TrainerUpdate, training: Training
) -> Prompts | None:
    """Check rows, rewards, output and memory before loading; return the prompts to sample from."""
    limit = limits(training.spec.model, check_checkpoint(training.spec.model))
    for part in batch.parts:
        check_limits(part, limit, partial(_where, dump, part.row.tolist()))
    prompts = None  # needed for fresh samples alone
    if training.reference == "fresh" or training.evaluate:
        if training.reward is None:
            raise RcdiagError(
                "fresh samples need a reward function",
                hint=f"{setting('reward', 'FILE.py:FUNCTION')}, taking (prompt, response, row)",
            )
        prompts = prompts_of(batch.parts, partial(read_rows, dump))
    if training.save is not None:
        check_free(training.save)
    updates = len(update.names)
    check_memory(
        TrainingPlan(
            spec=training.spec,
            presets=updates + 2,
            copies=updates if training.steps > 1 else 0,
            optimizer=training.optimizer,
            lora=training.lora_settings,
            checkpointing=training.checkpointing,
            batch_tokens=training.batch_tokens,
        ),
        batch.parts,
    )
    return prompts


def _where(dump: Table, numbers: Sequence[int], row: int) -> str:
    return dump.where(numbers[row])


def _over_steps(replay: ModelReplay, dump: Table, roles: Roles, say: Progress) -> list[ReplayStep]:
    """Replay `training.steps` steps of the table, beginning with the batch's step."""
    count, first = replay.training.steps, replay.batch.step
    if count == 1 or first is None:
        return []

    def batches() -> Iterator[ReplayBatch]:
        for number in [number for number in known_steps(dump) if number >= first][:count]:
            yield read_batch(dump, roles, number, replay.update.advantage, prompts=True)

    return over_steps(replay, batches(), say)
