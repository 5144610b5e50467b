"""Figures over training steps: metrics of the mismatch, and of corrections at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.score.profiles import with_ends
from rcdiag.results import CorrectionResult, MetricValue, ScoreResult
from rcdiag.results.score import StepResult

SIZES = ("k3_kl", "ratio_outside_2")  # metrics that grow by decades when training collapses
DECADES_APART = 100.0
MOST_POINTS = 15  # steps up to which each has a dot


def values_by_step(result: ScoreResult, metric: str) -> dict[int, MetricValue]:
    """Return a metric at every training step, in order."""
    steps = sorted(result.steps, key=int)
    return {int(step): result.steps[step].mismatch[metric] for step in steps}


def changes(result: ScoreResult) -> list[int]:
    """Return the training steps at which causes begin."""
    causes = [] if result.diagnosis is None else result.diagnosis.causes
    return sorted({cause.from_step for cause in causes if cause.from_step is not None})


def spans_decades(values: Iterable[MetricValue]) -> bool:
    """Tell whether values are positive and span decades, so that a log axis is needed."""
    known = [value.value for value in values if value.value is not None]
    return bool(known) and min(known) > 0 and max(known) > DECADES_APART * min(known)


def _over_steps(
    result: ScoreResult,
    columns: Mapping[str, Sequence[float | None]],
    marks: Sequence[Mark],
    axis: ChartAxis,
    levels: Sequence[ReferenceLine] = (),
) -> Chart:
    """Make a chart over training steps, with horizontal reference lines and lines at changes."""
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


def step_chart(metric: str, label: str) -> Callable[[ScoreResult], Chart]:
    """Return the function that makes the chart of a metric, with its interval, over steps."""

    def chart(result: ScoreResult) -> Chart:
        values = values_by_step(result, metric).values()
        ends = zip(*map(with_ends, values), strict=True)
        columns = dict(zip((metric, "low", "high"), ends, strict=True))
        log = metric in SIZES and spans_decades(values)
        axis = ChartAxis(
            label=label,
            scale="log" if log else "linear",
            start=None if log or metric == "kappa" else 0.0,
            percent=metric == "ratio_outside_2",
        )
        few = len(values) <= MOST_POINTS
        line = Mark(shape="line", x="step", y=metric, low="low", high="high", points=few)
        return _over_steps(result, columns, [line], axis)

    return chart


# A number of a correction at one step; None if it has none.
NumberAtStep = Callable[[StepResult, CorrectionResult], float | None]
TONES: tuple[Tone, ...] = ("first", "second", "ink")  # one for each preset that is drawn


def mean_weight(step: StepResult, correction: CorrectionResult) -> float | None:
    """Return the mean weight of tokens, before rejection and batch normalisation."""
    return correction.mean_weight(step.num_tokens)


def effective_tokens(step: StepResult, correction: CorrectionResult) -> float | None:
    """Return the effective sample size of tokens under the applied weights, a fraction."""
    size: float | None = correction.actual["ess_token_applied"]
    return None if correction.weight_sum is None else size


def rejected_tokens(step: StepResult, correction: CorrectionResult) -> float | None:
    """Return the share of tokens that rejection or a veto removes from the loss mask."""
    return 1.0 - correction.kept_tokens / step.num_tokens if step.num_tokens else None


def series_of_presets(
    result: ScoreResult, number: NumberAtStep, *, without: float | None = None
) -> dict[str, list[float | None]]:
    """Return a number of presets at every step; presets with equal numbers share a series.

    Presets whose numbers are all None or `without` are left out. At most three series are returned,
    those that vary most over the steps.
    """
    steps = [result.steps[step] for step in sorted(result.steps, key=int)]
    alike: dict[tuple[float | None, ...], list[str]] = {}
    for name in result.corrections:
        values = tuple(number(step, step.corrections[name]) for step in steps)
        if set(values) - {None, without}:
            alike.setdefault(values, []).append(name)
    known = {values: [one for one in values if one is not None] for values in alike}
    most = sorted(alike, key=lambda values: max(known[values]) - min(known[values]), reverse=True)
    return {
        f"{alike[values][0]} and {len(alike[values]) - 1} more"
        if len(alike[values]) > 1
        else alike[values][0]: list(values)
        for values in most[: len(TONES)]
    }


def lines_over_steps(
    result: ScoreResult,
    series: Mapping[str, Sequence[float | None]],
    axis: ChartAxis,
    levels: Sequence[ReferenceLine] = (),
) -> Chart:
    """Make the chart of several series over training steps."""
    few = len(result.steps) <= MOST_POINTS
    marks = [
        Mark(
            shape="line",
            x="step",
            y=name,
            label=name if len(series) > 1 else "",
            tone=tone,
            points=few,
        )
        for name, tone in zip(series, TONES, strict=False)
    ]
    return _over_steps(result, series, marks, axis, levels)


def _of_presets(
    name: str,
    title: str,
    number: NumberAtStep,
    axis: ChartAxis,
    levels: Sequence[ReferenceLine],
    says: str,
    without: float | None = None,
) -> FigureSpec:
    def series(result: ScoreResult) -> dict[str, list[float | None]]:
        return series_of_presets(result, number, without=without)

    def chart(result: ScoreResult) -> Chart:
        return lines_over_steps(result, series(result), axis, levels)

    return _figure(name, title, chart, says, has=lambda result: bool(series(result)))


def _of_metrics(
    name: str, title: str, metrics: Sequence[str], axis: ChartAxis, ideal: float, says: str
) -> FigureSpec:
    def chart(result: ScoreResult) -> Chart:
        series = {
            metric: [value.value for value in values_by_step(result, metric).values()]
            for metric in metrics
        }
        return lines_over_steps(result, series, axis, [ReferenceLine(at=ideal, axis="y")])

    return _figure(name, title, chart, says)


def _figure(
    name: str,
    title: str,
    chart: Callable[[ScoreResult], Chart],
    says: str,
    has: Callable[[ScoreResult], bool] = lambda result: True,
) -> FigureSpec:
    return FigureSpec(
        name=name,
        kind="score",
        title=title,
        says=says,
        chart=chart,
        applies=lambda result: bool(result.steps) and has(result),
        adds=_adds,
    )


def _adds(result: ScoreResult) -> str:
    named = [str(step) for step in changes(result)]
    return f"Dashed: the cause shows from step {' and '.join(named)} on." if named else ""


FIGURES = (
    _figure(
        "mismatch-by-step",
        "Mismatch by training step",
        step_chart("k3_kl", "KL by k3 (nats per token)"),
        "A gradual rise is drift or growing precision trouble; a jump is an event to look up in "
        "the log.",
    ),
    _figure(
        "tokens-beyond-2-by-step",
        "Tokens beyond a factor of 2 by training step",
        step_chart("ratio_outside_2", "share of tokens"),
        "A few outlying tokens show here before they move the mean.",
    ),
    _figure(
        "ess-by-step",
        "Effective sample size by training step",
        step_chart("ess_seq", "ESS of sequences (fraction)"),
        "The fraction of the batch that weights of whole sequences leave; longer responses leave "
        "less.",
    ),
    _figure(
        "kappa-by-step",
        "Calibration index by training step",
        step_chart("kappa", "kappa"),
        "Near 1 the tokens were sampled from the recorded policy; a step at which it falls was "
        "sampled from another.",
    ),
    _of_metrics(
        "kl-by-step",
        "Two estimates of the KL by training step",
        ("k1_kl", "k3_kl"),
        ChartAxis(label="nats per token"),
        0.0,
        "Both estimate KL(sampler || trainer) and agree if tokens were sampled from the recorded "
        "policy; k1 may be negative. If they differ by more than noise, the tokens were not "
        "sampled from it, and neither estimates a KL.",
    ),
    _of_metrics(
        "perplexity-ratio-by-step",
        "Ratio of perplexities by training step",
        ("ppl_ratio",),
        ChartAxis(label="trainer / sampler"),
        1.0,
        "Above 1 by the KL if tokens were sampled from the recorded policy. Clearly below 1 "
        "tokens are likelier under the trainer than under the policy that is said to have sampled "
        "them.",
    ),
    _of_presets(
        "weights-by-step",
        "Mean weight by training step",
        mean_weight,
        ChartAxis(label="mean weight of the tokens"),
        [ReferenceLine(at=1.0, axis="y")],
        "The three presets with weights whose mean weight varies most. Near 1 the gradient keeps "
        "its size; below 1 the bounds remove more weight than ratios above 1 add.",
    ),
    _of_presets(
        "weights-ess-by-step",
        "Effective sample size under the weights by training step",
        effective_tokens,
        ChartAxis(label="ESS of tokens (fraction)", start=0.0, end=1.0),
        [
            ReferenceLine(at=0.5, axis="y", dashed=True),
            ReferenceLine(at=0.3, axis="y", dashed=True),
        ],
        "Presets with weights; the weights are those that enter the loss, 0 for rejected tokens. "
        "verl's guide calls 0.5 good and 0.3 a warning: the dashed lines.",
    ),
    _of_presets(
        "rejected-by-step",
        "Rejected tokens by training step",
        rejected_tokens,
        ChartAxis(label="share of tokens", start=0.0, percent=True),
        [ReferenceLine(at=0.1, axis="y", dashed=True)],
        "Tokens that rejection or a veto removes from the loss. verl's guide wants less than 10%, "
        "the dashed line.",
        without=0.0,
    ),
)
