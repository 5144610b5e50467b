"""Conclusions from experiments: which distribution, in which rows, with which context."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.experiments.batches import packing, padded_widths
from rcdiag.diagnosis.experiments.conclude import run_experiments
from rcdiag.diagnosis.experiments.order import run_with_passes
from rcdiag.diagnosis.experiments.trainer_distribution import TrainerDistribution
from rcdiag.diagnosis.verdict import verdict_with_experiments
from rcdiag.engines.changes import Change, Passage
from tests.diagnosis.experiments.samples import (
    LENGTH,
    ROWS,
    VOCABULARY,
    TableOfLogits,
    made_tester,
    made_up,
)

T = 0.6


def suspected(
    slug: str, confidence: float, message: str, evidence: list[dict[str, Any]], **more: Any
) -> Suspicion:
    return Suspicion(slug=slug, confidence=confidence, message=message, evidence=evidence, **more)


def of_temperature(case: Case, model: TableOfLogits, temperature: float) -> NDArray[np.float64]:
    """Return the model's log-probs of the case's tokens at a temperature."""
    logits = model.logits.reshape(-1, VOCABULARY)
    token = case.token_id.astype(np.int64)
    return TrainerDistribution(logits, token, token, token).log_prob_at(temperature)


@pytest.mark.parametrize("broken", ["sentinel", "floor-clip"])
def test_tokens_without_values_count_for_the_sampling_distribution(broken):
    """They are the rare tokens: without them the distribution would look sharper."""
    case, model = made_up(lambda logits, prompt, response: logits / np.float32(1.25))
    whole = run_experiments(case, model).temperature
    old = case.log_probs["old"]
    least = np.quantile(old, 0.1)
    case = case.with_log_probs(
        "old", np.where(old < least, -9999.0 if broken == "sentinel" else least, old)
    )
    diagnosis, outcome = verdict_with_experiments(case, lambda one: run_experiments(one, model))
    named = {cause.slug: cause for cause in diagnosis.causes}
    assert {broken, "trainer-without-temperature"} <= named.keys()
    assert outcome is not None
    assert outcome.temperature == whole


@pytest.mark.parametrize("share", [0.15, 0.4])
def test_a_distribution_of_some_rows_is_found_in_these_rows(share):
    """One engine of several returns log-probs from before the temperature."""
    case, model = made_up(
        lambda logits, prompt, response: logits / np.float32(T), temperature=T, noise=0.002
    )
    raw = np.random.default_rng(5).random(ROWS) < share
    processed = case.log_probs["rollout"]
    stored = np.where(np.repeat(raw, LENGTH), of_temperature(case, model, 1.0), processed)
    case = replace(case, log_probs={"rollout": stored, "old": of_temperature(case, model, T)})
    (first, *_) = run_experiments(case, model).suspicions
    assert first.slug == "temperature-raw-recorded"
    assert first.share_of_rows == pytest.approx(raw.mean(), abs=0.02)


def test_confidence_between_two_temperatures_is_limited_by_the_tokens():
    """A few tokens cannot decide between two similar distributions."""
    case, model = made_up(
        lambda logits, prompt, response: logits / np.float32(0.95), temperature=0.95, noise=0.0005
    )
    rows = np.arange(ROWS) < 6
    case = case.with_log_probs("old", of_temperature(case, model, 1.0))
    likelier = of_temperature(case, model, 0.95) - of_temperature(case, model, 1.0)
    odds = abs(likelier[np.repeat(rows, LENGTH)].sum())
    assert odds < 3.0
    model.noise = 0.0005
    (first, *_) = run_experiments(case.take(rows), model).suspicions
    assert first.fit.z == pytest.approx(np.sqrt(2.0 * odds), rel=0.02)
    (whole, *_) = run_experiments(case, model).suspicions
    assert whole.slug == "trainer-without-temperature"
    assert first.confidence < whole.confidence


def test_large_differences_in_a_few_contexts_are_not_rounding():
    """Rounding moves all contexts alike; a small update moves a few contexts by a lot."""
    rng = np.random.default_rng(1)
    case, model = made_up(noise=0.006)
    model.noise = 0.006
    old = case.log_probs["old"]
    rounded = old + rng.normal(0, 0.004, len(old))
    few = rng.random(len(old)) < 0.002
    moved = rounded + np.where(few, rng.choice([-0.7, 0.7], len(old)), 0.0)
    for stored, slug in ((rounded, "engine-noise"), (moved, "weights-differ")):
        one = case.with_log_probs("old", np.minimum(stored, 0.0))
        diagnosis, _ = verdict_with_experiments(
            one, lambda repaired: run_experiments(repaired, model)
        )
        assert diagnosis.causes[0].slug == slug
    assert diagnosis.verdict == "inconclusive"


class Packed(TableOfLogits):
    """A model whose logits depend on the tokens before a row's own prompt."""

    def log_probs(
        self, passages: Sequence[Passage], change: Change | None = None
    ) -> NDArray[np.float64]:
        logits, token = self._of(passages)
        moved = [self.pulled(one) for one in passages]
        return TrainerDistribution(logits + np.concatenate(moved), token, token, token).log_prob_at(
            1.0
        )

    def pulled(self, passage: Passage) -> NDArray[np.float32]:
        own = LENGTH + 6
        before = passage.ids[:-own]
        shape = (len(passage.places), VOCABULARY)
        if not len(before):
            return np.random.default_rng(3).normal(0, self.noise, shape).astype(np.float32)
        seed = int(before.sum()) % 2**31
        return np.random.default_rng(seed).normal(0, 0.7, shape).astype(np.float32)


