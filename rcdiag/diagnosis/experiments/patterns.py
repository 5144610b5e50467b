"""Patterns in the residuals of a column: by row, by position, at random, by reward.

A token is off if |recorded - expected| is more than an engine's noise explains; a row is off if
more than a few of its tokens are.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Counts, Flags, rms, z_of_sums
from rcdiag.diagnosis.experiments.fit import fit_residual
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTester
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side
from rcdiag.diagnosis.experiments.thresholds import (
    EARLY,
    LARGEST_DIFFERENCE,
    LATE,
    MANY,
    NOT_ROUNDING,
    OUTLYING,
)
from rcdiag.diagnosis.features.shared_prefixes import FEWEST_PAIRS
from rcdiag.diagnosis.thresholds import FEW, FEWEST_OF_ROW, FEWEST_ROWS, MOST, NEARLY_ALL, RELATED

ROW_OFF = 0.03  # a row is off if more than this share of its tokens is
NEAR = 8  # width of the position bins, tokens
# Least expected number of off tokens in the part of a row that has none, if they were spread as in
# all rows: by chance none occurs there with probability e^-2, in a seventh of the rows.
NOT_CHANCE = 2.0
FEWEST_OFF, FEWEST_TOKENS_OFF = 6, 10  # least number of rows, and of tokens, that are off


class Pattern(Struct, frozen=True, kw_only=True):
    """Summary of the residuals of one side's column."""

    # share of repeated contexts whose tokens are off and have different values
    differs_by_chance: float | None
    rows_off: float  # share of the rows that are off
    rows_even: float  # mean share of tokens that are off, in the rows that are off
    first_tokens: float  # rms of the first eight tokens over that of tokens from the 24th on
    ends_in_rows: float  # share of the off rows that are off only before some token
    begins_in_rows: float  # share of the off rows that are off only from some token on
    reward: float  # z of residual times advantage
    # z of mean(recorded - expected): above 0 the recorded distribution sampled
    recorded_excess: float
    turns_later: bool  # only turns after the first are off
    by_engine: bool  # the rows that are off are those of some engines
    by_prompt: bool  # all rows of a prompt are off, or none of them


def pattern_of(tester: HypothesisTester) -> Pattern:
    """Summarise in which rows and at which tokens a side's column is off."""
    sample, side = tester.sample, tester.side
    at = side.known_at
    residual = side.residual.values
    off = _tokens_off(sample, side)
    row = np.searchsorted(sample.rows, sample.owner[at])
    count = len(sample.rows)
    share = _share_off(sample, side)
    bad = share > ROW_OFF
    position = sample.position[at]
    early, late = residual[position < EARLY], residual[position >= LATE]
    ratio = rms(early) / max(rms(late), 1e-9) if len(early) and len(late) else 1.0
    ends, begins = _within_rows(off, row, count, _usual(off, position, bad[row]))
    chosen = np.flatnonzero(bad)
    return Pattern(
        differs_by_chance=_by_chance(sample, side),
        rows_off=float(bad.mean()),
        rows_even=float(share[bad].mean()) if bad.any() else 0.0,
        first_tokens=ratio,
        ends_in_rows=float(ends[chosen].mean()) if len(chosen) else 0.0,
        begins_in_rows=float(begins[chosen].mean()) if len(chosen) else 0.0,
        reward=_with_reward(sample, at, residual),
        recorded_excess=_z(residual, row),
        turns_later=_later_turns(sample, at, off),
        by_engine=_by_engine(sample, bad),
        by_prompt=_by_prompt(sample, bad),
    )


def rows_off(sample: RescoredSample, side: Side) -> Flags:
    """Flag the rows of a sample in which more than a few tokens are off, [rows]."""
    return _share_off(sample, side) > ROW_OFF


def _tokens_off(sample: RescoredSample, side: Side) -> Flags:
    """Flag tokens that are off by more than an engine's noise, [known tokens]."""
    return _off(sample, side, side.known_at, 1e-4)


def _off(sample: RescoredSample, side: Side, at: Counts, least: float) -> Flags:
    """Flag tokens that are off by more than an engine's noise and `least` nats, [at]."""
    width = OUTLYING * sample.noise * side.sensitivity[at] + side.resolution[at]
    flags: Flags = np.abs(side.recorded[at] - side.expected[at]) > width + least
    return flags


