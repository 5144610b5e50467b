"""Random settings of prime-rl, ROLL, open-instruct and miles."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Config = dict[str, Any]
LEVELS = st.sampled_from(("token", "segment", "geometric", "sequence"))
ICEPOP = "miles.backends.training_utils.loss_hub.corrections.icepop_function"
MIS = "examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"


def prime_rl_before() -> SearchStrategy[Config]:
    """A trust region of either loss."""
    bounds = st.sampled_from((0.0, 0.05, 0.2))
    default = st.fixed_dictionaries({"dppo_mask_low": bounds, "dppo_mask_high": bounds})
    ipo = st.fixed_dictionaries({"type": st.just("ipo"), "ipo_threshold": bounds})
    return default | ipo


def prime_rl() -> SearchStrategy[Config]:
    """A trust region by probability, or a band of ratios."""
    ipo = st.fixed_dictionaries({"eps": st.sampled_from((0.0, 0.05, 0.3))})
    low, high = st.sampled_from((0.2, 0.9)), st.sampled_from((1.1, 5.0))
    icepop = st.fixed_dictionaries(
        {"type": st.just("icepop"), "ratio_low": low, "ratio_high": high}
    )
    return ipo | icepop


def roll() -> SearchStrategy[Config]:
    """Weights with or without a bound, and up to two filters."""
    rules = st.fixed_dictionaries(
        {
            "enabled": st.booleans(),
            "agg_type": LEVELS,
            "ratio_enabled": st.booleans(),
            "diff_enabled": st.booleans(),
        }
    )
    return st.fixed_dictionaries(
        {
            "is_weight.enabled": st.booleans(),
            "is_weight.weight_type": LEVELS,
            "is_weight.upper_bound": st.sampled_from((None, 1.2, 3.0)),
            "filters": st.lists(rules, max_size=2),
        }
    )


def open_instruct() -> SearchStrategy[Config]:
    """Clamps and masks by token or row, without the total-variation mask, which has no writer."""
    lower, upper = st.sampled_from((0.0, 0.5, 0.9)), st.sampled_from((0.0, 1.2, 2.0))
    return st.fixed_dictionaries(
        {
            "use_rho_correction": st.sampled_from((True, True, False)),
            "rho_clamp_lower_bound": lower,
            "rho_clamp_upper_bound": upper,
            "rho_mask_lower_bound": lower,
            "rho_mask_upper_bound": upper,
            "rho_mask_sequence_level": st.booleans(),
        }
    )


def miles() -> SearchStrategy[Config]:
    """The clamp, IcePop, and the helper by token."""
    clip, low = st.sampled_from((2.0, 1.2)), st.sampled_from((0.0, 0.5))
    own = st.fixed_dictionaries(
        {
            "use_tis": st.booleans(),
            "tis_clip": clip,
            "tis_clip_low": low,
            "custom_tis_function_path": st.sampled_from((None, ICEPOP)),
        }
    )
    helper = st.fixed_dictionaries(
        {
            "use_tis": st.just(True),
            "custom_tis_function_path": st.just(MIS),
            "tis_mode": st.sampled_from(("truncate", "clip", "mask")),
            "rs_level": st.sampled_from(("token", "sequence", "geometric")),
            "tis_batch_normalize": st.booleans(),
        }
    )
    return own | helper


OF_CHECKOUTS = {
    "prime-rl-20260821": prime_rl_before(),
    "prime-rl-20260918": prime_rl(),
    "roll": roll(),
    "open-instruct": open_instruct(),
    "miles": miles(),
}