def test_packing_is_found_at_any_position_in_the_pack():
    case, table = made_up()
    model = Packed(table.logits)
    starts = np.arange(ROWS) // 3 * 3
    ids = [
        np.concatenate([case.prompt_ids.row(row), case.token_id.reshape(ROWS, -1)[row]])
        for row in range(ROWS)
    ]
    passages = []
    for row, first in enumerate(starts):
        whole = np.concatenate(ids[first : row + 1]).astype(np.int32)
        passages.append(Passage(whole, np.arange(len(whole) - LENGTH, len(whole)), row, None, 0))
    case = case.with_log_probs("old", model.log_probs(passages))
    tester = made_tester(case, model, "trainer")
    best = min(packing.run(tester), key=lambda test: test.residual.nats)
    assert best.slug == "packing-leak"
    assert best.residual.within(tester.sample.noise)
    assert best.z > 6.0
    assert best.values["rows_before"] in (1.0, 1.5, 2.0)


def test_neighbouring_rows_are_tried_before_nondeterminism():
    """If one context has several values, only its neighbours can explain them."""
    case, model = made_up()
    stored = case.log_probs["old"] + np.random.default_rng(0).normal(0, 0.5, len(case.token_id))
    tester = made_tester(case.with_log_probs("old", stored), model, "trainer")
    ran = run_with_passes(tester, of_batch=True)
    assert {test.experiment for test in ran.tests} <= {"positions", "padding", "packing"}
    assert {"positions", "padding"} <= {test.experiment for test in ran.tests}


@pytest.mark.parametrize(("guess", "with_law"), [(0.6, True), (0.97, False)])
def test_a_distribution_that_leaves_a_residual_is_named_with_a_second_cause(guess, with_law):
    """Each experiment ran alone: a residual above noise means a second cause."""
    case, model = made_up(lambda logits, prompt, response: of_likeliest(logits))
    found = run_experiments(case, model)
    other = suspected(
        "weights-differ",
        guess,
        "No experiment explains rollout_log_probs.",
        [{"name": "rms", "value": 1}],
    )
    outcome = replace(found, suspicions=[other])
    table, _ = verdict_with_experiments(case, None)
    assert table.causes[0].slug == "truncated-law"
    diagnosis, _ = verdict_with_experiments(case, lambda repaired: outcome)
    named = {cause.slug for cause in diagnosis.causes}
    assert named == {"weights-differ"} | ({"truncated-law"} if with_law else set())


@pytest.mark.parametrize(
    "refuted", [(), ("top-p-renormalised", "top-k-renormalised", "min-p-renormalised")]
)
def test_a_kept_set_found_in_the_table_is_kept_until_refuted(refuted):
    case, model = made_up(lambda logits, prompt, response: of_likeliest(logits))
    table, _ = verdict_with_experiments(case, None)
    assert table.causes[0].slug == "truncated-law"
    quiet = suspected(
        "engine-noise", 0.95, "The checkpoint explains every column.", [], side="none"
    )
    outcome = replace(
        run_experiments(case, model),
        suspicions=[quiet],
        ruled_out=list(refuted),
    )
    diagnosis, _ = verdict_with_experiments(case, lambda repaired: outcome)
    assert diagnosis.causes[0].slug == ("engine-noise" if refuted else "truncated-law")


@pytest.mark.parametrize(("residual", "with_rest"), [(0.02, False), (0.9, True)])
def test_no_second_cause_if_the_residual_is_rounding(residual, with_rest):
    """Even if its gain is too uncertain to be seen in the columns, as with few rows."""
    case, model = made_up(lambda logits, prompt, response: of_likeliest(logits))
    found = run_experiments(case, model)
    first = found.tests[0]
    rounding = np.zeros_like(first.residual.values)
    small = replace(first.residual, scale=0.1 * found.sample.noise, rms=residual, values=rounding)
    test = replace(
        first,
        slug="truncated-law",
        baseline=replace(first.baseline, rms=1.0),
        residual=small,
        z=1.0,
    )
    other = suspected(
        "replica-unsynced", 0.55, "20% of the rows are off.", [{"name": "rms", "value": 1}]
    )
    outcome = replace(found, suspicions=[other], tests=[test])
    diagnosis, _ = verdict_with_experiments(case, lambda repaired: outcome)
    named = {cause.slug for cause in diagnosis.causes}
    assert named == {"truncated-law"} | ({"replica-unsynced"} if with_rest else set())


