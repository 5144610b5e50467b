"""Commands import only modules that their work needs."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

from tests.cli.test_main import in_a_process
from tests.table.readers.rollouts import rollouts
from tests.table.readers.verl_batches import FORMS, tensors_of, values_of


def loaded_by(commands: Sequence[Sequence[object]], heavy: Sequence[str]) -> list[set[str]]:
    """Run commands in a new process; returns the heavy modules that are loaded after each."""
    code = (
        "import sys, cli.main\n"
        f"for arguments in {[list(map(str, command)) for command in commands]!r}:\n"
        "    sys.argv = ['rcdiag', *arguments]\n"
        "    try: cli.main.main()\n"
        "    except SystemExit as stop: assert not stop.code, stop.code\n"
        f"    print([name for name in {tuple(heavy)!r} if name in sys.modules])\n"
    )
    ran = in_a_process("-c", code)
    assert ran.returncode == 0, ran.stderr
    return [set(ast.literal_eval(line)) for line in ran.stdout.splitlines()]


NEVER = (
    "torch",
    "transformers",
    "vllm",
    "matplotlib",
    "pandas",  # which Arrow imports where it is installed
    "polars",
    "yaml",
    "scipy.stats",
)


def test_commands_on_a_table_load_no_heavy_module_without_need(doubtful, tmp_path):
    result = tmp_path / "r.json"
    commands = [
        ("score", doubtful, "-q", "--result", result),
        ("compare", doubtful, "-q"),
        ("diagnose", doubtful, "-q"),
        ("sweep", doubtful, "-q", "--thresholds", "4"),
        # Without a model, which would need torch.
        ("replay", "sample_data/stale.parquet", "-q"),
    ]
    others = {"pyarrow.compute", "rcdiag.learning", "rcdiag.usecases.sweep"}
    *measuring, sweep, replay = loaded_by(commands, (*NEVER, *others))
    assert measuring == [set(), set(), set()]
    assert sweep <= others - {"pyarrow.compute"}
    assert replay <= others


def test_convert_loads_no_module_that_is_slower_than_a_small_dump(tmp_path):
    lines = tmp_path / "run_rollouts_000000.jsonl"
    row = {"prompt_tokens": [1], "response_tokens": [2, 3], "logprobs": [-1.0, -0.5], "step": 1}
    lines.write_text(json.dumps(row | {"prompt_idx": 0, "finish_reason": "stop", "reward": 1}))
    batch = rollouts()
    tensors = tmp_path / "gen_batch.dp"
    tensors.write_bytes(FORMS["consolidated"](tensors_of(batch), values_of(batch)))
    commands = [
        ("convert", source, "-o", tmp_path / f"{number}.parquet", "-q")
        for number, source in enumerate((lines, tensors))
    ]
    assert loaded_by(commands, NEVER) == [set(), set()]


def test_score_loads_nothing_of_other_commands_and_of_other_formats():
    others = (
        "rcdiag.table.conversion",
        "rcdiag.table.readers.verl",
        "rcdiag.engines.scoring",
        "rcdiag.engines.process",
        "rcdiag.pages.charts",
        "rcdiag.trainers.slime",
        "cli.sweep",
    )
    assert loaded_by([("score", "sample_data/stale.parquet", "-q")], others) == [set()]


def test_a_report_of_a_result_loads_no_table(doubtful, tmp_path, rcdiag):
    result = tmp_path / "r.json"
    rcdiag("score", doubtful, "-q", "--result", result)
    heavy = (*NEVER, "scipy", "pyarrow", "rcdiag.table.table", "rcdiag.usecases.score")
    assert loaded_by([("report", result, "-q")], heavy) == [set()]
