"""What a training log shows: its series by quantity, when each moved, and key relations."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from rcdiag.results.doc import Doc, Number
from rcdiag.results.parts import Part


class KeyMoved(Part, frozen=True, kw_only=True):
    """A movement of one logged key over the steps."""

    key: Annotated[str, Doc("The key of a number in the trainer's log.")]
    quantity: Annotated[str, Doc("What a key logs, by rcdiag's name.", example="k3, grad_norm")]
    step_moved: Annotated[int, Doc("Training step from which on a key has a different level.")]
    earliest: Annotated[int, Doc("First step of the 95% interval of a movement.")]
    latest: Annotated[int, Doc("Last step of the 95% interval of a movement.")]
    key_before: Annotated[Number, Doc("Median of a key before it moved.")]
    key_after: Annotated[Number, Doc("Median of a key after it moved.")]
    shape: Annotated[
        str,
        Doc(
            "How a key moved: `jump` at a step, or `creep` (a slow drift) from a step on.",
            one_of=("jump", "creep"),
        ),
    ]


class LoggedQuantity(Part, frozen=True, kw_only=True):
    """The numbers of one key, step by step."""

    key: Annotated[str, Doc("The key of a number in the trainer's log.")]
    quantity: Annotated[str, Doc("What a key logs, by rcdiag's name.", example="k3, grad_norm")]
    means: Annotated[str, Doc("What a quantity of a log is, in a few words.")]
    quantity_unit: Annotated[str, Doc("Unit of a logged quantity; empty for a pure number.")]
    key_note: Annotated[
        str, Doc("Clamps, masks and means behind the numbers of a key, in the trainer's code.")
    ] = ""
    at_steps: Annotated[list[int], Doc("Training steps at which a key is logged.")]
    numbers: Annotated[
        list[Number | None], Doc("The logged values, step by step; null where one is not a number.")
    ]


class Relation(Part, frozen=True, kw_only=True):
    """A relation between keys that is true in every log of a correct run."""

    relation: Annotated[
        str,
        Doc("Name of a relation between logged keys.", example="rcdiag explain log.mean-ratio"),
    ]
    number: Annotated[Number, Doc("The number that a relation bounds, in the last steps.")]
    relation_level: Annotated[str, Doc("Level of a relation: ok, warning or error, by its bounds.")]
    relation_says: Annotated[str, Doc("A relation between keys, with its numbers, in a sentence.")]


class LogSummary(Part, frozen=True, kw_only=True):
    """What one training log contains and shows."""

    file: Annotated[str, Doc("The trainer's log that was read, as given.")]
    log_format: Annotated[str, Doc("The format of the trainer's log, recognised by its content.")]
    trainer_of_log: Annotated[
        str | None, Doc("The trainer whose keys a log has; null where none is known.")
    ]
    generations_of_log: Annotated[
        str | None,
        Doc("Generations of the trainer that log most of a log's keys, or fit its settings."),
    ] = None
    correction_of_log: Annotated[
        str | None,
        Doc(
            "What the correction of a run does, from its configuration file or else from the "
            "numbers that it logs; null where neither tells."
        ),
    ] = None
    num_steps: Annotated[int, Doc("Number of training steps in a log.", unit="steps")]
    file_notes: Annotated[
        list[str],
        Doc("What of a log's file was left out: lines that cannot be read, steps logged twice."),
    ] = field(default_factory=list)
    log_verdict: Annotated[str, Doc("The verdict on this one of several logs.")]
    summary: Annotated[str, Doc("The verdict and its cause in one or two sentences.")]
    log_from: Annotated[
        int | None,
        Doc(
            "Training step of a log from which on its first cause shows; null where it shows in "
            "all steps, and where the log shows no cause.",
            added=True,
            see=("keys_moved",),
        ),
    ] = None
    quantities: Annotated[list[LoggedQuantity], Doc("Values of a log's keys that rcdiag knows.")]
    keys_moved: Annotated[
        list[KeyMoved], Doc("Keys that moved, in the order of their steps.", see=("step_moved",))
    ]
    relations: Annotated[
        list[Relation],
        Doc("Relations between keys, in the steps of the first cause, or else in the last steps."),
    ]
