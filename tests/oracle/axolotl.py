"""Axolotl's own GRPO trainer, out of its published wheel.

It runs with `trl.use_data_producer` or `trl.async_prefetch`; without them Axolotl hands its
settings to TRL. Two statements run of the methods that score rollouts: that which makes the
weights and that which logs them. `_compute_loss` runs whole.
"""

from __future__ import annotations

import ast
from functools import cache
from types import SimpleNamespace
from typing import Any

from tests.oracle.published import arithmetic, bare_class, branches, execute, module, space_of
from tests.oracle.trl import (
    MODES,
    Log,
    correction_case,
    loss_case,
    nan_functions,
    one_process,
    tensors,
)
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import BATCHES

VERSION = "0.21.0"
FILE = "axolotl/core/trainers/grpo/async_trainer.py"
# Defaults of `AsyncGRPOConfig`, and of TRL's GRPOConfig, which it extends.
CORRECTION: Settings = {
    "use_vllm": True,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_cap": 3.0,
    "off_policy_mask_threshold": None,
}
LOSS: Settings = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "max_completion_length": 512,
}
CAPS = (1.25, 2.5, 8.0)
CORRECTIONS: list[Settings] = [
    {},
    *({"vllm_importance_sampling_mode": mode} for mode in MODES),
    *(
        {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_cap": cap}
        for mode in MODES
        for cap in CAPS
    ),
    {"off_policy_mask_threshold": 0.02},
    {"vllm_importance_sampling_correction": False},
    {"use_vllm": False},
]
LOSSES: list[Settings] = [
    *({"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo")),
    *(
        {"loss_type": name, "importance_sampling_level": "sequence"}
        for name in ("grpo", "dapo", "sapo")
    ),
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "grpo", "delta": 1.25, "epsilon_high": 0.28},
    {"loss_type": "dapo", "vllm_importance_sampling_correction": False},
    {"loss_type": "dapo", "vllm_importance_sampling_mode": "sequence_mask"},
    {"loss_type": "dapo", "off_policy_mask_threshold": 0.02},
    *(
        {"loss_type": "luspo", "importance_sampling_level": "sequence", **settings}
        for settings in (
            {"vllm_importance_sampling_correction": False},
            {"vllm_importance_sampling_mode": "sequence_mask"},
            {"vllm_importance_sampling_mode": "token_truncate"},
            {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_cap": 1.25},
            {"off_policy_mask_threshold": 0.02, "epsilon_high": 0.28},
        )
    ),
]
LOSS_BATCHES = ("mild", "rough", "beyond")


@cache
def _tree() -> ast.Module:
    return module("axolotl", VERSION, FILE)


@cache
def _of_weights() -> list[ast.If]:
    """Return statements for the whole batch, not for a chunk of a streamed one."""
    made, logged = [], []
    for node in ast.walk(_tree()):
        if isinstance(node, ast.FunctionDef):
            made += branches(node, "old_per_token_logps is not None) and")
            logged += branches(node, "'importance_sampling_ratio' in data and 'sampling_")
    first = min(made, key=lambda node: node.lineno)
    after = [node for node in logged if node.lineno > first.lineno]
    return [first, min(after, key=lambda node: node.lineno)]


def _trainer(settings: Settings) -> Any:
    space = space_of(**vars(nan_functions()))
    config = SimpleNamespace(**CORRECTION | LOSS | settings, use_bias_correction_kl=False)
    trainer = bare_class(
        _tree(), "AsyncGRPOTrainer", ("_compute_loss", "get_off_policy_mask"), space
    )()
    vars(trainer).update(vars(config))
    trainer.args = config
    trainer.epsilon_low = config.epsilon
    trainer.epsilon_high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    trainer.beta, trainer.top_entropy_quantile = 0.0, 1.0
    trainer.aux_loss_enabled = trainer.is_fsdp_enabled = False
    trainer.current_gradient_accumulation_steps = 1
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator, trainer._metrics = one_process(), Log()
    return trainer


def _weights_of(trainer: Any, given: SimpleNamespace) -> dict[str, Any]:
    """Run both statements; returns the trainer's batch."""
    data = {
        "old_per_token_logps": given.old,
        "sampling_per_token_logps": given.rollout,
        "tool_mask": given.mask,
    }
    space = space_of(
        self=trainer,
        data=data,
        old_per_token_logps=given.old,
        completion_mask=given.response,
        device="cpu",
        mode="train",
        **vars(nan_functions()),
    )
    execute(_of_weights(), space)
    return data


def corrected(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Run the correction on one generation batch."""
    import torch

    with arithmetic(dtype) as wide, torch.no_grad():
        given, trainer = tensors(BATCHES[batch], wide), _trainer(settings)
        weights = _weights_of(trainer, given).get("importance_sampling_ratio")
        return correction_case(trainer, weights, given, batch, settings, dtype)


def updated(batch: str, settings: Settings) -> Updated:
    """Run the loss on one micro-batch."""
    import torch

    with arithmetic("float64") as wide:
        given, trainer = tensors(BATCHES[batch], wide), _trainer(settings)
        with torch.no_grad():
            inputs = _weights_of(trainer, given)
        del inputs["sampling_per_token_logps"]  # of a run without vLLM
        return loss_case(trainer, inputs, given, batch, settings)


def answers() -> Answers:
    """Return all stored results of Axolotl's own trainer."""
    batches = [batch for batch in BATCHES if batch not in ("missing", "infinite")]
    return Answers(
        trainer="axolotl-0.21",
        source=f"axolotl {VERSION} on PyPI, {FILE}: two statements of AsyncGRPOTrainer, and its "
        "_compute_loss and get_off_policy_mask",
        corrections=[
            *(corrected(batch, settings) for settings in CORRECTIONS for batch in batches),
            *(corrected(batch, {}, "float32") for batch in batches),
        ],
        losses=[updated(batch, settings) for settings in LOSSES for batch in LOSS_BATCHES],
    )
