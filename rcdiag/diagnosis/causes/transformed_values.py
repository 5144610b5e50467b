"""Storage faults: the values of a column are not what was computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from rcdiag.diagnosis.case import Array, Case, Flags
from rcdiag.diagnosis.causes.cause import Suspicion, fact, shipped
from rcdiag.diagnosis.causes.kept_sets import sets_of_one
from rcdiag.diagnosis.causes.recording import holds_entropy
from rcdiag.diagnosis.causes.sampled_tokens import tool_spans
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.alignment import sqrt_surprisal
from rcdiag.diagnosis.features.storage import LOG_BASES, StoredColumn
from rcdiag.statistics.extremes import LARGEST_LOG_PROB

CERTAIN = 0.98
# Multiple of the rounding error above which log-ratios have another cause as well.
BEYOND_ROUNDING = 1.5
# Another base makes values = factor * other up to noise: tolerance on the log of the median factor,
# and the largest residual rms / rms.
NEAR_THE_BASE, MOST_LEFT_BY_BASE = 0.05, 0.35
TEMPERATURES = np.arange(1, 21) / 10  # that runs are set to; divided log-probs are multiples too
# Quantiles of two columns, and how far their logarithms are apart at most where they are alike.
ODDS, ALIKE = (0.02, 0.05, 0.1, 0.2), 0.35
# Gap between a sentinel value and all others, nats.
GAP = 5.0
# Nats between the two sides that selection by log-prob cannot explain.
FAR = 4.0
# Nats from which on no log-prob of a token that both sides are sure of is 0 by rounding.
UNSURE = 1e-2
# Nats; tokens that were sampled and accepted have more than that on the median.
HARDLY = -4.0
# Rows that end with repeated padding: how many tell, and their share of the rows that end with it.
FEWEST_PADDED, LEAST_PADDED = 8, 0.5
ALL_OF_ZEROS = 0.9  # share of the tokens of which both sides are certain that are padding
# Share of zeros in runs at the edges of rows, from which on that is where they are.
AT_EDGES = 0.95
# Numbers that programs write where there is no log-prob.
SENTINELS = (1.0, -9999.0, -1000.0, -999.0, -100.0, -1e4, -1e6, -1e9, -1e10, -10000.0)


def _columns(features: Features) -> Iterator[tuple[str, StoredColumn]]:
    """Yield the columns of the pair that hold a value, with their policies."""
    for policy, column in features.columns.items():
        if len(column.values) >= 20:
            yield policy, column


def _side(features: Features, policy: str) -> str:
    return "recorder" if policy == features.case.sampler else "trainer"


def _repaired(case: Case, policy: str, change: Callable[[Array], Array]) -> Case:
    """Return the case with one policy's values changed back."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return case.with_log_probs(policy, change(case.log_probs[policy]))


def _without(case: Case, tokens: Flags) -> Case:
    """Return the case without the values of some of its sampled tokens; [sampled tokens]."""
    flags = np.zeros(len(case.mask), np.bool_)
    flags[np.flatnonzero(case.mask)[tokens]] = True
    return case.without_values(flags)


def _rows_with(column: StoredColumn, tokens: Flags) -> float:
    """Return the share of rows that hold one of some tokens."""
    return len(np.unique(column.row_of[tokens])) / max(len(column.row_starts), 1)


def _nan_log_probs(features: Features) -> Suspicion | None:
    spoilt = [entry for entry in _columns(features) if entry[0] in features.case.not_numbers]
    if not spoilt or tool_spans(features.case) is not None:
        return None
    bad = np.any([~column.finite for _, column in spoilt], axis=0)
    first_policy, column = spoilt[0]
    return Suspicion(
        confidence=CERTAIN,
        message=" ".join(_no_numbers(features, policy, column) for policy, column in spoilt),
        evidence=[
            fact(
                "tokens without a number",
                "never so in a log-softmax of finite logits",
                **{policy: features.case.not_numbers[policy][0] for policy, _ in spoilt},
                first_row=min(features.case.not_numbers[policy][1] for policy, _ in spoilt),
            )
        ],
        side=_side(features, first_policy),
        share_of_rows=_rows_with(column, bad),
        also_possible=[],
        mended=_without(features.case, bad),
    )


