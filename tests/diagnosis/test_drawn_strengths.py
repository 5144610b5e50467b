"""Causes are found at random strengths: few rows, small kept sets, biases, penalties."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.penalties import pushed
from rcdiag.diagnosis.features import Features
from rcdiag.results import Diagnosis
from tests.diagnosis.tables import (
    END,
    VOCABULARY,
    Array,
    Law,
    State,
    changed,
    drifted,
    judged,
    made,
    noisy,
    plain,
    presence_penalty,
    repetition_penalty,
    taken_twice,
    tempered,
    top_p,
    with_tool_turns,
    with_values,
)

ROWS = 128
EVERY = np.arange(ROWS)
SEEDS = range(4)


def slugs(diagnosis: Diagnosis) -> set[str]:
    return {cause.slug for cause in diagnosis.causes}


def drawn(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 17])


def joined(one: Case, other: Case, rows: np.ndarray) -> Case:
    """Replace some rows by those of another table with responses of the same lengths."""
    tokens = rows[one.owner]
    columns = {
        name: np.where(tokens, other.log_probs[name], values)
        for name, values in one.log_probs.items()
    }
    ids = np.where(tokens, other.token_id, one.token_id)
    return replace(one, log_probs=columns, token_id=ids)


def biased(ids: np.ndarray, size: float) -> Law:
    shift = np.zeros(VOCABULARY)
    shift[ids] = size
    return changed(lambda logits, state: logits + shift)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stated", [True, False])
def test_another_distribution_of_one_replica_is_not_called_other_weights(
    seed: int, stated: bool
) -> None:
    random = drawn(seed)
    temperature = float(random.uniform(0.5, 0.8))
    intact = made(tempered(temperature), noise=0.01, seed=seed)
    raw = made(tempered(temperature), recorded=plain, noise=0.01, seed=seed)
    share = int(random.integers(3, 7))
    theirs = EVERY % share == 1
    case = joined(intact, raw, theirs)
    if stated:
        engines = ["late" if flag else "other" for flag in theirs]
        case = replace(case, facts=replace(case.facts, engine=engines))
    diagnosis = judged(case)
    first = diagnosis.causes[0]
    assert diagnosis.verdict == "broken"
    # With enough rows E[ratio] distinguishes the two.
    assert first.slug in ("temperature-raw-recorded", "trainer-without-temperature")
    assert first.share_of_rows == pytest.approx(theirs.mean(), abs=0.02)
    assert ("In rows of engine late" if stated else "In some rows") in first.message


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_with_other_weights_is_named(seed: int) -> None:
    late = made(plain, drifted(float(drawn(seed).uniform(0.06, 0.2)), seed), seed=seed)
    case = joined(made(seed=seed), late, EVERY % 4 == 1)
    engines = [str(row % 4) for row in EVERY]
    diagnosis = judged(replace(case, facts=replace(case.facts, engine=engines)))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("correctable", "replica-unsynced")
    assert "Rows of engine 1 differ by" in diagnosis.summary


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_with_two_noise_levels_are_no_fault(seed: int) -> None:
    loud = made(noise=float(drawn(seed).uniform(0.02, 0.05)), seed=seed)
    case = joined(made(noise=0.003, seed=seed), loud, EVERY % 3 == 0)
    assert judged(case).verdict != "broken"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_small_kept_set_is_found_in_noise_of_both_signs(seed: int) -> None:
    random = drawn(seed)
    law = top_p(float(random.uniform(0.95, 0.99)))
    noise = float(random.uniform(0.01, 0.03))
    case = made(law, noisy(noise), seed=seed, rows=256)
    diagnosis = judged(case)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "truncated-law")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bias_shifts_a_few_ids_up_and_all_others_down(seed: int) -> None:
    random = drawn(seed)
    common = np.argsort(-np.bincount(made(seed=seed).token_id, minlength=VOCABULARY))
    ids = random.choice(common[common != END][5:40], 3, replace=False)
    size = float(random.uniform(0.8, 2.0))
    diagnosis = judged(made(biased(ids, size), noisy(0.01), seed=seed, rows=256))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "logit-bias")


def test_a_bias_is_found_by_a_dozen_tokens_beside_a_biased_id_too_rare_to_judge() -> None:
    case = made(plain, noisy(0.005), rows=96)
    counts = np.bincount(case.token_id, minlength=VOCABULARY)
    often, rare = np.flatnonzero(counts == 12)[:1], np.flatnonzero(counts == 1)[:1]
    old, bias = case.log_probs["old"], 3.9
    of_ids = np.log1p(np.exp(old) * np.expm1(bias)) - bias
    of_others = case.log_probs["old"] - case.log_probs["rollout"] + 0.12
    log_ratio = np.where(np.isin(case.token_id, [*often, *rare]), of_ids, of_others)
    found = pushed(Features(case.with_log_probs("rollout", old - log_ratio)))
    assert found is not None
    assert found.message.startswith(f"The sampler gives token id {often[0]} more probability")


def test_banned_ids_of_a_flat_model_are_found() -> None:
    """No context has nearly all of its mass on them: log-ratios are hardly below -3."""

    def without(logits: Array, state: State) -> Array:
        return np.where(np.isin(np.arange(VOCABULARY), range(20, 32)), -50.0, logits)

    case = made(changed(without), noisy(0.01), rows=40, sharpness=0.5, seed=4)
    assert np.quantile(case.tokens.log_ratio, 0.001) > -3.0
    diagnosis = judged(case)
    assert diagnosis.verdict == "broken"
    first = diagnosis.causes[0]
    assert "logit-bias" in (first.slug, *first.also_possible)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["repetition", "presence"])
def test_a_weak_penalty_is_distinguished_from_other_weights(seed: int, kind: str) -> None:
    random = drawn(seed)
    if kind == "repetition":
        law = repetition_penalty(float(random.uniform(1.05, 1.3)))
    else:
        law = presence_penalty(float(random.uniform(0.2, 0.8)))
    diagnosis = judged(made(law, noisy(0.01), seed=seed))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "penalty")


@pytest.mark.parametrize("seed", SEEDS)
def test_other_weights_are_neither_a_penalty_nor_a_bias(seed: int) -> None:
    size = float(drawn(seed).uniform(0.03, 0.2))
    diagnosis = judged(made(plain, drifted(size, seed), seed=seed))
    assert not {"penalty", "logit-bias", "rows-swapped", "truncated-law"} & slugs(diagnosis)
    assert diagnosis.verdict != "broken"


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_zeros_are_not_tool_text(seed: int) -> None:
    case = made(seed=seed)
    gone = drawn(seed).choice(ROWS, 16, replace=False)
    rows = np.isin(case.owner, gone)
    broken = with_values(case, "rollout", lambda values: np.where(rows, 0.0, values))
    diagnosis = judged(broken)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "zero-placeholder")


def test_later_turns_with_another_context_are_not_attributed_to_ids() -> None:
    case = with_tool_turns(made(length=80, rows=256), filler=np.nan)
    later = case.position >= 28  # tokens 20 to 27 are tool text
    marker = np.bincount(case.token_id[later]).argmax()
    values = case.log_probs["old"].copy()
    random = drawn(0)
    values[later] -= np.abs(random.standard_normal(int(later.sum())))
    marked = later & (case.token_id == marker)
    values[marked] = -12.0 + 0.5 * random.standard_normal(int(marked.sum()))
    diagnosis = judged(with_values(case, "old", lambda _: values))
    assert "special-token-ids" not in slugs(diagnosis)
    assert diagnosis.causes[0].slug == "context-stripped"


def test_an_id_that_opens_each_later_turn_is_not_the_fault() -> None:
    """Without the tool's output the trainer does not expect the words that follow it."""
    case = with_tool_turns(made(length=80, rows=256), filler=np.nan)
    opens, later = case.position == 28, case.position >= 28  # tokens 20 to 27 are tool text
    case = replace(case, token_id=np.where(opens, case.token_id.max() + 1, case.token_id))
    random = drawn(0)
    change = np.where(later & (random.random(len(later)) < 0.3), -3 * random.random(len(later)), 0)
    change[opens] = -8.0 + 0.5 * random.standard_normal(int(opens.sum()))
    diagnosis = judged(with_values(case, "old", lambda values: values + change))
    assert "special-token-ids" not in slugs(diagnosis)
    assert diagnosis.causes[0].slug == "context-stripped"


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_entirely_of_older_weights_count_as_older(seed: int) -> None:
    current, stale = made(seed=seed), made(plain, drifted(0.1, seed), seed=seed)
    change = drawn(seed).integers(10, 90, ROWS)  # many rows end before it
    old = current.position < change[current.owner]
    columns = {
        name: np.where(old, stale.log_probs[name], values)
        for name, values in current.log_probs.items()
    }
    ids = np.where(old, stale.token_id, current.token_id)
    facts = replace(
        current.facts, policy_version=np.where(old, 3, 4).astype(np.int64), version_by_token=True
    )
    case = replace(current, log_probs=columns, token_id=ids, facts=facts)
    diagnosis = judged(case)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("correctable", "in-flight-update")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_rare_tokens_do_not_hide_a_temperature(seed: int) -> None:
    """Their factors vary, as under a cap; all nearly certain tokens moving one way decides."""
    temperature = drawn(seed).uniform(0.55, 0.7)
    case = made(tempered(temperature), noisy(0.01), seed=seed, rows=64, sharpness=1.6)
    diagnosis = judged(case)
    assert diagnosis.verdict == "broken"
    assert diagnosis.causes[0].slug in ("trainer-without-temperature", "logit-softcap")


