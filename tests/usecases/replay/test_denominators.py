"""Denominators of the loss by hand: empty rows, rejected rows, single rows."""

from __future__ import annotations

from math import exp, log
from pathlib import Path

import pytest

from tests.usecases.replay.builders import naive_of, one, plan_of, replay_of, table_of, update_of

# Ratios old/rollout by row: 1 and 1; 4; 1, 1 and 1; and a row without tokens.
TIMES_4 = log(4.0)
ROLLOUT = [[-1.0, -1.0], [-3.0], [-1.0, -2.0, -1.0], []]
OLD = [[-1.0, -1.0], [-3.0 + TIMES_4], [-1.0, -2.0, -1.0], []]
ADVANTAGE = [1.0, 5.0, -2.0, 0.0]
# Row 1 is rejected.
REJECT = {"rollout_is": None, "rollout_rs": "seq_mean_k2", "rollout_rs_threshold": 0.5}
# Without a step the ratio is 1, so the loss of a token is -A.
KEPT_SUM = -(2 * 1.0 + 3 * -2.0)


@pytest.fixture
def table(tmp_path) -> Path:
    return table_of(tmp_path / "t.parquet", ROLLOUT, OLD, advantage=ADVANTAGE)


BY_HAND = [
    # Kept tokens 5 of 6; kept rows 2, rows with a token 3, all rows 4.
    ("token-mean", "kept", KEPT_SUM / 5),
    ("token-mean", "all", KEPT_SUM / 6),
    ("token-mean", "constant", KEPT_SUM / 12),
    ("seq-mean-token-sum", "kept", KEPT_SUM / 2),
    ("seq-mean-token-sum", "all", KEPT_SUM / 4),
    ("seq-mean-token-sum", "constant", KEPT_SUM / 12),
    ("seq-mean-token-mean", "kept", (-1.0 + 2.0) / 2),
    ("seq-mean-token-mean", "all", (-1.0 + 2.0) / 4),
    ("seq-mean-token-mean", "constant", (-1.0 + 2.0) / 12),
    ("seq-mean-token-sum-norm", "kept", KEPT_SUM / 2 / 3),
    ("seq-mean-token-sum-norm", "all", KEPT_SUM / 4 / 3),
    ("token-sum", "kept", KEPT_SUM),
    ("token-sum", "all", KEPT_SUM),
]


@pytest.mark.parametrize(("aggregation", "denominator", "loss"), BY_HAND)
def test_rejected_tokens_and_empty_rows_in_the_denominator(table, aggregation, denominator, loss):
    number = 12.0 if denominator == "constant" else None
    result = one(table, REJECT, aggregation=aggregation, denominator=denominator, constant=number)
    assert result.loss == pytest.approx(loss, rel=1e-7)
    assert (result.kept_tokens, result.kept_sequences) == (5, 2)


@pytest.mark.parametrize(
    ("aggregation", "unit", "counted"),
    [("token-mean", "tokens", (5, 6)), ("seq-mean-token-sum", "sequences", (2, 4))],
)
def test_the_denominator_is_described(table, aggregation, unit, counted):
    """Empty rows count among all sequences."""
    kept, everyone = counted
    for denominator, used in (("kept", kept), ("all", everyone), ("constant", 7)):
        number = 7.0 if denominator == "constant" else None
        result = one(
            table, REJECT, aggregation=aggregation, denominator=denominator, constant=number
        ).denominator
        assert (result.basis, result.counted) == (denominator, unit)
        assert (result.divisor, result.kept_count, result.full_count) == (used, kept, everyone)


@pytest.mark.parametrize(("denominator", "count"), [("kept", 5), ("all", 6)])
def test_rejection_shrinks_the_gradient_if_all_tokens_are_counted(table, denominator, count):
    """The coefficient of a kept token is -A / count, of a rejected one 0."""
    result = one(table, REJECT, denominator=denominator).coefficients
    assert result.sum == pytest.approx(KEPT_SUM / count)
    assert result.abs_sum == pytest.approx((2 * 1.0 + 3 * 2.0) / count)
    assert result.norm == pytest.approx((2 * 1.0 + 3 * 4.0) ** 0.5 / count)
    assert (result.nonzero, result.largest) == (5, pytest.approx(2.0 / count))


