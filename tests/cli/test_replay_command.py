"""`rcdiag replay` on recorded columns."""

from __future__ import annotations

import re
from math import exp, log
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rcdiag.trainers import TRAINERS
from tests.cli.conftest import BEHAVIOR, dump_with_shift

BLOCKS = (
    "mode",
    "loss_type",
    "loss",
    "metrics",
    "coefficients",
    "gradient",
    "after_step",
    "health",
)
ADVANTAGE = [1.0, -2.0, 4.0]
TOKENS = 6


@pytest.fixture
def table(tmp_path) -> Path:
    """A table of 3, 1 and 2 tokens per row; log-ratios alternate between 0.1 and -0.1 nats."""
    return dump_with_shift(tmp_path / "t.parquet", 0.1, advantage=ADVANTAGE, group_id=[1, 1, 2])


def presets_of(ran) -> dict:
    assert ran.code == 0, ran.err
    return ran.document["presets"]


def test_json_is_one_document_with_what_the_contract_names(rcdiag, table):
    ran = rcdiag("replay", table, "--json", "--seed", 7)
    document = ran.document
    assert (document["format_version"], document["kind"]) == (3, "replay")
    assert document["provenance"]["dump"] == [str(table)]
    assert document["provenance"]["seed"] == 7
    assert list(document["presets"]) == [*TRAINERS["verl-0.9"].presets, "naive"]
    for preset in document["presets"].values():
        assert preset.keys() >= set(BLOCKS)
        assert preset["coefficients"].keys() >= {"norm", "sum", "abs_sum", "nonzero"}
        assert (preset["gradient"], preset["after_step"]) == (None, None)
        assert preset["health"]["verdict"] in ("ok", "warning", "error", "cannot judge")


def test_the_numbers_are_those_of_the_loss(rcdiag, table):
    result = presets_of(rcdiag("replay", table, "--preset", "decoupled_token_is", "--json"))
    up, down = exp(0.1), exp(-0.1)
    # Signs of the log-ratios by row: + - +; +; + -.
    pulls = [up, down, up, -2 * up, 4 * up, 4 * down]
    weighted = result["decoupled_token_is"]
    assert weighted["loss"] == pytest.approx(-sum(pulls) / TOKENS)
    assert weighted["coefficients"]["sum"] == pytest.approx(-sum(pulls) / TOKENS)
    assert weighted["coefficients"]["nonzero"] == TOKENS
    assert result["naive"]["loss"] == pytest.approx(-(3 - 2 + 8) / TOKENS)
    assert (weighted["mode"], weighted["loss_type"]) == ("decoupled", "ppo_clip")


def test_recorded_current_log_probs_are_used(rcdiag, tmp_path):
    current = [[value + 0.3 for value in row] for row in BEHAVIOR]
    path = dump_with_shift(
        tmp_path / "t.parquet", 0.0, advantage=ADVANTAGE, current_log_probs=current
    )
    result = rcdiag("replay", path, "--preset", "disabled", "--json").document
    assert result["current"] == "current"
    # Ratio e^0.3: clipped at 1.2 where the advantage is above 0.
    expected = -(1.2 * (3 + 8) - 2 * exp(0.3)) / TOKENS
    assert result["presets"]["naive"]["loss"] == pytest.approx(expected)
    assert result["presets"]["naive"]["metrics"]["actor/pg_clipfrac"] == pytest.approx(5 / TOKENS)
    other = rcdiag("replay", path, "--preset", "disabled", "--current", "old", "--json").document
    assert other["presets"]["naive"]["loss"] == pytest.approx(-9 / TOKENS)


CHANGED = [
    (("--clip-high", "0.5"), -(exp(0.3) * (3 + 8) - 2 * exp(0.3)) / TOKENS),
    (("--clip-c", "1.1"), -(1.2 * (3 + 8) - 2 * 1.1) / TOKENS),
    (("--aggregation", "token-sum"), -(1.2 * (3 + 8) - 2 * exp(0.3))),
    (
        ("--loss", "gpg"),
        -sum(a * (v + 0.3) for r, a in zip(BEHAVIOR, ADVANTAGE, strict=True) for v in r) / 6,
    ),
]