def _share_off(sample: RescoredSample, side: Side) -> Array:
    """Return the share of each row's tokens that are off, [rows]."""
    row = np.searchsorted(sample.rows, sample.owner[side.known_at])
    count = len(sample.rows)
    off = np.bincount(row, _tokens_off(sample, side), minlength=count)
    values: Array = off / np.maximum(np.bincount(row, minlength=count), 1)
    return values


def _z(values: Array, row: Counts) -> float:
    """Return the z score of the mean of values against 0, with rows as clusters."""
    return z_of_sums(np.bincount(row, np.clip(values, -LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)))


def _by_chance(sample: RescoredSample, side: Side) -> float | None:
    """Return the share of repeated contexts whose tokens got different values in different rows.

    A wrong model or context is deterministic: different values in equal contexts mean randomness,
    such as dropout. Only contexts with a token that is off count; None with too few of them.
    """
    seen: dict[bytes, list[int]] = {}
    for row in sample.rows:
        prompt, response = sample.prompt(int(row)), sample.response(int(row))
        tokens = sample.tokens_of([int(row)])
        base = prompt.tobytes()
        for position in range(min(len(response), LATE)):
            key = base + b"|" + response[: position + 1].tobytes()
            seen.setdefault(key, []).append(int(tokens[position]))
    differ, same = 0, 0
    for places in seen.values():
        known = [place for place in places if side.known[place]]
        if len(known) < 2:
            continue
        if not _off(sample, side, np.array(known), NOT_ROUNDING).any():
            continue
        values, sensitivity = side.recorded[known], float(side.sensitivity[known].mean())
        width = OUTLYING / 2 * sample.noise * sensitivity + side.resolution[known].max()
        if np.median(np.abs(values - np.median(values))) > width + NOT_ROUNDING:
            differ += 1
        else:
            same += 1
    return differ / (differ + same) if differ + same >= FEWEST_PAIRS else None


def _usual(off: Flags, position: Counts, counted: Flags) -> Array:
    """Return the share of off tokens near the position of each token, [known tokens].

    The first tokens of responses are often near-certain, so that other weights do not move them.
    """
    near = position // NEAR
    flagged = np.bincount(near[counted], off[counted], minlength=int(near.max(initial=0)) + 1)
    tokens = np.bincount(near[counted], minlength=len(flagged))
    values: Array = ((flagged + 0.5 * off.mean()) / (tokens + 0.5))[near]
    return values


def _within_rows(off: Flags, row: Counts, count: int, usual: Array) -> tuple[Array, Array]:
    """Tell for every row whether its tokens are off only before, or only after, some token.

    `usual` [known tokens] is the share of off tokens at a position in all rows. Returns two
    arrays of 0 or 1, [rows].
    """
    ends, begins = np.zeros(count), np.zeros(count)
    borders = np.searchsorted(row, np.arange(count + 1))
    for index in range(count):
        inside = slice(borders[index], borders[index + 1])
        flags = off[inside].astype(np.float64)
        size = len(flags)
        if size < 2 * FEWEST_OF_ROW or flags.sum() < 3:
            continue
        sums = np.cumsum(flags)
        places = np.arange(FEWEST_OF_ROW, size - FEWEST_OF_ROW + 1)
        first = sums[places - 1] / places
        last = (sums[-1] - sums[places - 1]) / (size - places)
        # Expected counts, if the off tokens of this row were spread as in all rows.
        expected = np.cumsum(usual[inside]) * sums[-1] / usual[inside].sum()
        end, begin = np.argmax(first - last), np.argmax(last - first)
        after = sums[-1] - expected[places[end] - 1]
        before = expected[places[begin] - 1]
        ends[index] = last[end] < FEW and after > NOT_CHANCE
        begins[index] = first[begin] < FEW and before > NOT_CHANCE
    return ends, begins


def _with_reward(sample: RescoredSample, at: Counts, residual: Array) -> float:
    """Return the z score of residual * advantage, rows as clusters; 0 without advantages."""
    facts = sample.case.facts
    advantage = facts.advantage if facts.advantage is not None else facts.reward
    if advantage is None:
        return 0.0
    values = advantage[sample.owner[at]]
    if facts.advantage is None:
        values = values - np.nanmean(advantage)
    row = np.searchsorted(sample.rows, sample.owner[at])
    return _z(np.nan_to_num(values * np.clip(residual, -1.0, 1.0)), row)


