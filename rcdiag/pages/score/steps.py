"""Figures over training steps: metrics of the mismatch, and what corrections do at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.score.profiles import with_ends
from rcdiag.results import CorrectionResult, MetricValue, ScoreResult
from rcdiag.results.score import StepResult

SIZES = ("k3_kl", "ratio_outside_2")  # metrics that grow over decades when training collapses
DECADES_APART = 100.0
MOST_POINTS = 15  # steps with a dot each


def values_by_step(result: ScoreResult, metric: str) -> dict[int, MetricValue]:
    """Return a metric of every training step, the steps in order."""
    steps = sorted(result.steps, key=int)
    return {int(step): result.steps[step].mismatch[metric] for step in steps}


def changes(result: ScoreResult) -> list[int]:
    """Return the training steps from which on a cause shows."""
    causes = [] if result.diagnosis is None else result.diagnosis.causes
    return sorted({cause.from_step for cause in causes if cause.from_step is not None})


def spans_decades(values: Iterable[MetricValue]) -> bool:
    """Tell whether values are all above 0 and so far apart that a linear axis shows the largest."""
    known = [value.value for value in values if value.value is not None]
    return bool(known) and min(known) > 0 and max(known) > DECADES_APART * min(known)


def _over_steps(
    result: ScoreResult,
    columns: Mapping[str, Sequence[float | None]],
    marks: Sequence[Mark],
    axis: ChartAxis,
    levels: Sequence[ReferenceLine] = (),
) -> Chart:
    """Make a chart over training steps, with lines across at some values and at changes."""
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
    """Make the chart of a metric over training steps, with its interval."""

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


# A number of a correction at one step; None where it has none.
NumberAtStep = Callable[[StepResult, CorrectionResult], float | None]
TONES: tuple[Tone, ...] = ("first", "second", "ink")  # of at most so many presets


def mean_weight(step: StepResult, correction: CorrectionResult) -> float | None:
    """Return the mean weight of the tokens, before rejection and batch normalisation."""
    if correction.weight_sum is None or not step.num_tokens:
        return None
    return correction.weight_sum / step.num_tokens


def effective_tokens(step: StepResult, correction: CorrectionResult) -> float | None:
    """Return the effective sample size of the tokens by their applied weights, a fraction."""
    size: float | None = correction.actual["ess_token_applied"]
    return None if correction.weight_sum is None else size


def rejected_tokens(step: StepResult, correction: CorrectionResult) -> float | None:
    """Return the share of the tokens that rejection or a veto takes out of the loss mask."""
    return 1.0 - correction.kept_tokens / step.num_tokens if step.num_tokens else None


def series_of_presets(
    result: ScoreResult, number: NumberAtStep, *, without: float | None = None
) -> dict[str, list[float | None]]:
    """Return a number of each preset at every step in order; presets with equal ones share a name.

    A preset is left out whose numbers are all None, or all `without`. Three are taken, those whose
    numbers differ most over the steps first.
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
        f"{alike[values][0]} (+{len(alike[values]) - 1})"
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
    """Make the chart of a few series over training steps."""
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
        "A rise with the steps is drift or growing precision trouble, a jump is an event to look "
        "up in the log.",
    ),
    _figure(
        "tokens-beyond-2-by-step",
        "Tokens beyond a factor of 2 by training step",
        step_chart("ratio_outside_2", "share of tokens"),
        "A few bad tokens show here before they move the mean.",
    ),
    _figure(
        "ess-by-step",
        "Effective sample size by training step",
        step_chart("ess_seq", "ESS of sequences (fraction)"),
        "Weights of whole sequences leave this fraction of the batch; longer responses leave less.",
    ),
    _figure(
        "kappa-by-step",
        "Calibration index by training step",
        step_chart("kappa", "kappa"),
        "Near 1 the recorded policy sampled; a fall is a step at which it did not.",
    ),
    _of_metrics(
        "kl-by-step",
        "Two estimates of the KL by training step",
        ("k1_kl", "k3_kl"),
        ChartAxis(label="nats per token"),
        0.0,
        "Both estimate KL(sampler || trainer) and agree where the recorded policy sampled; k1 may "
        "be negative. Where they part, neither estimates a KL: the recorded policy did not sample.",
    ),
    _of_metrics(
        "perplexity-ratio-by-step",
        "Ratio of perplexities by training step",
        ("ppl_ratio",),
        ChartAxis(label="trainer / sampler"),
        1.0,
        "Above 1 by the KL where the recorded policy sampled. Below 1 by more than noise tokens "
        "are likelier to the trainer than to the policy that is said to have sampled them.",
    ),
    _of_presets(
        "weights-by-step",
        "Mean weight by training step",
        mean_weight,
        ChartAxis(label="mean weight of the tokens"),
        [ReferenceLine(at=1.0, axis="y")],
        "Of presets with weights, the three whose mean weight moves most. Near 1 they leave the "
        "gradient its size; below 1 the bounds take more than ratios above 1 add.",
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
        "Of presets with weights, by the weights that enter the loss, 0 for rejected tokens. By "
        "verl's guide 0.5 is good and 0.3 a warning: the dashed lines.",
    ),
    _of_presets(
        "rejected-by-step",
        "Rejected tokens by training step",
        rejected_tokens,
        ChartAxis(label="share of tokens", start=0.0, percent=True),
        [ReferenceLine(at=0.1, axis="y", dashed=True)],
        "Tokens that rejection or a veto takes out of the loss. verl's guide wants less than 10%, "
        "the dashed line.",
        without=0.0,
    ),
)
