"""Keys about rejection. All of them see the mask before rejection."""

from __future__ import annotations

from dataclasses import replace

from rcdiag.glossary.generations import BY_K, BY_RATIO, OLD
from rcdiag.glossary.keys.base import LIKE_ITS_FORMULA, Key
from rcdiag.glossary.keys.weights import STATISTICS
from rcdiag.trainers.verl.k_rejection import OPTIONS

OPTION = "OPTION"  # stands for one of `OPTIONS` in a key's name
_MASKED = "ideal 0; verl's guide: below 0.1, above 0.3 is bad"
_VALID = "rows are those that have a token"

_OF_RATIOS = {
    name.replace("rollout_is", "rollout_rs"): replace(
        key,
        what=f"`{name}` of the ratio at the level of rollout_rs, with the bounds of rejection.",
        of={BY_RATIO: "of the raw ratios; std and ESS of those clipped to [lower, upper]"},
        healthy=None,
        see=(f"rollout_corr/{name}",),
    )
    for name, key in STATISTICS.items()
}

REJECTION: dict[str, Key] = {
    **_OF_RATIOS,
    "rollout_is_masked_fraction": Key(
        what="Share of tokens outside the bounds, in mask mode. Called rollout_rs_masked_fraction "
        "from 0.6.1 on.",
        formula="1 - E[1(lower <= weight <= upper)]",
        units="share",
        healthy=_MASKED,
        of={
            OLD[:1]: "their weights are 0, they stay in the mask; those of the veto not counted",
            OLD[1:]: "they leave the loss mask; those of the veto not counted",
        },
        see=("rollout_corr/rollout_rs_masked_fraction",),
    ),
    "rollout_is_seq_masked_fraction": Key(
        what="Share of rows touched by the bounds, in mask mode. Called "
        "rollout_rs_seq_masked_fraction from 0.6.1 on.",
        formula="token weights: share of all rows with a token outside; else: of rows outside",
        units="share",
        healthy=_MASKED,
        of={OLD: "those of the veto not counted"},
        see=("rollout_corr/rollout_rs_seq_masked_fraction",),
    ),
    "rollout_rs_masked_fraction": Key(
        what="Share of tokens that rejection takes out of the loss mask. Whether the loss still "
        "divides by them depends on the path in verl: see denominator_kept.",
        formula="1 - E[1(kept)]",
        units="share",
        healthy=_MASKED,
        of={
            BY_RATIO: "by the one level of rollout_rs; those of the veto not counted",
            BY_K: "by all options of rollout_rs together",
        },
        see=("denominator_kept", "lost_target_mass_token"),
    ),
    "rollout_rs_seq_masked_fraction": Key(
        what="Share of all rows of which rejection takes at least one token, so a row may lose one "
        "token or all of them.",
        formula="rows with a rejected token / all rows",
        units="share",
        healthy=_MASKED,
        of={
            BY_RATIO: "by the one level of rollout_rs; those of the veto not counted",
            BY_K: "by all options together; rows without a token count here, and not in those of "
            "single options",
        },
        see=("lost_target_mass_seq",),
    ),
}

_K1 = "k1 options hold -log_ratio against the log of the bounds: high means a small ratio"
_OPTION: dict[str, Key] = {
    "mean": Key(
        what="Mean of the statistic, a row's counted at each of its tokens.",
        formula="E[x] over tokens",
        of={BY_K: LIKE_ITS_FORMULA},
    ),
    "max": Key(
        what="Largest statistic.",
        formula="max over tokens, or over rows",
        of={BY_K: LIKE_ITS_FORMULA},
    ),
    "min": Key(
        what="Smallest statistic.",
        formula="min over tokens, or over rows",
        of={BY_K: LIKE_ITS_FORMULA},
    ),
    "std": Key(
        what="Standard deviation over tokens of the clipped statistic, biased.",
        formula="std of x clipped to [lower, upper]; to [0, upper] for k2 and k3",
        of={BY_K: LIKE_ITS_FORMULA},
    ),
    "fraction_high": Key(
        what=f"Share above the upper bound. {_K1}.",
        formula="E[1(x > upper)] over tokens, or over rows",
        of={BY_K: _VALID},
    ),
    "fraction_low": Key(
        what=f"Share below the lower bound. {_K1}.",
        formula="E[1(x < lower)] over tokens, or over rows",
        of={BY_K: f"{_VALID}; 0 for k2 and k3, which have no lower bound"},
    ),
    "seq_mean": Key(
        what="Mean over rows of the row's statistic.",
        formula="mean of z; z is the statistic of a row, or the row's mean for token options",
        of={BY_K: _VALID},
    ),
    "seq_std": Key(
        what="Standard deviation over rows, unbiased.",
        formula="std (n - 1) of z",
        of={BY_K: _VALID},
    ),
    "seq_max": Key(what="Largest of any row.", formula="max z", of={BY_K: _VALID}),
    "seq_min": Key(what="Smallest of any row.", formula="min z", of={BY_K: _VALID}),
    "seq_max_deviation": Key(
        what="Largest size of any row. Measured from 0, where rollout_is_seq_max_deviation is "
        "measured from 1.",
        formula="max |z|",
        of={BY_K: _VALID},
    ),
    "seq_fraction_high": Key(
        what=f"Share of rows above the upper bound. {_K1}.",
        formula="share of rows with z > upper",
        of={BY_K: _VALID},
    ),
    "seq_fraction_low": Key(
        what=f"Share of rows below the lower bound. {_K1}.",
        formula="share of rows with z < lower",
        of={BY_K: f"{_VALID}; k1 options only"},
    ),
    "masked_fraction": Key(
        what="Share of tokens that this option alone rejects.",
        formula="1 - E[1(kept)]",
        healthy=_MASKED,
        of={BY_K: "of the original mask, whatever other options reject"},
    ),
    "seq_masked_fraction": Key(
        what="Share of rows of which this option rejects a token.",
        formula="rows with a rejected token / rows that have a token",
        healthy=_MASKED,
        of={BY_K: f"{_VALID}; rollout_rs_seq_masked_fraction is over all rows"},
    ),
}
OF_OPTIONS = {f"rollout_rs_{OPTION}_{suffix}": key for suffix, key in _OPTION.items()}


def of_option(key: str) -> tuple[str, str] | None:
    """`rollout_rs_token_k1_mean` as its key with `OPTION`, and the option."""
    for option in OPTIONS:
        general = key.replace(f"rollout_rs_{option}_", f"rollout_rs_{OPTION}_", 1)
        if general != key and general in OF_OPTIONS:
            return general, option
    return None
