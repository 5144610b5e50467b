"""open-instruct's own correction, metrics and loss, taken out of a checkout."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.oracle.checkout_answers import Answer, LossAnswer
from tests.oracle.checkouts import OPEN_INSTRUCT, taken
from tests.trainers.checkout_batches import Batch, Rows

UTILS = "open_instruct/grpo_utils.py"
FUNCTIONS = (
    "GRPOLossType",
    "mask_logprobs",
    "compute_vllm_local_debug_metrics",
    "_rho_drop_masks",
    "_sequence_level_mean",
    "RhoCorrection",
    "compute_rho_correction",
    "compute_grpo_loss",
    "_SCALAR_LOSS_STAT_KEYS",
    "create_loss_stats",
    "compute_metrics_from_loss_stats",
)
DEFAULTS = {
    "use_rho_correction": True,
    "rho_clamp_lower_bound": 0.0,
    "rho_clamp_upper_bound": 2.0,
    "rho_mask_lower_bound": 0.0,
    "rho_mask_upper_bound": 0.0,
    "rho_mask_sequence_level": False,
    "rho_mask_tv_divergence": False,
}


def code() -> SimpleNamespace:
    from dataclasses import dataclass, field

    import torch

    return taken(
        OPEN_INSTRUCT,
        UTILS,
        FUNCTIONS,
        torch=torch,
        dataclass=dataclass,
        field=field,
        enum=enum,
        INVALID_LOGPROB=taken(
            OPEN_INSTRUCT, "open_instruct/utils.py", ("INVALID_LOGPROB",)
        ).INVALID_LOGPROB,
    )


def masked_mean() -> Any:
    import torch

    file = "open_instruct/rl_utils.py"
    return taken(OPEN_INSTRUCT, file, ("masked_mean",), torch=torch).masked_mean


def ask(config: dict[str, Any], batch: Batch, dtype: str = "float64") -> Answer:
    """Return weights and metrics of one pack: the rows of the batch are its sequences."""
    import torch

    settings = SimpleNamespace(**{**DEFAULTS, **config})
    kind = getattr(torch, dtype)
    mask = torch.tensor(batch.grid(batch.mask) > 0)
    old, rollout = (
        code().mask_logprobs(torch.tensor(batch.grid(rows), dtype=kind), mask)
        for rows in (batch.old, batch.rollout)
    )
    advantages = torch.tensor(batch.advantages, dtype=kind)[:, None].expand_as(old)
    correction = code().compute_rho_correction(old, rollout, mask, advantages, settings)
    stats = {key: torch.zeros(1, dtype=kind) for key in code()._SCALAR_LOSS_STAT_KEYS}
    for key, values in correction.metrics.items():
        stats[key][0] = masked_mean()(values.to(kind), mask)
    logged = code().compute_metrics_from_loss_stats(stats, mask.sum()[None].to(kind))
    return Answer(
        weights=correction.weights.numpy() if settings.use_rho_correction else None,
        kept=np.asarray(mask),
        metrics={
            **code().compute_vllm_local_debug_metrics(old, rollout, mask),
            **{key: value for key, value in logged.items() if key.startswith("val/rho")},
        },
    )


def update(config: dict[str, Any], batch: Batch, current: Rows) -> LossAnswer:
    """Return the loss of one pack without its KL term, and its gradient.

    `loss_fn`, `clip_lower`, `clip_higher` and `loss_denominator` are read from the config.
    """
    import torch

    values = {"loss_fn": "dapo", "clip_lower": 0.2, "clip_higher": 0.272, **DEFAULTS, **config}
    denominator = values.pop("loss_denominator", "token")
    settings = SimpleNamespace(**values)
    mask = torch.tensor(batch.grid(batch.mask) > 0)
    old, rollout, new = (
        code().mask_logprobs(torch.tensor(batch.grid(rows)), mask)
        for rows in (batch.old, batch.rollout, current)
    )
    new.requires_grad_()
    advantages = torch.tensor(batch.advantages)[:, None].double().expand_as(old)
    correction = code().compute_rho_correction(old, rollout, mask, advantages, settings)
    ratio = torch.exp(new - old)
    losses, clipped, _ = code().compute_grpo_loss(
        new, ratio, advantages, None, settings, correction.weights
    )
    mean = masked_mean()
    divisor = float(mask.sum()) if denominator == "token" else float(denominator)
    loss = mean(losses, mask, None, divisor)
    loss.backward()
    metrics = {
        "policy/clipfrac_avg": mean(clipped, mask),
        "loss/policy_avg": mean(losses, mask),
        "val/ratio": mean(ratio, mask),
    }
    return LossAnswer(
        loss.item(), new.grad.numpy(), {key: value.item() for key, value in metrics.items()}
    )
