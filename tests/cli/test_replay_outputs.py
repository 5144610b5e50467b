"""Screen and files of `rcdiag replay`; outputs common to all commands: test_outputs.py."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

from rcdiag import load_result
from rcdiag.pages.replay.words import equal_updates, health_order, relative_norm
from tests.builders import write_table
from tests.cli.conftest import BEHAVIOR, dump_with_shift

SAMPLES = Path(__file__).parents[2] / "sample_data"
COLUMNS = {"advantage": [1.0, -2.0, 4.0], "group_id": [1, 1, 2]}


@pytest.fixture
def table(tmp_path) -> Path:
    return dump_with_shift(tmp_path / "t.parquet", 0.1, **COLUMNS)


def large(path: Path, spread: float, rows: int = 60) -> Path:
    """A table with tiny and huge numbers, and with presets without a loss."""
    random = np.random.default_rng(0)
    logs = [(-random.exponential(2.0, n) - 0.1).tolist() for n in random.integers(1, 40, rows)]
    old = [[min(v + random.normal(0, spread), -1e-3) for v in row] for row in logs]
    new = [[min(v + random.normal(0, spread), -1e-3) for v in row] for row in old]
    return write_table(
        path,
        response_ids=[list(range(len(row))) for row in logs],
        rollout_log_probs=logs,
        old_log_probs=old,
        current_log_probs=new,
        advantage=(random.normal(0, 1, rows) * 1e-4).tolist(),
        group_id=(np.arange(rows) // 4).tolist(),
    )


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.3, 4.0])
@pytest.mark.parametrize("options", [(), ("-v",)])
def test_no_number_is_cut_at_80_columns(rcdiag, tmp_path, monkeypatch, spread, options):
    """No line is longer, no cell ends in an ellipsis, and no row is broken."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = rcdiag("replay", large(tmp_path / "t.parquet", spread), *options)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    body = lines[
        : next((i for i, line in enumerate(lines) if line.startswith("more ")), len(lines))
    ]
    cut = [line for line in body if re.search(r"\d…", line)]
    assert cut == []


def test_presets_are_grouped_by_update_and_sorted_by_health(rcdiag, table, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out = rcdiag("replay", table, "-v").out
    result = load_result(io.StringIO(rcdiag("replay", table, "--json").out))
    groups = equal_updates(result)
    assert [name for group in groups for name in group.names] != list(result.presets)
    assert {name for group in groups for name in group.names} == set(result.presets)
    assert "disabled" in groups[0].names  # as no correction
    order = [health_order(group.preset.health) for group in groups[1:]]
    assert order == sorted(order)
    for group in groups:
        lines = [item for item in out.splitlines() if item.startswith(f"{group.title} ")]
        line = lines[0].removeprefix(group.title)
        loss = group.preset.loss
        assert line.split()[0] == ("none" if loss is None else f"{loss:.3g}")
        assert group.preset.health.verdict in line
        beside = relative_norm(result, group.preset)
        assert beside is None or f"{beside:.2f}" in line


def test_one_screen_holds_the_replay_of_twenty_presets(rcdiag, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = rcdiag("replay", SAMPLES / "stale.parquet").out
    assert len(out.splitlines()) <= 40
    words = " ".join(out.split())
    assert (
        "4 of 19 presets pass all health rules (3 with a warning, 12 with an error); "
        "without correction: warning" in words
    )
    assert words.index("remove the cause first") < words.index("no correction ")
    assert "drift within the update" not in out


def test_verbose_names_the_rules_that_a_preset_fails_and_counts_the_others(rcdiag):
    args = (SAMPLES / "stale.parquet", "--preset", "decoupled_token_is", "--preset", "disabled")
    out = rcdiag("replay", *args, "-v").out
    presets = rcdiag("replay", *args, "--json").document["presets"]
    rules = presets["naive"]["health"]["rules"]
    failed = [rule["name"] for rule in rules if rule["level"] != "ok"]
    assert failed == ["mismatch_k3", "uncorrected_ess"]  # `disabled` is the same as no correction
    assert f"naive, disabled  {len(rules) - 2} other rules ok" in out
    begins = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert all(begins.count(name) == 1 for name in failed)
    assert (
        f"decoupled_token_is  {len(presets['decoupled_token_is']['health']['rules'])} rules ok"
        in out
    )


def test_a_result_without_a_loss_is_strict_json_and_a_page(rcdiag, tmp_path):
    """A NaN log-prob, an infinite one, and presets that reject everything."""
    old = [[-5.0, float("nan"), -5.0], [float("-inf")], [-4.0, -1.0]]
    ids = [[1, 2, 3], [4], [5, 6]]
    path = write_table(
        tmp_path / "t.parquet",
        response_ids=ids,
        rollout_log_probs=BEHAVIOR,
        old_log_probs=old,
        **COLUMNS,
    )
    ran = rcdiag("replay", path, "--json", "--html", tmp_path / "r.html")
    presets = ran.document["presets"]
    assert ran.code == 0
    assert presets["decoupled_geo_rs"]["loss"] is None
    assert presets["decoupled_geo_rs"]["undefined"]
    assert presets["naive"]["loss"] == "NaN"
    assert (tmp_path / "r.html").stat().st_size > 1000


@pytest.mark.parametrize(("fail_on", "code"), [("never", 0), ("warning", 1), ("error", 1)])
def test_fail_on_counts_the_findings(rcdiag, tmp_path, fail_on, code):
    old = [[-5.0, float("nan"), -5.0], [-5.0], [-4.0, -4.5]]
    path = dump_with_shift(tmp_path / "t.parquet", 0.0, **COLUMNS)
    path = write_table(
        path,
        response_ids=[[1, 2, 3], [4], [5, 6]],
        rollout_log_probs=BEHAVIOR,
        old_log_probs=old,
        **COLUMNS,
    )
    assert rcdiag("replay", path, "--fail-on", fail_on, "-q").code == code
