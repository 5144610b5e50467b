"""Values that stand for a missing log-prob: NaN, a sentinel, an exact 0."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np

from rcdiag.diagnosis.case import Array, Case, Flags, FlawedTokens
from rcdiag.diagnosis.causes.cause import CLEAR, EXACT, LIKELY, WEAK, Suspicion, fact, shipped
from rcdiag.diagnosis.causes.columns import (
    GAP,
    SENTINELS,
    by_column,
    columns_of_pair,
    lowest_drawn,
    share_of_rows,
    side_of,
    without_values,
)
from rcdiag.diagnosis.causes.kept_sets import sets_of_one
from rcdiag.diagnosis.causes.sampled_tokens import last_zeros, tool_spans
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.alignment import sqrt_surprisal
from rcdiag.diagnosis.features.storage import StoredColumn
from rcdiag.diagnosis.thresholds import (
    CERTAIN,
    EQUAL,
    FEW,
    FEWEST,
    FEWEST_OF_PATTERN,
    FEWEST_ROWS,
    HALF,
    HARDLY_EVER,
    MOST,
    NEARLY_ALL,
    PART,
    RARE,
    SURE,
    UNRELATED,
    UNSURE,
)
from rcdiag.formats import plural
from rcdiag.statistics.extremes import SMALLEST_LOG_PROB, impossible

# Log of the smallest positive float32, 1.4e-45: a probability below it is 0, and is never sampled.
UNDERFLOW = float(np.log(np.finfo(np.float32).smallest_subnormal))
# Nats; a softmax whose sum lacks the part of the vocabulary that has the sampled token adds up to
# minus the log of the probability of all other parts, which falls to e^-15 at near-certain tokens.
MOST_ADDED = 15.0


def _nan_log_probs(features: Features) -> Suspicion | None:
    """Find values that no log-prob can have; many finite ones may be those of a whole column."""
    # Rows in which nearly all values are positive hold another quantity: other causes name it.
    columns = [
        (policy, column, impossible(column.values) & ~column.in_positive_rows)
        for policy, column in columns_of_pair(features)
    ]
    spoilt = [entry for entry in columns if entry[2].any() or entry[0] in features.case.not_numbers]
    if not spoilt or tool_spans(features.case) is not None:
        return None
    bad = np.any([flags for *_, flags in spoilt], axis=0)
    flawed = {policy: _flawed(features, policy, column, flags) for policy, column, flags in spoilt}
    first_policy, column, _ = spoilt[0]
    finite = np.all(
        [column.finite & (column.values < MOST_ADDED) for _, column, _ in spoilt], axis=0
    )
    return Suspicion(
        confidence=EXACT if (bad & ~finite).any() else LIKELY if np.mean(bad) < FEW else WEAK,
        message=" ".join(_no_log_probs(policy, kinds) for policy, kinds in flawed.items()),
        evidence=[
            fact(
                "tokens without a log-prob",
                "a log-softmax of finite logits is finite and at most 0",
                **{
                    policy: sum(one.tokens for one in kinds.values())
                    for policy, kinds in flawed.items()
                },
                first_row=min(one.row for kinds in flawed.values() for one in kinds.values()),
            )
        ],
        side=side_of(features, first_policy),
        share_of_rows=share_of_rows(column, bad),
        also_possible=[],
        repaired=_without_damaged_rows(features.case, bad, finite),
    )


def _without_damaged_rows(case: Case, bad: Flags, finite: Flags) -> Case:
    """Return the case without the rows that have bad values; flags are [sampled tokens].

    The metrics are computed without these rows, so the later causes are weighed without them too.
    Where fewer than half of the rows would remain there are no metrics, and only the values go.
    Of finite ones more than a FEW stay, as a fault of the whole column may make them: a softmax sum
    that lacks a part of the vocabulary gives positive log-probs in every row.
    """
    owner = case.owner[case.mask]
    rows, sampled = (np.bincount(part, minlength=len(case.lengths)) for part in (owner[bad], owner))
    if 2 * np.count_nonzero(rows) <= np.count_nonzero(sampled):
        return without_values(case, bad).without_rows(rows > 0)
    few = np.mean(bad & finite) < FEW
    return without_values(case, bad if few else bad & ~finite)


def _flawed(
    features: Features, policy: str, column: StoredColumn, flags: Flags
) -> dict[str, FlawedTokens]:
    """Return the values of a column that are no log-probs, by kind.

    NaN and infinite ones were counted in the whole table, the others are of the rows read.
    """
    case = features.case
    finite = flags & column.finite
    kinds = {
        "positive": finite & (column.values > 0),
        f"below {SMALLEST_LOG_PROB:g}": finite & (column.values < 0),
    }
    found = {
        f"{kind}{case.drawn}": case.flawed(case.of_sampled(tokens))
        for kind, tokens in kinds.items()
        if tokens.any()
    }
    return dict(case.not_numbers.get(policy, {})) | found


def _no_log_probs(policy: str, flawed: Mapping[str, FlawedTokens]) -> str:
    """Say how many values of a column are no log-probs, of what kind, and where the first is."""
    counts = [
        f"{plural(one.tokens, 'log-prob')} of `{policy}` {'is' if one.tokens == 1 else 'are'} "
        f"{kind} ({'' if one.tokens == 1 else 'first: '}row {one.row}, token {one.position})"
        for kind, one in flawed.items()
    ]
    return f"{'; '.join(counts)}."


@by_column
def _sentinel(features: Features, policy: str, column: StoredColumn) -> Suspicion | None:
    values = column.values
    ones = values == 1.0
    if ones.sum() >= 2 and np.mean(ones[column.positive]) > NEARLY_ALL:
        return _no_value(features, policy, column, ones)
    if column.one_value:
        return _no_value(features, policy, column, values == column.one_value)
    for value, count in (column.least, column.mode):
        known = value in SENTINELS
        if count < (2 if known else FEWEST_OF_PATTERN) or value > HARDLY_EVER:
            continue
        others = values[values != value]
        if known or value < others.min(initial=0.0) - GAP:
            return _no_value(features, policy, column, values == value)
    never = _never_drawn(column)
    return _no_value(features, policy, column, never) if never.any() else None


def _never_drawn(column: StoredColumn) -> Flags:
    """Flag a few values, far below all others, that no sampled token has, [tokens].

    Tokens that both sides call that unlikely may be forced, and stay, unless both probabilities are
    0 in float32. None is flagged if more than FEW are, or if the others differ as much: wrong
    tokens or contexts may make these.
    """
    values = column.values
    numbers = column.finite & (values >= SMALLEST_LOG_PROB)
    zero = numbers & (values < UNDERFLOW)
    single = numbers & ~zero & (values < lowest_drawn(len(values)))
    single &= ~(column.other - values < GAP)
    if (zero | single).mean() > FEW:
        return np.zeros(len(values), np.bool_)
    apart = np.nan_to_num(column.other - values) ** 2
    if apart[single].sum() < MOST * apart[~zero].sum():
        single[:] = False
    never = zero | single
    highest = max(float(values[never].max(initial=-np.inf)), UNDERFLOW)
    alone = values[numbers & ~never].min(initial=0.0) > highest / 2
    return never if alone else np.zeros(len(values), np.bool_)


def _no_value(features: Features, policy: str, column: StoredColumn, here: Flags) -> Suspicion:
    """Report values that stand for missing log-probs, or that no sampled token can have."""
    case, values = features.case, column.values[here]
    first = case.flawed(case.of_sampled(here))
    value, place = float(values[0]), f"row {first.row}, token {first.position}"
    repeated = len(values) > 1 and np.ptp(values) == 0.0
    never = "no sampler draws so unlikely a token"
    if repeated:
        message = (
            f"{len(values):,} values of `{policy}`{case.drawn} are exactly {value:,g}, which marks "
            f"a missing value; the first is in {place}."
        )
    elif len(values) == 1:
        other = float(column.other[here][0])  # NaN where there is no other column
        names = [name for name in features.columns if name != policy]
        beside = f" where `{names[0]}` is {other:.3g}" if other > UNDERFLOW else ""
        message = f"In {place}, `{policy}` is {value:,g}{beside}: {never}."
    else:
        message = (
            f"{len(values):,} values of `{policy}`{case.drawn} are {ceil(max(values)):,} or less, "
            f"the first in {place}: {never}."
        )
    return Suspicion(
        confidence=EXACT if value in SENTINELS else CLEAR,
        message=message,
        evidence=[
            fact(
                "exact repeats of one value" if repeated else "values far below all others",
                "a sentinel" if repeated else "damaged, not sampled",
                value=int(value) if value.is_integer() else value,
                **{policy: len(values)},
                first_row=first.row,
            )
        ],
        share_of_rows=share_of_rows(column, here),
        also_possible=[],
        repaired=without_values(case, here),
    )


@by_column
def _placeholder_zeros(features: Features, policy: str, column: StoredColumn) -> Suspicion | None:
    if column.one_value == 0.0 and not column.other_is_informative:
        return _nothing_but_zeros(features, policy, column)
    at_edges = _zero_positions(features, column)
    if at_edges.any():
        begins, ends = _at_the_edges(features, column.values == 0.0, at_edges)
        where = f", at the {_edge(begins, ends)} tokens of nearly all rows"
        return _placeholders(features, policy, column, at_edges, where)
    unlikely, zero = column.other < UNSURE, column.values == 0.0
    zeros = zero & unlikely
    if zeros.sum() < FEWEST_OF_PATTERN or last_zeros(features) is not None:
        return None
    # A kept set of one token gives exact zeros too, but hardly ever where the other side is unsure.
    # Placeholders are as frequent at uncertain tokens as at others.
    unsure = column.other < CERTAIN
    rare = unlikely.sum() / max(int(unsure.sum()), 1)
    if zeros.sum() < PART * rare * (unsure & zero).sum():
        return None
    in_these_rows = np.isin(column.row_of, column.row_of[zeros])
    others = (column.values < 0) & (column.other < SURE) & in_these_rows
    if others.any() and _unrelated(column.values[others], column.other[others]):
        return None  # rows are swapped or shifted: zeros of certain tokens stand at other tokens
    begins, ends = _at_the_edges(features, zero, zeros)
    if begins + ends > NEARLY_ALL and _in_shifted_rows(features, column, zeros):
        return None
    # The other side is sure of most tokens that are alone in their kept sets; of some it is not
    # where it does not see their context.
    mostly_sure = sets_of_one(features, policy) and np.median(column.other[zero]) > UNSURE
    if mostly_sure and np.median(column.other[zeros]) < RARE:
        return None
    where = ""
    if begins + ends > NEARLY_ALL:
        rows = plural(len(np.unique(column.row_of[zeros])), "row")
        where = f", at the {_edge(begins, ends)} tokens of {rows}"
    return _placeholders(features, policy, column, zero, where)


def _edge(begins: float, ends: float) -> str:
    """Name the edges of rows at which these shares of the chosen tokens are."""
    return "first" if begins > NEARLY_ALL else "last" if ends > NEARLY_ALL else "first and last"


def _zero_positions(features: Features, column: StoredColumn) -> Flags:
    """Flag the first and last tokens of rows that are exactly 0 in nearly all rows, [tokens].

    None is flagged where this is no sign of a placeholder: where those tokens have one id, like a
    forced beginning or the end token; where the other side is sure of them too; where unlikely
    tokens are 0 at other positions as well; and in rows that are shifted.
    """
    zeros, rows = column.values == 0.0, column.row_lengths
    from_start = np.arange(len(zeros)) - np.repeat(column.row_starts, rows)
    flags = np.zeros(len(zeros), np.bool_)
    for place in (from_start, np.repeat(rows, rows) - 1 - from_start):
        count = np.bincount(place)
        usual = np.bincount(place, zeros) > NEARLY_ALL * count
        run = int(np.argmin(np.append(usual & (count >= FEWEST_ROWS), False)))
        flags |= place < run
    unlikely = column.other < UNSURE
    ids = np.unique(features.case.token_id[features.case.mask][flags], return_counts=True)[1]
    none = np.zeros(len(zeros), np.bool_)
    if not flags.any() or ids.max() > NEARLY_ALL * ids.sum():
        return none
    here, elsewhere = (zeros & unlikely)[flags], unlikely & ~flags
    if here.sum() < FEWEST_OF_PATTERN or here.mean() < PART * float(unlikely.mean()):
        return none
    if zeros[elsewhere].sum() > PART * elsewhere.sum():
        return none
    return none if _in_shifted_rows(features, column, flags) else flags


def _in_shifted_rows(features: Features, column: StoredColumn, tokens: Flags) -> bool:
    """Tell whether more than a few of the rows with flagged tokens fit better when shifted."""
    if features.case.trainer is None:
        return False
    alignment = features.alignment
    of_them = np.isin(alignment.row_of_turn, column.row_of[tokens]) & alignment.long_enough
    return bool(of_them.any()) and float(np.mean(alignment.shift[of_them] != 0)) > PART


def _placeholders(
    features: Features, policy: str, column: StoredColumn, here: Flags, where: str
) -> Suspicion:
    """Report zeros that stand for missing log-probs; `where` says at which tokens they are."""
    unlikely = column.other < UNSURE
    zeros = here & (column.values == 0.0) & unlikely
    other = column.other[zeros]
    return Suspicion(
        confidence=EXACT,
        message=f"{int((here & (column.values == 0.0)).sum()):,} values of `{policy}`"
        f"{features.case.drawn} are exactly 0{where}, {int(zeros.sum()):,} of them where the other "
        f"side gives tokens a median probability of {np.exp(np.median(other)):.2g}: placeholders.",
        evidence=[
            fact(
                "exact zeros at uncertain tokens",
                "a log-prob of 0 means certainty",
                **{policy: zeros.sum()},
                of=unlikely.sum(),
            )
        ],
        share_of_rows=share_of_rows(column, zeros),
        also_possible=["mask-includes-tool"] if np.median(other) < RARE else [],
        repaired=without_values(features.case, here),
    )


def _padding(features: Features) -> Suspicion | None:
    """Look for rows that end with repeats of one token, recorded as exactly 0 on both sides."""
    case = features.case
    sides = [case.log_probs[name] for name in (case.sampler, case.trainer) if name]
    zero = case.mask & np.all([values == 0.0 for values in sides], axis=0)
    last = case.start + case.lengths - 1
    last = last[(case.lengths > 1) & zero[last.clip(0)]]
    if len(sides) < 2 or len(last) < FEWEST_ROWS:
        return None
    ids, counts = np.unique(case.token_id[last], return_counts=True)
    padding = zero & (case.token_id == ids[counts.argmax()])
    repeated = int(np.count_nonzero(padding[last] & padding[last - 1]))
    # A sampled token id occurs elsewhere too; padding is one run at the end of its row.
    runs = int(np.count_nonzero(padding & ~np.append(padding[1:], False)))
    if repeated < max(FEWEST_ROWS, HALF * len(last)) or runs > len(last):
        return None
    if padding.sum() < NEARLY_ALL * zero.sum():
        return None  # other tokens are certain too, as with kept sets of one token on both sides
    return Suspicion(
        confidence=EXACT,
        message=f"{repeated:,} rows{case.drawn} end with repeats of token {ids[counts.argmax()]}, "
        f"for which both sides record exactly 0, {int(padding.sum()):,} tokens in all: padding "
        "that the mask counts as sampled.",
        evidence=[fact("padding at the end of rows", "no policy sampled it", rows=repeated)],
        side="recorder",
        share_of_rows=repeated / max(len(case.lengths), 1),
        also_possible=["mask-includes-tool"],
        repaired=case.without_tokens(padding),
    )


def _nothing_but_zeros(features: Features, policy: str, column: StoredColumn) -> Suspicion:
    """Report a column of zeros where the other column holds no log-probs either."""
    return Suspicion(
        confidence=EXACT,
        message=f"All {len(column.values):,} values of `{policy}` are exactly 0: placeholders, as "
        "no model is certain of every token.",
        evidence=[
            fact(
                "exact zeros",
                "a log-prob of 0 means certainty",
                **{policy: len(column.values)},
                of=len(column.values),
            )
        ],
        also_possible=[],
        repaired=without_values(features.case, column.values == 0.0),
    )


def _unrelated(values: Array, other: Array) -> bool:
    """Tell whether two columns, without their zeros, are nearly uncorrelated."""
    one, two = sqrt_surprisal(values), sqrt_surprisal(other)
    if len(one) < FEWEST or min(np.std(one), np.std(two)) < EQUAL:
        return False
    return float(np.corrcoef(one, two)[0, 1]) < UNRELATED


def _at_the_edges(features: Features, zeros: Flags, chosen: Flags) -> tuple[float, float]:
    """Return the shares of chosen tokens in runs of zeros at the start and at the end of rows."""
    owner = features.case.owner[features.case.mask]
    begins = np.concatenate([[True], owner[1:] != owner[:-1]])
    ends = np.append(begins[1:], True)
    run = np.cumsum(np.concatenate([[True], zeros[1:] != zeros[:-1]]) | begins)
    at_begin, at_end = np.bincount(run, begins) > 0, np.bincount(run, ends) > 0
    # The zeros of a row that has nothing else touch both ends: these are placeholders.
    return (
        float(np.mean((at_begin & ~at_end)[run][chosen])),
        float(np.mean((at_end & ~at_begin)[run][chosen])),
    )


NAN_LOG_PROBS = shipped("nan-log-probs", "storage", _nan_log_probs, needs_two=False)
SENTINEL = shipped("sentinel", "storage", _sentinel, needs_two=False)
ZERO_PLACEHOLDER = shipped(
    "zero-placeholder",
    "storage",
    lambda features: _padding(features) or _placeholder_zeros(features),
    needs_two=False,
)