def _no_numbers(features: Features, policy: str, column: StoredColumn) -> str:
    """Say how many log-probs of a column are no numbers, and where the first stands."""
    count, first = features.case.not_numbers[policy]
    values = column.values[~column.finite]
    what = "NaN" if np.isnan(values).all() else "NaN or infinite"
    if len(values) and np.isinf(values).all():
        what = "infinite"
    if count == 1:
        return f"One log-prob of `{policy}` is {what}; it stands in row {first}."
    return f"{count:,} log-probs of `{policy}` are {what}; the first stands in row {first}."


def _sign_flipped(features: Features) -> Suspicion | None:
    for policy, column in _columns(features):
        positive = column.values > 0
        if np.mean(positive[column.values != 0] if (column.values != 0).any() else False) < 0.95:
            continue
        if holds_entropy(features, policy):
            continue
        # If both columns lost their sign, neither can confirm the other.
        alone = not column.other_is_informative
        if alone and np.max(column.values, initial=0.0, where=column.finite) <= 1.0:
            continue  # probabilities
        rare = column.values[column.other < -3.0]
        # Rare tokens have entropies of a nat or two, and surprisals above.
        far = len(rare) > 10 and np.median(rare) > 2.2
        if not (alone or _like(-column.values, column.other) or far):
            continue
        return Suspicion(
            confidence=CERTAIN,
            message=f"The values of `{policy}` are positive, and minus them they are log-probs.",
            evidence=[
                fact(
                    "share of positive values",
                    "no log-prob is positive",
                    **{policy: float(np.mean(positive))},
                )
            ],
            side=_side(features, policy),
            also_possible=[],
            policy=policy,
            mended=_repaired(features.case, policy, np.negative),
        )
    return None


def _probabilities(features: Features) -> Suspicion | None:
    for policy, column in _columns(features):
        values = column.values[column.finite]
        inside = np.mean((values >= 0) & (values <= 1 + 1e-6)) if len(values) else 0.0
        if inside < 0.99 or np.mean(values > 0) < 0.9 or column.one_value is not None:
            continue
        # Most tokens are likely ones, and most of them in contexts of little entropy.
        likely = float(np.median(values)) > 0.5 and float(values.max()) > 0.98
        with np.errstate(divide="ignore", invalid="ignore"):
            if not likely and not _like(np.log(column.values), column.other):
                continue
        return Suspicion(
            confidence=CERTAIN,
            message=f"The values of `{policy}` lie between 0 and 1: they are probabilities, and "
            "their logarithms are log-probs.",
            evidence=[
                fact("share of values from 0 to 1", "probabilities", **{policy: float(inside)})
            ],
            side=_side(features, policy),
            also_possible=[],
            policy=policy,
            mended=_repaired(features.case, policy, np.log),
        )
    return None


def _like(values: Array, other: Array) -> bool:
    """Tell whether values follow another policy's log-probs; True where there is no other."""
    usable = np.isfinite(values) & np.isfinite(other) & (other < -1e-3) & (values < -1e-6)
    if not np.isfinite(other).any():
        return True
    if usable.sum() < 20:
        return False
    one, two = np.log(-values[usable]), np.log(-other[usable])
    if float(np.corrcoef(one, two)[0, 1]) > 0.6 and abs(float(np.median(one - two))) < 0.7:
        return True
    # Beside the wrong tokens they are of the same sizes still.
    every = [values[np.isfinite(values)], other[np.isfinite(other)]]
    sizes, others = (np.log(np.maximum(-np.quantile(part, ODDS), 1e-9)) for part in every)
    return bool(np.abs(sizes - others).max() < ALIKE)


