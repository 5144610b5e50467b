"""Weight and mask of every token, against the reported sums and against loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.corrections.apply import TokenEffects, outcome, token_effects
from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.sequences import Sequences, rows_of
from rcdiag.statistics.pair import pair_of
from rcdiag.table.trajectories import segment_sum
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.corrected import correction_results
from tests.corrections.batches import batches, seeded
from tests.corrections.brute_force import kept_tokens, weights_of
from tests.corrections.brute_force import rows_of as lists_of
from tests.corrections.builders import (
    Padded,
    correction_rows,
    padded,
    plan_of,
    presets_of,
    trajectories_of,
)
from tests.corrections.drawn_corrections import corrections_of
from tests.examples import dear

every_trainer = pytest.mark.parametrize("trainer", list(TRAINERS))


def tokens_of(batch: Padded) -> Tokens:
    return Tokens.of(pair_of(trajectories_of(batch), "rollout", "old"))


def effects_of(plan: Plan, rows: Sequences, batch: Padded) -> dict[str, TokenEffects]:
    """Compute the weights and masks of all tokens under every correction of a plan."""
    tokens = tokens_of(batch)
    with np.errstate(all="ignore"):
        return {name: token_effects(it, tokens, rows) for name, it in plan.corrections.items()}


def of_config(trainer: str, batch: Padded, **config: object) -> TokenEffects:
    plan = plan_of(trainer, config)
    return effects_of(plan, correction_rows(plan, batch).whole, batch)["it"]


def lengths_of(batch: Padded) -> np.ndarray:
    counts = batch.mask.sum(axis=1)
    return counts[counts > 0]


def rows_kept(kept: np.ndarray, batch: Padded) -> int:
    return int((segment_sum(kept.astype(np.int64), lengths_of(batch)) > 0).sum())


def test_a_zeroed_sequence_has_weight_zero_even_if_its_ratio_is_infinite():
    """AReaL's mask writes 0 in place of the infinite ratio."""
    batch = Padded(
        old=np.zeros((1, 1)),
        rollout=np.full((1, 1), -1000.0),
        mask=np.ones((1, 1), np.bool_),
        group=np.zeros(1, np.int64),
        reward=np.zeros(1),
    )
    plan = presets_of("areal")
    results = correction_results(plan, correction_rows(plan, batch).whole)
    assert results["sequence_mask"].weight_sum == 0.0


@every_trainer
@given(batch=batches() | st.integers(0, 99).map(seeded))
@dear(50)
def test_tokens_add_up_to_the_numbers_of_every_preset(trainer, batch):
    plan = presets_of(trainer)
    rows = correction_rows(plan, batch).whole
    effects = effects_of(plan, rows, batch)
    for name, expected in correction_results(plan, rows).items():
        result = effects[name]
        assert int(result.kept.sum()) == expected.kept_tokens
        assert rows_kept(result.kept, batch) == expected.kept_sequences
        assert (result.weights is None) == (plan.corrections[name].loss_weighting is None)
        if result.weights is not None:
            assert result.weights.sum() == pytest.approx(expected.weight_sum, rel=1e-12)


@every_trainer
@given(data=st.data(), batch=batches())
@dear(50)
def test_tokens_add_up_to_the_rows_of_any_correction(trainer, data, batch):
    correction = data.draw(corrections_of(trainer))
    pair = pair_of(trajectories_of(batch), "rollout", "old")
    with np.errstate(all="ignore"):
        rows = rows_of(pair)
        result = token_effects(correction, tokens_of(batch), rows)
        expected = outcome(rows, correction)
    lengths = lengths_of(batch)
    assert segment_sum(result.kept.astype(np.float64), lengths).tolist() == expected.kept.tolist()
    if result.weights is None:
        return
    of_rows = segment_sum(result.weights, lengths)
    np.testing.assert_allclose(of_rows, expected.weights.sum, rtol=1e-12)
    in_loss = segment_sum(np.where(result.kept, result.weights, 0.0), lengths)
    np.testing.assert_allclose(in_loss, expected.kept_weights.sum, rtol=1e-12)


@pytest.mark.parametrize("trainer", ["verl-0.7.0", "verl-0.9"])
@given(batch=batches())
@dear(25)
def test_tokens_of_every_preset_are_those_of_a_loop(trainer, batch):
    plan = presets_of(trainer)
    effects = effects_of(plan, correction_rows(plan, batch).whole, batch)
    lists = [row for _, row in lists_of(batch)]
    for name, correction in plan.corrections.items():
        config = dict(plan.configs[name])
        if isinstance(config["rollout_rs_threshold"], float) and trainer == "verl-0.9":
            config["rollout_rs_threshold"] = str(config["rollout_rs_threshold"])
        result = effects[name]
        kept = [item for row in lists for item in kept_tokens(config, row)]
        assert result.kept.tolist() == kept
        if correction.loss_weighting is not None:
            weights = [item for row in lists for item in weights_of(config, row)]
            np.testing.assert_allclose(result.weights, weights, rtol=1e-12)


