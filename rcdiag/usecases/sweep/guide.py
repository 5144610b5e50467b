"""What verl's own guide would choose for a table, beside what the data say.

The guide (docs/algo/rollout_corr_math.md of verl 0.7.1, section 5.3) goes by severity (negligible,
moderate, severe) and by length (short, long), and gives no numbers. rcdiag takes for severity the
ends of the range that the guide calls typical for a bound on k3, and 1,000 tokens for long.
"""

from __future__ import annotations

from rcdiag.formats import number
from rcdiag.results import MetricValue
from rcdiag.results.sweep import Recommendation

NEGLIGIBLE, SEVERE = 0.001, 0.01  # nats per token by k3: below the one, above the other
LONG = 1000.0  # tokens of the median response

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
    """Say what verl's guide would choose, and why the data say otherwise; None without a KL."""
    if k3.value is None:
        return None
    severity, first = by_severity(k3.value)
    length, second = by_length(median)
    named = f"verl's names {_spoken(first)} for a {severity} mismatch"
    known = f"k3_kl {number(k3.value)}"
    # Where there is nothing to correct, the length of responses says nothing.
    if first == NONE:
        second = NONE
    else:
        named += f", {second} for {length} responses"
        known += f", median {median:,.0f} tokens"
    against = [_against(advice, name) for name in dict.fromkeys([first, second])]
    return "; ".join([named, known, *dict.fromkeys(against)])


def _against(advice: Recommendation, name: str) -> str:
    """Say how a candidate of the guide fares on the data."""
    if advice.answer == "fix-the-cause":
        return "it does not ask whether the recorded policy sampled: here it did not"
    if advice.choice == name:
        return f"the data say {_spoken(name)} too"
    found = {candidate.name: candidate for candidate in advice.candidates}
    candidate = found.get(name)
    if candidate is None or advice.choice is None:
        return "the data cannot tell candidates apart"
    if candidate.refused:
        return f"{_spoken(name)} is refused here, it {candidate.refused[0]}"
    own, chosen = candidate.efficiency.value, found[advice.choice].efficiency.value
    if name in advice.indistinguishable:
        return f"the data do not tell {_spoken(name)} from {_spoken(advice.choice)}"
    if own and chosen:
        return f"{_spoken(name)} has {chosen / own:.2g} times the error of {_spoken(advice.choice)}"
    return f"the data choose {_spoken(advice.choice)}"


def _spoken(name: str) -> str:
    return "no correction" if name == NONE else name
