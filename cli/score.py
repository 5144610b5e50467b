"""`rcdiag score`: fill log-probs that are asked for, then measure the mismatch of two policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from cli import options, scoring
from cli import options_trainer as corrections

if TYPE_CHECKING:
    from rcdiag.table.parquet import Dump
    from rcdiag.usecases.score import Decode

EPILOG = """Examples

`rcdiag score sample_data/rollouts.parquet`

`rcdiag score sample_data/rollouts.parquet --model sample_data/policy/step_8
--policy vllm_bf16=vllm:bfloat16 --policy hf_fp32=hf:float32
--behavior vllm_bf16 --target hf_fp32 -o scored.parquet --html scored.html`"""


class ScoreCommand(TyperCommand):
    """The command `score`, whose help names all metrics, those of plugins too."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from rcdiag.statistics.metrics import METRICS

        self.epilog = f"{EPILOG}\n\nMetrics (`rcdiag explain NAME`): {', '.join(METRICS)}"
        super().format_help(ctx, formatter)


def score(
    dump: options.DumpArgument,
    model: options.Model = None,
    policy: options.Policy = None,
    ladder: options.Ladder = None,
    noise_floor: options.NoiseFloor = False,
    behavior: options.Behavior = "rollout",
    target: options.Target = "old",
    column: options.Column = None,
    trainer: corrections.TrainerName = None,
    preset: corrections.Preset = None,
    setting: corrections.Setting = None,
    trainer_config: corrections.TrainerConfigFile = None,
    arithmetic: corrections.ArithmeticOption = corrections.Arithmetic.float64,
    output: options.OutputTable = None,
    result: options.ResultFile = None,
    html: options.HtmlFile = None,
    plots: options.PlotsFolder = None,
    include_text: options.IncludeText = False,
    json: options.Json = False,
    fail_on: options.Fail = options.FailOn.never,
    seed: options.Seed = 0,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure how far two policies are apart on the same tokens, scoring them first if asked."""
    # Heavy imports wait until the command runs, so that --help answers at once.
    from cli.outputs import finish
    from cli.terminal.screen import Screen
    from rcdiag.table.parquet import open_dump
    from rcdiag.usecases.score import check_pair
    from rcdiag.usecases.score import score as measure

    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    renames = options.parse_columns(column)
    table = open_dump(dump, renames)
    specs = scoring.wanted_policies(screen, policy, ladder, model, table, twice=noise_floor)
    plan = corrections.plan(trainer, preset, setting, trainer_config, arithmetic)
    output_may_stay = bool(specs) and scoring.may_be_finished(output)
    options.check_outputs([None if output_may_stay else output, result, html, plots], force)
    check_pair(table, behavior, target, [spec.name for spec in specs])
    if dry_run:
        scoring.dry_run(screen, dump, table, specs, output, force)
        return
    if output is not None and not specs:
        screen.say(f"nothing to score: {output} is not written")
    with scoring.scored_table(screen, dump, table, specs, output, force) as scored:
        decode = _decoder(model, scored, target, behavior) if include_text else None
        found = measure(
            scored,
            behavior=behavior,
            target=target,
            seed=seed,
            origin=table,
            decode=decode,
            plan=plan,
        )
    finish(found, screen, result=result, html=html, plots=plots, table=output if specs else None)
    screen.exit(found, fail_on)


def _decoder(model: str | None, table: Dump, *policies: str) -> Decode:
    """By the tokenizer of `model`, or of the first model that the table names for `policies`."""
    from rcdiag.engines.tokenizer import decoder
    from rcdiag.errors import RcdiagError

    recorded = table.metadata.get("policies", {})
    named = [recorded[name]["model"] for name in policies if recorded.get(name, {}).get("model")]
    models = [each for each in named if Path(each).is_dir()]
    if model is None and not models:
        raise RcdiagError(
            "--include-text: the table names no model folder here whose tokenizer could be used",
            hint="--model PATH",
        )
    return decoder(model or models[0])
