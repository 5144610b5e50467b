"""The table of all corrections, and the scatter plot that is linked with it."""

from __future__ import annotations

from collections.abc import Sequence

from rcdiag.formats import listed
from rcdiag.pages.blocks import (
    Block,
    Cell,
    ColumnOf,
    Figure,
    Figures,
    Paragraph,
    Section,
    amount,
    equal_names,
    numbers,
    share,
    table,
    text,
    words,
)
from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.page_figures import figures_of
from rcdiag.pages.score.words import raw_ess, verl_check_line
from rcdiag.pages.sweep.words import as_good, term
from rcdiag.pages.tabs.corrections.treatments import Treatment, recommended, tag_of
from rcdiag.results.sweep import Recommendation


def all_corrections(results: DumpResults, treatments: Sequence[Treatment]) -> Section:
    """Make the section: the scatter plot, the ranking, and the table linked with both."""
    estimated = results.weights_help and any(one.error is not None for one in treatments)
    corrections = table(
        "corrections-table",
        "Presets and swept settings",
        _columns(results, treatments, estimated=estimated),
        treatments,
        lambda one: {
            "key": one.names[0],
            "names": one.names,
            "tag": tag_of(one, results),
            "pale": results.weights_help and bool(one.candidate and one.candidate.refused),
        },
        search=True,
        opens="correction",
    )
    figures = [] if results.sweep is None else [_scatter(treatments, results)]
    figures += [f for f in figures_of(results.sweep) if f.name == "candidate-ranking"]
    blocks: list[Block] = [Figures(items=figures)] if figures else []
    blocks += [corrections, Paragraph(text=_how(results, treatments, estimated), soft=True)]
    return Section(title="All corrections", blocks=blocks)


def _columns(
    results: DumpResults, treatments: Sequence[Treatment], *, estimated: bool
) -> list[ColumnOf]:
    """Return all columns for which the results have data, with functions for their cells."""
    whole = results.score or results.sweep or results.largest
    levels = any(treatment.level for treatment in treatments)
    columns = [words("Correction", lambda one: equal_names(one.names))]
    if results.weights_help:
        columns.append(words("Weights" if levels else "Why not", _level))
    if estimated:
        columns.append(numbers("Expected error, bias² + variance", _error))
    if results.sweep is not None:
        columns += [
            numbers("Weight bias", lambda one: amount(one.bias), "weight_distance"),
            numbers("Weight variance", lambda one: amount(one.variance), "weight_variance"),
        ]
    tokens, sequences = max(whole.num_tokens, 1), max(whole.num_sequences, 1)
    return [
        *columns,
        numbers("Bias bound", lambda one: amount(one.bias_bound), "bias_bound"),
        numbers("Kept tokens", lambda one: share(one.kept_tokens / tokens), "kept_tokens"),
        numbers(
            "Kept sequences", lambda one: share(one.kept_sequences / sequences), "kept_sequences"
        ),
        numbers("ESS tokens", lambda one: share(one.ess_token), "ess_token_applied"),
        numbers("ESS sequences", lambda one: share(one.ess_seq), "ess_seq_applied"),
        numbers("Lost mass", lambda one: share(one.lost), "lost_mass"),
    ]


def _level(treatment: Treatment) -> Cell:
    """Return the cell with the level of a preset, and why the sweep refuses it."""
    refused = [] if treatment.candidate is None else treatment.candidate.refused
    if treatment.untouched:
        return text("no weights", order="ok", note=_refused(refused))
    return text(treatment.level, level=treatment.level, note=_refused(refused))


def _error(treatment: Treatment) -> Cell:
    """Return the cell with the expected error of the gradient, and the terms of its sum."""
    candidate = treatment.candidate
    if candidate is None or treatment.error is None:
        return amount(None)
    bias, variance = candidate.gradient_bias, term(candidate.gradient_noise)
    if bias is None:  # there is no reference gradient
        return amount(None, note=f"unknown + {variance}")
    return amount(treatment.error, term(treatment.error), note=f"{term(bias)} + {variance}")


def _how(results: DumpResults, treatments: Sequence[Treatment], estimated: bool) -> str:
    sentences = [
        "Corrections with equal numbers on this table share a row; a row opens to its settings and "
        "to what the trainer logs.",
        "Numbers cover valid sequences only; ESS is that of the weights as they enter the loss, 0 "
        "for rejected tokens. ESS of token weights and of sequence weights cannot be compared: "
        "token weights have less variance and more bias.",
    ]
    if results.weights_help and any(one.level for one in treatments):  # else there is no column
        sentences.append(
            "The level under Weights judges the weights and what is kept; the mismatch itself is "
            "judged on the first tab."
        )
    raw = "" if results.score is None else raw_ess(results.score)
    if raw:
        sentences.append(f"ESS {raw}.")
    check = "" if results.score is None else verl_check_line(results.score)
    if check:
        sentences.append(f"By {check}.")
    if estimated and results.sweep is not None:
        advice = results.sweep.recommendation
        sentences += [
            "The expected error is that of a batch's gradient, in units of its variance "
            "without correction; below it are its terms, bias² (`gradient_bias`) + variance "
            "(`gradient_noise`). "
            f"{advice.method}",
            *_tags(advice),
        ]
    if results.score is not None and results.score.steps:
        sentences.append("The whole table counts as one batch; the JSON has each step separately.")
    return " ".join(sentences)


def _tags(advice: Recommendation) -> list[str]:
    """Explain the tags beside the corrections."""
    equal = as_good(advice)
    sentences = []
    if equal:
        sentences.append(
            "As good: the expected error is within 5% of the recommended one's, or lower."
        )
    if set(advice.indistinguishable) - {*equal, advice.choice}:
        sentences.append(
            "Same within error: the difference from the lowest error is below its standard error."
        )
    return sentences


def _refused(reasons: Sequence[str]) -> str:
    """Return the first reason against a correction, and how many more there are."""
    return f"refused: {listed(reasons)}" if reasons else ""


def _scatter(treatments: Sequence[Treatment], results: DumpResults) -> Figure:
    """Make the scatter plot of bias against ESS, a point for each row of the table."""
    best = recommended(results)
    chart = Chart(
        columns=("correction", "weight bias", "ESS of sequences", "variance", "note"),
        rows=[
            (
                treatment.names[0],
                treatment.bias,
                treatment.ess_seq,
                treatment.variance,
                tag_of(treatment, results) or ", ".join(treatment.names[1:]),
            )
            for treatment in treatments
            if treatment.bias is not None and treatment.ess_seq is not None
        ],
        panels=[
            Panel(
                x=ChartAxis(label="weight bias, from ratios of sequences", start=0.0),
                y=ChartAxis(label="ESS of sequences, applied", percent=True, start=0.0, end=1.0),
                marks=[Mark(shape="dot", x="weight bias", y="ESS of sequences")],
            )
        ],
        strong="" if best is None else best.names[0],
        opens="correction",
    )
    return Figure(
        name="bias-and-variance",
        title="Bias against ESS",
        caption="A point is a row of the table below: a click opens that row, and the row that "
        "the mouse or the keyboard is on has a ring here. Left is "
        "less bias, up is less variance. Corrections whose bias was not swept have no point.",
        chart=chart.data(),
    )
