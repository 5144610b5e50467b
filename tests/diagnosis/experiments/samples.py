"""Test cases from made-up logits: a sampler, a trainer, and a model given by a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Case, RowFacts
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTester
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, rescore
from rcdiag.diagnosis.experiments.sides import side_of
from rcdiag.diagnosis.experiments.trainer_distribution import (
    TrainerDistribution,
    entropy,
    log_sum,
    softmax,
)
from rcdiag.engines.changes import Change, Passage, Reading, Tensors
from rcdiag.table.trajectories import Ragged

VOCABULARY = 48
END = 1
ROWS, LENGTH, PROMPT = 60, 40, 6
Logits = NDArray[np.float32]


class TableOfLogits:
    """A model whose logits are read from a table, by row and response position."""

    def __init__(self, logits: Logits, noise: float = 0.005) -> None:
        self.logits = logits  # [rows, length, vocabulary]
        self.noise = noise

    @property
    def tensors(self) -> Tensors:
        return Tensors(1, {}, {}, VOCABULARY, None, (0, END, 2), (END,), 0)

    def _of(self, passages: Sequence[Passage]) -> tuple[Logits, NDArray[np.int64]]:
        logits = np.concatenate([self.logits[one.row, : len(one.places)] for one in passages])
        return logits, np.concatenate([one.ids[one.places] for one in passages]).astype(np.int64)

    def read(self, passages: Sequence[Passage]) -> Reading:
        logits, token = self._of(passages)
        own = logits[np.arange(len(token)), token].astype(np.float64)
        log_prob, weights = own - log_sum(logits), softmax(logits)
        chosen = weights[np.arange(len(token)), token].astype(np.float64)
        sensitivity = np.sqrt((1 - chosen) ** 2 + (weights**2).sum(axis=1) - chosen**2)
        return Reading(
            log_prob=log_prob,
            entropy=entropy(logits),
            top=np.log(weights.max(axis=1).astype(np.float64)),
            noise_gain=sensitivity,
            logits_at=lambda index: logits[index],
            tempered=lambda t: TrainerDistribution(logits, token, token, token).log_prob_at(t),
        )

    def log_probs(
        self, passages: Sequence[Passage], change: Change | None = None
    ) -> NDArray[np.float64]:
        logits, token = self._of(passages)
        moved = logits + np.random.default_rng(3).normal(0, self.noise, logits.shape)
        return TrainerDistribution(moved.astype(np.float32), token, token, token).log_prob_at(1.0)

    def after(self, passages: Sequence[Passage]) -> NDArray[np.float64]:
        logits, token = self._of(passages)
        return TrainerDistribution(np.roll(logits, -1, axis=0), token, token, token).log_prob_at(
            1.0
        )

    def after_other_prefix(self, passages: Sequence[Passage], folder: Path) -> NDArray[np.float64]:
        raise NotImplementedError


def made_up(
    distribution: Callable[[Logits, NDArray[np.int32], NDArray[np.int32]], Logits] | None = None,
    *,
    temperature: float | None = None,
    recorded: Callable[[NDArray[np.float64], Logits], NDArray[np.float64]] | None = None,
    noise: float = 0.004,
    seed: int = 0,
) -> tuple[Case, TableOfLogits]:
    """Sample rows from a distribution derived from the trainer's logits; record its log-probs.

    `law` gets logits [vocabulary], the prompt and the response so far, and returns the logits that
    sample; `recorded` gets the sampler's log-probs and logits, and returns what is stored. The
    trainer's column is the table's own at temperature 1.
    """
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 2.0, (ROWS, LENGTH, VOCABULARY)).astype(np.float32)
    prompts = rng.integers(3, VOCABULARY, (ROWS, PROMPT)).astype(np.int32)
    tokens = np.zeros((ROWS, LENGTH), np.int32)
    sampled = np.zeros((ROWS, LENGTH))
    trained = np.zeros((ROWS, LENGTH))
    of_sampler = np.zeros_like(logits)
    for row in range(ROWS):
        for at in range(LENGTH):
            made = logits[row, at] + rng.normal(0, noise, VOCABULARY).astype(np.float32)
            if distribution is not None:
                made = distribution(made, prompts[row], tokens[row, :at])
            of_sampler[row, at] = made
            weights = np.exp(made.astype(np.float64) - made.max())
            weights /= weights.sum()
            tokens[row, at] = rng.choice(VOCABULARY, p=weights)
            sampled[row, at] = np.log(weights[tokens[row, at]])
            whole = logits[row, at].astype(np.float64)
            trained[row, at] = whole[tokens[row, at]] - np.log(np.exp(whole).sum())
    stored = sampled.ravel()
    if recorded is not None:
        stored = recorded(stored, of_sampler.reshape(-1, VOCABULARY))
    case = Case(
        sampler="rollout",
        trainer="old",
        row=np.arange(ROWS),
        lengths=np.full(ROWS, LENGTH),
        token_id=tokens.ravel(),
        mask=np.ones(ROWS * LENGTH, np.bool_),
        log_probs={"rollout": stored, "old": trained.ravel()},
        prompt_ids=Ragged(prompts.ravel(), np.arange(0, ROWS * PROMPT + 1, PROMPT)),
        facts=RowFacts(
            temperature=None if temperature is None else np.full(ROWS, temperature),
        ),
    )
    return case, TableOfLogits(logits)


def made_tester(case: Case, model: TableOfLogits, name: str = "sampler") -> HypothesisTester:
    """Make the tester of one side of a made-up case."""
    sample: RescoredSample = rescore(case, np.arange(len(case.lengths)), model)
    policy = case.sampler if name == "sampler" else case.trainer
    assert policy is not None
    return HypothesisTester(sample, side_of(sample, name, policy), model)
