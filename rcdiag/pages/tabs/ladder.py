"""The tab Ladder: from the sampler to the trainer, step by step and pair by pair."""

from __future__ import annotations

import json

from rcdiag.formats import number
from rcdiag.pages.blocks import (
    Block,
    Column,
    Figures,
    Part,
    Row,
    Section,
    Tab,
    Table,
    Words,
    amount,
    metric,
    share,
    term,
    text,
)
from rcdiag.pages.compare.policies import distances
from rcdiag.pages.compare.words import answer, means, nearness, sampler_of
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.packing import packed
from rcdiag.pages.page_figures import figures_of
from rcdiag.pages.score.profiles import profile_chart
from rcdiag.results import CompareResult, Rung


def tab(results: DumpResults) -> Tab | None:
    """Fill the tab; None where policies were not compared, or there is one only."""
    compare = results.compare
    if compare is None or not compare.pairs:
        return None
    sections = [_steps(compare), _nearest(compare), _pairs(compare), _join(compare)]
    return Tab(
        name="ladder",
        title="Ladder",
        heading="From the sampler to the trainer",
        sections=[section for section in sections if section is not None],
    )


def _steps(result: CompareResult) -> Section:
    floor = result.noise_floor
    alone = len(result.ladder.rungs) == 1  # with one step there is nothing to compare in a drawing
    table = Table(
        name="rungs",
        label="Steps of the ladder",
        columns=[
            Column(head="Step"),
            Column(head="Adds", numbers=True, term="contribution"),
            Column(head="Share", numbers=True, term="share"),
            Column(head="Its own k2", numbers=True, term="k2_kl"),
            Column(head="Mean log-ratio", numbers=True),
            *([] if floor is None else [Column(head="Noise")]),
        ],
        rows=[
            *(_rung(rung, judged=floor is not None) for rung in result.ladder.rungs),
            *([] if alone else [_whole(result)]),
        ],
    )
    how = (
        "k2 is half the mean squared log-ratio, nats per token. With e the log-ratio of a step and "
        "d that of the whole way, the step adds E[e·d] / 2, so that parts add up exactly."
    )
    if floor is not None:
        how += (
            f" Noise floor: `{floor.policy}` against itself in other batches, k2 "
            f"{number(floor.k2.value)}."
        )
    blocks: list[Block] = [
        Words(text=f"{answer(result)}."),
        *([] if alone else [Figures(items=figures_of(result, ("mismatch-by-rung",)))]),
        table,
        Words(text=how, soft=True),
    ]
    return Section(title="Step by step", blocks=blocks)


def _whole(result: CompareResult) -> Row:
    """Return the row of the whole mismatch from sampler to trainer, to which the steps add up."""
    return Row(
        cells=[
            text("whole", note=" → ".join(_ends(result))),
            metric(result.ladder.whole),
            text("100%", order=1.0),
            metric(result.ladder.whole),
            amount(None),
            *([] if result.noise_floor is None else [text("")]),
        ]
    )


def _ends(result: CompareResult) -> tuple[str, str]:
    return result.ladder.policies[0], result.ladder.policies[-1]


def _rung(rung: Rung, *, judged: bool) -> Row:
    """Return the row of a step, with a note if it is at the noise floor.

    A share is left out if its interval is too wide.
    """
    unknown = rung.share.level == "unknown"
    return Row(
        cells=[
            text(f"{rung.start} → {rung.end}"),
            metric(rung.contribution),
            text("cannot tell", order=float("nan")) if unknown else share(rung.share.value),
            metric(rung.k2),
            metric(rung.log_ratio_mean),
            *([text("at the floor" if rung.at_floor else "")] if judged else []),
        ]
    )


def _nearest(result: CompareResult) -> Section:
    table = Table(
        name="policies",
        label="Policies",
        columns=[
            Column(head="Policy"),
            Column(head="Role"),
            Column(head="What it is"),
            Column(head="Mean log-prob", numbers=True, term="log_prob_mean"),
            Column(head="Behind the best", numbers=True, term="behind"),
            Column(head="Nearest"),
        ],
        rows=[
            Row(
                cells=[
                    text(name),
                    term(policy.role),
                    text(policy.setup),
                    amount(
                        policy.log_prob_mean.value,
                        None
                        if policy.log_prob_mean.value is None
                        else f"{policy.log_prob_mean.value:.6f}",
                    ),
                    metric(policy.behind),
                    text(
                        nearness(result, name),
                        level=""
                        if not nearness(result, name)
                        else "ok"
                        if policy.may_be_nearest
                        else "warning",
                    ),
                ],
                tag="",
            )
            for name, policy in result.policies.items()
        ],
    )
    how = (
        "Whoever sampled the tokens, the policy with the highest mean log-prob of them is the "
        "nearest to it (nats per token; differences are paired by token). Policies whose interval "
        "reaches 0 cannot be told from the nearest."
    )
    return Section(
        title="Who is nearest to the sampler", blocks=[table, Words(text=how, soft=True)]
    )


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
                f"Numbers of {a} → {b} that presuppose that {a} sampled, by {sentence}."
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
    part = Part(
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
    return Section(title="The join", blocks=[Words(text=words)])
