"""Losses, metrics and gradients of every generation, against verl's own code in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rcdiag.errors import RcdiagError
from rcdiag.losses.evaluate import LossResult
from tests.losses.batches import (
    SETTINGS,
    PaddedLoss,
    losses_of,
    nearest_choices_differ,
    padded_losses,
)
from tests.losses.rules import RULES, evaluate, loss_settings
from tests.losses.verl_code import Answer, ask, ask_every_lot, core_algos
from tests.oracle.verl import PACKAGES

pytestmark = pytest.mark.oracle
every_generation = pytest.mark.parametrize("trainer", PACKAGES)


def close(expected: float, result: float, terms: float = 0.0) -> bool:
    """Compare to 1e-6; cancelling sums to 1e-7 of the size of their terms.

    verl adds 1e-8 to denominators, which remains of each term if terms cancel.
    """
    if np.isnan(expected) or np.isnan(result):
        return bool(np.isnan(expected) and np.isnan(result))
    return abs(expected - result) <= 1e-6 * max(abs(expected), abs(result)) + 1e-7 * terms + 1e-12


def differences(answer: Answer, result: LossResult, batch: PaddedLoss) -> list[str]:
    lines = [f"only one has {key}" for key in set(answer.metrics) ^ set(result.metrics)]
    pairs = {key: (value, result.metrics[key]) for key, value in answer.metrics.items()}
    pairs["loss"] = answer.loss, result.loss
    if result.undefined is None:
        gradient = np.zeros(batch.mask.shape)
        gradient[batch.mask] = result.coefficients
        pairs |= {
            f"gradient {at}": (float(answer.gradient[at]), float(gradient[at]))
            for at in np.ndindex(*gradient.shape)
        }
    elif np.isfinite(answer.gradient).all() and answer.gradient.any():
        # 0.6.0's loss is NaN if the mean of a row is 0/0. Its gradient is NaN too, unless all
        # tokens of such rows are clipped, which stops the gradient.
        of_empty_rows = answer.gradient[~(batch.mask & batch.kept).any(axis=1)]
        if not np.isnan(answer.loss) or not len(of_empty_rows) or of_empty_rows.any():
            lines.append(f"undefined, but verl has the gradient {answer.gradient}")
    terms = float(np.abs(batch.advantages).max())
    return lines + [
        f"{name}: verl {expected!r}, ours {outcome!r}"
        for name, (expected, outcome) in pairs.items()
        if not close(expected, outcome, terms if name == "loss" else 0.0)
    ]


def aggregations_of(trainer: str) -> st.SearchStrategy[str]:
    return st.sampled_from(list(RULES[trainer].aggregations))


def is_callable_alone(trainer: str, loss: str) -> bool:
    """`reinforce` of 0.6.1 cannot be called without the correction that comes before it."""
    return trainer != "verl-0.6.1" or loss != "reinforce"


def chooses_alike(loss: str, batch: PaddedLoss, drawn: dict[str, float]) -> bool:
    """Whether the tokens of kl_cov do not depend on the last digit of a covariance."""
    return loss != "kl_cov" or nearest_choices_differ(batch.flat(), drawn["kl_cov_ratio"], 1e-9)


CASES = [case for case in losses_of(*PACKAGES) if is_callable_alone(*case)]


@pytest.mark.parametrize(("trainer", "loss"), CASES)
@given(data=st.data(), batch=padded_losses(), drawn=SETTINGS)
@settings(max_examples=150)
def test_losses_by_their_own_denominators(trainer, loss, data, batch, drawn):
    chosen = loss_settings(**drawn, aggregation=data.draw(aggregations_of(trainer)))
    assume(chooses_alike(loss, batch, drawn))
    asked = ask_every_lot if loss == "clip_cov" else ask
    answer = asked(trainer, loss, batch, chosen)
    assert differences(answer, evaluate(batch.flat(), loss, chosen, trainer), batch) == []


@pytest.mark.parametrize(("trainer", "loss"), [case for case in CASES if "verl-0.6" not in case[0]])
@given(data=st.data(), batch=padded_losses(), drawn=SETTINGS, scale=st.sampled_from((None, 8)))
@settings(max_examples=50)
def test_denominators_of_the_whole_batch(trainer, loss, data, batch, drawn, scale):
    """`global_batch_info` holds what the trainer counted before rejection, or a constant."""
    aggregation = data.draw(aggregations_of(trainer))
    # geo_mean ignores the trainer's counts, and sums have none.
    counts_nothing = RULES[trainer].aggregations[aggregation].count.unit == "nothing"
    fixed = loss == "geo_mean" or (counts_nothing and loss not in RULES[trainer].fixed)
    which = "all" if fixed else data.draw(st.sampled_from(("all", "constant")))
    tokens, rows = (int(batch.mask.sum()), len(batch.mask)) if which == "all" else (37, 37)
    chosen = loss_settings(
        **drawn,
        aggregation=aggregation,
        denominator=which,
        constant=37 if which == "constant" else None,
        scale_factor=scale,
    )
    counts: dict[str, float] = {"batch_num_tokens": tokens, "global_batch_size": rows}
    counts |= {} if scale is None else {"loss_scale_factor": scale}
    if not tokens and chosen.aggregation == "token-mean":
        return  # verl would be asked for x / 0
    assume(chooses_alike(loss, batch, drawn))
    asked = ask_every_lot if loss == "clip_cov" else ask
    answer = asked(trainer, loss, batch, chosen, counts)
    assert differences(answer, evaluate(batch.flat(), loss, chosen, trainer), batch) == []


@pytest.mark.parametrize(("trainer", "loss"), CASES)
def test_far_log_ratios(trainer, loss):
    """Beyond all clamps, one token at a time, since such terms would dominate sums."""
    for move in (12.0, 25.0, -12.0, -25.0, 0.0):
        for advantage in (1.0, -1.0, 0.0):
            current = np.full((1, 1), -1.0 + min(move, 0.0))
            mask = np.ones((1, 1), np.bool_)
            batch = PaddedLoss(current, current - move, np.full((1, 1), advantage), mask, mask)
            chosen = loss_settings(dro_beta=0.1)
            answer = ask(trainer, loss, batch, chosen)
            assert differences(answer, evaluate(batch.flat(), loss, chosen, trainer), batch) == []


@every_generation
def test_every_loss_is_known(trainer):
    registered = set(core_algos(trainer).POLICY_LOSS_REGISTRY)
    ours = set(RULES[trainer].losses)
    # These select a loss after a correction.
    assert registered - {"bypass_mode", "rollout_correction"} == ours - {"reinforce"}
    bypass = bool(registered & {"bypass_mode", "rollout_correction"})
    assert bypass == ("reinforce" in ours)


@every_generation
@pytest.mark.parametrize("mode", RULES["verl-0.9"].aggregations)
def test_every_aggregation_is_known(trainer, mode):
    import torch

    ones = torch.ones(2, 3)
    if mode in RULES[trainer].aggregations:
        assert core_algos(trainer).agg_loss(ones, ones, mode) > 0
    else:
        with pytest.raises(ValueError, match="Invalid loss_agg_mode"):
            core_algos(trainer).agg_loss(ones, ones, mode)


def without_correction(loss: str) -> dict[str, object]:
    return {"loss_type": loss, "rollout_is": None, "rollout_rs": None, "rollout_token_veto": None}


@pytest.mark.parametrize("trainer", [each for each in PACKAGES if each != "verl-0.6.0"])
@pytest.mark.parametrize("loss", ["vanilla", "reinforce"])
@given(data=st.data(), batch=padded_losses(), drawn=SETTINGS)
@settings(max_examples=40)
def test_bypass_equals_the_loss_with_old_as_rollout(trainer, loss, data, batch, drawn):
    if (trainer, loss) == ("verl-0.6.1", "vanilla") or not batch.mask.any():
        return  # it has reinforce only; the correction stops on an empty batch
    chosen = loss_settings(**drawn, aggregation=data.draw(aggregations_of(trainer)))
    batch = PaddedLoss(batch.current, batch.old, batch.advantages, batch.mask, batch.mask)
    correction = without_correction("reinforce" if loss == "reinforce" else "ppo_clip")
    answer = ask(trainer, loss, batch, chosen, correction=correction)
    metrics = {key: value for key, value in answer.metrics.items() if key.startswith("actor/")}
    answer = Answer(answer.loss, metrics, answer.gradient)
    assert differences(answer, evaluate(batch.flat(), loss, chosen, trainer), batch) == []


REFUSED = [
    ("vanilla", {"clip_c": 1.0}),
    ("vanilla", {"clip_c": None}),
    ("dro", {"dro_beta": None}),
    ("dro", {"dro_beta": 0.0}),
    ("kl_cov", {"kl_cov_ratio": 0.0}),
    ("kl_cov", {"kl_cov_ratio": 2.0}),
    ("vanilla", {"aggregation": "mean"}),
]


@pytest.mark.parametrize(("loss", "given_settings"), REFUSED)
def test_settings_that_verl_refuses_are_refused(loss, given_settings):
    ones = np.ones((2, 2))
    batch = PaddedLoss(-ones, -2 * ones, ones, ones > 0, ones > 0)
    chosen = loss_settings(**given_settings)
    with pytest.raises((ValueError, AssertionError, RuntimeError, TypeError)):
        ask("verl-0.9", loss, batch, chosen)
    with pytest.raises(RcdiagError):
        evaluate(batch.flat(), loss, chosen, "verl-0.9")