def _later_turns(sample: RescoredSample, at: Counts, off: Flags) -> bool:
    """Tell whether all off tokens come after a token that was not sampled."""
    sampled = sample.case.mask[sample.place]
    if sampled.all():
        return False
    before = np.concatenate([[0], np.cumsum(~sampled)[:-1]])
    first = np.flatnonzero(sample.position == 0)
    lengths = np.diff(np.append(first, len(sampled)))
    after_tool = before - np.repeat(before[first], lengths) > 0
    return bool(off.sum() > FEWEST_TOKENS_OFF and (off & ~after_tool[at]).sum() < FEW * off.sum())


def _by_engine(sample: RescoredSample, bad: Flags) -> bool:
    """Tell whether the rows that are off are those of some engines."""
    engines = sample.case.facts.engine
    if engines is None:
        return False
    names = np.array([str(engines[int(row)]) for row in sample.rows])
    rates = [float(bad[names == name].mean()) for name in np.unique(names)]
    return len(rates) > 1 and max(rates) > MANY and min(rates) < 0.1


def _by_prompt(sample: RescoredSample, bad: Flags) -> bool:
    """Tell whether rows of one prompt are off together, while other prompts' rows are not."""
    groups: dict[bytes, list[bool]] = {}
    for row, flag in zip(sample.rows, bad, strict=True):
        groups.setdefault(sample.prompt(int(row)).tobytes(), []).append(bool(flag))
    large = [np.mean(flags) for flags in groups.values() if len(flags) >= 3]
    if len(large) < FEWEST_ROWS or not 1 - NEARLY_ALL < float(np.mean(bad)) < NEARLY_ALL:
        return False
    rate = float(np.mean(bad))
    spread = float(np.var(large))
    return spread > RELATED * rate * (1.0 - rate)


def retokenised(tester: HypothesisTester) -> float | None:
    """Return the share of rows that are off only from where their text encodes to other tokens.

    None without a tokenizer, or where too few rows are off or encode to other tokens.
    """
    if tester.encode is None or tester.decode is None:
        return None
    sample, side = tester.sample, tester.side
    agree, rows = 0, 0
    for row in sample.rows:
        tokens = sample.tokens_of([int(row)])
        ids = sample.response(int(row))
        off = side.known[tokens] & _off(sample, side, tokens, NOT_ROUNDING)
        began = int(np.argmax(off)) if off.any() else None
        differs = _differs(tester, ids, sample.case.mask[sample.place[tokens]])
        if differs is None and began is None:
            continue
        rows += 1
        if differs is not None and (began is None or began >= differs - 1):
            agree += 1
    return agree / rows if rows >= 5 else None


def _differs(tester: HypothesisTester, ids: NDArray[np.int32], mask: Flags) -> int | None:
    """Return the index of the first token that differs when a response's text is encoded again."""
    assert tester.encode is not None
    assert tester.decode is not None
    best: int | None = None
    borders = [0, *(np.flatnonzero(np.diff(mask.astype(np.int8))) + 1).tolist(), len(ids)]
    turns = [ids[borders[i] : borders[i + 1]] for i in range(len(borders) - 1)]
    whole = tester.encode(tester.decode(ids.tolist()))
    stripped = [
        token for turn in turns for token in tester.encode(tester.decode(turn.tolist()).strip())
    ]
    for made in (whole, stripped):
        size = min(len(made), len(ids))
        other = np.flatnonzero(np.asarray(made[:size]) != ids[:size])
        place = int(other[0]) if len(other) else (size if len(made) != len(ids) else None)
        if place is not None and (best is None or place < best):
            best = place
    return best


def only_rows_off(sample: RescoredSample, side: Side) -> RescoredSample | None:
    """Return the sample of the rows that are off; None if the model does not explain the others."""
    off = rows_off(sample, side)
    if not FEWEST_OFF <= off.sum() <= MOST * len(off):
        return None
    at = side.known_at
    others = at[~np.isin(sample.owner[at], sample.rows[off])]
    residual = fit_residual(
        side.recorded[others],
        side.expected[others],
        side.sensitivity[others],
        side.resolution[others],
    )
    return restricted(sample, off) if len(others) and residual.within(sample.noise) else None


def restricted(sample: RescoredSample, chosen: np.ndarray) -> RescoredSample:
    """Return the sample restricted to some rows, by flag, [rows]."""
    rows = sample.rows[chosen]
    inside = np.isin(sample.owner, rows)
    chosen_contexts = inside[sample.distribution_at]
    return replace(
        sample,
        rows=rows,
        usable=sample.usable & inside,
        distribution_at=sample.distribution_at[chosen_contexts],
        distribution=sample.distribution.take(chosen_contexts),
    )
