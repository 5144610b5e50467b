"""slime's own loss and MIS helper, imported from a checkout, on CPU in float64.

slime is on no package index: RCDIAG_SLIME names the checkout. rcdiag follows commit 624b824a8.
What stands for other code: Megatron says that there is one process, the model's forward gives the
log-probs of the batch, and wandb and torch.compile are left out.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from rcdiag.losses.settings import LossSettings
from tests.losses.batches import PaddedLoss
from tests.losses.rules import DECLARED, value

CHECKOUT = os.environ.get("RCDIAG_SLIME", "")
needs_slime = pytest.mark.skipif(
    not CHECKOUT,
    reason="slime is on no package index: git clone https://github.com/THUDM/slime, "
    "then export RCDIAG_SLIME=/path/to/slime (rcdiag follows its commit 624b824a8)",
)
MEGATRON = "slime.backends.megatron_utils"
MIS = "examples.train_infer_mismatch_helper.mis"
OURS = ("slime", "examples", "megatron")  # packages that are importable only in this module


@dataclass(frozen=True, slots=True)
class Answer:
    """Logged metrics of one step in slime; the gradient is by log-probs, [rows, width]."""

    loss: float
    metrics: dict[str, float]
    gradient: np.ndarray


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(contents)
    return module


def _of_one_process() -> dict[str, types.ModuleType]:
    mpu = _module(
        "megatron.core.mpu",
        get_context_parallel_world_size=lambda: 1,
        get_context_parallel_group=lambda: None,
        get_data_parallel_world_size=lambda with_context_parallel: 1,
    )
    # The package's own __init__ starts accelerators and patches Megatron.
    shell = _module(MEGATRON, __path__=[str(Path(CHECKOUT, *MEGATRON.split(".")))])
    logger = _module("slime.observability.logging_utils")
    core = _module("megatron.core", mpu=mpu)
    return {item.__name__: item for item in (mpu, core, _module("megatron"), shell, logger)}


_modules: dict[str, types.ModuleType] = {}


@contextmanager
def importable() -> Iterator[None]:
    """Make slime importable in this block, also for its own `load_function`."""
    import torch

    if "megatron" in sys.modules:  # by a block around this one
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(patch.object(sys, "path", [CHECKOUT, *sys.path]))
        stack.enter_context(patch.object(sys, "dont_write_bytecode", True))
        stack.enter_context(patch.object(torch, "compile", lambda **_: lambda function: function))
        sys.modules.update(_modules or _of_one_process())
        try:
            yield
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
                _modules[name] = sys.modules.pop(name)


@cache
def code(name: str) -> types.ModuleType:
    """Import a module of slime."""
    with importable():
        return importlib.import_module(name)


def _forward(logits: Any, *, args: Namespace, **_: Any) -> tuple[Any, dict[str, list[Any]]]:
    """Replaces the model's forward: returns the log-probs in `args`."""
    import torch

    entropy = [torch.zeros_like(row).detach() for row in args.current]
    return torch.empty(0), {"log_probs": list(args.current), "entropy": entropy}


def corrected(args: Namespace, **given: Any) -> tuple[Any, list[Any], dict[str, Any]]:
    """Custom TIS function that returns the weights and masks in `args`."""
    import torch

    if args.weights is not None:
        given["pg_loss"] = given["pg_loss"] * torch.cat(args.weights)
    return given["pg_loss"], args.kept, {}


def _arguments(loss: str, chosen: LossSettings) -> dict[str, Any]:
    """Build the trainer's command-line arguments."""
    own = {name: value(chosen, name) for name in DECLARED}
    return {
        "advantage_estimator": "grpo" if loss == "vanilla" else loss,
        "eps_clip": own["clip_low"],
        "eps_clip_high": own["clip_high"],
        "eps_clip_c": own["clip_c"],
        "calculate_per_token_loss": chosen.aggregation == "token-mean",
        "use_rollout_logprobs": own["use_rollout_logprobs"],
        "use_opsm": own["opsm_delta"] is not None,
        "opsm_delta": own["opsm_delta"],
        "use_tis": False,
        "custom_tis_function_path": None,
        "get_mismatch_metrics": False,
        "rollout_top_p": 1.0,
        "entropy_coef": 0.0,
        "use_kl_loss": False,
        "loss_type": "policy_loss",
        "recompute_loss_function": False,
        "allgather_cp": False,
    }


def _correction(batch: PaddedLoss, rows: Any) -> dict[str, Any]:
    """Return weights and masks in the form of a custom function."""
    if batch.weights is None and (batch.kept == batch.mask).all():
        return {"custom_tis_function_path": None}
    return {
        "use_tis": True,
        "custom_tis_function_path": f"{__name__}.corrected",
        "weights": None if batch.weights is None else rows(batch.weights),
        "kept": rows(batch.kept),
    }


def ask(
    loss: str,
    batch: PaddedLoss,
    chosen: LossSettings,
    rollout: np.ndarray | None,
    **others: Any,
) -> Answer:
    """Run one step on one micro-batch; `others` on the command line replace `_correction`."""
    import torch

    def rows(values: np.ndarray) -> list[Any]:
        return [torch.tensor(row, dtype=torch.float64) for row in values]

    current = [row.requires_grad_() for row in rows(batch.current)]
    arguments = _arguments(loss, chosen) | (others or _correction(batch, rows))
    args = Namespace(**arguments, current=current)
    count, width = batch.mask.shape
    data = {
        "advantages": rows(batch.advantages),
        # Masks and their sums are int and float32 in slime, which would round float64 metrics.
        "loss_masks": rows(batch.mask),
        "rollout_mask_sums": rows(batch.mask.sum(axis=1)),
        "response_lengths": [width] * count,
        "total_lengths": [width + 3] * count,
        "unconcat_tokens": None,
    }
    if not value(chosen, "use_rollout_logprobs"):
        data["log_probs"] = rows(batch.old)
    if rollout is not None:
        data["rollout_log_probs"] = rows(rollout)
    with (
        importable(),
        patch.object(code(f"{MEGATRON}.loss"), "get_log_probs_and_entropy", _forward),
    ):
        total, divisor, log = code(f"{MEGATRON}.loss").loss_function(
            args, data, 1, count, torch.empty(0)
        )
    total = total / divisor
    total.backward()
    zeros = torch.zeros(width, dtype=torch.float64)
    gradient = [(zeros if row.grad is None else row.grad).numpy() for row in current]
    return Answer(total.item(), _logged(args, log, count), np.array(gradient))


def _logged(args: Namespace, log: dict[str, Any], count: int) -> dict[str, float]:
    """Return the metrics of the step, by slime's own reduction."""
    import torch.distributed

    with patch.object(torch.distributed, "all_reduce", lambda *_, **__: None):
        return code("slime.observability.train_metric_utils").reduce_train_step_metrics(
            [log],
            calculate_per_token_loss=args.calculate_per_token_loss,
            step_global_batch_size=count,
            cp_size=1,
            dp_with_cp_group=None,
        )
