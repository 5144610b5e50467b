"""Keys about importance-sampling weights.

`raw` is the ratio at the level of the weights, its log clamped to +-20; `applied` what becomes of
it at the bounds. All of them are of before batch normalisation and of the mask before rejection.
"""

from __future__ import annotations

from rcdiag.glossary.generations import (
    APPLIED,
    BROKEN,
    BY_K,
    BY_RATIO,
    FIRST,
    LATER,
    MENDED,
    OLD,
    RAW,
)
from rcdiag.glossary.keys.base import LIKE_ITS_FORMULA, Key

_RAW = "of the raw weights (a comment in the code calls them truncated)"
_APPLIED = "of the applied weights: truncated, or 0 outside the bounds with IcePop"
_BY_USE = {RAW: _RAW, APPLIED: _APPLIED}
_ROWS = "over all rows"
_PADDED = "; a row without a token has 0"
_CLIPPED = "of the raw weights clipped to [lower, upper]"
_FROM_0 = "of the applied weights clipped to [0, upper]"
_FRACTION = "the raw weights, compared strictly: a weight at the bound is not beyond it"
_SEE = ("ess_token_applied", "ess_seq_applied")
_VETO = "verl's guide of that time: above 0.1 is an alarm"

PERCENTILES = {
    f"rollout_is_p{percent}": Key(
        what=f"{percent}% quantile of the raw weights over tokens. torch.quantile stops above 2^24 "
        "tokens (verl #3787).",
        formula=f"quantile {percent / 100:g} of the raw weights, linear between neighbours",
        units="ratio",
        of={FIRST: LIKE_ITS_FORMULA},
    )
    for percent in (25, 50, 75, 95, 99)
}

STATISTICS: dict[str, Key] = {
    "rollout_is_mean": Key(
        what="Mean weight over tokens, also of sequence weights: a long row counts by its length. "
        "Not comparable between 0.7.1 and 0.8.0.",
        formula="sum of weights over tokens / (N + 1e-8)",
        units="ratio",
        healthy="ideal 1; verl's guide: from 0.5 to 2",
        of=_BY_USE,
        see=("ratio_mean", "ratio_mean_z"),
    ),
    "rollout_is_max": Key(
        what="Largest weight. verl's document says before the threshold, which is untrue for "
        "tokens from 0.8.0 on.",
        formula="tokens: max weight; sequences: exp(min(max over rows of sum log_ratio, 20))",
        units="ratio",
        of={
            RAW: "of the raw weights; by sequence a row without a token counts as 1",
            APPLIED: "by token of the applied weights, by sequence still of the raw ones",
        },
    ),
    "rollout_is_min": Key(
        what="Smallest weight. By sequence it is not clamped, so that it may exceed "
        "rollout_is_max: a single row of 30 nats has min e^30 and max e^20.",
        formula="tokens: min weight; sequences: exp(min over rows of sum log_ratio)",
        units="ratio",
        of={
            RAW: "of the raw weights; by sequence a row without a token counts as 1",
            APPLIED: "by token of the applied weights (0 with IcePop), by sequence of the raw ones",
        },
    ),
    "rollout_is_ratio_fraction_high": Key(
        what="Share of raw weights above the upper bound: what is truncated or zeroed.",
        formula="E[1(weight > upper)]",
        units="share",
        healthy="ideal 0",
        of={
            OLD: f"{_FRACTION}. By token and geometric: of tokens; by sequence: of all rows",
            LATER: f"{_FRACTION}. By token: of tokens; by sequence: of all rows",
        },
    ),
    "rollout_is_ratio_fraction_low": Key(
        what="Share of raw weights below the lower bound, 1/upper unless one is set; truncation "
        "leaves them alone.",
        formula="E[1(weight < lower)]",
        units="share",
        healthy="ideal 0",
        of={
            OLD: f"{_FRACTION}. By token and geometric: of tokens; by sequence: of all rows",
            LATER: f"{_FRACTION}. By token: of tokens; by sequence: of all rows",
        },
    ),
    "rollout_is_std": Key(
        what="Standard deviation of clipped weights over tokens, biased. With the bounds 0.5 and 2 "
        "it cannot exceed 0.75, so that the alarm of verl's guide above 1 never comes.",
        formula="sqrt(E[w^2] - E[w]^2)",
        units="ratio",
        healthy="ideal 0; verl's guide: up to 1",
        of={RAW: _CLIPPED, APPLIED: _FROM_0},
    ),
    "rollout_is_eff_sample_size": Key(
        what="Effective sample size as a fraction of tokens, also of sequence weights. Clipping "
        "hides the bad news: see ess_token_applied and ess_seq_applied.",
        formula="1 / E[(w / (E[w] + 1e-8))^2] over tokens",
        units="fraction",
        healthy="ideal 1; verl's guide: 0.5 is good, below 0.3 an alarm",
        of={
            RAW: f"{_CLIPPED}; with 0.5 and 2 it cannot fall below 0.64, so that no alarm comes",
            APPLIED: f"{_FROM_0}; above 1 where weights are near 1e-8 (34.24 was seen), from the "
            "1e-8 in the formula",
        },
        see=_SEE,
    ),
    "rollout_is_seq_mean": Key(
        what="Mean over rows of the mean weight of each. It does not match rollout_is_mean, which "
        "verl's document says for sequence weights: rows against tokens.",
        formula="mean over rows of the row's mean weight",
        units="ratio",
        healthy="ideal 1",
        of={RAW: f"{_RAW}, {_ROWS}{_PADDED}", APPLIED: f"{_APPLIED}, {_ROWS}{_PADDED}"},
    ),
    "rollout_is_seq_std": Key(
        what="Standard deviation over rows of the mean weight of each, unbiased.",
        formula="std (n - 1) over rows of the row's mean weight",
        units="ratio",
        healthy="ideal 0",
        of={RAW: f"{_RAW}, {_ROWS}{_PADDED}", APPLIED: f"{_APPLIED}, {_ROWS}{_PADDED}"},
    ),
    "rollout_is_seq_max": Key(
        what="Largest mean weight of a row.",
        formula="max over rows of the row's mean weight",
        units="ratio",
        of=_BY_USE,
    ),
    "rollout_is_seq_min": Key(
        what="Smallest mean weight of a row; 0 as soon as a row has no token.",
        formula="min over rows of the row's mean weight",
        units="ratio",
        of=_BY_USE,
    ),
    "rollout_is_seq_max_deviation": Key(
        what="Largest distance from 1 of a row's mean weight; 1 or more as soon as a row has no "
        "token.",
        formula="max over rows of |row's mean weight - 1|",
        units="ratio",
        healthy="ideal 0",
        of=_BY_USE,
    ),
    "rollout_is_seq_fraction_high": Key(
        what="Share of rows whose mean weight is above the upper bound.",
        formula="share of all rows with mean weight > upper",
        units="share",
        healthy="ideal 0",
        of={
            RAW: "of the raw weights",
            BROKEN: "of the applied weights, which never exceed the bound: always 0 (verl #6806)",
            MENDED: "of the raw weights again",
        },
    ),
    "rollout_is_seq_fraction_low": Key(
        what="Share of rows whose mean weight is below the lower bound; rows without a token, with "
        "0, count.",
        formula="share of all rows with mean weight < lower",
        units="share",
        healthy="ideal 0",
        of={
            RAW: "of the raw weights",
            BROKEN: "of the applied weights (verl #6806)",
            MENDED: "of the raw weights again",
        },
    ),
}

