"""Every key that trainers log, by its name without prefix.

Sources: reference/verl.md 1.2 to 1.6 and 4.2, reference/frameworks.md 1.3 and 1.6. To add a key:
one entry in its family's file.
"""

from __future__ import annotations

from rcdiag.explain.generations import OLD, SLIME
from rcdiag.explain.keys.base import Key
from rcdiag.explain.keys.debug import DEBUG
from rcdiag.explain.keys.off_policy import OFF_POLICY
from rcdiag.explain.keys.rejection import OF_OPTIONS, REJECTION
from rcdiag.explain.keys.slime import OF_SLIME
from rcdiag.explain.keys.weights import WEIGHTS

KEYS: dict[str, Key] = {
    **OFF_POLICY,
    **WEIGHTS,
    **REJECTION,
    **OF_OPTIONS,
    **OF_SLIME,
    **DEBUG,
}


def full_name(trainer: str, key: str) -> str:
    """A key with the prefix that a trainer gives it."""
    if trainer in SLIME:
        return f"mis_{key}"
    if key in DEBUG:
        return f"training/{key}"
    if trainer in OLD:
        return f"mismatch/mismatch_{key}" if key in OFF_POLICY else f"mismatch/{key}"
    return f"rollout_corr/{key}"
