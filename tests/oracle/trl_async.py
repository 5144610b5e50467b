"""The loss of TRL's asynchronous GRPO and what it logs, out of its published wheel.

The statements of `compute_loss` run from the log-ratio to the logged numbers; the model's forward
pass before them is replaced by the log-probs of the batch.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.oracle.cases import corrected_case, updated_case
from tests.oracle.published import arithmetic, execute, functions, method, module, space_of
from tests.oracle.trl import VERSION
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import BATCHES, Batch

FILE = "trl/experimental/async_grpo/async_grpo_trainer.py"
LOSSES: list[Settings] = [{}, {"epsilon": 0.1, "epsilon_high": 0.28}]
# A sampler's log-prob that is missing or minus infinity has no ratio: TRL asks vLLM for all.
NAMES = ("toy", "mild", "rough", "beyond")


def _run(rows: Batch, settings: Settings, at_old: bool) -> tuple[Any, Any, dict[str, float]]:
    """Return loss, current log-probs [rows, longest] and what is logged, of one micro-batch."""
    import torch

    compute = method(module("trl", VERSION, FILE), "AsyncGRPOTrainer", "compute_loss")
    (first,) = (
        place
        for place, statement in enumerate(compute.body)
        if ast.unparse(statement).startswith("log_ratio = ")
    )
    (last,) = (
        place
        for place, statement in enumerate(compute.body)
        if ast.unparse(statement).startswith("with torch.no_grad()")
    )
    epsilon = settings.get("epsilon", 0.2)
    with arithmetic("float64") as wide, patch.object(torch, "float32", wide):
        current = torch.tensor(rows.old if at_old else rows.current, dtype=wide)
        current.requires_grad_()
        mask = torch.tensor(rows.mask)
        accelerator = SimpleNamespace(
            num_processes=1,
            device="cpu",
            reduce=lambda tensor, reduction: tensor,
            gather=lambda tensor: tensor.reshape(-1),
        )
        trainer = SimpleNamespace(
            epsilon_low=epsilon,
            epsilon_high=settings.get("epsilon_high", epsilon),
            accelerator=accelerator,
            current_gradient_accumulation_steps=1,
            aux_loss_enabled=False,
            _metrics={"train": defaultdict(list)},
        )
        space = space_of(
            self=trainer,
            log_probs=current[mask],
            old_log_probs=torch.tensor(rows.rollout, dtype=wide)[mask],
            advantages=torch.tensor(rows.token_advantages, dtype=wide)[mask],
            entropy=torch.zeros(int(mask.sum()), dtype=wide),
            segment_id=torch.arange(len(mask))[:, None].expand(mask.shape)[mask],
            inputs={"global_n_tokens": mask.sum().to(wide)[None]},
        )
        functions(module("trl", VERSION, "trl/trainer/utils.py"), ["nanmin", "nanmax"], space)
        execute(compute.body[first : last + 1], space)
        logged = {name: values[0] for name, values in trainer._metrics["train"].items()}
    del logged["entropy"]
    return space["loss"], current, logged


def corrected(batch: str) -> Corrected:
    """What is logged of the mismatch in a first update, in which the current policy is the old."""
    _, _, logged = _run(BATCHES[batch], {}, at_old=True)
    metrics = {name: logged[name] for name in ("ratio", "kl")}
    return corrected_case(batch, {}, "float64", None, metrics)


def updated(batch: str, settings: Settings) -> Updated:
    """The loss of one micro-batch that holds all rows."""
    loss, current, logged = _run(BATCHES[batch], settings, at_old=False)
    loss.backward()
    return updated_case(batch, settings, loss, current.grad, logged)


def answers() -> Answers:
    """All that is stored of TRL's asynchronous GRPO."""
    return Answers(
        trainer="trl-async-1.16",
        source=f"trl {VERSION} on PyPI, {FILE}: statements of AsyncGRPOTrainer.compute_loss",
        corrections=[corrected(batch) for batch in NAMES],
        losses=[updated(batch, settings) for settings in LOSSES for batch in NAMES],
    )
