"""Checks of several policies: which one sampled, and which one disagrees with the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from rcdiag.diagnosis.checks.check import (
    Check,
    CheckInput,
    Observation,
    advice_of_cause,
    cause_first,
    check,
)
from rcdiag.diagnosis.triangulation import healthy
from rcdiag.engines.scored_by import engine_differences
from rcdiag.formats import measured, number, with_interval
from rcdiag.results.guide import PROPOSAL
from rcdiag.results.score import NOT_GIVEN

if TYPE_CHECKING:
    from rcdiag.results import CompareResult

OF_THE_RESCORING = ("rescoring-stands-apart",)  # faults of the re-scoring, not of the run


def _stands_apart(slug: str, meaning: str, given: CheckInput) -> Iterator[Observation]:
    """Report the triangulation of sampler, engine and trainer if its result is `slug`."""
    result: CompareResult = given.result
    trio = result.triangulation
    if trio is None or trio.agreement != slug:
        return
    who = f"`{trio.sampler_policy}`, `{trio.engine_policy}`, `{trio.trainer_policy}`"
    apart = ", ".join(f"{pair} {distance.value:.2g}" for pair, distance in trio.k2.items())
    small = all(healthy(distance) for distance in trio.k2.values())
    yield Observation(
        message=f"{meaning} ({who}; k2 in nats per token: {apart})",
        evidence={"k2": {pair: distance.value for pair, distance in trio.k2.items()}},
        # One of the three disagrees, but all differences are small.
        severity="note" if small else None,
        fix=None if small or slug in OF_THE_RESCORING else advice_of_cause(result),
    )


def _verdict(slug: str, severity: str, meaning: str, says: str, fix: str, example: str) -> Check:
    """Make the check for one verdict of a triangulation; `meaning` begins the finding's message."""
    return Check(
        slug=slug,
        severity=severity,
        stages=("compare",),
        asks="Which of recorded, re-scored and trainer log-probs disagrees with the others?",
        says=says,
        fix=fix,
        example=example,
        see=("k2_kl",) if slug == "three-agree" else ("three-agree",),
        source=PROPOSAL,
        find=partial(_stands_apart, slug, meaning),
    )


TRIANGULATION_CHECKS = (
    _verdict(
        "engine-against-trainer",
        "warning",
        "the trainer's log-probs disagree with recorded and re-scored ones: engine and trainer "
        "compute different functions (precision, kernels, model code), or the trainer's log-probs "
        "are of other weights",
        "Recorded and re-scored log-probs agree, the trainer's disagree with both. Engine and "
        "trainer compute different functions, or the trainer's log-probs are of other weights.",
        "find the largest step of the ladder; score the trainer's precision with vllm",
        "bfloat16 in vllm, float32 in the trainer: score the trainer's precision with vllm",
    ),
    _verdict(
        "generation-against-rescoring",
        "warning",
        "recorded log-probs disagree with both re-scored and trainer log-probs: something "
        "happened during generation (sampling parameters, stale weights, decode kernels, "
        "speculative decoding, an in-flight update, or a bad dump)",
        "Re-scored and trainer log-probs agree, the recorded ones disagree with both. Something "
        "happened during generation: sampling parameters, stale weights, decode kernels, an "
        "in-flight update, or a bad dump.",
        "check temperature, top-p and weights of the sampler; re-score by decode (path=decode)",
        "recorded before the temperature was applied: policy decode=vllm,path=decode separates "
        "decode kernels from that",
    ),
    _verdict(
        "rescoring-stands-apart",
        "warning",
        "the re-scored log-probs disagree with recorded and trainer log-probs: the re-scoring "
        "run is set up differently (checkpoint, adapter, temperature, prefix cache)",
        "Recorded and trainer log-probs agree, the re-scored ones disagree with both: the "
        "re-scoring run is set up differently and shows nothing yet.",
        "check model, adapter and options of the re-scored policy before using it",
        "another checkpoint, or a forgotten adapter",
    ),
    _verdict(
        "three-differ",
        "warning",
        "recorded, re-scored and trainer log-probs all disagree: two faults, or misaligned tokens",
        "Recorded, re-scored and trainer log-probs all disagree with each other: two faults, or "
        "misaligned tokens.",
        "check token ids and prompts first; then re-score by decode and in the trainer's precision",
        "response_ids that were tokenised again: check ids and prompts first",
    ),
    _verdict(
        "three-agree",
        "note",
        "recorded, re-scored and trainer log-probs agree up to rounding noise",
        "Recorded, re-scored and trainer log-probs differ by no more than the noise floor or "
        "healthy rounding (k2 below 0.001 nats per token).",
        "engine and trainer agree; look at steps and staleness instead",
        "look at staleness over the steps instead",
    ),
)


