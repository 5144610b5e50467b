"""`rcdiag score` on recorded columns."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path

import pyarrow as pa
import pytest

from rcdiag.formats import measured
from rcdiag.results import MetricValue
from rcdiag.statistics.metrics import METRICS
from tests.builders import ids_like, write_table
from tests.cli.conftest import BEHAVIOR, dump_with_shift


def test_json_is_one_document_with_everything_the_contract_names(rcdiag, doubtful):
    ran = rcdiag("score", doubtful, "--json", "--seed", 7)
    document = ran.document
    assert ran.code == 0
    assert (document["format_version"], document["kind"]) == (3, "score")
    assert (document["behavior"], document["target"]) == ("rollout", "old")
    assert (document["num_sequences"], document["num_tokens"]) == (3, 6)
    assert set(document["mismatch"]) == set(METRICS)
    for value in document["mismatch"].values():
        assert set(value) - {"expected", "expected_of"} == {"value", "low", "high", "level"}
    assert {"corrections", "steps", "findings"} <= set(document)
    for finding in document["findings"]:
        assert set(finding) == {"slug", "severity", "message", "fix", "evidence"}
    provenance = document["provenance"]
    assert provenance["dump"] == [str(doubtful)]
    assert (provenance["rows"], provenance["seed"]) == (3, 7)
    assert "--seed 7" in provenance["command"]
    assert {"versions", "fingerprint", "time"} <= set(provenance)


def test_the_screen_shows_the_metrics_that_decide_and_the_findings(rcdiag, doubtful, monkeypatch):
    monkeypatch.setenv(
        "COLUMNS", "400"
    )  # with these widths no line of a finding begins with a metric
    ran = rcdiag("score", doubtful)
    assert ran.code == 0
    shown = {line.split()[0] for line in ran.out.splitlines() if line.strip()}
    assert shown & set(METRICS) == {name for name, metric in METRICS.items() if metric.headline}
    assert "mismatch-above-guide" in ran.out
    assert "rollout" in ran.out
    assert "old" in ran.out


def test_verbose_shows_every_metric_and_says_what_it_is(rcdiag, doubtful, monkeypatch):
    monkeypatch.setenv("COLUMNS", "600")
    out = rcdiag("score", doubtful, "-v").out
    for name, metric in METRICS.items():
        assert f"{name} " in out
        assert metric.formula in out


def test_nan_and_infinities_are_strings_in_json(rcdiag, tmp_path):
    values = [[-1.0, nan, -1.0], [float("-inf")], [-4.0, -4.5]]  # one row of three remains
    ids = [[1, 2, 3], [4], [5, 6]]
    path = write_table(
        tmp_path / "nan.parquet", response_ids=ids, rollout_log_probs=BEHAVIOR, old_log_probs=values
    )
    document = rcdiag("score", path, "--json").document
    assert document["mismatch"]["k3_kl"]["value"] is None
    logged = document["corrections"]["decoupled_token_is"]["metrics"]
    assert logged["rollout_corr/k3_kl"] == "NaN"
    (finding,) = [item for item in document["findings"] if item["slug"] == "non-finite-log-probs"]
    assert finding["severity"] == "error"
    assert finding["evidence"]["tokens"] == 2
    assert finding["evidence"]["rows"] == 2
    assert finding["evidence"]["first_rows"] == [0, 1]
    assert rcdiag("score", path).code == 0
    assert rcdiag("score", path, "--fail-on", "error").code == 1


SAMPLES = Path(__file__).parents[2] / "sample_data"


@pytest.mark.parametrize(
    ("table", "fail_on", "code"),
    [
        ("clean", "never", 0),
        ("clean", "error", 1),  # too few tokens for a verdict are no all-clear
        ("doubtful", "never", 0),
        ("doubtful", "warning", 1),
        ("healthy", "warning", 0),
        ("stale", "error", 0),
        ("bad", "never", 0),
        ("bad", "warning", 1),
        ("bad", "error", 1),
    ],
)
def test_findings_at_or_above_the_level_make_the_exit_code(rcdiag, request, table, fail_on, code):
    of_sample = {"healthy": "multi_turn", "stale": "stale"}
    path = SAMPLES / f"{of_sample.get(table)}.parquet"
    path = path if table in of_sample else request.getfixturevalue(table)
    ran = rcdiag("score", path, "--fail-on", fail_on, "--json")
    assert ran.code == code
    assert ran.document["kind"] == "score"


def test_an_unknown_level_is_a_usage_error(rcdiag, clean):
    assert rcdiag("score", clean, "--fail-on", "sometimes").code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["none.parquet"],
        ["{clean}", "--target", "current"],
        ["{clean}", "--target", "rollout"],
        ["{clean}", "--column", "nonsense"],
        ["{clean}", "--column", "step=nothing"],
        ["{clean}", "--policy", "old"],
        ["{clean}", "--policy", "new=tensorflow", "--model", "m"],
        ["{clean}", "--policy", "new=hf:float32"],
        ["{clean}", "--policy", "old=hf:float32", "--model", "m"],
    ],
)
def test_a_failure_prints_error_and_hint_and_exits_2(rcdiag, clean, arguments):
    ran = rcdiag("score", *[item.format(clean=clean) for item in arguments])
    ran.refuses("\nhint: ")


def test_a_table_with_one_policy_advises_scoring_the_other(rcdiag, tmp_path):
    ids = [[1, 2, 3], [4], [5, 6]]
    columns = {"response_ids": ids, "rollout_log_probs": BEHAVIOR}
    path = write_table(tmp_path / "a.parquet", prompt_ids=ids, **columns)
    (step,) = rcdiag("score", path, "--json").document["diagnosis"]["next"]
    assert step["text"] == "score the missing side, `old_log_probs`"
    assert step["command"] == f"rcdiag score {path} --model CKPT"
    bare = write_table(tmp_path / "b.parquet", **columns)
    (step,) = rcdiag("score", bare, "--json").document["diagnosis"]["next"]
    assert "`prompt_ids`" in step["text"]
    assert step["command"] == f"rcdiag score {bare} OTHER_DUMP"


def test_any_two_policies_can_be_chosen(rcdiag, tmp_path):
    extra = pa.array([[-1.0, -1.0, -1.0], [-1.0], [-1.0, -1.0]])
    path = dump_with_shift(tmp_path / "a.parquet", 0.0, **{"vllm-bf16_log_probs": extra})
    ran = rcdiag("score", path, "--behavior", "old", "--target", "vllm-bf16", "--json")
    assert (ran.document["behavior"], ran.document["target"]) == ("old", "vllm-bf16")
    k1 = -(4 + 4 + 4 + 4 + 3 + 3.5) / 6
    assert ran.document["mismatch"]["k1_kl"]["value"] == pytest.approx(k1)


def test_columns_can_be_mapped(rcdiag, tmp_path):
    values = pa.array(BEHAVIOR)
    ids = pa.array([[1, 2, 3], [4], [5, 6]])
    path = write_table(tmp_path / "a.parquet", ids=ids, lp=values, old_logprobs=values)
    mapped = ("response_ids=ids", "rollout_log_probs=lp", "old_log_probs=old_logprobs")
    options = [word for item in mapped for word in ("--column", item)]
    ran = rcdiag("score", path, *options, "--json")
    assert ran.code == 0
    assert ran.document["mismatch"]["k3_kl"]["value"] == 0.0


def test_a_directory_and_its_files_in_one_are_the_same_table(rcdiag, tmp_path):
    for name in ("a", "b"):
        (tmp_path / "many").mkdir(exist_ok=True)
        dump_with_shift(tmp_path / "many" / f"{name}.parquet", 0.07)
    document = rcdiag("score", tmp_path / "many", "--json").document
    assert document["num_sequences"] == 6
    assert len(document["provenance"]["dump"]) == 2


def test_the_same_seed_gives_the_same_document(rcdiag, doubtful):
    first = rcdiag("score", doubtful, "--json").document
    second = rcdiag("score", doubtful, "--json").document
    assert first["mismatch"] == second["mismatch"]
    assert json.dumps(first["figures"]) == json.dumps(second["figures"])


def test_the_preset_table_states_that_its_ess_is_of_applied_weights(rcdiag, tmp_path):
    """The ESS of truncated weights exceeds that of the raw ratios; both are shown."""
    behavior, target = [[-3.0, -3.0], [-3.0, -3.0]] * 10, [[-1.0, -3.2], [-3.2, -3.2]] * 10
    columns = {"rollout_log_probs": behavior, "old_log_probs": target}
    table = write_table(tmp_path / "t.parquet", response_ids=ids_like(behavior), **columns)
    preset = ("--preset", "decoupled_token_is")
    page = tmp_path / "r.html"
    ran = rcdiag("score", table, *preset, "-v", "--html", page)
    document = rcdiag("score", table, *preset, "--json").document
    applied = document["corrections"]["decoupled_token_is"]["actual"]
    mismatch = document["mismatch"]
    raw = {name: mismatch[name]["value"] for name in ("ess_token", "ess_seq")}
    assert applied["ess_token_applied"] > raw["ess_token"] + 0.1
    written = [measured(MetricValue(**mismatch[name]))[0] for name in raw]  # as the table has them
    told = f"of raw ratios: tokens {written[0]}, sequences {written[1]}"
    assert f"ESS of the weights as applied; {told}" in " ".join(ran.out.split())
    html = page.read_text()
    assert told in html
    assert "ESS is that of the weights as they enter the loss" in html
    assert "These numbers are unclamped" not in html
