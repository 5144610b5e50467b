"""The result of `rcdiag diagnose`: the diagnosis and the experiments behind it."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import field

from rcdiag.formats import number
from rcdiag.results.base import (
    MetricValue,
)
from rcdiag.results.doc import Doc, Number
from rcdiag.results.log_summary import LogSummary
from rcdiag.results.parts import Part
from rcdiag.results.show import KindName, Measured, Summary


class ExperimentResult(Part, frozen=True, kw_only=True):
    """An experiment compares a recorded column with the one that a cause would produce."""

    experiment: Annotated[str, Doc("Name of an experiment of `rcdiag diagnose`.")]
    cause: Annotated[
        str,
        Doc(
            "The cause whose column an experiment predicts, which `rcdiag explain` answers.",
            example="rcdiag explain repetition-penalty",
        ),
    ]
    column: Annotated[str, Doc("Name of the policy whose column is explained.")]
    setting: Annotated[
        str, Doc("The hypothesis of an experiment, with the best-fitting strength, in a few words.")
    ]
    explained: Annotated[
        bool,
        Doc("Whether an experiment explains a column up to an engine's noise, clearly best."),
    ]
    rms_before: Annotated[
        Number,
        Doc(
            "Rms difference of a recorded column from the checkpoint's own log-probs.",
            unit="nats",
            formula="sqrt(mean((recorded - honest)^2)) over the tokens of the experiment",
            healthy="ideal 0; about .01 for an engine in bfloat16",
            see=("rms_left",),
        ),
    ]
    rms_left: Annotated[
        Number,
        Doc(
            "Rms difference of a recorded column from the log-probs that an experiment predicts.",
            unit="nats",
            formula="sqrt(mean((recorded - predicted)^2)) over the tokens of the experiment",
            healthy="an engine's noise, if the cause is right",
            see=("rms_before",),
        ),
    ]
    gain: Annotated[
        Number,
        Doc(
            "How much better an experiment predicts a column than the checkpoint's own log-probs "
            "do.",
            unit="nats per token",
            formula="difference of the mean Cauchy losses of both residuals",
            healthy="above 0 if the cause explains something",
        ),
    ]
    z: Annotated[
        Number,
        Doc(
            "A gain divided by its standard error, with rows as clusters.",
            unit="standard errors",
        ),
    ]
    values: Annotated[
        dict[str, Number],
        Doc("Strengths that an experiment estimates, by name: a temperature, a penalty, a base."),
    ]
    tested_tokens: Annotated[
        int, Doc("Number of tokens on which an experiment ran.", unit="tokens")
    ]
    seconds: Annotated[Number, Doc("How long an experiment took.", unit="seconds")]


class WeightsOfRow(TypedDict):
    """The posterior over the checkpoints that could have computed a row's log-probs."""

    row: Annotated[int, Doc("Number of a row in the table.")]
    column: Annotated[str, Doc("Name of the policy whose column is explained.")]
    row_explained: Annotated[
        bool, Doc("Whether the most probable weights explain a row up to an engine's noise.")
    ]
    probability: Annotated[
        dict[str, Number],
        Doc("Posterior probability of each checkpoint's weights for a row, by its name."),
    ]
    switch: Annotated[
        int | None,
        Doc(
            "Response token from which on the weights of another checkpoint explain a row; null if "
            "one checkpoint explains all of it."
        ),
    ]


class DiagnoseResult(Measured, frozen=True, kw_only=True):
    """The result of `rcdiag diagnose` has the causes, and the experiments that identify them."""

    kind: KindName = "diagnose"
    trainer_model: Annotated[
        str | None,
        Doc("The trainer's checkpoint that experiments ran with; null where none was given."),
    ]
    checkpoints: Annotated[
        list[str], Doc("Other checkpoints whose weights were tried, the nearest first.")
    ]
    steps_of_model: Annotated[
        list[int] | None,
        Doc(
            "Training steps whose rows the trainer's checkpoint is valid for, if it is not valid "
            "for all steps; null if all rows count.",
            see=("trainer_model",),
        ),
    ]
    rows_read: Annotated[
        int,
        Doc(
            "Number of rows that the checkpoint scored for a diagnosis; 0 without one.", unit="rows"
        ),
    ]
    noise_scale: Annotated[
        Number | None,
        Doc(
            "Standard deviation of the logit noise of this checkpoint in bfloat16; null without a "
            "checkpoint.",
            unit="nats",
        ),
    ]
    token_temperature: Annotated[
        MetricValue | None,
        Doc(
            "Temperature at which the tokens were sampled, estimated from the tokens alone; null "
            "without a checkpoint.",
            example="0.70 (0.69 to 0.71) although the columns are of temperature 1",
            see=("temperature-silent",),
        ),
    ]
    experiments: Annotated[
        list[ExperimentResult],
        Doc(
            "Experiments that ran, with what they leave unexplained; the best one of each column "
            "first.",
            see=("rms_left", "gain"),
        ),
    ]
    weights: Annotated[
        list[WeightsOfRow],
        Doc("Which checkpoint computed the log-probs of each row, where several were tried."),
    ]
    open: Annotated[
        list[str],
        Doc("Experiments that did not run because the time was used up."),
    ]
    duration: Annotated[Number, Doc("How long a diagnosis took.", unit="seconds")]
    logs: Annotated[
        list[LogSummary],
        Doc(
            "The training logs that were diagnosed instead of a table, with `num_sequences` and "
            "`num_tokens` 0; empty for a table.",
            added=True,
        ),
    ] = field(default_factory=list)

    def _summary(self) -> Summary:
        """Summarise the experiments, the best of each column first."""
        rows = [
            (one.cause, one.setting, number(one.rms_before), number(one.rms_left))
            for one in self.experiments
        ]
        model = f", with {self.trainer_model}" if self.trainer_model else ""
        columns = ("cause", "supposed", "rms before", "rms left")
        return Summary(f"{self.size}{model}", columns, rows, "experiments")