@check(
    severity="warning",
    stages=("compare",),
    asks="Does the recorded policy have the highest mean log-prob on the tokens it sampled?",
    says="Another policy has a higher mean log-prob on the sampled tokens than the recorded one, "
    "beyond the interval, and so is nearer to the true sampler: the recorded log-probs are not of "
    "the distribution that sampled.",
    fix="find out how the sampler really sampled (temperature, top-p, weights), and record its "
    "processed log-probs",
    example="E[log p - log q] = KL(s || q) - KL(s || p) for whatever s sampled",
    see=("kappa",),
    source="the logarithmic score is proper: Gneiting & Raftery 2007, JASA 102(477), 2.1",
)
def recorded_is_not_nearest(given: CheckInput) -> Iterator[Observation]:
    result: CompareResult = given.result
    samplers = [name for name, policy in result.policies.items() if policy.role == "sampler"]
    for sampler in samplers:
        behind = result.policies[sampler].behind
        if result.policies[sampler].may_be_nearest or behind.low is None:
            continue
        best = max(
            result.policies, key=lambda name: result.policies[name].log_prob_mean.value or 0.0
        )
        yield Observation(
            message=f"`{best}` fits the sampled tokens better than `{sampler}` by "
            f"{with_interval(behind)} nats per token: `{sampler}` is not the distribution that "
            "sampled, and importance weights made from it correct for the wrong policy",
            evidence={"nearest": result.nearest_policies, "behind": behind.value},
            fix=cause_first(result),
        )


@check(
    severity="note",
    stages=("compare",),
    asks="Is the policy that sampled recorded, and near enough to reweight from?",
    says="The sampler is not among the compared policies, and the table lacks it or it is too far "
    "away to reweight from, so no expectation under a compared policy can be estimated. Numbers "
    "that need one are null, with level unknown; k2_kl and other sizes of the log-ratio remain.",
    fix="record the sampler's log-probs as `rollout`; a sampler of another name takes --behavior",
    example="rcdiag compare scored.parquet --policy rollout --policy vllm_bf16",
    see=("sampler", "token_means"),
)
def sampler_not_compared(given: CheckInput) -> Iterator[Observation]:
    result: CompareResult = given.result
    without = all(policy.role != "sampler" for policy in result.policies.values())
    if without and all(pair.token_means == NOT_GIVEN for pair in result.pairs.values()):
        yield Observation(
            message=f"none of {', '.join(f'`{name}`' for name in result.policies)} is known to "
            "have sampled, and none can be reweighted from the sampler: numbers that need samples "
            "of a policy (KL, total variation, effective sample sizes) are null",
            evidence={"policies": list(result.policies)},
        )


@check(
    severity="note",
    stages=("compare",),
    asks="How much does a policy differ from itself when scored in other batches?",
    says="One policy was scored twice in different batches; the difference is the noise floor. "
    "Pairs at this floor differ only by batch-dependent kernels.",
    fix="nothing to do about pairs at the floor: batch-dependent kernels",
    example="rcdiag score rollouts.parquet --model PATH --ladder engine --noise-floor -o "
    "scored.parquet",
    see=("k2_kl",),
)
def noise_floor(given: CheckInput) -> Iterator[Observation]:
    result: CompareResult = given.result
    floor = result.noise_floor
    if floor is None:
        return
    repeated = f"{floor.policy}->{floor.repeat}", f"{floor.repeat}->{floor.policy}"
    at_floor = [
        name
        for name, pair in result.pairs.items()
        if pair.at_floor and name in result.figures and name not in repeated
    ]
    comparison = f"at this floor: {', '.join(at_floor)}" if at_floor else "all pairs are above it"
    yield Observation(
        message=f"noise floor of `{floor.policy}` (the same policy in other batches): k2 "
        f"{measured(floor.k2)[0]} nats per token, largest difference "
        f"{number(floor.log_ratio_abs_max or 0.0)} nats; {comparison}",
        evidence={"k2": floor.k2.value, "pairs": at_floor},
    )


@check(
    severity="note",
    stages=("score", "compare"),
    asks="Were all rows of a policy scored on the same kind of engine?",
    says="Engines on different devices or with different library versions scored the rows of one "
    "policy. They round differently, so part of the mismatch may come from them; the table's "
    "metadata lists them with hosts, parts and tokens.",
    fix="score again on one kind of node, or score the policy on each kind under its own name and "
    "run rcdiag compare",
    example="half of the table on an H200 and half on an A100",
    see=("noise-floor",),
)
def unlike_engines(given: CheckInput) -> Iterator[Observation]:
    result = given.result
    scoring = (
        {name: policy.scoring for name, policy in result.policies.items()}
        if result.kind == "compare"
        else result.scoring
    )
    for name, facts in scoring.items():
        if differs := engine_differences(facts):
            yield Observation(
                message=f"`{name}` was scored by {differs}",
                evidence={"policy": name, "differs": facts["differs"], "engines": facts["engines"]},
            )


POLICY_CHECKS = (
    *TRIANGULATION_CHECKS,
    recorded_is_not_nearest,
    sampler_not_compared,
    noise_floor,
    unlike_engines,
)
