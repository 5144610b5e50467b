"""The use case `score`: rows in, result out."""

from __future__ import annotations

from math import inf, nan

import pytest

from rcdiag.dumps import open_dump
from rcdiag.errors import RcdiagError
from rcdiag.results import ScoreResult
from rcdiag.score import score
from tests.builders import ids_like, metrics, write_table

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
    return score(open_dump(path), seed=seed)


def values_of(result: ScoreResult) -> dict[str, float]:
    return {name: metric.value for name, metric in result.mismatch.items()}


def slugs(result: ScoreResult) -> set[str]:
    return {finding.slug for finding in result.findings}


def test_values_are_those_of_the_statistics(tmp_path):
    result = run(tmp_path)
    assert values_of(result) == pytest.approx(metrics(BEHAVIOR, TARGET), rel=1e-12)
    assert (result.num_sequences, result.num_tokens, result.empty_sequences) == (4, 7, 0)
    assert sum(result.figures["log_ratio"]["counts"]) == 7
    assert sum(cell[2] for cell in result.figures["probabilities"]["cells"]) == 7
    assert len(result.worst_tokens) == 7


def test_how_the_rows_are_cut_into_batches_does_not_matter(tmp_path, monkeypatch):
    whole = run(tmp_path)
    monkeypatch.setattr("rcdiag.dumps.reader.TOKENS_PER_BATCH", 1)
    cut = run(tmp_path, rows_per_group=1)
    assert cut.mismatch == whole.mismatch
    assert cut.worst_tokens == whole.worst_tokens
    assert cut.figures == whole.figures


def test_masked_tokens_and_rows_without_a_token_are_left_out(tmp_path):
    mask = [[1, 0], [1, 1, 1], [0], [0]]
    dirty = [[-5.1, nan], *TARGET[1:3], [inf]]
    result = run(tmp_path, response_mask=mask, old_log_probs=dirty)
    wanted = metrics([[-5.0], BEHAVIOR[1]], [[-5.1], TARGET[1]])
    assert values_of(result) == pytest.approx(wanted, rel=1e-12)
    assert (result.num_sequences, result.num_tokens, result.empty_sequences) == (2, 4, 2)
    assert "sequences-without-tokens" in slugs(result)
    assert "non-finite-log-probs" not in slugs(result)


def test_a_table_without_any_unmasked_token_is_refused(tmp_path):
    with pytest.raises(RcdiagError, match=r"a\.parquet: no unmasked") as caught:
        run(tmp_path, response_mask=[[0, 0], [0, 0, 0], [0], [0]])
    assert caught.value.hint


def test_no_number_at_an_unmasked_token_is_a_finding_with_counts_and_rows(tmp_path):
    result = run(tmp_path, old_log_probs=[TARGET[0], [nan, -inf, -1.1], [inf], TARGET[3]])
    (finding,) = [each for each in result.findings if each.slug == "non-finite-log-probs"]
    assert finding.severity == "error"
    assert finding.evidence == {"policy": "old", "tokens": 3, "rows": 2, "first_rows": [1, 2]}
    for name in ("k1_kl", "k2_kl", "k3_kl", "target_ppl", "ess_seq"):
        assert name in finding.message
    assert "behavior_ppl" not in finding.message
    assert result.findings[0] is finding


def test_steps_are_told_apart_and_named_by_their_number(tmp_path):
    result = run(tmp_path, step=[7, 7, 8, 8])
    assert list(result.steps) == ["7", "8"]
    first = {name: metric.value for name, metric in result.steps["7"]["mismatch"].items()}
    assert first == pytest.approx(metrics(BEHAVIOR[:2], TARGET[:2]), rel=1e-12)
    assert result.steps["8"]["num_sequences"] == 2


def test_one_step_alone_has_no_table_of_steps(tmp_path):
    assert run(tmp_path, step=[7] * 4).steps == {}


def test_groups_are_what_is_drawn_anew(tmp_path):
    alone, grouped = run(tmp_path), run(tmp_path, group_id=["a", "a", "b", "b"])
    assert grouped.mismatch["k2_kl"].value == alone.mismatch["k2_kl"].value
    assert grouped.mismatch["k2_kl"].low != alone.mismatch["k2_kl"].low
    assert run(tmp_path, group_id=[1] * 4).mismatch["k2_kl"].low is None


def test_the_same_seed_gives_the_same_values(tmp_path):
    assert run(tmp_path, seed=3).mismatch == run(tmp_path, seed=3).mismatch
    assert run(tmp_path, seed=3).mismatch != run(tmp_path, seed=4).mismatch
