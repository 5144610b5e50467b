"""Whether the log-probs of both sides are over the recorded kept sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Case
from rcdiag.diagnosis.thresholds import ALL, CERTAIN, FEWEST, NEARLY_ALL

# The range of ratios that counts as "inside" in reports on truncated sampling (TRL #7269).
INSIDE = (0.9, 1.1)


class Replay(Struct, frozen=True, kw_only=True):
    """The effect of scoring the trainer over the sampler's kept sets, not the whole vocabulary."""

    policy: str
    ratio_mean: float  # E[exp(policy - sampler)]; 1 where nothing but the kept sets differs
    outside: float  # share of these ratios outside of INSIDE
    outside_before: float  # share of the trainer's ratios outside of INSIDE
    kept_mass: float  # E[exp(trainer - policy)], the trainer's probability of the kept sets


class RecordedKeptSets(Struct, frozen=True, kw_only=True):
    """The kept sets of the pair's tokens. A log-prob over a set of one token is exactly 0."""

    tokens: int  # number of tokens with a recorded kept set
    of_one: int  # number of tokens whose kept set has one token
    mean_size: float
    same_size: int | None  # the size of all sets if they have one, as under top-k alone
    # E[log-prob] on each side, nats, of tokens with a set of one; None without such tokens.
    sampler_of_one: float | None
    trainer_of_one: float | None
    # Whether a side's log-probs are over the kept sets; None where too few sets have one token.
    sampler_is_over_them: bool | None
    trainer_is_over_them: bool | None
    replay: Replay | None

    def fact(self, reads: str) -> dict[str, Any]:
        """Make the entry of evidence on the kept sets; `reads` says what it means."""
        return {
            "name": "kept ids",
            "tokens": self.tokens,
            "mean_size": self.mean_size,
            "sets_of_one_id": self.of_one,
            "sampler_mean_there": self.sampler_of_one,
            "trainer_mean_there": self.trainer_of_one,
            "reads": reads,
        }


def recorded_kept_sets(case: Case, over: Mapping[str, str]) -> RecordedKeptSets | None:
    """Return statistics of a case's kept sets; `over` are the policies scored over kept sets."""
    if case.kept_size is None or case.trainer is None:
        return None
    pair = case.tokens
    size = case.kept_size[pair.place]
    known = size > 0
    if known.sum() < FEWEST:
        return None
    one = size == 1
    judged = one.sum() >= FEWEST
    return RecordedKeptSets(
        tokens=int(known.sum()),
        of_one=int(one.sum()),
        mean_size=float(size[known].mean()),
        same_size=int(size[known][0]) if np.ptp(size[known]) == 0 and size[known][0] > 1 else None,
        sampler_of_one=float(pair.sampler[one].mean()) if one.any() else None,
        trainer_of_one=float(pair.trainer[one].mean()) if one.any() else None,
        sampler_is_over_them=_is_certain(pair.sampler[one]) if judged else None,
        trainer_is_over_them=_is_certain(pair.trainer[one]) if judged else None,
        replay=_replay(case, known, over),
    )


def _is_certain(log_probs: Array) -> bool | None:
    """Tell whether the log-probs of tokens with a set of one are 0; None if only some are."""
    share = float(np.mean(log_probs > CERTAIN))
    if share > ALL:
        return True
    return False if share < NEARLY_ALL else None


def _replay(case: Case, known: np.ndarray, over: Mapping[str, str]) -> Replay | None:
    """Compare the trainer with the first other policy that was scored over the sampler's sets."""
    names = [name for name, whose in over.items() if whose == case.sampler]
    names = [name for name in names if name in case.log_probs and name != case.trainer]
    if not names:
        return None
    pair = case.tokens
    replayed = case.log_probs[names[0]][pair.place]
    known = known & np.isfinite(replayed)
    if not known.any():
        return None
    before = np.exp(pair.log_ratio[known])
    after = np.exp(replayed[known] - pair.sampler[known])
    return Replay(
        policy=names[0],
        ratio_mean=float(after.mean()),
        outside=_outside(after),
        outside_before=_outside(before),
        kept_mass=float(np.exp(pair.trainer[known] - replayed[known]).mean()),
    )


def _outside(ratio: Array) -> float:
    return float(np.mean((ratio < INSIDE[0]) | (ratio > INSIDE[1])))
