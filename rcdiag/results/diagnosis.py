"""A diagnosis: the verdict on a table, its causes by name, and what to do.

Every command carries the same block for the same table.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from rcdiag.results.base import MetricValue
from rcdiag.results.doc import Anything, Doc, Number
from rcdiag.results.parts import Part

VERDICTS = ("healthy", "correctable", "broken", "inconclusive")
_EXPLAINED = tuple(f"verdict-{name}" for name in VERDICTS)
SIDES = ("sampler", "recorder", "trainer", "storage", "engine", "none")

NOTHING_WRONG = ("engine-noise", "healthy")  # causes that are no fault


class Action(Part, frozen=True, kw_only=True):
    """An action is something to do, in one line, with the command that does it where one does."""

    text: Annotated[str, Doc("What to do, in one line.", see=("command",))]
    command: Annotated[
        str | None, Doc("Command to copy that does it; null where no command of rcdiag does.")
    ] = None


Actions = Annotated[
    list[Action], Doc("What to do about a cause, the most useful first.", see=("next",))
]


class NamedCause(Part, frozen=True, kw_only=True):
    """A named cause says what went wrong in the run, how sure that is, and what shows it."""

    slug: Annotated[
        str,
        Doc(
            "Name of a cause, which `rcdiag explain` answers.",
            example="rcdiag explain stale-weights",
        ),
    ]
    verdict: Annotated[
        str,
        Doc(
            "The verdict that a cause alone would give: healthy, correctable, broken or "
            "inconclusive.",
            see=_EXPLAINED,
            one_of=VERDICTS,
        ),
    ]
    confidence: Annotated[
        Number,
        Doc(
            "Probability that a cause that is named with such evidence is the right one: of the "
            "causes named with 0.9, nine of ten are right on generated tables.",
            unit="share",
        ),
    ]
    side: Annotated[
        str,
        Doc(
            "Who is at fault: sampler, recorder, trainer, storage, engine, or none.",
            one_of=SIDES,
        ),
    ]
    share_of_rows: Annotated[
        Number,
        Doc("Share of the rows that a cause concerns, as far as the evidence shows.", unit="share"),
    ]
    message: Annotated[str, Doc("What a cause did to this table, in a sentence with numbers.")]
    evidence: Annotated[
        list[dict[str, Anything]],
        Doc(
            "What shows a cause: numbers and facts by name, the policies' own under their names, "
            "and how each `reads`.",
        ),
    ] = field(default_factory=list)
    actions: Actions = field(default_factory=list)
    also_possible: Annotated[
        list[str],
        Doc("Other causes that would leave the same evidence.", see=("ruled_out", "next")),
    ] = field(default_factory=list)
    from_step: Annotated[
        int | None,
        Doc(
            "Value in column `step` from which on a cause shows; null where it shows in all steps.",
            see=("steps",),
        ),
    ] = None


class MovedNumber(Part, frozen=True, kw_only=True):
    """A moved number says from which step on a number of the steps stayed another."""

    name: Annotated[
        str,
        Doc(
            "Name of a number that moved over the steps: a metric, `reward`, `entropy`, or "
            "`response length`.",
            example="rcdiag explain k3_kl",
        ),
    ]
    moved_at: Annotated[
        int,
        Doc(
            "Value in column `step` at which a number jumps, by least squares, by more than chance "
            "between prompt groups and steps."
        ),
    ]
    median_before: Annotated[
        Number, Doc("Median of a number over the steps before it moved, from its last movement on.")
    ]
    median_after: Annotated[Number, Doc("Median of a number from its movement to the next.")]


class ChangeOfMismatch(Part, frozen=True, kw_only=True):
    """A change of mismatch says which part of a change of k3_kl is of what changed in the run."""

    changed_at: Annotated[int, Doc("Value in column `step` from which on k3_kl is another.")]
    k3_before: Annotated[Number, Doc("Mean k3 of the tokens of the steps before.", unit="nats")]
    k3_after: Annotated[Number, Doc("Mean k3 of the tokens from that step on.", unit="nats")]
    k3_error: Annotated[Number, Doc("Standard error of k3_after less k3_before.", unit="nats")]
    length: Annotated[
        MetricValue,
        Doc(
            "Part of a change of k3_kl that is of other lengths: more or fewer tokens at late "
            "positions.",
            unit="nats",
        ),
    ]
    peakiness: Annotated[
        MetricValue,
        Doc(
            "Part of a change of k3_kl that is of other peakiness: more or fewer uncertain tokens "
            "at the same position.",
            unit="nats",
        ),
    ]
    noise: Annotated[
        MetricValue,
        Doc(
            "Part of a change of k3_kl that is on tokens alike: of one position and uncertainty.",
            unit="nats",
        ),
    ]


class OverSteps(Part, frozen=True, kw_only=True):
    """What a run did over its steps: from which step on, and which number moved first."""

    says: Annotated[
        str, Doc("What moved over the steps, in the order of the steps, in a sentence.")
    ]
    large_from: Annotated[
        int | None,
        Doc(
            "Value in column `step` from which on k3_kl is more than 5 times that of the other "
            "steps; null where no step is so.",
            see=("k3_kl",),
        ),
    ]
    large_to: Annotated[
        int | None,
        Doc(
            "Value in column `step` of the last such step, where the mismatch falls back after "
            "it; null where it stays."
        ),
    ]
    moved: Annotated[
        list[MovedNumber],
        Doc(
            "Numbers that moved and stayed, in the order of their steps; empty where none of the "
            "mismatch did.",
            see=("steps",),
        ),
    ]
    resets: Annotated[
        list[int],
        Doc(
            "Values in column `step` at which a mismatch that had grown over five steps or more "
            "falls back to where it began: something that piles up is cleared there.",
            added=True,
        ),
    ] = field(default_factory=list)
    change: Annotated[
        ChangeOfMismatch | None,
        Doc(
            "The change of k3_kl at the first step where it moved, taken apart into length, "
            "peakiness and noise; null where it did not move.",
            see=("moved",),
            added=True,
        ),
    ] = None


class Diagnosis(Part, frozen=True, kw_only=True):
    """A diagnosis holds the verdict on a table, its causes, and the experiments that are left."""

    verdict: Annotated[
        str,
        Doc(
            "The verdict on a table. healthy: two policies were compared, and what is between "
            "them is rounding noise that costs nothing. correctable: a genuine mismatch, and the "
            "recorded distribution is the one that sampled, so importance sampling is valid. "
            "broken: a fault that no weights repair. inconclusive: too little data, one policy "
            "alone, or evidence that points both ways.",
            see=_EXPLAINED,
            one_of=VERDICTS,
        ),
    ]
    summary: Annotated[str, Doc("The verdict and its cause in one or two sentences.")]
    pair: Annotated[
        dict[str, str] | None,
        Doc(
            "The policies that are judged: `sampler` and `trainer`, whatever the command; null "
            "where a training log is judged, which holds none."
        ),
    ]
    causes: Annotated[
        list[NamedCause], Doc("Causes by name, the one that decides the verdict first.")
    ]
    ruled_out: Annotated[
        list[str], Doc("Causes that the evidence speaks against.", see=("also_possible",))
    ] = field(default_factory=list)
    next: Annotated[
        list[Action],
        Doc("The cheapest experiments that would split what is left, with their commands."),
    ] = field(default_factory=list)
    over_steps: Annotated[
        OverSteps | None,
        Doc(
            "What moved over the training steps, and first; null where the table has one step or "
            "one policy.",
            see=("steps", "moved", "from_step"),
            added=True,
        ),
    ] = None

    @property
    def against_weights(self) -> str | None:
        """Say why no importance weights repair the table; None where weights can."""
        if self.verdict != "broken":
            return None
        return "No preset repairs this: a level of ok says that weights are even, not right."


# How a verdict counts for `--fail-on`: an open one fails too, as it is no all-clear.
SEVERITY_OF_VERDICT = {"broken": "error", "correctable": "warning", "inconclusive": "error"}
# The worst severity of a number under a verdict: what importance weights repair is no error, and
# what needs no repair is no warning. Under other verdicts the number's own level counts.
GRAVEST = {"healthy": "note", "correctable": "warning"}
WHY_MILDER = {
    "healthy": "the mismatch is rounding noise",
    "correctable": "importance weights are valid here",
}
