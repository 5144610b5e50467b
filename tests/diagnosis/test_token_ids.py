"""Mean log-ratios per token id show other weights if two halves agree beyond chance."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.diagnosis.case import Counts, Flags
from rcdiag.diagnosis.features.log_ratios import cross_fitted
from tests.diagnosis.tables import judged, made, noisy, plain, with_values


@pytest.mark.parametrize("seed", range(8))
def test_a_few_token_ids_do_not_show_other_weights(seed: int) -> None:
    """Three ids that occur often enough correlate well between halves by chance alone."""
    rng = np.random.default_rng(seed)
    ids = np.concatenate([np.repeat([1, 2, 3], 12), np.arange(4, 300)])
    half = np.arange(len(ids)) % 2 == 0
    drawn = [cross_fitted(ids, rng.normal(0, 0.02, len(ids)), half) for _ in range(200)]
    assert max(seen.correlation for seen in drawn) > 0.8
    assert not any(seen.beyond_chance for seen in drawn)


def test_ids_with_means_of_their_own_agree_beyond_chance() -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 20, 4000)
    values = rng.normal(0, 0.02, 20)[ids] + rng.normal(0, 0.02, 4000)
    seen = cross_fitted(ids, values, np.arange(4000) % 2 == 0)
    assert seen.beyond_chance
    assert seen.correlation > 0.9
    assert seen.explained == pytest.approx(0.5, abs=0.2)
    assert seen.labels == pytest.approx(20, rel=0.1)


def test_halves_that_disagree_give_no_evidence() -> None:
    rng = np.random.default_rng(2)
    ids, half = rng.integers(0, 20, 4000), np.arange(4000) % 2 == 0
    values = rng.normal(0, 0.02, 20)[ids] * np.where(half, 1.0, -1.0)
    seen = cross_fitted(ids, values, half)
    assert seen.correlation < -0.9
    assert not seen.beyond_chance


def test_rows_that_begin_to_differ_at_two_ids_have_these_ids_wrong() -> None:
    """After a wrong id all tokens are read in another context, with most of the mismatch."""
    case = made(plain, noisy(0.01), rows=160, length=60)
    wrong = np.argsort(-np.bincount(case.token_id), kind="stable")[20:22]
    here = np.isin(case.token_id, wrong)
    seen: Counts = np.cumsum(here) - here
    after: Flags = seen > seen[case.start][case.owner]
    off = np.where(after, np.random.default_rng(3).normal(0.0, 4.0, len(here)), 0.0)
    off = np.where(here, -14.0, off)
    diagnosis = judged(with_values(case, "old", lambda values: np.minimum(values + off, -1e-4)))
    first = diagnosis.causes[0]
    assert (diagnosis.verdict, first.slug) == ("broken", "special-token-ids")
    assert all(str(token_id) in first.message for token_id in wrong)


def test_a_constant_of_each_id_is_no_kept_set() -> None:
    """The mass of a kept set, and with it the log-ratio, depends on the context."""
    case = made(plain, noisy(0.01), rows=160, length=60)
    ids = np.argsort(-np.bincount(case.token_id), kind="stable")[5:8]
    moved = np.where(np.isin(case.token_id, ids), -0.9, 0.0)
    diagnosis = judged(with_values(case, "old", lambda values: values + moved))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "forwards-differ")
    assert f"at token ids {', '.join(map(str, sorted(ids)))} alone" in diagnosis.summary
