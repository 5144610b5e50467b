"""Recorded kept ids show whether each side's log-probs are over the kept sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import rcdiag
from rcdiag.diagnosis.case import Case, joined_cases
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import diagnose
from tests.diagnosis.tables import Array, Law, State, made, min_p, noisy, plain, top_k, top_p

SAMPLES = Path(__file__).parents[2] / "sample_data"


def with_kept_ids(law: Law, trained: Law, recorded: Law | None = None, **facts: object) -> Case:
    """Draw a table from kept sets, with the number of kept tokens."""
    sizes = []

    def counted(logits: Array, state: State) -> Array:
        log_probs = law(logits, state)
        sizes.append((log_probs > -1e6).sum(axis=1))
        return log_probs

    case = made(counted, trained, recorded or law, **facts)
    return replace(case, kept_size=np.stack(sizes, axis=1).ravel())


def over_the_same_sets(case: Case, log_probs: Array) -> Case:
    """Add a policy `old_kept` as scoring with support=rollout does."""
    about = {"policies": {"old_kept": {"backend": "hf", "options": {"support": "rollout"}}}}
    return replace(case.with_log_probs("old_kept", log_probs), metadata=about)


@pytest.mark.parametrize(
    ("law", "facts", "slug"),
    [
        (top_p(0.8), {"top_p": 0.8}, "top-p-renormalised"),
        (min_p(0.2), {"min_p": 0.2}, "min-p-renormalised"),
        (top_p(0.8), {}, "truncated-law"),
        (top_k(4), {}, "top-k-renormalised"),
    ],
)
def test_a_record_over_kept_ids_is_named(law, facts, slug):
    columns = {name: np.full(128, value) for name, value in facts.items()}
    case = with_kept_ids(law, noisy(0.01), **columns)
    diagnosis = diagnose(case)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", slug)


def test_kept_ids_reveal_a_kept_set_that_noise_hides():
    """Log-ratios of both signs give no evidence of a kept set; sets of one token still do."""
    case = with_kept_ids(top_p(0.9), noisy(0.3), top_p=np.full(128, 0.9))
    with_ids, without = diagnose(case), diagnose(replace(case, kept_size=None))
    assert with_ids.causes[0].slug == "top-p-renormalised"
    assert with_ids.causes[0].confidence >= without.causes[0].confidence
    assert "tokens were the only one left and are recorded as certain" in (
        with_ids.causes[0].message
    )


def test_the_message_states_the_effect_of_a_replay():
    """E[ratio] = kept mass before and 1 after, on the table's own tokens."""
    case = with_kept_ids(top_p(0.8), noisy(0.01), top_p=np.full(128, 0.8))
    random = np.random.default_rng(3)
    noise = 0.01 * random.standard_normal(len(case.mask))
    recorded = case.log_probs["rollout"]
    after = np.where(recorded == 0, 0, recorded + noise)
    case = over_the_same_sets(case, after)
    replay = Features(case).kept_sets.replay
    ratio = np.exp(case.log_probs["old"] - case.log_probs["rollout"])
    assert replay.kept_mass == pytest.approx(ratio.mean(), abs=0.002)
    assert replay.ratio_mean == pytest.approx(1.0, abs=0.01)
    assert replay.outside == 0.0
    assert replay.outside_before == np.mean((ratio < 0.9) | (ratio > 1.1)) > 0.3
    cause = diagnose(case).causes[0]
    assert "over the kept ids (`old_kept`); 6" in cause.message
    facts = {entry["name"]: entry for entry in cause.evidence}
    assert facts["E[ratio] over the kept ids"]["policy"] == "old_kept"


def test_a_trainer_that_replays_the_kept_ids_is_healthy():
    law = top_p(0.8)
    case = with_kept_ids(law, noisy(0.005, law), top_p=np.full(128, 0.8))
    # Noise moves tokens out of the trainer's own sets, so a replay needs the recorded sets.
    same = np.where(case.log_probs["old"] < -50, case.log_probs["rollout"], case.log_probs["old"])
    diagnosis = diagnose(case.with_log_probs("old", same))
    assert diagnosis.verdict == "healthy"


def test_kept_ids_reveal_a_record_over_the_whole_vocabulary():
    """Without declared sampling parameters and without entropies."""
    case = with_kept_ids(top_p(0.8), noisy(0.005), recorded=plain)
    cause = diagnose(case).causes[0]
    assert (cause.slug, cause.verdict) == ("top-p-silent", "broken")
    assert "so it was certain" in cause.message
    assert cause.message.endswith("both columns are of the whole distribution.")
    assert diagnose(replace(case, kept_size=None)).causes[0].slug != "top-p-silent"


def test_a_trainer_over_kept_ids_is_not_called_one_of_the_whole_vocabulary():
    """The sample table, with its two columns exchanged."""
    others = {"rollout_log_probs": "old_log_probs", "old_log_probs": "rollout_log_probs"}
    result = rcdiag.score(SAMPLES / "top_p.parquet", columns=others)
    cause = result.diagnosis.causes[0]
    assert cause.slug == "top-p-silent"
    assert cause.message.endswith("and the trainer's are over the kept sets.")


def test_kept_ids_at_some_tokens_are_used_at_these_tokens():
    case = with_kept_ids(top_p(0.8), noisy(0.01), top_p=np.full(128, 0.8))
    half = replace(case, kept_size=np.where(case.position < 30, case.kept_size, 0))
    kept = Features(half).kept_sets
    assert kept.tokens == 30 * 128
    assert kept.sampler_is_over_them is True
    assert kept.trainer_is_over_them is False


def test_sizes_stay_with_their_tokens():
    case = with_kept_ids(top_p(0.8), noisy(0.01))
    both = joined_cases([case.take(case.row < 50), case.take(case.row >= 50)])
    assert np.array_equal(both.kept_size, case.kept_size)
    assert np.array_equal(case.heads(10).kept_size, case.kept_size[case.position < 10])


def test_scoring_over_kept_sets_is_advised_until_it_was_done():
    case = with_kept_ids(top_p(0.8), noisy(0.01), top_p=np.full(128, 0.8))
    case = replace(case, facts=replace(case.facts, prompt_length=np.full(128, 3)))
    commands = [action.command for action in diagnose(case).causes[0].actions]
    assert any("--policy old_kept=hf:float32,support=rollout" in (one or "") for one in commands)
    replayed = over_the_same_sets(case, case.log_probs["rollout"])
    commands = [action.command for action in diagnose(replayed).causes[0].actions]
    assert not any("support=rollout" in (one or "") for one in commands)
