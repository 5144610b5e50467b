"""Squared log-ratios that a few tokens or rows hold: these are named, and nothing is `healthy`."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.features import Features
from tests.diagnosis.tables import (
    State,
    drifted,
    judged,
    made,
    noisy,
    plain,
    rerouted,
    with_values,
)

LENGTH = 60


def with_one(value: float, policy: str) -> Case:
    """Make a table of rounding in which one value, at row 20, token 34, is wrong."""
    case = made(plain, noisy(0.01), rows=256, length=LENGTH)
    here = (case.owner == 20) & (case.position == 34)
    return with_values(case, policy, lambda values: np.where(here, value, values))


@pytest.mark.parametrize("policy", ["rollout", "old"])
@pytest.mark.parametrize("value", [-45.0, -90.0])
def test_a_value_that_no_sampler_draws_is_damage(value: float, policy: str) -> None:
    case = with_one(value, policy)
    other = "old" if policy == "rollout" else "rollout"
    there = case.log_probs[other][20 * LENGTH + 34]
    diagnosis = judged(case)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "sentinel")
    assert diagnosis.summary == (
        f"In row 20, token 34, `{policy}` is {value:g} where `{other}` is {there:.3g}: no sampler "
        "draws so unlikely a token."
    )


@pytest.mark.parametrize("policy", ["rollout", "old"])
def test_more_values_that_no_sampler_draws_are_damage_too(policy: str) -> None:
    case = made(plain, noisy(0.01), rows=256, length=LENGTH)
    here = np.random.default_rng(4).choice(len(case.mask), 6, replace=False)

    def damaged(values: np.ndarray) -> np.ndarray:
        values[here] = [-34.0, -45.0, -52.0, -61.0, -77.0, -90.0]
        return values

    diagnosis = judged(with_values(case, policy, damaged))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "sentinel")
    assert diagnosis.summary.startswith(f"6 values of `{policy}` are -34 or less, the first in row")


def test_tokens_of_any_id_that_both_sides_call_impossible_were_not_sampled() -> None:
    """Text of a tool whose ids do not repeat: 8 of 15,360 tokens, below .01 / (15,360 * 2^18)."""
    case = made(plain, noisy(0.01), rows=256, length=LENGTH)
    here = np.random.default_rng(5).choice(len(case.mask), 8, replace=False)

    def unlikely(values: np.ndarray) -> np.ndarray:
        values[here] = np.linspace(-28.0, -31.5, 8) + 0.1 * np.sin(values[here])
        return values

    both = with_values(with_values(case, "rollout", unlikely), "old", unlikely)
    diagnosis = judged(both)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "mask-includes-tool")
    assert diagnosis.summary.startswith("8 of 15,360 tokens have a probability below 2e-12 on both")


def test_unlikely_tokens_that_both_sides_call_unlikely_are_not_damage() -> None:
    """A token that was forced, not sampled, is as unlikely on the other side."""
    case = with_one(-45.0, "rollout")
    here = case.log_probs["rollout"] == -45.0
    forced = with_values(case, "old", lambda values: np.where(here, -45.4, values))
    assert "sentinel" not in [cause.slug for cause in judged(forced).causes]


@pytest.mark.parametrize("policy", ["rollout", "old"])
def test_one_token_that_holds_the_mismatch_is_named(policy: str) -> None:
    diagnosis = judged(with_one(-14.0, policy))
    assert diagnosis.verdict == "inconclusive"
    assert "in row 20, token 34, where `rollout` is " in diagnosis.summary
    assert "all others agree to rounding (0.0" in diagnosis.summary
    assert "more rows like these" not in diagnosis.summary
    assert diagnosis.causes[0].actions[0].text.startswith("Score row 20 again on both sides")


def test_one_row_that_holds_the_mismatch_is_named() -> None:
    case = made(plain, noisy(0.01), rows=256, length=LENGTH)
    other = made(plain, noisy(1.0), rows=256, length=LENGTH)
    of_row = np.where(case.owner == 100, other.log_probs["old"] - other.log_probs["rollout"], 0.0)
    diagnosis = judged(with_values(case, "old", lambda values: np.minimum(values + of_row, -1e-4)))
    assert [cause.slug for cause in diagnosis.causes] == ["forwards-differ"]
    assert diagnosis.verdict == "inconclusive"
    cause = diagnosis.causes[0]
    assert ", most in row 100: it holds " in cause.message
    far = np.abs(case.log_probs["rollout"] - case.log_probs["old"] - of_row) > 1.0
    first = int(case.position[np.flatnonzero(far & (case.owner == 100))[0]])
    assert f"both sides had in row 100 from token {first} on" in cause.actions[0].text


def test_clustering_by_hand() -> None:
    """Rows of two tokens: the mean over all orders of two equal and two zero squares is 8 / 3."""
    for log_ratio, expected in (((1, 1, 0, 0), 1.5), ((1, 0, 1, 0), 0.75), ((1, 0, 0, 0), 1.0)):
        rollout = np.full(4, -2.0)
        case = Case(
            sampler="rollout",
            trainer="old",
            row=np.arange(2),
            lengths=np.array([2, 2]),
            token_id=np.zeros(4, np.int32),
            mask=np.ones(4, np.bool_),
            log_probs={"rollout": rollout, "old": rollout + np.array(log_ratio)},
        )
        assert Features(case).log_ratios.clustering == pytest.approx(expected)


def test_rounding_of_the_few_rows_that_are_uncertain_is_no_cluster() -> None:
    """Nine of ten rows are certain; by tokens alone the squares cluster tenfold in the others."""
    rows, rng = np.repeat(np.arange(200), 50), np.random.default_rng(6)
    rollout = np.where(rows % 10 == 0, -2.0, -1e-3)
    log_ratio = 0.02 * -np.expm1(rollout) * rng.standard_normal(len(rows))
    case = Case(
        sampler="rollout",
        trainer="old",
        row=np.arange(200),
        lengths=np.full(200, 50),
        token_id=np.zeros(len(rows), np.int32),
        mask=np.ones(len(rows), np.bool_),
        log_probs={"rollout": rollout, "old": rollout + log_ratio},
    )
    assert Features(case).log_ratios.clustering == pytest.approx(1.0, abs=0.3)


def test_without_a_mismatch_nothing_holds_it() -> None:
    assert Features(made(plain, plain, rows=32)).few_places is None


def test_unlikely_values_among_others_that_differ_as_much_are_not_damage() -> None:
    """A trainer that read other tokens gives some of them any log-prob."""
    case = with_one(-45.0, "old")
    wrong = (case.position > 5) & (case.position % 3 == 0) & (case.log_probs["old"] != -45.0)
    read = with_values(case, "old", lambda values: np.where(wrong, -18.0, values))
    assert "sentinel" not in [cause.slug for cause in judged(read).causes]


@pytest.mark.parametrize("policy", ["rollout", "old"])
@pytest.mark.parametrize("count", [4, 8, 30])
def test_damaged_tokens_are_counted_and_no_weights_are_called_valid(
    count: int, policy: str
) -> None:
    case = made(plain, noisy(0.01), rows=256, length=LENGTH)
    here = np.random.default_rng(7).choice(len(case.mask), count, replace=False)

    def damaged(values: np.ndarray) -> np.ndarray:
        values[here] = -np.linspace(9.0, 12.0, count)
        return values

    diagnosis = judged(with_values(case, policy, damaged))
    assert [cause.slug for cause in diagnosis.causes] == ["forwards-differ"]
    assert f"most at {count} tokens, the largest in row " in diagnosis.causes[0].message
    assert diagnosis.verdict in ("inconclusive", "broken")
    assert "weights are valid" not in diagnosis.summary


def test_the_rows_of_one_prompt_are_named_and_their_cause_is_open() -> None:
    prompt = np.arange(256) // 8 == 5
    older = drifted(0.3)

    def law(logits: np.ndarray, state: State) -> np.ndarray:
        return np.where(prompt[:, None], older(logits, state), plain(logits, state))

    case = made(law, noisy(0.01), law, rows=256, length=LENGTH, group_of=8)
    diagnosis = judged(case)
    assert [cause.slug for cause in diagnosis.causes] == ["forwards-differ"]
    assert ", most in rows 40, 41, 42, 43 and 4 more (all of 1 prompt): they hold 9" in (
        diagnosis.summary
    )
    # Another context of that prompt would look alike, and weights would correct towards it.
    assert diagnosis.verdict == "inconclusive"
    assert "weights are valid" not in diagnosis.summary
    possible = diagnosis.causes[0].also_possible
    assert {"stale-weights", "trainer-without-temperature", "context-differs"} <= {*possible}


def test_without_a_gap_no_tokens_are_a_few_places() -> None:
    """Other experts move some tokens far and some less."""
    case = made(plain, rerouted(1.0, 0.002), rows=256, length=LENGTH)
    assert Features(case).few_places is None


@pytest.mark.parametrize("policy", ["rollout", "old"])
@pytest.mark.parametrize("further", [1, -1, 2])
def test_rows_displaced_from_some_token_on_are_shifted(policy: str, further: int) -> None:
    """As where one side has a log-prob more, or less, from a token on that was encoded again."""
    case = made(plain, noisy(0.01), rows=192, length=LENGTH, sharpness=0.5)
    from_token = 20 + case.row[case.owner] % 7
    here = (case.row % 24 == 3)[case.owner] & (case.position >= from_token)
    moved = with_values(
        case, policy, lambda values: np.where(here, np.roll(values, further), values)
    )
    diagnosis = judged(moved)
    first = diagnosis.causes[0]
    assert (diagnosis.verdict, first.slug) == ("broken", "shift-some-rows")
    assert f"In 8 rows (4%) `{policy}` is {abs(further)} token" in first.message
    assert f"{'later' if further > 0 else 'earlier'} than" in first.message
    assert "from some token on (row 3: token 2" in first.message
    assert [cause.slug for cause in diagnosis.causes[1:]] in ([], ["engine-noise"])