def test_answers_that_repeat_by_chance_are_not_duplicate_rows() -> None:
    """Log-probs over the whole vocabulary understate the probability of kept-set answers."""

    def twice(**facts: np.ndarray) -> Case:
        case = taken_twice(made(**facts), 3)
        for policy, values in case.log_probs.items():
            total = np.bincount(case.owner, values)[case.owner]
            case = with_values(case, policy, lambda v, by=-12.0 / total: by * v)
        return case

    assert "duplicated-rows" in slugs(judged(twice()))
    assert "duplicated-rows" not in slugs(judged(twice(top_p=np.full(ROWS, 0.7))))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_distribution_that_lacks_a_little_mass_is_not_noise(seed: int) -> None:
    """Log-ratios are as small as rounding and as often positive, but E[ratio] is not 1."""
    kept = drawn(seed).uniform(0.985, 0.992)
    diagnosis = judged(made(top_p(kept), noisy(0.03), seed=seed, sharpness=4.0))
    assert diagnosis.verdict in ("broken", "inconclusive")


def test_answers_with_rare_tokens_do_not_repeat_by_chance_beside_tool_text() -> None:
    """Answers of certain tokens and two rare ones do not repeat by chance."""
    case = with_tool_turns(taken_twice(made(), 4), filler=np.nan)
    rare = (case.position == 3) | (case.position == 12)
    for policy in ("rollout", "old"):
        case = with_values(case, policy, lambda v: np.where(rare, -5.5, 0.001 * v))
    assert "duplicated-rows" in slugs(judged(case))
    plain_text = replace(case, mask=np.ones_like(case.mask))
    for policy in ("rollout", "old"):
        plain_text = with_values(plain_text, policy, lambda v: np.nan_to_num(v, nan=-0.001))
    assert "duplicated-rows" not in slugs(judged(plain_text))


def test_equal_answers_of_greedy_decoding_are_no_duplicates() -> None:
    case = taken_twice(made(), 4)
    assert "duplicated-rows" in slugs(judged(case))
    greedy = replace(case.facts, temperature=np.zeros(len(case.lengths)))
    assert "duplicated-rows" not in slugs(judged(replace(case, facts=greedy)))


def test_one_row_that_differs_is_no_routing_of_experts() -> None:
    case = made(rows=600, seed=3)
    noise = drawn(0).normal(0.0, 1.2, len(case.owner))
    one = case.owner == 5
    moved = with_values(case, "old", lambda v: np.where(one, np.minimum(v + noise, 0.0), v))
    assert "moe-routing" not in slugs(judged(moved))
