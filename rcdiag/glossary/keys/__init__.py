"""Every key that trainers log, by its name without prefix.

Sources: reference/verl.md 1.2 to 1.6 and 4.2, reference/frameworks.md 1.3 and 1.6. To add a key:
one entry in its family's file.
"""

from __future__ import annotations

from rcdiag.glossary.generations import OLD, SLIME
from rcdiag.glossary.keys.base import Key
from rcdiag.glossary.keys.debug import DEBUG
from rcdiag.glossary.keys.off_policy import OFF_POLICY
from rcdiag.glossary.keys.rejection import OF_OPTIONS, REJECTION
from rcdiag.glossary.keys.slime import OF_SLIME
from rcdiag.glossary.keys.weights import WEIGHTS

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
