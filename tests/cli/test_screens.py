"""The first screen fits 40 lines of 80 columns, and help fits two screens."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from typer._completion_classes import BashComplete
from typer.main import get_command

import rcdiag as api
from cli.app import COMMANDS, app
from cli.terminal.console import TerminalConsole
from cli.terminal.draw import _fitted, draw
from cli.terminal.explain import draw_explanation
from cli.terminal.headline import shortened_to
from rcdiag.formats import measured
from rcdiag.pages.headline import answer, finding_parts
from rcdiag.results import Finding, MetricValue, Result
from tests.usecases.compare.tables import write_policies
from tests.usecases.diagnosed_tables import TABLES, written

SAMPLES = Path(__file__).parents[2] / "sample_data"
TABLES_OF_SAMPLES = ("rollouts", "stale", "temperature", "multi_turn")
# The longest screens of the diagnosed tables: two faults, many findings, invalid values.
LONGEST = ("divided", "zeros", "last step", "both NaN", "louder noise", "few rows")
LINES = 40


def screen(
    result: Result, width: int = 80, *, verbose: bool = False, has_page: bool = False
) -> list[str]:
    out = TerminalConsole(file=io.StringIO(), width=width, highlight=False)
    draw(out, result, verbose=verbose, has_page=has_page)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def test_the_last_line_names_the_option_of_a_page_until_there_is_one():
    result = api.score(SAMPLES / "stale.parquet")
    assert screen(result)[-1].endswith("page: --html")
    assert "--html" not in screen(result, has_page=True)[-1]


@pytest.mark.parametrize("command", ["score", "compare", "diagnose"])
@pytest.mark.parametrize("name", TABLES_OF_SAMPLES)
def test_the_screen_of_a_sample_has_40_lines_of_80_columns(command, name):
    lines = screen(getattr(api, command)(SAMPLES / f"{name}.parquet"))
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", ["score", "compare"])
@pytest.mark.parametrize("name", LONGEST)
def test_the_screen_of_a_broken_table_has_40_lines(command, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = getattr(api, command)(written(name, Path()))
    assert len(screen(result)) <= LINES
    assert name in TABLES


def test_a_high_headline_leaves_room_for_two_findings(tmp_path, monkeypatch):
    """Why, what else and what changed are cut first; what to do and the findings stay."""
    monkeypatch.chdir(tmp_path)
    result = api.score(written("last step", Path()))
    findings = [f"note{at}" for at in range(5)]
    more = replace(result, findings=[replace(result.findings[0], slug=slug) for slug in findings])
    lines = screen(more)
    assert len(lines) <= LINES
    shown = [slug for slug in findings if any(slug in line for line in lines)]
    assert shown == findings[: len(shown)]
    assert len(shown) >= 2
    assert any(line.startswith("do       1") for line in lines)


def test_no_error_is_hidden_and_no_number_is_cut(tmp_path, monkeypatch):
    """Errors take the lines of evidence and of ruled-out causes; long advice is left out."""
    monkeypatch.chdir(tmp_path)
    result = api.score(written("last step", Path()))
    names = ["khat_token", "khat_seq", "ess_seq", "ess_token", "kappa"]
    errors = [
        replace(
            result.findings[0],
            slug=f"fault-{at}",
            severity="error",
            evidence=dict.fromkeys(names),
            fix="find the cause first",
        )
        for at in range(6)
    ]
    lines = screen(replace(result, findings=[*errors, *result.findings]))
    assert len(lines) <= LINES
    shown = [line for line in lines if line.startswith("error  fault-")]
    assert len(shown) == len(errors)
    first = f"khat_token {measured(result.mismatch['khat_token'])[0]},"
    assert all(first in line and ": find the cause first" in line for line in shown)


def test_a_finding_of_one_long_word_is_cut_within_it():
    """As a path: to leave it out would leave the line empty."""
    result = api.score(SAMPLES / "stale.parquet")
    path = f"/{'folder/' * 20}run.yaml"
    finding = Finding(slug="x", severity="error", message=path, fix="move it", evidence={})
    lines = screen(replace(result, findings=[finding] * 30))
    shown = [line for line in lines if line.startswith("error  x")]
    assert shown
    assert all("/folder/folder/" in line for line in shown)


def test_the_reason_of_a_finding_is_shown_after_the_name_of_its_place():
    finding = Finding(
        slug="trainer-refuses",
        severity="error",
        message="config: rollout_rs geometric is not known; verl calls it seq_mean_k1",
        fix="change the settings",
        evidence={},
    )
    result = api.score(SAMPLES / "stale.parquet")
    what, to_do = finding_parts(finding, result)
    assert what == "config: rollout_rs geometric is not known"
    assert to_do == "change the settings"


def test_an_explanation_of_a_cause_fits_the_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    draw_explanation(api.explain("temperature-raw-recorded"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= LINES
    assert any("https://github.com/huggingface/trl/issues/4159" in line for line in lines)


@pytest.mark.parametrize("count", [3, 6, 10])
def test_the_screen_of_many_policies_has_40_lines(count, tmp_path):
    names = ["rollout", *(f"p{index}" for index in range(count - 2)), "old"]
    rows = [[-0.5, -1.5, -0.1], [-0.2, -2.0]] * 10
    values = {
        name: [[value - 0.02 * index for value in row] for row in rows]
        for index, name in enumerate(names)
    }
    result = api.compare(write_policies(tmp_path / "t.parquet", values))
    lines = screen(result)
    assert len(lines) <= LINES
    assert all(any(name in line.split() for line in lines) for name in names)
    assert len(screen(result, verbose=True)) > len(lines)


def test_the_verdict_is_the_first_line_and_the_hint_to_more_the_last():
    result = api.score(SAMPLES / "temperature.parquet")
    lines = screen(result)
    assert lines[0].startswith("broken        temperature-raw-recorded, ")
    assert lines[-1].split()[:1] == ["more"]
    assert "-v" in lines[-1]
    assert sum(line.startswith(("no effect", "cost most", "default")) for line in lines) == 3
    metrics = [line.split()[0] for line in lines if line.split()[:1] and "_" in line.split()[0]]
    assert "k3_kl" in metrics


def test_a_screen_says_why_a_level_of_error_counts_as_less():
    beside = "No metric counts as worse than warning: importance weights are valid here."
    for table, said in (("stale", 1), ("rollouts", 0), ("temperature", 0)):
        result = api.score(SAMPLES / f"{table}.parquet")
        assert screen(result).count(beside) == said, table


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_legend_explains_the_columns_that_are_shown(width):
    lines = screen(api.replay(SAMPLES / "rollouts.parquet"), width)
    (heading,) = [line for line in lines if line.startswith("preset ")]
    assert ("top 1%" in heading) == any("top 1%: share of" in line for line in lines)


def test_every_finding_has_one_line_that_refers_to_the_cause():
    result = api.score(SAMPLES / "temperature.parquet")
    lines = screen(result)
    shown = [
        [one for one in lines if one.startswith(f"{finding.severity}  {finding.slug}  ")]
        for finding in result.findings
    ]
    assert all(len(found) <= 1 for found in shown)
    hidden = sum(not found for found in shown)
    assert hidden < len(shown) - 1
    assert any(f"and {hidden} more finding" in line for line in lines) == (hidden > 0)
    (sampler,) = [line for line in lines if "behavior-is-not-the-sampler" in line]
    assert sampler.endswith("see action 1")
    assert "proposal" not in "\n".join(lines)  # sources are with -v
    assert "proposal" in "\n".join(screen(result, verbose=True))


def test_a_wide_terminal_describes_metrics_and_a_narrow_one_names_hidden_columns():
    result = api.score(SAMPLES / "stale.parquet")
    assert any("what it is" in line for line in screen(result, 140))
    assert any(line.strip().startswith("not shown:") for line in screen(result, 45))


def test_an_effective_number_of_sequences_is_whole_from_10_on():
    result = api.score(SAMPLES / "rollouts.parquet")
    near = MetricValue(value=0.9959, low=0.9939, high=0.9969)
    line = answer(replace(result, mismatch={**result.mismatch, "ess_seq": near}))
    assert "ESS 2,295 (2,290 to 2,297) of 2,304 sequences" in line


def test_advice_stands_on_a_line_whole_or_not_at_all():
    assert _fitted("k2 -0.1, k3 -0.2", "use k2_kl, or the other estimate", 40) == "k2 -0.1, k3 -0.2"
    assert (
        _fitted("k2 0.1, k3 0.2, k1 0.3", "see action 1", 36) == "k2 0.1, k3 0.2, …: see action 1"
    )


def test_a_narrow_screen_has_more_lines_and_the_same_actions():
    result = api.replay(SAMPLES / "stale.parquet")
    lines = screen(result, 60)
    assert LINES < len(lines) <= LINES * 80 // 60
    assert sum(line.split()[:1] in (["2"], ["3"]) for line in lines) == 2  # after `do  1`
    assert not any(line.endswith("…") for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_two_screens_and_help_all_has_every_option(rcdiag, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    ran = rcdiag(command, "--help")
    assert ran.code == 0
    assert len(ran.out.splitlines()) <= 80
    everything = rcdiag(command, "--help-all")
    assert everything.code == 0
    assert len(everything.out.splitlines()) > len(ran.out.splitlines())
    assert "…" not in everything.out  # examples must not be cut
    assert "…" not in ran.out
    assert len(rcdiag(command, "--help").out.splitlines()) == len(ran.out.splitlines())


@pytest.mark.parametrize(
    ("words", "begun", "completed"),
    [
        ("score --trainer", "sli", "slime"),
        ("score --trainer slime --preset", "ice", "icepop_by_flag"),
        ("replay --optimizer", "a", "adamw"),
        ("score --fail-on", "w", "warning"),
    ],
)
def test_the_shell_completes_names_and_choices(words, begun, completed):
    command, *options = words.split()
    completion = BashComplete(get_command(app), {}, "rcdiag", "_RCDIAG_COMPLETE")
    found = completion.get_completions([command, *options], begun)
    assert completed in [item.value for item in found]


@pytest.mark.parametrize("command", ["score", "compare", "diagnose"])
@pytest.mark.parametrize("level", ["warning", "error"])
def test_a_table_with_one_policy_is_not_healthy(rcdiag, tmp_path, monkeypatch, command, level):
    """Nor is it healthy if its values are rounded, which is harmless with two policies."""
    table = pq.read_table(SAMPLES / "stale.parquet").drop_columns(["old_log_probs"])
    rounded = [[round(value, 3) for value in row] for row in table["rollout_log_probs"].to_pylist()]
    place = table.column_names.index("rollout_log_probs")
    column = pa.array(rounded, pa.list_(pa.float32()))
    pq.write_table(table.set_column(place, "rollout_log_probs", column), tmp_path / "one.parquet")
    monkeypatch.chdir(tmp_path)
    ran = rcdiag(command, "one.parquet", "--fail-on", level)
    assert ran.code == 1
    assert "one policy" in ran.err
    assert "rcdiag score one.parquet --model CKPT" in " ".join(ran.out.split())
    assert "nothing to do" not in ran.out.lower()
    assert rcdiag(command, "one.parquet").code == 0


def test_nan_spans_without_a_mask_suggest_a_missing_mask(tmp_path):
    table = pq.read_table(SAMPLES / "multi_turn.parquet")
    mask = table["response_mask"].to_pylist()
    place = table.column_names.index("rollout_log_probs")
    values = [
        [value if kept else float("nan") for value, kept in zip(row, own, strict=True)]
        for row, own in zip(table["rollout_log_probs"].to_pylist(), mask, strict=True)
    ]
    table = table.set_column(place, "rollout_log_probs", pa.array(values, pa.list_(pa.float32())))
    pq.write_table(table.drop_columns(["response_mask"]), tmp_path / "t.parquet")
    diagnosis = api.score(tmp_path / "t.parquet").diagnosis
    assert [cause.slug for cause in diagnosis.causes][:1] == ["mask-includes-tool"]
    assert "mask is missing" in diagnosis.summary
    alone = table.drop_columns(["response_mask", "old_log_probs"])
    pq.write_table(alone, tmp_path / "one.parquet")
    diagnosis = api.score(tmp_path / "one.parquet").diagnosis
    assert [cause.slug for cause in diagnosis.causes] == ["mask-includes-tool"]


def test_nan_to_the_end_of_a_response_does_not_suggest_a_missing_mask(tmp_path):
    rows = [[-0.5] * 30 for _ in range(20)]
    spoilt = [[*row[:20], *[float("nan")] * 10] for row in rows]
    path = write_policies(tmp_path / "t.parquet", {"rollout": spoilt, "old": rows})
    causes = api.score(path).diagnosis.causes
    assert "mask-includes-tool" not in [cause.slug for cause in causes]


@pytest.mark.parametrize(
    ("names", "pair"),
    [("a", "--behavior rollout, --target a"), ("a, b", "--behavior a, --target b")],
)
def test_policies_that_are_not_needed_are_refused_before_scoring(rcdiag, names, pair):
    policies = [word for one in names.split(", ") for word in ("--policy", f"{one}=hf:float32")]
    words = (*policies, "--model", "CKPT")
    ran = rcdiag("score", SAMPLES / "rollouts.parquet", *words)
    ran.refuses(f"{names} would be scored and then not used", pair)
    dump = SAMPLES / "rollouts.parquet"
    assert f"rcdiag compare {dump} {' '.join(words)}" in ran.err


def test_another_pair_than_the_judged_one_has_its_own_numbers_and_advice(rcdiag):
    """The tokens of the stale sample are not those of `old`: its numbers are weighted."""
    ran = rcdiag("score", SAMPLES / "stale.parquet", "--behavior", "old", "--target", "rollout")
    assert "KL(old || rollout) 0.026" in ran.out
    assert "ESS 1 of 256" not in ran.out
    assert "old did not sample; means over tokens are reweighted from the sampler" in ran.out
    assert "see do" not in ran.out


def test_policies_that_engines_scored_are_not_known_to_have_sampled(rcdiag, tmp_path):
    table = pq.read_table(SAMPLES / "stale.parquet")
    names = {"rollout_log_probs": "a_log_probs", "old_log_probs": "b_log_probs"}
    scored = {name: {"backend": "hf", "options": {}} for name in "ab"}
    path = tmp_path / "scored.parquet"
    table = table.rename_columns([names.get(name, name) for name in table.schema.names])
    metadata = {"rcdiag": json.dumps({"policies": scored})}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    ran = rcdiag("score", path, "--behavior", "a", "--target", "b")
    assert "a is not known to have sampled; means over tokens" in ran.out
    assert "a did not sample" not in ran.out


def test_too_few_tokens_name_the_next_step(tmp_path):
    rows = [[-0.5, -1.5]] * 4
    shifted = [[value - 0.01 for value in row] for row in rows]
    path = write_policies(tmp_path / "t.parquet", {"rollout": rows, "old": shifted})
    diagnosis = api.score(path).diagnosis
    assert diagnosis.verdict == "inconclusive"
    assert diagnosis.summary.startswith("8 sampled tokens with log-probs of both sides are too few")
    assert diagnosis.next[0].text == "take more rows: 200 tokens with log-probs of both sides"


def test_the_dump_of_another_trainer_hints_at_its_presets(tmp_path):
    rows = [[-0.5, -1.5]] * 4
    path = write_policies(tmp_path / "t.parquet", {"rollout": rows, "old": rows})
    table = pq.read_table(path)
    said = json.dumps({"format_version": 1, "conversion": {"format": "slime"}})
    pq.write_table(table.replace_schema_metadata({"rcdiag": said}), path)
    slugs = [finding.slug for finding in api.score(path).findings]
    assert "trainer-not-chosen" in slugs
    chosen = [finding.slug for finding in api.score(path, trainer="slime").findings]
    assert "trainer-not-chosen" not in chosen


def test_column_names_of_another_trainer_hint_at_its_presets(tmp_path, rcdiag):
    names = ("completion_ids", "sampling_per_token_logps", "old_per_token_logps")
    row = dict(zip(names, ([5, 6], [-0.5, -1.5], [-0.5, -1.4]), strict=True))
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(row)}\n" * 4)
    (note,) = [one for one in api.score(path).findings if one.slug == "trainer-not-chosen"]
    assert note.message.startswith("the column names are from trl, the presets are those of verl-")
    chosen = api.score(path, trainer="trl").findings
    assert "trainer-not-chosen" not in [one.slug for one in chosen]
    screen = " ".join(rcdiag("score", path, "-v").out.split())
    assert f"recognised {', '.join(f'`{name}`' for name in names)} by name" in screen


def test_missing_columns_of_convert_are_valid_options(rcdiag, tmp_path):
    table = pq.read_table(SAMPLES / "stale.parquet").slice(0, 4)
    gone = ["rollout_log_probs", "old_log_probs"]
    pq.write_table(table.drop_columns(gone), tmp_path / "t.parquet")
    ran = rcdiag("convert", tmp_path / "t.parquet", "-o", tmp_path / "c.parquet", "--json")
    ways = {ran.document["lacking"][column] for column in gone}
    (command,) = ways
    words = command.replace("CKPT", str(SAMPLES / "policy/step_8")).split()[1:]
    tried = rcdiag(*words, "--dry-run")
    assert tried.code == 0
    assert "would score `rollout`" in tried.err
    assert "would score `old`" in tried.err


def test_a_missing_checkpoint_is_a_placeholder_in_commands(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    commands = [
        action.command
        for cause in api.score(SAMPLES / "stale.parquet").diagnosis.causes
        for action in cause.actions
        if action.command and action.command.startswith("rcdiag diagnose")
    ]
    assert commands
    assert all("sample_data/policy" not in command.split("--model")[1] for command in commands)


def test_counts_of_one_are_singular(rcdiag, tmp_path):
    path = write_policies(tmp_path / "t.parquet", {"rollout": [[-0.5]], "old": [[-0.4]]})
    out = rcdiag("score", path).out
    assert "1 response, 1 token" in out
    assert "1 sequences" not in out


def with_positive_rows(path: Path, rows: int) -> Path:
    """Write stale.parquet with a positive log-prob of `old` in its first rows."""
    table = pq.read_table(SAMPLES / "stale.parquet")
    values = table["old_log_probs"].to_pylist()
    values = [[0.5, *row[1:]] if at < rows else row for at, row in enumerate(values)]
    place = table.column_names.index("old_log_probs")
    pq.write_table(table.set_column(place, "old_log_probs", pa.array(values)), path)
    return path


def test_ess_is_relative_to_the_measured_rows(tmp_path):
    result = api.score(with_positive_rows(tmp_path / "t.parquet", 56))
    lines = screen(result)
    numbers = " ".join(" ".join(lines).split())
    share = result.mismatch["ess_seq"]
    found = re.search(r"ESS (\d+) \(up to (\d+)\) of 200 sequences, without 56 rows of", numbers)
    assert found, numbers
    shown = [int(number) / 200 for number in found.groups()]
    # The digits are those of the interval, 10 sequences here.
    assert shown == pytest.approx([share.value, share.high], abs=0.025)
    tokens = f"256 responses, {result.num_tokens:,} tokens, 56 rows left out"
    assert tokens in numbers
    assert "presets over all 256 rows, as the trainer computes" in numbers
    (finding,) = [line for line in lines if "positive-log-probs" in line]
    assert "positive-log-probs  56 unmasked log-probs of `old` are positive" in finding


def test_the_screen_says_if_it_describes_part_of_the_table(rcdiag):
    """Diagnosis reads a part of a large table: blocks of rows."""
    document = rcdiag("diagnose", SAMPLES / "rollouts.parquet", "--json").document
    counts = f"{document['num_sequences']:,} of 2,304 responses, {document['num_tokens']:,} tokens"
    assert document["num_sequences"] < 2304
    assert counts in rcdiag("diagnose", SAMPLES / "rollouts.parquet").out


def test_a_replay_says_which_numbers_are_of_one_step(rcdiag):
    """The diagnosis is of the whole table, the updates are those of one step."""
    lines = rcdiag("replay", SAMPLES / "rollouts.parquet").out.splitlines()
    head = " ".join(" ".join(lines).split())
    (batch,) = [line for line in lines if "vanilla loss" in line]
    found = re.match(r"step (\d+): (\d+) of 2,304 sequences, [\d,]+ tokens, ", batch)
    assert found
    assert "rollouts.parquet, 2,304 responses" in head
    assert f"numbers step {found[1]} alone: " in head


def test_one_policy_leaves_only_the_comparison_open(tmp_path):
    table = pq.read_table(SAMPLES / "stale.parquet").drop_columns(["old_log_probs"])
    rounded = [[round(value, 3) for value in row] for row in table["rollout_log_probs"].to_pylist()]
    place = table.column_names.index("rollout_log_probs")
    path = tmp_path / "one.parquet"
    pq.write_table(table.set_column(place, "rollout_log_probs", pa.array(rounded)), path)
    first = " ".join(screen(api.score(path))[:2])
    assert first.startswith("inconclusive  stored-rounded, ")
    assert "open" not in first


def test_one_blank_line_is_above_the_findings_of_one_policy(tmp_path):
    table = pq.read_table(SAMPLES / "stale.parquet").drop_columns(["old_log_probs"]).slice(0, 6)
    pq.write_table(table, tmp_path / "one.parquet")
    lines = screen(api.score(tmp_path / "one.parquet"))
    assert any(line.startswith("note  few-clusters") for line in lines)
    assert "\n\n\n" not in "\n".join(lines)


def test_a_sentence_is_cut_where_it_or_a_clause_of_it_ends():
    text = "The two forward passes differ. The table does not show why: one of the two is wrong."
    assert shortened_to(text, 40, 3) == "\n".join(
        [
            "The two forward passes differ. The table",
            "does not show why: one of the two is",
            "wrong.",
        ]
    )
    assert shortened_to(text, 40, 2).split("\n")[-1] == "does not show why."
    assert shortened_to(text, 40, 1) == "The two forward passes differ."
    late = "The two forward passes differ. The table does not show at all why this one is wrong."
    assert shortened_to(late, 40, 2) == "The two forward passes differ."
    assert shortened_to("one two three four five six seven", 20, 1) == "one two three four …"


def test_all_names_are_listed_by_kind_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(TerminalConsole, "is_terminal", True)
    draw_explanation(api.explain())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= LINES
    assert any("Metrics of a pair of policies" in line and "k3_kl" in line for line in lines)
    assert "rcdiag explain | less" in lines[-1]


def test_a_table_that_is_diagnosed_by_a_part_of_its_rows_says_so():
    result = api.score(SAMPLES / "rollouts.parquet")
    judged = result.diagnosis.judged_rows
    assert 0 < judged < result.num_sequences == 2304
    assert f"2,304 responses ({judged:,} diagnosed)" in " ".join(" ".join(screen(result)).split())


def test_the_screen_of_a_broken_log_keeps_the_next_step(tmp_path):
    """Rows of the tables of keys and of broken relations give way to it."""
    sound = {"kl": 1e-5, "k3_kl": 1e-5, "training_log_ppl": 1.0, "rollout_log_ppl": 1.0}
    sound |= {"chi2_token": 9e-5, "chi2_seq": 0.02, "log_ppl_diff": 1e-5}
    wrong = {"kl": 16.0, "k3_kl": 15.0, "training_log_ppl": 17.0, "rollout_log_ppl": 1.0}
    wrong |= {"chi2_token": -1.0, "chi2_seq": -1.0, "log_ppl_diff": 16.0}
    rows = []
    for step in range(1, 41):
        numbers = sound if step < 22 else wrong
        row = {f"rollout_corr/{key}": x * (1 + 0.01 * (step % 3)) for key, x in numbers.items()}
        row |= {"training/rollout_actor_probs_pearson_corr": 0.002 if step >= 22 else 0.9999}
        row |= {"training/rollout_probs_diff_mean": 0.5 if step >= 22 else 0.001}
        row |= {"actor/entropy": 5.7 if step >= 22 else 1.0, "rollout_corr/rollout_is_mean": 1.0}
        rows.append(json.dumps({"step": step, "data": row}))
    path = tmp_path / "verl.jsonl"
    path.write_text("\n".join(rows))
    result = api.diagnose(path)
    lines = screen(result)
    assert len(lines) <= LINES
    assert [line for line in lines if line.startswith("next")]
    assert "more (all: -v)" in " ".join(lines)
