"""Experiments without a forward pass, on made-up logits with faults of known size."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.experiments.conclude import run_experiments
from rcdiag.diagnosis.experiments.fit import FLOAT32, fit_residual, golden, margin
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTester
from rcdiag.diagnosis.experiments.order import explains, ranked, run_without_passes
from rcdiag.diagnosis.experiments.output_layer import bf16_logits, bfloat16
from rcdiag.diagnosis.experiments.sampling_estimates import (
    foreign_tokens,
    support_of_tokens,
    temperature_of_tokens,
)
from rcdiag.diagnosis.features.storage import StoredColumn
from rcdiag.diagnosis.validity import Interval
from rcdiag.diagnosis.verdict import verdict_with_experiments
from tests.diagnosis.experiments.samples import END, LENGTH, ROWS, made_tester, made_up

NEVER = np.float32(-1e9)


def kept_top_p(logits, share):
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    order = np.argsort(-weights)
    before = np.cumsum(weights[order]) - weights[order]
    made = logits.copy()
    made[order[before >= share]] = NEVER
    return made


def kept_top_k(logits, count):
    made = logits.copy()
    made[np.argsort(-logits)[count:]] = NEVER
    return made


def repeated(logits, prompt, response, strength):
    made, seen = logits.copy(), np.union1d(prompt, response).astype(np.int64)
    made[seen] = np.where(made[seen] > 0, made[seen] / strength, made[seen] * strength)
    return made


def present(logits, response, strength):
    made = logits.copy()
    made[np.unique(response)] -= np.float32(strength)
    return made


def biased(logits, biases):
    made = logits.copy()
    for token, bias in biases.items():
        made[token] += np.float32(bias)
    return made


def banned_end(logits, response, least):
    return biased(logits, {END: -1e9}) if len(response) < least else logits


LAWS = {
    "top-p-renormalised": lambda z, prompt, response: kept_top_p(z, 0.9),
    "top-k-renormalised": lambda z, prompt, response: kept_top_k(z, 5),
    "repetition-penalty": lambda z, prompt, response: repeated(z, prompt, response, 1.2),
    "presence-penalty": lambda z, prompt, response: present(z, response, 0.6),
    "logit-bias": lambda z, prompt, response: biased(z, {7: 2.0, 9: -1e9}),
    "min-tokens": lambda z, prompt, response: banned_end(z, response, 25),
    "logit-softcap": lambda z, prompt, response: np.float32(3.0) * np.tanh(z / np.float32(3.0)),
}
STRENGTHS = {
    "top-p-renormalised": ("top_p", 0.9, 0.01),
    "top-k-renormalised": ("top_k", 5, 0),
    "repetition-penalty": ("repetition_penalty", 1.2, 0.01),
    "presence-penalty": ("presence_penalty", 0.6, 0.02),
    "min-tokens": ("min_tokens", 25, 1),
    "logit-softcap": ("cap", 3.0, 0.05),
}


def best(tester: HypothesisTester):
    return ranked(
        [test for test in run_without_passes(tester).tests if explains(test, tester.sample.noise)]
    )[0]


@pytest.mark.parametrize("slug", list(LAWS))
def test_the_cause_and_its_parameter_are_recovered(slug):
    case, model = made_up(LAWS[slug])
    tester = made_tester(case, model)
    assert not tester.side.explained
    test = best(tester)
    assert test.slug == slug
    if slug in STRENGTHS:
        name, strength, error = STRENGTHS[slug]
        assert abs(test.values[name] - strength) <= error
    else:
        assert set(test.values) == {"bias_7", "bias_9"}
        assert abs(test.values["bias_7"] - 2.0) < 0.1
        assert test.values["bias_9"] < -9.0


def test_a_correct_engine_is_explained_and_no_cause_is_named():
    tester = made_tester(*made_up())
    assert tester.side.explained
    assert not [
        test for test in run_without_passes(tester).tests if explains(test, tester.sample.noise)
    ]


RECORDED = {
    "top-one-recorded": lambda own, z: (z.max(1) - np.log(np.exp(z).sum(1))).astype(np.float64),
    "sign-flipped": lambda own, z: -own,
    "log-base": lambda own, z: own / np.log(2.0),
    "log-probs-divided": lambda own, z: own / 0.7,
    "probabilities-stored": lambda own, z: np.exp(own),
}


@pytest.mark.parametrize("slug", list(RECORDED))
def test_a_wrong_recorded_quantity_is_identified(slug):
    case, model = made_up(recorded=RECORDED[slug])
    assert best(made_tester(case, model)).slug == slug


def test_a_shifted_column_is_identified():
    def shifted(own, logits):
        rows = own.reshape(60, 40)
        return np.concatenate([rows[:, 1:], np.zeros((60, 1))], axis=1).ravel()

    case, model = made_up(recorded=shifted)
    assert best(made_tester(case, model)).slug == "shift-by-one"


def of_rows(own, rows):
    return own.reshape(ROWS, LENGTH)[rows].ravel()


def shifted_in(own, chosen):
    rows = own.reshape(ROWS, LENGTH)
    return np.where(chosen[:, None], np.roll(rows, 1, axis=1), rows).ravel()


REPAIRED = {
    "rows-swapped": lambda own, rng: of_rows(own, rng.permutation(ROWS)),
    "shift-some-rows": lambda own, rng: shifted_in(own, rng.random(ROWS) < 0.4),
    "zero-placeholder": lambda own, rng: np.where(rng.random(len(own)) < 0.1, 0.0, own),
    "floor-clip": lambda own, rng: np.maximum(own, -4.0),
    "log-base": lambda own, rng: own / np.log(10.0),
}


@pytest.mark.parametrize("slug", list(REPAIRED))
def test_a_fault_of_one_column_alone_is_found_beside_the_model(slug):
    """The table has no second column: what two columns would show, the model's shows."""
    rng = np.random.default_rng(1)
    case, model = made_up(recorded=lambda own, logits: REPAIRED[slug](own, rng))
    alone = replace(case, trainer=None, log_probs={"rollout": case.log_probs["rollout"]})
    diagnosis, outcome = verdict_with_experiments(alone, lambda one: run_experiments(one, model))
    assert outcome is not None
    assert [cause.slug for cause in diagnosis.causes] == [slug]
    assert diagnosis.causes[0].confidence > 0.9


