"""`rcdiag compare` on recorded columns."""

from __future__ import annotations

import re
from math import nan
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import BEHAVIOR
from tests.usecases.compare.tables import about, base_log_probs, shifted, write_policies

BASE = base_log_probs(40)
# Policies of the ladders, with log-ratios of nearly all magnitudes.
MANY = {
    "rollout": BASE,
    "vllm_bf16_decode": shifted(BASE, 0.1, 1),
    "vllm_bf16": shifted(BASE, 0.1, 2),
    "hf_bf16": shifted(BASE, 0.003, 3),
    "hf_autocast": shifted(BASE, 1e-6, 5),
    "hf_bf16_head32": shifted(BASE, 0.00012, 4),
    "hf_fp32": shifted(BASE, 1.0, 6),
    "vllm_bf16_again": shifted(BASE, 0.1, 7),
}
SCORED = [
    about("vllm_bf16_decode", "vllm", "bfloat16", path="decode"),
    about("vllm_bf16", "vllm", "bfloat16"),
    about("hf_bf16", "hf", "bfloat16"),
    about("hf_autocast", "hf", autocast="bfloat16"),
    about("hf_bf16_head32", "hf", "bfloat16", lm_head="float32"),
    about("hf_fp32", "hf"),
    about("vllm_bf16_again", "vllm", "bfloat16", repeat_of="vllm_bf16"),
]


@pytest.fixture
def many(tmp_path) -> Path:
    return write_policies(tmp_path / "many.parquet", MANY, SCORED, group_id=[*range(20)] * 2)


def test_json_is_one_document_with_what_the_contract_names(rcdiag, doubtful):
    ran = rcdiag("compare", doubtful, "--json", "--seed", 7)
    document = ran.document
    assert ran.code == 0
    assert (document["format_version"], document["kind"]) == (3, "compare")
    assert set(document["policies"]) == {"rollout", "old"}
    assert set(document["pairs"]) == {"rollout->old", "old->rollout"}
    assert document["provenance"]["dump"] == [str(doubtful)]
    assert (document["provenance"]["rows"], document["provenance"]["seed"]) == (3, 7)
    assert {"slug", "severity", "message", "fix", "evidence"} == set(document["findings"][0])


@pytest.mark.parametrize(("behavior", "target"), [("rollout", "old"), ("old", "rollout")])
def test_the_pair_of_the_sampler_has_the_mismatch_block_of_score(
    rcdiag, doubtful, behavior, target
):
    pair = ("--behavior", behavior, "--target", target, "--json")
    of_score, of_compare = (rcdiag(command, doubtful, *pair) for command in ("score", "compare"))
    result = of_compare.document["pairs"][f"{behavior}->{target}"]
    assert result["mismatch"] == of_score.document["mismatch"]


@pytest.mark.parametrize(
    ("table", "fail_on", "code"),
    [
        ("clean", "never", 0),
        ("clean", "warning", 1),  # two rows are no all-clear
        ("stale", "never", 0),
        ("stale", "warning", 1),
        ("stale", "error", 1),  # a column that is lower throughout is not a distribution: broken
        ("broken", "never", 0),
        ("broken", "warning", 1),
        ("broken", "error", 1),
    ],
)
def test_findings_at_or_above_the_level_make_the_exit_code(rcdiag, tmp_path, table, fail_on, code):
    lower = [[value - 0.05 - 0.001 * at for at, value in enumerate(row)] for row in BASE]
    recorded = {"clean": BASE, "stale": lower, "broken": [[nan] * len(row) for row in BASE]}
    path = write_policies(tmp_path / "a.parquet", {"rollout": recorded[table], "old": BASE})
    ran = rcdiag("compare", path, "--fail-on", fail_on, "--json")
    assert ran.code == code
    assert ran.document["kind"] == "compare"


@pytest.mark.parametrize(
    "arguments",
    [
        ["none.parquet"],
        ["{clean}", "none.parquet"],
        ["{clean}", "--policy", "nope", "--policy", "old"],
        ["{clean}", "--policy", "rollout"],
        ["{clean}", "--column", "nonsense"],
        ["{clean}", "--policy", "new=tensorflow", "--model", "m"],
        ["{clean}", "--policy", "new=hf:float32"],
        ["{clean}", "--ladder", "precision"],
        ["{clean}", "--noise-floor"],
        ["{clean}", "--policy", "old=hf:float32", "--model", "m"],
    ],
)
def test_a_failure_prints_error_and_hint_and_exits_2(rcdiag, clean, arguments):
    ran = rcdiag("compare", *[item.format(clean=clean) for item in arguments])
    ran.refuses("\nhint: ")


