"""These checks ask which of several policies sampled the tokens, and who stands apart."""

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
)
from rcdiag.diagnosis.triangulation import healthy
from rcdiag.engines.scored_by import unlike
from rcdiag.results.guide import PROPOSAL

if TYPE_CHECKING:
    from rcdiag.results import CompareResult

OF_THE_RESCORING = ("rescoring-stands-apart",)  # what the cause in the run does not explain


def _stands_apart(slug: str, meaning: str, given: CheckInput) -> Iterator[Observation]:
    """Report the verdict on sampler, engine and trainer, where it is this one."""
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
        # Somebody stands apart, and not far.
        severity="note" if small else None,
        fix=None if small or slug in OF_THE_RESCORING else advice_of_cause(result),
    )


def _verdict(slug: str, severity: str, meaning: str, says: str, fix: str, example: str) -> Check:
    """Make the check for one verdict of a triangulation; `meaning` begins the finding's message."""
    return Check(
        slug=slug,
        severity=severity,
        stages=("compare",),
        asks="Who of recorded, re-scored and trainer log-probs stands apart?",
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
        "recorded and re-scored log-probs agree and the trainer's stand apart: engine and trainer "
        "compute different functions (precision, kernels, model code), or the trainer's log-probs "
        "are of other weights",
        "Recorded and re-scored log-probs agree and the trainer's stand apart. Engine and trainer "
        "compute different functions, or the trainer's log-probs are of other weights.",
        "look at the ladder for the step that adds most; score the trainer's precision with vllm",
        "bfloat16 in vllm, float32 in the trainer: score the trainer's precision with vllm",
    ),
    _verdict(
        "generation-against-rescoring",
        "warning",
        "what was recorded stands apart of both re-scored and trainer log-probs: something "
        "happened while generating (sampling parameters, stale weights, decode kernels, "
        "speculative decoding, an update in flight, or a bad dump)",
        "Re-scored and trainer log-probs agree and what the sampler recorded stands apart. "
        "Something happened while generating: sampling parameters, stale weights, decode kernels, "
        "an update in flight, or a bad dump.",
        "check temperature, top-p and weights of the sampler; re-score by decode (path=decode)",
        "recorded before the temperature was applied: policy decode=vllm,path=decode tells "
        "decode kernels from it",
    ),
    _verdict(
        "rescoring-stands-apart",
        "warning",
        "recorded and trainer log-probs agree and the re-scored ones stand apart: the re-scoring "
        "run is set up differently (checkpoint, adapter, temperature, prefix cache)",
        "Recorded and trainer log-probs agree and the re-scored ones stand apart, so the "
        "re-scoring run is set up differently and tells nothing yet.",
        "check model, adapter and options of the re-scored policy before believing it",
        "another checkpoint, or a forgotten adapter",
    ),
    _verdict(
        "three-differ",
        "warning",
        "recorded, re-scored and trainer log-probs all differ: two faults, or tokens that do not "
        "line up",
        "Recorded, re-scored and trainer log-probs all differ, and none of them stands apart: two "
        "faults, or tokens that do not line up.",
        "check token ids and prompts first; then re-score by decode and in the trainer's precision",
        "response_ids that were tokenised again: check ids and prompts first",
    ),
    _verdict(
        "three-agree",
        "note",
        "recorded, re-scored and trainer log-probs differ little, and none stands apart: rounding",
        "Recorded, re-scored and trainer log-probs differ by no more than the noise floor or "
        "healthy rounding (k2 below 0.001 nats per token), and none stands apart.",
        "nothing to mend between engine and trainer; look at steps and staleness instead",
        "look at staleness over the steps instead",
    ),
)


def _not_nearest(given: CheckInput) -> Iterator[Observation]:
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
            message=f"`{best}` is nearer to what sampled the tokens than `{sampler}`, by "
            f"{behind.value:.2g} nats per token ({behind.low:.2g} to {behind.high:.2g}): "
            f"`{sampler}` is not the law that sampled, and importance weights against it "
            "correct for the wrong policy",
            evidence={"nearest": result.nearest_policies, "behind": behind.value},
            fix=cause_first(result),
        )


