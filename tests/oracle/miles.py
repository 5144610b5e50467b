"""miles' own policy loss with its corrections and helper, from a checkout.

What stands for other code: there is one process, and the log-probs that a model's forward would
give are those of the batch.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.oracle.checkout_answers import Answer, LossAnswer
from tests.oracle.checkouts import MILES, taken
from tests.trainers.checkout_batches import Batch, Rows

HUB = "miles/backends/training_utils/loss_hub"
HELPER = "examples/infra_features/train_infer_mismatch_helper"
ICEPOP = "miles.backends.training_utils.loss_hub.corrections.icepop_function"
MIS = "examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
ONE = SimpleNamespace(cp=SimpleNamespace(size=1, rank=0, group=None))


@contextmanager
def _uncompiled() -> Iterator[None]:
    import torch

    with patch.object(torch, "compile", lambda **_: lambda function: function):
        yield


def _torch() -> dict[str, Any]:
    import torch

    return {"torch": torch, "Namespace": SimpleNamespace}


@cache
def code() -> SimpleNamespace:
    """Return the loss and the functions that it calls."""
    with _uncompiled():
        cp_utils = taken(
            MILES,
            "miles/backends/training_utils/cp_utils.py",
            (
                "get_sum_of_sample_mean",
                "get_local_response_loss_masks",
                "slice_loss_masks_for_local_cp",
                "all_gather_with_cp",
                "slice_log_prob_with_cp",
            ),
            **_torch(),
            get_parallel_state=_one_process,
        )
        maths = taken(
            MILES,
            f"{HUB}/math_utils.py",
            (
                "_safe_clamp_log_ratio",
                "_LOG_RATIO_EXP_CLAMP",
                "_safe_exp_neg_ppo_kl",
                "compute_ess_ratio_contribution",
                "compute_approx_kl",
                "compute_opsm_mask",
                "compute_gspo_kl",
                "compute_policy_loss",
            ),
            **_torch(),
            get_parallel_state=_one_process,
            slice_loss_masks_for_local_cp=cp_utils.slice_loss_masks_for_local_cp,
        )
        corrections = taken(
            MILES, f"{HUB}/corrections.py", ("vanilla_tis_function", "icepop_function"), **_torch()
        )
        losses = taken(
            MILES,
            f"{HUB}/losses.py",
            ("policy_loss_function",),
            **_torch(),
            get_parallel_state=_one_process,
            get_log_probs_and_entropy=_forward,
            load_function=_load,
            **{
                name: vars(space)[name]
                for space, names in (
                    (cp_utils, ("all_gather_with_cp", "get_local_response_loss_masks")),
                    (cp_utils, ("get_sum_of_sample_mean",)),
                    (maths, ("compute_approx_kl", "compute_ess_ratio_contribution")),
                    (maths, ("compute_gspo_kl", "compute_opsm_mask", "compute_policy_loss")),
                    (corrections, ("vanilla_tis_function",)),
                )
                for name in names
            },
        )
    return SimpleNamespace(
        loss=losses.policy_loss_function,
        icepop=corrections.icepop_function,
        reducer=cp_utils.get_sum_of_sample_mean,
        helper=_helper(cp_utils),
    )


def _helper(cp_utils: SimpleNamespace) -> types.ModuleType:
    """Return the mismatch helper as a module; it imports nothing but torch."""
    module = types.ModuleType("miles_mis")
    text = Path(MILES.folder, HELPER, "mis.py").read_text()
    within = "miles.backends.training_utils.cp_utils"
    with patch.dict("sys.modules", {within: cp_utils}):
        exec(compile(text, "mis.py", "exec"), vars(module))
    module.cp_utils = cp_utils  # type: ignore[attr-defined]
    return module


def _one_process() -> SimpleNamespace:
    return ONE


def _load(path: str) -> Any:
    return code().icepop if path.endswith("icepop_function") else _compute_mis_weights_with_cp


def _compute_mis_weights_with_cp(**given: Any) -> Any:
    """Call the helper while its own late import finds the context-parallel functions."""
    names = ("miles", "miles.backends", "miles.backends.training_utils")
    modules = {name: types.ModuleType(name) for name in names}
    modules["miles.backends.training_utils.cp_utils"] = code().helper.cp_utils
    with patch.dict("sys.modules", modules):
        return code().helper.compute_mis_weights_with_cp(**given)


def _forward(logits: Any, *, args: Any, **_: Any) -> dict[str, Any]:
    return {"log_probs": list(args.current)}


def helper_defaults() -> dict[str, Any]:
    """Return the helper's YAML as it is shipped."""
    import yaml

    return yaml.safe_load(Path(MILES.folder, HELPER, "mis.yaml").read_text())


