"""Wrong contexts, end tokens and parts of the vocabulary, at random strengths."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.case import Array, Case
from rcdiag.diagnosis.verdict import verdict_with_experiments
from tests.diagnosis.tables import (
    END,
    VOCABULARY,
    Law,
    changed,
    first_tokens_differ,
    made,
    noisy,
    plain,
    shifted,
    tempered,
    with_values,
    without_shard,
)
from tests.diagnosis.test_drawn_strengths import EVERY, ROWS, SEEDS, drawn, joined, judged, slugs

NO_WEIGHTS = {"weights-differ", "stale-weights", "context-differs", "quantised-weights"}


def moved(rows: np.ndarray, size: float, seed: int) -> Case:
    """Make a table whose trainer saw a different prompt in some rows."""
    other = made(plain, first_tokens_differ(size, fades=15.0), seed=seed)
    return joined(made(seed=seed), other, rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_limit_of_the_prompt_is_found_wherever_it_lies(seed: int) -> None:
    random = drawn(seed)
    lengths = np.repeat(random.integers(30, 120, ROWS // 4), 4)
    limit = int(np.quantile(lengths, random.uniform(0.2, 0.8)))
    # Every row has uncertain tokens, which alone show that the prompt was cut.
    trainer = first_tokens_differ(float(random.uniform(1.0, 2.0)), fades=15.0)
    intact, other = (made(plain, law, seed=seed, sharpness=0.6) for law in (None, trainer))
    case = joined(intact, other, lengths > limit)
    diagnosis = judged(replace(case, facts=replace(case.facts, prompt_length=lengths)))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "prompt-truncated")
    assert diagnosis.causes[0].share_of_rows == pytest.approx(np.mean(lengths > limit), abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_is_detected_by_the_longest_row_of_each_batch(seed: int) -> None:
    random = drawn(seed)
    lengths, size = random.integers(30, 120, ROWS), int(random.choice([4, 8, 16]))
    longest = lengths.reshape(-1, size).max(axis=1)[EVERY // size]
    case = moved(lengths < longest, float(random.uniform(0.2, 1.0)), seed)
    facts = replace(case.facts, prompt_length=lengths, group=None)
    diagnosis = judged(replace(case, facts=facts))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "attention-to-padding")
    assert f"In batches of {size} " in diagnosis.causes[0].message


@pytest.mark.parametrize("policy", ["rollout", "old"])
@pytest.mark.parametrize("seed", SEEDS)
def test_end_tokens_without_a_log_prob_show_where_some_rows_are_cut(seed: int, policy: str) -> None:
    case = made(seed=seed, ends=True, length=int(drawn(seed).integers(14, 22)))
    last = np.zeros(len(case.mask), np.bool_)
    last[case.start + case.lengths - 1] = True
    assert np.mean(case.token_id[last] != END) > 0.12
    ended = last & (case.token_id == END)
    diagnosis = judged(with_values(case, policy, lambda v: np.where(ended, 0.0, v)))
    assert diagnosis.verdict == "broken"
    assert diagnosis.causes[0].slug in ("eos-one-sided", "zero-placeholder")


@pytest.mark.parametrize("seed", SEEDS)
def test_end_tokens_scored_as_another_id_are_theirs_alone(seed: int) -> None:
    random = drawn(seed)
    case = made(seed=seed, ends=True)
    ended, wrong = case.token_id == END, -float(random.uniform(7, 14))
    values = wrong + 0.5 * random.standard_normal(len(case.mask))
    diagnosis = judged(with_values(case, "old", lambda v: np.where(ended, values, v)))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "eos-one-sided")


def zeroed(first: int, last: int) -> Law:
    """Set the logits of part of the vocabulary to 0, as uninitialised head rows do."""

    def zero(logits: Array, state: object) -> Array:
        logits = logits.copy()
        logits[:, first:last] = 0.0
        return logits

    return changed(zero, noisy(0.01))


@pytest.mark.parametrize("how", [without_shard, zeroed])
@pytest.mark.parametrize("seed", range(10))
def test_a_part_of_the_vocabulary_is_wrong_in_the_trainer(seed: int, how) -> None:
    random = drawn(seed)
    ranks = int(random.choice([2, 4, 8]))
    size, rank = VOCABULARY // ranks, int(random.integers(ranks))
    case = made(plain, how(rank * size, (rank + 1) * size), seed=seed)
    diagnosis = judged(case)
    assert diagnosis.verdict == "broken"
    assert "vocab-shard-wrong" in slugs(diagnosis)
    without_checkpoint, _ = verdict_with_experiments(case, None)
    assert slugs(without_checkpoint) == slugs(diagnosis)  # `score` and `diagnose` agree


def test_ids_of_first_tokens_are_not_a_broken_part_of_the_vocabulary() -> None:
    """First tokens have few ids, and another prompt makes these far less likely."""
    case = made(rows=256)
    ids = np.where(case.position == 0, 40 + case.owner % 12, case.token_id)
    ids = np.where((case.position > 0) & (ids >= 40) & (ids < 52), 60, ids).astype(np.int32)
    case = replace(case, token_id=ids)
    other = with_values(case, "old", lambda v: np.where(case.position == 0, v - 10.0, v))
    everywhere = with_values(case, "old", lambda v: np.where((ids >= 60) & (ids < 90), v - 10.0, v))
    assert "vocab-shard-wrong" not in slugs(judged(other))
    cause = judged(everywhere).causes[0]
    assert cause.slug == "vocab-shard-wrong"
    (evidence,) = cause.evidence
    assert evidence["in_range"] == pytest.approx(-10.0, abs=0.1)
    assert evidence["others"] == pytest.approx(0.0, abs=0.1)


def test_too_few_tokens_of_an_id_leave_its_cause_possible() -> None:
    case = made(plain, noisy(0.01), rows=24, length=30)
    ids, counts = np.unique(case.token_id, return_counts=True)
    rare = np.isin(case.token_id, ids[(counts > 2) & (counts <= 6)][:3])
    cause = judged(with_values(case, "old", lambda v: np.where(rare, v - 15.0, v))).causes[0]
    assert cause.slug == "forwards-differ"
    assert "special-token-ids" in cause.also_possible


def test_logits_of_the_next_token_are_not_divided_log_probs() -> None:
    """Each token is scored as its own successor: far less likely, with one sign."""
    case = made()
    random = drawn(0)
    less = random.exponential(2.0, len(case.mask)) + 9.0
    likely = random.random(len(case.mask)) < 0.2
    sampler = case.log_probs["rollout"]
    values = np.where(likely, 1.6 * sampler, sampler - less)
    diagnosis = judged(with_values(case, "old", lambda _: values))
    assert diagnosis.verdict == "broken"
    assert "log-probs-divided" not in slugs(diagnosis)


def test_zeros_of_certain_tokens_are_not_placeholders_in_shifted_rows() -> None:
    """In a peaked policy many log-probs are exactly 0; a shift moves them to other tokens.

    Without them the turns are still whole.
    """
    case = made(sharpness=1.5, noise=0.005, rows=256)
    for policy in ("rollout", "old"):
        case = with_values(case, policy, lambda v: np.where(v > -0.01, 0.0, v))
    case = shifted(case, "old", EVERY_OF_256 % 4 == 1)
    first = judged(case).causes[0]
    assert first.slug == "shift-some-rows"
    assert first.share_of_rows == pytest.approx(0.25, abs=0.03)


EVERY_OF_256 = np.arange(256)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bias_on_mostly_certain_tokens_is_detected_by_its_bound(seed: int) -> None:
    """Mostly certain ids have a mean log-ratio near 0, and none beyond the bias."""
    common = np.argsort(-np.bincount(made(seed=seed).token_id, minlength=VOCABULARY))
    ids = common[common != END][:3]
    shift = np.zeros(VOCABULARY)
    shift[ids] = float(drawn(seed).uniform(2.0, 3.0))
    pushed = changed(lambda logits, state: logits + shift)
    diagnosis = judged(made(pushed, noisy(0.003), seed=seed, rows=256, sharpness=1.5))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "logit-bias")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_floor_of_few_tokens_shows_beside_another_temperature(seed: int) -> None:
    temperature = float(drawn(seed).uniform(0.5, 0.7))
    case = made(plain, tempered(temperature), seed=seed, rows=256)
    values = np.sort(case.log_probs["old"])
    floor = float(values[int(0.005 * len(values))])
    clipped = with_values(case, "old", lambda v: np.maximum(v, floor))
    assert "floor-clip" in slugs(judged(clipped))
    assert "floor-clip" not in slugs(judged(case))


def test_one_deviating_row_does_not_make_an_engine_deviate() -> None:
    """A fault of an engine is in most of its rows."""
    late = made(plain, changed(lambda logits, state: 0.85 * logits, noisy(0.01)))
    case = joined(made(noise=0.003), late, (EVERY % 4 == 1) | (EVERY == 2))
    engines = [f"engine {row % 4}" for row in EVERY]
    loud = judged(replace(case, facts=replace(case.facts, engine=engines))).causes[0]
    assert "engine 1" in loud.message
    assert "engine 2" not in loud.message


def test_a_mean_ratio_other_than_one_rules_out_other_weights() -> None:
    """With any weights the trainer's distribution sums to 1."""
    case = made()
    noise = drawn(0).standard_normal(len(case.mask))
    case = with_values(case, "old", lambda v: np.minimum(v + 0.15 + 0.2 * noise, -1e-4))
    diagnosis = judged(case)
    (cause,) = diagnosis.causes
    assert cause.slug == "forwards-differ"
    assert not NO_WEIGHTS & {*cause.also_possible}
    assert "not the one that sampled" in diagnosis.summary


@pytest.mark.parametrize("sharpness", [1.5, 2.0, 2.5])
@pytest.mark.parametrize("temperature", [0.4, 0.5, 0.6])
def test_a_declared_low_temperature_is_confirmed_by_nearly_certain_tokens(
    temperature: float, sharpness: float
) -> None:
    """A low temperature samples few rare tokens, only in contexts with several likely ones."""
    facts = {"temperature": np.full(ROWS, temperature)}
    case = made(tempered(temperature), noisy(0.01, plain), sharpness=sharpness, rows=ROWS, **facts)
    first = judged(case).causes[0]
    assert (first.slug, first.verdict) == ("trainer-without-temperature", "broken")
