"""XTuner's own rollout importance sampling and loss, out of a checkout: one pack of sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any, Optional
from unittest.mock import patch

import numpy as np

from tests.oracle.cases import corrected_case, updated_case
from tests.oracle.checkouts import Checkout
from tests.oracle.published import arithmetic
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import BATCHES, Batch

XTUNER = Checkout("XTuner", "RCDIAG_XTUNER", "https://github.com/InternLM/xtuner", "b934f462")
HELPER, UTILS = "xtuner/v1/rl/rollout_is.py", "xtuner/v1/data_proto/utils.py"
LOSS, FINAL = "xtuner/v1/rl/loss/loss_fn.py", "xtuner/v1/rl/loss/base_loss.py"


def _of(level: str, mode: str, threshold: Any, **others: Any) -> Settings:
    own = {f"rollout_is_{name}": value for name, value in others.items()}
    return {
        "rollout_is_level": level,
        "rollout_is_mode": mode,
        "rollout_is_threshold": threshold,
        **own,
    }


CORRECTIONS: list[Settings] = [
    {},
    {"rollout_is_veto_threshold": [20.0, 0.0]},
    *(
        _of(level, mode, bounds)
        for level in ("token", "sequence", "geometric")
        for mode in ("truncate", "mask", "both")
        for bounds in ([5.0, 0.5], [1.05, 0.1])
    ),
    _of("token", "both", [5.0, 0.5], mask_threshold=[1.5, 0.7], veto_threshold=[20.0, 0.0]),
    _of("token", "mask", [2.0, 0.5], mask_threshold=[1.05, 0.97]),
    _of("sequence", "both", [5.0, 0.5], mask_threshold=[1.2, 0.0], veto_threshold=[1.1, 0.9]),
    _of("geometric", "truncate", [1.02, 0.98], veto_threshold=[1.08, 0.5]),
    _of("token", "truncate", [2.0, 0.0], veto_threshold=[5.0, 0.93]),
]
LOSSES: list[Settings] = [
    {},
    {"cliprange_low": 0.1, "cliprange_high": 0.3},
    {"clip_ratio_c": 1.1},
    _of("token", "both", [1.05, 0.95]),
    _of("sequence", "truncate", [1.05, 0.95]),
    _of("geometric", "mask", [3.0, 0.5], veto_threshold=[20.0, 0.01]),
]
_ONE_PROCESS = SimpleNamespace(
    is_initialized=lambda: False, ReduceOp=SimpleNamespace(SUM=None, MAX=None, MIN=None)
)


@cache
def code() -> SimpleNamespace:
    """The helper, the loss, and what is made of its numbers at the end of a step."""
    import torch

    space: dict[str, Any] = {"torch": torch, "Any": Any, "Optional": Optional, "Tuple": tuple}
    space |= {"Callable": Callable, "dist": _ONE_PROCESS}
    take = XTUNER.definitions
    names: tuple[str, ...] = (
        *("unpack_sequence", "pack_sequence", "masked_sum", "masked_mean"),
        *("convert_packed_to_padded", "convert_padded_to_packed"),
    )
    space |= take(UTILS, names, space)
    names = (
        *("compute_rollout_importance_weights", "compute_is_metrics"),
        "compute_mismatch_metrics",
    )
    space |= take(HELPER, names, space)
    space["POLICY_LOSS_REGISTRY"] = {}
    space |= take(LOSS, ("register_policy_loss", "check_config", "pg_loss_fn"), space)
    space |= take(FINAL, ("finalize_train_policy_metrics",), space)
    return SimpleNamespace(**space)


class _Pack:
    """A batch as XTuner holds it: all sequences in one row."""

    def __init__(self, batch: Batch, dtype: Any) -> None:
        self.lengths = batch.response.sum(axis=1).tolist()
        self.within, self.dtype = batch.response, dtype

    def of(self, values: np.ndarray) -> Any:
        import torch

        packed = torch.tensor(values[self.within])[None]
        return packed if packed.dtype == torch.bool else packed.to(self.dtype)

    def padded(self, packed: Any) -> np.ndarray:
        grid = np.zeros(self.within.shape)
        grid[self.within] = packed[0].numpy()
        return grid


def _helped(settings: Settings, batch: Batch, dtype: Any) -> tuple[Any, Any, dict[str, float]]:
    """Return packed weights, the mask after rejection, and what is logged."""
    pack = _Pack(batch, dtype)
    old, rollout, mask = (pack.of(one) for one in (batch.old, batch.rollout, batch.mask))
    of_policies = code().compute_mismatch_metrics(old, rollout, mask)  # of the packed row
    weights, kept, logged = code().compute_rollout_importance_weights(
        old, rollout, pack.lengths, mask, **settings
    )
    metrics = {f"mismatch/{name}": value for name, value in of_policies.items()}
    metrics |= {f"rollout_is/{name}": value for name, value in logged.items()}
    # `merge_rollout_is_metrics` takes `valid` away.
    numbers = {name: float(one) for name, one in metrics.items() if not name.endswith("/valid")}
    return weights, kept, numbers


def _own(settings: Settings) -> Settings:
    return {name: value for name, value in settings.items() if name.startswith("rollout_is")}


def corrected(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Weights and mask of one pack, and what is logged."""
    rows = BATCHES[batch]
    with arithmetic(dtype) as wide:
        weights, kept, metrics = _helped(_own(settings), rows, wide)
    pack = _Pack(rows, None)
    weights = None if weights is None else pack.padded(weights)
    return corrected_case(batch, settings, dtype, weights, metrics, pack.padded(kept))


