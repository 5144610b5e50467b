"""Alignment: does one column fit the other better at another token or row."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Case, Counts, Flags, PairTokens, spread_over
from rcdiag.diagnosis.features.log_ratios import cross_fitted
from rcdiag.diagnosis.thresholds import EQUAL, FEWEST_OF_ROW, RELATED, SAME, SURELY, UNRELATED
from rcdiag.diagnosis.validity import LARGEST

LAGS = (-2, -1, 0, 1, 2)
# A turn is shifted if the correlation of the two columns is above SAME at another lag and lower by
# at least GAIN at lag 0. With a second fault no lag correlates that well: then the correlation may
# be lower, but the gain must be significant (Fisher's z).
GAIN = SAME - RELATED
# Rows are exchanged if, with another row's column, the squared difference falls below REST of that
# with the own column; or below REST_ALONE of it and REST_OF_FURTHER of the next best row's. A row
# fits in place if its mean squared difference of root surprisals is below OWN_FITS.
REST, REST_ALONE, REST_OF_FURTHER, OWN_FITS = 0.1, 0.35, 0.6, 0.02
# At most COMPARED and at least LEAST_COMPARED tokens of two rows are compared; a partner is
# searched for at most ROWS_SEARCHED rows.
COMPARED, LEAST_COMPARED, ROWS_SEARCHED = 64, 12, 400


def sqrt_surprisal(log_probs: Array) -> Array:
    """Return sqrt(-log_prob), so that rare tokens do not dominate a correlation."""
    return np.sqrt(np.clip(-log_probs, 0.0, LARGEST))


class _ComparedRows(Struct, frozen=True):
    """Root surprisals of the first COMPARED tokens of rows, 0 where a row has no such token."""

    row: Counts  # [compared] index of the row in the case
    known: Array  # [compared, COMPARED] 1 where the row has a token
    sampler: Array  # [compared, COMPARED]
    trainer: Array  # [compared, COMPARED]

    @property
    def own_distance(self) -> Array:
        """Return the mean squared difference of each row's two columns, [compared]."""
        squares: Array = ((self.sampler - self.trainer) ** 2).sum(axis=1)
        mean: Array = squares / np.maximum(self.known.sum(axis=1), 1)
        return mean

    def best_of_others(self, chosen: Counts) -> tuple[Counts, Flags]:
        """Return which other row fits each chosen row best, and whether it fits well enough.

        Both results are [chosen]; the first holds indices of compared rows.
        """
        known, sampler, trainer = self.known, self.sampler, self.trainer
        common = known[chosen] @ known.T
        squares = (sampler[chosen] ** 2) @ known.T + known[chosen] @ (trainer**2).T
        distance = (squares - 2 * sampler[chosen] @ trainer.T) / np.maximum(common, 1)
        distance[common < LEAST_COMPARED] = np.inf
        distance[np.arange(len(chosen)), chosen] = np.inf
        best = distance.argmin(axis=1)
        least = distance[np.arange(len(chosen)), best]
        further = distance.copy()
        further[np.arange(len(chosen)), best] = np.inf
        alone = least < REST_OF_FURTHER * further.min(axis=1)
        both = known[chosen] * known[best]
        there = ((sampler[chosen] - trainer[chosen]) ** 2 * both).sum(axis=1) / np.maximum(
            both.sum(axis=1), 1
        )
        return best, (least < REST * there) | ((least < REST_ALONE * there) & alone)


