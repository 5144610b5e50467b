"""Causes by which nothing is wrong: one precision, the rounding of two engines, other experts."""

from __future__ import annotations

from rcdiag.diagnosis.causes.cause import Suspicion, fact, shipped
from rcdiag.diagnosis.causes.evidence import ratio_fact
from rcdiag.diagnosis.signs import HONEST, LOUD, Law, Signs

# Both sides compute in one precision with one kernel.
BITWISE = 1e-4
# A mean is not what it should be beyond so many clustered standard errors.
BROKEN = 4.0
# Nats, rms: two engines in bfloat16 differ by .01 to .05; beyond LOUD only noise of one size on all
# logits is told from a fault, by the share of the largest hundredth of the tokens; it moves tokens
# both ways.
MOST_OF_ENGINES, EVEN, BOTH_WAYS = 0.06, 0.22, 0.7
# A tail without a place: the largest thousandth of the tokens holds so much of the squares, and
# the largest hundredth stands in so many different rows, as far as there are rows.
MOST_IN_TAIL, SPREAD_OVER_ROWS = 0.5, 0.6
BULK = 0.04  # nats, rms of all but the largest hundredth, with a few experts exchanged


def noisy(signs: Signs) -> bool:
    """Tell whether the mismatch is no more than two honest engines have."""
    law = signs.law
    if abs(law.ratio_mean[0] - 1.0) > 0.001 and abs(law.ratio_mean[1]) > 2 * BROKEN:
        return False  # rounding leaves E[ratio] at 1
    if signs.lacks_at_sure_tokens and law.ratio_mean[1] < -law.tokens.as_far(BROKEN):
        return False  # and moves certain tokens both ways
    if law.rms < HONEST:
        return True
    seen = law.by_token_id
    directed = seen.correlation >= 0.3 and seen.explained >= 0.02 and seen.beyond_chance
    even = law.rms < MOST_OF_ENGINES and law.tail_over_sureness < EVEN
    # Re-scores tell whose noise it is: one engine may be coarse by itself.
    even = even and law.one_sided < BOTH_WAYS and None in signs.rescored
    return (law.rms < LOUD or even) and not directed and abs(law.ratio_mean[1]) < 4.0


def not_sampled_from(law: Law) -> bool:
    """Tell whether the recorded law is not the one that sampled, so that other weights, precision
    or context of the trainer are not all that differs.

    Large ratios that a sample misses make E[ratio] too small, never too large; and rounding by the
    recorder itself makes it larger by less than rms^2.
    """
    (mean, z), rms, far = law.ratio_mean, law.rms, law.tokens.as_far(BROKEN)
    return (z > far and mean - 1.0 > rms**2) or (z < -far and 1.0 - mean > rms**2 > 0)


def _healthy(signs: Signs) -> Suspicion | None:
    law = signs.law
    if not len(signs.case.tokens) or law.rms >= BITWISE:
        return None
    return Suspicion(
        confidence=0.95,
        message=f"Both columns agree to {law.rms:.1g} nats rms: one precision, one law.",
        evidence=[fact("rms log-ratio", "one precision on both sides", rms=law.rms)],
        also_possible=["temperature-silent", "top-p-silent"],
        verdict="healthy",
    )


def _engine_noise(signs: Signs) -> Suspicion | None:
    law = signs.law
    tokens = len(signs.case.tokens)
    if not tokens or law.rms < BITWISE or not noisy(signs):
        return None
    quiet = law.rms < HONEST
    others = ["bf16-logits", "batch-noise", "temperature-silent", "top-p-silent"]
    return Suspicion(
        confidence=0.9 if quiet else 0.7,
        message=f"Log-ratios are small ({law.rms:.2g} nats rms) and without structure: the "
        "rounding of two engines.",
        evidence=[
            fact("rms log-ratio", "rounding", rms=law.rms),
            ratio_fact(law),
            fact(
                "token ids agree between halves of the rows",
                "too little for a drift of weights",
                correlation=law.by_token_id.correlation,
                explained=law.by_token_id.explained,
            ),
        ],
        also_possible=others if quiet else ["moe-routing", "quantised-weights", *others[:2]],
    )


def _moe_routing(signs: Signs) -> Suspicion | None:
    """Look for rounding nearly everywhere and a few tokens that are far off, anywhere.

    What moves tokens by their id, their place, their row or to one law alone has another cause.
    """
    law = signs.law
    if not len(signs.case.tokens) or noisy(signs) or law.tail_share < MOST_IN_TAIL:
        return None
    bulk = law.rms_of_bulk
    if bulk > BULK or abs(law.ratio_mean[1]) > BROKEN or abs(law.by_token_id.correlation) > 0.3:
        return None
    anywhere = law.first_tokens < 3.0 and 1 / 3.0 < law.late < 3.0
    if not anywhere or law.rows_of_tail < SPREAD_OVER_ROWS:
        return None
    return Suspicion(
        confidence=0.65,
        message=f"The bulk of the tokens agrees ({bulk:.2g} nats rms but for the largest 1%), and "
        f"0.1% of them, anywhere, hold {law.tail_share:.0%} of the squared log-ratios: as where "
        "the engines chose other experts for a few tokens.",
        evidence=[
            fact("rms log-ratio but for the largest 1%", "rounding", rms=bulk),
            fact(
                "share of squares in the largest 0.1% of tokens",
                "a tail of few tokens",
                share=law.tail_share,
            ),
            ratio_fact(law),
        ],
        also_possible=["engine-noise", "batch-noise", "moe-expert-wrong"],
    )


NOISE = (
    shipped("healthy", "difference", _healthy),
    shipped("engine-noise", "difference", _engine_noise),
    shipped("moe-routing", "difference", _moe_routing),
)
