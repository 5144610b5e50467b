"""Per-sequence sketches of any model: micro-batches of one row, whose gradient is the row's own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from rcdiag.learning.probes import Probes
from rcdiag.learning.taps import Taps


class Sketcher(Protocol):
    """Adds up the sketches of the rows of a micro-batch."""

    probes: Probes
    sums: Tensor  # [rows, dims] after a backward

    def attached(self) -> contextlib.AbstractContextManager[None]: ...
    def start(self, rows: int, device: torch.device) -> None: ...
    def whole(self, gradient: Mapping[str, Tensor]) -> None: ...


class OneRow:
    """For layers without a tap (Conv1D, fused experts): slower, since rows are not batched."""

    def __init__(self, probes: Probes) -> None:
        self.probes = probes
        self.sums = torch.zeros(0)

    def attached(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def start(self, rows: int, device: torch.device) -> None:
        assert rows == 1
        self.sums = torch.zeros(1, self.probes.settings.dims, dtype=torch.float64, device=device)

    def whole(self, gradient: Mapping[str, Tensor]) -> None:
        """The body's gradient of the one row."""
        self.sums[0] += torch.from_numpy(self.probes.of(gradient)).to(self.sums.device)


def sketcher(body: nn.Module, probes: Probes) -> Taps | OneRow:
    """Taps, which batch rows, where every layer that is trained has one."""
    taps = Taps(body, probes)
    return taps if taps.unknown() is None else OneRow(probes)
