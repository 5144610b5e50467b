"""Denominators: which tokens and rows count, split batches, and undefined losses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import loss_batch
from tests.examples import dear
from tests.losses.batches import SETTINGS, PaddedLoss, losses_of, one_row, padded_losses
from tests.losses.rules import RULES, default_settings, evaluate, loss_settings

# Three rows of loss 1 per token: 3 tokens of which 2 are kept; 2 tokens, rejected; 1 token; none.
LENGTHS = [3, 2, 1, 0]
KEPT = np.array([1, 1, 0, 0, 0, 1], bool)
ONES = np.ones(6)
BATCH = loss_batch(-ONES, -ONES, -ONES, LENGTHS, kept=KEPT, padded_width=5)


def loss_of(trainer: str, aggregation: str, **others) -> float:
    chosen = loss_settings(aggregation=aggregation, **others)
    return evaluate(BATCH, "vanilla", chosen, trainer).loss


BY_DENOMINATOR: dict[str, dict[str, float]] = {
    "token-mean": {"kept": 3 / 3, "all": 3 / 6, "constant": 3 / 12},
    "token-sum": {"kept": 3, "all": 3},
    "seq-mean-token-sum": {"kept": 3 / 2, "all": 3 / 4, "constant": 3 / 12},
    "seq-mean-token-mean": {"kept": 2 / 2, "all": 2 / 4, "constant": 2 / 12},
    "seq-mean-token-sum-norm": {"kept": 3 / 2 / 5, "all": 3 / 4 / 5, "constant": 3 / 12 / 5},
}


@pytest.mark.parametrize(
    ("aggregation", "denominator"),
    [(name, which) for name, values in BY_DENOMINATOR.items() for which in values],
)
def test_denominators(aggregation, denominator):
    result = loss_of("verl-0.9", aggregation, denominator=denominator, constant=12)
    assert result == pytest.approx(BY_DENOMINATOR[aggregation][denominator])


# Two answers to one prompt, one of them rejected, and one answer to another prompt.
ANSWERS = loss_batch(-ONES, -ONES, -ONES, LENGTHS, kept=KEPT, groups=["a", "a", "b"])


@pytest.mark.parametrize(
    ("trainer", "aggregation", "denominator", "expected"),
    [
        ("skyrl-0.4", "prompt-mean-token-mean", None, (2 / 5 + 1) / 2),
        ("skyrl-0.4", "prompt-mean-token-mean", "kept", (2 / 2 + 1) / 2),
        ("skyrl-0.4", "prompt-mean-token-mean", "constant", (2 / 5 + 1) / 4),
        ("ms-swift-4.6", "prompt-mean-token-sum", None, 3 / 2),
    ],
)
def test_means_over_prompts(trainer, aggregation, denominator, expected):
    chosen = loss_settings(aggregation=aggregation, denominator=denominator, constant=4)
    result = evaluate(ANSWERS, "vanilla", chosen, trainer)
    assert result.loss == pytest.approx(expected)
    assert (result.divided.unit, result.divided.kept, result.divided.all) == ("prompts", 2, 2)


def test_a_mean_over_prompts_needs_prompts_of_several_answers():
    alone = loss_batch(-ONES, -ONES, -ONES, LENGTHS, groups=["a", "b", "c"])
    for batch in (BATCH, alone):
        with pytest.raises(RcdiagError, match="every prompt has one sequence"):
            evaluate(
                batch, "vanilla", loss_settings(aggregation="prompt-mean-token-mean"), "skyrl-0.4"
            )


COUNTED = [
    ("vanilla", "token-mean", ("kept", "tokens", 3, 3, 6)),
    ("vanilla", "seq-mean-token-sum", ("kept", "sequences", 2, 2, 4)),
    ("vanilla", "token-sum", ("kept", "nothing", 1, 1, 1)),
    # One loss per row; verl's mean is over all rows, whatever the aggregation.
    ("geo_mean", "token-mean", ("all", "sequences", 4, 2, 4)),
    ("sapo", "token-mean", ("kept", "sequences", 2, 2, 4)),
]


@pytest.mark.parametrize(("loss", "aggregation", "output"), COUNTED)
def test_the_denominator_is_described(loss, aggregation, output):
    result = evaluate(BATCH, loss, loss_settings(aggregation=aggregation), "verl-0.9").divided
    assert (result.which, result.unit, result.used, result.kept, result.all) == output


def test_default_denominators_of_generations():
    later = ("verl-20251027", "verl-0.6.1", "verl-20251203", "verl-0.7.0", "verl-0.7.1", "verl-0.9")
    for trainer in later:
        assert loss_of(trainer, "token-mean") == pytest.approx(1.0)
        assert loss_of(trainer, "seq-mean-token-sum") == pytest.approx(3 / 2)
        assert loss_of(trainer, "seq-mean-token-mean") == pytest.approx(2 / 2)
    assert loss_of("verl-0.6.0", "token-mean") == pytest.approx(1.0)
    assert loss_of("verl-0.6.0", "seq-mean-token-sum") == pytest.approx(3 / 4)
    # Rejected tokens and rows stay in slime's counts; per token, a row without one counts as one.
    assert loss_of("slime", "seq-mean-token-mean") == pytest.approx((2 / 3 + 1) / 4)
    assert loss_of("slime", "token-mean") == pytest.approx(3 / 7)


def test_scale_factor():
    mode = "seq-mean-token-sum-norm"
    assert loss_of("verl-0.9", mode, scale_factor=10) == pytest.approx(3 / 2 / 10)
    assert loss_of("verl-0.7.0", mode, scale_factor=10) == pytest.approx(3 / 10)
    with pytest.raises(RcdiagError, match="padded width"):
        loss_of("verl-0.6.1", mode, scale_factor=10)
    with pytest.raises(RcdiagError, match="above 0"):
        loss_of("verl-0.9", mode, scale_factor=0)


# The first two select tokens per batch (verl #7829), real compares the rows of a prompt.
NOT_SPLIT = ("kl_cov", "clip_cov", "real")


def counted(trainer: str) -> list[str]:
    """Return aggregations of a trainer that accept a constant; tinker-cookbook has sums only."""
    aggregations = RULES[trainer].aggregations.items()
    return [name for name, how in aggregations if how.count.unit not in ("nothing", "prompts")]


@pytest.mark.parametrize(
    ("trainer", "loss"),
    [case for case in losses_of() if case[1] not in NOT_SPLIT and counted(case[0])],
)
@given(data=st.data(), batch=padded_losses(), drawn=SETTINGS)
@dear(25)
def test_two_halves_with_the_same_constants_add_up(trainer, loss, data, batch, drawn):
    chosen = loss_settings(
        **drawn,
        aggregation=data.draw(st.sampled_from(counted(trainer))),
        denominator="constant",
        constant=7,
        **({"importance_sampling_level": "sequence"} if loss == "luspo" else {}),
    )
    cut = data.draw(st.integers(0, len(batch.mask)))
    whole = evaluate(batch.flat(), loss, chosen, trainer)
    parts = [
        evaluate(batch.flat(rows), loss, chosen, trainer)
        for rows in (slice(0, cut), slice(cut, None))
    ]
    if whole.undefined:
        assert any(part.undefined for part in parts)
        return
    assert [part.undefined for part in parts] == [None, None]
    assert sum(part.loss for part in parts) == pytest.approx(whole.loss)
    joined = np.concatenate([part.coefficients for part in parts])
    assert joined == pytest.approx(whole.coefficients)


@pytest.mark.parametrize(("trainer", "loss"), losses_of("verl-0.9"))
@given(batch=padded_losses())
@dear(20)
def test_values_of_rejected_tokens_have_no_effect(trainer, loss, batch):
    chosen = default_settings(trainer).changed(dro_beta=0.1)
    expected = evaluate(batch.flat(), loss, chosen, trainer)
    thrown = batch.mask & ~batch.kept
    odd = PaddedLoss(
        np.where(thrown, np.nan, batch.current),
        np.where(thrown, -np.inf, batch.old),
        np.where(thrown, 1e300, batch.advantages),
        batch.mask,
        batch.kept,
        batch.weights,
    )
    result = evaluate(odd.flat(), loss, chosen, trainer)
    assert result.loss == pytest.approx(expected.loss, nan_ok=True)
    assert result.metrics == pytest.approx(expected.metrics)
    assert result.coefficients.tolist() == expected.coefficients.tolist()


NOTHING = loss_batch(-ONES, -2 * ONES, ONES, LENGTHS, kept=np.zeros(6))
LATE = ("verl-20251203", "verl-0.7.0", "verl-0.7.1", "verl-0.8.0", "verl-0.9")


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_everything_rejected(aggregation):
    chosen = loss_settings(aggregation=aggregation)
    for trainer in ("verl-20251027", "verl-0.6.1", *LATE):
        result = evaluate(NOTHING, "vanilla", chosen, trainer)
        assert result.undefined == "no token is kept, so there is nothing to average"
        # With an epsilon in the denominator the trainer logs 0.
        assert np.isnan(result.loss) if trainer in LATE else result.loss == 0.0
        assert result.coefficients.tolist() == [0.0] * 6
        assert set(result.metrics.values()) <= {0.0}


def test_060_has_no_loss_where_one_row_is_rejected():
    chosen = loss_settings(aggregation="seq-mean-token-mean")
    result = evaluate(BATCH, "vanilla", chosen, "verl-0.6.0")
    assert np.isnan(result.loss)
    assert result.undefined
    assert "0/0" in result.undefined
    assert not result.coefficients.any()
    kept = evaluate(BATCH, "vanilla", chosen.changed(denominator="kept"), "verl-0.6.0")
    assert kept.loss == pytest.approx(1.0)
    assert kept.undefined is None


def test_sums_and_given_denominators_of_nothing_are_zero():
    for chosen in (
        loss_settings(aggregation="token-sum"),
        loss_settings(denominator="all"),
        loss_settings(denominator="constant", constant=5),
    ):
        result = evaluate(NOTHING, "vanilla", chosen, "verl-0.9")
        assert (result.loss, result.undefined) == (0.0, None)
    assert evaluate(NOTHING, "geo_mean", loss_settings(), "verl-0.9").undefined is None


REFUSED = [
    ("verl-0.9", "ppo", {}, "does not have it"),
    ("verl-0.6.0", "reinforce", {}, "does not have it"),
    ("verl-0.7.0", "dppo_tv", {}, "does not have it"),
    ("verl-0.8.0", "vanilla", {"aggregation": "token-sum"}, "does not have it"),
    ("slime", "vanilla", {"aggregation": "seq-mean-token-sum"}, "does not have it"),
    ("verl-0.9", "vanilla", {"denominator": "constant"}, "above 0"),
    ("verl-0.9", "vanilla", {"denominator": "constant", "constant": 0.0}, "above 0"),
    ("verl-0.9", "vanilla", {"denominator": "constant", "constant": float("nan")}, "above 0"),
    (
        "verl-0.9",
        "vanilla",
        {"denominator": "constant", "constant": 2.0, "aggregation": "token-sum"},
        "a sum without a denominator",
    ),
    ("verl-0.9", "vanilla", {"clip_c": 0.5}, "not above 1"),
    ("verl-0.9", "dppo_tv", {"clip_c": None}, "needs a number"),
    ("slime", "vanilla", {"clip_c": 1.0}, "not above 1"),
    ("verl-0.9", "dro", {}, "dro_beta"),
    ("verl-0.9", "kl_cov", {"kl_cov_ratio": 1.5}, "share"),
]


@pytest.mark.parametrize(("trainer", "loss", "given_settings", "words"), REFUSED)
def test_refusals(trainer, loss, given_settings, words):
    with pytest.raises(RcdiagError, match=words) as caught:
        evaluate(BATCH, loss, loss_settings(**given_settings), trainer)
    assert caught.value.hint


def test_columns_must_be_as_long_as_the_rows_say():
    with pytest.raises(RcdiagError, match="advantages"):
        one_row([-1.0, -1.0], [-1.0, -1.0], [1.0])
