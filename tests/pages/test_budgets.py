"""Pages are small enough to send around.

`benchmarks/pages.py` measures how soon they are painted: a limit of time is not a test.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rcdiag.api.report import explanation
from rcdiag.pages.page import packed, page, shortened
from rcdiag.table.table import open_table
from rcdiag.usecases.compare.run import compare
from tests.pages.browser import visit
from tests.pages.makers import SAMPLES, scored, whole

POLICIES = 10


def test_all_that_is_known_of_one_pair_is_below_700_kilobytes():
    assert len(page(whole(), explain=explanation).encode()) < 700e3


def test_30_sequences_with_text_and_the_examples_are_below_150_kilobytes():
    result = scored("stale.parquet", text=True)
    assert len(result.worst_sequences) == 30
    assert all(sequence.texts for sequence in result.worst_sequences)
    without = replace(result, worst_sequences=[], examples=None)
    assert len(packed(shortened(result))) - len(packed(shortened(without))) < 150e3


@pytest.mark.slow  # half a minute: 45 pairs
def test_ten_policies_are_below_1200_kilobytes(tmp_path):
    table = pl.read_parquet(SAMPLES / "stale.parquet")
    random = np.random.default_rng(0)
    lengths = table["old_log_probs"].list.len()
    flat = table["old_log_probs"].explode().to_numpy()
    for index in range(POLICIES - 2):
        noisy = np.minimum(flat + random.normal(0.0, 0.01 * (index + 1), len(flat)), 0.0)
        ends = np.cumsum(lengths.to_numpy())
        rows = [part.astype(np.float32).tolist() for part in np.split(noisy, ends[:-1])]
        table = table.with_columns(pl.Series(f"engine_{index}_log_probs", rows))
    file = tmp_path / "ten.parquet"
    table.write_parquet(file)
    text = page(compare(open_table(file)), explain=explanation)
    assert len(text.encode()) < 1.2e6


@pytest.mark.browser
def test_nothing_scrolls_sideways_on_a_tablet(browser, rendered):
    seen = visit(browser, rendered("whole"), viewport={"width": 800, "height": 900})
    for tab in seen.tabs():
        seen.go(tab)
        assert seen.overflow <= 0, tab
    seen.page.context.close()


def test_pictures_of_the_docs_are_small():
    pictures = list((Path(__file__).parents[2] / "docs" / "assets").glob("*.png"))
    assert len(pictures) >= 6
    for picture in pictures:
        assert picture.stat().st_size < 200_000, picture.name
