"""`rcdiag score --logged FILE`: the trainer's own log on the screen, in the page, as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from rcdiag import load_result
from rcdiag.pages.figures import FIGURES
from rcdiag.pages.headline import answer, headline
from rcdiag.results import from_json
from tests.cli.conftest import dump_with_shift

SHIFT = 0.1
# Log-ratios are 0.1, -0.1, 0.1; 0.1; 0.1, -0.1: their mean is 0.2 / 6.
KL = -0.2 / 6


@pytest.fixture
def table(tmp_path) -> Path:
    return dump_with_shift(tmp_path / "table.parquet", SHIFT, step=[7, 7, 7])


def log_of(tmp_path: Path, **numbers: float) -> Path:
    path = tmp_path / "metrics.jsonl"
    data = {f"rollout_corr/{key}": value for key, value in numbers.items()}
    path.write_text(json.dumps({"step": 7, "data": {**data, "actor/lr": 1.5e-6}}) + "\n")
    return path


def test_the_screen_says_which_keys_agree_and_why_others_differ(
    rcdiag, table, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    log = log_of(tmp_path, kl=KL, log_ppl_abs_diff=0.5123456789, log_ppl_diff=(0.4 / 9))
    ran = rcdiag("score", table, "--logged", log, "--preset", "disabled")
    assert ran.code == 0
    lines = ran.out.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("key "))
    assert lines[head].split() == ["key", "theirs", "ours", "reads"]
    assert lines[head + 1].split() == ["log_ppl_abs_diff", "0.5123", "0.04444", "not", "explained"]
    assert lines[head + 2].split()[-1] == "sign"
    assert "1 of 3 keys agree" in " ".join(ran.out.split())  # a long path breaks the line
    everything = rcdiag("score", table, "--logged", log, "--preset", "disabled", "-v").out
    assert ["kl", "-0.03333", "-0.03333", "agrees"] in [
        line.split() for line in everything.splitlines()
    ]
    assert "sign: it has the opposite sign" in lines
    # -v shows the definition of keys that are not explained.
    (of_key,) = [line for line in everything.splitlines() if line.startswith("log_ppl_abs_diff: ")]
    assert of_key not in lines
    assert "logged-differs" in ran.out
    assert max(map(len, lines)) <= 80


def test_the_screen_has_one_sentence_for_a_log_that_fits_nothing(
    rcdiag, table, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    log = log_of(tmp_path, kl=0.5123456789, k3_kl=0.25123456, log_ppl_diff=(0.4 / 9))
    without, beside = (
        rcdiag("score", table, *more, "--preset", "disabled").out.splitlines()
        for more in ((), ("--logged", log))
    )
    assert sum("hardly the log of this table: 0 of 3 keys agree" in line for line in beside) == 1
    # The log may be that of another table, but a fault that it shows by itself is one of a run.
    assert sum(line.startswith("log           ") and "broken" in line for line in beside) == 1
    assert len(beside) <= len(without) + 6  # that sentence, and a finding of two lines
    assert not any(line.startswith("key ") for line in beside)


def test_a_log_that_is_broken_by_itself_fails_on_error(rcdiag, table, tmp_path):
    log = log_of(tmp_path, kl=0.5123456789, k3_kl=0.25123456, log_ppl_diff=(0.4 / 9))
    ran = rcdiag("score", table, "--logged", log, "--preset", "disabled", "--fail-on", "error")
    assert ran.code == 1
    assert "the log alone: broken" in ran.err


def test_the_document_has_the_comparison(rcdiag, table, tmp_path):
    log = log_of(tmp_path, kl=KL)
    document = rcdiag("score", table, "--logged", log, "--preset", "disabled", "--json").document
    logged = document["logged"]
    assert logged["file"] == str(log)
    assert (logged["log_format"], logged["log_steps"]) == ("jsonl", [7])
    (key,) = logged["keys"]
    assert (key["key"], key["agrees"], key["reason"]) == ("rollout_corr/kl", True, None)
    assert logged["not_ours"] == {"actor/lr": 1}
    assert {"logged-agrees"} <= {finding["slug"] for finding in document["findings"]}


def test_the_page_has_a_section(rcdiag, table, tmp_path):
    html = tmp_path / "page.html"
    log = log_of(tmp_path, kl=KL, k3_kl=0.25123456)
    rcdiag("score", table, "--logged", log, "--html", html)
    page = html.read_text().replace("<wbr>", "")  # where a long name may break
    assert "The trainer's own log" in page or "The trainer&#39;s own log" in page
    assert '">rollout_corr/k3_kl</code>' in page
    assert "not explained" in page
    rcdiag("score", table, "--html", html, "--force")
    assert "own log" not in html.read_text()


def test_a_wrong_file_is_an_error_before_anything_is_computed(rcdiag, table, tmp_path):
    ran = rcdiag("score", table, "--logged", tmp_path / "nothing.jsonl")
    ran.refuses("cannot be read")


def test_keys_named_only_in_documents_are_compared(rcdiag, table, tmp_path):
    path = tmp_path / "metrics.jsonl"
    data = {"mismatch_kl": -0.4 / 9, "mis_truncate_fraction": 0.0}
    path.write_text(json.dumps({"step": 7, **data}) + "\n")
    document = rcdiag("score", table, "--logged", path, "--trainer", "slime", "--json").document
    keys = {key["key"]: key["agrees"] for key in document["logged"]["keys"]}
    assert keys == {"mismatch_kl": True, "mis_truncate_fraction": True}


def test_a_growing_gradient_norm_is_shown_beside_the_mismatch(rcdiag, tmp_path):
    steps = range(3)
    table = dump_with_shift(tmp_path / "table.parquet", SHIFT, step=[*steps])
    log = tmp_path / "metrics.jsonl"
    norms = [0.3 + 0.01 * (step % 3) if step < 24 else 4.0 + 0.1 * (step % 3) for step in range(48)]
    log.write_text(
        "".join(
            json.dumps({"step": step, "rollout_corr/kl": KL, "actor/grad_norm": norm}) + "\n"
            for step, norm in enumerate(norms)
        )
    )
    result = tmp_path / "result.json"
    ran = rcdiag("score", table, "--logged", log, "--result", result, "-v")
    assert "actor/grad_norm (0.31 to 4.1) at step 24" in " ".join(ran.out.split())
    draw = FIGURES["training-beside-mismatch"].chart
    assert draw is not None
    chart = draw(load_result(result))
    assert [row[0] for row in chart.rows] == ["k3_kl"] * 3 + ["actor/grad_norm"] * 48
    assert [panel.x.end for panel in chart.panels] == [47, 47]


def test_keys_have_the_parts_that_tell_them_apart(rcdiag, table, tmp_path, monkeypatch):
    """Several keys of TRL and AReaL end in `/mean` or `/avg`."""
    monkeypatch.setenv("COLUMNS", "120")
    log = tmp_path / "metrics.jsonl"
    keys = ("sampling_logp_difference/mean", "importance_sampling_ratio/mean")
    log.write_text(json.dumps({"step": 7, **{f"sampling/{key}": 0.31 for key in keys}}) + "\n")
    ran = rcdiag("score", table, "--logged", log, "--trainer", "trl", "-v")
    shown = {line.split()[0] for line in ran.out.splitlines() if line.strip()}
    assert set(keys) <= shown


def test_a_drift_moves_from_a_step_on(rcdiag, table, tmp_path):
    log = tmp_path / "metrics.jsonl"
    entropy = [1.0 + 0.05 * max(step - 20, 0) + 0.01 * (step % 3) for step in range(48)]
    log.write_text(
        "".join(
            json.dumps({"step": step, "rollout_corr/kl": KL, "actor/entropy": number}) + "\n"
            for step, number in enumerate(entropy)
        )
    )
    ran = rcdiag("score", table, "--logged", log, "-v")
    assert re.search(r"actor/entropy \(1 to \S+\) from step \d+ on", " ".join(ran.out.split()))


def breaking_log(path: Path, steps: int, first_broken: int) -> Path:
    """Write a log whose k3 jumps from rounding to 1 nat, while k1 stays near 0."""
    path.write_text(
        "".join(
            json.dumps(
                {
                    "step": step,
                    "rollout_corr/kl": 1e-4 * (1 + step % 3),
                    "rollout_corr/k3_kl": 1.0 + 0.1 * (step % 3)
                    if step >= first_broken
                    else 2e-4 + 1e-5 * (step % 3),
                }
            )
            + "\n"
            for step in range(steps)
        )
    )
    return path


def test_the_headline_says_that_the_log_breaks_outside_the_steps_of_the_table(
    rcdiag, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    table = dump_with_shift(tmp_path / "table.parquet", SHIFT, step=[1, 2, 3])
    log = breaking_log(tmp_path / "log.jsonl", 40, 20)
    ran = rcdiag(
        "score", table, "--logged", log, "--trainer", "verl", "--html", tmp_path / "p.html"
    )
    said = "broken from step 20 on; this table holds steps 1 to 3, before it."
    assert f"Verdict of the log alone: {said}" in " ".join(ran.out.split())
    assert said in " ".join((tmp_path / "p.html").read_text().split())
    assert len(ran.out.splitlines()) <= 40
    inside = breaking_log(tmp_path / "log.jsonl", 40, 2)
    ran = rcdiag("score", table, "--logged", inside, "--trainer", "verl")
    assert "this table holds" not in ran.out


def test_a_table_from_within_a_fault_of_the_log_has_the_same_verdict(rcdiag, tmp_path):
    table = dump_with_shift(tmp_path / "table.parquet", SHIFT, step=[30, 31, 32])
    log = breaking_log(tmp_path / "log.jsonl", 40, 20)
    ran = rcdiag("score", table, "--logged", log, "--trainer", "verl", "--json")
    result = from_json(ran.out, "result.json")
    said = {}
    for verdict in ("broken", "correctable"):
        found = replace(result, diagnosis=replace(result.diagnosis, verdict=verdict))
        said[verdict] = headline(found, answer(found)).log
    assert said["broken"] == "The log alone gives the same verdict: broken from step 20 on."
    assert (
        "broken from step 20 on; this table holds steps 30 to 32, after it" in said["correctable"]
    )


def test_a_log_beside_a_table_of_one_policy_is_diagnosed(rcdiag, tmp_path):
    table = tmp_path / "table.parquet"
    columns = {"response_ids": [[1, 2], [3, 4]], "rollout_log_probs": [[-0.5, -0.3], [-1.0, -0.2]]}
    pl.DataFrame(columns).write_parquet(table)
    log = breaking_log(tmp_path / "log.jsonl", 40, 20)
    ran = rcdiag(
        "score", table, "--logged", log, "--trainer", "verl", "--html", tmp_path / "p.html"
    )
    screen = " ".join(ran.out.split())
    assert ran.code == 0
    assert "Verdict of the log alone: broken from step 20 on." in screen
    assert "OTHER_DUMP" in screen  # the command that adds the other policy
    assert "since the table has one policy" in screen
