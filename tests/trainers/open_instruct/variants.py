"""Settings of open-instruct whose numbers are stored."""

from __future__ import annotations

VARIANTS = {
    "default": {},
    "off": {"use_rho_correction": False},
    "unclamped": {"rho_clamp_upper_bound": 0.0},
    "clamped on both sides": {"rho_clamp_lower_bound": 0.5, "rho_clamp_upper_bound": 1.5},
    "lower clamp alone": {"rho_clamp_lower_bound": 0.7, "rho_clamp_upper_bound": 0.0},
    "mask": {"rho_mask_lower_bound": 0.4, "rho_mask_upper_bound": 2.5},
    "mask and clamp": {
        "rho_clamp_upper_bound": 3.0,
        "rho_mask_lower_bound": 0.4,
        "rho_mask_upper_bound": 2.5,
    },
    "mask within the clamp": {
        "rho_clamp_lower_bound": 0.3,
        "rho_clamp_upper_bound": 1.2,
        "rho_mask_lower_bound": 0.8,
        "rho_mask_upper_bound": 1.1,
    },
    "lower mask alone": {"rho_mask_lower_bound": 0.9},
    "upper mask alone": {"rho_mask_upper_bound": 1.05},
    "sequence without bounds": {"rho_mask_sequence_level": True, "rho_clamp_upper_bound": 0.0},
    "sequence": {
        "rho_mask_sequence_level": True,
        "rho_mask_lower_bound": 0.8,
        "rho_mask_upper_bound": 1.3,
    },
    "sequence clamped": {"rho_mask_sequence_level": True, "rho_clamp_upper_bound": 1.01},
    "tv": {"rho_mask_tv_divergence": True, "rho_mask_upper_bound": 1.05},
    "tv lower": {"rho_mask_tv_divergence": True, "rho_mask_lower_bound": 0.4},
    "tv both": {
        "rho_mask_tv_divergence": True,
        "rho_mask_lower_bound": 0.3,
        "rho_mask_upper_bound": 1.05,
        "rho_clamp_upper_bound": 1.4,
    },
    "tv and sequence": {
        "rho_mask_tv_divergence": True,
        "rho_mask_sequence_level": True,
        "rho_mask_lower_bound": 0.3,
    },
}
UPDATES = {
    "dapo": {},
    "cispo": {"loss_fn": "cispo"},
    "dapo masked": {"rho_mask_lower_bound": 0.7, "rho_mask_upper_bound": 1.2},
    "cispo masked": {"loss_fn": "cispo", "rho_mask_lower_bound": 0.7, "clip_higher": 0.1},
    "dapo without correction": {"use_rho_correction": False},
    "dapo over a constant": {"loss_denominator": "64"},
}
