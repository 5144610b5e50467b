"""ROLL's own correction and aggregation, from a checkout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.oracle.checkout_answers import Answer, LossAnswer
from tests.oracle.checkouts import ROLL, taken
from tests.trainers.checkout_batches import Batch, Rows

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
    """Return the settings in ROLL's layout, with its defaults."""
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


RLVR = "roll/pipeline/rlvr"


def _workers() -> SimpleNamespace:
    import torch

    shared = taken(ROLL, FUNCTIONALS, ("compute_approx_kl",), torch=torch)
    space = {
        "torch": torch,
        "np": np,
        "masked_mean": functionals().masked_mean,
        "agg_loss": functionals().agg_loss,
        "compute_approx_kl": shared.compute_approx_kl,
        "compute_train_infer_correction": code().compute_train_infer_correction,
    }
    base = ROLL.definitions(
        f"{RLVR}/actor_worker.py", ("ActorWorker",), {**space, "BaseActorWorker": object}
    )["ActorWorker"]
    variants = ROLL.definitions(
        f"{RLVR}/actor_pg_worker.py", ("ActorPGWorker",), {**space, "ActorWorker": base}
    )["ActorPGWorker"]
    return SimpleNamespace(ppo=base, variants=variants)


def update(config: dict[str, Any], batch: Batch, current: Rows) -> LossAnswer:
    """Return the loss of one micro-batch by the RLVR worker, and its gradient.

    `pg_variant` takes the worker of that name; other keys than those of the correction are the
    pipeline's.
    """
    import torch

    pipeline = {
        "enable_old_logprobs_recompute": False,
        "loss_agg_mode": "seq-mean-token-mean",
        "importance_sampling": "token",
        "pg_clip": 0.2,
        "use_pg_clip_range": False,
        "dual_clip_loss": False,
        "use_kl_loss": False,
        "rl_loss_coef": 1.0,
        "entropy_loss_coef": 0.0,
        "difficulty_loss_weight": False,
        "length_loss_weight": False,
        **{key: value for key, value in config.items() if key not in ("is_weight", "filters")},
    }
    variant = pipeline.pop("pg_variant", None)
    place = "actor_train."
    of_actor = {name: pipeline.pop(name) for name in list(pipeline) if name.startswith(place)}
    actor = {name.removeprefix(place): value for name, value in of_actor.items()}
    mask = torch.tensor(batch.grid(batch.mask) > 0).long()
    old, rollout, variable = (
        torch.tensor(batch.grid(rows)) * mask for rows in (batch.old, batch.rollout, current)
    )
    variable.requires_grad_()
    first = torch.zeros(len(mask), 1).long()  # the prompt's token: masks are one longer
    tokens, samples = int(mask.sum()), int((mask.sum(1) > 0).sum())
    data = SimpleNamespace(
        batch={
            "response_mask": torch.cat([first, mask], 1),
            "ref_log_probs": old,
            # ROLL's advantages are 0 where the mask is.
            "advantages": torch.tensor(batch.advantages)[:, None].double() * mask,
            "infer_logprobs": rollout,
            "old_log_probs": old,
            "input_ids": None,
            "scores": torch.tensor(batch.advantages).double(),
        },
        meta_info={
            "batch_num_tokens": {"response_mask": tokens},
            "global_valid_samples": {"response_mask": samples},
        },
        non_tensor_batch={},
    )
    worker = (_workers().variants if variant else _workers().ppo)()
    worker.pipeline_config = SimpleNamespace(
        **pipeline,
        train_infer_correction=settings_of(config),
        actor_train=SimpleNamespace(pg_variant=variant, **actor),
    )
    worker.logger = SimpleNamespace(info=lambda text: None, warning=lambda text: None)
    worker.strategy = SimpleNamespace(
        op_compute_log_probs=lambda **_: variable,
        op_compute_entropy=lambda **_: torch.zeros_like(variable),
    )
    worker.get_old_log_probs_with_cache = lambda data, log_probs: data.batch["old_log_probs"]
    total, logged = worker.loss_func(data, None)
    total.backward()
    return LossAnswer(total.item(), variable.grad.numpy(), logged)
