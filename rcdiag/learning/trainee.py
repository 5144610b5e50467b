"""A model, loaded once, that gives log-probs, gradients, samples and update steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.engines.hf.head import scores_in_chunks
from rcdiag.engines.hf.model import context_of
from rcdiag.engines.spec import PolicySpec
from rcdiag.learning.backward import Summed, accumulate
from rcdiag.learning.families import Basis, VectorFamily, basis_of, families_of, separate_families
from rcdiag.learning.fresh_responses import Generated, SamplingSettings, generate
from rcdiag.learning.gradient import Gradient, combined, layer_groups
from rcdiag.learning.learner import Parts
from rcdiag.learning.micro_batches import (
    MicroBatch,
    ModelRow,
    micro_batches,
    rows_of,
    rows_with,
)
from rcdiag.learning.optimizer import Snapshot, Stepper
from rcdiag.learning.policy import TrainablePolicy, load_policy, save_policy
from rcdiag.learning.sketch import OneRow, Probes, RowsMixed, sketcher
from rcdiag.learning.training_settings import (
    MICRO_BATCH_TOKENS,
    LoraSettings,
    OptimizerSettings,
    SketchSettings,
)

Array = NDArray[np.float64]


class TokenScores(Struct, frozen=True):
    """Log-prob and entropy of each unmasked token, nats."""

    log_probs: Array
    entropy: Array | None


class Gradients(Struct, frozen=True):
    """The gradients of K coefficient vectors."""

    whole: list[Gradient]  # [K]
    sketches: Array | None  # [K, rows with an unmasked token, dims]
    backwards: int  # the largest number of backward passes of a micro-batch


class Trainee:
    """A model that is loaded once. Its checkpoint on disk is never written to."""

    def __init__(self, policy: TrainablePolicy, batch_tokens: int | None = None) -> None:
        self.policy = policy
        self.batch_tokens = batch_tokens or MICRO_BATCH_TOKENS[policy.device.type]
        self._groups = layer_groups(policy)
        self._stepper = Stepper(policy.parameters)

    @classmethod
    def load(
        cls,
        spec: PolicySpec,
        *,
        lora: LoraSettings | None = None,
        checkpointing: bool = False,
        batch_tokens: int | None = None,
    ) -> Trainee:
        """Load the model of a policy; with `lora` only new adapters are trained."""
        return cls(load_policy(spec, lora, checkpointing), batch_tokens)

    @torch.no_grad()
    def log_probs(self, parts: Parts, *, entropy: bool = False) -> TokenScores:
        """Return log-probs of the whole distribution at each row's temperature, as backend hf."""
        rows = self._rows(parts)
        columns = np.empty((sum(len(row.places) for row in rows), 1 + entropy))
        for batch in self._batches(rows, np.ones(len(rows), np.bool_)):
            states = self.policy.states(batch)
            with self.policy.precision():
                scores = scores_in_chunks(
                    states,
                    self.policy.to_logits,
                    self.policy.vocab_size,
                    batch.targets.cpu(),
                    batch.temperature,
                    entropy=entropy,
                    top_k=0,
                )
            columns[batch.tokens] = scores.double().cpu().numpy()
        return TokenScores(columns[:, 0].copy(), columns[:, 1].copy() if entropy else None)

    def gradients(
        self, parts: Parts, coefficients: Array, *, sketch: SketchSettings | None = None
    ) -> Gradients:
        """Return the gradient of sum_t c_t log pi(y_t) for coefficients [K, tokens].

        All vectors share one forward pass of each micro-batch. Vectors that are linear combinations
        of others need no backward pass, and with sketches those that differ by a factor for each
        row share one. Rows whose coefficients are all 0 are skipped. For sketches of a model with
        layers that have no tap, micro-batches have one row.
        """
        rows = self._rows(parts)
        basis = basis_of(coefficients)
        chosen = coefficients[basis.rows]
        families = separate_families(chosen)
        if sketch is not None and len(chosen):
            families = families_of(chosen, [len(row.places) for row in rows])
        probes = None if sketch is None else self.probes(sketch)
        summed = self._accumulated(rows, chosen, families, probes)
        sketches: Array | None = None
        if summed.sketches is not None:  # combined as the gradients are, [K, rows, dims]
            sketches = np.einsum("kb,brd->krd", basis.combine, summed.sketches)
        return Gradients(self._combined(summed, basis), sketches, len(families))

    def _accumulated(
        self,
        rows: list[ModelRow],
        chosen: Array,
        families: list[VectorFamily],
        probes: Probes | None,
    ) -> Summed:
        selected = rows_with(rows, chosen)
        taps = None if probes is None else sketcher(self.policy.body, probes)
        if not isinstance(taps, OneRow):
            with contextlib.suppress(RowsMixed):  # raised by the first backward pass, if at all
                batches = self._batches(rows, selected)
                return accumulate(self.policy, batches, chosen, families, len(rows), taps)
        assert probes is not None
        single = self._batches(rows, selected, batch_tokens=1)
        return accumulate(self.policy, single, chosen, families, len(rows), OneRow(probes))

    def probes(self, settings: SketchSettings) -> Probes:
        """Return the random signs with which `gradients` computes sketches."""
        return Probes(self.policy.parameters, settings)

    def apply(self, gradient: Gradient, settings: OptimizerSettings) -> float:
        """Take one optimizer step down `gradient`; return the norm of the weights' change.

        The optimizer's state stays until `restore`.
        """
        return self._stepper.apply(gradient, settings)

    def restore(self) -> None:
        """Restore the loaded weights exactly, and drop the optimizer's state."""
        self._stepper.load(self._stepper.loaded)

    def snapshot(self) -> Snapshot:
        return self._stepper.snapshot()

    def load_snapshot(self, snapshot: Snapshot) -> None:
        self._stepper.load(snapshot)

    def save(self, folder: Path) -> None:
        save_policy(self.policy, folder)

    def generate(
        self, prompts: Sequence[NDArray[np.int32]], settings: SamplingSettings
    ) -> list[Generated]:
        return generate(self.policy, prompts, settings, self.batch_tokens)

    def _rows(self, parts: Parts) -> list[ModelRow]:
        return rows_of(parts, self.policy.vocab_size)

    def _batches(
        self, rows: list[ModelRow], selected: NDArray[np.bool_], batch_tokens: int | None = None
    ) -> Iterator[MicroBatch]:
        context, tokens = context_of(self.policy.model), batch_tokens or self.batch_tokens
        return micro_batches(rows, selected, tokens, self.policy.device, context)

    def _combined(self, summed: Summed, basis: Basis) -> list[Gradient]:
        parts = [Gradient(values, self._groups) for values in summed.gradients]
        if not parts:
            zeros = {n: torch.zeros_like(p).float() for n, p in self.policy.parameters.items()}
            return [Gradient(zeros, self._groups) for _ in basis.combine]
        own = {int(row): part for row, part in zip(basis.rows, parts, strict=True)}
        return [own[k] if k in own else combined(parts, w) for k, w in enumerate(basis.combine)]
