"""Several checkpoints as one model: each row is scored with the checkpoint of its training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rcdiag.engines.changes import Change, Moved, Passage, Reading, Tensors
from rcdiag.engines.hf.probe import Probe

MOST_LOADED = 4  # checkpoints that are loaded at the same time


class Fleet:
    """The trainer's model: one checkpoint for all rows, or one for each training step."""

    def __init__(self, folder_of: Callable[[int], Path], device: str | None = None) -> None:
        """`folder_of` returns the checkpoint of a row of the case."""
        self.folder_of = folder_of
        self.device = device
        self._loaded: dict[Path, Probe] = {}

    def probe(self, folder: Path) -> Probe:
        """Return the probe of a checkpoint, loading it if needed."""
        if folder not in self._loaded:
            while len(self._loaded) >= MOST_LOADED:
                self._loaded.pop(next(iter(self._loaded)))
            self._loaded[folder] = Probe(folder, self.device)
        return self._loaded[folder]

    @property
    def tensors(self) -> Tensors:
        """Return names and shapes of the model's tensors, and its special tokens."""
        return self.probe(self.folder_of(0)).tensors

    def _by_folder(self, passages: Sequence[Passage]) -> list[tuple[Path, NDArray[np.int64]]]:
        """Group passages by the checkpoint of their rows; return the passages' indices."""
        folders = [self.folder_of(one.row) for one in passages]
        return [
            (folder, np.flatnonzero([other == folder for other in folders]))
            for folder in dict.fromkeys(folders)
        ]

    def _gathered(
        self,
        passages: Sequence[Passage],
        score: Callable[[Probe, Sequence[Passage]], NDArray[np.float64]],
    ) -> NDArray[np.float64]:
        """Score passages with the checkpoints of their rows, [scored] in the passages' order."""
        parts: list[NDArray[np.float64]] = [np.zeros(0)] * len(passages)
        for folder, chosen in self._by_folder(passages):
            some = [passages[index] for index in chosen]
            values = score(self.probe(folder), some)
            ends = np.cumsum([len(one.places) for one in some])[:-1]
            for index, part in zip(chosen, np.split(values, ends), strict=True):
                parts[index] = part
        return np.concatenate([np.zeros(0), *parts])

    def read(self, passages: Sequence[Passage]) -> Reading:
        """Return log-prob, entropy and logits of every scored token, model unchanged."""
        groups = self._by_folder(passages)
        if len(groups) == 1:
            return self.probe(groups[0][0]).read(passages)
        sizes = [len(one.places) for one in passages]
        offset = np.cumsum(sizes) - sizes
        count = int(sum(sizes))
        columns = np.zeros((count, 4))
        reader, place = np.zeros(count, np.int64), np.zeros(count, np.int64)
        readings: list[Reading] = []
        for number, (folder, chosen) in enumerate(groups):
            made = self.probe(folder).read([passages[index] for index in chosen])
            at = np.concatenate(
                [np.arange(offset[index], offset[index] + sizes[index]) for index in chosen]
            ).astype(np.int64)
            columns[at] = np.stack([made.log_prob, made.entropy, made.top, made.noise_gain], axis=1)
            reader[at], place[at] = number, np.arange(len(at))
            readings.append(made)

        def logits_at(chosen: NDArray[np.int64]) -> NDArray[np.float32]:
            made = np.zeros((len(chosen), self.tensors.vocabulary), np.float32)
            for number, reading in enumerate(readings):
                own = np.flatnonzero(reader[chosen] == number)
                if len(own):
                    made[own] = reading.logits_at(place[chosen[own]])
            return made

        def tempered(temperature: NDArray[np.float64]) -> NDArray[np.float64]:
            made = np.zeros(count)
            for number, reading in enumerate(readings):
                own = np.flatnonzero(reader == number)
                own = own[np.argsort(place[own], kind="stable")]
                made[own] = reading.tempered(temperature[own])
            return made

        log_prob, entropy, top, noise_gain = columns.T
        return Reading(
            log_prob=log_prob,
            entropy=entropy,
            top=top,
            noise_gain=noise_gain,
            logits_at=logits_at,
            tempered=tempered,
        )

    def log_probs(
        self, passages: Sequence[Passage], change: Change | None = None
    ) -> NDArray[np.float64]:
        """Return log-probs of the scored tokens, [scored] nats, at the passages' temperature."""
        if isinstance(change, Moved) and change.part == "all" and change.fraction == 1.0:
            return self.probe(change.folder).log_probs(passages)
        return self._gathered(passages, lambda probe, some: probe.log_probs(some, change))

    def after(self, passages: Sequence[Passage]) -> NDArray[np.float64]:
        """Return log-probs of the scored tokens by the logits one position late, [scored] nats."""
        return self._gathered(passages, lambda probe, some: probe.after(some))

    def after_other_prefix(self, passages: Sequence[Passage], folder: Path) -> NDArray[np.float64]:
        """Score passages whose prompt was read by another checkpoint's weights, [scored] nats."""
        other = self.probe(folder)
        return self._gathered(passages, lambda probe, some: probe.after_other_prefix(some, other))