def test_tokens_give_the_sampling_temperature_if_both_columns_are_raw():
    case, model = made_up(lambda z, prompt, response: z / np.float32(0.7), noise=0.0)
    tester = made_tester(case, model)
    estimate = temperature_of_tokens(tester.sample.distribution)
    error = (estimate.high - estimate.value) / 1.96
    assert abs(estimate.value - 0.7) < 3.5 * error < 0.05


def test_a_silent_kept_set_is_recovered_from_the_tokens():
    case, model = made_up(lambda z, prompt, response: kept_top_p(z, 0.85), noise=0.0)
    kept = support_of_tokens(made_tester(case, model).sample.distribution)
    assert kept.rule == "top-p"
    assert abs(kept.value - 0.85) <= 0.02
    assert kept.gain > 100
    assert kept.outside == 0
    whole = support_of_tokens(made_tester(*made_up()).sample.distribution)
    assert whole.gain < 5


def test_the_scale_of_residuals_is_robust_to_a_few_tokens():
    rng = np.random.default_rng(0)
    sensitivity = rng.uniform(0.01, 1.0, 4_000)
    recorded = sensitivity * rng.standard_cauchy(4_000) * 0.01
    recorded[:40] += 5.0
    residual = fit_residual(recorded, np.zeros(4_000), sensitivity, np.full(4_000, FLOAT32))
    assert 0.005 < residual.scale < 0.02
    assert residual.outlying(0.01) < 0.1  # of Cauchy noise 6% are beyond ten scales
    assert not residual.within(0.001)


@pytest.mark.parametrize("decimals", [2, 3, 4])
def test_rounding_by_storage_is_not_part_of_the_residual(decimals):
    rng = np.random.default_rng(0)
    expected = -(10.0 ** rng.uniform(-6.0, 0.8, 4_000))
    sensitivity = -np.expm1(expected)
    recorded = np.round(expected + sensitivity * rng.normal(0.0, 0.01, 4_000), decimals)
    others, rows = np.full(4_000, np.nan), np.zeros(4_000, np.int64)
    grid = StoredColumn(values=recorded, other=others, row_of=rows).grid
    assert grid is not None
    exact = fit_residual(recorded, expected, sensitivity, np.full(4_000, FLOAT32))
    rounded = fit_residual(recorded, expected, sensitivity, FLOAT32 + grid.step(recorded) / 2)
    assert rounded.within(0.015)
    assert rounded.outlying(0.015) == 0.0
    assert exact.outlying(0.015) > 0.05
    assert not fit_residual(recorded, expected - 0.5, sensitivity, rounded.resolution).within(0.015)


