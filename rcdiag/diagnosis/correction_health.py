"""Rules with the bounds from which on a number of a correction is a warning or an error.

They include the self-check that verl's document of 2025-10-27 proposes for a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from rcdiag.corrections.apply import CorrectionOutcome
from rcdiag.corrections.correction import Correction
from rcdiag.diagnosis.rules import Rule, levels_of, worst_that_counts
from rcdiag.results.base import MetricValue
from rcdiag.results.guide import PROPOSAL, Guide
from rcdiag.statistics.metrics.divergences import K3_KL
from rcdiag.statistics.metrics.overlap import ESS_SEQ_GUIDE

_VERL = "verl, docs/algo/rollout_corr.md"


class CorrectionEvidence(Struct, frozen=True, kw_only=True):
    """A correction on one batch: its settings, and the numbers that came out."""

    correction: Correction
    numbers: Mapping[str, Any]  # as `actual_numbers` returns them
    kept_tokens: int
    kept_sequence_share: float
    mean_weight: float | None  # of the kept tokens in the loss; None without such weights
    mismatch: Mapping[str, MetricValue]  # k3_kl and ess_seq of the batch; empty: not measured

    @classmethod
    def of(
        cls,
        correction: Correction,
        numbers: Mapping[str, Any],
        applied: CorrectionOutcome,
        mismatch: Mapping[str, MetricValue],
    ) -> CorrectionEvidence:
        """Collect what the rules need of a correction that was applied to a batch."""
        kept = applied.kept_tokens
        weighted = applied.kept_weights is not None and not correction.batch_normalize and kept > 0
        return cls(
            correction=correction,
            numbers=numbers,
            kept_tokens=kept,
            kept_sequence_share=applied.kept_sequences / len(applied.kept),
            mean_weight=float(applied.loss_weights.sum.sum()) / kept if weighted else None,
            mismatch=mismatch,
        )

    @property
    def by_token(self) -> bool:
        """Tell whether the loss has a weight for each token."""
        weighting = self.correction.loss_weighting
        return weighting is not None and weighting.level == "token"

    @property
    def uncorrected(self) -> bool:
        """Tell whether the mismatch is measured, and nothing corrects it."""
        return bool(self.mismatch) and self.correction.leaves_loss_alone


def _number_rule(
    name: str,
    says: str,
    what: str,
    guide: Guide,
    applies: Callable[[CorrectionEvidence], bool],
    *,
    decides: bool = True,
) -> Rule[CorrectionEvidence]:
    """Make a rule about the number of a correction that is called `name`; `what` it is in words."""
    return Rule(
        name=f"correction.{name}",
        says=says,
        guide=guide,
        value=lambda e: e.numbers[name],
        message=lambda e: f"{what} is {short(e.numbers[name])}",
        applies=applies,
        decides=decides,
        see=(name,),
    )


def short(value: float | None) -> str:
    """Write a number of a rule's message."""
    return "unknown" if value is None else f"{value:.2g}"


def _mismatch_message(e: CorrectionEvidence) -> str:
    k3 = e.mismatch["k3_kl"]
    message = f"sampler to trainer: {short(k3.value)} nats per token, and nothing corrects it"
    return f"{message}; too few prompt groups to judge it" if k3.level == "unknown" else message


LOST_MASS = Guide(
    warning=0.1, error=0.3, source=f"{PROPOSAL}; {_VERL}: masked share ideally below 0.1"
)
APPLIED_ESS = Guide(warning=0.5, error=0.1, source=f"{PROPOSAL}; {_VERL}, wants 0.5")
# How much of an update is left beside weights of 1. Ratios have the mean 1, so a mean weight below
# 1 is mass that truncation or a clamp discards: at 0.3 that is 70% of it, as much as the guide of
# kept sequences allows least; at 0.05 the step is that of a learning rate 20 times smaller.
LEFT_OF_UPDATE = Guide(
    warning=0.3,
    error=0.05,
    source=f"{PROPOSAL}: untruncated ratios have the mean 1; weights near 0 leave no update",
)
assert K3_KL.guide is not None

