"""`rcdiag score`: fill log-probs that are asked for, then measure the mismatch of two policies."""

from __future__ import annotations

import rcdiag
from cli import options
from cli import options_trainer as corrections
from rcdiag.files import check_apart, check_outputs

EPILOG = """Examples

`rcdiag score sample_data/rollouts.parquet`

`rcdiag score sample_data/rollouts.parquet --model sample_data/policy/step_8
--policy vllm_bf16=vllm:bfloat16 --policy hf_fp32=hf:float32
--behavior vllm_bf16 --target hf_fp32 -o scored.parquet --html scored.html`

`rcdiag score rollouts.parquet --trainer-config config.yaml --logged metrics.jsonl`"""


def score(
    dump: options.DumpArgument,
    model: options.Model = None,
    policy: options.Policy = None,
    ladder: options.Ladder = None,
    noise_floor: options.NoiseFloor = False,
    on: options.On = "local",
    devices: options.DeviceList = None,
    workers: options.Workers = None,
    rate: options.Rate = None,
    behavior: options.BehaviorOrChosen = None,
    target: options.TargetOrChosen = None,
    column: options.Column = None,
    format: options.Format = None,
    given: options.Given = None,
    trainer: corrections.TrainerName = None,
    preset: corrections.Preset = None,
    setting: corrections.Setting = None,
    trainer_config: corrections.TrainerConfigFile = None,
    arithmetic: corrections.ArithmeticOption = corrections.Arithmetic.float64,
    carry: corrections.Carry = None,
    logged: corrections.LogFile = None,
    output: options.OutputTable = None,
    result: options.ResultFile = None,
    csv: options.CsvFile = None,
    html: options.HtmlFile = None,
    plots: options.PlotsFolder = None,
    figure: options.Figures = None,
    width: options.FigureWidth = None,
    include_text: options.IncludeText = None,
    sequence: options.SequenceRow = None,
    json: options.Json = False,
    fail_on: options.Fail = options.FailOn.never,
    rows: options.Rows = None,
    seed: options.Seed = 0,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure the mismatch of two policies on the same tokens; score them first if asked."""
    from cli.outputs import Drawing, chosen, finish
    from cli.terminal.screen import Screen

    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    check_apart([result, csv, html, plots, output], [*dump, trainer_config, logged])
    check_outputs([result, csv, html, plots], force=force)
    drawing = Drawing.of(plots, figure, width)
    # The screen shows none of the sequences and texts that a result holds for readers.
    kept = json or any((result, html, plots, sequence))
    text = include_text if kept or include_text else False
    with screen.progress() as progress:
        document = chosen(rcdiag.score, dry_run)(
            dump,
            behavior=behavior,
            target=target,
            columns=options.parse_columns(column),
            format=format,
            given=options.parse_given(given),
            model=model,
            policies=policy or [],
            ladder=[name.value for name in ladder or []],
            noise_floor=noise_floor,
            on=on,
            devices=devices,
            workers=workers,
            rate=rate,
            output=output,
            trainer=trainer,
            presets=preset or [],
            settings=corrections.parse_settings(setting),
            trainer_config=trainer_config,
            arithmetic=arithmetic.value,
            carry=carry,
            logged=logged,
            include_text=text,
            sequences=(sequence or []) if kept else None,
            rows=rows,
            seed=seed,
            force=force,
            progress=progress,
        )
    finish(
        document,
        screen,
        result=result,
        csv=csv,
        html=html,
        drawing=drawing,
        written=progress.written,
        fail_on=fail_on,
    )
