"""A cause is a hypothesis about what went wrong, with a function that weighs the evidence for it.

`CAUSES.add(Cause(...))` adds one: the judge weighs it in every command, and screens, pages, docs
and `rcdiag explain` read its words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.cause_words import CauseWords, cause_words
from rcdiag.diagnosis.experiment_fit import ExperimentFit
from rcdiag.diagnosis.features import Features, LogRatios
from rcdiag.diagnosis.validity import Validity
from rcdiag.registry import Registry

# The order in which causes are weighed: later stages judge the table that earlier ones have
# repaired. In the last two, causes exclude each other: only the one with the highest confidence is
# named. `distribution` is that of the sampler.
STAGES = ("storage", "recording", "alignment", "distribution", "difference")
EXCLUSIVE_STAGES = STAGES[-2:]

# Scores, by kind of evidence. EXACT: values that no other cause makes, or a statement of the
# metadata. CLEAR: a pattern that the cause predicts and its look-alikes do not. LIKELY: a pattern
# that a look-alike makes too, but rarely. WEAK: what remains where nothing else fits better.
# GUESS: one of two causes that the table cannot tell apart.
EXACT, CLEAR, LIKELY, WEAK, GUESS = 0.97, 0.9, 0.85, 0.7, 0.6


class Suspicion(Struct, frozen=True, kw_only=True):
    """The evidence for a cause, from a table, an experiment or a log, and its confidence."""

    slug: str = ""  # of the cause; the judge sets it where a cause weighs itself alone
    # Score from 0 to 1 on the cause's own scale; `diagnosis.confidence` turns it into the
    # probability that is shown.
    confidence: float
    rival: float = 0.0  # score of the next best cause of the same stage
    message: str  # what the cause did to this table, in a sentence with numbers
    evidence: Sequence[Mapping[str, Any]] = ()
    side: str | None = None  # who is at fault, of SIDES; None: as the cause's words say
    share_of_rows: float = 1.0
    also_possible: Sequence[str] | None = None  # None: the look-alikes of the cause's words
    from_step: int | None = None
    verdict: str | None = None  # None: as the cause's words say
    actions: Sequence[str] | None = None  # what to do; None: as the cause's words say
    validity: Validity | None = None  # of the rows that the cause was judged on
    # The policy whose column is affected, of a cause that may affect the other column as well.
    policy: str | None = None
    repaired: Case | None = None  # the repaired table, for later stages; None: it is not repaired
    fit: ExperimentFit | None = None  # of an experiment with a checkpoint; None: of the table alone

    @property
    def cause(self) -> Cause:
        """Return the cause."""
        return cause_of(self.slug)


class Cause(Struct, frozen=True, kw_only=True):
    """A hypothesis: the function that weighs a table's evidence, and the words that explain it."""

    words: CauseWords
    stage: str  # of STAGES
    weigh: Callable[[Features], Suspicion | None]
    needs_two: bool = True  # it needs the log-probs of both sides

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ValueError(f"stage {self.stage!r} of {self.name}: one of {', '.join(STAGES)}")

    @property
    def name(self) -> str:
        """Return the slug, by which the registry knows the cause."""
        return self.words.slug

    @property
    def is_umbrella(self) -> bool:
        """Tell whether the cause stands for several that the evidence cannot tell apart."""
        return self.words.family == "umbrellas"


CAUSES: Registry[Cause] = Registry("cause")


def cause_of(slug: str) -> Cause:
    """Return the cause of a slug; one that only experiments detect never weighs a table."""
    if slug in CAUSES:
        return CAUSES[slug]
    return Cause(words=cause_words()[slug], stage="difference", weigh=lambda features: None)


def shipped(
    slug: str, stage: str, weigh: Callable[[Features], Suspicion | None], *, needs_two: bool = True
) -> Cause:
    """Make a cause with the words that a file in `words/` has for its slug."""
    return Cause(words=cause_words()[slug], stage=stage, weigh=weigh, needs_two=needs_two)


def one_of(
    slug: str, found: Callable[[Features], Suspicion | None]
) -> Callable[[Features], Suspicion | None]:
    """Make the function that weighs one of several exclusive causes.

    `found` returns the suspicion of the one that a table has, with its slug.
    """

    def weigh(features: Features) -> Suspicion | None:
        answer = found(features)
        return answer if answer is not None and answer.slug == slug else None

    return weigh


def shipped_family(
    slugs: Sequence[str], stage: str, found: Callable[[Features], Suspicion | None]
) -> tuple[Cause, ...]:
    """Make several causes of which a table has at most one; `found` returns its suspicion."""
    return tuple(shipped(slug, stage, one_of(slug, found)) for slug in slugs)


def fact(name: str, reads: str, /, **values: Any) -> dict[str, Any]:
    """Make an entry of evidence: `values` are numbers or facts, those of a policy under its name.

    `reads` says what they mean. Numpy scalars become Python numbers, so that they can be encoded.
    """
    plain = {
        key: value.item() if isinstance(value, np.generic) else value
        for key, value in values.items()
    }
    return {"name": name, **plain} | {"name": name, "reads": reads}


def mean_ratio_fact(features: Features, reads: str) -> dict[str, Any]:
    """Make the entry of evidence on E[ratio], with its 95% interval over rows."""
    validity = features.validity
    mean = validity.ratio_mean
    name = validity.named(validity.name_of_mean)
    return fact(name, reads, value=mean.value, low=mean.low, high=mean.high)


def by_token_fact(log_ratios: LogRatios, reads: str) -> dict[str, Any]:
    """Make the entry of evidence on how far log-ratios depend on the token's id."""
    return fact(
        "shift per token id, repeated in the other half of the rows",
        reads,
        correlation=log_ratios.by_token_id.correlation,
        explained_share_of_variance=log_ratios.by_token_id.explained,
    )
