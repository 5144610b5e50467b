"""The comparison with a trainer's own log, part of the result of `rcdiag score --logged FILE`."""

from __future__ import annotations

from typing import Annotated

from rcdiag.results.doc import Doc, Number
from rcdiag.results.log_summary import LogSummary
from rcdiag.results.parts import Part

EXAMPLE = "rcdiag score rollouts.parquet --logged metrics.jsonl"


class LoggedKey(Part, frozen=True, kw_only=True):
    """A logged key is one number of the trainer's log beside the number that rcdiag computes."""

    key: Annotated[
        str,
        Doc("The key of a number as the trainer's log writes it.", example="train/mis_k3_kl"),
    ]
    log_step: Annotated[
        int | None,
        Doc("The training step at which the log has the number; null in a log without steps."),
    ]
    theirs: Annotated[
        Number,
        Doc("The number that the trainer logged.", example=EXAMPLE, see=("ours", "difference")),
    ]
    ours: Annotated[
        Number,
        Doc(
            "The number that rcdiag computes under the same key, by the trainer's definition.",
            example=EXAMPLE,
            see=("theirs", "difference"),
        ),
    ]
    difference: Annotated[
        Number,
        Doc("How far the trainer's number is above that of rcdiag.", formula="theirs - ours"),
    ]
    agrees: Annotated[
        bool,
        Doc(
            "Whether both numbers are the same to the digits that the log shows, or to 1e-6 of "
            "their size.",
            see=("explained_by",),
        ),
    ]
    explained_by: Annotated[
        str | None,
        Doc(
            "What turns our number into the trainer's, as it was computed: `float32`, a generation "
            "or a preset of the trainer, `micro-batches of N`, `sequences`, `tokens`, `sign`, "
            "`after rejection`. It is null where the numbers agree and where nothing that was "
            "tried gives the trainer's number.",
            example="theirs 0.52, ours 0.48, with verl-0.7.1's definition 0.52: verl-0.7.1",
            see=("logged-differs",),
            heading="reads",
        ),
    ]
    reason: Annotated[
        str | None,
        Doc(
            "Why the trainer's number is another, in one sentence; where that is not known, what "
            "holds for the key. It is null where the numbers agree."
        ),
    ]


class LogComparison(Part, frozen=True, kw_only=True):
    """A log comparison holds a trainer's own log beside our numbers, key by key."""

    file: Annotated[str, Doc("The trainer's log that was read, as it was named.", example=EXAMPLE)]
    log_format: Annotated[
        str,
        Doc(
            "The format that the trainer's log was read as, told from its content.",
            example="jsonl",
            see=("jsonl log", "csv log", "tensorboard log"),
        ),
    ]
    log_steps: Annotated[
        list[int | None], Doc("The training steps of the log that stand beside the table's.")
    ]
    step_reason: Annotated[
        str | None,
        Doc(
            "Why these steps of the log stand beside the table, where their numbers alone do not "
            "say it; null where both have the same steps.",
            example=f"{EXAMPLE} --given step=12",
        ),
    ]
    preset: Annotated[
        str | None,
        Doc(
            "The preset of the trainer whose numbers stand beside those of the log; null where no "
            "correction is computed.",
            example=f"{EXAMPLE} --preset decoupled_token_is",
            see=("preset_reason",),
        ),
    ]
    preset_reason: Annotated[
        str, Doc("Why it is this preset: it is the only one, or its numbers are the nearest.")
    ]
    keys: Annotated[
        list[LoggedKey],
        Doc(
            "All numbers that both have, those that differ first.", see=("theirs", "ours", "agrees")
        ),
    ]
    not_ours: Annotated[
        dict[str, int],
        Doc(
            "Keys of the log that are no number of rcdiag's, with the steps that hold them.",
            unit="steps",
        ),
    ]
    not_logged: Annotated[
        list[str],
        Doc("Keys that rcdiag computes as the trainer defines them, and that the log lacks."),
    ]
    log_shows: Annotated[
        LogSummary | None,
        Doc(
            "What the trainer's log shows by itself, all of its steps: which keys moved and when, "
            "as `rcdiag diagnose LOG` says it; null where the log has no known key.",
            added=True,
            see=("keys_moved", "relations"),
        ),
    ] = None

    @property
    def unexplained(self) -> list[LoggedKey]:
        """Return the numbers that differ for no reason that is known."""
        return [one for one in self.keys if not one.agrees and one.explained_by is None]

    @property
    def fits(self) -> bool:
        """Tell whether at least half of the numbers agree or differ for a known reason."""
        return 2 * len(self.unexplained) <= len(self.keys)
