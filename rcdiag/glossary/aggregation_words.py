"""How the losses of tokens become one number, and what it is divided by.

Source: reference/verl.md 3. To add one: an entry here.
"""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, by_hand, said
from rcdiag.glossary.generations import SLIME, VERL, label

_OF_071 = VERL[VERL.index("verl-0.7.1") :]
_WIDTH = VERL[: VERL.index("verl-20251203")]
_BETWEEN = ("verl-20251203", "verl-0.7.0")
_TOY = "token losses [1, 1, 1], [2, 2]"
_SKIPS = "over rows with a kept token; verl-0.6.0: over all rows"

AGGREGATIONS: dict[str, Entry] = {
    "token-mean": said(
        what="Every token counts alike, so long sequences count more.",
        formula="sum of token losses / tokens",
        generations={
            label(VERL): "loss_agg_mode: token-mean, the default; tokens as `denominator` says",
            label(SLIME): "--calculate-per-token-loss; rejected tokens counted, a row without a "
            "token as one",
        },
        example=f"{_TOY}: 1.4",
        see=("denominator", "by_length"),
    ),
    "token-sum": said(
        what="Sum over tokens, divided by nothing: the step grows with the batch.",
        formula="sum of token losses",
        generations={VERL[-1]: "loss_agg_mode: token-sum"},
        example=f"{_TOY}: 7",
        see=("token-mean",),
    ),
    "seq-mean-token-sum": said(
        what="Mean over sequences of their sums: long sequences count more.",
        formula="sum of token losses / sequences",
        generations={label(VERL): f"loss_agg_mode: seq-mean-token-sum; {_SKIPS}"},
        example=f"{_TOY}: 3.5",
        see=("denominator", "seq-mean-token-sum-norm"),
    ),
    "seq-mean-token-mean": said(
        what="Mean over sequences of their means: every sequence counts alike, so tokens of long "
        "ones count less.",
        formula="mean over sequences of sum of token losses / (kept tokens + 1e-8)",
        generations={
            label(VERL): f"loss_agg_mode: seq-mean-token-mean; {_SKIPS}, NaN with an empty one",
            label(SLIME): "the default; over all rows, and rejected tokens counted in each",
        },
        example=f"{_TOY}: 1.5",
        see=("denominator", "by_length", "gspo", "sapo"),
    ),
    "seq-mean-token-sum-norm": said(
        what="As seq-mean-token-sum, over a constant length too; up to verl-0.7.0 without the mean "
        "over sequences.",
        formula="sum of token losses / (sequences x scale_factor), scale_factor else the padded "
        "width",
        generations={
            label(_WIDTH): "sum / padded width",
            label(_BETWEEN): "sum / (loss_scale_factor or padded width)",
            label(_OF_071): "the mean over sequences too",
        },
        example=f"{_TOY}: 2.333 in verl-0.6.0 to verl-0.7.0; 1.167 in verl-0.7.1 to verl-0.9",
        see=("seq-mean-token-sum", "scale_factor"),
    ),
}

_DECIDES = "decides how rejection changes the learning rate (verl.md 3)"
_FIVE = "token losses 1 of 5 tokens, 2 of them rejected"

DENOMINATORS: dict[str, Entry] = {
    "denominator.kept": said(
        what=f"Denominator of what is kept alone: rejected tokens, and rows without any other, are "
        f"left out. It {_DECIDES}.",
        formula="count of kept tokens, or of rows with a kept token",
        generations={
            label(VERL): "what the loss function itself takes, but for sequences in 0.6.0; engine "
            "workers in decoupled mode with token-mean",
        },
        example=f"{_FIVE}: 3 / 3 = 1",
        see=("denominator", "denominator_kept", "kept"),
    ),
    "all": said(
        what=f"Denominator that rejected tokens and rows are counted in. It {_DECIDES}.",
        formula="count of unmasked tokens, or of all rows",
        generations={
            label(VERL): "V1 trainer, bypass mode in engine workers, IcePop, mask mode of 0.6.0",
            label(SLIME): "always",
        },
        example=f"{_FIVE}: 3 / 5 = 0.6",
        see=("denominator", "denominator_all", "rejected-in-denominator"),
    ),
    "constant": said(
        what="Denominator that is given: a number of tokens or sequences, by the aggregation, for "
        "each optimizer step, whatever is rejected. A sum has none.",
        formula="the number of --constant",
        generations={
            label(VERL): "sequence means of engine workers: ppo_mini_batch_size times samples"
        },
        example=f"{_FIVE}, --denominator constant --constant 4: 3 / 4 = 0.75",
        see=("denominator", "all"),
    ),
}

KIND = by_hand(
    "aggregation",
    "Aggregations of a loss, and what they divide by",
    {**AGGREGATIONS, **DENOMINATORS},
)