def test_an_advantage_of_zero_has_zero_coefficients(tmp_path):
    path = table_of(tmp_path / "t.parquet", [[-1.0, -1.0], [-2.0]], advantage=[0.0, 1.0])
    result = naive_of(path).coefficients
    assert (result.nonzero, result.sum, result.norm) == (
        1,
        pytest.approx(-1 / 3),
        pytest.approx(1 / 3),
    )


def test_a_clipped_token_has_a_loss_and_no_gradient(tmp_path):
    """Ratio 1.5 at advantage 1 is clipped to a loss of -1.2; ratio 0.5 keeps its gradient."""
    current = [[-1.0 + log(1.5), -1.0 + log(0.5)]]
    path = table_of(
        tmp_path / "t.parquet", [[-1.0, -1.0]], current_log_probs=current, advantage=[1]
    )
    result = naive_of(path)
    assert result.loss == pytest.approx(-(1.2 + 0.5) / 2)
    assert result.coefficients.nonzero == 1
    assert result.coefficients.sum == pytest.approx(-0.5 / 2)
    assert result.metrics["actor/pg_clipfrac"] == pytest.approx(0.5)


def test_a_preset_that_rejects_everything_has_no_loss(table):
    nothing = REJECT | {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.2_0.22"}
    result = replay_of(table, plan_of(none=nothing, some=REJECT), update_of())
    gone = result.presets["none"]
    assert (gone.loss, gone.kept_tokens) == (None, 0)
    assert gone.undefined == "no token is kept, so there is nothing to average"
    assert (gone.coefficients.norm, gone.coefficients.nonzero, gone.shares) == (0.0, 0, None)
    assert gone.health.verdict == "error"
    assert result.presets["some"].loss == pytest.approx(KEPT_SUM / 5)
    assert result.presets["naive"].loss is not None
    (output,) = [item for item in result.findings if item.slug == "loss-undefined"]
    assert output.message.startswith("no loss under none: no token is kept")


def test_everything_rejected_is_a_loss_of_zero_if_all_tokens_are_counted(table):
    nothing = REJECT | {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.2_0.22"}
    result = one(table, nothing, denominator="all")
    assert (result.kept_tokens, result.loss, result.undefined) == (0, 0.0, None)


def test_060_averages_empty_rows_too(table):
    """This gives 0/0, as in its own code; the loss is defined if all rows have tokens."""
    config = {"rollout_is": False, "rollout_is_threshold": 2.0}
    result = one(table, config, "verl-0.6.0", aggregation="seq-mean-token-mean")
    assert result.loss is None
    assert "0/0" in result.undefined
    summed = one(table, config, "verl-0.6.0", aggregation="seq-mean-token-sum")
    assert summed.loss == pytest.approx(-(2 * 1 + 5 - 6) / 4, rel=1e-7)


def test_batch_normalised_weights_have_a_mean_of_one(table):
    config = {
        "rollout_is": "token",
        "rollout_is_threshold": 2.0,
        "rollout_is_batch_normalize": True,
    }
    result = one(table, config)
    mean = (5 * 1.0 + 2.0) / 6
    assert result.loss == pytest.approx(-(2 * 1 + 2.0 * 5 - 6) / mean / 6)


def test_slimes_batch_normalisation_ignores_empty_rows(table):
    """Token weights 1 five times and 2 once: their mean is 7/6."""
    result = one(table, {"use_rs": False}, "slime", aggregation="token-mean", denominator="kept")
    assert result.loss == pytest.approx(-(2 * 1 + 2.0 * 5 - 6) / (7 / 6) / 6)


def test_slimes_own_loss_is_a_mean_over_rows(table):
    """Row means are -1, -5 x 2 and 2; the empty row is counted."""
    config = {"use_rs": False, "tis_batch_normalize": False}
    result = one(table, config, "slime")
    assert result.loss == pytest.approx((-1 - 10 + 2) / 4)
    assert result.metrics["ois"] == pytest.approx(3 / 4)
    assert result.metrics["pg_loss"] == result.loss


def test_a_token_that_overflows_spoils_no_other_preset(tmp_path):
    rollout, old = [[-1.0, -1500.0], [-1.0]], [[-1.0, -0.1], [-1.5]]
    path = table_of(tmp_path / "t.parquet", rollout, old, advantage=[1.0, 1.0])
    result = one(path, {"rollout_is": "token", "rollout_is_threshold": 2.0})
    assert result.loss == pytest.approx(-(1.0 + 2.0 + exp(-0.5)) / 3)
