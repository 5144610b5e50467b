"""The tab Ladder: from the sampler to the trainer, step by step and pair by pair."""

from __future__ import annotations

import json
from math import nan

from rcdiag.formats import as_sentence, number
from rcdiag.pages.blocks import (
    Block,
    Cell,
    Figures,
    Paragraph,
    Section,
    Slot,
    Tab,
    metric,
    numbers,
    share,
    tab_of,
    table,
    term,
    text,
    words,
)
from rcdiag.pages.compare.policies import WHOLE, distances
from rcdiag.pages.compare.words import answer, nearness, sampler_of
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.packing import packed
from rcdiag.pages.page_figures import figures_of
from rcdiag.pages.score.profiles import profile_chart
from rcdiag.pages.score.words import means
from rcdiag.results import CompareResult, MetricValue, Rung


def tab(results: DumpResults) -> Tab | None:
    """Make the tab; None if policies were not compared or there is only one."""
    compare = results.compare
    if compare is None or not compare.pairs:
        return None
    return tab_of(
        "ladder",
        "Ladder",
        "From the sampler to the trainer",
        _steps(compare),
        _nearest(compare),
        _pairs(compare),
        _join(compare),
    )


def _steps(result: CompareResult) -> Section:
    floor = result.noise_floor
    alone = len(result.ladder.rungs) == 1  # a single step needs no figure
    # The last row is the whole mismatch from sampler to trainer, to which the steps add up.
    whole = Rung(
        start=WHOLE,
        end=" → ".join(_ends(result)),
        k2=result.ladder.whole,
        contribution=result.ladder.whole,
        share=MetricValue(value=1.0),
        log_ratio_mean=MetricValue(value=None),
        at_floor=False,
    )
    steps = table(
        "rungs",
        "Steps of the ladder",
        [
            words(
                "Step",
                lambda rung: (
                    text(WHOLE, note=whole.end)
                    if rung is whole
                    else text(f"{rung.start} → {rung.end}")
                ),
            ),
            numbers("Adds", lambda rung: metric(rung.contribution), "contribution"),
            numbers(
                "Share",
                lambda rung: (
                    text("cannot tell", order=nan)  # its interval is too wide
                    if rung.share.level == "unknown"
                    else share(rung.share.value)
                ),
                "share",
            ),
            numbers("Its own k2", lambda rung: metric(rung.k2), "k2_kl"),
            numbers("Mean log-ratio", lambda rung: metric(rung.log_ratio_mean)),
            words("Noise", lambda rung: text("at the floor" if rung.at_floor else "")),
        ],
        [*result.ladder.rungs, *([] if alone else [whole])],
    )
    how = (
        "k2 is half the mean squared log-ratio, nats per token. With e the log-ratio of a step and "
        "d that from sampler to trainer, the step adds E[e·d] / 2, so the parts add up exactly."
    )
    if floor is not None:
        how += (
            f" Noise floor: `{floor.policy}` against itself in other batches, k2 "
            f"{number(floor.k2.value)}."
        )
    blocks: list[Block] = [
        Paragraph(text=as_sentence(answer(result))),
        *([] if alone else [Figures(items=figures_of(result, ("mismatch-by-rung",)))]),
        steps,
        Paragraph(text=how, soft=True),
    ]
    return Section(title="Step by step", blocks=blocks)


def _ends(result: CompareResult) -> tuple[str, str]:
    return result.ladder.policies[0], result.ladder.policies[-1]


def _nearest(result: CompareResult) -> Section:
    policies = table(
        "policies",
        "Policies",
        [
            words("Policy", lambda one: text(one[0])),
            words("Role", lambda one: term(one[1].role)),
            words("What it is", lambda one: text(one[1].setup)),
            numbers("Mean log-prob", lambda one: metric(one[1].log_prob_mean), "log_prob_mean"),
            numbers("Behind the best", lambda one: metric(one[1].behind), "behind"),
            words("Nearest", lambda one: _nearness(result, one[0])),
        ],
        result.policies.items(),
    )
    how = (
        "Whichever policy sampled the tokens, the one with the highest mean log-prob is nearest to "
        "it (nats per token; differences are paired by token). Policies whose interval includes 0 "
        "cannot be distinguished from the nearest."
    )
    return Section(
        title="Who is nearest to the sampler", blocks=[policies, Paragraph(text=how, soft=True)]
    )


def _nearness(result: CompareResult, name: str) -> Cell:
    word = nearness(result, name)
    level = "ok" if result.policies[name].may_be_nearest else "warning"
    return text(word, level=level if word else "")


def _pairs(result: CompareResult) -> Section:
    figures = figures_of(result, ("pair-distances",))
    added = [
        figure
        for figure in figures_of(result)
        if figure.name not in ("pair-distances", "mismatch-by-rung")
    ]
    sampler = sampler_of(result)
    pairs = {
        f"{first}->{second}": {
            "first": first,
            "second": second,
            "means": [
                f"Some numbers of {a} → {b} presuppose that {a} sampled: {sentence}."
                for a, b in ((first, second), (second, first))
                if (sentence := means(result.pairs[f"{a}->{b}"], sampler))
            ],
        }
        for first, second in distances(result)
    }
    whole = "->".join(_ends(result))
    charts = {
        name: profile_chart(pair.by_probability).data() for name, pair in result.figures.items()
    }
    part = Slot(
        name="pair",
        data={
            "pairs": pairs,
            "charts": packed(json.dumps(charts)),
            "start": whole if whole in pairs else next(iter(pairs)),
        },
    )
    blocks: list[Block] = [Figures(items=[*figures, *added]), part]
    return Section(title="Pair by pair", blocks=blocks, name="pairs", screen=len(pairs) == 1)


def _join(result: CompareResult) -> Section | None:
    joined = result.joined
    if joined is None:
        return None
    tables = ", ".join(
        f"`{name}` ({rows:,} rows)"
        for name, rows in zip(joined.tables, joined.table_rows, strict=True)
    )
    words = (
        f"{joined.common_samples:,} samples of {tables}. With other tokens: "
        f"{joined.tokens_differ:,}."
    )
    return Section(title="The join", blocks=[Paragraph(text=words)])
