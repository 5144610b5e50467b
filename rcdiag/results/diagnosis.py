"""The diagnosis of a table: the verdict, the named causes, and what to do.

The result of every command has the same diagnosis for the same table.
"""

from __future__ import annotations

from collections.abc import Collection
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
    """An action is something to do, in one line, with the command for it if there is one."""

    text: Annotated[str, Doc("What to do, in one line.", see=("command",))]
    command: Annotated[
        str | None, Doc("Command to copy that does it; null where no command of rcdiag does.")
    ] = None


Actions = Annotated[
    list[Action], Doc("What to do about a cause, the most useful first.", see=("next",))
]


class NamedCause(Part, frozen=True, kw_only=True):
    """A named cause says what went wrong in the run, how certain that is, and why."""

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
            "The verdict if this were the only cause: healthy, correctable, broken or "
            "inconclusive.",
            see=_EXPLAINED,
            one_of=VERDICTS,
        ),
    ]
    confidence: Annotated[
        Number,
        Doc(
            "Probability that a cause named with such evidence is right: of the causes named with "
            "0.9 on generated tables, nine of ten are right.",
            unit="share",
        ),
    ]
    side: Annotated[
        str,
        Doc(
            "What is at fault: sampler, recorder, trainer, storage, engine, or none.",
            one_of=SIDES,
        ),
    ]
    share_of_rows: Annotated[
        Number,
        Doc("Share of the rows that a cause affects, as far as the evidence shows.", unit="share"),
    ]
    message: Annotated[str, Doc("What a cause did to this table, in a sentence with numbers.")]
    evidence: Annotated[
        list[dict[str, Anything]],
        Doc(
            "Evidence for a cause: numbers and facts by name, those of a policy under its name, "
            "and what each means (`reads`).",
        ),
    ] = field(default_factory=list)
    actions: Actions = field(default_factory=list)
    also_possible: Annotated[
        list[str],
        Doc("Other causes that would produce the same evidence.", see=("ruled_out", "next")),
    ] = field(default_factory=list)
    from_step: Annotated[
        int | None,
        Doc(
            "Value in column `step` from which on a cause shows; null where it shows in all steps.",
            see=("steps",),
        ),
    ] = None


class MovedNumber(Part, frozen=True, kw_only=True):
    """A moved number is a number of the steps whose level jumped, with the step of the jump."""

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
            "Value in column `step` at which a number jumps (least squares fit of the change "
            "point) by more than the noise between prompt groups and steps explains."
        ),
    ]
    median_before: Annotated[
        Number, Doc("Median of a number over the steps between its previous jump and this one.")
    ]
    median_after: Annotated[
        Number, Doc("Median of a number over the steps from this jump to the next.")
    ]


class ChangeOfMismatch(Part, frozen=True, kw_only=True):
    """A change of mismatch splits a change of k3_kl into parts by what changed in the run."""

    changed_at: Annotated[int, Doc("Value in column `step` from which on k3_kl is different.")]
    k3_before: Annotated[
        Number, Doc("Mean k3 of the tokens of the steps before the change.", unit="nats")
    ]
    k3_after: Annotated[
        Number, Doc("Mean k3 of the tokens of the steps from the change on.", unit="nats")
    ]
    k3_error: Annotated[Number, Doc("Standard error of k3_after - k3_before.", unit="nats")]
    length: Annotated[
        MetricValue,
        Doc(
            "Part of a change of k3_kl that is due to response lengths: more or fewer tokens at "
            "late positions.",
            unit="nats",
        ),
    ]
    peakiness: Annotated[
        MetricValue,
        Doc(
            "Part of a change of k3_kl that is due to how peaked the distributions are: more or "
            "fewer uncertain tokens at the same position.",
            unit="nats",
        ),
    ]
    noise: Annotated[
        MetricValue,
        Doc(
            "Part of a change of k3_kl that remains on comparable tokens, of the same position and "
            "uncertainty.",
            unit="nats",
        ),
    ]