class Alignment(Struct, frozen=True, dict=True):
    """Correlations of the two columns of a case, by turn and by row."""

    case: Case

    @property
    def tokens(self) -> PairTokens:
        """Return the sampled tokens of both policies."""
        return self.case.tokens

    @cached_property
    def turn(self) -> Counts:
        """Return the index of each token's turn among all turns of the case, [tokens].

        Masked tokens and NaN end a turn; tokens that a repair masked out later do not.
        """
        case, tokens = self.case, self.tokens
        between = ~case.table_mask
        for policy in (case.sampler, case.trainer):
            between |= ~np.isfinite(case.log_probs[str(policy)])
        part = np.cumsum(between)[tokens.place]
        new = (np.diff(tokens.owner, prepend=-1) != 0) | (np.diff(part, prepend=-1) != 0)
        return np.cumsum(new) - 1

    @cached_property
    def first_turn(self) -> Flags:
        """Flag the turns that are the first of their row, [turns]."""
        starts = np.flatnonzero(np.diff(self.turn, prepend=-1))
        flags: Flags = np.diff(self.tokens.owner[starts], prepend=-1) != 0
        return flags

    @cached_property
    def row_of_turn(self) -> Counts:
        """Return the index of each turn's row, [turns]."""
        return self.tokens.owner[np.flatnonzero(np.diff(self.turn, prepend=-1))]

    @cached_property
    def unshifted(self) -> Array:
        """Return the correlation of both columns token by token, NaN for short turns; [turns]."""
        tokens = self.tokens
        return _by_turn(
            sqrt_surprisal(tokens.sampler),
            sqrt_surprisal(tokens.trainer),
            tokens.place,
            self.turn,
            0,
        )

    @cached_property
    def correlations(self) -> Array:
        """Return the correlation of both columns at every lag; [lags, turns].

        At lag k the sampler's value of token t + k is paired with the trainer's of token t. The
        correlation is NaN for short turns, and at lags other than 0 for turns that fit in place.
        """
        values = np.full((len(LAGS), len(self.unshifted)), np.nan)
        values[LAGS.index(0)] = self.unshifted
        open_turns = self.unshifted < 1.0 - GAIN
        inside = open_turns[self.turn]
        if inside.any():
            sampler, trainer = (
                sqrt_surprisal(column[inside])
                for column in (self.tokens.sampler, self.tokens.trainer)
            )
            place = self.tokens.place[inside]
            for index, lag in enumerate(LAGS):
                if lag != 0:
                    part = _by_turn(sampler, trainer, place, self.turn[inside], lag)
                    values[index, : len(part)] = part
        return values

    def correlations_of(self, part: Flags) -> tuple[Counts, Array]:
        """Return the correlation of both columns at every lag over some tokens of each row.

        `part` is [tokens]. The results are the rows that have enough of them, and [lags, rows].
        """
        tokens = self.tokens
        rows, row = np.unique(tokens.owner[part], return_inverse=True)
        sampler, trainer = (sqrt_surprisal(c[part]) for c in (tokens.sampler, tokens.trainer))
        place = tokens.place[part]
        found = np.array([_by_turn(sampler, trainer, place, row, lag) for lag in LAGS])
        enough = ~np.isnan(found).any(axis=0)
        return rows[enough], found[:, enough]

    @cached_property
    def long_enough(self) -> Flags:
        """Flag the turns that are long enough for a correlation, [turns]."""
        return ~np.isnan(self.unshifted)

    @cached_property
    def shift(self) -> Counts:
        """Return the lag at which each turn fits, 0 where it is not shifted; [turns]."""
        values = np.where(np.isnan(self.correlations), -9.0, self.correlations)
        best = values.argmax(axis=0)
        at_best = values[best, np.arange(values.shape[1])]
        shifted = (at_best > SAME) & (at_best - self.unshifted > GAIN)
        near, far = (np.arctanh(np.clip(r, -0.999, 0.999)) for r in (self.unshifted, at_best))
        free = np.maximum(np.bincount(self.turn, minlength=len(best)) - 4, 0)
        surely = (
            self.long_enough & (at_best > UNRELATED) & ((far - near) * np.sqrt(free / 2) > SURELY)
        )
        # Once shifted back, these turns must fit as well as the others: a second fault lowers the
        # correlation of all turns equally.
        others = self.unshifted[self.long_enough & ~surely & ~shifted]
        usual = float(np.median(others)) if len(others) else UNRELATED
        shifted |= surely & (at_best > usual - GAIN / 2)
        return np.where(self.long_enough & shifted, np.array(LAGS)[best], 0)

    def distinct_texts(self, turns: Flags) -> int:
        """Count the distinct texts among some turns; `turns` [turns].

        A confident policy repeats a response within a group, with equal log-probs: repeats are not
        independent evidence.
        """
        first = np.searchsorted(self.turn, np.arange(len(turns) + 1))
        ids = self.tokens.token_id
        return len({ids[first[i] : first[i + 1]].tobytes() for i in np.flatnonzero(turns)})

    def differ_most(self, turns: Flags) -> bool:
        """Tell whether some turns have a larger rms log-ratio than all other long ones.

        `turns` is [turns]. Misaligned turns have. But in turns of near-certain tokens a small
        difference at one token is enough to lower the correlation at lag 0 without any shift.
        """
        squares = (self.tokens.sampler - self.tokens.trainer) ** 2
        total = np.bincount(self.turn, squares, len(turns))
        count = np.bincount(self.turn, minlength=len(turns))
        others = self.long_enough & ~turns
        if not turns.any() or not others.any():
            return bool(turns.any())
        return bool(
            total[turns].sum() / count[turns].sum() > total[others].sum() / count[others].sum()
        )

    def share_shifted(self, turns: Flags) -> float:
        """Return the share of shifted turns among those that are judged; `turns` [turns]."""
        among = turns & self.long_enough
        return float(np.mean(self.shift[among] != 0)) if among.any() else 0.0

    @cached_property
    def best_row(self) -> Counts:
        """Return the row whose trainer log-probs fit each row's sampler log-probs, [rows].

        It is the row itself unless another row reduces the squared difference to less than a tenth,
        or to about a third while all further rows fit much worse. Both sums run over positions that
        both rows have.
        """
        rows = len(self.case.lengths)
        partner = np.arange(rows)
        compared = self._compared_rows()
        suspects = np.flatnonzero(compared.own_distance > OWN_FITS)
        if not len(suspects):
            return partner
        chosen = suspects[spread_over(len(suspects), ROWS_SEARCHED)]
        best, fits = compared.best_of_others(chosen)
        partner[compared.row[chosen[fits]]] = compared.row[best[fits]]
        # A row that fits several others is short or near-certain, and does so by chance.
        claims = np.bincount(compared.row[best[fits]], minlength=rows)
        several = claims[partner] > 1
        partner[several] = np.flatnonzero(several)
        return partner

    def _compared_rows(self) -> _ComparedRows:
        """Return the first tokens of the rows that are long enough to be compared."""
        tokens, rows = self.tokens, len(self.case.lengths)
        rank = self._number_in_row
        row = np.flatnonzero(tokens.per_row >= LEAST_COMPARED)
        number = np.full(rows, -1)
        number[row] = np.arange(len(row))
        kept = (rank < COMPARED) & (number[tokens.owner] >= 0)
        shape = (len(row), COMPARED)
        known, sampler, trainer = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        places = number[tokens.owner[kept]], rank[kept]
        known[places] = 1.0
        sampler[places] = sqrt_surprisal(tokens.sampler[kept])
        trainer[places] = sqrt_surprisal(tokens.trainer[kept])
        return _ComparedRows(row, known, sampler, trainer)

    def misplaced_policy(self, part: Flags) -> str:
        """Return the policy whose log-probs belong to other tokens.

        `part` flags the misaligned tokens, [tokens]. The column that is in place correlates more
        with the mean log-prob of each token id.
        """
        tokens, case = self.tokens, self.case
        correlations_by_id = []
        for column in (tokens.sampler, tokens.trainer):
            if part.sum() < (~part).sum():  # the other tokens give the mean log-prob of each id
                correlations_by_id.append(
                    _correlation_with_id_means(tokens.token_id, sqrt_surprisal(column), part)
                )
            else:
                half = tokens.owner[part] % 2 == 1
                correlations_by_id.append(
                    cross_fitted(tokens.token_id[part], sqrt_surprisal(column[part]), half)[1]
                )
        return str(case.trainer) if correlations_by_id[0] > correlations_by_id[1] else case.sampler

    @property
    def _number_in_row(self) -> Counts:
        """Return the index of each token among the unmasked tokens of its row, [tokens].

        Tokens that rcdiag masked out keep their index, so that rows are compared token by token.
        """
        case = self.case
        own = case.table_mask
        before: Counts = np.cumsum(own) - own
        first: Counts = before[np.minimum(case.start, len(own) - 1)]
        return (before - first[case.owner])[self.tokens.place]

    @cached_property
    def misfit(self) -> Flags:
        """Flag rows with an unshifted turn whose two columns hardly correlate, [rows]."""
        bad = self.long_enough & (self.unshifted < RELATED) & (self.shift == 0)
        return np.bincount(self.row_of_turn[bad], minlength=len(self.case.lengths)) > 0


