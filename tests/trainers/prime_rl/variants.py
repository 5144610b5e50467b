"""Settings of prime-rl whose numbers are stored."""

from __future__ import annotations

TRAINER = "prime-rl-20260821"
VARIANTS = {
    "default": {},
    "ipo": {"type": "ipo"},
    "narrow": {"dppo_mask_low": 0.05, "dppo_mask_high": 0.05},
    "low alone": {"dppo_mask_low": 0.02, "dppo_mask_high": 1.0},
    "high alone": {"dppo_mask_low": 1.0, "dppo_mask_high": 0.02},
    "unequal": {"dppo_mask_low": 0.15, "dppo_mask_high": 0.3},
    "nothing passes": {"dppo_mask_low": 0.0, "dppo_mask_high": 0.0},
    "everything passes": {"dppo_mask_low": 1.0, "dppo_mask_high": 1.0},
    "wide": {"dppo_mask_low": 0.4, "dppo_mask_high": 0.4},
    "advantages scaled": {"adv_tau": 0.5},
    "without the quadratic term": {"kl_tau": 0.0},
    "ipo narrow": {"type": "ipo", "ipo_threshold": 0.02},
    "ipo wide": {"type": "ipo", "ipo_threshold": 0.3},
    "ipo zero": {"type": "ipo", "ipo_threshold": 0.0},
    "ipo all": {"type": "ipo", "ipo_threshold": 1.0},
}
UPDATES = {
    "default": {},
    "ipo": {"type": "ipo"},
    "unequal": {"dppo_mask_low": 0.05, "dppo_mask_high": 0.02, "kl_tau": 0.1},
    "ipo scaled": {"type": "ipo", "ipo_threshold": 0.05, "adv_tau": 0.5, "kl_tau": 0.0},
}