def test_a_margin_counts_rows_not_tokens():
    better, worse = np.zeros(400), np.ones(400)
    worse[::2] = -0.8
    one_row_each, four_rows = np.arange(400), np.repeat(np.arange(4), 100)
    assert margin(better, worse, one_row_each) == pytest.approx(
        400 * 0.1 / np.sqrt(np.sum((worse - 0.1) ** 2) * 400 / 399)
    )
    assert margin(better, worse, four_rows) == 99.0  # every row gains the same


def test_golden_section_search_finds_the_minimum():
    place, least = golden(lambda x: (x - 0.3) ** 2 + 2.0, -1.0, 1.0, steps=30)
    assert place == pytest.approx(0.3, abs=1e-4)
    assert least == pytest.approx(2.0)


def test_bfloat16_rounds_to_even_as_torch_does():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(0, 30, 10_000).astype(np.float32)
    assert np.array_equal(bfloat16(values), torch.from_numpy(values).bfloat16().float().numpy())


DIVISIONS = {
    "logits rounded to bfloat16": lambda z: bfloat16(z) / np.float32(0.7),
    "logits and temperature rounded to bfloat16 and divided in bfloat16": lambda z: bfloat16(
        bfloat16(z) / np.float32(0.69921875)
    ),
}


@pytest.mark.parametrize("words", list(DIVISIONS))
def test_the_dtype_of_the_division_by_the_temperature_is_recovered(words):
    """0.7 in bfloat16 is 0.69921875; the spacing there is 1/256."""
    divided = DIVISIONS[words]
    case, model = made_up(lambda z, prompt, response: divided(z), temperature=0.7, noise=0.0)
    tests = list(bf16_logits.run(made_tester(case, model)))
    assert min(tests, key=lambda test: test.residual.nats).setting == words


def test_at_temperature_1_no_division_is_tried():
    case, model = made_up(lambda z, prompt, response: bfloat16(z), noise=0.0)
    (test,) = bf16_logits.run(made_tester(case, model))
    assert test.explained > 0.99


def test_spans_of_unlikely_tokens_are_foreign_and_single_ones_are_not():
    surprisal = np.array([0.1, 9.0, 0.1, 0.1, 0.1, 0.1, 3.5, 3.5, 3.5, 3.5, 0.1, 0.1, 0.1, 0.1])
    foreign = foreign_tokens(-surprisal, np.zeros(14), np.zeros(14, np.int64))
    assert np.flatnonzero(foreign).tolist() == [6, 7, 8, 9]


def test_a_span_ends_at_the_end_of_a_row():
    surprisal = np.array([0.1, 0.1, 9.0, 9.0, 9.0, 9.0, 0.1, 0.1])
    owner = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    own = foreign_tokens(-surprisal, np.zeros(8), owner)
    assert own.tolist() == [*([True] * 4), *([True] * 4)]
    assert not foreign_tokens(-surprisal, np.zeros(8), np.repeat(np.arange(4), 2)).any()


@pytest.mark.parametrize(
    ("estimate", "written"),
    [
        (Interval(1.1702, 1.1691, 1.1713), "1.1702 (1.1691 to 1.1713)"),
        (Interval(0.694, 0.665, 0.723), "0.694 (0.665 to 0.723)"),
        (Interval(-2.0, -2.5, -1.5), "-2 (-2.5 to -1.5)"),
        (Interval(10_000.0, 9_999.0, 10_001.0), "10000 (9999 to 10001)"),
        (Interval(0.9, 0.9, 0.9), "0.9 (0.9 to 0.9)"),
    ],
)
def test_interval_ends_are_written_with_enough_digits_to_differ(estimate, written):
    assert str(estimate) == written


@pytest.mark.parametrize(("off", "small"), [(0.0, True), (0.5, True), (90.0, False)])
def test_one_far_token_of_thousands_is_no_noise(off, small):
    """A share of outliers of 1 in 9,000 is small, but not the rms of one that is off by 90."""
    sensitivity = np.full(9_000, 0.3)
    noise = np.random.default_rng(0).normal(0.0, 0.02 * 0.3, 9_000)
    noise[17] += off
    residual = fit_residual(noise, np.zeros(9_000), sensitivity, np.full(9_000, FLOAT32))
    assert residual.within(0.02)
    assert residual.is_small(0.02, 10.0) is small