def arguments(config: dict[str, Any], current: list[Any]) -> SimpleNamespace:
    """Return miles' arguments; a config that names the helper has the keys of its YAML."""
    flags = {
        "use_tis": False,
        "tis_clip": 2.0,
        "tis_clip_low": 0.0,
        "custom_tis_function_path": None,
        "get_mismatch_metrics": False,
        "use_rollout_logprobs": False,
        "calculate_per_token_loss": False,
        "skip_actor_forward_only": False,
        "custom_pg_loss_reducer_function_path": None,
        "advantage_estimator": "grpo",
        "eps_clip": 0.2,
        "eps_clip_high": 0.2,
        "eps_clip_c": None,
        "use_opsm": False,
        "opsm_delta": 1e-4,
        "use_kl_loss": False,
        "entropy_coef": 0.0,
        "observe_training_entropy": False,
        "dump_details": None,
        "qkv_format": "thd",
    }
    helper = str(config.get("custom_tis_function_path")).endswith("compute_mis_weights_with_cp")
    yaml = helper_defaults() if helper else {}
    return SimpleNamespace(**{**flags, **yaml, **config}, current=current)


def step(
    config: dict[str, Any],
    batch: Batch,
    current: list[list[float]] | None = None,
    dtype: str = "float64",
) -> tuple[Any, dict[str, float], list[Any], list[Any]]:
    """Return the loss, logged metrics, differentiable log-probs, and final masks."""
    import torch

    def rows(values: Any) -> list[Any]:
        return [torch.tensor(row, dtype=getattr(torch, dtype)) for row in values]

    variables = [row.requires_grad_() for row in rows(current or batch.old)]
    args = arguments(config, variables)
    masks, lengths = rows(batch.mask), batch.lengths
    data = {
        "advantages": [
            advantage * row  # opsm_clipfrac counts masked tokens with an advantage below 0
            for row, advantage in zip(masks, batch.advantages, strict=True)
        ],
        "log_probs": rows(batch.old),
        "rollout_log_probs": rows(batch.rollout),
        "loss_masks": masks,
        "rollout_mask_sums": [row.sum() for row in masks],
        "response_lengths": lengths,
        "total_lengths": lengths,
        "unconcat_tokens": None,
    }
    final: list[Any] = masks

    def watched(lengths_: Any, responses: Any, used: list[Any], *rest: Any, **named: Any) -> Any:
        nonlocal final
        final = used
        return code().reducer(lengths_, responses, used, *rest, **named)

    sums, per_token = data["rollout_mask_sums"], args.calculate_per_token_loss
    reduce = code().reducer(lengths, lengths, masks, per_token, denominators=sums)
    space = code().loss.__globals__
    with patch.dict(space, {"get_sum_of_sample_mean": watched}):
        loss, logged = code().loss(args, data, torch.empty(0), reduce)
    count = len(lengths)
    if per_token:
        count = sum(max(int(row.sum()), 1) for row in masks)
    metrics = {key: float(value) / count for key, value in logged.items()}
    return loss / count, metrics, variables, final


def ask(config: dict[str, Any], batch: Batch, dtype: str = "float64") -> Answer:
    """Return weights, mask and logged metrics of the first update, in which current = old."""
    _, metrics, _, final = step(config, batch, dtype=dtype)
    kept = batch.grid([row.tolist() for row in final])
    return Answer(_weights(config, batch, dtype), kept, metrics)


def _weights(config: dict[str, Any], batch: Batch, dtype: str) -> np.ndarray | None:
    """Return the factor of the chosen function on a loss of 1, before batch normalisation.

    None where it multiplies by nothing.
    """
    import torch

    args = arguments({**config, "tis_batch_normalize": False}, [])
    if not args.use_tis:
        return None

    def rows(values: Any) -> list[Any]:
        return [torch.tensor(row, dtype=getattr(torch, dtype)) for row in values]

    path = args.custom_tis_function_path
    function = _load(path) if path else code().loss.__globals__["vanilla_tis_function"]
    weights, _, _ = function(
        args=args,
        pg_loss=torch.ones(sum(batch.lengths), dtype=getattr(torch, dtype)),
        train_log_probs=rows(batch.old),
        rollout_log_probs=rows(batch.rollout),
        loss_masks=rows(batch.mask),
        total_lengths=batch.lengths,
        response_lengths=batch.lengths,
    )
    return batch.grid([part.tolist() for part in weights.split(batch.lengths)])


def update(config: dict[str, Any], batch: Batch, current: Rows) -> LossAnswer:
    """Return the loss of one micro-batch and its gradient."""
    loss, metrics, variables, _ = step(config, batch, current)
    loss.backward()
    gradient = batch.grid([variable.grad.tolist() for variable in variables])
    return LossAnswer(loss.item(), gradient, metrics)
