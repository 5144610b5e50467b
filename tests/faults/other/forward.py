"""A generated table's trainer checkpoint as a `Forward`, for experiments.

A pass of these recurrent models takes hundredths of a second, so hundreds of tables can be
diagnosed with their checkpoint. A change that exists only for attention models leaves them as
they are, and its experiment then explains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from rcdiag.diagnosis.experiments.trainer_distribution import TrainerDistribution
from rcdiag.engines.changes import (
    Change,
    KeyValueCache,
    LowPrecision,
    Moved,
    NormEpsilon,
    Passage,
    Quantised,
    Reading,
    RotaryBase,
    SwappedExperts,
    Tensors,
)
from tests.faults.other.make import planned
from tests.faults.other.models import BOS, EOS, PAD, WIDTH, Model, Noise, advance, logits
from tests.faults.other.precision import float8, integers, quantised
from tests.faults.other.sampling import View, read_hidden
from tests.faults.other.tables import SILENT, Plan, label, to_arrow

# Vocabularies whose logits are quick to compute, and the most tokens of a table.
VOCABULARIES, TOKENS = (24, 192), 8_000
# Kinds whose trainer column does not come from the trainer's own weights.
OF_OTHER_WEIGHTS = ("reference-as-old", "old-after-update", "vocab-shard-wrong")


@dataclass
class Checkpoints:
    """The trainer's weights for each row of a table, and other checkpoints by folder."""

    models: list[Model]
    of_row: np.ndarray  # [rows] index into `models`
    others: dict[Path, Model]
    noise: Noise  # of an engine in low precision

    @property
    def tensors(self) -> Tensors:
        weights = self.models[0].weights
        experts = {0: weights["router"].shape[1]} if "router" in weights else {}
        vocabulary = self.models[0].vocabulary
        return Tensors(1, experts, {}, vocabulary, None, (BOS, EOS, PAD), (EOS,), PAD)

    def read(self, passages: Sequence[Passage]) -> Reading:
        made, token = self._logits(passages), _scored(passages)
        own = np.arange(len(token))
        log_prob = _log_softmax(made)
        p = np.exp(log_prob)
        chosen = p[own, token]
        return Reading(
            log_prob=log_prob[own, token],
            entropy=-(p * log_prob).sum(1),
            top=log_prob.max(1),
            noise_gain=np.sqrt((1 - chosen) ** 2 + (p**2).sum(1) - chosen**2),
            logits_at=lambda index: made[index],
            tempered=lambda t: TrainerDistribution(made, token, token, token).log_prob_at(t),
        )

    def log_probs(self, passages: Sequence[Passage], change: Change | None = None) -> np.ndarray:
        return _chosen(self._logits(passages, change), passages)

    def after(self, passages: Sequence[Passage]) -> np.ndarray:
        return _chosen(self._logits(passages, late=1), passages)

    def after_other_prefix(self, passages: Sequence[Passage], folder: Path) -> np.ndarray:
        return _chosen(self._logits(passages, prefix=self.others[folder]), passages)

    def _logits(
        self,
        passages: Sequence[Passage],
        change: Change | None = None,
        *,
        late: int = 0,
        prefix: Model | None = None,
    ) -> np.ndarray:
        """Return the logits that score the passages' tokens, [scored, vocabulary]."""
        noise = self.noise if isinstance(change, LowPrecision) else SILENT
        which = self.of_row[[passage.row for passage in passages]]
        sizes = [len(passage.places) for passage in passages]
        owner = np.repeat(np.arange(len(passages)), sizes)
        made = np.zeros((sum(sizes), self.models[0].vocabulary), np.float32)
        for index in np.unique(which):
            chosen = np.flatnonzero(which == index)
            model = self._changed(self.models[index], change)
            views = [_view(passages[at], late, prefix) for at in chosen]
            vectors = read_hidden(model, views, np.random.default_rng(0), noise)
            made[np.isin(owner, chosen)] = logits(model, vectors)
        return made

    def _changed(self, model: Model, change: Change | None) -> Model:
        match change:
            case Moved(folder, fraction, "all"):
                other = self.others[folder].weights
                return model.with_weights(
                    **{
                        name: value + np.float32(fraction) * (other[name] - value)
                        for name, value in model.weights.items()
                    }
                )
            case Moved(folder, 1.0, "head"):
                return model.with_weights(head=self.others[folder].weights["head"])
            case Quantised("int8"):
                return quantised(model, lambda x: integers(x, 8, x.shape[-1]))
            case Quantised("int4"):
                return quantised(model, lambda x: integers(x, 4, 16))
            case Quantised("fp8"):
                return quantised(model, float8)
            case KeyValueCache():
                return replace(model, state_rounding=float8)
            case NormEpsilon(epsilon):
                return replace(model, eps=epsilon)
            case RotaryBase(factor):
                return replace(model, frequency=factor**-0.25)
            case SwappedExperts(_, one, other):
                order = np.arange(len(model.weights["experts"]))
                order[[one, other]] = order[[other, one]]
                return model.with_weights(experts=model.weights["experts"][order])
        return model


