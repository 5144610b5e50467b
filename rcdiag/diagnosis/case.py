"""A case holds everything that a table says about two policies, as flat numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.results.routing import ExpertChanges
from rcdiag.statistics.intervals import student_quantile
from rcdiag.table.trajectories import Ragged

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


def spread_over(count: int, most: int) -> Counts:
    """Return at most `most` indices below `count`, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))


def rms(values: Array) -> float:
    """Return the root of the mean square; 0 for an empty array."""
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else 0.0


def z_of_sums(sums: NDArray[Any]) -> float:
    """Return the z score of the mean of per-cluster sums against 0; 0 if all sums are 0."""
    error = np.sqrt(np.sum(sums**2))
    return float(sums.sum() / error) if error > 0 else 0.0


class RowFacts(Struct, frozen=True, kw_only=True):
    """What the table's columns state of each row besides its tokens; None where absent."""

    step: Counts | None = None  # [rows]
    group: NDArray[np.uint64] | None = None  # [rows] hash of the prompt group
    prompt: NDArray[np.uint64] | None = None  # [rows] hash of the prompt's tokens
    engine: Sequence[str] | None = None  # [rows] replica of the sampler
    finish_reason: Sequence[str | None] | None = None  # [rows]
    temperature: Array | None = None  # [rows] NaN = unknown
    top_p: Array | None = None  # [rows] NaN = unknown
    top_k: Array | None = None  # [rows] NaN = unknown
    min_p: Array | None = None  # [rows] NaN = unknown
    reward: Array | None = None  # [rows] NaN = unknown
    advantage: Array | None = None  # [rows] NaN = unknown
    prompt_length: Counts | None = None  # [rows] tokens
    # Version of the weights that sampled: [rows], or [response tokens] of all rows.
    policy_version: Counts | None = None
    version_by_token: bool = False


# Kind of a value that is not finite -> the function that flags such values.
NOT_NUMBERS: Mapping[str, Callable[[Array], Flags]] = {
    "NaN": np.isnan,
    "-inf": np.isneginf,
    "+inf": np.isposinf,
}


class FlawedTokens(Struct, frozen=True):
    """Tokens whose log-prob has one flaw: how many, and where the first is."""

    tokens: int
    row: int  # of the first, in the whole table
    position: int  # of the first, in its response

    def and_later(self, other: FlawedTokens) -> FlawedTokens:
        """Add those of later rows."""
        return FlawedTokens(self.tokens + other.tokens, self.row, self.position)


# Fields of a case with an entry for each row, beside `lengths` and `facts`, and for each token.
OF_ROWS = ("row", "prompt_ids")
OF_TOKENS = (
    "token_id",
    "mask",
    "own_mask",
    "broken",
    "kept_size",
    "experts",
    "log_probs",
    "entropy",
)