def _log_base(features: Features) -> Suspicion | None:
    for policy, column in _columns(features):
        k, residual = column.multiple()
        for base, factor in LOG_BASES.items():
            # Base 10 makes numbers smaller by ln 10, base 2 larger by 1 / ln 2.
            ratio = 1 / np.log(10.0) if base == 10 else factor
            # Without noise the factor is exact: 0.7, a usual temperature, is not ln 2.
            if max(column.positive.mean(), np.mean(column.other > LARGEST_LOG_PROB)) > 0.01:
                continue  # no logarithm of a probability, whatever the base
            if residual > MOST_LEFT_BY_BASE or not _nearest_to_base(k, ratio):
                continue
            if column.is_no_factor(ratio) or _by_temperature(features, k, ratio):
                continue
            return Suspicion(
                confidence=0.97,
                message=f"The values of `{policy}` are {k:.4f} times the other side's: logarithms "
                f"of base {base}.",
                evidence=[fact("ratio of the columns", f"1 / ln {base} = {ratio:.4f}", ratio=k)],
                side=_side(features, policy),
                also_possible=["log-probs-divided"],
                mended=_repaired(features.case, policy, partial(np.multiply, 1.0 / ratio)),
            )
    return None


def _nearest_to_base(k: float, ratio: float) -> bool:
    """Tell whether a factor is near that of a base, and nearer than to that of a temperature."""
    if not k > 0:
        return False
    off = abs(np.log(k / ratio))
    others = np.abs(np.log(np.concatenate([TEMPERATURES, 1 / TEMPERATURES]) / k))
    return bool(off < NEAR_THE_BASE and off < others.min())


def _by_temperature(features: Features, k: float, ratio: float) -> bool:
    """Tell whether the temperature that rows declare is as near to a factor as the base is."""
    declared = features.declared.row_temperature
    if declared is None or declared <= 0 or not k > 0:
        return False
    found: bool = abs(abs(np.log(k)) - abs(np.log(declared))) <= abs(np.log(k / ratio))
    return found


def _cumulative(features: Features) -> Suspicion | None:
    for policy, column in _columns(features):
        if np.mean(column.values == 0) > 0.5 or np.mean(column.finite) < 0.5:
            continue
        constant, falling = column.constant_rows, column.falling_rows
        if column.one_value is not None:
            continue  # a mean of every row is a number of every row
        if constant > 0.9:
            return Suspicion(
                confidence=0.97,
                message=f"Every token of a row has the same value in `{policy}`: the row's mean "
                "or sum stands at each of its tokens.",
                evidence=[
                    fact(
                        "share of rows with one value",
                        "log-probs of tokens vary",
                        **{policy: constant},
                    )
                ],
                side=_side(features, policy),
                also_possible=[],
                mended=features.case.without_tokens(np.ones(len(features.case.mask), np.bool_)),
            )
        if falling > 0.9:
            return Suspicion(
                confidence=0.97,
                message=f"The values of `{policy}` never rise within a row: they are running sums.",
                evidence=[
                    fact(
                        "share of rows that only fall",
                        "running sums of log-probs",
                        **{policy: falling},
                    )
                ],
                side=_side(features, policy),
                also_possible=[],
                policy=policy,
                mended=_differences(features.case, policy),
            )
    return None


def _differences(case: Case, policy: str) -> Case:
    """Return the case with running sums of one policy turned back into their terms."""
    values = case.log_probs[policy].copy()
    places = np.flatnonzero(case.mask)
    own = values[places]
    terms = np.diff(own, prepend=0.0)
    first = np.diff(case.owner[places], prepend=-1) != 0
    terms[first] = own[first]
    values[places] = terms
    return case.with_log_probs(policy, values)


def _do_not_belong(values: Array, other: Array) -> bool:
    """Tell whether two columns of tokens that are no zeros hardly have to do with each other."""
    if np.median(np.abs(values - other)) > 1.0:
        return True
    one, two = sqrt_surprisal(values), sqrt_surprisal(other)
    if len(one) < 50 or min(np.std(one), np.std(two)) < 1e-6:
        return False
    return float(np.corrcoef(one, two)[0, 1]) < 0.4


