"""The case of a diagnosis: rows sampled during a pass, and heads of very long rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rcdiag.diagnosis.judge import diagnose
from rcdiag.table.opening import open_table
from rcdiag.usecases.case_of_table import CaseSample, read_case
from rcdiag.usecases.compare.pairs import ComparingWalk
from rcdiag.usecases.diagnosed import diagnosis_of_table, read_and_diagnose
from rcdiag.usecases.passes import Walk, token_batches
from tests.builders import ids_like, write_table

PAIR = ("rollout", "old")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    draw = np.random.default_rng(3)
    rollout = [(-draw.exponential(1.0, 5 + row % 40)).tolist() for row in range(300)]
    old = [[value - 0.01 for value in row] for row in rollout]
    return write_table(
        tmp_path / "table.parquet",
        rows_per_group=50,
        response_ids=ids_like(rollout),
        rollout_log_probs=rollout,
        old_log_probs=old,
        step=[row // 100 for row in range(300)],
        engine=[f"e{row % 3}" for row in range(300)],
        prompt_ids=[[row] for row in range(300)],
    )


def test_rows_of_the_pass_equal_those_of_a_second_reading(path):
    table = open_table(path)
    sample = CaseSample.of(table, *PAIR)
    batches = token_batches(table, Walk(policies=PAIR), sample)
    count = sum(len(batch.lengths) for batch in batches)
    case, again = sample.case(table), read_case(table, *PAIR)
    assert (count, case.prompt_ids, case.source) == (300, None, again.source)
    for name in ("row", "lengths", "token_id", "mask"):
        assert np.array_equal(getattr(case, name), getattr(again, name)), name
    for policy in PAIR:
        assert np.array_equal(case.log_probs[policy], again.log_probs[policy])
    assert np.array_equal(case.facts.step, again.facts.step)
    assert case.facts.engine == again.facts.engine


@pytest.mark.parametrize("read", [PAIR, ("rollout",)])
def test_the_diagnosis_is_of_sampler_and_trainer_whatever_a_pass_reads(path, read):
    table = open_table(path)
    walk = ComparingWalk(policies=read, compared=read, sampler=None)
    _, diagnosis = read_and_diagnose(table, walk)
    assert diagnosis == diagnosis_of_table(table)
    assert diagnosis.pair == {"sampler": "rollout", "trainer": "old"}


@pytest.mark.parametrize("tokens", [30, 300, 3_000])
def test_samples_of_parts_merge_into_the_sample_of_the_table(path, tokens):
    table = open_table(path)
    whole = read_case(table, *PAIR, tokens=tokens)
    begun = CaseSample.of(table, *PAIR, tokens=tokens)
    for first, end in ((0, 10), (10, 260), (260, 300)):
        part = begun.of_part()
        for _ in token_batches(table, Walk(policies=PAIR), part, (first, end)):
            pass
        begun.merge(part)
    case = begun.case(table)
    assert np.array_equal(case.row, whole.row)
    assert np.array_equal(case.log_probs["old"], whole.log_probs["old"])
    assert np.array_equal(case.facts.prompt, whole.facts.prompt)


def test_a_count_of_drawn_rows_says_of_which_it_is(tmp_path):
    honest = -np.random.default_rng(4).exponential(1.0, (300, 9))
    rollout = [[*row[:8].tolist(), -9999.0] for row in honest]
    path = write_table(
        tmp_path / "sentinels.parquet",
        rows_per_group=50,
        response_ids=ids_like(rollout),
        rollout_log_probs=rollout,
        old_log_probs=(honest - 0.01).tolist(),
    )
    for tokens, part in ((300, " in the {} rows diagnosed"), (30_000, "")):
        case = read_case(open_table(path), *PAIR, tokens=tokens)
        rows = len(case.lengths)
        said = f"{rows} values of `rollout`{part.format(rows)} are exactly -9,999"
        assert said in diagnose(case).causes[0].message


def test_only_the_head_of_a_very_long_row_is_judged(path):
    whole = read_case(open_table(path), *PAIR)
    case = read_case(open_table(path), *PAIR, tokens=10)
    assert case.lengths.max() == 20
    assert case.lengths.tolist() == np.minimum(5 + case.row % 40, 20).tolist()
    starts = dict(zip(whole.row.tolist(), whole.start.tolist(), strict=True))
    for row, start, length in zip(case.row, case.start, case.lengths, strict=True):
        first = starts[int(row)]
        expected = whole.log_probs["old"][first : first + length]
        assert np.array_equal(case.log_probs["old"][start : start + length], expected)
