"""Figures over training steps: metrics of the mismatch, and of corrections at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from rcdiag.formats import listed
from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.score.profiles import with_ends
from rcdiag.results import CorrectionResult, MetricValue, ScoreResult
from rcdiag.results.score import StepResult

SIZES = ("k3_kl", "ratio_outside_2")  # metrics that grow by decades when training collapses
DECADES_APART = 100.0
MOST_POINTS = 15  # steps up to which each has a dot
TONES: tuple[Tone, ...] = ("first", "second", "ink")  # one for each line
ENDS = ("low", "high")  # columns of the interval of the one line

# Name of a column -> its number at every step; each is drawn as a line, ENDS as the band.
Columns = Mapping[str, Sequence[float | None]]
# A number of a correction at one step; None if it has none.
NumberAtStep = Callable[[StepResult, CorrectionResult], float | None]


def values_by_step(result: ScoreResult, metric: str) -> dict[int, MetricValue]:
    """Return a metric at every training step, in order."""
    steps = sorted(result.steps, key=int)
    return {int(step): result.steps[step].mismatch[metric] for step in steps}


def changes(result: ScoreResult) -> list[int]:
    """Return the training steps at which causes begin."""
    causes = [] if result.diagnosis is None else result.diagnosis.causes
    return sorted({cause.from_step for cause in causes if cause.from_step is not None})


def spans_decades(values: Iterable[float | None]) -> bool:
    """Tell whether values are positive and span decades, so that a log axis is needed."""
    known = [value for value in values if value is not None]
    return bool(known) and min(known) > 0 and max(known) > DECADES_APART * min(known)


def metric_columns(metric: str) -> Callable[[ScoreResult], Columns]:
    """Return the function that reads a metric and the ends of its interval at every step."""

    def columns(result: ScoreResult) -> Columns:
        values = map(with_ends, values_by_step(result, metric).values())
        return dict(zip((metric, *ENDS), zip(*values, strict=True), strict=True))

    return columns


def metrics_columns(*metrics: str) -> Callable[[ScoreResult], Columns]:
    """Return the function that reads several metrics at every step, without their intervals."""
    return lambda result: {
        metric: [value.value for value in values_by_step(result, metric).values()]
        for metric in metrics
    }


def preset_columns(
    number: NumberAtStep, *, without: float | None = None
) -> Callable[[ScoreResult], Columns]:
    """Return the function that reads a number of presets at every step.

    Presets with equal numbers share a column; those whose numbers are all None or `without` are
    left out. The three columns that vary most over the steps are returned.
    """

    def columns(result: ScoreResult) -> Columns:
        steps = [result.steps[step] for step in sorted(result.steps, key=int)]
        alike: dict[tuple[float | None, ...], list[str]] = {}
        for name in result.corrections:
            values = tuple(number(step, step.corrections[name]) for step in steps)
            if set(values) - {None, without}:
                alike.setdefault(values, []).append(name)
        known = {values: [one for one in values if one is not None] for values in alike}
        most = sorted(alike, key=lambda some: max(known[some]) - min(known[some]), reverse=True)
        return {listed(alike[values]): values for values in most[: len(TONES)]}

    return columns


def chart_over_steps(
    result: ScoreResult, columns: Columns, axis: ChartAxis, levels: Sequence[ReferenceLine] = ()
) -> Chart:
    """Make the chart of columns over training steps, with dashed lines where causes begin.

    `levels` are horizontal reference lines.
    """
    low, high = (name if name in columns else None for name in ENDS)
    lines = [name for name in columns if name not in ENDS]
    if len(lines) == 1 and lines[0] in SIZES and spans_decades(columns[lines[0]]):
        axis = replace(axis, scale="log", start=None)
    marks = [
        Mark(
            shape="line",
            x="step",
            y=name,
            low=low,
            high=high,
            label=name if len(lines) > 1 else "",
            tone=tone,
            points=len(result.steps) <= MOST_POINTS,
        )
        for name, tone in zip(lines, TONES, strict=False)
    ]
    at_changes = [ReferenceLine(at=step, label=f"from step {step}") for step in changes(result)]
    return Chart(
        columns=("step", *columns),
        rows=list(zip(sorted(map(int, result.steps)), *columns.values(), strict=True)),
        panels=[
            Panel(
                x=ChartAxis(label="training step", whole=True),
                y=axis,
                marks=marks,
                rules=[*levels, *at_changes],
                height=0.62,
            )
        ],
    )


def _figure(
    name: str,
    title: str,
    columns: Callable[[ScoreResult], Columns],
    axis: ChartAxis,
    says: str,
    levels: Sequence[ReferenceLine] = (),
) -> FigureSpec:
    return FigureSpec(
        name=name,
        kind="score",
        title=title,
        says=says,
        chart=lambda result: chart_over_steps(result, columns(result), axis, levels),
        applies=lambda result: bool(result.steps) and bool(columns(result)),
        adds=_adds,
    )


def _adds(result: ScoreResult) -> str:
    named = [str(step) for step in changes(result)]
    return f"Dashed: the cause shows from step {' and '.join(named)} on." if named else ""


def _level(at: float, *, dashed: bool = False) -> ReferenceLine:
    return ReferenceLine(at=at, axis="y", dashed=dashed)


FIGURES = (
    _figure(
        "mismatch-by-step",
        "Mismatch by training step",
        metric_columns("k3_kl"),
        ChartAxis(label="KL by k3 (nats per token)", start=0.0),
        "A gradual rise is drift or growing precision trouble; a jump is an event to look up in "
        "the log.",
    ),
    _figure(
        "tokens-beyond-2-by-step",
        "Tokens beyond a factor of 2 by training step",
        metric_columns("ratio_outside_2"),
        ChartAxis(label="share of tokens", start=0.0, percent=True),
        "A few outlying tokens show here before they move the mean.",
    ),
    _figure(
        "ess-by-step",
        "Effective sample size by training step",
        metric_columns("ess_seq"),
        ChartAxis(label="ESS of sequences (fraction)", start=0.0),
        "The fraction of the batch that weights of whole sequences leave; longer responses leave "
        "less.",
    ),
    _figure(
        "kappa-by-step",
        "Calibration index by training step",
        metric_columns("kappa"),
        ChartAxis(label="kappa"),
        "Near 1 the tokens were sampled from the recorded policy; a step at which it falls was "
        "sampled from another.",
    ),
    _figure(
        "kl-by-step",
        "Two estimates of the KL by training step",
        metrics_columns("k1_kl", "k3_kl"),
        ChartAxis(label="nats per token"),
        "Both estimate KL(sampler || trainer) and agree if tokens were sampled from the recorded "
        "policy; k1 may be negative. If they differ by more than noise, the tokens were not "
        "sampled from it, and neither estimates a KL.",
        [_level(0.0)],
    ),
    _figure(
        "perplexity-ratio-by-step",
        "Ratio of perplexities by training step",
        metrics_columns("ppl_ratio"),
        ChartAxis(label="trainer / sampler"),
        "Above 1 by the KL if tokens were sampled from the recorded policy. Clearly below 1 "
        "tokens are likelier under the trainer than under the policy that is said to have sampled "
        "them.",
        [_level(1.0)],
    ),
    _figure(
        "weights-by-step",
        "Mean weight by training step",
        preset_columns(lambda step, correction: correction.mean_weight(step.num_tokens)),
        ChartAxis(label="mean weight of the tokens"),
        "The three presets with weights whose mean weight varies most. Near 1 the gradient keeps "
        "its size; below 1 the bounds remove more weight than ratios above 1 add.",
        [_level(1.0)],
    ),
    _figure(
        "weights-ess-by-step",
        "Effective sample size under the weights by training step",
        preset_columns(
            lambda step, correction: (
                None if correction.weight_sum is None else correction.actual["ess_token_applied"]
            )
        ),
        ChartAxis(label="ESS of tokens (fraction)", start=0.0, end=1.0),
        "Presets with weights; the weights are those that enter the loss, 0 for rejected tokens. "
        "verl's guide calls 0.5 good and 0.3 a warning: the dashed lines.",
        [_level(0.5, dashed=True), _level(0.3, dashed=True)],
    ),
    _figure(
        "rejected-by-step",
        "Rejected tokens by training step",
        preset_columns(
            lambda step, correction: (
                1.0 - correction.kept_tokens / step.num_tokens if step.num_tokens else None
            ),
            without=0.0,
        ),
        ChartAxis(label="share of tokens", start=0.0, percent=True),
        "Tokens that rejection or a veto removes from the loss. verl's guide wants less than 10%, "
        "the dashed line.",
        [_level(0.1, dashed=True)],
    ),
)