def _padding(features: Features) -> Suspicion | None:
    """Look for rows that end with repeats of one token of which both sides are exactly certain."""
    case = features.case
    sides = [case.log_probs[name] for name in (case.sampler, case.trainer) if name]
    zero = case.mask & np.all([values == 0.0 for values in sides], axis=0)
    last = case.start + case.lengths - 1
    last = last[(case.lengths > 1) & zero[last.clip(0)]]
    if len(sides) < 2 or len(last) < FEWEST_PADDED:
        return None
    ids, counts = np.unique(case.token_id[last], return_counts=True)
    padding = zero & (case.token_id == ids[counts.argmax()])
    repeated = int(np.count_nonzero(padding[last] & padding[last - 1]))
    # A sampled token id occurs elsewhere too; padding is one run at the end of its row.
    runs = int(np.count_nonzero(padding & ~np.append(padding[1:], False)))
    if repeated < max(FEWEST_PADDED, LEAST_PADDED * len(last)) or runs > len(last):
        return None
    if padding.sum() < ALL_OF_ZEROS * zero.sum():
        return None  # other tokens are certain too, as where both sides keep sets of one token
    return Suspicion(
        confidence=0.95,
        message=f"{repeated:,} rows end with repeats of token {ids[counts.argmax()]}, of which "
        f"both sides record exactly 0, {int(padding.sum()):,} tokens in all: padding that the mask "
        "counts as sampled.",
        evidence=[fact("padding at the end of rows", "no policy sampled it", rows=repeated)],
        side="recorder",
        share_of_rows=repeated / max(len(case.lengths), 1),
        also_possible=["mask-includes-tool"],
        mended=case.without_tokens(padding),
    )


def _placeholder_zeros(features: Features) -> Suspicion | None:
    if (padding := _padding(features)) is not None:
        return padding
    for policy, column in _columns(features):
        if column.one_value == 0.0 and not column.other_is_informative:
            return _nothing_but_zeros(features, policy, column)
        zeros = column.placeholder_zeros
        likely = int(np.sum(column.other < -0.9))
        if zeros.sum() < max(4, 0.01 * likely) or column.decimals in (1, 2):
            continue
        # A kept set of one token is exactly 0 too, but hardly ever where the other side is unsure;
        # and where that is certain as well, a log-prob is 0 by rounding.
        unsure = column.other < -UNSURE
        rare = likely / max(int(unsure.sum()), 1)
        if zeros.sum() < 0.25 * rare * (unsure & (column.values == 0.0)).sum():
            continue
        in_these_rows = np.isin(column.row_of, column.row_of[zeros])
        others = (column.values < 0) & (column.other < -0.05) & in_these_rows
        if others.any() and _do_not_belong(column.values[others], column.other[others]):
            continue  # rows are exchanged, or moved: zeros of sure tokens stand beside other tokens
        if (
            features.case.trainer is not None
            and np.mean(_moved(features)[column.row_of[zeros]]) > 0.5
        ):
            continue  # so they are where a low temperature leaves little that tells it otherwise
        begins, ends = _at_the_edges(features, column.values == 0.0, zeros)
        moved = features.case.trainer is not None and bool(features.alignment.shift.any())
        if begins + ends > AT_EDGES and (ends > 1 - AT_EDGES or moved):
            continue  # the end token, and rows that were moved, are causes of their own
        other = column.other[zeros]
        if sets_of_one(features, policy) and np.median(other) < HARDLY:
            continue  # certain tokens of kept sets, in contexts that the other side does not see
        return Suspicion(
            confidence=0.95,
            message=f"{int((column.values == 0).sum()):,} values of `{policy}` are exactly 0"
            f"{', at the first tokens of rows' if begins > AT_EDGES else ''}, "
            f"{int(zeros.sum()):,} of them where the other side gives the token "
            f"{np.exp(np.median(other)):.2g} on the median: placeholders.",
            evidence=[
                fact(
                    "exact zeros at uncertain tokens",
                    "a log-prob of 0 is certainty",
                    **{policy: int(zeros.sum())},
                    of=likely,
                )
            ],
            side=_side(features, policy),
            share_of_rows=_rows_with(column, zeros),
            also_possible=["mask-includes-tool"] if np.median(other) < -2 else [],
            mended=_without(features.case, column.values == 0.0),
        )
    return None