def _correlation_with_id_means(token_id: NDArray[np.int32], values: Array, part: Flags) -> float:
    """Return the correlation of some tokens' values with the mean of their id over other tokens.

    `values` and `part` are [tokens].
    """
    counts = np.bincount(token_id[~part], minlength=int(token_id.max(initial=-1)) + 1)
    means = np.bincount(token_id[~part], values[~part], len(counts)) / np.maximum(counts, 1)
    known = part & (counts[token_id] > 0)
    expected, found = means[token_id[known]], values[known]
    if len(found) < FEWEST_OF_ROW or min(np.ptp(expected), np.ptp(found)) < EQUAL:
        return 0.0
    return float(np.corrcoef(expected, found)[0, 1])


def _by_turn(sampler: Array, trainer: Array, place: Counts, turn: Counts, lag: int) -> Array:
    """Return the correlation of sampler[t + lag] and trainer[t] in each turn, [turns].

    `place` [tokens] is the index of each token in the responses: tokens are not neighbours if a
    token between them was left out.
    """
    size, far = len(place), min(abs(lag), len(place))
    early, late = slice(0, size - far), slice(far, size)
    here, there = (late, early) if lag > 0 else (early, late)
    same = (turn[late] == turn[early]) & (place[late] - place[early] == far)
    one, two, own = sampler[here][same], trainer[there][same], turn[here][same]
    turns = int(turn[-1]) + 1 if len(turn) else 0
    count = np.bincount(own, minlength=turns)

    def mean(values: Array) -> Array:
        result: Array = np.bincount(own, weights=values, minlength=turns) / np.maximum(count, 1)
        return result

    first, second = mean(one), mean(two)
    variances = [mean(one**2) - first**2, mean(two**2) - second**2]
    spread = np.sqrt(np.maximum(variances[0], 0.0) * np.maximum(variances[1], 0.0))
    usable = (count >= FEWEST_OF_ROW - abs(lag)) & (spread > EQUAL)
    value = np.full(turns, np.nan)
    np.divide(mean(one * two) - first * second, spread, out=value, where=usable)
    return value
