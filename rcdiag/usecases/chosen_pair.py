"""Which two policies a score compares where the user names none."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rcdiag.errors import setting

BEHAVIOR, TARGET = "rollout", "old"  # by default


class ChosenPair(Struct, frozen=True):
    """Two policies, and why it is these where policies were scored and no pair was named."""

    behavior: str
    target: str
    reason: str | None = None


def choose_pair(
    recorded: Sequence[str], scored: Sequence[str], behavior: str | None, target: str | None
) -> ChosenPair:
    """Choose the pair to compare from what the user named, else from what there is.

    `scored` are policies that will be scored. One that is scored is compared with the only one
    that is recorded; `rollout` and `old` are compared where both are there, and the reason says
    which policies are left aside.
    """
    default = ChosenPair(behavior or BEHAVIOR, target or TARGET)
    others = [name for name in scored if name not in (BEHAVIOR, TARGET)]
    if behavior is not None or target is not None or not others:
        return default
    if {BEHAVIOR, TARGET} <= {*recorded, *scored}:
        names, are = ", ".join(others), "is" if len(others) == 1 else "are"
        return ChosenPair(
            BEHAVIOR,
            TARGET,
            f"{names} {are} scored, but {BEHAVIOR} and {TARGET} are compared; another pair takes "
            f"{setting('behavior')} and {setting('target')}, all pairs `rcdiag compare`",
        )
    if len(recorded) != 1 or len(scored) != 1:
        return default
    (one,), (other,) = recorded, scored
    first, second = (other, one) if one == TARGET else (one, other)
    reason = f"{other} is compared with {one}, the only recorded policy"
    return ChosenPair(first, second, reason)