RAGGED = padded([[0.1, -0.2], [2.0], [0.0, 0.5, -3.0]])


@pytest.mark.parametrize(
    ("rejection", "kept"),
    [
        (("token_k1", "0.5_2.0"), [1, 1, 0, 1, 1, 0]),
        (("seq_mean_k2", "1.0"), [1, 1, 0, 0, 0, 0]),
        (("seq_max_k2,token_k1", "1.0,0.95_3.0"), [0, 1, 0, 0, 0, 0]),  # k1 bounds 1 / ratio
    ],
)
def test_a_rejected_token_keeps_its_weight(rejection, kept):
    options, bounds = rejection
    config = {"rollout_is": "token", "rollout_is_threshold": 2.0}
    result = of_config(
        "verl-0.9", RAGGED, **config, rollout_rs=options, rollout_rs_threshold=bounds
    )
    assert result.kept.astype(int).tolist() == kept
    raw = np.exp([0.1, -0.2, 2.0, 0.0, 0.5, -3.0])
    assert result.weights == pytest.approx(np.minimum(raw, 2.0))


def test_a_veto_rejects_the_whole_sequence_and_keeps_its_weights():
    config = {"rollout_is": "token", "rollout_token_veto_threshold": 0.1}
    result = of_config("verl-0.7.0", RAGGED, **config)
    assert result.kept.astype(int).tolist() == [1, 1, 1, 0, 0, 0]
    assert result.weights == pytest.approx(np.minimum(np.exp([0.1, -0.2, 2, 0, 0.5, -3]), 2.0))


def test_the_veto_of_060_zeroes_weights_and_keeps_the_mask():
    config = {"rollout_is": True, "rollout_is_threshold": 2.0, "rollout_is_veto_threshold": 0.1}
    result = of_config("verl-0.6.0", RAGGED, **config)
    assert result.kept.all()
    assert result.weights == pytest.approx([np.exp(0.1), np.exp(-0.2), 2.0, 0.0, 0.0, 0.0])


def test_sequence_weights_are_repeated_at_every_token():
    result = of_config("verl-0.9", RAGGED, rollout_is="sequence", rollout_is_threshold=1.5)
    assert result.weights == pytest.approx([np.exp(-0.1)] * 2 + [1.5] + [np.exp(-2.5)] * 3)


def test_icepop_zeroes_weights_and_keeps_the_tokens():
    result = of_config("verl-0.9", RAGGED, rollout_is="token", rollout_is_threshold="0.5_5.0")
    assert result.kept.all()
    assert result.weights == pytest.approx([np.exp(0.1), np.exp(-0.2), 0, 1, np.exp(0.5), 0])


def test_masked_importance_sampling_keeps_the_ratio_beyond_its_bounds():
    result = of_config("slime", RAGGED, tis_mode="mask", use_rs=False)
    assert result.kept.astype(int).tolist() == [1, 1, 0, 1, 1, 0]
    assert result.weights == pytest.approx(np.exp([0.1, -0.2, 2.0, 0.0, 0.5, -3.0]))


def test_bypass_clip_has_no_weights_and_bypass_gradient_has():
    config = {"rollout_is": "token", "bypass_mode": True}
    clipped = of_config("verl-0.9", RAGGED, **config, loss_type="ppo_clip")
    assert clipped.weights is None
    result = of_config("verl-0.9", RAGGED, **config, loss_type="reinforce")
    assert result.weights == pytest.approx(np.minimum(np.exp([0.1, -0.2, 2, 0, 0.5, -3]), 2.0))


def test_weights_stop_growing_at_a_log_ratio_of_20():
    weighting = Weighting("token", 1e30)
    batch = padded([[1000.0, -1000.0]])
    rows = rows_of(pair_of(trajectories_of(batch), "rollout", "old"))
    result = token_effects(Correction(weighting), tokens_of(batch), rows)
    assert result.weights == pytest.approx(np.exp([20.0, -20.0]))


def test_a_nan_is_never_kept_by_a_bound():
    batch = padded([[0.0, 0.1], [0.2]])
    batch.old[0, 0] = np.nan
    by_token = Correction(rejections=(Rejection("token", 2.0, 0.5),))
    pair = pair_of(trajectories_of(batch), "rollout", "old")
    with np.errstate(all="ignore"):
        rows = rows_of(pair)
        assert token_effects(by_token, tokens_of(batch), rows).kept.tolist() == [False, True, True]
        by_row = Correction(rejections=(Rejection("geometric", 2.0, 0.5),))
        assert token_effects(by_row, tokens_of(batch), rows).kept.tolist() == [False, False, True]
