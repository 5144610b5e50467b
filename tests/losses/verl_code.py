"""verl's own losses of any generation, from its published wheel, on CPU in float64."""

from __future__ import annotations

import ast
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from rcdiag.losses.settings import LossSettings
from tests.losses.batches import PaddedLoss
from tests.losses.rules import value
from tests.oracle.verl import PACKAGES, _execute, _masked_functions, _wheel, helper


@dataclass
class PolicyLossConfig:
    """Replaces verl's class; its code reads some settings by `get`."""

    kl_cov_ratio: float
    ppo_kl_coef: float
    dro_beta: float | None
    clip_cov_ratio: float
    clip_cov_lb: float
    clip_cov_ub: float
    rollout_correction: dict[str, Any] | None

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


@dataclass
class ActorConfig:
    clip_ratio_low: float
    clip_ratio_high: float
    clip_ratio_c: float | None
    tau_pos: float
    tau_neg: float
    policy_loss: PolicyLossConfig
    clip_ratio: float = 0.2
    loss_scale_factor: float = 1.0
    global_batch_info: dict[str, float] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


@dataclass(frozen=True)
class Answer:
    """Result of verl's loss; the gradient is with respect to log-probs, [rows, width]."""

    loss: float
    metrics: dict[str, float]
    gradient: np.ndarray


def _is_wanted(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        name = node.name
        return name in ("agg_loss", "register_policy_loss", "get_policy_loss_fn") or (
            name.startswith("compute_policy_loss_")
        )
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "POLICY_LOSS_REGISTRY"


class _WithoutImports(ast.NodeTransformer):
    """Bypass losses import the helper inside functions; here its functions are in scope."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.Pass:
        assert node.module == "verl.trainer.ppo.rollout_corr_helper"
        return ast.copy_location(ast.Pass(), node)


@cache
def core_algos(trainer: str) -> types.SimpleNamespace:
    """Load the losses of a generation and the functions that they call."""
    import torch

    wheel = _wheel(PACKAGES[trainer])
    tree = ast.parse(wheel.read("verl/trainer/ppo/core_algos.py").decode())
    body = [_WithoutImports().visit(node) for node in tree.body if _is_wanted(node)]
    space = {**vars(typing), "torch": torch, "np": np, "ActorConfig": ActorConfig}
    space |= {"DictConfig": type("DictConfig", (), {}), "AlgoConfig": type("AlgoConfig", (), {})}
    space["verl_F"] = _masked_functions(wheel.read("verl/utils/torch_functional.py").decode())
    space |= {"PolicyLossFn": Callable[..., Any], "__name__": "core_algos"}
    if trainer != "verl-0.6.0":
        name = "compute_rollout_correction_and_rejection_mask"
        space[name] = getattr(helper(trainer), name)
    return _execute(body, "core_algos", space)


def config_of(
    settings: LossSettings, counts: dict[str, float], correction: dict[str, Any] | None = None
) -> ActorConfig:
    names = ("kl_cov_ratio", "ppo_kl_coef", "dro_beta")
    lots = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")
    policy = PolicyLossConfig(*(value(settings, name) for name in (*names, *lots)), correction)
    return ActorConfig(
        *(
            value(settings, name)
            for name in ("clip_low", "clip_high", "clip_c", "tau_pos", "tau_neg")
        ),
        policy,
        global_batch_info=counts,
    )


def _function(trainer: str, loss: str, bypass: bool) -> Callable[..., Any]:
    code = core_algos(trainer)
    if bypass:
        name = "rollout_correction" if trainer == "verl-0.6.1" else "bypass_mode"
        return code.get_policy_loss_fn(name)
    if loss == "reinforce":
        return code.compute_policy_loss_reinforce
    return code.get_policy_loss_fn(loss)


def ask(
    trainer: str,
    loss: str,
    batch: PaddedLoss,
    settings: LossSettings,
    counts: dict[str, float] | None = None,
    correction: dict[str, Any] | None = None,
) -> Answer:
    """Run verl's loss; with `correction` the bypass loss, which computes weights and mask.

    `counts` are verl's `global_batch_info`: counts of the whole batch instead of the mask's.
    """
    import torch

    current = torch.tensor(batch.current, requires_grad=True)
    mask = batch.mask if correction is not None else batch.kept
    # verl's masks are integers, which would give float32 metrics in a float64 batch.
    tensors: list[Any] = [torch.tensor(batch.old), current, torch.tensor(batch.advantages)]
    tensors.append(torch.tensor(mask, dtype=torch.float64))
    weights = None if batch.weights is None else torch.tensor(batch.weights)
    value, *metrics = _function(trainer, loss, correction is not None)(
        *tensors,
        loss_agg_mode=settings.aggregation,
        config=config_of(settings, counts or {}, correction),
        rollout_is_weights=weights,
    )
    value.backward()
    assert current.grad is not None
    return Answer(value.item(), _by_key(metrics), current.grad.numpy())


def ask_every_lot(*asked: Any) -> Answer:
    """Average clip_cov over its draws: each rotation of the candidates is one draw."""
    import torch

    lots = 1  # also where there is nothing to draw from
    answers: list[Answer] = []

    def rotated(count: int) -> torch.Tensor:
        nonlocal lots
        lots = count
        return torch.arange(count).roll(len(answers))

    drawn = torch.randperm
    torch.randperm = rotated  # type: ignore[assignment]
    try:
        while len(answers) < lots:
            answers.append(ask(*asked))
    finally:
        torch.randperm = drawn
    return Answer(
        float(np.mean([answer.loss for answer in answers])),
        {key: float(np.mean([answer.metrics[key] for answer in answers]))
         for key in answers[0].metrics},
        np.mean([answer.gradient for answer in answers], axis=0),
    )  # fmt: skip


def _by_key(metrics: list[Any]) -> dict[str, float]:
    """Name the metrics: 0.6.0 returns three numbers, which its dp_actor logs under these keys."""
    if len(metrics) == 1:
        return metrics[0]
    keys = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")
    return {key: value.item() for key, value in zip(keys, metrics, strict=True)}
