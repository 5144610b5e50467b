"""Whether an update is safe: named rules with their sources.

The verdict is the level of the worst rule. Where a number that decides is missing, the verdict is
"cannot judge", never "ok".
"""

from __future__ import annotations

from msgspec import Struct

from rcdiag.diagnosis.correction_health import LEFT_OF_UPDATE, CorrectionEvidence, short
from rcdiag.diagnosis.rules import Rule, levels_of, worst_that_counts
from rcdiag.errors import setting
from rcdiag.results import AfterStep, Factor, GradientReport, Health, Shares
from rcdiag.results import Rule as JudgedRule
from rcdiag.results.guide import PROPOSAL, Guide


class Evidence(Struct, frozen=True):
    """The numbers of one update by one preset that the rules judge."""

    mode: str
    undefined: str | None
    metrics: dict[str, float]
    factors: dict[str, Factor]
    correction: CorrectionEvidence  # of the batch's rows
    # sum |c| beside that at ratios and weights of 1 without rejection; None if that is 0
    size: float | None
    shares: Shares | None
    gradient: GradientReport | None
    after: AfterStep | None


_NATS = "nats per token"
_NEEDS = f"give {setting('model')}"
_WITHOUT_MODEL = f"Absent without {setting('model')}."
MOVED = Guide(
    warning=1e-2,
    error=1e-1,
    source=f"{PROPOSAL}; verl, docs/algo/rollout_corr.md: |kl| above 0.1 is an alarm",
)


def _excess(e: Evidence) -> float | None:
    """Return (s - s1) / (1 - s1), the share that the correction shifts to the largest sequences.

    s is the share of sum |c| of the largest 1% of the sequences, s1 the same at weights and ratios
    of 1; None where s1 is unknown or 1.
    """
    assert e.shares is not None
    plain = e.shares.top_sequences_uncorrected
    return None if plain in (None, 1.0) else (e.shares.top_sequences - plain) / (1.0 - plain)


def _top_message(e: Evidence) -> str:
    assert e.shares is not None
    message = f"1% of the sequences carry {100 * e.shares.top_sequences:.0f}% of sum |c|"
    plain = e.shares.top_sequences_uncorrected
    return message if plain is None else f"{message}; at weights of 1 {100 * plain:.0f}%"


def _cosine(e: Evidence) -> float | None:
    return None if e.gradient is None else e.gradient.cosine.value


def _moved(e: Evidence) -> float | None:
    return None if e.after is None else e.after.kl_old_new.value


def _growth(e: Evidence) -> float | None:
    return None if e.after is None else e.after.mismatch_growth


