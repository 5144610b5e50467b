"""The worst sequences shown on the page, against the table and the corrections."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.results import ScoreResult, TokenWeights
from rcdiag.table.opening import open_table
from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import plan_corrections, preset_configs
from rcdiag.usecases.score import score
from tests.builders import write_table

RANDOM = np.random.default_rng(2)
LENGTHS = RANDOM.integers(1, 30, 24)


def lists(make) -> list[list]:
    return [make(int(length)) for length in LENGTHS]


OLD = lists(lambda n: (-RANDOM.exponential(0.7, n)).tolist())
ROLLOUT = [
    np.minimum(np.array(row) + RANDOM.normal(0.0, 0.4, len(row)), 0.0).tolist() for row in OLD
]
MASK = [[1, *(RANDOM.random(len(row) - 1) < 0.8).astype(int).tolist()] for row in OLD]
COLUMNS = {
    "response_ids": lists(lambda n: RANDOM.integers(0, 900, n).tolist()),
    "prompt_ids": lists(lambda n: RANDOM.integers(0, 900, 5 * n).tolist()),
    "response_mask": MASK,
    "rollout_log_probs": ROLLOUT,
    "old_log_probs": OLD,
    "advantage": RANDOM.normal(size=len(OLD)).tolist(),
}


def scored(path, trainer: str = "verl", **more) -> ScoreResult:
    write_table(path, rows_per_group=5, **COLUMNS, **more)
    family = find_trainer(trainer)
    plan = plan_corrections(family, preset_configs(family, [], {}))
    return score(open_table(path), plan=plan)


def weights_of(made: TokenWeights, log_ratio: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return weight and mask of every token, as the page's script reads them."""
    count = len(log_ratio)
    weights = np.exp(log_ratio) if made.weight is None else np.full(count, made.weight)
    for place, weight in made.changed:
        weights[int(place)] = weight
    kept = np.ones(count, bool)
    for first, last in made.rejected:
        kept[first : last + 1] = False
    return weights, kept


@pytest.mark.parametrize("trainer", ["verl", "verl-0.6.0", "slime", "trl", "roll"])
def test_weights_and_rejections_add_up_to_those_of_the_corrections(tmp_path, trainer):
    result = scored(tmp_path / "table.parquet", trainer)
    assert len(result.worst_sequences) == len(OLD)
    names = set(result.worst_sequences[0].context.token_weights)
    assert names
    for name in names:
        total, kept_tokens = 0.0, 0
        for sequence in result.worst_sequences:
            made = sequence.context.token_weights[name]
            weights, kept = weights_of(made, sequence.log_ratio)
            total += weights.sum()
            kept_tokens += kept.sum()
        expected = result.corrections[name]
        if expected.weight_sum is not None:
            assert total == pytest.approx(expected.weight_sum, rel=1e-4), name
        assert kept_tokens == expected.kept_tokens, name


def test_the_context_is_that_of_the_row(tmp_path):
    for sequence in scored(tmp_path / "table.parquet").worst_sequences:
        row, context = sequence.row, sequence.context
        assert context.prompt_length == len(COLUMNS["prompt_ids"][row])
        assert context.prompt_ids == COLUMNS["prompt_ids"][row][-100:]
        masked = [place for place, one in enumerate(MASK[row]) if not one]
        assert context.masked_positions == masked
        ids = COLUMNS["response_ids"][row]
        assert context.masked_ids == [ids[place] for place in masked]
        assert sequence.token_ids == [ids[place] for place in sequence.positions]


def test_alternatives_belong_to_the_worst_tokens(tmp_path):
    top_ids = [[[place, 7, 8] for place in range(len(row))] for row in OLD]
    top = [[[-0.1 * place, -3.0, -4.0] for place in range(len(row))] for row in OLD]
    more = {"old_top_ids": top_ids, "old_top_logprobs": top}
    for sequence in scored(tmp_path / "table.parquet", **more).worst_sequences:
        alternatives = sequence.context.alternatives
        assert 0 < len(alternatives) <= 10
        sizes = np.abs(sequence.log_ratio)
        least = min(sizes[one.place] for one in alternatives)
        others = [
            size for place, size in enumerate(sizes) if place not in {a.place for a in alternatives}
        ]
        assert not others or max(others) <= least
        for one in alternatives:
            position = sequence.positions[one.place]
            assert (one.likely_under, one.token_ids) == ("old", [position, 7, 8])
            assert one.token_log_probs == pytest.approx([-0.1 * position, -3.0, -4.0], abs=1e-5)


def test_rows_of_several_files_are_found(tmp_path):
    half = len(OLD) // 2
    folder = tmp_path / "dump"
    folder.mkdir()
    for number, rows in enumerate((slice(0, half), slice(half, None))):
        part = {name: values[rows] for name, values in COLUMNS.items()}
        write_table(folder / f"{number}.parquet", rows_per_group=3, **part)
    result = score(open_table(folder))
    assert {sequence.row for sequence in result.worst_sequences} == set(range(len(OLD)))
    for sequence in result.worst_sequences:
        assert sequence.context.prompt_ids == COLUMNS["prompt_ids"][sequence.row][-100:]
