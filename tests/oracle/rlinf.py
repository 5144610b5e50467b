"""RLinf's own losses and its distance of log-probs, out of a checkout: one micro-batch.

Its losses accept only float32; in float64 they run with a torch whose float32 is float64.
"""

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

RLINF = Checkout("RLinf", "RCDIAG_RLINF", "https://github.com/RLinf/RLinf", "a3816b59")
LOSSES_FILE, UTILS = "rlinf/algorithms/losses.py", "rlinf/utils/utils.py"
WORKER = "rlinf/workers/actor/fsdp_actor_worker.py"
DECOUPLED: Settings = {"loss_type": "decoupled_actor_critic"}


def _fix(clip: float) -> Settings:
    return {"importance_sampling_fix": True, "importance_sampling_clip": clip}


CORRECTIONS: list[Settings] = [
    {},
    _fix(2.0),
    _fix(1.0),
    _fix(1.03),
    {**_fix(1.5), "loss_type": "actor_critic"},
    DECOUPLED,
    {**DECOUPLED, "behave_weight_threshold": 2.0},
    {**DECOUPLED, "behave_weight_threshold": 1.0},
    {**DECOUPLED, "behave_weight_threshold": 1.05},
    {"recompute_logprobs": False},
]
LOSSES: list[Settings] = [
    *(
        {"loss_agg_func": how, **own}
        for how in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
        for own in ({}, _fix(1.03))
    ),
    {"clip_ratio_c": None, "ratio_clip_eps": 0.1},
    {**_fix(2.0), "clip_ratio_c": 1.1, "clip_ratio_low": 0.1, "clip_ratio_high": 0.3},
    DECOUPLED,
    {**DECOUPLED, "behave_weight_threshold": 1.05},
    {**DECOUPLED, "behave_weight_threshold": 1.2, "clip_ratio_c": 1.1, "clip_ratio_high": 0.3},
]


@cache
def code() -> SimpleNamespace:
    """Return the two losses, the aggregations and the distance."""
    import torch

    space: dict[str, Any] = {"torch": torch, "Callable": Callable, "Optional": Optional}
    names: tuple[str, ...] = (
        *("_reduce_mean", "_reduce_sum", "masked_mean", "masked_mean_ratio"),
        *("seq_mean_token_sum", "seq_mean_token_mean", "get_loss_agg_func"),
    )
    space |= RLINF.definitions(UTILS, names, space)
    names = ("compute_ppo_actor_loss", "compute_decoupled_ppo_actor_loss")
    space |= RLINF.definitions(LOSSES_FILE, names, space)
    space |= RLINF.definitions(WORKER, ("compute_rollout_train_kl",), space)
    return SimpleNamespace(**space)


def _step(
    settings: Settings, rows: Batch, current: Any, advantages: Any, dtype: str
) -> tuple[Any, dict[str, float], Any]:
    """Return the loss of one micro-batch, its logged metrics, and the loss mask."""
    import torch

    wide = getattr(torch, dtype)

    def tensor(values: np.ndarray) -> Any:
        return torch.tensor(values, dtype=wide)

    rollout, old = tensor(rows.rollout), tensor(rows.old)
    mask = torch.tensor(rows.mask)
    eps = settings.get("ratio_clip_eps", 0.2)
    clips = {
        "clip_ratio_low": settings.get("clip_ratio_low") or eps,
        "clip_ratio_high": settings.get("clip_ratio_high") or eps,
        "clip_ratio_c": settings.get("clip_ratio_c", 3.0),
    }
    with patch.object(torch, "float32", wide), arithmetic(dtype):
        if settings.get("loss_type") == "decoupled_actor_critic":
            threshold = settings.get("behave_weight_threshold")
            loss, logged = code().compute_decoupled_ppo_actor_loss(
                current,
                rollout,
                advantages=advantages,
                proximal_logprobs=old,
                loss_mask=mask,
                behave_weight_threshold=threshold,
                **clips,
            )
            if threshold is not None:
                mask = mask & ((old - rollout).exp() <= threshold)
            return loss, logged, mask
        if settings.get("importance_sampling_fix"):  # as `training_step` has it
            bound = settings["importance_sampling_clip"]
            advantages = advantages * torch.clamp((old - rollout).exp(), max=bound)
        loss, logged = code().compute_ppo_actor_loss(
            current,
            rollout if settings.get("recompute_logprobs") is False else old,
            advantages=advantages,
            loss_mask=mask,
            loss_agg_func=code().get_loss_agg_func(settings.get("loss_agg_func", "token-mean")),
            fast_path_zero_loss_mask=True,
            **clips,
        )
    if settings.get("recompute_logprobs", True):
        held = {"rollout_logprobs": rollout, "recomputed_logprobs": old}
        logged["actor/rollout_train_kl"] = code().compute_rollout_train_kl(held, mask)
    return loss, logged, mask


def corrected(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Run the correction in a first update; weights are the gradient by log-probs over -A."""
    import torch

    rows = BATCHES[batch]
    wide = getattr(torch, dtype)
    current = torch.tensor(rows.old, dtype=wide).requires_grad_()
    advantages = torch.full_like(current, -1.0).detach()
    # A sum, in which dropped tokens count too.
    plain = {"loss_agg_func": "token-mean", "behave_weight_threshold": None}
    loss, _, _ = _step({**settings, **plain}, rows, current, advantages, dtype)
    loss.backward()
    weights = current.grad.numpy() * rows.mask.sum()
    own = torch.tensor(rows.token_advantages, dtype=wide)
    _, logged, mask = _step(settings, rows, torch.tensor(rows.old, dtype=wide), own, dtype)
    of_correction = ("actor/behav_", "actor/rollout_train_kl")
    weighs = "decoupled" in settings.get("loss_type", "") or settings.get("importance_sampling_fix")
    metrics = {name: value for name, value in logged.items() if name.startswith(of_correction)}
    return corrected_case(batch, settings, dtype, weights if weighs else None, metrics, mask)


def updated(batch: str, settings: Settings) -> Updated:
    """Run the loss on one micro-batch; returns loss and gradient."""
    import torch

    rows = BATCHES[batch]
    current = torch.tensor(rows.current).requires_grad_()
    advantages = torch.tensor(rows.token_advantages)
    loss, logged, _ = _step(settings, rows, current, advantages, "float64")
    loss.backward()
    elsewhere = ("actor/behav_", "actor/rollout_train_kl", "actor/policy_loss")
    metrics = {
        name: value
        for name, value in logged.items()
        if name == "actor/policy_loss_abs" or not name.startswith(elsewhere)
    }
    return updated_case(batch, settings, loss, current.grad, metrics)


def answers() -> Answers:
    """Return all stored results of RLinf."""
    return Answers(
        trainer="rlinf",
        source=f"RLinf/RLinf commit {RLINF.commit}, {LOSSES_FILE}: compute_ppo_actor_loss, "
        f"compute_decoupled_ppo_actor_loss; {WORKER}: compute_rollout_train_kl",
        corrections=[
            *(corrected(batch, settings) for settings in CORRECTIONS for batch in BATCHES),
            *(corrected(batch, CORRECTIONS[8], "float32") for batch in ("mild", "rough")),
        ],
        losses=[
            updated(batch, settings)
            for settings in LOSSES
            for batch in ("mild", "rough")
            # A row without a token has the mean 0 / 0, and rcdiag then gives no gradient.
            if (batch, settings.get("loss_agg_func")) != ("mild", "seq-mean-token-mean")
        ],
    )
