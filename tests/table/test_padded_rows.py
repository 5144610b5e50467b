"""Padded rows are cut by a mask, refused without one; genuine rows are never refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode
from rcdiag.table.table import Table
from rcdiag.usecases.score import score
from tests.builders import write_table

ROWS, WIDTH, PAD = 40, 30, 7


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return lengths [rows], and token ids and two log-prob columns, [rows, width]."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, WIDTH + 1, ROWS)
    ids = random.integers(10, 1000, (ROWS, WIDTH))
    rollout = -random.exponential(1.0, (ROWS, WIDTH))
    return lengths, ids, rollout, rollout + 0.05 * random.normal(size=(ROWS, WIDTH))


def columns(ids: np.ndarray, rollout: np.ndarray, old: np.ndarray) -> dict[str, pa.Array]:
    return {
        "response_ids": pa.array(list(ids)),
        "rollout_log_probs": pa.array(list(rollout)),
        "old_log_probs": pa.array(list(old)),
    }


def padded() -> tuple[dict[str, pa.Array], np.ndarray, dict[str, pa.Array]]:
    """Return padded columns, their mask [rows, width], and the same rows without padding."""
    lengths, ids, rollout, old = rows()
    inside = np.arange(WIDTH) < lengths[:, None]
    cut = [[row[:n] for row, n in zip(part, lengths, strict=True)] for part in (ids, rollout, old)]
    filled = columns(
        np.where(inside, ids, PAD), np.where(inside, rollout, 0), np.where(inside, old, 0)
    )
    names = ("response_ids", "rollout_log_probs", "old_log_probs")
    genuine = {name: pa.array(part) for name, part in zip(names, cut, strict=True)}
    return filled, inside.astype(np.uint8), genuine


def table_of(folder: Path, **table: object) -> Table:
    return open_table(write_table(folder / "a.parquet", **table))


def test_padding_without_a_mask_is_refused_with_a_hint(tmp_path):
    filled, mask, genuine = padded()
    with pytest.raises(RcdiagError) as caught:
        table_of(tmp_path, **filled)
    assert f"all of {WIDTH} tokens" in caught.value.message
    assert f"token {PAD}" in caught.value.message
    assert "--column response_mask=" in caught.value.hint
    # Both solutions in the hint.
    table_of(tmp_path, **genuine)
    assert table_of(tmp_path, **filled, response_mask=pa.array(list(mask))).naming.padding
    ones = pa.array(list(np.ones_like(mask)))
    assert table_of(tmp_path, **filled, response_mask=ones).naming.padding is None


@pytest.mark.parametrize("name", ["attention_mask", "completion_mask", "response_attention_mask"])
def test_a_mask_of_the_same_width_leaves_the_padding_out(tmp_path, name):
    filled, mask, genuine = padded()
    table = table_of(tmp_path, **filled, **{name: pa.array(list(mask))})
    assert table.naming.taken == {"response_mask": name}
    assert table.naming.padding is not None
    assert f"`{name}` masks the padding" in table.naming.padding.sentence()
    result = score(table)
    expected = score(table_of(tmp_path, **genuine))
    assert result.num_tokens == expected.num_tokens == mask.sum()
    assert result.mismatch["k3_kl"].value == pytest.approx(expected.mismatch["k3_kl"].value, 1e-12)
    assert {"columns-read-by-name", "padded-rows"} <= {f.slug for f in result.findings}
    json.dumps([f.evidence for f in result.findings])
    assert result.provenance["columns_read_as"] == {"response_mask": name}


def test_the_end_token_may_be_the_padding_token(tmp_path):
    lengths, ids, rollout, old = rows()
    ends = np.arange(WIDTH) >= lengths[:, None] - 1
    filled = columns(np.where(ends, PAD, ids), np.where(ends, 0, rollout), np.where(ends, 0, old))
    mask = (np.arange(WIDTH) < lengths[:, None]).astype(np.uint8)
    table = table_of(tmp_path, **filled, attention_mask=pa.array(list(mask)))
    assert int(decode(next(table.batches())).mask.sum()) == lengths.sum()


def test_a_mask_that_is_1_at_the_padding_does_not_cut(tmp_path):
    filled, mask, _ = padded()
    with pytest.raises(RcdiagError, match="there is no mask"):
        table_of(tmp_path, **filled, tool_mask=pa.array(list(np.ones_like(mask))))


def test_two_masks_that_may_cut_are_both_named(tmp_path):
    filled, mask, _ = padded()
    twice = {"attention_mask": pa.array(list(mask)), "some_mask": pa.array(list(mask))}
    with pytest.raises(RcdiagError, match="`attention_mask` and `some_mask` may both"):
        table_of(tmp_path, **filled, **twice)


def test_padding_is_found_with_other_names_and_in_small_row_groups(tmp_path):
    filled, _, _ = padded()
    names = ("responses", "generation_logprobs", "prev_logprobs")
    other = dict(zip(names, filled.values(), strict=True))
    path = write_table(tmp_path / "a.parquet", rows_per_group=1, **other)
    with pytest.raises(RcdiagError, match="`generation_logprobs` and `prev_logprobs` exactly 0"):
        open_table(path)


def test_rows_truncated_at_one_length_are_genuine(tmp_path):
    _, ids, rollout, old = rows()
    assert table_of(tmp_path, **columns(ids, rollout, old)).naming.padding is None


def test_certain_tokens_at_the_end_are_genuine(tmp_path):
    _, ids, rollout, old = rows()
    ids[:, -1] = PAD  # every row ends in one token with log-prob 0 on both sides
    rollout[:, -3:] = old[:, -3:] = 0.0
    assert table_of(tmp_path, **columns(ids, rollout, old)).naming.padding is None


def test_one_certain_template_at_the_end_of_all_rows_is_genuine(tmp_path):
    _, ids, rollout, old = rows()
    ids[:, -4:] = PAD
    rollout[:, -4:] = old[:, -4:] = 0.0
    assert table_of(tmp_path, **columns(ids, rollout, old)).naming.padding is None


def test_a_few_rows_that_repeat_a_certain_token_are_genuine(tmp_path):
    _, ids, rollout, old = rows()
    for row in range(5):
        ids[row, -10 - row :] = PAD
        rollout[row, -10 - row :] = old[row, -10 - row :] = 0.0
    assert table_of(tmp_path, **columns(ids, rollout, old)).naming.padding is None


def test_a_repeated_token_with_log_probs_is_genuine(tmp_path):
    filled, _, _ = padded()
    _, _, rollout, old = rows()
    ids = np.stack(filled["response_ids"].to_pylist())
    assert table_of(tmp_path, **columns(ids, rollout, old)).naming.padding is None
    only_one = columns(ids, np.stack(filled["rollout_log_probs"].to_pylist()), old)
    assert table_of(tmp_path, **only_one).naming.padding is None


def test_zeros_of_a_broken_recorder_are_genuine(tmp_path):
    _, ids, rollout, _ = rows()
    zeros = np.zeros_like(rollout)
    assert table_of(tmp_path, **columns(ids, zeros, zeros)).naming.padding is None
