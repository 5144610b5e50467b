"""These rules say from where on a number of a correction is a warning or an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from rcdiag.corrections.apply import CorrectionOutcome
from rcdiag.corrections.correction import Correction
from rcdiag.diagnosis.rules import Rule, judged, worst
from rcdiag.results.guide import PROPOSAL, Guide

_VERL = "verl, docs/algo/rollout_corr.md"


class CorrectionEvidence(Struct, frozen=True):
    """A correction on one batch: its settings, and the numbers that came out."""

    correction: Correction
    numbers: Mapping[str, Any]
    kept_tokens: int

    @property
    def by_token(self) -> bool:
        """Tell whether the weights of the loss are those of tokens."""
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
    """Make a rule about the number of the correction that has its name."""
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
    _number_rule(
        "truncation_loss",
        "Share of the ratios that the upper bound of the weights cuts off.",
        Guide(warning=0.05, error=0.3, source=PROPOSAL),
        lambda e: True,
        decides=False,  # there is none without a bound
    ),
    _number_rule(
        "lost_target_mass_token",
        "Share of the target policy, by token, that rejection of tokens throws away.",
        LOST_MASS,
        lambda e: e.rejects_tokens,
    ),
    _number_rule(
        "lost_target_mass_seq",
        "Share of the target policy, by sequence, that rejection of sequences throws away.",
        LOST_MASS,
        lambda e: e.rejects_sequences,
    ),
)


def correction_level(
    numbers: Mapping[str, Any], correction: Correction, outcome: CorrectionOutcome
) -> str:
    """Return the worst level of the rules that speak about a correction on one batch.

    `unknown` where a number that decides is missing, as with weights that are NaN.
    """
    evidence = CorrectionEvidence(correction, numbers, outcome.kept_tokens)
    return worst(level for _, level in judged("correction", evidence))
