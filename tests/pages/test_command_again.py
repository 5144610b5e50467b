"""The command that adds a row to a page is the original command with one more option."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rcdiag.pages.command_again import sweep_command, with_sequence
from rcdiag.pages.merge import merged
from rcdiag.pages.tabs import corrections
from tests.pages.makers import MAKERS


@pytest.mark.parametrize(
    ("made_by", "again"),
    [
        (
            "rcdiag score 'my table.parquet' --target hf --html a.html",
            "rcdiag score 'my table.parquet' --target hf --html a.html --sequence ROW --force",
        ),
        (
            "rcdiag score a.parquet --result a.json --force",
            "rcdiag score a.parquet --result a.json --force --sequence ROW --html page.html",
        ),
        ("train.py --lr 1", "rcdiag.score(..., sequences=[ROW])"),
        ("rcdiag score 'a.parquet", "rcdiag.score(..., sequences=[ROW])"),
        ("", "rcdiag.score(..., sequences=[ROW])"),
    ],
)
def test_the_command(made_by, again):
    result = MAKERS["score"]()
    made = replace(result, provenance={**result.provenance, "command": made_by})
    assert with_sequence(made) == again


@pytest.mark.parametrize(
    ("made_by", "command"),
    [
        (
            "rcdiag score 'a b.parquet' c.parquet --html a.html --target hf --seed=3 -q",
            "rcdiag sweep 'a b.parquet' c.parquet --target hf --seed=3",
        ),
        ("train.py", "rcdiag sweep x.parquet"),
    ],
)
def test_another_command_reads_the_same_data(made_by, command):
    result = MAKERS["score"]()
    made = replace(result, provenance={"command": made_by, "dump": ["x.parquet"]})
    assert sweep_command(made) == command


def test_corrections_without_a_sweep_name_it_as_the_next_step():
    tab = corrections.tab(merged([MAKERS["score"]()]))
    assert "families" in [section.name for section in tab.sections]
    fix = corrections.tab(merged([MAKERS["score-temperature"]()]))
    assert "families" not in [section.name for section in fix.sections]
