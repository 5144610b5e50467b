"""PipelineRL's own step out of a checkout: one batch of padded rows, and a model of two words.

The model gives logits whose log-softmax is the log-prob that a batch has of each token.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.oracle.cases import corrected_case, updated_case
from tests.oracle.checkouts import Checkout
from tests.oracle.published import arithmetic
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import WITHOUT_INFINITY as BATCHES
from tests.trainers.batches import Batch

PIPELINERL = Checkout(
    "PipelineRL", "RCDIAG_PIPELINERL", "https://github.com/ServiceNow/PipelineRL", "58d39345"
)
RL, UTILS = "pipelinerl/finetune/rl/__init__.py", "pipelinerl/finetune/rl/utils.py"
# conf/finetune/base.yaml
DEFAULTS: Settings = {"policy_loss": "reinforce", "epsilon_low": 0.02, "epsilon_high": 0.02}
LOGGED = (
    *("kl_new_old", "mean_abs_log_ratio_new_old", "ratio_new_old", "ratio_new_old_sum"),
    *("ratio_new_old_squared_sum", "clamp_log_ratio_new_old_indicator", "old_logprobs"),
    *("new_logprobs", "num_output_tokens_sum"),
)
CORRECTIONS: list[Settings] = [
    {},
    {"epsilon_high": 0.2},
    {"epsilon_high": 4.0, "epsilon_low": 0.5},
    {"policy_loss": "ppo"},
    {"policy_loss": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.28},
]


@cache
def code() -> SimpleNamespace:
    """Return the step, and the function that reduces its metrics over a training step."""
    from typing import Optional

    import torch

    space: dict[str, Any] = {"torch": torch, "Optional": Optional, "List": list, "dict": dict}
    space |= PIPELINERL.definitions(UTILS, ("mask_sum", "sum_sum", "aggregate_rl_stats"), space)
    space |= PIPELINERL.definitions(RL, ("linear_decay_coef", "rl_step"), space)
    return SimpleNamespace(**space)


def _step(settings: Settings, rows: Batch, current: Any) -> tuple[Any, dict[str, float]]:
    """Return the loss of one batch, whose rows have a prompt of one token, and its numbers."""
    import torch

    wide = current.dtype

    def column(values: np.ndarray, fill: float = 0.0) -> Any:
        return torch.tensor(np.pad(values, ((0, 0), (1, 0)), constant_values=fill))

    labels = column(np.where(rows.mask, 0, -100), -100)
    counts = (labels != -100).sum(dim=1, keepdim=True).expand_as(labels)
    # A log-prob of 0 would leave the other word 0: it is slightly lower, with the same gradient.
    below = current + (current.clamp(max=-1e-13) - current).detach()
    inside = column(rows.response)[:, 1:].bool()
    known = torch.where(inside, below, torch.tensor(-1.0, dtype=wide))
    rest = torch.log(-torch.expm1(known))
    logits = torch.nn.functional.pad(torch.stack([known, rest], dim=-1), (0, 0, 0, 1))
    old = column(rows.rollout).to(wide)
    batch = SimpleNamespace(
        is_packed=False,
        labels=labels,
        input_ids=torch.zeros_like(labels),
        attention_mask=torch.ones_like(labels),
        rewards=torch.zeros_like(old),
        advantages=column(rows.token_advantages).to(wide),
        ref_logprobs=torch.nn.functional.pad(known.detach(), (1, 0)),
        old_logprobs=old,
        group_tokens=torch.ones_like(old),
        num_labels=counts,
        overflow=torch.zeros_like(old),
    )
    config = SimpleNamespace(
        **{**DEFAULTS, **settings},
        temperature=1.0,
        entropy_bonus=0.0,
        final_entropy_bonus=0.0,
        kl_coef=0.0,
        final_kl_coef=0.0,
        use_advantages=True,
        relu_log_p_weights=False,
        clamp_log_ratio_ref_new_value=5.0,
        group_normalization=False,
        overlong_filtering=False,
        batch_size=len(rows.mask),
    )
    loss, stats = code().rl_step(lambda **_: SimpleNamespace(logits=logits), batch, 0, 1, config)
    given = {name: [stats[name]] for name in LOGGED}
    logged = code().aggregate_rl_stats(given, len(rows.mask))
    # As finetune_loop.py has it.
    total, squares = logged["rl/ratio_new_old_sum"], logged["rl/ratio_new_old_squared_sum"]
    logged["rl/ess"] = total**2 / squares / logged["rl/num_output_tokens_sum"]
    return loss, logged


def corrected(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Run a first update; weights are the gradient by log-probs divided by -A."""
    import torch

    rows = BATCHES[batch]
    with arithmetic(dtype) as wide:
        current = torch.tensor(rows.old, dtype=wide).requires_grad_()
        loss, logged = _step(settings, rows, current)
        weights = None
        if settings.get("policy_loss") != "ppo":
            ones = Batch(*(getattr(rows, name) for name in ("old", "rollout", "current")),
                         rows.response, rows.mask, -np.ones(len(rows.mask)))  # fmt: skip
            loss, _ = _step(settings, ones, current)
            loss.backward()
            weights = current.grad.numpy() * len(rows.mask)
    return corrected_case(batch, settings, dtype, weights, logged)


def updated(batch: str, settings: Settings) -> Updated:
    """Run the loss on one batch of samples; returns loss and gradient."""
    import torch

    rows = BATCHES[batch]
    with arithmetic("float64"):
        current = torch.tensor(rows.current).requires_grad_()
        loss, _ = _step(settings, rows, current)
        loss.backward()
    return updated_case(batch, settings, loss, current.grad, {})


def answers() -> Answers:
    """Return all stored results of PipelineRL."""
    return Answers(
        trainer="pipelinerl",
        source=f"ServiceNow/PipelineRL commit {PIPELINERL.commit}, {RL}: rl_step; {UTILS}: "
        "sum_sum, aggregate_rl_stats",
        corrections=[
            *(corrected(batch, settings) for settings in CORRECTIONS for batch in BATCHES),
            *(corrected(batch, CORRECTIONS[1], "float32") for batch in ("mild", "rough")),
        ],
        losses=[
            updated(batch, settings) for settings in CORRECTIONS for batch in ("mild", "rough")
        ],
    )
