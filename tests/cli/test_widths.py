"""On a narrow terminal tables drop whole columns, but never the level, and break no word."""

from __future__ import annotations

import io

import pytest
from typer.testing import CliRunner

import rcdiag
from cli.app import app
from cli.terminal.compare import _matrix
from cli.terminal.console import TerminalConsole
from cli.terminal.convert import draw_convert
from cli.terminal.draw import draw
from cli.terminal.fitted_tables import ScreenColumn, fitted
from cli.terminal.replay import SHOWN
from rcdiag.glossary import explain
from rcdiag.pages.replay.words import decided_by, equal_updates
from rcdiag.pages.sweep.words import to_paste
from rcdiag.results import ConvertResult, ReplayResult, Result, Rule
from rcdiag.results.replay import Health
from tests.builders import ids_like, write_table
from tests.cli.conftest import BEHAVIOR, dump_with_shift


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, Result]:
    """One result of each command, on a small table."""
    table = tmp_path_factory.mktemp("widths") / "table.parquet"
    dump_with_shift(table, 0.5, advantage=[1.0, -1.0, 0.5])
    return {
        "score": rcdiag.score(table),
        "compare": rcdiag.compare(table),
        "sweep": rcdiag.sweep(table, thresholds=5),
        "replay": rcdiag.replay(table),
    }


def drawn(result: Result, width: int, *, verbose: bool = False) -> list[str]:
    out = TerminalConsole(file=io.StringIO(), width=width, highlight=False)
    draw(out, result, verbose=verbose)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 80])
def test_no_line_is_too_long_and_no_cell_is_cut(results, width, verbose):
    for result in results.values():
        lines = drawn(result, width, verbose=verbose)
        if result.kind == "sweep":  # a command to paste is one line, however long the path in it
            command = to_paste(result)
            assert lines.count(command) == 1
            lines.remove(command)
        assert max(map(len, lines)) <= width
        # Sentences of the first screen may be cut between words, numbers may not.
        assert not any("…" in line.replace(" …", "") for line in lines)


@pytest.mark.parametrize(
    "command",
    ["score", "compare", "sweep", "replay", "diagnose", "convert", "explain", "report"],
)
def test_no_word_of_a_help_is_cut_at_80_columns(command):
    ran = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
    assert ran.exit_code == 0
    assert max(map(len, ran.output.splitlines())) <= 80
    assert "…" not in ran.output


def test_the_matrix_of_ten_policies_is_whole_at_40_columns(tmp_path):
    """Ten columns of numbers do not fit side by side: the matrix is split, no number is cut."""
    names = ["rollout", "old", *(f"p{index}" for index in range(8))]
    shifts = {f"{name}_log_probs": index / 1000 for index, name in enumerate(names)}
    log_probs = {
        column: [[value - shift for value in row] for row in BEHAVIOR]
        for column, shift in shifts.items()
    }
    table = write_table(tmp_path / "ten.parquet", response_ids=ids_like(BEHAVIOR), **log_probs)
    result = rcdiag.compare(table)

    def matrix(width: int) -> list[list[str]]:
        out = TerminalConsole(file=io.StringIO(), width=width, highlight=False)
        out.print(_matrix(out, result, "k3_kl"))
        return [line.split() for line in out.file.getvalue().splitlines()]

    wide, narrow = matrix(200), matrix(40)
    head = [str(index) for index in range(1, 11)]
    start = wide.index(head)
    whole = [row[1:] for row in wide[start + 1 : start + 11]]
    assert all(len(row) == 10 for row in whole)
    heads = [line for line in narrow if line and set(line) < set(head)]
    assert len(heads) > 1
    assert [number for part in heads for number in part] == head
    for part in heads:
        start, first = narrow.index(part), int(part[0]) - 1
        rows = narrow[start + 1 : start + 11]
        cells = slice(first, first + len(part))
        assert rows == [[number, *row[cells]] for number, row in zip(head, whole, strict=True)]
    assert max(map(len, drawn(result, 60))) <= 60


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 80])
def test_no_word_is_broken(results, width, verbose):
    for result in results.values():
        wide = {word for line in drawn(result, 400, verbose=verbose) for word in line.split()}
        narrow = [line.split() for line in drawn(result, width, verbose=verbose)]
        blocks = set("▁▂▃▄▅▆▇█")
        words = {word for line in narrow for word in line if not set(word) & blocks}
        # Hidden columns are named; cut sentences and counts differ with the width.
        counted = ("not", "no", "and")
        captions = {word for line in narrow if line[:1] and line[0] in counted for word in line}
        captions |= {word for word in words if "/" in word} | {"t"}  # of a path longer than a line
        # Advice that does not fit is dropped with the colon before it; a sentence
        # that is cut at a colon ends in a full stop.
        ends = {f"{word.rstrip(':')}{end}" for word in wide for end in ("", ".")}
        assert words - captions - {"…", "…:"} <= wide | ends