@pytest.mark.parametrize(("options", "loss"), CHANGED)
def test_options_change_the_loss(rcdiag, tmp_path, options, loss):
    current = [[value + 0.3 for value in row] for row in BEHAVIOR]
    columns = {"advantage": ADVANTAGE, "current_log_probs": current}
    path = dump_with_shift(tmp_path / "t.parquet", 0.0, **columns)
    result = presets_of(rcdiag("replay", path, "--preset", "disabled", *options, "--json"))
    assert result["naive"]["loss"] == pytest.approx(loss)


def test_slime_has_its_own_denominators_and_no_dual_clip(rcdiag, tmp_path):
    """The ratio e^1.5 = 4.48 at advantage -2 is not capped at 3; row means are over all rows."""
    current = [[value + 1.5 for value in row] for row in BEHAVIOR]
    columns = {"advantage": ADVANTAGE, "current_log_probs": current}
    path = dump_with_shift(tmp_path / "t.parquet", 0.0, **columns)
    result = rcdiag("replay", path, "--trainer", "slime", "--json").document
    assert result["presets"]["naive"]["loss"] == pytest.approx(-(1.2 + 4 * 1.2 - 2 * exp(1.5)) / 3)
    assert result["aggregation"] == "seq-mean-token-mean"
    assert {item["denominator"]["basis"] for item in result["presets"].values()} == {"all"}


REJECT = ("--set", "decoupled_k3_rs.rollout_rs_threshold=0.3", "--preset", "decoupled_k3_rs")


@pytest.mark.parametrize(
    ("denominator", "count"), [("kept", 5), ("all", 6), ("constant --constant 20", 20)]
)
def test_denominators_with_and_without_the_rejected(rcdiag, tmp_path, denominator, count):
    """Row 1 is rejected: one token with a ratio of 4."""
    path = dump_with_shift(tmp_path / "t.parquet", 0.0, advantage=ADVANTAGE)
    result = pq.read_table(path)
    logs = [[*row] for row in BEHAVIOR]
    logs[1][0] += log(4.0)
    index = result.schema.get_field_index("old_log_probs")
    pq.write_table(result.set_column(index, "old_log_probs", [logs]), path)
    result = presets_of(
        rcdiag("replay", path, *REJECT, "--denominator", *denominator.split(), "--json")
    )
    assert result["decoupled_k3_rs"]["loss"] == pytest.approx(-(3 + 8) / count)
    assert result["decoupled_k3_rs"]["kept_sequences"] == 2


def test_missing_advantages_are_computed_from_rewards(rcdiag, tmp_path):
    columns = {"reward": [1.0, 0.0, 7.0], "group_id": [1, 1, 2]}
    path = dump_with_shift(tmp_path / "t.parquet", 0.0, **columns)
    result = rcdiag("replay", path, "--preset", "disabled", "--json").document
    assert result["advantage"] == "grpo"
    spread = 0.5**0.5 + 1e-6
    total = 3 * 0.5 / spread - 0.5 / spread + 2 * 7.0 / (1 + 1e-6)
    assert result["presets"]["naive"]["loss"] == pytest.approx(-total / TOKENS)
    by_rloo = rcdiag("replay", path, "--advantage", "rloo", "--preset", "disabled", "--json")
    assert by_rloo.document["presets"]["naive"]["loss"] == pytest.approx(-(3 - 1 + 14) / TOKENS)


def test_every_trainer_replays_all_its_presets(rcdiag, table):
    for trainer, result in TRAINERS.items():
        presets = presets_of(rcdiag("replay", table, "--trainer", trainer, "--json"))
        assert list(presets) == [*result.presets, "naive"]


def test_a_trainers_own_config_is_one_preset(rcdiag, table, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("rollout_is: token\nrollout_is_threshold: 1.05\n")
    result = presets_of(rcdiag("replay", table, "--trainer-config", config, "--json"))
    assert list(result) == ["config", "naive"]
    down = exp(-0.1)
    pulls = [1.05, down, 1.05, -2 * 1.05, 4 * 1.05, 4 * down]
    assert result["config"]["loss"] == pytest.approx(-sum(pulls) / TOKENS)


def test_the_same_seed_gives_the_same_document(rcdiag, table):
    one, other = (rcdiag("replay", table, "--json", "--seed", 3).document for _ in range(2))
    for document in (one, other):
        document["provenance"].pop("time")
    assert one == other


def test_help_says_what_the_command_does(rcdiag):
    output = re.sub(r"\x1b\[[0-9;]*m", "", rcdiag("replay", "--help-all").out)
    for option in ("--loss", "--denominator", "--rebaseline", "--model", "--save", "--evaluate"):
        assert option in output
