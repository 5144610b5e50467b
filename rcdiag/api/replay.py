"""`rcdiag.replay`: the step that each preset would have taken on a batch, with its health."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rcdiag.api.usecase import Steps, usecase
from rcdiag.errors import RcdiagError, setting
from rcdiag.files import check_outputs
from rcdiag.progress import SILENT, Progress
from rcdiag.results import ReplayResult
from rcdiag.table.drawn_rows import draw_rows_of_step
from rcdiag.table.opening import Source, open_table
from rcdiag.usecases.chosen_pair import BEHAVIOR, TARGET, refuse_one
from rcdiag.usecases.plans import Settings, plan_of
from rcdiag.usecases.replay.training import Training
from rcdiag.usecases.replay.update import LossSettingValues, chosen_update
from rcdiag.usecases.replay.update_batch import Roles


@usecase
def replay(
    source: Source,
    *,
    rollout: str = "rollout",
    old: str = "old",
    current: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    given: Mapping[str, Any] | None = None,
    trainer: str | None = None,
    presets: str | Sequence[str] = (),
    settings: Settings | None = None,
    trainer_config: str | Path | None = None,
    step: int | None = None,
    loss: str | None = None,
    loss_settings: LossSettingValues = (),
    aggregation: str | None = None,
    denominator: Literal["kept", "all", "constant"] | None = None,
    constant: float | None = None,
    loss_scale_factor: float | None = None,
    advantage: str | None = None,
    rebaseline: bool = False,
    clip_low: float | None = None,
    clip_high: float | None = None,
    clip_c: float | None = None,
    dro_beta: float | None = None,
    model: str | Path | None = None,
    precision: str = "float32",
    reference: Literal["seq_is", "fresh", "none"] = "seq_is",
    optimizer: Literal["adamw", "sgd"] = "adamw",
    lr: float = 1e-6,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    max_grad_norm: float = 1.0,
    epochs: int = 1,
    minibatches: int = 1,
    steps: int = 1,
    split: int | None = None,
    lora: int | None = None,
    checkpointing: bool = False,
    batch_tokens: int | None = None,
    reward: str | Callable[[str, str, dict[str, Any]], float] | None = None,
    evaluate: int | None = None,
    save: str | Path | None = None,
    rows: int | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Progress | None = None,
) -> Steps[ReplayResult]:
    """Replay one update of each preset on recorded log-probs, or, with a model, for real.

    Args:
        source: a trainer's dump or a parquet table: file, folder, glob or URL; several of one run
            are joined. In Python also an open `Table`, a data frame, an Arrow table, or a mapping
            of columns.
        rollout: policy that sampled.
        old: the trainer's policy before the update.
        current: policy being updated; by default the recorded one of that name, else the old.
        columns: names of columns in the files, by the names that rcdiag knows; an empty one reads
            none.
        format: format of the dump, where its files do not show it.
        given: facts that the dump lacks, for all rows. `{"temperature": 0.7, "group_size": 8}`
        trainer: trainer whose presets and losses are replayed. The newest verl by default.
        presets: presets of the trainer to replay; all by default.
        settings: changed settings of presets. `{"decoupled_token_is": {"rollout_is_threshold": 3}}`
        trainer_config: the trainer's own configuration instead of presets: YAML, TOML, JSON or a
            launch script. The policy loss, its bounds and its aggregation are taken from the file
            too, unless they are given as options.
        step: step of the table to replay; the last by default.
        loss: policy loss in decoupled mode; by default the trainer's first, PPO.
        loss_settings: any setting that the loss reads; `rcdiag explain LOSS` lists them.
            `{"tau_pos": 2}`
        aggregation: how losses of tokens become one number: token-mean, token-sum,
            seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm or
            prompt-mean-token-mean; by default as the trainer does.
        denominator: what the loss is divided by: kept tokens, all, or a constant; by default
            as in the trainer's loss function.
        constant: number of a constant denominator, for each optimizer step: tokens (token-mean) or
            sequences (seq-mean-...).
        loss_scale_factor: divisor of seq-mean-token-sum-norm; by default the longest response.
        advantage: where advantages come from: `column`, `grpo`, `rloo` or `reinforce++`; by default
            the column, else grpo.
        rebaseline: recompute advantages without the rejected rows.
        clip_low: PPO clips below 1 - this; by default the trainer's, 0.2 for most.
        clip_high: PPO clips above 1 + this; by default the trainer's, 0.2 for most.
        clip_c: dual clip for negative advantages; by default the trainer's.
        dro_beta: beta of the loss dro.
        model: checkpoint folder or hub id of the model that takes the step.
        precision: dtype of that model, with options as for a policy.
        reference: gradient to compare with: unbiased sequence IS, or fresh samples (`reward`).
        optimizer: optimizer that takes the step.
        lr: learning rate.
        weight_decay: weight decay of the optimizer.
        momentum: momentum of sgd.
        max_grad_norm: norm to which longer gradients are scaled down; 0 switches clipping off.
        epochs: passes over the batch.
        minibatches: optimizer steps of a pass.
        steps: number of table steps to update over.
        split: also replay the batch in this number of mini-batches, 2 or more.
        lora: rank of LoRA adapters to train instead of the weights, for models that do not fit.
        checkpointing: recompute activations: less memory, more time.
        batch_tokens: tokens of a micro-batch.
        reward: reward of fresh samples: function(prompt, response, row) -> number.
        evaluate: measure the reward of this number of fresh samples before and after; needs
            `reward`.
        save: folder for the updated model; needs exactly one preset.
        rows: about how many rows of the step to replay, in whole prompt groups. Only with one step.
        seed: seed of everything that is drawn at random.
        force: overwrite outputs.
        progress: listener for progress.
    """
    if rows is not None and steps > 1:
        raise RcdiagError(
            f"{setting('rows', rows)}: rows of one step are drawn, but {setting('steps', steps)}",
            hint="leave out one of them",
        )
    policies = (rollout, old, current or old) if model is None else (rollout,)
    needed = [f"{name}_log_probs" for name in dict.fromkeys(policies)]
    plan = plan_of(
        trainer=trainer, presets=presets, settings=settings, trainer_config=trainer_config
    )
    check_outputs([], folder=None if save is None else Path(save), force=force)
    table = draw_rows_of_step(
        open_table(
            source,
            columns=columns,
            needed=needed,
            format=format,
            given=given,
            progress=progress,
        ),
        rows,
        seed,
        step,
    )
    if model is None and (rollout, old) == (BEHAVIOR, TARGET):
        refuse_one(table, "replay")
    if current is None and "current" in table.policies:
        current = "current"
    roles = Roles(rollout=rollout, old=old, current=current)
    update = chosen_update(
        plan,
        table.columns,
        loss=loss,
        loss_settings=loss_settings,
        aggregation=aggregation,
        denominator=denominator,
        constant=constant,
        loss_scale_factor=loss_scale_factor,
        advantage=advantage,
        rebaseline=rebaseline,
        clip_low=clip_low,
        clip_high=clip_high,
        clip_c=clip_c,
        dro_beta=dro_beta,
    )
    training = Training(
        model=None if model is None else str(model),
        seed=seed,
        precision=precision,
        reference=reference,
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        momentum=momentum,
        max_grad_norm=max_grad_norm,
        epochs=epochs,
        minibatches=minibatches,
        steps=steps,
        split=split,
        lora=lora,
        checkpointing=checkpointing,
        batch_tokens=batch_tokens,
        reward=reward,
        evaluate=evaluate,
        save=None if save is None else Path(save),
    ).checked(presets=len(plan.corrections))
    read = roles.names if training is None else (roles.rollout,)
    table.require(*(f"{name}_log_probs" for name in dict.fromkeys(read)))
    yield f"{table.title}: would replay {len(plan.corrections)} presets of {plan.trainer.name}"
    if training is None:
        from rcdiag.usecases.replay.run import replay as measure

        return measure(table, update, roles=roles, step=step, seed=seed)
    from rcdiag.usecases.replay.with_model import replay_with_model

    say = (progress or SILENT).say
    return replay_with_model(table, update, training, roles=roles, step=step, say=say)