def updated(batch: str, settings: Settings) -> Updated:
    """The loss of one pack, as `GRPOLossContext` makes it, and its numbers at the end of a step."""
    import torch

    rows = BATCHES[batch]
    clips = {"cliprange_low": 0.2, "cliprange_high": 0.2}
    config = {**clips, **{name: one for name, one in settings.items() if "clip" in name}}
    with arithmetic("float64") as wide:
        pack = _Pack(rows, wide)
        weights, kept, _ = _helped(_own(settings), rows, wide)
        current = pack.of(rows.current).requires_grad_()
        old, valid = pack.of(rows.old), kept.bool()
        loss_weights = valid.to(wide) / max(int(valid.sum()), 1)
        if weights is not None:
            loss_weights = loss_weights * weights
        advantages = pack.of(rows.token_advantages)
        loss = code().pg_loss_fn(current, old, advantages, loss_weights, config)
        loss.backward()
        log_ratio = (current.detach() - old)[valid]
        held = log_ratio.clamp(-20.0, 20.0)
        ratio = held.exp()
        prefix = "reduced_train_policy_"
        sums = {
            f"{prefix}ratio_abs_dev_sum": (ratio - 1.0).abs().sum(),
            f"{prefix}kl1_sum": -log_ratio.sum(),
            f"{prefix}kl3_sum": (ratio - 1.0 - held).sum(),
            f"{prefix}valid_count": float(len(ratio)),
            f"{prefix}ratio_max": ratio.max(),
            f"{prefix}ratio_min": ratio.min(),
            f"{prefix}clip_low_count": (ratio < 1 - config["cliprange_low"]).sum(),
            f"{prefix}clip_high_count": (ratio > 1 + config["cliprange_high"]).sum(),
        }
        given = {name: float(value) for name, value in sums.items()}
        with patch.object(torch, "float32", wide):
            logged = code().finalize_train_policy_metrics(given, "cpu")
    logged.pop("max_ratio")  # the same as ratio_max
    return updated_case(batch, settings, loss, pack.padded(current.grad), logged)


def answers() -> Answers:
    """All that is stored of XTuner."""
    return Answers(
        trainer="xtuner",
        source=f"InternLM/xtuner commit {XTUNER.commit}, {HELPER}: "
        "compute_rollout_importance_weights, compute_is_metrics, compute_mismatch_metrics; "
        f"{LOSS}: pg_loss_fn; {FINAL}: finalize_train_policy_metrics",
        corrections=[
            *(corrected(batch, settings) for settings in CORRECTIONS for batch in BATCHES),
            *(corrected(batch, CORRECTIONS[7], "float32") for batch in ("mild", "rough")),
        ],
        losses=[updated(batch, settings) for settings in LOSSES for batch in ("mild", "rough")],
    )
