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
from rcdiag.diagnosis.rules import Rule, levels_of, worst
from rcdiag.results.guide import PROPOSAL, Guide

_VERL = "verl, docs/algo/rollout_corr.md"


class CorrectionEvidence(Struct, frozen=True):
    """A correction on one batch: its settings, and the numbers that came out."""

    correction: Correction
    numbers: Mapping[str, Any]
    kept_tokens: int
    mean_weight: float | None = None  # of the kept tokens in the loss; None without such weights

    @property
    def by_token(self) -> bool:
        """Tell whether the loss has a weight for each token."""
        weighting = self.correction.loss_weighting
        return weighting is not None and weighting.level == "token"

    @property
    def rejects_tokens(self) -> bool:
        """Tell whether single tokens can be rejected."""
        return any(rejection.of_tokens for rejection in self.correction.rejections)

    @property
    def rejects_sequences(self) -> bool:
        """Tell whether whole sequences can be rejected, by a bound or by a veto."""
        rejections = self.correction.rejections
        return self.correction.veto is not None or any(
            not rejection.of_tokens for rejection in rejections
        )


def _number_rule(
    name: str,
    says: str,
    guide: Guide,
    applies: Callable[[CorrectionEvidence], bool],
    *,
    decides: bool = True,
) -> Rule[CorrectionEvidence]:
    """Make a rule about the number of a correction that is called `name`."""
    return Rule(
        name=f"correction.{name}",
        says=says,
        guide=guide,
        value=lambda e: e.numbers[name],
        message=lambda e: f"{name} is {e.numbers[name]:.3g}",
        applies=applies,
        decides=decides,
        see=(name,),
    )


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

CORRECTION_RULES: tuple[Rule[CorrectionEvidence], ...] = (
    Rule(
        name="correction.everything_rejected",
        says="A batch of which no token is kept has no loss.",
        guide=Guide(warning=1.0, error=1.0, source=f"{PROPOSAL}: without a loss there is no step"),
        value=lambda e: e.kept_tokens == 0,
        message=lambda e: f"{e.kept_tokens:,} tokens are kept",
        see=("kept_tokens", "everything-rejected"),
    ),
    _number_rule(
        "ess_token_applied",
        "Effective sample size of the tokens by their applied weights, where weights are by token.",
        APPLIED_ESS,
        lambda e: e.by_token,
    ),
    _number_rule(
        "ess_seq_applied",
        "Effective sample size of the sequences by their applied weights, where weights are "
        "not by token.",
        APPLIED_ESS,
        lambda e: not e.by_token,
    ),
    Rule(
        name="correction.mean_weight",
        says="Mean weight of the kept tokens in the loss. Weights that are all near 0 have an ESS "
        "of 1, but leave no update. Absent without weights, or if they are normalised by batch.",
        guide=LEFT_OF_UPDATE,
        value=lambda e: e.mean_weight,
        message=lambda e: f"weights average {e.mean_weight:.2g}",
        applies=lambda e: e.mean_weight is not None,
        see=("weight_sum", "ess_seq_applied"),
    ),
    _number_rule(
        "truncation_loss",
        "Share of the ratios that the upper bound of the weights cuts off.",
        Guide(warning=0.05, error=0.3, source=PROPOSAL),
        lambda e: True,
        decides=False,  # there is none without a bound
    ),
    _number_rule(
        "lost_target_mass_token",
        "Share of the target policy's probability mass that rejecting tokens discards, by token.",
        LOST_MASS,
        lambda e: e.rejects_tokens,
    ),
    _number_rule(
        "lost_target_mass_seq",
        "Share of the target policy's mass that rejecting sequences discards, by sequence.",
        LOST_MASS,
        lambda e: e.rejects_sequences,
    ),
)


def correction_level(
    numbers: Mapping[str, Any], correction: Correction, outcome: CorrectionOutcome
) -> str:
    """Return the worst level of the rules that apply to a correction on one batch.

    It is `unknown` where a number that decides is missing, for example because weights are NaN.
    """
    kept = outcome.kept_tokens
    weighted = outcome.kept_weights is not None and not correction.batch_normalize and kept > 0
    mean_weight = float(outcome.loss_weights.sum.sum()) / kept if weighted else None
    evidence = CorrectionEvidence(correction, numbers, kept, mean_weight)
    return worst(level for _, level in levels_of("correction", evidence))


def _verl_rule(
    key: str, says: str, warns: Callable[[float], bool], beyond: str
) -> Rule[Mapping[str, float]]:
    """Make a rule of verl's own check about a metric that verl logs; `key` is without prefix."""
    return Rule(
        name=f"verl_check.{key}",
        says=f"In verl's own check {says}",
        guide=Guide(
            warning=1.0,
            error=math.inf,
            source="verl of 2025-10-27, docs/advance/rollout_is.md, check_rollout_is_health",
        ),
        value=lambda logged: warns(logged[key]),
        message=lambda logged: f"{key} {logged[key]:.3g}, {beyond}",
        applies=lambda logged: key in logged,
        see=(key,),
    )


# The comparisons are verl's: NaN passes, and so does a number at the bound.
VERL_CHECK: tuple[Rule[Mapping[str, float]], ...] = (
    _verl_rule(
        "rollout_is_mean",
        "the mean weight lies within 0.5 to 2.",
        lambda mean: mean < 0.5 or mean > 2.0,
        "outside 0.5 to 2",
    ),
    _verl_rule(
        "rollout_is_eff_sample_size",
        "the effective sample size is not below 0.3.",
        lambda size: size < 0.3,
        "below 0.3",
    ),
    _verl_rule(
        "rollout_is_veto_fraction",
        "the veto takes out at most 0.1 of the sequences; verl 0.7.1 and later have no veto.",
        lambda fraction: fraction > 0.1,
        "above 0.1",
    ),
    _verl_rule(
        "rollout_is_std",
        "the standard deviation of the weights is at most 1.",
        lambda deviation: deviation > 1.0,
        "above 1",
    ),
    _verl_rule(
        "kl", "the KL by k1 lies within -0.1 to 0.1 nats.", lambda kl: abs(kl) > 0.1, "beyond 0.1"
    ),
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
