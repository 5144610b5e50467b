"""The mask counts tokens that were not sampled, or drops some that were."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Array, Case, Flags, spread_over
from rcdiag.diagnosis.causes.cause import EXACT, LIKELY, Suspicion, fact, shipped
from rcdiag.diagnosis.causes.columns import lowest_drawn, side_of
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.location import IdOutlier
from rcdiag.diagnosis.features.log_ratios import FIRST_TOKENS
from rcdiag.diagnosis.thresholds import (
    CERTAIN,
    ENOUGH,
    FEW,
    FEWEST,
    FEWEST_OF_PATTERN,
    HALF,
    HARDLY_EVER,
    LARGE,
    LARGER,
    MANY_TIMES,
    MOST,
    NEARLY_ALL,
    PART,
    RARE,
    SHOWN,
    SLIGHT,
    UNSURE,
)
from rcdiag.formats import listed


def tool_spans(case: Case) -> Flags | None:
    """Flag the NaN tokens [response tokens] of a multi-turn table whose mask is missing.

    They form spans inside responses where the sampler recorded NaN, with sampled tokens on both
    sides, in a table that masks no token. None where it recorded no NaN, or NaN in another pattern:
    a token that has a log-prob of the sampler was sampled, whatever the trainer's column holds.
    """
    if not case.table_mask.all():
        return None
    nan = np.isnan(case.log_probs[case.sampler])
    if not nan.any():
        return None
    first_of_row = case.position == 0
    last_of_row = case.position == case.lengths[case.owner] - 1
    begins = np.flatnonzero(nan & (first_of_row | ~np.roll(nan, 1)))
    ends = np.flatnonzero(nan & (last_of_row | ~np.roll(nan, -1)))
    inside = ~first_of_row[begins] & ~last_of_row[ends]
    lengths = ends - begins + 1
    if lengths[inside & (lengths >= FEWEST_OF_PATTERN)].sum() < MOST * nan.sum():
        return None
    flags: Flags = nan
    return flags


def _id_evidence(outliers: list[IdOutlier]) -> list[dict[str, Any]]:
    return [
        fact(
            f"token id {outlier.token_id}",
            "far from all other ids",
            log_ratio_mean=outlier.mean,
            tokens=outlier.tokens,
        )
        for outlier in outliers
    ]


def _eos_one_sided(features: Features) -> Suspicion | None:
    last_zero = last_zeros(features)
    if last_zero is not None:
        return last_zero
    outliers = features.location.id_outliers
    if not outliers or any(outlier.share_last < MOST for outlier in outliers):
        return None
    return Suspicion(
        confidence=LIKELY,
        message=f"The mismatch is on the tokens that end responses (id {outliers[0].token_id}): "
        f"their mean log-ratio is {outliers[0].mean:.1f}.",
        evidence=_id_evidence(outliers),
        side="trainer" if outliers[0].mean < 0 else "recorder",
        also_possible=["special-token-ids"],
        repaired=features.case.without_tokens(
            np.isin(features.case.token_id, [outlier.token_id for outlier in outliers])
        ),
    )


def last_zeros(features: Features) -> Suspicion | None:
    """Look for end tokens for which one side recorded no log-prob, but 0."""
    last = _end_tokens(features.case)
    for policy, column in features.columns.items():
        zeros = column.values == 0.0
        surely = zeros & (column.other < 0)
        if last.sum() < FEWEST or zeros[last].mean() < MOST or zeros[~last].mean() > PART:
            continue
        if surely[last].mean() < HALF or not _beyond_rounding(zeros, last, column.other):
            continue
        return Suspicion(
            confidence=LIKELY,
            message=f"`{policy}` is exactly 0 at {zeros[last].mean():.0%} of the tokens that end "
            "responses: that side records no log-prob of the end token.",
            evidence=[
                fact(
                    "exact zeros at end tokens",
                    "no log-prob for the end token",
                    **{policy: zeros[last].mean()},
                    elsewhere=zeros[~last].mean(),
                )
            ],
            side=side_of(features, policy),
            also_possible=["zero-placeholder", "special-token-ids"],
            verdict="broken",
            repaired=features.case.without_tokens(features.case.of_sampled(last)),
        )
    return None


def _beyond_rounding(zeros: Flags, last: Flags, other: Array) -> bool:
    """Tell whether zeros at last tokens cannot be log-probs near 0 that were rounded to 0.

    That is so if the other side is not certain of them, or if other tokens that it is as certain
    of are not 0.
    """
    least = float(other[last & zeros].min(initial=0.0))
    as_sure = ~last & (other >= least) & (other < 0)
    return least < CERTAIN or bool(as_sure.sum() >= FEWEST and zeros[as_sure].mean() < PART)


def _end_tokens(case: Case) -> Flags:
    """Flag the last sampled tokens of rows that end with the id that most rows end with.

    Responses that were cut at a length have no end token.
    """
    ids = case.token_id[case.mask]
    last = np.append(np.diff(case.owner[case.mask]) != 0, True)[: len(ids)]
    if not last.any():
        return last
    flags: Flags = last & (ids == np.bincount(ids[last]).argmax())
    return flags


def _special_ids(features: Features) -> Suspicion | None:
    outliers = features.location.id_outliers
    if not outliers or all(outlier.share_last > MOST for outlier in outliers):
        return None
    # A wrong context shows at the first tokens of a turn, a wrong id at every position.
    case, tokens, turn = features.case, features.case.tokens, features.alignment.turn
    wrong = [outlier.token_id for outlier in outliers]
    named = np.isin(tokens.token_id, wrong)
    place = np.arange(len(turn)) - np.searchsorted(turn, turn)
    early = float(np.mean(place[named] < FIRST_TOKENS))
    # Tokens after the first of these ids in a row were scored in another context.
    here = np.cumsum(np.isin(case.token_id, wrong))
    after = here > np.concatenate([[0], here])[case.start][case.owner]
    rest = features.log_ratios.values[~after[tokens.place]]
    median_of_others = float(np.median(np.abs(rest))) if len(rest) else 0.0
    if early > HALF or median_of_others > SLIGHT:
        return None
    if float(np.median(tokens.trainer[named])) > 0:
        return None  # positive log-probs: the trainer's softmax sum lacks a part of the vocabulary
    return Suspicion(
        confidence=LIKELY,
        message=f"Rows begin to differ at token {'id' if len(wrong) == 1 else 'ids'} "
        f"{', '.join(map(str, wrong))}, with a mean "
        f"log-ratio of {outliers[0].mean:.1f}; half of the tokens before them differ by less than "
        f"{median_of_others:.1g} nats.",
        evidence=_id_evidence(outliers),
        also_possible=["eos-one-sided", "retokenised"],
        repaired=case.without_tokens(after),
    )


def _mask_drops_last(features: Features) -> Suspicion | None:
    """Look for responses whose last token is the same in all rows, and masked."""
    case = features.case
    rows = np.flatnonzero(case.lengths > 1)
    if len(rows) < FEWEST:
        return None
    mask = case.table_mask
    last = case.start[rows] + case.lengths[rows] - 1
    masked = ~mask[last]
    ids, counts = np.unique(case.token_id[last][masked], return_counts=True)
    if not len(ids) or counts.max() < MOST * len(rows):
        return _end_cut(case, rows)
    end = int(ids[counts.argmax()])
    here = case.token_id == end
    before = mask[case.start[rows] + case.lengths[rows] - 2].mean()
    if here.sum() > LARGER * counts.max() or before < NEARLY_ALL:
        return None  # a token of the chat template, which also ends the turns of tools
    return Suspicion(
        confidence=LIKELY,
        message=f"Token {end} ends {counts.max()} of {len(rows)} responses and is masked in them: "
        "the policy is not trained to end.",
        evidence=[
            fact(
                f"responses that end with a masked token {end}",
                "the end token is masked",
                share=counts.max() / len(rows),
            )
        ],
        side="trainer",
        share_of_rows=float(counts.max() / len(rows)),
        also_possible=[],
        repaired=case,  # all other tokens are as they should be
    )


def _end_cut(case: Case, rows: np.ndarray) -> Suspicion | None:
    """Look for responses with the finish reason stop that do not share a last token."""
    reasons = case.facts.finish_reason
    if reasons is None:
        return None
    stopped = np.array([row for row in rows if str(reasons[row]).lower() == "stop"], np.int64)
    if len(stopped) < FEWEST:
        return None
    last = case.start[stopped] + case.lengths[stopped] - 1
    mask = case.table_mask
    counts = np.sort(np.unique(case.token_id[last], return_counts=True)[1])[::-1]
    most = float(counts[:FEWEST_OF_PATTERN].sum() / len(stopped))
    if len(counts) <= FEWEST_OF_PATTERN or most > MOST or mask[last].mean() < NEARLY_ALL:
        return None
    # Real text ends with fewer distinct tokens than it contains; otherwise the ids are no text.
    spread = spread_over(len(case.token_id), len(stopped))
    if len(counts) > MOST * len(np.unique(case.token_id[spread])):
        return None
    return Suspicion(
        confidence=LIKELY,
        message=f"{len(stopped)} responses have the finish reason stop and end with {len(counts)} "
        "different tokens: the end token was cut off, so that the policy is not trained to end.",
        evidence=[
            fact(
                "last tokens of responses that stopped",
                "no end token among them",
                different=len(counts),
                share_of_the_commonest=counts[0] / len(stopped),
            )
        ],
        side="recorder",
        share_of_rows=float(len(stopped) / len(rows)),
        also_possible=[],
        repaired=case,
    )


def _mask_includes_tool(features: Features) -> Suspicion | None:
    """Look for tokens that no policy would have sampled."""
    case = features.case
    if (spans := tool_spans(case)) is not None:
        return _missing_mask(case, spans)
    if case.trainer is None or len(case.tokens) < ENOUGH:
        return None
    zeros = _runs_of_zeros(features)
    return zeros or _ids_never_sampled(features) or _tokens_never_sampled(features)


def _missing_mask(case: Case, spans: Flags) -> Suspicion:
    """Report spans of NaN inside the responses of a table without a mask."""
    rows = len(np.unique(case.owner[spans]))
    return Suspicion(
        confidence=EXACT,
        message=f"The response mask is missing: {int(spans.sum()):,} tokens{case.drawn} have NaN "
        "log-probs in spans inside responses, as tool and template tokens do.",
        evidence=[
            fact(
                "NaN tokens in spans between sampled tokens",
                "no token is masked",
                tokens=spans.sum(),
                rows=rows,
            )
        ],
        share_of_rows=rows / max(len(case.lengths), 1),
        also_possible=["nan-log-probs"],
        repaired=replace(_with_tools_masked(case, spans), not_numbers={}),
    )


def _runs_of_zeros(features: Features) -> Suspicion | None:
    """Look for runs of recorded zeros at tokens that are uncertain for the trainer.

    Placeholder zeros are scattered; zeros at the text of a tool form runs.
    """
    tokens = features.case.tokens
    trainer, zero = np.minimum(tokens.trainer, 0.0), tokens.sampler == 0.0
    if zero.mean() <= FEW or np.median(trainer[zero]) >= UNSURE:
        return None
    runs = _long_runs(tokens.owner, zero)
    # A response of zeros only was never recorded; tool text is only a part of a response.
    runs &= (tokens.row_sums(zero) < tokens.per_row)[tokens.owner]
    if runs.sum() <= HALF * zero.sum():
        return None
    stretches = float(np.mean(runs[zero & (trainer < UNSURE)]))
    return Suspicion(
        confidence=EXACT if stretches > NEARLY_ALL else LIKELY,
        message=f"{int(runs.sum()):,} tokens{features.case.drawn} are recorded as exactly 0 in "
        "runs, and the trainer gives them a median probability of "
        f"{np.exp(np.median(trainer[runs])):.2g}: text of tools or templates that the mask counts "
        "as sampled.",
        evidence=[
            fact(
                "tokens in runs of zeros",
                "the policy did not sample them",
                tokens=runs.sum(),
                trainer=np.median(trainer[runs]),
            )
        ],
        also_possible=["zero-placeholder"],
        repaired=_with_tools_masked(
            features.case, features.case.flagged(runs | _short_runs(features, zero))
        ),
    )


def _ids_never_sampled(features: Features) -> Suspicion | None:
    """Look for token ids that occur far more often than their probability on both sides allows.

    Markers of tool outputs are an example: both sides score them, and no policy sampled them.
    In long tables rare ids are sampled as well: of N tokens at most about N p have a probability of
    p or less. Half of a marker's tokens have its median probability or less; the marker was not
    sampled if their number is far above N times that probability.
    """
    tokens = features.case.tokens
    likelier = np.minimum(np.maximum(tokens.sampler, tokens.trainer), 0.0)
    rare, times = np.unique(tokens.token_id[likelier < HARDLY_EVER], return_counts=True)
    rare = rare[times >= FEWEST - FEWEST // 10]
    if not len(rare):
        return None
    of_rare = np.flatnonzero(np.isin(tokens.token_id, rare))
    order = of_rare[np.lexsort((likelier[of_rare], tokens.token_id[of_rare]))]
    ids, counts = np.unique(tokens.token_id[of_rare], return_counts=True)
    ends = np.cumsum(counts)
    # Ignore the likeliest tenth of an id's tokens: the id may occur in responses as well.
    high = likelier[order][ends - 1 - counts // 10]
    middle = likelier[order][ends - 1 - counts // 2]
    too_often = counts / 2 >= MANY_TIMES * len(tokens) * np.exp(middle)
    foreign = (counts >= FEWEST) & too_often & (high < HARDLY_EVER)
    for index in np.flatnonzero(foreign):
        rows = np.unique(tokens.owner[order[ends[index] - counts[index] : ends[index]]])
        # A tool marks every row that calls it; by chance a rare token is in few rows.
        foreign[index] = len(rows) >= FEW * (tokens.per_row > 0).sum()
    named = np.isin(tokens.token_id, ids[foreign])
    apart = np.abs(tokens.log_ratio[named])
    if not foreign.any() or np.median(apart) > LARGE:
        return None
    text = listed(ids[foreign].tolist(), SHOWN)
    which = f"Token ids {text} occur" if foreign.sum() > 1 else f"Token id {text} occurs"
    return _unmasked(
        features,
        named,
        f"{which} {int(named.sum()):,} times in sampled text{features.case.drawn}, and both sides "
        f"give {np.exp(np.median(likelier[named])):.1g} as the probability there",
    )


def _tokens_never_sampled(features: Features) -> Suspicion | None:
    """Look for tokens of any id that both sides call too unlikely to be sampled."""
    tokens = features.case.tokens
    likelier = np.minimum(np.maximum(tokens.sampler, tokens.trainer), 0.0)
    lowest = lowest_drawn(max(len(tokens), 1))
    never = likelier < lowest
    if never.sum() < FEWEST_OF_PATTERN or np.median(np.abs(tokens.log_ratio[never])) > LARGE:
        return None
    first = features.case.flawed(features.case.flagged(never))
    return _unmasked(
        features,
        never,
        f"{int(never.sum()):,} of {len(tokens):,} tokens{features.case.drawn} have a probability "
        f"below {np.exp(lowest):.0e} on both sides, the first in row {first.row}, token "
        f"{first.position}; a sampler draws none",
    )


def _unmasked(features: Features, named: Flags, found: str) -> Suspicion:
    """Report flagged tokens of the pair as text that nobody sampled; all rare ones are masked."""
    tokens = features.case.tokens
    likelier = np.minimum(np.maximum(tokens.sampler, tokens.trainer), 0.0)
    tools = features.case.flagged(likelier < RARE)
    return Suspicion(
        confidence=LIKELY,
        message=f"{found}: text of tools or templates that the mask counts as sampled.",
        evidence=[
            fact(
                "log-prob of tokens that the policy never samples",
                "a tool or a template wrote them",
                tokens=named.sum(),
                median=np.median(likelier[named]),
            )
        ],
        share_of_rows=float(np.mean(np.bincount(tokens.owner[named], minlength=tokens.rows) > 0)),
        also_possible=["temperature-silent"],
        repaired=replace(_with_tools_masked(features.case, tools), without_rare=True),
    )


def _short_runs(features: Features, zero: Flags) -> Flags:
    """Flag runs of two or more zeros with at least one token that is rare for the trainer."""
    tokens = features.case.tokens
    runs = _long_runs(tokens.owner, zero, least=2)
    number = np.cumsum(np.diff(runs, prepend=False) | (np.diff(tokens.owner, prepend=-1) != 0))
    flags: Flags = runs & (np.bincount(number, tokens.trainer < RARE)[number] > 0)
    return flags


def _with_tools_masked(case: Case, tools: Flags) -> Case:
    """Return the case with the text of tools masked; each such span then separates two turns."""
    return replace(case.without_tokens(tools), own_mask=case.table_mask & ~tools)


def _long_runs(owner: np.ndarray, flags: np.ndarray, least: int = 4) -> np.ndarray:
    """Flag the tokens of runs of at least `least` flagged tokens of one row."""
    begins = flags & np.concatenate([[True], (owner[1:] != owner[:-1]) | ~flags[:-1]])
    number = np.cumsum(begins) * flags
    counts = np.bincount(number)
    counts[0] = 0
    values: np.ndarray = counts[number] >= least
    return values


MASK_INCLUDES_TOOL = shipped("mask-includes-tool", "storage", _mask_includes_tool, needs_two=False)
SAMPLED_TOKENS = (
    shipped("mask-drops-last", "alignment", _mask_drops_last, needs_two=False),
    shipped("eos-one-sided", "alignment", _eos_one_sided),
    shipped("special-token-ids", "alignment", _special_ids),
)
