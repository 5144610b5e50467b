"""Check by closed forms that the generator's tables have the faults of their labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rcdiag.engines.changes import LowPrecision, Passage
from tests.faults.other.forward import make_with_checkpoint
from tests.faults.other.make import cycle, half, kind_of, make
from tests.faults.other.models import EOS, Noise, distributions, logits, random_contexts
from tests.faults.other.precision import bfloat16, float8, integers
from tests.faults.other.registry import KINDS
from tests.faults.other.sampling import NEVER, Sampling, draw, generate, plain_view, read_hidden
from tests.faults.other.tables import Plan, honest_verdicts, to_arrow
from tests.faults.other.weights import head_gradient


def flat(table: pa.Table, name: str) -> np.ndarray:
    return table[name].combine_chunks().flatten().to_numpy()


def log_ratio(table: pa.Table) -> np.ndarray:
    difference = flat(table, "old_log_probs") - flat(table, "rollout_log_probs")
    if "response_mask" in table.column_names:
        difference = difference[flat(table, "response_mask").astype(bool)]
    return difference.astype(np.float64)


def small_plan(name: str) -> Plan:
    """Return a plan of a kind on a small vocabulary, for speed."""
    made = KINDS[name]
    fixed = {**made.fixed, "vocabulary": 192, "tokens": 6_000, "entropy": 1.2}
    plan = Plan(np.random.default_rng(11), **fixed)
    made.build(plan)
    return plan


def small(name: str) -> pa.Table:
    plan = small_plan(name)
    return to_arrow(plan.run()[0], plan)


def z_of(values: np.ndarray, expected: float) -> float:
    return float((values.mean() - expected) / (values.std() / np.sqrt(len(values)) + 1e-12))


QUICK = "healthy, vocabulary of 24"
HONEST = [
    "healthy",
    "honest noise by row",
    "honest noise, heavy tails",
    "stale-weights, interpolated",
    "stale-weights, trained",
    "moe-routing",
    "in-flight-update",
    "asynchronous, mixed lag",
    "int8-weights",
    "lora-missing",
]


@pytest.mark.parametrize("name", HONEST)
def test_mean_ratio_is_one_if_the_recorded_distribution_sampled(name: str) -> None:
    assert abs(z_of(np.exp(log_ratio(small(name))), 1.0)) < 4.5


@pytest.mark.parametrize("name", ["temperature-raw-recorded", "draft-recorded"])
def test_mean_ratio_is_not_one_if_another_distribution_sampled(name: str) -> None:
    assert z_of(np.exp(log_ratio(small(name))), 1.0) > 5.0


@pytest.mark.parametrize("name", ["top-p-renormalised", "top-k-renormalised", "banned ids"])
def test_mean_ratio_is_the_kept_mass(name: str) -> None:
    truth = small_plan(name).run()[1]
    assert truth["kept_mass"] < 1.0
    assert truth["mean_ratio"] == pytest.approx(truth["kept_mass"], abs=0.004)


def test_recorded_log_probs_are_log_softmax_values() -> None:
    plan = Plan(np.random.default_rng(3), vocabulary=192, tokens=3_000, tools=False)
    sample = generate(
        plan.rng,
        [plan.model],
        np.zeros(plan.rows, int),
        plan.prompts,
        plan.lengths,
        sampling=Sampling(),
        noise=Noise(),
    )
    views = [
        plain_view(p, r) for p, r in zip(plan.prompts, sample.rows(sample.tokens), strict=True)
    ]
    vectors = read_hidden(plan.model, views, plan.rng, Noise())
    z = logits(plan.model, vectors).astype(np.float64)
    expected = z - np.log(np.exp(z).sum(1, keepdims=True))
    at = np.arange(len(z))
    np.testing.assert_allclose(sample.raw, expected[at, sample.tokens], atol=1e-4)
    entropy = -(np.exp(expected) * expected).sum(1)
    np.testing.assert_allclose(sample.entropy, entropy, atol=1e-4)
    # The mean surprise of sampled tokens equals the distribution's entropy.
    assert abs(z_of(-sample.raw - sample.raw_entropy, 0.0)) < 4.5
    # A row ends at its end token and nowhere else.
    ends = sample.offsets[1:] - 1
    assert set(np.flatnonzero(sample.tokens == EOS)) <= set(ends)


def test_divergence_equals_that_of_the_temperature() -> None:
    plan = Plan(np.random.default_rng(4), vocabulary=192, tokens=3_000, tools=False)
    vectors = random_contexts(plan.rng, plan.model, 8)
    z = logits(plan.model, vectors).astype(np.float64)
    seen = np.zeros((8, 192), bool)
    cold = Sampling(temperature=0.5).apply(z.astype(np.float32), np.arange(8), 0, seen)
    own, raw = distributions(cold.astype(np.float64)), distributions(z)
    by_hand = (own.p * (np.log(own.p) - np.log(raw.p))).sum(1)
    shifted = (own.p * (cold - z)).sum(1) - own.norm + raw.norm
    np.testing.assert_allclose(shifted, by_hand, atol=1e-5)


def test_top_p_keeps_the_smallest_set_of_that_mass() -> None:
    z = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32))
    kept = Sampling(top_p=0.7).apply(z, np.array([0]), 0, np.zeros((1, 4), bool))
    assert (kept > NEVER / 100).tolist() == [[True, True, False, False]]
    all_ = Sampling(top_k=3, min_p=0.2).apply(z, np.array([0]), 0, np.zeros((1, 4), bool))
    assert (all_ > NEVER / 100).tolist() == [[True, True, True, False]]


def test_draws_follow_the_probabilities() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(100)).astype(np.float32)
    drawn = draw(rng, np.tile(p, (20_000, 1)))
    counts = np.bincount(drawn, minlength=100)
    chi = ((counts - 20_000 * p) ** 2 / (20_000 * p)).sum()
    assert chi < 99 + 5 * np.sqrt(2 * 99)


def test_head_gradient_matches_finite_differences() -> None:
    plan = Plan(np.random.default_rng(6), vocabulary=24, tokens=3_000, tools=False)
    rng = plan.rng
    vectors, tokens = random_contexts(rng, plan.model, 5), rng.integers(4, 24, 5)
    weight = rng.standard_normal(5).astype(np.float32)
    gradient = head_gradient(plan.model, vectors, tokens, weight)
    direction = rng.standard_normal(gradient.shape).astype(np.float32)
    # The end token's logit depends on the largest other one, which the gradient ignores.
    direction[EOS] = gradient[EOS] = 0.0

    def value(step: float) -> float:
        head = plan.model.weights["head"] + np.float32(step) * direction
        z = logits(plan.model.with_weights(head=head), vectors).astype(np.float64)
        z[:, EOS] = -50.0
        made = distributions(z)
        return float((weight * (z[np.arange(5), tokens] - made.norm)).sum())

    plan.model.weights["end"][:] = -50.0
    gradient = head_gradient(plan.model, vectors, tokens, weight)
    gradient[EOS] = 0.0
    slope = (value(1e-2) - value(-1e-2)) / 2e-2
    assert slope == pytest.approx(float((gradient * direction).sum()), rel=0.02, abs=0.02)


def test_log_ratio_of_an_update_correlates_with_the_advantage() -> None:
    table = small("old-after-update")
    difference = flat(table, "old_log_probs") - flat(table, "rollout_log_probs")
    lengths = table["response_ids"].combine_chunks().value_lengths().to_numpy()
    rows = np.repeat(np.arange(len(table)), lengths)
    means = np.bincount(rows, difference) / lengths
    assert np.corrcoef(means, table["advantage"].to_numpy())[0, 1] > 0.3


def test_rounding_to_known_grids() -> None:
    x = np.array([1.0, 1.0 + 2.0**-8, -3.14159, 1e-3], np.float32)
    expected = (x.view(np.uint32) + 0x7FFF + ((x.view(np.uint32) >> 16) & 1)) & 0xFFFF0000
    np.testing.assert_array_equal(bfloat16(x), expected.astype(np.uint32).view(np.float32))
    assert len(np.unique(integers(np.linspace(-1, 1, 999).reshape(1, -1), 4, 999))) == 15
    assert len(np.unique(np.abs(float8(np.linspace(0.0, 448.0, 100_000))))) <= 127


def test_faults_have_the_size_that_the_plan_asks_for() -> None:
    plan = small_plan("stale-weights, trained")
    asked = 0.02 * (0.7 / 0.02) ** plan.strength
    assert 0.6 < plan.run()[1]["rms_log_ratio"] / asked < 1.6


def test_another_prompt_matters_most_at_the_first_tokens() -> None:
    plan = small_plan("another prompt")
    columns, _, sample = plan.run()
    difference = np.abs(columns.old - columns.rollout)
    assert difference[sample.place < 5].mean() > 3 * difference[sample.place > 40].mean()


def test_seed_and_index_determine_the_table() -> None:
    one, key = make(7, 1, QUICK)
    again, same = make(7, 1, QUICK)
    assert one.equals(again)
    assert key == same
    assert not one.equals(make(8, 1, QUICK)[0])


def test_every_kind_is_in_each_half() -> None:
    count = 2 * len(cycle())
    for wanted in ("dev", "kept"):
        kinds = {kind_of(index) for index in range(count) if half(index) == wanted}
        assert kinds == set(KINDS)
    assert len(KINDS) >= 40


def test_verdicts_by_cost() -> None:
    assert honest_verdicts("honest", 0.005, 10_000, 50.0) == {"healthy"}
    assert honest_verdicts("honest", 0.3, 10_000, 50.0) == {"correctable"}
    # 100 tokens cannot show whether the recorded distribution sampled them.
    assert "inconclusive" in honest_verdicts("weights", 0.1, 100, 50.0)


def test_the_checkpoint_reproduces_the_trainer_column():
    """A healthy trainer's column is the checkpoint's up to noise, in read and log_probs alike."""
    index = next(at for at in range(400) if kind_of(at) == "healthy")
    table, key, checkpoints = make_with_checkpoint(3, index)
    assert key["healthy"]
    prompts, responses = table["prompt_ids"].to_pylist(), table["response_ids"].to_pylist()
    passages = [
        Passage(
            np.array([*prompt, *response], np.int32),
            len(prompt) + np.arange(len(response)),
            row,
            prefix=len(prompt),
        )
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ][:20]
    exact = checkpoints.log_probs(passages)
    np.testing.assert_allclose(checkpoints.read(passages).log_prob, exact, atol=1e-9)
    trainer = np.concatenate(table["old_log_probs"].to_pylist()[:20])
    assert 0.0 < np.sqrt(np.mean((trainer - exact) ** 2)) < 0.03
    rounded = checkpoints.log_probs(passages, LowPrecision())
    assert 0.0 < np.sqrt(np.mean((rounded - exact) ** 2)) < 0.03
    after = checkpoints.after_other_prefix
    checkpoints.others = {Path("same"): checkpoints.models[0]}
    np.testing.assert_allclose(after(passages, Path("same")), exact, atol=1e-4)
