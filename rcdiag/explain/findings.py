"""Findings: those of families of metrics from their registry, the others by hand."""

from __future__ import annotations

from dataclasses import dataclass

from rcdiag.explain.entry import Entry, Kind, first_clause
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
