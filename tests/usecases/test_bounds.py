"""Tables of extreme shapes are walked in bounded memory, or refused with the limit named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rcdiag.corrections.reduced import PackedReductions
from rcdiag.corrections.sequences import rows_of
from rcdiag.errors import RcdiagError
from rcdiag.statistics.packed import PackedColumns
from rcdiag.statistics.pair import PolicyPair
from rcdiag.table.opening import open_table
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.corrected import wanted_quantities
from rcdiag.usecases.passes import token_batches
from rcdiag.usecases.score import PairWalk, _read, score
from rcdiag.usecases.sweep.run import sweep
from tests.builders import write_table
from tests.corrections.builders import presets_of
from tests.statistics.comparisons import assert_near

ROWS = 4_096
MOST_OF_OTHERS = {1: 40, 20: 80}  # by length, bytes a sequence; 14 numbers take 112 unpacked


def stored(tmp_path: Path, rows: int, length: int, steps: int = 1) -> Path:
    """A table of rows of one length, four rows to a group, in float32 as dumps are."""
    random = np.random.default_rng(0)
    behavior = -random.exponential(1.0, (rows, length)).astype(np.float32)
    noise = random.normal(0.0, 0.01, behavior.shape).astype(np.float32)
    path = tmp_path / "table.parquet"
    write_table(
        path,
        response_ids=random.integers(0, 32_000, behavior.shape).tolist(),
        rollout_log_probs=pa.array(list(behavior)),
        old_log_probs=pa.array(list(np.minimum(behavior + noise, 0.0))),
        step=(np.arange(rows) * steps // rows).tolist(),
        group_id=(np.arange(rows) // 4).tolist(),
    )
    return path


@pytest.fixture(scope="module")
def plan() -> Plan:
    return presets_of("verl-0.9")


@pytest.mark.parametrize("command", [score, compare, sweep])
def test_a_row_beyond_the_limit_is_refused_with_the_limit(tmp_path, monkeypatch, command):
    monkeypatch.setattr("rcdiag.table.decode.MOST_TOKENS_OF_ROW", 49)
    path = stored(tmp_path, rows=4, length=50)
    with pytest.raises(RcdiagError) as caught:
        command(open_table(path))
    assert caught.value.message == f"{path}, row 0: a response of 50 tokens; the limit is 49"
    assert caught.value.hint


def test_long_rows_that_stand_together_are_walked_apart(tmp_path, monkeypatch, plan):
    path = stored(tmp_path, rows=60, length=40, steps=3)
    expected = score(open_table(path), plan=plan)
    walked: list[int] = []
    whole = PairWalk._of

    def seen(self, batch, *others):
        walked.append(len(batch.token_id))
        return whole(self, batch, *others)

    monkeypatch.setattr(PairWalk, "_of", seen)
    monkeypatch.setattr("rcdiag.usecases.passes.MOST_TOKENS_OF_BATCH", 200)
    result = score(open_table(path), plan=plan)
    assert max(walked) == 200
    assert sum(walked) == 2_400
    for name in ("mismatch", "corrections", "steps", "profiles", "worst_sequences"):
        assert_near(getattr(result, name), getattr(expected, name), name)


@pytest.mark.parametrize(("length", "most"), [(1, 46), (20, 112)])
def test_presets_keep_few_bytes_of_a_sequence(tmp_path, plan, length, most):
    """Of 39 numbers a sequence, which took 312 bytes; the suite's own and theirs took 104."""
    path = stored(tmp_path, rows=ROWS, length=length)
    reading = _read(open_table(path), "rollout", "old", plan, None, None)
    assert reading.rows is not None
    (rows,) = reading.rows.steps.values()
    assert isinstance(rows.columns, PackedReductions)
    assert len(rows) == ROWS
    assert len(rows.columns.packed.places) > 36
    assert rows.columns.packed.nbytes < most * ROWS
    (suite,) = reading.state.suites.values()
    assert isinstance(rows.own, PackedColumns)
    assert isinstance(suite.table.columns, PackedColumns)
    assert rows.own.nbytes + suite.table.columns.nbytes < MOST_OF_OTHERS[length] * ROWS


def test_packed_rows_give_what_plain_ones_give(tmp_path, plan):
    path = stored(tmp_path, rows=ROWS, length=3)
    reading = _read(open_table(path), "rollout", "old", plan, None, None)
    assert reading.rows is not None
    (packed,) = reading.rows.steps.values()
    walk = PairWalk(policies=("rollout", "old"), plan=plan)
    with ThreadPoolExecutor(1) as executor:
        batches = token_batches(open_table(path), walk.policies, executor)
        pairs = [PolicyPair(batch, *walk.policies) for batch in batches]
        plain = [rows_of(pair, wanted_quantities(plan)) for pair in pairs]
    for quantity, column in packed.columns.items():
        for name in quantity.keeps:
            expected = np.concatenate([getattr(one.columns[quantity], name) for one in plain])
            assert np.array_equal(getattr(column, name), expected), (quantity, name)
