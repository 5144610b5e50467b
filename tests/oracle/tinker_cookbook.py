"""tinker-cookbook's own KL of sampler and trainer, out of a checkout."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from tests.oracle.cases import corrected_case
from tests.oracle.checkouts import Checkout
from tests.trainers.answers import Answers, Corrected, Settings
from tests.trainers.batches import BATCHES

TINKER_COOKBOOK = Checkout(
    "tinker-cookbook",
    "RCDIAG_TINKER_COOKBOOK",
    "https://github.com/thinking-machines-lab/tinker-cookbook",
    "9dfcc3a2",
)
METRICS = "tinker_cookbook/rl/metrics.py"
CORRECTIONS: list[Settings] = [{}, {"loss_fn": "ppo"}]


@cache
def code() -> SimpleNamespace:
    """The function that makes the numbers."""
    import torch

    space: dict[str, Any] = {"torch": torch, "safezip": lambda *lists: zip(*lists, strict=True)}
    return SimpleNamespace(
        **TINKER_COOKBOOK.definitions(METRICS, ("compute_kl_sample_train",), space)
    )


def corrected(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """What is logged of a batch, a datum for each row; servers make the weights."""
    import torch

    rows, wide = BATCHES[batch], getattr(torch, dtype)

    def tensor(values: Any) -> SimpleNamespace:
        return SimpleNamespace(to_torch=lambda: torch.tensor(values, dtype=wide))

    data = [
        SimpleNamespace(loss_fn_inputs={"logprobs": tensor(row), "mask": tensor(mask)})
        for row, mask in zip(rows.rollout, rows.mask, strict=True)
    ]
    trained = [torch.tensor(row, dtype=wide) for row in rows.old]
    ratios = torch.exp(torch.tensor(rows.old) - torch.tensor(rows.rollout)).numpy()
    # The bare ratio, as the cookbook describes importance_sampling.
    weights = None if settings else ratios
    metrics = code().compute_kl_sample_train(data, trained)
    return corrected_case(batch, settings, dtype, weights, metrics)


def answers() -> Answers:
    """All that is stored of tinker-cookbook."""
    return Answers(
        trainer="tinker-cookbook",
        source="thinking-machines-lab/tinker-cookbook commit "
        f"{TINKER_COOKBOOK.commit}, {METRICS}: compute_kl_sample_train",
        corrections=[
            *(corrected(batch, settings) for settings in CORRECTIONS for batch in BATCHES),
            *(corrected(batch, {"loss_fn": "ppo"}, "float32") for batch in ("mild", "rough")),
        ],
    )