@pytest.mark.parametrize("sure", [0.7, 0.95])
@pytest.mark.parametrize(("rows", "verdict"), [(None, "correctable"), (6, "inconclusive")])
def test_an_unexplained_mismatch_is_judged_by_who_sampled(sure, rows, verdict):
    """Six rows cannot show who sampled, even if the two sides clearly differ."""
    case, model = made_up()
    far = np.random.default_rng(1).normal(0, 0.5, (len(case.token_id), VOCABULARY))
    other = model.logits.reshape(-1, VOCABULARY) + far.astype(np.float32)
    token = case.token_id.astype(np.int64)
    case = case.with_log_probs(
        "old", TrainerDistribution(other, token, token, token).log_prob_at(1.0)
    )
    outcome = run_experiments(case, model)
    few = case if rows is None else case.without_rows(np.arange(len(case.lengths)) >= rows)
    wide = suspected(
        "forwards-differ",
        sure,
        "No experiment explains old_log_probs.",
        [{"name": "rms", "value": 1}],
    )
    outcome = replace(outcome, suspicions=[wide])
    diagnosis, _ = verdict_with_experiments(few, lambda repaired: outcome)
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == ("forwards-differ", verdict)


@pytest.mark.parametrize(("sure", "with_zeros"), [(0.97, False), (0.6, True)])
def test_zeros_of_single_token_kept_sets_are_not_placeholders(sure, with_zeros):
    case, model = made_up()
    rollout = case.log_probs["rollout"]
    case = case.with_log_probs("rollout", np.where(np.arange(len(rollout)) % 5, rollout, 0.0))
    table, _ = verdict_with_experiments(case, None)
    assert table.causes[0].slug == "zero-placeholder"
    kept = suspected(
        "top-p-renormalised",
        sure,
        "Top-p 0.9 explains rollout_log_probs.",
        [{"name": "top-p", "value": 0.9}],
    )
    outcome = replace(run_experiments(case, model), suspicions=[kept])
    diagnosis, _ = verdict_with_experiments(case, lambda repaired: outcome)
    slugs = {cause.slug for cause in diagnosis.causes}
    assert slugs == {"top-p-renormalised"} | ({"zero-placeholder"} if with_zeros else set())


@pytest.mark.parametrize("refuted", [(), ("draft-recorded",)])
def test_an_umbrella_does_not_hide_that_the_record_did_not_sample(refuted):
    case, model = made_up()
    drift = np.random.default_rng(1).normal(0, 0.6, (len(case.token_id), VOCABULARY))
    draft = model.logits.reshape(-1, VOCABULARY) + drift.astype(np.float32)
    token = case.token_id.astype(np.int64)
    case = case.with_log_probs(
        "rollout", TrainerDistribution(draft, token, token, token).log_prob_at(1.0)
    )
    table, _ = verdict_with_experiments(case, None)
    assert (table.causes[0].slug, table.verdict) == ("weights-differ", "broken")
    wide = suspected(
        "weights-differ",
        0.7,
        "No experiment explains rollout_log_probs.",
        [{"name": "rms", "value": 1}],
    )
    outcome = replace(
        run_experiments(case, model),
        suspicions=[wide],
        ruled_out=list(refuted),
    )
    diagnosis, _ = verdict_with_experiments(case, lambda repaired: outcome)
    assert (diagnosis.causes[0].slug, diagnosis.verdict) == ("weights-differ", "broken")


def of_likeliest(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Keep the eight most likely tokens of a context."""
    made = logits.copy()
    made[np.argsort(-logits)[8:]] = np.float32(-1e9)
    return made


@pytest.mark.parametrize("whole", [False, True])
def test_rows_are_padded_to_the_longest_prompt_or_to_the_longest_row(whole):
    prompt, response = np.arange(40) % 7 + 3, np.arange(40) % 5 * 4 + 8
    case = SimpleNamespace(prompt_ids=SimpleNamespace(lengths=prompt), lengths=response)
    tester = SimpleNamespace(sample=SimpleNamespace(case=case))
    blocks = {"the table": 40} | {f"blocks of {size} rows": size for size in (16, 8, 32, 4)}
    widths = dict(padded_widths(tester, whole=whole))
    assert list(widths) == list(blocks)
    for words, width in widths.items():
        block = blocks[words]
        own = np.array([width[row] for row in range(40)]) + whole * response
        for start in range(0, 40, block):
            rows = slice(start, start + block)
            longest = (prompt + whole * response)[rows].max()
            assert np.all(own[rows] == longest)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_noise_of_logits_has_one_scale_at_any_temperature(temperature):
    """The logits, and with them their noise, are divided by the temperature."""
    case, model = made_up(
        lambda logits, prompt, response: logits / np.float32(temperature),
        temperature=temperature,
        noise=0.02,
    )
    case = case.with_log_probs("old", of_temperature(case, model, temperature))
    side = made_tester(case, model, "sampler").side
    assert np.all(side.temperature == temperature)
    assert 0.01 < side.residual.scale < 0.03
