"""The comparison with a trainer's own log, part of the result of `rcdiag score --logged FILE`."""

from __future__ import annotations

from typing import Annotated

from rcdiag.results.doc import Doc, Number
from rcdiag.results.log_summary import LogSummary
from rcdiag.results.parts import Part

EXAMPLE = "rcdiag score rollouts.parquet --logged metrics.jsonl"
FAULTY = ("broken", "correctable")  # verdicts of a log that shows a fault


class LoggedKey(Part, frozen=True, kw_only=True):
    """A logged key compares one number of the trainer's log with the one rcdiag computes."""

    key: Annotated[
        str,
        Doc("The key of a number in the trainer's log.", example="train/mis_k3_kl"),
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
        Doc("The trainer's number minus rcdiag's number.", formula="theirs - ours"),
    ]
    agrees: Annotated[
        bool,
        Doc(
            "Whether both numbers are equal to the digits that the log shows, or to a relative "
            "1e-6.",
            see=("explained_by",),
        ),
    ]
    explained_by: Annotated[
        str | None,
        Doc(
            "The change of computation that gives the trainer's number: `float32`, a generation or "
            "a preset of the trainer, `micro-batches of N`, `sequences`, `tokens`, `sign`, `after "
            "rejection`. It is null where the numbers agree and where nothing that was tried gives "
            "the trainer's number.",
            example="theirs 0.52, ours 0.48, with verl-0.7.1's definition 0.52: verl-0.7.1",
            see=("logged-differs",),
            heading="reads",
        ),
    ]
    reason: Annotated[
        str | None,
        Doc(
            "Why the trainer's number is different, in one sentence; where that is not known, what "
            "is known about the key. It is null where the numbers agree."
        ),
    ]


class LogComparison(Part, frozen=True, kw_only=True):
    """A log comparison compares a trainer's own log with our numbers, key by key."""

    file: Annotated[str, Doc("The trainer's log that was read, as given.", example=EXAMPLE)]
    log_format: Annotated[
        str,
        Doc(
            "The format of the trainer's log, recognised by its content.",
            example="jsonl",
            see=("jsonl log", "csv log", "tensorboard log"),
        ),
    ]
    log_steps: Annotated[
        list[int | None], Doc("The training steps of the log that the table is compared with.")
    ]
    step_reason: Annotated[
        str | None,
        Doc(
            "Why the table is compared with these steps of the log, if their numbers alone do not "
            "tell; null where both have the same steps.",
            example=f"{EXAMPLE} --given step=12",
        ),
    ]
    preset: Annotated[
        str | None,
        Doc(
            "The preset of the trainer whose numbers are compared with the log; null where no "
            "correction is computed.",
            example=f"{EXAMPLE} --preset decoupled_token_is",
            see=("preset_reason",),
        ),
    ]
    preset_reason: Annotated[
        str, Doc("Why this preset was taken: it is the only one, or its numbers are nearest.")
    ]
    keys: Annotated[
        list[LoggedKey],
        Doc(
            "All numbers that the log and rcdiag have in common, those that differ first.",
            see=("theirs", "ours", "agrees"),
        ),
    ]
    not_ours: Annotated[
        dict[str, int],
        Doc(
            "Keys of the log that rcdiag does not compute, with the number of steps with them.",
            unit="steps",
        ),
    ]
    not_logged: Annotated[
        list[str],
        Doc("Keys that rcdiag computes as the trainer defines them and that the log lacks."),
    ]
    log_shows: Annotated[
        LogSummary | None,
        Doc(
            "What all steps of the trainer's log show by themselves: which keys moved and when, as "
            "`rcdiag diagnose LOG` reports it; null where the log has no known key.",
            added=True,
            see=("keys_moved", "relations"),
        ),
    ] = None

    @property
    def log_is_faulty(self) -> bool:
        """Tell whether the log by itself shows a fault."""
        shows = self.log_shows
        return shows is not None and shows.log_verdict in FAULTY

    @property
    def unexplained(self) -> list[LoggedKey]:
        """Return the numbers that differ for no known reason."""
        return [one for one in self.keys if not one.agrees and one.explained_by is None]

    @property
    def fits(self) -> bool:
        """Tell whether at least half of the numbers agree or differ for a known reason."""
        return 2 * len(self.unexplained) <= len(self.keys)
