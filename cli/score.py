"""`rcdiag score`: fill log-probs that are asked for, then measure the mismatch of two policies."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cli import corrections, options

if TYPE_CHECKING:
    from cli.screen import Screen
    from rcdiag.backends.spec import PolicySpec
    from rcdiag.dumps import Dump
    from rcdiag.score import Decode

EPILOG = """Examples

`rcdiag score sample_data/rollouts.parquet`

`rcdiag score sample_data/rollouts.parquet --model sample_data/policy/step_8
--policy vllm_bf16=vllm:bfloat16 --policy hf_fp32=hf:float32
--behavior vllm_bf16 --target hf_fp32 -o scored.parquet --html scored.html`"""


def score(
    dump: options.DumpArgument,
    model: options.Model = None,
    policy: options.Policy = None,
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
    from cli.screen import Screen
    from cli.show import finish
    from rcdiag.dumps import open_dump
    from rcdiag.score import check_pair
    from rcdiag.score import score as measure

    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    renames = options.parse_columns(column)
    table = open_dump(dump, renames)
    specs = _policies(policy, model, table)
    plan = corrections.plan(trainer, preset, setting, trainer_config, arithmetic)
    output_may_stay = bool(specs) and _may_be_finished(output)
    options.check_outputs([None if output_may_stay else output, result, html, plots], force)
    check_pair(table, behavior, target, [spec.name for spec in specs])
    if dry_run:
        _dry_run(screen, dump, table, specs, output, force)
        return
    if output is not None and not specs:
        screen.say(f"nothing to score: {output} is not written")
    with _scored(screen, dump, table, specs, output, force) as scored:
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
    from rcdiag.backends.text import decoder
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


def _policies(texts: list[str] | None, model: str | None, table: Dump) -> list[PolicySpec]:
    """The policies to score; `--model` alone means those of the default pair that are missing."""
    from rcdiag.backends.spec import parse_policy

    texts = list(texts or [])
    if not texts and model is not None:
        defaults = {"old": "old=hf:float32", "rollout": "rollout=vllm:bfloat16"}
        texts = [text for name, text in defaults.items() if name not in table.policies]
    return [parse_policy(text, model) for text in texts]


def _may_be_finished(output: Path | None) -> bool:
    """An output whose parts are still there may be that of a run killed after its last rename.

    Scoring looks closer, and refuses the output of any other run.
    """
    return output is not None and output.with_name(output.name + ".parts").exists()


@contextlib.contextmanager
def _scored(
    screen: Screen,
    dump: str,
    table: Dump,
    specs: list[PolicySpec],
    output: Path | None,
    force: bool,
) -> Iterator[Dump]:
    """The table with the wanted policies filled in; in a folder for the moment without `-o`."""
    if not specs:
        yield table
        return
    from rcdiag.dumps import open_dump
    from rcdiag.errors import RcdiagError
    from rcdiag.scoring import plan_scoring, run_scoring

    scratch = None
    if output is None:
        screen.say("no -o FILE: the scored log-probs are not kept")
        scratch = Path(tempfile.mkdtemp(prefix="rcdiag-"))
    path = output or Path(scratch or ".") / "scored.parquet"
    try:
        plan = plan_scoring(dump, table, specs, path, force=force)
        with screen.tokens() as on_tokens:
            run_scoring(plan, on_tokens, force=force)
        yield open_dump(path)
    except RcdiagError as error:
        # A failed engine's log must stay where the error says it is.
        points_there = scratch is not None and str(scratch) in error.hint
        scratch = None if points_there else scratch
        raise
    finally:
        if scratch is not None:
            shutil.rmtree(scratch)


def _dry_run(
    screen: Screen,
    dump: str,
    table: Dump,
    specs: list[PolicySpec],
    output: Path | None,
    force: bool,
) -> None:
    """Say what would run; models and rows are checked, no engine starts."""
    screen.say(f"{dump}: {table.num_rows:,} sequences in {len(table.files)} files")
    if not specs:
        screen.say(f"would compute from recorded policies: {', '.join(table.policies)}")
        return
    from rcdiag.scoring import plan_scoring

    plan = plan_scoring(dump, table, specs, output or Path("scored.parquet"), force=force)
    lengths = plan.survey.lengths
    screen.say(
        f"{plan.survey.tokens:,} tokens to run, {plan.survey.sampled_tokens:,} of them sampled; "
        f"longest sequence {lengths.max():,}; {len(plan.ranges)} parts"
    )
    for spec in specs:
        given = ", ".join(f"{key}={value}" for key, value in spec.options.items())
        screen.say(f"would score `{spec.name}`: {spec.backend} {spec.dtype} {spec.model} {given}")
    screen.say(f"would write {output}" if output else "would keep no scores (no -o FILE)")
