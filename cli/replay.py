"""`rcdiag replay`: the step that each preset would have taken on a batch, and its health."""

from __future__ import annotations

import typer

from cli import options
from cli import options_model as trained
from cli import options_trainer as corrections
from cli import options_update as updates

EPILOG = """Examples

`rcdiag replay sample_data/stale.parquet --preset decoupled_token_is --preset bypass_ppo_clip`

`rcdiag replay sample_data/stale.parquet --model sample_data/policy/step_8 --html replay.html`"""


def replay(
    context: typer.Context,
    dump: options.DumpArgument,
    rollout: updates.Rollout = "rollout",
    old: updates.Old = "old",
    current: updates.Current = None,
    column: options.Column = None,
    trainer: corrections.TrainerName = None,
    preset: corrections.Preset = None,
    setting: corrections.Setting = None,
    trainer_config: corrections.TrainerConfigFile = None,
    step: updates.Step = None,
    loss: updates.Loss = None,
    loss_setting: updates.LossSetting = None,
    aggregation: updates.AggregationOption = None,
    denominator: updates.DenominatorOption = None,
    constant: updates.Constant = None,
    loss_scale_factor: updates.LossScaleFactor = None,
    advantage: updates.AdvantageOption = None,
    rebaseline: updates.Rebaseline = False,
    clip_low: updates.ClipLow = 0.2,
    clip_high: updates.ClipHigh = 0.2,
    clip_c: updates.ClipC = None,
    dro_beta: updates.DroBeta = None,
    model: options.Model = None,
    precision: trained.Precision = "float32",
    reference: trained.Reference = trained.ReferenceName.seq_is,
    optimizer: trained.Optimizer = trained.OptimizerName.adamw,
    learning_rate: trained.LearningRate = 1e-6,
    weight_decay: trained.WeightDecay = 0.0,
    momentum: trained.Momentum = 0.0,
    max_grad_norm: trained.MaxGradNorm = 1.0,
    epochs: trained.Epochs = 1,
    minibatches: trained.Minibatches = 1,
    steps: trained.Steps = 1,
    split: trained.Split = None,
    lora: trained.Lora = None,
    checkpointing: trained.Checkpointing = False,
    batch_tokens: trained.BatchTokens = None,
    reward: trained.RewardOption = None,
    evaluate: trained.Evaluate = None,
    save: trained.Save = None,
    result: options.ResultAlone = None,
    html: options.HtmlFile = None,
    plots: options.PlotsFolder = None,
    json: options.Json = False,
    fail_on: options.Fail = options.FailOn.never,
    seed: options.Seed = 0,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Replay one update of each preset on recorded log-probs, or, with --model, for real."""
    given = dict(locals())
    from cli.outputs import finish
    from cli.terminal.screen import Screen
    from rcdiag.table.table import open_table
    from rcdiag.usecases.replay.run import Roles
    from rcdiag.usecases.replay.run import replay as measure

    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    table = open_table(dump, options.parse_columns(column))
    plan = corrections.plan(
        trainer, preset, setting, trainer_config, corrections.Arithmetic.float64
    )
    options.check_outputs([result, html, plots, save], force)
    if current is None and "current" in table.policies:
        current = "current"
    roles = Roles(rollout=rollout, old=old, current=current)
    update = updates.update_of(given, table.schema.names, plan.trainer)
    if model is None:
        trained.refuse_without_model(context)
    made = None if model is None else trained.model_of(given, len(plan.corrections))
    names = [roles.rollout] if made else list(dict.fromkeys(roles.names))
    table.require(*(f"{name}_log_probs" for name in names))
    if dry_run:
        screen.say(f"{dump}: would replay {len(plan.corrections)} presets of {plan.trainer.name}")
        return
    if made is None:
        found = measure(table, plan, update, roles=roles, step=step, seed=seed)
    else:
        from rcdiag.usecases.replay.with_model import replay_with_model

        found = replay_with_model(
            table, plan, update, made, roles=roles, step=step, seed=seed, say=screen.say
        )
    finish(found, screen, result=result, html=html, plots=plots, table=None)
    screen.exit(found, fail_on)
