"""`rcdiag replay`: the step that each preset would have taken on a batch, and its health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli import corrections, options, updates
from cli.reward import load_reward

if TYPE_CHECKING:
    from rcdiag.replay_model import Model
    from rcdiag.replaying.evaluate import Update

EPILOG = """Examples

`rcdiag replay sample_data/stale.parquet --preset decoupled_token_is --preset bypass_ppo_clip`

`rcdiag replay sample_data/stale.parquet --model sample_data/policy/step_8 --html replay.html`"""


def replay(
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
    loss: updates.Loss = "vanilla",
    aggregation: updates.AggregationOption = None,
    denominator: updates.DenominatorOption = None,
    advantage: updates.AdvantageOption = None,
    rebaseline: updates.Rebaseline = False,
    clip_low: updates.ClipLow = 0.2,
    clip_high: updates.ClipHigh = 0.2,
    clip_c: updates.ClipC = None,
    dro_beta: updates.DroBeta = None,
    model: options.Model = None,
    precision: updates.Precision = "float32",
    reference: updates.Reference = updates.ReferenceName.seq_is,
    optimizer: updates.Optimizer = updates.OptimizerName.adamw,
    learning_rate: updates.LearningRate = 1e-6,
    weight_decay: updates.WeightDecay = 0.0,
    momentum: updates.Momentum = 0.0,
    max_grad_norm: updates.MaxGradNorm = 1.0,
    epochs: updates.Epochs = 1,
    minibatches: updates.Minibatches = 1,
    steps: updates.Steps = 1,
    split: updates.Split = None,
    lora: updates.Lora = None,
    checkpointing: updates.Checkpointing = False,
    batch_tokens: updates.BatchTokens = None,
    reward: updates.RewardOption = None,
    evaluate: updates.Evaluate = None,
    save: updates.Save = None,
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
    from cli.screen import Screen
    from cli.show import finish
    from rcdiag.dumps import open_dump
    from rcdiag.replay import Roles
    from rcdiag.replay import replay as measure

    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    table = open_dump(dump, options.parse_columns(column))
    plan = corrections.plan(
        trainer, preset, setting, trainer_config, corrections.Arithmetic.float64
    )
    options.check_outputs([result, html, plots, save], force)
    if current is None and "current" in table.policies:
        current = "current"
    roles = Roles(rollout=rollout, old=old, current=current)
    update = _update(given, table.schema.names, plan.trainer.name)
    if model is None:
        updates.refuse_without_model(given)
    made = None if model is None else _model(given, len(plan.corrections))
    names = [roles.rollout] if made else list(dict.fromkeys(roles.names))
    table.require(*(f"{name}_log_probs" for name in names))
    if dry_run:
        screen.say(f"{dump}: would replay {len(plan.corrections)} presets of {plan.trainer.name}")
        return
    if made is None:
        found = measure(table, plan, update, roles=roles, step=step, seed=seed)
    else:
        from rcdiag.replay_model import replay_with_model

        found = replay_with_model(
            table, plan, update, made, roles=roles, step=step, seed=seed, say=screen.say
        )
    finish(found, screen, result=result, html=html, plots=plots, table=None)
    screen.exit(found, fail_on)


def _update(given: dict, columns: list[str], trainer: str) -> Update:
    """How the loss is made, from the options."""
    from dataclasses import replace

    from rcdiag.losses.generations import default_settings, find_loss
    from rcdiag.replaying.evaluate import Update
    from rcdiag.replaying.load import advantage_source

    find_loss(trainer, given["loss"])
    wanted = given["advantage"]
    settings = default_settings(trainer)
    chosen = given["aggregation"]
    settings = replace(
        settings,
        clip_low=given["clip_low"],
        clip_high=given["clip_high"],
        clip_c=settings.clip_c if given["clip_c"] is None else given["clip_c"],
        dro_beta=given["dro_beta"],
        aggregation=settings.aggregation if chosen is None else chosen.value,
        denominator=None if given["denominator"] is None else given["denominator"].value,
    )
    return Update(
        loss=given["loss"],
        settings=settings,
        advantage=advantage_source(
            None if wanted is None else wanted.value, dict.fromkeys(columns)
        ),
        rebaseline=given["rebaseline"],
    )


def _model(given: dict, presets: int) -> Model:
    """The model and its training, from the options."""
    from rcdiag.errors import RcdiagError
    from rcdiag.replay_model import Model
    from rcdiag.replaying.learner import Training
    from rcdiag.training.settings import LoraSettings, OptimizerSettings, SketchSettings

    if given["save"] is not None and presets != 1:
        raise RcdiagError(
            f"--save with {presets} presets", hint="choose the one to save with --preset NAME"
        )
    if given["evaluate"] and not given["reward"]:
        raise RcdiagError("--evaluate needs --reward", hint="--reward FILE.py:FUNCTION")
    optimizer = OptimizerSettings(
        name=given["optimizer"].value,
        learning_rate=given["learning_rate"],
        momentum=given["momentum"],
        weight_decay=given["weight_decay"],
        max_grad_norm=given["max_grad_norm"] or None,
    )
    training = Training(
        optimizer=optimizer,
        learning_rate=given["learning_rate"],
        sketch=SketchSettings(seed=given["seed"]),
        reference=given["reference"].value,
        epochs=given["epochs"],
        minibatches=given["minibatches"],
        split=given["split"],
        evaluate=given["evaluate"],
        seed=given["seed"],
        about={
            "optimizer": optimizer.name,
            "learning_rate": optimizer.learning_rate,
            "max_grad_norm": optimizer.max_grad_norm,
            "weight_decay": optimizer.weight_decay,
        },
    )
    return Model(
        spec=updates.model_spec(given["model"], given["precision"]),
        training=training,
        lora=None if given["lora"] is None else LoraSettings(rank=given["lora"]),
        checkpointing=given["checkpointing"],
        batch_tokens=given["batch_tokens"],
        reward=load_reward(given["reward"]) if given["reward"] else None,
        steps=given["steps"],
        save=given["save"],
    )
