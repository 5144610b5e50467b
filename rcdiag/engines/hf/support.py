"""Kept sets, to which a distribution is restricted, as masks over the logits of positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcdiag.engines.kept_sets import OWN, SAMPLING_PARAMETERS, SUPPORT
from rcdiag.engines.spec import PolicySpec
from rcdiag.table.trajectories import Ragged, Trajectories


class KeptSets(Protocol):
    """The kept sets of several positions."""

    def take(self, tokens: NDArray[np.int64]) -> KeptSets:
        """Return the kept sets of the positions with these indices."""
        ...

    def mask(self, positions: slice, scaled: Tensor) -> Tensor:
        """Return the mask of kept tokens, [positions, vocabulary], given logits / temperature."""
        ...


@dataclass(frozen=True)
class RecordedSets:
    """Kept sets that a sampler recorded, as token ids."""

    ids: Ragged  # a list for each position

    def take(self, tokens: NDArray[np.int64]) -> RecordedSets:
        return RecordedSets(self.ids.take(tokens))

    def mask(self, positions: slice, scaled: Tensor) -> Tensor:
        """Keep the recorded ids, or all tokens where none were recorded (not sampled there)."""
        offsets = self.ids.offsets[positions.start : positions.start + len(scaled) + 1]
        ids = torch.from_numpy(self.ids.values[offsets[0] : offsets[-1]].astype(np.int64))
        lengths = torch.from_numpy(np.diff(offsets)).to(scaled.device)
        kept = (lengths == 0)[:, None].repeat(1, scaled.shape[1])
        rows = torch.arange(len(scaled), device=scaled.device).repeat_interleave(lengths)
        kept[rows, ids.to(scaled.device)] = True
        return kept


@dataclass(frozen=True)
class OwnSets:
    """Kept sets of the model itself, computed as in vLLM's sampler.

    min-p acts on the distribution at the row's temperature, top-k on what min-p left, and top-p on
    the renormalised rest (`Sampler.sample` and `apply_top_k_top_p` in vllm/v1/sample).
    """

    top_p: NDArray[np.float64]  # [positions] 1 = off
    top_k: NDArray[np.float64]  # [positions] 0 and -1 = off
    min_p: NDArray[np.float64]  # [positions] 0 = off

    def take(self, tokens: NDArray[np.int64]) -> OwnSets:
        return OwnSets(self.top_p[tokens], self.top_k[tokens], self.min_p[tokens])

    def mask(self, positions: slice, scaled: Tensor) -> Tensor:
        """Keep what min-p, top-k and top-p leave; ties with the k-th largest logit are kept."""
        size = scaled.shape[1]
        most = np.where(self.top_k > 0, np.minimum(self.top_k, size), size)[positions]
        top_k = torch.from_numpy(most.astype(np.int64)).to(scaled.device)[:, None]
        top_p, min_p = (
            torch.from_numpy(values[positions].astype(np.float32)).to(scaled.device)[:, None]
            for values in (self.top_p, self.min_p)
        )
        likeliest = scaled.amax(dim=1, keepdim=True)
        left = scaled.masked_fill(scaled < likeliest + min_p.log(), -torch.inf)
        ordered, order = left.sort(dim=1)  # ascending
        ordered = ordered.masked_fill(ordered < ordered.gather(1, size - top_k), -torch.inf)
        # A token is dropped if it and all less likely tokens have at most 1 - top_p in total.
        dropped = torch.where(top_p < 1, 1 - top_p, -1.0)
        kept = (ordered.softmax(dim=1).cumsum(dim=1) > dropped) & ordered.isfinite()
        kept[:, -1] = True
        return torch.zeros_like(kept).scatter_(1, order, kept)


def kept_sets_of(spec: PolicySpec, rows: Trajectories) -> KeptSets | None:
    """Return the kept sets of all response tokens; None if the policy has no `support`."""
    support = spec.options.get(SUPPORT)
    if support is None:
        return None
    if support != OWN:
        return RecordedSets(rows.token_lists[f"{support}_kept_ids"])
    lengths = rows.response_ids.lengths
    return OwnSets(*(np.repeat(rows.sampling[name], lengths) for name in SAMPLING_PARAMETERS))
