"""How log-ratios depend on the log-prob, the token id and the position."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Counts, Flags, PairTokens, rms, z_of_sums
from rcdiag.diagnosis.thresholds import (
    BY_ITS_ERROR,
    ENOUGH,
    EQUAL,
    FEWEST,
    FEWEST_OF_ROW,
    LARGE,
    LARGER,
    SURELY,
    TINY,
    UNSURE,
)
from rcdiag.diagnosis.validity import LARGEST

# Nats, rms: two bfloat16 engines with the same dense weights differ by less than ENGINE_NOISE; a
# difference above LARGE_MISMATCH has another cause.
ENGINE_NOISE, LARGE_MISMATCH = 0.016, 0.03
# Nats, rms: below it both sides compute in one precision with the same kernels.
BITWISE = 1e-4
FIRST_TOKENS = 3  # first tokens of a response, where the effect of another prompt is largest
BINS = 40  # quantile bins of the tokens by log-prob


class LogRatios(Struct, frozen=True, dict=True):
    """Statistics of log_ratio = trainer - sampler, nats, over the sampled tokens of one pair."""

    tokens: PairTokens

    @property
    def show_sampling(self) -> bool:
        """Tell whether there are enough tokens, including rare ones, to judge the distribution.

        If clipping or a repair removed the rare tokens, means over the others are biased.
        """
        return len(self.tokens) >= ENOUGH and float(self.tokens.sampler.min()) < UNSURE

    @cached_property
    def values(self) -> Array:
        """Return trainer - sampler, clipped to +-LARGEST nats, [tokens]."""
        return np.clip(self.tokens.log_ratio, -LARGEST, LARGEST)

    @cached_property
    def rms(self) -> float:
        """Return sqrt(E[log_ratio^2]), nats, of unclipped log-ratios; may be inf."""
        with np.errstate(over="ignore"):  # squares of log-ratios beyond 1e154 are infinite
            return float(np.sqrt(np.mean(self.tokens.log_ratio**2)))

    @cached_property
    def k3(self) -> float:
        """Return E[ratio - 1 - log_ratio], nats per token."""
        return float(np.mean(np.expm1(self.values) - self.values))

    @cached_property
    def ratio_mean(self) -> tuple[float, float]:
        """Return E[ratio], and how many standard errors it is from 1."""
        excess = np.expm1(self.values)
        return 1.0 + float(excess.mean()), self.tokens.z(excess)

    @cached_property
    def inverse_mean(self) -> tuple[float, float]:
        """Return E[1 / ratio], and how many standard errors it is from 1."""
        excess = np.expm1(-self.values)
        return 1.0 + float(excess.mean()), self.tokens.z(excess)

    @cached_property
    def mean(self) -> tuple[float, float]:
        """Return E[log_ratio], nats, and how many standard errors it is from 0.

        It is -KL(recorded || trainer) if the recorded distribution sampled, and KL(trainer ||
        recorded) if the trainer's did.
        """
        return float(self.values.mean()), self.tokens.z(self.values)

    @cached_property
    def proportion(self) -> tuple[float, float, float]:
        """Return k of the fit sampler = k * trainer, and its residual sum of squares.

        The latter is given twice: as a share of sum sampler^2 and of sum log_ratio^2.
        """
        sampler, trainer = self.tokens.sampler, self.tokens.trainer
        k = float(np.dot(sampler, trainer) / max(np.dot(trainer, trainer), TINY))
        left = float(np.sum((sampler - k * trainer) ** 2))
        of_sampler, of_log_ratio = np.sum(sampler**2), np.sum(self.values**2)
        return k, left / max(float(of_sampler), TINY), left / max(float(of_log_ratio), TINY)

    @cached_property
    def one_sided(self) -> float:
        """Return the share of squared log-ratios with the dominant sign, 0.5 to 1."""
        squares = self.values**2
        total = float(squares.sum())
        negative = float(squares[self.values < 0].sum())
        return max(negative, total - negative) / total if total > 0 else 0.5

    @cached_property
    def power(self) -> float | None:
        """Return `a` of sampler = a * trainer + constant of the context.

        It is 1 - slope of the log-ratio on the trainer's log-prob, by least squares over tokens
        of which the trainer is not sure; None where these are few.
        """
        rare = self.tokens.trainer < UNSURE
        if rare.sum() < FEWEST:
            return None
        x, y = self.tokens.trainer[rare], self.values[rare]
        dx, dy = x - x.mean(), y - y.mean()
        return 1.0 - float(np.dot(dx, dy) / max(np.dot(dx, dx), TINY))

    @cached_property
    def by_log_prob(self) -> float:
        """Return the share of squared log-ratios that a function of a log-prob explains.

        It is the smaller of the shares for the trainer's and for the sampler's log-prob.
        With another temperature each column is a function of the other. With noise or other weights
        it is not; with misaligned tokens only one column explains the log-ratio.
        """
        return min(self._explained_by(self.tokens.trainer), self._explained_by(self.tokens.sampler))

    def _explained_by(self, log_prob: Array) -> float:
        """Return the share of squared log-ratios explained by their means in bins of a log-prob.

        There are BINS quantile bins; the bias from the spread within a bin is subtracted.
        """
        edges = np.quantile(log_prob, np.linspace(0, 1, BINS + 1)[1:-1])
        part = np.searchsorted(edges, log_prob)
        count = np.maximum(np.bincount(part, minlength=BINS), 1)
        mean = np.bincount(part, self.values, BINS) / count
        spread = np.bincount(part, self.values**2, BINS) / count - mean**2
        explained = float(np.sum(count * mean**2 - spread))
        return explained / max(float(np.sum(self.values**2)), TINY)

    @cached_property
    def by_token_id(self) -> Agreement:
        """Return how the mean log-ratios of token ids agree between even and odd rows."""
        return cross_fitted(self.tokens.token_id, self.values, self.tokens.owner % 2 == 1)

    @cached_property
    def predicted_by_id(self) -> float:
        """Return the share of the variance of log-ratios that the same id predicts in other rows.

        Of log-ratios less their mean it is the mean product of two of one id in different rows,
        weighted by how often the id occurs, over the mean square: 1 where each id has its own
        constant, 0 where the ids of the tokens that deviate are ordinary elsewhere, or where all
        deviate alike. Unlike `by_token_id` it counts rare ids.
        """
        if not len(self.values):
            return 0.0
        values = self.values - np.mean(self.values)
        owner, ids = self.tokens.owner, self.tokens.token_id
        size = int(ids.max(initial=0)) + 1
        of_row, index = np.unique(owner * size + ids, return_inverse=True)
        sums, counts = np.bincount(index, values), np.bincount(index)
        own, total = of_row % size, np.bincount(ids, minlength=size)
        products = np.bincount(ids, values, size) ** 2 - np.bincount(own, sums**2, size)
        pairs = total**2 - np.bincount(own, counts**2, size)
        shared = np.sum(total * products / np.maximum(pairs, 1))
        return float(shared / max(float(np.sum(values**2)), TINY))

    @cached_property
    def first_tokens(self) -> float:
        """Return the rms log-ratio of the first tokens of responses over that of the others.

        The largest |log_ratio| of the first tokens is replaced by the second largest, so that a
        single token cannot make the ratio large.
        """
        first = self.tokens.position < FIRST_TOKENS
        if min(first.sum(), (~first).sum()) < FEWEST:
            return 1.0
        size = np.sort(np.abs(self.values[first]))
        size[-1] = size[-2]
        return rms(size) / max(rms(self.values[~first]), TINY)

    @cached_property
    def first_large(self) -> Counts:
        """Return the index of each row's first token with a LARGE log-ratio, [rows].

        It is the number of tokens where a row has none.
        """
        tokens = self.tokens
        large = np.flatnonzero(np.abs(tokens.log_ratio) > LARGE)
        owner, first = np.unique(tokens.owner[large], return_index=True)
        begin = np.full(tokens.rows, len(tokens))
        begin[owner] = large[first]
        return begin

    @cached_property
    def late(self) -> float:
        """Return the rms log-ratio of tokens after the median position over that of the others.

        Both are shares of what rounding makes of them, which is proportional to 1 - p: a response
        that becomes surer is no change.
        """
        late = self.tokens.position > np.median(self.tokens.position)
        if min(late.sum(), (~late).sum()) < FEWEST:
            return 1.0
        unsure = np.expm1(self.tokens.sampler)
        after, before = (
            rms(self.values[part]) / max(rms(unsure[part]), TINY) for part in (late, ~late)
        )
        return after / max(before, TINY)

    @cached_property
    def fall_along_rows(self) -> bool:
        """Tell whether log-ratios fall along the responses, as where the prompts differ.

        The rms of the first tokens, and of the first half of all positions, is more than LARGER
        times that of the others, and the first half of a row has the larger squares beyond chance.
        """
        if self.first_tokens < LARGER or self.late > 1 / LARGER:
            return False
        return self.growth_in_rows < -SURELY

    @property
    def change_along_rows(self) -> bool:
        """Tell whether log-ratios grow or fall along the responses, by more than LARGER."""
        return not 1 / LARGER < self.late < LARGER and abs(self.growth_in_rows) > SURELY

    @cached_property
    def growth_in_rows(self) -> float:
        """Return the z score over rows of the log of squares in second halves over first halves."""
        tokens, squares = self.tokens, self.values**2
        start = np.cumsum(tokens.per_row) - tokens.per_row
        early = 2 * (np.arange(len(tokens)) - start[tokens.owner]) < tokens.per_row[tokens.owner]
        halves = [tokens.row_sums(np.where(half, squares, 0.0)) for half in (early, ~early)]
        usable = (tokens.per_row >= FEWEST_OF_ROW) & (np.minimum(*halves) > 0.0)
        return z_of_sums(np.log(halves[1][usable] / halves[0][usable]))

    @cached_property
    def repeated(self) -> Flags:
        """Flag tokens whose id occurs earlier in the same response, [tokens]."""
        tokens = self.tokens
        order = np.lexsort((tokens.place, tokens.token_id, tokens.owner))
        again = np.zeros(len(tokens), np.bool_)
        own, ids = tokens.owner[order], tokens.token_id[order]
        again[order[1:]] = (own[1:] == own[:-1]) & (ids[1:] == ids[:-1])
        return again

    @cached_property
    def tail_share(self) -> float:
        """Return the share of squared log-ratios that the largest 0.1% of the tokens hold."""
        squares = np.sort(self.values**2)[::-1]
        total = squares.sum()
        return float(squares[: max(len(squares) // 1000, 1)].sum() / total) if total > 0 else 0.0

    @cached_property
    def rms_of_bulk(self) -> float:
        """Return the rms log-ratio without the largest 1% of the tokens, nats."""
        squares = np.sort(self.values**2)
        return float(np.sqrt(np.mean(squares[: len(squares) - max(len(squares) // 100, 1)])))

    @cached_property
    def clustering(self) -> float:
        """Return how far squared log-ratios s cluster in rows, beyond the rows' uncertain tokens.

        It is the sum over rows of (sum s)^2 over its mean if the s were drawn for tokens at random
        with the weights w = (1 - p)^2, to which rounding of the logits is proportional:
        sum s^2 + ((sum s)^2 - sum s^2) * P(two tokens so drawn are of one row). Honest engines stay
        below 2; a fault of one row makes it 10 and more.
        """
        squares, weights = self.values**2, np.expm1(self.tokens.sampler) ** 2
        own, alone = float(squares @ squares), float(weights @ weights)
        of_rows, every = self.tokens.row_sums(weights), float(weights.sum()) ** 2 - alone
        pairs = (float(of_rows @ of_rows) - alone) / max(every, TINY)
        by_chance = own + (float(squares.sum()) ** 2 - own) * pairs
        return float(np.sum(self.tokens.row_sums(squares) ** 2)) / max(by_chance, TINY)


class Agreement(NamedTuple):
    """How well the means by label agree between two halves of the data.

    `correlation` is that of the means, weighted by counts; `explained` is the share of the values'
    variance that the means explain; `labels` is the effective number of labels under the weights.
    """

    correlation: float
    explained: float
    labels: float

    @property
    def beyond_chance(self) -> bool:
        """Tell whether the correlation is significant for this number of labels.

        Fisher's z: atanh(correlation) of n independent pairs is normal about 0 with the variance
        1 / (n - 3) (Fisher 1921, On the "probable error" of a coefficient of correlation deduced
        from a small sample).
        """
        z = np.arctanh(np.clip(self.correlation, -1 + EQUAL, 1 - EQUAL))
        return bool(z * np.sqrt(max(self.labels - 3.0, 0.0)) > BY_ITS_ERROR)


def cross_fitted(
    label: Counts | NDArray[np.int32], values: Array, half: Flags, least: int = 5
) -> Agreement:
    """Return how well the means of `values` by label agree between two halves.

    Labels that occur fewer than `least` times in a half are left out.
    """
    size = int(label.max(initial=-1)) + 1
    counts = [np.bincount(label[side], minlength=size) for side in (half, ~half)]
    sums = [np.bincount(label[side], values[side], minlength=size) for side in (half, ~half)]
    usable = (counts[0] >= least) & (counts[1] >= least)
    if usable.sum() < 3:
        return Agreement(0.0, 0.0, float(usable.sum()))
    weight = np.minimum(*counts)[usable].astype(np.float64)
    one, two = (total[usable] / count[usable] for total, count in zip(sums, counts, strict=True))
    one, two = one - np.average(one, weights=weight), two - np.average(two, weights=weight)
    shared = float(np.dot(weight, one * two))
    norm = float(np.sqrt(np.dot(weight, one**2) * np.dot(weight, two**2)))
    return Agreement(
        correlation=shared / max(norm, TINY),
        explained=shared / float(weight.sum()) / max(float(np.var(values)), TINY),
        labels=float(weight.sum() ** 2 / np.dot(weight, weight)),
    )
