"""What verl's own guide would choose for a table, compared with rcdiag's recommendation.

The guide (docs/algo/rollout_corr_math.md of verl 0.7.1, section 5.3) chooses by severity
(negligible, moderate, severe) and by length (short, long), and gives no numbers. For severity
rcdiag takes the ends of the range that the guide calls typical for a bound on k3, for long
responses 1,000 tokens.
"""

from __future__ import annotations

from rcdiag.formats import number
from rcdiag.results import MetricValue
from rcdiag.results.sweep import Recommendation

# k3, nats per token: negligible below the first, severe above the second.
NEGLIGIBLE, SEVERE = 0.001, 0.01
LONG = 1000.0  # responses are long if the median has at least this many tokens

NONE, TOKEN_TIS, SEQ_TIS, SEQ_MIS = "none", "token_tis_2", "seq_tis_2", "seq_mis_0.5_2"
GEO_TOKEN_TIS = "geo_rs_0.999_1.001_token_tis_2"  # the guide's K1-RS-Token-TIS


def by_severity(k3: float) -> tuple[str, str]:
    """Return the guide's word for the size of a mismatch, and the candidate that it names."""
    if k3 < NEGLIGIBLE:
        return "negligible", NONE
    return ("severe", SEQ_MIS) if k3 > SEVERE else ("moderate", TOKEN_TIS)


def by_length(median: float) -> tuple[str, str]:
    """Return the guide's word for the length of responses, and the candidate that it names."""
    return ("long", GEO_TOKEN_TIS) if median >= LONG else ("short", SEQ_TIS)


def guide_sentence(advice: Recommendation, k3: MetricValue, median: float) -> str | None:
    """Say what verl's guide would choose, and how this compares with the data; None without k3."""
    if k3.value is None:
        return None
    severity, first = by_severity(k3.value)
    length, second = by_length(median)
    named = f"verl's guide names {_spoken(first)} for a {severity} mismatch"
    known = f"k3_kl {number(k3.value)}"
    # If there is nothing to correct, the length of responses does not matter.
    if first == NONE:
        second = NONE
    else:
        named += f", {second} for {length} responses"
        known += f", median {median:,.0f} tokens"
    against = [_against(advice, name) for name in dict.fromkeys([first, second])]
    return "; ".join([named, known, *dict.fromkeys(against)])


def _against(advice: Recommendation, name: str) -> str:
    """Compare a candidate of the guide with the recommendation."""
    if advice.answer == "fix-the-cause":
        return "it does not check whether the recorded policy sampled: here it did not"
    if advice.choice == name:
        return f"the data say {_spoken(name)} too"
    found = {candidate.name: candidate for candidate in advice.candidates}
    candidate = found.get(name)
    if candidate is None or advice.choice is None:
        return "the data cannot distinguish candidates"
    if candidate.refused:
        return f"{_spoken(name)} is refused here: {candidate.refused[0]}"
    own, chosen = candidate.efficiency.value, found[advice.choice].efficiency.value
    if name in advice.indistinguishable:
        return f"the data cannot distinguish {_spoken(name)} from {_spoken(advice.choice)}"
    if own and chosen:
        return f"{_spoken(name)} has {chosen / own:.2g} times the error of {_spoken(advice.choice)}"
    return f"the data choose {_spoken(advice.choice)}"


def _spoken(name: str) -> str:
    return "no correction" if name == NONE else name