WEIGHTS: dict[str, Key] = {
    **STATISTICS,
    **PERCENTILES,
    "rollout_is_oob_ratio": Key(
        what="Share of tokens whose weight IcePop sets to 0. They stay in the loss mask, and so in "
        "the denominator of the loss.",
        formula="E[1(raw < lower or raw > upper)] over tokens",
        units="share",
        healthy="ideal 0",
        of={APPLIED: "only where rollout_is_threshold is `lower_upper`"},
        see=("IcePop",),
    ),
    "rollout_is_batch_norm_factor": Key(
        what="What the applied weights are divided by. No other key sees the division; rejected "
        "tokens take part in it.",
        formula="token weights: their mean over tokens; sequence weights: mean over rows; 1 where "
        "it is 1e-8 or less",
        units="ratio",
        healthy="ideal 1",
        of={
            tuple(name for name in BY_RATIO if name != "verl-0.7.0"): "sequence weights: over all "
            "rows, those without a token as 0; where rollout_is_batch_normalize is on",
            ("verl-0.7.0", *BY_K): "sequence weights: over rows with a token; where "
            "rollout_is_batch_normalize is on",
        },
        see=("batch normalisation",),
    ),
    "rollout_is_veto_fraction": Key(
        what="Share of all rows with a token below the veto; the log-ratio is not clamped here.",
        formula="share of rows with min log_ratio < ln(veto)",
        units="share",
        healthy=f"ideal 0; {_VETO}",
        of={(*OLD, *BY_RATIO): "0 where the veto is off; gone from 0.7.1 on, with the veto"},
        see=("veto",),
    ),
    "rollout_is_catastrophic_token_fraction": Key(
        what="Share of tokens below the veto.",
        formula="E[1(log_ratio < ln(veto))]",
        units="share",
        healthy="ideal 0",
        of={(*OLD, *BY_RATIO): "0 where the veto is off; gone from 0.7.1 on, with the veto"},
        see=("veto",),
    ),
}
