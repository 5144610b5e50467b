"""Causes by which nothing is wrong: one precision, the rounding of two engines, other experts."""

from __future__ import annotations

from rcdiag.diagnosis.causes.cause import Suspicion, fact, shipped
from rcdiag.diagnosis.signs import HONEST, Signs
from rcdiag.diagnosis.validity import INVALID, MOST_OF_ENGINES

# Both sides compute in one precision with one kernel.
BITWISE = 1e-4
# Structure by token id: the correlation of ids' means between halves of the rows, and the share of
# variance that they explain.
DIRECTED, EXPLAINED = 0.3, 0.02
# The first tokens, or the later half, stand apart by so many times.
AT_A_PLACE = 3.0
# Share of squared log-ratios of one sign; rounding moves tokens both ways.
MOST_ONE_SIDED = 0.8
# A tail without a place: the largest thousandth of the tokens holds so much of the squares, and
# the largest hundredth stands in so many different rows, as far as there are rows.
MOST_IN_TAIL, SPREAD_OVER_ROWS = 0.5, 0.6
BULK = 0.04  # nats, rms of all but the largest hundredth, with a few experts exchanged


def structures(signs: Signs) -> list[str]:
    """Return the ways in which log-ratios are not those of rounding, of those that were tested."""
    law, places = signs.law, signs.places
    seen = law.by_token_id
    loud = places.loud_rows
    tests = {
        "by token id": seen.correlation >= DIRECTED
        and seen.explained >= EXPLAINED
        and seen.beyond_chance,
        "at the first tokens": law.first_tokens > AT_A_PLACE,
        "by position": not 1 / AT_A_PLACE < law.late < AT_A_PLACE,
        "of one sign": law.one_sided > MOST_ONE_SIDED,
        "by engine": loud is not None and bool(loud.engines),
        "in some rows alone": loud is not None and not loud.engines,
        "in some steps alone": signs.onset is not None or places.onset is not None,
    }
    return [name for name, found in tests.items() if found]


def noisy(signs: Signs) -> bool:
    """Tell whether the mismatch is no more than two honest engines have, and shaped as theirs."""
    law = signs.law
    if signs.validity.answer == INVALID:
        return False
    if law.rms < HONEST:
        return True
    # Re-scores tell whose noise it is: one engine may be coarse by itself.
    return law.rms < MOST_OF_ENGINES and None in signs.rescored and not structures(signs)


def _healthy(signs: Signs) -> Suspicion | None:
    law = signs.law
    if not len(signs.case.tokens) or law.rms >= BITWISE:
        return None
    return Suspicion(
        confidence=0.95,
        message=f"Both columns agree to {law.rms:.1g} nats rms: one precision on both sides.",
        evidence=[fact("rms log-ratio", "one precision on both sides", rms=law.rms)],
        also_possible=["temperature-silent", "top-p-silent"],
        verdict="healthy",
    )


def _engine_noise(signs: Signs) -> Suspicion | None:
    law = signs.law
    if not len(signs.case.tokens) or law.rms < BITWISE or not noisy(signs):
        return None
    quiet = law.rms < HONEST
    others = ["bf16-logits", "batch-noise", "temperature-silent", "top-p-silent"]
    return Suspicion(
        confidence=0.9 if quiet else 0.7,
        message=f"Log-ratios are small ({law.rms:.2g} nats rms) and do not depend on token id, "
        "position, row or step: the rounding of two engines.",
        evidence=[
            fact("rms log-ratio", "rounding", rms=law.rms),
            signs.validity.evidence,
            fact(
                "shift per token id, repeated in the other half of the rows",
                "too weak for a drift of weights",
                correlation=law.by_token_id.correlation,
                explained=law.by_token_id.explained,
            ),
        ],
        also_possible=others if quiet else ["moe-routing", "quantised-weights", *others[:2]],
    )


def _moe_routing(signs: Signs) -> Suspicion | None:
    """Look for rounding nearly everywhere and a few tokens that are far off, anywhere.

    What moves tokens by their id, their place or their row has another cause.
    """
    law = signs.law
    if not len(signs.case.tokens) or noisy(signs) or law.tail_share < MOST_IN_TAIL:
        return None
    if law.rms_of_bulk > BULK or signs.validity.answer == INVALID:
        return None
    anywhere = not set(structures(signs)) - {"of one sign", "in some rows alone"}
    anywhere &= abs(law.by_token_id.correlation) < DIRECTED
    if not anywhere or law.rows_of_tail < SPREAD_OVER_ROWS:
        return None
    return Suspicion(
        confidence=0.65,
        message=f"The bulk of the tokens agrees ({law.rms_of_bulk:.2g} nats rms but for the "
        f"largest 1%), and 0.1% of them, anywhere, hold {law.tail_share:.0%} of the squared "
        "log-ratios: as where the engines chose other experts for a few tokens.",
        evidence=[
            fact("rms log-ratio but for the largest 1%", "rounding", rms=law.rms_of_bulk),
            fact(
                "share of log_ratio² in the top 0.1% of tokens",
                "a few tokens dominate",
                share=law.tail_share,
            ),
            signs.validity.evidence,
        ],
        also_possible=["engine-noise", "batch-noise", "moe-expert-wrong"],
    )


NOISE = (
    shipped("healthy", "difference", _healthy),
    shipped("engine-noise", "difference", _engine_noise),
    shipped("moe-routing", "difference", _moe_routing),
)