def test_every_level_is_there_at_60_columns(results):
    score: rcdiag.ScoreResult = results["score"]
    lines = drawn(score, 60, verbose=True)
    for name, preset in score.corrections.items():
        row = next(line for line in lines if line.split()[:1] == [name])
        assert row.endswith(preset.level or "")
    for name, value in score.mismatch.items():
        if value.level is not None:
            row = next(line for line in lines if line.split()[:1] == [name])
            assert value.level in row.split()
    replay: ReplayResult = results["replay"]
    lines = drawn(replay, 60)
    for group in equal_updates(replay)[:SHOWN]:
        row = next(line for line in lines if line.startswith(f"{group.title} "))
        assert f" {group.preset.health.verdict}" in row


def test_columns_are_dropped_in_order_and_named():
    columns = [
        ScreenColumn(heading="name", align="left"),
        ScreenColumn(heading="first", dispensable=2),
        ScreenColumn(heading="then", dispensable=1),
        ScreenColumn(heading="nothing in it"),
        ScreenColumn(heading="level", align="left"),
    ]
    rows = [["a" * 20, "1", "2", "", "error"]]

    def text(width: int) -> str:
        out = TerminalConsole(file=io.StringIO(), width=width)
        out.print(fitted(out, columns, rows))
        return out.file.getvalue()

    assert "not shown" not in text(60)
    assert "nothing in it" not in text(60)
    assert "not shown: first" in text(34)
    assert "then" in text(34).splitlines()[0]
    assert "not shown: first, then" in text(28)
    assert "error" in text(28)


def test_a_word_that_is_wider_than_the_screen_goes_on_in_the_next_line():
    out = TerminalConsole(file=io.StringIO(), width=20)
    key = "training/rollout_actor_probs"
    columns = [ScreenColumn(heading="key", words=True), ScreenColumn(heading="at")]
    out.print(fitted(out, columns, [[key, "25"]]))
    rows = [line.split()[0] for line in out.file.getvalue().splitlines()[1:]]
    assert "".join(rows) == key


def test_a_column_that_is_wider_than_the_screen_is_shown_whole():
    out = TerminalConsole(file=io.StringIO(), width=40)
    column = "c" * 70
    result = ConvertResult(
        provenance={},
        output="table.parquet",
        format="verl",
        files=1,
        rows=1,
        tokens=1,
        columns=[column],
        policies=[],
        changes={},
        given={},
        dropped={},
        lacking={},
        joined=None,
    )
    draw_convert(out, result, verbose=False)
    lines = out.file.getvalue().splitlines()
    assert column in "".join(line.removeprefix("columns").strip() for line in lines)


def test_explain_has_an_entry_for_every_heading(results, monkeypatch):
    headings: dict[str, None] = {}

    def seen(out, columns, rows, gap=1):
        headings.update(dict.fromkeys(column.heading.strip() for column in columns))
        return fitted(out, columns, rows, gap)

    for command in results:
        monkeypatch.setattr(f"cli.terminal.{command}.fitted", seen)
    for result in results.values():
        drawn(result, 200, verbose=True)
    assert {"lost", "k-hat", "|c| / none", "top 1%", "ESS tok", "own k2", "best setting"} <= set(
        headings
    )
    for heading in filter(None, headings):
        explain("preset" if heading.startswith("preset of") else heading)


@pytest.mark.parametrize(
    ("heading", "name", "meaning"),
    [
        ("lost", "lost_target_mass_token", "rejected or have weight 0"),
        ("k-hat", "khat", "Pareto"),
        ("cos", "cosine", "Cosine between the gradient"),
        ("|g|", "grad_norm", "Norm of the gradient"),
        ("KL step", "kl_old_new", "before and after the step"),
        ("~", "cosine_whole", "whole gradient"),
        ("ESS seq", "ess_seq", "As correction_numbers.ess_seq_applied: "),
        ("tokens", "tokens", "As correction.kept_tokens: "),
        ("clip", "clip", "As health.clip_fraction: "),
        ("behave_approx_kl", "k1_kl", "KL"),
        ("kl_div_taylor", "k2_kl", "KL"),
        ("TRM", "TRM", "Trust Region Masking"),
    ],
)
def test_headings_that_are_also_names_have_the_same_meaning(heading, name, meaning):
    entry = explain(heading)
    assert name in entry.name
    assert meaning in entry.what


def rule(name: str, level: str) -> Rule:
    return Rule(name=name, value=1.0, level=level, message="", source="")


@pytest.mark.parametrize(
    ("verdict", "levels", "not_judged", "told"),
    [
        ("ok", ("ok", "ok"), [], ""),
        ("warning", ("ok", "warning"), [], "two"),
        ("error", ("error", "error"), [], "one"),
        ("cannot judge", ("ok", "ok"), ["direction of the gradient: give --model", "two"], "two"),
    ],
)
def test_health_names_the_rule_that_decided(verdict, levels, not_judged, told):
    rules = [rule(name, level) for name, level in zip(("one", "two"), levels, strict=True)]
    assert decided_by(Health(verdict=verdict, rules=rules, not_judged=not_judged)) == told


def test_the_deciding_rule_is_shown_beside_the_health(results):
    lines = drawn(results["replay"], 80)
    for group in equal_updates(results["replay"])[:SHOWN]:
        health = group.preset.health
        row = next(line for line in lines if line.startswith(f"{group.title} "))
        assert row.endswith(decided_by(health) or health.verdict)
