"""`rcdiag.replay`: the step that each preset would have taken on a batch, and its health."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rcdiag.api.usecase import Steps, usecase
from rcdiag.errors import RcdiagError, setting
from rcdiag.files import check_outputs
from rcdiag.results import ReplayResult
from rcdiag.usecases.chosen_pair import BEHAVIOR, TARGET, refuse_one
from rcdiag.usecases.plans import Settings, plan_of
from rcdiag.usecases.progress import SILENT, Progress
from rcdiag.usecases.replay.training import Training
from rcdiag.usecases.replay.update import LossSettingValues, chosen_update
from rcdiag.usecases.replay.update_batch import Roles
from rcdiag.usecases.tables import Source, drawn_of_step, name_of, open_table


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
    denominator: str | None = None,
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
    reference: str = "seq_is",
    optimizer: str = "adamw",
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
    """Replay one update of each preset on recorded log-probs, or with `model` for real.

    Args:
        source: a dump in any format that rcdiag knows (file, directory, glob, URL), a list of them,
            an open `Table`, or a data frame, Arrow table or mapping of columns in memory. Dumps of
            one run that complete each other are joined.
        rollout: the policy that sampled the tokens.
        old: the trainer's policy before the update.
        current: the policy that is being updated; `current` where the table has it, else the old.
        columns: name that rcdiag knows -> name in the files.
        format: the dump's format, where it cannot be told from its files.
        given: what the dump lacks and you know, for all rows: `{"temperature": 0.7}`.
        trainer: whose definitions and names the corrections have; the newest verl by default.
        presets: presets of the trainer to replay; all by default.
        settings: changes to presets: `{"decoupled_token_is": {"rollout_is_threshold": 3}}`.
        trainer_config: the trainer's own configuration file, in place of presets. The policy loss,
            its bounds and its aggregation are those of the file too, where it has them; what is
            given beside it counts more.
        step: which step of the table is replayed; the last by default.
        loss: policy loss in decoupled mode; the first of the trainer by default, PPO.
        loss_settings: settings that the loss reads: `{"tau_pos": 2}`.
        aggregation: how per-token losses become one number; the trainer's own by default.
        denominator: `kept`, `all` or `constant`: what the loss is divided by.
        constant: the number of tokens or sequences that the denominator `constant` stands for.
        loss_scale_factor: divisor of `seq-mean-token-sum-norm`; the longest response by default.
        advantage: `grpo`, `rloo`, `reinforce++` or `column`; the column where there is one, else
            `grpo`.
        rebaseline: compute advantages anew, without the rejected rows.
        clip_low: PPO clips ratios below 1 - this; the trainer's by default, 0.2 for most.
        clip_high: PPO clips ratios above 1 + this; the trainer's by default, 0.2 for most.
        clip_c: bound of the dual clip for negative advantages; the trainer's by default.
        dro_beta: beta of the loss `dro`.
        model: checkpoint folder of the model that takes the step.
        precision: dtype of that model, with options as a policy has them: `float32,autocast=...`.
        reference: gradient to compare with: `seq_is` (unbiased), `fresh` (samples) or `none`.
        optimizer: `adamw` or `sgd`.
        lr: learning rate.
        weight_decay: weight decay of the optimizer.
        momentum: momentum of `sgd`.
        max_grad_norm: longer gradients are scaled down to this norm; 0 never scales.
        epochs: passes over the batch.
        minibatches: optimizer steps of a pass.
        steps: number of steps of the table that the update goes on over.
        split: also replay the batch in this number of mini-batches, beside one step.
        lora: rank of low-rank adapters, for models that do not fit.
        checkpointing: recompute activations, which takes less memory and more time.
        batch_tokens: tokens of a micro-batch.
        reward: function(prompt, response, row) -> number for fresh samples, or `FILE.py:FUNCTION`.
        evaluate: number of fresh samples whose reward is measured before and after the step.
        save: folder for the updated model; needs exactly one preset.
        rows: about how many rows of the step to replay, for a first look: whole prompt groups are
            drawn. Only with one step of the table.
        seed: seed of everything that is drawn.
        force: overwrite `save`.
        progress: listener for what happens meanwhile.
    """
    if rows is not None and steps > 1:
        raise RcdiagError(
            f"{setting('rows', rows)}: rows of one step are drawn, but {setting('steps', steps)}",
            hint="leave one of them away",
        )
    policies = (rollout, old, current or old) if model is None else (rollout,)
    needed = [f"{name}_log_probs" for name in dict.fromkeys(policies)]
    plan = plan_of(
        trainer=trainer, presets=presets, settings=settings, trainer_config=trainer_config
    )
    check_outputs([None if save is None else Path(save)], force=force)
    table = drawn_of_step(
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
        refuse_one(table, name_of(source), "replay")
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
    yield f"{name_of(source)}: would replay {len(plan.corrections)} presets of {plan.trainer.name}"
    if training is None:
        from rcdiag.usecases.replay.run import replay as measure

        return measure(table, update, roles=roles, step=step, seed=seed)
    from rcdiag.usecases.replay.with_model import replay_with_model

    say = (progress or SILENT).say
    return replay_with_model(table, update, training, roles=roles, step=step, say=say)
