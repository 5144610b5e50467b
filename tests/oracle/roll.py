"""ROLL's own correction and aggregation, taken out of a checkout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.oracle.answers import Answer
from tests.oracle.checkouts import ROLL, taken
from tests.trainers.batches import Batch

CORRECTIONS = "roll/utils/train_infer_corrections.py"
FUNCTIONALS = "roll/utils/functionals.py"
AGENTIC = "roll/pipeline/agentic/utils.py"
WEIGHT = {"enabled": False, "weight_type": "token", "upper_bound": 1.2, "detach": True}
FILTER = {
    "enabled": False,
    "agg_type": "token",
    "ratio_enabled": True,
    "ratio_low": 0.8,
    "ratio_high": 1.2,
    "diff_enabled": False,
    "diff_low": -0.2,
    "diff_high": 0.2,
}


def functionals() -> SimpleNamespace:
    import torch

    names = ("masked_mean", "masked_sum", "agg_loss")
    return taken(ROLL, FUNCTIONALS, names, torch=torch)


def code() -> SimpleNamespace:
    import torch

    shared = functionals()
    segments = taken(ROLL, AGENTIC, ("compute_segment_masked_mean",), torch=torch)
    return taken(
        ROLL,
        CORRECTIONS,
        (
            "_compute_all_granularity",
            "_infer_global_valid_samples_from_mask",
            "_infer_global_valid_tokens_from_mask",
            "compute_train_infer_correction",
        ),
        torch=torch,
        masked_mean=shared.masked_mean,
        masked_sum=shared.masked_sum,
        agg_loss=shared.agg_loss,
        compute_segment_masked_mean=segments.compute_segment_masked_mean,
    )


def settings_of(config: dict[str, Any]) -> SimpleNamespace:
    """Return the settings as ROLL holds them, its defaults filled in."""
    weight = {**WEIGHT, **config.get("is_weight", {})}
    filters = [{**FILTER, **each} for each in config.get("filters", [])]
    return SimpleNamespace(
        is_weight=SimpleNamespace(**weight),
        filters=[SimpleNamespace(**each) for each in filters],
    )


def ask(config: dict[str, Any], batch: Batch, dtype: str = "float64") -> Answer:
    """Return weights, filters and metrics; log-probs are 0 where the mask is, as in ROLL."""
    import torch

    mask = torch.tensor(batch.grid(batch.mask) > 0).long()
    old, rollout = (
        torch.tensor(batch.grid(rows), dtype=getattr(torch, dtype)) * mask
        for rows in (batch.old, batch.rollout)
    )
    settings = settings_of(config)
    weights, kept, metrics = code().compute_train_infer_correction(settings, mask, old, rollout)
    return Answer(
        weights=weights.numpy() if settings.is_weight.enabled else None,
        kept=kept.numpy(),
        metrics=metrics,
    )