UPDATE_RULES: tuple[Rule[Evidence], ...] = (
    Rule(
        name="health.loss_defined",
        says="There is a loss: something is kept, and it and its coefficients are finite numbers.",
        guide=Guide(warning=1.0, error=1.0, source=f"{PROPOSAL}: without a loss there is no step"),
        value=lambda e: e.undefined is not None,
        message=lambda e: e.undefined or "the loss is defined",
        see=("undefined", "loss-undefined"),
    ),
    Rule(
        name="health.update_size",
        says="How much of the update is left. Weights that are all near 0 have an ESS of 1, but "
        "leave no update.",
        formula="sum |c| / sum |c| at ratios and weights of 1 without rejection",
        unit="share",
        guide=LEFT_OF_UPDATE,
        value=lambda e: e.size,
        message=lambda e: f"sum |c| is {short(e.size)} of that at weights of 1",
        applies=lambda e: e.undefined is None and e.size is not None,
        see=("coefficients", "abs_sum", "weights"),
    ),
    Rule(
        name="health.staleness_k3",
        says="Distance of the policy that is updated from the trainer before the update.",
        formula="E[ratio - 1 - log_ratio], ratio = current / old",
        direction="KL(old || current)",
        unit=_NATS,
        guide=MOVED,
        value=lambda e: e.factors["staleness"].k3_kl.value,
        message=lambda e: (
            "trainer before the update to the policy that is updated: "
            f"{short(e.factors['staleness'].k3_kl.value)} nats"
        ),
        decides=True,
        see=("staleness", "k3_kl"),
    ),
    Rule(
        name="health.clip_fraction",
        says="Share of the tokens that the PPO clip acts on, as the trainer logs it; in bypass "
        "mode the mismatch is inside. Absent for losses that log none.",
        formula="actor/pg_clipfrac",
        unit="share",
        guide=Guide(warning=0.1, error=0.3, source=PROPOSAL),
        value=lambda e: e.metrics["actor/pg_clipfrac"],
        message=lambda e: (
            f"the PPO clip acts on {100 * e.metrics['actor/pg_clipfrac']:.1f}% of the tokens"
            + (", mismatch included" if e.mode == "bypass" else "")
        ),
        applies=lambda e: "actor/pg_clipfrac" in e.metrics,
        heading="clip",
        see=("actor/pg_clipfrac", "bypass"),
    ),
    Rule(
        name="health.top_sequences",
        says="Whether weights, clip or rejection concentrate the update on a few sequences. "
        "What lengths, advantages and the aggregation give to the largest 1% anyway is "
        "subtracted, so that a small or easy batch is no finding.",
        formula="(s - s1) / (1 - s1), s = sum |c| of the largest 1% of sequences / sum |c|, "
        "s1 the same at ratios and weights of 1 without rejection",
        unit="share",
        guide=Guide(warning=0.2, error=0.5, source=PROPOSAL),
        value=_excess,
        message=_top_message,
        applies=lambda e: e.shares is not None,
        see=("top_sequences", "top_sequences_uncorrected"),
    ),
    Rule(
        name="health.cosine",
        says=f"Whether the gradient points where the reference does. {_WITHOUT_MODEL}",
        formula="cosine of both gradients, by products of different prompt groups",
        guide=Guide(warning=0.9, error=0.5, source=PROPOSAL),
        value=_cosine,
        message=lambda e: f"cosine with the reference gradient is {_cosine(e):.3f}",
        applies=lambda e: _cosine(e) is not None,
        see=("cosine", "reference"),
    ),
    Rule(
        name="health.kl_old_new",
        says=f"How far the step moves the policy. {_WITHOUT_MODEL}",
        formula="E[ratio - 1 - log_ratio], ratio = new / old",
        direction="KL(old || new)",
        unit=_NATS,
        guide=MOVED,
        value=_moved,
        message=lambda e: f"the step moves the policy by {short(_moved(e))} nats per token",
        applies=lambda e: e.after is not None,
        see=("kl_old_new",),
    ),
    Rule(
        name="health.mismatch_growth",
        says="Factor by which the step increases the distance of the policy from its sampler. "
        f"{_WITHOUT_MODEL}",
        formula="k3(rollout, new) / k3(rollout, old)",
        guide=Guide(
            warning=2.0,
            error=10.0,
            source=f"{PROPOSAL}; IcePop, arXiv 2510.18855, shows that the mismatch compounds",
        ),
        value=_growth,
        message=lambda e: (
            f"after the step the sampler is {_growth(e):.2g} times as far away as before"
        ),
        applies=lambda e: _growth(e) is not None,
        see=("mismatch_growth",),
    ),
)


def health(evidence: Evidence) -> Health:
    """Apply all rules that concern an update or its correction; the worst level is the verdict.

    A rule that decides but cannot tell is named in `not_judged` too.
    """
    judged = [
        (rule, level, of)
        for concern, of in (("correction", evidence.correction), ("health", evidence))
        for rule, level in levels_of(concern, of)
    ]
    rules = [
        JudgedRule(
            name=rule.own_name,
            value=rule.number(of),
            level=level,
            message=rule.message(of),
            source=rule.guide.source,
        )
        for rule, level, of in judged
    ]
    verdict = worst_that_counts((rule, level) for rule, level, _ in judged)
    undecided = [rule.own_name for rule, level, _ in judged if rule.decides and level == "unknown"]
    return Health(
        verdict="cannot judge" if verdict == "unknown" else verdict,
        rules=rules,
        not_judged=[*_missing(evidence), *undecided],
    )


def _missing(e: Evidence) -> list[str]:
    """List what could not be judged of an update, and the option that each needs."""
    if e.undefined:  # there is nothing to judge
        return []
    missing = []
    if e.gradient is None:
        missing.append(f"direction of the gradient: {_NEEDS}")
    if e.after is None:
        missing.append(f"the policy after the step: {_NEEDS}")
    return missing
