"""Findings: those of families of metrics from their registry, the others by hand."""

from __future__ import annotations

from dataclasses import dataclass

from rcdiag.glossary.entry import Entry, Kind, first_clause
from rcdiag.statistics.intervals import FEW_CLUSTERS
from rcdiag.statistics.metrics import FAMILIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a finding means; its message and way out stand with the finding itself."""

    severity: str
    what: str
    example: str
    see: tuple[str, ...] = ()


FINDINGS: dict[str, Said] = {
    "non-finite-log-probs": Said(
        severity="error",
        what="Unmasked log-probs are NaN or infinite. Rejection in trainers drops such tokens "
        "without a word, while their metrics become NaN.",
        example="a sampler writes -inf for a token outside its kept set",
    ),
    "temperature-unknown": Said(
        severity="note",
        what="Rows without a temperature were scored at 1; at another these are other policies.",
        example="add a `temperature` column to the table",
    ),
    "sequences-without-tokens": Said(
        severity="note",
        what="Rows without an unmasked token. They are left out here; trainers count them in means "
        "over rows.",
        example="one such row in four lowers rollout_is_seq_mean by a quarter",
        see=("rollout_corr/rollout_is_seq_mean",),
    ),
    "few-clusters": Said(
        severity="note",
        what=f"Fewer than {FEW_CLUSTERS} prompt groups (or sequences without a group): intervals "
        "are made from them, and so few make no good ones.",
        example="tokens of one prompt depend on each other: score more prompts, not more samples",
    ),
    "everything-rejected": Said(
        severity="warning",
        what="A correction keeps no token of a batch: there is no loss, NaN in the trainer.",
        example="seq_mean_k1 0.999_1.001 where KL is above 0.001 nats per token and sequences are "
        "long",
        see=("seq_mean_k1", "kept_tokens"),
    ),
    "setting-without-effect": Said(
        severity="warning",
        what="The trainer takes a setting and silently does nothing with it.",
        example="use_rs: true with use_tis: false in slime",
        see=("use_tis", "use_rs"),
    ),
    "mirrored-bounds": Said(
        severity="note",
        what="verl from 0.7.1 on holds -log_ratio against k1 bounds, so that lower_upper keeps "
        "ratios within [1/upper, 1/lower]; its documents say [lower, upper]. Said where it changes "
        "what is kept.",
        example='token_k1 "0.6_1.6" keeps ratios within [0.625, 1.667]',
        see=("token_k1", "accepted_ratios"),
    ),
    "threshold-read-as-number": Said(
        severity="error",
        what="YAML lets underscores group digits, so that bounds without quotes may be one number, "
        "and the trainer takes that.",
        example='rollout_is_threshold: 0.5_5 is 0.55; write "0.5_5"',
        see=("rollout_is_threshold", "rollout_rs_threshold"),
    ),
    "trainer-refuses": Said(
        severity="error",
        what="The trainer itself would stop on these settings. Nothing is computed for them; all "
        "else goes on.",
        example="rollout_rs: geometric in verl 0.7.1, which calls it seq_mean_k1",
        see=("rollout_rs", "rollout_is_threshold"),
    ),
    "bypass-not-active": Said(
        severity="error",
        what="Bypass mode is on in the correction block and does nothing, because of the rest of "
        "the trainer's config: another loss mode under verl's V1 trainer (#4912), or one "
        "mini-batch and one epoch under its legacy actor, which makes the PPO ratio 1.",
        example="actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode",
        see=("bypass_mode", "loss_type"),
    ),
    "rejected-in-denominator": Said(
        severity="warning",
        what="Rejected tokens give no gradient and still count in the denominator of the loss, so "
        "rejection lowers the learning rate (verl #4852).",
        example="half of the tokens rejected: half of the loss",
        see=("kept_tokens", "rollout_rs"),
    ),
    "rejected-in-baseline": Said(
        severity="note",
        what="Rejection comes after or beside the advantages: rewards of rejected rows still make "
        "the baseline of their group (verl #6362).",
        example="adv_estimator: grpo with rollout_rs: seq_mean_k1",
        see=("rollout_rs",),
    ),
    "rollout-log-probs-off": Said(
        severity="error",
        what="The trainer's config asks for a correction and not for the sampler's log-probs, "
        "without which there is none. Off by default in verl until 0.8.0.",
        example="actor_rollout_ref.rollout.calculate_log_probs=true",
    ),
    "sampler-law-differs": Said(
        severity="warning",
        what="By the trainer's config the sampler records log-probs of another distribution than "
        "the trainer computes: renormalised over a top-p or top-k set, or before the temperature.",
        example="top_p: 0.9 with processed_logprobs: log-ratios are below 0 throughout",
    ),
    "fix-before-correcting": Said(
        severity="error",
        what="`rcdiag sweep` recommends no correction, because the log-probs are not to be "
        "believed: the recorded behavior policy is not the one that sampled, or values are NaN. "
        "Ratios are noise then, and weighting by them harms.",
        example="kappa below 0.3 with its whole interval, or a mean ratio four standard errors "
        "from 1",
        see=("kappa", "ratio_mean_z"),
    ),
    "engine-against-trainer": Said(
        severity="warning",
        what="`rcdiag compare`: recorded and re-scored log-probs agree and the trainer's stand "
        "apart. Engine and trainer compute different functions, or those log-probs are of other "
        "weights.",
        example="bfloat16 in vllm, float32 in the trainer: score the trainer's precision with vllm",
        see=("three-agree",),
    ),
    "generation-against-rescoring": Said(
        severity="warning",
        what="`rcdiag compare`: re-scored and trainer log-probs agree and what the sampler "
        "recorded stands apart. Something happened while generating: sampling parameters, stale "
        "weights, decode kernels, an update in flight, or a bad dump.",
        example="recorded before the temperature was applied: --policy decode=vllm,path=decode "
        "tells decode kernels from it",
        see=("three-agree",),
    ),
    "rescoring-stands-apart": Said(
        severity="warning",
        what="`rcdiag compare`: recorded and trainer log-probs agree and the re-scored ones stand "
        "apart, so the re-scoring run is set up differently and tells nothing yet.",
        example="another checkpoint, or a forgotten adapter",
        see=("three-agree",),
    ),
    "three-differ": Said(
        severity="warning",
        what="`rcdiag compare`: recorded, re-scored and trainer log-probs all differ, and none of "
        "them stands apart: two faults, or tokens that do not line up.",
        example="response_ids that were tokenised again: check ids and prompts first",
        see=("three-agree",),
    ),
    "three-agree": Said(
        severity="note",
        what="`rcdiag compare`: recorded, re-scored and trainer log-probs differ by no more than "
        "the noise floor or healthy rounding (k2 below 0.001 nats per token), and none stands "
        "apart.",
        example="look at staleness over the steps instead",
        see=("k2_kl",),
    ),
    "recorded-is-not-nearest": Said(
        severity="warning",
        what="Another policy has a higher mean log-prob on the sampled tokens than the recorded "
        "one, beyond its interval, and so is nearer to what really sampled them: the recorded "
        "log-probs are not of the law that sampled.",
        example="E[log p - log q] = KL(s || q) - KL(s || p) for whatever s sampled",
        see=("kappa",),
    ),
    "noise-floor": Said(
        severity="note",
        what="How far one policy, scored twice with other batches, is from itself. Pairs that are "
        "no further apart differ by noise of kernels that depend on the batch.",
        example="rcdiag score rollouts.parquet --model PATH --ladder engine --noise-floor -o "
        "scored.parquet",
        see=("k2_kl",),
    ),
    "rows-left-out-of-the-join": Said(
        severity="warning",
        what="Several tables were compared, and samples that one of them lacks or has with other "
        "tokens are left out: the finding counts and names them.",
        example="a run that was scored on a part of the dump",
    ),
    "loss-undefined": Said(
        severity="warning",
        what="Under this preset there is no loss: every token of the batch is rejected. The "
        "trainer logs NaN or 0 and takes no useful step.",
        example="decoupled_geo_rs where KL is above 0.001 nats per token and sequences long",
        see=("everything-rejected",),
    ),
    "unsafe-update": Said(
        severity="warning",
        what="A replayed update breaks a rule of health: too few sequences kept, too small an "
        "effective sample size, a few sequences that hold the gradient, a wrong direction, or a "
        "step that moves the policy too far.",
        example="rcdiag replay DUMP -v shows every rule with its source",
    ),
    "updates-part": Said(
        severity="note",
        what="Over several steps decoupled and bypass updates from the same start leave the "
        "sampler by different distances: their 95% intervals of KL(rollout || new) do not meet.",
        example="rcdiag replay DUMP --model CHECKPOINT --steps 3",
    ),
    "all-updates-alike": Said(
        severity="note",
        what="All presets make the same update on this batch: no ratio is near a bound.",
        example="a step whose sampler and trainer agree to rounding",
    ),
    "trainer-guessed": Said(
        severity="note",
        what="A trainer's config fits several generations; the finding names the one it was read "
        "as.",
        example="rcdiag score rollouts.parquet --trainer-config config.yaml --trainer verl-0.8.0",
    ),
}
_FAMILIES = {family.slug: family for family in FAMILIES.values()}


def entry(slug: str) -> Entry:
    if slug in _FAMILIES:
        return _of_family(slug)
    said = FINDINGS[slug]
    return Entry(
        name=slug,
        kind=KIND.title,
        what=f"{said.what} Severity: {said.severity}.",
        example=said.example,
        see=said.see,
    )


def _of_family(slug: str) -> Entry:
    family = _FAMILIES[slug]
    judged = tuple(name for name, metric in family.metrics.items() if metric.guide)
    first = " Settle it before anything else." if family.gate else ""
    return Entry(
        name=slug,
        kind=KIND.title,
        what=f"A metric that answers this is beyond its guide: {family.question}{first} "
        f"What to do: {family.fix}. Severity: the worst level of its metrics.",
        example=f"rcdiag explain {judged[0]}",
        see=judged,
    )


def _line(slug: str) -> str:
    if slug in _FAMILIES:
        return _FAMILIES[slug].question
    return first_clause(FINDINGS[slug].what)


KIND: Kind = Kind(
    title="finding",
    plural="Findings",
    lines=lambda: {slug: _line(slug) for slug in (*_FAMILIES, *FINDINGS)},
    entry=entry,
)