class Case(Struct, frozen=True, kw_only=True, dict=True):
    """Whole rows of a table, masked tokens too, with the log-probs of every policy.

    `sampler` and `trainer` name the pair that is judged; `trainer` is None where the table has one
    policy. log_ratio = trainer - sampler, in nats.
    """

    sampler: str
    trainer: str | None
    row: Counts  # [rows] number in the whole table
    lengths: Counts  # [rows] response tokens, masked ones too
    token_id: NDArray[np.int32]  # [response tokens]
    mask: Flags  # [response tokens] True = sampled by the policy
    log_probs: Mapping[str, Array]  # policy -> [response tokens] nats
    entropy: Mapping[str, Array] = field(default_factory=dict)  # policy -> [response tokens] nats
    # Size of the sampler's kept set at each response token; 0 where it was not recorded.
    kept_size: Counts | None = None
    prompt_ids: Ragged | None = None
    # The experts that the sampler recorded, [response tokens], layer by layer.
    experts: Ragged | None = None
    # At how many tokens the pair took other experts, in the whole table; None: not recorded.
    rerouting: ExpertChanges | None = None
    facts: RowFacts = field(default_factory=RowFacts)
    metadata: Mapping[str, Any] = field(default_factory=dict)  # of the file, key `rcdiag`
    source: str = "TABLE"  # the table as a command line names it
    # Said of counts where the rows are drawn from a larger table: " in the 512 rows diagnosed".
    drawn: str = ""
    # The table's mask before rcdiag masked out any token; None: rcdiag masked out none.
    own_mask: Flags | None = None
    # Tokens that rcdiag masked out because a column holds no valid log-prob there; None: none.
    broken: Flags | None = None
    # Whether rcdiag masked out tokens for their low log-probs: E[ratio] over the others need not be
    # 1, and which distribution sampled is unknown.
    without_rare: bool = False
    # Policy -> kind of NOT_NUMBERS -> the sampled tokens of the whole table that have it.
    not_numbers: Mapping[str, Mapping[str, FlawedTokens]] = field(default_factory=dict)

    @cached_property
    def owner(self) -> Counts:
        """Return the index of each response token's row, [response tokens]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def start(self) -> Counts:
        """Return where each row's response tokens begin, [rows]."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def position(self) -> Counts:
        """Return the position of each response token in its row, from 0; [response tokens]."""
        return np.arange(len(self.mask)) - self.start[self.owner]

    @cached_property
    def cluster(self) -> Counts:
        """Return the index of each row's prompt group, [rows]; without groups, of the row."""
        group = self.facts.group
        if group is None:
            return np.arange(len(self.lengths))
        return np.unique(group, return_inverse=True)[1]

    @cached_property
    def tokens(self) -> PairTokens:
        """Return the sampled tokens whose log-probs are numbers under both policies."""
        assert self.trainer is not None
        sampler, trainer = self.log_probs[self.sampler], self.log_probs[self.trainer]
        usable = self.mask & np.isfinite(sampler) & np.isfinite(trainer)
        return PairTokens(
            sampler=sampler[usable],
            trainer=trainer[usable],
            owner=self.owner[usable],
            position=self.position[usable],
            token_id=self.token_id[usable],
            place=np.flatnonzero(usable),
            rows=len(self.lengths),
        )

    @property
    def table_mask(self) -> Flags:
        """Return the table's mask as it was before rcdiag masked out tokens, [response tokens]."""
        return self.mask if self.own_mask is None else self.own_mask

    @cached_property
    def picked_tokens(self) -> bool:
        """Tell whether rcdiag masked out single tokens of rows that it still judges."""
        if self.own_mask is None:
            return False
        judged = np.zeros(len(self.lengths), np.bool_)
        judged[self.owner[self.mask]] = True
        return bool(np.any(self.own_mask & ~self.mask & judged[self.owner]))

    @cached_property
    def sampled(self) -> Flags:
        """Flag the tokens that the policy sampled, with or without a log-prob, [response tokens].

        Tokens without a log-prob are often the rare ones: an estimate of the sampling distribution
        needs them too.
        """
        if self.broken is None:
            return self.mask
        judged = np.zeros(len(self.lengths), np.bool_)
        judged[self.owner[self.mask]] = True
        return self.mask | (self.broken & judged[self.owner])

    def take(self, rows: Flags) -> Case:
        """Return some rows of the case as a case; `rows` [rows]."""
        if rows.all():
            return self
        return self._part(rows, self.lengths[rows], np.repeat(rows, self.lengths))

    def heads(self, most: int) -> Case:
        """Return the case with only the first `most` response tokens of each row."""
        if self.lengths.max(initial=0) <= most:
            return self
        everything = np.ones(len(self.lengths), np.bool_)
        return self._part(everything, np.minimum(self.lengths, most), self.position < most)

    def _part(self, rows: Flags, lengths: Counts, tokens: Flags) -> Case:
        """Take flagged rows and response tokens; `lengths` are the tokens taken of each row."""
        by_token = "policy_version" if self.facts.version_by_token else ""
        facts = {
            name: _taken(getattr(self.facts, name), tokens if name == by_token else rows)
            for name in RowFacts.__struct_fields__
        }
        taken: dict[str, Any] = {name: _taken(getattr(self, name), rows) for name in OF_ROWS}
        taken |= {name: _taken(getattr(self, name), tokens) for name in OF_TOKENS}
        return replace(self, lengths=lengths, facts=RowFacts(**facts), **taken)

    def with_log_probs(self, policy: str, values: Array) -> Case:
        """Return the case with other log-probs of one policy."""
        return replace(self, log_probs={**self.log_probs, policy: values})

    def flawed(self, tokens: Flags) -> FlawedTokens:
        """Count flagged response tokens, of which there is one at least, and locate the first."""
        places = np.flatnonzero(tokens)
        first = places[0]
        row = int(self.row[self.owner[first]])
        return FlawedTokens(len(places), row, int(self.position[first]))

    def not_numbers_of(self, policy: str) -> dict[str, FlawedTokens]:
        """Return the sampled tokens whose log-prob is NaN or infinite, by kind."""
        values = self.log_probs[policy]
        if np.isfinite(values[self.mask]).all():
            return {}
        flags = {kind: of_kind(values) & self.mask for kind, of_kind in NOT_NUMBERS.items()}
        return {kind: self.flawed(tokens) for kind, tokens in flags.items() if tokens.any()}

    def of_sampled(self, tokens: Flags) -> Flags:
        """Return flags of response tokens from flags of the sampled ones."""
        flags = np.zeros(len(self.mask), np.bool_)
        flags[np.flatnonzero(self.mask)[tokens]] = True
        return flags

    def flagged(self, tokens: Flags) -> Flags:
        """Return flags of response tokens from flags of the pair's tokens."""
        flags = np.zeros(len(self.mask), np.bool_)
        flags[self.tokens.place[tokens]] = True
        return flags

    def without_tokens(self, tokens: Flags) -> Case:
        """Return the case with some response tokens masked out; `tokens` [response tokens]."""
        return replace(self, mask=self.mask & ~tokens, own_mask=self.table_mask)

    def without_values(self, tokens: Flags) -> Case:
        """Return the case with sampled tokens masked out that have no valid log-prob.

        `tokens` is [response tokens]; they still count as sampled.
        """
        broken = tokens if self.broken is None else self.broken | tokens
        return replace(self.without_tokens(tokens), broken=broken)

    def without_rows(self, rows: Flags) -> Case:
        """Return the case with all tokens of some rows masked out; `rows` [rows]."""
        return self.without_tokens(rows[self.owner])


