"""Treatments of weights outside the bounds are explained here, with who calls them what."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, Kind, first_clause

TITLE = "treatment of weights"
_BIAS = "less variance for bias"
_EXAMPLE = "bounds 0.5 and 2, ratios 0.4, 1.2, 3: weights"

TREATMENTS: dict[str, Entry] = {
    "TIS": Entry(
        name="TIS",
        kind=TITLE,
        what=f"Truncation: weights above the bound become the bound; {_BIAS}. Small ones stay. "
        "The key of slime of this name is train/tis.",
        formula="min(ratio, upper)",
        units="ratio",
        healthy="see truncation_loss; bounds in use: 2 to 10 by sequence, 1.5 to 5 by token "
        "(verl's documents)",
        example=f"{_EXAMPLE} 0.4, 1.2, 2",
        see=("truncation_loss", "rollout_is_threshold", "train/tis"),
    ),
    "clip": Entry(
        name="clip",
        kind=TITLE,
        what=f"Clipping: weights are moved to the nearest bound, small ones too; {_BIAS}.",
        formula="min(max(ratio, lower), upper)",
        units="ratio",
        example=f"{_EXAMPLE} 0.5, 1.2, 2",
        see=("truncation_loss", "tis_mode"),
    ),
    "IcePop": Entry(
        name="IcePop",
        kind=TITLE,
        what="Zeroing: weights outside the bounds become 0. Their tokens stay in the loss mask, "
        "and so in the denominator of the loss.",
        formula="ratio if lower <= ratio <= upper else 0",
        units="ratio",
        healthy="bounds of the presets: 0.5 to 5",
        example=f"{_EXAMPLE} 0, 1.2, 0",
        see=("rollout_corr/rollout_is_oob_ratio", "decoupled_token_icepop"),
    ),
    "MIS": Entry(
        name="MIS",
        kind=TITLE,
        what="Masking: tokens (or sequences) outside the bounds leave the loss mask; the weights "
        "of the others stay as they are.",
        formula="kept if lower <= ratio <= upper",
        units="ratio",
        healthy="see lost_target_mass_token and lost_target_mass_seq",
        example=f"{_EXAMPLE} 0.4, 1.2, 3, of which the second is kept",
        see=("lost_target_mass_token", "rollout_rs", "tis_mode"),
    ),
}


KIND: Kind = Kind(
    title=TITLE,
    plural="Treatments of weights outside the bounds",
    names=lambda: TREATMENTS,
    line=lambda name: first_clause(TREATMENTS[name].what),
    entry=TREATMENTS.__getitem__,
    aliases={"truncate": "TIS", "zero": "IcePop", "mask": "MIS"},
)
