"""Contexts that several rows share: in some they sampled different tokens, in others the same."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Case
from rcdiag.diagnosis.features.log_ratios import ENGINE_NOISE
from rcdiag.diagnosis.thresholds import (
    A_POWER,
    FEWEST,
    HALF,
    MUCH_LARGER,
    PART,
    SLIGHT,
    SURE,
    TWICE,
)
from rcdiag.table.hashing import mixed

Hashes = NDArray[np.uint64]


class SharedPrefixes(Struct, frozen=True, dict=True):
    """Pairs of tokens sampled in the same context: the likelier one and another one.

    Normalising constants of the context (kept mass, log-sum-exp) cancel in the difference of two
    log-probs. With another temperature, sampler = power * trainer for these differences, with one
    power for all contexts.
    """

    # Log-prob of the token that is likelier under the trainer minus that of the other, nats.
    sampler: Array  # [pairs]
    trainer: Array  # [pairs]

    @cached_property
    def power(self) -> float:
        """Return the median of sampler / trainer: T of the trainer over T of the sampler."""
        return float(np.median(self.sampler / self.trainer))

    @cached_property
    def distance(self) -> float:
        """Return the median of |sampler - trainer|, nats."""
        return float(np.median(np.abs(self.sampler - self.trainer)))

    @cached_property
    def residual(self) -> float:
        """Return the median of |sampler - power * trainer|, nats."""
        return float(np.median(np.abs(self.sampler - self.power * self.trainer)))

    @property
    def is_one_power(self) -> bool:
        """Tell whether one distribution is a power of the other, as with another temperature.

        Then the residual is at most a tenth of the distance, or for small differences a fifth.
        """
        another = abs(np.log(self.power)) > A_POWER
        most = min(max(SLIGHT, PART / 2 * self.distance), PART * self.distance)
        return another and self.residual <= most


def shared_prefixes_of(case: Case) -> SharedPrefixes | None:
    """Return the pairs of a case; None if prompts are unknown or there are too few pairs."""
    prompt = case.facts.prompt
    if prompt is None or case.trainer is None:
        return None
    tokens = case.tokens
    context = _contexts(case, prompt)[tokens.place]
    order = np.lexsort((tokens.token_id, context))
    context, token_id = context[order], tokens.token_id[order]
    new_context = np.append(True, context[1:] != context[:-1])
    first_of_id = new_context | np.append(True, token_id[1:] != token_id[:-1])
    order, context = order[first_of_id], np.cumsum(new_context)[first_of_id]
    several = np.bincount(context)[context] > 1
    order, context = order[several], context[several]
    if len(order) < 2 * FEWEST:
        return None
    trainer, sampler = tokens.trainer[order], tokens.sampler[order]
    likeliest = np.lexsort((-trainer, context))
    context, trainer, sampler = context[likeliest], trainer[likeliest], sampler[likeliest]
    begins = np.append(True, context[1:] != context[:-1])
    first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    apart = trainer[first] - trainer
    far = apart > TWICE  # for smaller differences the quotient sampler / trainer is mostly noise
    if far.sum() < FEWEST:
        return None
    return SharedPrefixes((sampler[first] - sampler)[far], apart[far])


class RepeatedTokens(Struct, frozen=True, dict=True):
    """Pairs of equal tokens that two rows have in the same context.

    A distribution gives both the same log-prob, whatever its weights and its contexts are. Values
    that differ are random, as with dropout, or depend on what else was in the batch.
    """

    sampler: Array  # [pairs] |difference of the two log-probs|, nats
    trainer: Array  # [pairs]
    log_ratio: Array  # [pairs] mean |log_ratio| of the two, nats

    @cached_property
    def apart(self) -> tuple[float, float]:
        """Return the median differences of the sampler's values and of the trainer's, nats."""
        return float(np.median(self.sampler)), float(np.median(self.trainer))

    @property
    def trainer_is_random(self) -> bool:
        """Tell whether only the trainer's values differ, by about as much as both sides do.

        Kernels whose rounding depends on the batch move them by less than ENGINE_NOISE.
        """
        sampler, trainer = self.apart
        between = float(np.median(self.log_ratio))
        return trainer > max(MUCH_LARGER * sampler, HALF * between, ENGINE_NOISE)


def repeated_tokens_of(case: Case) -> RepeatedTokens | None:
    """Return the pairs of a case whose tokens are not sure; None without prompts, or if few."""
    prompt = case.facts.prompt
    if prompt is None or case.trainer is None:
        return None
    tokens = case.tokens
    keys: list[NDArray[Any]] = [_contexts(case, prompt)[tokens.place], tokens.token_id]
    if (temperature := case.facts.temperature) is not None:  # it divides the trainer's logits
        keys.append(np.nan_to_num(temperature, nan=0.0)[tokens.owner])
    order = np.lexsort(keys)
    one, other = order[:-1], order[1:]
    same = np.all([key[one] == key[other] for key in keys], axis=0)
    same &= tokens.sampler[one] < SURE
    if same.sum() < FEWEST:
        return None
    one, other = one[same], other[same]
    size = np.abs(tokens.log_ratio)
    return RepeatedTokens(
        np.abs(tokens.sampler[one] - tokens.sampler[other]),
        np.abs(tokens.trainer[one] - tokens.trainer[other]),
        0.5 * (size[one] + size[other]),
    )


def _contexts(case: Case, prompt: Hashes) -> Hashes:
    """Return a hash of each response token's context and training step, [tokens]."""
    words = case.token_id.astype(np.uint64) ^ (case.position.astype(np.uint64) << np.uint64(32))
    with np.errstate(over="ignore"):
        before = np.cumsum(mixed(words), dtype=np.uint64) - mixed(words)
    nonempty = np.minimum(case.start, len(words) - 1)
    before -= before[nonempty][case.owner]
    row = prompt if case.facts.step is None else mixed(prompt) + case.facts.step.astype(np.uint64)
    hashes: Hashes = mixed(before + mixed(row)[case.owner])
    return hashes