def _taken(values: Any, chosen: Flags) -> Any:
    """Return the flagged rows' or tokens' part of an array, of lists, or of arrays by name."""
    if isinstance(values, np.ndarray):
        return values[chosen]
    if isinstance(values, Ragged):
        return values.take(chosen)
    if isinstance(values, Mapping):
        return {name: of_name[chosen] for name, of_name in values.items()}
    if isinstance(values, (list, tuple)):
        return [values[index] for index in np.flatnonzero(chosen)]
    return values


def _joined(parts: Sequence[Any]) -> Any:
    """Join the values of several cases in order; None where one of them has none."""
    first = parts[0]
    if any(part is None for part in parts):
        return None
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, Ragged):
        values = np.concatenate([part.values for part in parts])
        return Ragged.of(values, np.concatenate([part.lengths for part in parts]))
    if isinstance(first, Mapping):
        return {name: np.concatenate([part[name] for part in parts]) for name in first}
    if isinstance(first, (list, tuple)):
        return [entry for part in parts for entry in part]
    return first


def joined_cases(cases: Sequence[Case]) -> Case:
    """Join the rows of cases of one table, in order."""
    if len(cases) == 1:
        return cases[0]
    facts = {
        name: _joined([getattr(case.facts, name) for case in cases])
        for name in RowFacts.__struct_fields__
    }
    joined: dict[str, Any] = {
        name: _joined([getattr(case, name) for case in cases])
        for name in ("lengths", *OF_ROWS, *OF_TOKENS)
    }
    return replace(cases[0], facts=RowFacts(**facts), **joined)


class PairTokens(Struct, frozen=True, kw_only=True, dict=True):
    """Sampled tokens of two policies, flat; log_ratio = trainer - sampler, in nats."""

    sampler: Array  # [tokens] log-probs
    trainer: Array  # [tokens] log-probs
    owner: Counts  # [tokens] index of the row in the case, ascending
    position: Counts  # [tokens] in the response
    token_id: NDArray[np.int32]
    place: Counts  # [tokens] index among the case's response tokens
    rows: int  # of the case

    def __len__(self) -> int:
        return len(self.sampler)

    @cached_property
    def log_ratio(self) -> Array:
        """Return trainer - sampler log-prob of each token, nats, [tokens]."""
        return self.trainer - self.sampler

    @cached_property
    def per_row(self) -> Counts:
        """Return how many tokens each row has, [rows]."""
        return np.bincount(self.owner, minlength=self.rows)

    def row_sums(self, values: Array) -> Array:
        """Add up values [tokens] by row, [rows]."""
        return np.bincount(self.owner, values, self.rows).astype(np.float64)

    def z(self, values: Array) -> float:
        """Return the z score of the mean of values [tokens] against 0, with rows as clusters."""
        return z_of_sums(self.row_sums(values))

    def as_far(self, z: float) -> float:
        """Return the z that is as unlikely with this many rows as `z` is with infinitely many.

        The z of n rows is at most sqrt(n). It is a function of Student's t with n - 1 degrees of
        freedom: z^2 = n t^2 / (n - 1 + t^2).
        """
        from scipy.special import ndtr

        rows = int((self.per_row > 0).sum())
        if rows < 2:
            return z
        t = float(student_quantile(rows - 1, ndtr(-z)))
        value: float = t * (rows / (rows - 1 + t * t)) ** 0.5
        return value
