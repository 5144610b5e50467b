"""Contexts that several rows share and in which they sampled different tokens."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Case
from rcdiag.diagnosis.thresholds import A_POWER, FEWEST, PART, SLIGHT, TWICE
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
