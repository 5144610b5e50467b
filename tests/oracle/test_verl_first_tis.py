"""verl's first truncated weights, `actor.tis_imp_ratio_cap`, against the code of verl #2953."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corrections.builders import Padded
from tests.corrections.test_tokens import of_config
from tests.losses.batches import SETTINGS, PaddedLoss, padded_losses
from tests.losses.rules import evaluate, loss_settings
from tests.losses.verl_code import Answer, config_of
from tests.oracle.checkouts import VERL
from tests.oracle.test_verl_losses import differences

TRAINER = "verl-20250826"

pytestmark = [pytest.mark.oracle, VERL.needed]


@cache
def vanilla() -> Any:
    """Return `compute_policy_loss_vanilla` of the checkout."""
    import torch

    of_file = "verl/utils/torch_functional.py"
    masked = VERL.definitions(of_file, ["masked_sum", "masked_mean"], {"torch": torch})
    space = {
        "torch": torch,
        "verl_F": SimpleNamespace(**masked),
        "register_policy_loss": lambda name: lambda function: function,
        "AlgoConfig": type("AlgoConfig", (), {}),
    }
    names = ["agg_loss", "compute_policy_loss_vanilla"]
    found = VERL.definitions("verl/trainer/ppo/core_algos.py", names, space)
    return found["compute_policy_loss_vanilla"]


def ask(batch: PaddedLoss, rollout: np.ndarray, cap: float, chosen: Any) -> Answer:
    import torch

    config = config_of(chosen, {})
    config.tis_imp_ratio_cap = cap  # type: ignore[attr-defined]
    current = torch.tensor(batch.current, requires_grad=True)
    loss, clipped, kl, clipped_lower = vanilla()(
        torch.tensor(batch.old),
        current,
        torch.tensor(batch.advantages),
        torch.tensor(batch.mask, dtype=torch.float64),
        loss_agg_mode=chosen.aggregation,
        config=config,
        rollout_log_probs=torch.tensor(rollout),
    )
    loss.backward()
    metrics = {
        "actor/pg_clipfrac": clipped.item(),
        "actor/ppo_kl": kl.item(),
        "actor/pg_clipfrac_lower": clipped_lower.item(),
    }
    assert current.grad is not None
    return Answer(loss.item(), metrics, current.grad.numpy())


@given(
    batch=padded_losses(),
    drawn=SETTINGS,
    cap=st.sampled_from((-1.0, 0.0, 0.5, 1.0, 2.0, 10.0)),
    aggregation=st.sampled_from(("token-mean", "seq-mean-token-sum")),
    shift=st.sampled_from((0.0, 0.3, 4.0, 25.0)),
    seed=st.integers(0, 99),
)
@settings(max_examples=300)
def test_the_loss_with_its_weights(batch, drawn, cap, aggregation, shift, seed):
    batch = replace(batch, kept=batch.mask, weights=None)  # it rejects nothing
    noise = np.random.default_rng(seed).normal(shift, 0.7, batch.old.shape)
    rollout = np.minimum(batch.old - noise, 0.0)
    chosen = loss_settings(**drawn, aggregation=aggregation)
    answer = ask(batch, rollout, cap, chosen)
    effects = of_config(TRAINER, Padded(batch.old, rollout, batch.mask), tis_imp_ratio_cap=cap)
    weights = None
    if effects.weights is not None:
        weights = np.zeros(batch.mask.shape)
        weights[batch.mask] = effects.weights
    ours = evaluate(replace(batch, weights=weights).flat(), "vanilla", chosen, TRAINER)
    assert differences(answer, ours, batch) == []
