"""Numbers of an update before any model: coefficients, who gets them, what they are divided by.

Source: reference/theory.md 2.1 and 2.7, reference/verl.md 3.
"""

from __future__ import annotations

from dataclasses import replace

from rcdiag.glossary.entry import Entry, Kind, by_hand, said
from rcdiag.glossary.worked_replay import pulled

_C = "c = d loss / d current log-prob of a token"
_PULL = "c below 0 raises the token's log-prob in a step down the loss, above 0 lowers it"
_PER = "loss per nat"
_JSON = "rcdiag replay rollouts.parquet --json | jq"

NUMBERS: dict[str, Entry] = {
    "coefficients": said(
        what="The pull of the loss on every token's log-prob, rejection, weights, clip and "
        "denominator all in it; the gradient is their sum, each times the token's own gradient.",
        formula=f"{_C}, exact",
        direction=_PULL,
        units=_PER,
        see=("coefficients.norm", "sum", "abs_sum", "nonzero", "largest", "shares"),
        example=f"{_JSON} '.presets[].coefficients'",
    ),
    "coefficients.norm": said(
        what="Size of the coefficients as one vector over all tokens.",
        formula=f"sqrt(sum c^2); {_C}",
        units=_PER,
        healthy="no bound; compare presets with each other",
        see=("coefficients", "norm"),
    ),
    "sum": said(
        what="Sum of the coefficients: which way log-probs are pulled on the whole.",
        formula=f"sum c; {_C}",
        direction=_PULL,
        units=_PER,
        healthy="no bound; near 0 where advantages are centred and nothing is clipped or rejected",
        see=("coefficients",),
    ),
    "abs_sum": said(
        what="Sum of the sizes of the coefficients: all the pull there is.",
        formula=f"sum |c|; {_C}",
        units=_PER,
        healthy="no bound; compare presets with each other",
        see=("coefficients", "shares"),
    ),
    "nonzero": said(
        what="Tokens that are pulled at all: neither rejected, nor clipped flat, nor of advantage "
        "0, nor of weight 0.",
        formula=f"count of c != 0; {_C}",
        units="tokens",
        healthy="no bound; of all unmasked tokens",
        see=("coefficients", "kept_tokens"),
    ),
    "largest": said(
        what="The largest coefficient by size.",
        formula=f"max |c|; {_C}",
        units=_PER,
        healthy="no bound; see top_tokens",
        see=("coefficients", "top_tokens"),
    ),
    "shares": said(
        what="Who gets the gradient: shares of the summed sizes of the coefficients; null where "
        "all are 0.",
        formula=f"sum |c| of a part / sum |c|; {_C}",
        units="share",
        see=("by_length", "positive_advantage", "top_tokens", "top_sequences"),
        example=f"{_JSON} '.presets[].shares.top_sequences'",
    ),
    "by_length": said(
        what="What each quarter of the sequences by length gets, the shortest first.",
        formula=f"sum |c| of the quarter / sum |c|; {_C}",
        units="share",
        healthy="no bound; beside tokens_by_length it shows what the aggregation prefers",
        see=("tokens_by_length", "token-mean", "seq-mean-token-mean"),
    ),
    "tokens_by_length": said(
        what="What each quarter of the sequences by length would get by its tokens alone.",
        formula="tokens of the quarter / all tokens",
        units="share",
        healthy="no bound; what by_length is to be compared with",
        see=("by_length",),
    ),
    "positive_advantage": said(
        what="What tokens of positive advantage get.",
        formula=f"sum |c| where A > 0 / sum |c|; {_C}",
        units="share",
        healthy="no bound; the clip takes ratios above it from A > 0, below it from A < 0",
        see=("negative_advantage", "actor/pg_clipfrac"),
    ),
    "negative_advantage": said(
        what="What tokens of negative advantage get.",
        formula=f"sum |c| where A < 0 / sum |c|; {_C}",
        units="share",
        healthy="no bound; see positive_advantage",
        see=("positive_advantage", "actor/pg_clipfrac_lower"),
    ),
    "top_tokens": said(
        what="What the 1% of tokens with the largest coefficients get, one token at least.",
        formula=f"sum of the largest 1% of |c| / sum |c|; {_C}",
        units="share",
        healthy="0.01 where all get the same; no bound",
        see=("largest", "top_sequences"),
    ),
    "top_sequences": said(
        what="What the 1% of sequences with the most get, one sequence at least.",
        formula=f"sum |c| of the largest 1% of sequences / sum |c|; {_C}",
        units="share",
        healthy="ideal 1% or one sequence's even share; for bounds see health.top_sequences",
        see=("health.top_sequences", "sequences"),
    ),
    "sequences": said(
        what="What each sequence gets, the largest first, at most 100 of them.",
        formula=f"sum |c| of the sequence / sum |c|; {_C}",
        units="share",
        see=("top_sequences",),
    ),
    "histogram": said(
        what="Tokens by the size of their coefficient: `edges` and `counts`; those of 0 are left "
        "out.",
        formula=f"counts of log10 |c|; {_C}",
        units="tokens",
        example=f"{_JSON} '.presets[].shares.histogram.counts'",
        see=("coefficients", "edges", "counts"),
    ),
    "scatter": said(
        what="Some tokens that are pulled at, at most 300 by a hash: what the figure draws.",
        formula="log-prob under the current policy, advantage, coefficient",
        units="nats; advantage; loss per nat",
        example=f"{_JSON} '.presets[].scatter[0]'",
        see=("coefficients",),
    ),
    "used": said(
        what="What the sum of losses is divided by in this replay, before any constant length: all "
        "coefficients scale with 1 / used.",
        formula="the number that `which` says, of the `unit`",
        units="tokens or sequences, as `unit` says",
        healthy="no bound; above denominator.kept rejection lowers the learning rate",
        example="5 tokens of which 3 are kept: 3, or 5 with --denominator all",
        see=("denominator", "which", "unit", "rejected-in-denominator"),
    ),
    "which": said(
        what="Which denominator was used: kept, all or constant.",
        example=f"{_JSON} '.presets[].denominator.which'",
        see=("used", "denominator.kept", "all", "constant"),
    ),
    "unit": said(
        what="What the loss is a mean over, by its aggregation: tokens, sequences, or nothing for "
        "a sum.",
        example=f"{_JSON} '.presets[].denominator.unit'",
        see=("used", "aggregation"),
    ),
}

_WRITTEN = by_hand("number of an update", "Numbers of an update in `rcdiag replay`", NUMBERS)


def entry(name: str) -> Entry:
    """With a worked example."""
    found = _WRITTEN.entry(name)
    return found if found.example else replace(found, example=pulled(name))


KIND: Kind = replace(_WRITTEN, entry=entry)