def _nothing_but_zeros(features: Features, policy: str, column: StoredColumn) -> Suspicion:
    """Suspect a column in which every token is certain, beside one that says no more."""
    return Suspicion(
        confidence=0.95,
        message=f"All {len(column.values):,} values of `{policy}` are exactly 0: placeholders, as "
        "no model is certain of every token.",
        evidence=[
            fact(
                "exact zeros",
                "a log-prob of 0 is certainty",
                **{policy: len(column.values)},
                of=len(column.values),
            )
        ],
        side=_side(features, policy),
        also_possible=[],
        policy=policy,
        mended=_without(features.case, column.values == 0.0),
    )


def _at_the_edges(features: Features, zeros: Flags, chosen: Flags) -> tuple[float, float]:
    """Return the shares of chosen tokens in runs of zeros at the begin and at the end of rows."""
    owner = features.case.owner[features.case.mask]
    begins = np.concatenate([[True], owner[1:] != owner[:-1]])
    ends = np.append(begins[1:], True)
    run = np.cumsum(np.concatenate([[True], zeros[1:] != zeros[:-1]]) | begins)
    at_begin, at_end = np.bincount(run, begins) > 0, np.bincount(run, ends) > 0
    # A row of zeros only touches both edges: these are placeholders.
    return (
        float(np.mean((at_begin & ~at_end)[run][chosen])),
        float(np.mean((at_end & ~at_begin)[run][chosen])),
    )


def _moved(features: Features) -> Flags:
    """Flag the rows whose columns fit better one token away, or in another row, [rows]."""
    alignment = features.alignment
    rows = len(features.case.lengths)
    shifted = np.bincount(alignment.row_of_turn[alignment.shift != 0], minlength=rows) > 0
    flags: Flags = shifted | (alignment.best_row != np.arange(rows))
    return flags


def _sentinel(features: Features) -> Suspicion | None:
    for policy, column in _columns(features):
        ones = column.values == 1.0
        if ones.sum() >= 3 and np.mean(ones[column.positive]) > 0.9:
            return _repeated(features, policy, column, 1.0)
        if column.one_value:
            return _repeated(features, policy, column, column.one_value)
        for value, count in (column.least, column.mode):
            here = column.values == value
            known = value in SENTINELS
            if count < (2 if known else 5) or value > -8.0:
                continue
            below = np.mean(column.other[here] <= value + 0.5)
            if np.isfinite(column.other).any() and below > 0.5 and not known:
                continue  # a floor
            far = value < np.quantile(column.values[~here], 0.0) - GAP if (~here).any() else True
            if not (known or far or count > 0.01 * len(here)):
                continue
            return _repeated(features, policy, column, value)
    return None


def _repeated(features: Features, policy: str, column: StoredColumn, value: float) -> Suspicion:
    """Report a sentinel: a value that stands for a missing log-prob."""
    here = column.values == value
    count = int(here.sum())
    first = int(features.case.row[column.row_of[np.flatnonzero(here)[0]]])
    return Suspicion(
        confidence=CERTAIN if value in SENTINELS else 0.9,
        message=f"{count:,} values of `{policy}` are exactly {value:g}, which stands for no value; "
        f"the first stands in row {first}.",
        evidence=[
            fact(
                "exact repeats of one value",
                "a sentinel",
                value=value,
                **{policy: count},
                first_row=first,
            )
        ],
        side=_side(features, policy),
        share_of_rows=_rows_with(column, here),
        also_possible=[],
        mended=_without(features.case, here),
    )