def _view(passage: Passage, late: int, prefix: Model | None) -> View:
    """Return a passage in the form that this generator's scorer takes."""
    ids = passage.ids.astype(np.int64)
    positions = np.arange(len(ids)) if passage.positions is None else passage.positions
    begin = max(passage.prefix - 1, 0) if prefix is not None else 0
    state = None
    if prefix is not None:
        state = np.zeros((1, WIDTH), np.float32)
        for at in range(begin):
            state = advance(prefix, state, ids[at : at + 1], positions[at : at + 1])
        state = state[0]
    read = passage.places - 1 + late - begin
    return View(ids[begin:], read, ids[passage.places], positions[begin:], state)


def _scored(passages: Sequence[Passage]) -> np.ndarray:
    return np.concatenate([one.ids[one.places] for one in passages]).astype(np.int64)


def _log_softmax(made: np.ndarray) -> np.ndarray:
    z = made.astype(np.float64)
    z -= z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def _chosen(made: np.ndarray, passages: Sequence[Passage]) -> np.ndarray:
    """Return the log-probs of the scored tokens at their passages' temperatures, [scored]."""
    sizes = [len(one.places) for one in passages]
    temperature = np.repeat([one.temperature for one in passages], sizes)
    token = _scored(passages)
    return _log_softmax(made / temperature[:, None])[np.arange(len(token)), token]


def make_with_checkpoint(seed: int, index: int) -> tuple[pa.Table, dict, Checkpoints]:
    """Return a small table `index` of a seed, its label and the trainer's checkpoint."""
    rng = np.random.default_rng([seed, index, 1])
    tokens = int(rng.uniform(0.3, 1.0) * TOKENS)
    vocabulary = int(rng.choice(VOCABULARIES, p=(0.2, 0.8)))
    plan, faults, made = planned(seed, index, vocabulary=vocabulary, tokens=tokens)
    columns, truth, _ = plan.run()
    table = to_arrow(columns, plan)
    key = {"kind": made.name, **label(faults, truth), "healthy": made.healthy}
    checkpoints = checkpoints_of(plan, made.name, columns.repeat)
    if len(plan.sampler_models) > 1 or rng.random() < 0.5:
        # Half of the tables have other checkpoints available.
        checkpoints.others = {
            Path(f"other_{number}"): model for number, model in enumerate(plan.sampler_models)
        }
    return table, key, checkpoints


def checkpoints_of(plan: Plan, kind: str, repeat: np.ndarray | None) -> Checkpoints:
    """Return the trainer's weights by row, without the faults of its forward pass."""
    models = [
        Model(plan.model.weights if kind in OF_OTHER_WEIGHTS else model.weights)
        for model in plan.trainer_models
    ]
    of_row = np.zeros(plan.rows, int) + plan.trainer_which
    noise = plan.noise(plan.floor / np.sqrt(2.0)) if plan.floor else SILENT
    return Checkpoints(models, of_row if repeat is None else of_row[repeat], {}, noise)
