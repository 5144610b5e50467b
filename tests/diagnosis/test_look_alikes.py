"""Similar causes found in external tables are distinguished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.catalogue import CAUSES
from rcdiag.diagnosis.features import Features
from rcdiag.results.diagnosis import NamedCause
from tests.diagnosis.tables import (
    Law,
    changed,
    drifted,
    judged,
    made,
    named,
    noisy,
    normal,
    plain,
    shifted,
    tempered,
    top_k,
    top_p,
    with_values,
)

ROWS = 128


def pushed(ids: Sequence[int], size: float) -> Law:
    """Add a constant to the logits of some ids."""
    bias = np.zeros(200)
    bias[list(ids)] = size
    return changed(lambda logits, state: logits + bias)


def padded(rows: float, logit: float) -> Law:
    """Include padding rows with constant logits in the softmax."""
    added = np.log(rows) + logit

    def law(logits: Any, state: Any) -> Any:
        total = np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return normal(logits) - np.log1p(np.exp(added - total))

    return law


def rerouted(size: float, share: float) -> Law:
    """Add large noise at a few tokens, as rerouted experts do, and rounding elsewhere."""

    def noise(logits: Any, state: Any) -> Any:
        loud = state.rng.random((len(logits), 1)) < share
        return logits + np.where(loud, size, 0.01) * state.rng.standard_normal(logits.shape)

    return changed(noise)


def test_a_few_large_log_ratios_anywhere_are_rerouted_experts() -> None:
    case = made(trained=rerouted(6.0, 0.003), rows=400, seed=4)
    diagnosis = judged(case)
    assert diagnosis.causes[0].slug == "moe-routing"
    assert diagnosis.verdict in ("healthy", "correctable")
    one_place = made(trained=rerouted(6.0, 0.003), rows=400, seed=4)
    early = one_place.position < 4
    quiet = with_values(
        one_place,
        "old",
        lambda values: np.where(early, values, one_place.log_probs["rollout"] + 0.003),
    )
    assert "moe-routing" not in named(quiet)


def test_other_weights_are_not_moe_routing() -> None:
    assert "moe-routing" not in named(made(trained=drifted(0.3), seed=4))


def test_a_few_ids_or_one_sign_are_not_moe_routing() -> None:
    """The same few large log-ratios: at any tokens, at all tokens of two rare ids, all negative."""
    honest = made(rows=200, seed=4)
    ids, counts = np.unique(honest.token_id, return_counts=True)
    rare = np.isin(honest.token_id, ids[np.argsort(counts)[:2]])
    unsure = np.flatnonzero((honest.log_probs["old"] < -1.0) & ~rare)
    anywhere = np.zeros_like(rare)
    anywhere[np.random.default_rng(2).choice(unsure, 12)] = True
    size = np.where(honest.owner % 3 > 0, -2.4, 0.8)

    def routed(tokens: np.ndarray, by: np.ndarray | float) -> bool:
        case = with_values(honest, "old", lambda values: values + np.where(tokens, by, 0.0))
        return CAUSES["moe-routing"].weigh(Features(case)) is not None

    assert routed(anywhere, size)
    assert not routed(rare, -2.4)
    assert not routed(anywhere, -2.4)


def test_one_token_sets_are_certain_on_one_or_both_sides() -> None:
    def table(trained: Law) -> Case:
        return made(top_p(0.9), trained, top_p=np.full(ROWS, 0.9), seed=3)

    exact = table(top_p(0.9))
    rounding = 0.005 * np.random.default_rng(1).standard_normal(len(exact.mask))
    both = judged(
        with_values(exact, "old", lambda values: np.where(values < 0, values + rounding, 0.0))
    )
    assert both.verdict in ("healthy", "correctable")
    assert "top-p-silent" not in [cause.slug for cause in both.causes]
    one = judged(table(drifted(0.1)))
    assert (one.causes[0].slug, one.verdict) == ("top-p-renormalised", "broken")


@pytest.mark.parametrize("size", [2.0, 3.0, 4.0])
def test_a_bias_is_detected_by_its_common_shift(size: float) -> None:
    case = made(pushed([17, 60], size), noisy(0.005), rows=300)
    diagnosis = judged(case)
    assert diagnosis.causes[0].slug in ("logit-bias", "penalty")
    assert diagnosis.verdict == "broken"


def test_a_floor_with_few_values_is_found_if_no_other_value_repeats() -> None:
    case = made(rows=60, seed=2)
    floor = float(np.sort(case.log_probs["old"])[6])
    clipped = with_values(case, "old", lambda values: np.maximum(values, floor))
    assert named(clipped)[0] == "floor-clip"
    rounded = with_values(case, "old", lambda values: np.maximum(np.round(values, 2), floor))
    assert named(rounded)[0] != "floor-clip"


def test_divided_log_probs_are_proportional_up_to_noise() -> None:
    case = made(noise=0.03, rows=200)
    divided = with_values(case, "old", lambda values: values / 0.85)
    assert named(divided)[0] == "log-probs-divided"
    assert named(made(trained=tempered(0.85), rows=200))[0] != "log-probs-divided"


def test_padding_rows_in_the_softmax_are_not_divided_log_probs() -> None:
    case = made(trained=padded(128.0, 3.0), rows=300)
    assert "log-probs-divided" not in named(case)
    assert judged(case).verdict == "broken"


def test_another_base_is_found_by_comparing_the_columns() -> None:
    case = made(rows=ROWS)
    moved = shifted(case, "old", np.ones(ROWS, np.bool_))
    both = with_values(moved, "rollout", lambda values: values / np.log(10.0))
    assert {"shift-by-one", "log-base"} <= set(named(both))


def test_policy_version_and_step_show_stale_weights() -> None:
    def first(version: int) -> NamedCause:
        facts = {"step": np.full(ROWS, 8), "policy_version": np.full(ROWS, version)}
        diagnosis = judged(made(trained=noisy(0.3), **facts))
        assert diagnosis.verdict == "correctable"
        return diagnosis.causes[0]

    assert first(4).slug == "stale-weights"
    # A lag of one in every row may be a different origin of counting.
    assert first(7).slug == "forwards-differ"
    assert "stale-weights" in first(7).also_possible
    assert first(8).slug == "forwards-differ"


def test_a_trainer_column_with_older_weights_is_the_reference_policy() -> None:
    case = made(trained=drifted(0.3))

    def first(sampler: str, trainer: str) -> tuple[str, str]:
        policies = {
            "rollout": {"model": sampler, "weights_fingerprint": "a" * 16},
            "old": {"model": trainer, "weights_fingerprint": "b" * 16},
        }
        diagnosis = judged(replace(case, metadata={"policies": policies}))
        return diagnosis.causes[0].slug, diagnosis.verdict

    assert first("ckpt/step_40", "ckpt/step_0") == ("reference-as-old", "broken")
    assert first("ckpt/step_0", "ckpt/step_40") == ("stale-weights", "correctable")
    assert first("ckpt/actor", "ckpt/base") == ("stale-weights", "correctable")


def test_a_truncated_prompt_changes_a_response_from_its_beginning() -> None:
    """An attention window changes nothing until it begins to cut."""
    case = made(trained=noisy(0.001), rows=ROWS, seed=6)
    length = np.where(np.arange(ROWS) % 2 == 0, 20, 60)
    rng = np.random.default_rng(1)
    context = length[case.owner] + case.position

    def table(off: np.ndarray) -> Case:
        noise = 0.8 * rng.standard_normal(len(off))
        moved = with_values(
            case, "old", lambda values: np.minimum(values + np.where(off, noise, 0.0), -1e-6)
        )
        return replace(moved, facts=replace(moved.facts, prompt_length=length))

    assert named(table(length[case.owner] > 20))[0] == "prompt-truncated"
    assert "prompt-truncated" not in named(table(context > 85))


def test_responses_with_varied_last_tokens_give_no_evidence_on_end_tokens() -> None:
    case = made(rows=ROWS)
    reasons = ["stop"] * ROWS
    case = replace(case, facts=replace(case.facts, finish_reason=reasons))
    rng = np.random.default_rng(2)
    noise = replace(case, token_id=rng.integers(0, 5000, len(case.token_id)).astype(np.int32))
    assert "mask-drops-last" not in named(noise)
    words = case.token_id.copy()
    words[case.start + case.lengths - 1] = rng.integers(0, 12, ROWS)
    assert "mask-drops-last" in named(replace(case, token_id=words))


def test_argmax_log_probs_are_found_with_many_rare_tokens() -> None:
    """A high temperature samples more tokens with a probability below 1/400."""

    def likeliest(logits: Any, state: Any) -> Any:
        return np.broadcast_to(normal(logits / 1.7).max(axis=1, keepdims=True), logits.shape)

    case = made(tempered(1.7), recorded=likeliest, sharpness=2.5)
    assert np.mean(case.log_probs["old"] < -6.0) > 0.01
    assert named(case)[0] == "top-one-recorded"


@pytest.mark.parametrize("temperature", [1.7, 2.0])
def test_argmax_log_probs_are_found_in_a_flat_model(temperature: float) -> None:
    def likeliest(logits: Any, state: Any) -> Any:
        return np.broadcast_to(
            normal(logits / temperature).max(axis=1, keepdims=True), logits.shape
        )

    case = made(tempered(temperature), recorded=likeliest, rows=300, seed=1)
    assert np.mean(case.log_probs["old"] < -6.0) > 0.05
    assert named(case)[0] == "top-one-recorded"


def test_top_k_is_still_a_kept_set() -> None:
    assert named(made(top_k(4), noisy(0.005), recorded=top_k(4)))[0] == "truncated-law"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_kept_set_in_the_noise_of_two_engines_is_not_a_cap_on_logits(seed: int) -> None:
    """A capped distribution sums to 1, so that E[ratio] would be 1."""
    sampled, trained = (
        changed(lambda logits, state: logits / 0.7, law) for law in (top_p(0.95), noisy(0.06))
    )
    case = made(sampled, trained, rows=200, length=40, group_of=8, prompts=True, seed=seed)
    diagnosis = judged(case)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "truncated-law")


def test_exchanged_columns_are_a_draft_only_where_metadata_say_so() -> None:
    """Both predict E[1 / ratio] = 1: the trainer's column is of the distribution that sampled."""
    stale = made(drifted(0.4), noisy(0.01), seed=3)
    columns = {"rollout": stale.log_probs["old"], "old": stale.log_probs["rollout"]}
    first = judged(replace(stale, log_probs=columns)).causes[0]
    assert (first.slug, first.verdict) == ("weights-differ", "broken")
    assert "the two columns are exchanged" in first.message
    assert "draft-recorded" in first.also_possible
    options = {"speculative_config": {"method": "eagle3"}}
    stated = {"policies": {"rollout": {"engine_options": options}}}
    first = judged(replace(stale, log_probs=columns, metadata=stated)).causes[0]
    assert (first.slug, first.verdict) == ("draft-recorded", "broken")


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_a_mean_log_ratio_of_about_0_does_not_show_that_the_trainer_sampled(seed: int) -> None:
    """Minus the entropies in a quarter of the rows have the mean of the log-probs."""
    case = made(plain, noisy(0.01), rows=120, length=40, seed=seed)
    values, context = case.log_probs["rollout"], np.concatenate([[0], case.token_id[:-1]])
    entropy = np.bincount(context, -values) / np.maximum(np.bincount(context), 1)
    recorded = np.where(case.owner % 4 == 0, -entropy[context], values)
    diagnosis = judged(with_values(case, "rollout", lambda _: recorded))
    cause = diagnosis.causes[0]
    assert (diagnosis.verdict, cause.slug) == ("broken", "forwards-differ")
    assert "if it is, look at the softmax of `old`" in cause.actions[0].text


@pytest.mark.parametrize("boosts", [(14.0, 5.0), (14.0, 7.0), (12.0, 6.0)])
def test_a_model_that_is_surer_of_one_token_is_not_at_a_lower_temperature(
    boosts: tuple[float, float],
) -> None:
    """One side lacks most of an adapter: it is unsure of the tokens that the other is sure of."""
    due = np.random.default_rng(7).permutation(200)

    def adapted(boost: float) -> Law:
        bias = boost * np.eye(200)[due]
        return changed(lambda logits, state: np.clip(logits, -6.0, 6.0) + bias[state.context])

    table = made(adapted(boosts[0]), adapted(boosts[1]), seed=2)
    assert abs(np.log(Features(table).log_ratios.power or 1.0)) > 0.5  # the slope says so
    assert not any("temperature" in slug for slug in named(table))
