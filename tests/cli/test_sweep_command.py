"""`rcdiag sweep` on recorded columns."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path

import pytest

from rcdiag.usecases.sweep.estimator_families import FAMILIES, settings
from tests.builders import write_table
from tests.cli.conftest import BEHAVIOR, dump_with_shift
from tests.cli.sweep_tables import FEW, sampled_table

SLOW = pytest.mark.slow  # the page of a sweep takes seconds
NOTHING = [[nan] * 3, [nan], [nan] * 2]


@pytest.fixture
def table(tmp_path) -> Path:
    """A table whose mismatch is worth a correction."""
    return sampled_table(tmp_path / "table.parquet")


@pytest.fixture
def broken(tmp_path) -> Path:
    ids = [list(range(len(row))) for row in BEHAVIOR]
    logs = {"rollout_log_probs": BEHAVIOR, "old_log_probs": NOTHING}
    return write_table(tmp_path / "broken.parquet", response_ids=ids, **logs)


def test_json_is_one_document_with_what_the_contract_names(rcdiag, table):
    ran = rcdiag("sweep", table, *FEW, "--json", "--seed", 7)
    document = ran.document
    assert ran.code == 0
    assert (document["format_version"], document["kind"]) == (3, "sweep")
    assert (document["behavior"], document["target"]) == ("rollout", "old")
    assert document["provenance"]["dump"] == [str(table)]
    assert document["provenance"]["seed"] == 7
    assert document["provenance"]["thresholds"] == 4
    assert document["recommendation"]["answer"] == "no-correction"
    assert document["recommendation"]["choice"] == "none"


@pytest.mark.parametrize("thresholds", [4, 30])
def test_every_family_has_a_row_for_every_threshold(rcdiag, table, thresholds):
    result = rcdiag("sweep", table, "--json", "--thresholds", thresholds).document["families"]
    assert list(result) == list(FAMILIES)
    for name, family in FAMILIES.items():
        expected = settings(family, thresholds)
        assert [row["bounds"] for row in result[name]["rows"]] == expected


def test_exchanging_behavior_and_target_inverts_the_ratios(rcdiag, table):
    ran = rcdiag("sweep", table, *FEW, "--json", "--behavior", "old", "--target", "rollout")
    other = rcdiag("sweep", table, *FEW, "--json").document["families"]["geo_rs"]["rows"]
    rows = ran.document["families"]["geo_rs"]["rows"]
    assert (ran.document["behavior"], ran.document["target"]) == ("old", "rollout")
    assert [row["kept_tokens"] for row in rows] != [row["kept_tokens"] for row in other]


def test_copied_columns_get_no_recommendation(rcdiag, clean):
    """They differ by nothing, but nothing was compared."""
    result = clean.with_suffix(".json")
    ran = rcdiag("sweep", clean, *FEW, "--result", result)
    advice = json.loads(result.read_text())["recommendation"]
    assert (advice["answer"], advice["choice"]) == ("cannot-distinguish", None)
    assert "differ from 1 by 0 on average, but the verdict" in advice["reasons"][-1]
    assert "no choice: candidates cannot be distinguished" in ran.out


@pytest.mark.parametrize(
    ("name", "fail_on", "code"),
    [
        ("table", "never", 0),
        ("table", "warning", 1),  # too few tokens for a verdict
        ("broken", "never", 0),
        ("broken", "warning", 1),
        ("broken", "error", 1),
    ],
)
@pytest.mark.parametrize(
    "output",
    [
        ["-q"],
        pytest.param(["--json"], marks=pytest.mark.slow),
        pytest.param(["--emit", "verl"], marks=pytest.mark.slow),
    ],
)
def test_findings_at_or_above_the_level_make_the_exit_code(
    rcdiag, request, name, fail_on, code, output
):
    path = request.getfixturevalue(name)
    # No configuration is written for a broken table, at any --fail-on level.
    expected = 2 if (name, output[0]) == ("broken", "--emit") else code
    assert rcdiag("sweep", path, *FEW, "--fail-on", fail_on, *output).code == expected


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["none.parquet"], "none.parquet"),
        (["{table}", "--behavior", "nope"], "nope_log_probs"),
        (["{table}", "--target", "nope"], "nope_log_probs"),
        (["{table}", "--column", "nonsense"], "nonsense"),
        (["{table}", "--emit", "verl", "--candidate", "seq_tls_3"], "seq_tis_2"),
        (["{table}", "--emit", "roll", "--candidate", "token_icepop_0.5_5"], "verl-0.9"),
        (["{table}", "--emit", "verl-0.7.0", "--candidate", "k3_rs_0.01"], "verl-0.9"),
        (["{table}", "--candidate", "seq_mis_2"], "seq_mis_LOWER_UPPER"),
        (["{table}", "--json", "--emit", "verl"], "--result"),
    ],
)
def test_a_failure_prints_error_and_hint_and_exits_2(rcdiag, table, tmp_path, arguments, output):
    given = [item.format(table=table) for item in arguments]
    ran = rcdiag("sweep", *given, "--result", tmp_path / "r.json")
    ran.refuses("\nhint: ", output)
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [[], ["{table}", "--emit", "acme"], ["{table}", "--thresholds", "1"], ["{table}", "--trainer"]],
)
def test_wrong_usage_exits_2(rcdiag, table, arguments):
    assert rcdiag("sweep", *[item.format(table=table) for item in arguments]).code == 2


@pytest.mark.parametrize(
    "shift",
    [
        pytest.param(0.0, marks=SLOW),
        pytest.param(4.0, marks=SLOW),
        float("nan"),
    ],
)
def test_any_table_makes_a_page(rcdiag, tmp_path, shift):
    table = dump_with_shift(tmp_path / "a.parquet", shift)
    ran = rcdiag("sweep", table, *FEW, "--html", tmp_path / "r.html")
    assert ran.code == 0, ran.err
    assert ">nan" not in (tmp_path / "r.html").read_text()
