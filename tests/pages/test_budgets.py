"""Pages are small enough to be sent by mail.

`benchmarks/pages.py` measures the time to first paint; no test asserts times.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

from rcdiag.api.report import explanation
from rcdiag.pages.packing import packed_document
from rcdiag.pages.page import page
from rcdiag.results import Result, to_plain
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.score import score
from tests.builders import write_table
from tests.pages.browser import visit
from tests.pages.makers import MAKERS, SAMPLES, compared, every_preset, scored, swept_all

POLICIES = 10


def test_a_page_with_all_results_of_one_pair_is_below_700_kilobytes():
    """With all settings of a sweep, texts of rows, updates of a model, and experiments."""
    name = "stale.parquet"
    told = scored(name, text=True), swept_all(name), compared(name)
    with_model = MAKERS["replay-model"](), MAKERS["diagnose"]()
    assert len(page([*told, *with_model], explain=explanation).encode()) < 700e3


def letters(result: Result) -> int:
    return len(packed_document(to_plain(result)))


def test_30_sequences_with_text_and_the_examples_are_below_150_kilobytes():
    result = scored("stale.parquet", text=True)
    assert len(result.worst_sequences) == 30
    assert all(sequence.texts for sequence in result.worst_sequences)
    assert letters(result) - letters(replace(result, worst_sequences=[], examples=None)) < 150e3


def test_long_rows_of_random_words_with_tools_and_prompts_are_below_250_kilobytes(tmp_path):
    """Word frequencies follow Zipf's law, as in natural text."""
    random = np.random.default_rng(0)

    def drawn(count: int) -> list[int]:
        return np.exp(random.uniform(0.0, np.log(150_000), count)).astype(int).tolist()

    lengths = random.integers(700, 1500, 40).tolist()
    old = [-random.exponential(0.5, length) for length in lengths]
    rollout = [np.minimum(row + random.normal(0.0, 0.1, len(row)), 0.0) for row in old]
    write_table(
        tmp_path / "long.parquet",
        response_ids=[drawn(length) for length in lengths],
        prompt_ids=[drawn(500) for _ in lengths],
        response_mask=[(np.arange(length) % 200 < 150).astype(int).tolist() for length in lengths],
        rollout_log_probs=[row.tolist() for row in rollout],
        old_log_probs=[row.tolist() for row in old],
    )
    words = ["".join(map(chr, row)) for row in random.integers(97, 123, (150_000, 4)).tolist()]
    result = score(
        open_table(tmp_path / "long.parquet"),
        decode=lambda ids: [f" {words[one]}" for one in ids],
        plan=every_preset(),
    )
    assert len(result.worst_sequences) == 30
    assert letters(result) - letters(replace(result, worst_sequences=[], examples=None)) < 250e3


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
    seen.close()


def test_pictures_of_the_docs_are_small():
    pictures = list((Path(__file__).parents[2] / "docs" / "assets").glob("*.png"))
    assert len(pictures) >= 6
    for picture in pictures:
        assert picture.stat().st_size < 200_000, picture.name