def _floor(features: Features) -> Suspicion | None:
    for policy, column in _columns(features):
        value, count = column.least
        here = column.values == value
        if count < 4 or value > -0.2 or column.constant_rows > 0.5:
            continue
        if value < column.values[~here].min(initial=0.0, where=column.finite[~here]) - GAP:
            continue  # a column that was clipped has values just above the floor
        if not np.isfinite(column.other).any() or value in SENTINELS[:4]:
            continue
        # Below a floor the other side lies lower; above it hardly any token does. A column of
        # another temperature may lie higher, but has many values where this one has a single one.
        other = column.other[here]
        below = float(np.mean(other < value + 0.05))
        rare = below > 0.4 or _rarest(column, here) > 0.8
        kinds = len(np.unique(features.case.token_id[features.case.mask][here]))
        several = count >= 16 and rare and len(np.unique(other)) > 0.5 * count
        # Few values meet at a floor by chance where a column is rounded, and hardly ever else.
        if count < 8 and (below < 1.0 or column.repeats_rare_values):
            continue
        if not (below >= 0.8 or several) or column.decimals == 1 or kinds < 3:
            continue
        return Suspicion(
            confidence=0.96,
            message=f"No value of `{policy}` is below {value:g}, and {count:,} are exactly that: "
            "the column was clipped.",
            evidence=[
                fact(
                    "tokens at the lowest value",
                    "a floor",
                    value=value,
                    **{policy: count},
                    share_lower_on_the_other_side=below,
                )
            ],
            side=_side(features, policy),
            share_of_rows=_rows_with(column, here),
            also_possible=[],
            mended=_without(features.case, here | _cut_off_too(column, value)),
        )
    return None


def _cut_off_too(column: StoredColumn, floor: float) -> Flags:
    """Flag tokens below the floor on the other side only, unless both sides are far apart.

    Dropping the rare tokens of one side alone would be a selection by log-prob, which looks like
    another distribution.
    """
    return (column.other <= floor) & (column.values - column.other < FAR)


def _rarest(column: StoredColumn, here: Flags) -> float:
    """Return the share of flagged tokens that are among the rarest of the other side.

    A value that stands for no value comes at any token; a floor at the least likely ones, whatever
    the temperature of the other side.
    """
    known = np.isfinite(column.other)
    edge = np.quantile(column.other[known], min(3.0 * float(np.mean(here)), 0.5))
    return float(np.mean(column.other[here] < edge))


def _stored(slug: str) -> Callable[[Features], Suspicion | None]:
    """Make the question whether a column was stored with few digits."""

    def weigh(features: Features) -> Suspicion | None:
        coarse = {policy: column.grid for policy, column in _columns(features)}
        names = [policy for policy, grid in coarse.items() if grid and grid.slug == slug]
        if not names:
            return None
        grids = [grid for policy in names if (grid := coarse[policy])]
        what = " and ".join(f"`{name}`" for name in names)
        error = max(
            grid.rounding_error(features.columns[name].values)
            for name, grid in zip(names, grids, strict=True)
        )
        return Suspicion(
            confidence=0.97,
            message=f"All values of {what} lie on the grid of {grids[0].name}; rounding to it "
            f"moves a log-prob by {error:.2g} nats rms.",
            evidence=[
                fact(
                    "values on the grid",
                    grids[0].name,
                    **dict.fromkeys(names, 1.0),
                    rounding_rms=error,
                )
            ],
            side="storage",
            also_possible=[],
            verdict="healthy" if error < 0.02 else "broken",
            mended=features.case if _more_than(features, error) else None,
        )

    return weigh


def _more_than(features: Features, error: float) -> bool:
    """Tell whether the two sides differ by more than rounding moves log-probs."""
    if features.case.trainer is None or not len(features.case.tokens):
        return False
    return features.log_ratios.rms > BEYOND_ROUNDING * error


STORAGE = (
    shipped("nan-log-probs", "storage", _nan_log_probs, needs_two=False),
    shipped("sign-flipped", "storage", _sign_flipped, needs_two=False),
    shipped("probabilities-stored", "storage", _probabilities, needs_two=False),
    shipped("cumulative-stored", "storage", _cumulative, needs_two=False),
    shipped("log-base", "storage", _log_base),
    shipped("sentinel", "storage", _sentinel, needs_two=False),
    shipped("floor-clip", "storage", _floor),
    shipped("zero-placeholder", "storage", _placeholder_zeros, needs_two=False),
    *(
        shipped(slug, "storage", _stored(slug), needs_two=False)
        for slug in ("stored-bfloat16", "stored-float16", "stored-rounded")
    ),
)
