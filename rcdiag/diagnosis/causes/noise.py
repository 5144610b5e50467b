"""Harmless differences: none at all, the rounding of two engines, or other chosen experts."""

from __future__ import annotations

from rcdiag.diagnosis.causes.cause import (
    CLEAR,
    EXACT,
    WEAK,
    Suspicion,
    by_token_fact,
    fact,
    shipped,
)
from rcdiag.diagnosis.features import BITWISE, Features
from rcdiag.diagnosis.features.location import trend
from rcdiag.diagnosis.thresholds import (
    FEW,
    HALF,
    MOST,
    MUCH_LARGER,
    PART,
    SLIGHT,
    UNRELATED,
)
from rcdiag.diagnosis.validity import INVALID, MOST_OF_ENGINES
from rcdiag.formats import percent

# Where experts differ, the largest rise of a log-prob is at least this part of the largest fall.
# Below a ban all rises are rounding, and falls are of several nats.
LEAST_RISE = 0.1


ONE_SIGN, SOME_ROWS = "are nearly all of one sign", "are large in some rows alone"
FEW_TOKENS = "are large at a few tokens alone"


def structures(features: Features) -> list[str]:
    """Say which structure log-ratios have that rounding does not: they "depend on the engine"."""
    log_ratios, location = features.log_ratios, features.location
    seen = log_ratios.by_token_id
    outliers = location.outlier_rows
    growth = 1.0 if location.by_step is None else trend(location.by_step.k3)
    tests = {
        "depend on the token id": seen.correlation >= UNRELATED
        and seen.explained >= FEW
        and seen.beyond_chance,
        "are largest at the first tokens": log_ratios.first_tokens > MUCH_LARGER,
        "change along the response": log_ratios.change_along_rows,
        ONE_SIGN: log_ratios.one_sided > MOST,  # rounding moves tokens both ways
        "depend on the engine": outliers is not None and bool(outliers.engines),
        SOME_ROWS: (outliers is not None and not outliers.engines)
        or log_ratios.clustering > MUCH_LARGER,
        FEW_TOKENS: features.at_few_tokens,
        "are large where other experts were chosen": features.same_experts_agree,
        "grow over the steps": growth > MUCH_LARGER,
        "are large in some steps alone": features.onset is not None or location.onset is not None,
    }
    return [name for name, found in tests.items() if found]


def is_engine_noise(features: Features) -> bool:
    """Tell whether the mismatch is as small, and as free of structure, as that of two engines.

    Both bounds are those of bfloat16; two engines that declare a finer precision differ by less.
    """
    log_ratios = features.log_ratios
    if features.validity.answer == INVALID:
        return False
    if log_ratios.rms < features.engine_noise:
        return True
    # With re-scores of both sides the noise of each engine is known; then only the stricter bound
    # counts.
    most = MOST_OF_ENGINES * features.of_bfloat16
    return log_ratios.rms < most and None in features.rescored and not structures(features)


def _healthy(features: Features) -> Suspicion | None:
    log_ratios = features.log_ratios
    if log_ratios.rms >= BITWISE:
        return None
    return Suspicion(
        confidence=EXACT,
        message=f"Both columns agree to {log_ratios.rms:.1g} nats rms: one precision on both "
        "sides.",
        evidence=[fact("rms log-ratio", "one precision on both sides", rms=log_ratios.rms)],
        also_possible=["temperature-silent", "top-p-silent"],
        verdict="healthy",
    )


def _engine_noise(features: Features) -> Suspicion | None:
    log_ratios = features.log_ratios
    if log_ratios.rms < BITWISE or not is_engine_noise(features):
        return None
    small = log_ratios.rms < features.engine_noise
    others = ["bf16-logits", "batch-noise", "temperature-silent", "top-p-silent"]
    found = structures(features)
    words = "and do not depend on token id, position or row: the rounding of two engines"
    if found:
        words = f"as after the rounding of two engines, although they {' and '.join(found[:2])}"
    return Suspicion(
        confidence=CLEAR if small else WEAK,
        message=f"Log-ratios are small ({log_ratios.rms:.2g} nats rms) {words}.",
        evidence=[
            fact("rms log-ratio", "rounding", rms=log_ratios.rms),
            features.validity.evidence,
            by_token_fact(log_ratios, "too weak for a drift of weights"),
        ],
        also_possible=others if small else ["moe-routing", "quantised-weights", *others],
    )


def _moe_routing(features: Features) -> Suspicion | None:
    """Compare the recorded experts; without those of both sides, look at the log-ratios."""
    if features.same_experts_agree:
        return _recorded_routing(features)
    return _like_routing(features)


def _recorded_routing(features: Features) -> Suspicion:
    """Report that only the tokens of other experts differ by more than rounding."""
    rerouting = features.case.rerouting
    assert rerouting is not None
    halves = rerouting.k2_same_experts, rerouting.k2_rerouted
    same, other = ((2.0 * (half.value or 0.0)) ** 0.5 for half in halves)
    return Suspicion(
        confidence=EXACT,
        message=f"{percent(rerouting.rerouted)} of the tokens took other experts in "
        f"`{features.case.trainer}` than in `{features.case.sampler}`. These differ by "
        f"{other:.2g} nats rms, and tokens of the same experts by {same:.2g}, no more than by "
        "rounding.",
        evidence=[
            fact("rms log-ratio by experts", "other experts chosen", same=same, other=other),
            fact(
                "share of log_ratio² at tokens of other experts",
                "what other experts hold of the mismatch",
                share=rerouting.rerouted_share_of_squares.value,
            ),
            features.validity.evidence,
        ],
        also_possible=["batch-noise", "moe-expert-wrong"],
    )


def _like_routing(features: Features) -> Suspicion | None:
    """Look for rounding at nearly all tokens and large log-ratios at a few tokens anywhere.

    Structure by token id, position or row points to another cause. Other experts move a token by
    its context: up or down, and the same id elsewhere not at all. A bias moves every token of a few
    ids alike, and a ban moves tokens only down.
    """
    log_ratios = features.log_ratios
    if is_engine_noise(features) or log_ratios.tail_share < HALF:
        return None
    if log_ratios.rms_of_bulk > SLIGHT or features.validity.answer == INVALID:
        return None
    anywhere = not set(structures(features)) - {ONE_SIGN, SOME_ROWS}
    anywhere &= abs(log_ratios.by_token_id.correlation) < UNRELATED
    anywhere &= log_ratios.predicted_by_id < PART
    anywhere &= log_ratios.values.max() > -LEAST_RISE * log_ratios.values.min()
    if not anywhere or log_ratios.clustering > MUCH_LARGER:
        return None
    return Suspicion(
        confidence=WEAK,
        message=f"Most tokens agree ({log_ratios.rms_of_bulk:.2g} nats rms without the largest "
        f"1%), and 0.1% of them, in no response more than in others, hold "
        f"{log_ratios.tail_share:.0%} of the squared log-ratios, as when the engines choose other "
        "experts for a few tokens.",
        evidence=[
            fact("rms log-ratio without the largest 1%", "rounding", rms=log_ratios.rms_of_bulk),
            fact(
                "share of log_ratio² in the top 0.1% of tokens",
                "a few tokens dominate",
                share=log_ratios.tail_share,
            ),
            features.validity.evidence,
        ],
        also_possible=["engine-noise", "batch-noise", "moe-expert-wrong", "logit-bias"],
    )


NOISE = (
    shipped("healthy", "difference", _healthy),
    shipped("engine-noise", "difference", _engine_noise),
    shipped("moe-routing", "difference", _moe_routing),
)