CORRECTION_RULES: tuple[Rule[CorrectionEvidence], ...] = (
    Rule(
        name="correction.everything_rejected",
        says="A batch of which no token is kept has no loss.",
        guide=Guide(warning=1.0, error=1.0, source=f"{PROPOSAL}: without a loss there is no step"),
        value=lambda e: e.kept_tokens == 0,
        message=lambda e: f"{e.kept_tokens or 'no'} tokens are kept",
        see=("kept_tokens", "everything-rejected"),
    ),
    Rule(
        name="correction.kept_share",
        says="Share of the sequences with at least one token that is kept.",
        formula="sequences with a kept token / sequences with a token",
        unit="share",
        guide=Guide(
            warning=0.9,
            error=0.7,
            source=f"{PROPOSAL}; Trust Region Masking, arXiv 2512.23075, keeps above 70%",
        ),
        value=lambda e: e.kept_sequence_share,
        message=lambda e: f"{100 * e.kept_sequence_share:.1f}% of the sequences are kept",
        decides=True,
        see=("kept_sequences", "kept_sequence_share"),
    ),
    _number_rule(
        "ess_token_applied",
        "Effective sample size of the tokens by their applied weights, where weights are by token.",
        "ESS of the tokens by their weights",
        APPLIED_ESS,
        lambda e: e.by_token,
    ),
    _number_rule(
        "ess_seq_applied",
        "Effective sample size of the sequences by their applied weights, where weights are "
        "not by token.",
        "ESS of the sequences by their weights",
        APPLIED_ESS,
        lambda e: not e.by_token,
    ),
    Rule(
        name="correction.mean_weight",
        says="Mean weight of the kept tokens in the loss. Weights that are all near 0 have an ESS "
        "of 1, but leave no update. Absent without weights, or if they are normalised by batch.",
        guide=LEFT_OF_UPDATE,
        value=lambda e: e.mean_weight,
        message=lambda e: f"weights average {short(e.mean_weight)}",
        applies=lambda e: e.mean_weight is not None,
        see=("weight_sum", "ess_seq_applied"),
    ),
    _number_rule(
        "truncation_loss",
        "Share of the ratios that the upper bound of the weights cuts off.",
        "the share of the ratios that truncation cuts off",
        Guide(warning=0.05, error=0.3, source=PROPOSAL),
        lambda e: e.numbers["truncation_loss"] is not None,  # there is none without a bound
        decides=False,
    ),
    _number_rule(
        "lost_target_mass_token",
        "Share of the target policy's probability mass in tokens that are rejected or have weight "
        "0, by token.",
        "the share of the target's mass that is lost, by token,",
        LOST_MASS,
        lambda e: e.correction.discards_tokens,
    ),
    _number_rule(
        "lost_target_mass_seq",
        "Share of the target policy's mass in sequences that are rejected or have weight 0, by "
        "sequence.",
        "the share of the target's mass that is lost, by sequence,",
        LOST_MASS,
        lambda e: e.correction.discards_sequences,
    ),
    Rule(
        name="correction.mismatch_k3",
        says="Distance of the trainer before the update from the sampler, only for presets without "
        "a correction (naive, disabled), with the level of the metric.",
        formula="E[ratio - 1 - log_ratio], ratio = old / rollout",
        direction="KL(rollout || old)",
        unit="nats per token",
        guide=K3_KL.guide,
        value=lambda e: e.mismatch["k3_kl"],
        message=_mismatch_message,
        applies=lambda e: e.uncorrected,
        decides=True,
        see=("mismatch", "k3_kl"),
    ),
    Rule(
        name="correction.uncorrected_ess",
        says="Effective sample size of the sequences by their raw ratios, only where no "
        "weight, no rejection and no PPO ratio corrects (naive, disabled): all of the mismatch "
        "biases the gradient. It has the level of the metric.",
        formula="(sum w)^2 / (n sum w^2), w = prod of old / rollout over the sequence",
        unit="fraction",
        guide=ESS_SEQ_GUIDE,
        value=lambda e: e.mismatch["ess_seq"],
        message=lambda e: (
            "no correction: all of the mismatch biases the gradient (raw ESS "
            f"{short(e.mismatch['ess_seq'].value)})"
        ),
        applies=lambda e: e.uncorrected,
        see=("naive", "ess_seq", "mismatch"),
    ),
    Rule(
        name="correction.double_counting",
        says="In bypass mode rollout_is is set together with ppo_clip, although the PPO ratio "
        "current / rollout corrects already. Absent elsewhere.",
        guide=Guide(
            warning=1.0,
            error=math.inf,
            source=f"{PROPOSAL}: a ratio against the sampler is an importance weight itself",
        ),
        value=lambda e: e.correction.counts_mismatch_twice,
        message=lambda e: "rollout_is with ppo_clip in bypass mode: the PPO ratio corrects already",
        applies=lambda e: e.correction.counts_mismatch_twice,
        see=("ppo_clip", "bypass", "rollout_is"),
    ),
)


