"""A cause is a hypothesis on what went wrong, with the evidence that speaks for it and its words.

`CAUSES.add(Cause(...))` adds one: the judge weighs it in every command, and screens, pages, docs
and `rcdiag explain` read the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.cause_words import CauseWords, words_of
from rcdiag.diagnosis.experiment_fit import ExperimentFit
from rcdiag.diagnosis.features import Features
from rcdiag.registry import Registry

# The order of weighing: later stages judge the table that earlier ones have repaired. In the last
# two only the cause with the highest confidence is named. `law` is the sampling distribution.
STAGES = ("storage", "recording", "alignment", "law", "difference")


class Suspicion(Struct, frozen=True, kw_only=True):
    """The evidence for a cause in one table, and its confidence."""

    # Score from 0 to 1 on a scale of the cause's own: `diagnosis.confidence` turns it into the
    # probability that is shown.
    confidence: float
    rival: float = 0.0  # that of the next cause of the same stage
    message: str  # what the cause did to this table, in a sentence with numbers
    evidence: Sequence[Mapping[str, Any]] = ()
    side: str | None = None  # None: that of the cause's words
    share_of_rows: float = 1.0
    also_possible: Sequence[str] | None = None  # None: the look-alikes of the cause's words
    from_step: int | None = None
    verdict: str | None = None  # None: that of the cause's words
    policy: str | None = None  # whose column it spoilt, where it may have spoilt the other's too
    mended: Case | None = None  # the table without the fault, for what comes after; None: as it is
    fit: ExperimentFit | None = None  # of an experiment with a checkpoint; None: of the table alone


class Cause(Struct, frozen=True, kw_only=True):
    """A hypothesis: the function that weighs a table's evidence, and the words that explain it."""

    words: CauseWords
    stage: str  # of STAGES
    weigh: Callable[[Features], Suspicion | None]
    needs_two: bool = True  # it needs the log-probs of both sides

    @property
    def name(self) -> str:
        """Return the slug, by which the registry knows the cause."""
        return self.words.slug


CAUSES: Registry[Cause] = Registry("cause")


def shipped(
    slug: str, stage: str, weigh: Callable[[Features], Suspicion | None], *, needs_two: bool = True
) -> Cause:
    """Make a cause whose words stand in one of the files in `words/`."""
    return Cause(words=words_of(slug), stage=stage, weigh=weigh, needs_two=needs_two)


def fact(name: str, reads: str, /, **values: Any) -> dict[str, Any]:
    """Make an entry of evidence: a number or fact, the policies' own under their names."""
    return {"name": name, **values} | {"name": name, "reads": reads}
