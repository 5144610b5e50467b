"""Numbers that rcdiag puts beside a trainer's own: unclamped, per sequence, in float64.

To add one: an entry here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rcdiag.diagnosis.correction_health import CORRECTION_RULES
from rcdiag.glossary import worked
from rcdiag.glossary.entry import Entry, Kind, first_clause
from rcdiag.glossary.guides import range_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """What it is; levels come from `CORRECTION_RULES`, the example from the toy."""

    what: str
    formula: str
    units: str
    ideal: float | None = None
    healthy: str | None = None  # where `CORRECTION_RULES` has none
    see: tuple[str, ...] = ()


_LENGTH = "not judged; beyond 0.2 either way rejection picks by length (rcdiag's proposal)"
_BY_CODE = "by the bounds as verl's documents read them, where that differs from the code"

NUMBERS: dict[str, Number] = {
    "kept_tokens": Number(
        what="Tokens that stay in the loss mask after rejection and veto.",
        formula="count of kept tokens",
        units="tokens",
        healthy="0 is an error: no loss is left",
    ),
    "kept_sequences": Number(
        what="Sequences with at least one token that stays.",
        formula="count of sequences with a kept token",
        units="sequences",
    ),
    "weight_sum": Number(
        what="Sum of the weights over all unmasked tokens, rejected ones too, before batch "
        "normalisation; null without weights.",
        formula="sum of applied weights over tokens",
        units="ratio",
    ),
    "ess_token_applied": Number(
        what="Effective sample size of tokens, with the weights as they enter the loss and 0 for "
        "rejected tokens.",
        formula="(sum w)^2 / (N sum w^2) over all unmasked tokens",
        units="fraction",
        ideal=1.0,
        see=("rollout_corr/rollout_is_eff_sample_size", "ess_token"),
    ),
    "ess_seq_applied": Number(
        what="The same over sequences, each with the mean weight of its tokens.",
        formula="(sum w)^2 / (n sum w^2) over sequences",
        units="fraction",
        ideal=1.0,
        see=("ess_seq",),
    ),
    "lost_target_mass_token": Number(
        what="Share of the policy that trains, by token, that rejection throws away.",
        formula="E[ratio 1(rejected)] / E[ratio] over tokens",
        units="share",
        ideal=0.0,
    ),
    "lost_target_mass_seq": Number(
        what="The same by sequence: of those of which no token is kept.",
        formula="E[prod ratio 1(rejected)] / E[prod ratio] over sequences",
        units="share",
        ideal=0.0,
    ),
    "truncation_loss": Number(
        what="Share of the ratios that the upper bound C cuts off, at the level of the weights; "
        "for sequence weights a bound on the bias. Null where nothing is truncated or clipped.",
        formula="E[(ratio - C)+] / E[ratio]",
        units="share",
        ideal=0.0,
    ),
    "bias_bound": Number(
        what="Bound on the bias of an estimate of anything between -1 and 1, for sequence weights; "
        "null for others, which have no such bound.",
        formula="E|prod ratio - weight| / E[prod ratio] over sequences, weight 0 where rejected",
        units="none",
        ideal=0.0,
        see=("truncation_loss", "lost_target_mass_seq"),
    ),
    "unsafe_tokens": Number(
        what="Share of tokens whose log-ratio reaches the clamp of trainers.",
        formula="E[1(|log_ratio| >= 20)] over tokens",
        units="share",
        ideal=0.0,
    ),
    "unsafe_sequences": Number(
        what="Share of sequences whose summed log-ratio reaches the clamp of trainers.",
        formula="E[1(|sum log_ratio| >= 20)] over sequences",
        units="share",
        ideal=0.0,
    ),
    "keep_length_correlation": Number(
        what="Whether rejection picks by length; null where all or nothing is kept everywhere.",
        formula="Pearson correlation over sequences of kept share and length",
        units="none",
        ideal=0.0,
        healthy=_LENGTH,
    ),
    "keep_reward_correlation": Number(
        what="Whether rejection picks by reward, and so changes the objective; null without "
        "rewards.",
        formula="Pearson correlation over sequences of kept share and reward",
        units="none",
        ideal=0.0,
    ),
    "groups_below_two": Number(
        what="Prompt groups of two sequences or more of which fewer than two are left: a group "
        "baseline has nothing to compare.",
        formula="count of groups with size >= 2 and fewer than 2 kept sequences",
        units="groups",
        ideal=0.0,
    ),
    "denominator_kept": Number(
        what="What the loss divides by where rejected tokens are not counted: verl's legacy "
        "workers up to 0.7.1, and its engine workers in decoupled mode with token-mean.",
        formula="count of kept tokens",
        units="tokens",
        see=("denominator_all",),
    ),
    "denominator_all": Number(
        what="What the loss divides by where rejected tokens are counted: verl's V1 trainer, "
        "bypass mode, IcePop, mask mode of 0.6.0, and slime. Rejection then shrinks the loss.",
        formula="count of unmasked tokens",
        units="tokens",
        see=("denominator_kept",),
    ),
    "khat": Number(
        what="Pareto k-hat of the raw ratios at the level of the weights; null without weights.",
        formula="khat_token or khat_seq",
        units="none",
        healthy="below 0.5 finite variance; from 0.7 on unreliable (Vehtari et al. 2024)",
        see=("khat_token", "khat_seq"),
    ),
    "accepted_ratios": Number(
        what="Ratios that each k1 option keeps, by the code and by verl's documents; only where "
        "both differ.",
        formula="code [1/upper, 1/lower], documents [lower, upper]",
        units="ratio",
        see=("mirrored-bounds", "token_k1"),
    ),
    "kept_tokens_by_documents": Number(
        what=f"Kept tokens {_BY_CODE}.",
        formula="count of tokens with lower <= ratio <= upper",
        units="tokens",
        see=("mirrored-bounds",),
    ),
    "kept_sequences_by_documents": Number(
        what=f"Kept sequences {_BY_CODE}.",
        formula="count of sequences with a token that would be kept",
        units="sequences",
        see=("mirrored-bounds",),
    ),
    "log_bounds": Number(
        what="Where a correction begins to act, by level: what figures mark.",
        formula="log of each bound; -upper and -lower for k1 bounds",
        units="nats",
    ),
}


def entry(name: str) -> Entry:
    number = NUMBERS[name]
    rule = CORRECTION_RULES.get(name)
    said = [range_of(number.ideal, None if rule is None else rule.guide), number.healthy]
    return Entry(
        name=name,
        kind=KIND.title,
        what=number.what,
        formula=number.formula,
        direction="ratio = target / behavior probability" if "ratio" in number.formula else None,
        units=number.units,
        healthy="; ".join(filter(None, said)) or None,
        example=_example(name),
        see=number.see,
    )


def _example(name: str) -> str:
    value = worked.honest(name)
    if value is None:
        return "rcdiag score rollouts.parquet --json | jq '.corrections[].honest." + f"{name}'"
    return f"{worked.CORRECTED}: {_rounded(value)}"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_rounded(each)}" for name, each in value.items())
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


KIND: Kind = Kind(
    title="number of a correction",
    plural="Numbers of a correction, beside what its trainer logs",
    lines=lambda: {name: first_clause(number.what) for name, number in NUMBERS.items()},
    entry=entry,
)