RECORDED_IS_NOT_NEAREST = Check(
    slug="recorded-is-not-nearest",
    severity="warning",
    stages=("compare",),
    asks="Has the recorded policy the highest mean log-prob on the tokens that it sampled?",
    says="Another policy has a higher mean log-prob on the sampled tokens than the recorded one, "
    "beyond its interval, and so is nearer to what really sampled them: the recorded log-probs are "
    "not of the law that sampled.",
    fix="find what the sampler really did (temperature, top-p, weights); record its processed "
    "log-probs",
    example="E[log p - log q] = KL(s || q) - KL(s || p) for whatever s sampled",
    see=("kappa",),
    source="the logarithmic score is proper: Gneiting & Raftery 2007, JASA 102(477), 2.1",
    find=_not_nearest,
)


def _sampler_missing(given: CheckInput) -> Iterator[Observation]:
    result: CompareResult = given.result
    if all(policy.role != "sampler" for policy in result.policies.values()):
        yield Observation(
            message=f"none of {', '.join(f'`{name}`' for name in result.policies)} is known to "
            "have sampled: numbers of a pair that presuppose a sampling law (KL, total variation, "
            "effective sample sizes) are null",
            evidence={"policies": list(result.policies)},
        )


SAMPLER_NOT_COMPARED = Check(
    slug="sampler-not-compared",
    severity="note",
    stages=("compare",),
    asks="Is the policy that sampled the tokens among those that are compared?",
    says="The sampler is not among the policies that are compared, so that no mean under one of "
    "them can be made of the sampled tokens. What presupposes a sampling law is null, with the "
    "level unknown; k2_kl and other sizes of the log-ratio stay.",
    fix="compare it too (--policy rollout), or name the policy that sampled with --behavior",
    example="rcdiag compare scored.parquet --behavior vllm_bf16",
    see=("sampler", "token_means"),
    find=_sampler_missing,
)


def _noise_floor(given: CheckInput) -> Iterator[Observation]:
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
    comparison = (
        f"no further apart than that: {', '.join(at_floor)}"
        if at_floor
        else "all pairs are above it"
    )
    yield Observation(
        message=f"`{floor.policy}` differs from itself in another batch by k2 "
        f"{floor.k2.value:.2g} nats per token, at most {floor.log_ratio_abs_max or 0.0:.2g} "
        f"nats; {comparison}",
        evidence={"k2": floor.k2.value, "pairs": at_floor},
    )


NOISE_FLOOR = Check(
    slug="noise-floor",
    severity="note",
    stages=("compare",),
    asks="How far is one policy from itself when it is scored in another batch?",
    says="One policy was scored twice with other batches, and this is how far it is from itself. "
    "Pairs that are no further apart differ by noise of kernels that depend on the batch.",
    fix="differences at the floor are noise of kernels that depend on the batch; do not look for "
    "their cause",
    example="rcdiag score rollouts.parquet --model PATH --ladder engine --noise-floor -o "
    "scored.parquet",
    see=("k2_kl",),
    find=_noise_floor,
)


def _unlike_engines(given: CheckInput) -> Iterator[Observation]:
    result = given.result
    scoring = (
        {name: policy.scoring for name, policy in result.policies.items()}
        if result.kind == "compare"
        else result.scoring
    )
    for name, facts in scoring.items():
        if differs := unlike(facts):
            yield Observation(
                message=f"`{name}` was scored by {differs}",
                evidence={"policy": name, "differs": facts["differs"], "engines": facts["engines"]},
            )


UNLIKE_ENGINES = Check(
    slug="unlike-engines",
    severity="note",
    stages=("score", "compare"),
    asks="Were all rows of a policy scored by engines of one kind?",
    says="Engines on unlike devices, or with other versions of their libraries, scored the rows of "
    "one policy. They round otherwise, so that a part of the mismatch may be theirs and not the "
    "run's; the metadata of the table lists them with their hosts, parts and tokens.",
    fix="score again on nodes of one kind; or measure how far the kinds are apart: score the "
    "policy on each of them under a name of its own, then rcdiag compare",
    example="half of the parts on an H200 and half on an A100",
    see=("noise-floor",),
    find=_unlike_engines,
)

POLICY_CHECKS = (
    *TRIANGULATION_CHECKS,
    RECORDED_IS_NOT_NEAREST,
    SAMPLER_NOT_COMPARED,
    NOISE_FLOOR,
    UNLIKE_ENGINES,
)
