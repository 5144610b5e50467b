"""Trainers' policy losses, their reduction to one number, and their exact gradient.

A loss is a `PolicyLoss`: a function from a `LossBatch` to the loss of each token, with its
description and the settings that it reads. An `Aggregation` weights the token losses and defines
the divisor of their sum. `UpdateRules` (`rules.py`) list the losses and aggregations of a trainer.
Callers use `evaluate.evaluate`; gradients come from the small autograd in `tensor.py`.

To add a loss, call `LOSSES.add(PolicyLoss(...))`; `rcdiag replay --loss NAME` then offers it for
every trainer.
"""

from __future__ import annotations

from rcdiag.losses.advantages import GRPO, REINFORCE_PLUS_PLUS, RLOO, Advantage
from rcdiag.losses.aggregation import (
    ALL,
    CONSTANT,
    KEPT,
    PROMPT_MEAN_TOKEN_MEAN,
    PROMPT_MEAN_TOKEN_SUM,
    SEQ_MEAN_TOKEN_MEAN,
    SEQ_MEAN_TOKEN_SUM,
    SEQ_MEAN_TOKEN_SUM_NORM,
    TOKEN_MEAN,
    TOKEN_SUM,
    Aggregation,
    DenominatorWords,
)
from rcdiag.losses.clipped import CISPO, GEO_MEAN, GSPO, SAPO, VANILLA
from rcdiag.losses.divergence import DPPO_KL, DPPO_TV
from rcdiag.losses.linear import DRO, GPG, ON_POLICY, REINFORCE
from rcdiag.losses.on_rollout import CISPO_ROLLOUT, ROLLOUT_IS
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.losses.selected import CLIP_COV, KL_COV
from rcdiag.losses.vespo import VESPO
from rcdiag.registry import Registry

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "ALL",
    "CISPO",
    "CISPO_ROLLOUT",
    "CLIP_COV",
    "CONSTANT",
    "DENOMINATORS",
    "DPPO_KL",
    "DPPO_TV",
    "DRO",
    "GEO_MEAN",
    "GPG",
    "GRPO",
    "GSPO",
    "KEPT",
    "KL_COV",
    "LOSSES",
    "ON_POLICY",
    "PROMPT_MEAN_TOKEN_MEAN",
    "PROMPT_MEAN_TOKEN_SUM",
    "REINFORCE",
    "REINFORCE_PLUS_PLUS",
    "RLOO",
    "ROLLOUT_IS",
    "SAPO",
    "SEQ_MEAN_TOKEN_MEAN",
    "SEQ_MEAN_TOKEN_SUM",
    "SEQ_MEAN_TOKEN_SUM_NORM",
    "SHIPPED",
    "TOKEN_MEAN",
    "TOKEN_SUM",
    "VANILLA",
    "VESPO",
    "Advantage",
    "Aggregation",
    "DenominatorWords",
    "PolicyLoss",
]

_LOSSES = (
    *(VANILLA, GSPO, GEO_MEAN, GPG, KL_COV, CLIP_COV),
    *(REINFORCE, SAPO, CISPO, DPPO_TV, DPPO_KL, DRO, VESPO),
    *(ROLLOUT_IS, CISPO_ROLLOUT, ON_POLICY),
)
LOSSES: Registry[PolicyLoss] = Registry("policy loss", _LOSSES)
# Losses that ship with rcdiag: a trainer has those of its generation. A loss that a plugin adds is
# offered for every trainer.
SHIPPED = frozenset(loss.name for loss in _LOSSES)
AGGREGATIONS: Registry[Aggregation] = Registry(
    "aggregation",
    (
        *(TOKEN_MEAN, TOKEN_SUM, SEQ_MEAN_TOKEN_SUM, SEQ_MEAN_TOKEN_MEAN),
        *(SEQ_MEAN_TOKEN_SUM_NORM, PROMPT_MEAN_TOKEN_MEAN, PROMPT_MEAN_TOKEN_SUM),
    ),
)
DENOMINATORS: Registry[DenominatorWords] = Registry("denominator", (KEPT, ALL, CONSTANT))
ADVANTAGES: Registry[Advantage] = Registry("advantage", (GRPO, RLOO, REINFORCE_PLUS_PLUS))
