"""torchtitan's DAPO loss out of a checkout: one micro-batch that holds all rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from tests.oracle.checkouts import Checkout
from tests.oracle.published import arithmetic
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import BATCHES

TORCHTITAN = Checkout(
    "torchtitan", "RCDIAG_TORCHTITAN", "https://github.com/pytorch/torchtitan", "b5bcd76c"
)
FILE = "torchtitan/experiments/rl/losses/dapo.py"
LOSSES: list[Settings] = [{}, {"ratio_clip_low": 0.1, "ratio_clip_high": 0.28}]
OF_UPDATE = ("loss/mean", "trainer/entropy/mean")
DEFAULTS: Settings = {"ratio_clip_low": 0.2, "ratio_clip_high": 0.2}


@cache
def code() -> Any:
    """The class of the loss; a model's forward pass is replaced by the log-probs of the batch."""
    import torch

    class BaseLoss:
        @dataclass(kw_only=True, slots=True)
        class Config:
            pass

    space: dict[str, Any] = {
        "torch": torch,
        "dataclass": dataclass,
        "BaseLoss": BaseLoss,
        "CompileConfig": None,
        "compute_logprobs": lambda current, labels, return_entropy: (
            current,
            torch.zeros_like(current),
        ),
    }
    return TORCHTITAN.definitions(FILE, ("_MAX_LOG_RATIO", "DAPOLoss"), space)["DAPOLoss"]


def _run(batch: str, settings: Settings, at_old: bool) -> tuple[Any, Any, dict[str, float]]:
    """Return loss, current log-probs [rows, longest] and what is logged."""
    import torch

    rows = BATCHES[batch]
    with arithmetic("float64") as wide:
        current = torch.tensor(rows.old if at_old else rows.current, dtype=wide)
        current.requires_grad_()
        mask, sampler = torch.tensor(rows.mask), torch.tensor(rows.rollout, dtype=wide)
        loss, logged = code()(SimpleNamespace(**DEFAULTS | settings))(
            current.flatten(),
            None,
            int((mask & sampler.isfinite()).sum()),
            generator_logprobs=sampler.flatten(),
            advantages=torch.tensor(rows.token_advantages, dtype=wide).flatten(),
            loss_mask=mask.flatten(),
        )
    return loss, current, {name: one.item() for name, one in logged.items()}


def corrected(batch: str) -> Corrected:
    """What is logged of the mismatch in a first update, in which the current policy is the old."""
    rows = BATCHES[batch]
    _, _, logged = _run(batch, {}, at_old=True)
    return Corrected(
        batch=batch,
        settings={},
        weight_sum=None,
        kept_tokens=int(rows.mask.sum()),
        kept_sequences=int(rows.mask.any(axis=1).sum()),
        metrics={
            name: value
            for name, value in logged.items()
            if name not in (*OF_UPDATE, "loss/ratio_clipped_frac")
        },
    )


def updated(batch: str, settings: Settings) -> Updated:
    """The loss and its gradient."""
    loss, current, logged = _run(batch, settings, at_old=False)
    loss.backward()
    return Updated(
        batch=batch,
        settings=settings,
        loss=loss.item(),
        metrics={name: value for name, value in logged.items() if name not in OF_UPDATE},
        gradient=[float(each) for each in current.grad.numpy()[BATCHES[batch].mask]],
    )


def answers() -> Answers:
    """All that is stored of torchtitan."""
    return Answers(
        trainer="torchtitan",
        source=f"pytorch/torchtitan commit {TORCHTITAN.commit}, {FILE}: DAPOLoss",
        corrections=[corrected(batch) for batch in BATCHES],
        losses=[updated(batch, settings) for settings in LOSSES for batch in BATCHES],
    )