@pytest.mark.parametrize("arguments", [[], ["{clean}", "--ladder", "nope"]])
def test_wrong_usage_exits_2(rcdiag, clean, arguments):
    assert rcdiag("compare", *[item.format(clean=clean) for item in arguments]).code == 2


def test_a_table_with_one_policy_advises_scoring_another(rcdiag, tmp_path):
    path = write_policies(tmp_path / "a.parquet", {"rollout": BEHAVIOR})
    (step,) = rcdiag("compare", path, "--json").document["diagnosis"]["next"]
    # It has no prompts, which a checkpoint would need.
    assert step["command"] == f"rcdiag score {path} OTHER_DUMP"


def test_columns_can_be_mapped(rcdiag, tmp_path):
    ids = pa.array([[1, 2, 3], [4], [5, 6]])
    columns = {"ids": ids, "lp": pa.array(BEHAVIOR), "old_log_probs": pa.array(BEHAVIOR)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    mapped = ("response_ids=ids", "rollout_log_probs=lp")
    options = [word for item in mapped for word in ("--column", item)]
    document = rcdiag("compare", tmp_path / "a.parquet", *options, "--json").document
    assert document["pairs"]["rollout->old"]["mismatch"]["k3_kl"]["value"] == 0.0
    assert document["ladder"]["rungs"][0]["share"]["value"] is None


def test_the_screen_shows_every_policy_and_every_step_and_the_verdict(rcdiag, many):
    ran = rcdiag("compare", many, "-v")
    assert ran.code == 0
    for name in MANY:
        assert re.search(rf"\b{name}\b", ran.out), name
    order = [name for name in MANY if not name.endswith("again")]
    assert re.findall(r"^→ (\w+)", ran.out, re.MULTILINE) == order[1:]
    assert "k2(rollout, hf_fp32)" in ran.out


@pytest.fixture(scope="module")
def stored(run_once, tmp_path_factory) -> Path:
    """The stored result of a comparison of many policies."""
    folder = tmp_path_factory.mktemp("many")
    table = write_policies(folder / "many.parquet", MANY, SCORED, group_id=[*range(20)] * 2)
    assert run_once("compare", table, "--result", folder / "r.json").code == 0
    return folder / "r.json"


@pytest.mark.parametrize("columns", ["80", "100"])
def test_no_number_is_cut_on_a_narrow_terminal(rcdiag, stored, monkeypatch, columns):
    """All numbers of a wide screen are on the narrow one."""
    monkeypatch.setenv("COLUMNS", "400")
    number = re.compile(r"(?<![\w.])-?\d[\w.+%-]*")
    wide = sorted(number.findall(rcdiag("report", stored, "-v").out))
    monkeypatch.setenv("COLUMNS", columns)
    narrow = rcdiag("report", stored, "-v").out
    assert not re.search(r"\S…", narrow), narrow
    assert sorted(number.findall(narrow)) == wide
    assert max(map(len, narrow.splitlines())) <= int(columns)


@pytest.mark.parametrize("names", [["vllm_bf16", "vllm_bf16_again"], ["rollout", "hf_fp32"]])
def test_few_policies_make_a_page_too(rcdiag, many, tmp_path, names):
    chosen = [word for name in names for word in ("--policy", name)]
    ran = rcdiag("compare", many, *chosen, "--html", tmp_path / "r.html")
    assert ran.code == 0, ran.err
    assert all(name in ran.out for name in names)


def test_equal_policies_make_a_page_too(rcdiag, clean, tmp_path):
    ran = rcdiag("compare", clean, "--html", tmp_path / "r.html", "--plots", tmp_path / "p")
    assert ran.code == 0, ran.err
    assert "nan" not in ran.out.lower()


def test_nan_makes_a_page_too(rcdiag, tmp_path):
    values = [[-1.0, float("nan"), -1.0], [float("-inf")], [-4.0, -4.5]]
    path = write_policies(tmp_path / "a.parquet", {"rollout": BEHAVIOR, "old": values})
    files = ("--result", tmp_path / "r.json", "--html", tmp_path / "r.html")
    ran = rcdiag("compare", path, *files)
    assert ran.code == 0, ran.err
    assert "non-finite-log-probs" in ran.out
    shown = rcdiag("report", tmp_path / "r.json").out
    assert shown.replace("   page: --html", "") == ran.out  # no page was written this time
