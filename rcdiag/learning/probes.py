"""Fixed random signs for each parameter, and the sketch of a gradient that is there in full."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rcdiag.learning.settings import SketchSettings


class Probes:
    """Signs +1 and -1, the same for the same seed and model.

    The sketch of a matrix G [out, in] is s_j = u_j' G v_j / sqrt(p), j = 1..p, of a vector g
    s_j = u_j' g / sqrt(p), of more axes that of the matrix [all but the last, last], with
    independent signs u and v. Then E[s(A).s(B)] = <A, B>, and its variance is at most that of
    Gaussian probes,
    (|A|^2 |B|^2 + <A,B>^2 + 2|A'B|^2 + 2|AB'|^2 + 2 tr(AB'AB')) / p <= 8 |A|^2 |B|^2 / p.
    Signs of different parameters are independent: numbers that they share add noise, no bias.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: SketchSettings) -> None:
        self.parameters = parameters
        self.settings = settings
        self._numbers = {id(p): index for index, p in enumerate(parameters.values())}
        self._signs: dict[int, tuple[Tensor, ...]] = {}

    def slots(self, parameter: Tensor) -> NDArray[np.int64]:
        """[probes] which numbers of the sketch a parameter goes into."""
        first = self._numbers[id(parameter)] * self.settings.probes
        return (first + np.arange(self.settings.probes)) % self.settings.dims

    def signs(self, parameter: Tensor) -> tuple[Tensor, ...]:
        """For each axis of the matrix [size, probes] float32; the first has the 1/sqrt(p)."""
        number = self._numbers[id(parameter)]
        if number not in self._signs:
            random = np.random.default_rng([self.settings.seed, number])
            sides = [self._draw(random, size) for size in _as_matrix(parameter).shape]
            sides[0] /= self.settings.probes**0.5
            self._signs[number] = tuple(side.to(parameter.device) for side in sides)
        return self._signs[number]

    def _draw(self, random: np.random.Generator, size: int) -> Tensor:
        signs = random.integers(0, 2, (size, self.settings.probes), np.int8)
        return torch.from_numpy(2 * signs - 1).float()

    def of(self, values: Mapping[str, Tensor]) -> NDArray[np.float64]:
        """[dims] the sketch of a gradient that is there in full; parameters may be missing."""
        found = np.zeros(self.settings.dims)
        for name, value in values.items():
            parameter = self.parameters[name]
            left, *right = (side.double() for side in self.signs(parameter))
            matrix = _as_matrix(value).double()
            product = (matrix @ right[0]) * left if right else matrix[:, None] * left
            found[self.slots(parameter)] += product.sum(dim=0).cpu().numpy()
        return found

    @property
    def known(self) -> frozenset[int]:
        """Identities of the parameters that are trained."""
        return frozenset(self._numbers)


def _as_matrix(values: Tensor) -> Tensor:
    """Fused experts [experts, out, in] as [experts x out, in]."""
    return values.flatten(0, -2) if values.ndim > 2 else values
