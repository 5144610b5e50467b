"""prime-rl's own loss and its statistics over a step, from a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.oracle.checkout_answers import Answer, LossAnswer
from tests.oracle.checkouts import PRIME_RL, taken
from tests.trainers.checkout_batches import Batch, Rows

LOSS = "src/prime_rl/trainer/rl/loss.py"
UTILS = "src/prime_rl/trainer/utils.py"
FUNCTIONS = (
    "LossInputs",
    "LossOutputs",
    "_safe_mean",
    "compute_importance_ratio_and_mismatch_kl",
    "default_loss_fn",
    "ipo_loss_fn",
)
DEFAULTS = {
    "type": "default",
    "dppo_mask_low": 0.2,
    "dppo_mask_high": 0.2,
    "ipo_threshold": 0.1,
    "adv_tau": 1.0,
    "kl_tau": 1e-3,
}


def _code() -> SimpleNamespace:
    from dataclasses import dataclass, field

    import torch

    return taken(PRIME_RL, LOSS, FUNCTIONS, torch=torch, dataclass=dataclass, field=field)


def losses(config: dict[str, Any], batch: Batch, dtype: str = "float64") -> tuple[list, list]:
    """Return prime-rl's outputs per row, and the log-probs that they depend on."""
    import torch

    settings = SimpleNamespace(**{**DEFAULTS, **config})
    code = _code()
    function = code.ipo_loss_fn if settings.type == "ipo" else code.default_loss_fn
    outputs, variables = [], []
    rows = zip(batch.old, batch.rollout, batch.mask, batch.advantages, strict=True)
    for old, rollout, mask, advantage in rows:
        current = torch.tensor(old, dtype=getattr(torch, dtype), requires_grad=True)
        inputs = code.LossInputs(
            trainer_logprobs=current,
            inference_logprobs=torch.tensor(rollout, dtype=current.dtype),
            ref_logprobs=None,
            advantages=torch.full_like(current, advantage).detach(),
            loss_mask=torch.tensor(mask, dtype=torch.bool),
        )
        outputs.append(function(inputs, settings))
        variables.append(current)
    return outputs, variables


def _statistics(tensors: dict[str, Any]) -> dict[str, float]:
    """Compute prime-rl's `Tensors.compute_stats`, on CPU and for one process."""
    from collections import defaultdict

    import torch

    one = SimpleNamespace(
        is_initialized=lambda: True,
        get_world_size=lambda: 1,
        all_gather_object=lambda found, mine: found.__setitem__(0, mine),
    )
    cpu = SimpleNamespace(
        **{name: getattr(torch, name) for name in ("median", "tensor")},
        cat=lambda values, dim: _Stay(torch.cat(values, dim=dim)),
        empty=lambda size, device: torch.empty(size),
    )
    code = PRIME_RL.definitions(
        UTILS,
        ("Tensors",),
        {"defaultdict": defaultdict, "dist": one, "torch": cpu, "flexible_all_gather": lambda x: x},
    )
    gathered = code["Tensors"]()
    for key, values in tensors.items():
        gathered[key].append(values)
    return gathered.compute_stats()


class _Stay:
    """Replaces a tensor that is sent to a GPU: it stays on the CPU."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def to(self, device: str) -> Any:
        return self.values


@contextmanager
def _in(dtype: str) -> Iterator[None]:
    """Make means of flags use this dtype too."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def ask(config: dict[str, Any], batch: Batch, dtype: str = "float64") -> Answer:
    """Return ratios, which are the weights, the kept tokens, and statistics of one step."""
    with _in(dtype):
        return _asked(config, batch, dtype)


def _asked(config: dict[str, Any], batch: Batch, dtype: str) -> Answer:
    import torch

    outputs, variables = losses({**config, "adv_tau": 1.0, "kl_tau": 0.0}, batch, dtype)
    tensors = {
        key: torch.stack([output.metrics[key] for output in outputs]) for key in outputs[0].metrics
    }
    mask, width = batch.grid(batch.mask) > 0, max(batch.lengths)
    of_rows = [
        _code().compute_importance_ratio_and_mismatch_kl(
            current.detach(), torch.tensor(rollout, dtype=current.dtype)
        )
        for current, rollout in zip(variables, batch.rollout, strict=True)
    ]
    flat = torch.cat([kl for *_, kl in of_rows])[
        torch.tensor([bool(x) for row in batch.mask for x in row])
    ]
    ratios = batch.grid([ratio.tolist() for _, ratio, _ in of_rows])
    factors = _factors(config, batch, dtype)
    return Answer(
        weights=np.where(mask, ratios, 0.0),
        kept=np.where(mask, factors != 0.0, False).reshape(-1, width),
        metrics=_statistics({"mismatch_kl/all": flat, **tensors}),
    )


def _factors(config: dict[str, Any], batch: Batch, dtype: str) -> np.ndarray:
    """Return d loss / d current over -A, the factor of the policy term, 0 if dropped.

    For an advantage of 0 a tiny negative advantage is used, which drops the same tokens.
    """
    advantages = [value or -1e-30 for value in batch.advantages]
    alone = Batch(batch.old, batch.rollout, batch.mask, advantages)
    outputs, variables = losses({**config, "adv_tau": 1.0, "kl_tau": 0.0}, alone, dtype)
    sum(output.loss for output in outputs).backward()
    return batch.grid(
        [
            (-variable.grad / advantage).tolist()
            for variable, advantage in zip(variables, advantages, strict=True)
        ]
    )


def update(config: dict[str, Any], batch: Batch, current: Rows) -> LossAnswer:
    """Return the loss of a step of one micro-batch, over all its tokens, and its gradient."""
    moved = Batch(current, batch.rollout, batch.mask, batch.advantages)
    outputs, variables = losses(config, moved)
    total = sum(output.loss for output in outputs) / sum(map(sum, batch.mask))
    total.backward()
    return LossAnswer(
        total.item(), batch.grid([variable.grad.tolist() for variable in variables]), {}
    )
