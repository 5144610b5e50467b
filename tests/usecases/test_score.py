"""The use case `score`: rows in, result out."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.results import MetricValue, ScoreResult
from rcdiag.table.opening import open_table
from rcdiag.usecases.score import score
from tests.builders import Lists, ids_like, make_state, values_of, write_table

BEHAVIOR = [[-5.0, -5.0], [-4.0, -4.5, -1.0], [-1.0], [-2.0]]
TARGET = [[-5.1, -4.8], [-4.0, -4.6, -1.1], [-1.0], [-2.2]]


def run(folder, *, rows_per_group: int | None = None, seed: int = 0, **columns) -> ScoreResult:
    rows = {"rollout_log_probs": BEHAVIOR, "old_log_probs": TARGET, **columns}
    path = write_table(
        folder / "a.parquet",
        rows_per_group=rows_per_group,
        response_ids=ids_like(rows["rollout_log_probs"]),
        **rows,
    )
    return score(open_table(path), seed=seed)


def numbers(values: dict[str, MetricValue]) -> dict[str, Any]:
    """Return values by name for comparison; undefined ones as `not defined`."""
    return {name: plain(metric.value) for name, metric in values.items()}


def plain(value: float | None) -> Any:
    return "not defined" if value is None else pytest.approx(value, rel=1e-12, nan_ok=True)


def wanted(behavior: Lists, target: Lists) -> dict[str, float | str]:
    values = values_of(make_state(behavior, target))
    return {name: "not defined" if value is None else value for name, value in values.items()}


def slugs(result: ScoreResult) -> set[str]:
    return {finding.slug for finding in result.findings}


def test_values_are_those_of_the_statistics(tmp_path):
    result = run(tmp_path)
    assert numbers(result.mismatch) == wanted(BEHAVIOR, TARGET)
    assert (result.num_sequences, result.num_tokens, result.empty_sequences) == (4, 7, 0)
    assert sum(result.figures["log_ratio_histogram"]["counts"]) == 7
    assert sum(cell[2] for cell in result.figures["log_probs"]["cells"]) == 7
    assert len(result.worst_tokens) == 7
    shares = result.figures["concentration"]
    ratios = np.array([token["log_ratio"] for token in result.worst_tokens])
    sizes = np.sort(np.expm1(ratios) - ratios)[::-1]
    assert shares[-1] == [1.0, pytest.approx(1.0)]
    for share, held in shares:
        expected = np.interp(share * 7, np.arange(8), [0.0, *np.cumsum(sizes)])
        assert held == pytest.approx(expected / sizes.sum(), abs=0.01)
    assert {item.row for item in result.worst_sequences} == {0, 1, 2, 3}
    assert sum(item.tokens for item in result.profiles["position"].bins) == 7


def test_how_the_rows_are_cut_into_batches_does_not_matter(tmp_path, monkeypatch):
    whole = run(tmp_path)
    monkeypatch.setattr("rcdiag.table.readers.parquet.TOKENS_PER_BATCH", 1)
    cut = run(tmp_path, rows_per_group=1)
    assert numbers(cut.mismatch) == wanted(BEHAVIOR, TARGET)
    assert cut.worst_tokens == whole.worst_tokens
    assert cut.worst_sequences == whole.worst_sequences
    assert cut.figures == whole.figures
    assert [item.tokens for item in cut.profiles["length"].bins] == [7]


def test_masked_tokens_and_rows_without_a_token_are_left_out(tmp_path):
    mask = [[1, 0], [1, 1, 1], [0], [0]]
    dirty = [[-5.1, nan], *TARGET[1:3], [inf]]
    result = run(tmp_path, response_mask=mask, old_log_probs=dirty)
    assert numbers(result.mismatch) == wanted([[-5.0], BEHAVIOR[1]], [[-5.1], TARGET[1]])
    assert (result.num_sequences, result.num_tokens, result.empty_sequences) == (2, 4, 2)
    assert "sequences-without-tokens" in slugs(result)
    assert "non-finite-log-probs" not in slugs(result)


def test_a_table_without_any_unmasked_token_is_refused(tmp_path):
    with pytest.raises(RcdiagError, match=r"a\.parquet: no unmasked") as caught:
        run(tmp_path, response_mask=[[0, 0], [0, 0, 0], [0], [0]])
    assert caught.value.hint


def test_steps_are_separate_and_named_by_their_number(tmp_path):
    result = run(tmp_path, step=[7, 7, 8, 8])
    assert list(result.steps) == ["7", "8"]
    assert numbers(result.steps["7"].mismatch) == wanted(BEHAVIOR[:2], TARGET[:2])
    assert result.steps["8"].num_sequences == 2


def test_a_single_step_has_no_table_of_steps(tmp_path):
    assert run(tmp_path, step=[7] * 4).steps == {}


def test_intervals_are_over_groups(tmp_path):
    alone, grouped = run(tmp_path), run(tmp_path, group_id=["a", "a", "b", "b"])
    assert grouped.mismatch["k2_kl"].value == alone.mismatch["k2_kl"].value
    assert grouped.mismatch["k2_kl"].low != alone.mismatch["k2_kl"].low
    assert run(tmp_path, group_id=[1] * 4).mismatch["k2_kl"].low is None


def test_a_full_score_depends_on_no_seed(tmp_path):
    random = np.random.default_rng(0)
    behavior = random.uniform(-3.0, -1.0, (40, 3))
    target = behavior + random.normal(0.0, 0.1, behavior.shape)
    columns = {"rollout_log_probs": behavior.tolist(), "old_log_probs": target.tolist()}
    first, other = (run(tmp_path, seed=seed, **columns).mismatch for seed in (3, 4))
    assert first == other


def test_equal_policies_are_scored_and_found_healthy(tmp_path):
    result = run(tmp_path, old_log_probs=BEHAVIOR)
    assert result.mismatch["k3_kl"].value == 0.0
    assert result.mismatch["kappa"].value is None
    assert slugs(result) <= {"few-clusters"}


def test_text_is_decoded_for_every_shown_token(tmp_path):
    path = write_table(
        tmp_path / "a.parquet",
        response_ids=[[4, 5]] * 25,
        rollout_log_probs=[[-1.0, -1.0]] * 25,
        old_log_probs=[[-1.5, -1.0]] * 25,
    )
    result = score(open_table(path), decode=lambda ids: [f"<{token}>" for token in ids])
    assert {item["text"] for item in result.worst_tokens} == {"<4>"}
    assert [item.text for item in result.worst_token_ids] == ["<4>", "<5>"]
    assert result.worst_sequences[0].texts == ["<4>", "<5>"]


def test_rewards_entropies_and_turns_have_their_profiles(tmp_path):
    result = run(
        tmp_path,
        reward=[1.0, 0.0, -1.0, None],
        response_mask=[[1, 1], [1, 0, 1], [1], [1]],
        old_entropy=[[0.5, 0.6], [0.7, 0.8, 0.9], [1.0], [1.1]],
    )
    tokens = {
        name: {item.label: item.tokens for item in profile.bins}
        for name, profile in result.profiles.items()
    }
    assert tokens["reward"] == {"negative": 1, "zero": 2, "positive": 2}
    assert tokens["turn"] == {"1": 5, "2": 1}
    assert tokens["entropy"] == {"0.5-1": 4, "1-2": 2}