def correction_level(evidence: CorrectionEvidence) -> str | None:
    """Return the worst level of the rules that apply to a correction on one batch.

    `replay` applies the same rules, so that a preset's health is never better than this level.
    It is `unknown` where a number that decides is missing, for example because weights are NaN.
    None where the PPO ratio alone corrects: that needs the current policy, which `replay` has.
    """
    if evidence.correction.ratio_alone_corrects:
        return None
    return worst_that_counts(levels_of("correction", evidence))


def _verl_rule(
    key: str, says: str, usual: tuple[float, float], beyond: str
) -> Rule[Mapping[str, float]]:
    """Make a rule of verl's own check about a metric that verl logs; `key` is without prefix.

    As in verl, NaN passes, and so does a number at a bound.
    """
    low, high = usual
    return Rule(
        name=f"verl_check.{key}",
        says=f"In verl's own check {says}",
        guide=Guide(
            warning=1.0,
            error=math.inf,
            source="verl of 2025-10-27, docs/advance/rollout_is.md, check_rollout_is_health",
        ),
        value=lambda logged: logged[key] < low or logged[key] > high,
        message=lambda logged: f"{key} {logged[key]:.3g}, {beyond}",
        applies=lambda logged: key in logged,
        see=(key,),
    )


VERL_CHECK: tuple[Rule[Mapping[str, float]], ...] = (
    _verl_rule(
        "rollout_is_mean",
        "the mean weight lies within 0.5 to 2.",
        (0.5, 2.0),
        "outside 0.5 to 2",
    ),
    _verl_rule(
        "rollout_is_eff_sample_size",
        "the effective sample size is not below 0.3.",
        (0.3, math.inf),
        "below 0.3",
    ),
    _verl_rule(
        "rollout_is_veto_fraction",
        "the veto takes out at most 0.1 of the sequences; verl 0.7.1 and later have no veto.",
        (-math.inf, 0.1),
        "above 0.1",
    ),
    _verl_rule(
        "rollout_is_std",
        "the standard deviation of the weights is at most 1.",
        (-math.inf, 1.0),
        "above 1",
    ),
    _verl_rule("kl", "the KL by k1 lies within -0.1 to 0.1 nats.", (-0.1, 0.1), "beyond 0.1"),
)


def verl_check(metrics: Mapping[str, float]) -> tuple[list[str], int]:
    """Return the warnings of verl's own check of its weights, and how many metrics it checked.

    `metrics` are what a generation of verl logs, with prefixes. Later generations lack some.
    """
    logged = {
        key.rpartition("/")[2].removeprefix("mismatch_"): value for key, value in metrics.items()
    }
    tests = levels_of("verl_check", logged)
    return [rule.message(logged) for rule, level in tests if level == "warning"], len(tests)
