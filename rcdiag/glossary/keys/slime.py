"""Keys of slime's MIS helper that verl does not share.

All are means over sequences of masked means, of one micro-batch on one rank, with the mask before
rejection; over tokens with --calculate-per-token-loss. slime logs them as train/mis_*.
"""

from __future__ import annotations

from rcdiag.glossary.generations import SLIME
from rcdiag.glossary.keys.base import LIKE_ITS_FORMULA, Key

_README = "the README calls it"
_CLIP, _MASK = "only with tis_mode: clip", "only with tis_mode: mask"
_SEQ = "mean over sequences"


def _key(what: str, formula: str, note: str = LIKE_ITS_FORMULA, units: str = "share") -> Key:
    ideal = "ideal 0" if units == "share" else "ideal 1"
    return Key(what=what, formula=formula, units=units, healthy=ideal, of={SLIME: note})


OF_SLIME: dict[str, Key] = {
    "tis_weight_before_bound": _key(
        "Mean weight before the bounds: the ratio at tis_level, its log clamped to +-20.",
        f"{_SEQ} of exp(clamp(log_ratio at tis_level, +-20))",
        f"{_README} mis_mean_is_weight_before_clip",
        "ratio",
    ),
    "tis_weight_after_bound": _key(
        "Mean weight after the bounds; with tis_mode: mask as before them.",
        f"{_SEQ} of the weight truncated or clipped",
        units="ratio",
    ),
    "tis_truncate_fraction": _key(
        "Share of weights above the upper bound.",
        f"{_SEQ} of 1(weight > upper)",
        f"only with tis_mode: truncate; {_README} mis_truncate_fraction",
    ),
    "tis_clip_fraction_low": _key(
        "Share of weights below the lower bound.", f"{_SEQ} of 1(weight < lower)", _CLIP
    ),
    "tis_clip_fraction_high": _key(
        "Share of weights above the upper bound.", f"{_SEQ} of 1(weight > upper)", _CLIP
    ),
    "tis_mask_fraction_low": _key(
        "Share of weights below the lower bound; their tokens leave the mask.",
        f"{_SEQ} of 1(weight < lower)",
        _MASK,
    ),
    "tis_mask_fraction_high": _key(
        "Share of weights above the upper bound; their tokens leave the mask.",
        f"{_SEQ} of 1(weight > upper)",
        _MASK,
    ),
    "rs_mask_fraction_low": _key(
        "Share of ratios below the lower bound of rejection, at rs_level.",
        f"{_SEQ} of 1(ratio < lower)",
        "only with use_rs",
    ),
    "rs_mask_fraction_high": _key(
        "Share of ratios above the upper bound of rejection, at rs_level.",
        f"{_SEQ} of 1(ratio > upper)",
        "only with use_rs",
    ),
    "rs_catastrophic_token_fraction": _key(
        "Share of tokens below the veto; their log-ratio is not clamped.",
        f"{_SEQ} of 1(log_ratio < ln(rs_veto_threshold))",
        f"only with use_rs and a veto; {_README} mis_catastrophic_token_fraction",
    ),
    "rs_catastrophic_seq_fraction": _key(
        "Share of sequences that the veto takes out.",
        f"{_SEQ} of 1(min log_ratio < ln(rs_veto_threshold))",
        f"only with use_rs and a veto; {_README} mis_catastrophic_seq_fraction",
    ),
    "is_ratio_mean_after_tis_rs": _key(
        "Misnamed: the mean weight after the bounds. No rejection is in it.",
        f"{_SEQ} of the weight after the bounds",
        f"{_README} mis_ratio_mean_after_mis",
        "ratio",
    ),
    "batch_norm_factor": _key(
        "What the weights are divided by; rejected tokens take part in it.",
        "token weights: their mean over tokens; sequence weights: mean over sequences",
        "only with tis_batch_normalize; of one micro-batch on one rank, the README says the batch; "
        "logged as a mean over rows, so that rows without a token lower the logged number",
        "ratio",
    ),
    "is_ratio_mean_final": _key(
        "Mean of the weights as they enter the loss, before rejection.",
        f"{_SEQ} of the mean weight / batch_norm_factor",
        units="ratio",
    ),
    "is_ratio_min_final": _key(
        "Mean over sequences of each one's smallest final weight: no minimum of the batch.",
        f"{_SEQ} of the min weight / batch_norm_factor",
        units="ratio",
    ),
    "is_ratio_max_final": _key(
        "Mean over sequences of each one's largest final weight: no maximum of the batch.",
        f"{_SEQ} of the max weight / batch_norm_factor",
        units="ratio",
    ),
}
