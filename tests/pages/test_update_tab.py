"""The tab Update against the result: differences to the reference, and which way round they are."""

from __future__ import annotations

import pytest

from rcdiag.pages.merge import merged
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
    for group, row in zip(update.grouped(result), table.rows, strict=True):
        cell = row.cells[column]
        assert cell.order == pytest.approx(group.preset.loss)
        if against in group.names:
            assert cell.note == ""
            continue
        difference, interval = cell.note.split("\n")
        written = float(difference.removeprefix("Δ ").removesuffix(" (0?)"))
        assert written == pytest.approx(group.preset.loss - reference, rel=1e-2)
        low, high = map(float, interval.split(" … "))
        assert low <= written <= high
        assert difference.endswith(" (0?)") == (low <= 0 <= high)


def test_without_paired_differences_of_an_earlier_version_the_cells_say_no_difference():
    tab = update.tab(merged([replayed_with_model()]))
    table = tab.sections[0].blocks[1]
    heads = [item.head for item in table.columns]
    for row in table.rows:
        cell = row.cells[heads.index("Gradient norm")]
        assert cell.text
        assert cell.note == ""
        assert len(row.cells) == len(heads)


def test_a_column_in_which_nothing_stands_is_left_out():
    heads = [
        column.head for column in update.tab(merged([replayed()])).sections[0].blocks[1].columns
    ]
    assert "Gradient norm" not in heads
    assert "Loss" in heads
