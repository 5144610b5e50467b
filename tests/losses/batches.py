"""Padded batches as in trainers, the same tokens as in rcdiag, and random batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rcdiag.losses.batch import LossBatch, loss_batch
from rcdiag.losses.evaluate import LossResult
from rcdiag.losses.selected import covariances
from tests.losses.rules import RULES, evaluate, loss_settings


@dataclass(frozen=True, slots=True)
class PaddedLoss:
    """All arrays are [rows, width]; values where `mask` is False are ignored."""

    current: np.ndarray
    old: np.ndarray
    advantages: np.ndarray
    mask: np.ndarray  # of the response
    kept: np.ndarray  # of the mask, after rejection
    weights: np.ndarray | None = None

    def flat(self, rows: slice | None = None) -> LossBatch:
        """Return the unmasked tokens of the rows, rejected ones included."""
        rows = rows or slice(None)
        mask = self.mask[rows]
        columns = {
            name: getattr(self, name)[rows][mask] for name in ("current", "old", "advantages")
        }
        weights = None if self.weights is None else self.weights[rows][mask]
        return loss_batch(
            **columns,
            lengths=mask.sum(axis=1),
            kept=self.kept[rows][mask],
            weights=weights,
            padded_width=mask.shape[1],
            rewards=(np.arange(len(self.mask)) % 2)[rows],
        )

    def run(
        self, trainer: str, loss: str, rows: slice | None = None, **settings: Any
    ) -> LossResult:
        return evaluate(self.flat(rows), loss, loss_settings(**settings), trainer)


def nearest_choices_differ(batch: LossBatch, share: float, by: float) -> bool:
    """kl_cov's last chosen token and its first other one are so far apart, so that none is chosen
    by rounding or by the order of equal ones, which torch's topk leaves open."""
    chosen = covariances(batch.only_kept())
    result = chosen.topk(len(chosen)).values
    count = max(1, int(len(result) * share))
    return count >= len(result) or bool(result[count - 1] - result[count] > by)


def one_row(current: Any, old: Any, advantages: Any, **others: Any) -> LossBatch:
    return loss_batch(current, old, advantages, [len(current)], **others)


def losses_of(*trainers: str) -> list[tuple[str, str]]:
    """Return every loss of these trainers, or of all, that can be computed."""
    return [(trainer, loss) for trainer in trainers or RULES for loss in RULES[trainer].losses]


SMALL = st.integers(-300, 300).map(lambda count: count / 100)  # no rounding noise at bounds
ADVANTAGES = st.one_of(st.sampled_from((0.0, 1.0, -1.0)), SMALL)
LOG_PROBS = st.integers(1, 300).map(lambda count: -count / 100)
WEIGHTS = st.integers(0, 200).map(lambda count: count / 100)


def _grid(draw: st.DrawFn, values: st.SearchStrategy[Any], rows: int, width: int) -> np.ndarray:
    size = rows * width
    return np.array(draw(st.lists(values, min_size=size, max_size=size))).reshape(rows, width)


@st.composite
def padded_losses(draw: st.DrawFn, max_rows: int = 5, max_width: int = 6) -> PaddedLoss:
    """Draw masks with holes, rejected tokens and rows, empty rows, garbage where masked."""
    rows, width = draw(st.integers(1, max_rows)), draw(st.integers(1, max_width))
    mask = _grid(draw, st.sampled_from((True, True, True, False)), rows, width)
    kept = mask & _grid(draw, st.sampled_from((True, True, True, False)), rows, width)
    kept[_grid(draw, st.sampled_from((False, False, False, True)), rows, 1)[:, 0]] = False
    old = _grid(draw, LOG_PROBS, rows, width)
    # Not at hundredths: no ratio lies on a bound, where the subgradient is ambiguous.
    current = np.minimum(old + _grid(draw, SMALL, rows, width) + 0.00123, -0.001)
    advantages = _grid(draw, ADVANTAGES, rows, width)
    weights = _grid(draw, WEIGHTS, rows, width) if draw(st.booleans()) else None
    garbage = draw(st.sampled_from((0.0, -1.0, -7.0)))
    current, old = np.where(mask, current, garbage), np.where(mask, old, -2.0)
    return PaddedLoss(current, old, advantages, mask, kept, weights)


SETTINGS = st.fixed_dictionaries(
    {
        "clip_low": st.sampled_from((0.2, 0.1)),
        "clip_high": st.sampled_from((0.2, 0.28)),
        "clip_c": st.sampled_from((3.0, 1.5, 20.0)),
        "tau_pos": st.sampled_from((1.0, 2.0)),
        "tau_neg": st.sampled_from((1.05, 3.0)),
        "kl_cov_ratio": st.sampled_from((2e-4, 0.1, 0.5, 1.0)),
        "ppo_kl_coef": st.sampled_from((0.1, 1.0)),
        "clip_cov_ratio": st.sampled_from((2e-4, 0.3, 1.0)),
        "clip_cov_lb": st.sampled_from((1.0, 0.05)),
        "clip_cov_ub": st.sampled_from((5.0, 0.5)),
        "dro_beta": st.sampled_from((0.05, 1.0)),
    }
)