class OverSteps(Part, frozen=True, kw_only=True):
    """What changed over the steps of a run: from which step on, and which number first."""

    says: Annotated[
        str, Doc("What changed over the steps, in the order of the steps, in a sentence.")
    ]
    large_from: Annotated[
        int | None,
        Doc(
            "Value in column `step` from which on k3_kl is more than 5 times that of the other "
            "steps; null where there is no such step.",
            see=("k3_kl",),
        ),
    ]
    large_to: Annotated[
        int | None,
        Doc(
            "Value in column `step` of the last step with such a k3_kl, if the mismatch falls back "
            "after it; null where it stays large."
        ),
    ]
    moved: Annotated[
        list[MovedNumber],
        Doc(
            "Numbers that jumped to a new level and stayed there, in the order of their steps; "
            "empty where no number of the mismatch did.",
            see=("steps",),
        ),
    ]
    resets: Annotated[
        list[int],
        Doc(
            "Values in column `step` at which a mismatch that had grown over five steps or more "
            "falls back to its first value: something that accumulates is cleared there.",
            added=True,
        ),
    ] = field(default_factory=list)
    change: Annotated[
        ChangeOfMismatch | None,
        Doc(
            "The change of k3_kl at the first step where it moved, split into the parts of length, "
            "peakiness and noise; null where it did not move.",
            see=("moved",),
            added=True,
        ),
    ] = None


class Diagnosis(Part, frozen=True, kw_only=True):
    """A diagnosis holds the verdict on a table, its causes, and the next experiments."""

    verdict: Annotated[
        str,
        Doc(
            "The verdict on a table. healthy: two policies were compared, and they differ by "
            "harmless rounding noise only. correctable: a genuine mismatch, and the recorded "
            "distribution is the one that sampled, so importance sampling is valid. broken: a "
            "fault that no weights repair. inconclusive: too little data, only one policy, or "
            "contradicting evidence.",
            see=_EXPLAINED,
            one_of=VERDICTS,
        ),
    ]
    summary: Annotated[str, Doc("The verdict and its cause in one or two sentences.")]
    pair: Annotated[
        dict[str, str] | None,
        Doc(
            "The policies that are judged, `sampler` and `trainer`, whatever the command; null for "
            "the diagnosis of a training log, which has no policies."
        ),
    ]
    causes: Annotated[
        list[NamedCause], Doc("The named causes, the one that decides the verdict first.")
    ]
    ruled_out: Annotated[
        list[str], Doc("Causes that the evidence speaks against.", see=("also_possible",))
    ] = field(default_factory=list)
    ruled_out_by: Annotated[
        dict[str, str],
        Doc(
            "What a training log has against each ruled-out cause: keys and numbers, by cause; "
            "empty for a table.",
            see=("ruled_out",),
            added=True,
        ),
    ] = field(default_factory=dict)
    next: Annotated[
        list[Action],
        Doc(
            "The cheapest experiments that would tell the remaining causes apart, with their "
            "commands."
        ),
    ] = field(default_factory=list)
    over_steps: Annotated[
        OverSteps | None,
        Doc(
            "What changed over the training steps, and what first; null where the table has one "
            "step or one policy.",
            see=("steps", "moved", "from_step"),
            added=True,
        ),
    ] = None

    judged_rows: Annotated[
        int | None,
        Doc(
            "Rows that the diagnosis was made from. Of a large table they are blocks of rows with "
            "240,000 tokens at most: counts of rows, and numbers of its evidence, are of these "
            "rows. Null for a training log and in results of earlier versions.",
            unit="rows",
            see=("share_of_rows",),
            added=True,
        ),
    ] = None

    @property
    def severity(self) -> str | None:
        """Return how the verdict counts for `--fail-on`; None if it does not.

        Rounding noise is no fault: if it alone makes the verdict `correctable`, the findings on
        its size decide.
        """
        slugs = {cause.slug for cause in self.causes}
        if self.verdict == "correctable" and slugs and slugs <= {*NOTHING_WRONG}:
            return None
        return SEVERITY_OF_VERDICT.get(self.verdict)

    @property
    def fault(self) -> NamedCause | None:
        """Return the first cause if it is one of a fault; None if nothing is wrong or known."""
        first = next(iter(self.causes), None)
        return None if first is None or first.slug in NOTHING_WRONG else first

    def against_weights(self, levels: Collection[str | None] = ()) -> str | None:
        """Say that no importance weights repair the table; None unless it is broken.

        `levels` are those of the presets that are shown beside the sentence.
        """
        if self.verdict != "broken":
            return None
        doubt = ": ok only means that its weights vary little" if "ok" in levels else ""
        return f"No preset repairs this{doubt}."


# The severity of a verdict for `--fail-on`. An inconclusive one is an error: nothing was shown to
# be in order.
SEVERITY_OF_VERDICT = {"broken": "error", "correctable": "warning", "inconclusive": "error"}
# The worst level of a number under a verdict: what importance weights repair is no error, and what
# needs no repair is no warning. Under other verdicts a number has the level that its guide gives.
GRAVEST = {"healthy": "ok", "correctable": "warning"}
WHY_MILDER = {
    "healthy": "the mismatch is rounding noise",
    "correctable": "importance weights are valid here",
}
