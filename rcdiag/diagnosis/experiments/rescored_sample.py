"""A sample of a case's rows, re-scored by the trainer's model: expected log-probs and logits.

Experiments compare what one side recorded with what a cause would have made it record.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Case, Counts, Flags, spread_over
from rcdiag.diagnosis.experiments.fit import FLOAT32, Residual, fit_residual
from rcdiag.diagnosis.experiments.rounding import Rounding, rounding_of
from rcdiag.diagnosis.experiments.thresholds import CONFIRM_ROWS, SCREEN_ROWS
from rcdiag.diagnosis.experiments.trainer_distribution import TrainerDistribution
from rcdiag.diagnosis.thresholds import CERTAIN
from rcdiag.engines.changes import Forward, LowPrecision, Passage, Reading

DISTRIBUTION_TOKENS = 6_144  # at most this many tokens keep their logits over the vocabulary
DISTRIBUTION_LOGITS = 1 << 26  # at most this many logits are kept, whatever the vocabulary


def ranges(starts: Counts, lengths: Counts) -> Counts:
    """Return the integers of several ranges, one after the other."""
    parts = [np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


class RescoredSample(Struct, frozen=True, dict=True):
    """Whole rows of a case with the model's own log-probs of all response tokens."""

    case: Case
    rows: Counts  # [rows] index in the case
    place: Counts  # [tokens] index among the case's response tokens
    owner: Counts  # [tokens] index in the case of each token's row
    position: Counts  # [tokens] in the response
    token: Counts  # [tokens]
    usable: Flags  # [tokens] sampled by the policy, and no column is broken there
    reading: Reading  # [tokens]
    distribution_at: (
        Counts  # [distribution tokens] index among all sampled tokens: unsure contexts, of all rows
    )
    distribution: TrainerDistribution
    rounding: Rounding  # the residual of the same weights in bfloat16
    # mixture of experts: rounding can swap experts, which moves a few tokens by much
    experts: bool = False

    def __len__(self) -> int:
        return len(self.place)

    @property
    def noise(self) -> float:
        """Return the scale of logit noise up to which an engine in bfloat16 explains a column."""
        return self.rounding.noise

    @property
    def stated_temperature(self) -> Array:
        """Return the temperature that the table states for each token, or 1, [tokens]."""
        stated = self.case.facts.temperature
        if stated is None:
            return np.ones(len(self))
        return np.where(np.isnan(stated), 1.0, stated)[self.owner]

    def expected_at(self, temperature: Array) -> Array:
        """Return the expected column at temperatures [tokens], nats."""
        if np.all(temperature == 1.0):
            return self.reading.log_prob
        return self.reading.tempered(temperature)

    def sensitivity_at(self, expected: Array) -> Array:
        """Return the sensitivity to logit noise at other log-probs, e.g. another temperature,
        [tokens].

        Between one and the square root of two times the probability of all other tokens, as at
        temperature 1.
        """
        if expected is self.reading.log_prob:
            return self.reading.noise_gain
        others = np.maximum(-np.expm1(self.reading.log_prob), 1e-12)
        shape = np.clip(self.reading.noise_gain / others, 1.0, np.sqrt(2.0))
        values: Array = -np.expm1(expected) * shape
        return values

    @cached_property
    def index_of_place(self) -> Counts:
        """Return for each of the case's response tokens its index in the sample, or -1."""
        index = np.full(len(self.case.token_id), -1)
        index[self.place] = np.arange(len(self.place))
        return index

    def recorded(self, policy: str) -> Array:
        """Return what a policy recorded, [tokens] nats."""
        return self.case.log_probs[policy][self.place]

    def tokens_of(self, rows: Sequence[int] | Counts) -> Counts:
        """Return the indices of some rows' tokens, in the order of the rows."""
        return ranges(self.index_of_place[self.case.start[rows]], self.case.lengths[rows])

    def prompt(self, row: int) -> NDArray[np.int32]:
        """Return the prompt of a row of the case."""
        assert self.case.prompt_ids is not None
        return self.case.prompt_ids.row(row)

    def response(self, row: int) -> NDArray[np.int32]:
        """Return the response of a row of the case."""
        start = self.case.start[row]
        return self.case.token_id[start : start + self.case.lengths[row]]

    def passage(self, row: int, temperature: float = 1.0) -> Passage:
        """Return prompt and response of a row as the model reads them."""
        return passage_of(self.case, row, temperature)


def passage_of(case: Case, row: int, temperature: float = 1.0) -> Passage:
    """Return prompt and response of a case's row, all response tokens to be scored."""
    assert case.prompt_ids is not None
    prompt, start, length = case.prompt_ids.row(row), case.start[row], case.lengths[row]
    ids = np.concatenate([prompt, case.token_id[start : start + length]]).astype(np.int32)
    places = np.arange(len(prompt), len(ids))
    experts = None if case.experts is None else case.experts.slice(start, start + length)
    return Passage(ids, places[places > 0], row, None, len(prompt), temperature, experts)


# Neighbouring rows that are chosen together, since faults may exchange neighbours or pack them into
# one sequence. At least one block is read, however short the time.
BLOCK = 16


