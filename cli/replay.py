"""`rcdiag replay`: the step that each preset would have taken on a batch, and its health."""

from __future__ import annotations

import inspect

import typer

import rcdiag
from cli import options
from cli import options_model as trained
from cli import options_trainer as corrections
from cli import options_update as updates
from rcdiag.files import check_apart, check_outputs

EPILOG = """Examples

`rcdiag replay sample_data/stale.parquet --preset decoupled_token_is --preset bypass_ppo_clip`

`rcdiag replay sample_data/stale.parquet --set decoupled_token_is.rollout_is_threshold=3`

`rcdiag replay sample_data/stale.parquet --model sample_data/policy/step_8 --html replay.html`"""


def replay(
    context: typer.Context,
    dump: options.DumpArgument,
    rollout: updates.Rollout = "rollout",
    old: updates.Old = "old",
    current: updates.Current = None,
    column: options.Column = None,
    format: options.Format = None,
    given: options.Given = None,
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
    clip_low: updates.ClipLow = None,
    clip_high: updates.ClipHigh = None,
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
    csv: options.CsvFile = None,
    html: options.HtmlFile = None,
    plots: options.PlotsFolder = None,
    figure: options.Figures = None,
    width: options.FigureWidth = None,
    json: options.Json = False,
    fail_on: options.Fail = options.FailOn.never,
    rows: options.Rows = None,
    seed: options.Seed = 0,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Replay one update of each preset on recorded log-probs, or, with --model, for real."""
    from cli.outputs import Drawing, chosen, finish
    from cli.terminal.screen import Screen

    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    check_apart([result, csv, html, plots, save], [*dump, trainer_config])
    check_outputs([result, csv, html, plots], force=force)
    drawing = Drawing.of(plots, figure, width)
    if model is None:
        trained.refuse_without_model(context)
    names = inspect.signature(rcdiag.replay).parameters
    keywords = {
        **{name: value for name, value in context.params.items() if name in names},
        "columns": options.parse_columns(column),
        "given": options.parse_given(given),
        "presets": preset or [],
        "settings": corrections.parse_settings(setting),
        "loss_settings": loss_setting or [],
        "lr": learning_rate,
    }
    with screen.progress() as progress:
        replayed = chosen(rcdiag.replay, dry_run)(dump, **keywords, progress=progress)
    finish(replayed, screen, result=result, csv=csv, html=html, drawing=drawing, fail_on=fail_on)
