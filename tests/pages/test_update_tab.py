"""The tab Update against the result: differences to the reference preset, with their sign."""

from __future__ import annotations

import pytest

from rcdiag.pages.merge import merged
from rcdiag.pages.replay.model_step import after_step, gradients
from rcdiag.pages.replay.words import HEALTH, equal_updates
from rcdiag.pages.tabs import update
from tests.pages.makers import replayed, replayed_with_model


@pytest.fixture(scope="module")
def result():
    return replayed()


def test_a_difference_is_the_same_from_both_sides(result):
    for one, others in result.paired.items():
        for other, pair in others.items():
            there = update.difference(result, [one], [other], "loss")
            back = update.difference(result, [other], [one], "loss")
            assert there == pair.loss
            assert back.value == -there.value
            assert (back.low, back.high) == (-there.high, -there.low)


def test_every_group_but_the_reference_has_its_difference_with_an_interval(result):
    dump = merged([result])
    against = update.reference(dump)
    tab = update.tab(dump)
    table = tab.sections[0].blocks[1]
    column = [item.head for item in table.columns].index("Loss")
    reference = result.presets[against].loss
    groups = {group.names: group for group in equal_updates(result)}
    assert {row.names for row in table.rows} == set(groups)
    for row in table.rows:
        group, cell = groups[row.names], row.cells[column]
        assert cell.order == pytest.approx(group.preset.loss)
        if against in group.names:
            assert cell.note == ""
            continue
        difference, interval = cell.note.split("\n")
        written = float(difference.removeprefix("Δ "))
        low, high = (float(end) for end in interval.split(" to "))
        # A number has the digits that its interval supports.
        assert written == pytest.approx(group.preset.loss - reference, abs=0.05 * (high - low))
        assert low <= written <= high


def test_the_reference_is_first_then_the_safest_presets():
    dump = merged([replayed_with_model()])
    rows = update.tab(dump).sections[0].blocks[1].rows
    assert update.reference(dump) in rows[0].names
    assert rows[0].tag == "reference"
    verdicts = [dump.replay.presets[row.names[0]].health.verdict for row in rows[1:]]
    assert len(set(verdicts)) > 1
    assert verdicts == sorted(verdicts, key=HEALTH.index)


def test_without_paired_differences_of_an_earlier_version_the_cells_say_no_difference():
    tab = update.tab(merged([replayed_with_model()]))
    table = tab.sections[0].blocks[1]
    heads = [item.head for item in table.columns]
    for row in table.rows:
        cell = row.cells[heads.index("Gradient norm")]
        assert cell.text
        assert cell.note == ""
        assert len(row.cells) == len(heads)


def test_an_empty_column_is_left_out():
    heads = [
        column.head for column in update.tab(merged([replayed()])).sections[0].blocks[1].columns
    ]
    assert "Gradient norm" not in heads
    assert "Loss" in heads


def test_presets_with_equal_steps_share_a_row_of_the_figures():
    result = replayed_with_model()
    chart = after_step(result)
    names = [row[0] for row in chart.rows]
    others = [name for row in chart.rows if row[-1] for name in row[-1].split(", ")]
    assert others
    assert sorted([*names, *others]) == sorted(result.presets)
    assert len({row[1:4] for row in chart.rows}) == len(chart.rows)


@pytest.mark.parametrize("chart", [gradients, after_step])
def test_rows_of_figures_are_sorted_by_health(chart):
    result = replayed_with_model()
    verdicts = [result.presets[row[0]].health.verdict for row in chart(result).rows]
    assert len(set(verdicts)) > 1
    assert verdicts == sorted(verdicts, key=HEALTH.index)