def chosen_rows(case: Case, most: int) -> Counts:
    """Choose at most `most` rows spread over a case, in blocks of neighbours."""
    count = len(case.lengths)
    if count <= most:
        return np.arange(count)
    starts = np.linspace(0, count - BLOCK, max(most // BLOCK, 1)).astype(np.int64)
    return np.unique((starts[:, None] + np.arange(BLOCK)).ravel())


def rows_in_time(
    case: Case, forward: Forward, most: int, deadline: float | None, checkpoints: int
) -> Counts:
    """Choose at most `most` rows, fewer if the deadline is near.

    The model, the model in bfloat16 and each checkpoint score these rows; half of the remaining
    time is reserved for that.
    """
    rows = chosen_rows(case, most)
    if deadline is None or len(rows) <= BLOCK:
        return rows
    assert case.prompt_ids is not None
    readable = [row for row in rows if len(case.prompt_ids.row(row)) and case.lengths[row]]
    passages = [passage_of(case, int(row)) for row in readable[:SCREEN_ROWS]]
    forward.log_probs(passages[:1])  # loads the model, so that the timed pass does not
    began = time.monotonic()
    forward.log_probs(passages)
    now = time.monotonic()
    of_row = (now - began) / max(len(passages), 1)
    budget = 0.5 * (deadline - now) / (2 + checkpoints)
    in_time = max(int(budget / max(of_row, 1e-9)), BLOCK)
    return rows if in_time >= len(rows) else chosen_rows(case, in_time)


def rescore(case: Case, rows: Counts, forward: Forward) -> RescoredSample:
    """Re-score rows of a case; rows without a prompt or response, or too long, are left out."""
    assert case.prompt_ids is not None
    vocabulary, context = forward.tensors.vocabulary, forward.tensors.context
    rows = np.array([row for row in rows if _fits(case, row, vocabulary, context)], np.int64)
    place = ranges(case.start[rows], case.lengths[rows])
    reading = forward.read([passage_of(case, int(row)) for row in rows])
    owner, position = case.owner[place], case.position[place]
    token, usable = case.token_id[place].astype(np.int64), case.mask[place]
    # Logits are kept of some tokens in uncertain contexts, whatever token was sampled there: where
    # the likeliest token is certain, a context shows nothing of the temperature.
    unsure = np.flatnonzero(case.sampled[place] & (reading.top < CERTAIN))
    most = max(min(DISTRIBUTION_TOKENS, DISTRIBUTION_LOGITS // vocabulary), 64)
    chosen = unsure[spread_over(len(unsure), most)]
    distribution = TrainerDistribution(
        reading.logits_at(chosen), token[chosen], owner[chosen], position[chosen]
    )
    return RescoredSample(
        case=case,
        rows=rows,
        place=place,
        owner=owner,
        position=position,
        token=token,
        usable=usable,
        reading=reading,
        distribution_at=chosen,
        distribution=distribution,
        rounding=_rounding(case, rows, forward, reading),
        experts=bool(forward.tensors.experts),
    )


def _fits(case: Case, row: int, vocabulary: int, context: int | None) -> bool:
    """Tell whether a row has a prompt and a response that the model can read."""
    assert case.prompt_ids is not None
    prompt, start = case.prompt_ids.row(row), case.start[row]
    response = case.token_id[start : start + case.lengths[row]]
    if not len(prompt) or not len(response):
        return False
    short = context is None or len(prompt) + len(response) <= context
    return bool(short and max(prompt.max(), response.max()) < vocabulary)


def _rounding(case: Case, rows: Counts, forward: Forward, reading: Reading) -> Rounding:
    """Measure the residual of the same weights in bfloat16 on some rows."""
    few = spread_over(len(rows), CONFIRM_ROWS)
    lengths = case.lengths[rows]
    at = ranges((np.cumsum(lengths) - lengths)[few], lengths[few])
    places = ranges(case.start[rows[few]], lengths[few])
    passages = [passage_of(case, int(row)) for row in rows[few]]
    made = forward.log_probs(passages, LowPrecision()) if passages else np.zeros(0)
    exact = np.full(len(at), FLOAT32)
    residual = fit_residual(made, reading.log_prob[at], reading.noise_gain[at], exact)
    return rounding_of(residual, case.token_id[places].astype(np.int64), case.owner[places])


class Side(Struct, frozen=True, dict=True):
    """One side's recorded column and the model's expected one at the best-fitting temperature."""

    name: str  # sampler or trainer
    policy: str
    recorded: Array  # [tokens]
    known: Flags  # [tokens] sampled, and a number recorded
    temperature: Array  # [tokens] of the expected column
    expected: Array  # [tokens] at that temperature
    sensitivity: Array  # [tokens] at that temperature
    resolution: Array  # [tokens] nats, the spacing of values in the column's storage format
    residual: Residual  # of the known tokens
    explained: bool

    @cached_property
    def known_at(self) -> Counts:
        """Return the indices of the known tokens."""
        return np.flatnonzero(self.known)
