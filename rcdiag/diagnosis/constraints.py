"""Rules that refuse an estimator, whatever its efficiency."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.diagnosis.correction_health import LOST_MASS
from rcdiag.diagnosis.rules import Rule, levels_of
from rcdiag.results.guide import PROPOSAL, Guide
from rcdiag.results.sweep import SweepRow
from rcdiag.statistics.pareto import UpperTail, k_hat, reliable_below
from rcdiag.statistics.second_moment import HARMLESS_ESS

ACCEPTANCE = Guide(
    warning=0.7, error=0.0, source="Trust Region Masking, arXiv 2512.23075, keeps above 70%"
)
EFFECTIVE_SEQUENCES = Guide(warning=30.0, error=0.0, source=PROPOSAL)
# Beyond these bounds a mean weighted by the ratios is unreliable.
HEAVY_TAIL = Guide(
    warning=0.7,
    error=math.inf,
    source="Vehtari et al. 2024, JMLR 25(72), 3.2: unreliable from min(1 - 1/log10 S, 0.7) of S "
    "ratios",
)


class JudgedCandidate(Struct, frozen=True):
    """The numbers of a candidate that the constraints judge."""

    row: SweepRow
    sequences: int
    tail: UpperTail  # of weight times |advantage|, over sequences
    above_clamp: int  # sequences with a log-ratio, or a sum of them, of 20 nats or more

    @property
    def effective_sequences(self) -> float:
        """Return the number of effective sequences under their applied weights."""
        ess = self.row.ess_seq_applied.value
        return 0.0 if ess is None or not math.isfinite(ess) else ess * self.sequences

    @property
    def lost_mass(self) -> float | None:
        """Return the rejected share of the target policy; infinite where ratios overflow."""
        lost = self.row.lost_mass.value
        return math.inf if lost is not None and math.isnan(lost) else lost


CONSTRAINTS: tuple[Rule[JudgedCandidate], ...] = (
    Rule(
        name="constraint.acceptance",
        says="Share of the sequences with at least one token that stays in the loss.",
        formula="kept_sequences / all sequences with an unmasked token",
        unit="share",
        guide=ACCEPTANCE,
        value=lambda it: it.row.kept_sequence_share.value,
        message=lambda it: (
            f"keeps {it.row.kept_sequence_share.value:.1%} of the sequences, not above 70%"
        ),
        see=("kept_sequence_share",),
    ),
    Rule(
        name="constraint.lost_mass",
        says="Share of the target policy's probability mass that is rejected or has weight 0.",
        formula="E[ratio 1(rejected or weight 0)] / E[ratio]",
        unit="share",
        guide=LOST_MASS,
        value=lambda it: it.lost_mass,
        message=lambda it: f"discards {it.lost_mass:.1%} of the target policy, not below 10%",
        see=("lost_mass",),
    ),
    Rule(
        name="constraint.sample_size",
        says="Effective number of sequences under the applied weights.",
        formula="ess_seq x sequences",
        unit="sequences",
        guide=EFFECTIVE_SEQUENCES,
        value=lambda it: it.effective_sequences,
        message=lambda it: f"leaves {it.effective_sequences:.1f} effective sequences, not above 30",
        see=("ess_seq_applied",),
    ),
    Rule(
        name="constraint.tail",
        says="How heavy the tail of weight times |advantage| is over sequences. Not judged "
        "where the effective sample size is 0.9 or more.",
        formula="Pareto k-hat",
        guide=HEAVY_TAIL,
        guide_for=lambda it: replace(HEAVY_TAIL, warning=reliable_below(it.tail.count)),
        value=lambda it: k_hat(it.tail)[0],
        message=lambda it: (
            f"k-hat of weight times |advantage| is {k_hat(it.tail)[0]:.2f}, not below "
            f"{reliable_below(it.tail.count):.2f}"
        ),
        # k-hat is blind to scale: a tail may be heavy and hardly move the mean.
        applies=lambda it: not (it.row.ess_seq_applied.value or 0.0) >= HARMLESS_ESS,
        see=("khat", "khat_seq"),
    ),
    Rule(
        name="constraint.length",
        says="Whether rejection depends on the length.",
        formula="Pearson correlation over sequences of kept share and length",
        guide=Guide(warning=0.2, error=1.0, source=PROPOSAL, around=0.0),
        value=lambda it: it.row.keep_length_correlation,
        message=lambda it: (
            "rejection depends on the response length: correlation "
            f"{it.row.keep_length_correlation:.2f}, limits -0.2 and 0.2"
        ),
        see=("keep_length_correlation",),
    ),
    Rule(
        name="constraint.reward",
        says="Whether rejection depends on the reward: the shift's interval does not include 0. "
        "Absent without rewards, and where there is no interval.",
        formula="E[reward | kept] - E[reward]",
        unit="reward",
        guide=Guide(
            warning=math.nextafter(0.0, 1.0),  # any distance from 0
            error=math.inf,
            source=PROPOSAL,
            around=0.0,
            by_interval=True,
        ),
        value=lambda it: it.row.reward_shift,
        message=lambda it: (
            f"shifts the mean reward by {it.row.reward_shift.value:.3g} "
            f"({it.row.reward_shift.low:.3g} to {it.row.reward_shift.high:.3g})"
        ),
        applies=lambda it: it.row.reward_shift.low is not None,
        see=("reward_shift",),
    ),
    Rule(
        name="constraint.clamp",
        says="Number of sequences whose own ratio, or that of one of their tokens, exceeds the "
        "trainer's clamp of 20 nats. A weight below -20 nats is 0 with or without the clamp.",
        formula="count of sequences with a log-ratio of 20 nats or more",
        unit="sequences",
        guide=Guide(
            warning=1.0, error=math.inf, source="verl and slime clamp log-ratios at 20 nats"
        ),
        value=lambda it: float(it.above_clamp),
        message=lambda it: (
            f"{it.above_clamp:,} sequences have ratios above the trainer's clamp of 20 nats"
        ),
        applies=lambda it: it.row.clamped_share != 0.0,
        see=("clamped_share", "unsafe_sequences"),
    ),
)


def refused(it: JudgedCandidate) -> list[str]:
    """Return a message for each constraint that a candidate breaks; a warning breaks one."""
    return [rule.message(it) for rule, level in levels_of("constraint", it) if level != "ok"]
